"""The nodes' own hosts, passwd and group: the host's, and two ordinary users that exist nowhere else."""

import os
from pathlib import Path

from . import host
from .names import Names

USERS = {"trainer": 20001, "other": 20002}


def write(names: Names, addresses: dict[str, str]) -> None:
    """Writes the directories that are laid over each node's /etc, /opt and /var/lib, and the users' homes."""
    etc = names.directory / "overlay" / "etc"
    for name in ("slurm", "muster", "munge", "ceph"):
        (etc / name).mkdir(parents=True)
    for path in ("opt/muster-src", "opt/muster-build", "var/lib/muster", "var/lib/ceph"):
        (names.directory / "overlay" / path).mkdir(parents=True)

    hosts = ["127.0.0.1 localhost", *(f"{address} {node}" for node, address in addresses.items())]
    host.write(etc / "hosts", "\n".join(hosts) + "\n")
    passwd = [f"{user}:x:{uid}:{uid}:{user}:/home/{user}:/bin/bash" for user, uid in USERS.items()]
    host.write(etc / "passwd", _with_ours("/etc/passwd", passwd))
    host.write(etc / "group", _with_ours("/etc/group", [f"{user}:x:{uid}:" for user, uid in USERS.items()]))

    for user, uid in USERS.items():
        home = names.directory / "home" / user
        home.mkdir(parents=True)
        os.chown(home, uid, uid)


def _with_ours(path: str, ours: list[str]) -> str:
    """The host's entries without any that has one of our names or numbers, then ours."""
    numbers = {str(uid) for uid in USERS.values()}
    kept = []
    for line in Path(path).read_text().splitlines():
        fields = line.split(":")
        if fields[0] not in USERS and (len(fields) < 3 or fields[2] not in numbers):
            kept.append(line)
    return "\n".join(kept + ours) + "\n"
