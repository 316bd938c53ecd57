"""What a checkpoint costs: the program's wait, and how fast Ceph gets and gives it, against what the machine can do.

On a cluster of its own with Ceph. A gang of one member (saver.c) saves a state, all of whose pages have changed, and
restores it: the wait is compared with a memcpy of the same bytes, by one thread both, taken just before each save, and
once more with a save by as many threads as it uses when it is not told; the time until the checkpoint is committed, and
that of a restore, with `rados bench` of the same pool, object size, depth and bytes from the same node, taken after each
gang. Restores, but for a first one, and the first saves of a training find free memory at hand, as on bare metal: a virtual
machine's may have been taken back. The checkpoint that the gang starts again from is restored out of the node's memory, the
one before it from Ceph.
All on the same cores, those of the OSDs too.

Then a tenth of the state changes between two saves: what is written, and what musterd takes of a core for it, against the digests
of all of it; and what these and `rados bench` take together, for as many objects as are written.

Then a PyTorch program (torch_saver.py) saves the same state with Muster, with torch.save to a file, which `rados put` brings
to Ceph and `rados get` back, and with PyTorch's distributed checkpoint (DCP) to a directory; the ratios are theirs by ours.
At last a program that only computes saves every few seconds: what it waits, and what musterd takes of a core for it, are what
checkpoints cost the training; what musterd takes in as long without any is not, and the OSDs' share is told apart.
"""

import argparse
import os
import time
from pathlib import Path

from support.huge_pages import huge_pages
from support.options import add_count
from support.proc import cpu_s
from support.rados_bench import MIB, RADOS, write_and_read
from support.report import Report, median
from vc import Cluster, ClusterError
from vc.names import BUILD_IN_NODE, FRAMEWORKS_PYTHON, SOURCE_IN_NODE
from vc.users import USERS

SAVER = f"{BUILD_IN_NODE}/tests/bench_saver"
TORCH = [FRAMEWORKS_PYTHON, f"{SOURCE_IN_NODE}/tests/bench/programs/torch_saver.py"]
TORCH_MIB = 96  # `rados put` makes one object, of 128 MiB at most
TORCH_ROUNDS = 5
TRAIN_MIB = 256
TRAIN_EVERY_S = 10
CHANGED_PERCENT = 10
CHANGED_SAVES = 10
STAGING_BUFFERS = 2  # as libmuster has them: each has a first save
KEEP = 3  # as daemon/config has it
OSDS = ("osd.0", "osd.1", "osd.2")
NODE = "n1"
# Of ceph/engine/engine.h.
OBJECT_MIB = 4
DEPTH = 8


def add_options(parser: argparse.ArgumentParser) -> None:
    add_count(parser, "--rounds", 5, "of a gang and rados bench")
    add_count(parser, "--saves", 3, "and restores, each, in a round, besides the first saves")
    add_count(parser, "--mib", 1024, "MiB of state")
    add_count(parser, "--train-seconds", 60, "of the program that saves every 10 s")
    parser.add_argument("--build", type=Path, metavar="DIR", help="Muster's build (default: build)")


