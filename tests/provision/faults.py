"""What can be wrong on one host of a rack, what is only unusual there, and how each is planted and taken away."""

import json
import random
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from rack import Rack
from vc.names import REPOSITORY

CONTROLLER = "ctl"
_NODES = ("n1", "n2", "n3")
_DCB = REPOSITORY / "tests" / "unit" / "net" / "stand_in_dcb"
_ALL = (CONTROLLER, *_NODES)
_APT = "DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0"
# Programs that are started from now on see another time; no clock is touched.
_FAKE_TIME = f"""
{_APT} install libfaketime >/dev/null
echo {{}} >/etc/faketimerc
echo /usr/lib/*/faketime/libfaketime.so.1 >/etc/ld.so.preload
systemctl restart munge
"""
_TRUE_TIME = "rm -f /etc/ld.so.preload /etc/faketimerc; systemctl restart munge slurmd"


@dataclass(frozen=True)
class Fault:
    """`plant` gets the host and the rack and gives a script for the host. `mend`: what the finding's fix says, where that is no
    command that can be run here. `after`: takes away what is left when the fault is mended."""

    id: str
    plant: Callable[[str, Rack], str]
    hosts: tuple[str, ...] = _NODES
    mend: str = ""
    after: str = ""


def _another_key(host: str, rack: Rack) -> str:
    return "head -c 1024 /dev/urandom >/etc/munge/munge.key; systemctl restart munge slurmd"


def _another_time(host: str, rack: Rack) -> str:
    return _FAKE_TIME.format(f"{random.choice('+-')}{random.randint(10, 3600)}s")


def _missing_device(host: str, rack: Rack) -> str:
    devices = random.randint(2, 8)
    missing = random.randrange(devices)
    there = " ".join(f"/dev/nvidia{number}" for number in range(devices) if number != missing)
    return f"touch {there}; echo 'Name=gpu File=/dev/nvidia[0-{devices - 1}]' >/etc/slurm/gres.conf"


def _plugin_of_another_series(host: str, rack: Rack) -> str:
    """Its number alone, by which Slurm tells."""
    series = random.choice([(20, 11), (21, 8), (23, 11), (24, 11)])
    number = struct.pack("<I", series[0] << 16 | series[1] << 8).hex()
    script = """
import glob, re, subprocess
[path] = glob.glob("/usr/lib/*/slurm-wlm/spank_muster.so")
number = bytes.fromhex("{number}")
image = bytearray(open(path, "rb").read())
at = image.find(bytes.fromhex("{ours}"))
assert image.count(bytes.fromhex("{ours}")) == 1
image[at : at + 4] = number
open(path, "wb").write(image)
"""
    said = rack.run(host, ["scontrol", "--version"], check=True).stdout
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", said)
    assert found is not None
    ours = struct.pack("<I", int(found[1]) << 16 | int(found[2]) << 8 | int(found[3])).hex()
    return f"/usr/bin/python3 - <<'END'{script.format(number=number, ours=ours)}END"


def _small_mtu(host: str, rack: Rack) -> str:
    return f"ip link set dev eth0 mtu {random.randint(1280, 1499)}"


def _little_memlock(host: str, rack: Rack) -> str:
    unit = random.choice(["slurmd", "musterd"])
    directory = f"/etc/systemd/system/{unit}.service.d"
    limit = f"[Service]\\nLimitMEMLOCK={random.randint(64, 4096)}K\\n"
    # What the fix has written when the fault was there before would win.
    write = f"mkdir -p {directory}; rm -f {directory}/zz-memlock.conf; printf '{limit}' >{directory}/limit.conf"
    return f"{write}; systemctl daemon-reload; systemctl restart {unit}"


def _full_disk(host: str, rack: Rack) -> str:
    path = "/var/lib/slurm/slurmd" if host != CONTROLLER else "/var/lib/slurm/slurmctld"
    pages = random.randint(256, 2048)
    return f"mount -t tmpfs -o size={pages * 4}k tmpfs {path}; head -c {pages * 4096} /dev/zero >{path}/large || true"


