#!/usr/bin/python3
"""Checkpoints on Ceph that are damaged are never loaded, the one before is, and the result is the same to the last bit."""

import hashlib
import json
import re
import signal
import subprocess
import sys
import unittest
from collections.abc import Callable
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import fault_case  # noqa: E402
import harness  # noqa: E402
from fault_case import COORDINATOR, OTHER, STILL, FaultCase  # noqa: E402
from harness import SOON, SOURCE_IN_NODE, ClusterCase, Job  # noqa: E402
from keepers import RANKS, Keeper  # noqa: E402
from object_names import rank_and_chunk  # noqa: E402
from pool import Rados, space_of  # noqa: E402
from vc.names import BUILD_IN_NODE  # noqa: E402

TEXT = "/usr/share/common-licenses/GPL-3"


def setUpModule() -> None:
    fault_case.start()


class Damage(FaultCase):
    """What has been committed is damaged in RADOS behind Muster's back."""

    def going_back(self, damage: Callable[[Rados, str, int], None], reason: str) -> None:
        """Damages the newest of three checkpoints; the gang starts again from the one before, and says so."""
        keeper = Keeper(self, 5)
        keeper.commit(1, 2, 3)
        damage(Rados(self.cluster, "trainer"), keeper.job.key, 3)
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
        self.wait(lambda: re.search(told + f".*{reason}", keeper.job.err), "the job to be told")
        bad = self.event_texts(keeper.job, "checkpoint_bad")
        self.assertEqual(len(bad), 1, bad)
        self.assertRegex(bad[0], told + f".*{reason}")
        self.assertIn("generation 3 starts from the checkpoint of step 2", self.event_texts(keeper.job, "restore"))
        entry = self.checkpoints(keeper.job)[3]
        self.assertEqual((entry["state"], entry["latest"]), ("bad", False))
        self.assertNotEqual(entry["reason"], "")
        status = self.status(keeper.job)
        self.assertEqual((status["user_faults"], status["restarts"]), (0, 2), "neither fault is the user's")
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

        self.going_back(damage, r"object \S+\.u20001/data/\S+ in rados:muster has digest [0-9a-f]+, not [0-9a-f]+")

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

    def test_what_says_which_is_the_latest_is_damaged_and_nobody_believes_it(self) -> None:
        keeper = Keeper(self, 3)
        keeper.commit(1, 2)
        rados = Rados(self.cluster, "trainer")
        head = f"gang/{keeper.job.key}"
        for latest in ("1", "9", "three", "", None):
            if latest is None:
                rados.run("rmomapkey", head, "latest")
            else:
                rados.run("setomapval", head, "latest", latest)
            self.assertEqual([step for step, entry in self.checkpoints(keeper.job).items() if entry["latest"]], [2], latest)
            self.verify(keeper.job)
        rados.run("setomapval", head, "latest", "1")
        keeper.kill_one()
        self.assertEqual(keeper.started(2), 2)
        keeper.commit(3)
        self.assertIn("3", rados.run("getomapval", head, "latest"))
        keeper.finish()

    def test_the_newest_two_are_damaged_and_the_third_is_loaded(self) -> None:
        keeper = Keeper(self, 4)
        keeper.commit(1, 2, 3)
        rados = Rados(self.cluster, "trainer")
        for step in (2, 3):
            rados.flip(rados.list(f"data/{keeper.job.key}/{step}.")[0])
        keeper.kill_one()
        self.assertEqual(keeper.started(4), 1)
        self.assertEqual(len(self.event_texts(keeper.job, "checkpoint_bad")), 2)
        keeper.finish()

    def test_all_are_damaged_and_training_starts_from_the_beginning(self) -> None:
        keeper = Keeper(self, 3)
        keeper.commit(1, 2)
        rados = Rados(self.cluster, "trainer")
        for step in (1, 2):
            rados.flip(rados.list(f"data/{keeper.job.key}/{step}.")[0])
        keeper.kill_one()
        self.assertEqual(keeper.started(4), 0)
        text = "generation 4 starts from the beginning: there is no checkpoint"
        self.assertIn(text, self.event_texts(keeper.job, "restore"))
        keeper.finish()

    def test_a_damaged_fence_is_left_alone_and_nothing_is_loaded_or_committed_under_it(self) -> None:
        self.expect_error("cannot take its record over")
        keeper = Keeper(self, 4, "restarts=1")
        keeper.commit(1, 2)
        rados = Rados(self.cluster, "trainer")
        head = f"gang/{keeper.job.key}"
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


