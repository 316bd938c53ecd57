#!/usr/bin/python3
"""Writes a CTestTestfile.cmake that has the tests of one or more builds, so that one ctest runs them.

usage: merge_ctest.py BUILD... [NAME=BUILD:LABEL...]

All tests of BUILD are taken. Of NAME=BUILD:LABEL those with that label are taken; they are called NAME.<test> and have the
label NAME, since the same test exists in other builds too. These are builds with sanitizers, which are slow: their tests have
five times as long. scripts/counted runs each test. A test without a share of its own (cmake/TestShares.cmake) takes half a processor.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

# What a test declares and a renamed copy keeps.
_KEPT = {
    "COST",
    "DEPENDS",
    "ENVIRONMENT",
    "FAIL_REGULAR_EXPRESSION",
    "FIXTURES_REQUIRED",
    "FIXTURES_SETUP",
    "LABELS",
    "PASS_REGULAR_EXPRESSION",
    "PROCESSORS",
    "RESOURCE_LOCK",
    "RUN_SERIAL",
    "SKIP_REGULAR_EXPRESSION",
    "SKIP_RETURN_CODE",
    "TIMEOUT",
    "WORKING_DIRECTORY",
}
_SLOWER = 5
_HALF_A_PROCESSOR = 2  # slots (scripts/tests.sh)
_COUNTED = str(Path(__file__).resolve().with_name("counted"))


def _tests(build: str, label: str) -> list[dict[str, Any]]:
    argv = ["ctest", "--test-dir", build, "--show-only=json-v1", "-L", label]
    tests: list[dict[str, Any]] = json.loads(subprocess.run(argv, check=True, capture_output=True).stdout)["tests"]
    return tests


def _quote(value: object) -> str:
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    if isinstance(value, list):
        value = ";".join(str(item) for item in value)
    return f"[====[{value}]====]"


def _entry(test: dict[str, Any], prefix: str = "") -> str:
    """A test as CTestTestfile.cmake has it; with a prefix, as a build with sanitizers has it."""
    name: str = test["name"]
    properties = {entry["name"]: entry["value"] for entry in test["properties"]}
    if "COST" not in properties:  # of one that has a share (cmake/TestShares.cmake) ctest lists no PROCESSORS if that is one
        properties.setdefault("PROCESSORS", _HALF_A_PROCESSOR)
    if unknown := properties.keys() - _KEPT:
        raise SystemExit(f"merge_ctest.py: {name} has {', '.join(sorted(unknown))}, which I do not know")
    if prefix:
        if "command" not in test:
            raise SystemExit(f"merge_ctest.py: the program of {name} is not there: was it built?")
        name = f"{prefix}.{name.partition('.')[2] or name}"
        properties["LABELS"] = prefix
        if "TIMEOUT" in properties:
            properties["TIMEOUT"] = float(properties["TIMEOUT"]) * _SLOWER
    # A program that was not built is one that this run does not need, or the test says so.
    command = " ".join(_quote(word) for word in [_COUNTED, *test.get("command", [f"{name}, which was not built"])])
    settings = " ".join(f"{key} {_quote(value)}" for key, value in properties.items())
    return f"add_test({_quote(name)} {command})\nset_tests_properties({_quote(name)} PROPERTIES {settings})"


def main(arguments: list[str]) -> None:
    for argument in arguments:
        build, label, prefix = argument, "", ""
        if "=" in argument:
            prefix, _, rest = argument.partition("=")
            build, _, label = rest.rpartition(":")
            label = f"^{label}$"
        for test in _tests(build, label):
            print(_entry(test, prefix))


if __name__ == "__main__":
    main(sys.argv[1:])
