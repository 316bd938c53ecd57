"""Whether `muster net test` names a bad link, and how soon: its judgement over simulated fabrics, and the whole test in namespaces.

plan_ms_1024: all rounds of 1,024 nodes. bad_links_named: of 200 simulated fabrics with a bad link, node or leaf switch, or two at once;
false_findings: what else was named there. watch_reads_per_s: system calls of musterd for eight ports. crossings_over_optimum: of rings in
the order of order=topology, over the least that a tree of switches allows. verdict_s_N and the rest: N nodes in network namespaces
with links of 20 Mbit/s, from the last node's coming to the verdict. faults_named_ratio: of planted faults (half a rate, out, in, both;
MTU; cable; 1 % lost).
write_bw_ratio, write_lat_ratio, tcp_bw_ratio: between two guests with soft RDMA devices, what it measures over what ib_write_bw,
ib_write_lat and iperf3 measure in turn; medians of the rounds.
"""

import argparse
import json
import re
import subprocess
import sys
from typing import Any

from support import guest_links
from support.options import add_count
from support.report import Report, median
from vc import ClusterError
from vc.names import REPOSITORY


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(build=None)  # this checkout's own
    add_count(parser, "--nodes", 64, "in namespaces")
    add_count(parser, "--runs", 21, "of the whole test, each with another fault or none")
    add_count(parser, "--seed", 1, "of the faults")
    add_count(parser, "--rounds", 9, "between guests, each with both programs")


# What a unit test prints of the pure parts.
_PRINTED = {
    "net_preflight_test": ("Judge.Names*:Plan.IsMadeSoon", ("plan_ms_1024", "bad_links_named", "false_findings")),
    "watch_test": ("PortReaderTest.EightPorts*", ("watch_reads_per_s",)),
    "gang_test": ("SwitchTree.ItsOrder*", ("crossings_over_optimum",)),
}


def _printed() -> dict[str, float]:
    found: dict[str, float] = {}
    for test, (cases, names) in _PRINTED.items():
        program = [str(REPOSITORY / "build/tests" / test), f"--gtest_filter={cases}"]
        done = subprocess.run(program, capture_output=True, text=True, timeout=600, check=False)
        numbers = {key: float(value) for key, value in re.findall(rf"^({'|'.join(names)}) ([0-9.]+)", done.stdout, re.M)}
        if done.returncode != 0 or len(numbers) != len(names):
            raise ClusterError(f"{test}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        found |= numbers
    return found


def _namespaces(args: argparse.Namespace) -> dict[str, Any]:
    program = [sys.executable, str(REPOSITORY / "tests/fabric/measure.py"), f"--nodes={args.nodes}", f"--runs={args.runs}", f"--seed={args.seed}"]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, timeout=60 * args.runs + 600, check=False)
    if done.returncode != 0:
        raise ClusterError(f"measure.py ended with {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _guests(rounds: int, report: Report) -> None:
    figures = guest_links.measure(rounds)
    report.text(f"Between two guests, in {rounds} rounds; medians, and their ratio:")
    for name, unit, pairs in (
        ("write_bw", "Mbit/s", figures.write_bw),
        ("write_lat", "us", figures.write_lat),
        ("tcp_bw", "Mbit/s", figures.tcp_bw),
    ):
        ratios = [ours / theirs for ours, theirs in pairs]
        report.numbers[f"{name}_ratio"] = median(ratios)
        ours, theirs = (median(list(values)) for values in zip(*pairs, strict=True))
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        report.text(f"  {name:<10} {ours:8.1f} over {theirs:8.1f} {unit}: {median(ratios):.2f} ({spread})")


def run(args: argparse.Namespace) -> Report:
    report = Report()
    printed = _printed()
    real = _namespaces(args)
    named = real["named"] / real["planted"]
    report.numbers |= printed | {
        f"verdict_s_{args.nodes}": real["verdict_s"],
        "verdicts": real["verdicts"],
        "faults_planted": real["planted"],
        "faults_named_ratio": named,
        "others_named": real["others"],
    }
    report.text(f"All rounds of 1,024 nodes are planned in {printed['plan_ms_1024']:.1f} ms.")
    report.text(f"Of 200 simulated fabrics {100 * printed['bad_links_named']:.1f} % are judged right; {printed['false_findings']:.0f} links are named wrongly.")
    report.text(f"The watch of eight ports makes {printed['watch_reads_per_s']:.0f} system calls a second.")
    report.text(f"Rings in the order of a tree of switches cross {printed['crossings_over_optimum']:.3f} times what they must.")
    report.text(f"{args.nodes} namespaces: a verdict takes {real['verdict_s']:.2f} s (n = {real['verdicts']}).")
    report.text(f"{real['named']} of {real['planted']} planted faults are named, and {real['others']} other links.")
    for line in real["wrong"]:
        report.text(f"  wrong: {line}")
    _guests(args.rounds, report)
    return report
