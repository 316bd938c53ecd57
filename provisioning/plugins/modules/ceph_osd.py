#!/usr/bin/python3
"""The module `ceph_osd`: the OSDs of a host, one for each of its devices. What is there is never formatted again."""

from __future__ import annotations

import json
import os
import shutil
import stat
import uuid
from typing import Any

from ansible.module_utils.basic import AnsibleModule, human_to_bytes

from ansible_collections.muster.appliance.plugins.module_utils.ceph import (
    LIB,
    CephError,
    Mons,
    alone,
    fsid_of_host,
    give_to_ceph,
    new_key,
    sync_directory,
    wait_for_state,
)

DOCUMENTATION = r"""
module: ceph_osd
short_description: Makes and starts the OSDs of a host
description:
  - Each device gets an OSD, once. A device that has anybody's data is refused before any of them is touched.
options:
  devices:
    description:
      - Paths of block devices, which C(ceph-volume lvm) prepares, or of files that are to be made, each with its C(path) and C(size).
    type: list
    elements: raw
    required: true
author: Muster developers (@muster)
"""
EXAMPLES = r"""
- name: Make the OSDs
  muster.appliance.ceph_osd:
    devices:
      - /dev/disk/by-id/nvme-one
      - {path: /var/lib/ceph/osd.img, size: 20G}
"""
RETURN = r"""
osds:
  description: The number of the OSD of each device.
  type: dict
  returned: always
"""

_ANSWER_S = 60
_BOOT_S = 90
_PROGRAM_S = 900
_OSDS = f"{LIB}/osd"
BOOTSTRAP = f"{LIB}/bootstrap-osd/ceph.keyring"
_PENDING = f"{_OSDS}/pending"  # what a play that was killed has begun
_FIRST = 1 << 20


