"""Each machine's cgroups: of the v1 hierarchies as in a virtual cluster, and of the v2 tree beside them.

systemd in a container keeps its units in that tree. Containers that shared a group of it would kill each other's processes.
"""

from pathlib import Path

from vc.cgroups import Cgroups, Hierarchy


class RackCgroups(Cgroups):
    def hierarchies(self) -> list[Hierarchy]:
        unified = []
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            if right.split()[0] == "cgroup2":
                unified.append(Hierarchy(Path(left.split()[4]), "unified"))
        return super().hierarchies() + unified[:1]
