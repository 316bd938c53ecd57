"""Time from the loss of a node to the last member's exec in the next generation: Muster, plain Slurm, torchrun.

On a cluster of its own, 5 nodes of which one is spare, with the directory store and without Ceph. A node loses its
power or its cable; the clock is CLOCK_REALTIME, which all virtual nodes share, read just before that and first thing in
each member after its exec (member.c). Every fault has a step of its own; between two the node is brought back.

  node         a node of the gang that neither coordinates it nor runs its script
  cut off      the same node, but only its network is gone
  coordinator  the node that coordinates the gang, which has members too
  both         that and another one at once: with min=3 the gang goes on on the three that are left
  batch host   under `sbatch --requeue`: the job's script and srun die with it, and the job runs again on other nodes
  Slurm        the same job without --gang, a node as in the first row
  torchrun     elastic (c10d, --nnodes 4:4) with a fifth agent as the spare, a node that does not hold the rendezvous
"""

import argparse
import json
import os
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.options import add_count
from support.report import Report, median, percentile
from support.step import USER, Step
from vc import Cluster, ClusterError, wait_until
from vc.names import BUILD_IN_NODE, FRAMEWORKS_PYTHON

NODES = 4  # that a gang runs on; one more is spare
TASKS = 2  # a node
MEMBERS = NODES * TASKS
MEMBER = f"{BUILD_IN_NODE}/tests/bench_member"
SLURMD_TIMEOUT_S = 10
BATCH_HOST = "n1"
COORDINATOR = "n2"
OTHERS = ["n3", "n4"]
START_TIMEOUT_S = 60
GANG_TIMEOUT_S = 60
# A node is DOWN after SlurmdTimeout and some more; then a requeued job waits for two minutes.
SLURM_TIMEOUT_S = 300
TORCHRUN_TIMEOUT_S = 180
IDLE_TIMEOUT_S = 120


@dataclass(frozen=True)
class Kind:
    """A row of the table: what runs, what is done to which node, how long to wait for the members."""

    key: str  # of the JSON, with _ms_median
    title: str
    program: str
    words: list[str]
    victims: list[str]
    cut: bool
    timeout_s: float
    also: str = ""  # a node that is lost at the same moment
    left: int = MEMBERS  # how many members there are afterwards


def add_options(parser: argparse.ArgumentParser) -> None:
    add_count(parser, "--faults", 15, "nodes killed under Muster")
    add_count(parser, "--cuts", 8, "nodes cut off")
    add_count(parser, "--coordinator-faults", 8, "coordinators' nodes killed")
    add_count(parser, "--both-faults", 5, "coordinators' nodes killed together with another")
    add_count(parser, "--batch-host-faults", 5, "batch hosts killed")
    add_count(parser, "--slurm-faults", 3, "nodes killed under plain Slurm; each takes some minutes")
    add_count(parser, "--torchrun-faults", 4, "nodes killed under torchrun")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of victims and moments")
    parser.add_argument("--build", type=Path, metavar="DIR", help="Muster's build (default: build)")


def run(args: argparse.Namespace) -> Report:
    changes = {"build": str(args.build.resolve())} if args.build else {}
    slurm = {"SlurmdTimeout": str(SLURMD_TIMEOUT_S)}
    # As many as it likes: its default of 4 a minute is made for mishaps, not for a fault every ten seconds.
    settings = {"slurm_node_downs_per_minute": "60"}
    cluster = Cluster(f"bench{os.getpid()}", nodes=NODES + 1, ceph=False, slurm=slurm, settings=settings, **changes)
    report = Report()
    report.text(
        f"node-loss: {NODES} nodes x {TASKS} tasks and 1 spare node, {os.cpu_count()} CPUs, "
        f"SlurmdTimeout={SLURMD_TIMEOUT_S}, seed {args.seed}; milliseconds"
    )
    counts = (
        args.faults,
        args.cuts,
        args.coordinator_faults,
        args.both_faults,
        args.batch_host_faults,
        args.torchrun_faults,
        args.slurm_faults,
    )
    with cluster:
        bench = Bench(cluster, report, random.Random(args.seed))
        for kind, faults in zip(_kinds(), counts, strict=True):
            if faults:
                bench.measure(kind, faults)
    _compare(report)
    return report


