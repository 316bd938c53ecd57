"""Muster's own part of a virtual cluster: its configuration and its daemon."""

import contextlib
import socket
from pathlib import Path

from . import host
from .names import BUILD_IN_NODE, Names
from .node import Daemon, Node

SOCKET = "/run/muster/musterd.sock"

MUSTERD = Daemon("musterd", [f"{BUILD_IN_NODE}/bin/musterd", "--config", "/etc/muster/muster.yaml"])

_NEEDED = ("bin/musterd", "bin/muster", "bin/muster-door", "bin/muster-files", "bin/muster-run", "lib/libmuster.so.0", "lib/spank_muster.so")


def missing(build: Path) -> list[str]:
    """What a build directory lacks."""
    return [name for name in _NEEDED if not (build / name).exists()]


def write_config(names: Names, ceph: bool, values: dict[str, str]) -> None:
    """Writes /etc/muster/muster.yaml of all nodes: the store, and what the caller set."""
    directory = names.directory / "etc" / "muster"
    directory.mkdir(parents=True)
    merged = {"store": "rados:muster" if ceph else "dir:/var/lib/muster"} | values
    host.write(directory / "muster.yaml", "".join(f"{key}: {value}\n" for key, value in merged.items()))


def accepts(node: Node) -> bool:
    """Whether the node's musterd accepts connections on its local socket."""
    path = node.host_path(SOCKET)
    if path is None:
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(1)
        peer.connect(str(path))
        return True
    return False
