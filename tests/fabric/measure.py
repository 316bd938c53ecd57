#!/usr/bin/python3
"""How well `muster net test` names one bad link among many nodes: measure.py --nodes N --runs N. Prints one JSON object.

Every run plants one fault on one node, or none; kinds, nodes and their order come from the seed. A verdict counts as right when it
names this fault, with its direction, and nothing else."""

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from namespaces import MBIT_S, Fabric, enter_namespaces

Plant = Callable[[Fabric, int], None]


def mend(fabric: Fabric, node: int) -> None:
    fabric.rate(node, out=MBIT_S, into=MBIT_S)
    fabric.mtu(node, 1500)
    fabric.cable(node, plugged=True)
    fabric.drop(node, "")


# Name: what plants it, and what must be said of it.
KINDS: dict[str, tuple[Plant, tuple[str, str] | None]] = {
    "none": (lambda _fabric, _node: None, None),
    "half rate out": (lambda fabric, node: fabric.rate(node, out=MBIT_S / 2), ("slow", "out")),
    "half rate in": (lambda fabric, node: fabric.rate(node, into=MBIT_S / 2), ("slow", "in")),
    "half rate": (lambda fabric, node: fabric.rate(node, out=MBIT_S / 2, into=MBIT_S / 2), ("slow", "both")),
    "MTU": (lambda fabric, node: fabric.mtu(node, 1400), ("mtu", "both")),
    "cable": (lambda fabric, node: fabric.cable(node, plugged=False), ("unreachable", "both")),
    "1 % lost": (lambda fabric, node: fabric.drop(node, "numgen inc mod 100 < 1"), ("lossy", "in")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    enter_namespaces()
    draw = random.Random(args.seed)
    seconds: list[float] = []
    kinds = {kind: [0, 0] for kind in KINDS}  # named right, and how many
    wrong: list[str] = []
    named = planted = others = 0
    with tempfile.TemporaryDirectory() as directory:
        fabric = Fabric(args.nodes, Path(directory))
        for number in range(args.runs):
            kind = list(KINDS)[number % len(KINDS)]
            node = draw.randrange(args.nodes)
            plant, said = KINDS[kind]
            plant(fabric, node)
            verdict = fabric.test()
            mend(fabric, node)
            expected = [(*said, f"n{node}")] if said else []
            found = verdict.named()
            planted += len(expected)
            named += int(bool(expected) and expected[0] in found)
            others += sum(one not in expected for one in found)
            kinds[kind][0] += int(found == expected)
            kinds[kind][1] += 1
            if found != expected:
                wrong.append(f"{kind} on n{node}: {found} {verdict.errors[:1]}")
            if not said:
                seconds.append(verdict.document["seconds"])
        fabric.close()
    print(
        json.dumps(
            {
                "nodes": args.nodes,
                "runs": args.runs,
                "planted": planted,
                "named": named,
                "others": others,
                "verdict_s": statistics.median(seconds),
                "verdicts": len(seconds),
                "kinds": {kind: f"{right} of {all_of}" for kind, (right, all_of) in kinds.items()},
                "wrong": wrong,
            }
        )
    )


if __name__ == "__main__":
    main()
