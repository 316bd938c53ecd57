"""Time from the death of one rank to the next optimizer step of the last rank, with cold and with warm starts, and of peers.

PyTorch's DDP over Gloo on CPUs, a small model, 64 MiB of state a rank, ranks on 2 nodes of a cluster of its own, with the
directory store. And programs of the Hugging Face Trainer and of Lightning that know nothing of Muster. A fault is SIGKILL to a random
rank; under warm=yes when all standbys are ready. The peers are PyTorch's launcher as its manual has it, the same with
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, and NVRx's ft_launcher, each started anew for each fault; their program keeps its checkpoints in
files on the shared home. The clock is CLOCK_REALTIME, which all virtual nodes share.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.options import add_count
from support.report import Report, median, percentile
from support.step import USER, Step
from vc import Cluster, ClusterError, environment, wait_until
from vc.names import REPOSITORY, SOURCE_IN_NODE

NODES = 2
SCRIPTS = f"{SOURCE_IN_NODE}/tests/bench/programs"
SCRIPT = f"{SCRIPTS}/torch_recovery.py"
FRAMEWORKS = {"hf": "the Hugging Face Trainer", "lightning": "Lightning"}
FRAMEWORK_RANKS = 4
MOST_FAULTS = 9  # without a line of Muster a gang makes progress by its time only; after the tenth restart without any it ends
TIMEOUT_S = 300
PEER_TIMEOUT_S = 60  # a peer that has not come back by then is not waited for
STAGES = {
    "exec": "death to the last program's first line (detect, stop, start)",
    "imported": "  to the end of its imports",
    "joined": "  to the end of the last init_process_group",
    "built": "  to the last model in DDP, with its optimizer",
    "restored": "  to the end of the last restore",
    "stepped": "  to the last first optimizer step",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_count(parser, "--cold", 10, "faults with warm=no")
    add_count(parser, "--warm", 10, "faults with warm=yes")
    add_count(parser, "--frameworks", 0, f"faults with warm=yes under each of {' and '.join(FRAMEWORKS)}, at {FRAMEWORK_RANKS} ranks")
    add_count(parser, "--peers", 0, "faults under each peer, at the largest number of ranks")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8], metavar="N", help="how many there are, an even number (default: 2 8)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the choice of the victims")
    parser.add_argument("--build", type=Path, metavar="DIR", help="Muster's build (default: build)")


def run(args: argparse.Namespace) -> Report:
    if any(ranks < NODES or ranks % NODES for ranks in args.ranks):
        raise ClusterError(f"--ranks must be multiples of {NODES}")
    if args.frameworks > MOST_FAULTS:
        raise ClusterError(f"--frameworks must be at most {MOST_FAULTS}")
    peers = _peers() if args.peers else []
    changes = {"build": str(args.build.resolve())} if args.build else {}
    cluster = Cluster(f"bench{os.getpid()}", nodes=NODES, ceph=False, **changes)
    report = Report()
    report.text(f"recovery: PyTorch DDP, Gloo, {NODES} nodes, {os.cpu_count()} CPUs, seed {args.seed}; milliseconds")
    with cluster:
        python = environment.make(cluster.directory / "home", USER, frameworks=True)
        for ranks in args.ranks:
            for name, count in (("cold", args.cold), ("warm", args.warm)):
                if count:
                    _measure(cluster, report, name, python, ranks, count, random.Random(args.seed))
        for framework in FRAMEWORKS if args.frameworks else ():
            _measure(cluster, report, "warm", python, FRAMEWORK_RANKS, args.frameworks, random.Random(args.seed), framework)
        for peer in peers:
            _measure_peer(cluster, report, peer, python, args.ranks[-1], args.peers, random.Random(args.seed))
    for ranks in args.ranks:
        _compare(report, ranks, "cold")
    for peer in peers:
        _compare(report, args.ranks[-1], peer.name)
    return report


def _compare(report: Report, ranks: int, other: str) -> None:
    numbers, warm, than = report.numbers, f"muster_warm_ms_{ranks}_median", f"{'muster_' * (other == 'cold')}{other}_ms_{ranks}_median"
    if warm in numbers and than in numbers:
        ratio = numbers[f"ratio_{other}_vs_warm_{ranks}"] = numbers[than] / numbers[warm]
        report.text(f"\n{ranks} ranks: {other} takes {ratio:.0f} times as long as a warm start (medians)")


class _Ranks(Step):
    """Standbys have a rank's environment, but have not opened its log."""

    def _find(self) -> list[int]:
        return [pid for pid in super()._find() if self._has_log(pid)]

    def _has_log(self, pid: int) -> bool:
        with contextlib.suppress(OSError):  # it has ended
            return any(os.readlink(link).endswith(self._log.name) for link in Path(f"/proc/{pid}/fd").iterdir())
        return False


