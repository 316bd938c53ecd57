"""What it costs to build Muster for ./demo.sh and for ./test.sh, against an older commit.

Each commit is cloned, and built in the clone with a ccache that is empty: first what ./demo.sh needs, then the rest of what
./test.sh needs. Processor seconds are those of everything that ninja starts. The product's own compiler flags are compared
as well: a build that is faster since it optimises less is refused.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from support.report import Report
from vc import ClusterError
from vc.names import REPOSITORY

# (preset, targets), as scripts/tests.sh has them; the older ones are those of commits with a preset for the fuzzers.
_DEMO = [("dev", ["product"])]
_REST = [
    ("dev", ["cluster_programs", "unit_tests", "sim_test", "sim_planted"]),
    ("asan", ["unit_tests", "fuzzers"]),
    ("tsan", ["unit_tests"]),
]
_OLD_DEMO: list[tuple[str, list[str]]] = [("dev", [])]
_OLD_REST = [("asan", ["unit_tests"]), ("tsan", ["unit_tests"]), ("fuzz", ["fuzzers"])]
# Of the product: what the flags are compared by.
_SAMPLE = "daemon/main.cc"


@dataclass
class Cost:
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    objects: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds, self.objects + other.objects
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--against", default="19d42f6", metavar="COMMIT", help="the older commit (default: 19d42f6)")
    parser.add_argument("--commit", default="HEAD", metavar="COMMIT", help="the newer one (default: HEAD)")


def _run(words: list[str], directory: Path, env: dict[str, str]) -> str:
    done = subprocess.run(words, cwd=directory, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(words)}` failed ({done.returncode}): {(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def _objects(build: Path) -> int:
    log = (build / ".ninja_log").read_text()
    return len({line.split("\t")[3] for line in log.splitlines()[1:] if line.split("\t")[3].endswith(".o")})


def _build(clone: Path, builds: list[tuple[str, list[str]]], env: dict[str, str]) -> Cost:
    cost = Cost()
    for preset, targets in builds:
        directory = clone / ("build" if preset == "dev" else f"build-{preset}")
        if not directory.exists():
            _run(["cmake", "--preset", preset], clone, env)
        objects = _objects(directory) if (directory / ".ninja_log").exists() else 0
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        _run(["ninja", "-C", str(directory), *targets], clone, env)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        cost += Cost(time.monotonic() - began, cpu, _objects(directory) - objects)
    return cost


def _flags(clone: Path) -> set[str]:
    """Those of a product's source, but for paths and definitions."""
    for entry in json.loads((clone / "build/compile_commands.json").read_text()):
        if entry["file"].endswith("/" + _SAMPLE):
            return set(re.findall(r"(?<=\s)-(?:O|g|m|f(?!file-prefix-map)|std)\S*", entry["command"]))
    raise ClusterError(f"{_SAMPLE} is not compiled in {clone}")


def _measure(commit: str, directory: Path) -> tuple[Cost, Cost, set[str]]:
    """What demo.sh's build costs, what the rest does, and the product's flags."""
    clone = directory / "clone"
    env = os.environ | {"CCACHE_DIR": str(directory / "ccache")}
    directory.mkdir()
    safe = ["git", "-c", f"safe.directory={REPOSITORY}", "-c", f"safe.directory={REPOSITORY / '.git'}"]
    _run([*safe, "clone", "--quiet", "--no-checkout", str(REPOSITORY), str(clone)], directory, env)
    _run(["git", "checkout", "--quiet", "--detach", commit], clone, env)
    old = '"fuzz"' in (clone / "CMakePresets.json").read_text()
    demo = _build(clone, _OLD_DEMO if old else _DEMO, env)
    rest = _build(clone, _OLD_REST if old else _REST, env)
    return demo, rest, _flags(clone)


def run(args: argparse.Namespace) -> Report:
    safe = ["git", "-c", f"safe.directory={REPOSITORY}", "rev-parse", "--short"]
    commits = [_run([*safe, name], REPOSITORY, dict(os.environ)).strip() for name in (args.against, args.commit)]
    report = Report()
    report.text(f"build: {os.cpu_count()} CPUs, load before {os.getloadavg()[0]:.1f}, ccache empty, n = 1")
    report.text("")
    report.text(f"{'':<28}{'demo':>12}{'':>10}{'':>10}{'all':>12}")
    report.text(f"{'commit':<28}{'CPU s':>12}{'s':>10}{'objects':>10}{'CPU s':>12}{'s':>10}{'objects':>10}")
    found = []
    with tempfile.TemporaryDirectory(prefix="muster-bench.") as directory:
        for commit in commits:
            demo, rest, flags = _measure(commit, Path(directory) / commit)
            whole = demo + rest
            found.append((demo, whole, flags))
            shown = "".join(f"{c.cpu_seconds:>12.0f}{c.seconds:>10.0f}{c.objects:>10}" for c in (demo, whole))
            report.text(f"{commit:<28}{shown}")
    (old_demo, old_all, old_flags), (demo, whole, flags) = found
    if flags != old_flags:
        raise ClusterError(f"the product's flags differ: {sorted(flags ^ old_flags)}")
    report.numbers = {
        "demo_build_cpu_ratio": demo.cpu_seconds / old_demo.cpu_seconds,
        "all_build_cpu_ratio": whole.cpu_seconds / old_all.cpu_seconds,
        "demo_build_s": demo.seconds,
        "all_build_s": whole.seconds,
        "demo_build_cpu_s": demo.cpu_seconds,
        "all_build_cpu_s": whole.cpu_seconds,
        "objects_demo": demo.objects,
        "objects_all": whole.objects,
    }
    report.text(f"{'ratio of CPU seconds':<28}{report.numbers['demo_build_cpu_ratio']:>12.2f}{'':>20}")
    report.text(f"{'  of all':<28}{report.numbers['all_build_cpu_ratio']:>12.2f}")
    return report
