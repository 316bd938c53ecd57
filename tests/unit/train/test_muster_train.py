#!/usr/bin/python3
"""muster-train as a group of processes, over Gloo and over NCCL (its stand-in, found as NCCL would be)."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

import own_network  # noqa: E402

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("MUSTER_BUILD", HERE.parents[2] / "build"))
TEXT = HERE / "trainer_test.cc"
DEADLINE = 60
KERNELS = os.environ.get("MUSTER_KERNELS", "1") == "1"  # whether the build had nvcc


class MusterTrainTest(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = Path(temporary.name)

    def train(self, size: int, *options: str, faults: str = "") -> list[tuple[int, str]]:
        """Exit status and output of each member."""
        members = []
        for rank in range(size):
            environment = {
                "PATH": os.environ["PATH"],
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(own_network.PORT),
                "LD_LIBRARY_PATH": str(BUILD / "tests/stand_in_nccl"),
                "MUSTER_STAND_IN_NCCL": faults,
            }
            command = [str(BUILD / "bin/muster-train"), f"--text={TEXT}", "--width=16", "--depth=1", "--heads=2"]
            command += ["--context=16", "--steps=20", *options]
            member = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            self.addCleanup(member.wait)
            self.addCleanup(member.kill)
            members.append(member)
        outputs = [member.communicate(timeout=DEADLINE)[0] for member in members]
        return [(member.returncode, output) for member, output in zip(members, outputs)]

    def weights(self, size: int, collectives: str) -> bytes:
        file = self.directory / f"{collectives}-{size}"
        ended = self.train(size, f"--collectives={collectives}", f"--params-out={file}")
        self.assertEqual([0] * size, [status for status, _ in ended], ended)
        said = "sums over nccl: other nodes may give other bits" in ended[0][1]
        self.assertEqual(said, collectives == "nccl", ended[0][1])
        return file.read_bytes()

    def test_the_weights_over_nccl_are_those_over_gloo(self) -> None:
        for size in (1, 2, 3):
            gloo = self.weights(size, "gloo")
            self.assertGreater(len(gloo), 1000)
            self.assertEqual(gloo, self.weights(size, "nccl"), f"{size} members")

    def loss(self, ended: list[tuple[int, str]]) -> float:
        self.assertEqual([0] * len(ended), [status for status, _ in ended], ended)
        found = re.search(r"final loss (\S+) digest", ended[0][1])
        assert found is not None, ended[0][1]
        return float(found[1])

    def test_a_cuda_device_comes_to_the_cpus_loss(self) -> None:
        if not KERNELS:
            self.assertIn("this build has no kernels for CUDA", self.train(1, "--device=cuda")[0][1])
            return
        for size, collectives in ((1, "gloo"), (1, "nccl"), (2, "nccl"), (3, "nccl")):
            cpu = self.loss(self.train(size))
            cuda = self.loss(self.train(size, "--device=cuda", f"--collectives={collectives}"))
            self.assertAlmostEqual(cpu, cuda, delta=0.01, msg=f"{size} members, {collectives}")

    def test_several_cuda_devices_need_nccl(self) -> None:
        for rank, (status, output) in enumerate(self.train(2, "--device=cuda")):
            self.assertEqual(status, 1, output)
            self.assertIn(f"rank {rank}: --device=cuda with 2 members needs --collectives=nccl\n", output)

    def test_a_fault_of_nccls_is_said_by_every_member(self) -> None:
        ended = self.train(2, "--collectives=nccl", faults="operation-fails=3")
        self.assertTrue(any(" all-reduce 3 (" in output for _, output in ended), ended)
        for rank, (status, output) in enumerate(ended):
            self.assertEqual(status, 1, output)
            # One may hear of the other's failure before it knows that its own second operation is done.
            self.assertRegex(output, rf"muster-train: rank {rank}: all-reduce [23] \(sum of \d+ floats, \d+ bytes\)")
            self.assertIn("NCCL 2.27.3", output)

    def test_a_device_that_nccl_leaves_busy_is_not_waited_for(self) -> None:
        options = ["--collectives=nccl"] + (["--device=cuda"] if KERNELS else [])
        for rank, (status, output) in enumerate(self.train(2, *options, faults="operation-fails=3,abort-hangs")):
            self.assertEqual(status, 1, output)
            self.assertRegex(output, rf"muster-train: rank {rank}: all-reduce [23] .*ncclCommAbort has not come back")


if __name__ == "__main__":
    own_network.enter()
    unittest.main()
