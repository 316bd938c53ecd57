#!/usr/bin/python3
"""musterd is away on a node for longer than a silent node would be given: its supervisors wait for it, and the coordinator
counts as they do, so that nothing of the gang is started again."""

import signal
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from walkers import WalkerCase  # noqa: E402

SILENCE_S = 12  # harness.RESTARTS
AWAY_S = SILENCE_S + 8
NODE = "n3"  # neither the batch host nor the coordinator's


def setUpModule() -> None:
    # Whatever this machine does meanwhile, musterd is back within `reconnect`.
    harness.start("away", nodes=4, ceph=False, limits=harness.RESTARTS, settings={"reconnect": "2m"})


class Away(WalkerCase):
    def is_away(self, number: int) -> None:
        gang = self.walk(nodes=4, tasks=8)
        pids = [record.pid for record in gang.started(1, 8)]
        gang.commits(1)
        self.assertNotEqual(self.status(gang.job)["coordinator"], NODE)
        self.cluster.stop_daemon(NODE, "musterd", number)
        gang.grows_old(AWAY_S)
        self.assertEqual(gang.generation(), 1, "the node is not lost meanwhile")
        self.cluster.start_daemon(NODE, "musterd")
        gang.commits(1)
        gang.commits(1)
        self.assertEqual([record.pid for record in gang.job.records(1)], pids)
        gang.finish(8)
        status = self.status(gang.job)
        self.assertEqual((status["generation"], status["restarts"], status["succeeded"]), (1, 0, True))
        self.assertEqual(self.events(gang.job, "fault"), [])

    def test_killed(self) -> None:
        """Row: musterd dies."""
        self.is_away(signal.SIGKILL)

    def test_stopped_in_order(self) -> None:
        """Row: musterd dies."""
        self.is_away(signal.SIGTERM)


if __name__ == "__main__":
    unittest.main(verbosity=2)
