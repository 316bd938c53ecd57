#!/usr/bin/python3
"""A node of a running gang dies or is cut off: a spare takes its ranks, or the gang shrinks, or the job is requeued."""

import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import MEMBER, SLURM, SOON, ClusterCase  # noqa: E402
from walkers import WalkerCase, Walkers  # noqa: E402


def setUpModule() -> None:
    # Slurm notices a dead node by itself much later than Muster: what happens before is Muster's doing.
    harness.start("nodeloss", nodes=5, ceph=False, limits=harness.RESTARTS)


class Spare(WalkerCase):
    def check_replaced(self, gang: Walkers, before: int) -> None:
        """n3 of n1 to n4 is lost, n4 has its ranks 4 and 5."""
        records = gang.started(2, 6)
        self.assertEqual([r.host for r in records], ["n1", "n1", "n2", "n2", "n4", "n4"])
        self.assertEqual({r.env["SLURM_NNODES"] for r in records}, {"3"})
        self.assertEqual({r.env["SLURM_NTASKS"] for r in records}, {"6"})
        self.assertEqual([r.env["GROUP_RANK"] for r in records], ["0", "0", "1", "1", "2", "2"])
        self.assertEqual([r.env["LOCAL_RANK"] for r in records], ["0", "1"] * 3)
        self.assertIn("node n3 is lost: dead or cut off", records[0].env["MUSTER_RESTART_CAUSE"])
        gang.check_restored(2, before)

    def asks_one_after_another(self, node: str) -> None:
        """Waits until a node that hears nobody has asked the other candidates, and come to itself."""
        log = self.cluster.directory / "log" / f"{node}.musterd.log"
        before = log.read_text().count(f"goes on without {node}")
        looked = f"{node} to look at the record"
        self.wait(lambda: log.read_text().count(f"goes on without {node}") > before, looked, 2 * SOON)

    def check_end(self, gang: Walkers, *states: str) -> None:
        """srun and the job end properly, although a node of the job is gone."""
        gang.finish(6, timeout=SLURM)
        self.assertIn(self.final_state(gang.job), states or ("COMPLETED",))
        status = self.status(gang.job)
        self.assertEqual((status["succeeded"], status["generation"], status["restarts"]), (True, 2, 1))
        self.assertEqual(status["user_faults"], 0, "the loss of a node is not the user's fault")

    def test_a_node_that_dies_is_replaced_by_a_spare(self) -> None:
        """Row: Node dies or is cut off."""
        gang = self.walk("spares=1", nodes=4, tasks=8)
        first = gang.started(1, 6)
        self.assertEqual({r.host for r in first}, {"n1", "n2", "n3"}, "the last node waits")
        before = gang.commits(1)
        self.cluster.kill("n3")
        self.check_replaced(gang, before)
        self.assertIn("muster: node n3 is lost", self.wait_for_state("n3", "down"))
        gang.commits(2)
        self.check_end(gang)

    def test_a_node_that_is_cut_off_has_killed_its_members_before_the_spare_takes_over(self) -> None:
        """Row: Node dies or is cut off."""
        gang = self.walk("spares=1", nodes=4, tasks=8)
        old = [r for r in gang.started(1, 6) if r.host == "n3"]
        before = gang.commits(1)
        self.cluster.cut("n3")
        self.check_replaced(gang, before)
        gang.check_generations()
        self.assertEqual([r.pid for r in old if self.alive(r)], [])
        gang.commits(2)
        self.assertIn("muster: node n3 is lost", self.wait_for_state("n3", "down"))
        # Nobody answers it, but it reaches the store: it does not take the record of those who have gone on.
        self.asks_one_after_another("n3")
        self.assertEqual(len(self.events(gang.job, "coordinator")), 1)
        gang.commits(2)
        self.cluster.heal("n3")
        self.wait_for_state("n3", "idle", SLURM)  # it has spoken with slurmctld
        gang.commits(2)
        gang.grows_old(2)
        self.assertEqual(len(self.events(gang.job, "coordinator")), 1, "and whomever it asks: they follow another")
        self.assertEqual(self.member_processes("n3", gang.job), [])
        # slurmctld had the tasks there killed when it called the node DOWN, and was still trying to say so: with the network it
        # gets through, slurmstepd tells srun of tasks that died by SIGKILL. srun makes that the exit code of its job, not its own.
        self.check_end(gang, "COMPLETED", "FAILED")

    def test_a_spare_that_dies_is_no_fault(self) -> None:
        gang = self.walk("spares=1", nodes=4, tasks=8)
        gang.started(1, 6)
        self.cluster.kill("n4")
        self.wait(lambda: self.events(gang.job, "node_lost"), "the loss to be noticed")
        gang.commits(1)
        gang.finish(6, timeout=SLURM)
        self.assertEqual(self.status(gang.job)["generation"], 1)

    def test_a_node_that_another_job_uses_is_not_set_down(self) -> None:
        other = self.start_job(["srun", "-w", "n3", "-n1", "sleep", "600"])
        self.wait(lambda: self.job_state(other) == "RUNNING", "the other job")
        gang = self.walk("spares=1", nodes=4, tasks=8, options=("-w", "n[1-4]"))
        gang.started(1, 6)
        before = gang.commits(1)
        self.cluster.cut("n3")
        self.check_replaced(gang, before)
        self.asks_one_after_another("n3")
        self.wait(lambda: [t for t in self.event_texts(gang.job, "slurm") if "n3 is not set DOWN" in t], "the reason")
        self.assertFalse(self.node_states()["n3"].startswith("down"), self.node_states())
        self.cluster.heal("n3")
        self.wait(lambda: self.events(gang.job, "node_back"), "n3 to be a spare")
        self.assertEqual(len(self.events(gang.job, "coordinator")), 1, "all others follow this coordinator")
        gang.commits(2)
        gang.finish(6, timeout=SLURM)
        self.assertEqual(self.job_state(other), "RUNNING", "the other job has lost nothing")


