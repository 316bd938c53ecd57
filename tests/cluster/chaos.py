"""Chaos: a schedule of faults that follows from a seed, and what carries it out on a virtual cluster."""

import json
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lives import Life, read_lives
from vc import Cluster
from vc.ceph import OSDS
from vc.host import ClusterError
from vc.names import CEPH_NODE, CONTROLLER

COORDINATOR = "coordinator"  # as a target: who that is when the fault comes


@dataclass(frozen=True)
class Kinds:
    """Kinds of faults: how long each lasts, and how often it comes in one round of a schedule."""

    nodes: dict[str, tuple[float, float, int]]  # a node has it; few nodes have one at a time
    members: dict[str, tuple[float, float, int]]
    store: dict[str, tuple[float, float, int]]  # one at a time
    coordinator: tuple[str, ...]  # those of `nodes` that also come once to whoever coordinates

    def all(self) -> dict[str, tuple[float, float, int]]:
        return self.nodes | self.members | self.store


_NODE_KINDS: dict[str, tuple[float, float, int]] = {
    "musterd killed": (0.0, 3.0, 2),
    "musterd restarted": (0.0, 0.0, 1),
    "musterd stopped for a moment": (0.3, 1.2, 1),
    "musterd stopped for long": (6.0, 9.0, 1),
    "node killed": (8.0, 15.0, 1),
    "node cut off for a moment": (0.3, 1.2, 1),
    "node cut off for long": (6.0, 9.0, 1),
    "disk full": (3.0, 8.0, 1),
}
CHAOS = Kinds(
    nodes=_NODE_KINDS,
    members={"member killed": (0.0, 0.0, 4)},
    store={"OSD killed": (2.0, 6.0, 1), "store slow": (2.0, 6.0, 1)},
    coordinator=("musterd killed", "musterd restarted", "musterd stopped for long"),
)
# These may cost the gang the node.
LOSES_NODE = {"musterd stopped for long", "node killed", "node cut off for long", "disk full", "musterd killed"}
_GAP = (2.0, 5.0)  # between the beginnings of two faults
_SHORT = 2.0  # while a fault lasts that is shorter nobody looks at anything else
_REST = 4.0  # a node is left alone for so long after its fault
_LONG = 10.0  # other faults do not wait so long for the store's turn
_AT_ONCE = 2  # nodes with a fault at the same time
_FILLED = ("/run", "/dev/shm")
# What slurmctld has to tell a node that it sets DOWN is tried for 12 s, and then forgotten: one that is back sooner hears it, or
# a minute later, and kills the job's next run for the last one (docs/operations.md, "The batch host dies").
_DOWN_FOR = 15.0
# Without Muster slurmctld sets a dead node DOWN after SlurmdTimeout, which test_chaos.py and test_soak.py set to 40 s.
_DOWN_WITHIN = 60.0


@dataclass
class Fault:
    number: int
    at: float  # seconds after the beginning
    kind: str
    target: str  # a node, COORDINATOR, an OSD, or a number that picks a member
    lasts: float
    # What became of it:
    began: float = 0.0  # CLOCK_REALTIME
    ended: float = 0.0  # likewise
    hit: bool = False  # a member of the gang ran there
    where: str = ""  # the node it hit
    pid: int = 0  # of a member
    generation: int = 0
    skipped: str = ""

    def may_lose(self) -> bool:
        """Whether its node may have been lost of it: also of what was to be short, and was not."""
        return self.kind in LOSES_NODE or (self.kind in _NODE_KINDS and self.ended - self.began > _SHORT)

    def __str__(self) -> str:
        lasts = f" for {self.lasts:.1f} s" if self.lasts else ""
        return f"#{self.number} {self.kind}: {self.target}{lasts}"


def schedule(seed: int, seconds: float, nodes: list[str], kinds: Kinds = CHAOS) -> list[Fault]:
    """The same for the same arguments. Every kind comes once in each round, in random order."""
    rng = random.Random(seed)
    faults: list[Fault] = []
    free_at = dict.fromkeys(nodes, 0.0)
    store_free_at = 0.0
    bag: list[tuple[str, bool]] = []
    at = rng.uniform(*_GAP)
    while at < seconds:
        if not bag:
            bag = [(kind, False) for kind, (_, _, times) in kinds.all().items() for _ in range(times)]
            bag += [(kind, True) for kind in kinds.coordinator]
            rng.shuffle(bag)
        if store_free_at > at + _LONG and any(kind not in kinds.store for kind, _ in bag):
            bag.append(bag.pop(max(i for i, (kind, _) in enumerate(bag) if kind not in kinds.store)))
        kind, coordinator = bag.pop()
        shortest, longest, _ = kinds.all()[kind]
        lasts = min(rng.uniform(shortest, longest), max(seconds - at, shortest))
        if kind in kinds.members:
            target = str(rng.randrange(1000))
        elif kind in kinds.store:
            target = f"osd.{rng.randrange(OSDS)}"
            at = max(at, store_free_at)
            store_free_at = at + lasts + _REST
        elif coordinator:
            target = COORDINATOR
        else:
            # Not before a node is free, and never more than _AT_ONCE.
            at = max(at, sorted(free_at.values())[-_AT_ONCE])
            target = rng.choice([node for node in nodes if free_at[node] <= at])
            free_at[target] = at + lasts + _REST
        if at < seconds:
            faults.append(Fault(len(faults) + 1, at, kind, target, lasts))
        at += rng.uniform(*_GAP)
    return faults


