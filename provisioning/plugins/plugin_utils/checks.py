"""What must be so of an operator's input before anything is done to a host. All findings at once."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from .inventory import Inventory, load
from .keys import ANSIBLE, GROUPS, KEYS, MUSTER_YAML, NETWORKS, PREFIXES, ROLES, Key
from .places import Decrypt, Entry, Finding, Findings, Place, Reader, Value, did_you_mean, nearest

_MTU = (1280, 9216)
_BOUNDS = {
    "roce_dscp": (0, 63),
    "roce_ecn_bits": (0, 2),
    "roce_priority": (0, 7),
    "roce_cnp_dscp": (0, 63),
    "roce_cnp_priority": (0, 7),
    "roce_rings": (0, 65_536),
    "roce_rate": (0, 10_000_000),
    "base_hugepages": (0, 1 << 24),
    "ceph_pool_size": (0, 10),
}
# A musterd's ports are below this, so that no user's program can take them while it restarts (docs/install.md).
_PRIVILEGED = 1024
_PORTS = ("port", "partner_port", "metrics_port")
# Directories that each host has for itself.
_OWN = ("/tmp", "/var/tmp", "/run", "/dev/shm")  # noqa: S108
_OWN_STORE = "/var/lib/muster"
# Where Ceph's units see nothing, or what is gone after a boot.
_NO_DISK = ("/home", "/root", "/run", "/tmp", "/var/tmp", "/dev", "/proc", "/sys")  # noqa: S108
_DISK_SIZE = re.compile(r"[1-9][0-9]*[GT]")
_NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,62})")
# What a line of topology.conf may have beside its name.
_SWITCH = {"Nodes", "Switches", "LinkSpeed"}
_HOSTLIST_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_USER_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_USER_IDS = range(1000, 60000)
_USER_KEYS = {"uid", "home", "shell"}
_RESERVED = ("all", "default", "localhost")
_APT_SOURCE = re.compile(r"deb(-src)?\s+(\[[^\]]*\]\s+)?[a-z]\S*:\S+\s+\S.*")


def _flag(value: Value) -> bool:
    return value.kind == "flag" or value.text.lower() in ("yes", "no", "true", "false")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _hostlist(text: str) -> list[str]:
    """The names of a list as Slurm writes it, as n[01-03,7],login; raises ValueError."""
    if text.count("[") != text.count("]"):
        raise ValueError(f"{text} has a bracket without the other one")
    return [name for part in _HOSTLIST_PART.findall(text) for name in _expand(part)]


def _expand(part: str) -> list[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, _, tail = rest.partition("]")
    names = []
    for piece in inside.split(","):
        first, _, last = piece.partition("-")
        last = last or first
        if not first.isdecimal() or not last.isdecimal() or int(last) < int(first):
            raise ValueError(f"[{inside}] is no range; write [01-16]")
        names += [head + str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return [name + end for name in names for end in _expand(tail)]


class _Checks:
    def __init__(self, inventory: Inventory, findings: Findings, unread: bool, given: Collection[str]) -> None:
        self._inventory = inventory
        self._findings = findings
        self._unread = unread  # a file whose keys nobody knows
        self._given = given  # keys that are given elsewhere, and win

    def run(self) -> None:
        for _, variables in self._inventory.variables:
            for name, entry in variables.items():
                self._variable(name, entry)
        networks = self._networks()
        self._addresses(networks)
        self._mtu()
        self._firewall()
        self._apt_sources()
        self._users()
        if self._inventory.complete:
            self._groups()
            self._names()
            self._switches()
            self._ceph()
        if not self._unread:
            self._required()
        self._muster_config()

    # Variables: names and kinds.

    def _variable(self, name: str, entry: Entry) -> None:
        if name in KEYS:
            self._kind(name, KEYS[name], entry.value)
        elif name.startswith(PREFIXES):
            self._findings.error(entry.place, f"{name} is no key of the playbooks{did_you_mean(name, set(KEYS))}")
        elif name not in ANSIBLE and (meant := nearest(name, [*KEYS, *ANSIBLE], 0.85)):
            self._findings.error(entry.place, f"{name} is no key of the playbooks; did you mean {meant}?")

    def _kind(self, name: str, key: Key, value: Value) -> None:
        if value.template:
            return
        error = self._findings.error
        if key.kind in ("network", "address", "mtu"):
            self._special(name, key.kind, value)
        elif key.kind == "flag" and not _flag(value):
            error(value.place, f"{name} is {value.what}; it must be true or false")
        elif key.kind == "number" and value.kind != "number":
            error(value.place, f"{name} is {value.what}; it must be a number")
        elif name in _BOUNDS and not (value.text.isdecimal() and _BOUNDS[name][0] <= int(value.text) <= _BOUNDS[name][1]):
            error(value.place, f"{name} is {value.text}; it must be from {_BOUNDS[name][0]} to {_BOUNDS[name][1]}")
        elif key.kind == "text" and value.kind not in ("text", "number"):
            error(value.place, f"{name} is {value.what}; it must be a text" + (", in quotes" if value.kind == "flag" else ""))
        elif key.kind == "list" and value.kind != "list":
            example = f"[{value.text}]" if value.text else "[one, another]"
            error(value.place, f"{name} is {value.what}; it must be a list, as in {example}")
        elif key.kind == "mapping" and value.kind != "mapping":
            error(value.place, f"{name} is {value.what}; it must be a mapping of keys and values")
        elif key.choices and value.text not in key.choices:
            error(value.place, f"{name} is {value.text}; it must be one of {', '.join(key.choices)}")
        for option, below in value.items.items():
            if option in key.options:
                self._kind(f"{option} of {name}", key.options[option], below.value)

    def _special(self, name: str, kind: str, value: Value) -> None:
        error = self._findings.error
        if value.text == "" and value.kind in ("text", "nothing"):
            return
        if kind == "mtu":
            if not re.fullmatch("[1-9][0-9]{3}", value.text) or not _MTU[0] <= int(value.text) <= _MTU[1]:
                error(value.place, f"{name} is {value.text or value.what}; it must be a number from {_MTU[0]} to {_MTU[1]}")
        elif kind == "address":
            if _address(value.text) is None:
                error(value.place, f"{name} is {value.text or value.what}; it must be an address, as in 10.1.0.7")
        else:
            try:
                ipaddress.ip_network(value.text)
            except ValueError:
                try:
                    meant = f"did you mean {ipaddress.ip_network(value.text, strict=False)}?" if "/" in value.text else ""
                except ValueError:
                    meant = ""
                what = meant or "it must be a network in CIDR, as in 10.1.0.0/24"
                error(value.place, f"{name} is {value.text or value.what}; {what}")

    # Networks and addresses.

    def _site(self, key: str) -> Entry | None:
        """A key of the whole site."""
        found = self._inventory.groups["all"].variables.get(key)
        return None if found is None or key in self._given or found.value.template else found

    def _networks(self) -> dict[str, ipaddress.IPv4Network | ipaddress.IPv6Network]:
        """Those that are known and good, by name."""
        found: dict[str, ipaddress.IPv4Network | ipaddress.IPv6Network] = {}
        places: dict[str, Place] = {}
        for name in NETWORKS:
            entry = self._site(f"site_{name}_network")
            if entry is None:
                continue
            try:
                network = ipaddress.ip_network(entry.value.text)
            except ValueError:
                continue  # said already, where it is not empty
            for other, before in found.items():
                if network != before and network.overlaps(before):
                    what = f"site_{name}_network {network} overlaps site_{other}_network {before} (line {places[other].line})"
                    self._findings.error(entry.place, f"{what}; make them apart, or the same")
            found[name] = network
            places[name] = entry.place
        return found

    def _addresses(self, networks: dict[str, ipaddress.IPv4Network | ipaddress.IPv6Network]) -> None:
        for name, key in NETWORKS.items():
            if key in self._given:
                continue
            taken: dict[tuple[str, str], str] = {}
            for host in self._inventory.hosts:
                entry = self._inventory.value(host, key)
                if entry is None or entry.value.template or not entry.value.text:
                    continue
                text = entry.value.text
                port = self._inventory.value(host, "ansible_port") if key == "ansible_host" else None
                first = taken.setdefault((text, port.value.text if port else ""), host)
                if first != host:
                    self._findings.error(entry.place, f"{key} of {host} is {text}, which {first} has too; give each host its own")
                address = _address(text)
                network = networks.get(name)
                if address is None or network is None:
                    continue
                if address not in network:
                    what = f"{key} of {host} is {text}, outside of site_{name}_network {network}"
                    self._findings.error(entry.place, f"{what}; change one of them")
                elif network.version == 4 and network.prefixlen < 31 and address in (network[0], network[-1]):
                    what = f"{key} of {host} is {text}, which stands for the whole site_{name}_network {network}"
                    self._findings.error(entry.place, f"{what}; give the host another one")

    def _mtu(self) -> None:
        key = "site_cluster_mtu"
        if key in self._given:
            return
        entries = {host: self._inventory.value(host, key) for host in self._inventory.members("compute")}
        values = {
            host: entry.value.text if entry else str(KEYS[key].default)
            for host, entry in entries.items()
            if entry is None or entry.value.kind == "number"
        }
        most = max(values.values(), key=[*values.values()].count, default="")
        for host, value in values.items():
            if value != most:
                entry = entries[host]
                what = f"{key} of {host} is {value}, and {most} on most nodes: larger packets are lost"
                self._findings.error(entry.place if entry else self._operators_file(), f"{what}; give all the same")

    def _firewall(self) -> None:
        """It lets in the site's networks, and so must know by which one Ansible, MUNGE's and Slurm's hosts meet."""
        asked = self._site("base_firewall")
        if asked is None or asked.value.text.lower() not in ("true", "yes") or "site_management_network" in self._given:
            return
        if not (network := self._site("site_management_network")) or not network.value.text:
            what = "base_firewall without site_management_network: hosts would not let each other in"
            self._findings.error(asked.place, f"{what}; write site_management_network: 10.0.0.0/22")

    def _apt_sources(self) -> None:
        for _, variables in self._inventory.variables:
            for name in ("base_apt_sources", "muster_apt_source"):
                if not (entry := variables.get(name)) or name in self._given:
                    continue
                lines = entry.value.data if entry.value.kind == "list" else [entry.value]
                for line in lines:
                    if not line.template and line.text and not _APT_SOURCE.fullmatch(line.text):
                        what = f"{name} has {line.text}, which is no line of a sources.list"
                        self._findings.error(line.place, f"{what}; write deb http://mirror.example.com/debian bookworm main")

    def _users(self) -> None:
        error = self._findings.error
        for node, variables in self._inventory.variables:
            if node.name != "all" and (entry := variables.get("base_users")):
                error(entry.place, f"base_users of {node.name} alone: all hosts must have the same ones; write them into group_vars/all.yml")
        found = self._site("base_users")
        if not found or found.value.kind != "mapping":
            return
        taken: dict[str, str] = {}
        for name, entry in found.value.items.items():
            value = entry.value
            if value.template:
                continue
            uid = value.items["uid"].value.text if "uid" in value.items else ""
            if not _USER_NAME.fullmatch(name):
                error(entry.place, f"{name} of base_users is no user's name; use a-z, 0-9, - and _, and begin with a letter")
            elif wrong := set(value.items) - _USER_KEYS:
                error(entry.place, f"{min(wrong)} of user {name} is none of {', '.join(sorted(_USER_KEYS))}")
            elif not uid.isdecimal() or int(uid) not in _USER_IDS:
                what = f"user {name} has {f'the uid {uid}' if uid else 'no uid'}; all hosts must have the same one"
                error(entry.place, f"{what}: write uid: {_USER_IDS.start + 1000}, from {_USER_IDS.start} to {_USER_IDS.stop - 1}")
            elif (first := taken.setdefault(uid, name)) != name:
                error(entry.place, f"user {name} has the uid {uid}, which {first} has too; give each user an own one")

    # Hosts and groups.

    def _groups(self) -> None:
        inventory, error = self._inventory, self._findings.error
        known = set(GROUPS) | {"all", "ungrouped"}
        placed = {host for group in GROUPS for host in inventory.members(group)}
        for name, group in inventory.groups.items():
            lost = [host for host in inventory.members(name) if host not in placed]
            if name not in known and lost:
                instead = did_you_mean(name, set(GROUPS)) or f"; put them into one of {', '.join(GROUPS)}, or {name} below one"
                error(group.place, f"unknown group {name}, and {_some(lost)} in no known one{instead}")
        for name, host in inventory.hosts.items():
            if name not in placed and not set(inventory.ancestors(host)) - {"ungrouped"}:
                error(host.place, f"host {name} is in no group; put it into one of {', '.join(GROUPS)}")
            if name in inventory.groups:
                error(host.place, f"{name} is the name of a host and of a group; rename one")
        controllers, compute, mons = (inventory.members(name) for name in ("controller", "compute", "mon"))
        if not controllers:
            error(self._where("controller"), "no controller: group controller must have the host where slurmctld runs")
        if len(controllers) > 1:
            what = f"{len(controllers)} controllers, {_some(controllers)}; keep one: a backup of slurmctld belongs to group login"
            error(self._where("controller"), what)
        if len(databases := inventory.members("database")) > 1:
            what = f"{len(databases)} hosts with the database, {_some(databases)}; keep one: slurmdbd and MariaDB have one host"
            error(self._where("database"), what)
        if not compute:
            error(self._where("compute"), "no compute nodes: group compute must have the hosts that run tasks")
        if mons and len(mons) % 2 == 0:
            what = f"{len(mons)} mons, {_some(mons)}: Ceph stops with the loss of {_half(len(mons))}, as with one mon less"
            error(self._where("mon"), f"{what}; make it {len(mons) - 1} or {len(mons) + 1}")

    # Ceph.

    def _ceph(self) -> None:
        inventory, error = self._inventory, self._findings.error
        mons, hosts = inventory.members("mon"), inventory.members("osd")
        if mons and not hosts:
            what = f"mons, {_some(mons)}, and no disks: group osd must have the hosts with Ceph's disks"
            error(self._where("mon"), f"{what}; without Ceph, take group mon away")
        if hosts and not mons:
            what = f"hosts with Ceph's disks, {_some(hosts)}, and no mon"
            error(self._where("osd"), f"{what}; put one of them into group mon, or three, or five")
        if "ceph_osd_devices" in self._given:
            return
        entries = {host: inventory.value(host, "ceph_osd_devices") for host in hosts}
        counts = {host: len(entry.value.data) if entry and entry.value.kind == "list" else 0 for host, entry in entries.items()}
        if (without := [host for host, count in counts.items() if count == 0]) and not self._unread:
            what = f"ceph_osd_devices is missing, for {_some(without)}: {_lower(KEYS['ceph_osd_devices'].about)}"
            error(self._operators_file(), what)
        for entry in {entry.place: entry for entry in entries.values() if entry and entry.value.kind == "list"}.values():
            self._disks(entry.value.data)
        size = self._site("ceph_pool_size")
        if not size or not size.value.text.isdecimal() or not hosts or without:
            return
        most, of = (len(hosts), "hosts have disks") if len(hosts) > 1 else (counts[hosts[0]], f"disks are there, on {hosts[0]}")
        if int(size.value.text) > most:
            error(size.value.place, f"ceph_pool_size is {size.value.text}, and {most} {of}: each has one copy; write at most {most}")

    def _disks(self, items: list[Value]) -> None:
        seen: set[str] = set()
        for item in items:
            if item.template:
                continue
            path = item.items["path"].value.text if "path" in item.items else item.text
            instead = self._bad_disk(item, path)
            if instead:
                self._findings.error(item.place, f"ceph_osd_devices has {path or item.what}: {instead}")
            elif path in seen:
                self._findings.error(item.place, f"ceph_osd_devices has {path} twice; keep one")
            seen.add(path)

    @staticmethod
    def _bad_disk(item: Value, path: str) -> str:
        """What would be right instead; "" where it is right."""
        example = "{path: /var/lib/ceph/osd.img, size: 20G}"
        if item.kind == "text":
            return "" if path.startswith("/dev/") else f"no device below /dev; a file is written as {example}"
        if item.kind != "mapping" or set(item.items) != {"path", "size"}:
            return f"write /dev/disk/by-id/NAME of a device, or a file as {example}"
        if not path.startswith("/") or any(PurePosixPath(path).is_relative_to(below) for below in _NO_DISK):
            return "Ceph's units see no such file; choose one below /var/lib/ceph or /srv"
        size = item.items["size"].value.text
        return "" if _DISK_SIZE.fullmatch(size) else f"its size is {size or 'missing'}; write 20G, or 2T"

    def _where(self, group: str) -> Place:
        found = self._inventory.groups.get(group)
        return found.place if found else self._inventory.place

    def _names(self) -> None:
        inventory = self._inventory
        alike: dict[str, str] = {}
        for name, host in inventory.hosts.items():
            first = alike.setdefault(name.lower(), name)
            if first != name:
                what = f"hosts {first} and {name} differ in case alone: names of hosts have none; keep one, or rename one"
                self._findings.error(host.place, what)
        compute = inventory.members("compute")
        for name in compute:
            if _NODE_NAME.fullmatch(name) and name.lower() not in _RESERVED:
                continue
            place = inventory.hosts[name].place
            if _address(name) is not None:
                instead = f"give the node a name, with ansible_host: {name}"
            elif _NODE_NAME.fullmatch(name.split(".")[0]):
                instead = f"write {name.split('.')[0]}, with ansible_host: {name}" if "." in name else "give it another name"
            else:
                instead = "use letters, digits, - and _, at most 63"
            self._findings.error(place, f"{name} cannot be a NodeName of Slurm; {instead}")

    def _switches(self) -> None:
        """Slurm gives a node that is below no switch to no job."""
        error = self._findings.error
        found = self._site("slurm_controller_switches")
        if not found or found.value.kind != "mapping" or not found.value.items:
            return
        switches, compute = found.value.items, self._inventory.members("compute")
        below: dict[str, str] = {}
        for name, entry in switches.items():
            if entry.value.template:
                return
            words = dict(word.partition("=")[::2] for word in entry.value.text.split())
            if set(words) - _SWITCH or not {"Nodes", "Switches"} & set(words):
                what = f"switch {name} is {entry.value.text or entry.value.what}"
                error(entry.place, f"{what}; write Nodes=n[01-16], or Switches=leaf[1-4]")
                return
            try:
                nodes, children = (_hostlist(words.get(key, "")) for key in ("Nodes", "Switches"))
            except ValueError as wrong:
                error(entry.place, f"switch {name}: {wrong}")
                return
            for child in children:
                if child not in switches:
                    error(entry.place, f"switch {name} has {child} below it, which is no switch{did_you_mean(child, set(switches))}")
            for node in nodes:
                if node not in compute:
                    error(entry.place, f"switch {name} has {node}, which is no compute node{did_you_mean(node, set(compute))}")
                elif below.setdefault(node, name) != name:
                    error(entry.place, f"switch {name} has {node}, which is below {below[node]} already; keep one")
        if lost := [node for node in compute if node not in below]:
            error(found.place, f"no switch has {_some(lost)}: no job would get it; give it one")

    def _required(self) -> None:
        for name, key in KEYS.items():
            # An uninstall needs no muster_config, so that the role does not require it.
            if name in self._given or not (key.required or name == "muster_config"):
                continue
            hosts = {host for group in ROLES.get(key.owner, ()) for host in self._inventory.members(group)}
            without = [host for host in self._inventory.hosts if host in hosts and not self._inventory.value(host, name)]
            if without:
                self._findings.error(self._operators_file(), f"{name} is missing, for {_some(without)}: {_lower(key.about)}")

    # muster.yaml.

    def _muster_config(self) -> None:
        if "muster_config" in self._given:
            return
        configs = [entry for host in self._inventory.hosts if (entry := self._inventory.value(host, "muster_config"))]
        stores: dict[str, Place] = {}
        for config in {entry.place: entry for entry in configs}.values():
            if config.value.kind != "mapping":
                continue
            self._muster_yaml(config)
            if (store := config.value.items.get("store")) and not store.value.template:
                stores.setdefault(store.value.text, store.place)
        for text, place in list(stores.items())[1:]:
            self._findings.error(place, f"store {text}, and {next(iter(stores))} of other hosts; all must have the same one")

    def _operators_file(self) -> Place:
        """Where the keys of the whole site stand."""
        first = next(iter(self._inventory.groups["all"].variables.values()), None)
        return Place(first.place.file, 1) if first else self._inventory.place

    def _muster_yaml(self, config: Entry) -> None:
        error = self._findings.error
        keys = config.value.items
        for name, entry in keys.items():
            value = entry.value
            if name not in MUSTER_YAML:
                error(entry.place, f"{name} is no key of muster.yaml{did_you_mean(name, set(MUSTER_YAML))}")
            elif value.template:
                continue
            elif value.kind == "flag":
                word = "yes" if value.text.lower() in ("yes", "true", "on") else "no"
                error(entry.place, f'{name}: {value.text} is no text for YAML, and musterd would refuse it; write "{word}", in quotes')
            elif value.kind in ("list", "mapping", "nothing"):
                error(entry.place, f"{name} of muster_config is {value.what}; it must be a text or a number")
            elif name in _PORTS and value.text.isdecimal() and int(value.text) >= _PRIVILEGED:
                why = "a user's program can take it while musterd restarts; choose one below 1024"
                self._findings.warning(entry.place, f"{name} {value.text}: {why}")
        if "store" not in keys:
            error(config.place, "muster_config has no store; write store: rados:POOL, or store: dir:/PATH for a directory that all share")
        elif not keys["store"].value.template and keys["store"].value.text:
            self._store(keys["store"], keys)

    def _store(self, store: Entry, keys: dict[str, Entry]) -> None:
        error = self._findings.error
        kind, _, rest = store.value.text.partition(":")
        if kind == "rados" and rest:
            if "ceph_user" not in keys and not self._inventory.members("mon") and self._inventory.complete:
                what = f"store {store.value.text} without a Ceph user: there is no group mon, so no playbook makes one"
                error(store.place, f"{what}; write ceph_user: NAME, whose keyring is on each compute node in /etc/ceph")
        elif kind == "dir" and rest.startswith("/"):
            path = PurePosixPath(rest)
            nodes = self._inventory.members("compute")
            own = str(path) == _OWN_STORE or any(path.is_relative_to(below) for below in _OWN)
            if own and len(nodes) > 1:
                what = f"store {store.value.text} is a directory of one node alone, and there are {len(nodes)} compute nodes"
                error(store.place, f"{what}; give a directory that all nodes share, or rados:POOL")
        else:
            error(store.place, f"store {store.value.text}; write rados:POOL or dir:/PATH")


def _half(count: int) -> str:
    return "one" if count == 2 else f"{count // 2} of them"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _some(names: list[str]) -> str:
    """The first names of a list, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def check(sources: list[Path], decrypt: Decrypt, given: Collection[str] = ()) -> list[Finding]:
    """What is wrong with inventories and the variables beside them. given: keys that come from elsewhere, as with -e."""
    findings = Findings()
    reader = Reader(findings, decrypt)
    inventory = load(sources, reader)
    _Checks(inventory, findings, bool(reader.unread), given).run()
    return findings.all()
