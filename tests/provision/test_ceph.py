#!/usr/bin/python3
"""What the modules for Ceph decide, without machines: copies, settings, and disks, of which containers have none. For disks, programs
are stood in for by what they say on a host that has some."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2] / "provisioning"


def collection(directory: str) -> None:
    """Puts the collection where Python and Ansible look for it."""
    where = Path(directory, "ansible_collections", "muster")
    where.mkdir(parents=True)
    (where / "appliance").symlink_to(ROOT)


with tempfile.TemporaryDirectory() as directory:
    collection(directory)
    sys.path.insert(0, directory)
    from ansible_collections.muster.appliance.plugins.filter.ceph_findings import ceph_findings
    from ansible_collections.muster.appliance.plugins.modules import ceph_cluster, ceph_osd

FSID = "60cbe3e8-6306-4fac-acca-0d2965174df7"
OTHER = "00000000-0000-4000-8000-000000000000"
DISK = "/dev/disk/by-id/nvme-one"
EMPTY = {"lvm list": "{}", "lsblk": '{"blockdevices": [{"name": "nvme0n1", "type": "disk", "mountpoint": null}]}', "wipefs": "", "pvs": "fails"}
READY = json.dumps({"/dev/ceph-a/osd-block-f7": {"ready": "ready"}})


def listed(fsid: str) -> str:
    """What `ceph-volume lvm list` says of a disk with an OSD."""
    tags = {"ceph.osd_id": "7", "ceph.osd_fsid": "f7", "ceph.cluster_fsid": fsid}
    return json.dumps({"7": [{"type": "block", "lv_path": "/dev/ceph-a/osd-block-f7", "devices": [DISK], "tags": tags}]})


class Programs:
    """Takes the place of AnsibleModule: notes calls, and answers by what is in them."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers = answers
        self.calls: list[str] = []
        self.check_mode = False

    def run_command(self, argv: list[str]) -> tuple[int, str, str]:
        call = " ".join(argv[3:])  # without the limit of time
        self.calls.append(call)
        for part, answer in self.answers.items():
            if part in call:
                return (0, answer, "") if answer != "fails" else (5, "", "no")
        return 0, "", ""


class Disks(unittest.TestCase):
    def setUp(self) -> None:
        self.directory = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.disk = self.directory / "disk"
        self.disk.write_bytes(bytes(4096))
        real = {"open": open, "realpath": os.path.realpath}
        patches = {
            "_OSDS": str(self.directory),
            "_PENDING": str(self.directory / "pending"),
            "fsid_of_host": lambda: FSID,
            "wait_for_state": lambda *_: "active",
            "open": lambda path, *rest, **more: real["open"](self.disk if path == DISK else path, *rest, **more),
        }
        for name, value in patches.items():
            self.enterContext(mock.patch.object(ceph_osd, name, value, create=True))
        status = mock.Mock(st_mode=stat.S_IFBLK)
        self.enterContext(mock.patch.object(ceph_osd.os, "stat", lambda path, **_: status if path == DISK else os.lstat(path)))

    def all(self, answers: dict[str, str]) -> tuple[Programs, Any]:
        programs = Programs(answers)
        osds = ceph_osd._Osds(programs)
        try:
            return programs, osds.all([DISK])
        except ceph_osd.CephError as error:
            return programs, str(error)

    def changes(self, programs: Programs) -> list[str]:
        asking = ("lvm list", "lsblk", "wipefs", "pvs", "show-label", "is-active", "is-enabled")
        return [call for call in programs.calls if not any(part in call for part in asking)]

    def test_an_empty_disk_becomes_an_osd(self) -> None:
        programs = Programs(dict(EMPTY))
        run = programs.run_command

        def prepared(argv: list[str]) -> tuple[int, str, str]:
            if "prepare" in argv:
                programs.answers |= {"lvm list": listed(FSID), "show-label": READY}
            return run(argv)

        programs.run_command = prepared  # type: ignore[method-assign]
        self.assertEqual(ceph_osd._Osds(programs).all([DISK]), (True, {DISK: "7"}))
        uuid = self.changes(programs)[0].split()[-1]
        self.assertEqual(
            self.changes(programs),
            [f"ceph-volume lvm prepare --bluestore --data {DISK} --osd-fsid {uuid}", "ceph-volume lvm activate 7 f7"],
        )
        self.assertFalse((self.directory / "pending").exists())

    def test_an_osd_that_is_there_is_left_alone(self) -> None:
        (self.directory / "ceph-7").mkdir()
        (self.directory / "ceph-7" / "block").touch()
        programs, done = self.all(EMPTY | {"lvm list": listed(FSID)})
        self.assertEqual((done, self.changes(programs)), ((False, {DISK: "7"}), []))

    def test_a_disk_with_anybodys_data_is_refused_and_nothing_is_done_to_it(self) -> None:
        row = '{"blockdevices": [{"name": "nvme0n1", "type": "disk", "mountpoint": null'
        cases = {
            "an OSD of another cluster": {"lvm list": listed(OTHER)},
            "part nvme0n1p1": {"lsblk": row + ', "children": [{"name": "nvme0n1p1", "type": "part", "mountpoint": null}]}]}'},
            "is in use: [SWAP]": {"lsblk": row.replace("null", '"[SWAP]"') + "}]}"},
            "has data: ext4": {"wipefs": "ext4\n"},
        }
        for said, answers in cases.items():
            with self.subTest(said):
                programs, error = self.all(EMPTY | answers)
                self.assertIn(said, error)
                self.assertIn(f"ceph-volume lvm zap --destroy {DISK}", error)
                self.assertEqual(self.changes(programs), [])
        self.disk.write_bytes(bytes(100) + b"x")
        self.assertIn("has data at its begin", self.all(EMPTY)[1])

    def test_what_a_killed_play_has_begun_is_begun_anew_and_nothing_else(self) -> None:
        pending = ceph_osd._Osds(Programs({})).begin(DISK)
        row = '{"blockdevices": [{"name": "nvme0n1", "type": "disk", "mountpoint": null, "children": [{"name": "x", "type": "lvm"}]}]}'
        programs, error = self.all(EMPTY | {"lsblk": row, "pvs": "  somebodys\n"})
        self.assertIn("lvm x", error)
        self.assertEqual(self.changes(programs), [])
        # The volume is there, and not what BlueStore writes at its begin.
        programs, error = self.all(EMPTY | {"lsblk": row, "pvs": f"  osd-block-{pending['uuid']}\n", "show-label": "fails"})
        self.assertIn("has been prepared, and there is no OSD", error)
        self.assertEqual(self.changes(programs)[0], f"ceph-volume lvm zap --destroy {DISK}")
        self.assertRegex(self.changes(programs)[1], f"^ceph-volume lvm prepare --bluestore --data {DISK} --osd-fsid ")
        self.assertNotIn(pending["uuid"], self.changes(programs)[1])