def run(args: argparse.Namespace) -> Report:
    changes = {"build": str(args.build.resolve())} if args.build else {}
    size = args.mib * MIB
    load = os.getloadavg()[0]
    gangs: list[dict[str, list[float]]] = []
    writes: list[float] = []
    reads: list[float] = []
    with huge_pages() as pages, Cluster(f"bench{os.getpid()}", nodes=1, **changes) as cluster:
        for _ in range(args.rounds):
            # The memcpy's thread is one.
            gangs.append(_gang(cluster, size, args.saves, ["env", "MUSTER_COPY_THREADS=1"]))
            write, read = write_and_read(cluster, NODE, args.mib, OBJECT_MIB * MIB, DEPTH)
            writes.append(write)
            reads.append(read)
        threads = _gang(cluster, size, args.saves, [])
        changed = _changed(cluster, size, CHANGED_SAVES)
        object_ms = _rados_bench_cpu_ms(cluster)
        torch = _torch(cluster)
        train = _train(cluster, args.train_seconds)

    ms = {kind: [value for gang in gangs for value in gang[kind]] for kind in gangs[0]}
    # A ratio in each round, so that what the machine does meanwhile is on both sides.
    stall = _ratios(ms["save"], ms["memcpy"])
    drain = [args.mib * 1000 / median(gang["committed"]) / rate for gang, rate in zip(gangs, writes, strict=True)]
    memory = [median(gang["memcpy"]) / median(gang["memory"]) for gang in gangs]
    restore = [args.mib * 1000 / median(gang["restore"]) / rate for gang, rate in zip(gangs, reads, strict=True)]
    first = [args.mib * 1000 / gang["restore_first"][0] / rate for gang, rate in zip(gangs, reads, strict=True)]
    report = Report()
    report.text(f"checkpoint: {args.mib} MiB, one member, {os.cpu_count()} CPUs, load before {load:.1f}, huge pages {pages}; milliseconds")
    report.header("")
    report.row("a program's wait for a save, by one thread", ms["save"])
    report.row("by the usual number of threads", threads["save"])
    report.row("for its first two, whose memory is new", ms["first"])
    report.row("memcpy of the same bytes", ms["memcpy"])
    report.row("from there until the checkpoint is committed", ms["committed"])
    report.row("rados bench write of the same bytes", [args.mib * 1000 / rate for rate in writes])
    report.row("restore from the node's memory, until the shard can be read", ms["memory"])
    report.row("restore from Ceph, until the shard can be read", ms["restore"])
    report.row("the first of a gang, for which free memory may have to be had", ms["restore_first"])
    report.row("rados bench seq of the same bytes", [args.mib * 1000 / rate for rate in reads])
    report.row("the copy out of the shard", ms["get"])
    report.numbers = {
        "stall_ratio_vs_memcpy": median(stall),
        "stall_ratio_n": len(stall),
        "stall_ratio_vs_memcpy_by_threads": median(_ratios(threads["save"], threads["memcpy"])),
        "stall_ratio_by_threads_n": len(threads["save"]),
        "drain_ratio_vs_rados_bench": median(drain),
        "restore_ratio_vs_rados_bench": median(restore),
        "first_restore_ratio_vs_rados_bench": median(first),
        "memory_restore_ratio_vs_memcpy": median(memory),
        "drain_mib_per_s": args.mib * 1000 / median(ms["committed"]),
        "restore_mib_per_s": args.mib * 1000 / median(ms["restore"]),
        "rados_bench_write_mib_per_s": median(writes),
        "rados_bench_seq_mib_per_s": median(reads),
        "checkpoint_rounds": args.rounds,
    }
    written = median(changed["written"]) / size
    processor = sum(changed["musterd"]) / sum(changed["digest"])
    # What nobody can do without who digests everything and gives the changed objects to librados.
    least = 1 + object_ms * written * size / (OBJECT_MIB * MIB) / median(changed["digest"])
    report.numbers |= {
        "incremental_bytes_ratio": written,
        "incremental_cpu_ratio_vs_digests": processor,
        "incremental_cpu_ratio_of_digests_and_rados_bench": least,
        "incremental_saves": len(changed["written"]),
    }
    report.text(
        f"  {CHANGED_PERCENT} % changed: {100 * written:.1f} % of the bytes are written; musterd took {processor:.2f} times what "
        f"the digests of all of them take (n {len(changed['written'])}); those and rados bench's processor time for what is written: {least:.2f}"
    )
    _compare(report, torch)
    percent = 100 * (train["stall_s"] + train["musterd_s"] - train["without_s"]) / train["elapsed_s"]
    later = percent - 100 * train["first_s"] / train["elapsed_s"]
    report.text(
        f"  {TRAIN_MIB} MiB every {TRAIN_EVERY_S} s for {train['elapsed_s']:.0f} s: the program waited {train['stall_s']:.2f} s, "
        f"musterd took {train['musterd_s']:.2f} s of a core, {train['without_s']:.2f} s of it also without a checkpoint, "
        f"together {percent:.2f} %; the OSDs took {train['osds_s']:.1f} s; "
        f"without its first two waits, whose memory is new: {later:.2f} %"
    )
    report.numbers |= {
        "training_slowdown_percent": percent,
        "training_slowdown_after_first_saves_percent": later,
        "training_saves": int(train["saves"]),
    }
    report.text(f"  wait / memcpy {median(stall):.2f}; drain / rados bench {median(drain):.2f}; restore / rados bench {median(restore):.2f}")
    return report


