#!/usr/bin/python3
"""The batch host of a job dies or is cut off: the job is requeued, trains again from its checkpoint in Ceph, and nothing of the
old run goes on."""

import os
import signal
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import batches  # noqa: E402
import harness  # noqa: E402
from batches import BatchCase  # noqa: E402
from harness import SLURM  # noqa: E402
from vc.names import CONTROLLER  # noqa: E402


def setUpModule() -> None:
    batches.start(harness.RESTARTS)


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
        self.assertEqual(self.final_state(gang.job), "COMPLETED")
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


class Stranded(BatchCase):
    def test_most_nodes_die_with_the_coordinator_and_the_job_is_requeued(self) -> None:
        """Row: Coordinator's node dies. Too few are left to choose another, or to tell whether the others are dead."""
        gang = self.walk_in_batch(nodes=5, per_node=1)
        gang.started(1, 5)
        before = gang.commits(1)
        lost = ["n2", "n3", "n4"]  # the coordinator is the step's second node
        for node in lost:
            self.cluster.kill(node)
        self.wait(lambda: "the others are too few to tell whether they are dead: n2, n3, n4" in gang.job.err, "the requeue", SLURM)
        for node in lost:
            self.cluster.revive(node)

        def again() -> bool:
            for node in lost:
                self.cluster.exec(CONTROLLER, ["scontrol", "update", f"NodeName={node}", "State=RESUME"])
            return gang.generation() == 2

        self.wait(again, "the job to run again", 2 * SLURM)
        self.check_requeued(gang, 2, before, members=5)
        gang.check_generations()
        gang.finish(5, timeout=SLURM)


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

if __name__ == "__main__":
    unittest.main(verbosity=2)
