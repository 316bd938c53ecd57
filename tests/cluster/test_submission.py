#!/usr/bin/python3
"""A job is more than its number: another cluster has the same numbers, and Slurm gives them again when its state was lost."""

import atexit
import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import MEMBER, ClusterCase, Job  # noqa: E402
from vc import Cluster  # noqa: E402
from vc.names import BUILD_IN_NODE  # noqa: E402

# A member says what it was given; saves its word as the next step; waits.
CODE = (
    f"sys.path.insert(0, '{BUILD_IN_NODE}/python'); import muster\n"
    "gang = muster.init(); found = gang.restore(); step = (gang.restore_step or 0) + 1\n"
    "gang.save({'word': os.environ['WORD']}, step); gang.wait(step)\n"
    "record(given=found and found[0]['word']); until_released()"
)
STORE = ""


def setUpModule() -> None:
    global STORE
    STORE = tempfile.mkdtemp(prefix="muster-test-", dir="/srv")  # all nodes of all clusters see the machine's /srv
    atexit.register(shutil.rmtree, STORE)  # unittest forgets its cleanups when it is interrupted
    os.chmod(STORE, 0o755)
    harness.start("sub", nodes=2, ceph=False, settings={"store": f"dir:{STORE}"})


class Submission(ClusterCase):
    def saver(self, word: str, gang: str = "") -> Job:
        return self.gang(CODE, gang, nodes=1, tasks=1, env={"WORD": word})

    def given(self, job: Job, members: int = 1) -> str | None:
        """What the newest of so many was given."""
        self.wait(lambda: len(job.records()) == members, f"{members} members", harness.SLURM)
        word: str | None = job.records()[-1].said["given"]
        return word

    def forget(self) -> None:
        """As when slurmctld's state was lost: the next job is number 1."""
        self.cluster.stop_daemon("ctl", "slurmctld")
        for path in (self.cluster.directory / "slurmctld").iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "clustername":
                path.unlink()
        self.cluster.start_daemon("ctl", "slurmctld")
        self.wait_until_idle()

    def test_a_number_that_comes_again_is_another_jobs(self) -> None:
        self.forget()
        first = self.saver("first")
        self.assertIsNone(self.given(first))
        self.kill_member(first.records()[0])
        self.assertEqual(self.given(first, 2), "first", "its own checkpoint")
        for term in (2, 3):  # what nodes have promised the first one binds them to nothing with the second
            self.cluster.restart_daemon(first.records()[-1].host, "musterd")
            self.wait(lambda term=term: self.status(first)["term"] >= term, f"term {term}")
        first.release()
        self.assertEqual((first.id, first.wait()), ("1", 0), first.err)
        key = first.key
        self.forget()
        second = self.saver("second")
        self.assertIsNone(self.given(second), "no checkpoint of another job's")
        self.assertEqual(second.id, "1")
        self.assertNotEqual(second.key, key)
        second.release()
        self.assertEqual(second.wait(), 0, second.err)
        older = key.removeprefix("job-")
        self.assertNotEqual(older, "1.0")
        self.assertEqual([gang["key"] for gang in self.muster_json("status", older)["gangs"]], [key])
        self.assertEqual([c["step"] for c in self.muster_json("checkpoint", "list", older)["checkpoints"]], [1, 2])
        self.assertEqual({record.generation for record in second.records()}, {1})

    def test_a_finished_gang_of_the_same_number_and_name_is_resumed_from_and_not_taken_for_this_one(self) -> None:
        for word, given in (("first", None), ("second", "first")):
            self.forget()
            job = self.saver(word, "name=mine")
            self.assertEqual(self.given(job), given)
            job.release()
            self.assertEqual((job.id, job.wait()), ("1", 0), job.err)

    def test_a_requeued_job_is_the_same_submission_and_one_that_it_submits_is_another(self) -> None:
        nested = f"sbatch --wait -N1 -n1 --output={{FILES}}/nested --wrap 'echo $SLURM_MUSTER_SUBMISSION'"
        words = " ".join(["srun", *MEMBER, "{FILES}", f'"{CODE}"'])
        tell = "echo $SLURM_MUSTER_SUBMISSION >>{FILES}/said"
        job = self.batch(f"#SBATCH -N1 -n1 --requeue --gang\nexport WORD=mine\n{tell}\n[ -e {{FILES}}/nested ] || {nested}\n{words}\n")
        self.assertIsNone(self.given(job))
        key = job.key
        self.cluster.exec("ctl", ["scontrol", "requeue", job.id])
        self.assertEqual(self.given(job, 2), "mine")
        self.assertEqual(self.status(job)["key"], key)
        job.release()
        self.assertEqual(job.wait(harness.SLURM), 0, job.err)
        first, second = (job.files / "said").read_text().split()
        other = (job.files / "nested").read_text().strip()
        self.assertEqual(first, second)
        self.assertEqual((len(first), len(other), first == other), (16, 16, False))

    def test_two_clusters_with_one_pool_never_meet(self) -> None:
        settings = self.cluster.options.settings
        other = Cluster(f"sub2-{os.getpid()}", nodes=1, ceph=False, build=self.cluster.options.build, settings=settings)
        self.addCleanup(other.stop)
        atexit.register(other.stop)
        other.start()
        self.forget()
        for gang in ("", "name=both"):
            here = self.saver("here", gang)
            there = Job(other, 1000 + len(self.jobs), here.argv, "trainer", {"WORD": "there"})
            self.addCleanup(there.end)
            self.assertEqual((self.given(here), self.given(there)), (None, None))
            self.assertEqual(here.id, there.id)
            other.exec("n1", ["kill", "-KILL", str(there.records()[0].pid)])
            self.kill_member(here.records()[0])
            self.assertEqual((self.given(here, 2), self.given(there, 2)), ("here", "there"))
            for job in (here, there):
                job.release()
                self.assertEqual(job.wait(), 0, job.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
