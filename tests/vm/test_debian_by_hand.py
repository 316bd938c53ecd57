#!/usr/bin/python3
"""The roles base, roce and slurm_node on a virtual machine with systemd, cgroup v2 and an RDMA device: what containers cannot have. The
packages are those of build/packages, or of the directory that MUSTER_PACKAGES names. It takes minutes."""

import json
import os
import re
import shlex
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any, ClassVar

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster"), str(HERE.parent / "provision")]

from guest import Guest, Guests, Options, debian, guests_of_test, wait_until  # noqa: E402
from rack import Play  # noqa: E402
from rack.playbooks import Playbooks  # noqa: E402
from vc import host  # noqa: E402
from vc.names import REPOSITORY  # noqa: E402

PACKAGES = Path(os.environ.get("MUSTER_PACKAGES", REPOSITORY / "build" / "packages"))
ADDRESS = "10.78.0.1"  # in the network that ssh uses
TIME_SERVER = "10.78.0.253"  # nobody answers there
WAIT_S = 300.0
VARIABLES = {
    "site_cluster_network": "10.77.0.0/16",
    "site_cluster_mtu": 9000,
    "site_management_network": "10.78.0.0/24",
    "roce_firmware_packages": [],
    "base_hugepages": 4,
    "base_sysctl": {"vm.swappiness": 2, "vm.dirty_ratio": 15},
    "base_time_servers": [TIME_SERVER],
}
_NETWORK = "[Match]\nName={name}\n\n[Network]\nAddress={address}\nLinkLocalAddressing=no\n"
# The soft device comes and goes with the interface, as one of an adapter's driver would. A stand-in of dcb has what an adapter has of DCB;
# it is lost when the adapter is reset.
_DEVICE = """\
[Unit]
BindsTo=sys-subsystem-net-devices-eth0.device
After=sys-subsystem-net-devices-eth0.device
Before=muster-roce@eth0.service muster-roce.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=modprobe rdma_rxe
ExecStart=cp /usr/local/lib/dcb/reset.json /run/dcb.json
ExecStart=rdma link add rxe0 type rxe netdev eth0
"""
_PORT = {"host": False, "trust": "pcp", "dscp": [], "pfc": [False] * 8}
_DCB = '#!/bin/sh\nMUSTER_DCB_STATE=/run/dcb.json exec flock /run/dcb.lock /usr/local/lib/dcb/stand_in_dcb "$@"\n'
_BIND = "for act in unbind bind; do echo {device} >/sys/bus/virtio/drivers/virtio_net/$act; done"


