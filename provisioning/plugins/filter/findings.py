"""The filter `findings`: what the hosts' doctors have found, and what a comparison of the hosts shows (plugins/modules/probe.py)."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable
from typing import Any

CLOCK_S = 5.0  # MUNGE takes credentials that are minutes old, but logs of hosts are compared by people

# What is said of a host is no finding when one of these is said of it too: id: of which.
_FOLLOWS = {
    "munge-key-differs": {"slurmctld-unreachable", "node-down", "musterd-not-answering", "unit-down slurmd"},
    "clock-differs": {"slurmctld-unreachable", "node-down", "musterd-not-answering", "unit-down slurmd"},
    "hosts-entry-wrong": {"slurmctld-unreachable", "node-down", "unit-down slurmd"},
}
# When one of these is said of the controller, the others cannot do without it.
_OF_CONTROLLER = {
    "host-unreachable",
    "unit-down",
    "munge-not-working",
    "munge-key-differs",
    "clock-differs",
    "disk-full",
    "hosts-entry",
    "hosts-entry-wrong",
}
_WITHOUT_CONTROLLER = {"slurmctld-unreachable", "node-down"}


class _Findings:
    def __init__(self) -> None:
        self.checked = 0
        self.found: list[dict[str, str]] = []
        self.unchecked: list[str] = []

    def add(self, name: str, host: str, found: str, should: str, fix: str, severity: str = "error") -> None:
        warning = "warning: " if severity == "warning" else ""
        text = f"{warning}{host}: {found}; should be: {should}; to mend it: {fix}"
        self.found.append({"id": name, "host": host, "is": found, "should": should, "fix": fix, "severity": severity, "text": text})

    def check(self, good: bool, name: str, host: str, found: str, should: str, fix: str) -> None:
        self.checked += 1
        if not good:
            self.add(name, host, found, should, fix)


def _reference(hosts: list[str], agree: Callable[[str, str], bool]) -> str:
    """The host with which most agree; of two with as many the one that comes first, so that the answer is always the same."""
    return max(hosts, key=lambda host: sum(agree(host, other) for other in hosts))


def _of_most(values: dict[str, str]) -> str:
    """The value that most hosts have; of two with as many hosts the lesser one."""
    counts = Counter(values.values())
    return min(counts, key=lambda value: (-counts[value], value))


def _apart(one: list[float], other: list[float]) -> float:
    """How far two ranges are from each other."""
    return max(0.0, one[0] - other[1], other[0] - one[1])


class _Site:
    """What the hosts have said. The controller comes first."""

    def __init__(self, hostvars: Any, hosts: list[str], groups: Any) -> None:
        self.variables = hostvars
        self.compute = set(groups.get("compute", []))
        controllers = set(groups.get("controller", []))
        self.hosts = sorted(hosts, key=lambda host: host not in controllers)
        self.controller = self.hosts[0] if self.hosts and self.hosts[0] in controllers else ""
        probes = {host: hostvars[host].get("muster_probe", {}) for host in self.hosts}
        self.probes: dict[str, Any] = {host: probe for host, probe in probes.items() if "doctor" in probe}

    def address(self, host: str) -> str:
        """What the inventory says; "" when that is a name."""
        try:
            return str(ipaddress.ip_address(self.variables[host].get("ansible_host", "")))
        except ValueError:
            return ""

    def addresses(self, host: str) -> set[str]:
        """All that the host has, as far as that is known."""
        links = self.probes.get(host, {}).get("links", {}).values()
        return {address for link in links for address in link["addresses"]} | ({self.address(host)} - {""})


def _doctors(site: _Site, result: _Findings) -> None:
    for host in site.hosts:
        reached = host in site.probes
        result.check(reached, "host-unreachable", host, "no answer", "reached by Ansible", f"ssh {host}")
        if not reached:
            continue
        said = site.probes[host]["doctor"]
        if isinstance(said, str):
            if "muster-client" in site.probes[host]["packages"]:
                result.check(False, "doctor-silent", host, f"muster doctor says: {said}", "what is wrong", "muster doctor")
            continue
        result.checked += said["checked"] - len(said["findings"])
        for found in said["findings"]:
            result.checked += 1
            result.add(found["id"], host, found["is"], found["should"], found["fix"], found["severity"])
        result.unchecked += [f"{host}: {why}" for why in said["unchecked"]]


def _software(site: _Site, result: _Findings) -> None:
    probes = site.probes
    versions = {host: probe["packages"]["muster-client"] for host, probe in probes.items() if "muster-client" in probe["packages"]}
    configs = {host: probe["config"] for host, probe in probes.items() if host in site.compute}
    for host, probe in probes.items():
        package = "muster" if host in site.compute else "muster-client"
        version = probe["packages"].get(package, "not installed")
        wanted = _of_most(versions) if versions else "installed"
        fix = f"apt-get install {package}" + (f"={wanted}" if versions else "")
        result.check(version == wanted, "version-differs", host, f"{package} {version}", f"{package} {wanted}", fix)
        if host in configs:
            good = probe["config"] == _of_most(configs)
            fix = "run muster_only.yml or site.yml for all hosts, without --limit"
            result.check(good, "config-differs", host, "muster.yaml is another one", "the same on all nodes", fix)


def _keys(site: _Site, result: _Findings) -> None:
    keys = {host: probe["munge"] for host, probe in site.probes.items()}
    if not keys:
        return
    most = _reference(list(keys), lambda one, other: keys[one] == keys[other])
    for host, key in keys.items():
        fix = f"ansible {host} --become -m ansible.builtin.include_role -a name=muster.appliance.munge"
        if host == site.controller:
            fix = f"copy /etc/munge/munge.key from {most}, and systemctl restart munge slurmctld"
        result.check(key == keys[most], "munge-key-differs", host, "MUNGE has another key", f"that of {most}", fix)


def _clocks(site: _Site, result: _Findings) -> None:
    offsets = {host: probe["offset"] for host, probe in site.probes.items() if "offset" in probe}
    if not offsets:
        return
    most = _reference(list(offsets), lambda one, other: _apart(offsets[one], offsets[other]) <= CLOCK_S)
    for host, offset in offsets.items():
        ahead = (sum(offset) - sum(offsets[most])) / 2
        found = f"the clock is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}"
        good = _apart(offset, offsets[most]) <= CLOCK_S
        fix = "chronyc makestep; chronyc sources says where the time comes from"
        result.check(good, "clock-differs", host, found, f"that of {most}, within {CLOCK_S:.0f} s", fix)


def _mend_name(host: str, name: str, wrong: str, right: str, site: _Site) -> str:
    listed = site.probes[host]["listed"].get(name, [])
    add = f"echo '{right} {name}' >>/etc/hosts"
    if not wrong:
        return add
    if wrong not in listed:
        return f"let DNS say {right} of {name}"
    take = rf"sed -i '/^{wrong}[[:space:]]/s/[[:space:]]{name}\b//g' /etc/hosts"
    return take if right in listed else f"{take} && {add}"


def _names(site: _Site, result: _Findings) -> None:
    for host, probe in site.probes.items():
        for name, addresses in probe["resolves"].items():
            known = site.addresses(name)
            if not known:
                continue
            wrong = next((address for address in addresses if address not in known), "")
            found = f"{name} stands for {wrong or 'no address'}"
            right = site.address(name) or min(known)
            fix = _mend_name(host, name, wrong, right, site)
            result.check(bool(addresses) and not wrong, "hosts-entry-wrong", host, found, f"{right}, which {name} has", fix)


def _mtus(site: _Site, result: _Findings) -> None:
    for host, probe in site.probes.items():
        variables = site.variables[host]
        network = variables.get("site_cluster_network", "")
        if host not in site.compute or not network:
            continue
        inside = ipaddress.ip_network(network)
        ports = {
            device: link["mtu"]
            for device, link in probe["links"].items()
            if any(ipaddress.ip_address(address) in inside for address in link["addresses"])
        }
        fix = "give a port of the host an address there"
        result.check(bool(ports), "cluster-address", host, f"no address in {network}", "one", fix)
        if any(finding["id"] == "mtu" for finding in probe["doctor"]["findings"]):
            continue  # the host itself knows what it should be
        least = int(variables.get("site_cluster_mtu", 9000))
        for device, mtu in ports.items():
            fix = f"ip link set dev {device} mtu {least}"
            result.check(mtu >= least, "mtu", host, f"{device} has an MTU of {mtu}", f"{least}, also after a reboot", fix)


def _causes(site: _Site, found: list[dict[str, str]]) -> list[dict[str, str]]:
    """Without what follows from something else. What follows on one host its doctor has left out already."""
    said = {(finding["id"], finding["host"]) for finding in found}
    without = any((cause, site.controller) in said for cause in _OF_CONTROLLER)

    def follows(finding: dict[str, str]) -> bool:
        name, host = finding["id"], finding["host"]
        kinds = {name, f"{name} {finding['is'].partition('.')[0]}"}
        if any((cause, host) in said and kinds & effects for cause, effects in _FOLLOWS.items()):
            return True
        if name in _WITHOUT_CONTROLLER and without and host != site.controller:
            return True
        # slurmctld's plugstack.conf is the host's too.
        return name == "plugin-off" and host != site.controller and (name, site.controller) in said and bool(site.probes[host]["sent"])

    return [finding for finding in found if not follows(finding)]


def findings(hostvars: Any, hosts: list[str], groups: Any) -> dict[str, Any]:
    """`{ok, checked, findings, unchecked}`. hosts: those that were looked at; groups: of the inventory."""
    site, result = _Site(hostvars, hosts, groups), _Findings()
    for compare in (_doctors, _software, _keys, _clocks, _names, _mtus):
        compare(site, result)
    found = _causes(site, result.found)
    ok = all(finding["severity"] == "warning" for finding in found)
    return {"ok": ok, "checked": result.checked, "findings": found, "unchecked": result.unchecked}


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"findings": findings}
