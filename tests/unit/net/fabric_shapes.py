"""Hosts as /sys shows them: the RDMA devices of real fabrics, each after a public report that is named with it.

A shape is a tree of files that `muster net show --root` reads. What a report does not tell, as a firmware's number, is what the
kernel's Documentation/ABI/stable/sysfs-class-infiniband says is there."""

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

V1, V2 = "IB/RoCE v1", "RoCE v2"


def gid_line(address: str) -> str:
    """As the kernel writes it: eight groups of four digits."""
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv4Address):
        parsed = ipaddress.IPv6Address(f"::ffff:{address}")
    return parsed.exploded


@dataclass
class Port:
    """Of a device. GIDs are (index, address, type); a type of None is an entry that another network namespace has."""

    interface: str = ""
    gids: list[tuple[int, str, str | None]] = field(default_factory=list)
    link: str = "Ethernet"
    state: str = "4: ACTIVE"
    physical: str = "5: LinkUp"
    rate: str = "400 Gb/sec (4X NDR)"
    mtu: int = 9000
    files: dict[str, str] = field(default_factory=dict)


class Shape:
    """A host's tree below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys/bus/pci/devices").mkdir(parents=True)

    def write(self, path: str, text: str | bytes) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())

    def pci(self, bridges: str, address: str, numa: int, **files: str) -> Path:
        """A device behind bridges, as "pci0000:15/0000:15:01.0"."""
        for parts in range(2, len(bridges.split("/")) + 1):
            bridge = "/".join(bridges.split("/")[:parts])
            link = self.root / "sys/bus/pci/devices" / bridge.split("/")[-1]
            (self.root / "sys/devices" / bridge).mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(f"../../../devices/{bridge}")
        directory = self.root / "sys/devices" / bridges / address
        directory.mkdir(parents=True, exist_ok=True)
        (self.root / "sys/bus/pci/devices" / address).symlink_to(f"../../../devices/{bridges}/{address}")
        (directory / "subsystem").symlink_to("/sys/bus/pci")
        for name, text in {"numa_node": str(numa), "local_cpulist": f"{numa * 48}-{numa * 48 + 47}", **files}.items():
            (directory / name).write_text(text + "\n")
        return directory

    def gpu(self, bridges: str, address: str, numa: int) -> None:
        self.pci(bridges, address, numa, **{"class": "0x030200", "vendor": "0x10de"})

    def device(self, name: str, ports: list[Port], pci: Path | None = None, driver: str = "", **files: str) -> None:
        directory = self.root / "sys/class/infiniband" / name
        for file, text in {"node_guid": "0000:0000:0000:0000", **files}.items():
            self.write(f"sys/class/infiniband/{name}/{file}", text)
        if pci is not None:
            (directory / "device").symlink_to(pci)
            (pci / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")
        for number, port in enumerate(ports, start=1):
            self.port(f"sys/class/infiniband/{name}/ports/{number}", port)

    def port(self, at: str, port: Port) -> None:
        for file, text in {"link_layer": port.link, "state": port.state, "phys_state": port.physical, "rate": port.rate, **port.files}.items():
            self.write(f"{at}/{file}", text)
        size = 16
        table = {index: (address, kind) for index, address, kind in port.gids}
        for index in range(size):
            address, kind = table.get(index, ("::", None))
            self.write(f"{at}/gids/{index}", gid_line(address))
            if kind is not None:
                self.write(f"{at}/gid_attrs/types/{index}", kind)
                self.write(f"{at}/gid_attrs/ndevs/{index}", port.interface)
        if port.interface:
            self.write(f"sys/class/net/{port.interface}/mtu", str(port.mtu))


    def interface(self, name: str, kind: str, below: list[str]) -> None:
        """One above others, as the kernel shows a bond or a VLAN."""
        self.write(f"sys/class/net/{name}/uevent", f"DEVTYPE={kind}\nINTERFACE={name}")
        for lower in below:
            (self.root / f"sys/class/net/{name}/lower_{lower}").symlink_to(f"../{lower}")

    def adapter(self, name: str, pci: Path, driver: str = "mlx5_core") -> None:
        """The interface of an adapter's port."""
        self.write(f"sys/class/net/{name}/uevent", f"INTERFACE={name}")
        (self.root / f"sys/class/net/{name}/device").symlink_to(pci)
        if not (pci / "driver").is_symlink():
            (pci / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")


def pair(index: int, address: str) -> list[tuple[int, str, str | None]]:
    """Each address has a GID of each version."""
    return [(index, address, V1), (index + 1, address, V2)]


def h100_rails(shape: Shape) -> None:
    """Eight H100, an adapter of 400 Gb/s on the switch of each: NVIDIA/nccl#1131 has the GIDs and names, NVIDIA's DGX H100 guide the
    switches. The two devices for storage have no address of the fabric."""
    for i in range(8):
        bus = 0x15 + 0x14 * i
        bridges = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        numa = i // 4
        shape.gpu(f"{bridges}/0000:{bus + 2:02x}:01.0", f"0000:{bus + 6:02x}:00.0", numa)
        speed = {"current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe", "current_link_width": "16", "max_link_width": "16"}
        place = shape.pci(f"{bridges}/0000:{bus + 2:02x}:00.0", f"0000:{bus + 3:02x}:00.0", numa, **speed)
        link_local = f"fe80::a288:c2ff:fe5b:{0x3EC + i:x}"
        gids = pair(0, link_local) + pair(2, f"11.0.{i}.72")
        shape.device(f"mlx5_{i if i < 4 else i + 2}", [Port(f"ens{i}np0", gids)], place, "mlx5_core", fw_ver="28.39.1002", board_id="MT_0000000838")
    for i, name in enumerate(("mlx5_4", "mlx5_5")):
        place = shape.pci("pci0000:f0/0000:f0:01.0", f"0000:f1:00.{i}", 1)
        gids = pair(0, f"fe80::a288:c2ff:fe00:{i + 1:x}")
        shape.device(name, [Port(f"ens9f{i}np{i}", gids, rate="100 Gb/sec (2X HDR)", mtu=1500)], place, "mlx5_core")
    shape.write("sys/module/nvidia_peermem/version", "535.129.03")
    shape.write("proc/self/limits", "Limit                     Soft Limit           Hard Limit           Units     \nMax locked memory         unlimited            unlimited            bytes     ")


def bond(shape: Shape) -> None:
    """NVIDIA/nccl#769: two ports of an adapter are one device, whose GID 1 is link-local and ends in a timeout, and whose GID 3 works.
    What the bond is made of is as the kernel's bonding driver links it."""
    place = shape.pci("pci0000:16/0000:16:02.0", "0000:17:00.0", 0)
    gids: list[tuple[int, str, str | None]] = pair(0, "fe80::ac0:ebff:feda:1cfb") + pair(2, "200.0.209.6")
    shape.device("mlx5_bond_0", [Port("bond0", gids, rate="200 Gb/sec (4X HDR)", mtu=4200)], place, "mlx5_core")
    shape.interface("bond0", "bond", ["ens2f0np0", "ens2f1np1"])
    shape.adapter("ens2f0np0", place)
    shape.adapter("ens2f1np1", shape.pci("pci0000:16/0000:16:02.0", "0000:17:00.1", 0))


def infiniband(shape: Shape) -> None:
    """NDR with a subnet manager, as `ibstat` of infiniband-diags shows such a port; its only GIDs are of its subnet."""
    for i in range(2):
        place = shape.pci(f"pci0000:{0x1A + i * 0x10:02x}/0000:{0x1A + i * 0x10:02x}:00.0", f"0000:{0x1B + i * 0x10:02x}:00.0", i)
        files = {"lid": f"0x{0x4E + i:x}", "sm_lid": "0x1", "sm_sl": "0"}
        port = Port("", [(0, f"fe80::a088:c203:ab:{0x1000 + i:x}", V1)], link="InfiniBand", files=files)
        shape.device(f"mlx5_{i}", [port], place, "mlx5_core", fw_ver="28.41.1000")


def bnxt(shape: Shape) -> None:
    """uccl-project/uccl PR#803: an adapter whose every GID is one of IPv6, link-local ones first, so that who looks for IPv4 takes
    a link-local one and ends with error 12."""
    place = shape.pci("pci0000:40/0000:40:01.1", "0000:41:00.0", 0)
    gids: list[tuple[int, str, str | None]] = pair(0, "fe80::9e6b:ff:fe4b:1") + pair(2, "fd93:16d3:59b6:12d::5")
    shape.device("bnxt_re0", [Port("enp65s0np0", gids)], place, "bnxt_en", fw_ver="231.2.63.0")


def efa(shape: Shape) -> None:
    """The kernel's efa driver: a link layer that is neither, a protocol of its own, and no interface."""
    place = shape.pci("pci0000:48/0000:48:00.0", "0000:4f:00.0", 0)
    port = Port("", [(0, "fe80::4e4:1ff:fe2a:b3c1", V1)], link="Unspecified", rate="100 Gb/sec (4X EDR)")
    shape.device("rdmap79s0", [port], place, "efa")


def rxe(shape: Shape) -> None:
    """rdma_rxe on virtio-net, as a guest of Debian 12 shows it (tests/vm)."""
    gids: list[tuple[int, str, str | None]] = [(0, "fe80::5054:ff:fe12:3456", V2), (1, "10.88.0.1", V2)]
    shape.device("rxe0", [Port("eth0", gids, rate="2.5 Gb/sec (1X SDR)", mtu=1500)], parent="eth0")


def siw(shape: Shape) -> None:
    """The kernel's siw, which is iWARP: its GID is the interface's MAC address, and it has none of RoCE v2."""
    shape.device("siw0", [Port("eth0", [(0, "5254:12:3456::", V1)], rate="10 Gb/sec (4X SDR)", mtu=1500)])


def virtual_functions(shape: Shape) -> None:
    """NVIDIA/nccl#1573: in a container with a virtual function, the first entries of the table are another namespace's, whose types
    cannot be read."""
    for i in range(2):
        place = shape.pci("pci0000:0c/0000:0c:00.0", f"0000:0d:00.{i + 2}", 0)
        (place / "physfn").symlink_to("../0000:0d:00.0")
        hidden: list[tuple[int, str, str | None]] = [(entry, "::", None) for entry in range(4)]
        gids = hidden + pair(4, f"fe80::a4ed:ccff:fe8b:{0x1994 + i:x}") + pair(6, f"10.152.{4 * i}.12")
        shape.device(f"mlx5_{i}", [Port(f"net{i + 1}", gids)], place, "mlx5_core")


def uneven(shape: Shape) -> None:
    """NVIDIA/nccl#890: the address of each port stands at another index, which one NCCL_IB_GID_INDEX cannot say."""
    for i, index in enumerate((2, 5)):
        place = shape.pci("pci0000:0c/0000:0c:00.0", f"0000:0d:00.{i}", 0)
        shape.device(f"mlx5_{i}", [Port(f"net{i + 1}", pair(0, f"fe80::{i + 1:x}") + pair(index, f"10.7.0.{i + 1}"))], place, "mlx5_core")


def spark(shape: Shape) -> None:
    """Two sockets of an adapter with two ports each, of which one has no cable (a launcher of MiaAI-Lab for DGX Spark, PR#95)."""
    for name, domain, address in (("roceP2p1s0f1", "0002", "10.100.216.18"), ("rocep1s0f1", "0000", "10.100.216.2")):
        place = shape.pci(f"pci{domain}:00/{domain}:00:00.0", f"{domain}:01:00.1", 0)
        interface = "enP2p1s0f1np1" if domain == "0002" else "enp1s0f1np1"
        shape.device(name, [Port(interface, pair(0, f"fe80::{domain}:1") + pair(2, address), rate="100 Gb/sec (4X EDR)")], place, "mlx5_core")
        down = shape.pci(f"pci{domain}:00/{domain}:00:00.0", f"{domain}:01:00.0", 0)
        without = Port(interface[:-5] + "0np0", [], state="1: DOWN", physical="3: Disabled", rate="40 Gb/sec (4X QDR)")
        shape.device(name[:-1] + "0", [without], down, "mlx5_core")


def amd(shape: Shape) -> None:
    """A GPU of AMD's beside an adapter: the kernel's amdgpu gives a GPU's memory as a dma-buf (ROCm's guide to RDMA)."""
    bridges = "pci0000:20/0000:20:01.0/0000:21:00.0"
    shape.pci(bridges, "0000:22:00.0", 0, **{"class": "0x120000", "vendor": "0x1002"})
    place = shape.pci("pci0000:60/0000:60:01.0", "0000:61:00.0", 0)
    shape.device("mlx5_0", [Port("roce0", pair(2, "10.1.0.5"))], place, "mlx5_core")
    shape.write("sys/module/amdgpu/initstate", "live")


def mixed(shape: Shape) -> None:
    """InfiniBand for training and RoCE for storage in one host, as DGX A100 systems have it."""
    place = shape.pci("pci0000:1a/0000:1a:00.0", "0000:1b:00.0", 0)
    files = {"lid": "0x4e", "sm_lid": "0x0", "sm_sl": "0"}
    shape.device("mlx5_0", [Port("", [(0, "fe80::a088:c203:ab:1000", V1)], link="InfiniBand", rate="200 Gb/sec (4X HDR)", files=files)], place, "mlx5_core")
    place = shape.pci("pci0000:e0/0000:e0:03.1", "0000:e1:00.0", 1)
    shape.device("mlx5_10", [Port("enp225s0f0np0", pair(0, "fe80::9") + pair(2, "10.77.4.9"), rate="100 Gb/sec (4X EDR)", mtu=1500)], place, "mlx5_core")


def slow_slot(shape: Shape) -> None:
    """A PCIe switch that sends everything through the CPU (ACS), an adapter in half a slot, relaxed ordering off, and an IOMMU that
    translates: registers as the PCI Express specification has them, and NVIDIA's GPUDirect guide warns of. With an IOMMU Linux turns ACS
    on at all root ports. A second adapter has no GPU below a root port of its own."""
    bridges = "pci0000:20/0000:20:01.0/0000:21:00.0/0000:22:00.0"
    speed = {"current_link_speed": "16.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe", "current_link_width": "8", "max_link_width": "16"}
    place = shape.pci(bridges, "0000:23:00.0", 0, **speed)
    shape.gpu("pci0000:20/0000:20:01.0/0000:21:00.0/0000:22:01.0", "0000:27:00.0", 0)
    space = bytearray(4096)
    space[0x34] = 0x60
    space[0x60:0x62] = bytes((0x10, 0))
    (place / "config").write_bytes(space)
    alone = shape.pci("pci0000:40/0000:40:01.0", "0000:41:00.0", 0)
    for bridge in ("0000:20:01.0", "0000:21:00.0", "0000:22:00.0", "0000:40:01.0"):
        space = bytearray(4096)
        space[0x100:0x104] = (0x000D | 1 << 16).to_bytes(4, "little")
        space[0x106:0x108] = (0x00 if bridge == "0000:21:00.0" else 0x1C).to_bytes(2, "little")
        (shape.root / "sys/bus/pci/devices" / bridge / "config").write_bytes(space)
    (place / "iommu_group").symlink_to("../../kernel/iommu_groups/7")
    shape.write("sys/kernel/iommu_groups/7/type", "DMA-FQ")
    shape.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build")
    shape.write("proc/self/limits", "Limit                     Soft Limit           Hard Limit           Units     \nMax locked memory         8388608              8388608              bytes     ")
    shape.device("mlx5_0", [Port("roce0", pair(2, "10.1.0.5"))], place, "mlx5_core")
    shape.device("mlx5_1", [Port("roce1", pair(2, "10.1.0.6"))], alone, "mlx5_core")
