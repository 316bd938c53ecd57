"""One bridge for each cluster, one veth for each node."""

import contextlib
import fcntl
import ipaddress
import json
import os
from collections.abc import Sequence
from pathlib import Path

from .host import ClusterError, run
from .names import CEPH_NODE, CONTROLLER, Names

IFF_UP = 1


class Network:
    """The cluster's layer 2. The bridge's own address, .254, is the host's; nodes have no route beyond it."""

    def __init__(self, names: Names, subnet: str | None = None, others: Sequence[str] = ()) -> None:
        """others: nodes that are not called by a letter and a number."""
        self._names = names
        self._last = {CONTROLLER: 1, CEPH_NODE: 2} | {name: 200 + number for number, name in enumerate(others)}
        self.subnet = subnet  # the first three bytes of the /24, such as "10.83.7"

    def create(self) -> None:
        """Makes the bridge on a /24 that nothing on this host uses; its address is the reservation."""
        lock = os.open("/run", os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.subnet = self._free_subnet()
            bridge = self._names.bridge
            run(
                ["ip", "-batch", "-"],
                stdin=f"link add {bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n"
                f"link set {bridge} addrgenmode none\n"
                f"addr add {self.subnet}.254/24 dev {bridge}\n"
                f"link set {bridge} up\n",
            )
        finally:
            os.close(lock)

    def address(self, node: str) -> str:
        """A node's IPv4 address."""
        return f"{self.subnet}.{self._last.get(node) or 10 + int(node[1:])}"

    def connect(self, inits: dict[str, int]) -> None:
        """Plugs nodes in: each gets eth0 in the network namespace of its init process.

        Its MAC follows from its address: a node that comes back has the one that its peers have in their ARP caches.
        """
        lines = []
        for node, pid in inits.items():
            veth = self._names.veth(node)
            mac = ":".join(f"{int(byte):02x}" for byte in ["2", "0", *self.address(node).split(".")])
            lines.append(f"link add {veth} type veth peer name eth0 address {mac} netns {pid}")
            lines.append(f"link set {veth} addrgenmode none")
            lines.append(f"link set {veth} master {self._names.bridge} up")
        run(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n")

    def join(self, other: "Network") -> None:
        """Makes one layer 2 of this bridge and another cluster's. Nodes still need routes to each other's /24."""
        ends = [f"{self._names.bridge}-to", f"{self._names.bridge}-at"]
        lines = [f"link add {ends[0]} type veth peer name {ends[1]}"]
        for end, bridge in zip(ends, (self._names.bridge, other._names.bridge), strict=True):
            lines += [f"link set {end} addrgenmode none", f"link set {end} master {bridge} up"]
        run(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n")

    def set_up(self, node: str, up: bool) -> None:
        """Lifts or cuts a node's cable at the host's end: inside the node only the carrier changes."""
        run(["ip", "link", "set", self._names.veth(node), "up" if up else "down"])

    def is_up(self, node: str) -> bool:
        """Whether a node's cable is plugged in."""
        flags = Path(f"/sys/class/net/{self._names.veth(node)}/flags")
        with contextlib.suppress(OSError):
            return bool(int(flags.read_text(), 16) & IFF_UP)
        return False

    def remove(self, node: str) -> None:
        """Unplugs a node for good; its veth may be gone already with its namespace."""
        run(["ip", "link", "del", self._names.veth(node)], check=False)

    def destroy(self) -> None:
        """Removes the bridge and every veth of the cluster."""
        names = [entry["ifname"] for entry in json.loads(run(["ip", "-json", "link"]))]
        for name in names:
            if name == self._names.bridge or name.startswith(self._names.bridge + "-"):
                run(["ip", "link", "del", name], check=False)

    def _free_subnet(self) -> str:
        taken = []
        for link in json.loads(run(["ip", "-json", "-4", "addr"])):
            for entry in link.get("addr_info", []):
                taken.append(ipaddress.ip_network(f"{entry['local']}/{entry['prefixlen']}", strict=False))
        for route in json.loads(run(["ip", "-json", "-4", "route"])):
            if route["dst"] != "default":
                taken.append(ipaddress.ip_network(route["dst"], strict=False))
        first = int(self._names.id, 16) % (160 * 256)
        for step in range(160 * 256):
            x, y = divmod((first + step) % (160 * 256), 256)
            subnet = f"10.{64 + x}.{y}"
            network = ipaddress.ip_network(f"{subnet}.0/24")
            if not any(network.overlaps(other) for other in taken):
                return subnet
        raise ClusterError("no free 10.X.Y.0/24 on this machine")