class _Osds:
    def __init__(self, module: AnsibleModule) -> None:
        self._module = module
        self._fsid = fsid_of_host()

    def run(self, *argv: str) -> str:
        code, output, error = self.try_run(*argv)
        if code != 0:
            raise CephError(f"{' '.join(argv[:3])} ended with {code}: {(error or output).strip()[-2000:]}")
        return output

    def try_run(self, *argv: str) -> tuple[int, str, str]:
        found: tuple[int, str, str] = self._module.run_command(["timeout", "--kill-after=5", str(_PROGRAM_S), *argv])
        return found

    def all(self, devices: list[Any]) -> tuple[bool, dict[str, str]]:
        """Whether something has changed, and each device's OSD; "" of one that will be made."""
        kinds = [_File(self, one["path"], one["size"]) if isinstance(one, dict) else _Block(self, str(one)) for one in devices]
        if bad := [complaint for kind in kinds if (complaint := kind.complaint(self._fsid))]:
            raise CephError("; ".join(bad))
        osds = {kind.path: kind.number() for kind in kinds}
        changed = not all(osds.values())
        if self._module.check_mode:
            return changed or not all(self._runs(number) for number in osds.values()), osds
        for kind in kinds:
            number = osds[kind.path] = osds[kind.path] or self._make(kind)
            if not os.path.exists(f"{_OSDS}/ceph-{number}/block"):
                kind.activate(number)
                changed = True
            if not self._runs(number):
                self.try_run("systemctl", "reset-failed", _unit(number))  # it may have been started too often
                self.run("systemctl", "enable", "--now", _unit(number))
                changed = True
        shutil.rmtree(_PENDING, ignore_errors=True)
        for path, number in osds.items():
            if wait_for_state(f"osd.{number}", "status", ("active",), _BOOT_S) != "active":
                what = f"osd.{number} on {path} is not up after {_BOOT_S} s"
                raise CephError(f"{what}; can it reach the mons? see `journalctl -u {_unit(number)}`")
        return changed, osds

    def _runs(self, number: str) -> bool:
        return all(self.try_run("systemctl", ask, _unit(number))[0] == 0 for ask in ("is-active", "is-enabled"))

    def _make(self, kind: _File | _Block) -> str:
        """What the next play needs, should this one be killed, is on the disk before the device is touched."""
        kind.make(read_pending(kind.path) or self.begin(kind.path))
        if number := kind.number():
            return number
        raise CephError(f"{kind.path} has been prepared, and there is no OSD on it; see /var/log/ceph")

    def begin(self, path: str) -> dict[str, str]:
        """Notes that the device's OSD is being made, and by which name."""
        pending = {"path": path, "uuid": str(uuid.uuid4()), "key": new_key()}
        shutil.rmtree(_PENDING, ignore_errors=True)
        os.mkdir(_PENDING, 0o700)
        with open(f"{_PENDING}/new.json", "w", encoding="utf-8") as file:
            json.dump(pending, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{_PENDING}/new.json", f"{_PENDING}/osd.json")
        sync_directory(_PENDING)
        return pending


def _unit(number: str) -> str:
    return f"ceph-osd@{number}.service"


def read_pending(path: str) -> dict[str, str]:
    """What a play has begun with this device; {} for nothing."""
    try:
        with open(f"{_PENDING}/osd.json", encoding="utf-8") as file:
            found = dict(json.load(file))
    except FileNotFoundError:
        return {}
    return found if found["path"] == path else {}


def label(osds: _Osds, path: str) -> dict[str, str]:
    """What BlueStore has written at the begin of a device; {} where it has not, or has not finished."""
    code, output, _ = osds.try_run("ceph-bluestore-tool", "show-label", "--dev", path)
    found: dict[str, str] = json.loads(output).get(path, {}) if code == 0 else {}
    return found if found.get("ready") == "ready" else {}


class _File:
    """A file as a disk, for machines that have none to give."""

    def __init__(self, osds: _Osds, path: str, size: str) -> None:
        self.path = path
        self._size = human_to_bytes(str(size))
        self._osds = osds

    def complaint(self, fsid: str) -> str:
        if not os.path.lexists(self.path):
            return "" if os.path.isdir(os.path.dirname(self.path)) else f"there is no directory for {self.path}"
        found = label(self._osds, self.path)
        if not found:
            return f"{self.path} is there, and no OSD: an OSD would take all of it; remove it if nobody needs it"
        if found["ceph_fsid"] != fsid:
            return f"{self.path} is an OSD of another cluster, {found['ceph_fsid']}; remove it if nobody needs it"
        return ""

    def number(self) -> str:
        """Its OSD; "" where there is none yet."""
        return label(self._osds, self.path)["whoami"] if os.path.exists(self.path) else ""

    def activate(self, number: str) -> None:
        directory = f"{_OSDS}/ceph-{number}"
        os.makedirs(directory, exist_ok=True)
        self._osds.run("ceph-bluestore-tool", "prime-osd-dir", "--dev", self.path, "--path", directory, "--no-mon-config")
        os.symlink(self.path, f"{directory}/block")
        give_to_ceph(directory)

    def make(self, pending: dict[str, str]) -> None:
        mons = Mons("client.bootstrap-osd", BOOTSTRAP, _ANSWER_S)
        said = mons.command("osd new", json.dumps({"cephx_secret": pending["key"]}), uuid=pending["uuid"])
        directory, new, key = f"{_PENDING}/data", f"{self.path}.new", f"{_PENDING}/key"
        shutil.rmtree(directory, ignore_errors=True)
        os.mkdir(directory)
        with open(key, "w", encoding="utf-8") as file:
            file.write(pending["key"])
        with open(new, "wb") as file:
            file.truncate(self._size)
        os.chmod(new, 0o600)
        shutil.chown(new, "ceph", "ceph")
        os.symlink(new, f"{directory}/block")
        give_to_ceph(_PENDING)
        given = ["--osd-data", directory, "--osd-uuid", pending["uuid"], "--keyfile", key, "--osd-objectstore", "bluestore"]
        as_ceph = ["--setuser", "ceph", "--setgroup", "ceph", "--no-mon-config"]
        self._osds.run("ceph-osd", "--mkfs", "--id", str(said["osdid"]), *given, *as_ceph)
        os.rename(new, self.path)
        sync_directory(os.path.dirname(self.path))


class _Block:
    """A disk, a partition or a logical volume."""

    def __init__(self, osds: _Osds, path: str) -> None:
        self.path = path
        self._osds = osds

    def _volume(self) -> dict[str, Any]:
        """The logical volume that an OSD has on it; {} for none."""
        real = os.path.realpath(self.path)
        listed = json.loads(self._osds.run("ceph-volume", "lvm", "list", "--format", "json"))
        for volumes in listed.values():
            for volume in volumes:
                if volume["type"] == "block" and real in [os.path.realpath(one) for one in [volume["lv_path"], *volume["devices"]]]:
                    return dict(volume)
        return {}

    def _begun(self) -> bool:
        """Whether there is nothing on it but what a play that was killed has made."""
        if not (pending := read_pending(self.path)):
            return False
        code, output, _ = self._osds.try_run("pvs", "--noheadings", "--options", "lv_name", self.path)
        return code == 0 and set(output.split()) <= {f"osd-block-{pending['uuid']}"}

    def complaint(self, fsid: str) -> str:
        try:
            if not stat.S_ISBLK(os.stat(self.path).st_mode):
                return f"{self.path} is no block device; a file is written as {{path: {self.path}, size: 20G}}"
        except FileNotFoundError:
            return f"there is no device {self.path}"
        if volume := self._volume():
            other = volume["tags"]["ceph.cluster_fsid"]
            return "" if other == fsid else self._refuse(f"has an OSD of another cluster, {other}")
        if self._begun():
            return ""
        said = json.loads(self._osds.run("lsblk", "--json", "--output", "NAME,TYPE,MOUNTPOINT", self.path))["blockdevices"][0]
        if children := said.get("children"):
            return self._refuse(f"has {', '.join('{type} {name}'.format(**child) for child in children)}")
        if said["mountpoint"]:
            return self._refuse(f"is in use: {said['mountpoint']}")
        if signatures := self._osds.run("wipefs", "--no-act", "--noheadings", "--output", "TYPE", self.path).split():
            return self._refuse(f"has data: {', '.join(signatures)}")
        with open(self.path, "rb") as device:
            return self._refuse("has data at its begin") if any(device.read(_FIRST)) else ""

    def _refuse(self, why: str) -> str:
        return f"{self.path} {why}, and an OSD would take all of it; if nobody needs it: ceph-volume lvm zap --destroy {self.path}"

    def number(self) -> str:
        """Its OSD; "" where there is none yet, or one that is not finished."""
        volume = self._volume()
        if not volume or (self._begun() and not label(self._osds, volume["lv_path"])):
            return ""
        return str(volume["tags"]["ceph.osd_id"])

    def activate(self, number: str) -> None:
        self._osds.run("ceph-volume", "lvm", "activate", number, self._volume()["tags"]["ceph.osd_fsid"])

    def make(self, pending: dict[str, str]) -> None:
        if self._begun():
            if number := self._volume().get("tags", {}).get("ceph.osd_id"):
                mons = Mons("client.bootstrap-osd", BOOTSTRAP, _ANSWER_S)
                mons.command("osd purge-new", id=int(number), yes_i_really_mean_it=True)
            self._osds.run("ceph-volume", "lvm", "zap", "--destroy", self.path)
            pending = self._osds.begin(self.path)
        self._osds.run("ceph-volume", "lvm", "prepare", "--bluestore", "--data", self.path, "--osd-fsid", pending["uuid"])


def main() -> None:
    module = AnsibleModule(
        argument_spec={"devices": {"type": "list", "elements": "raw", "required": True}}, supports_check_mode=True
    )
    try:
        with alone():
            changed, osds = _Osds(module).all(module.params["devices"])
    except CephError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, osds=osds)


if __name__ == "__main__":
    main()
