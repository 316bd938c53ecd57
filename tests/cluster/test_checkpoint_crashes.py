#!/usr/bin/python3
"""musterd dies at each point of a save, a commit and a restore on Ceph: what is torn is never loaded, the checkpoint before is."""

import signal
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import fault_case  # noqa: E402
from fault_case import COORDINATOR, OTHER, STILL, FaultCase  # noqa: E402
from keepers import RANKS, Keeper  # noqa: E402
from pool import Rados  # noqa: E402


def setUpModule() -> None:
    fault_case.start()


class Crash(FaultCase):
    """kill -9 of musterd at each point of a save, a commit and a restore (base/crash_point.h)."""

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

    def save_survives(self, node: str, point: str, committed: bool, still: int = 0) -> None:
        keeper = Keeper(self, 10, still=still)
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
        keeper.commit(8, 9)
        self.verify(keeper.job)
        if still > 0:
            self.check_shared(keeper)
        keeper.finish()
        self.assertEqual(self.generations(keeper.job), 2)
        listed = self.checkpoints(keeper.job)
        self.assertEqual(sorted(listed), [6 if committed else 5, 8, 9, 10])
        self.assertEqual({entry["state"] for entry in listed.values()}, {"good"})

    def check_shared(self, keeper: Keeper) -> None:
        """The last three checkpoints, and the one from which the generation started, share the chunks in which nothing changes,
        and nothing else is left."""
        rados = Rados(self.cluster, "trainer")
        # Of 200,000 bytes that change, the structure and the index, in chunks of 64 KiB.
        own = RANKS * (200_000 // 65536 + 4) + 1
        most = RANKS * (STILL // 65536) + 4 * own

        def collected() -> bool:
            return len(rados.list(f"data/{keeper.job.key}/")) <= most

        self.assertLessEqual(len(rados.list(f"data/{keeper.job.key}/9.")), own)
        self.wait(collected, "what was torn to be removed")

    def restore_survives(self, node: str, point: str) -> None:
        keeper = Keeper(self, 4)
        keeper.commit(1, 2)
        self.arm(node, point)
        keeper.kill_one()
        self.wait_for_crash(node, point)
        self.cluster.start_daemon(node, "musterd")
        # A coordinator may die before its order to start generation 2 has reached all nodes: the next coordinator starts another.
        generation, step = keeper.restarted(2, 3) if node == COORDINATOR else keeper.restarted(2)
        self.assertEqual(step, 2)
        keeper.commit(3)
        self.verify(keeper.job)
        keeper.finish()
        self.assertEqual(self.generations(keeper.job), generation)

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

    def test_musterd_is_killed_after_the_first_chunk_of_a_shard_that_shares(self) -> None:
        self.save_survives(OTHER, "engine.chunk_written", False, STILL)

    def test_musterd_is_killed_between_the_manifest_and_the_head_of_what_is_shared(self) -> None:
        self.save_survives(COORDINATOR, "catalog.manifest_written", False, STILL)

    def test_musterd_is_killed_between_the_head_and_the_pruning_of_what_is_shared(self) -> None:
        self.save_survives(COORDINATOR, "catalog.head_updated", True, STILL)

    def test_musterd_is_killed_while_it_prunes_what_is_shared(self) -> None:
        self.save_survives(COORDINATOR, "catalog.object_removed", True, STILL)

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

if __name__ == "__main__":
    unittest.main(verbosity=2)
