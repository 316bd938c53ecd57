#!/usr/bin/python3
"""A node is dead, or dies, when a job's step is launched: Slurm does not know yet, srun gives up, and the job runs on other
nodes all the same."""

import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import SLURM  # noqa: E402
from walkers import WalkerCase  # noqa: E402


def setUpModule() -> None:
    # Slurm believes in a dead node for as long as the test takes.
    harness.start("launch", nodes=7, ceph=False, limits=harness.PROMPT, slurm={"SlurmdTimeout": "600"})


class Launch(WalkerCase):
    def run_without(self, *dead: str, nodes: int) -> None:
        for node in dead:
            self.cluster.kill(node)
        gang = self.walk_in_batch(nodes=nodes)
        # When srun has given up first the script has failed, and sbatch --wait has seen it.
        self.wait(lambda: len(gang.job.records(1)) == 2 * nodes, "the members to run elsewhere", SLURM)
        self.assertFalse(set(dead) & {r.host for r in gang.job.records(1)})
        states = self.node_states()
        self.assertEqual({node for node, state in states.items() if state.startswith("down")}, set(dead), states)
        for node in dead:
            self.assertIn("muster: ", states[node])
        gang.gather(2 * nodes)
        gang.job.release()
        self.wait(lambda: len(list(gang.job.files.glob("final.*"))) == 2 * nodes, "the members to end", SLURM)

    def test_a_dead_node_that_slurm_believes_in_is_left_out(self) -> None:
        self.run_without("n3", nodes=4)

    def test_so_are_the_first_candidates(self) -> None:
        """srun has ended all that it could launch before anybody coordinates."""
        self.run_without("n2", "n3", nodes=5)

    def test_when_too_few_are_left_to_be_sure_the_job_ends_and_no_node_is_called_dead(self) -> None:
        self.cluster.kill("n2")
        gang = self.walk_in_batch(nodes=2)
        self.assertNotEqual(gang.job.wait(SLURM), 0)
        self.assertNotRegex(self.node_states()["n2"], "^down")


if __name__ == "__main__":
    unittest.main(verbosity=2)
