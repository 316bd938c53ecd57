#!/usr/bin/python3
"""The PyTorch example, three ranks, with a musterd of the test's own for each.

The build's python folder must be in PYTHONPATH.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

import own_network  # noqa: E402
from fake_musterd import FakeMusterd  # noqa: E402

_ROOT = Path(__file__).resolve().parents[3]
_RANKS = 3  # with two, the order of a sum cannot matter


class ExampleTest(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="muster-test-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.musterds = [FakeMusterd(str(self.directory / f"{rank}.sock"), _RANKS) for rank in range(_RANKS)]
        for musterd in self.musterds:
            self.addCleanup(musterd.stop)

    def train(self, *options: str, gang: bool = True) -> tuple[str, bytes]:
        """Runs all ranks; gives what rank 0 printed and the final parameters."""
        out = self.directory / "parameters"
        out.unlink(missing_ok=True)
        processes = []
        for rank in range(_RANKS):
            environment = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(_RANKS),
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(own_network.PORT),
            }
            if gang:
                environment |= {
                    "MUSTER_GANG": "7.0",
                    "MUSTER_GENERATION": "1",
                    "MUSTER_TOKEN": "00" * 16,
                    "MUSTER_SOCKET": str(self.directory / f"{rank}.sock"),
                }
            command = [sys.executable, str(_ROOT / "examples/pytorch_ddp.py"), "--text", str(_ROOT / "LICENSE")]
            command += ["--width", "32", "--log-every", "5", "--params-out", str(out), "--checkpoints", str(self.directory / "local"), *options]
            processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        try:
            outputs = [process.communicate(timeout=60)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.communicate()
        self.assertEqual([process.returncode for process in processes], [0] * _RANKS)
        return outputs[0], out.read_bytes() if out.exists() else b""

    def test_a_resumed_run_ends_with_the_same_parameters(self) -> None:
        plain, expected = self.train("--steps", "30", "--checkpoint-every", "20", gang=False)
        self.assertIn("step 30 loss", plain)
        shutil.rmtree(self.directory / "local" / "step-30")
        plain, resumed = self.train("--steps", "30", gang=False)
        self.assertIn("resumed from step 20\nstep 25 loss", plain)
        self.assertEqual(resumed, expected)
        _, uninterrupted = self.train("--steps", "30", "--checkpoint-every", "10")
        self.assertEqual(uninterrupted, expected)
        for musterd in self.musterds:
            self.assertEqual(sorted(musterd.shards), [10, 20, 30])
            musterd.restore_step = 10
        output, resumed = self.train("--steps", "30", "--checkpoint-every", "100")
        self.assertIn("resumed from step 10\nstep 15 loss", output)
        self.assertEqual(resumed, expected)
        self.assertGreater(len(expected), 4 * 32 * 256)

    def test_it_saves_and_leaves_when_it_should_exit(self) -> None:
        for musterd in self.musterds:
            musterd.agreed = (3, 3, b"Slurm sent SIGTERM")
        output, parameters = self.train("--steps", "1000")
        self.assertNotIn("step 5 loss", output)
        self.assertEqual(parameters, b"")
        self.assertEqual([sorted(musterd.shards) for musterd in self.musterds], [[3]] * _RANKS)


if __name__ == "__main__":
    own_network.enter()
    unittest.main()