@dataclass
class Victim:
    """A member that runs now."""

    rank: int
    generation: int
    host: str
    pid: int


def victims(cluster: Cluster, files: Path) -> list[Victim]:
    """The members of the newest generation that run."""
    lives = read_lives(files)
    newest = max((life.generation for life in lives), default=0)

    def runs(life: Life) -> bool:
        # A node that has booted again has other processes with the same numbers.
        start = cluster.process_start(life.host, life.pid)
        return start is not None and abs(start - life.start) < 0.1

    alive = [life for life in lives if life.generation == newest and runs(life)]
    return [Victim(life.rank, life.generation, life.host, life.pid) for life in alive]


@dataclass
class Chaos:
    """Carries a schedule out; run() returns when every fault is over."""

    cluster: Cluster
    job: str
    victims: Callable[[], list[Victim]]
    say: Callable[[str], None]
    idle: Callable[[], None] = lambda: None  # called now and then
    kinds: Kinds = CHAOS
    done: list[Fault] = field(default_factory=list)
    _heals: list[tuple[float, Fault]] = field(default_factory=list)
    _hurt: dict[str, Fault] = field(default_factory=dict)  # by node
    _down: dict[str, float] = field(default_factory=dict)  # since when a node is known to be DOWN that should boot
    _start: float = 0.0

    def run(self, faults: list[Fault]) -> None:
        self._start = time.monotonic()
        waiting = list(faults)
        try:
            while waiting or self._heals:
                now = time.monotonic() - self._start
                heal = min(self._heals, key=lambda h: h[0], default=None)
                # What is over ends before anything else begins: else it lasts longer than it is to.
                if heal is not None and heal[0] <= now:
                    self._heals.remove(heal)
                    if self.may_end(heal[1]):
                        self._end(heal[1])
                    else:
                        self._heals.append((now + 1.0, heal[1]))
                elif waiting and waiting[0].at <= now:
                    self._begin(waiting.pop(0))
                else:
                    if not any(fault.lasts < _SHORT for _, fault in self._heals):
                        self.idle()
                    time.sleep(0.05)
        finally:
            for _, fault in self._heals:
                with suppress(ClusterError):
                    self._end(fault)

    def may_end(self, fault: Fault) -> bool:
        """Whether a fault whose time is over may end; else it is asked again a second later. A node that was killed does not boot again
        before Slurm knows that it is DOWN: srun ends the step of one that is back before (docs/open.md). That takes longer when the
        coordinator died with it and the store takes no successor's term meanwhile."""
        if fault.kind != "node killed":
            return True
        if not self.is_down(fault.where):
            self._down.pop(fault.where, None)
            return time.time() > fault.began + _DOWN_WITHIN
        if time.monotonic() - self._down.setdefault(fault.where, time.monotonic()) < _DOWN_FOR:
            return False
        del self._down[fault.where]
        return True

    def is_down(self, node: str) -> bool:
        """Slurm calls it so."""
        states = self._exec(CONTROLLER, ["sinfo", "-h", "-N", "-o", "%N %t"]).splitlines()  # with -n they may be old
        return any(line.startswith(f"{node} down") for line in states)

    def hurt_nodes(self) -> set[str]:
        return set(self._hurt)

    def resume_nodes(self) -> list[str]:
        """What an operator does: nodes that are well again but not in Slurm's eyes go back to work. Gives those that are
        still not idle."""
        query = self._exec(CONTROLLER, ["sinfo", "-h", "-N", "-o", "%N %t"])
        states = dict(line.split() for line in query.splitlines())
        for node, state in states.items():
            if node not in self._hurt and re.match(r"(down|drain|drng|fail)", state):
                self._exec(CONTROLLER, ["scontrol", "update", f"NodeName={node}", "State=RESUME"])
        return [node for node in self.cluster.compute_nodes if states.get(node) not in ("idle",)]

    def coordinator(self) -> str:
        """The coordinator's node, as far as anyone knows; "" when nobody does."""
        gangs = self._muster("status").get("gangs", [])
        return str(gangs[-1]["coordinator"]) if gangs else ""

    def events(self) -> list[dict[str, Any]]:
        """What `muster events` knows now; nothing when the store does not answer."""
        found: list[dict[str, Any]] = self._muster("events").get("events", [])
        return found

    # --- one fault

    def _begin(self, fault: Fault) -> None:
        self.done.append(fault)
        self._choose(fault)
        fault.began = time.time()
        if not fault.skipped:
            victims = self.victims()
            fault.hit = any(victim.host == fault.where for victim in victims)
            if fault.kind in self.kinds.nodes:
                self._hurt[fault.where] = fault
            self._inflict(fault)
            self._heals.append((time.monotonic() - self._start + fault.lasts, fault))
        where = f" ({fault.where})" if fault.where not in ("", fault.target) else ""
        self._say(f"{fault}{where}" + (f"; left out: {fault.skipped}" if fault.skipped else ""))

    def _choose(self, fault: Fault) -> None:
        """Finds out whom it hits."""
        if fault.kind in self.kinds.members:
            victims = self.victims()
            if not victims:
                fault.skipped = "no member runs"
                return
            victim = victims[int(fault.target) % len(victims)]
            fault.where, fault.pid, fault.generation = victim.host, victim.pid, victim.generation
            if victim.host in self._hurt and self.cluster.daemon_pid(victim.host, "musterd") is None:
                fault.skipped = f"{victim.host} has enough to bear"
        elif fault.kind in self.kinds.nodes:
            fault.where = self.coordinator() if fault.target == COORDINATOR else fault.target
            if not fault.where:
                fault.skipped = "nobody coordinates"
            elif fault.where in self._hurt:
                fault.skipped = f"{fault.where} still suffers from #{self._hurt[fault.where].number}"
            elif len(self._hurt) >= _AT_ONCE:
                fault.skipped = "enough nodes suffer"
            elif fault.kind == "node cut off for long" and not self.victims():
                # srun ends a step that it cannot launch on a node, and the node is back before Muster can call it dead (docs/open.md).
                fault.skipped = "no member runs: the step may be being launched"

    def _inflict(self, fault: Fault) -> None:
        cluster, node = self.cluster, fault.where
        if fault.kind == "member killed":
            if cluster.exec(node, ["kill", "-KILL", str(fault.pid)]).returncode != 0:
                fault.skipped = "it ended before"
        elif fault.kind == "OSD killed":
            cluster.stop_daemon(CEPH_NODE, fault.target, signal.SIGKILL)
        elif fault.kind == "store slow":
            for osd in self._slow_osds(fault):
                cluster.signal_daemon(CEPH_NODE, osd, signal.SIGSTOP)
        elif fault.kind == "node killed":
            cluster.kill(node)
        elif fault.kind.startswith("node cut off"):
            cluster.cut(node)
        elif fault.kind.startswith("musterd stopped"):
            cluster.signal_daemon(node, "musterd", signal.SIGSTOP)
        elif fault.kind == "musterd killed":
            cluster.stop_daemon(node, "musterd", signal.SIGKILL)
        elif fault.kind == "musterd restarted":
            cluster.stop_daemon(node, "musterd")
        else:
            for path in _FILLED:
                self._resize(node, path, full=True)

    def _end(self, fault: Fault) -> None:
        self._mend(fault)
        fault.ended = time.time()

    def _mend(self, fault: Fault) -> None:
        cluster, node = self.cluster, fault.where
        if fault.kind == "OSD killed":
            cluster.start_daemon(CEPH_NODE, fault.target)
        elif fault.kind == "store slow":
            for osd in self._slow_osds(fault):
                cluster.signal_daemon(CEPH_NODE, osd, signal.SIGCONT)
        elif fault.kind == "node killed":
            cluster.revive(node)
        elif fault.kind.startswith("node cut off"):
            cluster.heal(node)
        elif fault.kind.startswith("musterd stopped"):
            cluster.signal_daemon(node, "musterd", signal.SIGCONT)
        elif fault.kind in ("musterd killed", "musterd restarted"):
            cluster.start_daemon(node, "musterd")
        elif fault.kind == "disk full":
            for path in _FILLED:
                self._resize(node, path, full=False)
        self._hurt.pop(node, None)
        if fault.kind != "member killed":
            self._say(f"#{fault.number} is over")

    def _slow_osds(self, fault: Fault) -> list[str]:
        """Two of three: what is written waits."""
        first = int(fault.target.removeprefix("osd."))
        return [f"osd.{first}", f"osd.{(first + 1) % OSDS}"]

    def _resize(self, node: str, path: str, full: bool) -> None:
        """A file system has no free byte, or has as many as before."""
        size = "$(df --output=used -k $1 | tail -n 1 | tr -d ' ' | sed 's/^[0-3]$/4/')k" if full else "50%"
        # Others write there meanwhile: then it is not so small any more.
        remount = f'until mount -o "remount,size={size}" $1; do :; done'
        done = self.cluster.exec(node, ["timeout", "30", "sh", "-c", remount, "-", path], timeout=60)
        if done.returncode != 0:
            raise ClusterError(f"{path} of {node} cannot be made {size} large: {done.stderr}")

    # --- small things

    def _exec(self, node: str, argv: list[str]) -> str:
        return self.cluster.exec(node, argv, timeout=60).stdout

    def _muster(self, word: str) -> dict[str, Any]:
        with suppress(subprocess.TimeoutExpired, json.JSONDecodeError):
            done = self.cluster.user(CONTROLLER, ["muster", word, self.job, "--json"], timeout=5)
            found: dict[str, Any] = json.loads(done.stdout)
            return found
        return {}

    def _say(self, text: str) -> None:
        self.say(f"[{time.monotonic() - self._start:6.1f} s] {text}")
