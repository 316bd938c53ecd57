#!/usr/bin/python3
"""How nodes are described to Slurm, without machines: GPUs by the files that a driver shows, and the lines of slurm.conf and gres.conf."""

import itertools
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
PLUGINS = Path(__file__).resolve().parents[2] / "provisioning" / "plugins"
sys.path[:0] = [str(PLUGINS / "modules"), str(PLUGINS / "filter")]

from gpus import look  # noqa: E402
from osds_of import osds_of  # noqa: E402
from slurm_nodes import slurm_gres, slurm_nodes  # noqa: E402

H100 = "NVIDIA H100 80GB HBM3"
TYPE = "nvidia_h100_80gb_hbm3"


class Host:
    """Files of /proc and /sys: two sockets of four cores with two threads each. Linux numbers first the first thread of every core."""

    def __init__(self, directory: str) -> None:
        self.root = Path(directory)
        for processor in range(16):
            core, socket = processor % 8, processor % 8 // 4
            topology = f"sys/devices/system/cpu/cpu{processor}/topology"
            self.write(f"{topology}/thread_siblings_list", f"{core},{core + 8}")
            self.write(f"{topology}/core_siblings_list", f"{4 * socket}-{4 * socket + 3},{4 * socket + 8}-{4 * socket + 11}")
        for node in range(2):
            self.write(f"sys/devices/system/node/node{node}/cpulist", f"{4 * node}-{4 * node + 3},{4 * node + 8}-{4 * node + 11}")
        self.write("sys/devices/system/cpu/cpufreq/policy0", "")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def device(self, bus: str, near: str = "0-15", vendor: str = "0x10de", kind: str = "0x030200") -> None:
        for name, text in (("vendor", vendor), ("class", kind), ("local_cpulist", near)):
            self.write(f"sys/bus/pci/devices/{bus}/{name}", text)

    def gpu(self, minor: int, bus: str, near: str = "0-15", model: str = H100, excluded: str = "No") -> None:
        self.device(bus, near)
        text = f"Model: \t\t {model}\nIRQ:   \t\t 16\nBus Location: \t {bus}\nDevice Minor: \t {minor}\nGPU Excluded:\t {excluded}"
        self.write(f"proc/driver/nvidia/gpus/{bus}/information", text)


class Gpus(unittest.TestCase):
    def setUp(self) -> None:
        self.host = Host(self.enterContext(tempfile.TemporaryDirectory()))

    def look(self) -> dict[str, Any]:
        return look(str(self.host.root))

    def test_a_host_without_one_has_none(self) -> None:
        self.host.device("0000:00:1f.0", vendor="0x8086")
        self.assertEqual(self.look(), {"gpus": [], "lost": [], "mig": False})
        self.assertEqual(look("/nowhere"), {"gpus": [], "lost": [], "mig": False})

    def test_each_has_the_cores_of_its_socket_as_slurm_counts_them(self) -> None:
        self.host.gpu(1, "0000:c1:00.0", near="4-7,12-15")
        self.host.gpu(0, "0000:41:00.0", near="0-3,8-11")
        self.assertEqual([(gpu["minor"], gpu["cores"]) for gpu in self.look()["gpus"]], [(0, "0-3"), (1, "4-7")])
        # With Linux' numbers of processors that alternate between sockets, Slurm's still go by socket.
        for processor in range(16):
            core, socket = processor % 8, processor % 2
            topology = f"sys/devices/system/cpu/cpu{processor}/topology"
            self.host.write(f"{topology}/thread_siblings_list", f"{core},{core + 8}")
            self.host.write(f"{topology}/core_siblings_list", ",".join(str(number) for number in range(socket, 16, 2)))
        for node in range(2):
            self.host.write(f"sys/devices/system/node/node{node}/cpulist", ",".join(str(number) for number in range(node, 16, 2)))
        for bus, first in (("0000:41:00.0", 0), ("0000:c1:00.0", 1)):
            self.host.write(f"sys/bus/pci/devices/{bus}/local_cpulist", ",".join(str(number) for number in range(first, 16, 2)))
        self.assertEqual([gpu["cores"] for gpu in self.look()["gpus"]], ["0-3", "4-7"])

    def test_where_all_cores_are_near_none_are_named(self) -> None:
        self.host.gpu(0, "0000:41:00.0")
        self.assertEqual(self.look()["gpus"][0]["cores"], "")

    def test_what_the_driver_does_not_show_is_lost_and_what_it_excludes_is_not_there(self) -> None:
        self.host.gpu(0, "0000:41:00.0")
        self.host.gpu(1, "0000:42:00.0", excluded="Yes")
        self.host.device("0000:c1:00.0")
        self.host.device("0000:c1:00.1", kind="0x040300")  # its sound
        found = self.look()
        self.assertEqual(([gpu["minor"] for gpu in found["gpus"]], found["lost"]), ([0], ["0000:c1:00.0"]))

    def test_mig_instances_are_seen(self) -> None:
        self.host.gpu(0, "0000:41:00.0")
        self.host.write("proc/driver/nvidia/capabilities/mig/config", "DeviceFileMinor: 1")
        self.host.write("proc/driver/nvidia/capabilities/gpu0/mig/access", "")
        self.assertFalse(self.look()["mig"])
        self.host.write("proc/driver/nvidia/capabilities/gpu0/mig/gi7/access", "DeviceFileMinor: 66")
        self.assertTrue(self.look()["mig"])


