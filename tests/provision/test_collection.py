#!/usr/bin/python3
"""The collection's playbooks and roles, without machines: their variables, their syntax, and what `validate` concludes."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import yaml

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1] / "provisioning"
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster"), str(ROOT / "plugins" / "filter")]

from findings import findings  # noqa: E402
from pages import ELSEWHERE, PAGES, blocks  # noqa: E402


class Roles(unittest.TestCase):
    def test_defaults_argument_specs_and_readme_name_the_same_variables(self) -> None:
        for role in (ROOT / "roles").iterdir():
            defaults = yaml.safe_load((role / "defaults" / "main.yml").read_text())
            specs = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())["argument_specs"]
            specs = specs.get("main", {"options": {}})["options"]  # a role for other roles has no main
            table = [line for line in (role / "README.md").read_text().splitlines() if line.startswith("| `")]
            rows = {line.split("`")[1]: line.split(" | ")[2].removesuffix(" |") for line in table}
            self.assertEqual(set(defaults), set(specs), role.name)
            self.assertEqual(set(defaults), set(rows), role.name)
            for name, spec in specs.items():
                self.assertEqual(spec.get("default", defaults[name]), defaults[name], name)
                self.assertTrue(rows[name].startswith(spec["description"]), name)

    def test_every_playbook_is_good_yaml_and_names_what_is_there(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            environment = os.environ | {"HOME": directory, "ANSIBLE_COLLECTIONS_PATH": f"{directory}/collections"}
            for command in (
                ["ansible-galaxy", "collection", "build", str(ROOT), f"--output-path={directory}"],
                ["ansible-galaxy", "collection", "install", "--offline", f"{directory}/muster-appliance-0.1.0.tar.gz"],
                *(
                    ["ansible-playbook", f"--inventory={ROOT / 'inventories' / 'rack'}", "--syntax-check", name]
                    for name in [f"muster.appliance.{book.stem}" for book in (ROOT / "playbooks").glob("*.yml")]
                ),
            ):
                done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
                self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")


class Pages(unittest.TestCase):
    def test_every_block_of_commands_is_run_by_a_test(self) -> None:
        tests = "".join(file.read_text() for file in HERE.glob("test_*.py"))
        ran = set(re.findall(r'\bblock\("(\w+)", "([^"]+)"', tests))
        ran |= {tuple(words.split(": ", 1)) for words in ELSEWHERE}
        for page in PAGES:
            for text in blocks(page):
                runners = [begins for name, begins in ran if name == page and text.startswith(begins)]
                self.assertEqual(len(runners), 1, f"docs/{page}.md: {text}")


def found(name: str, what: str = "is", severity: str = "error") -> dict[str, Any]:
    """What a host's doctor says when it has one finding."""
    finding = {"id": name, "host": "itself", "is": what, "should": "should", "fix": "fix", "severity": severity}
    return {"ok": severity == "warning", "checked": 9, "findings": [finding], "unchecked": []}


ADDRESSES = {"ctl": "10.0.0.1", "n1": "10.0.0.2", "n2": "10.0.0.3", "n3": "10.0.0.4"}


def probe(host: str, **changes: Any) -> dict[str, Any]:
    """What a healthy host of the site says, with changes."""
    said = {
        "doctor": {"ok": True, "checked": 9, "findings": [], "unchecked": []},
        "packages": {"muster-client": "0.1.0"} | ({} if host == "ctl" else {"muster": "0.1.0"}),
        "munge": "one",
        "config": "another" if host == "ctl" else "one",
        "links": {"eth0": {"mtu": 1500, "addresses": [ADDRESSES[host]]}, "lo": {"mtu": 65536, "addresses": ["127.0.0.1"]}},
        "resolves": {name: [address] for name, address in ADDRESSES.items() if name != host},
        "listed": {name: [address] for name, address in ADDRESSES.items() if name != host},
        "offset": [-0.01, 0.02],
        "sent": False,
    }
    return {"ansible_host": ADDRESSES[host], "muster_probe": said | changes}


