#!/usr/bin/python3
"""What takes too long for every run: a database's machine is lost, Ceph's daemons are, and Ceph grows under plays that are killed. They
share a rack. A machine that is all of a site is a rack by itself. The packages are those of build/packages, or of the directory that
MUSTER_PACKAGES names."""

import re
import stat
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]

import blank_site  # noqa: E402
from all_faults import note  # noqa: E402
from blank_site import GROUPS, NODES  # noqa: E402
from rack import Options, rack_of_test, wait_until  # noqa: E402
from test_site import PACKAGES, SiteTest  # noqa: E402

_TRAIN = "srun muster-train --text /usr/share/common-licenses/GPL-3 --steps {steps} --checkpoint-every 10 --log-every 1"


class ByHand(SiteTest):
    def test_zz_blank_machines_get_records_and_state_back(self) -> None:
        """What an archive has is put back onto the database's machine, then the controller's, with new disks; before Ceph grows onto that."""
        self.rack.wait_for_idle(NODES)
        submit = ["sbatch", "--parsable", "--wait", "--nodes=2", "--gang", f"--wrap={_TRAIN.format(steps=20)}"]
        old = int(self.rack.run("login1", submit, user="trainer", check=True, timeout=400).stdout)
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
        for host in ("db", "ctl"):
            self.rack.kill(host)
            self.rack.replace(host)
            self.play("restore", "-e", f"archive={archive}")
            self.assertEqual(self.records(), before)
            self.rack.wait_for_idle(NODES)
        verified = self.rack.run("n1", ["muster", "checkpoint", "verify", str(old)], user="trainer", check=True).stdout
        self.assertRegex(verified, r"(?m)^ *20 .* verified$")
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
            note("ceph", f"{kind} on ceph1")
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
            killed = self.rack.playbooks.play("site", "--limit=" + ":".join(hosts), at=f"TASK [muster.appliance.{task}")
            self.assertEqual(killed.code, -9, killed.output)
        self.play("site")
        self.wait_for_ceph()
        after = self.ceph("osd", "dump")
        old = [osd["uuid"] for osd in before["osds"]]  # with that of the test before
        self.assertEqual([osd["uuid"] for osd in after["osds"] if osd["uuid"] in old], old)
        self.assertEqual([osd["up"] for osd in after["osds"]], [1] * (len(old) + 1))
        self.assertEqual({pool["size"] for pool in after["pools"]}, {len(old) + 1})
        self.assertEqual(sorted(self.ceph("quorum_status")["quorum_names"]), hosts)
        self.assertEqual(set(self.play("site").changed.values()), {0})


class OneMachine(unittest.TestCase):
    def test_a_machine_that_is_all_of_a_site_has_gangs_that_heal(self) -> None:
        rack = rack_of_test("o", options=Options(nodes=0, slurm=False, debs=str(PACKAGES.resolve())))
        self.addCleanup(rack.stop)
        rack.start()
        groups = dict.fromkeys(GROUPS, rack.hosts)
        variables = blank_site.variables(rack) | {"monitoring_scrape_configs": []}
        rack.playbooks.prepare(groups, variables | {"base_apt_sources": [f"deb {rack.mirror.url}:1/debian bookworm main"]})
        refused = rack.playbooks.play("site")
        self.assertRegex(refused.output, r'"msg": "W: Failed to fetch .* Could not connect .*; base_apt_sources and muster_apt_source say')
        rack.playbooks.prepare(groups, variables)
        blank_site.play(rack, "site")
        rack.wait_for_idle(rack.hosts)
        blank_site.play(rack, "validate")
        output = rack.shared("home") / "trainer" / "one.out"
        train = _TRAIN.format(steps=400).replace("srun", "exec srun --ntasks=2 --gang")
        gang = rack.popen("ctl", ["sh", "-c", f"{train} >one.out 2>&1"], user="trainer")
        self.addCleanup(gang.wait)
        self.addCleanup(gang.kill)
        wait_until(lambda: output.exists() and re.search(r"^step 2\d loss", output.read_text(), re.MULTILINE), 180, "step 20")
        rack.run("ctl", ["pkill", "--signal=KILL", "--oldest", "--exact", "muster-train"], check=True)
        wait_until(lambda: re.search(r"^resumed from step [1-9]", output.read_text(), re.MULTILINE), 180, "a gang that resumes")
        self.assertEqual(gang.wait(400), 0, output.read_text()[-2000:])
        self.assertEqual(set(blank_site.play(rack, "site").changed.values()), {0})
        blank_site.play(rack, "validate")


if __name__ == "__main__":
    unittest.main(verbosity=2)
