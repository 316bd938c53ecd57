#!/usr/bin/python3
"""What muster-health says of a GPU that is well, by NVML itself. MUSTER_HEALTH names the program."""

import os
import subprocess
import unittest

import torch

MIB = 1 << 20


def of_gpus(*arguments: str) -> list[tuple[str, ...]]:
    """What was looked at of GPUs, and what was found."""
    done = subprocess.run([os.environ["MUSTER_HEALTH"], *arguments], text=True, stdout=subprocess.PIPE, timeout=60, check=True)
    lines = [tuple(line.split("\t")) for line in done.stdout.splitlines()]
    return [line for line in lines if line[1].startswith("gpu")]


class HealthTest(unittest.TestCase):
    def test_a_gpu_that_is_well_and_that_nobody_uses_has_no_finding(self) -> None:
        count = torch.cuda.device_count()
        looked_at = [("checking", "gpus", ""), *(("checking", f"gpu {index}", "") for index in range(count))]
        self.assertEqual(of_gpus(f"gpu_unowned_max={100 * MIB}"), looked_at)

    def test_memory_that_a_process_holds_is_no_finding(self) -> None:
        held = torch.zeros(2048 * MIB, dtype=torch.uint8, device="cuda")
        self.assertEqual([line for line in of_gpus("gpu=0") if line[0] != "checking"], [])
        del held

    def test_a_gpu_that_is_not_there_is_said(self) -> None:
        count = torch.cuda.device_count()
        self.assertIn(("sick", f"gpu {count}", f"is not there: NVML knows {count}"), of_gpus(f"gpu={count}"))


if __name__ == "__main__":
    unittest.main()