def _gang(cluster: Cluster, size: int, saves: int, environment: list[str]) -> dict[str, list[float]]:
    """Milliseconds by kind, of one gang that saves, ends, and restores."""
    found = _srun(cluster, [*environment, SAVER, str(size), str(saves)])
    found["committed"] = found["committed"][len(found["first"]) :]
    # The pool has room for a few gangs' checkpoints.
    names = _rados(cluster, "ls").splitlines()
    for at in range(0, len(names), 100):
        _rados(cluster, "--force-full", "rm", *names[at : at + 100])
    return found


def _changed(cluster: Cluster, size: int, saves: int) -> dict[str, list[float]]:
    """For saves between which a part of the state changes: milliseconds of cores, and the bytes that each has written."""
    before = set(_objects(cluster))
    # The listing needs the objects of all saves.
    _keep(cluster, str(saves + 10))
    try:
        found = _srun(cluster, [SAVER, str(size), str(saves), "changed", str(CHANGED_PERCENT)])
        objects = [name for name in _objects(cluster) if name not in before]
        steps = [round(step * 1e6) for step in found["step"]]
        found["written"] = [
            float(sum(_size(cluster, name) for name in objects if name.split("/")[2].startswith(f"{step}."))) for step in steps
        ]
    finally:
        _keep(cluster, str(KEEP))
    return found


def _rados_bench_cpu_ms(cluster: Cluster) -> float:
    """Of a core, that `rados bench write` takes for an object besides what it takes to start."""
    def taken(objects: int) -> float:
        words = [*RADOS, "bench", "600", "write", "-b", str(OBJECT_MIB * MIB), "--max-objects", str(objects), "-t", str(DEPTH), "--no-cleanup"]
        done = cluster.exec(NODE, ["bash", "-c", 'TIMEFORMAT="%U %S"; time "$@"', "bench", *words], timeout=900)
        if done.returncode != 0:
            raise ClusterError(f"rados bench failed: {done.stderr[-2000:]}")
        cluster.exec(NODE, [*RADOS, "cleanup"], timeout=300)
        return 1000 * sum(float(word) for word in done.stderr.split("\n")[-2].split())

    few, many = 1, 129
    return median([(taken(many) - taken(few)) / (many - few) for _ in range(3)])


def _rados(cluster: Cluster, *words: str) -> str:
    done = cluster.exec(NODE, ["rados", "-n", "client.muster", "-p", "muster", "-N", f"{cluster.names.name}.u{USERS['trainer']}", *words], timeout=60)
    if done.returncode != 0:
        raise ClusterError(f"rados {' '.join(words)} failed: {done.stderr[-2000:]}")
    return done.stdout


def _objects(cluster: Cluster) -> list[str]:
    return [name for name in _rados(cluster, "ls").splitlines() if name.startswith("data/")]


def _size(cluster: Cluster, name: str) -> int:
    return int(_rados(cluster, "stat", name).split()[-1])


def _keep(cluster: Cluster, count: str) -> None:
    """How many checkpoints are kept: musterd is started again with it."""
    config = cluster.directory / "etc/muster/muster.yaml"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("keep_checkpoints:")]
    config.write_text("\n".join([*lines, f"keep_checkpoints: {count}", ""]))
    cluster.stop_daemon(NODE, "musterd")
    cluster.start_daemon(NODE, "musterd")


