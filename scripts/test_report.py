#!/usr/bin/python3
"""What tests have come to: by label how many, how many failed, how long, how many seconds of a processor; and what each failed one
has printed. At the end it names the tests that took more of the processors than their rows in tests/costs.tsv say, and those that have
no row there and should.

usage: test_report.py [--left-out NAMES] RESULTS...
                                        of one run (as scripts/tests.sh leaves it in RESULTS.json and RESULTS.xml), of which these
                                        tests were left out
       test_report.py --runs RESULTS... of several runs of the same tests, a line for each test
       test_report.py --costs RESULTS...
                                        of several runs too; writes the tests' rows in tests/costs.tsv
       test_report.py --failed RESULTS LABEL...
                                        the failed tests that are to run once more, alone, as in cluster.gang|vm.guests

A test of RESULTS-again has run twice. If it passed then it is unstable: it counts as passed, but no more than three may be. A test
that never ran, is not of one of the labels, or has said that its failure is red at once (tests/cluster/harness.py) does not run
again. The exit status is 0 when nothing has failed.
"""

import collections
import json
import pathlib
import re
import statistics
import sys
import xml.etree.ElementTree
from dataclasses import dataclass

# Of a failed test's output the end is printed again.
_LINES = 150
_UNSTABLE = 3  # that many fail no run
_RED_AT_ONCE = "\nred at once: "
_COSTS = pathlib.Path(__file__).resolve().parents[1] / "tests" / "costs.tsv"
_DEARER = 1.5  # than its row, by how much dearer than theirs all tests of this machine are
_MOMENT = 5.0  # seconds of a processor, which are not worth naming
_PROCESSOR = re.compile(r"^processor seconds: ([0-9]+\.[0-9]+)$", re.MULTILINE)  # of scripts/counted


@dataclass
class Outcome:
    name: str
    label: str
    failed: bool
    seconds: float
    output: str
    ran: bool = True
    unstable: bool = False
    shared: bool = False  # tests/costs.tsv has a row of it, or should (cmake/TestShares.cmake sets its COST)

    @property
    def processor(self) -> float:
        """Seconds of a processor; a test that was killed has told none."""
        return sum(float(seconds) for seconds in _PROCESSOR.findall(self.output))


def read(results: str) -> list[Outcome]:
    """The outcomes of one run. A test that ctest was to run and that is not among the results has failed too."""
    listed = json.loads(pathlib.Path(results + ".json").read_text(encoding="utf-8"))["tests"]
    labels = {}
    shared = {test["name"] for test in listed if any(entry["name"] == "COST" for entry in test["properties"])}
    for test in listed:
        values = [entry["value"] for entry in test["properties"] if entry["name"] == "LABELS"]
        labels[test["name"]] = values[0][0] if values else "?"
    found = []
    file = pathlib.Path(results + ".xml")
    cases = xml.etree.ElementTree.parse(file).getroot().iter("testcase") if file.exists() else ()
    for case in cases:
        state = case.get("status")
        output = case.findtext("system-out") or ""
        name = case.get("name", "")
        seconds = float(case.get("time", 0))
        found.append(Outcome(name, labels.pop(name, "?"), state != "run", seconds, output, state in ("run", "fail")))
    found += [Outcome(name, label, True, 0.0, "it did not run", False) for name, label in labels.items()]
    for outcome in found:
        outcome.shared = outcome.name in shared
    return found


def _with_second_looks(results: str) -> list[Outcome]:
    outcomes = read(results)
    if not pathlib.Path(results + "-again.json").exists():
        return outcomes
    again = {outcome.name: outcome for outcome in read(results + "-again")}
    for outcome in outcomes:
        second = again.get(outcome.name)
        if second is None:
            continue
        outcome.seconds += second.seconds
        outcome.failed, outcome.unstable = second.failed, not second.failed
        if second.failed:
            outcome.output += f"\n== Alone it failed as well:\n{second.output}"
    return outcomes


def _to_run_again(results: str, labels: list[str]) -> list[str]:
    failed = [outcome for outcome in read(results) if outcome.failed and outcome.ran and outcome.label in labels]
    return [outcome.name for outcome in failed if _RED_AT_ONCE not in outcome.output]


def _by_label(outcomes: list[Outcome]) -> str:
    groups = collections.defaultdict(list)
    for outcome in outcomes:
        groups[outcome.label].append(outcome)
    lines = [f"{'label':10} {'tests':>6} {'failed':>7} {'seconds':>8} {'processor s':>12}  longest"]
    for label, group in sorted(groups.items()):
        longest = max(group, key=lambda o: o.seconds)
        failed = sum(o.failed for o in group)
        seconds = sum(o.seconds for o in group)
        processor = sum(o.processor for o in group)
        row = f"{label:10} {len(group):6} {failed:7} {seconds:8.0f} {processor:12.0f}"
        lines.append(f"{row}  {longest.name} {longest.seconds:.0f}")
    lines.append(f"all tests: {sum(o.processor for o in outcomes) / 60:.0f} processor minutes")
    return "\n".join(lines)


