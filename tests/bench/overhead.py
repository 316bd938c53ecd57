"""What Muster costs a gang in steady state: srun of a program that computes, as a gang and without, in pairs.

On a cluster of its own, 4 nodes x 4 tasks, inside one allocation, so that the scheduler has no part in it. The program
(worker.c) does a fixed amount of work in steps of some milliseconds, and calls progress() after each. The steady state is
from the first member's first step to the last member's last one; what a gang's start and end take is the rest of the whole
srun, and told apart. The bound is that of the median of the pairs' differences, in percent of the plain run: free of any
distribution (order statistics). musterd's own CPU time is read from /proc/PID/stat, a second after srun's start to a second
before its end, and summed over all nodes and all gang runs.
"""

import argparse
import math
import os
import re
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from support.proc import cpu_s, rss_mb
from support.report import Report, median
from vc import Cluster, ClusterError
from vc.names import BUILD_IN_NODE

NODES = 4
TASKS = 4  # a node
WORKER = f"{BUILD_IN_NODE}/tests/bench_worker"
TRIAL_STEPS = 200
# From srun's start and to its end: the gang joins, starts and finishes there.
EDGE_S = 1.0
SAMPLE_S = 0.1


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=30, metavar="N", help="pairs of srun (default: 30)")
    parser.add_argument("--seconds", type=float, default=10, help="that a run is to take (default: 10)")
    parser.add_argument("--quick", action="store_true", help="6 pairs of 4 s: too few for the bound to say much")
    parser.add_argument("--build", type=Path, metavar="DIR", help="Muster's build (default: build)")


def run(args: argparse.Namespace) -> Report:
    pairs, seconds = (6, 4.0) if args.quick else (args.pairs, args.seconds)
    changes = {"build": str(args.build.resolve())} if args.build else {}
    cluster = Cluster(f"bench{os.getpid()}", nodes=NODES, ceph=False, **changes)
    load = os.getloadavg()[0]
    with cluster:
        bench = Bench(cluster, seconds)
        bench.both()  # warms up, and does not count
        results = [bench.both(number % 2 == 1) for number in range(pairs)]
        rss = max(rss_mb(pid) for pid in bench.daemons)
        bench.end()
    gang = [pair[0] for pair in results]
    plain = [pair[1] for pair in results]
    percent = [100 * (a.steady_s - b.steady_s) / b.steady_s for a, b in zip(gang, plain, strict=True)]
    ends_ms = [1000 * ((a.wall_s - a.steady_s) - (b.wall_s - b.steady_s)) for a, b in zip(gang, plain, strict=True)]
    cpu = 100 * sum(r.cpu_s for r in gang) / sum(r.watched_s for r in gang) / NODES

    report = Report()
    report.text(
        f"overhead: {NODES} nodes x {TASKS} tasks, {bench.steps} steps of {bench.step_ms:.1f} ms, {os.cpu_count()} CPUs, "
        f"load before {load:.1f}; milliseconds"
    )
    report.header("")
    report.row("the steps of a gang", [1000 * r.steady_s for r in gang])
    report.row("the steps of a plain srun", [1000 * r.steady_s for r in plain])
    report.row("wall time of a gang's srun", [1000 * r.wall_s for r in gang])
    report.row("wall time of a plain srun", [1000 * r.wall_s for r in plain])
    report.row("what a gang's start and end take more, in pairs", ends_ms)
    report.numbers |= {
        "wall_upper95_percent": _upper95(percent),
        "wall_median_percent": median(percent),
        "start_and_end_ms_median": median(ends_ms),
        "agent_cpu_percent": cpu,
        "agent_rss_mb": rss,
        "overhead_n": pairs,
    }
    # None is called for: one that happens is Muster's own mistake, and part of what it costs.
    faults = [r.said for r in gang if r.said]
    report.numbers["overhead_faults"] = len(faults)
    for text in faults:
        report.text(f"  a gang had a fault:\n{text}")
    report.text(f"  median of the pairs' differences {median(percent):+.2f} %, 95 % upper bound {_upper95(percent):+.2f} %")
    report.text(f"  musterd, of a core a node {cpu:.3f} %")
    report.text(f"  musterd's resident memory, the largest of the nodes {rss:.1f} MB")
    return report


