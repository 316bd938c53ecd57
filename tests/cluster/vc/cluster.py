"""The cluster as a whole: what the command and the tests use."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from . import host, muster, slurm, users
from .ceph import OSDS, Ceph
from .cgroups import Cgroups
from .host import ClusterError
from .names import CEPH_NODE, CONTROLLER, REPOSITORY, Names
from .network import Network
from .node import Daemon, Node
from .wait import wait_until

START_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Options:
    """How a cluster is started. Kept in its directory, for the commands that come later."""

    nodes: int = 4
    ceph: bool = True
    osds: int = OSDS
    ceph_of: str = ""  # with ceph=False: the cluster, which runs and outlives this one, whose Ceph this one has too
    muster: bool = True
    cpus: int = 8
    build: str = str(REPOSITORY / "build")
    settings: dict[str, str] = field(default_factory=dict)  # of muster.yaml
    slurm: dict[str, str] = field(default_factory=dict)  # of slurm.conf
    topology: list[str] = field(default_factory=list)  # lines of topology.conf; slurmctld needs a TopologyPlugin too
    plugins: list[str] = field(default_factory=list)  # plugstack.conf, before Muster's line


class Cluster:
    """A cluster of this name, which need not run yet. As a context manager: start on entry, stop on exit.

    Every method raises ClusterError with a text for a person. Programs (command, popen, exec, user) may be run from
    several threads at once, everything else from one.
    """

    def __init__(self, name: str | None = None, options: Options | None = None, **changes: Any) -> None:
        """Without a name, a name of this process. `changes` are fields of Options: Cluster("x", nodes=2)."""
        self.names = Names(name or f"t{os.getpid()}")
        self.options = options or Options(**changes)
        self._abort = threading.Event()
        self._report: Callable[[str], None] = lambda text: None
        self._assemble(None)

    @classmethod
    def open(cls, name: str) -> "Cluster":
        """A cluster that runs."""
        cluster = cls(name)
        try:
            state = json.loads((cluster.directory / "cluster.json").read_text())
        except FileNotFoundError:
            raise ClusterError(f"no cluster named '{name}' runs (there is no {cluster.directory})") from None
        cluster.options = Options(**state["options"])
        cluster._assemble(state["subnet"])
        return cluster

    @property
    def directory(self) -> Path:
        return self.names.directory

    @property
    def _has_ceph(self) -> bool:
        return self.options.ceph or self.options.ceph_of != ""

    @property
    def compute_nodes(self) -> list[str]:
        return [f"n{i}" for i in range(1, self.options.nodes + 1)]

    @property
    def all_nodes(self) -> list[str]:
        return [CONTROLLER, *([CEPH_NODE] if self.options.ceph else []), *self.compute_nodes]

    def __enter__(self) -> "Cluster":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- life of the cluster

    def start(self, report: Callable[[str], None] = lambda text: None) -> None:
        """Starts everything and returns when it is ready. On any failure or interruption nothing is left."""
        self._report = report
        self._check()
        try:
            self.directory.mkdir()
        except FileExistsError:
            raise ClusterError(
                f"a cluster named '{self.names.name}' exists already ({self.directory}): stop it with "
                f"`vcluster stop --name {self.names.name}`, or take another --name"
            ) from None
        except FileNotFoundError:
            raise ClusterError(f"{self.directory.parent} (MUSTER_VC_DIR) does not exist") from None
        pool = ThreadPoolExecutor(max_workers=16)
        try:
            self._start(pool)
        except BaseException:
            self._abort.set()
            self._destroy(pool)
            raise
        finally:
            pool.shutdown()
        self._report = lambda text: None

    def stop(self, keep_logs: Path | None = None) -> bool:
        """Removes the cluster and every trace of it, also of a start that was interrupted; False if none was."""
        existed = self.directory.exists()
        if keep_logs is not None and (self.directory / "log").exists():
            shutil.copytree(self.directory / "log", keep_logs, dirs_exist_ok=True)
        self._destroy(None)
        return existed

    def status(self) -> dict[str, Any]:
        """Everything about the cluster, as `vcluster status --json` prints it."""
        nodes = []
        for name in self.all_nodes:
            node = self._nodes[name]
            init = node.init_pid()
            up = "up" if self.network.is_up(name) else "cut"
            nodes.append(
                {
                    "hostname": name,
                    "ip": self.network.address(name),
                    "init_pid": init,
                    "state": "dead" if init is None else up,
                    "daemons": node.daemons(),
                }
            )
        return {
            "name": self.names.name,
            "directory": str(self.directory),
            "logs": str(self.directory / "log"),
            "subnet": f"{self.network.subnet}.0/24",
            "bridge": self.names.bridge,
            "options": asdict(self.options),
            "nodes": nodes,
            "ceph": self._nodes[CEPH_NODE].daemons() if self.options.ceph else {},
        }

    # --- programs

    def command(self, node: str, argv: list[str], user: str | None = None, **kw: Any) -> list[str]:
        """The host command that runs a program in a node: as root in /, or as a user at home.

        kw: env (added to the clean environment), cwd.
        """
        return self._node(node).command(argv, user=user, **kw)

    def popen(
        self,
        node: str,
        argv: list[str],
        user: str | None = None,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        **kw: Any,
    ) -> "subprocess.Popen[str]":
        """A running program in a node. Signals sent to it reach the program; kill() kills it. kw: as of Popen."""
        return subprocess.Popen(self.command(node, argv, user, env=env, cwd=cwd), **({"text": True} | kw))

    def exec(
        self,
        node: str,
        argv: list[str],
        user: str | None = None,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        **kw: Any,
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a program as root in a node to its end. kw: as of subprocess.run; output is captured as text."""
        defaults = {"text": True, "capture_output": "stdout" not in kw and "stderr" not in kw}
        if "input" not in kw:
            defaults |= {"stdin": subprocess.DEVNULL}
        return subprocess.run(self.command(node, argv, user, env=env, cwd=cwd), **(defaults | kw))

    def user(
        self, node: str, argv: list[str], user: str = "trainer", **kw: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a program as an ordinary user, as exec() does for root."""
        return self.exec(node, argv, user=user, **kw)

    def user_popen(self, node: str, argv: list[str], user: str = "trainer", **kw: Any) -> "subprocess.Popen[str]":
        """popen() as an ordinary user."""
        return self.popen(node, argv, user=user, **kw)

    # --- faults

    def kill(self, node: str) -> None:
        """The node loses its power: nothing of it survives, and its peers hear nothing of it any more."""
        target = self._node(node)
        if target.init_pid() is None:
            raise ClusterError(f"node {node} is dead already")
        # The cable first: else the kernel would say goodbye on every connection, as no dead machine does.
        self.network.set_up(node, False)
        target.kill()
        self.network.remove(node)

    def cut(self, node: str) -> None:
        """The node's network is gone; everything on it runs on."""
        self._alive(node)
        self.network.set_up(node, False)

    def heal(self, node: str) -> None:
        """The network of a cut node is back."""
        self._alive(node)
        self.network.set_up(node, True)

    def revive(self, node: str) -> None:
        """A killed node starts again, with its daemons."""
        if self._node(node).init_pid() is not None:
            raise ClusterError(f"node {node} is alive")
        self.network.remove(node)
        with ThreadPoolExecutor(max_workers=4) as pool:
            self._boot([node], pool)
        if node == CEPH_NODE:
            for name in self._ceph.daemon_names():
                self._ceph.start_daemon(name)
            return
        self._start_munged(node)
        if self.options.muster:
            self._start_musterd(node)
        self._nodes[node].start(self._daemon(node, "slurmctld" if node == CONTROLLER else "slurmd"))

    def start_daemon(self, node: str, daemon: str, env: dict[str, str] | None = None) -> None:
        """Starts munged, slurmd, slurmctld or musterd, or on `ceph` mon.a, mgr.x or osd.N.

        Returns when munged, musterd and slurmctld accept connections; of the others when they have been started.
        `env` is added to musterd's environment.
        """
        self._alive(node)
        if node == CEPH_NODE:
            self._ceph.start_daemon(daemon)
        elif daemon == "munged":
            self._start_munged(node)
        elif daemon == "musterd":
            self._start_musterd(node, env)
        else:
            self._nodes[node].start(self._daemon(node, daemon))
            if daemon == "slurmctld":
                self._wait_for_slurmctld()

    def stop_daemon(self, node: str, daemon: str, signal_number: int = signal.SIGTERM, timeout: float = 15) -> None:
        """Stops a daemon and waits until it has gone; one that does not go in time gets SIGKILL."""
        self._known(node, daemon)
        self._alive(node).stop(daemon, signal_number, timeout)

    def restart_daemon(self, node: str, daemon: str) -> None:
        """Stops a daemon and starts it again."""
        self.stop_daemon(node, daemon)
        self.start_daemon(node, daemon)

    def process_start(self, node: str, pid: int) -> float | None:
        """When a process, by the node's own number, has started, in seconds of CLOCK_BOOTTIME to 10 ms. None: there is none."""
        path = self._node(node).host_path(f"/proc/{pid}/stat")
        try:
            stat = path.read_text() if path is not None else ""
        except (FileNotFoundError, ProcessLookupError):
            return None
        return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK") if stat else None

    def daemon_pid(self, node: str, daemon: str) -> int | None:
        """The host pid of a daemon, None when it does not run."""
        self._known(node, daemon)
        return self._node(node).daemon_pid(daemon)

    def signal_daemon(self, node: str, daemon: str, signal_number: int) -> None:
        """Sends a signal to a daemon, such as SIGSTOP, and waits for nothing."""
        self._known(node, daemon)
        self._alive(node).signal(daemon, signal_number)

    # --- what start() does

    def _check(self) -> None:
        if os.geteuid() != 0:
            raise ClusterError("virtual nodes need root")
        if not 1 <= self.options.nodes <= 200:
            raise ClusterError(f"--nodes {self.options.nodes}: 1 to 200")
        needed = ["slurmctld", "slurmd", "munged", "ip", "unshare"]
        needed += ["ceph-mon", "ceph-osd", "ceph-mgr"] if self.options.ceph else []
        host.require_programs(needed)
        build = Path(self.options.build)
        if self.options.muster and (lacking := muster.missing(build)):
            raise ClusterError(f"{build} lacks {', '.join(lacking)}: build first, or use --no-muster")

    def _assemble(self, subnet: str | None) -> None:
        self.network = Network(self.names, subnet)
        self._cgroups = Cgroups(self.names)
        self._nodes = {name: Node(self.names, self._cgroups, name) for name in self.all_nodes}
        if self.options.ceph:
            self._ceph = Ceph(self.names, self.network, self._nodes[CEPH_NODE], self.options.osds)

    def _start(self, pool: ThreadPoolExecutor) -> None:
        began = time.monotonic()

        def say(text: str) -> None:
            self._report(f"[{time.monotonic() - began:4.1f} s] {text}")

        self._remove_leftovers()  # of a cluster whose directory somebody deleted
        self.network.create()
        say(f"cluster '{self.names.name}' in {self.directory}, network {self.network.subnet}.0/24")
        self._write_files()
        self._cgroups.create(self.all_nodes)
        if self.options.ceph_of:
            other = Cluster.open(self.options.ceph_of)
            self.network.join(other.network)
            other._route(CEPH_NODE, self.network)
        self._boot(self.all_nodes, pool)
        say(f"nodes: {CONTROLLER}, n1 to n{self.options.nodes}{', ceph' if self.options.ceph else ''}")
        ceph = pool.submit(self._ceph.start, self._give_up, pool) if self.options.ceph else None
        self._start_slurm(pool, say, ceph)
        if ceph is not None:
            self._wait_for([ceph])
            say(f"Ceph is ready: 1 mon, 1 mgr, {self.options.osds} OSDs, pool muster")
        if self.options.muster:
            nodes = [CONTROLLER, *self.compute_nodes]
            self._wait_for([pool.submit(self._start_musterd, node) for node in nodes])
            say("musterd is ready on all nodes")

    def _write_files(self) -> None:
        for name in ("log", "tmp", "store", "nodes", "etc"):
            (self.directory / name).mkdir()
        os.chmod(self.directory / "tmp", 0o1777)
        with contextlib.suppress(ValueError):
            (self.directory / "tmp" / self.directory.relative_to("/tmp")).mkdir(parents=True)
        users.write(self.names, {name: self.network.address(name) for name in self.all_nodes})
        plugins = [*self.options.plugins, *([slurm.plugstack_line()] if self.options.muster else [])]
        slurm.write_config(
            self.names,
            self.network,
            self.compute_nodes,
            self.options.cpus,
            self.options.slurm,
            plugins,
            self.options.topology,
        )
        muster.write_config(self.names, self._has_ceph, self.options.settings)
        for name in ("ceph", "ceph-admin"):
            if self.options.ceph_of:
                shutil.copytree(Names(self.options.ceph_of).directory / "etc" / name, self.directory / "etc" / name)
            else:
                (self.directory / "etc" / name).mkdir()
        if self.options.ceph:
            self._ceph.write_config()
        state = {"options": asdict(self.options), "subnet": self.network.subnet}
        host.write(self.directory / "cluster.json", json.dumps(state, indent=2) + "\n")

    def _boot(self, names: list[str], pool: ThreadPoolExecutor) -> None:
        build = Path(self.options.build).resolve()
        etc = self.directory / "etc"

        def boot(name: str) -> None:
            self._give_up()
            state = self.directory / "store"
            if self._has_ceph:  # nothing is shared then but what RADOS holds
                state = self.directory / "nodes" / name / "muster"
                state.mkdir(parents=True, exist_ok=True)
            self._nodes[name].boot(
                f"{self.network.address(name)}/24",
                build if build.is_dir() else None,
                etc / ("ceph-admin" if name in (CONTROLLER, CEPH_NODE) else "ceph"),
                state,
            )

        self._wait_for([pool.submit(boot, name) for name in names])
        self.network.connect({name: self._nodes[name].init_of_booting() for name in names})
        self._wait_for([pool.submit(self._nodes[name].plug) for name in names])
        if self.options.ceph_of:
            other = Cluster.open(self.options.ceph_of)
            for name in names:
                self._route(name, other.network)

    def _route(self, node: str, to: Network) -> None:
        """A joined network is on the node's own cable."""
        host.run(self.command(node, ["ip", "route", "replace", f"{to.subnet}.0/24", "dev", "eth0"]))

    def _start_slurm(
        self, pool: ThreadPoolExecutor, say: Callable[[str], None], other: "Future[None] | None"
    ) -> None:
        def controller() -> None:
            self._start_munged(CONTROLLER)
            self._nodes[CONTROLLER].start(slurm.slurmctld())
            self._wait_for_slurmctld()

        def compute(name: str, ready: "Future[None]") -> None:
            self._start_munged(name)
            ready.result()
            self._give_up()
            self._nodes[name].start(slurm.slurmd(name))

        ready = pool.submit(controller)
        parts = [ready, *(pool.submit(compute, name, ready) for name in self.compute_nodes)]
        self._wait_for(parts)
        self._wait_for_nodes(self.compute_nodes, other)
        say(f"Slurm is ready: {self.options.nodes} nodes idle")

    def _start_munged(self, node: str) -> None:
        self._give_up()
        self._start_and_wait(node, slurm.MUNGED, lambda target: _listens(target, slurm.MUNGE_SOCKET))

    def _start_musterd(self, node: str, env: dict[str, str] | None = None) -> None:
        self._give_up()
        self._start_and_wait(node, replace(muster.MUSTERD, env=env or {}), muster.accepts)

    def _wait_for_slurmctld(self) -> None:
        def ready(_: Node) -> bool:
            address = (self.network.address(CONTROLLER), slurm.SLURMCTLD_PORT)
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=1):
                return True
            return False

        self._wait_for_daemon(CONTROLLER, slurm.slurmctld(), ready)

    def _wait_for_nodes(self, nodes: list[str], other: "Future[None] | None" = None) -> None:
        def idle() -> bool:
            self._give_up()
            if other is not None and other.done():
                other.result()
            for name in nodes:
                if self._nodes[name].daemon_pid("slurmd") is None:
                    raise ClusterError(
                        f"slurmd on {name} has ended:\n{self._nodes[name].failure(slurm.slurmd(name))}"
                    )
            states = self.exec(CONTROLLER, ["sinfo", "-h", "-N", "-o", "%N %t"]).stdout.split()
            return all(states[i + 1] == "idle" for i in range(0, len(states), 2)) and len(states) == 2 * len(nodes)

        wait_until(idle, START_TIMEOUT_S, f"idle nodes ({self.directory}/log)", interval=0.1)

    def _start_and_wait(self, node: str, daemon: Daemon, ready: Callable[[Node], bool]) -> None:
        self._nodes[node].start(daemon)
        self._wait_for_daemon(node, daemon, ready)

    def _wait_for_daemon(self, node: str, daemon: Daemon, ready: Callable[[Node], bool]) -> None:
        target = self._nodes[node]

        def done() -> bool:
            self._give_up()
            if ready(target):
                return True
            if target.daemon_pid(daemon.name) is None:
                raise ClusterError(f"{daemon.name} on {node} has ended:\n{target.failure(daemon)}")
            return False

        try:
            wait_until(done, START_TIMEOUT_S, f"{daemon.name} on {node}")
        except ClusterError as error:
            raise ClusterError(f"{error}\n{target.failure(daemon)}") from None

    def _wait_for(self, parts: "list[Future[None]]") -> None:
        """Waits for all; the first failure makes the others give up."""
        try:
            for part in parts:
                part.result()
        except BaseException:
            self._abort.set()
            raise

    def _give_up(self) -> None:
        if self._abort.is_set():
            raise ClusterError("given up")

    # --- what stop() does

    def _destroy(self, pool: ThreadPoolExecutor | None) -> None:
        """Removes everything. Not to be interrupted: the signals that would are ignored in the main thread."""
        with host.uninterrupted():
            if pool is not None:
                # Until the last one gives up it may start something that nobody has killed yet, and that it waits for.
                last = threading.Thread(target=pool.shutdown)
                last.start()
                while last.is_alive():
                    self._kill()
                    last.join(0.05)
            self._kill()
            for node in self._nodes.values():
                node.reap()
            self._remove_leftovers()
            host.remove(self.directory)

    def _kill(self) -> None:
        self._cgroups.kill()
        for node in self._nodes.values():
            node.abort()

    def _remove_leftovers(self) -> None:
        self._cgroups.kill()
        self._cgroups.destroy()
        self.network.destroy()

    # --- checks

    def _node(self, name: str) -> Node:
        if name not in self._nodes:
            raise ClusterError(f"no node '{name}'; there are {', '.join(self._nodes)}")
        return self._nodes[name]

    def _alive(self, name: str) -> Node:
        node = self._node(name)
        if node.init_pid() is None:
            raise ClusterError(f"node {name} is dead")
        return node

    def _daemon(self, node: str, name: str) -> Daemon:
        of_slurm = slurm.slurmctld() if node == CONTROLLER else slurm.slurmd(node)
        daemons = {daemon.name: daemon for daemon in (slurm.MUNGED, muster.MUSTERD, of_slurm)}
        if name not in daemons:
            raise ClusterError(f"no daemon '{name}' on {node}; there are {', '.join(daemons)}")
        return daemons[name]

    def _known(self, node: str, daemon: str) -> None:
        if node == CEPH_NODE and self.options.ceph:
            if daemon not in self._ceph.daemon_names():
                raise ClusterError(f"no daemon '{daemon}'; there are {', '.join(self._ceph.daemon_names())}")
        else:
            self._node(node)
            self._daemon(node, daemon)


def _listens(node: Node, path: str) -> bool:
    at_host = node.host_path(path)
    if at_host is None:
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.connect(str(at_host))
        return True
    return False