def _rows() -> dict[str, tuple[int, int]]:
    """Of each test that tests/costs.tsv has the seconds, and the processor seconds."""
    rows = [line.split("\t") for line in _COSTS.read_text(encoding="utf-8").splitlines()[1:]]
    return {name: (int(seconds), int(processor)) for name, seconds, processor in rows}


def _write_rows(runs: list[list[Outcome]]) -> None:
    """Of each test that should have a row and has passed the medians become its row."""
    rows = _rows()
    groups = collections.defaultdict(list)
    for outcome in (outcome for outcomes in runs for outcome in outcomes):
        if outcome.shared and outcome.ran and not outcome.failed and not outcome.unstable:
            groups[outcome.name].append(outcome)
    for name, group in groups.items():
        medians = (statistics.median(o.seconds for o in group), statistics.median(o.processor for o in group))
        rows[name] = (max(1, round(medians[0])), max(1, round(medians[1])))
    lines = ["test\twall_s\tcpu_s", *(f"{name}\t{seconds}\t{processor}" for name, (seconds, processor) in sorted(rows.items()))]
    _COSTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{_COSTS} has new rows of {len(groups)} tests")


def _dearer(outcomes: list[Outcome]) -> list[str]:
    """The tests that took more of the processors than their rows say, measured by the speed of this machine."""
    wanted = {name: processor for name, (_, processor) in _rows().items()}
    ratios = {o.name: o.processor / wanted[o.name] for o in outcomes if o.name in wanted and o.processor and not o.unstable}
    if len(ratios) < 40:  # too few to tell how fast this machine is
        return []
    usual = statistics.median(ratios.values())
    found = []
    for name, ratio in sorted(ratios.items()):
        more = (ratio - usual) * wanted[name]
        if ratio > _DEARER * usual and more > _MOMENT:
            found.append(f"{name} took {ratio * wanted[name]:.0f} processor seconds; by its row {usual * wanted[name]:.0f} on this machine")
    return found


def _without_row(outcomes: list[Outcome]) -> list[str]:
    rows = _rows()
    missing = [outcome for outcome in outcomes if outcome.shared and outcome.ran and outcome.name not in rows]
    return [f"{o.name} has no row in tests/costs.tsv: it took {o.seconds:.0f} s, and {o.processor:.0f} processor seconds" for o in missing]


def _by_test(runs: list[list[Outcome]]) -> str:
    groups = collections.defaultdict(list)
    for outcomes in runs:
        for outcome in outcomes:
            groups[outcome.name].append(outcome)
    width = max((len(name) for name in groups), default=4)
    lines = [f"{'test':{width}} {'runs':>5} {'failed':>7} {'median s':>9} {'longest s':>10}"]
    for name, group in sorted(groups.items()):
        seconds = [o.seconds for o in group]
        failed = sum(o.failed for o in group)
        lines.append(f"{name:{width}} {len(group):5} {failed:7} {statistics.median(seconds):9.1f} {max(seconds):10.1f}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--failed"]:
        print("|".join(_to_run_again(arguments[1], arguments[2:])))
        return 0
    if arguments[:1] == ["--costs"]:
        _write_rows([read(results) for results in arguments[1:]])
        return 0
    left_out: list[str] = []
    if arguments[:1] == ["--left-out"]:
        left_out, arguments = arguments[1].split(), arguments[2:]
    several = arguments[:1] == ["--runs"]
    runs = [_with_second_looks(results) for results in arguments[several:]]
    outcomes = [outcome for run in runs for outcome in run]
    unstable = [outcome for outcome in outcomes if outcome.unstable]
    failed = [outcome for outcome in outcomes if outcome.failed]
    for outcome in unstable + failed:
        print(f"== {outcome.name} failed{' beside other tests' * outcome.unstable}; the end of what it has printed:")
        print("\n".join("    " + line for line in outcome.output.splitlines()[-_LINES:]))
    print("== Results")
    print(_by_test(runs) if several else _by_label(outcomes))
    for line in [] if several else _without_row(outcomes) + _dearer(outcomes):
        print(line)
    if left_out:
        print(f"left out, {len(left_out)}: {', '.join(left_out)}")
    if unstable:
        names = ", ".join(sorted(outcome.name for outcome in unstable))
        print(f"unstable (failed, then passed alone), {len(unstable)}: {names}")
    if failed:
        print("failed: " + ", ".join(sorted({outcome.name for outcome in failed})))
    if len(unstable) > _UNSTABLE:
        print(f"more than {_UNSTABLE} tests are unstable, so they count as failed")
        failed += unstable
    print(f"{len(outcomes) - len(failed)} passed, {len(failed)} failed" + f", {len(left_out)} left out" * bool(left_out))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
