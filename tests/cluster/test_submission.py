#!/usr/bin/python3
"""A job is more than its number: another cluster has the same numbers, and Slurm gives them again when its state was lost."""

import atexit
import json
import os
import shutil
import signal
import sys
import unittest
from collections.abc import Callable
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import MEMBER, ClusterCase, Job  # noqa: E402
from pool import Rados  # noqa: E402
from vc import Cluster  # noqa: E402
from vc.names import BUILD_IN_NODE  # noqa: E402

# A member says what it was given; saves its word as the next steps; waits.
CODE = (
    f"sys.path.insert(0, '{BUILD_IN_NODE}/python'); import muster\n"
    "gang = muster.init(); found = gang.restore(); step = gang.restore_step or 0; saves = int(os.environ.get('SAVES', '1'))\n"
    "for step in range(step + 1, step + 1 + saves): gang.save({'word': os.environ['WORD']}, step); gang.wait(step)\n"
    "record(given=found and found[0]['word']); until_released()"
)
KEPT = 2  # checkpoints of a gang


def setUpModule() -> None:
    harness.start("sub", nodes=2, settings={"keep_checkpoints": str(KEPT)})


class Submission(ClusterCase):
    def saver(self, word: str, gang: str = "", saves: int = 1) -> Job:
        return self.gang(CODE, gang, nodes=1, tasks=1, env={"WORD": word, "SAVES": str(saves)})

    def given(self, job: Job, members: int = 1) -> str | None:
        """What the newest of so many was given."""
        self.wait(lambda: len(job.records()) == members, f"{members} members", harness.SLURM)
        word: str | None = job.records()[-1].said["given"]
        return word

    def forget(self, cluster: Cluster | None = None) -> None:
        """As when slurmctld's state was lost: the next job is number 1."""
        cluster = cluster or self.cluster
        cluster.stop_daemon("ctl", "slurmctld")
        for path in (cluster.directory / "slurmctld").iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "clustername":
                path.unlink()
        cluster.start_daemon("ctl", "slurmctld")
        self.wait_until_idle(cluster)

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

    def without_slurmctld(self, change: Callable[[Path], None]) -> None:
        """What happens to slurmctld's state while no slurmctld runs."""
        self.cluster.stop_daemon("ctl", "slurmctld")
        change(self.cluster.directory / "slurmctld")
        self.cluster.start_daemon("ctl", "slurmctld")
        # Slurm 22.05: a step that is asked for before the nodes have registered with the new slurmctld waits for ever.
        nodes = ["scontrol", "show", "node"]
        self.wait(lambda: "SlurmdStartTime=None" not in self.cluster.exec("ctl", nodes).stdout, "the nodes to register", harness.SLURM)

    def test_a_step_number_that_comes_again_within_a_job_is_another_step(self) -> None:
        self.forget()
        words = " ".join(["srun", *MEMBER, "{FILES}", f'"{CODE}"'])
        step = f"until [ -e {{FILES}}/step$i ]; do sleep 0.1; done; {words}; echo $? >>{{FILES}}/codes\n"
        job = self.batch(f"#SBATCH -N1 -n1 --gang\nexport WORD=mine\ntouch {{FILES}}/began\nfor i in 1 2; do\n{step}done\n")
        job.wait_for_file("began", harness.SLURM)
        self.assertEqual(job.id, "1")
        kept = self.cluster.directory / "tmp" / "older"
        self.without_slurmctld(lambda state: shutil.copytree(state, kept, symlinks=True))
        (job.files / "step1").touch()
        self.assertIsNone(self.given(job))
        job.release()
        self.assertEqual(job.wait_for_file("codes"), "0\n")

        def restore(state: Path) -> None:
            for path in [path for path in state.iterdir() if path.is_file()]:
                path.unlink()
            for path in [path for path in kept.iterdir() if path.is_file()]:
                shutil.copy2(path, state)
                shutil.chown(state / path.name, "slurm", "slurm")

        self.without_slurmctld(restore)
        (job.files / "step2").touch()
        self.assertEqual(self.given(job, 2), "mine", "the step runs, and goes on from the checkpoint of that number")
        self.assertEqual(job.wait(harness.SLURM), 0, job.err)

    def test_a_requeue_that_outlives_slurmctlds_state_leaves_the_next_job_of_that_number_alone(self) -> None:
        self.forget()
        words = " ".join(["srun", *MEMBER, "{FILES}", f'"{CODE}"'])
        job = self.batch(f"#SBATCH -N1 -n1 -w n1 --requeue --gang\nexport WORD=mine\n{words}\n")
        self.assertEqual((self.given(job), job.id), (None, "1"))
        self.cluster.exec("ctl", ["scontrol", "requeue", job.id])
        kept = ["sh", "-c", "ls /run/muster/gangs/requeues/1-r0-*.json"]
        self.wait(lambda: self.cluster.exec("n1", kept).returncode == 0, "the requeue", harness.SLURM)
        self.cluster.stop_daemon("n1", "musterd", signal.SIGKILL)
        self.forget()
        other = self.batch("#SBATCH -N1 -n1 -w n2 --requeue\ntouch {FILES}/began; until [ -e {FILES}/go ]; do sleep 0.1; done", user="other")
        other.wait_for_file("began", harness.SLURM)
        self.assertEqual((job.id, other.id), ("1", "1"))
        self.cluster.start_daemon("n1", "musterd")
        log = self.cluster.directory / "log" / "n1.musterd.log"
        self.wait(lambda: "requeue of job 1:" in log.read_text(), "the requeue to end")
        shown = self.cluster.exec("ctl", ["scontrol", "show", "job", "1"]).stdout
        self.assertIn("JobState=RUNNING", shown)
        self.assertIn("Restarts=0", shown)

    def other_cluster(self) -> Cluster:
        """One more Slurm, with this one's Ceph."""
        options = self.cluster.options
        other = Cluster(
            f"sub2-{os.getpid()}", nodes=1, ceph=False, ceph_of=self.cluster.names.name, build=options.build, settings=options.settings
        )
        self.addCleanup(other.stop)
        atexit.register(other.stop)
        other.start()
        return other

    @staticmethod
    def own(job: Job) -> str:
        """Its gang, among all that have its number in the store."""
        return f"{job.gang}-{job.records()[0].env['SLURM_MUSTER_SUBMISSION']}"

    def listed(self, cluster: Cluster, gang: str) -> list[int]:
        """The steps of its checkpoints, of which every byte has been read."""
        done = cluster.user("ctl", ["muster", "checkpoint", "verify", "--json", gang])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return [checkpoint["step"] for checkpoint in json.loads(done.stdout)["checkpoints"]]

    def test_two_clusters_with_one_pool_never_meet(self) -> None:
        other = self.other_cluster()
        for gang in ("", "name=both"):
            self.train_in_both(other, gang)
        # Two Slurms of one ClusterName, and nobody has set `cluster`.
        with open(other.directory / "etc/muster/muster.yaml", "a") as config:
            config.write(f"cluster: {self.cluster.names.name}\n")
        for node in ("ctl", "n1"):
            other.stop_daemon(node, "musterd")
            other.exec(node, ["rm", "/run/muster/gangs/cluster"])
            other.start_daemon(node, "musterd")
        here, there = self.train_in_both(other, "")
        self.assertLessEqual({f"gang/job-{self.own(job)}" for job in (here, there)}, set(Rados(self.cluster, "trainer").list("gang/")))

    def train_in_both(self, other: Cluster, gang: str) -> tuple[Job, Job]:
        """Job 1 of the same user runs in both clusters at the same time: each restores its own, and neither removes the other's."""
        self.forget(self.cluster)
        self.forget(other)
        here = self.saver("here", gang, KEPT)
        there = Job(other, 1000 + len(self.jobs), here.argv, "trainer", {"WORD": "there", "SAVES": str(KEPT)})
        self.addCleanup(there.end)
        self.assertEqual((self.given(here), self.given(there)), (None, None))
        self.assertEqual((here.id, there.id), ("1", "1"))
        for members in (2, 3):
            self.kill_member(here.records()[-1])
            self.assertEqual(self.given(here, members), "here")
        # The newest two, and what the generation has started from.
        self.assertEqual((self.listed(self.cluster, gang or self.own(here)), self.listed(other, gang or self.own(there))), ([4, 5, 6], [1, 2]))
        other.exec("n1", ["kill", "-KILL", str(there.records()[0].pid)])
        self.assertEqual(self.given(there, 2), "there")
        for job in (here, there):
            job.release()
            self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual((self.listed(self.cluster, gang or self.own(here)), self.listed(other, gang or self.own(there))), ([4, 5, 6], [2, 3, 4]))
        return here, there


if __name__ == "__main__":
    unittest.main(verbosity=2)
