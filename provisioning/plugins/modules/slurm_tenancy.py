#!/usr/bin/python3
"""The module `slurm_tenancy`: accounts, users and QOS of a cluster in slurmdbd are those that it is given."""

from __future__ import annotations

import re
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: slurm_tenancy
short_description: Gives a cluster its accounts, users and QOS
description:
  - Asks sacctmgr what there is, and changes what differs. Limits have sacctmgr's names and values.
  - What is there and is not given is named in RV(left), and removed only with O(remove).
options:
  cluster:
    description: The cluster's name.
    type: str
    required: true
  qos:
    description: Each QOS by its name, with its limits.
    type: dict
    default: {}
  accounts:
    description:
      - Each account by its name, with C(description), C(organization), C(parent), C(limits), and C(users).
      - The users are a mapping of names to limits. A user's default account is the first one that names the user.
    type: dict
    default: {}
  remove:
    description: Whether what is not given is removed.
    type: bool
    default: false
author: Muster developers (@muster)
"""
EXAMPLES = r"""
- name: Give the cluster its accounts
  muster.appliance.slurm_tenancy:
    cluster: cluster
    accounts:
      physics:
        limits: {Fairshare: 10, GrpTRES: gres/gpu=64}
        users:
          anna: {}
          tester: {MaxJobs: 5}
"""
RETURN = r"""
commands:
  description: What sacctmgr was told, or would be.
  type: list
  elements: str
  returned: always
left:
  description: What is there and was not given.
  type: list
  elements: str
  returned: always
"""

# What a limit's value looks like, and the value that takes the limit away. The names are sacctmgr's.
_NUMBER, _SECONDS, _TIME, _TRES, _LIST, _TEXT = "number", "seconds", "time", "tres", "list", "text"
Limits = dict[str, tuple[str, str]]
ASSOCIATION: Limits = {
    "Fairshare": (_NUMBER, "1"),
    "GrpJobs": (_NUMBER, "-1"),
    "GrpJobsAccrue": (_NUMBER, "-1"),
    "GrpSubmitJobs": (_NUMBER, "-1"),
    "GrpTRES": (_TRES, ""),
    "GrpTRESMins": (_TRES, ""),
    "GrpTRESRunMins": (_TRES, ""),
    "GrpWall": (_TIME, "-1"),
    "MaxJobs": (_NUMBER, "-1"),
    "MaxJobsAccrue": (_NUMBER, "-1"),
    "MaxSubmitJobs": (_NUMBER, "-1"),
    "MaxTRES": (_TRES, ""),
    "MaxTRESMins": (_TRES, ""),
    "MaxTRESPerNode": (_TRES, ""),
    "MaxWall": (_TIME, "-1"),
    "Priority": (_NUMBER, "-1"),
    "QOS": (_LIST, ""),
    "DefaultQOS": (_TEXT, "-1"),
}
QOS: Limits = {
    "Description": (_TEXT, ""),
    "Flags": (_LIST, "-1"),
    "GraceTime": (_SECONDS, "0"),
    "GrpJobs": (_NUMBER, "-1"),
    "GrpSubmitJobs": (_NUMBER, "-1"),
    "GrpTRES": (_TRES, ""),
    "GrpTRESMins": (_TRES, ""),
    "GrpWall": (_TIME, "-1"),
    "MaxJobsPerAccount": (_NUMBER, "-1"),
    "MaxJobsPerUser": (_NUMBER, "-1"),
    "MaxSubmitJobsPerAccount": (_NUMBER, "-1"),
    "MaxSubmitJobsPerUser": (_NUMBER, "-1"),
    "MaxTRES": (_TRES, ""),
    "MaxTRESPerAccount": (_TRES, ""),
    "MaxTRESPerNode": (_TRES, ""),
    "MaxTRESPerUser": (_TRES, ""),
    "MaxTRESMins": (_TRES, ""),
    "MaxWall": (_TIME, "-1"),
    "MinTRES": (_TRES, ""),
    "Preempt": (_LIST, ""),
    "PreemptMode": (_LIST, "cluster"),
    "Priority": (_NUMBER, "0"),
    "UsageFactor": (_NUMBER, "1"),
}
ACCOUNT = {"description", "organization", "parent", "limits", "users"}
# Slurm makes these itself.
_ROOT, _NORMAL = "root", "normal"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_TIMES = (
    r"(?P<minutes>\d+)",
    r"(?P<minutes>\d+):(?P<seconds>\d+)",
    r"(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)",
    r"(?P<days>\d+)-(?P<hours>\d+)(:(?P<minutes>\d+)(:(?P<seconds>\d+))?)?",
)
_UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}
_SIZES = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}


def _words(value: Any) -> list[str]:
    parts = value if isinstance(value, list) else str(value).split(",")
    return [str(part).strip() for part in parts if str(part).strip()]


def _time(text: str) -> float:
    for form in _TIMES:
        if found := re.fullmatch(form, text):
            return sum(_UNITS[unit] * int(count) for unit, count in found.groupdict().items() if count)
    raise ValueError('it must be a time in quotes, as in "30" (minutes), "12:00:00" or "7-00"')


def _tres(text: str) -> dict[str, float]:
    """What each resource is limited to; of memory in MiB, as sacctmgr counts where no unit stands."""
    found = {}
    for part in _words(text):
        pair = re.fullmatch(r"([a-z][a-z0-9/:_-]*)=(-?[0-9.]+)([KMGTP]?)", part)
        if not pair:
            raise ValueError("it must be resources, as in cpu=64,mem=512G,gres/gpu=8")
        if float(pair[2]) >= 0:
            found[pair[1]] = float(pair[2]) * _SIZES.get(pair[3], 1)
    return found


def value_of(kind: str, value: Any) -> Any:
    """What a limit's text means: texts that mean the same become the same. None: no limit."""
    text = ",".join(value) if isinstance(value, list) else str(value).strip()
    if text in ("", "-1"):
        return None
    if kind == _NUMBER:
        return text if text == "parent" else float(text)
    if kind == _SECONDS:
        return _time(text) if ":" in text else float(text)
    if kind == _TIME:
        return _time(text)
    if kind == _TRES:
        return _tres(text) or None
    if kind == _LIST:
        return frozenset(word.lower() for word in _words(value))
    return text.lower()


