"""A small Ceph cluster on the virtual node `ceph`: one monitor, one manager, some OSDs, cephx on."""

import base64
import contextlib
import os
import pwd
import struct
import subprocess
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor

from . import host
from .host import ClusterError
from .names import CEPH_NODE, SOURCE_IN_NODE, Names
from .network import Network
from .node import Daemon, Node

OSDS = 3  # of a cluster of which nothing else is said
POOL = "muster"
_DATA = "/var/lib/ceph"
_SETUP = f"{SOURCE_IN_NODE}/tests/cluster/vc/ceph_setup.py"


def new_key() -> str:
    """A cephx secret, as `ceph-authtool --gen-print-key` makes it."""
    return base64.b64encode(struct.pack("<hiih", 1, int(time.time()), 0, 16) + os.urandom(16)).decode()


class Ceph:
    def __init__(self, names: Names, network: Network, node: Node, osds: int = OSDS) -> None:
        self._names = names
        self._network = network
        self._node = node
        self._osds = osds
        self._data = names.directory / "ceph"  # on the host; the node has it as _DATA
        self._osd_uuids: list[str] = []

    def write_config(self) -> None:
        """Writes keys, ceph.conf, and /etc/ceph of the nodes (ctl and ceph have the admin key too)."""
        owner = pwd.getpwnam("ceph")
        user = (owner.pw_uid, owner.pw_gid)
        self._data.mkdir()
        os.chown(self._data, *user)
        self._osd_uuids = [str(uuid.uuid4()) for _ in range(self._osds)]

        entries = {
            "mon.": ["mon = 'allow *'"],
            "client.admin": ["mon = 'allow *'", "osd = 'allow *'", "mgr = 'allow *'", "mds = 'allow *'"],
            "client.muster": ["mon = 'allow r'", f"osd = 'allow rwx pool={POOL}'"],
            "mgr.x": ["mon = 'allow profile mgr'", "osd = 'allow *'", "mds = 'allow *'"],
        }
        for i in range(self._osds):
            entries[f"osd.{i}"] = [
                "mon = 'allow profile osd'",
                "mgr = 'allow profile osd'",
                "osd = 'allow *'",
            ]
        keys = {name: new_key() for name in entries}

        def keyring(*names: str, caps: bool = False) -> str:
            return "".join(
                f"[{name}]\n\tkey = {keys[name]}\n"
                + "".join(f"\tcaps {cap}\n".replace("'", '"') for cap in entries[name] if caps)
                for name in names
            )

        for daemon in ["mon.a", "mgr.x", *(f"osd.{i}" for i in range(self._osds))]:
            (self._data / daemon).mkdir()
            os.chown(self._data / daemon, *user)
            if daemon != "mon.a":
                host.write(self._data / daemon / "keyring", keyring(daemon), 0o600, user)
        host.write(self._data / "initial.keyring", keyring(*entries, caps=True), 0o600, user)

        for directory, clients in {"ceph": ["muster"], "ceph-admin": ["muster", "admin"]}.items():
            etc = self._names.directory / "etc" / directory
            etc.mkdir(parents=True, exist_ok=True)
            host.write(etc / "ceph.conf", self._conf(str(uuid.uuid5(uuid.NAMESPACE_DNS, self._names.cgroup))))
            for client in clients:
                host.write(etc / f"ceph.client.{client}.keyring", keyring(f"client.{client}"), 0o600)

    def start(self, check: Callable[[], None], pool: Executor) -> None:
        """Makes and starts all daemons; returns when the pool takes writes and the manager is active.

        `check` raises when the start is to be given up.
        """
        monmap = f"{_DATA}/monmap"
        address = f"[v2:{self._network.address(CEPH_NODE)}:3300/0]"
        conf = (self._names.directory / "etc" / "ceph" / "ceph.conf").read_text()
        fsid = conf.partition("fsid = ")[2].split()[0]
        osds = [pool.submit(self._make_osd, i) for i in range(self._osds)]
        self._in_node(
            ["monmaptool", "--create", "--clobber", "--fsid", fsid, "--addv", "a", address]
            + ["--set-min-mon-release", "16", "--enable-all-features", monmap]
        )
        (self._data / "monmap").chmod(0o644)
        self._in_node(
            ["ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, *self._as_ceph()]
            + ["--keyring", f"{_DATA}/initial.keyring"]
        )
        (self._data / "initial.keyring").unlink()
        check()
        self.start_daemon("mon.a")
        self._setup("create", *self._osd_uuids)
        check()
        self.start_daemon("mgr.x")
        for i, osd in enumerate(osds):
            osd.result()
            check()
            self.start_daemon(f"osd.{i}")
        self._setup("wait", str(self._osds))

    def start_daemon(self, name: str) -> None:
        """Starts mon.a, mgr.x or osd.N."""
        self._node.start(self._daemon(name))

    def daemon_names(self) -> list[str]:
        return ["mon.a", "mgr.x", *(f"osd.{i}" for i in range(self._osds))]

    @staticmethod
    def _as_ceph() -> list[str]:
        return ["--setuser", "ceph", "--setgroup", "ceph"]

    def _daemon(self, name: str) -> Daemon:
        if name not in self.daemon_names():
            raise ClusterError(f"no Ceph daemon {name}; there are {', '.join(self.daemon_names())}")
        kind, _, identity = name.partition(".")
        return Daemon(name, [f"ceph-{kind}", "-f", "-i", identity, *self._as_ceph()])

    def _make_osd(self, number: int) -> None:
        self._in_node(
            ["ceph-osd", "--mkfs", "-i", str(number), "--no-mon-config", *self._as_ceph()]
            + ["--osd-uuid", self._osd_uuids[number]]
        )

    def _setup(self, *arguments: str) -> None:
        self._in_node(["/usr/bin/python3", _SETUP, *arguments])

    def _in_node(self, argv: list[str], timeout: float = 60) -> None:
        command = self._node.command(argv)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise ClusterError(f"`{' '.join(argv)}` took more than {timeout:g} s; {self._state()}") from None
        if done.returncode != 0:
            raise ClusterError(
                f"`{' '.join(argv)}` failed ({done.returncode}): {done.stderr.strip()[-2000:]}\n{self._state()}"
            )

    def _state(self) -> str:
        parts = []
        for name, pid in self._node.daemons().items():
            if pid is None:
                with contextlib.suppress(ClusterError):
                    parts.append(f"{name} has ended:\n{self._node.failure(self._daemon(name))}")
        return "\n".join(parts) or f"the logs are {self._names.directory}/log/ceph.*"

    def _conf(self, fsid: str) -> str:
        sections = [
            "[global]",
            f"fsid = {fsid}",
            "mon_initial_members = a",
            f"mon_host = [v2:{self._network.address(CEPH_NODE)}:3300/0]",
            f"public_network = {self._network.subnet}.0/24",
            "ms_bind_msgr1 = false",
            "auth_cluster_required = cephx",
            "auth_service_required = cephx",
            "auth_client_required = cephx",
            "auth_allow_insecure_global_id_reclaim = false",
            f"osd_pool_default_size = {self._osds}",
            f"osd_pool_default_min_size = {(self._osds + 1) // 2}",
            "mon_allow_pool_size_one = true",
            "mon_warn_on_pool_no_redundancy = false",
            "osd_pool_default_pg_autoscale_mode = off",
            # Detection in seconds, as tests and people at a terminal need it.
            "osd_heartbeat_grace = 4",
            "osd_heartbeat_interval = 1",
            "mon_osd_adjust_heartbeat_grace = false",
            "mon_osd_min_down_reporters = 1",
            # A small monitor decides at once instead of collecting proposals for a second.
            "paxos_propose_interval = 0.05",
            "paxos_min_wait = 0.01",
            # The host's disk may be rather full; that is not this cluster's business.
            "mon_data_avail_warn = 2",
            "mon_data_avail_crit = 1",
            "[mon]",
            f"mon_data = {_DATA}/mon.$id",
            "[mgr]",
            f"mgr_data = {_DATA}/mgr.$id",
            # Loading these costs more than all other daemons of Ceph take to start, and nobody asks them anything.
            "mgr_disabled_modules = balancer crash devicehealth iostat nfs orchestrator pg_autoscaler progress rbd_support restful status telemetry volumes",
            "[osd]",
            f"osd_data = {_DATA}/osd.$id",
            "osd_objectstore = bluestore",
            "bluestore_block_size = 21474836480",
            "bluestore_cache_autotune = false",
            "bluestore_cache_size = 67108864",
            "osd_memory_target = 939524096",
            # One that has been marked down so often within ten minutes ends: tests stop it and let it go on again and again.
            "osd_max_markdown_count = 1000000",
            "osd_crush_initial_weight = 1",
        ]
        for i in range(self._osds):
            sections += [f"[osd.{i}]", f"crush_location = root=default host=osd-host{i}"]
        for i, section in enumerate(sections):
            if section in ("[mon]", "[mgr]", "[osd]"):
                sections[i] += "\nlog_to_file = false\nlog_to_stderr = true\nerr_to_stderr = true"
                sections[i] += "\nmon_cluster_log_to_file = false"
        return "\n".join(sections) + "\n"
