#!/usr/bin/python3
"""A pool that is full, or at its quota: members train on, their newest saves wait in memory, and are committed when there
is room. Nothing is deleted to make room."""

import json
import re
import sys
import unittest
from collections.abc import Callable
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import SLURM, ClusterCase, Job  # noqa: E402


MEMBERS = 4
SHARD = 1_000_000
KEPT = 3

# Saves as fast as it may; DIRECTORY/step.RANK is how far it is, and what it knows to be committed.
PROGRAM = """
import hashlib, os, sys, time, muster
directory, waits, rank = sys.argv[1], sys.argv[2] == "waits", os.environ["RANK"]
def put(name, text):
    with open(f"{directory}/{name}.part", "w") as file:
        file.write(text)
    os.rename(f"{directory}/{name}.part", f"{directory}/{name}")
def state(step):
    return hashlib.shake_128(f"{rank}/{step}".encode()).digest(%d)
with muster.init() as gang:
    step, found = 0, gang.restore()
    if found is not None:
        saved, step = found
        assert bytes(saved["state"]) == state(step), "another state than was saved"
    generation = os.environ["MUSTER_GENERATION"]
    put(f"pid.{generation}.{rank}", f"{os.getpid()} {os.uname().nodename} {step}")
    while not os.path.exists(f"{directory}/stop") or step < int(open(f"{directory}/stop").read()):
        step += 1
        gang.save({"state": state(step)}, step)
        if waits:
            gang.wait(step)
        gang.step(step)
        committed = gang.committed
        put(f"step.{rank}", f"{step} {-1 if committed is None else committed}")
        time.sleep(0.2)
    gang.wait(step)
""" % SHARD


def setUpModule() -> None:
    harness.start(
        "fullpool", nodes=2, osds=3, settings={"store_timeout": "60s", "chunk_size": "64KiB", "keep_checkpoints": str(KEPT)}
    )


