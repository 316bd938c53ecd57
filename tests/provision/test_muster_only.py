#!/usr/bin/python3
"""The playbooks on a site that has Slurm, when things are not as they should be: wrong input, plays that are killed, hosts that
are dead or differ. The packages are those of build/packages, or of the directory that MUSTER_PACKAGES names."""

import os
import random
import re
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]

from all_faults import ALL, note  # noqa: E402
from debs import field, package, repack  # noqa: E402
from etc import Tree, compare  # noqa: E402
from gang_job import GangJob  # noqa: E402
from rack import Play, Rack, rack_of_test  # noqa: E402
from vc.names import REPOSITORY  # noqa: E402

PACKAGES = Path(os.environ.get("MUSTER_PACKAGES", REPOSITORY / "build" / "packages"))
NODES = ["n1", "n2", "n3"]
# A play is killed when it comes to one of these tasks; with MUSTER_FAULTS=all, one play after the other at each.
KILLED_AT = ("packages : Look", "packages : Install", "muster : Write muster.yaml", "muster : Start musterd", "muster : Switch the plugin on")
STORE = {"store": "dir:/srv/checkpoints", "memlock_limit": "8MiB"}  # what a container may lock


class MusterOnly(unittest.TestCase):
    """One rack. Each test begins and ends with Muster on all hosts, but for the first one, which puts it there."""

    rack: Rack
    before: dict[str, Tree]

    @classmethod
    def setUpClass(cls) -> None:
        cls.rack = rack_of_test("m", nodes=len(NODES), debs=str(PACKAGES))
        cls.addClassCleanup(cls.rack.stop)
        cls.rack.start()
        cls.configure(STORE)
        cls.before = cls.etc()

    @classmethod
    def configure(cls, config: dict[str, Any], **changes: Any) -> None:
        variables = {"muster_apt_source": cls.rack.mirror.source, "muster_config": config} | changes
        cls.rack.playbooks.prepare({"controller": ["ctl"], "login": [], "compute": NODES}, variables)

    @classmethod
    def etc(cls) -> dict[str, Tree]:
        return {name: Tree.of(cls.rack.root(name) / "etc") for name in cls.rack.hosts}

    def play(self, name: str, *arguments: str) -> Play:
        """One that must end well."""
        play = self.rack.playbooks.play(name, *arguments)
        self.assertEqual(play.code, 0, play.output)
        return play

    def validate(self) -> list[dict[str, str]]:
        """What it finds."""
        play, result = self.rack.playbooks.validate()
        errors = [found for found in result["findings"] if found["severity"] == "error"]
        self.assertEqual(result["ok"], errors == [])
        self.assertEqual(play.code == 0, result["ok"], play.output)
        self.assertGreater(result["checked"], 20)
        for found in result["findings"]:
            self.assertIn(found["text"], play.output)
        return errors

    def shell(self, host: str, script: str) -> str:
        return self.rack.run(host, ["sh", "-ec", script], check=True).stdout

    def test_00_without_a_store_or_a_first_run_nothing_is_touched(self) -> None:
        self.configure({"log_level": "info"})
        self.addCleanup(self.configure, STORE)
        play = self.rack.playbooks.play("muster_only")
        self.assertNotEqual(play.code, 0)
        self.assertIn("store", play.output)
        self.configure(STORE)
        check = self.rack.playbooks.play("muster_only", "--check")
        self.assertEqual(check.code, 2, check.output)
        self.assertEqual(check.output.count("has no muster-client yet: --check tells what"), len(self.rack.hosts), check.output)
        self.assertEqual(self.etc(), self.before)

    def slurm_pids(self) -> dict[str, str]:
        units = {name: "slurmctld" if name == "ctl" else "slurmd" for name in self.rack.hosts}
        return {name: self.shell(name, f"systemctl show --value --property=MainPID {unit}") for name, unit in units.items()}

    def test_01_what_stops_a_play_in_its_midst_is_named_and_the_next_play_makes_up_for_it(self) -> None:
        """Packages for another Slurm; then a disk that is full, and a host that dies; then it is killed itself."""
        pids = self.slurm_pids()
        self.play("muster_only")
        whole = self.etc()
        for name, tree in whole.items():
            found = compare(self.before[name], tree)
            # Packages bring files of their own, but none of Slurm's.
            touched = {path for path, what in found.items() if what != "added" or path.startswith("slurm/")}
            self.assertLessEqual(touched, {"ld.so.cache", "slurm/plugstack.conf"}, name)
        hostnames = self.rack.run("ctl", ["srun", "-N3", "--gang", "hostname"], user="trainer")
        self.assertEqual(sorted(hostnames.stdout.split()), NODES, hostnames.stderr)
        self.assertEqual(self.slurm_pids(), pids)
        self.play("uninstall")
        for name, tree in self.etc().items():
            self.assertEqual(compare(self.before[name], tree), {}, name)
        self.publish({"22.05": "24.11", "22.06": "24.12"})
        self.addCleanup(self.rack.mirror.publish, PACKAGES)
        refused = self.rack.playbooks.play("muster_only")
        self.assertEqual(refused.code, 2, refused.output)
        said = re.findall(r'(?m)^fatal: \[(\w+)\]: FAILED! => .*"msg": "slurm-spank-muster-24.11 : Depends: .* for another Slurm', refused.output)
        self.assertEqual(sorted(said), sorted(self.rack.hosts), refused.output)
        self.rack.mirror.publish(PACKAGES)
        self.shell("n1", "mkdir /usr/libexec/muster; mount -t tmpfs -o size=64k tmpfs /usr/libexec/muster")
        at = "TASK [muster.appliance.packages : Install muster"
        half = self.rack.playbooks.play("muster_only", at=at, then=lambda: self.rack.kill("n3"))
        self.assertEqual(half.code, 4, half.output)
        said = re.findall(r'(?m)^fatal: \[(\w+)\]: (?:UNREACHABLE|FAILED! => .*"msg": ".*No space left .*; make room)', half.output)
        self.assertEqual(sorted(said), ["n1", "n3"], half.output)
        self.shell("n1", "umount /usr/libexec/muster")
        self.rack.revive("n3")
        # Each goes on where the one before it was stopped. What the first one has started on the hosts still runs then.
        for task in KILLED_AT if ALL else [random.choice(KILLED_AT)]:
            print(f"killed at {task}", file=sys.stderr)
            killed = self.rack.playbooks.play("muster_only", at=f"TASK [muster.appliance.{task}")
            self.assertEqual(killed.code, -9, killed.output)
            note("kills", task)
        self.play("muster_only")
        for name, tree in self.etc().items():
            self.assertEqual(compare(whole[name], tree), {}, name)
        self.rack.wait_for_idle(NODES)
        self.assertEqual(self.validate(), [])

    def test_a_check_of_finished_hosts_predicts_the_next_run(self) -> None:
        self.assertEqual(set(self.play("muster_only", "--check", "--diff").changed.values()), {0})
        for config in ({"store": "dir:/var/lib/muster/shared", "log_level": "debug"}, STORE):
            self.configure(config)
            predicted = self.play("muster_only", "--check", "--diff").changed
            self.assertGreater(sum(predicted.values()), 0)
            self.assertEqual(self.play("muster_only").changed, predicted)

    def test_a_key_or_value_that_is_wrong_is_refused_and_what_runs_runs_on(self) -> None:
        pid = "systemctl show --value --property=MainPID musterd"
        pids = {name: self.shell(name, pid) for name in NODES}
        before = self.etc()
        self.addCleanup(self.play, "muster_only")  # the controller, which has no musterd to ask, has taken it
        self.addCleanup(self.configure, STORE)
        # The check of the input knows keys, and musterd knows values.
        for wrong, said in (({"beats": "200ms"}, "beats is no key of muster.yaml"), ({"beat": 200}, "'beat: 200' is not allowed")):
            self.configure(STORE | wrong)
            play = self.rack.playbooks.play("muster_only")
            self.assertNotEqual(play.code, 0)
            self.assertIn(said, play.output)
            for name in NODES:
                self.assertEqual(compare(before[name], self.etc()[name]), {}, name)
                self.assertEqual(self.shell(name, pid), pids[name])

    def upgrade_to(self, version: str) -> None:
        """What the repository has is of another version."""
        self.publish({field(package(PACKAGES, "muster"), "Version"): version})

    def publish(self, words: dict[str, str]) -> None:
        """What the repository has says other words of itself."""
        with tempfile.TemporaryDirectory() as directory:
            for deb in PACKAGES.glob("*.deb"):
                if "-dbgsym_" in deb.name:
                    continue  # large, and on no machine
                repack(deb, Path(directory), words)
            self.rack.mirror.publish(Path(directory))

    def test_zz_an_upgrade_goes_round_under_a_gang_that_notices_nothing(self) -> None:
        # A node is not lost because this machine is busy.
        self.configure(STORE | {"lease": "40s", "silence": "60s"}, muster_compute_packages=["muster", "python3-muster", "muster-train"])
        self.play("muster_only")
        job = GangJob(self.rack, NODES, endless=True)
        job.submit()
        self.addCleanup(job.cancel)
        job.wait_for_checkpoint()
        pids = {name: self.shell(name, "systemctl show --value --property=MainPID musterd slurmd") for name in NODES}
        self.upgrade_to("0.1.1")
        self.play("rolling_upgrade")
        for name in self.rack.hosts:
            self.assertEqual(self.shell(name, "dpkg-query -W -f '${Version}' muster-client"), "0.1.1", name)
        for name in NODES:
            musterd, slurmd = self.shell(name, "systemctl show --value --property=MainPID musterd slurmd").split()
            before, of_slurm = pids[name].split()
            self.assertEqual((musterd != before, slurmd), (True, of_slurm), name)
        step = job.step()
        job.wait_for_step(step + 5)
        self.assertEqual({event["generation"] for event in job.events()} - {0}, {1})
        self.assertEqual(self.play("rolling_upgrade").changed, dict.fromkeys(self.rack.hosts, 0))
        # A host that is not well afterwards is the last one that is touched.
        self.upgrade_to("0.1.2")
        self.shell("n2", "echo 'Name=gpu File=/dev/nvidia0' >/etc/slurm/gres.conf")  # slurmd does not read it before it is restarted
        self.addCleanup(self.shell, "n2", "rm /etc/slurm/gres.conf")
        failed = self.rack.playbooks.play("rolling_upgrade")
        self.assertNotEqual(failed.code, 0, failed.output)
        self.assertRegex(failed.output, r"fatal: \[n2\]: .*gres: ")
        for name, version in (("ctl", "0.1.2"), ("n1", "0.1.2"), ("n2", "0.1.2"), ("n3", "0.1.1")):
            self.assertEqual(self.shell(name, "dpkg-query -W -f '${Version}' muster-client"), version, name)
        self.assertEqual({event["generation"] for event in job.events()} - {0}, {1})

    def test_z_a_dead_host_and_a_changed_file_are_named_and_what_is_not_wrong_is_not(self) -> None:
        """The other hosts are done without the dead one."""
        host, edited = random.sample(NODES, 2)
        self.shell("ctl", "echo '# ours' >>/etc/muster/muster.yaml; echo '10.0.0.1 elsewhere' >>/etc/hosts")
        self.shell(edited, "printf '%s\\n' '# a comment' \"$(cat /etc/slurm/plugstack.conf)\" >/tmp/x; cat /tmp/x >/etc/slurm/plugstack.conf")
        self.shell(edited, "echo 'log_level: debug' >>/etc/muster/muster.yaml")
        self.rack.kill(host)
        found = sorted((found["id"], found["host"]) for found in self.validate())
        self.assertEqual(found, [("config-differs", edited), ("host-unreachable", host)])
        self.configure(STORE | {"log_level": "warning"})
        self.addCleanup(self.configure, STORE)
        play = self.rack.playbooks.play("muster_only")
        self.assertEqual(play.code, 4, "a host was not reached")
        self.assertEqual({name for name, changed in play.changed.items() if changed}, set(self.rack.hosts) - {host})
        self.rack.revive(host)
        self.assertEqual([(found["id"], found["host"]) for found in self.validate()], [("config-differs", host)])
        self.assertEqual({name for name, changed in self.play("muster_only").changed.items() if changed}, {host})
        self.assertEqual(self.validate(), [])


if __name__ == "__main__":
    seed = int(os.environ.get("MUSTER_TEST_SEED", "1"))
    print(f"MUSTER_TEST_SEED={seed}", file=sys.stderr)
    random.seed(seed)
    unittest.main(verbosity=2)