def _stopped(host: str, rack: Rack) -> str:
    return "systemctl stop musterd"


def _wrong_entry(host: str, rack: Rack) -> str:
    name = random.choice([name for name in _ALL if name != host])
    right = rack.network.address(name)
    wrong = right.rpartition(".")[0] + f".{random.randint(100, 250)}"
    return random.choice([f"sed -i 's/^{right} {name}$/{wrong} {name}/' /etc/hosts", f"sed -i '1i {wrong} {name}' /etc/hosts"])


# Of an adapter that DCB can set, which no machine has: eth0 is the fabric's, and `dcb` is a stand-in.
_FABRIC = """
printf 'networks: {network}\\nmtu: 1500\\n' >/etc/muster/roce.yaml
echo '{state}' >/usr/local/lib/dcb.json
cat >/usr/local/lib/stand_in_dcb <<'END'
{dcb}
END
printf '#!/bin/sh\\nMUSTER_DCB_STATE=/usr/local/lib/dcb.json exec /usr/bin/python3 /usr/local/lib/stand_in_dcb "$@"\\n' >/usr/local/bin/dcb
chmod 755 /usr/local/bin/dcb
"""
_NO_FABRIC = "rm -f /etc/muster/roce.yaml /usr/local/bin/dcb /usr/local/lib/dcb.json /usr/local/lib/stand_in_dcb"


def _fabric(rack: Rack, **differs: object) -> str:
    port = {"host": True, "dscp": [[26, 3], [48, 6]], "pfc": [priority == 3 for priority in range(8)]} | differs
    network = f"{rack.network.subnet}.0/24"
    return _FABRIC.format(network=network, state=json.dumps({"interfaces": {"eth0": port}}), dcb=_DCB.read_text())


def _wrong_fabric(host: str, rack: Rack) -> str:
    """One setting of an interface of the fabric."""
    other = random.choice([priority for priority in range(8) if priority != 3])
    wrong = random.choice([{"host": False}, {"dscp": [[26, other], [48, 6]]}, {"pfc": [priority == other for priority in range(8)]}])
    return _fabric(rack, **wrong)


FAULTS = {
    "munge key": Fault("munge-key-differs", _another_key),
    # Its fix, chronyc makestep, is for a clock that may be set.
    "clock": Fault("clock-differs", _another_time, mend=_TRUE_TIME),
    "gres": Fault("gres", _missing_device, mend="for n in 0 1 2 3 4 5 6 7; do touch /dev/nvidia$n; done", after="rm -f /dev/nvidia* /etc/slurm/gres.conf"),
    "plugin of another series": Fault("plugin-not-loading", _plugin_of_another_series, _ALL),
    "MTU": Fault("mtu", _small_mtu),
    "memlock": Fault("memlock", _little_memlock),
    "disk full": Fault("disk-full", _full_disk, _ALL, mend="rm /var/lib/slurm/slurm*/large", after="umount -l /var/lib/slurm/slurm* 2>/dev/null || true"),
    "musterd down": Fault("unit-down", _stopped),
    "fabric": Fault("fabric", _wrong_fabric, after=_NO_FABRIC),
    "wrong hosts entry": Fault("hosts-entry-wrong", _wrong_entry, _ALL),
}


def unusual(rack: Rack) -> dict[str, tuple[str, str]]:
    """Not wrong: scripts for one host that plant it and take it away."""
    return {
        "the clock, by a second": (_FAKE_TIME.format("+1s"), _TRUE_TIME),
        "one more line of /etc/hosts": ("echo '10.0.0.1 elsewhere' >>/etc/hosts", "sed -i '/ elsewhere$/d' /etc/hosts"),
        "a larger MTU on an unused port": (
            "ip link add unused0 type veth peer name unused1; ip link set unused0 mtu 9000 up",
            "ip link delete unused0",
        ),
        "a DSCP of others on the fabric": (_fabric(rack, dscp=[[10, 1], [26, 3], [48, 6]]), _NO_FABRIC),
    }