@dataclass(frozen=True)
class Run:
    wall_s: float  # of the whole srun
    steady_s: float  # from the first step to the last one
    cpu_s: float = 0.0  # of all nodes' daemons, while the gang was watched
    watched_s: float = 0.0
    said: str = ""  # by Muster, to the job: faults and restarts


class Bench:
    def __init__(self, cluster: Cluster, seconds: float) -> None:
        self._cluster = cluster
        trial = cluster.user("ctl", [WORKER, str(TRIAL_STEPS)], timeout=60)
        if trial.returncode != 0:
            raise ClusterError(f"the program does not run: {trial.stderr}")
        self.step_ms = float(trial.stdout.split()[0]) / TRIAL_STEPS
        cpus = min(os.cpu_count() or 1, NODES * TASKS)
        self.steps = max(1, round(1000 * seconds * cpus / (NODES * TASKS) / self.step_ms))
        self._timeout_s = 60 + 20 * seconds
        self.daemons = [self._pid(node) for node in cluster.compute_nodes]
        allocated = cluster.user("ctl", ["salloc", "--no-shell", f"-N{NODES}", f"--ntasks-per-node={TASKS}"], timeout=60)
        found = re.search(r"job allocation (\d+)", allocated.stderr)
        if not found:
            raise ClusterError(f"no allocation: {allocated.stderr}")
        self._job = found[1]

    def end(self) -> None:
        self._cluster.user("ctl", ["scancel", self._job])

    def both(self, plain_first: bool = False) -> tuple[Run, Run]:
        """A gang and a plain step. The order changes, so that neither side is always the first."""
        if plain_first:
            plain = self._srun([])
            return self._srun(["--gang"]), plain
        return self._srun(["--gang"]), self._srun([])

    def _srun(self, options: list[str]) -> Run:
        words = ["srun", f"-N{NODES}", f"-n{NODES * TASKS}", *options, WORKER, str(self.steps)]
        samples: list[tuple[float, float]] = []
        over = threading.Event()

        def sample() -> None:
            while not over.wait(SAMPLE_S):
                samples.append((time.monotonic(), sum(cpu_s(pid) for pid in self.daemons)))

        watcher = threading.Thread(target=sample)
        began = time.monotonic()
        watcher.start()  # also beside a plain step: what it costs is not Muster's
        try:
            env = {"SLURM_JOB_ID": self._job}
            done = self._cluster.user("ctl", words, env=env, timeout=self._timeout_s)
            ended = time.monotonic()
        except subprocess.TimeoutExpired:
            raise ClusterError(f"{' '.join(words)} has not ended in {self._timeout_s:g} s") from None
        finally:
            over.set()
            watcher.join()
        if done.returncode != 0:
            raise ClusterError(f"srun failed: {done.stderr}")
        if ended - began < 2 * EDGE_S + 5 * SAMPLE_S:
            raise ClusterError(f"a run of {ended - began:.1f} s is too short to watch musterd: give --seconds 4 or more")
        said = "".join(line for line in done.stderr.splitlines(True) if "muster: gang " in line)
        inside = [s for s in samples if began + EDGE_S < s[0] < ended - EDGE_S]
        lines = [line.split() for line in done.stdout.splitlines()]
        steady = (max(int(line[2]) for line in lines) - min(int(line[1]) for line in lines)) / 1e9
        (first_at, first), (last_at, last) = inside[0], inside[-1]
        return Run(ended - began, steady, last - first, last_at - first_at, said)

    def _pid(self, node: str) -> int:
        pid = self._cluster.daemon_pid(node, "musterd")
        if pid is None:
            raise ClusterError(f"no musterd on {node}")
        return pid


def _upper95(values: list[float]) -> float:
    """A one-sided 95 % confidence bound of the median: the k-th smallest, k by the binomial distribution; with fewer than
    five values the largest."""
    count = len(values)
    below = 0.0
    for k in range(1, count + 1):
        below += math.comb(count, k - 1) / 2**count
        if below >= 0.95:
            return sorted(values)[k - 1]
    return max(values)
