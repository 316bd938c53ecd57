"""Time until every node has the whole spec of a generation, by the number of nodes; and torch's TCPStore beside it.

One real musterd coordinates; the nodes are simulated, each with a link of its own (gRPC, MUNGE, HMAC) and without
processes, all in one process on this machine (rendezvous/main.cc). Nodes are counted when they have all they need to start
their members. They send no beats.

  spec     the last of all nodes registers; all links are up
  restart  the last node says that nothing of the old generation runs any more; all links are up
  cold     all nodes dial and register at once
  exchange each member gives 128 bytes (muster_exchange), the last node has those of all; all links are up
  memory   the most that musterd has had resident

Both sides run on this machine's CPUs: credentials are made and checked by one munged, and all nodes' work is counted.
TCPStore: every client hands in its entry and gets one spec made of all (rendezvous/tcpstore.py); as spec, with all
connections up, from the last entry on. A client is a node, as its torchrun agent would be.
"""

import argparse
import os
from pathlib import Path

from support.report import Report, median, percentile
from support.tool import measured
from vc import ClusterError
from vc.names import REPOSITORY

TASKS = 8  # a node
PYTHON = str(REPOSITORY / "tests/frameworks/python")


def add_options(parser: argparse.ArgumentParser) -> None:
    def sizes(option: str, default: list[int], text: str) -> None:
        shown = " ".join(map(str, default))
        parser.add_argument(option, type=int, nargs="*", default=default, metavar="N", help=f"{text} (default: {shown})")

    sizes("--nodes", [64, 256, 1024, 2048, 4096], "numbers of nodes")
    sizes("--clients", [64, 256, 1024, 2048], "numbers of TCPStore's clients")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="times that each is measured (default: 5)")
    parser.add_argument("--build", type=Path, default=REPOSITORY / "build", metavar="DIR", help="Muster's build (default: build)")


def run(args: argparse.Namespace) -> Report:
    report = Report()
    load = os.getloadavg()[0]
    report.text(f"rendezvous: nodes of {TASKS} tasks, {os.cpu_count()} CPUs, load before {load:.1f}; milliseconds")
    for nodes in args.nodes:
        _muster(report, args, nodes)
    report.header("TCPStore")
    for clients in args.clients:
        try:
            values = measured([PYTHON, str(REPOSITORY / "tests/bench/rendezvous/tcpstore.py"), str(clients), str(args.rounds)])
        except ClusterError as error:
            report.text(f"  {clients} clients: it does not get so far: {error}")
            break
        report.row(f"{clients} clients", values)
        report.numbers[f"tcpstore_ms_{clients}"] = median(values)
    report.numbers["rendezvous_n"] = args.rounds
    return report


def _muster(report: Report, args: argparse.Namespace, nodes: int) -> None:
    program = args.build / "tests/rendezvous_bench"
    words = [str(program), "--musterd", str(args.build / "bin/musterd"), "--nodes", str(nodes)]
    result = measured([*words, "--tasks", str(TASKS), "--rounds", str(args.rounds)])
    report.header(f"Muster, {nodes} nodes (load {os.getloadavg()[0]:.1f})")
    for key, title in (("spec", "spec"), ("restart", "restart"), ("cold", "cold"), ("exchange", "exchange")):
        values = result[f"{key}_ms"]
        report.row(title, values)
        report.numbers[f"{key}_ms_{nodes}"] = median(values)
        report.numbers[f"{key}_ms_max_{nodes}"] = percentile(values, 100)
    report.numbers[f"coordinator_rss_mb_{nodes}"] = result["peak_rss_mb"]
    report.text(
        f"  {result['spec_bytes']} bytes to each node; musterd {result['peak_rss_mb']:.0f} MB "
        f"({result['idle_rss_mb']:.0f} MB before), {result['cpu_s']:.2f} s of CPU a round"
    )
