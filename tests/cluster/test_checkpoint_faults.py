#!/usr/bin/python3
"""Checkpoints on Ceph under faults: what is torn or damaged is never loaded, the one before is, and the result is the
same to the last bit."""

import hashlib
import signal
import sys
import unittest
from collections.abc import Callable
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import PYTHON, SOURCE_IN_NODE, SOON, ClusterCase, Job  # noqa: E402
from vc import Cluster  # noqa: E402

# The gang's nodes: srun runs on ctl, the coordinator is the step's second node.
COORDINATOR, OTHER, THIRD = "n2", "n1", "n3"
RANKS = 6
KEPT = 3
TEXT = "/usr/share/common-licenses/GPL-3"


def setUpModule() -> None:
    settings = {"chunk_size": "64KiB", "keep_checkpoints": str(KEPT)}
    harness.start("faults", nodes=3, settings=settings)


class Rados:
    """The objects of a user's namespace, as an administrator reaches them."""

    def __init__(self, cluster: Cluster, user: str) -> None:
        self._cluster = cluster
        self._space = f"u{harness.USERS[user]}"

    def run(self, *words: str) -> str:
        done = self._cluster.exec("ctl", ["timeout", "30", "rados", "-p", "muster", "-N", self._space, *words])
        if done.returncode != 0:
            raise AssertionError(f"rados {' '.join(words)}: {done.stderr}")
        return done.stdout

    def list(self, prefix: str) -> list[str]:
        return sorted(name for name in self.run("ls").splitlines() if name.startswith(prefix))

    def get(self, name: str) -> bytes:
        self.run("get", name, "/tmp/rados-object")
        return (self._cluster.directory / "tmp" / "rados-object").read_bytes()

    def put(self, name: str, data: bytes) -> None:
        (self._cluster.directory / "tmp" / "rados-object").write_bytes(data)
        self.run("put", name, "/tmp/rados-object")

    def flip(self, name: str) -> None:
        data = bytearray(self.get(name))
        data[len(data) // 2] ^= 1
        self.put(name, bytes(data))


class Keeper:
    """A gang of programs/keeper.py: it makes the steps that the test allows."""

    def __init__(self, case: ClusterCase, steps: int, gang: str = "") -> None:
        self.case = case
        self.steps = steps
        program = [*PYTHON, f"{SOURCE_IN_NODE}/tests/cluster/programs/keeper.py", "{FILES}", str(steps)]
        self.job: Job = case.srun(program, gang, nodes=3, tasks=RANKS)

    def _values(self, name: str) -> list[str]:
        paths = [self.job.files / f"{name}.{rank}" for rank in range(RANKS)]
        return [path.read_text().strip() for path in paths if path.exists()]

    def _all(self, name: str) -> set[str]:
        def there() -> bool:
            if not self.job.running() and len(self._values(name)) < RANKS:
                raise AssertionError(f"the gang ended with {self.job.wait()} before {name}")
            return len(self._values(name)) == RANKS

        self.case.wait(there, f"{name} of all members")
        return set(self._values(name))

    def allow(self, *steps: int) -> None:
        for step in steps:
            (self.job.files / f"step.{step}").touch()

    def forbid(self, step: int) -> None:
        (self.job.files / f"step.{step}").unlink()

    def commit(self, *steps: int) -> None:
        """Lets the gang make these steps, and waits until all members know that they are committed."""
        self.allow(*steps)
        self._all(f"committed.{steps[-1]}")

    def started(self, generation: int) -> int:
        """The step from which a generation started: the same for all its members."""
        steps = self._all(f"started.{generation}")
        self.case.assertEqual(len(steps), 1, f"generation {generation} started from {steps}")
        return int(steps.pop())

    def kill_one(self) -> None:
        """Kills the last member's program, on n3."""
        find = f"grep -lsz '^MUSTER_GANG={self.job.gang}$' /proc/[0-9]*/environ | cut -d/ -f3"
        pids = self.case.cluster.exec(THIRD, ["bash", "-c", find]).stdout.split()
        self.case.assertEqual(len(pids), RANKS // 3)
        self.case.cluster.exec(THIRD, ["kill", "-9", pids[-1]])

    def finish(self) -> None:
        """Lets the gang end, and checks that every member's state is what it has to be."""
        self.allow(*range(1, self.steps + 1))
        self.case.assertEqual(self.job.wait(), 0, self.job.err)
        self.case.assertEqual([p.read_text() for p in self.job.files.glob("wrong.*")], [])
        for rank in range(RANKS):
            state = hashlib.shake_128(f"{rank}/{self.steps}".encode()).digest(200_000)
            expected = hashlib.sha256(state).hexdigest()
            self.case.assertEqual((self.job.files / f"final.{rank}").read_text().strip(), expected)


class FaultCase(ClusterCase):
    def checkpoints(self, job: Job) -> dict[int, dict[str, object]]:
        listed = self.muster_json("checkpoint", "list", job.gang)["checkpoints"]
        return {entry["step"]: entry for entry in listed}

    def verify(self, job: Job, bad: int | None = None) -> str:
        """`muster checkpoint verify` finds this one step bad, and no other; gives its reason."""
        found = self.muster_json("checkpoint", "verify", job.gang, code=0 if bad is None else 1)["checkpoints"]
        self.assertEqual([entry["step"] for entry in found if not entry["verified"]], [] if bad is None else [bad])
        self.assertGreater(len(found), 0)
        reasons = [entry["reason"] for entry in found if not entry["verified"]]
        return str(reasons[0]) if reasons else ""

    def generations(self, job: Job) -> int:
        return int(self.status(job)["generation"])


class Crash(FaultCase):
    """kill -9 of musterd at each point of a save, a commit and a restore (daemon/base/crash_point.h)."""

    def arm(self, node: str, point: str) -> None:
        """Restarts a node's musterd under the running gang, so that it dies at a point."""
        self.cluster.stop_daemon(node, "musterd")
        self.cluster.start_daemon(node, "musterd", env={"MUSTER_CRASH_AT": point})
        self.addCleanup(self.make_sure_it_runs, node)

    def make_sure_it_runs(self, node: str) -> None:
        self.cluster.stop_daemon(node, "musterd")
        self.cluster.start_daemon(node, "musterd")

    def wait_for_crash(self, node: str, point: str) -> None:
        self.wait(lambda: self.cluster.daemon_pid(node, "musterd") is None, f"musterd on {node} to die at {point}")

    def save_survives(self, node: str, point: str, committed: bool) -> None:
        keeper = Keeper(self, 10)
        keeper.commit(1, 2, 3)
        # The gang runs on while its musterd dies and comes back, and the checkpoint is committed in the end.
        self.arm(node, point)
        keeper.allow(4)
        self.wait_for_crash(node, point)
        self.cluster.start_daemon(node, "musterd")
        keeper.commit(4)
        keeper.commit(5)
        self.verify(keeper.job)
        self.assertEqual(self.generations(keeper.job), 1, "musterd's death restarts nothing")
        # The same death together with a member's: what was torn is not loaded.
        self.arm(node, point)
        keeper.allow(6)
        self.wait_for_crash(node, point)
        keeper.forbid(6)
        keeper.kill_one()
        self.cluster.start_daemon(node, "musterd")
        self.assertEqual(keeper.started(2), 6 if committed else 5)
        self.assertEqual(sorted(self.checkpoints(keeper.job))[-1], 6 if committed else 5)
        self.verify(keeper.job)
        texts = self.event_texts(keeper.job, "restore")
        self.assertIn(f"generation 2 starts from the checkpoint of step {6 if committed else 5}", texts)
        keeper.commit(6, 7)
        keeper.commit(8)
        self.verify(keeper.job)
        keeper.finish()
        self.assertEqual(self.generations(keeper.job), 2)
        listed = self.checkpoints(keeper.job)
        self.assertEqual(sorted(listed), [8, 9, 10])
        self.assertEqual({entry["state"] for entry in listed.values()}, {"good"})

    def restore_survives(self, node: str, point: str) -> None:
        keeper = Keeper(self, 4)
        keeper.commit(1, 2)
        self.arm(node, point)
        keeper.kill_one()
        self.wait_for_crash(node, point)
        self.cluster.start_daemon(node, "musterd")
        self.assertEqual(keeper.started(2), 2)
        keeper.commit(3)
        self.verify(keeper.job)
        keeper.finish()
        self.assertEqual(self.generations(keeper.job), 2)

    def test_musterd_of_the_coordinator_is_killed_after_the_first_chunk(self) -> None:
        self.save_survives(COORDINATOR, "engine.chunk_written", False)

    def test_musterd_of_another_node_is_killed_after_the_first_chunk(self) -> None:
        self.save_survives(OTHER, "engine.chunk_written", False)

    def test_musterd_of_the_coordinator_is_killed_after_all_chunks_of_a_shard(self) -> None:
        self.save_survives(COORDINATOR, "engine.shard_written", False)

    def test_musterd_of_another_node_is_killed_after_all_chunks_of_a_shard(self) -> None:
        self.save_survives(OTHER, "engine.shard_written", False)

    def test_musterd_of_another_node_is_killed_before_it_reports_its_shard(self) -> None:
        self.save_survives(OTHER, "agent.shard_reported", False)

    def test_musterd_is_killed_before_the_commit(self) -> None:
        self.save_survives(COORDINATOR, "coordinator.shards_complete", False)

    def test_musterd_is_killed_between_the_manifest_and_the_head(self) -> None:
        self.save_survives(COORDINATOR, "catalog.manifest_written", False)

    def test_musterd_is_killed_between_the_head_and_the_pruning(self) -> None:
        self.save_survives(COORDINATOR, "catalog.head_updated", True)

    def test_musterd_is_killed_while_it_prunes(self) -> None:
        self.save_survives(COORDINATOR, "catalog.object_removed", True)

    def test_musterd_is_killed_before_it_tells_of_the_commit(self) -> None:
        self.save_survives(COORDINATOR, "coordinator.commit_done", True)

    def test_musterd_of_the_coordinator_is_killed_when_a_member_asks_for_its_shard(self) -> None:
        self.restore_survives(COORDINATOR, "agent.restore")

    def test_musterd_of_another_node_is_killed_in_the_middle_of_a_restore(self) -> None:
        self.restore_survives(OTHER, "engine.chunk_read")

    def test_musterd_of_the_coordinator_is_killed_in_the_middle_of_a_restore(self) -> None:
        self.restore_survives(COORDINATOR, "engine.chunk_read")

    def test_musterd_of_every_node_is_killed_at_once(self) -> None:
        keeper = Keeper(self, 5)
        keeper.commit(1, 2)
        keeper.allow(3)
        for node in self.cluster.compute_nodes:
            self.cluster.stop_daemon(node, "musterd", signal.SIGKILL)
        for node in self.cluster.compute_nodes:
            self.cluster.start_daemon(node, "musterd")
        keeper.commit(3)
        keeper.finish()
        self.assertEqual(self.generations(keeper.job), 1)
        self.verify(keeper.job)


class Damage(FaultCase):
    """What has been committed is damaged in RADOS behind Muster's back."""

    def going_back(self, damage: Callable[[Rados, str, int], None], reason: str) -> None:
        """Damages the newest of three checkpoints; the gang starts again from the one before, and says so."""
        keeper = Keeper(self, 5)
        keeper.commit(1, 2, 3)
        damage(Rados(self.cluster, "trainer"), f"job-{keeper.job.gang}", 3)
        self.assertRegex(self.verify(keeper.job, bad=3), reason)
        table = self.muster("checkpoint", "verify", keeper.job.gang)
        self.assertEqual(table.returncode, 1)
        self.assertRegex(table.stdout, r"3 +\S+ \S+ +BAD: ")
        keeper.forbid(3)
        keeper.kill_one()
        # Generation 2 finds it out, generation 3 starts from the one before.
        self.assertEqual(keeper.started(3), 2)
        self.assertLess(len(list(keeper.job.files.glob("started.2.*"))), RANKS, "a whole gang has loaded it")
        told = r"the checkpoint of step 3 does not verify: "
        self.assertRegex(keeper.job.err, told + f".*{reason}")
        bad = self.event_texts(keeper.job, "checkpoint_bad")
        self.assertEqual(len(bad), 1, bad)
        self.assertRegex(bad[0], told + f".*{reason}")
        self.assertIn("generation 3 starts from the checkpoint of step 2", self.event_texts(keeper.job, "restore"))
        entry = self.checkpoints(keeper.job)[3]
        self.assertEqual((entry["state"], entry["latest"]), ("bad", False))
        self.assertNotEqual(entry["reason"], "")
        status = self.status(keeper.job)
        self.assertEqual((status["user_faults"], status["restarts"]), (1, 2), "the bad checkpoint is not the user's fault")
        # Training makes the step once more, and its checkpoint takes the bad one's place.
        keeper.commit(3, 4)
        self.verify(keeper.job)
        self.assertEqual(self.checkpoints(keeper.job)[3]["state"], "good")
        keeper.finish()

    def test_a_data_object_is_missing(self) -> None:
        def damage(rados: Rados, key: str, step: int) -> None:
            rados.run("rm", rados.list(f"data/{key}/{step}.")[5])

        self.going_back(damage, "missing")

    def test_a_byte_of_a_data_object_is_flipped(self) -> None:
        def damage(rados: Rados, key: str, step: int) -> None:
            rados.flip(rados.list(f"data/{key}/{step}.")[7])

        self.going_back(damage, r"object u20001/data/\S+ in rados:muster has digest [0-9a-f]+, not [0-9a-f]+")

    def test_a_data_object_is_cut_off(self) -> None:
        def damage(rados: Rados, key: str, step: int) -> None:
            rados.run("truncate", rados.list(f"data/{key}/{step}.")[1], "100")

        self.going_back(damage, "is cut off")

    def test_a_data_object_is_too_long(self) -> None:
        def damage(rados: Rados, key: str, step: int) -> None:
            name = rados.list(f"data/{key}/{step}.")[2]
            rados.put(name, rados.get(name) + b"x")

        self.going_back(damage, "is too long")

    def test_a_data_object_is_that_of_another_step(self) -> None:
        def damage(rados: Rados, key: str, step: int) -> None:
            rados.put(rados.list(f"data/{key}/{step}.")[1], rados.get(rados.list(f"data/{key}/{step - 1}.")[1]))

        self.going_back(damage, "has digest")

    def test_the_manifest_is_missing(self) -> None:
        def damage(rados: Rados, key: str, step: int) -> None:
            rados.run("rm", rados.list(f"data/{key}/{step}.1.1/manifest")[0])

        self.going_back(damage, "manifest .* is missing")

    def test_a_byte_of_the_manifest_is_flipped(self) -> None:
        def damage(rados: Rados, key: str, step: int) -> None:
            rados.flip(rados.list(f"data/{key}/{step}.1.1/manifest")[0])

        self.going_back(damage, "manifest .* has another digest")

    def test_the_manifest_is_that_of_another_step(self) -> None:
        def damage(rados: Rados, key: str, step: int) -> None:
            rados.put(f"data/{key}/{step}.1.1/manifest", rados.get(f"data/{key}/{step - 1}.1.1/manifest"))

        self.going_back(damage, "manifest .* has another digest")

    def test_the_heads_entry_of_a_checkpoint_is_damaged(self) -> None:
        def damage(rados: Rados, key: str, step: int) -> None:
            rados.run("getomapval", f"gang/{key}", f"checkpoint/{step}", "/tmp/entry")
            path = self.cluster.directory / "tmp" / "entry"
            text = path.read_text()
            rados.run("setomapval", f"gang/{key}", f"checkpoint/{step}", text[: len(text) // 2])

        self.going_back(damage, "checkpoint 3")

    def test_the_newest_two_are_damaged_and_the_third_is_loaded(self) -> None:
        keeper = Keeper(self, 4)
        keeper.commit(1, 2, 3)
        rados = Rados(self.cluster, "trainer")
        for step in (2, 3):
            rados.flip(rados.list(f"data/job-{keeper.job.gang}/{step}.")[0])
        keeper.kill_one()
        self.assertEqual(keeper.started(4), 1)
        self.assertEqual(len(self.event_texts(keeper.job, "checkpoint_bad")), 2)
        keeper.finish()

    def test_all_are_damaged_and_training_starts_from_the_beginning(self) -> None:
        keeper = Keeper(self, 3)
        keeper.commit(1, 2)
        rados = Rados(self.cluster, "trainer")
        for step in (1, 2):
            rados.flip(rados.list(f"data/job-{keeper.job.gang}/{step}.")[0])
        keeper.kill_one()
        self.assertEqual(keeper.started(4), 0)
        text = "generation 4 starts from the beginning: there is no checkpoint"
        self.assertIn(text, self.event_texts(keeper.job, "restore"))
        keeper.finish()

    def test_a_damaged_fence_is_left_alone_and_nothing_is_loaded_or_committed_under_it(self) -> None:
        keeper = Keeper(self, 4, "restarts=1")
        keeper.commit(1, 2)
        rados = Rados(self.cluster, "trainer")
        head = f"gang/job-{keeper.job.gang}"
        fence = rados.run("getxattr", head, "fence")
        rados.run("setxattr", head, "fence", "9.9x")
        done = self.muster("checkpoint", "verify", keeper.job.gang)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("which Muster did not write", done.stderr)
        keeper.allow(3)
        self.wait(lambda: not keeper.job.running(), "the gang to end")
        self.assertNotEqual(keeper.job.wait(), 0)
        self.assertIn("which Muster did not write", keeper.job.err)
        self.assertEqual(rados.run("getxattr", head, "fence"), "9.9x")
        # Put right by hand, what was committed is whole.
        rados.run("setxattr", head, "fence", fence)
        self.verify(keeper.job)


class BitForBit(FaultCase):
    """The final parameters of a run with faults are those of a run without."""

    TRAIN = ["muster-train", "--text", TEXT, "--width", "32", "--depth", "2", "--context", "32", "--batch", "4"]

    def parameters(self, job: Job) -> bytes:
        return (job.files / "params").read_bytes()

    def step_reached(self, job: Job) -> int:
        steps = [int(line.split()[1]) for line in job.out.splitlines() if line.startswith("step ")]
        return max(steps, default=0)

    def pid_of(self, job: Job, node: str) -> str:
        find = f"grep -lsz '^MUSTER_GANG={job.gang}$' /proc/[0-9]*/environ | cut -d/ -f3"
        return self.cluster.exec(node, ["bash", "-c", find]).stdout.split()[0]

    def committed(self, job: Job) -> list[int]:
        return sorted(self.checkpoints(job))

    def wait_for_checkpoint_after(self, job: Job, step: int) -> int:
        def newer() -> int:
            self.assertTrue(job.running(), "it ended too early")
            return max((s for s in self.committed(job) if s > step), default=0)

        return self.wait(newer, f"a checkpoint after step {step}")

    def test_of_muster_train_with_members_and_musterd_killed(self) -> None:
        words = [*self.TRAIN, "--steps", "900", "--checkpoint-every", "25", "--log-every", "25"]
        words += ["--params-out", "{FILES}/params"]
        plain = self.srun(words, nodes=3, tasks=RANKS)
        self.assertEqual(plain.wait(SOON * 2), 0)
        job = self.srun(words, nodes=3, tasks=RANKS)
        reached = 0
        for node, number in (("n1", signal.SIGKILL), ("n3", signal.SIGSEGV)):
            reached = self.wait_for_checkpoint_after(job, reached)
            self.cluster.exec(node, ["kill", f"-{int(number)}", self.pid_of(job, node)])
        for node in (COORDINATOR, OTHER):
            reached = self.wait_for_checkpoint_after(job, reached)
            self.cluster.stop_daemon(node, "musterd", signal.SIGKILL)
            self.cluster.start_daemon(node, "musterd")
        self.wait_for_checkpoint_after(job, reached)
        self.assertEqual(job.wait(SOON * 2), 0, job.err)
        self.assertEqual(self.generations(job), 3, "two for the members, none for musterd")
        self.assertEqual(job.out.count("resumed from step"), 2)
        self.assertEqual(len(self.parameters(plain)) % 4, 0)
        self.assertGreater(len(self.parameters(plain)), 40_000)
        self.assertEqual(hashlib.sha256(self.parameters(job)).digest(), hashlib.sha256(self.parameters(plain)).digest())
        final = [line for line in job.out.splitlines() if line.startswith("final ")]
        self.assertEqual(final, [line for line in plain.out.splitlines() if line.startswith("final ")])
        self.verify(job)

    def test_of_pytorch_ddp_with_a_member_killed(self) -> None:
        words = ["/usr/bin/python3", f"{SOURCE_IN_NODE}/examples/pytorch_ddp.py", "--text", TEXT, "--steps", "400"]
        words += ["--checkpoint-every", "20", "--log-every", "20", "--params-out", "{FILES}/params"]
        environment = {"OMP_NUM_THREADS": "1"}
        plain = self.srun(words, nodes=2, tasks=2, env=environment)
        self.assertEqual(plain.wait(SOON * 3), 0, plain.err)
        job = self.srun(words, nodes=2, tasks=2, env=environment)
        self.wait_for_checkpoint_after(job, 0)
        self.cluster.exec("n2", ["kill", "-9", self.pid_of(job, "n2")])
        self.assertEqual(job.wait(SOON * 3), 0, job.err)
        self.assertEqual(self.generations(job), 2)
        self.assertEqual(self.parameters(job), self.parameters(plain))
        self.verify(job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
