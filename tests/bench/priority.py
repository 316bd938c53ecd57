"""What a drain takes from a program that uses all processors, by the niceness of musterd's writing threads; without a cluster.

On each processor a thread computes for 7 ms and waits for 3 (priority.cc). Beside it the engine saves shards into a directory
store on tmpfs, and so without Ceph's own share. By niceness, in turns: by how much the program's steps become fewer meanwhile,
and how fast the drain is.
"""

import argparse
import os
from pathlib import Path

from support.options import add_count
from support.report import Report, median
from support.tool import measured_in_memory
from vc.names import REPOSITORY


def add_options(parser: argparse.ArgumentParser) -> None:
    add_count(parser, "--mib", 512, "MiB of a shard")
    add_count(parser, "--rounds", 5, "times that each is measured")
    parser.add_argument("--build", type=Path, default=REPOSITORY / "build", metavar="DIR", help="Muster's build (default: build)")


def run(args: argparse.Namespace) -> Report:
    report = Report()
    load = os.getloadavg()[0]
    words = [str(args.build / "tests/priority_bench"), "--mib", str(args.mib), "--rounds", str(args.rounds)]
    found = measured_in_memory(words)
    report.text(f"priority: shards of {args.mib} MiB, {os.cpu_count()} CPUs, load before {load:.1f}; medians, n = {args.rounds}")
    report.text("")
    report.text(f"{'niceness of the drain':<30}{'steps lost':>12}{'drain':>14}")
    for niceness, measured in sorted(found.items(), key=lambda item: int(item[0])):
        loss, speed = median(measured["loss"]), median(measured["mib_per_s"])
        report.text(f"  {niceness:<28}{loss:>12.1%}{speed:>8.0f} MiB/s")
        report.numbers |= {f"nice_{niceness}_steps_lost": loss, f"nice_{niceness}_drain_mib_per_s": speed}
    report.numbers["priority_n"] = args.rounds
    return report
