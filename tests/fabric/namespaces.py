"""A fabric of network namespaces: nodes, each with a link to one switch, and a second network for what they tell each other.

A link is a pair of veth interfaces, shaped at both ends, so that out (from the node) and in (to it) have a rate of their own. The rate
is low enough that processors never are the limit. Everything is in namespaces of this process: nothing of it is left when it ends.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("MUSTER_BUILD", ROOT / "build"))
INSIDE = "MUSTER_TEST_NAMESPACE"
MBIT_S = 20
MTU = 1500
PORT = 29500
DEADLINE_S = 120
# One of another gang's processes: sends to its neighbour as fast as it can, and takes what the other one sends.
NEIGHBOUR = """
import socket, sys, threading, time
own, other = sys.argv[1:]
listening = socket.create_server((own, 29600))
def take():
    connection, _ = listening.accept()
    while connection.recv(65536):
        pass
threading.Thread(target=take, daemon=True).start()
while True:
    try:
        sending = socket.create_connection((other, 29600))
        break
    except ConnectionRefusedError:  # it has not begun to listen
        time.sleep(0.05)
try:
    while True:
        sending.sendall(bytes(65536))
except ConnectionError:  # its neighbour was ended first
    pass
"""
NETWORK, CONTROL, SECOND = "10.77", "10.78", "10.79"  # of the fabric, beside it, and of the fabric where a test wants two


def enter_namespaces() -> None:
    """Starts this program again with networks, mounts and processes of its own."""
    if INSIDE in os.environ:
        return
    # `ip netns` keeps its names below /run.
    inside = 'mount -t tmpfs tmpfs /run && mount -t sysfs sysfs /sys && ip link set lo up && exec "$@"'
    words = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec", inside, "sh", sys.executable, *sys.argv]
    os.execvpe(words[0], words, os.environ | {INSIDE: "1"})


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


def shape(namespace: str, interface: str, mbit_s: float) -> None:
    """What leaves this interface. The queue holds 50 ms."""
    run("ip", "netns", "exec", namespace, "tc", "qdisc", "replace", "dev", interface, "root", "tbf", "rate", f"{mbit_s}mbit", "burst", "8kb", "latency", "50ms")


@dataclass
class Verdict:
    code: int
    document: dict[str, Any]
    errors: list[str]

    def named(self) -> list[tuple[str, str, str]]:
        """(trouble, direction, node, or nodes of a pair)"""
        found = self.document["findings"]
        return [(one["trouble"], one["direction"], one.get("node") or "-".join(one["pair"])) for one in found]


class Fabric:
    """`nodes` of them, n0, n1, ...; their interface of the fabric is roce0."""

    def __init__(self, nodes: int, directory: Path) -> None:
        self.nodes = nodes
        self.directory = directory
        self.settings = directory / "roce.yaml"
        self.settings.write_text(f"networks: {NETWORK}.0.0/16\nmtu: {MTU}\nrate: {MBIT_S}\n")
        run("ip", "netns", "add", "switch")
        for bridge in ("fabric", "beside"):
            run("ip", "-n", "switch", "link", "add", bridge, "type", "bridge")
            run("ip", "-n", "switch", "link", "set", bridge, "up")
        for number in range(nodes):
            self._add(number)

    def _add(self, number: int) -> None:
        node = f"n{number}"
        run("ip", "netns", "add", node)
        run("ip", "-n", node, "link", "set", "lo", "up")
        for interface, bridge, network in (("roce0", "fabric", NETWORK), ("eth0", "beside", CONTROL)):
            peer = f"{interface}-{number}"
            run("ip", "link", "add", interface, "netns", node, "mtu", str(MTU), "type", "veth", "peer", "name", peer, "netns", "switch")
            run("ip", "-n", "switch", "link", "set", peer, "master", bridge, "mtu", str(MTU), "up")
            run("ip", "-n", node, "link", "set", interface, "up")
            run("ip", "-n", node, "address", "add", f"{network}.0.{number + 1}/16", "dev", interface)
        # Segments as they are on a wire: tbf counts and drops packets.
        run("ip", "-n", node, "link", "set", "roce0", "gso_max_segs", "1")
        self.rate(number, out=MBIT_S, into=MBIT_S)

    def close(self) -> None:
        for number in range(self.nodes):
            run("ip", "netns", "del", f"n{number}")
        run("ip", "netns", "del", "switch")

    def rate(self, number: int, *, out: float | None = None, into: float | None = None) -> None:
        """Of a node's link, in Mbit/s."""
        if out is not None:
            shape(f"n{number}", "roce0", out)
        if into is not None:
            shape("switch", f"roce0-{number}", into)

    def mtu(self, number: int, mtu: int) -> None:
        """At the node's end alone."""
        run("ip", "-n", f"n{number}", "link", "set", "roce0", "mtu", str(mtu))

    def address(self, number: int, *, there: bool) -> None:
        """Of the fabric."""
        run("ip", "-n", f"n{number}", "address", "add" if there else "del", f"{NETWORK}.0.{number + 1}/16", "dev", "roce0")

    def cable(self, number: int, *, plugged: bool) -> None:
        run("ip", "-n", "switch", "link", "set", f"roce0-{number}", "up" if plugged else "down")

    def drop(self, number: int, rule: str) -> None:
        """Of what the node hears on the fabric, by a rule of nft; "" for nothing."""
        namespace = f"n{number}"
        run("ip", "netns", "exec", namespace, "nft", "flush ruleset")
        if rule:
            chain = "add table inet t; add chain inet t c { type filter hook prerouting priority -300; }"
            run("ip", "netns", "exec", namespace, "nft", f'{chain}; add rule inet t c iifname "roce0" {rule} drop')

    def carried(self, number: int) -> int:
        """The bytes that a node's link has carried in each direction, at least."""
        shown = subprocess.run(["ip", "-n", f"n{number}", "-json", "-stats", "link", "show", "roce0"], capture_output=True, timeout=60, check=True)
        [link] = json.loads(shown.stdout)
        return min(link["stats64"][way]["bytes"] for way in ("rx", "tx"))

    @contextlib.contextmanager
    def second_interfaces(self, numbers: range) -> Iterator[None]:
        """Each is over the same port as roce0, as a VLAN is, and has an address in a second network of the fabric."""
        before = self.settings.read_text()
        self.settings.write_text(before.replace(f"{NETWORK}.0.0/16", f"{NETWORK}.0.0/16, {SECOND}.0.0/16"))
        try:
            for number in numbers:
                node = f"n{number}"
                run("ip", "-n", node, "link", "add", "link", "roce0", "name", "above0", "type", "macvlan")
                run("ip", "-n", node, "link", "set", "above0", "up")
                run("ip", "-n", node, "address", "add", f"{SECOND}.0.{number + 1}/16", "dev", "above0")
            yield
        finally:
            self.settings.write_text(before)
            for number in numbers:
                run("ip", "-n", f"n{number}", "link", "del", "above0")

    @contextlib.contextmanager
    def racks(self, first: range, second: range, *, router: bool) -> Iterator[None]:
        """The nodes of `second` are at a switch of their own, in a network of their own. `router`: it carries packets between both."""
        before = self.settings.read_text()
        self.settings.write_text(before.replace(f"{NETWORK}.0.0/16", f"{NETWORK}.0.0/16, {SECOND}.0.0/16"))
        run("ip", "-n", "switch", "link", "add", "rack", "type", "bridge")
        try:
            run("ip", "-n", "switch", "link", "set", "rack", "up")
            for number in second:
                run("ip", "-n", "switch", "link", "set", f"roce0-{number}", "master", "rack")
                self.address(number, there=False)
                run("ip", "-n", f"n{number}", "address", "add", f"{SECOND}.0.{number + 1}/16", "dev", "roce0")
            if router:
                run("ip", "netns", "exec", "switch", "sysctl", "-qw", "net.ipv4.ip_forward=1")
                for bridge, own, other, numbers in (("fabric", NETWORK, SECOND, first), ("rack", SECOND, NETWORK, second)):
                    run("ip", "-n", "switch", "address", "add", f"{own}.255.254/16", "dev", bridge)
                    for number in numbers:
                        run("ip", "-n", f"n{number}", "route", "add", f"{other}.0.0/16", "via", f"{own}.255.254")
            yield
        finally:
            self.settings.write_text(before)
            for number in second:
                run("ip", "-n", "switch", "link", "set", f"roce0-{number}", "master", "fabric")
            for number in (*first, *second):
                run("ip", "-n", f"n{number}", "address", "flush", "dev", "roce0")  # and the route
                self.address(number, there=True)
            run("ip", "-n", "switch", "address", "flush", "dev", "fabric")
            run("ip", "-n", "switch", "link", "del", "rack")

    @contextlib.contextmanager
    def other_gang(self, numbers: list[int]) -> Iterator[None]:
        """These nodes' links are full of its traffic, in both directions."""
        processes = []
        before = {number: self.carried(number) for number in numbers}
        try:
            for number, other in zip(numbers, numbers[1:] + numbers[:1], strict=True):
                command = self.command(number, sys.executable, "-c", NEIGHBOUR, *(f"{NETWORK}.0.{one + 1}" for one in (number, other)))
                processes.append(subprocess.Popen(command))
            deadline = time.monotonic() + DEADLINE_S
            while any(self.carried(number) < before[number] + 2**20 for number in numbers):
                if time.monotonic() > deadline:
                    raise RuntimeError("the other gang does not send")
                time.sleep(0.1)
            yield
        finally:
            for process in processes:
                process.kill()
                process.wait()

    def command(self, number: int, *words: str) -> list[str]:
        return ["ip", "netns", "exec", f"n{number}", *words]

    def test(self, *words: str, nodes: int | None = None, leave_out: tuple[int, ...] = ()) -> Verdict:
        """`muster net test` on each node, and what the first one prints."""
        size = nodes or self.nodes
        agents = []
        for number in range(size):
            if number in leave_out:
                continue
            environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "MUSTER_G"))} | {
                "GROUP_RANK": str(number),
                "GROUP_WORLD_SIZE": str(size),
                "MASTER_ADDR": f"{CONTROL}.0.1",
                "MASTER_PORT": str(PORT),
                "SLURMD_NODENAME": f"n{number}",
            }
            command = self.command(number, str(BUILD / "bin" / "muster"), "net", "test", f"--settings={self.settings}", "--json", *words)
            agents.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment))
        outputs = [agent.communicate(timeout=DEADLINE_S) for agent in agents]
        errors = [error for _, error in outputs if error]
        text = outputs[0][0]
        return Verdict(agents[0].returncode, json.loads(text) if text else {}, errors)
