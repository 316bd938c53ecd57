#!/usr/bin/python3
"""Ceph does not answer for a while: training goes on, nothing is started again, and checkpoints go on when it is back."""

import signal
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import SLURM  # noqa: E402
from vc.names import BUILD_IN_NODE  # noqa: E402
from walkers import WalkerCase, Walkers  # noqa: E402

# Asks for the older of its checkpoints when it is told to.
ASKS_LATER = f"""
sys.path.insert(0, "{BUILD_IN_NODE}/python")
import muster
with muster.init() as gang:
    for step in (1, 2):
        gang.save({{"state": b"%d" % step}}, step)
        gang.wait(step)
    record()
    until(lambda: os.path.exists(path("ask")))
    assert bytes(gang.restore(1)[0]["state"]) == b"1"
"""
STOPPED = ["osd.1", "osd.2"]  # of three; two are needed for a write


def setUpModule() -> None:
    harness.start("cephdown", nodes=3, osds=3, limits=harness.RESTARTS, settings={"store_timeout": "5s"})


class Down(WalkerCase):
    def signal_ceph(self, number: int) -> None:
        for osd in STOPPED:
            self.cluster.signal_daemon("ceph", osd, number)

    def slowest(self, gang: Walkers) -> int:
        return min(life.step for life in gang.lives(gang.generation()))

    def stop_ceph(self) -> None:
        self.signal_ceph(signal.SIGSTOP)
        self.addCleanup(self.signal_ceph, signal.SIGCONT)

    def test_training_goes_on_and_checkpoints_follow_when_it_is_back(self) -> None:
        """Row: Ceph slow or down."""
        gang = self.walk(words=("free",), nodes=3, tasks=6)
        gang.started(1, 6)
        gang.commits(1)
        self.stop_ceph()
        began = self.slowest(gang)
        self.wait(lambda: self.slowest(gang) > began + 300, "all members to go on")
        self.wait(lambda: "checkpoint_delayed" in self.history(gang), "the gang's history to say so", SLURM)
        self.signal_ceph(signal.SIGCONT)
        gang.commits(1, timeout=SLURM)
        self.assertEqual(gang.generation(), 1, "nothing has been started again")
        gang.finish(6, timeout=SLURM)

    def test_musterd_is_killed_and_started_again_meanwhile(self) -> None:
        """It does not wait for the store: its members wait for musterd no longer than `reconnect`."""
        gang = self.walk(words=("free",), nodes=3, tasks=6)
        gang.started(1, 6)
        gang.commits(1)
        self.stop_ceph()
        self.cluster.stop_daemon("ceph", "mon.a", signal.SIGKILL)
        try:
            self.cluster.stop_daemon("n1", "musterd", signal.SIGKILL)  # n2 coordinates
            self.cluster.start_daemon("n1", "musterd")
            began = self.slowest(gang)
            self.wait(lambda: self.slowest(gang) > began + 300, "all members to go on")
            self.assertIn("musterd goes on without it", (self.cluster.directory / "log" / "n1.musterd.log").read_text())
        finally:
            self.cluster.start_daemon("ceph", "mon.a")
        self.signal_ceph(signal.SIGCONT)
        gang.commits(1, timeout=SLURM)
        self.assertEqual(gang.generation(), 1, "nothing has been started again")
        gang.finish(6, timeout=SLURM)

    def test_musterd_is_restarted_meanwhile_though_people_wait_for_its_answers(self) -> None:
        """It lets its members be at once, and waits for neither the store nor those who ask it."""
        gang = self.walk(words=("free",), nodes=3, tasks=6)
        gang.started(1, 6)
        gang.commits(1)
        self.stop_ceph()
        for _ in range(5):
            question = self.cluster.user_popen("n1", ["muster", "report", "storage"])
            self.addCleanup(question.wait)
            self.addCleanup(question.kill)
        self.wait(lambda: "checkpoint_delayed" in self.history(gang), "the gang's history to say so", SLURM)
        self.cluster.signal_daemon("n1", "musterd", signal.SIGTERM)  # n2 coordinates
        self.wait(lambda: self.cluster.daemon_pid("n1", "musterd") is None, "musterd to end")
        self.cluster.start_daemon("n1", "musterd")
        began = self.slowest(gang)
        self.wait(lambda: self.slowest(gang) > began + 300, "all members to go on")
        self.signal_ceph(signal.SIGCONT)
        gang.commits(1, timeout=SLURM)
        self.assertEqual(gang.generation(), 1, "nothing has been started again")
        gang.finish(6, timeout=SLURM)

    def history(self, gang: Walkers) -> str:
        """From the coordinator, which knows it without the store."""
        return self.muster("events", gang.job.gang, node="n2").stdout

    def test_a_program_that_waits_for_its_checkpoints_stands_still_until_it_is_back(self) -> None:
        """Switched off: Ceph slow or down."""
        gang = self.walk(nodes=3, tasks=6)
        gang.started(1, 6)
        gang.commits(1)
        self.stop_ceph()
        gang.stays(3)  # what was under way
        step = max(life.step for life in gang.lives(1))
        gang.stays(5)
        self.assertLessEqual(max(life.step for life in gang.lives(1)), step + 5)
        self.signal_ceph(signal.SIGCONT)
        gang.commits(1, timeout=SLURM)
        gang.finish(6, timeout=SLURM)

    def test_slurm_is_told_of_a_node_that_is_lost_meanwhile(self) -> None:
        """Else a node that boots again soon ends the step: it says to srun that it has no task of it."""
        gang = self.walk("spares=1", nodes=3, tasks=6)
        gang.started(1, 4)
        gang.commits(1)
        self.stop_ceph()
        self.cluster.kill("n1")  # n2 coordinates, n3 is the spare
        self.assertIn("muster: node n1 is lost", self.wait_for_state("n1", "down", SLURM))
        self.cluster.revive("n1")
        # Its record comes first, and that cannot be written.
        gang.stays(3)
        self.assertEqual(gang.job.records(2), [])
        self.signal_ceph(signal.SIGCONT)
        gang.started(2, 4, timeout=SLURM)
        gang.finish(4, timeout=SLURM)

    def test_a_restore_that_needs_the_store_waits_for_it(self) -> None:
        """No program is to end because of the store: an error that it does not catch would count as its own."""
        job = self.gang(ASKS_LATER, nodes=2, tasks=4)
        job.wait_for_generation(1, 4)
        self.stop_ceph()
        (job.files / "ask").touch()
        logs = [self.cluster.directory / "log" / f"n{node}.musterd.log" for node in (1, 2, 3)]
        self.wait(
            lambda: any("waits for its state" in log.read_text() for log in logs), "musterd to ask again", SLURM
        )
        self.assertTrue(job.running())
        self.signal_ceph(signal.SIGCONT)
        self.assertEqual(job.wait(SLURM), 0, job.err)
        self.assertIn("members wait for their state", job.err)
        self.assertEqual(self.status(job)["generation"], 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
