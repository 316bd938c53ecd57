#!/usr/bin/python3
"""`muster net` with interfaces of a namespace of its own. Drivers are trees as /sys shows them, and stand-ins for dcb and mstconfig."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

import fabric_shapes  # noqa: E402
import own_network  # noqa: E402

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("MUSTER_BUILD", HERE.parents[2] / "build"))

MSTCONFIG = """#!/usr/bin/python3
import json, sys
from pathlib import Path
state = Path("STATE")
values = json.loads(state.read_text())
words = sys.argv[1:]
if "set" in words:
    for pair in words[words.index("set") + 1:]:
        key, value = pair.split("=")
        values[key] = int(value)
    state.write_text(json.dumps(values))
else:
    print("Device #1:\\n----------\\nDevice type:    ConnectX6DX\\nConfigurations:       Next Boot")
    for key in words[words.index("query") + 1:]:
        print(f"         {key}             {values[key]}")
"""


# Answers as ethtool's, by its words without the interface; what a driver does not have it refuses. `fw-lldp-agent off` is of ice.
ETHTOOL = """#!/usr/bin/python3
import json, sys
from pathlib import Path
words = [word for word in sys.argv[1:] if word not in NAMES]
if words == ["--set-priv-flags", "fw-lldp-agent", "off"]:
    dcb = Path("DCB")
    state = json.loads(dcb.read_text())
    for name in NAMES:
        state["interfaces"][name] |= {"host": True, "agent": False}
    dcb.write_text(json.dumps(state))
    sys.exit()
answer = ANSWERS.get(" ".join(words))
if answer is None:
    sys.exit("netlink error: Operation not supported")
