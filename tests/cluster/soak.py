"""Faults for checkpoints: those of chaos.py that touch the store and who writes to it, and more."""

import signal
import time
from dataclasses import dataclass, field

import rados
from chaos import Chaos, Fault, Kinds
from soak_store import POOL, Damage, Store
from vc.ceph import OSDS
from vc.names import CEPH_NODE, CONTROLLER

SOAK = Kinds(
    nodes={
        "musterd killed": (0.0, 2.0, 2),
        "musterd stopped for a moment": (0.3, 1.2, 1),
        "node killed": (9.0, 14.0, 1),
        # With all that is of the gang there: it is replaced meanwhile, and wakes up in the middle of a save.
        "node stands still": (7.0, 10.0, 1),
    },
    members={"member killed": (0.0, 0.0, 4), "member stopped": (0.5, 3.0, 2)},
    store={
        "OSD killed": (2.0, 6.0, 2),
        "store slow": (2.0, 6.0, 1),
        "two OSDs stopped": (30.0, 30.0, 1),
        "monitor restarted": (0.0, 3.0, 1),
        "quota reached": (8.0, 12.0, 1),
        "object flipped": (0.0, 0.0, 2),
        "object removed": (0.0, 0.0, 2),
        "manifest flipped": (0.0, 0.0, 1),
        "manifest removed": (0.0, 0.0, 1),
    },
    coordinator=("musterd killed", "musterd killed", "musterd stopped for a moment"),
)
_DAMAGES = ("object", "manifest")
# After a fault of the store it answers again within so many seconds. An OSD that has stood still may keep the operations of some
# placement groups until the next change of its map (Ceph 16.2): then the OSDs are started again, as an operator would do.
_BACK = 20.0


@dataclass
class Soak(Chaos):
    """Carries a schedule of SOAK out."""

    kinds: Kinds = SOAK
    store: Store | None = None
    damage: Damage = field(default_factory=Damage)
    stuck: int = 0  # how often the OSDs had to be started again
    _stopped: dict[int, list[str]] = field(default_factory=dict)  # pids that stand still, by the fault's number
    _store_well: float = 0.0  # since when no fault of the store is under way

    def look_after(self, silent: float) -> None:
        """To be called now and then with the seconds for which the store has not answered."""
        if any(fault.kind in self.kinds.store for _, fault in self._heals):
            return
        if min(silent, time.monotonic() - self._store_well) < _BACK:
            return
        self.say(f"the store has not come back in {_BACK:g} s: its OSDs are started again")
        self.stuck += 1
        for number in range(OSDS):
            self.cluster.stop_daemon(CEPH_NODE, f"osd.{number}", signal.SIGKILL)
            self.cluster.start_daemon(CEPH_NODE, f"osd.{number}")
        self._store_well = time.monotonic()

    def _choose(self, fault: Fault) -> None:
        super()._choose(fault)
        if fault.kind in self.kinds.store and any(other.kind in self.kinds.store for _, other in self._heals):
            fault.skipped = "the store has enough to bear"

    def _inflict(self, fault: Fault) -> None:
        if fault.kind.startswith(_DAMAGES):
            self._harm(fault)
        elif fault.kind == "monitor restarted":
            self.cluster.stop_daemon(CEPH_NODE, "mon.a", signal.SIGKILL)
        elif fault.kind == "two OSDs stopped":
            for osd in self._slow_osds(fault):
                self.cluster.signal_daemon(CEPH_NODE, osd, signal.SIGSTOP)
        elif fault.kind == "quota reached":
            self._set_quota(1)
        elif fault.kind == "member stopped":
            self._stop(fault, [str(fault.pid)])
        elif fault.kind == "node stands still":
            self._stop(fault, self._of_the_gang(fault.where))
            self.cluster.signal_daemon(fault.where, "musterd", signal.SIGSTOP)
        else:
            super()._inflict(fault)

    def _end(self, fault: Fault) -> None:
        if fault.kind == "monitor restarted":
            self.cluster.start_daemon(CEPH_NODE, "mon.a")
        elif fault.kind == "two OSDs stopped":
            for osd in self._slow_osds(fault):
                self.cluster.signal_daemon(CEPH_NODE, osd, signal.SIGCONT)
        elif fault.kind == "quota reached":
            self._set_quota(0)
        elif fault.kind == "node stands still":
            # The programs first: for a moment they run, and save.
            self._wake(fault)
            self.cluster.signal_daemon(fault.where, "musterd", signal.SIGCONT)
        elif fault.kind == "member stopped":
            self._wake(fault)
        if fault.kind in self.kinds.store:
            self._store_well = time.monotonic()
        super()._end(fault)

    def _harm(self, fault: Fault) -> None:
        assert self.store is not None
        try:
            said = self.damage.inflict(self.store, fault.kind, int(fault.target.removeprefix("osd.")) + fault.number)
        except rados.Error as error:
            said, fault.skipped = "", f"the store does not answer: {error}"
        fault.skipped = fault.skipped or ("" if said else "there is nothing to damage")
        fault.where = said

    def _set_quota(self, objects: int) -> None:
        assert self.store is not None
        self.store.command("osd pool set-quota", pool=POOL, field="max_objects", val=str(objects))

    def _of_the_gang(self, node: str) -> list[str]:
        """Supervisors and programs on a node, the supervisors first."""
        find = "pgrep -u trainer -x slurmstepd; pgrep -u trainer -f '^/usr/bin/python3 .*soak_member'"
        return self._exec(node, ["bash", "-c", find]).split()

    def _stop(self, fault: Fault, pids: list[str]) -> None:
        self._stopped[fault.number] = pids
        self._exec(fault.where, ["bash", "-c", f"kill -STOP {' '.join(pids)}"])

    def _wake(self, fault: Fault) -> None:
        for pid in reversed(self._stopped.pop(fault.number, [])):
            self._exec(fault.where, ["bash", "-c", f"kill -CONT {pid}"])
