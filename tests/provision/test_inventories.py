#!/usr/bin/python3
"""The check of an operator's input: what it says of bad inventories, that it takes good ones, and its table of keys.

bad_inventories/NAME has an inventory that is bad, one that is almost as bad and yet good, and what the check says of the first
one. MUSTERD is the daemon whose keys of muster.yaml the check must know. --write writes what the check says, and the tables of
provisioning/README.md; read them before you commit them.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1] / "provisioning"
README = ROOT / "README.md"
BAD = sorted((HERE / "bad_inventories").iterdir())
EXAMPLES = sorted((ROOT / "inventories").iterdir())
sys.path.insert(0, str(ROOT / "plugins"))

from plugin_utils.checks import check as check_here  # noqa: E402
from plugin_utils.inventory import load  # noqa: E402
from plugin_utils.keys import GROUPS, KEYS, MUSTER_YAML, Key  # noqa: E402
from plugin_utils.places import Findings, Reader  # noqa: E402

# What is put in place of values and beside lines.
JUNK = ["", "[]", "{}", "~", "- a", "a: b", '"', "*x", "&a [*a]", "!!int x", "1e9", "0x10", "yes", "2020-01-01", "!vault |", "<<: {a: b}"]
JUNK += ["?", "{a: [b, {c: d}]}", "\0", ": ", "!!set {a}", "n[1:3]:", "-1", "10.0.0.0/33", "::1/64", "<<: [a]", "[1]: x"]


def mangle(text: str, rng: random.Random) -> str:
    """A file with one line changed."""
    lines = text.splitlines()
    at = rng.randrange(len(lines))
    key, indent = lines[at].split(":")[0], " " * rng.randint(0, 4)
    changes = [[f"{key}: {rng.choice(JUNK)}"], [indent + rng.choice(JUNK), lines[at]], [], [f"  {lines[at]}"], [lines[at]] * 2]
    return "\n".join(lines[:at] + rng.choice(changes) + lines[at + 1 :]) + "\n"


def run(*command: object, cwd: Path = HERE) -> "subprocess.CompletedProcess[str]":
    """A program without what the caller's environment says of Ansible."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"PATH": os.environ["PATH"], "HOME": home, "LANG": "C.UTF-8"}
        argv = [str(word) for word in command]
        return subprocess.run(argv, capture_output=True, text=True, env=environment, cwd=cwd, timeout=180, check=False)


def check(*arguments: object, cwd: Path = HERE) -> "subprocess.CompletedProcess[str]":
    return run("/usr/bin/python3", "-B", ROOT / "check-inventory", *arguments, cwd=cwd)


def row(key: Key) -> str:
    default = key.default if isinstance(key.default, str) else json.dumps(key.default)
    code = "" if default in ("", "{}", "[]") else f"`{default}`"
    return f"| `{key.name}` | {key.kind} | {code} | {key.owner} | {key.about} |\n".replace("|  |", "| |")


def with_tables(text: str) -> str:
    """The README with the tables of groups and keys as they are."""
    tables = {
        "| Group | Hosts |\n|---|---|\n": [f"| `{name}` | {about} |\n" for name, about in GROUPS.items()],
        "| Key | Kind | Default | Role | |\n|---|---|---|---|---|\n": [row(key) for key in KEYS.values()],
    }
    for head, rows in tables.items():
        before, found, after = text.partition(head)
        assert found, head
        text = before + head + "".join(rows) + re.sub(r"\A(\|.*\n)*", "", after)
    return text


def decrypt(path: Path) -> str:
    raise ValueError(f"{path} is encrypted")