def _kinds() -> list[Kind]:
    size = [f"--ntasks-per-node={TASKS}"]
    gang = [f"-N{NODES + 1}", *size, "--gang=spares=1", MEMBER]
    batch = ["--wait", "--requeue", "--open-mode=append", f"-N{NODES}", *size, "--output=/dev/null"]
    # Without Muster there is no RANK.
    ranked = f"sh -c 'RANK=$SLURM_PROCID exec {MEMBER}'"
    elastic = ["--nnodes", f"{NODES}:{NODES}", "--nproc_per_node", str(TASKS), "--max_restarts", "2"]
    rendezvous = ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"{BATCH_HOST}:29400", "--rdzv_id", "bench"]
    torchrun = [FRAMEWORKS_PYTHON, "-m", "torch.distributed.run", *elastic, *rendezvous, "--no_python", MEMBER]
    # --no-kill: Slurm leaves the surviving agents alone.
    agents = ["--no-kill", f"-N{NODES + 1}", "--ntasks-per-node=1", *torchrun]
    return [
        Kind("node_loss", "Muster: node killed", "srun", gang, OTHERS, False, GANG_TIMEOUT_S),
        Kind("cut_off", "Muster: node cut off", "srun", gang, OTHERS, True, GANG_TIMEOUT_S),
        Kind("coordinator_loss", "Muster: coordinator's node killed", "srun", gang, [COORDINATOR], False, GANG_TIMEOUT_S),
        Kind(
            "both_loss",
            "Muster: coordinator's node and another killed at once",
            "srun",
            [f"-N{NODES + 1}", *size, f"--gang=spares=1,min={NODES - 1}", MEMBER],
            OTHERS,
            False,
            GANG_TIMEOUT_S,
            COORDINATOR,
            (NODES - 1) * TASKS,
        ),
        Kind(
            "batch_host_loss",
            "Muster: batch host killed, job requeued",
            "sbatch",
            [*batch, f"--wrap=srun --gang {MEMBER}"],
            [BATCH_HOST],
            False,
            GANG_TIMEOUT_S,
        ),
        Kind("torchrun", "torchrun elastic: node killed", "srun", agents, OTHERS, False, TORCHRUN_TIMEOUT_S),
        Kind(
            "slurm_requeue",
            f"plain Slurm, sbatch --requeue, SlurmdTimeout={SLURMD_TIMEOUT_S}: node killed",
            "sbatch",
            [*batch, f"--wrap=srun {ranked}"],
            OTHERS,
            False,
            SLURM_TIMEOUT_S,
        ),
    ]


