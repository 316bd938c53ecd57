#!/usr/bin/python3
"""muster-train as a group of processes, over Gloo and over NCCL (its stand-in, found as NCCL would be)."""

import os
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("MUSTER_BUILD", HERE.parents[2] / "build"))
TEXT = HERE / "trainer_test.cc"
DEADLINE = 60


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class MusterTrainTest(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = Path(temporary.name)

    def train(self, size: int, *options: str, faults: str = "") -> list[tuple[int, str]]:
        """Exit status and output of each member."""
        port = free_port()
        members = []
        for rank in range(size):
            environment = {
                "PATH": os.environ["PATH"],
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
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

    def test_a_fault_of_nccls_is_said_by_every_member(self) -> None:
        ended = self.train(2, "--collectives=nccl", faults="operation-fails=3")
        for rank, (status, output) in enumerate(ended):
            self.assertEqual(status, 1, output)
            self.assertRegex(output, rf"muster-train: rank {rank}: all-reduce 3 \(sum of \d+ floats, \d+ bytes\)")
            self.assertIn("NCCL 2.27.3", output)


if __name__ == "__main__":
    unittest.main()
