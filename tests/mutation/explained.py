"""Reads docs/mutants.md: which mutants no test can see, and why."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mutants.md"
_ENTRY = re.compile(r"(\S+), (\w+)\n\n```diff\n- (.*)\n\+ (.*)\n```\n\n[A-Z]")


def explained(text: str) -> set[tuple[str, ...]]:
    """The keys of these mutants (Place.key). A section is a file, a section below it a mutant: its function, its operator, a diff, and
    the reason. Raises ValueError for what is not so."""
    found = set()
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        file, *entries = section.split("\n### ")
        for entry in entries:
            parts = _ENTRY.match(entry)
            if parts is None:
                raise ValueError(f"{PAGE.name}: {entry.splitlines()[0]}: a diff of two lines and a reason are wanted")
            found.add((file.splitlines()[0], *parts.groups()))
    return found
