"""What the modules for Ceph have in common: the mons' commands, the daemons' own sockets, files that are there whole or not at all."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

ETC = "/etc/ceph/ceph.conf"
LIB = "/var/lib/ceph"


class CephError(Exception):
    """With a text for the operator."""


def new_key() -> str:
    """A secret of cephx: type, the time, its length, and 16 bytes."""
    return base64.b64encode(struct.pack("<hiih", 1, int(time.time()), 0, 16) + os.urandom(16)).decode()


def fsid_of_host() -> str:
    """The cluster that ceph.conf names; "" where there is none."""
    try:
        with open(ETC, encoding="utf-8") as file:
            lines = [line.partition("=") for line in file]
    except FileNotFoundError:
        return ""
    return next((value.strip() for key, _, value in lines if key.strip() == "fsid"), "")


def give_to_ceph(path: str) -> None:
    """Makes all of a directory Ceph's own; links stay as they are."""
    shutil.chown(path, "ceph", "ceph")
    for parent, directories, files in os.walk(path):
        for name in directories + files:
            below = os.path.join(parent, name)
            if not os.path.islink(below):
                shutil.chown(below, "ceph", "ceph")


def sync_directory(path: str) -> None:
    """What was renamed in it stays renamed, whatever happens to the host."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def ask_daemon(name: str, prefix: str) -> dict[str, Any]:
    """What a daemon of this host says on its socket; {} of one that says nothing."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(f"/run/ceph/ceph-{name}.asok")
            connection.sendall(json.dumps({"prefix": prefix, "format": "json"}).encode() + b"\0")
            with connection.makefile("rb") as answer:
                (length,) = struct.unpack(">I", answer.read(4))
                said = json.loads(answer.read(length))
    except (OSError, ValueError, struct.error):
        return {}
    return dict(said) if isinstance(said, dict) else {}


def wait_for_state(name: str, prefix: str, good: tuple[str, ...], limit_s: float) -> str:
    """Asks a daemon until its state is one of these; gives the last one, "" of a daemon that does not answer."""
    deadline = time.monotonic() + limit_s
    while True:
        state = str(ask_daemon(name, prefix).get("state", ""))
        if state in good or time.monotonic() > deadline:
            return state
        time.sleep(0.1)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Waits for what a play that was killed has left running on the host."""
    handle = os.open(LIB, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class Mons:
    """A connection to the cluster that ceph.conf names."""

    def __init__(self, user: str, keyring: str, limit_s: int) -> None:
        import rados  # a package of Ceph's, which the role has installed

        self._missing = rados.ObjectNotFound
        options = {"keyring": keyring, "client_mount_timeout": str(limit_s), "rados_mon_op_timeout": str(limit_s)}
        try:
            self._cluster = rados.Rados(name=user, conffile=ETC, conf=options)
            self._cluster.connect()
        except rados.Error as error:
            raise CephError(f"no mon lets {user} in within {limit_s} s: {error}; see `journalctl -u 'ceph-mon@*'` on the mons") from None

    def command(self, prefix: str, data: str = "", **arguments: Any) -> Any:
        """A command's answer, None where it has none; raises CephError."""
        code, output, error = self.try_command(prefix, data, **arguments)
        if code != 0:
            raise CephError(f"ceph {prefix} {arguments}: {error.strip() or os.strerror(-code)}")
        return output

    def try_command(self, prefix: str, data: str = "", **arguments: Any) -> tuple[int, Any, str]:
        """Its errno, below zero, or 0; its answer; what it says of an error."""
        request = json.dumps({"prefix": prefix, "format": "json", **arguments})
        code, output, error = self._cluster.mon_command(request, data.encode())
        return code, json.loads(output) if code == 0 and output.strip() else None, error


def once(path: str, make: Callable[[str], None]) -> None:
    """Makes a directory that is there whole or not at all, from one beside it, which may be left of a play that was killed."""
    scratch = f"{os.path.dirname(path)}/new"
    shutil.rmtree(scratch, ignore_errors=True)
    os.mkdir(scratch, 0o750)
    make(scratch)
    os.rename(scratch, path)
    sync_directory(os.path.dirname(path))
