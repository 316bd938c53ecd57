"""Each machine's cgroups: of the v1 hierarchies as in a virtual cluster, and of the v2 tree beside them.

systemd in a container keeps its units in that tree. Containers that shared a group of it would kill each other's processes.
"""

from pathlib import Path

from vc.cgroups import Cgroups, Hierarchy

HOST = "host"  # the group of processes on the host that belong to a rack


class RackCgroups(Cgroups):
    def hierarchies(self) -> list[Hierarchy]:
        unified = []
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            if right.split()[0] == "cgroup2":
                unified.append(Hierarchy(Path(left.split()[4]), "unified"))
        return super().hierarchies() + unified[:1]

    def memory(self) -> int:
        """What the kernel counts for all of them without the page cache, in bytes."""
        [memory] = [hierarchy for hierarchy in self.hierarchies() if hierarchy.options == "memory"]
        lines = (memory.mount / self._names.cgroup / "memory.stat").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("total_rss ", "total_shmem ")))


def inside(cgroups: Cgroups, name: str, argv: list[str]) -> list[str]:
    """The command that runs a program on the host in a machine's cgroups, or in HOST's."""
    procs = " ".join(f"'{path}'" for path in cgroups.procs_files(name))
    return ["/bin/sh", "-c", f'for f in {procs}; do echo $$ >"$f" || exit 1; done; exec "$@"', "sh", *argv]
