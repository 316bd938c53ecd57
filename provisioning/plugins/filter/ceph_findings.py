"""The filter `ceph_findings`: adds what is wrong with Ceph's daemons to what is wrong otherwise."""

from __future__ import annotations

from typing import Any

_GOOD = ("leader", "peon", "active")
_IDS = {"mon": "ceph-mon-down", "osd": "osd-down"}
# What every host says of a store while a part of it is down.
_FOLLOWS = "store-unreachable"


def _finding(name: str, host: str, found: str, should: str, fix: str) -> dict[str, str]:
    text = f"{host}: {found}; should be: {should}; to mend it: {fix}"
    return {"id": name, "host": host, "is": found, "should": should, "fix": fix, "severity": "error", "text": text}


def ceph_findings(result: dict[str, Any], hostvars: Any, groups: Any) -> dict[str, Any]:
    """What `findings` has given, and what the hosts of Ceph say (plugins/modules/ceph_probe.py)."""
    found, checked = [], 0
    for host in sorted({*groups.get("mon", []), *groups.get("osd", [])}):
        checked += 1
        daemons = hostvars[host].get("ceph_probe", {}).get("daemons")
        if daemons is None:
            found.append(_finding("host-unreachable", host, "no answer", "reached by Ansible", f"ssh {host}"))
        for daemon, state in (daemons or {}).items():
            checked += 1
            kind, _, name = daemon.partition(".")
            if state not in _GOOD:
                unit = f"ceph-{kind}@{name}"
                again = f"systemctl reset-failed {unit}; " if state == "failed" else ""
                good = "active" if kind == "osd" else "in the quorum"
                found.append(_finding(_IDS[kind], host, f"{daemon} is {state}", good, f"{again}systemctl restart {unit}"))
    before = [one for one in result["findings"] if not (found and one["id"] == _FOLLOWS)]
    known = {(one["id"], one["host"]) for one in before}
    found = before + [one for one in found if (one["id"], one["host"]) not in known]
    return result | {"ok": all(one["severity"] == "warning" for one in found), "checked": result["checked"] + checked, "findings": found}


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"ceph_findings": ceph_findings}
