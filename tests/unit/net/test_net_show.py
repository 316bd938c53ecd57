#!/usr/bin/python3
"""`muster net show` and `muster net env` on the hosts of fabric_shapes.py."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

import fabric_shapes  # noqa: E402
import own_network  # noqa: E402
from fabric_shapes import Port, Shape, pair  # noqa: E402

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("MUSTER_BUILD", HERE.parents[2] / "build"))


class NetShowTest(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = Path(temporary.name)
        self.root = self.directory / "root"
        self.settings = self.directory / "roce.yaml"
        self.settings.write_text("")

    def host(self, make: Callable[[Shape], None], networks: str = "") -> None:
        make(Shape(self.root))
        self.settings.write_text(f"networks: {networks}\n" if networks else "")

    def run_net(self, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        command = [str(BUILD / "bin" / "muster"), "net", *words, f"--settings={self.settings}", f"--root={self.root}"]
        own = {key: value for key, value in os.environ.items() if not key.startswith("NCCL_")}
        return subprocess.run(command, capture_output=True, text=True, env=own | environment, timeout=60, check=False)

    def document(self, *words: str, **environment: str) -> dict[str, Any]:
        done = self.run_net(*words, "--json", **environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def chosen(self) -> dict[str, Any]:
        """Of each port the index of its GID."""
        devices = self.document("show")["devices"]
        return {f"{device['device']}:{port['port']}": port.get("gid_index") for device in devices for port in device["ports"]}

    def address(self, interface: str, address: str) -> None:
        """NCCL's sockets use interfaces with an address, and those are this namespace's."""
        subprocess.run(["ip", "link", "add", interface, "type", "veth", "peer", "name", f"{interface[:11]}peer"], check=True, timeout=30)
        self.addCleanup(subprocess.run, ["ip", "link", "del", interface], check=True, timeout=30)
        subprocess.run(["ip", "address", "add", address, "dev", interface], check=True, timeout=30)

    def variables(self, *words: str, **environment: str) -> dict[str, str]:
        return {entry["key"]: entry["value"] for entry in self.document("env", *words, **environment)["variables"]}

    def vlan_beside_its_port(self) -> None:
        def shape(host: Shape) -> None:
            host.device("mlx5_0", [Port("roce0", pair(0, "10.77.0.1"))])
            for file, text in (("gids/2", fabric_shapes.gid_line("10.78.0.1")), ("gid_attrs/types/2", fabric_shapes.V2), ("gid_attrs/ndevs/2", "roce0.100")):
                host.write(f"sys/class/infiniband/mlx5_0/ports/1/{file}", text)
            host.write("sys/class/net/roce0.100/lower_roce0/ifindex", "2")

        self.host(shape, "10.77.0.0/16, 10.78.0.0/16")
        self.address("roce0", "10.77.0.1/16")
        self.address("roce0.100", "10.78.0.1/16")

    def test_rails_say_which_ports_carry_them(self) -> None:
        self.vlan_beside_its_port()
        with socket.create_server(("127.0.0.1", own_network.PORT)) as referee:
            referee.settimeout(60)
            gang = {"GROUP_WORLD_SIZE": "2", "GROUP_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(own_network.PORT), "SLURMD_NODENAME": "n1"}
            command = [str(BUILD / "bin" / "muster"), "net", "test", f"--settings={self.settings}", f"--root={self.root}"]
            node = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | gang)
            connection = referee.accept()[0]
            with connection, connection.makefile() as messages:
                hello = json.loads(messages.readline())
                connection.sendall(b'{"refused": "seen"}\n')
            self.assertIn("seen", node.communicate(timeout=60)[1])
        self.assertEqual({rail["interface"]: rail["carriers"] for rail in hello["rails"]}, {"roce0": ["roce0", "mlx5_0:1"], "roce0.100": ["roce0", "mlx5_0:1"]})

    def test_interfaces_that_share_a_port_are_rails_with_its_device(self) -> None:
        self.vlan_beside_its_port()
        command = [str(BUILD / "bin" / "muster"), "net", "test", "--json", f"--settings={self.settings}"]
        gang = os.environ | {"GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(own_network.PORT)}
        # The other node has no device, which is told where the first one has.
        nodes = [
            subprocess.Popen([*command, f"--root={root}"], stdout=subprocess.PIPE, text=True, env=gang | {"GROUP_RANK": str(rank), "SLURMD_NODENAME": f"n{rank}"})
            for rank, root in enumerate((self.root, self.directory / "none"))
        ]
        verdict = json.loads([node.communicate(timeout=60)[0] for node in nodes][0])
        self.assertEqual((verdict["rails"], verdict["transport"]), (2, "tcp"), verdict)
        why = {"n0 measured over TCP: the kernel has no uverbs of mlx5_0.", "n1 measured over TCP: roce0 has no RDMA device.", "n1 measured over TCP: roce0.100 has no RDMA device."}
        self.assertEqual({told["text"] for told in verdict["over_tcp"]}, why)

    def test_eight_rails_have_the_gid_of_their_address_and_the_gpu_of_their_switch(self) -> None:
        self.host(fabric_shapes.h100_rails, "11.0.0.0/16")
        rails = [f"mlx5_{i}:1" for i in (0, 1, 2, 3, 6, 7, 8, 9)]
        self.assertEqual(self.chosen(), {rail: 3 for rail in rails} | {"mlx5_4:1": 1, "mlx5_5:1": 1})
        document = self.document("show")
        self.assertEqual([device["device"] for device in document["devices"]], [f"mlx5_{i}" for i in range(10)])
        for number, device in enumerate(device for device in document["devices"] if device["ports"][0]["fabric"]):
            near = [gpu for gpu, distance in device["gpus"].items() if distance == "PIX"]
            self.assertEqual(near, [document["gpus"][number]["pci"]])
            self.assertEqual(sorted(device["gpus"].values()), ["NODE"] * 3 + ["PIX"] + ["SYS"] * 4)
            port = device["ports"][0]
            self.assertEqual((port["mbit_s"], port["width"], port["mtu"], port["path_mtu"]), (400_000, "4X NDR", 9000, 4096))
            self.assertEqual((device["firmware"], device["pcie"], device["numa"]), ("28.39.1002", "32.0 GT/s x16", number // 4))
        self.assertEqual((document["gpudirect"], document["memlock"]), ("nvidia_peermem", "unlimited"))
        self.assertEqual([note.split(":")[0] for note in document["notes"]], ["mlx5_4 port 1", "mlx5_5 port 1"])
        self.address("ens0np0", "11.0.0.72/24")
        variables = self.variables()
        self.assertEqual(variables["NCCL_IB_HCA"], "=" + ",".join(rails))
        self.assertEqual((variables["NCCL_IB_TC"], variables["NCCL_SOCKET_IFNAME"]), ("106", "=ens0np0"))
        self.assertNotIn("NCCL_IB_GID_INDEX", variables)
        table = self.run_net("show").stdout
        self.assertRegex(table, r"mlx5_9 +1 +Ethernet +ACTIVE +400 Gb/s +ens7np0 +9000 +3 11\.0\.7\.72 +28\.39\.1002 +0000:a4:00\.0 +1 +0000:a7:00\.0 \(PIX\)")

    def test_a_bonds_gid_is_the_one_that_passes_routers(self) -> None:
        self.host(fabric_shapes.bond)
        self.assertEqual(self.chosen(), {"mlx5_bond_0:1": 3})
        self.settings.write_text("networks: 10.0.0.0/8\n")
        port = self.document("show")["devices"][0]["ports"][0]
        self.assertEqual((port["gid_index"], port["fabric"]), (3, False))
        self.assertIn("in no network of the fabric", port["gid_why"])

    def test_gids_of_ipv6_alone_leave_out_the_link_local_ones(self) -> None:
        self.host(fabric_shapes.bnxt, "fd93:16d3:59b6::/48")
        self.assertEqual(self.chosen(), {"bnxt_re0:1": 3})

    def test_infiniband_has_no_choice_and_shows_its_subnet_manager(self) -> None:
        self.host(fabric_shapes.infiniband)
        self.assertEqual(set(self.chosen().values()), {None})
        port = self.document("show")["devices"][1]["ports"][0]
        self.assertEqual((port["lid"], port["sm_lid"], port["sm_sl"], port["mbit_s"]), (0x4F, 1, 0, 400_000))
        self.assertEqual(self.document("show")["notes"], [])

    def test_a_port_without_a_subnet_manager_beside_one_of_roce(self) -> None:
        self.host(fabric_shapes.mixed, "10.77.0.0/16")
        self.assertEqual(self.chosen(), {"mlx5_0:1": None, "mlx5_10:1": 3})
        self.assertEqual(self.document("show")["notes"], ["mlx5_0 port 1 knows no subnet manager."])
        self.address("enp225s0f0np0", "10.77.4.9/16")
        self.assertEqual(self.variables()["NCCL_IB_HCA"], "=mlx5_10:1")
        self.assertEqual(self.document("show")["devices"][1]["ports"][0]["path_mtu"], 1024)

    def test_what_is_neither_roce_nor_infiniband_is_shown_and_not_chosen(self) -> None:
        self.host(fabric_shapes.efa)
        self.assertEqual(self.chosen(), {"rdmap79s0:1": None})
        self.root = self.directory / "other"
        self.host(fabric_shapes.siw, "10.0.0.0/8")
        self.assertEqual(self.chosen(), {"siw0:1": None})
        self.assertIn("siw0 port 1: no GID is one of RoCE v2.", self.document("show")["notes"])

    def test_soft_roce_has_no_pci_device_and_only_version_two(self) -> None:
        self.host(fabric_shapes.rxe, "10.88.0.0/24")
        self.assertEqual(self.chosen(), {"rxe0:1": 1})
        device = self.document("show")["devices"][0]
        self.assertNotIn("pci", device)
        self.assertEqual((device["ports"][0]["mbit_s"], device["gpus"]), (2_500, {}))

    def test_entries_of_another_namespace_are_left_out(self) -> None:
        self.host(fabric_shapes.virtual_functions, "10.152.0.0/16")
        self.assertEqual(self.chosen(), {"mlx5_0:1": 7, "mlx5_1:1": 7})
        self.assertTrue(all(device["virtual_function"] for device in self.document("show")["devices"]))

    def test_an_old_nccl_is_told_the_index_where_all_ports_agree(self) -> None:
        self.address("net1", "10.152.0.12/16")
        self.host(fabric_shapes.virtual_functions, "10.152.0.0/16")
        self.assertEqual(self.variables("--nccl=2.20.5")["NCCL_IB_GID_INDEX"], "7")
        self.assertNotIn("NCCL_IB_GID_INDEX", self.variables("--nccl=2.21.5"))
        self.root = self.directory / "other"
        self.address("net2", "10.7.0.1/16")
        self.host(fabric_shapes.uneven, "10.7.0.0/16")
        self.assertEqual(self.chosen(), {"mlx5_0:1": 3, "mlx5_1:1": 6})
        self.assertNotIn("NCCL_IB_GID_INDEX", self.variables("--nccl=2.20.5"))
        for wrong in ("2", "two", "2.", "2.19.3.1.4", "2.19a", "-2.19", "2.9999"):
            done = self.run_net("env", f"--nccl={wrong}")
            self.assertEqual((done.returncode, done.stdout), (2, ""), wrong)
            self.assertIn("is no version of NCCL: give it as in 2.19.3", done.stderr)

    def test_nccl_is_told_the_network_where_it_would_find_another_ones_gid_first(self) -> None:
        """As ncclIbGetGidIndex looks, from 2.21 on: the first of RoCE v2 and IPv4."""
        self.vlan_beside_its_port()
        self.assertFalse({key for key in self.variables() if key.startswith("NCCL_IB_ADDR")}, "one prefix does not say two networks")
        self.settings.write_text("networks: 10.78.0.0/16\n")
        self.assertEqual(self.variables()["NCCL_IB_ADDR_RANGE"], "10.78.0.0/16")
        self.assertNotIn("NCCL_IB_ADDR_RANGE", self.variables("--nccl=2.20.5"))
        self.settings.write_text("networks: 10.77.0.0/16\n")
        self.assertNotIn("NCCL_IB_ADDR_RANGE", self.variables())

    def test_nccl_is_told_that_all_gids_of_the_fabric_are_of_ipv6(self) -> None:
        self.host(fabric_shapes.bnxt, "fd93:16d3:59b6::/48")
        self.address("enp65s0np0", "fd93:16d3:59b6:12d::5/64")
        variables = self.variables()
        self.assertEqual(variables["NCCL_IB_ADDR_FAMILY"], "AF_INET6")
        self.assertNotIn("NCCL_IB_ADDR_RANGE", variables)

    def test_ports_without_a_cable_are_named_and_not_used(self) -> None:
        self.host(fabric_shapes.spark, "10.100.216.0/24")
        self.address("enp1s0f1np1", "10.100.216.2/24")
        self.assertEqual(self.variables()["NCCL_IB_HCA"], "=roceP2p1s0f1:1,rocep1s0f1:1")
        notes = self.document("show")["notes"]
        self.assertEqual(notes, [
            f"{name} port 1 is DOWN (Disabled): rdma link show {name}/1" for name in ("roceP2p1s0f0", "rocep1s0f0")
        ])

    def test_what_makes_gpudirect_slow_is_named(self) -> None:
        self.host(fabric_shapes.slow_slot, "10.1.0.0/16")
        document = self.document("show")
        device = document["devices"][0]
        self.assertEqual((device["pcie"], device["pcie_max"]), ("16.0 GT/s x8", "32.0 GT/s x16"))
        self.assertEqual((device["relaxed_ordering"], device["iommu"], device["acs"]), (False, "DMA-FQ", ["0000:22:00.0"]))
        self.assertEqual((document["gpudirect"], device["gpus"]), ("dma-buf", {"0000:27:00.0": "PIX"}))
        self.assertEqual(document["devices"][1].get("acs", []), [])
        text = " ".join(document["notes"])
        for part in ("could have 32.0 GT/s x16", "relaxed ordering is off", "iommu=pt", "ACS of 0000:22:00.0", "may lock 8388608 bytes"):
            self.assertIn(part, text)

    def test_memory_of_amds_gpus_needs_no_module_of_nvidias(self) -> None:
        self.host(fabric_shapes.amd, "10.1.0.0/16")
        document = self.document("show")
        self.assertEqual((document["gpudirect"], len(document["gpus"]), document["notes"]), ("dma-buf", 1, []))
        (self.root / "sys/bus/pci/devices/0000:22:00.0/vendor").write_text("0x10de\n")
        self.assertIn("No adapter reaches the memory of a GPU: load nvidia_peermem", self.document("show")["notes"][0])

    def test_a_host_without_rdma_says_so(self) -> None:
        self.root.mkdir()
        self.assertEqual(self.document("show")["devices"], [])
        self.assertEqual(self.run_net("show").stdout, "this host has no RDMA device\n")
        self.settings.write_text("networks: 10.9.0.0/16\n")
        self.assertIn("No interface has an address in 10.9.0.0/16", self.run_net("env").stdout)
        self.address("eth9", "10.9.0.1/16")
        self.assertEqual(self.variables(), {"NCCL_SOCKET_IFNAME": "=eth9"})
        self.settings.write_text("")
        self.assertEqual(self.run_net("env").stdout, "# The settings name no networks: NCCL chooses for itself.\n")

    def test_a_device_that_is_not_there_is_refused_with_those_that_are(self) -> None:
        self.host(fabric_shapes.bond)
        done = self.run_net("show", "mlx5_9")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("'mlx5_9' is no RDMA device of this host: it has mlx5_bond_0", done.stderr)
        self.assertEqual(len(self.document("show", "mlx5_bond_0")["devices"]), 1)

    def test_what_a_program_has_set_itself_stays_and_is_told(self) -> None:
        self.host(fabric_shapes.bond, "200.0.209.0/24")
        self.address("bond9", "200.0.209.6/24")
        text = self.run_net("env", NCCL_IB_TC="104", NCCL_IB_RETRY_CNT="7").stdout
        self.assertIn("# NCCL_IB_TC=104 is yours, and stays. Muster's is 106", text)
        self.assertIn("export NCCL_IB_RETRY_CNT=7", text)
        shell = subprocess.run(["sh", "-ec", f"{text}\necho \"$NCCL_IB_HCA $NCCL_IB_TC\""], capture_output=True, text=True, env={"NCCL_IB_TC": "104"}, timeout=30, check=True)
        self.assertEqual(shell.stdout, "=mlx5_bond_0:1 104\n")

    def test_what_the_hosts_nccl_conf_has_stays_and_is_told(self) -> None:
        self.host(fabric_shapes.bond, "200.0.209.0/24")
        self.address("bond9", "200.0.209.6/24")
        (self.root / "etc").mkdir()
        (self.root / "etc/nccl.conf").write_text("# NCCL_IB_TC=1\n NCCL_IB_HCA = mlx5_7\nNCCL_DEBUG=WARN\n")
        text = self.run_net("env").stdout
        self.assertIn("# NCCL_IB_HCA is set in /etc/nccl.conf, and stays. Muster's is =mlx5_bond_0:1", text)
        self.assertIn("export NCCL_IB_TC=106", text)

    def test_files_that_make_no_sense_are_no_more_than_unknown(self) -> None:
        def strange(shape: Shape) -> None:
            port = Port("eth0", pair(2, "10.1.0.1"), rate="fast", state="", physical="9", link="Ethernet")
            shape.device("mlx5_0", [port])
            for file, text in (("gids/3", "not:a:gid"), ("gids/x", "fe80::1"), ("gid_attrs/types/2", "RoCE v3"), ("gids/99999999999", "fe80::2")):
                shape.write(f"sys/class/infiniband/mlx5_0/ports/1/{file}", text)
            shape.write("sys/class/net/eth0/mtu", "-5")
            shape.write("sys/class/infiniband/mlx5_1/ports/two/link_layer", "")
            shape.write("sys/bus/pci/devices/0000:01:00.0/class", "0x030200")

        self.host(strange, "10.1.0.0/16")
        self.assertEqual(self.chosen(), {"mlx5_0:1": None, "mlx5_1:0": None})
        port = self.document("show")["devices"][0]["ports"][0]
        self.assertEqual((port["mbit_s"], [gid["index"] for gid in port["gids"]]), (0, [2]))


if __name__ == "__main__":
    own_network.enter()
    unittest.main()
