#!/usr/bin/python3
"""A job whose memory limit leaves little for its saves: nobody is killed for a checkpoint."""

import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import ClusterCase, Job  # noqa: E402

MIB = 1 << 20
SHARD = 64 * MIB
STEPS = 6

# Waits until it has its limit, then saves as fast as it may. DIRECTORY/said has what its saves came to.
PROGRAM = """
import os, sys, time, muster, numpy
directory, steps, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
state = numpy.random.default_rng(0).integers(0, 256, size, numpy.uint8)
with open(f"{directory}/pid", "w") as file:
    file.write(str(os.getpid()))
while not os.path.exists(f"{directory}/go"):
    time.sleep(0.01)
with muster.init() as gang, open(f"{directory}/said", "w") as said:
    for step in range(1, steps + 1):
        state[::4096] = step
        try:
            gang.save({"state": state}, step)
        except muster.MusterError as why:
            print(why.code, why, file=said, flush=True)
    gang.wait()
"""


def setUpModule() -> None:
    harness.start("memlimit", nodes=1)


class MemoryLimit(ClusterCase):
    def saves(self, room: int) -> Job:
        """A program that has `room` bytes for its saves."""
        job = self.srun(["/usr/bin/python3", "-c", PROGRAM, "{FILES}", str(STEPS), str(SHARD)], nodes=1, tasks=1)
        job.wait_for_file("pid")
        self.wait(lambda: (job.files / "pid").read_text() != "", "the program's pid")
        script = """
set -e
group=/sys/fs/cgroup/limited most=memory.max
if [ -d /sys/fs/cgroup/memory ]; then group=/sys/fs/cgroup/memory/limited most=memory.limit_in_bytes; fi
mkdir -p $group
echo $1 >$group/$most
echo $0 >$group/cgroup.procs
"""
        limited = self.cluster.exec("n1", ["bash", "-c", script, (job.files / "pid").read_text(), str(room)])
        self.assertEqual(limited.returncode, 0, limited.stderr)
        (job.files / "go").touch()
        return job

    def test_with_room_for_one_buffer_each_save_waits_for_the_one_before(self) -> None:
        job = self.saves(SHARD + SHARD // 2)
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual((job.files / "said").read_text(), "")
        self.assertEqual(self.muster_json("status", job.id)["gangs"][-1]["generation"], 1, "nobody was killed")
        listed = self.muster_json("checkpoint", "list", job.gang)["checkpoints"]
        self.assertEqual([entry["step"] for entry in listed], [4, 5, 6])

    def test_with_room_for_none_saves_fail_by_name_and_the_program_goes_on(self) -> None:
        job = self.saves(SHARD // 2)
        self.assertEqual(job.wait(), 0, job.err)
        said = (job.files / "said").read_text().splitlines()
        self.assertEqual(len(said), STEPS)
        for line in said:
            self.assertRegex(line, r"-11 no memory for a shard of \d+ bytes: 80 MiB more are needed; the job's memory limit leaves ")
        self.assertEqual(self.muster_json("status", job.id)["gangs"][-1]["generation"], 1, "nobody was killed")


if __name__ == "__main__":
    unittest.main(verbosity=2)
