"""Time from the death of one member to the last member's exec in the next generation, under Muster and under torchrun.

On a cluster of its own, 4 nodes x 4 tasks, with the directory store and without Ceph: a restart does not wait for the
store. A fault is SIGKILL to a random member; the clock is CLOCK_REALTIME, which all virtual nodes share, read just
before the kill and first thing in each member after its exec (member.c). Under torchrun the members are the same
programs: first a small one, then a PyTorch script.
"""

import argparse
import json
import math
import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.options import add_count
from support.report import Report, median, percentile
from support.step import Step
from vc import Cluster, ClusterError, wait_until
from vc.names import BUILD_IN_NODE, FRAMEWORKS_PYTHON, SOURCE_IN_NODE

NODES = 4
TASKS = 4  # a node
MEMBERS = NODES * TASKS
MEMBER = f"{BUILD_IN_NODE}/tests/bench_member"
SCRIPT = [FRAMEWORKS_PYTHON, f"{SOURCE_IN_NODE}/tests/bench/programs/torch_member.py"]
# Muster stops a gang after ten restarts without progress; a generation that has run for this long is progress.
PROGRESS_AFTER_MS = 100
START_TIMEOUT_S = 60
RESTART_TIMEOUT_S = 120
FAST = ["--monitor_interval", "0.1"]


@dataclass(frozen=True)
class Fault:
    """Moments in CLOCK_REALTIME ns: the kill, the first and the last exec after it, the end of the last member's
    init_process_group where members have one."""

    killed: int
    first: int
    last: int
    joined: int | None


def add_options(parser: argparse.ArgumentParser) -> None:
    add_count(parser, "--faults", 40, "faults under Muster, a small program")
    add_count(parser, "--torchrun-faults", 5, "under torchrun, the same, with its default monitor interval and with 0.1 s, each")
    add_count(parser, "--torch-faults", 5, "with PyTorch members, under Muster and under torchrun, each")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the choice of the victims")
    parser.add_argument("--build", type=Path, metavar="DIR", help="Muster's build (default: build)")


def run(args: argparse.Namespace) -> Report:
    changes = {"build": str(args.build.resolve())} if args.build else {}
    settings = {"progress_after": f"{PROGRESS_AFTER_MS}ms"}
    cluster = Cluster(f"bench{os.getpid()}", nodes=NODES, ceph=False, settings=settings, **changes)
    report = Report()
    report.text(f"restart: {NODES} nodes x {TASKS} tasks, {os.cpu_count()} CPUs, seed {args.seed}; milliseconds")
    with cluster:
        bench = Bench(cluster, report, random.Random(args.seed))
        if args.faults:
            bench.muster("restart", "a small program", [], args.faults)
        if args.torchrun_faults:
            bench.torchrun("torchrun", "a small program", [], [], args.torchrun_faults)
            bench.torchrun("torchrun_fast", "a small program", [], FAST, args.torchrun_faults)
        if args.torch_faults:
            bench.muster("restart_torch", "PyTorch members", SCRIPT, args.torch_faults)
            bench.torchrun("torchrun_torch", "PyTorch members", SCRIPT, [], args.torch_faults)
    _compare(report)
    return report


