#!/usr/bin/python3
"""demo.sh shows what it says, and leaves nothing behind, also when it is interrupted. Needs root, takes minutes."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cluster"))

from test_vcluster import traces  # noqa: E402

DEMO = str(HERE.parents[1] / "demo.sh")
FIGURES = {
    "restart_ms",
    "steps_lost",
    "resumed_from_step",
    "checkpoints_written",
    "checkpoint_bytes_written",
    "bytes_in_rados",
    "same_slurm_step",
    "job_state",
    "identical_parameters",
}


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [DEMO, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def read_until(demo: "subprocess.Popen[str]", pattern: str) -> str:
    """The output up to a line in which the pattern occurs; a demo that ends before that fails the test."""
    assert demo.stdout is not None
    text = ""
    for line in demo.stdout:
        text += line
        if re.search(pattern, line):
            return text
    raise AssertionError(f"no line with '{pattern}' in:\n{text}")


class Demo(unittest.TestCase):
    def test_it_shows_the_recovery_while_another_one_is_interrupted(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "figures.json"
            whole = start("--json", str(file))
            self.addCleanup(whole.kill)
            self._interrupt(signal.SIGTERM, "^2. Build")
            self._interrupt(signal.SIGTERM, "^3. Start a cluster")
            self._interrupt(signal.SIGINT, "^     . step 10 ")
            output = whole.communicate(timeout=500)[0]
            self.assertEqual(whole.returncode, 0, output)
            figures = json.loads(file.read_text())
        self.assertEqual(traces(f"demo-{whole.pid}"), [])
        self.assertTrue(figures["good"], output)
        for name in ("train", "pytorch"):
            self.assertLessEqual({f"{name}_{key}" for key in FIGURES}, figures.keys())
            self.assertEqual(figures[f"{name}_job_state"], "COMPLETED")
            self.assertTrue(figures[f"{name}_identical_parameters"])
            self.assertGreater(figures[f"{name}_steps_lost"], 0)
        print(json.dumps(figures))

    def test_an_unknown_option_is_a_usage_error(self) -> None:
        done = subprocess.run([DEMO, "--fast"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("usage: ./demo.sh", done.stderr)

    def _interrupt(self, number: int, pattern: str) -> None:
        demo = start()
        self.addCleanup(demo.kill)
        read_until(demo, pattern)
        os.kill(demo.pid, number)
        output = demo.communicate(timeout=120)[0]
        self.assertEqual(demo.returncode, 128 + number, output)
        self.assertEqual(traces(f"demo-{demo.pid}"), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
