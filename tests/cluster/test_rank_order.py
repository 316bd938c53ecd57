#!/usr/bin/python3
"""--gang=order=topology: ranks follow Slurm's switches, and keep to it when a node is lost."""

import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import SLURM, ClusterCase, Record  # noqa: E402

LEAVES = {"n1": "leaf1", "n3": "leaf1", "n6": "leaf1", "n2": "leaf2", "n4": "leaf2", "n5": "leaf3"}
NODES, TASKS, MEMBERS = 6, 12, 8  # two nodes wait
CODE = "record(); until_released()"


def setUpModule() -> None:
    topology = ["SwitchName=spine Switches=leaf[1-3]"]
    for leaf in sorted(set(LEAVES.values())):
        topology.append(f"SwitchName={leaf} Nodes={','.join(node for node in sorted(LEAVES) if LEAVES[node] == leaf)}")
    # Slurm notices a dead node by itself much later than Muster: what happens before is Muster's doing.
    slurm = {"TopologyPlugin": "topology/tree", "SlurmdTimeout": "60"}
    harness.start("order", nodes=NODES, ceph=False, limits=harness.RESTARTS, slurm=slurm, topology=topology)


def hosts(records: list[Record]) -> list[str]:
    """In the order of the ranks, each node once; its two members have ranks that follow each other."""
    assert [record.host for record in records[::2]] == [record.host for record in records[1::2]], records
    return [record.host for record in records[::2]]


class RankOrder(ClusterCase):
    def setUp(self) -> None:
        self.addCleanup(self.mend)

    def test_without_the_key_the_ranks_are_in_slurms_order(self) -> None:
        job = self.gang(CODE, gang="spares=2", nodes=NODES, tasks=TASKS)
        self.assertEqual(hosts(job.wait_for_generation(1, MEMBERS)), ["n1", "n2", "n3", "n4"])
        self.assertEqual(self.event_texts(job, "order"), [])
        job.release()
        self.assertEqual(job.wait(SLURM), 0, job.err)

    def test_without_a_topology_the_ranks_are_in_slurms_order_and_one_event_says_so(self) -> None:
        file = self.cluster.directory / "etc" / "slurm" / "topology.conf"  # Slurm has read it
        away = file.rename(file.with_suffix(".away"))
        self.addCleanup(away.rename, file)
        job = self.gang(CODE, gang="spares=2,order=topology", nodes=NODES, tasks=TASKS)
        self.assertEqual(hosts(job.wait_for_generation(1, MEMBERS)), ["n1", "n2", "n3", "n4"])
        self.assertEqual(self.event_texts(job, "order"), ["the ranks are in Slurm's order: Slurm's topology has none of its nodes"])
        job.release()
        self.assertEqual(job.wait(SLURM), 0, job.err)

    def test_ranks_are_together_below_each_switch_and_the_nearest_spare_takes_a_lost_nodes(self) -> None:
        job = self.gang(CODE, gang="spares=2,order=topology", nodes=NODES, tasks=TASKS)
        first = job.wait_for_generation(1, MEMBERS)
        self.assertEqual(hosts(first), ["n1", "n3", "n2", "n4"])
        for record in first:
            address = f"spine.{LEAVES[record.host]}.{record.host}"
            self.assertEqual(record.env["SLURM_TOPOLOGY_ADDR"], address, "Slurm's own idea of its file")
            self.assertEqual((record.env["RANK"], record.env["SLURM_PROCID"]), (str(record.rank), str(record.rank)))
            self.assertEqual(record.env["SLURM_NODELIST"], "n[1,3,2,4]")
            self.assertEqual(record.env["MASTER_ADDR"], "n1")
        said = "the ranks follow Slurm's topology: {}; a ring over them crosses 2 levels of switches, {} in Slurm's order, 2 at best"
        self.assertEqual(self.event_texts(job, "order"), [said.format("n1, n3, n2, n4", 4)])
        self.cluster.kill("n3")
        # n5, which is before n6 in Slurm's order, is below a third switch.
        self.assertEqual(hosts(job.wait_for_generation(2, MEMBERS)), ["n1", "n6", "n2", "n4"])
        self.assertEqual(self.event_texts(job, "placement"), ["n6 takes the place of n3"])
        self.assertEqual(self.event_texts(job, "order")[1:], [said.format("n1, n6, n2, n4", 2)])
        job.release()
        self.assertEqual(job.wait(SLURM), 0, job.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
