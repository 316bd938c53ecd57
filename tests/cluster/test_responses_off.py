#!/usr/bin/python3
"""Hangs, sick nodes and the job's end have no response where it is switched off (responses.py)."""

import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import responses  # noqa: E402
from harness import SLURM  # noqa: E402
from responses import LONG  # noqa: E402
from walkers import WalkerCase  # noqa: E402


def setUpModule() -> None:
    responses.start_without()


class Off(WalkerCase):
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
        gang.job.wait(SLURM)  # sbatch's own exit code is 0 when the limit comes before the script's end has been recorded
        self.assertEqual(self.final_state(gang.job), "TIMEOUT")
        self.assertEqual(gang.generation(), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
