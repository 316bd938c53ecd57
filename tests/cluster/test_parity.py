#!/usr/bin/python3
"""A lost node's state out of the parity that the nodes of its group keep of each other's shards, and out of Ceph where that fails."""

import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
import keepers  # noqa: E402
from keepers import RANKS, Keeper  # noqa: E402

SLOTS = RANKS // 3  # members of a node


def setUpModule() -> None:
    # Without sharing: the removed objects of one checkpoint are in no other.
    settings = {"chunk_size": "64KiB", "incremental": "no", "store_timeout": "5s", "log_level": "debug", "partner_group": "3"}
    harness.start("parity", nodes=5, settings=settings)


class Parity(keepers.LostNodes):
    after_two = "2 shards from memory, 0 from partners, 4 from the store"

    def keep(self, keeper: Keeper, nodes: list[str], *steps: int) -> None:
        keeper.commit(*steps)
        lines = [f"gang {keeper.job.key.removeprefix('job-')}: parity of slot {slot}, step {steps[-1]}, is kept on {node}" for node in nodes for slot in range(SLOTS)]
        self.wait(lambda: self.musterds_said(lines), "parity on all nodes")


if __name__ == "__main__":
    unittest.main(verbosity=2)
