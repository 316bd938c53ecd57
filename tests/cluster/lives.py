"""How members that use programs/walk.py have lived, and what must hold of that."""

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from unittest import TestCase

_LIFE = struct.Struct("<6q")  # programs/walk.py


@dataclass(frozen=True)
class Life:
    """One member of one generation, as it has shown itself; times in seconds of CLOCK_BOOTTIME."""

    generation: int
    rank: int
    host: str
    start: float
    last: float
    step: int
    committed: int
    began: int  # the step it started from; -1: it did not come so far
    pid: int


def read_lives(files: Path) -> list[Life]:
    found = []
    for path in files.glob("life.*"):
        match = re.fullmatch(r"life\.(\d+)\.(\d+)\.([^.]+)", path.name)
        if match is not None:
            start, last, *rest = _LIFE.unpack(path.read_bytes())
            found.append(Life(int(match[1]), int(match[2]), match[3], start / 1e9, last / 1e9, *rest))
    return sorted(found, key=lambda life: (life.generation, life.rank))


def set_target(files: Path, step: int) -> None:
    """The step at which all members end."""
    (files / "target.part").write_text(str(step))
    (files / "target.part").rename(files / "target")


def check_generations(case: TestCase, lives: list[Life]) -> None:
    """When a process of a generation started, every process of the ones before had given its last sign of life."""
    starts: dict[int, float] = {}
    for life in lives:
        starts[life.generation] = min(life.start, starts.get(life.generation, life.start))
    for life in lives:
        later = [generation for generation in starts if generation > life.generation]
        if later:
            # Starts are known to 10 ms.
            case.assertLess(life.last, min(starts[g] for g in later) + 0.01, f"{life} lived when a later generation had started")
