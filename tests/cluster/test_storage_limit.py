#!/usr/bin/python3
"""user_storage_limit: a save that could go above it fails, says so, and harms nothing; with room again, saves go on."""

import struct
import sys
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import SOON, ClusterCase, Job  # noqa: E402

MEMBERS = 2
SHARD = 300_000  # two checkpoints of two such are above the limit
LIMIT = 1 << 20

# Saves each step that the test allows; DIRECTORY/done.STEP.RANK says how it went.
PROGRAM = """
import hashlib, os, sys, time, muster
directory, steps, rank = sys.argv[1], int(sys.argv[2]), os.environ["RANK"]
with muster.init() as gang:
    for step in range(1, steps + 1):
        while not os.path.exists(f"{directory}/step.{step}"):
            gang.step(step - 1)
            time.sleep(0.01)
        said = "committed"
        try:
            gang.save({"state": hashlib.shake_128(f"{rank}/{step}".encode()).digest(%d)}, step)
            gang.wait(step)
        except muster.MusterError as why:
            said = f"{why.code}: {why}"
        gang.step(step)
        with open(f"{directory}/done.{step}.{rank}.part", "w") as file:
            file.write(said)
        os.rename(f"{directory}/done.{step}.{rank}.part", f"{directory}/done.{step}.{rank}")
""" % SHARD


def setUpModule() -> None:
    harness.start("limit", nodes=2, settings={"user_storage_limit": "1MiB", "keep_checkpoints": "2", "chunk_size": "64KiB"})


class Limit(ClusterCase):
    def saver(self, steps: int, user: str = "trainer") -> Job:
        program = ["/usr/bin/python3", "-c", PROGRAM, "{FILES}", str(steps)]
        return self.srun(program, nodes=2, tasks=MEMBERS, user=user)

    def outcome(self, job: Job, step: int) -> str:
        """What all members were told of a step."""
        (job.files / f"step.{step}").touch()
        paths = [job.files / f"done.{step}.{rank}" for rank in range(MEMBERS)]
        self.wait(lambda: all(path.exists() for path in paths), f"step {step}")
        said = {path.read_text() for path in paths}
        self.assertEqual(len(said), 1, said)
        return said.pop()

    def steps(self, job: Job) -> list[int]:
        return [entry["step"] for entry in self.muster_json("checkpoint", "list", job.gang, user=job.user)["checkpoints"]]

    def stored(self) -> int:
        user = self.muster_json("report", "storage")["users"][0]
        return int(user["stored_bytes"])

    def test_saves_above_the_limit_fail_and_training_goes_on(self) -> None:
        first = self.saver(4)
        self.assertEqual(self.outcome(first, 1), "committed")
        log = self.cluster.directory / "log" / "n2.musterd.log"
        self.wait(lambda: "no room for another checkpoint" in log.read_text(), "the coordinator to have read the use")
        refused = self.outcome(first, 2)
        self.assertRegex(refused, r"^-10: .*may take \d+ bytes, and \d+ of the 1048576 that a user may have are in use")
        self.outcome(first, 3)
        self.assertEqual(self.steps(first), [1])
        self.muster_json("checkpoint", "verify", first.gang)
        failed = self.event_texts(first, "checkpoint_failed")
        self.assertEqual(len(failed), 2, failed)
        self.assertIn("user_storage_limit", failed[0])
        self.assertLessEqual(self.stored(), LIMIT)

        # The limit is the user's, not the gang's: another one of theirs has no room, another user has.
        second = self.saver(10_000)
        theirs = self.saver(1, user="other")
        self.assertEqual(self.outcome(theirs, 1), "committed")
        self.assertEqual(theirs.wait(), 0, theirs.err)
        self.assertIn("user_storage_limit", self.outcome(second, 1))

        # An import neither.
        header = b'{"w":{"dtype":"U8","shape":[600000],"data_offsets":[0,600000]}}'
        path = self.cluster.directory / "home" / "trainer" / "large.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(600_000))
        path.chmod(0o644)
        done = self.muster("checkpoint", "import", "--name", "large", "--step", "1", "/home/trainer/large.safetensors")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("user_storage_limit", done.stderr)
        listed = self.muster("checkpoint", "list", "name=large", "--json")
        self.assertNotIn('"step"', listed.stdout)

        # The first one ends, and is deleted: there is room again, which is seen soon.
        self.outcome(first, 4)
        self.assertEqual(first.wait(), 0, first.err)
        self.assertEqual(self.status(first)["generation"], 1)
        self.muster_json("checkpoint", "delete", first.gang, "--step", "1")
        self.assertEqual(self.stored(), 0)
        self.assertIn("each user may have 1048.6 kB", self.muster("report", "storage").stdout)
        step, deadline = 2, time.monotonic() + SOON
        while self.outcome(second, step) != "committed":  # the use is read again after a refusal
            self.assertLess(time.monotonic(), deadline, "there is room")
            time.sleep(0.3)
            step += 1
        self.assertEqual(self.steps(second), [step])
        self.muster_json("checkpoint", "verify", second.gang)


if __name__ == "__main__":
    unittest.main(verbosity=2)
