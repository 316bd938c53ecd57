"""The demo, once Muster is built: starts a cluster, trains, kills, compares. Called by demo.sh."""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "cluster")]

import screen  # noqa: E402
import table  # noqa: E402
from job import DemoError  # noqa: E402
from vc import Cluster, ClusterError  # noqa: E402
from workload import NODES, Result, Workload, run_with_fault, run_without_fault  # noqa: E402

ROOT = _HERE.parents[1]

# Sizes that keep two cores busy for seconds, not minutes.
WORKLOADS = [
    Workload(
        name="train",
        title="muster-train",
        ranks_per_node=4,
        command=[
            "muster-train --text /usr/share/common-licenses/GPL-3 --width 128 --depth 5 --context 32",
            "--steps 80 --checkpoint-every 20 --log-every 1 --params-out {parameters}",
        ],
        steps=80,
        every=20,
        kill_rank=9,
        kill_after=26,
        show_every=10,
    ),
    Workload(
        name="pytorch",
        title="PyTorch DDP",
        ranks_per_node=1,
        command=[
            "/usr/bin/python3 $MUSTER_SRC/examples/pytorch_ddp.py --text /usr/share/common-licenses/GPL-3",
            "--width 512 --steps 200 --checkpoint-every 50 --log-every 1 --params-out {parameters}",
        ],
        steps=200,
        every=50,
        kill_rank=2,
        kill_after=65,
        show_every=25,
    ),
]


def _start(cluster: Cluster) -> None:
    screen.title("3. Start a cluster on this machine")
    screen.say(f"a controller (ctl) and {NODES} compute nodes (n1 to n{NODES}), each with its own host name, network,")
    screen.say("processes, munged, slurmd and musterd; Ceph with 1 mon, 1 mgr, 3 OSDs, cephx on")
    began = time.monotonic()
    cluster.start()
    screen.say(f"ready after {time.monotonic() - began:.1f} s")


def _story(cluster: Cluster) -> list[tuple[Workload, Result]]:
    _start(cluster)
    runs = []
    for number, work in enumerate(WORKLOADS, start=4):
        screen.title(f"{number}. Train with {work.title}, and kill a process")
        runs.append((work, *run_with_fault(cluster, work)))
    screen.title(f"{4 + len(WORKLOADS)}. The same without the fault, to compare")
    for work, job, result in runs:
        run_without_fault(cluster, work, job, result)
    return [(work, result) for work, _, result in runs]


def _conclude(results: list[tuple[Workload, Result]], began: float, json_file: Path | None) -> bool:
    screen.title(f"What was done, in {time.monotonic() - began:.0f} s")
    for line in table.render(results):
        screen.say(line)
    if json_file is not None:
        json_file.write_text(json.dumps(table.figures(results, time.monotonic() - began), indent=2) + "\n")
    good = True
    for work, result in results:
        for complaint in result.complaints():
            good = False
            screen.say(f"{work.title}: {complaint}", "red")
    return good


def _explain_keep(cluster: Cluster) -> None:
    name = cluster.names.name
    vcluster = os.path.relpath(ROOT / "tests" / "cluster" / "vcluster")
    vcluster = vcluster if "/" in vcluster and not vcluster.startswith("..") else str(ROOT / "tests/cluster/vcluster")
    screen.title("The cluster is still up")
    for what, command in (
        ("a shell of the user", f"{vcluster} user --name {name} ctl"),
        ("submit a job", f"{vcluster} user --name {name} ctl -- sbatch train-calm.sh"),
        ("look at gangs", f"{vcluster} user --name {name} ctl -- muster status"),
        ("kill a node", f"{vcluster} kill --name {name} n4   (revive brings it back)"),
        ("the user's home", str(cluster.directory / "home" / "trainer")),
        ("logs", str(cluster.directory / "log")),
        ("remove it", f"{vcluster} stop --name {name}"),
    ):
        screen.say(f"{what + ':':22}{command}")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt(number)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    began = time.monotonic()
    name = f"demo-{os.getpid()}"  # no other running demo has it
    cluster = Cluster(name, nodes=NODES, settings={"lease": "20s", "silence": "30s"})
    logs: Path | None = ROOT / "build" / "demo-logs" / name  # kept when something goes wrong
    keep = False
    try:
        good = _conclude(_story(cluster), began, arguments.json)
        keep = arguments.keep
        logs = None if good else logs
        if keep:
            _explain_keep(cluster)
        return 0 if good else 1
    except (ClusterError, DemoError) as error:
        screen.say(f"The demo failed: {error}", "red")
        return 1
    except KeyboardInterrupt as interrupt:
        logs = None
        with contextlib.suppress(BrokenPipeError):
            screen.say("interrupted: the cluster is being removed")
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)
    except BrokenPipeError:
        logs = None
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    finally:
        if not keep:
            cluster.stop(keep_logs=logs)
        if logs is not None and logs.exists():
            screen.say(f"the cluster's logs: {logs}")


if __name__ == "__main__":
    sys.exit(main())