class Smaller(WalkerCase):
    def test_without_a_spare_the_gang_goes_on_with_fewer_nodes(self) -> None:
        gang = self.walk("min=2", nodes=3, tasks=6)
        gang.started(1, 6)
        before = gang.commits(1)
        self.cluster.kill("n1")
        records = gang.started(2, 4)
        self.assertEqual([r.host for r in records], ["n2", "n2", "n3", "n3"])
        self.assertEqual({r.env["SLURM_NNODES"] for r in records}, {"2"})
        self.assertEqual({r.env["SLURM_NTASKS"] for r in records}, {"4"})
        self.assertEqual([r.env["SLURM_PROCID"] for r in records], ["0", "1", "2", "3"])
        self.assertEqual({r.env["MASTER_ADDR"] for r in records}, {"n2"})
        gang.check_restored(2, before)
        gang.commits(2)
        gang.finish(4, timeout=SLURM)

    def test_a_healed_node_is_taken_back_at_the_next_checkpoint(self) -> None:
        # Another job keeps Slurm from giving the node up: the gang's tasks there live on.
        other = self.start_job(["srun", "-w", "n3", "-n1", "sleep", "600"])
        self.wait(lambda: self.job_state(other) == "RUNNING", "the other job")
        gang = self.walk("min=2,grow=yes", nodes=3, tasks=6, options=("-w", "n[1-3]"))
        gang.started(1, 6)
        before = gang.commits(1)
        self.cluster.cut("n3")
        gang.started(2, 4)
        gang.check_restored(2, before)
        before = gang.commits(2)
        self.cluster.heal("n3")
        records = gang.started(3, 6)
        self.assertEqual([r.host for r in records], ["n1", "n1", "n2", "n2", "n3", "n3"])
        gang.check_restored(3, before)
        self.assertEqual(len(self.event_texts(gang.job, "planned")), 1)
        gang.commits(3)
        gang.finish(6, timeout=SLURM)


class NoRoom(WalkerCase):
    def test_an_srun_that_cannot_go_on_ends_and_says_why(self) -> None:
        gang = self.walk(nodes=3, tasks=6)
        gang.started(1, 6)
        self.cluster.kill("n3")
        self.assertNotEqual(gang.job.wait(SLURM), 0)
        self.assertIn("node n3 is lost: dead or cut off", gang.job.err)
        self.assertIn("2 of the 3 nodes that it needs are left, and no spare", gang.job.err)
        self.assertFalse(self.status(gang.job, code=1)["succeeded"])
        gang.check_generations()

    def test_a_batch_job_that_cannot_go_on_is_requeued_and_goes_on_from_its_checkpoint(self) -> None:
        gang = self.walk_in_batch(nodes=3)
        first = gang.started(1, 6)
        before = gang.commits(1)
        lost = max({r.host for r in first})  # the batch host is the first
        self.cluster.kill(lost)
        records = gang.started(2, 6, SLURM)
        self.assertNotIn(lost, {r.host for r in records})
        self.assertEqual({r.env["SLURM_RESTART_COUNT"] for r in records}, {"1"})
        gang.check_restored(2, before)
        gang.finish(6, timeout=SLURM)
        self.assertEqual(self.final_state(gang.job), "COMPLETED")


class StepsAfterALoss(ClusterCase):
    def test_they_start_on_the_nodes_that_are_left_unless_their_own_flags_ask_for_more(self) -> None:
        program = " ".join([*MEMBER, "{FILES}", '"record(); until_released()"'])
        where = "bash -c 'echo $(hostname) of $SLURM_NTASKS'"
        job = self.batch(
            "#SBATCH -N3 --ntasks-per-node=2 --gang=spares=1\n"
            f"srun {program}\n"
            f"srun --gang=off {where}\nsrun {where}\nSLURM_NTASKS=1 srun --gang=off {where}\nsrun --gang=off -N2 -n2 true 2>{{FILES}}/quiet\n"
            "for flags in -N3 -n6 -w$(<{FILES}/lost); do\n"
            "  srun --gang=off $flags true 2>{FILES}/err$flags; echo $?\ndone\n"
        )
        lost = next(record.host for record in job.wait_for_generation(1, 4) if record.host != "n1")  # the batch host
        (job.files / "lost").write_text(lost)
        self.cluster.kill(lost)
        job.wait_for_generation(2, 4)
        left = ["n1", ({"n2", "n3"} - {lost}).pop()]

        def forgotten() -> bool:
            return self.cluster.exec("ctl", ["squeue", "-h", "-j", job.id, "-o", "%D"]).stdout.split() == ["2"]

        self.wait(forgotten, "Slurm to take the lost node from the job")
        job.release()
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(sorted(job.out.splitlines()[1:]), sorted([f"{node} of 4" for node in left * 2 * 2] + ["n1 of 1"] + ["1"] * 3))
        lost_of = f"of its 3 nodes the job has n[1,{left[1][1:]}] left"
        for flags in ("-N3", "-n6", f"-w{lost}"):
            self.assertIn(
                f"srun: error: muster: {lost_of}: srun without -N, -n and -w starts on all of them, with 4 tasks",
                (job.files / f"err{flags}").read_text().replace("n[1-2]", "n[1,2]"),
            )
        self.assertEqual((job.files / "quiet").read_text(), "")
        # The plain step, and the gang, which needs no spare any more; the user's own number of tasks is no news.
        self.assertEqual(job.err.replace("n[1-2]", "n[1,2]").count(f"srun: muster: {lost_of}: 4 tasks, not 6"), 2)
        self.assertNotIn("conflicts", job.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
