#!/usr/bin/python3
"""Nodes that die are not replaced where that response is switched off (responses.py)."""

import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import responses  # noqa: E402
from responses import LONG  # noqa: E402
from walkers import WalkerCase  # noqa: E402


def setUpModule() -> None:
    responses.start_without()


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

if __name__ == "__main__":
    unittest.main(verbosity=2)
