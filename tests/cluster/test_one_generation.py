#!/usr/bin/python3
"""One generation runs: when a process of the next one starts, none of the one before is alive on its node.

The members leave behind what is hard to get rid of. Each member looks at its node's /proc as the first thing it does;
what it finds there of an older generation goes into a file, and the test fails.
"""

import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import PROGRAMS, ClusterCase, Job  # noqa: E402

ROUNDS = 25


def setUpModule() -> None:
    harness.start("onegen", nodes=4, ceph=False)


class OneGeneration(ClusterCase):
    def rounds(self, behaviour: str, death: str, rounds: int = ROUNDS, tasks: int = 8) -> Job:
        """Runs a gang through so many generations, each of which ends by `death` of one member."""
        job = self.srun(
            [f"{PROGRAMS}/stubborn_member", "{FILES}", behaviour, death, str(rounds)],
            gang=f"restarts={rounds}",
            nodes=4,
            tasks=tasks,
        )
        self.assertEqual(job.wait(harness.SOON * 2), 0, job.err)
        self.assertEqual([path.read_text() for path in job.files.glob("alive.*")], [])
        looked = list(job.files.glob("looked.*"))
        self.assertEqual(len(looked), tasks, "every member of the last generation has looked")
        self.assertEqual({path.read_text() for path in looked}, {f"{rounds + 1}\n"})
        self.assertEqual(self.left_behind(job), [])
        return job

    def left_behind(self, job: Job) -> list[str]:
        """Processes of the gang that are still there when its step is over."""
        found = []
        for node in self.cluster.compute_nodes:
            search = f"grep -lsz '^MUSTER_GANG={job.gang}$' /proc/[0-9]*/environ"
            found += self.cluster.exec(node, ["bash", "-c", search]).stdout.split()
        return found

    def test_a_program_without_children(self) -> None:
        self.rounds("plain", "exit")

    def test_helpers_that_ignore_sigterm_and_left_their_session_and_their_parent(self) -> None:
        job = self.rounds("helpers", "exit")
        # The helpers were really there: each member of each generation has counted its own before it went on.
        self.assertGreater(len(list(job.files.glob("helpers.*"))), 0)

    def test_helpers_of_a_member_that_is_killed(self) -> None:
        self.rounds("helpers", "kill")

    def test_a_program_that_forks_without_end(self) -> None:
        self.rounds("forker", "exit", rounds=10, tasks=4)

    def test_a_program_that_stopped_itself(self) -> None:
        self.rounds("stopped", "exit", rounds=10)


if __name__ == "__main__":
    unittest.main(verbosity=2)