class Cluster(unittest.TestCase):
    def test_copies_are_as_many_as_there_are_places_and_never_fewer_because_of_what_is_down(self) -> None:
        cases = {  # asked, current, possible
            (0, 0, 0): 1, (0, 0, 1): 1, (0, 0, 2): 2, (0, 0, 12): 3, (0, 1, 2): 2, (0, 3, 1): 3, (0, 5, 12): 5,
            (3, 1, 1): 1, (3, 1, 2): 2, (3, 3, 2): 3, (2, 3, 3): 2, (4, 3, 5): 4,
        }  # fmt: skip
        for given, size in cases.items():
            self.assertEqual(ceph_cluster.copies(*given), size, given)

    def test_two_ways_to_write_a_setting_are_the_same(self) -> None:
        for one, other in ((True, "true"), ("yes", "true"), ("64M", "67108864"), ("4G", 4 << 30), (0.5, "0.500000"), ("10.0.0.0/8", "10.0.0.0/8")):
            self.assertEqual(ceph_cluster.normal(one), ceph_cluster.normal(other))
        for one, other in ((1, 2), (True, False), ("64M", "64K"), ("a", "b")):
            self.assertNotEqual(ceph_cluster.normal(one), ceph_cluster.normal(other))


class Validate(unittest.TestCase):
    def check(self, expected: list[tuple[str, str, str]], daemons: dict[str, dict[str, str] | None], *before: tuple[str, str]) -> None:
        hostvars = {host: {} if states is None else {"ceph_probe": {"daemons": states}} for host, states in daemons.items()}
        known = [{"id": name, "host": host, "fix": "", "severity": "error"} for name, host in before]
        result = ceph_findings({"ok": not known, "checked": 9, "findings": known}, hostvars, {"mon": ["c1"], "osd": ["c1", "c2"]})
        self.assertEqual([(one["id"], one["host"], one["fix"]) for one in result["findings"]], expected)
        self.assertEqual(result["ok"], not expected)
        self.assertGreater(result["checked"], 10)

    def test_each_daemon_that_is_down_is_named_and_nothing_that_follows(self) -> None:
        good = {"c1": {"mon.c1": "leader", "osd.0": "active"}, "c2": {"osd.1": "active"}}
        self.check([], dict(good))
        self.check([("unit-down", "n1", "")], dict(good), ("unit-down", "n1"))
        fix = "systemctl restart ceph-osd@1"
        self.check([("osd-down", "c2", fix)], good | {"c2": {"osd.1": "inactive"}}, ("store-unreachable", "n1"))
        self.check([("osd-down", "c2", f"systemctl reset-failed ceph-osd@1; {fix}")], good | {"c2": {"osd.1": "failed"}})
        down = {"c1": {"mon.c1": "probing", "osd.0": "active"}}
        self.check([("ceph-mon-down", "c1", "systemctl restart ceph-mon@c1")], good | down)
        self.check([("host-unreachable", "c2", "ssh c2")], good | {"c2": None})
        self.check([("host-unreachable", "c2", "")], good | {"c2": None}, ("host-unreachable", "c2"))


