#!/usr/bin/python3
"""The playbooks on blank machines, when the cluster grows, is upgraded, or is not as it should be. The packages are those of
build/packages, or of the directory that MUSTER_PACKAGES names."""

import base64
import hashlib
import json
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]

import blank_site  # noqa: E402
from blank_site import GROUPS, NODES  # noqa: E402
from gang_job import GangJob  # noqa: E402
from pages import block  # noqa: E402
from prometheus import Prometheus, questions  # noqa: E402
from rack import ClusterError, Options, Play, Rack, rack_of_test, wait_until  # noqa: E402
from story import Story  # noqa: E402
from vc.names import REPOSITORY  # noqa: E402

PACKAGES = Path(os.environ.get("MUSTER_PACKAGES", REPOSITORY / "build" / "packages"))
STORE = blank_site.STORE | blank_site.PATIENT
_MUNGE_KEY = secrets.token_bytes(128)
# What a driver with two GPUs shows.
_GPUS = """
mount -t tmpfs tmpfs /proc/driver
for minor in 0 1; do
    mkdir -p /proc/driver/nvidia/gpus/0000:4$minor:00.0
    printf 'Model: \\t NVIDIA H100 80GB HBM3\\nDevice Minor: \\t %s\\n' $minor >/proc/driver/nvidia/gpus/0000:4$minor:00.0/information
    mknod /dev/nvidia$minor c 1 3
done
"""
# What a node that comes changes on other hosts, beside their /etc/hosts.
_OF_A_NEW_NODE = {
    ("ctl", "slurm_controller : Write slurm.conf"),
    ("ctl", "slurm_controller : Write topology.conf"),
    ("ctl", "slurm_controller : Restart slurmctld"),
    ("login1", "login : Write slurm.conf"),
    ("db", "monitoring : Say what Prometheus asks"),
    ("db", "monitoring : Let Prometheus read its files again"),
}


def switches(right: str) -> dict[str, str]:
    return {"leaf1": "Nodes=n[1-2]", "leaf2": f"Nodes={right}", "spine": "Switches=leaf[1-2]"}


class SiteTest(unittest.TestCase):
    """One rack, which the first play makes a cluster. Each test finds it whole and leaves it whole."""

    rack: Rack
    edits: dict[str, Any] = {}  # what a test has changed of the operator's file for those behind it

    @classmethod
    def setUpClass(cls) -> None:
        cls.rack = rack_of_test("b", options=blank_site.options(Options().suite, PACKAGES))
        cls.addClassCleanup(cls.rack.stop)
        cls.rack.start()
        cls.rack.run("n1", ["sh", "-ec", _GPUS], check=True)
        for host in cls.rack.hosts:  # a site without the internet
            cls.rack.run(host, ["sh", "-ec", "echo 'deb http://deb.debian.invalid/debian bookworm main' >/etc/apt/sources.list"], check=True)
        cls.configure()
        cls.rack.playbooks.seal({"munge_key": base64.b64encode(_MUNGE_KEY).decode()})
        check = cls.rack.playbooks.play("site", "--check")
        if (check.code, check.output.count("has no chrony yet: --check tells what")) != (2, len(cls.rack.hosts)):
            raise AssertionError(check.output)
        blank_site.play(cls.rack, "site")

    @classmethod
    def configure(cls, nodes: list[str] = NODES, groups: dict[str, list[str]] = GROUPS, **changes: Any) -> None:
        cls.rack.playbooks.prepare(groups | {"compute": nodes}, blank_site.variables(cls.rack) | {"muster_config": STORE} | cls.edits | changes)

    def play(self, name: str, *arguments: str) -> Play:
        return blank_site.play(self.rack, name, *arguments)

    def pids(self) -> dict[str, str]:
        """Of all daemons, by host and unit."""
        units = {
            "ctl": ["munge", "slurmctld"],
            "login1": ["munge"],
            "db": ["munge", "mariadb", "slurmdbd", "prometheus"],
            "ceph1": ["ceph-mon@ceph1", "ceph-mgr@ceph1", "ceph-osd@0"],
        }
        show = ["systemctl", "show", "--value", "--property=MainPID"]
        return {
            f"{host} {unit}": self.rack.run(host, [*show, unit], check=True).stdout.strip()
            for host in self.rack.hosts
            for unit in units.get(host, ["munge", "slurmd", "musterd"])
        }

    def ceph(self, *words: str) -> Any:
        done = self.rack.run("ceph1", ["timeout", "60", "ceph", *words, "--format=json"], check=True)
        return json.loads(done.stdout)

    def wait_for_ceph(self) -> None:
        health: dict[str, Any] = {}

        def well() -> bool:
            health.update(self.ceph("health", "detail"))
            return bool(health["status"] == "HEALTH_OK")

        try:
            wait_until(well, 180, "Ceph's good health", interval=1)
        except ClusterError as error:
            raise ClusterError(f"{error}: {health}") from None


