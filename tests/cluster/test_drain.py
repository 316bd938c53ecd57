#!/usr/bin/python3
"""Nodes are taken out of service on purpose, or because they are sick, and given back; Muster is switched off."""

import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from vc.names import CONTROLLER  # noqa: E402
from vc.users import USERS  # noqa: E402
from walkers import WalkerCase, Walkers  # noqa: E402

NIC = "fabric0"


def setUpModule() -> None:
    cluster = harness.start("drain", nodes=4, ceph=False, settings={"health_nics": NIC})
    for node in cluster.compute_nodes:  # an interface that a test can break without cutting the node off
        script = f"ip link add {NIC} type veth peer name {NIC}-peer && ip link set {NIC} up && ip link set {NIC}-peer up"
        done = cluster.exec(node, ["sh", "-c", script])
        if done.returncode != 0:
            raise AssertionError(done.stderr)


class DrainCase(WalkerCase):
    def node(self, action: str, node: str, *words: str) -> None:
        self.hurts(node)
        done = self.cluster.exec(CONTROLLER, ["muster", "node", action, node, *words])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def check_lossless(self, gang: Walkers, generation: int) -> None:
        """A planned restart begins where the generation before was stopped, but for the steps since its last save."""
        newest = max(life.committed for life in gang.lives(generation - 1))
        gang.check_restored(generation, newest)
        self.assertEqual(self.event_texts(gang.job, "fault"), [], "it is nobody's fault")
        self.assertEqual(self.status(gang.job)["user_faults"], 0)


class Drain(DrainCase):
    def test_a_drained_nodes_members_move_to_the_spare_after_a_checkpoint(self) -> None:
        gang = self.walk("spares=1", nodes=4, tasks=8)
        gang.started(1, 6)
        gang.commits(1)
        self.node("drain", "n3", "--reason", "a fan is loud")
        records = gang.started(2, 6)
        self.assertEqual([r.host for r in records], ["n1", "n1", "n2", "n2", "n4", "n4"])
        self.check_lossless(gang, 2)
        gang.check_generations()
        self.assertRegex(self.wait_for_state("n3", "(drng|drain)"), "muster: .*a fan is loud")
        gang.commits(2)
        gang.finish(6)
        self.wait_for_state("n3", "drain")
        self.node("resume", "n3")
        self.wait_for_state("n3", "idle")

    def test_a_drained_node_that_is_given_back_makes_the_gang_grow(self) -> None:
        gang = self.walk("min=2,grow=yes", nodes=3, tasks=6)
        gang.started(1, 6)
        gang.commits(1)
        self.node("drain", "n3")
        records = gang.started(2, 4)
        self.assertEqual({r.host for r in records}, {"n1", "n2"})
        self.check_lossless(gang, 2)
        gang.commits(2)
        self.node("resume", "n3")
        self.assertRegex(records[0].env["MUSTER_RESTART_CAUSE"], "node n3 is drained")
        records = gang.started(3, 6)
        self.assertEqual(records[0].env["MUSTER_RESTART_CAUSE"], "the gang grows")
        self.assertEqual({r.host for r in records}, {"n1", "n2", "n3"})
        self.check_lossless(gang, 3)
        gang.commits(3)
        gang.finish(6)

    def test_the_coordinators_node_can_be_drained(self) -> None:
        gang = self.walk("spares=1", nodes=4, tasks=8)
        gang.started(1, 6)
        gang.commits(1)
        self.node("drain", "n2")
        records = gang.started(2, 6)
        self.assertNotIn("n2", {r.host for r in records})
        self.check_lossless(gang, 2)
        gang.commits(2)
        gang.finish(6)

    def test_a_node_that_cannot_be_replaced_is_drained_and_keeps_its_gang(self) -> None:
        gang = self.walk(nodes=3, tasks=6)
        gang.started(1, 6)
        gang.commits(1)
        self.node("drain", "n3")
        self.wait_for_state("n3", "(drng|drain)")
        gang.commits(1)
        gang.finish(6)
        self.assertEqual(self.status(gang.job)["generation"], 1)

    def test_a_user_sees_a_node_and_his_own_gangs(self) -> None:
        gang = self.walk(nodes=2, tasks=4)
        gang.started(1, 4)
        for user, line in (("trainer", f"gang {gang.job.id}.0 of uid {USERS['trainer']}\n"), ("other", "")):
            shown = self.muster("node", "show", "n2", user=user)
            self.assertEqual(shown.returncode, 0, shown.stderr)
            said = "".join(one for one in shown.stdout.splitlines(keepends=True) if not one.startswith("warning: "))  # of this machine
            self.assertEqual(said, f"n2 is fit for gangs\n{line}")
        gang.finish(4)

    def test_only_root_may_drain(self) -> None:
        done = self.muster("node", "drain", "n3")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("only root", done.stderr)
        self.assertTrue(self.node_states()["n3"].startswith("idle"))


