#!/usr/bin/python3
"""Ceph fails in the middle of a save, who saves dies there, or changes its tensors: nothing is lost, and what is loaded is what
was saved."""

import json
import signal
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import SLURM, SOURCE_IN_NODE, ClusterCase, Job  # noqa: E402
from keepers import Keeper  # noqa: E402
from lives import read_lives, set_target  # noqa: E402
from object_names import rank_and_chunk, step_and_generation  # noqa: E402
from pool import Rados, space_of  # noqa: E402
from soak_store import Damage, Verifier  # noqa: E402
from standstill import arm, standing_still  # noqa: E402

COORDINATOR, OTHER, THIRD = "n2", "n1", "n3"
IN_THE_SAVE = "engine.chunk_written:3"


def setUpModule() -> None:
    # From the store, always: what is written there is to be found right.
    settings = {"chunk_size": "64KiB", "keep_checkpoints": "3", "collect_pause": "1s", "recovery_memory": "0", "partner_memory": "0"}
    harness.start("storefaults", nodes=3, osds=3, settings=settings)


class StoreFaults(ClusterCase):
    def saving(self) -> Keeper:
        """A gang with three checkpoints, one of whose nodes will stand still in the middle of the fourth."""
        keeper = Keeper(self, 8)
        keeper.commit(1, 2, 3)
        arm(self, OTHER, IN_THE_SAVE)
        keeper.allow(4)
        return keeper

    def steps(self, job: Job) -> dict[int, str]:
        listed = self.muster_json("checkpoint", "list", job.gang)["checkpoints"]
        return {entry["step"]: entry["state"] for entry in listed}

    def check_nothing_happened(self, keeper: Keeper) -> None:
        """All saves have succeeded, nobody was started again, and what is there is whole and is loaded."""
        self.assertEqual(self.event_texts(keeper.job, "checkpoint_failed"), [])
        self.assertEqual(self.status(keeper.job)["generation"], 1)
        self.muster_json("checkpoint", "verify", keeper.job.gang)
        newest = max(self.steps(keeper.job))
        keeper.kill_one()
        self.assertEqual(keeper.started(2), newest)
        keeper.finish()
        self.assertEqual(self.steps(keeper.job), dict.fromkeys((newest, 6, 7, 8), "good"))
        self.muster_json("checkpoint", "verify", keeper.job.gang)

    def test_an_osd_is_killed_in_the_middle_of_a_save(self) -> None:
        keeper = self.saving()
        with standing_still(self, OTHER, IN_THE_SAVE):
            self.cluster.stop_daemon("ceph", "osd.0", signal.SIGKILL)
        try:
            keeper.commit(4)
            keeper.commit(5)  # two of three are enough
        finally:
            self.cluster.start_daemon("ceph", "osd.0")
        self.check_nothing_happened(keeper)

    def test_two_osds_stand_still_until_a_save_is_late(self) -> None:
        keeper = self.saving()
        osds = ("osd.1", "osd.2")
        with standing_still(self, OTHER, IN_THE_SAVE):
            for osd in osds:
                self.cluster.signal_daemon("ceph", osd, signal.SIGSTOP)
        delayed = "checkpoint_delayed"
        self.wait(lambda: delayed in self.muster("events", keeper.job.gang, node=COORDINATOR).stdout, delayed, SLURM)
        self.assertEqual(keeper.committed(4), [], "nothing is committed without the store")
        for osd in osds:
            self.cluster.signal_daemon("ceph", osd, signal.SIGCONT)
        keeper.commit(4)
        keeper.commit(5)
        self.check_nothing_happened(keeper)

    def test_the_only_monitor_is_restarted_in_the_middle_of_a_save(self) -> None:
        keeper = self.saving()
        # Who is connected to the OSDs, and has the newest map, needs no monitor; the others wait for it.
        try:
            with standing_still(self, OTHER, IN_THE_SAVE):
                self.cluster.stop_daemon("ceph", "mon.a", signal.SIGKILL)
        finally:
            self.cluster.start_daemon("ceph", "mon.a")
        keeper.commit(4)
        keeper.commit(5)
        self.check_nothing_happened(keeper)

    def test_ceph_puts_all_clients_on_its_blocklist_in_the_middle_of_a_save(self) -> None:
        keeper = self.saving()
        listed = self.clients()
        with standing_still(self, OTHER, IN_THE_SAVE):
            self.ceph_shell("; ".join(f"ceph osd blocklist add {address}" for _, address in listed))
        self.assertEqual(len(listed), 2 * len(self.cluster.compute_nodes), "each musterd has one for what is small and one for chunks")
        keeper.commit(4)
        keeper.commit(5)
        self.check_nothing_happened(keeper)
        for node in self.cluster.compute_nodes:
            log = (self.cluster.directory / "log" / f"{node}.musterd.log").read_text()
            self.assertEqual(log.count("Ceph has put this client on the blocklist; a new client takes its place"), 1, node)
        self.assertEqual({node for node, _ in self.clients()}, set(self.cluster.compute_nodes))
        self.assertEqual(set(listed) & set(self.clients()), set(), "the old ones have gone")

    def ceph_shell(self, script: str) -> str:
        done = self.cluster.exec("ceph", ["timeout", "60", "sh", "-ec", script], timeout=90)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def clients(self) -> list[tuple[str, str]]:
        """Nodes with their musterd's clients' addresses, as the monitor knows them."""
        nodes = {self.cluster.network.address(node): node for node in self.cluster.compute_nodes}
        found = []
        for session in json.loads(self.ceph_shell("ceph tell mon.a sessions")):
            address = session["socket_addr"]
            host = address["addr"].partition(":")[0]
            if session["name"].startswith("client.") and host in nodes:
                found.append((nodes[host], f"{address['addr']}/{address['nonce']}"))
        return found