def mistakes(qos: dict[str, Any], accounts: dict[str, Any]) -> list[str]:
    """What is wrong with what the module is given."""
    found = []

    def limits(what: str, given: Any, known: Limits) -> None:
        if not isinstance(given, dict):
            found.append(f"limits of {what}: they must be a mapping, as in {{MaxJobs: 5}}")
            return
        for name, value in given.items():
            if name not in known:
                found.append(f"{name} of {what} is no limit; there are {', '.join(known)}")
                continue
            kind = known[name][0]
            # YAML takes 12:00:00 for a number.
            try:
                if kind == _TIME and not isinstance(value, str):
                    _time("")
                value_of(kind, value)
            except ValueError as error:
                why = "it must be a number" if kind in (_NUMBER, _SECONDS) else error
                found.append(f"{name} of {what} is {value}: {why}")

    for name in [*qos, *accounts]:
        if not _NAME.fullmatch(str(name)):
            found.append(f"{name} is no name: it must be lower-case letters, digits, ., _ and -")
    for name, given in qos.items():
        limits(f"QOS {name}", given or {}, QOS)
    for name, account in accounts.items():
        account = account or {}
        if not isinstance(account, dict) or set(account) - ACCOUNT:
            found.append(f"account {name} may have {', '.join(sorted(ACCOUNT))}")
            continue
        limits(f"account {name}", account.get("limits") or {}, ASSOCIATION)
        if (parent := account.get("parent", _ROOT)) not in (_ROOT, *accounts):
            found.append(f"parent of account {name} is {parent}, which is no account")
        users = account.get("users") or {}
        if not isinstance(users, dict):
            found.append(f"users of account {name}: they must be a mapping of names to limits, as in {{anna: {{}}}}")
            continue
        for user, given in users.items():
            if not _NAME.fullmatch(str(user)):
                found.append(f"user {user} of account {name} is no name in lower case")
            limits(f"user {user} of account {name}", given or {}, ASSOCIATION)
    if not found and len(_from_the_top(accounts)) != len(accounts):
        found.append("accounts are each other's parents")
    return found