class DebianHost(unittest.TestCase):
    guests: ClassVar[Guests]
    guest: ClassVar[Guest]
    playbooks: ClassVar[Playbooks]
    first: ClassVar[Play]

    @classmethod
    def setUpClass(cls) -> None:
        options = Options(memory_mib=1024, programs=(), management="10.78.0.254/24", image=cls.image)
        cls.guests = guests_of_test(1, options)
        cls.addClassCleanup(cls.guests.stop)
        cls.playbooks = Playbooks(cls.guests.names, lambda name: ADDRESS, lambda words: cls.guests.network.inside(words))
        cls.addClassCleanup(cls.end_ssh)
        cls.guests.start()
        [cls.guest] = cls.guests.guests
        cls.playbooks.prepare({"controller": ["a"], "compute": ["a"]}, VARIABLES)
        cls.first = cls.play()

    @classmethod
    def end_ssh(cls) -> None:
        """The connection that Ansible leaves open."""
        leave = ["ssh", "-F", "none", "-o", f"ControlPath={cls.playbooks.key.parent}/%h", "-O", "exit", f"root@{ADDRESS}"]
        subprocess.run(leave, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)

    @classmethod
    def image(cls, directory: Path) -> Any:
        for name in ("ssh", "log"):
            (directory / name).mkdir()
        host.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "guest", "-f", str(cls.playbooks.key)])
        host.write(cls.playbooks.known_hosts, f"{ADDRESS} {debian.host_key()}\n")
        stand_in = HERE.parent / "unit" / "net" / "stand_in_dcb"
        files = {
            "/etc/hostname": ("a\n", 0o644),
            "/etc/hosts": ("127.0.0.1 localhost\n", 0o644),
            "/etc/systemd/network/eth0.network": (_NETWORK.format(name="eth0", address="10.77.0.1/16"), 0o644),
            "/etc/systemd/network/eth1.network": (_NETWORK.format(name="eth1", address=f"{ADDRESS}/24"), 0o644),
            "/root/.ssh/authorized_keys": (cls.playbooks.key.with_suffix(".pub").read_text(), 0o600),
            "/etc/systemd/system/soft-rdma.service": (_DEVICE, 0o644),
            "/etc/systemd/system/sys-subsystem-net-devices-eth0.device.d/rdma.conf": ("[Unit]\nWants=soft-rdma.service\n", 0o644),
            "/usr/local/lib/dcb/reset.json": (json.dumps({"interfaces": {"eth0": _PORT}}), 0o644),
            "/usr/local/lib/dcb/stand_in_dcb": (stand_in.read_text(), 0o755),
            "/usr/local/sbin/dcb": (_DCB, 0o755),
        }
        return debian.disk(directory, PACKAGES, files)

    @classmethod
    def play(cls) -> Play:
        """One that must end well."""
        done = cls.playbooks.run(["ansible-playbook", str(HERE / "debian_host.yml")])
        if done.code != 0:
            raise AssertionError(f"the playbook has failed ({done.code}):\n{done.output}")
        print(f"a playbook of {done.seconds:.0f} s, {done.changed}", file=sys.stderr)
        return done

    def fabric(self) -> dict[str, Any]:
        """What `muster net check` says of each knob."""
        said = self.guest.run(["muster", "net", "check", "--json"]).stdout
        return {knob["knob"]: knob for knob in json.loads(said)["knobs"]}

    def assert_fabric_is_set(self) -> None:
        """By the units, which nobody but udev and systemd has started."""

        def states() -> dict[str, str]:
            return {name: knob["state"] for name, knob in self.fabric().items()}

        wanted = dict.fromkeys(("mtu", "subnet", "dcbx", "dscp", "pfc", "cma_tos", "cma_mode"), "is") | dict.fromkeys(
            ("storm_prevention", "pause_storms", "ecn", "cnp"), "unknown"
        )
        wait_until(lambda: states() == wanted, WAIT_S, f"a fabric that is {wanted}", interval=1)
        self.assertEqual(self.guest.read("/sys/class/net/eth0/mtu"), "9000\n")
        self.assertEqual(self.guest.read("/sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_tos").strip(), "106")
        types = "cat /sys/class/infiniband/rxe0/ports/1/gid_attrs/types/* 2>/dev/null"
        self.assertIn("RoCE v2\n", self.guest.run(["sh", "-c", types]).stdout)
        port = json.loads(self.guest.read("/run/dcb.json"))["interfaces"]["eth0"]
        self.assertEqual(port, {"host": True, "trust": "dscp", "dscp": [[26, 3], [48, 6]], "pfc": [i == 3 for i in range(8)]})

    def trainer(self, command: str) -> str:
        """What a user's shell, as it logs in, says to a command."""
        done = self.guest.run(["su", "-", "trainer", "-c", command], timeout=WAIT_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def wait_for_idle(self) -> None:
        ask = ["sinfo", "--noheader", "--format=%t"]
        wait_until(lambda: self.guest.run(ask).stdout.split() == ["idle"], WAIT_S, "an idle node", interval=1)

    def test_a_second_run_changes_nothing(self) -> None:
        self.assertGreater(self.first.changed["a"], 0)
        self.assertEqual(self.play().changed, {"a": 0})

    def test_a_step_locks_memory_without_a_limit_in_a_cgroup_of_v2_that_holds(self) -> None:
        self.wait_for_idle()
        said = self.trainer("srun --mem=200 sh -c 'ulimit -l; cat /proc/self/cgroup'").split()
        self.assertEqual(said[0], "unlimited")
        self.assertRegex(said[1], "^0::/.*slurmstepd.scope/job_")
        hog = "srun --mem=100 /usr/bin/python3 -c 'print(len(bytearray(400 << 20)))'"
        done = self.guest.run(["su", "-", "trainer", "-c", hog], timeout=WAIT_S)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, "(?i)out of memory|oom[-_ ]kill")

    def test_a_gang_in_cgroups_of_v2_loses_a_process_and_all_that_it_has_started_and_finishes(self) -> None:
        for command in (
            "printf 'store: dir:/var/lib/muster/store\\nhealth_memory_min: 64\\n' >>/etc/muster/muster.yaml",
            "systemctl start musterd",
            "muster node enable-plugin",
            "scontrol reconfigure",
        ):
            self.guest.run(["sh", "-c", command], check=True, timeout=WAIT_S)
        self.wait_for_idle()
        # A process that has left its session, and that only the supervisor's sweep finds.
        program = (
            'echo "rank $RANK generation $MUSTER_GENERATION $(cat /proc/self/cgroup)"; '
            'if [ "$MUSTER_GENERATION" = 1 ]; then setsid -f sleep 4321; [ "$RANK" = 0 ] || kill -9 $$; sleep 4321; fi'
        )
        said = self.trainer(f"srun --ntasks=2 --overcommit --gang=restarts=1 sh -c {shlex.quote(program)}").splitlines()
        for rank in (0, 1):
            for generation in (1, 2):
                line = f"rank {rank} generation {generation} 0::/.*slurmstepd.scope/job_[0-9]+/step_0/"
                self.assertEqual(len([one for one in said if re.match(line, one)]), 1, f"{line}: {said}")
        self.assertNotEqual(self.guest.run(["pgrep", "-f", "sleep 4321"]).returncode, 0)
        [number] = {found[1] for line in said if (found := re.search("/job_([0-9]+)/", line))}
        self.assertRegex(self.trainer(f"muster events {number}"), "rank 1 .* was killed by SIGKILL")
        hog = "srun --mem=100 --gang=restarts=0 /usr/bin/python3 -c 'print(len(bytearray(400 << 20)))'"
        done = self.guest.run(["su", "-", "trainer", "-c", hog], timeout=WAIT_S)
        self.assertRegex(done.stderr, "was killed by the kernel's out-of-memory killer")

    def test_the_kernel_has_what_base_says(self) -> None:
        for key, value in (
            ("vm/nr_hugepages", "4"),
            ("vm/swappiness", "2"),
            ("vm/dirty_ratio", "15"),
            ("net/ipv4/neigh/default/gc_thresh3", "4096"),
            ("net/ipv4/ip_local_reserved_ports", "20000-29999"),
        ):
            self.assertEqual(self.guest.read(f"/proc/sys/{key}").strip(), value, key)

    def test_the_time_comes_from_where_base_says(self) -> None:
        asked = self.guest.run(["chronyc", "-n", "sources"], check=True).stdout
        self.assertIn(TIME_SERVER, asked.split())

    def test_the_fabric_is_set_after_a_reboot_a_pulled_cable_and_a_reset(self) -> None:
        self.assert_fabric_is_set()
        self.guest.reboot()
        self.assert_fabric_is_set()
        self.wait_for_idle()
        self.assertEqual(self.trainer("srun sh -c 'ulimit -l'"), "unlimited\n")
        self.test_the_kernel_has_what_base_says()
        self.guest.set_link(False)
        self.guest.set_link(True)
        self.assert_fabric_is_set()
        # The driver lets go of the card and takes it again: the interface and the RDMA device are new ones.
        before = self.guest.read("/sys/class/net/eth0/ifindex")
        device = Path(self.guest.run(["readlink", "/sys/class/net/eth0/device"], check=True).stdout.strip()).name
        self.guest.run(["sh", "-c", _BIND.format(device=device)], check=True)
        wait_until(
            lambda: self.guest.run(["test", "-e", "/sys/class/infiniband/rxe0"]).returncode == 0, WAIT_S, "rxe0", interval=1
        )
        self.assert_fabric_is_set()
        self.assertNotEqual(self.guest.read("/sys/class/net/eth0/ifindex"), before)


if __name__ == "__main__":
    unittest.main(verbosity=2)