class Validate(unittest.TestCase):
    """Two compute nodes more than what is wrong, and a controller: what most have is right."""

    def check(self, expected: list[tuple[str, str]], network: str = "", **hosts: dict[str, Any]) -> list[str]:
        """The fixes."""
        site: dict[str, Any] = {name: probe(name) for name in ADDRESSES} | hosts
        for variables in site.values():
            variables |= {"site_cluster_network": network, "site_cluster_mtu": 1500} if network else {}
        groups = {"controller": ["ctl"], "compute": ["n1", "n2", "n3"]}
        result = findings(site, ["n1", "n2", "n3", "ctl"], groups)
        errors = [finding for finding in result["findings"] if finding["severity"] == "error"]
        self.assertEqual([(finding["id"], finding["host"]) for finding in errors], expected)
        self.assertEqual(result["ok"], expected == [])
        self.assertGreater(result["checked"], 40)
        for finding in result["findings"]:
            self.assertEqual(set(finding), {"id", "host", "is", "should", "fix", "severity", "text"})
            self.assertTrue(all(finding.values()))
        return [finding["fix"] for finding in errors]

    def names(self, host: str, **others: str) -> dict[str, Any]:
        """A host whose /etc/hosts has other addresses for some names."""
        has = {name: [others.get(name, address)] for name, address in ADDRESSES.items() if name != host}
        return probe(host, resolves=has, listed=has)

    def test_a_healthy_site_has_no_findings(self) -> None:
        self.check([])
        self.check([], network="10.0.0.0/24")

    def test_each_fault_is_named_with_its_host_and_nothing_else(self) -> None:
        self.check([("host-unreachable", "n2")], n2={})
        self.check([("host-unreachable", "n2")], n2={"muster_probe": {"msg": "no route to host", "unreachable": True}})
        self.check([("memlock", "n3")], n3=probe("n3", doctor=found("memlock")))
        self.check([("doctor-silent", "n3")], n3=probe("n3", doctor="Segmentation fault"))
        self.check([("version-differs", "n1")], n1=probe("n1", packages={"muster": "0.2.0", "muster-client": "0.2.0"}))
        self.check([("version-differs", "n1")], n1=probe("n1", packages={"muster-client": "0.1.0"}))
        self.check([("version-differs", "ctl")], ctl=probe("ctl", packages={}, doctor="muster is not installed"))
        self.check([("config-differs", "n2")], n2=probe("n2", config="two"))
        self.check([("munge-key-differs", "n2")], n2=probe("n2", munge="two"))
        self.check([("clock-differs", "n1")], n1=probe("n1", offset=[599.0, 601.0]))
        self.check([("clock-differs", "n1")], n1=probe("n1", offset=[-8.0, -7.0]))
        self.check([("hosts-entry-wrong", "n1")], n1=self.names("n1", n2="10.0.0.9"))
        small = {"eth0": {"mtu": 1400, "addresses": ["10.0.0.3"]}}
        self.assertEqual(self.check([("mtu", "n2")], "10.0.0.0/24", n2=probe("n2", links=small)), ["ip link set dev eth0 mtu 1500"])
        # Nobody can tell without the network.
        self.check([], n2=probe("n2", links=small))
        self.check([("cluster-address", "n2")], "10.0.0.0/24", n2=probe("n2", links={}))

    def test_what_is_only_unusual_is_not_named(self) -> None:
        self.check([], n1=probe("n1", offset=[0.9, 1.1]))
        self.check([], n1=probe("n1", offset=[-40.0, 2.0]))  # a host that took long to answer
        self.check([], ctl=probe("ctl", munge="one", listed={"n1": ["10.0.0.2"], "elsewhere": ["10.0.0.9"]}))
        links = {"eth0": {"mtu": 1500, "addresses": ["10.0.0.2"]}, "eth1": {"mtu": 9000, "addresses": []}, "eth2": {"mtu": 1280, "addresses": []}}
        self.check([], "10.0.0.0/24", n1=probe("n1", links=links))
        # A name may stand for any address that its host has, as one in the cluster's network.
        links["eth1"]["addresses"] = ["10.9.0.2"]
        self.check([], n1=probe("n1", links=links), n2=self.names("n2", n1="10.9.0.2"))
        self.check([], n2=probe("n2", doctor=found("health", severity="warning")))

    def test_of_names_the_fix_says_what_is_to_be_written(self) -> None:
        take = r"sed -i '/^10.0.0.9[[:space:]]/s/[[:space:]]n2\b//g' /etc/hosts"
        add = "echo '10.0.0.3 n2' >>/etc/hosts"
        expected = [("hosts-entry-wrong", "n1")]
        self.assertEqual(self.check(expected, n1=self.names("n1", n2="10.0.0.9")), [f"{take} && {add}"])
        both = {"resolves": {"n2": ["10.0.0.9", "10.0.0.3"]}, "listed": {"n2": ["10.0.0.9", "10.0.0.3"]}}
        self.assertEqual(self.check(expected, n1=probe("n1", **both)), [take])
        self.assertEqual(self.check(expected, n1=probe("n1", resolves={"n2": []}, listed={})), [add])
        self.assertEqual(self.check(expected, n1=probe("n1", resolves={"n2": ["10.0.0.9"]}, listed={})), ["let DNS say 10.0.0.3 of n2"])

    def test_what_follows_from_a_fault_is_not_named(self) -> None:
        down, away = found("node-down"), found("slurmctld-unreachable")
        self.check([("munge-key-differs", "n1")], n1=probe("n1", munge="two", doctor=away))
        self.check([("munge-key-differs", "n1")], n1=probe("n1", munge="two", doctor=found("unit-down", "slurmd.service is failed")))
        self.check([("clock-differs", "n1")], n1=probe("n1", offset=[60.0, 60.1], doctor=down))
        self.check([("hosts-entry-wrong", "n2")], n2=self.names("n2", ctl="10.0.0.9") | {"muster_probe": self.names("n2", ctl="10.0.0.9")["muster_probe"] | {"doctor": away}})
        everybody = {name: probe(name, doctor=away) for name in ("n1", "n2", "n3")}
        self.check([("unit-down", "ctl")], ctl=probe("ctl", doctor=found("unit-down", "slurmctld.service is failed")), **everybody)
        self.check([("host-unreachable", "ctl")], ctl={}, **everybody)
        self.check([("munge-key-differs", "ctl")], ctl=probe("ctl", munge="two"), **everybody)
        off = {name: probe(name, doctor=found("plugin-off"), sent=True) for name in ("n1", "n2", "n3")}
        self.check([("plugin-off", "ctl")], ctl=probe("ctl", doctor=found("plugin-off")), **off)

    def test_two_faults_are_both_named(self) -> None:
        self.check([("host-unreachable", "n1"), ("plugin-off", "n3")], n1={}, n3=probe("n3", doctor=found("plugin-off")))
        self.check([("unit-down", "n1"), ("munge-key-differs", "n1")], n1=probe("n1", munge="two", doctor=found("unit-down", "musterd.service is inactive")))
        self.check([("slurmctld-unreachable", "n2"), ("munge-key-differs", "n1")], n1=probe("n1", munge="two"), n2=probe("n2", doctor=found("slurmctld-unreachable")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