def _from_the_top(accounts: dict[str, Any]) -> list[str]:
    """The accounts' names, a parent before its children."""
    order: list[str] = []
    while more := [
        name
        for name, account in accounts.items()
        if name not in order and (account or {}).get("parent", _ROOT) in (_ROOT, *order)
    ]:
        order += more
    return order


class Found:
    """What slurmdbd has."""

    def __init__(self) -> None:
        self.cluster = False
        self.qos: dict[str, dict[str, str]] = {}
        self.accounts: dict[str, dict[str, str]] = {}  # description, organization
        self.associations: dict[tuple[str, str], dict[str, str]] = {}  # of an account (user "") and of its users
        self.defaults: dict[str, str] = {}  # users' default accounts


class Plan:
    """What sacctmgr has to be told, and what is there that nobody asked for."""

    def __init__(self, found: Found, cluster: str, remove: bool) -> None:
        self.commands: list[list[str]] = []
        self.left: list[str] = []
        self._found = found
        self._cluster = f"cluster={cluster}"
        self._name = cluster
        self._remove = remove

    def make(self, qos: dict[str, Any], accounts: dict[str, Any]) -> None:
        if not self._found.cluster:
            self.commands.append(["add", "cluster", self._name])
        for name, limits in qos.items():
            self._qos(name, limits or {})
        for name in _from_the_top(accounts):
            self._account(name, accounts[name] or {})
        first: dict[str, str] = {}
        for name, account in accounts.items():
            for user, limits in ((account or {}).get("users") or {}).items():
                first.setdefault(user, name)
                self._user(user, name, limits or {})
        for user, account in first.items():
            # A new user's is the account that it is made with.
            if self._found.defaults.get(user, account) != account:
                self.commands.append(["modify", "user", "where", f"name={user}", self._cluster, "set", f"defaultaccount={account}"])
        self._others(qos, accounts)

    def _qos(self, name: str, limits: dict[str, Any]) -> None:
        if name in self._found.qos:
            changes = self._changes(f"QOS {name}", self._found.qos[name], limits, QOS)
            self._modify("qos", [f"name={name}"], changes)
        else:
            self.commands.append(["add", "qos", name, *_settings(limits)])

    def _account(self, name: str, account: dict[str, Any]) -> None:
        texts = {key: str(account[key]) for key in ("description", "organization") if account.get(key)}
        parent, limits = account.get("parent", _ROOT), account.get("limits") or {}
        found = self._found.associations.get((name, ""))
        if found is None:
            self.commands.append(["add", "account", name, self._cluster, f"parent={parent}", *_settings(texts | limits)])
            return
        known = self._found.accounts.get(name, {})
        self._modify("account", [f"name={name}"], _settings({key: text for key, text in texts.items() if text.lower() != known.get(key, "").lower()}))
        changes = [f"parent={parent}"] if found["parent"] != parent else []
        changes += self._changes(f"account {name}", found, limits, ASSOCIATION)
        self._modify("account", [f"name={name}", self._cluster], changes)

    def _user(self, user: str, account: str, limits: dict[str, Any]) -> None:
        found = self._found.associations.get((account, user))
        if found is None:
            self.commands.append(["add", "user", user, f"account={account}", self._cluster, *_settings(limits)])
            return
        changes = self._changes(f"user {user} of account {account}", found, limits, ASSOCIATION)
        self._modify("user", [f"name={user}", f"account={account}", self._cluster], changes)

    def _changes(self, what: str, found: dict[str, str], wanted: dict[str, Any], known: Limits) -> list[str]:
        """The settings that make the limits what is wanted. Other limits stay, unless what is left is removed."""
        changes = []
        for name, (kind, none) in known.items():
            now = value_of(kind, found.get(name, ""))
            if name in wanted:
                then = value_of(kind, wanted[name])
            elif now in (None, value_of(kind, none)):
                continue
            elif self._remove:
                then = None
            else:
                self.left.append(f"{name}={found[name]} of {what}")
                continue
            if now == then:
                continue
            if kind == _TRES:  # sacctmgr keeps the resources that it is not told of
                gone = [f"{resource}=-1" for resource in now or {} if resource not in (then or {})]
                changes.append(f"{name}={','.join(_words(wanted.get(name, '')) + gone)}")
            elif then is None:
                changes.append(f"{name}={none}")
            else:
                changes += _settings({name: wanted[name]})
        return changes

    def _modify(self, kind: str, where: list[str], changes: list[str]) -> None:
        if changes:
            self.commands.append(["modify", kind, "where", *where, "set", *changes])

    def _others(self, qos: dict[str, Any], accounts: dict[str, Any]) -> None:
        """What is there and is not wanted: users before their accounts, accounts before their parents, QOS last."""
        users = {(name, user) for name, account in accounts.items() for user in (account or {}).get("users") or {}}
        gone = [pair for pair in self._found.associations if _ROOT not in pair]
        parents = {name: {"parent": self._found.associations[name, ""]["parent"]} for name, user in gone if not user}
        for account, user in gone:
            if user and (account, user) not in users:
                self._other(f"user {user} of account {account}", ["user", "where", f"name={user}", f"account={account}", self._cluster])
        for account in reversed(_from_the_top(parents)):
            if account not in accounts:
                self._other(f"account {account}", ["account", "where", f"name={account}", self._cluster])
        for name in self._found.qos:
            if name not in qos and name != _NORMAL:
                self._other(f"QOS {name}", ["qos", "where", f"name={name}"])

    def _other(self, what: str, command: list[str]) -> None:
        if self._remove:
            self.commands.append(["delete", *command])
        else:
            self.left.append(what)