def gpu(minor: int, model: str = H100, cores: str = "") -> dict[str, Any]:
    return {"minor": minor, "model": model, "bus": f"0000:{minor:02x}:00.0", "cores": cores}


def node(gpus: list[dict[str, Any]], **variables: Any) -> dict[str, Any]:
    said = "NodeName=x CPUs=16 Sockets=2 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=32000\nUpTime=0-01:00:00"
    return {"slurm_node_found": {"stdout": said}, "nvidia_found": {"gpus": gpus}} | variables


class Lines(unittest.TestCase):
    def check(self, host: dict[str, Any], gres: str, lines: list[str]) -> None:
        [line] = slurm_nodes(["n1"], {"n1": host}, [])
        self.assertEqual([word.partition("=")[2] for word in line.split() if word.startswith("Gres=")], [gres] if gres else [])
        self.assertEqual(slurm_gres(["n1"], {"n1": host}, []), [f"NodeName=n1 {line}" for line in lines])

    def test_a_node_has_what_was_found(self) -> None:
        self.assertEqual(
            slurm_nodes(["n1"], {"n1": node([])}, []),
            ["NodeName=n1 CPUs=16 Sockets=2 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=30976"],
        )
        self.check(node([]), "", [])
        eight = [gpu(minor, cores="0-3" if minor < 4 else "4-7") for minor in range(8)]
        halves = [f"Name=gpu Type={TYPE} File=/dev/nvidia[{files}] Cores={cores}" for files, cores in (("0,1,2,3", "0-3"), ("4,5,6,7", "4-7"))]
        self.check(node(eight), f"gpu:{TYPE}:8", halves)

    def test_gpus_of_two_kinds_are_counted_apart(self) -> None:
        two = [gpu(0), gpu(1, "NVIDIA A100-SXM4-40GB")]
        lines = [f"Name=gpu Type={TYPE} File=/dev/nvidia0", "Name=gpu Type=nvidia_a100-sxm4-40gb File=/dev/nvidia1"]
        self.check(node(two), f"gpu:nvidia_a100-sxm4-40gb:1,gpu:{TYPE}:1", lines)

    def test_the_operator_says_it_otherwise(self) -> None:
        self.check(node([gpu(0)], nvidia_gpus=False), "", [])
        self.check(node([gpu(0)], nvidia_type="h100"), "gpu:h100:1", ["Name=gpu Type=h100 File=/dev/nvidia0"])
        part = "Name=gpu Type=1g.10gb File=/dev/nvidia-caps/nvidia-cap66"
        self.check(node([gpu(0)], nvidia_gres=[part], slurm_node_parameters={"Gres": "gpu:1g.10gb:1"}), "gpu:1g.10gb:1", [part])
        # Cores as the kernel numbers them are not those of another layout.
        other = node([gpu(0, cores="0-3")], slurm_node_parameters={"CPUs": 8})
        self.check(other, f"gpu:{TYPE}:1", [f"Name=gpu Type={TYPE} File=/dev/nvidia0"])

    def test_a_host_that_was_not_reached_keeps_its_lines(self) -> None:
        hosts: dict[str, Any] = {"n1": node([gpu(0)]), "n2": {}, "n3": {"nvidia_found": {"gpus": []}}}
        gres = [f"NodeName={name} Name=gpu File=/dev/nvidia{minor}" for name, minor in itertools.product(("n1", "n2", "n3", "n22"), (0, 1))]
        kept = [line for line in gres if line.split()[0] in ("NodeName=n2", "NodeName=n3")]
        self.assertEqual(slurm_gres(["n1", "n2", "n3"], hosts, gres)[1:], kept)
        nodes = ["NodeName=n2 CPUs=4 Gres=gpu:h100:2", "NodeName=n3 CPUs=4 Gres=gpu:h100:2"]
        self.assertEqual(slurm_nodes(["n1", "n2", "n3"], hosts, nodes)[1:], nodes)


class Osds(unittest.TestCase):
    def test_those_of_a_host_by_their_state(self) -> None:
        tree = """{"nodes": [{"id": -1, "type": "root", "name": "default", "children": [-3, -2]},
            {"id": -2, "type": "host", "name": "n1", "children": [2, 0]}, {"id": 0, "type": "osd", "name": "osd.0", "status": "down"},
            {"id": 2, "type": "osd", "name": "osd.2", "status": "up"}, {"id": -3, "type": "host", "name": "n2", "children": [1]},
            {"id": 1, "type": "osd", "name": "osd.1", "status": "down"}], "stray": []}"""
        self.assertEqual([osds_of(tree, "n1", state) for state in ("up", "down")], [[2], [0]])
        self.assertEqual([osds_of(tree, "n3", "down"), osds_of("", "n1", "up")], [[], []])


if __name__ == "__main__":
    unittest.main(verbosity=2)
