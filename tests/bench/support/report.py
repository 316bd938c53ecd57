"""Figures of a benchmark: their statistics, a table for people, a flat object for programs."""

import json
import math
import statistics
from dataclasses import dataclass, field


def median(values: list[float]) -> float:
    return statistics.median(values)


def percentile(values: list[float], percent: float) -> float:
    """The nearest-rank percentile: a value that was measured, the largest for p99 of up to 100 values."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


@dataclass
class Report:
    """`lines` is what people read, `numbers` what --json prints."""

    lines: list[str] = field(default_factory=list)
    numbers: dict[str, float] = field(default_factory=dict)

    def text(self, line: str) -> None:
        self.lines.append(line)

    def header(self, title: str) -> None:
        self.lines += ["", f"{title:<58}{'median':>10}{'p99':>10}{'least':>10}{'n':>5}"]

    def row(self, title: str, values: list[float]) -> None:
        """Values in milliseconds."""
        figures = (median(values), percentile(values, 99), min(values))
        self.lines.append(f"  {title:<56}" + "".join(f"{figure:>10.1f}" for figure in figures) + f"{len(values):>5}")

    def table(self) -> str:
        return "\n".join(self.lines)

    def json(self, name: str) -> str:
        rounded = {key: value if isinstance(value, int) else round(value, 3) for key, value in self.numbers.items()}
        return json.dumps({"bench": name} | rounded)
