#!/usr/bin/python3
"""The rack does what its README says, and leaves nothing behind. Needs root, and the network for its first run."""

import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]

from rack import ClusterError, Rack, rack_of_test, wait_until  # noqa: E402
from rack.cgroups import RackCgroups  # noqa: E402
from vc.host import start_time  # noqa: E402
from vc.names import Names  # noqa: E402

RACKCTL = str(HERE / "rackctl")


def traces(name: str) -> list[str]:
    """Whatever a rack of this name still has on the host."""
    names = Names(name, "rack")
    found = [str(names.directory)] if names.directory.exists() else []
    found += [f"link {link}" for link in os.listdir("/sys/class/net") if link.startswith(names.bridge)]
    groups = [hierarchy.mount / names.cgroup for hierarchy in RackCgroups(names).hierarchies()]
    found += [str(group) for group in groups if group.exists()]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(names.directory) in line]
    found += [str(path) for path in Path("/run/systemd/nspawn").glob(f"*/{names.cgroup}-*")]
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid() and start_time(int(entry)) is not None:
            try:
                command = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode()
                cgroups = Path("/proc", entry, "cgroup").read_text()
            except OSError:
                continue
            if names.cgroup in cgroups or str(names.directory) in command:
                found.append(f"process {entry} {command}")
    return found


class SiteWithSlurm(unittest.TestCase):
    """One rack for all tests of this class."""

    rack: Rack

    @classmethod
    def setUpClass(cls) -> None:
        cls.rack = rack_of_test("s")
        cls.addClassCleanup(lambda: cls.assertEqual(cls(), traces(cls.rack.names.name), []))
        cls.addClassCleanup(cls.rack.stop)
        cls.rack.start()

    def test_an_ordinary_user_runs_steps_on_all_nodes(self) -> None:
        done = self.rack.run("ctl", ["srun", "-N3", "hostname"], user="trainer")
        self.assertEqual((done.returncode, sorted(done.stdout.split())), (0, ["n1", "n2", "n3"]), done.stderr)

    def test_every_unit_of_every_machine_is_up(self) -> None:
        for name in self.rack.hosts:
            failed = self.rack.run(name, ["systemctl", "--failed", "--no-legend"])
            self.assertEqual((failed.returncode, failed.stdout), (0, ""), name)

    def test_slurm_ends_a_step_that_takes_more_memory_than_it_has(self) -> None:
        program = ["python3", "-c", "x = bytearray(400 << 20)"]
        done = self.rack.run("ctl", ["srun", "-N1", "--mem=100", *program], user="trainer")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("Out Of Memory", done.stderr)

    def test_slurm_ends_what_has_left_its_session(self) -> None:
        done = self.rack.run("ctl", ["srun", "-w", "n1", "sh", "-c", "setsid sleep 4711 & exit 0"], user="trainer")
        self.assertEqual(done.returncode, 0, done.stderr)
        wait_until(lambda: self.rack.run("n1", ["pgrep", "-fx", "sleep 4711"]).returncode == 1, 180, "its death")

    def test_no_program_of_a_machine_may_set_a_clock(self) -> None:
        for script in ("cat /proc/self/status", "cat /proc/1/status"):
            status = self.rack.run("n1", ["sh", "-c", script], check=True).stdout
            bounding = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapBnd"))
            self.assertEqual(bounding >> 25 & 1, 0, "CAP_SYS_TIME")

    def test_root_of_every_machine_lets_the_host_in_by_ssh_and_reaches_no_other_network(self) -> None:
        for name in self.rack.hosts:
            ssh = ["ssh", "-F", "none", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={self.rack.playbooks.known_hosts}"]
            ssh += ["-i", str(self.rack.playbooks.key), f"root@{self.rack.network.address(name)}", "ip route; hostname"]
            done = subprocess.run(ssh, capture_output=True, text=True, timeout=180, check=False)
            *routes, hostname = done.stdout.splitlines()
            self.assertEqual(hostname, name, done.stderr)
            self.assertEqual([route.split()[0] for route in routes], [f"{self.rack.network.subnet}.0/24"])

    def test_packages_of_the_mirror_can_be_installed(self) -> None:
        for command in ("apt-get -q update", "apt-get -q -y install chrony", "apt-get -q -y purge chrony"):
            self.rack.run("ctl", ["sh", "-c", f"DEBIAN_FRONTEND=noninteractive {command}"], check=True)

    def test_zz_a_new_machine_is_like_the_others_and_a_killed_one_is_gone_until_it_boots_again(self) -> None:
        self.rack.add("n4")
        self.assertEqual(self.rack.run("n4", ["systemctl", "is-active", "munge"]).stdout, "active\n")
        self.assertEqual(self.rack.run("n1", ["getent", "hosts", "n4"]).returncode, 0)
        program = self.rack.popen("n4", ["sleep", "4712"])
        self.addCleanup(program.kill)
        wait_until(lambda: self.rack.run("n4", ["pgrep", "-fx", "sleep 4712"]).returncode == 0, 180, "the program")
        self.rack.kill("n4")
        self.assertEqual(program.wait(180), -signal.SIGKILL)
        self.assertRaisesRegex(ClusterError, "dead", self.rack.run, "n4", ["true"])
        self.rack.revive("n4")
        self.assertEqual(self.rack.run("n4", ["systemctl", "is-active", "munge"]).stdout, "active\n")


class Interrupted(unittest.TestCase):
    def test_a_start_that_is_interrupted_leaves_nothing(self) -> None:
        for line in ("root file system", "mirror", "machines are up"):
            name = f"i{os.getpid()}"
            start = subprocess.Popen([RACKCTL, "start", "--name", name, "--nodes=1"], stdout=subprocess.PIPE, text=True)
            assert start.stdout is not None
            with start:
                self.addCleanup(start.kill)
                while line not in (said := start.stdout.readline()):
                    self.assertNotEqual(said, "", f"it ended before '{line}'")
                start.send_signal(signal.SIGTERM)
                self.assertEqual(start.wait(180), 130)
            self.assertEqual(traces(name), [], line)


if __name__ == "__main__":
    unittest.main(verbosity=2)