def _settings(given: dict[str, Any]) -> list[str]:
    return [f"{name}={','.join(_words(value)) if isinstance(value, list) else value}" for name, value in given.items()]


class _Slurmdbd:
    def __init__(self, module: AnsibleModule) -> None:
        self._module = module
        self._sacctmgr = module.get_bin_path("sacctmgr", required=True)

    def ask(self, *words: str) -> list[list[str]]:
        said = self._run(["--readonly", "--noheader", "--parsable2", "show", *words])
        return [line.split("|") for line in said.splitlines()]

    def tell(self, command: list[str]) -> None:
        self._run(["--immediate", *command])

    def _run(self, arguments: list[str]) -> str:
        code, out, error = self._module.run_command([self._sacctmgr, *arguments])
        if code != 0:
            self._module.fail_json(msg=f"`sacctmgr {' '.join(arguments)}` has failed: {(error or out).strip()}")
        return str(out)

    def found(self, cluster: str) -> Found:
        found = Found()
        found.cluster = bool(self.ask("cluster", "where", f"cluster={cluster}", "format=cluster"))
        for name, *values in self.ask("qos", f"format=name,{','.join(QOS)}"):
            found.qos[name] = dict(zip(QOS, values))
        for name, description, organization in self.ask("account", "format=account,description,organization"):
            found.accounts[name] = {"description": description, "organization": organization}
        columns = f"format=account,user,partition,parentname,{','.join(ASSOCIATION)}"
        for account, user, partition, parent, *values in self.ask("associations", "where", f"cluster={cluster}", "wopl", columns):
            if not partition:
                found.associations[account, user] = {"parent": parent, **dict(zip(ASSOCIATION, values))}
        for user, account in self.ask("user", "where", f"cluster={cluster}", "format=user,defaultaccount"):
            found.defaults[user] = account
        return found


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "required": True},
            "qos": {"type": "dict", "default": {}},
            "accounts": {"type": "dict", "default": {}},
            "remove": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    qos, accounts, cluster = (module.params[name] for name in ("qos", "accounts", "cluster"))
    if wrong := mistakes(qos, accounts):
        module.fail_json(msg="; ".join(wrong))
    slurmdbd = _Slurmdbd(module)
    plan = Plan(slurmdbd.found(cluster), cluster, module.params["remove"])
    plan.make(qos, accounts)
    if not module.check_mode:
        for command in plan.commands:
            slurmdbd.tell(command)
    commands = [" ".join(command) for command in plan.commands]
    diff = {"before": "", "after": "".join(f"{command}\n" for command in commands)}
    module.exit_json(changed=bool(commands), commands=commands, left=plan.left, diff=diff)


if __name__ == "__main__":
    main()
