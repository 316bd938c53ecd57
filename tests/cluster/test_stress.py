#!/usr/bin/python3
"""A machine whose cores and memory are all taken loses no node at the default limits.

For a minute, or $MUSTER_STRESS_SECONDS.
"""

import os
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import PYTHON  # noqa: E402
from walkers import WalkerCase  # noqa: E402

SECONDS = int(os.environ.get("MUSTER_STRESS_SECONDS", "60"))
# One process a core, twice over: counts, and writes all over its part of most of the memory that is free.
BURNER = """
import sys, time
until, size = time.monotonic() + float(sys.argv[1]), int(sys.argv[2])
memory = bytearray(size)
page, n = 4096, 0
while time.monotonic() < until:
    for i in range(0, size, page):
        memory[i] = n & 255
    for i in range(300000):
        n = (n * 31 + i) & 0xffffffff
"""


def setUpModule() -> None:
    harness.FILE_TIMEOUT_S = max(harness.FILE_TIMEOUT_S, SECONDS + 300)
    harness.start("stress", nodes=4, ceph=False, limits=harness.DEFAULT)


def free_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


class Stress(WalkerCase):
    def test_no_node_is_lost_while_all_cores_and_memory_are_busy(self) -> None:
        gang = self.walk(nodes=4, tasks=8)
        gang.started(1, 8)
        gang.commits(1)
        count = 2 * len(os.sched_getaffinity(0))
        size = free_memory() * 6 // 10 // count
        until = time.monotonic() + SECONDS
        burners = [subprocess.Popen([*PYTHON, "-c", BURNER, str(SECONDS), str(size)]) for _ in range(count)]
        try:
            while time.monotonic() < until:
                gang.commits(1, timeout=harness.SOON * 2)
                self.assertEqual(gang.generation(), 1, "nothing was started again")
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()
        gang.commits(1)
        gang.finish(8)
        self.assertEqual(self.status(gang.job)["generation"], 1)
        for kind in ("node_lost", "node_away", "fault", "quorum_lost"):
            self.assertEqual(self.events(gang.job, kind), [], kind)
        harness.report(f"{SECONDS} s under {count} burners of {size >> 20} MiB: {gang.committed()} steps, no node lost")


if __name__ == "__main__":
    unittest.main(verbosity=2)