class Sick(DrainCase):
    def test_a_node_that_is_sick_after_a_fault_is_replaced_and_drained_with_the_reason(self) -> None:
        """Row: GPU, NIC, host sick."""
        gang = self.walk("spares=1", nodes=4, tasks=8)
        victim = gang.started(1, 6)[4]
        self.assertEqual(victim.host, "n3")
        gang.commits(1)
        self.hurts("n3")
        self.cluster.exec("n3", ["ip", "link", "set", NIC, "down"])
        self.addCleanup(self.cluster.exec, "n3", ["ip", "link", "set", NIC, "up"])
        self.kill_member(victim)
        generation = self.wait(
            lambda: next((r.generation for r in gang.job.records() if r.host == "n4"), 0), "the spare to be used"
        )
        records = gang.started(generation, 6)
        self.assertNotIn("n3", {r.host for r in records})
        self.assertRegex(self.wait_for_state("n3", "(drng|drain)"), f"muster: .*{NIC}")
        self.assertIn(f"node n3 is sick: nic {NIC}", " ".join(self.event_texts(gang.job, "node_sick")))
        shown = self.muster("node", "show", "n3")
        self.assertEqual(shown.returncode, 1, shown.stderr)
        self.assertRegex(shown.stdout, f"(?m)^n3 is not fit for gangs$(.|\n)*^sick: nic {NIC} ")
        gang.commits(generation)
        gang.finish(6)

    def test_a_node_that_is_sick_before_the_gang_starts_is_left_out(self) -> None:
        """Row: GPU, NIC, host sick."""
        self.hurts("n3")
        self.cluster.exec("n3", ["ip", "link", "set", NIC, "down"])
        self.addCleanup(self.cluster.exec, "n3", ["ip", "link", "set", NIC, "up"])
        self.cluster.restart_daemon("n3", "musterd")  # what it found a moment ago counts for a while
        gang = self.walk("spares=1", nodes=4, tasks=8)
        records = gang.started(1, 6)
        self.assertNotIn("n3", {r.host for r in records})
        gang.commits(1)
        gang.finish(6)


class Off(DrainCase):
    def test_switched_off_jobs_with_gang_run_as_plain_ones(self) -> None:
        self.configure("enabled: no\n")
        job = self.srun(["bash", "-c", "echo ran ${MUSTER_GANG:-plain} ${SLURM_PROCID}; exit $(( SLURM_PROCID == 1 ? 3 : 0 ))"],
                        "restarts=3", nodes=2, tasks=4)
        self.assertEqual(job.wait(), 3, job.err)
        self.assertEqual(sorted(job.out.splitlines()), [f"ran plain {rank}" for rank in range(4)], "once each")
        self.assertEqual(self.muster("status", job.id).returncode, 1, "there was no gang")

    def test_switched_off_a_gang_that_runs_is_not_touched(self) -> None:
        gang = self.walk(nodes=3, tasks=6)
        victim = gang.started(1, 6)[0]
        gang.commits(1)
        self.configure("enabled: no\n")
        gang.commits(1)
        self.assertEqual(gang.generation(), 1)
        self.kill_member(victim)
        gang.started(2, 6)
        gang.commits(2)
        gang.finish(6)


if __name__ == "__main__":
    unittest.main(verbosity=2)
