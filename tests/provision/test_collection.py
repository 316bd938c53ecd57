#!/usr/bin/python3
"""The collection's playbooks and roles, without machines: their variables, their syntax, and what `validate` concludes."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import yaml

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2] / "provisioning"
sys.path.insert(0, str(ROOT / "plugins" / "filter"))

from findings import findings  # noqa: E402


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


def probe(**changes: Any) -> dict[str, Any]:
    """What a healthy host of the site says, with changes."""
    said = {
        "units": {"munge.service": "active"},
        "packages": {"muster": "0.1.0", "muster-client": "0.1.0"},
        "plugin": {"loads": True, "says": ""},
        "option": True,
        "config": "one",
    }
    return {"muster_probe": {"stdout": json.dumps(said | changes)}}


class Validate(unittest.TestCase):
    """Two compute nodes more than what is wrong, and a controller: what most have is right."""

    def check(self, expected: list[tuple[str, str]], **hosts: dict[str, Any]) -> None:
        site = {"ctl": probe(packages={"muster-client": "0.1.0"}, config="another"), "n1": probe(), "n2": probe(), "n3": probe()}
        site |= hosts
        result = findings(site, list(site), [name for name in site if name != "ctl"])
        self.assertEqual([(finding["id"], finding["host"]) for finding in result["findings"]], expected)
        self.assertEqual(result["ok"], expected == [])
        for finding in result["findings"]:
            self.assertEqual(set(finding), {"id", "host", "is", "should", "fix", "severity", "text"})
            self.assertTrue(all(finding.values()))

    def test_a_healthy_site_has_no_findings(self) -> None:
        self.check([])

    def test_each_fault_is_named_with_its_host_and_nothing_else(self) -> None:
        self.check([("host-unreachable", "n2")], n2={})
        self.check([("host-unreachable", "n2")], n2={"muster_probe": {"msg": "no route to host"}})
        self.check([("unit-down", "n3")], n3=probe(units={"munge.service": "failed"}))
        self.check([("version-differs", "n1")], n1=probe(packages={"muster": "0.2.0", "muster-client": "0.2.0"}))
        self.check([("version-differs", "n1")], n1=probe(packages={"muster-client": "0.1.0"}))
        self.check([("version-differs", "ctl")], ctl=probe(packages={}))
        self.check([("plugin-not-loading", "n1")], n1=probe(plugin={"loads": False, "says": "another release"}, option=False))
        self.check([("plugin-off", "ctl")], ctl=probe(option=False))
        self.check([("config-differs", "n2")], n2=probe(config="two"))

    def test_two_faults_are_both_named(self) -> None:
        self.check([("host-unreachable", "n1"), ("plugin-off", "n3")], n1={}, n3=probe(option=False))


if __name__ == "__main__":
    unittest.main(verbosity=2)
