#!/usr/bin/python3
"""The tests that a change can reach, by tests/reach.tsv: regular expressions of their names, a line each.

usage: reached_tests.py BASE     of what differs between the commit BASE and the files here, new ones too
       reached_tests.py --check NAME...
                                 whether the table is complete: NAMEs are all tests. Prints what is wrong with it

A row has files, as a pattern, and tests, as patterns. A file's tests are those of the first row that it matches. "*" is any text,
also with a "/" in it; "{}" is any text without one, and stands for the same text in the row's tests. "-" is no test.
Without anything to run nothing is printed. The exit status is 1 for a table that is not complete, 2 for a BASE that is none.
"""

import re
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_TABLE = _ROOT / "tests" / "reach.tsv"


def _git(*words: str) -> list[str]:
    command = ["git", "-C", str(_ROOT), "-c", f"safe.directory={_ROOT}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"reached_tests.py: {done.stderr.strip()}", file=sys.stderr)
        raise SystemExit(2)
    return [name for name in done.stdout.split("\0") if name]


def _expression(pattern: str) -> str:
    return re.escape(pattern).replace(r"\*", ".*").replace(r"\{\}", "([^/]*)")


class _Table:
    def __init__(self) -> None:
        rows = [line.partition("\t") for line in _TABLE.read_text(encoding="utf-8").splitlines()[1:]]
        self.rows = [(files, tests.replace("-", "").split()) for files, _, tests in rows]
        self._files = [re.compile(_expression(files)) for files, _ in self.rows]

    def row(self, file: str) -> int | None:
        """The first one that the file matches."""
        return next((number for number, files in enumerate(self._files) if files.fullmatch(file)), None)

    def tests(self, file: str) -> list[str]:
        """The patterns of those that the file reaches, as regular expressions. Of a file without a row: all tests."""
        number = self.row(file)
        if number is None:
            return [".*"]
        found = self._files[number].fullmatch(file)
        held = found[1] if found and found.groups() else ""
        return [_expression(tests.replace("{}", held)) for tests in self.rows[number][1]]


def _wrong(table: _Table, names: list[str]) -> list[str]:
    """What is wrong with the table, in words."""
    files = _git("ls-files", "-z")
    wrong = [f"{file} has no row" for file in files if table.row(file) is None]
    reached = set()
    for number, (pattern, _) in enumerate(table.rows):
        matched = [file for file in files if table.row(file) == number]
        if not matched:
            wrong.append(f"{pattern} is the first row of no file")
        for expression in {expression for file in matched for expression in table.tests(file)}:
            found = {name for name in names if re.fullmatch(expression, name)}
            if not found:
                wrong.append(f"{pattern} has {expression}, which is no test")
            reached |= found
    return wrong + [f"no row has {name}" for name in sorted(set(names) - reached)]


def main(arguments: list[str]) -> int:
    table = _Table()
    if arguments[:1] == ["--check"]:
        wrong = _wrong(table, arguments[1:])
        for line in wrong:
            print(f"tests/reach.tsv: {line}")
        return 1 if wrong else 0
    changed = _git("diff", "--name-only", "--no-renames", "-z", arguments[0], "--") + _git("ls-files", "-z", "--others", "--exclude-standard")
    for expression in sorted({expression for file in changed for expression in table.tests(file)}):
        print(expression)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