def _measure(
    cluster: Cluster, report: Report, name: str, python: str, ranks: int, count: int, choose: random.Random, framework: str = ""
) -> None:
    gang = f"--gang=restarts=1000,hang=off{',warm=yes' if name == 'warm' else ''}"
    srun = [f"-N{NODES}", f"--ntasks-per-node={ranks // NODES}", gang, python, f"{SCRIPTS}/{framework or 'torch'}_recovery.py"]
    variables = {"PYTHONPATH": ""}
    if framework:
        variables["BENCH_CHECKPOINTS"] = f"/home/{USER}/{framework}.checkpoints"
    load = os.getloadavg()[0]
    recoveries = _Recoveries()
    with _Ranks(cluster, f"{framework}{name}{ranks}", ranks, srun, variables=variables) as step:
        step.wait("stepped", 0, TIMEOUT_S)
        killed = 0
        for _ in range(count):
            step.wait("saved", killed, TIMEOUT_S)  # what is never saved is no progress, and the tenth restart without it the last
            if name == "warm":
                wait_until(lambda: _ready(cluster, ranks), TIMEOUT_S, "all standbys to be ready", interval=0.5)
            killed = step.kill_one(choose)
            recoveries.add(step, killed, TIMEOUT_S)
        starts = _warm(cluster)
    program = f"{FRAMEWORKS[framework]}, " if framework else ""
    recoveries.tell(report, f"{program}{ranks} ranks, {name} starts (load {load:.1f})", f"{framework or 'muster'}_{name}_ms_{ranks}")
    if name == "warm":
        report.text(f"  the newest generation: {starts}")


class _Recoveries:
    def __init__(self) -> None:
        self.times: list[float] = []
        self._stages: dict[str, list[float]] = {}  # of those that the program notes

    def add(self, step: Step, killed: int, timeout: float) -> None:
        """Waits for one."""
        step.wait("stepped", killed, timeout)
        before = killed
        for mark in step.marks(STAGES):
            last = max(step.wait(mark, killed, timeout).values())
            self._stages.setdefault(mark, []).append((last - before) / 1e6)
            before = last
        self.times.append((before - killed) / 1e6)

    def tell(self, report: Report, title: str, key: str) -> None:
        report.header(title)
        report.row("death to the last rank's next optimizer step", self.times)
        for mark, values in self._stages.items():
            report.row(STAGES[mark], values)
        report.numbers |= {f"{key}_median": median(self.times), f"{key}_p99": percentile(self.times, 99), f"{key}_n": len(self.times)}


@dataclass
class _Peer:
    name: str
    module: str
    variables: dict[str, str] = field(default_factory=dict)


def _peers() -> list[_Peer]:
    """And has what they need installed."""
    script = 'set -euo pipefail; source "$0"; trap setup_cleanup EXIT; install_peers; peers_packages'
    done = subprocess.run(["bash", "-c", script, str(REPOSITORY / "scripts/setup.sh")], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError("the peers cannot be installed")
    packages = {"PYTHONPATH": done.stdout.splitlines()[-1]}
    torchrun = "torch.distributed.run"
    return [
        _Peer("torchrun", torchrun),
        _Peer("torchrun_own_store", torchrun, variables={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
        _Peer("nvrx", "nvidia_resiliency_ext.fault_tolerance.launcher", variables=packages),
    ]


def _measure_peer(cluster: Cluster, report: Report, peer: _Peer, python: str, ranks: int, count: int, choose: random.Random) -> None:
    load = os.getloadavg()[0]
    recoveries = _Recoveries()
    for number in range(count):
        launcher = [python, "-m", peer.module, f"--nnodes={NODES}", f"--nproc-per-node={ranks // NODES}", "--max-restarts=3"]
        launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=n1:29500", SCRIPT]
        name = f"{peer.name}{number}"
        checkpoints = {"BENCH_CHECKPOINTS": f"/home/{USER}/{name}.checkpoints"}
        with _Ranks(cluster, name, ranks, [f"-N{NODES}", "--ntasks-per-node=1", *launcher], variables=peer.variables | checkpoints) as step:
            step.wait("saved", 0, TIMEOUT_S)
            killed = step.kill_one(choose)
            try:
                recoveries.add(step, killed, PEER_TIMEOUT_S)
            except ClusterError as why:
                report.text(f"\n{peer.name} has not come back within {PEER_TIMEOUT_S} s: {str(why).splitlines()[0]}")
    key = f"{peer.name}_ms_{ranks}"
    report.numbers |= {f"{key}_came_back": len(recoveries.times), f"{key}_faults": count}
    if recoveries.times:
        recoveries.tell(report, f"{ranks} ranks, {peer.name} (load {load:.1f}): {len(recoveries.times)} of {count} came back", key)


def _warm(cluster: Cluster) -> str:
    """What `muster status` says of the newest gang's; its coordinator knows the newest."""
    gangs = _gangs(cluster)
    live = _gangs(cluster, gangs[-1]["gang"]) if gangs else []
    return str(live[-1].get("warm", "")) if live else ""


def _gangs(cluster: Cluster, *which: str) -> list[dict[str, Any]]:
    done = cluster.user("ctl", ["muster", "status", *which, "--json"])
    found: list[dict[str, Any]] = json.loads(done.stdout)["gangs"] if done.returncode == 0 else []
    return found


def _ready(cluster: Cluster, ranks: int) -> bool:
    return _warm(cluster).startswith(f"{ranks} of {ranks} standbys are ready")
