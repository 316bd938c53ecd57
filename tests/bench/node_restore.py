"""Getting a lost node's state back: from its partner's memory, against reading it from Ceph.

On a cluster of its own with Ceph, 3 nodes of one member each and 1 spare. A gang (tests/cluster/programs/keeper.py) saves
once, its last node dies, and the spare takes its place and restores. In every second round the partner's musterd is
restarted before that, which leaves it without copies (and, with --group, the other one's parity without the shard that it
needs), so Ceph has to serve; its own member then has its state from its own partner, or from Ceph too. The times are those of the event `restored`: until the last member has its state; the others have theirs out of their
own nodes' memory. All on the same cores, those of the OSDs too.
"""

import argparse
import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from support.options import add_count
from support.report import Report, median
from vc import Cluster, ClusterError, wait_until
from vc.names import SOURCE_IN_NODE

KEEPER = ["/usr/bin/python3", "-I", "-S", f"{SOURCE_IN_NODE}/tests/cluster/programs/keeper.py"]
RANKS = 3
PARTNER, LOST = "n1", "n3"
USER = "trainer"
SOON_S = 90
# Not for a machine that stands still for a moment.
LIMITS = {"beat": "300ms", "lease": "2s", "silence": "4s"}
MIB = 1 << 20


def add_options(parser: argparse.ArgumentParser) -> None:
    add_count(parser, "--rounds", 3, "of a node's loss, each")
    add_count(parser, "--mib", 256, "MiB of state of each member")
    add_count(parser, "--group", 0, "nodes that keep parity in place of copies (partner_group); 3 is all of them")
    parser.add_argument("--build", type=Path, metavar="DIR", help="Muster's build (default: build)")


def run(args: argparse.Namespace) -> Report:
    changes = {"build": str(args.build.resolve())} if args.build else {}
    settings = LIMITS | {"log_level": "debug", "slurm_node_downs_per_minute": "60", "partner_group": str(args.group)}
    slurm = {"SlurmdTimeout": "10"}
    load = os.getloadavg()[0]
    times: dict[str, list[float]] = {"partners": [], "the store": []}
    with Cluster(f"bench{os.getpid()}", nodes=RANKS + 1, settings=settings, slurm=slurm, **changes) as cluster:
        for number in range(args.rounds):
            for source in times:
                times[source].append(_restored_ms(cluster, f"restore-{number}-{source[-5:]}", args, source))
    report = Report()
    report.text(f"node-restore: {RANKS} members of {args.mib} MiB, {os.cpu_count()} CPUs, load before {load:.1f}; milliseconds")
    report.header("a node is lost; until all members have their state")
    report.row("the spare's out of " + ("parity and its group's shards" if args.group else "the partner's memory"), times["partners"])
    report.row("the spare's out of Ceph", times["the store"])
    report.numbers = {
        "partner_restore_ms_median": median(times["partners"]),
        "store_restore_ms_median": median(times["the store"]),
        "partner_restore_ratio_vs_store": median(times["the store"]) / median(times["partners"]),
        "node_restore_group": args.group,
        "node_restore_n": args.rounds,
    }
    return report


def _restored_ms(cluster: Cluster, name: str, args: argparse.Namespace, source: str) -> float:
    files = cluster.directory / "home" / USER / name
    cluster.user("ctl", ["mkdir", f"/home/{USER}/{name}"])
    words = [f"-N{RANKS + 1}", "--ntasks-per-node=1", "--gang=spares=1,hang=off", *KEEPER, f"/home/{USER}/{name}", "9", str(args.mib * MIB)]
    output = subprocess.DEVNULL
    srun = cluster.user_popen("ctl", ["srun", f"--job-name={name}", *words], stdin=output, stdout=output, stderr=output)

    def there(what: str) -> bool:
        if srun.poll() is not None:
            raise ClusterError(f"{name} has ended before {what}")
        return all((files / f"{what}.{rank}").exists() for rank in range(RANKS))

    try:
        wait_until(lambda: there("started.1"), SOON_S, "the gang to run")
        job = cluster.exec("ctl", ["squeue", "-h", "-n", name, "-o", "%A"]).stdout.split()[0]
        (files / "step.1").touch()
        wait_until(lambda: there("committed.1"), SOON_S, "a checkpoint")
        wait_until(lambda: _copied(cluster, job, args.group), SOON_S, "the partners to have copies")
        if source == "the store":
            cluster.restart_daemon(PARTNER, "musterd")
            time.sleep(1)
        cluster.kill(LOST)
        wait_until(lambda: there("started.2"), SOON_S, "the next generation")
        text: str = wait_until(lambda: _restored(cluster, job), SOON_S, "the history of the restore")
        if not re.search(rf"\b[1-9]\d* from {source}", text):
            raise ClusterError(f"not restored from {source}: {text}")
        return float(re.findall(r"the slowest ([0-9.]+) ms", text)[0])
    finally:
        cluster.revive(LOST)
        _end(cluster, srun)


def _copied(cluster: Cluster, job: str, group: int) -> bool:
    logs = "".join(path.read_text(errors="replace") for path in (cluster.directory / "log").glob("*.musterd.log"))
    if group:
        return all(f"gang {job}.0: parity of slot 0, step 1, is kept on n{node + 1}" in logs for node in range(RANKS))
    return all(f"gang {job}.0: rank {rank}'s shard of step 1 is kept by n" in logs for rank in range(RANKS))


def _restored(cluster: Cluster, job: str) -> str:
    done = cluster.user("ctl", ["muster", "events", job, "--json"])
    events: list[dict[str, Any]] = json.loads(done.stdout)["events"] if done.returncode == 0 else []
    return next((str(event["text"]) for event in events if event["kind"] == "restored"), "")


def _end(cluster: Cluster, srun: "subprocess.Popen[str]") -> None:
    cluster.exec("ctl", ["scancel", "--quiet", "--user", USER])
    srun.wait(SOON_S)

    def idle() -> bool:
        states = cluster.exec("ctl", ["sinfo", "-h", "-N", "-o", "%N %t"]).stdout.splitlines()
        for node, state in (line.split() for line in states):
            if state.startswith(("down", "drain")):
                cluster.exec("ctl", ["scontrol", "update", f"NodeName={node}", "State=RESUME"])
        return {line.split()[1] for line in states} == {"idle"}

    wait_until(idle, SOON_S, "an idle cluster")
