#!/usr/bin/env python3
"""Nothing is lost in silence: random sharded states are saved by each way there is, and loaded by gangs of other sizes.

Every bit of what is loaded is compared; before, each target has another bit in its place. What cannot be saved, or is not
there, must be an error. The ranks are processes with torch's process groups and the real libmuster; in musterd's place are
musterds of the test's own, which keep shards in memory.

    tests/frameworks/python tests/frameworks/states_test.py [--cases N] [--models N] [--case NUMBER]

Everything follows from MUSTER_TEST_SEED. PYTHONPATH: the build's python folder.
"""

import argparse
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE), str(HERE.parent / "unit/client")]
if "PYTHONPATH" not in os.environ:
    sys.path.insert(0, str(HERE.parents[1] / "build/python"))

import member  # noqa: E402
import states  # noqa: E402
from models import DIVIDED, Training, training_of  # noqa: E402
from states import Case, case_of  # noqa: E402
from teams import Hung, Team  # noqa: E402

ROUND = len(states.routes()) * len(states.CHANGES) * (states.DEALT + states.TWISTED)
CASES, MODELS = 2 * ROUND, len(DIVIDED) ** 2  # in CI
MODEL_TRAITS = {f"a model {what} as {divided}" for what in ("saved", "loaded") for divided in DIVIDED}


def check(case: Case, teams: dict[int, Team]) -> list[str]:
    """What is wrong."""
    before, after = (teams[size] for size in case.sizes)
    before.hold({})
    wrong = [text for answer in before.ask(("save", case.seed, case.number)) for text in answer]
    saved = before.checkpoints()
    if wrong or member.is_to_fail(case):
        return wrong + ([f"a checkpoint, {sorted(saved)}, of what cannot be saved"] if saved else [])
    if sorted(saved) != member.steps(case):
        return [f"saved are {sorted(saved)}, and not {member.steps(case)}"]
    after.hold(saved)
    return [text for answer in after.ask(("load", case.seed, case.number)) for text in answer]


def check_model(seed: int, training: Training, teams: dict[int, Team]) -> list[str]:
    """The same of a model that PyTorch has divided."""
    before, after = (teams[size] for size in training.sizes)
    before.hold({})
    saved = before.ask(("train", seed, training.number))
    wrong = [text for answer in saved if isinstance(answer, list) for text in answer]
    if wrong:
        return wrong
    after.hold(before.checkpoints())
    return [text for answer in after.ask(("resume", seed, training.number, saved[0])) for text in answer]


class Run:
    def __init__(self, seed: int, most: int, teams: dict[int, Team]) -> None:
        self.seed, self._most, self._teams = seed, most, teams
        self.cells: Counter[Any] = Counter()
        self.traits: Counter[str] = Counter()
        self.tried = self.failed = 0

    def states(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            case = case_of(self.seed, number)
            what = f"{case.route[0]} by {case.sizes[0]}, {case.route[1]} by {case.sizes[1]}, twist: {case.twist}"
            if not self._note("case", number, what, lambda case=case: check(case, self._teams)):
                continue
            if not member.is_to_fail(case):
                self.cells.update((case.route, case.change, item.saved, item.dtype) for item in case.items)
            self.traits.update(case.covered())

    def models(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            one = training_of(self.seed, number)
            what = f"{one.route[0]} by {one.sizes[0]} as {one.divided[0]}, {one.route[1]} by {one.sizes[1]} as {one.divided[1]}"
            if self._note("model", number, what, lambda one=one: check_model(self.seed, one, self._teams)):
                self.traits.update({f"a model saved as {one.divided[0]}", f"a model loaded as {one.divided[1]}"})

    def _note(self, kind: str, number: int, what: str, work: Callable[[], list[str]]) -> bool:
        """Whether nothing was wrong."""
        if self.failed >= self._most:
            return False
        self.tried += 1
        try:
            wrong = work()
        except Hung as hung:
            wrong = [str(hung)]
            self._most = 0  # no other case can run
        if wrong:
            self.failed += 1
            print(f"FAILED {kind} {number} of seed {self.seed} ({what}):", *wrong[:4], sep="\n  ")
            again = f"MUSTER_TEST_SEED={self.seed} tests/frameworks/python tests/frameworks/states_test.py --{kind} {number}"
            print(f"  again: {again}", flush=True)
        return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=CASES, help=f"how many (default: {CASES})")
    parser.add_argument("--models", type=int, default=MODELS, help=f"how many with a model (default: {MODELS})")
    parser.add_argument("--case", type=int, metavar="NUMBER", help="this one only")
    parser.add_argument("--model", type=int, metavar="NUMBER", help="this one only")
    parser.add_argument("--failures", type=int, default=5, help="after so many it stops (default: 5)")
    args = parser.parse_args()
    one = args.case is not None or args.model is not None
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="muster-test-") as directory:
        teams = {size: Team(size, Path(directory), member.work, member.ready) for size in states.SIZES}
        for team in teams.values():
            team.start()
        try:
            run = Run(int(os.environ.get("MUSTER_TEST_SEED", "1")), args.failures, teams)
            run.states([n for n in [args.case] if n is not None] if one else range(args.cases))
            run.models([n for n in [args.model] if n is not None] if one else range(args.models))
        finally:
            for team in teams.values():
                team.stop()
    empty = 0 if one or run.failed else show(run.cells, run.traits)
    used = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = f"{time.monotonic() - began:.1f} s, {used:.1f} CPU-seconds"
    print(f"{run.tried} cases of seed {run.seed}, {run.failed} failed: {seconds}")
    return 1 if run.failed or empty else 0


def show(cells: Counter[Any], traits: Counter[str]) -> int:
    """Prints how often each cell was there: the fewest and the most of all types. Gives how many are empty."""
    width = max(len(f"{save}, {load}, {change}") for (save, load) in states.routes() for change in states.CHANGES)
    print(f"\nAPI, change of size; tensors of the {len(states.DTYPES)} types, the fewest and the most")
    print(" " * width, *(f"{name:>8}" for name in states.PLACEMENTS))
    for route in states.routes():
        for change in states.CHANGES:
            row = []
            for name in states.PLACEMENTS:
                counts = [cells[route, change, name, dtype] for dtype in states.DTYPES]
                row.append(f"{min(counts)}-{max(counts)}".rjust(8))
            print(f"{', '.join([*route, change]):<{width}}", *row)
    for text, count in sorted(traits.items()):
        print(f"  {count:5} cases: {text}")
    empty = [cell for cell in states.cells() if not cells[cell]] + sorted((member.TRAITS | MODEL_TRAITS) - set(traits))
    for cell in empty[:10]:
        print(f"EMPTY: {cell}")
    print(f"{len(states.cells())} cells, {len(empty)} empty")
    return len(empty)


if __name__ == "__main__":
    sys.exit(main())
