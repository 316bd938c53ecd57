"""What `compression: auto` makes of checkpoints' bytes, and what it costs; on this machine alone, without a cluster.

For data of each kind, in chunks of 4 MiB (compression.cc; the generators are tests/unit/ceph/chunk_samples.h):

  stored   what is left of the bytes
  encode   samples and compression, for each second of one core; decode: the way back
  digest   the copy and the digest that every chunk has anyway, likewise
  save     processor time of a whole save into a directory store on tmpfs: compressed against plain

Nothing is known beforehand: no older checkpoint tells what paid.
"""

import argparse
import os
from pathlib import Path

from support.report import Report, median
from support.tool import measured_in_memory
from vc.names import REPOSITORY

KINDS = {
    "float32": "float32, normally distributed",
    "bfloat16": "bfloat16, likewise",
    "adam": "float32 parameters and Adam's moments",
    "text": "text",
    "zeros": "zeros",
    "noise": "noise",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=128, metavar="N", help="of each kind of data (default: 128)")
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="times that each is measured (default: 9)")
    parser.add_argument("--build", type=Path, default=REPOSITORY / "build", metavar="DIR", help="Muster's build (default: build)")


def run(args: argparse.Namespace) -> Report:
    report = Report()
    load = os.getloadavg()[0]
    words = [str(args.build / "tests/compression_bench"), "--mib", str(args.mib), "--rounds", str(args.rounds)]
    measured = measured_in_memory(words)
    report.text(f"compression: {args.mib} MiB of each, {os.cpu_count()} CPUs, load before {load:.1f}; medians, n = {args.rounds}")
    report.text("")
    report.text(f"{'':<40}{'stored':>9}{'encode':>12}{'decode':>12}{'digest':>12}{'save':>8}")
    for kind, title in KINDS.items():
        found = measured[kind]
        speeds = {name: median(found[f"{name}_mb_s"]) if f"{name}_mb_s" in found else None for name in ("encode", "decode", "digest")}
        save = median([one / other for one, other in zip(found["compress_s"], found["plain_s"], strict=True)])
        shown = "".join(f"{'-' if speed is None else f'{speed:.0f} MB/s':>12}" for speed in speeds.values())
        report.text(f"  {title:<38}{found['stored_ratio']:>8.1%} {shown}{save:>7.2f}x")
        report.numbers[f"{kind}_stored_ratio"] = found["stored_ratio"]
        report.numbers |= {f"{kind}_{name}_mb_s": speed for name, speed in speeds.items() if speed is not None}
        report.numbers[f"{kind}_save_cpu_ratio"] = save
    report.numbers["compression_n"] = args.rounds
    return report
