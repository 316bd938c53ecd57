#!/usr/bin/python3
"""The controls of the tests of Muster's responses: with a response switched off, what those tests wait for does not come.

Each does what the test of its row does, and waits several times as long as that response takes where it is on.
"""

import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import SLURM  # noqa: E402
from walkers import WalkerCase  # noqa: E402

# Where the response is on it takes 4 s (silence) at most.
LONG = 12.0


def setUpModule() -> None:
    limits = {"beat": "300ms", "lease": "5m", "silence": "10m"}
    settings = {
        "time_limit_margin": "0s",
        "health_timeout": "0s",
        "health_nics": "fabric0",  # which no node has
    }
    harness.start("off", nodes=4, ceph=False, limits=limits, settings=settings, slurm={"SlurmdTimeout": "300"})


class Off(WalkerCase):
    def test_a_dead_node_is_not_replaced(self) -> None:
        """Switched off: Node dies or is cut off."""
        gang = self.walk("spares=1", nodes=4, tasks=8)
        gang.started(1, 6)
        gang.commits(1)
        self.cluster.kill("n3")
        gang.stays(LONG)
        self.assertFalse(self.node_states()["n3"].startswith("down"), self.node_states())

    def test_a_dead_coordinator_has_no_successor(self) -> None:
        """Switched off: Coordinator's node dies."""
        gang = self.walk("spares=1", nodes=4, tasks=8)
        gang.started(1, 6)
        gang.commits(1)
        self.cluster.kill("n2")
        gang.stays(LONG)
        logs = [(self.cluster.directory / "log" / f"{n}.musterd.log").read_text() for n in ("n1", "n3", "n4")]
        self.assertFalse([text for text in logs if f"gang {gang.job.gang}: this node coordinates" in text])

    def test_the_job_of_a_dead_batch_host_is_not_requeued(self) -> None:
        """Switched off: Batch host dies."""
        gang = self.walk_in_batch("spares=1", nodes=4)
        gang.started(1, 6)
        gang.commits(1)
        self.cluster.kill("n1")
        gang.stays(LONG)
        self.assertEqual(self.job_state(gang.job), "RUNNING")

    def test_a_gang_that_hangs_is_left_alone(self) -> None:
        """Switched off: Program hangs."""
        gang = self.walk(nodes=3, tasks=6)  # with hang=off
        victim = gang.started(1, 6)[4]
        gang.commits(1)
        self.cluster.exec(victim.host, ["kill", "-STOP", str(victim.pid)])
        gang.stays(LONG)
        self.cluster.exec(victim.host, ["kill", "-CONT", str(victim.pid)])
        gang.commits(1)
        gang.finish(6)

    def test_sick_nodes_are_used(self) -> None:
        """Switched off: GPU, NIC, host sick."""
        gang = self.walk(nodes=4, tasks=8)
        records = gang.started(1, 8)
        self.kill_member(records[4])
        records = gang.started(2, 8)
        self.assertEqual({r.host for r in records}, {"n1", "n2", "n3", "n4"})
        gang.finish(8)

    def test_the_time_limit_ends_the_job(self) -> None:
        """Switched off: Job's time limit near."""
        gang = self.walk_in_batch(nodes=2, directives="-t 1")
        gang.started(1, 4)
        gang.commits(1)
        self.assertNotEqual(gang.job.wait(SLURM), 0)
        self.assertEqual(self.job_state(gang.job), "TIMEOUT")
        self.assertEqual(gang.generation(), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
