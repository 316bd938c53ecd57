"""What a step costs a member when nothing is asked of it: the CPU time of muster_step in C and of gang.step in Python; on this machine
alone, without a cluster.

The musterd is the one of the unit tests, which takes the page and is silent: what a step costs is between the program and the
page. Each number is of a batch of steps.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from support.report import Report, median
from vc.host import ClusterError
from vc.names import REPOSITORY

STEPS = 2_000  # of a batch
PYTHON_PROGRAM = """
import sys, time, muster
batches, steps = int(sys.argv[1]), int(sys.argv[2])
with muster.init() as gang:
    step = 0
    for _ in range(batches):
        before = time.thread_time_ns()
        for step in range(step + 1, step + 1 + steps):
            wish = gang.step(step)
            if wish.save or wish.exit:
                sys.exit(wish.reason)
        print((time.thread_time_ns() - before) / steps)
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batches", type=int, default=300, metavar="N", help=f"of {STEPS} steps (default: 300)")
    parser.add_argument("--build", type=Path, default=REPOSITORY / "build", metavar="DIR", help="Muster's build (default: build)")


def run(args: argparse.Namespace) -> Report:
    sys.path.insert(0, str(REPOSITORY / "tests/unit/client"))
    from fake_musterd import FakeMusterd

    report = Report()
    load = os.getloadavg()[0]
    report.text(f"stepping: {args.batches} batches of {STEPS} steps, {os.cpu_count()} CPUs, load before {load:.1f}; CPU time of a step")
    programs = {
        "c": [str(args.build / "tests/bench_stepping")],
        "python": ["/usr/bin/python3", "-c", PYTHON_PROGRAM],
    }
    for name, words in programs.items():
        with tempfile.TemporaryDirectory(prefix="muster-bench-") as directory:
            musterd = FakeMusterd(f"{directory}/socket")
            environment = os.environ | {
                "MUSTER_GANG": "7.0",
                "MUSTER_GENERATION": "1",
                "RANK": "0",
                "MUSTER_TOKEN": "00" * 16,
                "MUSTER_SOCKET": f"{directory}/socket",
                "PYTHONPATH": str(args.build / "python"),
            }
            command = [*words, str(args.batches), str(STEPS)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
            musterd.stop()
        if done.returncode != 0:
            raise ClusterError(f"{name}: {done.stderr}")
        found = sorted(map(float, done.stdout.split()))
        middle, late = median(found), found[len(found) * 99 // 100]
        report.text(f"  {name:<8}{middle:>8.0f} ns median {late:>8.0f} ns p99, n = {len(found)}")
        report.numbers |= {f"step_{name}_cpu_ns_median": middle, f"step_{name}_cpu_ns_p99": late}
    report.numbers["stepping_n"] = args.batches
    return report