class Site(SiteTest):
    def test_a_check_predicts_what_a_run_changes(self) -> None:
        partitions = {"main": "Nodes=ALL Default=YES State=UP", "one": "Nodes=n1 MaxTime=60"}
        config = STORE | {"log_level": "debug"}
        settings = blank_site.variables(self.rack)["slurm_controller_settings"] | {"BatchStartTimeout": 20}
        SiteTest.edits = {
            "slurm_controller_partitions": partitions,
            "slurm_controller_settings": settings,
            "slurm_controller_switches": switches("n3"),
            "muster_config": config,
            "monitoring_retention": "10d",
        }
        self.configure()
        predicted = self.play("site", "--check", "--diff").changed
        self.assertEqual([host for host, changed in predicted.items() if not changed], ["ceph1"], "what the edits are not about")
        self.assertEqual(self.play("site").changed, predicted)
        said = self.rack.run("n3", ["scontrol", "show", "topology", "n3"], check=True).stdout
        self.assertEqual(sorted(line.split()[0] for line in said.splitlines()), ["SwitchName=leaf2", "SwitchName=spine"], said)
        self.assertEqual(self.rack.run("n3", ["cat", "/run/slurm/conf/topology.conf"], check=True).stdout.count("SwitchName="), 3)

    def test_the_firewall_lets_in_the_site_and_ssh(self) -> None:
        """And what its rules say, from an address that is none of the site's."""
        stranger = self.rack.network.subnet.replace("10.", "198.18.", 1)  # of a range that nobody has; the host's, and no bridge's
        subprocess.run(["ip", "address", "add", f"{stranger}/32", "dev", self.rack.names.bridge], check=True)
        for host, port, open_to_all in (("ctl", 22, True), ("ctl", 6817, False), ("n1", 303, False), ("db", 9090, True)):
            with self.subTest(host=host, port=port):
                self.rack.run(host, ["ip", "route", "replace", stranger, "dev", "eth0"], check=True)
                self.rack.run("n2", ["bash", "-c", f"</dev/tcp/{host}/{port}"], check=True)
                address = (self.rack.network.address(host), port)
                if open_to_all:
                    socket.create_connection(address, 60, (stranger, 0)).close()
                else:
                    self.assertRaises(TimeoutError, socket.create_connection, address, 2, (stranger, 0))

    def test_a_user_of_the_operators_file_has_gangs(self) -> None:
        self.rack.wait_for_idle(NODES)
        whoami = "srun -N3 --gang sh -c 'id -u; stat -c %U .'"
        done = self.rack.run("login1", ["su", "-", "analyst", "-c", whoami])
        self.assertEqual(sorted(done.stdout.split()), ["20002"] * 3 + ["analyst"] * 3, done.stderr)

    def test_jobs_get_gpus(self) -> None:
        self.rack.wait_for_idle(NODES)
        ask = ["sinfo", "--noheader", "--Node", "--partition=main", "--nodes=n1,n2", "--Format=nodehost:10,gres:40"]
        gres = self.rack.run("login1", ask, check=True).stdout
        self.assertEqual([line.split() for line in gres.splitlines()], [["n1", "gpu:nvidia_h100_80gb_hbm3:2"], ["n2", "(null)"]])
        show = ["sh", "-c", "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"]
        for count, devices in ((1, "0"), (2, "0,1")):
            said = self.rack.run("login1", ["srun", "--gang", f"--gres=gpu:{count}", *show], user="trainer", check=True).stdout
            self.assertEqual(said, f"n1 {devices}\n")
        self.assertNotEqual(self.rack.run("login1", ["srun", "--gres=gpu:3", "true"], user="trainer").returncode, 0)

    def test_what_the_pages_say_is_so(self) -> None:
        """What is tried of docs/ where there is a whole cluster."""
        self.rack.run("ceph1", ["sh", "-ec", block("install", "ceph osd pool create")], check=True)
        self.rack.wait_for_idle(NODES)
        drain, resume = block("upgrade", "muster node drain").splitlines()
        self.rack.run("n3", ["sh", "-ec", drain], check=True)
        states = ["sinfo", "--noheader", "--Node", "--format=%N %T"]  # with --nodes they may be old
        wait_until(lambda: "n3 drained" in self.rack.run("ctl", states, check=True).stdout.splitlines(), 180, "n3 to be drained")
        self.rack.run("n3", ["sh", "-ec", resume], check=True)
        self.rack.wait_for_idle(NODES)
        script = block("operate", "#!/bin/bash", old="--steps 2000 --checkpoint-every 100", new="--steps 20 --checkpoint-every 10")
        done = self.rack.run("login1", ["sbatch", "--wait", "--output=page.out"], user="trainer", stdin=script, timeout=400)
        self.assertEqual(done.returncode, 0, (self.rack.shared("home") / "trainer" / "page.out").read_text())

    def test_accounts_are_what_the_operators_file_says(self) -> None:
        self.addCleanup(self.tenancy, {"accounts": blank_site.ACCOUNTS, "remove": True})
        limits = {"Fairshare": 30, "GrpTRES": "cpu=64,mem=512G,node=4", "GrpWall": "7-00", "QOS": ["normal", "high"], "DefaultQOS": "normal"}
        high = {"Description": "What cannot wait", "Flags": ["NoDecay"], "GraceTime": 90, "MaxTRESPerUser": "cpu=9,mem=2T", "Priority": 100}
        users = {"trainer": {}, "analyst": {}, "other": {"MaxJobs": 2, "MaxWall": "26:00:00"}}
        plasma = {"parent": "physics", "limits": {"Fairshare": "parent"}, "users": {"trainer": {"MaxJobs": 5}}}
        much = {"qos": {"high": high}, "accounts": {"physics": {"description": "us", "limits": limits, "users": users}, "plasma": plasma}}
        little = {"accounts": {"physics": {"limits": {"GrpTRES": "cpu=32"}, "users": {"trainer": {}, "analyst": {}}}}}
        left = ["Fairshare=30 of account physics", "GrpWall=7-00:00:00 of account physics", "QOS=high,normal of account physics"]
        left += ["DefaultQOS=normal of account physics", "user other of account physics", "user trainer of account plasma"]
        left += ["account plasma", "QOS high"]
        for given, stays in ((much, []), (little, left), (little | {"remove": True}, [])):
            predicted = self.tenancy(given, "--check")
            self.assertTrue(predicted["changed"])
            self.assertEqual(self.tenancy(given), predicted)
            again = self.tenancy(given)
            self.assertEqual((again["changed"], again["left"]), (False, stays))
        associations = self.rack.run("ctl", ["sacctmgr", "-nP", "show", "associations", "wopl", "format=account,user,grptres"], check=True)
        expected = ["physics|analyst|", "physics|trainer|", "physics||cpu=32", "root|root|", "root||"]
        self.assertEqual(sorted(associations.stdout.splitlines()), expected)

    def test_what_cannot_be_an_account_is_refused(self) -> None:
        wrong = {"Physics": {}, "a": {"limits": {"MaxJob": 1}}, "b": {"limits": {"MaxWall": 43200}}, "c": {"parent": "d"}, "e": {"user": {}}}
        said = self.tenancy({"accounts": wrong})["msg"]
        for mistake in ("Physics is no name", "MaxJob of account a is no limit", "MaxWall of account b is 43200", "parent of account c", "account e"):
            self.assertIn(mistake, said)
        self.assertIn("each other's parents", self.tenancy({"accounts": {"a": {"parent": "b"}, "b": {"parent": "a"}}})["msg"])

    def tenancy(self, given: dict[str, Any], *options: str) -> dict[str, Any]:
        return self.rack.playbooks.module("ctl", "slurm_tenancy", {"cluster": "cluster"} | given, *options)

    def test_prometheus_has_an_answer_to_every_question(self) -> None:
        """Of every dashboard the expressions, and what every alert's expression is made of, while a gang has had a fault and runs."""
        self.rack.wait_for_idle(NODES)
        job = GangJob(self.rack, NODES, endless=True)
        job.submit()
        self.addCleanup(job.cancel)
        job.wait_for_checkpoint()
        self.rack.run("n2", ["pkill", "--signal=KILL", "--oldest", "--exact", "muster-train"], check=True)
        job.wait_for_restart()
        # Where no musterd runs, a node of the user's jobs is asked.
        for host in ("login1", "ctl"):
            said = self.rack.run(host, ["muster", "status", "--json"], user="trainer", check=True).stdout
            self.assertIn((f"{job.id}.0", "running"), [(gang["gang"], gang["state"]) for gang in json.loads(said)["gangs"]])
            events = self.rack.run(host, ["muster", "events", job.id], user="trainer", check=True).stdout
            self.assertIn("fault", events)
        prometheus = Prometheus(self.rack.network.address("db"))
        asked = questions()
        self.assertGreater(len(asked), 40)
        try:
            wait_until(lambda: not prometheus.unanswered(asked), 120, "an answer to every question")
        except ClusterError:
            self.fail(f"no answer to {prometheus.unanswered(asked)}")
        of_musterd = {("muster", f"{node}:{blank_site.METRICS_PORT}"): "up" for node in NODES}
        self.assertEqual(prometheus.targets(), {("prometheus", "db"): "up"} | of_musterd | {("node", host): "up" for host in self.rack.hosts})
        self.assertEqual(set(prometheus.alerts().values()), {"ok"})
        self.rack.run("db", ["promtool", "check", "config", "/etc/prometheus/prometheus.yml"], check=True)
        fired = self.rack.run("db", ["promtool", "test", "rules", "/dev/stdin"], stdin=(HERE / "fabric_rules.yml").read_text())
        self.assertEqual(fired.returncode, 0, fired.stdout + fired.stderr)
        for host in NODES:
            said = self.rack.run(host, ["cat", "/var/lib/prometheus/node-exporter/muster.prom"], check=True).stdout
            checked = self.rack.run("db", ["promtool", "check", "metrics"], stdin=said)
            self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))
        job.cancel()
        self.check_record(job)

    def test_a_login_host_shows_the_gangs_of_all_nodes_and_asks_the_servers_of_its_file(self) -> None:
        self.rack.wait_for_idle(NODES)
        gangs = []
        for node in ("n1", "n2"):
            step = ["srun", f"--nodelist={node}", "--gang", "/usr/bin/sleep", "4716"]
            gangs.append(self.rack.popen("login1", step, user="trainer"))
            self.addCleanup(gangs[-1].wait)
            self.addCleanup(gangs[-1].kill)

        def coordinators(*options: str, **env: str) -> list[str]:
            said = self.rack.run("login1", ["/usr/bin/muster", *options, "--json", "status"], user="trainer", env=env, check=True).stdout
            return sorted(gang["coordinator"] for gang in json.loads(said)["gangs"] if gang["state"] == "running")

        wait_until(lambda: coordinators() == ["n1", "n2"], 180, "a gang on each of both nodes", interval=0.5)
        no_slurm = {"PATH": "/nonexistent"}  # its programs name no node then
        refused = self.rack.run("login1", ["/usr/bin/muster", "status"], user="trainer", env=no_slurm)
        self.assertIn("say some as `servers` in muster.yaml", refused.stderr)
        self.rack.run("login1", ["sh", "-c", "(cat /etc/muster/muster.yaml; echo 'servers: n2') >/tmp/servers.yaml"], check=True)
        self.assertEqual(coordinators("--config=/tmp/servers.yaml", **no_slurm), ["n1", "n2"])
        for gang in gangs:
            gang.send_signal(signal.SIGTERM)
            self.assertNotEqual(gang.wait(180), 0)

    def check_record(self, job: GangJob) -> None:
        """slurmdbd has the job, which was cancelled, with what Muster has said of its fault."""
        ask = ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job.id}", "--format=state,account,admincomment"]
        said: list[str] = []

        def there() -> bool:
            said[:] = self.rack.run("login1", ask, user="trainer", check=True).stdout.strip().split("|")
            return said[0].startswith("CANCELLED")

        wait_until(there, 60, f"the record of job {job.id}")
        self.assertEqual(said[1], "physics")
        self.assertIn("muster: ", said[2])
        clusters = self.rack.run("ctl", ["sacctmgr", "-nP", "show", "cluster", "format=cluster,controlhost"], check=True)
        self.assertEqual(clusters.stdout.strip(), f"cluster|{self.rack.network.address('ctl')}")

    def members(self) -> dict[str, list[str]]:
        """The host's own pids of the gang's programs, by node."""
        return {name: self.rack.run(name, ["pgrep", "-fx", "/usr/bin/sleep 4715"]).stdout.split() for name in NODES}

    def test_a_node_is_added_under_a_gang_that_runs_on(self) -> None:
        self.rack.wait_for_idle(NODES)
        gang = self.rack.popen("login1", ["srun", "-N3", "--gang", "/usr/bin/sleep", "4715"], user="trainer")
        self.addCleanup(gang.wait)
        self.addCleanup(gang.kill)
        wait_until(lambda: all(self.members().values()), 180, "a member on each node")
        before, members = self.pids(), self.members()
        self.rack.add("n4")
        self.configure([*NODES, "n4"], slurm_controller_switches=switches("n[3-4]"))
        play = self.play("add_node", "-e", "nodes=n4")
        after = self.pids()
        self.assertEqual({name for name, pid in before.items() if after[name] != pid}, {"ctl slurmctld"})
        others = {(host, task) for host, task in play.changes if host != "n4"}
        hosts_files = {(host, "base : Name all hosts") for host in self.rack.hosts if host != "n4"}
        self.assertEqual(others, _OF_A_NEW_NODE | hosts_files, play.output)
        self.rack.wait_for_idle(["n4"])
        self.assertEqual(self.members(), members)
        gang.send_signal(signal.SIGTERM)
        self.assertNotEqual(gang.wait(180), 0)
        self.rack.wait_for_idle([*NODES, "n4"])
        hostnames = self.rack.run("login1", ["srun", "-N4", "--gang", "hostname"], user="trainer")
        self.assertEqual(sorted(hostnames.stdout.split()), [*NODES, "n4"], hostnames.stderr)
        self.play("validate")

    def nodes_with_the_plugin(self) -> list[str]:
        """By what slurmctld has sent them."""
        line = ["grep", "--quiet", "spank_muster", "/run/slurm/conf/plugstack.conf"]
        return [node for node in NODES if self.rack.run(node, line).returncode == 0]

    def test_the_plugin_is_switched_off_and_on_for_all_nodes_where_slurmctld_runs(self) -> None:
        self.assertEqual(self.nodes_with_the_plugin(), NODES)
        self.rack.run("ctl", ["sh", "-ec", "muster node disable-plugin; scontrol reconfigure"], check=True)
        wait_until(lambda: not self.nodes_with_the_plugin(), 60, "nodes without the plugin")
        _, result = self.rack.playbooks.validate()
        self.assertEqual([(found["id"], found["host"]) for found in result["findings"]], [("plugin-off", "ctl")])
        self.rack.run("ctl", ["sh", "-ec", result["findings"][0]["fix"]], check=True)
        wait_until(lambda: self.nodes_with_the_plugin() == NODES, 60, "nodes with the plugin")
        self.play("validate")

    def test_y_a_gang_loses_a_node_and_finishes_and_a_blank_machine_takes_the_nodes_place(self) -> None:
        """What provisioning/try.sh tells of a cluster that it has made."""
        self.rack.wait_for_idle(NODES)
        Story(self.rack, blank_site.PATIENT).lose_and_replace_a_node()
        self.play("validate")

    def test_z_munges_key_is_that_of_the_vault_and_nobody_has_logged_it(self) -> None:
        hosts = [host for host in self.rack.hosts if host != "ceph1"]
        keys = {host: self.rack.run(host, ["sha256sum", "/etc/munge/munge.key"], check=True).stdout.split()[0] for host in hosts}
        self.assertEqual(keys, dict.fromkeys(hosts, hashlib.sha256(_MUNGE_KEY).hexdigest()))
        journal = self.rack.run("n1", ["journalctl", "--boot", "--output=cat"], check=True).stdout
        said = self.rack.playbooks.log.read_text() + journal
        encoded = base64.b64encode(_MUNGE_KEY).decode()
        self.assertEqual([part for i in range(0, len(encoded), 16) if (part := encoded[i : i + 16]) in said], [])

    def test_zz_uninstall_takes_muster_from_all_hosts_and_the_plugin_from_what_slurmctld_sends(self) -> None:
        """The last one: it leaves a cluster without Muster."""
        self.play("uninstall")
        self.assertEqual(self.nodes_with_the_plugin(), [])
        self.rack.wait_for_idle(NODES)
        hostnames = self.rack.run("login1", ["srun", "-N3", "hostname"], user="trainer")
        self.assertEqual((sorted(hostnames.stdout.split()), hostnames.stderr), (NODES, ""))
        for host in self.rack.hosts:
            left = self.rack.run(host, ["sh", "-c", "grep -rl spank_muster /etc/slurm; dpkg-query -W -f '${source:Package} ${Package}\n' | grep '^muster '"])
            self.assertEqual(left.stdout, "", host)

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

if __name__ == "__main__":
    unittest.main(verbosity=2)