print(answer)
"""
RINGS = """Ring parameters for roce0:
Pre-set maximums:
RX:		8192
RX Mini:	n/a
TX:		8192
Current hardware settings:
RX:		1024
RX Mini:	n/a
TX:		1024
"""


class NetCommandTest(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = Path(temporary.name)
        self.tools = self.directory / "tools"
        self.tools.mkdir()
        self.root = self.directory / "root"
        self.dcb = self.directory / "dcb.json"
        self.dcb.write_text(json.dumps({"interfaces": {}}))
        self.settings = self.directory / "roce.yaml"
        self.settings.write_text("networks: 10.77.0.0/16, fd00:77::/64\n")

    def interface(self, name: str, address: str, kind: str = "veth") -> None:
        """One of the kernel's, so that `ip` and addresses are real."""
        peer = ["peer", "name", f"{name}peer"] if kind == "veth" else []
        subprocess.run(["ip", "link", "add", name, "mtu", "1500", "type", kind, *peer], check=True, timeout=30)
        self.addCleanup(subprocess.run, ["ip", "link", "del", name], check=True, timeout=30)
        subprocess.run(["ip", "address", "add", address, "dev", name], check=True, timeout=30)

    def adapter(self, name: str, driver: str = "mlx5_core", pci: str = "0000:3b:00.0", rdma: str = "mlx5_0") -> Path:
        """The interface in a tree of its own, with a driver and an RDMA device; its MTU is the kernel's."""
        net = self.root / "sys/class/net" / name
        device = self.root / "sys/devices" / pci
        (device / "driver_of").mkdir(parents=True)
        for link, target in (("driver", f"/sys/bus/pci/drivers/{driver}"), ("subsystem", "/sys/bus/pci")):
            (device / link).symlink_to(target)
        net.mkdir(parents=True)
        (net / "device").symlink_to(device)
        (net / "mtu").symlink_to(f"/sys/class/net/{name}/mtu")
        gids = self.root / "sys/class/infiniband" / rdma / "ports/1/gid_attrs/ndevs"
        gids.mkdir(parents=True)
        for gid in range(4):
            (gids / str(gid)).write_text(f"{name}\n")
        return net

    def with_dcb(self, *names: str, host: bool = False, **port_has: Any) -> None:
        port = {"host": host, "trust": "pcp", "dscp": [], "pfc": [False] * 8} | port_has
        self.dcb.write_text(json.dumps({"interfaces": {name: port for name in names}}))
        tool = self.tools / "dcb"
        tool.write_text(f'#!/bin/sh\nMUSTER_DCB_STATE={self.dcb} exec {HERE}/stand_in_dcb "$@"\n')
        tool.chmod(0o755)

    def with_ethtool(self, *names: str, answers: dict[str, str]) -> None:
        tool = self.tools / "ethtool"
        tool.write_text(ETHTOOL.replace("NAMES", repr(names)).replace("DCB", str(self.dcb)).replace("ANSWERS", repr(answers)))
        tool.chmod(0o755)

    def with_firmware(self, program: str = "mstconfig", **values: int) -> Path:
        state = self.directory / "firmware.json"
        state.write_text(json.dumps(values))
        tool = self.tools / program
        tool.write_text(MSTCONFIG.replace("STATE", str(state)))
        tool.chmod(0o755)
        return state

    def with_rdma_cm(self, device: str = "mlx5_0") -> Path:
        """Its tree in configfs; there a device's directory comes with its files."""
        port = self.root / "sys/kernel/config/rdma_cm" / device / "ports/1"
        port.mkdir(parents=True)
        (port / "default_roce_tos").write_text("0\n")
        (port / "default_roce_mode").write_text("IB/RoCE v1\n")
        return port

    def run_net(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [str(BUILD / "bin" / "muster"), "net", *words, f"--settings={self.settings}"]
        if self.root.exists():
            command.append(f"--root={self.root}")
        environment = os.environ | {"PATH": f"{self.tools}:{os.environ['PATH']}"}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)

    def net(self, *words: str, code: int) -> dict[str, Any]:
        done = self.run_net(*words, "--json")
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        document: dict[str, Any] = json.loads(done.stdout)
        self.assertEqual(document["ok"], code == 0)
        return document

    def states(self, document: dict[str, Any]) -> dict[str, str]:
        return {knob["knob"]: knob["state"] for knob in document["knobs"]}

    def settable(self, document: dict[str, Any]) -> set[str]:
        """The states of what this test's stand-ins have; ethtool is not one of them."""
        return {state for name, state in self.states(document).items() if name not in ("subnet", "storm_prevention", "pause_storms")}

    def of(self, document: dict[str, Any], interface: str) -> dict[str, Any]:
        return {knob["knob"]: knob for knob in document["knobs"] if knob["interface"] == interface}

    def port(self, name: str) -> Any:
        return json.loads(self.dcb.read_text())["interfaces"][name]

    def test_what_a_driver_does_not_show_is_unknown_and_no_finding(self) -> None:
        self.interface("roce0", "10.77.0.1/16")
        before = self.net("check", code=1)
        self.assertEqual(self.states(before), {"mtu": "differs", "subnet": "is"} | dict.fromkeys(("dcbx", "dscp", "pfc", "storm_prevention", "pause_storms", "ecn", "cnp"), "unknown"))
        self.assertTrue(all(knob["why"] for knob in before["knobs"] if knob["state"] == "unknown"))
        done = self.net("set", code=0)
        self.assertEqual(self.states(done)["mtu"], "set")
        self.assertEqual(Path("/sys/class/net/roce0/mtu").read_text(), "9000\n")
        self.assertEqual(self.states(self.net("check", code=0))["mtu"], "is")
        last = self.run_net("check").stdout.splitlines()[-1]
        self.assertRegex(last, "^7 of 9 are unknown, which is no finding: .*cnp, ecn: the interface has no driver that could show it")

    def test_an_adapter_of_mlx5_is_set_up_once(self) -> None:
        self.interface("roce0", "10.77.0.1/16")
        self.adapter("roce0")
        self.with_dcb("roce0")
        firmware = self.with_firmware(ROCE_CC_PRIO_MASK_P1=1, CNP_DSCP_P1=0, CNP_802P_PRIO_P1=0)
        cm = self.with_rdma_cm()
        before = self.net("check", code=1)
        self.assertEqual(self.settable(before), {"differs"})
        self.assertEqual(json.loads(self.dcb.read_text())["interfaces"]["roce0"]["dscp"], [])
        done = self.net("set", code=0)
        self.assertEqual(self.settable(done), {"set"})
        self.assertEqual(self.port("roce0"), {"host": True, "trust": "dscp", "dscp": [[26, 3], [48, 6]], "pfc": [i == 3 for i in range(8)]})
        self.assertEqual(json.loads(firmware.read_text()), {"ROCE_CC_PRIO_MASK_P1": 9, "CNP_DSCP_P1": 48, "CNP_802P_PRIO_P1": 6})
        self.assertEqual([knob["why"] for knob in done["knobs"] if knob["knob"] == "ecn"], ["from the next reboot on"])
        self.assertEqual((cm / "default_roce_tos").read_text(), "106")
        self.assertEqual((cm / "default_roce_mode").read_text(), "RoCE v2")
        calls = len(json.loads(self.dcb.read_text())["calls"])
        self.assertEqual(self.settable(self.net("set", code=0)), {"is"})
        again = json.loads(self.dcb.read_text())["calls"][calls:]
        self.assertEqual([call for call in again if "show" not in call], [])

    def test_another_dscp_stays_as_it_is_and_another_priority_does_not_stay_lossless(self) -> None:
        self.interface("roce0", "10.77.0.1/16")
        self.adapter("roce0")
        self.with_dcb("roce0", host=True)
        state = json.loads(self.dcb.read_text())
        state["interfaces"]["roce0"] |= {"dscp": [[10, 1], [26, 5]], "pfc": [False] * 5 + [True] + [False] * 2}
        self.dcb.write_text(json.dumps(state))
        before = {knob["knob"]: knob.get("is") for knob in self.net("check", code=1)["knobs"]}
        self.assertEqual((before["dscp"], before["pfc"]), ("26:5", "5"))
        self.net("set", code=0)
        self.assertEqual(self.port("roce0")["dscp"], [[10, 1], [26, 3], [48, 6]])
        self.assertEqual(self.port("roce0")["pfc"], [i == 3 for i in range(8)])

    def test_a_fabric_that_may_drop_packets_has_no_lossless_priority(self) -> None:
        self.settings.write_text("networks: 10.77.0.0/16\npfc: no\n")
        self.interface("roce0", "10.77.0.1/16")
        self.adapter("roce0")
        self.with_dcb("roce0", host=True)
        self.assertEqual(self.states(self.net("check", code=1))["pfc"], "is")
        self.net("set", code=0)
        self.assertEqual(self.port("roce0")["pfc"], [False] * 8)

    def test_the_vendors_driver_has_ecn_and_cnp_in_sysfs(self) -> None:
        self.interface("roce0", "10.77.0.1/16")
        net = self.adapter("roce0")
        for file, value in (("roce_np/enable/3", "0"), ("roce_rp/enable/3", "1"), ("roce_np/cnp_dscp", "0"), ("roce_np/cnp_802p_prio", "6")):
            (net / "ecn" / file).parent.mkdir(parents=True, exist_ok=True)
            (net / "ecn" / file).write_text(value + "\n")
        before = {knob["knob"]: knob for knob in self.net("check", code=1)["knobs"]}
        self.assertEqual((before["ecn"]["via"], before["ecn"]["is"]), ("sysfs", "notifies 0, reacts 1"))
        self.assertEqual((before["cnp"]["is"], before["cnp"]["should"]), ("dscp 0, priority 6", "dscp 48, priority 6"))
        self.net("set", code=0)
        self.assertEqual([(net / "ecn" / file).read_text().strip() for file in ("roce_np/enable/3", "roce_np/cnp_dscp")], ["1", "48"])

    def test_a_fabric_without_marks_asks_no_host_for_them(self) -> None:
        """With ecn_bits: 0, as `muster net switch` says too, no switch marks a packet."""
        self.settings.write_text("networks: 10.77.0.0/16\necn_bits: 0\n")
        self.interface("roce0", "10.77.0.1/16")
        self.adapter("roce0")
        self.with_dcb("roce0", host=True)
        firmware = self.with_firmware(ROCE_CC_PRIO_MASK_P1=0, CNP_DSCP_P1=0, CNP_802P_PRIO_P1=0)
        self.assertLessEqual({"dscp", "pfc"}, set(self.states(self.net("set", code=0))))
        self.assertFalse({"ecn", "cnp"} & set(self.states(self.net("check", code=0))))
        self.assertEqual(set(json.loads(firmware.read_text()).values()), {0})

    def test_the_kernels_driver_has_cnp_in_debugfs_and_ecn_in_its_firmware(self) -> None:
        self.interface("roce0", "10.77.0.1/16")
        self.adapter("roce0", pci="0000:3b:00.1")
        debug = self.root / "sys/kernel/debug/mlx5/0000:3b:00.1/cc_params"
        debug.mkdir(parents=True)
        (debug / "np_cnp_dscp").write_text("48\n")
        (debug / "np_cnp_prio").write_text("0\n")
        found = {knob["knob"]: knob for knob in self.net("set", code=0)["knobs"]}
        self.assertEqual((found["cnp"]["state"], found["cnp"]["via"]), ("set", "debugfs"))
        self.assertEqual((debug / "np_cnp_prio").read_text().strip(), "6")
        self.assertEqual((found["ecn"]["state"], found["ecn"]["why"]), ("unknown", "neither mstconfig nor mlxconfig is installed"))
        self.with_firmware(ROCE_CC_PRIO_MASK_P2=255)  # the second port's
        found = {knob["knob"]: knob for knob in self.net("check", code=0)["knobs"]}
        self.assertEqual((found["ecn"]["state"], found["ecn"]["via"]), ("is", "mstconfig"))
        (self.tools / "mstconfig").unlink()
        self.with_firmware("mlxconfig", ROCE_CC_PRIO_MASK_P2=0)
        found = {knob["knob"]: knob for knob in self.net("check", code=1)["knobs"]}
        self.assertEqual(found["ecn"]["fix"], "mlxconfig -y -d 0000:3b:00.1 set ROCE_CC_PRIO_MASK_P2=8")

    def matrix(self) -> dict[str, dict[str, str]]:
        """Of each column of network.md's table of knobs and drivers: by which way each knob is read; "" where there is no such thing."""
        text = (HERE.parents[2] / "docs" / "network.md").read_text()
        table = text.partition("## Where each is seen and set")[2].strip().partition("\n\n")[0]
        header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
        columns: dict[str, dict[str, str]] = {name: {} for name in header[1:]}
        for knobs, *cells in rows:
            for column, cell in zip(columns.values(), cells, strict=True):
                first = cell.replace("`", "").replace(",", "").split()[0]
                column |= dict.fromkeys(knobs.replace("`", "").split(", "), "" if first == "no" else first)
        return columns

    def test_each_driver_shows_the_knobs_of_its_column_in_network_md(self) -> None:
        self.interface("roce0", "10.77.0.1/16")
        self.settings.write_text("networks: 10.77.0.0/16\nrings: 8192\n")
        rings = {"-g": RINGS}
        of_mlx5 = rings | {"--get-tunable pfc-prevention-tout": "pfc-prevention-tout: 8000", "-S": "NIC statistics:\n     tx_pause_storm_error_events: 0"}
        drivers = {"mlx5 of the kernel": "mlx5_core", "mlx5 of the vendor": "mlx5_core", "bnxt": "bnxt_en", "ice": "ice", "soft ones (rxe), virtio": "virtio_net"}
        matrix = self.matrix()
        self.assertEqual(list(matrix), list(drivers))
        for column, driver in drivers.items():
            with self.subTest(column):
                self.root = self.directory / column
                net = self.adapter("roce0", driver=driver)
                self.with_dcb(*["roce0"] * (driver != "virtio_net"), driver=driver.removesuffix("_en"))
                self.with_ethtool("roce0", answers=of_mlx5 if driver == "mlx5_core" else rings)
                self.with_firmware(ROCE_CC_PRIO_MASK_P1=0, CNP_DSCP_P1=0, CNP_802P_PRIO_P1=0)
                self.with_rdma_cm()
                files = []
                if column == "mlx5 of the vendor":
                    files = [net / "ecn" / file for file in ("roce_np/enable/3", "roce_rp/enable/3", "roce_np/cnp_dscp", "roce_np/cnp_802p_prio")]
                    files.append(self.root / "sys/class/infiniband/mlx5_0/tc/1/traffic_class")
                elif column == "mlx5 of the kernel":
                    files = [self.root / "sys/kernel/debug/mlx5/0000:3b:00.0/cc_params" / file for file in ("np_cnp_dscp", "np_cnp_prio")]
                for file in files:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text("0\n" if file.name != "traffic_class" else "")
                found = {knob["knob"]: "unknown" if knob["state"] == "unknown" else knob["via"] for knob in self.net("check", code=1)["knobs"] if knob["knob"] != "subnet"}
                self.assertEqual(found, {knob: via for knob, via in matrix[column].items() if via})

    def test_what_the_firmware_owns_is_named_with_what_the_driver_says(self) -> None:
        self.interface("roce0", "10.77.0.1/16")
        self.adapter("roce0", driver="bnxt_en")
        self.with_dcb("roce0", driver="bnxt", agent=True)
        found = self.of(self.net("set", code=1), "roce0")
        self.assertEqual((found["dcbx"]["is"], found["dcbx"]["why"]), ("the adapter's firmware", "dcb: Error when attempting to set attribute: Operation not permitted"))
        self.assertEqual((found["pfc"]["state"], found["pfc"]["why"]), ("differs", "dcb: Attribute write: Invalid argument"))
        self.with_dcb("roce0", driver="bnxt")
        self.assertEqual(self.settable(self.net("set", code=0)) - {"unknown"}, {"set", "is"})
        self.assertEqual(self.port("roce0")["dscp"], [[26, 3], [48, 6]])

    def test_the_agent_in_the_firmware_of_ice_is_ended_by_its_flag(self) -> None:
        self.settings.write_text("networks: 10.77.0.0/16\ncnp_priority: 2\n")  # a card with eight ports has four priorities for each
        self.interface("roce0", "10.77.0.1/16")
        self.adapter("roce0", driver="ice")
        self.with_dcb("roce0", driver="ice", agent=True)
        self.with_ethtool("roce0", answers={})
        found = self.of(self.net("check", code=1), "roce0")
        self.assertEqual(found["dcbx"]["fix"], "ethtool --set-priv-flags roce0 fw-lldp-agent off")
        self.net("set", code=0)
        self.assertEqual((self.port("roce0")["host"], self.port("roce0")["dscp"]), (True, [[26, 3], [48, 2]]))
        self.settings.write_text("networks: 10.77.0.0/16\n")
        found = self.of(self.net("set", code=1), "roce0")
        self.assertEqual((found["dscp"]["is"], found["dscp"]["why"]), ("26:3 48:2", "dcb: Attribute write: Invalid argument"))

    def bond(self) -> fabric_shapes.Shape:
        """Of two ports of an adapter; the address and the MTU are the kernel's."""
        self.interface("bond0", "200.0.209.6/24")
        self.settings.write_text("networks: 200.0.209.0/24\n")
        shape = fabric_shapes.Shape(self.root)
        fabric_shapes.bond(shape)
        (self.root / "sys/class/net/bond0/mtu").unlink()
        (self.root / "sys/class/net/bond0/mtu").symlink_to("/sys/class/net/bond0/mtu")
        return shape

    def test_the_ports_of_a_bond_are_set_up_each(self) -> None:
        self.bond()
        self.with_dcb("ens2f0np0", "ens2f1np1")
        firmware = self.with_firmware(**{f"{key}_P{i}": 0 for key in ("ROCE_CC_PRIO_MASK", "CNP_DSCP", "CNP_802P_PRIO") for i in (1, 2)})
        self.with_rdma_cm("mlx5_bond_0")
        before = self.net("check", code=1)
        self.assertEqual([knob["knob"] for knob in before["knobs"] if knob["interface"] == "bond0"], ["mtu", "subnet", "cma_tos", "cma_mode"])
        for port in ("ens2f0np0", "ens2f1np1"):
            found = self.of(before, port)
            self.assertEqual([(name, knob["state"]) for name, knob in found.items()], [("dcbx", "differs"), ("dscp", "differs"), ("pfc", "differs"), ("storm_prevention", "unknown"), ("pause_storms", "unknown"), ("ecn", "differs"), ("cnp", "differs")])
            self.assertEqual((found["pfc"]["driver"], found["pfc"]["fix"]), ("mlx5_core", f"dcb pfc set dev {port} prio-pfc all:off 3:on"))
        self.assertEqual(before["knobs"][0]["driver"], "bond")
        self.net("set", code=0)
        for port in ("ens2f0np0", "ens2f1np1"):
            self.assertEqual(self.port(port), {"host": True, "trust": "dscp", "dscp": [[26, 3], [48, 6]], "pfc": [i == 3 for i in range(8)]})
        self.assertEqual(json.loads(firmware.read_text()), {f"{key}_P{i}": value for key, value in (("ROCE_CC_PRIO_MASK", 8), ("CNP_DSCP", 48), ("CNP_802P_PRIO", 6)) for i in (1, 2)})
        self.assertEqual(Path("/sys/class/net/bond0/mtu").read_text(), "9000\n")
        self.assertEqual(self.settable(self.net("check", code=0)), {"is"})
        # Their driver resets them.
        self.with_dcb("ens2f0np0", "ens2f1np1")
        self.assertEqual(self.of(self.net("check", "--interface", "ens2f1np1", code=1), "ens2f1np1")["pfc"]["state"], "differs")
        self.net("set", "--interface", "ens2f1np1", code=0)
        self.assertEqual(self.port("ens2f1np1"), {"host": True, "trust": "dscp", "dscp": [[26, 3], [48, 6]], "pfc": [i == 3 for i in range(8)]})

    def test_the_ports_below_an_interface_of_the_kernel_are_found(self) -> None:
        self.interface("above0", "10.77.0.1/16", "bridge")
        for name in ("port0", "port1"):
            self.interface(name, "192.0.2.1/32")
            subprocess.run(["ip", "link", "set", name, "master", "above0"], check=True, timeout=30)
        found = self.net("check", code=1)
        self.assertEqual([(knob["interface"], knob["knob"]) for knob in found["knobs"] if knob["knob"] in ("mtu", "pfc")], [("above0", "mtu"), ("port0", "pfc"), ("port1", "pfc")])
        self.assertEqual(found["knobs"][0]["driver"], "bridge")

    def test_a_port_that_its_driver_has_reset_is_set_up_as_soon_as_it_is_below_its_interface_again(self) -> None:
        """The unit of udev names the port, whose address is its bond's."""
        self.interface("above0", "10.77.0.1/16", "bridge")
        self.interface("port0", "192.0.2.1/32")
        self.assertEqual(self.net("check", "--interface", "port0", code=0)["knobs"], [])
        later = subprocess.Popen(["sh", "-c", "sleep 0.5; ip link set port0 master above0"])
        self.addCleanup(later.wait)
        done = self.net("set", "--interface", "port0", "--wait", "60", code=0)
        self.assertEqual({knob["interface"] for knob in done["knobs"]}, {"above0", "port0"})
        self.assertEqual(self.states(done)["mtu"], "set")

    def vlan(self, name: str, below: str, egress: str) -> None:
        """As the kernel shows a VLAN and its map of priorities."""
        net = self.root / "sys/class/net" / name
        net.mkdir(parents=True)
        (net / "uevent").write_text(f"DEVTYPE=vlan\nINTERFACE={name}\n")
        (net / f"lower_{below}").symlink_to(f"../{below}")
        (net / "mtu").symlink_to(f"/sys/class/net/{name}/mtu")
        file = self.root / "proc/net/vlan" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{name}  VID: 100\t REORDER_HDR: 1\nDevice: {below}\nINGRESS priority mappings: 0:0  1:0\n EGRESS priority mappings: {egress} \n")

    def test_a_vlan_is_set_up_on_the_port_that_carries_it(self) -> None:
        self.interface("roce0", "192.0.2.1/32")
        self.interface("roce0.100", "10.77.0.1/16")
        self.adapter("roce0")
        self.vlan("roce0.100", "roce0", "0:1 4:3")
        self.with_dcb("roce0", host=True)
        before = self.net("check", code=1)
        self.assertEqual(list(self.of(before, "roce0")), ["mtu", "dcbx", "dscp", "pfc", "storm_prevention", "pause_storms", "ecn", "cnp"])
        above = self.of(before, "roce0.100")
        self.assertEqual({name: knob.get("is") for name, knob in above.items()}, {"mtu": "1500", "subnet": "10.77.0.1/16", "trust": "PCP", "egress": "2:0"})
        self.assertEqual(above["egress"]["fix"], "ip link set dev roce0.100 type vlan egress-qos-map 2:3")
        self.assertEqual(above["trust"]["fix"], "dcb app replace dev roce0 dscp-prio 26:3 48:6")
        subprocess.run(["ip", "link", "set", "roce0", "mtu", "9216"], check=True, timeout=30)
        self.net("set", code=0)
        found = self.net("check", code=0)
        self.assertEqual({name: knob["is"] for name, knob in self.of(found, "roce0.100").items()}, {"mtu": "9000", "subnet": "10.77.0.1/16", "trust": "DSCP"})
        self.assertEqual(self.of(found, "roce0")["mtu"]["is"], "9216")

    def test_a_vlan_over_a_bond_has_the_bonds_ports(self) -> None:
        self.bond()
        self.settings.write_text("networks: 10.77.0.0/16\n")
        self.interface("bond0.100", "10.77.0.1/16")
        self.vlan("bond0.100", "bond0", "2:3")
        self.with_dcb("ens2f0np0", "ens2f1np1", host=True)
        found = self.net("check", code=1)
        self.assertEqual([knob["interface"] for knob in found["knobs"] if knob["knob"] == "pfc"], ["ens2f0np0", "ens2f1np1"])
        self.assertEqual(list(self.of(found, "bond0")), ["mtu"])
        self.assertEqual(self.of(found, "bond0.100")["egress"]["state"], "is")
        for name in ("bond0.100", "bond0", "ens2f1np1"):
            self.assertEqual(self.net("check", "--interface", name, code=1), found, name)

    def test_a_prefix_that_is_not_the_networks_is_a_finding_without_a_route(self) -> None:
        def subnet(code: int) -> Any:
            return self.of(self.net("check", code=code), "roce0")["subnet"]

        self.settings.write_text("networks: 10.77.0.0/16\nmtu: 1500\n")
        self.interface("roce0", "10.77.0.1/24")
        subprocess.run(["ip", "link", "set", "roce0", "up"], check=True, timeout=30)
        found = subnet(1)
        self.assertEqual((found["is"], found["should"]), ("10.77.0.1/24", "10.77.0.1/16"))
        self.net("set", code=0)  # addresses are not its own
        route = ["10.77.0.0/16", "via", "10.77.0.2", "dev", "roce0", "table", "77"]
        subprocess.run(["ip", "route", "add", *route], check=True, timeout=30)
        self.assertEqual(subnet(0)["state"], "is")
        subprocess.run(["ip", "route", "del", *route], check=True, timeout=30)
        # A rack's route, and one of several next hops.
        hops = [word for last in "23" for word in ("nexthop", "via", f"10.77.0.{last}", "dev", "roce0", "weight", "1")]
        for route in (["10.77.8.0/24", "via", "10.77.0.2"], ["default", *hops]):
            subprocess.run(["ip", "route", "add", *route], check=True, timeout=30)
            self.assertEqual(subnet(0)["state"], "is", route)
            subprocess.run(["ip", "route", "del", *route], check=True, timeout=30)
        # Another interface has another part of the network.
        self.interface("roce1", "10.77.1.1/24")
        self.assertEqual(subnet(0)["state"], "is")
        subprocess.run(["ip", "address", "flush", "dev", "roce1"], check=True, timeout=30)
        self.assertEqual(subnet(1)["fix"], found["fix"])
        subprocess.run(found["fix"], shell=True, check=True, timeout=30)
        self.assertEqual(subnet(0)["is"], "10.77.0.1/16")
        subprocess.run("ip address add 10.77.0.1/8 dev roce0 && ip address del 10.77.0.1/16 dev roce0", shell=True, check=True, timeout=30)
        self.assertEqual(subnet(0)["is"], "10.77.0.1/8")
        self.settings.write_text("networks: 10.77.0.0/16, 10.78.0.0/16\nmtu: 1500\n")
        self.assertEqual(subnet(1)["is"], "10.77.0.1/8")

    def test_a_traffic_class_that_others_have_set_is_a_finding(self) -> None:
        self.interface("roce0", "10.77.0.1/16")
        self.settings.write_text("networks: 10.77.0.0/16\nmtu: 1500\n")
        self.adapter("roce0")
        forced = self.root / "sys/class/infiniband/mlx5_0/tc/1/traffic_class"
        forced.parent.mkdir(parents=True)
        conf = self.root / "etc/nccl.conf"
        conf.parent.mkdir()
        for text, nccl, code in (("", "106", 0), ("Global tclass=106\n", "0x6a", 0), ("Global tclass=104\n", "106", 1), ("", "104", 1)):
            forced.write_text(text)
            conf.write_text(f"NCCL_IB_TC={nccl}\n")
            found = {knob["knob"]: knob for knob in self.net("check", code=code)["knobs"]}
            self.assertEqual(found["traffic_class"]["state"], "differs" if "104" in text else "is")
            self.assertEqual(found["nccl_traffic_class"]["state"], "differs" if nccl == "104" else "is")
        self.assertEqual(found["traffic_class"]["is"], "not forced")
        self.assertEqual(found["nccl_traffic_class"]["fix"], "sed -i 's/^ *NCCL_IB_TC *=.*/NCCL_IB_TC=106/' /etc/nccl.conf")
        forced.write_text("Global tclass=104\n")
        self.assertEqual(self.states(self.net("set", code=0))["traffic_class"], "set")
        self.assertEqual(forced.read_text(), "106")

    def test_storms_of_pauses_and_their_prevention(self) -> None:
        self.interface("roce0", "10.77.0.1/16")
        self.adapter("roce0")
        self.settings.write_text("networks: 10.77.0.0/16\nmtu: 1500\n")
        state = self.tools / "tout"
        counted = self.tools / "counted"
        tool = self.tools / "ethtool"
        tool.write_text(f"""#!/bin/sh
case $1 in
--get-tunable) echo "pfc-prevention-tout: $(cat {state})" ;;
--set-tunable) echo "$4" >{state} ;;
-S) printf 'NIC statistics:\n     tx_prio3_pause: 9\n     tx_pause_storm_warning_events : 4\n     tx_pause_storm_error_events: %s\n' "$(cat {counted})" ;;
esac
""")
        tool.chmod(0o755)
        state.write_text("0\n")
        counted.write_text("0\n")
        found = self.of(self.net("check", code=1), "roce0")
        self.assertEqual((found["storm_prevention"]["is"], found["pause_storms"]["is"]), ("off", "none"))
        self.assertEqual(self.states(self.net("set", code=0))["storm_prevention"], "set")
        self.net("check", code=0)
        counted.write_text("2\n")
        storms = self.of(self.net("check", code=1), "roce0")["pause_storms"]
        self.assertEqual((storms["is"], storms["fix"]), ("2 counted", "devlink dev reload pci/0000:3b:00.0"))
        self.net("set", code=0)

    def test_rings_are_as_large_as_the_settings_say_and_the_adapter_has(self) -> None:
        self.settings.write_text("networks: 10.77.0.0/16\nrings: 4096\n")
        self.interface("roce0", "10.77.0.1/16")
        found = {knob["knob"]: knob for knob in self.net("check", code=1)["knobs"]}
        self.assertEqual(found["rings"]["state"], "unknown", "a veth has none")
        sizes = self.tools / "sizes"
        sizes.write_text("RX: 1024\nTX: 1024\n")
        tool = self.tools / "ethtool"
        tool.write_text(f"""#!/bin/sh
case $1 in
-g) printf 'Ring parameters for %s:\\nPre-set maximums:\\nRX:\\t8192\\nRX Mini:\\tn/a\\nTX:\\t2048\\n' "$2"
    printf 'Current hardware settings:\\n'; cat {sizes} ;;
-G) printf 'RX:\\t%s\\nRX Mini:\\tn/a\\nTX:\\t%s\\n' "$4" "$6" >{sizes} ;;
esac
""")
        tool.chmod(0o755)
        found = {knob["knob"]: knob for knob in self.net("check", code=1)["knobs"]}
        self.assertEqual((found["rings"]["is"], found["rings"]["should"]), ("receive 1024, send 1024", "receive 4096, send 2048"))
        self.assertEqual(found["rings"]["fix"], "ethtool -G roce0 rx 4096 tx 2048")
        self.assertEqual(self.states(self.net("set", code=0))["rings"], "set")
        self.assertEqual(self.states(self.net("check", code=0))["rings"], "is")

    def test_what_cannot_be_set_is_said_with_what_refused_it(self) -> None:
        self.interface("roce0", "10.77.0.1/16")
        self.settings.write_text("networks: 10.77.0.0/16\nmtu: 65520\n")
        self.adapter("roce0")
        self.with_dcb("roce0")
        tool = self.tools / "ip"
        tool.write_text("#!/bin/sh\necho 'Error: mtu greater than device maximum.' >&2\nexit 2\n")
        tool.chmod(0o755)
        found = {knob["knob"]: knob for knob in self.net("set", code=1)["knobs"]}
        self.assertEqual((found["mtu"]["state"], found["mtu"]["is"]), ("differs", "1500"))
        self.assertEqual(found["mtu"]["why"], "ip: Error: mtu greater than device maximum.")
        self.assertEqual(found["mtu"]["fix"], "ip link set dev roce0 mtu 65520")
        self.assertEqual(found["pfc"]["state"], "set")

    def test_each_rail_is_set_up_and_no_other_interface(self) -> None:
        self.interface("roce0", "10.77.0.1/16")
        self.interface("roce1", "fd00:77::1/64")
        self.interface("other", "10.78.0.1/16")
        done = self.net("set", code=0)
        self.assertEqual(sorted({knob["interface"] for knob in done["knobs"]}), ["roce0", "roce1"])
        self.assertEqual(Path("/sys/class/net/other/mtu").read_text(), "1500\n")
        alone = self.net("check", "--interface", "roce1", code=0)
        self.assertEqual({knob["interface"] for knob in alone["knobs"]}, {"roce1"})
        self.assertEqual(self.net("check", "--interface", "other", code=0)["knobs"], [])

    def test_an_address_that_comes_later_is_waited_for(self) -> None:
        self.interface("roce0", "10.78.0.1/16")
        later = subprocess.Popen(["sh", "-c", "sleep 0.5; ip address add 10.77.0.1/16 dev roce0"])
        self.addCleanup(later.wait)
        done = self.net("set", "--interface", "roce0", "--wait", "60", code=0)
        self.assertEqual(self.states(done)["mtu"], "set")

    def test_a_host_without_an_address_of_the_fabric_is_a_finding(self) -> None:
        self.net("check", code=1)
        self.assertIn("no interface has an address in 10.77.0.0/16", self.run_net("check").stdout)
        self.settings.write_text("")
        self.net("check", code=0)
        self.assertIn("names no networks", self.run_net("check").stdout)

    def test_settings_that_contradict_themselves_are_refused_with_their_place(self) -> None:
        for text, said in (
            ("networks: 10.77.0.0\n", "'networks: 10.77.0.0' is not allowed: give networks between commas"),
            ("networks: 10.77.0.1/16\n", "is not allowed"),
            ("mtu: 900\n", ":1: 'mtu: 900' is not allowed: give 1280 to 65520"),
            ("networks: 10.77.0.0/16, 10.77.3.0/24\n", "the networks 10.77.0.0/16 and 10.77.3.0/24 overlap"),
            ("networks: fd00:77::/64, 10.77.0.0/16, fd00:77::/64\n", "the networks fd00:77::/64 and fd00:77::/64 overlap"),
            ("priority: 6\n", "priority and cnp_priority are both 6"),
            ("\ncnp_dscp: 26\n", "dscp and cnp_dscp are both 26"),
            ("pcf: yes\n", ":1: unknown key 'pcf'; the keys are networks, mtu"),
        ):
            self.settings.write_text(text)
            done = self.run_net("check")
            self.assertEqual((done.returncode, done.stdout), (2, ""), text)
            self.assertIn(said, done.stderr)
        self.settings.unlink()
        self.assertIn("No such file", self.run_net("check").stderr)

    def test_an_empty_name_of_the_settings_is_refused(self) -> None:
        """As of a shell's variable that is not set; the host would have no fabric, and all would be well."""
        for command in ("check", "set", "switch", "show", "env", "test"):
            done = subprocess.run([str(BUILD / "bin" / "muster"), "net", command, "--settings", ""], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""), command)
            self.assertIn("--settings: an empty name is no file", done.stderr)

    def own_etc(self) -> None:
        """An /etc of this test's own: the test has mounts of its own."""
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/etc"], check=True, timeout=30)
        self.addCleanup(subprocess.run, ["umount", "/etc"], check=True, timeout=30)

    def test_at_boot_a_mistake_in_musters_configuration_does_not_leave_the_fabric_unset(self) -> None:
        self.interface("roce0", "10.77.0.1/16")
        self.own_etc()
        Path("/etc/muster").mkdir()
        Path("/etc/muster/muster.yaml").write_text("unknown: key\n")
        Path("/etc/muster/roce.yaml").write_text("networks: 10.77.0.0/16\n")
        for unit in ("muster-roce.service", "muster-roce@.service"):
            subprocess.run(["ip", "link", "set", "roce0", "mtu", "1500"], check=True, timeout=30)
            [start] = [line for line in (BUILD / "packaging/systemd" / unit).read_text().splitlines() if line.startswith("ExecStart=")]
            words = start.replace("%i", "roce0").split()[1:]
            done = subprocess.run([str(BUILD / "bin" / "muster"), *words], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 0, f"{unit}: {done.stdout}{done.stderr}")
            self.assertEqual(Path("/sys/class/net/roce0/mtu").read_text(), "9000\n", unit)

    def test_a_host_without_the_file_of_settings_has_no_fabric(self) -> None:
        self.interface("roce0", "10.77.0.1/16")
        self.own_etc()
        for command in ("check", "set", "switch"):
            done = subprocess.run([str(BUILD / "bin" / "muster"), "net", command], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual((done.returncode, done.stdout), (0, "/etc/muster/roce.yaml names no networks: this host has no fabric\n"), done.stderr)
        self.assertEqual(Path("/sys/class/net/roce0/mtu").read_text(), "1500\n")

    def test_without_settings_of_its_own_a_command_takes_those_that_musterd_takes(self) -> None:
        self.interface("roce0", "10.77.0.1/16")
        config = self.directory / "muster.yaml"

        def check(code: int) -> str:
            done = subprocess.run([str(BUILD / "bin" / "muster"), "--config", str(config), "net", "check"], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            return done.stdout + done.stderr

        def doctor() -> list[str]:
            done = subprocess.run([str(BUILD / "bin" / "muster"), "--config", str(config), "doctor", "--json"], capture_output=True, text=True, timeout=120, check=False)
            return [found["is"] for found in json.loads(done.stdout)["findings"] if found["id"] in ("mtu", "fabric")]

        config.write_text(f"fabric_settings: {self.settings}\n")
        self.assertRegex(check(1), r"(?m)^roce0 .* mtu +differs +1500 +9000")
        self.assertEqual(doctor(), ["mtu of roce0 is 1500"])
        config.write_text("fabric_settings:\n")
        self.assertEqual(doctor(), [])
        self.assertEqual(check(0), "fabric_settings in muster.yaml names no file: this host has no fabric\n")
        config.write_text(f"fabric_settings: {self.directory}/nowhere.yaml\n")
        self.assertIn("nowhere.yaml: cannot be read: No such file", check(1))
        config.write_text("fabric_setting: no\n")
        self.assertIn("unknown key 'fabric_setting'", check(2))

    def test_two_that_set_at_once_take_turns(self) -> None:
        """As the units of a bond's ports at boot: an adapter's firmware answers one program at a time."""
        self.interface("roce0", "10.77.0.1/16")
        for program in ("dcb", "ethtool"):
            tool = self.tools / program
            tool.write_text(f'#!/bin/sh\necho >>{self.directory}/calls\nmkdir {self.directory}/busy || echo >>{self.directory}/met\nsleep 0.2\nrmdir {self.directory}/busy\nexit 1\n')
            tool.chmod(0o755)
        command = [str(BUILD / "bin" / "muster"), "net", "set", f"--settings={self.settings}"]
        environment = os.environ | {"PATH": f"{self.tools}:{os.environ['PATH']}"}
        both = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) for _ in range(2)]
        self.assertEqual([one.wait(timeout=60) for one in both], [0, 0])
        self.assertGreater(len((self.directory / "calls").read_text()), 3)
        self.assertFalse((self.directory / "met").exists())

    def test_what_switches_must_have_follows_from_the_settings(self) -> None:
        def switch() -> dict[str, str]:
            done = self.run_net("switch", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            return {knob["knob"]: knob["should"] for knob in json.loads(done.stdout)["knobs"]}

        self.assertEqual(switch(), {"mtu": "9000 or more", "trust": "DSCP", "dscp": "26 to priority 3, 48 to priority 6", "pfc": "priority 3 alone", "ecn": "priority 3", "strict": "priority 6"})
        self.settings.write_text("networks: 10.77.0.0/16\nmtu: 4200\ndscp: 24\npriority: 4\ncnp_dscp: 56\ncnp_priority: 7\n")
        self.assertEqual(switch(), {"mtu": "4200 or more", "trust": "DSCP", "dscp": "24 to priority 4, 56 to priority 7", "pfc": "priority 4 alone", "ecn": "priority 4", "strict": "priority 7"})
        self.settings.write_text("networks: 10.77.0.0/16\npfc: no\necn_bits: 0\n")
        found = switch()
        self.assertEqual((found["pfc"], found["ecn"]), ("none", "none"))
        self.settings.write_text("dscp: 24\n")
        self.assertEqual(self.run_net("switch").stdout, f"{self.settings} names no networks: this host has no fabric\n")

    def test_the_settings_that_are_printed_are_read(self) -> None:
        printed = self.run_net("settings").stdout
        lines = [line.removeprefix("#") for line in printed.splitlines() if line.startswith("#") and not line.startswith("# ")]
        self.assertEqual([line.split(":")[0] for line in lines], ["networks", "mtu", "dscp", "ecn_bits", "priority", "pfc", "cnp_dscp", "cnp_priority", "rings", "rate"])
        self.settings.write_text("\n".join(lines))
        self.assertEqual(self.net("check", code=0)["traffic_class"], 106)


if __name__ == "__main__":
    own_network.enter()
    unittest.main()
