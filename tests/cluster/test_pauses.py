#!/usr/bin/python3
"""What stands still and wakes up later: an agent, a member, a supervisor. Nothing of the old generation runs on then, and
nothing that it writes is accepted."""

import signal
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import SLURM, Record  # noqa: E402
from walkers import WalkerCase, Walkers  # noqa: E402

COORDINATOR = "n2"


def setUpModule() -> None:
    harness.start("pauses", nodes=4, ceph=False, limits=harness.PROMPT, slurm={"SlurmdTimeout": "40"})


class Pause(WalkerCase):
    def signal_process(self, record: Record, pid: int, number: int) -> None:
        done = self.cluster.exec(record.host, ["kill", f"-{int(number)}", str(pid)])
        self.assertEqual(done.returncode, 0, done.stderr)

    def supervisor(self, record: Record) -> int:
        """The parent of a member's program, as the node knows it."""
        status = self.cluster.exec(record.host, ["cat", f"/proc/{record.pid}/status"]).stdout
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:")))

    def old_objects(self, generation: int) -> set[str]:
        """Files that a generation of some gang has written into the store."""
        files = self.stored_files()
        return {str(path) for path in files if "data" in path.parts and path.parent.name.endswith(f".{generation}")}

    def check_quiet(self, gang: Walkers, generation: int) -> None:
        """The newest generation goes on alone for two more checkpoints."""
        gang.commits(generation)
        old = [life for life in gang.lives() if life.generation < generation]
        gang.commits(generation)
        gang.grows_old(1)
        self.assertEqual([life for life in gang.lives() if life.generation < generation], old, "nothing old lives")
        self.assertEqual(gang.generation(), generation)
        listed = self.muster_json("checkpoint", "list", gang.job.gang)["checkpoints"]
        self.assertTrue(listed and all(entry["state"] == "good" for entry in listed), listed)

    def test_an_agent_that_stands_still_has_its_members_killed_by_their_supervisors(self) -> None:
        """Row: Node dies or is cut off."""
        gang = self.walk("spares=1", nodes=4, tasks=8)
        old = [r for r in gang.started(1, 6) if r.host == "n3"]
        before = gang.commits(1)
        self.cluster.signal_daemon("n3", "musterd", signal.SIGSTOP)
        try:
            records = gang.started(2, 6)
            self.assertNotIn("n3", {r.host for r in records})
            gang.check_generations()
            gang.check_restored(2, before)
            self.assertEqual([r.pid for r in old if self.alive(r)], [])
            gang.commits(2)
        finally:
            self.cluster.signal_daemon("n3", "musterd", signal.SIGCONT)
        self.check_quiet(gang, 2)
        self.assertEqual(self.member_processes("n3", gang.job), [])

    def test_a_member_that_stands_still_hangs_the_gang_and_is_killed_asleep(self) -> None:
        """Row: Program hangs."""
        gang = Walkers(self, self.srun(self.PROGRAM, "hang=3s", nodes=3, tasks=6))
        victim = gang.started(1, 6)[4]
        before = gang.commits(1)
        self.signal_process(victim, victim.pid, signal.SIGSTOP)
        gang.started(2, 6)
        gang.check_restored(2, before)
        self.assertFalse(self.alive(victim), "it was killed although it stood still")
        self.check_quiet(gang, 2)
        fault = self.event_texts(gang.job, "fault")[0]
        self.assertIn(f"rank {victim.rank}", fault)
        gang.finish(6)

    def test_a_member_of_a_lost_node_that_wakes_up_later_is_dead_by_then(self) -> None:
        gang = self.walk("spares=1", nodes=4, tasks=8)
        old = [r for r in gang.started(1, 6) if r.host == "n3"]
        before = gang.commits(1)
        self.signal_process(old[0], old[0].pid, signal.SIGSTOP)
        self.cluster.cut("n3")
        gang.started(2, 6)
        gang.check_restored(2, before)
        gang.check_generations()
        self.assertEqual([r.pid for r in old if self.alive(r)], [])
        self.cluster.heal("n3")
        self.check_quiet(gang, 2)

    def test_a_member_that_musterd_and_supervisor_cannot_kill_is_refused_what_it_writes(self) -> None:
        # Everything of n3 stands still, as on a machine that hangs, while the gang goes on elsewhere.
        gang = self.walk("spares=1", nodes=4, tasks=8)
        old = [r for r in gang.started(1, 6) if r.host == "n3"]
        supervisors = [self.supervisor(r) for r in old]
        before = gang.commits(1)
        for record, supervisor in zip(old, supervisors, strict=True):
            self.signal_process(record, supervisor, signal.SIGSTOP)
            self.signal_process(record, record.pid, signal.SIGSTOP)
        self.cluster.signal_daemon("n3", "musterd", signal.SIGSTOP)
        try:
            gang.started(2, 6)
            gang.check_restored(2, before)
            newest = gang.commits(2)
            written = self.old_objects(1)
        finally:
            # The members first: for a moment they run, and may try to save.
            for record in old:
                if self.alive(record):
                    self.signal_process(record, record.pid, signal.SIGCONT)
            self.cluster.signal_daemon("n3", "musterd", signal.SIGCONT)
            for record, supervisor in zip(old, supervisors, strict=True):
                self.cluster.exec(record.host, ["kill", "-CONT", str(supervisor)])
        self.wait(lambda: not self.member_processes("n3", gang.job), "the end of what woke up")
        gang.commits(2)
        self.check_quiet(gang, 2)
        self.assertLessEqual(self.old_objects(1), written, "nothing of generation 1 was added to the store")
        listed = self.muster_json("checkpoint", "list", gang.job.gang)["checkpoints"]
        began = gang.job.records(2)[0].said["from"]  # which is kept as long as its generation runs
        self.assertTrue(all(entry["step"] >= newest or entry["step"] == began for entry in listed), listed)

    def test_a_supervisor_that_stands_still_does_not_let_two_generations_run(self) -> None:
        gang = self.walk("spares=1,restarts=5", nodes=4, tasks=8)
        records = gang.started(1, 6)
        asleep, other = records[4], records[0]
        supervisor = self.supervisor(asleep)
        before = gang.commits(1)
        self.signal_process(asleep, supervisor, signal.SIGSTOP)
        # The next generation waits for the sleeping supervisor's word, or for its node to be given up.
        self.kill_member(other)
        self.wait(lambda: self.events(gang.job, "stopping"), "the stop")
        self.signal_process(asleep, supervisor, signal.SIGCONT)
        gang.started(2, 6, SLURM)
        gang.check_generations()
        gang.check_restored(2, before)
        self.check_quiet(gang, 2)
        gang.finish(6)


if __name__ == "__main__":
    unittest.main(verbosity=2)
