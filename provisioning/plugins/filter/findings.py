"""The filter `findings`: compares what the hosts have said (roles/muster/files/probe.py)."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any


def _said(variables: Any) -> Any:
    """What a host's probe has printed; None of a host that was not reached."""
    probe = variables.get("muster_probe", {})
    try:
        return json.loads(probe["stdout"])
    except (KeyError, ValueError):
        return None


class _Findings:
    def __init__(self) -> None:
        self.checked = 0
        self.found: list[dict[str, str]] = []

    def check(self, good: bool, name: str, host: str, found: str, should: str, fix: str) -> None:
        self.checked += 1
        if not good:
            text = f"{host}: {found}; should be: {should}; to mend it: {fix}"
            self.found.append(
                {"id": name, "host": host, "is": found, "should": should, "fix": fix, "severity": "error", "text": text}
            )


def _of_most(values: dict[str, str]) -> str:
    """The value that most hosts have; of two with as many hosts the lesser one, so that the answer is always the same."""
    counts = Counter(values.values())
    return min(counts, key=lambda value: (-counts[value], value))


def findings(hostvars: Any, hosts: list[str], compute: list[str]) -> dict[str, Any]:
    """`{ok, checked, findings}`. hosts: those that were looked at; compute: those of them that have musterd."""
    result = _Findings()
    probes = {}
    for host in hosts:
        probe = _said(hostvars[host])
        result.check(probe is not None, "host-unreachable", host, "no answer", "reached by Ansible", f"ssh {host}")
        if probe is not None:
            probes[host] = probe
    versions = {host: probe["packages"]["muster-client"] for host, probe in probes.items() if "muster-client" in probe["packages"]}
    configs = {host: probe["config"] for host, probe in probes.items() if host in compute}
    for host, probe in probes.items():
        for unit, state in probe["units"].items():
            result.check(state == "active", "unit-down", host, f"{unit} is {state}", "active", f"systemctl restart {unit}")
        package = "muster" if host in compute else "muster-client"
        version = probe["packages"].get(package, "not installed")
        wanted = _of_most(versions) if versions else "installed"
        fix = f"apt-get install {package}" + (f"={wanted}" if versions else "")
        result.check(version == wanted, "version-differs", host, f"{package} {version}", f"{package} {wanted}", fix)
        plugin = probe["plugin"]
        files = next((name for name in probe["packages"] if name.startswith("slurm-spank-muster-")), "slurm-spank-muster")
        fix = f"apt-get install --reinstall {files}"
        result.check(plugin["loads"], "plugin-not-loading", host, plugin["says"], "loads", fix)
        if plugin["loads"]:
            state = "`srun --help` does not know --gang"
            result.check(probe["option"], "plugin-off", host, state, "the last line of plugstack.conf", "muster node enable-plugin")
        if host in configs:
            good = probe["config"] == _of_most(configs)
            fix = "run muster_only.yml for all hosts, without --limit"
            result.check(good, "config-differs", host, "muster.yaml is another one", "the same on all nodes", fix)
    return {"ok": not result.found, "checked": result.checked, "findings": result.found}


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"findings": findings}