def _srun(cluster: Cluster, program: list[str]) -> dict[str, list[float]]:
    """What a gang of one member has printed: milliseconds by kind."""
    words = ["srun", "-n1", "-w", NODE, "--gang=restarts=1", *program]
    done = cluster.user("ctl", words, timeout=900)
    if done.returncode != 0:
        raise ClusterError(f"the gang failed ({done.returncode}):\n{done.stderr[-3000:]}")
    found: dict[str, list[float]] = {}
    for line in done.stdout.splitlines():
        kind, _, value = line.partition(" ")
        found.setdefault(kind, []).append(int(value) / 1e6)
    return found


def _torch(cluster: Cluster) -> dict[str, list[float]]:
    home = "/home/trainer"
    found = _srun(cluster, [*TORCH, home, str(TORCH_MIB * MIB), str(TORCH_ROUNDS)])
    for _ in range(TORCH_ROUNDS):
        for what in ("put", "get"):
            began = time.monotonic()
            done = cluster.exec(NODE, [*RADOS, what, "state.pt", f"{home}/state.pt"], timeout=300)
            if done.returncode != 0:
                raise ClusterError(f"rados {what} failed: {done.stderr[-2000:]}")
            found.setdefault(f"rados_{what}", []).append(1000 * (time.monotonic() - began))
    cluster.exec(NODE, [*RADOS, "rm", "state.pt"], timeout=60)
    # Whole when it is in Ceph; back when it is a file again, and read.
    found["torch_save_total"] = _sums(found["torch_save_stall"], found["rados_put"])
    found["torch_save_restore"] = _sums(found["rados_get"], found["torch_save_restore"])
    found["dcp_total"] = found["dcp_stall"]
    return found


def _ratios(a: list[float], b: list[float]) -> list[float]:
    return [x / y for x, y in zip(a, b, strict=True)]


def _sums(a: list[float], b: list[float]) -> list[float]:
    return [x + y for x, y in zip(a, b, strict=True)]


def _compare(report: Report, torch: dict[str, list[float]]) -> None:
    report.header(f"PyTorch, {TORCH_MIB} MiB in 16 tensors")
    names = {"muster": "Muster", "torch_save": "torch.save and rados put", "dcp": "DCP to a directory"}
    for what, text in {"stall": "the program's wait", "total": "until it is whole", "restore": "restored"}.items():
        for kind, name in names.items():
            report.row(f"{text}: {name}", torch[f"{kind}_{what}"])
            if kind != "muster":
                report.numbers[f"{kind}_{what}_ratio"] = median(_ratios(torch[f"{kind}_{what}"], torch[f"muster_{what}"]))
    report.row("restored into memory that is new: Muster", torch["muster_new_restore"])
    report.numbers |= {"torch_rounds": TORCH_ROUNDS, "muster_new_restore_ms": torch["muster_new_restore"][0]}


def _train(cluster: Cluster, seconds: int) -> dict[str, float]:
    """Seconds: of the program, of its waits, and of cores that musterd and the OSDs took from its start to its end, and musterd
    from the start to the end of one as long that does not save."""
    daemons = {"musterd_s": [(NODE, "musterd")], "osds_s": [("ceph", osd) for osd in OSDS]}

    def taken() -> dict[str, float]:
        return {key: sum(cpu_s(cluster.daemon_pid(*who) or 0) for who in whose) for key, whose in daemons.items()}

    def run(every: int) -> tuple[dict[str, list[float]], dict[str, float]]:
        before = taken()
        found = _srun(cluster, [SAVER, str(TRAIN_MIB * MIB), str(seconds), str(every)])
        after = taken()
        return found, {key: after[key] - before[key] for key in daemons}

    _, without = run(2 * seconds)
    found, figures = run(TRAIN_EVERY_S)
    figures["without_s"] = without["musterd_s"]
    figures |= {"elapsed_s": found["elapsed"][0] / 1000, "stall_s": sum(found["stall"]) / 1000}
    figures["first_s"] = sum(found["stall"][:STAGING_BUFFERS]) / 1000
    return figures | {"saves": len(found["stall"])}
