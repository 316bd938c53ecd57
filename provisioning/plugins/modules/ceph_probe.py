#!/usr/bin/python3
"""The module `ceph_probe`: what the daemons of Ceph on a host say of themselves, for `validate`. Changes nothing."""

from __future__ import annotations

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.appliance.plugins.module_utils.ceph import LIB, ask_daemon

DOCUMENTATION = r"""
module: ceph_probe
short_description: Asks Ceph's daemons on a host how they are
description:
  - Asks each mon and each OSD whose files are on the host, and systemd about one that does not answer.
author: Muster developers (@muster)
"""
EXAMPLES = r"""
- name: Look at Ceph
  muster.appliance.ceph_probe:
  register: ceph_probe
"""
RETURN = r"""
daemons:
  description: Each daemon's state, by its name; of one that does not answer, what systemd says of its unit.
  type: dict
  returned: always
"""


def _names(kind: str) -> list[str]:
    """The daemons of a kind whose files are on the host."""
    try:
        found = os.listdir(f"{LIB}/{kind}")
    except FileNotFoundError:
        return []
    return sorted(name.partition("-")[2] for name in found if name.startswith("ceph-"))


def main() -> None:
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    daemons = {}
    for kind, question in (("mon", "mon_status"), ("osd", "status")):
        for name in _names(kind):
            state = str(ask_daemon(f"{kind}.{name}", question).get("state", ""))
            if not state:
                said = module.run_command(["systemctl", "is-active", f"ceph-{kind}@{name}"])[1].strip()
                state = "silent" if said == "active" else said
            daemons[f"{kind}.{name}"] = state
    module.exit_json(changed=False, daemons=daemons)


if __name__ == "__main__":
    main()
