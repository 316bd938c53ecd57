#!/usr/bin/python3
"""`muster net` on two guests with kernels and RDMA devices (rdma_rxe) of their own, and verbs between them. The binary is of build/bin,
or of the build that MUSTER_BUILD names."""

import contextlib
import json
import subprocess
import sys
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster"), str(HERE.parent / "provision")]

from guest import Guest, Guests, LinkTest, Options, guests_of_test, wait_until  # noqa: E402

SETTINGS = "/etc/muster/roce.yaml"
PORT = "/sys/class/infiniband/rxe0/ports/1"
CMA = "/sys/kernel/config/rdma_cm/rxe0"
TOS = f"{CMA}/ports/1/default_roce_tos"
# What a network card without DCB cannot say.
UNKNOWN = {"dcbx", "dscp", "pfc", "storm_prevention", "pause_storms", "ecn", "cnp"}
WAIT_S = 180.0
BESIDE = "10.78.0"  # a network that is not the fabric's

Document = dict[str, Any]


class FabricTest(unittest.TestCase):
    guests: ClassVar[Guests]
    a: ClassVar[Guest]
    b: ClassVar[Guest]

    @classmethod
    def setUpClass(cls) -> None:
        cls.guests = guests_of_test(2, Options(management=f"{BESIDE}.254/24"))
        cls.addClassCleanup(cls.guests.stop)
        cls.guests.start()
        cls.a, cls.b = cls.guests.guests
        for guest in (cls.a, cls.b):
            # Emulated processors are what limits it.
            guest.write(SETTINGS, "networks: 10.77.0.0/16\nrate: 50\n")

    def net(self, guest: Guest, command: str, code: int) -> dict[str, Document]:
        """What `muster net` says of each knob."""
        done = guest.run(["muster", "net", command, "--json"])
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        document: Document = json.loads(done.stdout)
        self.assertEqual(document["ok"], code == 0)
        self.assertEqual({knob["interface"] for knob in document["knobs"]}, {guest.interface})
        self.assertEqual({knob["driver"] for knob in document["knobs"]}, {"virtio_net"})
        return {knob["knob"]: knob for knob in document["knobs"]}

    def set_up(self, *guests: Guest) -> None:
        for guest in guests:
            self.net(guest, "set", code=0)

    def states(self, knobs: dict[str, Document]) -> dict[str, str]:
        """Without those that are of the card, and unknown each time."""
        self.assertLessEqual({name for name, knob in knobs.items() if knob["state"] == "unknown"}, UNKNOWN)
        self.assertEqual(knobs.get("subnet", {"state": "is"})["state"], "is")
        return {name: knob["state"] for name, knob in knobs.items() if name not in UNKNOWN | {"subnet"}}

    def as_before_muster(self, guest: Guest) -> None:
        """What the kernel has at first."""
        guest.run(["ip", "link", "set", "dev", guest.interface, "mtu", "1500"], check=True)
        guest.run(["sh", "-c", f"mkdir -p {CMA} && echo 0 >{TOS}"], check=True)

    def mtu(self, guest: Guest) -> int:
        return int(guest.read(f"/sys/class/net/{guest.interface}/mtu"))

    def gid(self, guest: Guest) -> int:
        """The index of its device's GID of RoCE v2 with its address of IPv4."""
        words = [f"{int(byte):02x}" for byte in guest.address.split(".")]
        wanted = f"0000:0000:0000:0000:0000:ffff:{words[0]}{words[1]}:{words[2]}{words[3]}"

        def found() -> list[int]:
            with_address = guest.run(["grep", "-rlx", wanted, f"{PORT}/gids"]).stdout.split()  # of a thousand
            indices = [file.rpartition("/")[2] for file in with_address]
            return [int(index) for index in indices if guest.read(f"{PORT}/gid_attrs/types/{index}") == "RoCE v2\n"]

        [index] = wait_until(found, WAIT_S, f"a GID {wanted} of RoCE v2 on {guest.name}")
        return index

    def large_ping(self, sender: Guest, receiver: Guest, wait_s: int = 60) -> int:
        """Whether a packet of 9,000 bytes is answered; ping's exit status."""
        return sender.run(["ping", "-c", "1", "-W", str(wait_s), "-M", "do", "-s", "8972", receiver.address]).returncode

    def pingpong(self) -> "subprocess.CompletedProcess[str]":
        """Messages between queue pairs of both guests; what a has said."""
        command = ["ibv_rc_pingpong", "-d", "rxe0", "-n", "100", "-s", "8192", "-m", "4096"]
        server = self.b.start([*command, "-g", str(self.gid(self.b))])
        try:
            listening = ["ss", "--no-header", "--listening", "--tcp", "--numeric", "sport = :18515"]
            wait_until(lambda: server.poll() or self.b.run(listening).stdout, WAIT_S, "a server of ibv_rc_pingpong", interval=0.1)
            client = self.a.run([*command, "-g", str(self.gid(self.a)), self.b.address])
            if client.returncode == 0:
                self.assertEqual(server.wait().returncode, 0, server.wait().stderr)
            return client
        finally:
            server.kill()

    @contextlib.contextmanager
    def packets(self) -> Iterator[Callable[[], set[tuple[str, int]]]]:
        """The address and the traffic class of each packet of RoCE that passes a's cable from now on."""
        watch = self.guests.network.inside([sys.executable, str(HERE / "guest" / "roce_packets.py"), self.a.cable])
        file = self.guests.names.directory / "packets"
        with open(file, "wb") as out, subprocess.Popen(watch, stdin=subprocess.DEVNULL, stdout=out) as watching:
            try:
                wait_until(file.read_text, WAIT_S, "what watches packets")
                yield lambda: {(line.split()[0], int(line.split()[1])) for line in file.read_text().split("\n")[1:-1]}
            finally:
                watching.kill()

    @contextlib.contextmanager
    def drops(self, rule: str) -> Iterator[None]:
        """The switch drops these of a's packets."""
        hook = f"type filter hook ingress device {self.a.cable} priority 0"
        self.guests.network.run(["nft", f"add table netdev t; add chain netdev t c {{ {hook}; }}; add rule netdev t c {rule} drop"])
        try:
            yield
        finally:
            self.guests.network.run(["nft", "delete table netdev t"])

    def connect_by_rdma_cm(self) -> set[tuple[str, int]]:
        """A connection by rdma_cm from a to b; the address and traffic class of its packets."""
        server = self.b.start(["rping", "-s", "-P", "-a", self.b.address])
        try:
            with self.packets() as seen:
                client = ["rping", "-c", "-a", self.b.address, "-C", "3", "-S", "4000"]
                wait_until(
                    lambda: server.poll() or self.a.run(client).returncode == 0, WAIT_S, "a connection by rdma_cm", interval=0.2
                )
                wait_until(lambda: {who for who, _ in seen()} == {self.a.address, self.b.address}, WAIT_S, "packets of both")
                return seen()
        finally:
            server.kill()

    def test_what_the_kernel_takes_is_set_and_what_its_driver_does_not_say_is_no_finding(self) -> None:
        self.as_before_muster(self.a)
        before = self.net(self.a, "check", code=1)
        self.assertEqual(self.states(before), {"mtu": "differs", "cma_tos": "differs", "cma_mode": "is"})
        self.assertEqual((before["mtu"]["is"], before["cma_tos"]["is"]), ("1500", "0"))
        for name in ("dcbx", "dscp", "pfc"):
            self.assertIn("Operation not supported", before[name]["why"], name)
        done = self.net(self.a, "set", code=0)
        self.assertEqual(self.states(done), {"mtu": "set", "cma_tos": "set", "cma_mode": "is"})
        self.assertEqual(self.mtu(self.a), 9000)
        self.assertEqual(self.a.read(TOS).strip(), "106")
        self.assertEqual(self.a.read(f"{CMA}/ports/1/default_roce_mode").strip(), "RoCE v2")
        self.assertEqual(set(self.states(self.net(self.a, "check", code=0)).values()), {"is"})
        self.assertEqual(set(self.states(self.net(self.a, "set", code=0)).values()), {"is"})

    def test_the_commands_that_a_finding_names_mend_it(self) -> None:
        self.as_before_muster(self.b)
        fixes = [knob["fix"] for knob in self.net(self.b, "check", code=1).values() if knob["state"] == "differs"]
        self.assertEqual(len(fixes), 2)
        for fix in fixes:
            self.b.run(["sh", "-c", fix], check=True)
        self.assertEqual(set(self.states(self.net(self.b, "check", code=0)).values()), {"is"})

    def test_the_settings_that_are_printed_are_read(self) -> None:
        printed = self.a.run(["muster", "net", "settings"], check=True).stdout.splitlines()
        lines = [line.removeprefix("#") for line in printed if line.startswith("#") and not line.startswith("# ")]
        self.a.write(
            "/tmp/roce.yaml",
            "\n".join(["networks: 10.77.0.0/16", *(line for line in lines if not line.startswith("networks"))]) + "\n",
        )
        self.set_up(self.a)
        self.a.run(["muster", "net", "check", "--settings=/tmp/roce.yaml"], check=True)

    def test_an_mtu_that_differs_is_a_finding_on_that_guest_alone(self) -> None:
        self.set_up(self.a, self.b)
        self.assertEqual(self.large_ping(self.b, self.a), 0)
        self.b.run(["ip", "link", "set", "dev", self.b.interface, "mtu", "4200"], check=True)
        found = self.net(self.b, "check", code=1)
        self.assertEqual({name: state for name, state in self.states(found).items() if state != "is"}, {"mtu": "differs"})
        self.assertEqual((found["mtu"]["is"], found["mtu"]["should"]), ("4200", "9000"))
        self.net(self.a, "check", code=0)
        self.assertNotEqual(self.large_ping(self.b, self.a, wait_s=5), 0)
        [finding] = self.fabric_test()["findings"]
        told = {key: finding[key] for key in ("trouble", "direction", "node", "is", "should")}
        self.assertEqual(told, {"trouble": "mtu", "direction": "both", "node": "b", "is": 4200, "should": 9000})
        self.set_up(self.b)
        self.assertEqual(self.large_ping(self.b, self.a), 0)

    def test_verbs_reach_the_other_guest_by_the_gid_of_roce_v2(self) -> None:
        self.set_up(self.a, self.b)
        with self.packets() as seen:
            done = self.pingpong()
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            wait_until(lambda: {who for who, _ in seen()} == {self.a.address, self.b.address}, WAIT_S, "packets of both")
        for guest in (self.a, self.b):
            [device] = json.loads(guest.run(["muster", "net", "show", "--json"], check=True).stdout)["devices"]
            self.assertEqual(device["ports"][0]["gid_index"], self.gid(guest), "the one of which packets have passed")

    def test_a_connection_of_rdma_cm_has_the_traffic_class_of_the_settings_on_the_wire(self) -> None:
        self.set_up(self.a, self.b)
        a, b = self.a.address, self.b.address
        self.assertEqual({which for who, which in self.connect_by_rdma_cm() if who == a}, {106})
        self.as_before_muster(self.a)
        self.assertIn(0, {which for who, which in self.connect_by_rdma_cm() if who == a})
        self.set_up(self.a)
        self.assertEqual(self.connect_by_rdma_cm(), {(a, 106), (b, 106)})

    def fabric_test(self) -> Document:
        """`muster net test` between both guests; what a prints."""
        return LinkTest(self.a, self.b).verdict()

    def beside(self) -> str:
        """The address of a beside the fabric, where b reaches it too."""
        for number, guest in enumerate((self.a, self.b), start=1):
            guest.run(["sh", "-c", f"ip address replace {BESIDE}.{number}/24 dev eth1 && ip link set eth1 up"], check=True)
        return f"{BESIDE}.1"

    def named(self, verdict: Document) -> list[tuple[str, str, list[str]]]:
        self.assertEqual((verdict["gone"], verdict["missing"]), ([], []), verdict)
        return [(one["trouble"], one["direction"], one["pair"]) for one in verdict["findings"]]

    def without_rdma(self, verdict: Document) -> list[str]:
        """What is said of nodes, when nothing else is wrong."""
        self.assertEqual({(one["trouble"], one["direction"]) for one in verdict["findings"]}, {("no-rdma", "both")}, verdict)
        return [one["text"] for one in verdict["findings"]]

    def test_a_gangs_nodes_measure_with_verbs_in_the_fabrics_traffic_class(self) -> None:
        self.set_up(self.a, self.b)
        with self.packets() as seen:
            verdict = self.fabric_test()
            self.assertEqual((verdict["transport"], verdict["nodes"], verdict["findings"]), ("rdma", 2, []), verdict)
            self.assertGreater(verdict["mbit_s"], 0)
            self.assertGreater(verdict["latency_us"], 0)
            both = {(self.a.address, 106), (self.b.address, 106)}
            wait_until(lambda: both <= seen(), WAIT_S, "packets of both in the traffic class")

    def test_writes_of_rdma_keep_to_the_rate_of_the_settings(self) -> None:
        self.set_up(self.a, self.b)
        rate = 10  # less than emulated processors carry
        for guest in (self.a, self.b):
            guest.write("/tmp/paced.yaml", f"networks: 10.77.0.0/16\nrate: {rate}\n")
        verdict = LinkTest(self.a, self.b, "--full", "--settings=/tmp/paced.yaml").verdict()
        self.assertEqual((verdict["transport"], verdict["findings"]), ("rdma", []), verdict)
        self.assertLess(verdict["mbit_s"], rate, verdict)

    def test_packets_of_roce_that_are_dropped_on_the_way_are_named_though_tcp_connects(self) -> None:
        self.set_up(self.a, self.b)
        with self.drops("udp dport 4791"):
            verdict = self.fabric_test()
        self.assertEqual(self.named(verdict), [("no-rdma", "both", ["a", "b"])], verdict)

    def test_a_cable_that_is_pulled_in_the_middle_of_the_writes_is_named(self) -> None:
        self.set_up(self.a, self.b)
        # Writes that last for seconds: a full test takes as long as so slow a link needs.
        slow = "/tmp/slow.yaml"
        for guest in (self.a, self.b):
            guest.write(slow, "networks: 10.77.0.0/16\nrate: 20\n")
        self.addCleanup(self.b.set_link, True)
        with self.packets() as seen:
            test = LinkTest(self.a, self.b, "--full", f"--settings={slow}", address=self.beside())
            wait_until(lambda: {who for who, _ in seen()} == {self.a.address, self.b.address}, WAIT_S, "writes", interval=0.05)
            self.b.set_link(False)
            verdict = test.verdict()
        self.assertEqual(self.named(verdict), [("unreachable", "both", ["a", "b"])], verdict)

    def test_a_direction_that_falls_silent_in_the_middle_of_the_writes_is_named(self) -> None:
        self.set_up(self.a, self.b)
        address = self.beside()
        # The writes of a direction are half a MiB.
        with self.drops("quota over 300 kbytes"):
            verdict = LinkTest(self.a, self.b, address=address).verdict()
        self.assertEqual(self.named(verdict), [("unreachable", "out", ["a", "b"])], verdict)

    def test_a_node_without_an_rdma_device_is_measured_with_tcp(self) -> None:
        self.set_up(self.a, self.b)
        self.b.run(["rdma", "link", "delete", "rxe0"], check=True)
        try:
            verdict = self.fabric_test()
            self.assertEqual((verdict["transport"], verdict["over_tcp"]), ("tcp", []), "one side has no verbs")
            self.assertEqual(self.without_rdma(verdict), ["b (eth0) has no RDMA, others have: eth0 has no RDMA device."])
        finally:
            self.b.run(["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", self.b.interface], check=True)
            self.set_up(self.b)

    def test_a_device_file_that_the_user_may_not_open_is_named_and_the_command_mends_it(self) -> None:
        self.set_up(self.a, self.b)
        file = "/dev/infiniband/uverbs0"
        self.b.run(["chmod", "600", file], check=True)
        self.addCleanup(self.b.run, ["chmod", "666", file])
        verdict = LinkTest(self.a, self.b, root=False).verdict()
        denied = f"{file}: Permission denied."
        self.assertEqual((verdict["transport"], verdict["over_tcp"]), ("tcp", []), verdict)
        self.assertEqual(self.without_rdma(verdict), [f"b (eth0) has no RDMA, others have: {denied}"])
        [finding] = verdict["findings"]
        # Where no node has verbs, as in a container, none is worse than the others.
        self.a.run(["mv", "/dev/infiniband", "/dev/away"], check=True)
        try:
            verdict = LinkTest(self.a, self.b, root=False).verdict()
        finally:
            self.a.run(["mv", "/dev/away", "/dev/infiniband"], check=True)
        self.assertEqual((verdict["ok"], verdict["transport"], verdict["findings"]), (True, "tcp", []), verdict)
        missing = "/dev/infiniband: No such file or directory."
        told = {one["text"] for one in verdict["over_tcp"]}
        self.assertEqual(told, {f"a measured over TCP: {missing}", f"b measured over TCP: {denied}"})
        self.b.run(["sh", "-c", finding["fix"]], check=True)
        verdict = LinkTest(self.a, self.b, root=False).verdict()
        self.assertEqual((verdict["ok"], verdict["transport"], verdict["over_tcp"]), (True, "rdma", []), verdict)

    def test_a_link_that_was_down_comes_back_with_its_settings(self) -> None:
        self.set_up(self.a, self.b)
        self.addCleanup(self.b.set_link, True)
        self.b.set_link(False)
        wait_until(lambda: "DOWN" in self.b.read(f"{PORT}/state"), WAIT_S, "a port that is down")
        shown = self.b.run(["muster", "net", "show"], check=True).stdout
        self.assertRegex(shown, r"rxe0 port 1 is DOWN \(.*\): rdma link show rxe0/1")
        self.net(self.b, "check", code=0)  # settings are what it looks at
        self.net(self.b, "set", code=0)
        self.assertNotEqual(self.large_ping(self.a, self.b, wait_s=5), 0)
        self.b.set_link(True)
        wait_until(lambda: "ACTIVE" in self.b.read(f"{PORT}/state"), WAIT_S, "a port that is active")
        self.assertEqual(set(self.states(self.net(self.b, "check", code=0)).values()), {"is"})
        wait_until(lambda: self.large_ping(self.a, self.b, wait_s=5) == 0, WAIT_S, "an answer of b")
        self.assertEqual(self.pingpong().returncode, 0)

    def test_what_a_reboot_has_taken_is_found_and_set_again(self) -> None:
        self.set_up(self.a, self.b)
        self.b.reboot()
        self.assertEqual(
            self.states(self.net(self.b, "check", code=1)), {"mtu": "differs", "cma_tos": "differs", "cma_mode": "is"}
        )
        self.set_up(self.b)
        self.assertEqual((self.mtu(self.b), self.b.read(TOS).strip()), (9000, "106"))
        self.assertEqual(self.large_ping(self.a, self.b), 0)
        self.assertEqual(self.pingpong().returncode, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