class LateReads(FaultCase):
    """Members read checkpoints long after their generation has started, while retention removes others."""

    CODE = f"""
sys.path.insert(0, "{BUILD_IN_NODE}/python")
import muster
with muster.init() as gang:
    def save(*steps):
        for step in steps:
            part = muster.Slice(bytearray([step] * 8), global_shape=(8 * world,), offset=(8 * rank,))
            gang.save({{"step": step}}, step, slices={{"all": part}})
            gang.wait(step)
    def read(step=None):
        data = bytearray(8 * world)
        try:
            gang.restore_slices({{"all": muster.Slice(data)}}, step)
            return [gang.restore(step)[1], gang.restore_info(step), list(data)]
        except muster.NotFound:
            return "not found"
    if generation == 1:
        save(1)
        until(lambda: rank == 0)
        die()
    said = {{"before": gang.restore()[1]}}
    save(1)
    if rank == 1:
        said["anew"] = read()
    save(2, 3, 4, 5, 6)
    if rank == 1:
        said |= {{"own": read(), "removed": read(2)}}
    save(7)
    record(**said)
"""

    def test_what_a_generation_started_from_can_be_read_to_its_end_and_what_is_removed_is_not_found(self) -> None:
        job = self.gang(self.CODE, nodes=3, tasks=3)
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(self.event_texts(job, "checkpoint_bad"), [])
        said = {record.rank: record.said for record in job.records(2)}
        whole = [1, [1, 3], [1] * 24]
        self.assertEqual(said[1], {"before": 1, "anew": whole, "own": whole, "removed": "not found"})
        self.assertEqual((said[0], said[2]), ({"before": 1}, {"before": 1}))
        self.assertEqual({step: entry["state"] for step, entry in self.checkpoints(job).items()}, dict.fromkeys((1, 5, 6, 7), "good"))
        self.verify(job)
        self.assertEqual(self.generations(job), 2)


class Formats(FaultCase):
    def read(self, job: Job, step: str = "") -> "subprocess.CompletedProcess[str]":
        """What a reader finds that knows docs/formats.md and librados, and nothing of Muster."""
        program = f"{SOURCE_IN_NODE}/tests/cluster/programs/read_checkpoint.py"
        space = space_of(self.cluster, job.user)
        return self.cluster.exec("ctl", [program, "muster", space, job.key, *([step] if step else [])], timeout=SOON)

    def test_a_checkpoint_can_be_restored_by_the_documented_formats_alone(self) -> None:
        keeper = Keeper(self, 3, still=STILL)
        keeper.finish()
        for step in ("", "2"):
            done = self.read(keeper.job, step)
            self.assertEqual(done.returncode, 0, done.stderr)
            found = json.loads(done.stdout)
            number = int(step or 3)
            self.assertEqual((found["step"], found["world_size"], len(found["ranks"])), (number, RANKS, RANKS))
            for rank, entries in enumerate(found["ranks"]):
                leaves = '["still",{"bytes":["/still",null]}],["state",{"bytes":["/state",null]}]'
                structure = 'muster-tree/1\n{"dict":[["step",%d],%s]}' % (number, leaves)
                still = hashlib.shake_128(f"{rank}".encode()).digest(STILL)
                state = hashlib.shake_128(f"{rank}/{number}".encode()).digest(200_000)
                self.assertEqual(entries["structure"]["sha256"], hashlib.sha256(structure.encode()).hexdigest())
                for name, data in {"/still": still, "/state": state}.items():
                    self.assertEqual(entries[name]["bytes"], len(data))
                    self.assertEqual(entries[name]["sha256"], hashlib.sha256(data).hexdigest())
        self.assertIn("has no checkpoint of step 9", self.read(keeper.job, "9").stderr)
        rados = Rados(self.cluster, keeper.job.user)
        chunk = next(name for name in rados.list(f"data/{keeper.job.key}/3.") if rank_and_chunk(name)[0] == 4)
        rados.flip(chunk)
        self.assertIn(f"object {chunk} does not verify", self.read(keeper.job).stderr)


