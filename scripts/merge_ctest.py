#!/usr/bin/python3
"""Writes a CTestTestfile.cmake that has the tests of one or more builds, so that one ctest runs them.

usage: merge_ctest.py BUILD... [NAME=BUILD:LABEL...]

The tests of BUILD are taken as they are. Of NAME=BUILD:LABEL those with that label are taken; they are called
NAME.<test> and have the label NAME, since the same test exists in other builds too. These are builds with sanitizers,
which are slow: their tests have five times as long.
"""

import json
import subprocess
import sys
from typing import Any

# What a test declares and a renamed copy keeps.
_KEPT = {
    "COST",
    "ENVIRONMENT",
    "FAIL_REGULAR_EXPRESSION",
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


def _tests(build: str, label: str) -> list[dict[str, Any]]:
    argv = ["ctest", "--test-dir", build, "--show-only=json-v1", "-L", f"^{label}$"]
    tests: list[dict[str, Any]] = json.loads(subprocess.run(argv, check=True, capture_output=True).stdout)["tests"]
    return tests


def _quote(value: object) -> str:
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    if isinstance(value, list):
        value = ";".join(str(item) for item in value)
    return f"[====[{value}]====]"


def _renamed(prefix: str, test: dict[str, Any]) -> str:
    name = f"{prefix}.{test['name'].partition('.')[2] or test['name']}"
    properties = {entry["name"]: entry["value"] for entry in test["properties"]}
    unknown = properties.keys() - _KEPT - {"LABELS"}
    if unknown:
        raise SystemExit(f"merge_ctest.py: {test['name']} has {', '.join(sorted(unknown))}, which I do not know")
    if "command" not in test:
        raise SystemExit(f"merge_ctest.py: the program of {test['name']} is not there: was it built?")
    kept = {key: value for key, value in properties.items() if key in _KEPT} | {"LABELS": prefix}
    if "TIMEOUT" in kept:
        kept["TIMEOUT"] = float(kept["TIMEOUT"]) * _SLOWER
    command = " ".join(_quote(word) for word in test["command"])
    settings = " ".join(f"{key} {_quote(value)}" for key, value in kept.items())
    return f"add_test({_quote(name)} {command})\nset_tests_properties({_quote(name)} PROPERTIES {settings})"


def main(arguments: list[str]) -> None:
    for argument in arguments:
        prefix, separator, rest = argument.partition("=")
        if not separator:
            print(f"subdirs({_quote(argument)})")
            continue
        build, _, label = rest.rpartition(":")
        for test in _tests(build, label):
            print(_renamed(prefix, test))


if __name__ == "__main__":
    main(sys.argv[1:])
