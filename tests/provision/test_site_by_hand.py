#!/usr/bin/python3
"""What takes too long for every run: a database's machine is lost, Ceph's daemons are, and Ceph grows under plays that are killed. They
share a rack. The packages are those of build/packages, or of the directory that MUSTER_PACKAGES names."""

import stat
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]

from all_faults import note  # noqa: E402
from blank_site import GROUPS, NODES  # noqa: E402
from rack import wait_until  # noqa: E402
from test_site import SiteTest  # noqa: E402


class ByHand(SiteTest):
    def test_zz_a_blank_machine_gets_the_records_back(self) -> None:
        """The last one: what an archive has is put back onto a database's machine with a new disk."""
        self.rack.wait_for_idle(NODES)
        old = int(self.rack.run("login1", ["sbatch", "--parsable", "--wrap=true"], user="trainer", check=True).stdout)
        wait_until(lambda: old in self.records(), 60, f"the record of job {old}")
        self.rack.wait_for_idle(NODES)
        before = self.records()
        archive = self.rack.directory / "site.backup"
        self.play("backup", "-e", f"archive={archive}")
        self.assertEqual(stat.S_IMODE(archive.stat().st_mode), 0o600)
        damaged = archive.with_name("damaged.backup")
        damaged.write_bytes(archive.read_bytes()[:-1000])
        self.assertNotEqual(self.rack.playbooks.play("restore", "-e", f"archive={damaged}").code, 0)
        self.assertEqual(self.records(), before)
        self.rack.kill("db")
        self.rack.replace("db")
        self.play("restore", "-e", f"archive={archive}")
        self.assertEqual(self.records(), before)
        self.rack.wait_for_idle(NODES)
        number = int(self.rack.run("login1", ["sbatch", "--parsable", "--wrap=true"], user="trainer", check=True).stdout)
        self.assertGreater(number, max(before))
        wait_until(lambda: number in self.records(), 60, f"the record of job {number}")
        for host in ("ctl", "db"):
            left = self.rack.run(host, ["find", "/tmp", "-name", "*.restore", "-o", "-name", "*.backup"], check=True)
            self.assertEqual(left.stdout, "", host)

    def records(self) -> dict[int, str]:
        """What slurmdbd has of ended jobs."""
        ask = ["sacct", "--allusers", "--allocations", "--noheader", "--parsable2", "--format=jobid,state,start,end"]
        said = self.rack.run("login1", [*ask, "--starttime=now-1days"], user="trainer", check=True).stdout.splitlines()
        found = {}
        for line in said:
            job, state, *times = line.split("|")
            # slurmctld, when it has started again, does not know who cancelled a job that it still has in memory.
            if (word := state.split()[0]) not in ("PENDING", "RUNNING"):
                found[int(job)] = " ".join([word, *times])
        return found

    def test_z_a_daemon_of_ceph_that_is_down_is_named_on_its_host_and_its_fix_mends_it(self) -> None:
        for kind, unit in (("osd-down", "ceph-osd@0"), ("ceph-mon-down", "ceph-mon@ceph1")):
            self.rack.run("ceph1", ["systemctl", "kill", "--signal=KILL", unit], check=True)
            self.rack.run("ceph1", ["systemctl", "stop", unit], check=True)
            play, result = self.rack.playbooks.validate()
            found = [one for one in result["findings"] if one["severity"] == "error"]
            self.assertEqual([(one["id"], one["host"]) for one in found], [(kind, "ceph1")], play.output)
            self.rack.run("ceph1", ["sh", "-c", found[0]["fix"]], check=True)
            note("faults", f"{kind} on ceph1")
            wait_until(lambda: self.rack.playbooks.play("validate").code == 0, 180, "its good health", interval=1)

    def test_z_a_node_with_an_osd_comes_back_with_new_disks(self) -> None:
        groups = GROUPS | {"osd": ["ceph1", "n3"]}
        self.configure(groups=groups)
        self.addCleanup(self.configure)
        self.play("site")

        def osds() -> list[tuple[str, str]]:
            nodes = {node["id"]: node for node in self.ceph("osd", "tree")["nodes"]}
            [host] = [node for node in nodes.values() if node["name"] == "n3"]
            return [(nodes[child]["name"], nodes[child]["status"]) for child in host["children"]]

        self.wait_for_ceph()
        [(old, _)] = osds()
        before = {osd["osd"]: osd["uuid"] for osd in self.ceph("osd", "dump")["osds"]}
        self.rack.kill("n3")
        self.rack.replace("n3")
        self.play("replace_node", "-e", "nodes=n3")
        after = {osd["osd"]: osd["uuid"] for osd in self.ceph("osd", "dump")["osds"]}
        self.assertEqual([status for _, status in osds()], ["up"], f"{old} is forgotten, and another one is there")
        self.assertNotEqual(after, before)
        self.wait_for_ceph()
        self.rack.wait_for_idle(NODES)
        self.assertEqual(set(self.play("site").changed.values()), {0})

    def test_zz_ceph_grows_though_plays_are_killed(self) -> None:
        before = self.ceph("osd", "dump")
        hosts = ["ceph1", "ctl", "login1"]
        self.configure(groups=GROUPS | {"mon": hosts, "osd": hosts[:2]})
        for task in ("packages : Install chrony", "ceph : Start the mon", "ceph : Start the manager", "ceph : Make the OSDs"):
            killed = self.rack.playbooks.play("site", "--limit=" + ":".join(hosts), kill_at=f"TASK [muster.appliance.{task}")
            self.assertEqual(killed.code, -9, killed.output)
        self.play("site")
        self.wait_for_ceph()
        after = self.ceph("osd", "dump")
        self.assertEqual([osd["uuid"] for osd in after["osds"] if osd["osd"] == 0], [osd["uuid"] for osd in before["osds"]])
        self.assertEqual([osd["up"] for osd in after["osds"]], [1, 1])
        self.assertEqual({pool["size"] for pool in after["pools"]}, {2})
        self.assertEqual(sorted(self.ceph("quorum_status")["quorum_names"]), hosts)
        self.assertEqual(set(self.play("site").changed.values()), {0})


if __name__ == "__main__":
    unittest.main(verbosity=2)
