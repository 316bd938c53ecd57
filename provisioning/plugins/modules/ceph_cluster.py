#!/usr/bin/python3
"""The module `ceph_cluster`: what Ceph's mons keep for all hosts: settings, users, and the pool that Muster has."""

from __future__ import annotations

import re
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.muster.appliance.plugins.module_utils.ceph import CephError, Mons

DOCUMENTATION = r"""
module: ceph_cluster
short_description: Gives a Ceph cluster its settings, users and pool
description:
  - Runs on a mon's host, and makes what is missing or differs. It removes nothing.
options:
  user:
    description: The user of Ceph by whom it is done.
    type: str
    default: mon.
  keyring:
    description: That user's keyring.
    type: path
    required: true
  settings:
    description: The mons' configuration database, as in C(ceph config set), by whom it is for.
    type: dict
    default: {}
  users:
    description: Users of Ceph, each with its capabilities.
    type: dict
    default: {}
  spread:
    description: Whether the pools get as many copies as there can be on the OSDs that are up, which must come first.
    type: bool
    default: false
  pool:
    description: Muster's pool, which is made with O(spread); empty, and there will be none.
    type: str
    default: ""
  size:
    description: How many copies of an object there are to be; 0, and it is three, or more, if the pool has. A host that is down takes none.
    type: int
    default: 0
author: Muster developers (@muster)
"""
EXAMPLES = r"""
- name: Give Muster a pool
  muster.appliance.ceph_cluster:
    keyring: /var/lib/ceph/mon/ceph-a/keyring
    spread: true
    pool: muster
"""
RETURN = r"""
fsid:
  description: The cluster.
  type: str
  returned: always
mon_host:
  description: Where its mons are, as ceph.conf has it.
  type: str
  returned: always
keys:
  description: The users' secrets.
  type: dict
  returned: always
"""

_ANSWER_S = 60
_COPIES = 3
# The pools that a mgr makes for itself: they have as many copies, in the same places, or the cluster's health is never good.
_OF_MGR = ("device_health_metrics", ".mgr")
# Rules by which copies lie apart. The first one is there from the beginning.
_RULES = {"host": "replicated_rule", "osd": "replicated_osd"}
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def copies(asked: int, current: int, possible: int) -> int:
    """How many there shall be: never fewer because of what is down, and never more than there are places for."""
    most = asked or max(_COPIES, current)
    return max(1, min(most, possible), min(most, current))


def normal(value: Any) -> str:
    """A setting's value, so that two ways to write the same are the same: yes and true, 64M and 67108864, 0.5 and 0.500000."""
    text = str(value).strip().lower()
    if text in ("yes", "no", "true", "false"):
        return "true" if text in ("yes", "true") else "false"
    if found := re.fullmatch(r"([0-9]+)([kmgt]?)i?b?", text):
        return str(int(found[1]) << _UNITS[found[2]])
    return f"{float(text):g}" if re.fullmatch(r"[0-9]*\.[0-9]+", text) else str(value).strip()


