#!/usr/bin/python3
"""`muster doctor` on a node of a virtual cluster: each fault is named, and nothing else. What systemd knows is tried on racks
(tests/provision/test_validate.py)."""

import json
import signal
import sys
import time
import unittest
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import ClusterCase  # noqa: E402
from vc import slurm  # noqa: E402

NODE = "n1"
MOST_S = 120.0
FIELDS = {"id", "host", "is", "should", "fix", "severity"}
# A place of a node's own, in which files lie over those of the node.
APART = ["unshare", "--mount", "sh", "-ec"]


def setUpModule() -> None:
    # Without munged, for as long as a test takes it away, slurmd cannot answer slurmctld.
    harness.start("doctor", nodes=1, osds=3, slurm={"SlurmdTimeout": "600"})


class DoctorTest(ClusterCase):
    def doctor(self, *words: str, node: str = NODE, user: str | None = None, before: str = "") -> dict[str, Any]:
        """What it says; `before`: a script that runs first, whose mounts and variables it alone has."""
        argv = ["muster", "doctor", "--json", *words]
        began = time.monotonic()
        done = self.cluster.exec(node, [*APART, f'{before}\nexec "$@"', "sh", *argv] if before else argv, user=user, timeout=150)
        self.assertLess(time.monotonic() - began, MOST_S)
        self.assertEqual(done.stderr, "")
        document = json.loads(done.stdout)
        self.assertEqual(set(document), {"ok", "checked", "findings", "unchecked"})
        for found in document["findings"]:
            self.assertEqual(set(found), FIELDS)
            self.assertEqual(found["host"], node)
            self.assertTrue(all(found.values()), found)
        self.assertEqual(document["ok"], not self.errors(document))
        self.assertEqual(done.returncode, 0 if document["ok"] else 1)
        return dict(document)

    @staticmethod
    def errors(document: dict[str, Any]) -> list[dict[str, str]]:
        return [found for found in document["findings"] if found["severity"] == "error"]

    def found(self, name: str, *words: str, **kw: Any) -> dict[str, str]:
        """The one error there is."""
        document = self.doctor(*words, **kw)
        self.assertEqual([found["id"] for found in self.errors(document)], [name], document)
        return self.errors(document)[0]

    def config(self, **changes: str) -> str:
        """The path of another muster.yaml, as the node has it."""
        text = (self.cluster.directory / "etc" / "muster" / "muster.yaml").read_text()
        lines = [line for line in text.splitlines() if line.partition(":")[0] not in changes]
        path = self.cluster.directory / "etc" / "muster" / f"{self.id().rpartition('.')[2]}.yaml"
        path.write_text("".join(f"{line}\n" for line in [*lines, *(f"{key}: {value}" for key, value in changes.items())]))
        self.addCleanup(path.unlink, missing_ok=True)
        return f"/etc/muster/{path.name}"

    def slurm_conf(self, settings: str = "", **files: str) -> str:
        """A script that makes a /etc/slurm of its own: slurm.conf with these lines more, and files."""
        script = "cp -r /etc/slurm /tmp/doctor.$$; mount -t tmpfs tmpfs /etc/slurm; cp /tmp/doctor.$$/* /etc/slurm; rm -r /tmp/doctor.$$\n"
        script += f"cat >>/etc/slurm/slurm.conf <<'END'\n{settings}END\n"
        for name, text in files.items():
            script += f"cat >/etc/slurm/{name}.conf <<'END'\n{text}END\n"
        return script

    def test_a_healthy_node_is_well_for_root_and_for_a_user(self) -> None:
        for user, unseen in ((None, ""), ("trainer", "root alone")):
            document = self.doctor(user=user)
            self.assertEqual(self.errors(document), [])
            self.assertGreater(document["checked"], 9)
            self.assertIn(unseen, "\n".join(document["unchecked"]))
        text = self.cluster.exec(NODE, ["muster", "doctor"])
        self.assertEqual(text.returncode, 0, text.stdout)
        self.assertRegex(text.stdout, r"(?m)^\d+ checks(: all is well|, \d+ findings?)$")

    def test_a_controller_that_is_no_node_is_well(self) -> None:
        self.assertEqual(self.errors(self.doctor(node="ctl")), [])

    def test_wrong_usage_is_refused(self) -> None:
        for words in (["doctor", "--needs", "sshd"], ["doctor", "n1"]):
            self.assertEqual(self.cluster.exec(NODE, ["muster", *words]).returncode, 2)

    def test_a_line_for_people_says_what_is_what_should_be_and_the_fix(self) -> None:
        path = self.config(beat="200")
        done = self.cluster.exec(NODE, ["muster", "doctor", "--config", path])
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, rf"(?m)^config-bad: {path}:\d+: 'beat: 200' is not allowed.*; should be: .*; to mend it: .*--check-config")

    def test_a_configuration_that_is_not_there_is_named(self) -> None:
        self.assertIn("/nowhere.yaml", self.found("config-bad", "--config", "/nowhere.yaml")["is"])

    def test_a_munged_that_is_away_or_stands_still_is_named_alone(self) -> None:
        self.hurts(NODE)
        self.cluster.signal_daemon(NODE, "munged", signal.SIGSTOP)
        self.addCleanup(self.cluster.signal_daemon, NODE, "munged", signal.SIGCONT)
        self.found("munge-not-working")
        self.cluster.signal_daemon(NODE, "munged", signal.SIGCONT)
        self.cluster.stop_daemon(NODE, "munged")
        self.found("munge-not-working")
        self.cluster.start_daemon(NODE, "munged")

    def test_a_musterd_that_is_away_or_stands_still_is_named_alone(self) -> None:
        self.expect_error("loop")
        self.cluster.signal_daemon(NODE, "musterd", signal.SIGSTOP)
        self.addCleanup(self.cluster.signal_daemon, NODE, "musterd", signal.SIGCONT)
        self.found("musterd-not-answering")
        self.cluster.signal_daemon(NODE, "musterd", signal.SIGCONT)
        self.cluster.stop_daemon(NODE, "musterd", signal.SIGKILL)
        self.found("musterd-not-answering")
        self.cluster.start_daemon(NODE, "musterd")

    def test_a_slurmctld_that_is_away_or_stands_still_is_named_alone(self) -> None:
        self.hurts("ctl", NODE)
        self.cluster.signal_daemon("ctl", "slurmctld", signal.SIGSTOP)
        self.addCleanup(self.cluster.signal_daemon, "ctl", "slurmctld", signal.SIGCONT)
        self.found("slurmctld-unreachable")
        self.cluster.signal_daemon("ctl", "slurmctld", signal.SIGCONT)
        self.cluster.stop_daemon("ctl", "slurmctld")
        self.assertIn("on ctl: systemctl restart slurmctld", self.found("slurmctld-unreachable")["fix"])
        self.cluster.start_daemon("ctl", "slurmctld")
        self.wait_until_idle()

    def test_a_node_that_slurm_does_not_use_is_named_with_the_reason(self) -> None:
        self.hurts(NODE)
        for drain, reason in (
            ("scontrol update nodename=n1 state=drain reason='new memory'", "new memory"),
            ("muster node drain n1 --reason fans", "muster: fans"),
        ):
            self.cluster.exec("ctl", ["sh", "-ec", drain], check=True)
            found = self.found("node-down")
            self.assertIn(reason, found["is"])
            self.cluster.exec(NODE, ["sh", "-ec", found["fix"]], check=True)
            self.assertEqual(self.errors(self.doctor()), [])

    def test_a_store_that_is_not_there_is_named(self) -> None:
        for store, said in (("rados:nowhere", "nowhere"), ("dir:/nowhere", "/nowhere"), ("dir:/etc/hosts", "/etc/hosts")):
            self.assertIn(said, self.found("store-unreachable", "--config", self.config(store=store))["is"])

    def test_a_ceph_that_stands_still_keeps_nobody_waiting(self) -> None:
        daemons = ["mon.a", "osd.0", "osd.1", "osd.2"]
        for name in daemons:
            self.cluster.signal_daemon("ceph", name, signal.SIGSTOP)
            self.addCleanup(self.cluster.signal_daemon, "ceph", name, signal.SIGCONT)
        found = self.errors(self.doctor())
        self.assertEqual({one["id"] for one in found}, {"store-unreachable"})

    def test_a_plugin_that_does_not_load_or_is_off_is_named(self) -> None:
        self.found("plugin-not-loading", before=self.slurm_conf(plugstack="optional /nowhere/spank_muster.so\n"))
        # Of a site whose files slurmctld sends, it is to be mended there.
        more = f"PluginDir=/opt/muster-build/lib:{next(Path('/usr/lib').glob('*/slurm-wlm'))}\n"
        found = self.found("plugin-off", before=self.slurm_conf(more, plugstack="# nothing\n"))
        self.assertEqual(found["fix"], "muster node enable-plugin")
        more += "SlurmctldParameters=enable_configless\n"
        found = self.found("plugin-off", before=self.slurm_conf(more, plugstack="# nothing\n"))
        self.assertEqual(found["fix"], "on ctl: muster node enable-plugin && scontrol reconfigure")

    def test_a_plugin_that_an_included_file_names_is_on(self) -> None:
        script = self.slurm_conf(plugstack="# ours\ninclude /etc/slurm/more.conf\n", more=slurm.plugstack_line() + "\n")
        self.assertEqual(self.errors(self.doctor(before=script)), [])

    def test_a_device_of_gres_conf_that_is_not_there_is_named(self) -> None:
        self.assertEqual(self.errors(self.doctor(before=self.slurm_conf(gres="NodeName=n2 Name=gpu File=/dev/nowhere\n"))), [])
        found = self.found("gres", before=self.slurm_conf(gres="Name=gpu File=/dev/null\nNodeName=n[1-2] Name=gpu File=/dev/nvidia[0-1]\n"))
        self.assertIn("/dev/nvidia0, /dev/nvidia1", found["is"])
        self.assertEqual(found["fix"], "nvidia-modprobe -c 0; nvidia-modprobe -c 1")

    def test_a_full_disk_is_named_once(self) -> None:
        before = "mount -t tmpfs -o size=1m tmpfs /var/spool/slurmd; head -c 1040000 /dev/zero >/var/spool/slurmd/big\n"
        self.assertIn("/var/spool/slurmd has 0 MiB free", self.found("disk-full", before=before)["is"])
        almost = "mount -t tmpfs -o size=1m tmpfs /var/spool/slurmd; head -c 900000 /dev/zero >/var/spool/slurmd/big\n"
        self.assertEqual(self.errors(self.doctor(before=almost)), [])

    def test_a_name_that_stands_for_anothers_address_is_named_and_the_fix_mends_it(self) -> None:
        hosts = "cp /etc/hosts /tmp/hosts.$$; {}; mount --bind /tmp/hosts.$$ /etc/hosts; rm /tmp/hosts.$$\n"
        own = self.cluster.network.address(NODE)
        wrong = self.cluster.network.address("ctl")
        found = self.found("hosts-entry", before=hosts.format(f"sed -i 's/^{own} n1/{wrong} n1/' /tmp/hosts.$$"))
        self.assertIn(wrong, found["is"])
        self.assertRegex(found["fix"], f"^sed -i .*{wrong}.* && echo '{own} n1' >>/etc/hosts$")
        found = self.found("hosts-entry", before=hosts.format("sed -i '/ n1/d' /tmp/hosts.$$"))
        self.assertEqual(found["fix"], f"echo '{own} n1' >>/etc/hosts")
        self.assertEqual(self.errors(self.doctor(before=hosts.format("echo '10.0.0.1 elsewhere' >>/tmp/hosts.$$"))), [])


if __name__ == "__main__":
    unittest.main()
