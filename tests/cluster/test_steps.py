#!/usr/bin/python3
"""All members are asked to save, or to exit, at the same step, whoever dies while they agree."""

import struct
import sys
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import PYTHON, SOURCE_IN_NODE, Job, Record  # noqa: E402
from vc.names import CONTROLLER  # noqa: E402
from walkers import WalkerCase  # noqa: E402

DRAINS = 20
COORDINATOR = "n2"


def setUpModule() -> None:
    harness.start("steps", nodes=4, ceph=False)


class Steps(WalkerCase):
    def step(self) -> Job:
        return self.srun([*PYTHON, f"{SOURCE_IN_NODE}/tests/cluster/programs/stepper.py", "{FILES}"], "hang=off,spares=1", nodes=4, tasks=8)

    def node(self, action: str, node: str, *words: str) -> None:
        self.hurts(node)
        done = self.cluster.exec(CONTROLLER, ["muster", "node", action, node, *words])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def positions(self, job: Job, generation: int) -> dict[int, tuple[int, int]]:
        """By rank: the step that it is entering, and the newest one that it was answered."""
        found = {}
        for path in job.files.glob(f"step.{generation}.*"):
            content = path.read_bytes()
            if len(content) == 16:
                found[int(path.suffix[1:])] = struct.unpack("<qq", content)
        return found

    def answered(self, job: Job, record: Record) -> int:
        return self.positions(job, record.generation).get(record.rank, (0, 0))[1]

    def asked(self, job: Job, generation: int) -> dict[int, dict[int, str]]:
        """By step and rank: what it was asked there."""
        asked: dict[int, dict[int, str]] = {}
        for path in job.files.glob(f"asked.{generation}.*"):
            for line in path.read_text().splitlines():
                step, _, what = line.partition(" ")
                asked.setdefault(int(step), {})[int(path.suffix[1:])] = what
        return asked

    def check(self, job: Job, generation: int) -> dict[int, str]:
        """What was asked in a generation, by step: of all members who have entered the step, the same."""
        answered = {rank: done for rank, (_, done) in self.positions(job, generation).items()}
        found = {}
        for step, by_rank in self.asked(job, generation).items():
            self.assertEqual(len(set(by_rank.values())), 1, f"generation {generation}, step {step}: {by_rank}")
            there = {rank for rank, done in answered.items() if done >= step}
            self.assertEqual(there - by_rank.keys(), set(), f"generation {generation}: nothing was asked of them at step {step}")
            found[step] = next(iter(by_rank.values()))
        return found

    def goes_on(self, job: Job, records: list[Record]) -> None:
        """All of them have entered steps: they ignore SIGTERM, too."""
        self.wait(lambda: all(self.answered(job, r) > r.said["from"] + 3 for r in records), "steps")

    def terminate(self, job: Job) -> None:
        """Without the SIGKILL that follows when a job is cancelled."""
        done = self.cluster.exec(CONTROLLER, ["scancel", "-s", "TERM", f"{job.id}.0"])
        self.assertEqual(done.returncode, 0, done.stderr)
        job.wait()

    def longest_wait(self, job: Job) -> float:
        return max(float(path.read_text()) for path in job.files.glob("waited.*[0-9]"))

    def test_twenty_drains_of_a_running_gang(self) -> None:
        job = self.step()
        for generation in range(1, DRAINS + 1):
            records = job.wait_for_generation(generation, 6)
            self.goes_on(job, records)
            victim = records[generation % 6].host
            self.node("drain", victim, "--reason", f"drain {generation}")
            next_one = job.wait_for_generation(generation + 1, 6)
            asked = self.check(job, generation)
            self.assertEqual(list(asked.values()), [f"1 0 node {victim} is drained: drain {generation}"])
            (step,) = asked
            self.assertEqual({r.said["from"] for r in next_one}, {step}, "it goes on from there")
            # Behind it may stand who is far behind: members of this program do not wait for each other.
            agreed = f"all ranks save at step {step}: node {victim} is drained: drain {generation}"
            self.assertEqual([text[: len(agreed)] for text in self.event_texts(job, "step")].count(agreed), 1)
            self.node("resume", victim)
            returned = f"node {victim} "
            self.wait(lambda: any(text.startswith(returned) for text in self.event_texts(job, "node_returned")[-1:]), "the node to be back")
        self.assertEqual(self.event_texts(job, "fault"), [])
        harness.report(f"steps: {DRAINS} drains, each agreed on; the longest step took {self.longest_wait(job):.3f} s")
        self.goes_on(job, next_one)
        self.terminate(job)
        self.assertRegex(" ".join(self.check(job, DRAINS + 1).values()), "^1 1 Slurm sent SIGTERM$")

    def test_the_coordinator_dies_when_all_have_answered_and_before_it_decides(self) -> None:
        self.hurts(COORDINATOR)
        self.cluster.stop_daemon(COORDINATOR, "musterd")
        self.cluster.start_daemon(COORDINATOR, "musterd", env={"MUSTER_CRASH_AT": "steps.answered"})
        job = self.step()
        job.wait_for_generation(1, 6)
        self.assertEqual(self.status(job)["coordinator"], COORDINATOR)
        began = time.monotonic()
        self.node("drain", "n3", "--reason", "late")
        self.wait(lambda: self.cluster.daemon_pid(COORDINATOR, "musterd") is None, "the coordinator to die")
        self.wait(lambda: any(entering > done for entering, done in self.positions(job, 1).values()), "a member to wait")
        self.assertEqual(self.check(job, 1), {}, "nothing was decided")
        self.cluster.start_daemon(COORDINATOR, "musterd")
        # The operator has been told that it is done: the nodes tell the next coordinator.
        asked = self.wait(lambda: self.check(job, 1), "the step")
        took = time.monotonic() - began
        self.assertEqual(list(asked.values()), ["1 0 node n3 is drained: late"])
        (step,) = asked
        moved = job.wait_for_generation(2, 6)
        self.assertEqual(list(self.check(job, 1)), [step])
        self.assertEqual({r.said["from"] for r in moved}, {step})
        self.assertNotIn("n3", {r.host for r in moved}, "the drain is carried out")
        self.goes_on(job, moved)
        longest = self.longest_wait(job)
        harness.report(f"steps: the coordinator died between proposal and decision, which came {took:.1f} s later; the longest step took {longest:.1f} s")
        self.assertLess(longest, took + 10, "nobody waits for much longer than that")
        self.terminate(job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
