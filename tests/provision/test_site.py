#!/usr/bin/python3
"""The playbooks on blank machines, when the cluster grows, is upgraded, or is not as it should be. The packages are those of
build/packages, or of the directory that MUSTER_PACKAGES names."""

import json
import os
import signal
import sys
import unittest
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]

import blank_site  # noqa: E402
from blank_site import GROUPS, NODES  # noqa: E402
from rack import Options, Play, Rack, rack_of_test, wait_until  # noqa: E402
from vc.names import REPOSITORY  # noqa: E402

PACKAGES = Path(os.environ.get("MUSTER_PACKAGES", REPOSITORY / "build" / "packages"))


class Site(unittest.TestCase):
    """One rack, which the first play makes a cluster. Each test finds it whole and leaves it whole."""

    rack: Rack

    @classmethod
    def setUpClass(cls) -> None:
        cls.rack = rack_of_test("b", options=blank_site.options(Options().suite, PACKAGES))
        cls.addClassCleanup(cls.rack.stop)
        cls.rack.start()
        cls.configure()
        blank_site.play(cls.rack, "site")

    @classmethod
    def configure(cls, nodes: list[str] = NODES, groups: dict[str, list[str]] = GROUPS, **changes: Any) -> None:
        cls.rack.playbooks.prepare(groups | {"compute": nodes}, blank_site.variables(cls.rack) | changes)

    def play(self, name: str, *arguments: str) -> Play:
        return blank_site.play(self.rack, name, *arguments)

    def pids(self) -> dict[str, str]:
        """Of all daemons, by host and unit."""
        units = {"ctl": ["munge", "slurmctld"], "login1": ["munge"], "ceph1": ["ceph-mon@ceph1", "ceph-mgr@ceph1", "ceph-osd@0"]}
        show = ["systemctl", "show", "--value", "--property=MainPID"]
        return {
            f"{host} {unit}": self.rack.run(host, [*show, unit], check=True).stdout.strip()
            for host in self.rack.hosts
            for unit in units.get(host, ["munge", "slurmd", "musterd"])
        }

    def test_a_second_run_changes_nothing(self) -> None:
        for arguments in (["--check", "--diff"], []):
            play = self.play("site", *arguments)
            self.assertEqual(set(play.changed.values()), {0}, play.output)

    def test_a_check_predicts_what_a_run_changes(self) -> None:
        edits: list[dict[str, Any]] = [
            {"slurm_controller_partitions": {"main": "Nodes=ALL Default=YES State=UP", "one": "Nodes=n1 MaxTime=60"}},
            {"muster_config": blank_site.STORE | {"log_level": "debug"}},
        ]
        self.addCleanup(self.play, "site")
        self.addCleanup(self.configure)
        for edit in edits:
            self.configure(**edit)
            predicted = self.play("site", "--check").changed
            self.assertGreater(sum(predicted.values()), 0)
            self.assertEqual(self.play("site").changed, predicted)

    def members(self) -> dict[str, list[str]]:
        """The host's own pids of the gang's programs, by node."""
        return {name: self.rack.run(name, ["pgrep", "-fx", "/usr/bin/sleep 4715"]).stdout.split() for name in NODES}

    def test_a_node_is_added_under_a_gang_that_runs_on(self) -> None:
        # A node is not lost because this machine is busy.
        patient = {"muster_config": blank_site.STORE | {"lease": "40s", "silence": "60s"}}
        self.configure(**patient)
        self.play("site")
        self.rack.wait_for_idle(NODES)
        gang = self.rack.popen("login1", ["srun", "-N3", "--gang", "/usr/bin/sleep", "4715"], user="trainer")
        self.addCleanup(gang.wait)
        self.addCleanup(gang.kill)
        wait_until(lambda: all(self.members().values()), 180, "a member on each node")
        before, members = self.pids(), self.members()
        self.rack.add("n4")
        self.configure([*NODES, "n4"], **patient)
        play = self.play("add_node", "-e", "nodes=n4")
        after = self.pids()
        self.assertEqual({name for name, pid in before.items() if after[name] != pid}, {"ctl slurmctld"})
        self.assertEqual({play.changed[name] for name in NODES}, {1}, play.output)  # a line of /etc/hosts
        self.rack.wait_for_idle(["n4"])
        self.assertEqual(self.members(), members)
        gang.send_signal(signal.SIGTERM)
        self.assertNotEqual(gang.wait(180), 0)
        self.rack.wait_for_idle([*NODES, "n4"])
        hostnames = self.rack.run("login1", ["srun", "-N4", "--gang", "hostname"], user="trainer")
        self.assertEqual(sorted(hostnames.stdout.split()), [*NODES, "n4"], hostnames.stderr)
        self.play("validate")
        self.assertEqual(set(self.play("site").changed.values()), {0})

    def ceph(self, *words: str) -> Any:
        done = self.rack.run("ceph1", ["timeout", "60", "ceph", *words, "--format=json"], check=True)
        return json.loads(done.stdout)

    def test_a_disk_with_data_is_refused(self) -> None:
        self.rack.run("ceph1", ["sh", "-c", "echo mine >/srv/disk"], check=True)
        self.addCleanup(self.configure)
        devices = blank_site.variables(self.rack)["ceph_osd_devices"]
        self.configure(ceph_osd_devices=[{"path": "/srv/new", "size": "4G"}, {"path": "/srv/disk", "size": "4G"}, *devices])
        play = self.rack.playbooks.play("site", "--limit=ceph1")
        self.assertEqual(play.code, 2, play.output)
        self.assertIn("/srv/disk is there, and no OSD", play.output)
        self.assertEqual(self.rack.run("ceph1", ["sh", "-c", "cat /srv/disk; ls /srv/new"]).stdout, "mine\n")
        self.assertEqual(self.ceph("osd", "stat")["num_osds"], 1)

    def test_z_a_daemon_of_ceph_that_is_down_is_named_on_its_host_and_its_fix_mends_it(self) -> None:
        file = self.rack.directory / "findings.json"
        for kind, unit in (("osd-down", "ceph-osd@0"), ("ceph-mon-down", "ceph-mon@ceph1")):
            self.rack.run("ceph1", ["systemctl", "kill", "--signal=KILL", unit], check=True)
            self.rack.run("ceph1", ["systemctl", "stop", unit], check=True)
            play = self.rack.playbooks.play("validate", "-e", f"json={file}")
            found = [one for one in json.loads(file.read_text())["findings"] if one["severity"] == "error"]
            self.assertEqual([(one["id"], one["host"]) for one in found], [(kind, "ceph1")], play.output)
            self.rack.run("ceph1", ["sh", "-c", found[0]["fix"]], check=True)
            wait_until(lambda: self.rack.playbooks.play("validate").code == 0, 180, "its good health", interval=1)

    def test_zz_ceph_grows_though_plays_are_killed(self) -> None:
        before = self.ceph("osd", "dump")
        hosts = ["ceph1", "ctl", "login1"]
        self.configure(groups=GROUPS | {"mon": hosts, "osd": hosts[:2]})
        for task in ("packages : Install ceph", "ceph : Start the mon", "ceph : Start the manager", "ceph : Make the OSDs"):
            killed = self.rack.playbooks.play("site", "--limit=" + ":".join(hosts), kill_at=f"TASK [muster.appliance.{task}")
            self.assertEqual(killed.code, -9, killed.output)
        self.play("site")
        wait_until(lambda: self.ceph("health")["status"] == "HEALTH_OK", 180, "Ceph's good health", interval=1)
        after = self.ceph("osd", "dump")
        self.assertEqual([osd["uuid"] for osd in after["osds"] if osd["osd"] == 0], [osd["uuid"] for osd in before["osds"]])
        self.assertEqual([osd["up"] for osd in after["osds"]], [1, 1])
        self.assertEqual({pool["size"] for pool in after["pools"]}, {2})
        self.assertEqual(sorted(self.ceph("quorum_status")["quorum_names"]), hosts)
        self.assertEqual(set(self.play("site").changed.values()), {0})


if __name__ == "__main__":
    unittest.main(verbosity=2)