class MemberKilled(ClusterCase):
    """kill -9 of a member at each point of a save, a commit, the pruning and a restore: musterd stands still there meanwhile."""

    def steps(self, job: Job) -> list[int]:
        return [entry["step"] for entry in self.muster_json("checkpoint", "list", job.gang)["checkpoints"]]

    def survives(self, node: str, point: str) -> None:
        keeper = Keeper(self, 7)
        keeper.commit(1, 2, 3)
        arm(self, node, point)
        keeper.allow(4)
        with standing_still(self, node, point):
            keeper.forbid(4)
            keeper.kill_one()
        # No member was told of the fourth: it may count or not, but what is listed is whole.
        self.assertIn(keeper.started(2), (3, 4))
        self.assertIn(self.steps(keeper.job)[-1], (3, 4))
        self.muster_json("checkpoint", "verify", keeper.job.gang)
        keeper.allow(4, 5)
        keeper.commit(6)
        keeper.kill_one()
        self.assertEqual(keeper.started(3), 6)
        keeper.finish()
        self.assertEqual(self.steps(keeper.job), [5, 6, 7])
        self.muster_json("checkpoint", "verify", keeper.job.gang)
        rados = Rados(self.cluster, "trainer")
        prefix = f"data/{keeper.job.key}/"
        # Of the torn save nothing is left, nor of what was dropped.
        self.wait(lambda: {name.split("/")[2].split(".")[0] for name in rados.list(prefix)} == {"5", "6", "7"}, "the removal")
        self.assertEqual(self.status(keeper.job)["user_faults"], 0)

    def test_while_its_node_writes_the_shard(self) -> None:
        self.survives(THIRD, "engine.chunk_written:2")

    def test_while_another_node_writes_its_shards(self) -> None:
        self.survives(OTHER, "engine.chunk_written:2")

    def test_when_its_shard_is_durable(self) -> None:
        self.survives(THIRD, "engine.shard_written")

    def test_when_its_shard_has_been_reported(self) -> None:
        self.survives(THIRD, "agent.shard_reported:2")

    def test_between_the_last_shard_and_the_commit(self) -> None:
        self.survives(COORDINATOR, "coordinator.shards_complete")

    def test_between_the_manifest_and_the_head(self) -> None:
        self.survives(COORDINATOR, "catalog.manifest_written")

    def test_between_the_head_and_the_pruning(self) -> None:
        self.survives(COORDINATOR, "catalog.head_updated")

    def test_while_dropped_checkpoints_are_removed(self) -> None:
        self.survives(COORDINATOR, "catalog.object_removed:3")

    def test_before_the_commit_is_told(self) -> None:
        self.survives(COORDINATOR, "coordinator.commit_done")

    def test_in_the_middle_of_a_restore(self) -> None:
        keeper = Keeper(self, 4)
        keeper.commit(1, 2)
        arm(self, THIRD, "engine.chunk_read:2")
        keeper.kill_one()
        with standing_still(self, THIRD, "engine.chunk_read:2"):
            keeper.kill_one()
        self.assertEqual(keeper.started(3), 2)
        keeper.finish()
        self.muster_json("checkpoint", "verify", keeper.job.gang)


class Overwritten(ClusterCase):
    def objects_of(self, key: str) -> list[tuple[int, int]]:
        """The step and the rank of each chunk in the store."""
        names = Rados(self.cluster, "trainer").list(f"data/{key}/")
        return [(step_and_generation(name)[0], of[0]) for name in names if (of := rank_and_chunk(name))]

    def test_tensors_that_change_as_soon_as_save_returns_are_saved_as_they_were(self) -> None:
        seed, key = 7, "name-overwritten"
        program = ["/usr/bin/python3", f"{SOURCE_IN_NODE}/tests/cluster/programs/soak_member.py", "{FILES}", str(seed), "0.5"]
        job = self.srun(program, "name=overwritten,hang=off", nodes=3, tasks=3)

        def slowest() -> int:
            return min((life.step for life in read_lives(job.files)), default=0)

        self.wait(lambda: slowest() > 1, "the gang to run")
        arm(self, OTHER, "engine.chunk_written")
        with standing_still(self, OTHER, "engine.chunk_written"):
            # Nothing more of the shard has been read, and its tensors are others by the time the next step has begun. A
            # further step may not come: a member has two saves on their way at most.
            saving = max(step for step, rank in self.objects_of(key) if rank == 0)
            self.wait(lambda: slowest() > saving, "the members to go on")
        set_target(job.files, slowest() + 4)
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual([path.read_text() for path in job.files.glob("errors.*")], [])
        verifier = Verifier(self.cluster.directory, job.files, space_of(self.cluster, "trainer"), key, seed, Damage())
        self.addCleanup(verifier.close)
        self.assertEqual(len(verifier.again()), 3)
        self.assertEqual((verifier.wrong, verifier.verified), ([], 3))


if __name__ == "__main__":
    unittest.main(verbosity=2)
