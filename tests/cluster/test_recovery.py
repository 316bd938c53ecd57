#!/usr/bin/python3
"""Where a restarted gang gets its state from: its nodes' memory, as long as it holds what was saved, else another node's, else Ceph."""

import signal
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
import keepers  # noqa: E402
from keepers import RANKS, Keeper, KeeperCase  # noqa: E402
from pool import Rados  # noqa: E402

METRICS = "/var/lib/muster/muster.prom"
TWO_OSDS = ["osd.1", "osd.2"]  # of three; two are needed for a write


def setUpModule() -> None:
    # Without sharing: the damaged objects of one checkpoint are in no other.
    settings = {"chunk_size": "64KiB", "incremental": "no", "store_timeout": "5s", "log_level": "debug", "metrics_file": METRICS}
    topology = ["SwitchName=spine Switches=leaf[1-2]", "SwitchName=leaf1 Nodes=n[1,3-4]", "SwitchName=leaf2 Nodes=n[2,5]"]
    harness.start("recovery", nodes=5, osds=3, settings=settings, topology=topology)


class Recovery(KeeperCase):
    def test_a_program_that_died_gets_its_state_from_its_nodes_memory(self) -> None:
        keeper = Keeper(self, 8)
        keeper.commit(1, 2, 3)
        keeper.kill_one()
        self.assertEqual(keeper.started(2), 3)
        keeper.commit(4, 5)
        keeper.kill_one()
        self.assertEqual(keeper.started(3), 5)
        # At once again, from the same memory: nothing has been saved since.
        keeper.kill_one()
        self.assertEqual(keeper.started(4), 5)
        keeper.finish()
        self.assertEqual(self.restored(keeper), [f"{RANKS} shards from memory, 0 from partners, 0 from the store"] * 3)

    def test_prometheus_is_told_of_a_gang_as_long_as_there_is_one(self) -> None:
        keeper = Keeper(self, 4)
        keeper.commit(1, 2)
        keeper.kill_one()
        keeper.started(2)
        keeper.commit(3)
        status = self.status(keeper.job)
        labels = f'gang="{status["gang"]}",uid="{status["uid"]}"'

        def told() -> str:
            return str(self.cluster.exec(status["coordinator"], ["cat", METRICS]).stdout)

        wanted = [f"muster_gang_{name}{{{labels}}} " for name in ("recovery_seconds", "step", "checkpoint_timestamp_seconds", "checkpoint_stall_seconds")]
        wanted += [
            f'muster_gang_state{{{labels},state="running"}} 1',
            f"muster_gang_generation{{{labels}}} 2",
            f'muster_gang_restarts_total{{{labels},cause="infrastructure"}} 1',
            f'muster_gang_restarts_total{{{labels},cause="user"}} 0',
            f'muster_gang_nodes{{{labels},role="active"}} {len(status["active"])}',
            f"muster_gang_checkpoint_step{{{labels}}} 3",
        ]
        self.wait(lambda: all(line in text for line in wanted) if (text := told()) else False, "the figures", 60)
        keeper.finish()
        self.wait(lambda: "muster_build_info" in told() and labels not in told(), "their end", 60)

    def test_memory_serves_when_the_store_has_lost_the_newest_checkpoint(self) -> None:
        keeper = Keeper(self, 6)
        keeper.commit(1, 2, 3)
        rados = Rados(self.cluster, "trainer")
        for name in rados.list(f"data/{keeper.job.key}/3."):
            rados.run("rm", name)
        keeper.kill_one()
        self.assertEqual(keeper.started(2), 3)
        keeper.finish()
        self.assertEqual(self.event_texts(keeper.job, "checkpoint_bad"), [])

    def test_a_program_that_died_is_restored_while_ceph_does_not_answer(self) -> None:
        """Invariant: a process restart does not wait for the store."""
        keeper = Keeper(self, 6)
        keeper.commit(1, 2, 3)
        for osd in TWO_OSDS:
            self.cluster.signal_daemon("ceph", osd, signal.SIGSTOP)
        try:
            keeper.kill_one()
            self.assertEqual(keeper.started(2), 3)
        finally:
            for osd in TWO_OSDS:
                self.cluster.signal_daemon("ceph", osd, signal.SIGCONT)
        keeper.finish()
        self.assertEqual(self.restored(keeper), [f"{RANKS} shards from memory, 0 from partners, 0 from the store"])

    def test_a_save_that_was_not_committed_is_not_restored_from_memory(self) -> None:
        keeper = Keeper(self, 6)
        keeper.commit(1, 2)
        # Five of the six members save the third step; the sixth is dead before it does.
        for osd in TWO_OSDS:
            self.cluster.signal_daemon("ceph", osd, signal.SIGSTOP)
        try:
            keeper.allow(3)
            self.wait(lambda: self.saving(keeper), "the members to wait for their save")
            keeper.forbid(3)
            keeper.kill_one()
            self.assertEqual(keeper.started(2), 2)
        finally:
            for osd in TWO_OSDS:
                self.cluster.signal_daemon("ceph", osd, signal.SIGCONT)
        keeper.finish()

    def saving(self, keeper: Keeper) -> bool:
        return len(list(keeper.job.files.glob("saved.3.*"))) == RANKS


class Copies(keepers.LostNodes):
    """By leaf switch the three nodes are n1, n3, n2, and each keeps the copies of the one before: n2 has those of n3, n3 of n1.
    It is not n2, which coordinates, that dies."""

    after_two = "2 shards from memory, 2 from partners, 2 from the store"

    def keep(self, keeper: Keeper, nodes: list[str], *steps: int) -> None:
        keeper.commit(*steps)
        kept = [f"gang {keeper.job.key.removeprefix('job-')}: rank {rank}'s shard of step {steps[-1]} is kept by " for rank in range(RANKS)]
        self.wait(lambda: self.musterds_said(kept), "copies of all shards")


if __name__ == "__main__":
    unittest.main(verbosity=2)
