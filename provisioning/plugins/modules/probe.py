#!/usr/bin/python3
"""The module `probe`: what a host says of itself, for `validate` to compare. Changes nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import threading

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: probe
short_description: Asks a host's doctor, and what only a comparison of hosts can judge
description:
  - Runs C(muster doctor), and tells MUNGE's key as a digest, names, addresses, MTUs, packages and configuration.
  - The action plugin of this name measures how far the host's clock is from that of Ansible's host besides.
options:
  needs:
    description: Services that must run on the host.
    type: list
    elements: str
    default: []
  names:
    description: Hosts whose names the host must know.
    type: list
    elements: str
    default: []
author: Muster developers (@muster)
"""
EXAMPLES = r"""
- name: Look at the host
  muster.appliance.probe:
    needs: [munge, slurmd, musterd]
    names: [ctl, n1, n2]
  register: muster_probe
"""
RETURN = r"""
doctor:
  description: What C(muster doctor --json) says; without it, what was said instead.
  type: raw
  returned: always
"""

LIMIT_S = 20
NAMES_LIMIT_S = 5
SENT_CONF = "/run/slurm/conf/slurm.conf"  # of a node that has its files from slurmctld


def _run(*argv: str) -> tuple[int, str]:
    """How a program ends and what it says; 127 where there is none, 124 when it does not end."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False
        )
    except FileNotFoundError:
        return 127, f"{argv[0]} is not installed"
    except subprocess.TimeoutExpired:
        return 124, f"{argv[0]} does not answer"
    return done.returncode, done.stdout.strip()


def _doctor(needs: list[str]) -> dict[str, object] | str:
    _, said = _run("muster", "doctor", "--json", *(word for service in needs for word in ("--needs", service)))
    try:
        document: dict[str, object] = json.loads(said)
    except ValueError:
        return said
    return document


def _packages() -> dict[str, str]:
    """The version of each installed package of Muster's."""
    code, said = _run("dpkg-query", "--show", "--showformat", "${source:Package} ${db:Status-Status} ${Package} ${Version}\n")
    rows = [line.split() for line in said.splitlines()] if code == 0 else []
    return {row[2]: row[3] for row in rows if row[:2] == ["muster", "installed"]}


def _digest(path: str) -> str:
    """A digest of the file's digest, which tells nothing of what is in it; why there is none."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(hashlib.sha256(file.read()).digest()).hexdigest()
    except OSError as error:
        return str(error.strerror)


def _links() -> dict[str, dict[str, object]]:
    """The MTU and the addresses of each network device."""
    code, said = _run("ip", "-json", "address")
    links = json.loads(said) if code == 0 else []
    return {link["ifname"]: {"mtu": link["mtu"], "addresses": [one["local"] for one in link["addr_info"] if "local" in one]} for link in links}


def _resolve(names: list[str]) -> dict[str, list[str]]:
    """The addresses of each name, none of one that is not known; without those of which the name service says nothing in time."""
    found: dict[str, list[str]] = {}

    def resolve() -> None:
        for name in names:
            addresses: list[str] = []
            with contextlib.suppress(OSError):
                addresses = list(dict.fromkeys(str(row[4][0]) for row in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)))
            found[name] = addresses

    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(NAMES_LIMIT_S)
    return dict(found)


def _listed(names: list[str]) -> dict[str, list[str]]:
    """The addresses that /etc/hosts has for each name."""
    with open("/etc/hosts", encoding="utf-8", errors="replace") as file:
        rows = [line.partition("#")[0].split() for line in file]
    return {name: [row[0] for row in rows if name in row[1:]] for name in names}


def main() -> None:
    arguments = {name: {"type": "list", "elements": "str", "default": []} for name in ("needs", "names")}
    module = AnsibleModule(argument_spec=arguments, supports_check_mode=True)
    names = module.params["names"]
    module.exit_json(
        changed=False,
        doctor=_doctor(module.params["needs"]),
        packages=_packages(),
        munge=_digest("/etc/munge/munge.key"),
        config=_digest("/etc/muster/muster.yaml"),
        links=_links(),
        resolves=_resolve(names),
        listed=_listed(names),
        sent=os.path.exists(SENT_CONF) and not os.path.exists("/etc/slurm/slurm.conf"),
    )


if __name__ == "__main__":
    main()
