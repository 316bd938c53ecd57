#!/usr/bin/python3
"""validate.yml and the hosts' doctors on a site that has Slurm: each fault is found on its host, and nothing else; its fix mends it.
Some faults and a pair are drawn by MUSTER_TEST_SEED; MUSTER_FAULTS=all takes all of them, and twelve pairs. The packages are those
of build/packages, or of the directory that MUSTER_PACKAGES names."""

import itertools
import os
import random
import re
import shlex
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]

from all_faults import ALL, note  # noqa: E402
from faults import CONTROLLER, FAULTS, Fault, unusual  # noqa: E402
from rack import Rack, rack_of_test  # noqa: E402
from vc.names import REPOSITORY  # noqa: E402

PACKAGES = Path(os.environ.get("MUSTER_PACKAGES", REPOSITORY / "build" / "packages"))
NODES = ["n1", "n2", "n3"]
Planted = tuple[Fault, str]


class Validate(unittest.TestCase):
    """One rack with Muster. Each test finds it whole and leaves it whole."""

    rack: Rack

    @classmethod
    def setUpClass(cls) -> None:
        cls.rack = rack_of_test("d", nodes=len(NODES), debs=str(PACKAGES))
        cls.addClassCleanup(cls.rack.stop)
        cls.rack.start()
        cls.rack.playbooks.prepare(
            {"controller": [CONTROLLER], "login": [], "compute": NODES},
            {
                "muster_apt_source": cls.rack.mirror.source,
                "muster_config": {"store": "dir:/srv/checkpoints", "memlock_limit": "8MiB"},  # what a container may lock
                "site_cluster_network": f"{cls.rack.network.subnet}.0/24",
                "site_cluster_mtu": 1500,
            },
        )
        play = cls.rack.playbooks.play("muster_only")
        if play.code != 0:
            raise AssertionError(play.output)

    def shell(self, host: str, script: str) -> None:
        self.rack.run(host, ["sh", "-ec", script], check=True)

    def validate(self) -> list[dict[str, str]]:
        """The errors that it finds."""
        play, result = self.rack.playbooks.validate()
        errors = [found for found in result["findings"] if found["severity"] == "error"]
        self.assertEqual((result["ok"], play.code == 0), (errors == [], errors == []), play.output)
        self.assertGreater(result["checked"], 60)
        return errors

    def plant(self, names: tuple[str, ...], hosts: tuple[str, ...]) -> list[Planted]:
        planted = [(FAULTS[name], host) for name, host in zip(names, hosts, strict=True)]
        for fault, host in planted:
            self.shell(host, fault.plant(host, self.rack))
        return planted

    def check_found(self, planted: list[Planted]) -> None:
        """They are found, and nothing else; what the fixes say is done; nothing is left."""
        errors = self.validate()
        found = sorted((error["id"], error["host"]) for error in errors)
        for name, host in set(found) - {(fault.id, host) for fault, host in planted}:
            note("false", f"{name} on {host}")
        self.assertEqual(found, sorted((fault.id, host) for fault, host in planted), errors)
        for fault, host in planted:
            fix = next(error["fix"] for error in errors if (error["id"], error["host"]) == (fault.id, host))
            restarts = re.findall(r"systemctl restart \S+", fix) if fault.mend else []
            self.mend(host, "; ".join([fault.mend or fix, *restarts]))
        for fault, host in planted:
            if fault.after:
                self.shell(host, fault.after)
        self.settle({host for _, host in planted})

    def settle(self, hosts: set[str]) -> None:
        """What the faults have left behind, such as a drained node that slurmctld could not be asked about, is named next, and mended."""
        for _ in range(3):
            errors = self.validate()
            for error in errors:
                self.assertIn(error["host"], hosts, errors)
                self.assertIn(error["id"], ("node-down", "unit-down"), errors)
                self.mend(error["host"], error["fix"])
            if not errors:
                return self.rack.wait_for_idle(NODES)
        self.fail(f"still not well: {errors}")

    def mend(self, host: str, fix: str) -> None:
        elsewhere = re.match(r"on (\w+): ", fix)
        if fix.startswith("ansible "):
            done = self.rack.playbooks.run(shlex.split(fix))
            self.assertEqual(done.code, 0, done.output)
        else:
            text = fix[elsewhere.end() :] if elsewhere else fix
            self.shell(elsewhere[1] if elsewhere else host, f"export DEBIAN_FRONTEND=noninteractive; {text}")

    def test_00_a_whole_site_is_well(self) -> None:
        for _ in range(20 if ALL else 3):
            errors = self.validate()
            note("false" if errors else "clean", str(errors))
            self.assertEqual(errors, [])

    def test_each_fault_is_found_on_its_host_alone_and_its_fix_mends_it(self) -> None:
        for name in FAULTS if ALL else random.sample(sorted(FAULTS), 3):
            host = random.choice(FAULTS[name].hosts)
            with self.subTest(fault=name, host=host):
                print(f"{name} on {host}", file=sys.stderr)
                self.check_found(self.plant((name,), (host,)))
                note("faults", f"{name} on {host}")

    def test_two_faults_are_both_found(self) -> None:
        pairs = list(itertools.combinations(sorted(FAULTS), 2))
        for pair in random.sample(pairs, 12 if ALL else 1):
            hosts = tuple(random.choice(FAULTS[name].hosts) for name in pair)
            with self.subTest(pair=pair, hosts=hosts):
                print(f"{pair} on {hosts}", file=sys.stderr)
                self.check_found(self.plant(pair, hosts))
                note("pairs", ", ".join(f"{name} on {host}" for name, host in zip(pair, hosts, strict=True)))

    def test_a_plugin_that_is_switched_off_is_found(self) -> None:
        host = random.choice(self.rack.hosts)
        self.shell(host, "muster node disable-plugin")
        self.check_found([(Fault("plugin-off", lambda _host, _rack: ""), host)])

    def test_what_is_only_unusual_is_not_named(self) -> None:
        scripts = unusual(self.rack).values()
        for begin, _ in scripts:
            self.shell("n1", begin)
        try:
            self.assertEqual(self.validate(), [])
        finally:
            for _, end in scripts:
                self.shell("n1", end)
        self.rack.wait_for_idle(NODES)


if __name__ == "__main__":
    seed = int(os.environ.get("MUSTER_TEST_SEED", "1"))
    print(f"MUSTER_TEST_SEED={seed}", file=sys.stderr)
    random.seed(seed)
    note("seed", str(seed))
    unittest.main(verbosity=2)
