#!/usr/bin/python3
"""A lost node's state out of the parity that the nodes of its group keep of each other's shards, and out of Ceph where that fails."""

import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import SOON  # noqa: E402
from keepers import RANKS, Keeper, KeeperCase  # noqa: E402

SLOTS = RANKS // 3  # members of a node


def setUpModule() -> None:
    # Without sharing: the removed objects of one checkpoint are in no other.
    settings = {"chunk_size": "64KiB", "incremental": "no", "store_timeout": "5s", "log_level": "debug", "partner_group": "3"}
    harness.start("parity", nodes=5, settings=settings)


class Parity(KeeperCase):
    def commit_and_build(self, keeper: Keeper, nodes: list[str], *steps: int) -> None:
        """Lets the gang make these steps, and waits until each of its nodes has parity of the last one."""
        keeper.commit(*steps)
        lines = [f"gang {keeper.job.gang}: parity of slot {slot}, step {steps[-1]}, is kept on {node}" for node in nodes for slot in range(SLOTS)]
        self.wait(lambda: self.musterds_said(lines), "parity on all nodes")

    def test_a_node_that_takes_a_dead_ones_place_needs_no_store(self) -> None:
        keeper = self.with_spares()
        self.commit_and_build(keeper, ["n1", "n2", "n3"], 1, 2, 3)
        self.remove_objects(keeper, 3, 4, 5)
        self.lose("n3")
        self.assertEqual(keeper.started(2), 3)
        keeper.finish()
        self.assertEqual(self.restored(keeper), [f"{RANKS - 2} shards from memory, 2 from partners, 0 from the store"])
        self.assertEqual(self.event_texts(keeper.job, "checkpoint_bad"), [])

    def test_parity_that_is_damaged_is_made_good_from_the_store(self) -> None:
        keeper = self.with_spares()
        self.commit_and_build(keeper, ["n1", "n2", "n3"], 1, 2)
        self.damage_copies("n2")
        self.lose("n3")
        self.assertEqual(keeper.started(2), 2)
        keeper.finish()
        self.assertEqual(self.restored(keeper), [f"{RANKS - 2} shards from memory, 1 from partners, 1 from the store"])

    def test_two_lost_nodes_of_a_group_are_read_from_the_store(self) -> None:
        keeper = self.with_spares(2)
        self.commit_and_build(keeper, ["n1", "n2", "n3"], 1, 2)
        self.lose("n1", "n3")
        # Both at once, or one after the other: the state is whole in the last generation only.
        self.wait(lambda: self.restored(keeper), "the state to be there again", 2 * SOON)
        keeper.finish()
        self.assertEqual(self.restored(keeper)[-1], "2 shards from memory, 0 from partners, 4 from the store")

    def test_the_next_generation_has_a_group_of_the_nodes_that_it_has(self) -> None:
        keeper = self.with_spares(2)
        self.commit_and_build(keeper, ["n1", "n2", "n3"], 1, 2)
        self.lose("n3")
        self.assertEqual(keeper.started(2), 2)
        self.commit_and_build(keeper, ["n1", "n2", "n4"], 3, 4)
        self.lose("n4")  # which had taken n3's place
        self.assertEqual(keeper.started(3), 4)
        keeper.finish()
        expected = f"{RANKS - 2} shards from memory, 2 from partners, 0 from the store"
        self.assertEqual(self.restored(keeper), [expected, expected])


if __name__ == "__main__":
    unittest.main(verbosity=2)
