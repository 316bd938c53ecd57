#!/usr/bin/python3
"""--gang=preflight=quick: the links between the nodes are tested before the program starts, and a spare takes a bad one's place."""

import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import ClusterCase, Job, Record  # noqa: E402

NODES = ["n1", "n2", "n3", "n4"]
MBIT_S = 20  # of each node's link: what two processors can always give all of them
CODE = "record(); until_released()"


def setUpModule() -> None:
    cluster = harness.start("preflight", nodes=len(NODES), ceph=False, limits=harness.RESTARTS)
    address = cluster.exec("n1", ["hostname", "-i"]).stdout.split()[0]
    network = ".".join(address.split(".")[:3]) + ".0/24"
    settings = cluster.directory / "etc" / "muster" / "roce.yaml"
    settings.write_text(f"networks: {network}\nmtu: 1500\nrate: {MBIT_S}\n")


def hosts(records: list[Record]) -> list[str]:
    return [record.host for record in records]


class Preflight(ClusterCase):
    def setUp(self) -> None:
        self.addCleanup(self.mend)
        for node in NODES:
            # Segments as they are on a wire: tbf counts and drops packets.
            self.cluster.exec(node, ["ip", "link", "set", "eth0", "gso_max_segs", "1"])
            self.shape(node, MBIT_S)
        self.cluster.restart_daemon("n2", "musterd")  # it forgets the links that it knows to be good

    def shape(self, node: str, mbit_s: float) -> None:
        """What leaves the node."""
        rate = ["rate", f"{mbit_s:.2f}mbit", "burst", "8kb", "latency", "50ms"]
        done = self.cluster.exec(node, ["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *rate])
        self.assertEqual(done.returncode, 0, done.stderr)

    def links(self, job: Job) -> list[str]:
        return self.event_texts(job, "links")

    def measuring(self) -> list[str]:
        """The pids, on n1, of what measures. (Before it runs, no musterd may know the gang.)"""
        find = ["pgrep", "-u", "trainer", "-f", "^muster net test"]
        return self.wait(lambda: self.cluster.exec("n1", find).stdout.split(), "what measures")

    def ends(self, job: Job) -> None:
        job.release()
        self.assertEqual(job.wait(), 0, job.err)

    def test_a_gang_with_good_links_starts_after_the_test(self) -> None:
        job = self.gang(CODE, gang="preflight=quick", nodes=4, tasks=8)
        job.wait_for_generation(1, 8)
        told = self.links(job)
        self.assertEqual(told[0], "the links between 4 nodes are tested")
        self.assertRegex(told[1], r"measurements by tcp between 4 nodes in .* s: a good link carries [\d.]+ Mbit/s; no link is bad")
        self.assertEqual(len(told), 2)
        self.assertEqual(self.status(job)["generation"], 1)
        self.ends(job)
        self.assertNotIn("link", job.err)
        shown = self.cluster.exec("n3", ["muster", "node", "show", "n3"])
        self.assertRegex(shown.stdout, r"(?m)^its links were good \d+ s ago \(the quick test of uid \d+: ", shown.stderr)
        again = self.gang(CODE, gang="preflight=quick", nodes=4, tasks=4)
        again.wait_for_generation(1, 4)
        self.assertRegex("".join(self.links(again)), "^the links between 4 nodes were found good a short time ago, in test ")
        fully = self.gang(CODE, gang="preflight=full", nodes=4, tasks=4)
        fully.wait_for_generation(1, 4)
        self.assertEqual(self.links(fully)[0], "the links between 4 nodes are tested")
        self.ends(again)
        self.ends(fully)

    def test_a_spare_takes_the_place_of_a_node_with_a_bad_link(self) -> None:
        self.shape("n2", MBIT_S / 3)
        job = self.gang(CODE, gang="preflight=quick,spares=1", nodes=4, tasks=4)
        self.assertEqual(hosts(job.wait_for_generation(1, 3)), ["n1", "n3", "n4"])
        told = self.links(job)
        self.assertRegex(told[1], r"^node n2 is left out: .* of .* Mbit/s arrive from n2 \(eth0\); look: ethtool eth0$")
        self.assertEqual(told[3], "the links between 3 nodes are tested")
        self.assertIn("no link is bad", told[4])
        self.assertRegex(self.node_states()["n2"], "^(alloc|mix)", "a user's word drains nothing")
        self.ends(job)
        self.assertIn("node n2 is left out", job.err)

    def test_without_a_spare_the_gang_starts_with_a_warning(self) -> None:
        self.shape("n3", MBIT_S / 3)
        job = self.gang(CODE, gang="preflight=full", nodes=4, tasks=4)
        self.assertEqual(hosts(job.wait_for_generation(1, 4)), NODES)
        self.ends(job)
        self.assertRegex(job.err, "node n3 stays, for no spare can take its place: .* arrive from n3")

    def test_what_measures_may_be_killed(self) -> None:
        """By its user; nobody is left that measures, and the program starts."""
        self.shape("n1", MBIT_S / 20)  # so slow that there is time to
        job = self.gang(CODE, gang="preflight=full", nodes=4, tasks=4)
        self.cluster.user("n1", ["kill", "-KILL", *self.measuring()])
        self.assertEqual(hosts(job.wait_for_generation(1, 4)), NODES)
        self.assertIn("the links are not tested: the program that measures was killed by signal 9", self.links(job))
        self.ends(job)

    def test_a_musterd_that_restarts_meanwhile_costs_another_test(self) -> None:
        """That of the node that leads: its program still measures, and nobody asks it any more."""
        self.shape("n1", MBIT_S / 20)
        job = self.gang(CODE, gang="preflight=full", nodes=4, tasks=4)
        self.measuring()
        self.cluster.restart_daemon("n1", "musterd")
        self.shape("n1", MBIT_S)
        self.assertEqual(hosts(job.wait_for_generation(1, 4)), NODES)
        self.assertGreaterEqual(self.links(job).count("the links between 4 nodes are tested"), 2)
        self.ends(job)

    def test_a_node_that_dies_meanwhile_is_replaced(self) -> None:
        self.shape("n1", MBIT_S / 20)
        job = self.gang(CODE, gang="preflight=full,spares=1", nodes=4, tasks=4)
        self.measuring()
        self.cluster.kill("n2")  # where the coordinator is
        self.shape("n1", MBIT_S)
        self.assertEqual(hosts(job.wait_for_generation(1, 3)), ["n1", "n3", "n4"])
        self.ends(job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
