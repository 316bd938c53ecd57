#!/usr/bin/python3
"""The batch host of a job dies or is cut off, its time limit is near, it is preempted: the job is requeued, trains again
from its checkpoint in Ceph, and nothing of the old run goes on."""

import os
import re
import signal
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import SLURM  # noqa: E402
from vc.names import CONTROLLER  # noqa: E402
from walkers import WalkerCase, Walkers  # noqa: E402

OLD_SCRIPT = 'echo "old script went on on $(hostname), run ${SLURM_RESTART_COUNT:-0}, code $code" >> {FILES}/after'


def setUpModule() -> None:
    settings = {"time_limit_margin": "30s"}
    slurm = {"SlurmdTimeout": "40", "PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
    cluster = harness.start("batchhost", nodes=5, limits=harness.PROMPT, settings=settings, slurm=slurm)
    # A second partition on the same nodes whose jobs may push others out, who are told so some time before.
    conf = cluster.directory / "etc" / "slurm" / "slurm.conf"
    lines = conf.read_text().replace("PartitionName=main", "PartitionName=main GraceTime=30")
    lines += "PartitionName=urgent Nodes=n[1-5] PriorityTier=10 MaxTime=INFINITE State=UP\n"
    conf.write_text(lines + "PartitionName=abrupt Nodes=n[1-5] MaxTime=INFINITE State=UP\n")
    done = cluster.exec(CONTROLLER, ["scontrol", "reconfigure"])
    if done.returncode != 0:
        raise AssertionError(done.stderr)


class BatchCase(WalkerCase):
    def batch_host(self, gang: Walkers) -> str:
        query = ["scontrol", "show", "job", gang.job.id]
        found = re.search(r"BatchHost=(\S+)", self.cluster.exec(CONTROLLER, query).stdout)
        assert found is not None
        return found[1]

    def after(self, gang: Walkers) -> list[str]:
        """What the scripts of all runs have written after their srun."""
        path = gang.job.files / "after"
        return path.read_text().splitlines() if path.exists() else []

    def walk_with_old_script(self) -> tuple[Walkers, int, str]:
        """A gang of six and a spare that runs, its newest checkpoint, and its batch host."""
        gang = self.walk_in_batch("spares=1", nodes=4, after=OLD_SCRIPT)
        gang.started(1, 6)
        return gang, gang.commits(1), self.batch_host(gang)

    def check_requeued(self, gang: Walkers, generation: int, at_least: int, members: int = 6) -> list[harness.Record]:
        records = gang.started(generation, members, SLURM)
        self.assertEqual({r.env["SLURM_RESTART_COUNT"] for r in records}, {"1"})
        gang.check_restored(generation, at_least)
        gang.commits(generation)
        return records


class Host(BatchCase):
    def test_the_job_trains_again_elsewhere_after_its_batch_host_died(self) -> None:
        """Row: Batch host dies."""
        gang, before, host = self.walk_with_old_script()
        self.cluster.kill(host)
        records = self.check_requeued(gang, 2, before)
        self.assertNotIn(host, {r.host for r in records})
        self.assertIn("muster: ", self.wait_for_state(host, "down"))
        gang.finish(6, timeout=SLURM)
        self.assertEqual(len(self.after(gang)), 1, self.after(gang))
        self.assertIn("run 1, code 0", self.after(gang)[0])

    def test_the_script_of_a_batch_host_that_was_cut_off_does_not_go_on_when_it_is_back(self) -> None:
        """Row: Batch host dies."""
        gang, before, host = self.walk_with_old_script()
        self.cluster.cut(host)
        records = self.check_requeued(gang, 2, before)
        self.assertNotIn(host, {r.host for r in records})
        gang.check_generations()
        self.cluster.heal(host)
        processes = f"pgrep -f 'slurmstepd: .{gang.job.id}\\.' || true"
        self.wait(lambda: not self.cluster.exec(host, ["bash", "-c", processes]).stdout, "the end of the old steps", SLURM)
        self.assertEqual(self.member_processes(host, gang.job), [])
        gang.commits(2)
        gang.grows_old(2)
        self.assertEqual(self.after(gang), [], "the old script has not gone on")
        gang.finish(6, timeout=SLURM)
        self.assertEqual(len(self.after(gang)), 1, self.after(gang))

    def test_a_batch_host_on_which_only_musterd_stands_still_is_treated_like_a_dead_one(self) -> None:
        """slurmd lives: it kills the script as soon as the node is DOWN, and tells Slurm that the job has failed."""
        gang, before, host = self.walk_with_old_script()
        self.cluster.signal_daemon(host, "musterd", signal.SIGSTOP)
        try:
            records = gang.started(2, 6, SLURM)
        finally:
            self.cluster.signal_daemon(host, "musterd", signal.SIGCONT)
        # Slurm may launch it on this host again before the old run is over there, and then requeues it once more.
        self.assertIn({r.env["SLURM_RESTART_COUNT"] for r in records}, ({"1"}, {"2"}))
        gang.check_restored(2, before)
        gang.finish(6, timeout=SLURM)
        self.assertEqual(self.job_state(gang.job), "COMPLETED")
        self.assertRegex(self.after(gang)[-1], "run [12], code 0")

    def test_requeue_no_is_honoured(self) -> None:
        gang = self.walk_in_batch("requeue=no", nodes=3)
        gang.started(1, 6)
        gang.commits(1)
        lost = sorted({"n1", "n2", "n3"} - {self.batch_host(gang)})[-1]
        self.cluster.kill(lost)
        self.assertNotEqual(gang.job.wait(SLURM), 0)
        self.assertEqual(gang.generation(), 1)
        self.assertNotEqual(self.job_state(gang.job), "PENDING")
        status = self.status(gang.job, code=1)
        self.assertEqual((status["state"], status["succeeded"]), ("finished", False))


class Later(BatchCase):
    def test_a_later_job_of_the_same_name_goes_on_from_the_checkpoints(self) -> None:
        name = f"name=resume{os.getpid()}"
        first = self.walk(name, nodes=3, tasks=6)
        first.started(1, 6)
        before = first.commits(1)
        first.job.end()
        self.wait(lambda: not self.cluster.exec(CONTROLLER, ["squeue", "-h"]).stdout, "the end of the first job", SLURM)
        again = self.walk(name, nodes=2, tasks=4)
        generation = self.wait(again.generation, "the later job to run")
        records = again.started(generation, 4)
        self.assertGreater(generation, 1, "the record goes on")
        again.check_restored(generation, before)
        self.assertGreaterEqual(records[0].said["from"], before)
        again.commits(generation)
        again.finish(4)


class End(BatchCase):
    def test_the_time_limit_leads_to_a_checkpoint_and_a_requeue(self) -> None:
        """Row: Job's time limit near."""
        # Slurm's shortest limit is a minute; the margin is half of it.
        gang = self.walk_in_batch(nodes=2, directives="-t 1", after=OLD_SCRIPT)
        gang.started(1, 4)
        self.wait(lambda: self.events(gang.job, "end_near"), "the end to be announced", SLURM)
        newest = gang.committed()
        records = self.check_requeued(gang, 2, newest, members=4)
        # Nothing lost: what the last run had done when it was stopped was in the checkpoint.
        old = max(life.step for life in gang.lives(1))
        self.assertLessEqual(old - records[0].said["from"], 5)
        self.assertEqual(self.after(gang), [])
        gang.finish(4, timeout=SLURM)

    def test_a_job_that_is_preempted_without_notice_runs_again_as_soon_as_there_is_room(self) -> None:
        gang = self.walk_in_batch(nodes=5, directives="-p abrupt")
        gang.started(1, 10)
        before = gang.commits(1)
        urgent = self.start_job(["srun", "-p", "urgent", "-N5", "--exclusive", "sleep", "3"])
        self.assertEqual(urgent.wait(SLURM), 0, urgent.err)
        # Slurm itself lets it wait for the 120 s that a credential lives.
        records = gang.started(2, 10, 60)
        self.assertEqual({r.env["SLURM_RESTART_COUNT"] for r in records}, {"1"})
        gang.check_restored(2, before)
        gang.commits(2)
        gang.finish(10, timeout=SLURM)

    def test_a_preempted_job_is_requeued_after_a_checkpoint(self) -> None:
        gang = self.walk_in_batch(nodes=5, words="stoic")
        gang.started(1, 10)
        gang.commits(1)
        urgent = self.start_job(["srun", "-p", "urgent", "-N5", "--exclusive", "sleep", "3"])
        self.wait(lambda: self.events(gang.job, "end_near"), "the preemption to be noticed")
        newest = gang.committed()
        self.assertEqual(urgent.wait(SLURM), 0, urgent.err)
        self.check_requeued(gang, 2, newest, members=10)
        gang.finish(10, timeout=SLURM)


if __name__ == "__main__":
    unittest.main(verbosity=2)