class Again(ClusterCase):
    CODE = f"""
sys.path.insert(0, "{BUILD_IN_NODE}/python")
import ctypes, muster
def written(step):
    assert gang._library._c.muster_wait_durable(gang._handle, ctypes.c_uint64(step), 60000) == 0
with muster.init() as gang:
    found = gang.restore()
    record(found=found)
    if found is None:
        gang.save({{"attempt": 1, "rank": rank}}, 4)
        gang.wait(4)
        if rank == 1:
            for attempt in (1, 2):
                gang.save({{"attempt": attempt, "rank": rank}}, 5)
                written(5)
            open(path("second"), "w").close()
        else:
            until(lambda: os.path.exists(path("second")))
            gang.save({{"attempt": 2, "rank": rank}}, 5)
        gang.wait(5)
        gang.save({{"attempt": 1, "rank": rank}}, 6)
        gang.wait(6)
        try:
            gang.save({{"attempt": 2, "rank": rank}}, 6)
        except muster.MusterError as error:
            open(path(f"refused.{{rank}}"), "w").write(str(error))
        until_released()
    elif rank == 1:
        assert gang.restore(5)[0] == {{"attempt": 2, "rank": 1}}, gang.restore(5)
"""

    def test_a_step_that_a_member_saves_again_is_what_it_saved_last(self) -> None:
        job = self.gang(self.CODE, nodes=2, tasks=2)
        refused = [job.files / f"refused.{rank}" for rank in range(2)]
        self.wait(lambda: all(path.exists() and path.read_text() for path in refused), "a step that is committed already")
        for path in refused:
            self.assertEqual(path.read_text(), "step 6 is committed already")
        shards = self.muster_json("checkpoint", "verify", job.gang)["checkpoints"]
        self.assertEqual([(entry["step"], entry["verified"]) for entry in shards], [(4, True), (5, True), (6, True)])
        self.kill_member(job.records(1)[0])
        job.wait_for_generation(2, 2)
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual([record.said["found"] for record in job.records(2)], [[{"attempt": 1, "rank": rank}, 6] for rank in range(2)])


class Store(ClusterCase):
    def test_rados_keeps_the_contract_of_a_store(self) -> None:
        words = [f"{harness.PROGRAMS}/rados_store_test", "--gtest_brief=1"]
        done = self.cluster.exec("ctl", words, env={"MUSTER_TEST_RADOS_POOL": "muster"}, timeout=SOON * 4)
        self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])
        self.assertIn("[  PASSED  ]", done.stdout)
        self.assertNotIn("SKIPPED", done.stdout)


class BitForBit(FaultCase):
    """The final parameters of a run with faults are those of a run without."""

    TRAIN = ["muster-train", "--text", TEXT, "--width", "32", "--depth", "2", "--context", "32", "--batch", "4"]

    def parameters(self, job: Job) -> bytes:
        return (job.files / "params").read_bytes()

    def hurt(self, job: Job, node: str, generation: int, number: int) -> None:
        """Signals a member of a generation on this node."""
        of = rf"^MUSTER_(GANG={job.gang}|GENERATION={generation})$"
        find = f"grep -cszE '{of}' /proc/[0-9]*/environ | sed -n 's|/proc/\\([0-9]*\\)/environ:2|\\1|p' | head -n 1"
        kill = f"p=$({find}); [ -n \"$p\" ] && kill -{int(number)} $p"
        self.wait(lambda: self.cluster.exec(node, ["bash", "-c", kill]).returncode == 0, f"a member on {node}")

    def wait_for_checkpoint(self, job: Job, generation: int, after: int = 0) -> int:
        """Of this generation, of a later step than that; gives its step."""
        self.wait(lambda: self.muster("status", job.gang).returncode == 0, "the gang to be known")

        def newer() -> int:
            self.assertTrue(job.running(), "it ended too early")
            mine = [s for s, entry in self.checkpoints(job).items() if entry["generation"] == generation and s > after]
            return max(mine, default=0)

        return self.wait(newer, f"a checkpoint of generation {generation} after step {after}")

    def test_of_muster_train_with_members_and_musterd_killed(self) -> None:
        words = [*self.TRAIN, "--steps", "600", "--checkpoint-every", "25", "--log-every", "25"]
        words += ["--params-out", "{FILES}/params"]
        plain = self.srun(words, nodes=3, tasks=RANKS)
        self.assertEqual(plain.wait(SOON * 2), 0)
        job = self.srun([*words, "--step-seconds", "0.06"], nodes=3, tasks=RANKS)  # it lasts until it has been hurt
        for generation, node, number in ((1, "n1", signal.SIGKILL), (2, "n3", signal.SIGSEGV)):
            self.wait_for_checkpoint(job, generation)
            self.hurt(job, node, generation, number)
        reached = 0
        for node in (COORDINATOR, OTHER):
            reached = self.wait_for_checkpoint(job, 3, reached)
            self.cluster.stop_daemon(node, "musterd", signal.SIGKILL)
            self.cluster.start_daemon(node, "musterd")
        self.wait_for_checkpoint(job, 3, reached)
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
        held = f"{SOURCE_IN_NODE}/tests/frameworks/held:{BUILD_IN_NODE}/python"
        job = self.srun(words, nodes=2, tasks=2, env=environment | {"HELD_AT": "60", "PYTHONPATH": held})
        first = job.wait_for_generation(1, 2, SOON * 3)
        self.wait_for_checkpoint(job, 1)
        self.kill_member(first[1])
        job.release()
        self.assertEqual(job.wait(SOON * 3), 0, job.err)
        self.assertEqual(self.generations(job), 2)
        self.assertEqual(self.parameters(job), self.parameters(plain))
        self.verify(job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
