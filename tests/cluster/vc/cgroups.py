"""A cgroup v1 sub-hierarchy for each node, in every v1 hierarchy that the host has.

Slurm's proctrack/cgroup needs the freezer only. It is also how the cluster finds its processes: whatever runs in a
node was started from inside the node's cgroup.
"""

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from .host import ClusterError, run
from .names import Names

# Mount options that are not part of a hierarchy's identity.
_PLAIN_OPTIONS = {"rw", "ro", "xattr", "nosuid", "nodev", "noexec", "relatime"}


@dataclass(frozen=True)
class Hierarchy:
    mount: Path
    options: str  # what `mount -t cgroup -o` takes: "freezer", "cpu,cpuacct", "name=systemd"


class Cgroups:
    def __init__(self, names: Names) -> None:
        self._names = names
        self._own_mount = names.directory / "cgroup" / "freezer"

    def hierarchies(self) -> list[Hierarchy]:
        found: dict[str, Hierarchy] = {}
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            kind, _, super_options = right.split(" ", 2)
            if kind != "cgroup":
                continue
            options = [o for o in super_options.split(",") if o not in _PLAIN_OPTIONS]
            name = ",".join(o for o in options if not o.startswith("release_agent="))
            found.setdefault(name, Hierarchy(Path(left.split()[4]), name))
        return list(found.values())

    def create(self, nodes: list[str]) -> None:
        """Makes every node's cgroups; on a host without the v1 freezer (cgroup v2 only) mounts that first."""
        if not any(h.options == "freezer" for h in self.hierarchies()):
            self._own_mount.mkdir(parents=True)
            run(["mount", "-t", "cgroup", "-o", "freezer", "cgroup", str(self._own_mount)])
        for hierarchy in self.hierarchies():
            base = hierarchy.mount / self._names.cgroup
            for group in [base, *(base / node for node in nodes)]:
                group.mkdir(exist_ok=True)
                if "cpuset" in hierarchy.options.split(","):
                    for key in ("cpuset.cpus", "cpuset.mems"):
                        (group / key).write_text((group.parent / key).read_text())

    def procs_files(self, node: str) -> list[str]:
        """The files that take a pid to move a process into a node."""
        return [str(h.mount / self._names.cgroup / node / "cgroup.procs") for h in self.hierarchies()]

    def kill(self, node: str | None = None, timeout: float = 20) -> None:
        """Kills every process of a node, or of the whole cluster, and waits until none is left."""
        deadline = time.monotonic() + timeout
        while pids := self._pids(node):
            self._end(pids)
            self._thaw(node)
            if time.monotonic() > deadline:
                raise ClusterError(f"processes {sorted(pids)} do not die")
            time.sleep(0.005)

    def destroy(self) -> None:
        """Removes the cluster's cgroups, which must be empty of processes by now or very soon. What they have used goes with them:
        it is noted first in the file that MUSTER_TEST_USAGE names."""
        if usage := os.environ.get("MUSTER_TEST_USAGE"):
            with open(usage, "a", encoding="ascii") as file:
                print(self._processor_seconds(), file=file)
        for hierarchy in self.hierarchies():
            base = hierarchy.mount / self._names.cgroup
            for path, _, _ in os.walk(base, topdown=False):
                self._rmdir(path)
        if self._own_mount.is_mount():
            run(["umount", str(self._own_mount)])

    def _processor_seconds(self) -> float:
        for hierarchy in self.hierarchies():
            if "cpuacct" in hierarchy.options.split(","):
                with contextlib.suppress(FileNotFoundError):
                    return int((hierarchy.mount / self._names.cgroup / "cpuacct.usage").read_text()) / 1e9
        return 0.0  # nobody counts them where there is version 2 alone

    def clean(self, node: str) -> None:
        """Removes what Slurm left in a dead node's cgroups."""
        for hierarchy in self.hierarchies():
            base = hierarchy.mount / self._names.cgroup / node
            for path, _, _ in os.walk(base, topdown=False):
                if path != str(base):
                    self._rmdir(path)

    def _rmdir(self, path: str, timeout: float = 20) -> None:
        """What had just been started may move itself there still, and a cgroup stays busy for a moment after its last process."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                os.rmdir(path)
                return
            except FileNotFoundError:
                return
            except OSError:
                self._end(self._pids_in([path]))
                time.sleep(0.01)
        raise ClusterError(f"cannot remove the cgroup {path}: it is still busy with {sorted(self._pids_in([path]))}")

    @staticmethod
    def _end(pids: set[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _groups(self, node: str | None, only: str | None = None) -> list[str]:
        groups = []
        for hierarchy in self.hierarchies():
            if only is None or hierarchy.options == only:
                base = hierarchy.mount / self._names.cgroup
                groups += [path for path, _, _ in os.walk(base / node if node else base)]
        return groups

    def _pids(self, node: str | None) -> set[int]:
        return self._pids_in(self._groups(node))

    @staticmethod
    def _pids_in(groups: list[str]) -> set[int]:
        pids: set[int] = set()
        for group in groups:
            with contextlib.suppress(OSError):
                pids.update(int(p) for p in Path(group, "cgroup.procs").read_text().split())
        return pids - {0, os.getpid()}

    def _thaw(self, node: str | None) -> None:
        # A frozen process dies only after the thaw.
        for group in self._groups(node, only="freezer"):
            with contextlib.suppress(OSError):
                Path(group, "freezer.state").write_text("THAWED")
