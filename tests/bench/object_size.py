"""Which size of objects, and how many at a time, a Ceph pool takes fastest: why Muster's objects have 4 MiB.

`rados bench` of the same bytes by each size and depth, from a node of a cluster of its own, in an order that changes from
round to round; MiB/s, medians. The ratios are to 4 MiB and a depth of 8, with which a save begins, in the same round.
"""

import argparse
import os
import random

from support.options import add_count
from support.rados_bench import MIB, write_and_read
from support.report import Report, median
from vc import Cluster

SIZES_KIB = (256, 1024, 2048, 4096, 8192, 16384)
DEPTHS = (2, 4, 8, 16)
# Of ceph/engine/engine.h.
OURS = (4096, 8)
NODE = "n1"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_count(parser, "--rounds", 3, "of each size and depth")
    add_count(parser, "--mib", 256, "MiB each time")


def run(args: argparse.Namespace) -> Report:
    load = os.getloadavg()[0]
    cases = [(size, depth) for size in SIZES_KIB for depth in DEPTHS]
    found: dict[tuple[int, int], list[tuple[float, float]]] = {case: [] for case in cases}
    with Cluster(f"bench{os.getpid()}", nodes=1) as cluster:
        write_and_read(cluster, NODE, args.mib, OURS[0] * 1024, OURS[1])  # the OSDs' first objects cost more
        for number in range(args.rounds):
            order = random.Random(number).sample(cases, len(cases))
            for size, depth in order:
                found[size, depth].append(write_and_read(cluster, NODE, args.mib, size * 1024, depth))
    report = Report()
    report.text(f"object-size: rados bench of {args.mib} MiB, {os.cpu_count()} CPUs, load before {load:.1f}; MiB/s, medians, n = {args.rounds}")
    for way, title in enumerate(("write", "seq")):
        report.text("")
        report.text(f"{title:<12}" + "".join(f"{f'{depth} at a time':>16}" for depth in DEPTHS))
        for size in SIZES_KIB:
            cells = []
            for depth in DEPTHS:
                rates = [round_[way] for round_ in found[size, depth]]
                ratio = median([rate / ours[way] for rate, ours in zip(rates, found[OURS], strict=True)])
                cells.append(f"{f'{median(rates):.0f} ({ratio:.2f})':>16}")
                report.numbers[f"{title}_ratio_{size}_kib_{depth}"] = ratio
            report.text(f"  {f'{size / 1024:g} MiB':<10}" + "".join(cells))
    report.numbers["object_size_n"] = args.rounds
    report.numbers["object_size_bytes"] = args.mib * MIB
    return report