class Bench:
    """Measurements on one cluster, one after another; each leaves its figures in the report."""

    def __init__(self, cluster: Cluster, report: Report, choose: random.Random) -> None:
        self._cluster = cluster
        self._report = report
        self._choose = choose

    def measure(self, kind: Kind, faults: int) -> None:
        load = os.getloadavg()[0]
        times: list[float] = []
        stages: dict[str, list[float]] = {}
        never = 0
        for number in range(faults):
            lost, started = self._one(kind, f"{kind.key}-{number}", stages)
            never += started is None
            # What has not come back counts as if it had at the last moment: the true figure is larger.
            times.append((max(started) - lost) / 1e6 if started else 1000 * kind.timeout_s)
            print(f"{kind.title}: {times[-1]:.0f} ms", file=sys.stderr, flush=True)
        self._report.header(f"{kind.title} (load {load:.1f})")
        self._report.row("loss to the last member's exec", times)
        for title, values in stages.items():
            self._report.row(title, values)
        if never:
            self._report.text(f"  {never} of {faults} not back after {kind.timeout_s:g} s")
            self._report.numbers[f"{kind.key}_never"] = never
        self._report.numbers[f"{kind.key}_ms_median"] = median(times)
        self._report.numbers[f"{kind.key}_n"] = faults
        if kind.key == "node_loss":
            self._report.numbers["node_loss_ms_p99"] = percentile(times, 99)

    def _one(self, kind: Kind, name: str, stages: dict[str, list[float]]) -> tuple[int, list[int] | None]:
        """One step with one fault: when that was, and when each member ran again (None: not all, in time)."""
        victims = [self._choose.choice(kind.victims), *([kind.also] if kind.also else [])]
        with Step(self._cluster, name, MEMBERS, kind.words, kind.program) as step:
            step.wait("exec", 0, START_TIMEOUT_S)
            # Not in step with any timer, and with all that a start leaves to do behind it.
            time.sleep(self._choose.uniform(1.0, 2.0))
            lose = self._cluster.cut if kind.cut else self._cluster.kill
            lost = time.time_ns()
            for victim in victims:
                lose(victim)
            step.members = kind.left
            started: list[int] | None = None
            try:
                started = list(step.wait("exec", lost, kind.timeout_s).values())
                if kind.program == "srun" and "--gang=spares=1" in kind.words:
                    self._stages(lost, started, stages)
            except ClusterError as error:
                print(f"{kind.title}: {error}", file=sys.stderr, flush=True)
            finally:
                # Before the step is cancelled: Slurm is long in ending what it cannot reach.
                back = self._cluster.heal if kind.cut else self._cluster.revive
                for victim in victims:
                    back(victim)
        self._wait_idle()
        return lost, started

    def _stages(self, lost: int, started: list[int], stages: dict[str, list[float]]) -> None:
        """Where the time goes, by the gang's history."""
        job = self._cluster.exec("ctl", ["squeue", "-h", "-u", USER, "-o", "%A"]).stdout.split()[-1]

        def told() -> dict[str, int] | None:
            done = self._cluster.user("ctl", ["muster", "events", job, "--json"])
            events: list[dict[str, Any]] = json.loads(done.stdout)["events"] if done.returncode == 0 else []
            after = [event for event in events if event["time_ns"] > lost]
            seen: dict[str, int] = {}
            for event in after:
                seen.setdefault(event["kind"], event["time_ns"])
            return seen if {"node_lost", "fault", "running"} <= seen.keys() else None

        try:
            seen = wait_until(told, 10, "the history of the fault", interval=0.1)
        except ClusterError:
            return  # the time to the exec is what counts
        for title, begin, end in (
            ("  loss to its detection", lost, seen["node_lost"]),
            ("  to the word from all others that nothing runs any more", seen["node_lost"], seen["fault"]),
            ("  to the last exec", seen["fault"], max(started)),
        ):
            stages.setdefault(title, []).append((end - begin) / 1e6)

    def _wait_idle(self) -> None:
        """Until nothing of the step is left."""

        def idle() -> bool:
            jobs = self._cluster.exec("ctl", ["squeue", "-h", "-o", "%A"]).stdout.split()
            if jobs:
                self._cluster.exec("ctl", ["scancel", "--quiet", "--user", USER])
            states = self._cluster.exec("ctl", ["sinfo", "-h", "-N", "-o", "%t"]).stdout.split()
            return not jobs and states == ["idle"] * (NODES + 1)

        wait_until(idle, IDLE_TIMEOUT_S, "an idle cluster after a fault", interval=0.2)


def _compare(report: Report) -> None:
    numbers = report.numbers
    report.text("")
    for key, peer, title in (
        ("ratio_vs_slurm", "slurm_requeue", "plain Slurm"),
        ("ratio_vs_torchrun", "torchrun", "torchrun elastic"),
    ):
        if f"{peer}_ms_median" in numbers and "node_loss_ms_median" in numbers:
            numbers[key] = numbers[f"{peer}_ms_median"] / numbers["node_loss_ms_median"]
            report.text(f"{title} takes {numbers[key]:.0f} times as long as Muster (medians)")