class Cephadm(unittest.TestCase):
    """cephadm and ceph are stand-ins that note how they are called: no container is started."""

    STUB = """\
#!/bin/sh
echo "${0##*/} $*" >>%(directory)s/calls
case "$*" in
*bootstrap*) echo key >%(directory)s/ceph.client.admin.keyring; echo ssh-rsa KEY ceph >%(directory)s/ceph.pub ;;
esac
"""
    INVENTORY = """\
all: {vars: {ansible_connection: local, ansible_python_interpreter: /usr/bin/python3}}
mon: {hosts: {c1: {site_ceph_public_address: 10.1.0.1}}}
osd: {hosts: {c1: , c2: {ansible_host: 10.1.0.2}}, vars: {ceph_osd_devices: [/dev/sdb, /dev/sdc], site_ceph_cluster_network: 10.2.0.0/24}}
"""
    PLAY = """\
- hosts: mon:osd
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: muster.appliance.ceph, tasks_from: cephadm}
"""
    BOOTSTRAP = (
        "cephadm --image registry.example.com/ceph:v16 bootstrap --mon-id c1 --mon-ip 10.1.0.1 --cluster-network 10.2.0.0/24 "
        "--allow-fqdn-hostname --skip-dashboard --skip-monitoring-stack --skip-firewalld --output-dir {directory}"
    )
    SPEC = [
        {"service_type": "host", "hostname": "c1", "addr": "10.1.0.1"},
        {"service_type": "host", "hostname": "c2", "addr": "10.1.0.2"},
        {"service_type": "mon", "placement": {"hosts": ["c1"]}},
        {"service_type": "mgr", "placement": {"hosts": ["c1"]}},
        {"service_type": "osd", "service_id": "c1", "placement": {"hosts": ["c1"]}, "data_devices": {"paths": ["/dev/sdb", "/dev/sdc"]}},
        {"service_type": "osd", "service_id": "c2", "placement": {"hosts": ["c2"]}, "data_devices": {"paths": ["/dev/sdb", "/dev/sdc"]}},
    ]

    def test_cephadm_makes_the_cluster_once_and_is_told_which_host_is_what(self) -> None:
        directory = self.enterContext(tempfile.TemporaryDirectory())
        collection(directory)
        here = Path(directory)
        (here / "bin").mkdir()
        for name in ("cephadm", "ceph"):
            (here / "bin" / name).write_text(self.STUB % {"directory": directory})
            (here / "bin" / name).chmod(0o755)
        (here / "hosts.yml").write_text(self.INVENTORY)
        (here / "play.yml").write_text(self.PLAY)
        given = {"ceph_etc": directory, "ceph_authorized_keys": f"{directory}/keys", "ceph_image": "registry.example.com/ceph:v16"}
        command = ["ansible-playbook", "-i", f"{directory}/hosts.yml", "-e", json.dumps(given | {"ceph_deployment": "cephadm"})]
        environment = {"PATH": f"{directory}/bin:{os.environ['PATH']}", "HOME": directory, "LANG": "C.UTF-8"}
        environment |= {"ANSIBLE_COLLECTIONS_PATH": directory, "ANSIBLE_FORKS": "1"}
        for _ in range(2):
            done = subprocess.run(
                [*command, f"{directory}/play.yml"], capture_output=True, text=True, env=environment, timeout=300, check=False
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        calls = (here / "calls").read_text().splitlines()
        apply = f"ceph orch apply -i {directory}/site.yaml"
        self.assertEqual(calls, [self.BOOTSTRAP.format(directory=directory), apply, apply])
        self.assertEqual((here / "keys").read_text(), "ssh-rsa KEY ceph\n")
        self.assertEqual([one for one in yaml.safe_load_all((here / "site.yaml").read_text()) if one], self.SPEC)


if __name__ == "__main__":
    unittest.main(verbosity=2)
