"""How long it takes to make a cluster: from blank machines, once more, one node more, and Muster alone on a site that has Slurm.

On racks of machines in containers (tests/provision), with the packages of this checkout, and without the time that these take to
build. `blank_to_healed_job_s` goes from the start of blank machines to the end of a job whose gang has lost a node. `memory_gib` is the
most that programs and tmpfs of all machines have had at once, looked at twice a second.
What the last `provisioning/try.sh --all` has named is said too.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from support.report import Report
from vc import ClusterError
from vc.names import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tests" / "provision"))

import blank_site  # noqa: E402
from all_faults import result  # noqa: E402
from blank_site import GROUPS, NODES  # noqa: E402
from gang_job import GangJob  # noqa: E402
from rack import Options, Rack  # noqa: E402

# What is counted of the last provisioning/try.sh --all, and its key in the result.
_FOUND = {"faults_named": "faults", "ceph_named": "ceph", "pairs_named": "pairs", "plays_killed": "kills", "false_findings": "false"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--packages", type=Path, metavar="DIR", help="Muster's packages (default: build them)")


def _build_packages() -> Path:
    script = 'set -euo pipefail; source "$0"; trap setup_cleanup EXIT; build_packages ""'
    done = subprocess.run(["bash", "-c", script, str(REPOSITORY / "scripts/setup.sh")], stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise ClusterError("the packages have not been built")
    return REPOSITORY / "build" / "packages"


@contextlib.contextmanager
def _memory(rack: Rack, numbers: dict[str, float]) -> Iterator[None]:
    """Looks at the rack's memory as long as it lasts."""
    ended = threading.Event()
    found = [0]

    def look() -> None:
        while not ended.wait(0.5):
            found.append(rack.memory())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        ended.set()
        looking.join()
        numbers["memory_gib"] = max(found) / 2**30


def _blank(report: Report, packages: Path) -> None:
    began = time.monotonic()
    with Rack(f"bench-{os.getpid()}", blank_site.options(Options().suite, packages)) as rack, _memory(rack, report.numbers):
        rack.playbooks.prepare(GROUPS, blank_site.variables(rack))
        numbers = report.numbers
        numbers["site_s"] = blank_site.play(rack, "site").seconds
        rack.wait_for_idle(NODES)
        job = GangJob(rack, NODES)
        job.submit()
        job.wait_for_checkpoint()
        rack.kill("n2")
        job.wait_for_restart()
        job.wait_for_end()
        numbers["blank_to_healed_job_s"] = time.monotonic() - began
        if complaint := job.complaint():
            raise ClusterError(f"{complaint}\n{job.evidence()}")
        rack.revive("n2")
        rack.wait_for_idle(NODES)
        again = blank_site.play(rack, "site")
        numbers["site_again_s"] = again.seconds
        numbers["changed_second_run"] = sum(again.changed.values())
        numbers["validate_s"] = blank_site.play(rack, "validate").seconds
        rack.add("n4")
        rack.playbooks.prepare(GROUPS | {"compute": [*NODES, "n4"]}, blank_site.variables(rack))
        numbers["add_node_s"] = blank_site.play(rack, "add_node", "-e", "nodes=n4").seconds


def _muster_only(report: Report, packages: Path) -> None:
    with Rack(f"bench-{os.getpid()}", nodes=len(NODES), debs=str(packages)) as rack:
        groups = {"controller": ["ctl"], "login": [], "compute": NODES}
        variables = {"muster_apt_source": rack.mirror.source, "muster_config": {"store": "dir:/srv/checkpoints"}}
        rack.playbooks.prepare(groups, variables)
        report.numbers["muster_only_s"] = blank_site.play(rack, "muster_only").seconds


def run(args: argparse.Namespace) -> Report:
    packages = args.packages.resolve() if args.packages else _build_packages()
    report = Report()
    _blank(report, packages)
    _muster_only(report, packages)
    found = result()
    if found:
        for name, kind in _FOUND.items():
            report.numbers[name] = len(found.get(kind, []))
    else:
        report.text(f"  {', '.join(_FOUND)}: provisioning/try.sh --all has not been run")
    for name, value in report.numbers.items():
        report.text(f"  {name:<30}{value:>10.1f}")
    return report