class Inventories(unittest.TestCase):
    def test_of_each_bad_inventory_all_is_said_that_is_wrong_with_its_place(self) -> None:
        self.assertGreaterEqual(len(BAD), 10)
        for case in BAD:
            with self.subTest(case.name):
                done = check("bad", cwd=case)
                self.assertEqual(done.stdout, (case / "expected.txt").read_text(), done.stderr)
                errors = [line for line in done.stdout.splitlines() if ": warning: " not in line]
                self.assertEqual(done.returncode, 1 if errors else 0, done.stderr)
                for line in done.stdout.splitlines():
                    self.assertRegex(line, r"^bad/[a-z0-9_./]+:[0-9]+(:[0-9]+)?: ")

    def test_nothing_is_said_of_what_is_almost_as_bad(self) -> None:
        for case in BAD:
            with self.subTest(case.name):
                password = ["--vault-password-file", "password"] if (case / "password").exists() else []
                done = check(*password, "good", cwd=case)
                self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_no_mangled_inventory_ends_the_check(self) -> None:
        seed = int(os.environ.get("MUSTER_TEST_SEED", "1"))
        rng = random.Random(seed)
        for number in range(200):
            with self.subTest(seed=seed, number=number), tempfile.TemporaryDirectory() as directory:
                case = rng.choice(BAD) / rng.choice(("bad", "good"))
                site = Path(shutil.copytree(case, f"{directory}/site"))
                for file in rng.choices(sorted(site.rglob("*.yml")), k=3):
                    file.write_text(mangle(file.read_text() or "\n", rng))
                for finding in check_here([site], decrypt):
                    self.assertRegex(str(finding), rf"^{site}/[a-z0-9_./]+:[0-9]+(:[0-9]+)?: .")

    def test_nothing_is_said_of_the_examples(self) -> None:
        for example in EXAMPLES:
            done = check(example)
            self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_the_check_sees_the_hosts_groups_and_variables_that_ansible_sees(self) -> None:
        cases = ("02-duplicate-host", "04-groups", "18-ranges", "19-structure")
        for directory in [*EXAMPLES, *(HERE / "bad_inventories" / case / "good" for case in cases)]:
            with self.subTest(directory):
                done = run("ansible-inventory", "--list", f"--inventory={directory}")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                said = json.loads(done.stdout)
                hosts = said.pop("_meta")["hostvars"]
                findings = Findings()
                inventory = load([directory], Reader(findings, decrypt))
                self.assertEqual(findings.all(), [])
                groups = {name: set(inventory.members(name)) for name in inventory.groups if name != "all"}
                direct = {name: set(group.get("hosts", [])) for name, group in said.items() if name not in ("all", "ungrouped")}
                for name, members in groups.items():
                    children = said.get(name, {}).get("children", [])
                    self.assertEqual(members, direct.get(name, set()).union(*(groups[child] for child in children)), name)
                self.assertEqual(set(direct) - set(groups), set())
                for name in inventory.hosts:
                    for key, value in hosts.get(name, {}).items():
                        entry = inventory.value(name, key)
                        assert entry is not None, key
                        if isinstance(value, (str, int)) and not isinstance(value, bool):
                            self.assertEqual(entry.value.text, str(value), key)


class Keys(unittest.TestCase):
    def test_the_readme_lists_every_key_and_group(self) -> None:
        text = README.read_text()
        self.assertEqual(text, with_tables(text), "test_inventories.py --write makes it right")

    def test_the_keys_of_a_new_role_are_known_by_its_argument_specs(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            tree = Path(shutil.copytree(ROOT, f"{directory}/tree"))
            specs = tree / "roles" / "chrony" / "meta" / "argument_specs.yml"
            specs.parent.mkdir(parents=True)
            options = {"chrony_servers": {"type": "list", "elements": "str", "description": ["Servers", "of time."]}}
            specs.write_text(json.dumps({"argument_specs": {"main": {"options": options}}}))
            site = tree / "inventories" / "rack" / "group_vars" / "compute.yml"
            site.write_text("chrony_servers: ntp\nchrony_server: [ntp]\n")
            done = run("/usr/bin/python3", "-B", tree / "check-inventory", site.parents[1])
            self.assertEqual(
                done.stdout.replace(f"{site}", "compute.yml").splitlines(),
                [
                    "compute.yml:1: chrony_servers is a text; it must be a list, as in [ntp]",
                    "compute.yml:2: chrony_server is no key of the playbooks; did you mean chrony_servers?",
                ],
            )

    def test_the_check_knows_what_musterd_knows(self) -> None:
        said = run(os.environ["MUSTERD"], "--print-default-config").stdout
        self.assertEqual(set(re.findall(r"^#?([a-z_]+):", said, re.MULTILINE)), MUSTER_YAML)


class Playbooks(unittest.TestCase):
    def test_a_playbook_says_all_of_it_and_does_nothing(self) -> None:
        """Also when nothing in the inventory matches, and where Ansible itself would fail at the first mistake."""
        with tempfile.TemporaryDirectory() as directory:
            archive = f"{directory}/muster-appliance-0.1.0.tar.gz"
            for command in (
                ["ansible-galaxy", "collection", "build", ROOT, f"--output-path={directory}"],
                ["ansible-galaxy", "collection", "install", "--offline", f"--collections-path={directory}", archive],
            ):
                done = run(*command)
                self.assertEqual(done.returncode, 0, done.stderr)
            for book in sorted((ROOT / "playbooks").glob("*.yml")):
                self.assertIn("check_input", book.read_text().split("- name:")[1], book)
            for name in ("03-unknown-key", "15-yaml", "17-vault"):
                case = HERE / "bad_inventories" / name
                environment = ["env", f"ANSIBLE_COLLECTIONS_PATH={directory}"]
                play = ["ansible-playbook", "--inventory=bad", "--limit=n1", "muster.appliance.muster_only"]
                done = run(*environment, *play, cwd=case)
                said = done.stdout.replace(f"{case}/", "")
                self.assertEqual((done.returncode, said), (1, (case / "expected.txt").read_text()), done.stderr)
                self.assertIn("No host was touched.", done.stderr)


def write() -> None:
    for case in BAD:
        (case / "expected.txt").write_text(check("bad", cwd=case).stdout)
    README.write_text(with_tables(README.read_text()))


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write()
    else:
        unittest.main(verbosity=2)
