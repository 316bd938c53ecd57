#!/usr/bin/python3
"""A job's time limit is near, or it is preempted: it saves, is requeued, and trains again from its checkpoint in Ceph."""

import re
import sys
import threading
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import batches  # noqa: E402
import harness  # noqa: E402
from batches import OLD_SCRIPT, BatchCase  # noqa: E402
from harness import MEMBER, SLURM  # noqa: E402
from vc.names import CONTROLLER  # noqa: E402
from walkers import Walkers  # noqa: E402


def setUpModule() -> None:
    batches.start(harness.PATIENT)


class End(BatchCase):
    def test_the_time_limit_leads_to_a_checkpoint_and_a_requeue(self) -> None:
        """Row: Job's time limit near."""
        # Slurm's shortest limit is a minute; the margin is half of it.
        gang = self.walk_in_batch(nodes=2, directives="-t 1", after=OLD_SCRIPT)
        # The limit of one is extended before the margin begins, that of the other when its end has been announced.
        before = self.walk_in_batch(nodes=1, directives="-t 1")
        behind = self.walk_in_batch(nodes=2, directives="-t 2")
        gang.started(1, 4)
        before.started(1, 2)
        self.extend(before)
        behind.started(1, 4)
        behind.gather(4)  # it makes no more checkpoints, so it is not requeued at once
        extends = threading.Thread(target=self.extend_when_announced, args=[behind])
        extends.start()
        self.addCleanup(extends.join)
        self.wait(lambda: self.events(gang.job, "end_near"), "the end to be announced", SLURM)
        newest = max(life.committed for life in gang.lives(1))
        records = self.check_requeued(gang, 2, newest, members=4)
        # Nothing lost: what the last run had done when it was stopped was in the checkpoint.
        old = max(life.step for life in gang.lives(1))
        self.assertLessEqual(old - records[0].said["from"], 5)
        self.assertEqual(self.after(gang), [])
        gang.finish(4, timeout=SLURM)
        self.wait(lambda: self.events(behind.job, "end_moved"), "the new limit to be seen", SLURM)
        self.wait(lambda: self.age(before) > 60 and self.age(behind) > 120, "their first limits to be over", SLURM)
        self.assertEqual(self.events(before.job, "end_near"), [])
        for extended, members in ((before, 2), (behind, 4)):
            self.assertEqual((extended.generation(), self.restarts(extended)), (1, 0))
            extended.finish(members)

    def extend_when_announced(self, gang: Walkers) -> None:
        self.wait(lambda: self.events(gang.job, "end_near"), "the end of the other to be announced", SLURM)
        self.extend(gang)

    def extend(self, gang: Walkers) -> None:
        self.assertEqual(self.cluster.exec(CONTROLLER, ["scontrol", "update", f"JobId={gang.job.id}", "TimeLimit=10"]).returncode, 0)

    def of_slurm(self, gang: Walkers, field: str) -> str:
        shown = self.cluster.exec(CONTROLLER, ["scontrol", "show", "job", gang.job.id]).stdout
        found = re.search(rf"\b{field}=(\S+)", shown)
        assert found is not None, shown
        return found[1]

    def restarts(self, gang: Walkers) -> int:
        return int(self.of_slurm(gang, "Restarts"))

    def age(self, gang: Walkers) -> int:
        """Seconds since the job began."""
        hours, minutes, seconds = self.of_slurm(gang, "RunTime").split(":")
        return (int(hours) * 60 + int(minutes)) * 60 + int(seconds)

    def test_a_program_that_saves_and_ends_by_the_jobs_signal_is_requeued_whatever_its_code(self) -> None:
        code = (
            "import signal, time\nrestart = os.environ.get('SLURM_RESTART_COUNT', '0')\n"
            "def save(number, frame):\n  time.sleep(rank)\n  open('{FILES}/saved.%d' % rank, 'w').write(str(number))\n  sys.exit({CODE})\n"
            "signal.signal(signal.{SIGNAL}, save)\nrecord(restart=restart)\nuntil_released()\n"
        )
        jobs = []
        for name, of_ranks in (("SIGTERM", "0"), ("SIGUSR1", "9")):
            jobs.append(self.batch(
                f"#SBATCH -N2 --ntasks-per-node=1 -t 1 --signal={name[3:]}@30 --gang\n"
                f"cat >{{FILES}}/program <<'END'\n{code.replace('{SIGNAL}', name).replace('{CODE}', of_ranks)}END\n"
                f'srun {" ".join([*MEMBER, "{FILES}"])} "$(<{{FILES}}/program)"; echo $? >>{{FILES}}/after\n'
            ))
        for job in jobs:
            records = job.wait_for_generation(2, 2, SLURM)
            self.assertEqual([record.said["restart"] for record in records], ["1", "1"])
            self.assertTrue((job.files / "saved.0").exists() and (job.files / "saved.1").exists())
            job.release()
        for job in jobs:
            self.assertEqual(job.wait(SLURM), 0, job.err)
            self.assertEqual((job.files / "after").read_text(), "0\n", "the script of the first run has not gone on")

    def test_a_job_that_is_preempted_without_notice_runs_again_as_soon_as_there_is_room(self) -> None:
        gang = self.walk_in_batch(nodes=5, directives="-p abrupt")
        gang.started(1, 10)
        before = gang.commits(1)
        urgent = self.start_job(["srun", "-p", "urgent", "-N5", "--exclusive", "sleep", "3"])
        self.assertEqual(urgent.wait(SLURM), 0, urgent.err)
        # Slurm itself lets it wait for the 120 s that a credential lives.
        records = gang.started(2, 10, 100)
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
