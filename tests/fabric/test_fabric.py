#!/usr/bin/python3
"""`muster net test` on sixteen nodes in network namespaces: what is wrong with one link is named, with its direction."""

import itertools
import os
import random
import subprocess
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path

from measure import KINDS, mend
from namespaces import BUILD, MBIT_S, Fabric, enter_namespaces

NODES = 16
DRAWS = 10
PACKETS_FULL = 4600  # so many show 0.1 % (kPacketsFull in referee.cc)
SEED = int(os.environ.get("MUSTER_TEST_SEED", "1"))


class FabricTest(unittest.TestCase):
    fabric: Fabric
    temporary: "tempfile.TemporaryDirectory[str]"

    @classmethod
    def setUpClass(cls) -> None:
        cls.temporary = tempfile.TemporaryDirectory()
        cls.fabric = Fabric(NODES, Path(cls.temporary.name))

    @classmethod
    def tearDownClass(cls) -> None:
        cls.fabric.close()
        cls.temporary.cleanup()

    def setUp(self) -> None:
        self.random = random.Random(f"{SEED} {self.id()}")

    def any_node(self) -> int:
        return self.random.randrange(1, NODES)

    def planted(self, plant: Callable[[int], None], mend: Callable[[int], None], *words: str) -> list[tuple[str, str, str]]:
        """What is named with this fault on one node, whose name is *."""
        node = self.any_node()
        plant(node)
        try:
            verdict = self.fabric.test(*words)
        finally:
            mend(node)
        self.assertEqual((verdict.code, verdict.errors), (1, []), verdict.document)
        self.assertTrue(all(one["text"] and one["fix"] for one in verdict.document["findings"]), verdict.document)
        return [(trouble, direction, "*" if name == f"n{node}" else name) for trouble, direction, name in verdict.named()]

    def test_a_fabric_without_a_fault_has_no_finding(self) -> None:
        for _ in range(10):
            verdict = self.fabric.test()
            self.assertEqual((verdict.code, verdict.named(), verdict.errors), (0, [], []), verdict.document)
            self.assertEqual(verdict.document["nodes"], NODES)

    def test_one_fault_of_each_kind_on_a_node_that_is_drawn_is_named_with_its_direction(self) -> None:
        """Ten draws: half a rate, in a direction or in both, an MTU at one end, a cable that is out, one packet in a hundred that is lost."""
        faults = {kind: (plant, said) for kind, (plant, said) in KINDS.items() if said is not None}
        for number, kind in zip(range(DRAWS), itertools.cycle(faults)):
            plant, said = faults[kind]
            node = self.random.randrange(NODES)
            with self.subTest(kind, draw=number, node=node):
                plant(self.fabric, node)
                try:
                    verdict = self.fabric.test()
                finally:
                    mend(self.fabric, node)
                self.assertEqual((verdict.code, verdict.errors, verdict.named()), (1, [], [(*said, f"n{node}")]), verdict.document)
                [finding] = verdict.document["findings"]
                self.assertTrue(finding["text"] and finding["fix"], finding)

    def test_one_packet_lost_in_a_thousand_is_named_by_the_full_test_alone(self) -> None:
        one_in_a_thousand = "numgen inc mod 1000 < 1"
        found = self.planted(lambda node: self.fabric.drop(node, one_in_a_thousand), lambda node: self.fabric.drop(node, ""), "--full")
        self.assertEqual(found, [("lossy", "in", "*")])
        node = self.any_node()
        self.fabric.drop(node, one_in_a_thousand)
        try:
            quick = self.fabric.test()
        finally:
            self.fabric.drop(node, "")
        self.assertEqual((quick.code, quick.named()), (0, []), quick.document)
        full = self.fabric.test("--full")
        self.assertEqual((full.code, full.named(), full.errors), (0, [], []), full.document)
        self.assertGreaterEqual(full.document["packets"], PACKETS_FULL, "over each link and direction")
        self.assertLess(quick.document["packets"], PACKETS_FULL)

    def test_another_gangs_traffic_on_the_same_links_is_no_finding_and_its_nodes_are_named(self) -> None:
        others = self.random.sample(range(NODES), NODES // 2)
        names = {f"n{node}" for node in others}
        slow = self.random.choice([node for node in range(1, NODES) if node not in others])
        with self.fabric.other_gang(others):
            verdict = self.fabric.test()
            self.assertEqual((verdict.code, verdict.named(), verdict.errors), (0, [], []), verdict.document)
            shared = set(verdict.document["shared"])
            self.assertTrue(shared and shared <= names, f"{shared} of {names}")
        # What is bad elsewhere is found all the same. Of its peers two have links for themselves at least.
        with self.fabric.other_gang(others[:2]):
            self.fabric.rate(slow, out=MBIT_S / 2)
            try:
                verdict = self.fabric.test()
            finally:
                self.fabric.rate(slow, out=MBIT_S)
            self.assertEqual((verdict.code, verdict.named()), (1, [("slow", "out", f"n{slow}")]), verdict.document)

    def test_large_packets_that_vanish_are_named_with_their_direction(self) -> None:
        found = self.planted(lambda node: self.fabric.drop(node, "meta length > 1450"), lambda node: self.fabric.drop(node, ""))
        self.assertEqual(found, [("mtu", "in", "*")])

    def test_a_firewall_before_connections_is_named(self) -> None:
        found = self.planted(lambda node: self.fabric.drop(node, "meta l4proto tcp"), lambda node: self.fabric.drop(node, ""))
        self.assertEqual(found, [("blocked", "both", "*")])

    def test_a_node_that_does_not_come_is_named_and_the_others_are_tested(self) -> None:
        verdict = self.fabric.test("--wait=15", nodes=4, leave_out=(2,))
        self.assertEqual((verdict.code, verdict.document["missing"], verdict.document["nodes"]), (1, [2], 3))
        self.assertEqual(verdict.named(), [])

    def test_two_nodes_can_tell_the_direction_but_not_whose_link_it_is(self) -> None:
        self.fabric.rate(1, out=MBIT_S / 2)
        try:
            verdict = self.fabric.test(nodes=2)
        finally:
            self.fabric.rate(1, out=MBIT_S)
        self.assertEqual((verdict.code, verdict.named()), (1, [("slow", "out", "n1-n0")]), verdict.document)
        self.assertEqual(verdict.document["findings"][0]["fix"], "on n1 and n0: ethtool roce0")

    def test_a_node_without_an_address_of_the_fabric_is_named_and_not_measured_beside_it(self) -> None:
        self.fabric.address(2, there=False)
        try:
            verdict = self.fabric.test(nodes=4)
        finally:
            self.fabric.address(2, there=True)
        self.assertEqual((verdict.code, verdict.named()), (1, [("no-rail", "both", "n2")]), verdict.document)
        [finding] = verdict.document["findings"]
        self.assertEqual(finding["text"], "n2 has no address in 10.77.0.0/16, others have (roce0).")
        self.assertEqual(finding["fix"], "ip address show dev roce0; grep networks /etc/muster/roce.yaml")
        self.assertEqual(verdict.document["measurements"], 6, "of three pairs, in both directions")

    def test_interfaces_over_one_port_take_turns_and_a_link_with_half_its_rate_is_named_for_each(self) -> None:
        with self.fabric.second_interfaces(range(4)):
            verdict = self.fabric.test(nodes=4)
            self.assertEqual((verdict.code, verdict.named(), verdict.errors), (0, [], []), verdict.document)
            self.assertEqual((verdict.document["rails"], verdict.document["shared"]), (2, []), "an interface's data is not the other's neighbour")
            self.fabric.rate(2, out=MBIT_S / 2)
            try:
                verdict = self.fabric.test(nodes=4)
            finally:
                self.fabric.rate(2, out=MBIT_S)
            self.assertEqual((verdict.code, verdict.named()), (1, [("slow", "out", "n2")] * 2), verdict.document)

    def test_between_racks_with_networks_of_their_own_a_router_is_no_finding_and_a_bad_link_is_named(self) -> None:
        with self.fabric.racks(range(4), range(4, 8), router=True):
            verdict = self.fabric.test(nodes=8)
            self.assertEqual((verdict.code, verdict.named(), verdict.document["rails"]), (0, [], 1), verdict.document)
            node = self.random.randrange(8)
            self.fabric.rate(node, into=MBIT_S / 2)
            try:
                verdict = self.fabric.test(nodes=8)
            finally:
                self.fabric.rate(node, into=MBIT_S)
            self.assertEqual((verdict.code, verdict.named()), (1, [("slow", "in", f"n{node}")]), verdict.document)

    def test_racks_that_do_not_reach_each_other_are_said_in_one_sentence_and_no_node_is_named(self) -> None:
        with self.fabric.racks(range(4), range(4, 8), router=False):
            verdict = self.fabric.test(nodes=8)
        self.assertEqual((verdict.code, verdict.errors, len(verdict.document["findings"])), (1, [], 1), verdict.document)
        [finding] = verdict.document["findings"]
        self.assertEqual((finding["trouble"], finding["direction"], finding["networks"]), ("unreachable", "both", ["10.77.0.0/16", "10.79.0.0/16"]))
        self.assertEqual(finding["text"], "Nothing arrives between 10.77.0.0/16 and 10.79.0.0/16, though their nodes reach others: no route joins these networks.")
        self.assertEqual(finding["fix"], "ip route show to match 10.79.0.0/16")

    def test_without_a_gang_it_says_how_to_start_it(self) -> None:
        command = self.fabric.command(0, "env", "-u", "GROUP_RANK", str(BUILD / "bin" / "muster"), "net", "test", f"--settings={self.fabric.settings}")
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("srun --gang=restarts=0 -N4 --ntasks-per-node=1 muster net test", done.stderr)


if __name__ == "__main__":
    enter_namespaces()
    unittest.main()