class FullPool(ClusterCase):
    def saver(self, waits: bool = False) -> Job:
        program = ["/usr/bin/python3", "-c", PROGRAM, "{FILES}", "waits" if waits else "trains"]
        job = self.srun(program, nodes=2, tasks=MEMBERS)
        self.wait(lambda: self.committed(job) >= KEPT, "the first checkpoints")
        return job

    def numbers(self, job: Job, index: int) -> list[int]:
        paths = [job.files / f"step.{rank}" for rank in range(MEMBERS)]
        return [int(path.read_text().split()[index]) for path in paths if path.exists()]

    def step(self, job: Job) -> int:
        """That all members have finished."""
        return min(self.numbers(job, 0), default=0)

    def committed(self, job: Job) -> int:
        """That a member knows to be committed."""
        return max(self.numbers(job, 1), default=-1)

    def listed(self, job: Job) -> list[int]:
        return sorted(entry["step"] for entry in self.muster_json("checkpoint", "list", job.gang)["checkpoints"])

    def finish(self, job: Job) -> None:
        """All members end with the same step, which is committed."""
        part = job.files / "stop.part"
        part.write_text(str(max(self.numbers(job, 0)) + 20))
        part.rename(job.files / "stop")
        self.assertEqual(job.wait(SLURM), 0, job.err)

    def ceph(self, *words: str) -> str:
        done = self.cluster.exec("ceph", ["timeout", "30", "ceph", *words])
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def at_quota(self) -> Callable[[], None]:
        return self.pool_is_full(
            lambda: self.ceph("osd", "pool", "set-quota", "muster", "max_bytes", "1"),
            lambda: self.ceph("osd", "pool", "set-quota", "muster", "max_bytes", "0"),
        )

    def full(self) -> Callable[[], None]:
        def ratios(*pairs: tuple[str, str]) -> None:
            for name, ratio in pairs:
                self.ceph("osd", f"set-{name}-ratio", ratio)

        return self.pool_is_full(
            lambda: ratios(("nearfull", "0.000001"), ("backfillfull", "0.000002"), ("full", "0.000003")),
            lambda: ratios(("full", "0.95"), ("backfillfull", "0.9"), ("nearfull", "0.85")),
        )

    def pool_is_full(self, fill: Callable[[], object], make_room: Callable[[], object]) -> Callable[[], None]:
        """Fills it; gives what makes room. The monitors take their time for both."""

        def flagged() -> bool:
            pools = json.loads(self.ceph("osd", "dump", "--format", "json"))["pools"]
            return any("full" in pool["flags_names"].split(",") for pool in pools if pool["pool_name"] == "muster")

        def room() -> None:
            make_room()
            self.wait(lambda: not flagged(), "the pool to have room", SLURM)

        self.addCleanup(room)
        fill()
        self.wait(flagged, "the pool to be full", SLURM)
        return room

    def delayed(self, job: Job) -> list[str]:
        return self.event_texts(job, "checkpoint_delayed")

    def trains_on(self, job: Job, fill: Callable[[], Callable[[], None]]) -> None:
        make_room = fill()
        self.wait(lambda: self.delayed(job), "the history to say that checkpoints wait", SLURM)
        self.assertIn("training goes on, the newest saves stay in memory", self.delayed(job)[0])
        said = r"muster: gang \S+: the checkpoint of step (\d+) is not taken: .*full"
        refused = self.wait(lambda: re.search(said, job.err), "the job's stderr to say so")
        listed = self.listed(job)
        began = self.step(job)
        self.wait(lambda: self.step(job) > began + 15, "the members to train on", SLURM)
        self.assertLess(self.committed(job), int(refused[1]), "what was under way, and nothing after it")
        kept = self.listed(job)
        # What a commit in a queue was asked to keep may be there too, until the next one.
        newest = set(sorted({*listed, *kept})[-KEPT:])
        self.assertEqual(newest - set(kept), set(), "nothing is deleted to make room")
        self.muster_json("checkpoint", "verify", job.gang)
        self.assertEqual(len(self.delayed(job)), 1, "told once")
        room_at = self.step(job)
        make_room()
        self.wait(lambda: self.committed(job) >= room_at - 1, "the newest saves to be committed", SLURM)
        self.wait(lambda: self.committed(job) > room_at + 5, "saves to go on", SLURM)
        self.assertEqual(self.status(job)["generation"], 1, "nothing was started again")
        self.assertEqual(self.event_texts(job, "checkpoint_failed"), [])
        self.finish(job)
        self.muster_json("checkpoint", "verify", job.gang)

    def test_members_train_on_at_the_pools_quota(self) -> None:
        self.trains_on(self.saver(), self.at_quota)

    def test_members_train_on_when_the_osds_are_full(self) -> None:
        self.trains_on(self.saver(), self.full)

    def test_one_who_waits_for_each_checkpoint_stands_still_until_there_is_room(self) -> None:
        job = self.saver(waits=True)
        make_room = self.at_quota()
        self.wait(lambda: self.delayed(job), "the history to say that checkpoints wait", SLURM)
        step = self.step(job)
        make_room()
        self.wait(lambda: self.step(job) > step + 10, "it to go on", SLURM)
        self.assertEqual(self.status(job)["generation"], 1)
        self.finish(job)

    def test_a_member_that_dies_meanwhile_is_started_again_from_the_last_checkpoint(self) -> None:
        job = self.saver()
        make_room = self.at_quota()
        self.wait(lambda: self.delayed(job), "the history to say that checkpoints wait", SLURM)
        began = self.step(job)
        self.wait(lambda: self.step(job) > began + 10, "the members to train on", SLURM)
        newest = max(entry["step"] for entry in self.muster_json("checkpoint", "list", job.gang)["checkpoints"])
        pid, host, _ = (job.files / "pid.1.3").read_text().split()
        self.assertEqual(self.cluster.exec(host, ["kill", "-9", pid]).returncode, 0)
        again = [self.wait(lambda r=rank: self.begun(job, 2, r), "the next generation", SLURM) for rank in range(MEMBERS)]
        self.assertEqual(set(again), {newest})
        step = self.step(job)
        make_room()
        self.wait(lambda: self.committed(job) > step + 10, "saves to go on", SLURM)
        self.finish(job)

    def begun(self, job: Job, generation: int, rank: int) -> int | None:
        path = job.files / f"pid.{generation}.{rank}"
        return int(path.read_text().split()[2]) if path.exists() else None


if __name__ == "__main__":
    unittest.main(verbosity=2)
