"""What the demo prints: short lines, colours on a terminal only."""

import os
import sys

_COLOURS = {"bold": "1", "dim": "2", "red": "31;1", "green": "32"}


def _coloured(text: str, colour: str | None) -> str:
    if colour is None or not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return text
    return f"\033[{_COLOURS[colour]}m{text}\033[0m"


def title(text: str) -> None:
    print("\n" + _coloured(text, "bold"), flush=True)


def say(text: str, colour: str | None = None) -> None:
    """A line of the demo itself."""
    print("     " + _coloured(text, colour), flush=True)


def quote(text: str) -> None:
    """A line that a program or a file has."""
    print("     " + _coloured("| " + text, "dim"), flush=True)
