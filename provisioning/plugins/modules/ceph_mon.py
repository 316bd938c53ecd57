#!/usr/bin/python3
"""The module `ceph_mon`: a mon's own files, which are made once."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import tempfile
import uuid
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.appliance.plugins.module_utils.ceph import (
    ETC,
    LIB,
    CephError,
    alone,
    fsid_of_host,
    give_to_ceph,
    new_key,
    once,
    wait_for_state,
)

DOCUMENTATION = r"""
module: ceph_mon
short_description: Makes a mon of Ceph's on the host
description:
  - Makes the files of a mon, of a cluster that is new or of one that is there. Files that are there stay as they are.
options:
  name:
    description: The mon's name.
    type: str
    required: true
  state:
    description:
      - With V(asked) it says whether there is a mon, and changes nothing; with V(present) it makes one; with V(joined) it waits until
        the mon, which runs, is in the quorum.
    type: str
    choices: [asked, present, joined]
    default: present
  address:
    description: The address at which the mon is to be reached; empty, and it is the one that the host has in O(network).
    type: str
    default: ""
  network:
    description: A network; empty, and it is any.
    type: str
    default: ""
  key:
    description: The secret that all mons of the cluster have.
    type: str
    default: ""
  fsid:
    description: The cluster that the mon joins; empty, and there will be a new one.
    type: str
    default: ""
  peer:
    description: The name of a mon of that cluster.
    type: str
    default: ""
  peer_address:
    description: Its address.
    type: str
    default: ""
author: Muster developers (@muster)
"""
EXAMPLES = r"""
- name: Make the first mon of a cluster
  muster.appliance.ceph_mon:
    name: "{{ inventory_hostname }}"
    network: 10.1.0.0/24
"""
RETURN = r"""
there:
  description: Whether the mon's files are there.
  type: bool
  returned: always
address:
  description: The address at which it is to be reached.
  type: str
  returned: always
fsid:
  description: The cluster that the host belongs to; empty, and it is none.
  type: str
  returned: always
"""

_JOIN_S = 90
_PORT = 3300
_HEAD = "# The first configuration of a mon (muster.appliance).\n"


class _Mon:
    def __init__(self, module: AnsibleModule) -> None:
        self._module = module
        self._name = module.params["name"]
        self.files = f"{LIB}/mon/ceph-{self._name}"

    def run(self, *argv: str) -> str:
        code, output, error = self._module.run_command(["timeout", "120", *argv])
        if code != 0:
            raise CephError(f"{argv[0]} ended with {code}: {(error or output).strip()[-2000:]}")
        return str(output)

    def address(self) -> str:
        if given := self._module.params["address"]:
            return str(given)
        network = self._module.params["network"]
        said = json.loads(self.run("ip", "-json", "address", "show", "scope", "global"))
        found = [entry["local"] for link in said for entry in link["addr_info"]]
        fit = [one for one in found if not network or ipaddress.ip_address(one) in ipaddress.ip_network(network)]
        if len(fit) != 1:
            where = f"in Ceph's public network {network}" if network else "and site_ceph_public_network is empty"
            what = "; give it one there, or say site_ceph_public_address" if network else "; say which network is Ceph's"
            raise CephError(f"the host has the addresses {', '.join(found) or 'of none'}: {len(fit)} {where}{what}")
        return str(fit[0])

    def make(self, address: str) -> None:
        """Makes the files. ceph.conf comes first, so that a mon never is without."""
        params = self._module.params
        if fsid_of_host() not in ("", params["fsid"]) and not self._unfinished():
            what = f"{ETC} is of the cluster {fsid_of_host()}, which is another one"
            raise CephError(f"{what}; take it away if nobody needs it")
        fsid, key = params["fsid"] or str(uuid.uuid4()), params["key"] or new_key()
        mons = {self._name: address} | ({params["peer"]: params["peer_address"]} if params["peer"] else {})
        hosts = {name: f"[v2:{f'[{one}]' if ':' in one else one}:{_PORT}/0]" for name, one in mons.items()}
        with tempfile.TemporaryDirectory() as directory:
            shutil.chown(directory, "ceph", "ceph")
            keyring, monmap = f"{directory}/keyring", f"{directory}/monmap"
            with open(keyring, "w", encoding="utf-8") as file:
                file.write(f'[mon.]\n\tkey = {key}\n\tcaps mon = "allow *"\n')
            members = [word for name, one in hosts.items() for word in ("--addv", name, one)]
            self.run("monmaptool", "--create", "--fsid", fsid, *members, monmap)
            give_to_ceph(directory)

            def mkfs(scratch: str) -> None:
                shutil.chown(scratch, "ceph", "ceph")
                files = ["--mon-data", scratch, "--monmap", monmap, "--keyring", keyring]
                self._write_conf(fsid, ",".join(hosts.values()))
                self.run("ceph-mon", "--mkfs", "--id", self._name, *files, "--setuser", "ceph", "--setgroup", "ceph")

            once(self.files, mkfs)

    @staticmethod
    def _unfinished() -> bool:
        """Whether ceph.conf is of a play that was killed before there was a mon."""
        with open(ETC, encoding="utf-8") as file:
            return file.read().startswith(_HEAD)

    @staticmethod
    def _write_conf(fsid: str, hosts: str) -> None:
        os.makedirs(os.path.dirname(ETC), exist_ok=True)
        with open(f"{ETC}.new", "w", encoding="utf-8") as file:
            file.write(f"{_HEAD}[global]\nfsid = {fsid}\nmon_host = {hosts}\n")
        os.chmod(f"{ETC}.new", 0o644)
        os.rename(f"{ETC}.new", ETC)


def main() -> None:
    text: dict[str, Any] = {"type": "str", "default": ""}
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["asked", "present", "joined"], "default": "present"},
            "key": text | {"no_log": True},
            **{name: text for name in ("address", "network", "fsid", "peer", "peer_address")},
        },
        supports_check_mode=True,
    )
    name, state = module.params["name"], module.params["state"]
    mon = _Mon(module)
    changed = False
    try:
        address = mon.address()
        if state == "present":
            with alone():
                changed = not os.path.exists(mon.files)
                if changed and not module.check_mode:
                    mon.make(address)
        elif state == "joined" and not module.check_mode:
            found = wait_for_state(f"mon.{name}", "mon_status", ("leader", "peon"), _JOIN_S)
            if found not in ("leader", "peon"):
                what = f"the mon {name} is not in the quorum after {_JOIN_S} s, it is {found or 'not running'}"
                raise CephError(f"{what}; can it reach the others at port {_PORT}? see `journalctl -u ceph-mon@{name}`")
    except CephError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, there=os.path.exists(mon.files), address=address, fsid=fsid_of_host())


if __name__ == "__main__":
    main()