class _Cluster:
    def __init__(self, mons: Mons, check: bool) -> None:
        self._mons = mons
        self._check = check
        self.changes: list[str] = []

    def set(self, what: str, prefix: str, **arguments: Any) -> None:
        self.changes.append(what)
        if not self._check:
            self._mons.command(prefix, **arguments)

    def settings(self, wanted: dict[str, dict[str, Any]]) -> None:
        there = {(row["section"], row["name"]): row["value"] for row in self._mons.command("config dump") if not row.get("mask")}
        for who, values in wanted.items():
            for name, value in values.items():
                if normal(there.get((who, name), "?")) != normal(value):
                    text = str(value).lower() if isinstance(value, bool) else str(value)
                    self.set(f"{who}: {name} = {text}", "config set", who=who, name=name, value=text)

    def users(self, wanted: dict[str, dict[str, str]]) -> dict[str, str]:
        """Gives their secrets."""
        keys = {}
        for name, caps in wanted.items():
            flat = [word for pair in caps.items() for word in pair]
            code, found, error = self._mons.try_command("auth get", entity=name)
            if code not in (0, -2):
                raise CephError(f"ceph auth get {name}: {error}")
            if code != 0:
                self.set(f"user {name}", "auth get-or-create", entity=name, caps=flat)
                code, found, error = self._mons.try_command("auth get", entity=name)
            elif found[0]["caps"] != caps:
                self.set(f"capabilities of {name}", "auth caps", entity=name, caps=flat)
            keys[name] = str(found[0]["key"]) if found else ""
        return keys

    def rule(self, name: str) -> int | None:
        """The number of a rule."""
        return next((int(one["rule_id"]) for one in self._mons.command("osd crush rule dump") if one["rule_name"] == name), None)

    def make_rule(self, name: str, kind: str) -> int:
        """Makes the rule by which copies lie on several hosts, or on several OSDs; -1: it will have another number."""
        self.set(f"rule {name}", "osd crush rule create-replicated", name=name, root="default", type=kind)
        number = self.rule(name)
        return -1 if number is None else number

    def pools(self) -> dict[str, dict[str, Any]]:
        return {pool["pool_name"]: pool for pool in self._mons.command("osd pool ls", detail="detail")}

    def places(self) -> dict[str, int]:
        """How many hosts, and how many OSDs, are up."""
        nodes = self._mons.command("osd tree")["nodes"]
        up = {node["id"] for node in nodes if node["type"] == "osd" and node["status"] == "up"}
        return {"host": sum(node["type"] == "host" and bool(up & set(node["children"])) for node in nodes), "osd": len(up)}

    def spread(self, name: str, pool: dict[str, Any], size: int, rule: str, ours: dict[str, int]) -> None:
        """A pool has so many copies, in these places, unless somebody has made a rule for it."""
        if pool["crush_rule"] != ours[rule] and pool["crush_rule"] in ours.values():
            self.set(f"places of pool {name}", "osd pool set", pool=name, var="crush_rule", val=rule)
        if pool["size"] != size:
            self.set(f"copies of pool {name}", "osd pool set", pool=name, var="size", val=str(size), yes_i_really_mean_it=True)
            self.set(f"least copies of pool {name}", "osd pool set", pool=name, var="min_size", val=str(size - size // 2))

    def dedicate(self, name: str, pool: dict[str, Any]) -> None:
        """The pool is Muster's, and has nearly all of the disks: it begins with as many parts as that wants."""
        if name not in pool["application_metadata"]:
            self.set(f"application of pool {name}", "osd pool application enable", pool=name, app="muster")
        if "target_size_ratio" not in pool["options"]:
            self.set(f"share of pool {name}", "osd pool set", pool=name, var="target_size_ratio", val="1")


def _spread(cluster: _Cluster, pool: str, asked: int, settings: dict[str, Any]) -> None:
    there = cluster.pools().get(pool, {})
    ours = {name: number for name in _RULES.values() if (number := cluster.rule(name)) is not None}
    places = cluster.places()
    kind = "host" if places["host"] > 1 or there.get("crush_rule") == ours[_RULES["host"]] else "osd"
    rule = _RULES[kind]
    if rule not in ours:
        ours[rule] = cluster.make_rule(rule, kind)
    size = copies(asked, there.get("size", 0), places[kind])
    defaults = {"osd_pool_default_size": size, "osd_pool_default_crush_rule": ours[rule], "mon_allow_pool_size_one": size == 1}
    cluster.settings({"global": defaults | settings.get("global", {})})
    if pool and not there:
        cluster.set(f"pool {pool}", "osd pool create", pool=pool, rule=rule, size=size)
    pools = cluster.pools()
    for name in sorted({pool, *_OF_MGR} & set(pools)):
        cluster.spread(name, pools[name], size, rule, ours)
    if pool in pools:
        cluster.dedicate(pool, pools[pool])


def _establish(mons: Mons, params: dict[str, Any], check: bool) -> dict[str, Any]:
    cluster = _Cluster(mons, check)
    cluster.settings(params["settings"])
    keys = cluster.users(params["users"])
    if params["spread"]:
        _spread(cluster, params["pool"], params["size"], params["settings"])
    found = mons.command("mon dump")
    vectors = [mon["public_addrs"]["addrvec"] for mon in sorted(found["mons"], key=lambda mon: str(mon["name"]))]
    hosts = [f"[{','.join('{type}:{addr}/{nonce}'.format(**one) for one in vector)}]" for vector in vectors]
    return {"changed": bool(cluster.changes), "changes": cluster.changes, "fsid": found["fsid"], "mon_host": ",".join(hosts), "keys": keys}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "user": {"type": "str", "default": "mon."},
            "keyring": {"type": "path", "required": True, "no_log": False},
            "settings": {"type": "dict", "default": {}},
            "users": {"type": "dict", "default": {}},
            "spread": {"type": "bool", "default": False},
            "pool": {"type": "str", "default": ""},
            "size": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    try:
        mons = Mons(module.params["user"], module.params["keyring"], _ANSWER_S)
        module.exit_json(**_establish(mons, module.params, module.check_mode))
    except CephError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
