"""What the collectives' interface costs over Gloo's own calls: the same operations through both, in turns, over loopback.

Of all-reduce, all-gather and reduce-scatter: OPERATION_RANKS_BYTES_ratio is the median, over the pairs, of Muster's time over Gloo's,
1 where both take as long. Gloo's all-reduce is its default, a ring, and in all_reduce_bcube it halves and doubles, as its
reduce-scatter does.
worst_ratio is the largest of them.

overlap_ratio: the time of a training step in which the exchange runs beside the backward pass, over that of one in which it comes
after it; the median over the pairs. Two members train over a link that is shaped so that the exchange takes as long as the
computing; the program fails when the weights differ.
"""

import argparse
import os
import tempfile

from support.options import add_count
from support.report import Report, median
from support.tool import measured
from vc.names import REPOSITORY

MEMBERS = (2, 4, 8)
BYTES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(build=None)  # this checkout's own
    add_count(parser, "--rounds", 9, "of both, for each operation and size")


def overlap(rounds: int, report: Report) -> None:
    program = str(REPOSITORY / "build/tests/overlap_bench")
    inside = ["unshare", "--net", "sh", "-ec"]
    # The members' link at its own speed: what is left is the computing.
    free = measured([*inside, 'ip link set lo up && exec "$@"', "sh", program, "--rounds=3"])
    compute = median([apart for _, apart in free["pairs"]])
    # Each member sends a gradient in a step, and loopback carries what both send.
    rate = int(2 * 8 * free["bytes"] / compute)
    link = f"tc qdisc add dev lo root tbf rate {rate}bit burst 256kb limit 64mb"
    found = measured([*inside, f'ip link set lo up && {link} && exec "$@"', "sh", program, f"--rounds={rounds}"])
    beside, apart = (median(list(values)) for values in zip(*found["pairs"], strict=True))
    report.text("")
    report.text(
        f"overlap: computing {compute * 1e3:.0f} ms, link {rate / 1e6:.0f} Mbit/s; "
        f"a step {beside * 1e3:.0f} ms with, {apart * 1e3:.0f} ms without"
    )
    report.numbers["overlap_ratio"] = median([one / other for one, other in found["pairs"]])


def run(args: argparse.Namespace) -> Report:
    report = Report()
    report.text(f"collectives: {os.cpu_count()} CPUs, load before {os.getloadavg()[0]:.1f}; medians, n = {args.rounds}")
    report.text("")
    report.text(f"{'operation':<18}{'members':>8}{'KiB':>8}{'Muster, ms':>12}{'Gloo, ms':>12}{'ratio':>8}")
    for members in MEMBERS:
        with tempfile.TemporaryDirectory(prefix="muster-bench.") as directory:
            words = [str(REPOSITORY / "build/tests/collectives_bench"), f"--members={members}", f"--rounds={args.rounds}"]
            found = measured([*words, f"--directory={directory}", "--bytes", *map(str, BYTES)])
        for operation, by_size in found.items():
            for size, pairs in sorted(by_size.items(), key=lambda item: int(item[0])):
                ours, raw = (median(list(values)) for values in zip(*pairs, strict=True))
                ratio = median([one / other for one, other in pairs])
                report.text(f"{operation:<18}{members:>8}{int(size) >> 10:>8}{ours:>12.3f}{raw:>12.3f}{ratio:>8.2f}")
                report.numbers[f"{operation}_{members}_{size}_ratio"] = ratio
    report.numbers["worst_ratio"] = max(report.numbers.values())
    overlap(args.rounds, report)
    report.numbers["rounds"] = args.rounds
    return report