class Bench:
    """Measurements on one cluster, one after another; each leaves its figures in the report."""

    def __init__(self, cluster: Cluster, report: Report, choose: random.Random) -> None:
        self._cluster = cluster
        self._report = report
        self._choose = choose

    def muster(self, name: str, title: str, program: list[str], count: int) -> None:
        srun = [f"-N{NODES}", f"--ntasks-per-node={TASKS}", "--gang=restarts=1000", MEMBER, *program]
        load = os.getloadavg()[0]
        with Step(self._cluster, name, MEMBERS, srun) as step:
            # Long enough for the progress and for the record, and not in step with any timer.
            faults: list[Fault] = []
            self._inflict(faults, step, count, bool(program), 2 * PROGRESS_AFTER_MS, 3 * PROGRESS_AFTER_MS)
            events = _events(self._cluster, step.job, count)
        self._report.header(f"Muster, {title} (load {load:.1f})")
        self._put(name, faults)
        _breakdown(self._report, faults, events)
        self._report.numbers[f"{name}_n"] = count

    def torchrun(self, name: str, title: str, program: list[str], interval: list[str], count: int) -> None:
        rendezvous = ["--rdzv_backend", "c10d", "--rdzv_endpoint", "n1:29400", "--rdzv_id", "bench"]
        size = ["--nnodes", str(NODES), "--nproc_per_node", str(TASKS), "--max_restarts", "1000"]
        how = [*size, *rendezvous, *interval, "--no_python"]
        srun = [f"-N{NODES}", "--ntasks-per-node=1", FRAMEWORKS_PYTHON, "-m", "torch.distributed.run", *how, MEMBER, *program]
        load = os.getloadavg()[0]
        faults: list[Fault] = []
        why = ""
        with Step(self._cluster, name, MEMBERS, srun) as step:
            try:
                # It looks at its workers at intervals of up to 5 s: the faults are spread over them.
                self._inflict(faults, step, count, bool(program), 300, 5300)
            except ClusterError as error:
                why = str(error)
        self._report.header(f"torchrun {' '.join(interval) or 'with its defaults'}, {title} (load {load:.1f})")
        self._put(name, faults)
        if why:
            self._report.text(f"  {len(faults)} of {count} came back, then: {why.splitlines()[0]}")
        self._report.numbers |= {f"{name}_n": count, f"{name}_came_back": len(faults)}

    def _inflict(self, faults: list[Fault], step: Step, count: int, joins: bool, least_ms: int, most_ms: int) -> None:
        """Kills one member after another, each time when all have been up for a random while. Adds those after which all members
        came back to `faults`; ClusterError when they did not."""
        up = "joined" if joins else "exec"
        step.wait(up, 0, START_TIMEOUT_S)
        for _ in range(count):
            time.sleep(self._choose.uniform(least_ms, most_ms) / 1000)
            killed = step.kill_one(self._choose)
            ready = step.wait(up, killed, RESTART_TIMEOUT_S).values()
            started = step.wait("exec", killed, RESTART_TIMEOUT_S).values()
            faults.append(Fault(killed, min(started), max(started), max(ready) if joins else None))

    def _put(self, name: str, faults: list[Fault]) -> None:
        if not faults:
            return
        times = [_ms(fault.last - fault.killed) for fault in faults]
        self._report.row("death to the last member's exec", times)
        joined = [_ms(fault.joined - fault.killed) for fault in faults if fault.joined]
        if joined:
            self._report.row("death to the end of the last init_process_group", joined)
        self._report.numbers[f"{name}_ms_median"] = median(times)
        if name == "restart":
            self._report.numbers["restart_ms_p99"] = percentile(times, 99)


def _ms(nanoseconds: int) -> float:
    return nanoseconds / 1e6


def _events(cluster: Cluster, job: str, restarts: int) -> list[dict[str, Any]]:
    """The gang's history, once it tells of all restarts."""

    def told() -> list[dict[str, Any]] | None:
        done = cluster.user("ctl", ["muster", "events", job, "--json"])
        events = json.loads(done.stdout)["events"] if done.returncode == 0 else []
        runs = [event for event in events if event["kind"] == "running"]
        return events if runs and runs[-1]["generation"] > restarts else None

    return wait_until(told, 10, f"the events of {restarts} restarts", interval=0.1)


def _breakdown(report: Report, faults: list[Fault], events: list[dict[str, Any]]) -> None:
    """Where the time goes, as far as the history reaches (it drops its middle when it is long)."""
    stages: dict[str, list[float]] = {}
    for number, fault in enumerate(faults):
        until = faults[number + 1].killed if number + 1 < len(faults) else math.inf
        seen: dict[str, dict[str, Any]] = {}
        for event in events:
            if fault.killed < event["time_ns"] < until:
                seen.setdefault(event["kind"], event)
        if not {"stopping", "fault", "running"} <= seen.keys():
            continue
        # The coordinator notes the stop when it has sent the order, the fault just before it orders the start.
        stopping, stopped = seen["stopping"]["time_ns"], seen["fault"]["time_ns"]
        for title, begin, end in (
            ("  death to the coordinator's order to stop", fault.killed, stopping),
            ("  to the word from all that nothing runs any more", stopping, stopped),
            ("  to the first exec", stopped, fault.first),
            ("  to the last exec", fault.first, fault.last),
        ):
            stages.setdefault(title, []).append(_ms(end - begin))
        own = re.search(r"([\d.]+) ms after the fault", seen["running"]["text"])
        if own:
            stages.setdefault("the same by `muster events`", []).append(float(own.group(1)))
    for title, values in stages.items():
        report.row(title, values)


def _compare(report: Report) -> None:
    numbers = report.numbers
    report.text("")
    for key, peer, own, title in (
        ("ratio_vs_torchrun", "torchrun", "restart", "a small program"),
        ("ratio_vs_torchrun_fast", "torchrun_fast", "restart", "a small program, --monitor_interval 0.1"),
        ("ratio_torch_vs_torchrun", "torchrun_torch", "restart_torch", "PyTorch members"),
    ):
        if f"{peer}_ms_median" in numbers and f"{own}_ms_median" in numbers:
            numbers[key] = numbers[f"{peer}_ms_median"] / numbers[f"{own}_ms_median"]
            report.text(f"torchrun takes {numbers[key]:.0f} times as long as Muster ({title}; medians)")
