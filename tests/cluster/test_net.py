#!/usr/bin/python3
"""The fabric of a gang: what members are told of it, and `muster net test` between its nodes."""

import json
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import ClusterCase  # noqa: E402

SHOW = ["sh", "-c", 'echo "$NCCL_SOCKET_IFNAME $NCCL_IB_TC"']


def setUpModule() -> None:
    harness.start("net", nodes=3, ceph=False)


class Net(ClusterCase):
    def describe_fabric(self) -> None:
        """The nodes' own network is the fabric."""
        address = self.cluster.exec("n1", ["hostname", "-i"]).stdout.split()[0]
        network = ".".join(address.split(".")[:3]) + ".0/24"
        settings = self.cluster.directory / "etc" / "muster" / "roce.yaml"
        settings.write_text(f"networks: {network}\nmtu: 1500\n")
        self.addCleanup(settings.unlink)
        for node in ("n1", "n2", "n3"):
            self.cluster.restart_daemon(node, "musterd")

    def test_members_are_told_of_the_fabric_and_keep_what_is_theirs(self) -> None:
        plain = self.srun(SHOW, nodes=3, tasks=3)
        self.assertEqual((plain.wait(), plain.out.split()), (0, []))
        self.describe_fabric()
        interfaces = json.loads(self.cluster.exec("n1", ["muster", "net", "env", "--json"]).stdout)["variables"]
        self.assertEqual([one["key"] for one in interfaces], ["NCCL_SOCKET_IFNAME"], "there is no RDMA here")
        told = interfaces[0]["value"]

        def members(*words: str) -> list[str]:
            job = self.srun([*words, *SHOW], nodes=3, tasks=3)
            self.assertEqual(job.wait(), 0, job.err)
            return [line.strip() for line in job.out.splitlines()]

        # A musterd that has just started may not have looked yet.
        self.wait(lambda: members() == [told] * 3, "members that are told")
        own = self.srun(SHOW, nodes=3, tasks=3, env={"NCCL_SOCKET_IFNAME": "=mine", "NCCL_IB_TC": "0"})
        self.assertEqual((own.wait(), own.out.splitlines()), (0, ["=mine 0"] * 3))

    def test_the_nodes_of_a_gang_test_their_fabric(self) -> None:
        self.describe_fabric()
        job = self.srun(["muster", "net", "test", "--json"], "restarts=0", nodes=3, tasks=6)
        self.assertEqual(job.wait(), 0, job.err)
        verdict = json.loads(job.out)
        self.assertEqual((verdict["ok"], verdict["nodes"], verdict["findings"], verdict["missing"]), (True, 3, [], []))
        self.assertGreater(verdict["mbit_s"], 0)

    def test_outside_of_a_gang_it_says_how_to_start_it(self) -> None:
        job = self.srun(["muster", "net", "test"], gang=None, nodes=1, tasks=1)
        self.assertEqual(job.wait(), 2)
        self.assertIn("srun --gang=restarts=0 -N4 --ntasks-per-node=1 muster net test", job.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
