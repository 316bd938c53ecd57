#!/usr/bin/python3
"""The reference trainer, and the test of GPUs, over NCCL, with a stand-in in NCCL's place (tests/unit/net/stand_in_nccl.cc): a member that stands
still or fails costs the gang no bit."""

import json
import re
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import PROGRAMS, SLURM, ClusterCase, Job  # noqa: E402

ENVIRONMENT = {"LD_LIBRARY_PATH": f"{PROGRAMS}/stand_in_nccl"}
TIMEOUT_S = 10
TRAIN = (
    "exec muster-train --text /usr/share/common-licenses/GPL-3 --width 16 --depth 1 --context 16 --log-every 1 --seed 7 "
    f"--checkpoint-every 20 --steps 400 --collectives nccl --operation-timeout {TIMEOUT_S}"
)


def setUpModule() -> None:
    harness.start("nccl", nodes=3, ceph=False)


class Nccl(ClusterCase):
    def train(self, faults: str = "") -> Job:
        """Of rank 1 in generation 1, as the stand-in takes them."""
        faulty = f'[ "$RANK$MUSTER_GENERATION" != 11 ] || export MUSTER_STAND_IN_NCCL={faults}; ' if faults else ""
        return self.srun(["bash", "-c", faulty + TRAIN], nodes=3, tasks=3, env=ENVIRONMENT)

    def test_the_gpus_of_a_gang_are_measured_together_on_each_node_and_across_nodes(self) -> None:
        def measured(tasks: int, *words: str) -> str:
            argv = ["muster", "net", "test", "--nccl", "--largest-mib", "4", *words]
            job = self.srun(argv, "restarts=0", nodes=3, tasks=tasks, env=ENVIRONMENT)
            self.assertEqual(job.wait(SLURM), 0, job.err)
            return job.out

        found = json.loads(measured(6, "--json"))
        self.assertEqual((found["gpus"], found["nodes"]), (6, 3))
        groups = {kind["kind"]: [(group["name"], group["members"]) for group in kind["groups"]] for kind in found["kinds"]}
        nodes = [("n1", 2), ("n2", 2), ("n3", 2)]
        self.assertEqual(groups, {"all": [("", 6)], "node": nodes, "across": [("GPU 0", 3), ("GPU 1", 3)]})
        sizes = [size for kind in found["kinds"] for group in kind["groups"] for size in group["sizes"]]
        self.assertEqual({size["bytes"] for size in sizes}, {1 << 20, 4 << 20})
        self.assertTrue(all(size["bus_gb_s"] > 0 for size in sizes), sizes)
        alone = measured(3)
        self.assertRegex(alone, "(?m)^the GPUs of a node +not measured: n1 has one GPU$")
        self.assertRegex(alone, r"(?m)^all 3 GPUs +\d+\.\d +\d+\.\d$")

    def test_what_cannot_be_measured_is_said(self) -> None:
        argv = ["muster", "net", "test", "--nccl", "--wait", "5"]
        no_gang = self.srun(argv, None, nodes=1, tasks=1)
        self.assertEqual(no_gang.wait(SLURM), 2)
        self.assertIn("srun --gang=restarts=0 -N4 --ntasks-per-node=8 --gres=gpu:8 muster net test --nccl", no_gang.err)
        no_gpu = self.srun(argv, "restarts=0", nodes=3, tasks=3)
        self.assertNotEqual(no_gpu.wait(SLURM), 0)
        self.assertRegex(no_gpu.err, "muster: rank [012]: (NCCL|NVIDIA's driver) cannot be loaded: ")

    def weights(self, job: Job) -> str:
        self.assertEqual(job.wait(SLURM), 0, job.err)
        found = re.search(r"final loss \S+ digest (\w+)", job.out)
        assert found is not None, job.out
        return found[1]

    def test_after_a_member_that_stood_still_or_failed_the_weights_are_the_same(self) -> None:
        undisturbed = self.weights(self.train())
        for faults, said in (
            ("operation-hangs=100", rf"was not done within {TIMEOUT_S}000 ms"),
            ("operation-stops=100", rf"was not done within {TIMEOUT_S}000 ms; no word from rank 1"),
            ("operation-fails=100", "rank 1 of 3: NCCL .* unhandled system error [(]a cable was pulled"),
            ("init-fails", "connecting rank 1 of 3: NCCL .*[(]no route to the others"),
        ):
            with self.subTest(faults):
                job = self.train(faults)
                self.assertEqual(self.weights(job), undisturbed)
                self.assertRegex(job.err, said)
                self.assertIn("generation 2 runs", job.err)
                self.assertNotIn("generation 3", job.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
