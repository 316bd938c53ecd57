#!/usr/bin/python3
"""Who stood still in the middle of a save, a commit or the pruning, and wakes up when the gang has gone on without it: what it
still writes is never seen, and what it still removes is not needed."""

import re
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import SOON, ClusterCase, report  # noqa: E402
from keepers import Keeper  # noqa: E402
from pool import Rados  # noqa: E402
from standstill import arm, stands_still, wake  # noqa: E402

COORDINATOR, OTHER, THIRD = "n2", "n1", "n3"


def setUpModule() -> None:
    # From the store, always: what is written there is to be found right.
    settings = {"chunk_size": "64KiB", "keep_checkpoints": "3", "collect_pause": "1s", "recovery_memory": "0", "partner_memory": "0"}
    settings["reconnect"] = "5s"  # a node whose musterd has just been started is not known to be lost before
    harness.start("stale", nodes=4, settings=settings, limits=harness.RESTARTS)


class StaleWriter(ClusterCase):
    def objects(self, keeper: Keeper, step: int, generation: int) -> list[str]:
        names = Rados(self.cluster, "trainer").list(f"data/{keeper.job.key}/{step}.")
        return [name for name in names if re.search(rf"/{step}\.\d+\.{generation}/", name)]

    def wakes_up_late(self, node: str, point: str, started: int) -> None:
        """A node's musterd stands still at a point of the save of step 4 until the gang has saved two more without it."""
        self.addCleanup(self.mend)
        self.expect_error("the main loop has stood still")
        keeper = Keeper(self, 8, gang="spares=1", nodes=4)
        keeper.commit(1, 2, 3)
        arm(self, node, point)
        keeper.allow(4)
        self.wait(lambda: stands_still(self, node), f"musterd on {node} to come to {point}")
        try:
            self.assertEqual(keeper.started(2), started)
            keeper.allow(4)
            keeper.commit(5)
            written = self.objects(keeper, 4, 1)
        finally:
            wake(self, node)
        # It is awake when it answers, and hears that the gang has gone on.
        self.wait(lambda: self.muster("status", node=node).returncode == 0, f"musterd on {node} to answer")
        keeper.commit(6)
        listed = self.muster_json("checkpoint", "list", keeper.job.gang)["checkpoints"]
        steps = sorted({started, 4, 5, 6})
        self.assertEqual([(entry["step"], entry["state"]) for entry in listed], [(step, "good") for step in steps])
        self.assertEqual([entry["generation"] for entry in listed], [1 if step <= started else 2 for step in steps])
        self.muster_json("checkpoint", "verify", keeper.job.gang)
        report(f"{len(set(self.objects(keeper, 4, 1)) - set(written))} objects were written late")
        # What came late is removed with everything that was torn, and what is loaded is what was saved.
        keeper.kill_one(OTHER if node != OTHER else "n4")
        self.assertEqual(keeper.started(3), 6)
        keeper.allow(7)
        keeper.finish()
        self.wait(lambda: self.objects(keeper, 4, 1) == [], "what was torn to be removed")
        self.muster_json("checkpoint", "verify", keeper.job.gang)

    def test_what_lands_after_the_new_generation_has_collected_is_removed_while_it_runs(self) -> None:
        """A write that an OSD held up when its writer was stopped."""
        self.addCleanup(self.mend)
        self.wait_until_idle()
        keeper = Keeper(self, 3, gang="spares=1", nodes=4)
        keeper.commit(1)
        torn = self.objects(keeper, 1, 1)[0].replace("/1.", "/2.", 1)
        store = Rados(self.cluster, "trainer")
        store.put(torn, b"torn")
        keeper.kill_one(OTHER)
        self.assertEqual(keeper.started(2), 1)
        self.wait(lambda: self.objects(keeper, 2, 1) == [], "the new generation to collect")
        store.put(torn, b"late")
        self.wait(lambda: self.objects(keeper, 2, 1) == [], "what landed late to be removed", SOON)
        self.assertEqual(self.muster_json("status", keeper.job.id)["gangs"][-1]["generation"], 2, "no other has begun")
        keeper.finish()

    def test_a_node_in_the_middle_of_a_save(self) -> None:
        self.wakes_up_late(THIRD, "engine.chunk_written:2", 3)

    def test_a_node_that_was_to_report_its_shard(self) -> None:
        self.wakes_up_late(THIRD, "agent.shard_reported", 3)

    def test_a_coordinator_between_the_manifest_and_the_head(self) -> None:
        self.wakes_up_late(COORDINATOR, "catalog.manifest_written", 3)

    def test_a_coordinator_that_removes_what_it_has_dropped(self) -> None:
        self.wakes_up_late(COORDINATOR, "catalog.object_removed:2", 4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
