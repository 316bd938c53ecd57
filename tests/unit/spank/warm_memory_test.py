"""How much memory a standby finds free: in files as Linux has them in /proc and in its control groups."""

import os
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "client/python"))

import muster_warm  # noqa: E402

GIB = 1 << 30
NO_LIMIT_1 = str((1 << 63) - 4096)


class FreeMemory(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="muster-memory-")
        self.addCleanup(directory.cleanup)
        self.place = Path(directory.name)
        self.write("proc/meminfo", f"MemTotal: {99 << 20} kB\nMemAvailable: {50 << 20} kB\n")

    def write(self, path: str, text: str) -> None:
        file = self.place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def process(self, group: str, *mounts: str) -> None:
        """`mounts`: ROOT POINT TYPE OPTIONS, the point below this test's directory."""
        self.write("proc/self/cgroup", group)
        lines = []
        for mount in mounts:
            root, point, kind, options = mount.split()
            lines.append(f"30 20 0:9 {root} {self.place}{point} rw,nosuid shared:5 - {kind} none {options}\n")
        self.write("proc/self/mountinfo", "".join(lines))

    def second(self, path: str, limit: str, used: int, files: int = 0) -> None:
        self.write(f"{path}/memory.max", f"{limit}\n")
        self.write(f"{path}/memory.current", f"{used}\n")
        self.write(f"{path}/memory.stat", f"anon 1\nfile 7\ninactive_file {files // 2}\nactive_file {files // 2}\n")

    def first(self, path: str, limit: str, used: int, files: int = 0) -> None:
        self.write(f"{path}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{path}/memory.usage_in_bytes", f"{used}\n")
        self.write(f"{path}/memory.stat", f"inactive_file 9\ntotal_inactive_file {files}\ntotal_active_file 0\n")

    def free(self) -> int:
        return muster_warm._free_memory(f"{self.place}/proc")

    def test_without_a_limit_it_is_the_machines(self) -> None:
        self.process("0::/slurm/job_5\n", "/ /cgroup cgroup2 rw")
        self.second("cgroup/slurm/job_5", "max", 3)
        self.assertEqual(self.free(), 50 * GIB)

    def test_the_narrowest_group_counts_and_files_can_be_dropped(self) -> None:
        self.process("0::/slurm/job_5/step_0\n", "/ /cgroup cgroup2 rw")
        self.second("cgroup/slurm/job_5/step_0", str(8 * GIB), GIB)
        self.second("cgroup/slurm/job_5", str(4 * GIB), 3 * GIB, files=2 * GIB)
        self.second("cgroup/slurm", "max", 90 * GIB)
        self.assertEqual(self.free(), 3 * GIB)

    def test_the_first_version(self) -> None:
        self.process(
            "9:cpu:/elsewhere\n4:memory:/slurm/uid_1/job_5\n0::/\n",
            "/ /cpu cgroup rw,cpu",
            "/ /memory cgroup rw,memory",
        )
        self.first("cpu/elsewhere", "1", 1)
        self.first("memory/slurm/uid_1/job_5", str(2 * GIB), GIB, files=GIB // 2)
        self.first("memory/slurm/uid_1", NO_LIMIT_1, 0)
        self.assertEqual(self.free(), 3 * GIB // 2)

    def test_in_a_container_that_sees_its_own_groups_only(self) -> None:
        self.process("4:memory:/machine/n1/slurm/job_5\n", "/machine/n1 /memory cgroup rw,memory")
        self.first("memory/slurm/job_5", str(2 * GIB), GIB)
        self.assertEqual(self.free(), GIB)
        # A namespace's root, above which the group lies: what is seen is the root's.
        self.process("4:memory:/../../slurm\n", "/ /memory cgroup rw,memory")
        self.first("memory", str(3 * GIB), GIB)
        self.assertEqual(self.free(), 2 * GIB)

    def test_a_group_beyond_its_limit_has_nothing_left(self) -> None:
        self.process("0::/a\n", "/ /cgroup cgroup2 rw")
        self.second("cgroup/a", str(GIB), 2 * GIB)
        self.assertLess(self.free(), 0)

    def test_on_this_machine(self) -> None:
        self.assertGreater(muster_warm._free_memory(), 0)
        self.assertLessEqual(muster_warm._free_memory(), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE"))
        self.assertGreater(muster_warm._own_memory(), 1 << 20)


if __name__ == "__main__":
    unittest.main()
