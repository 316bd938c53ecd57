"""The rack as a whole: what tests and the command use."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from vc import host
from vc.host import ClusterError
from vc.names import Names
from vc.network import Network
from vc.wait import wait_until

from . import images, slurm
from .cgroups import HOST, RackCgroups, inside
from .machine import Bind, Boot, Machine
from .mirror import Mirror
from .playbooks import Playbooks

RUN_TIMEOUT_S = 180.0
_SLURM_TIMEOUT_S = 180.0
_BYTECODE = "/var/cache/bytecode"
_PYTHON = "/usr/lib/python3/dist-packages"
_PROGRAMS = ("systemd-nspawn", "mmdebstrap", "dpkg-scanpackages", "zstd", "ssh-keygen", "ip", "unshare")

# nspawn mounts the v1 controllers read-only. Those here are the machine's own, so that slurmd may have them.
_CGROUPS_UNIT = """\
[Unit]
DefaultDependencies=no
Before=sysinit.target

[Service]
Type=oneshot
ExecStart=/bin/mount -o remount,bind,rw /sys/fs/cgroup/freezer
ExecStart=/bin/mount -o remount,bind,rw /sys/fs/cgroup/memory
ExecStart=/bin/mount -o remount,bind,rw /sys/fs/cgroup/cpuset
ExecStart=/bin/mount -o remount,bind,rw /sys/fs/cgroup/devices
ExecStart=/bin/mount -o remount,bind,rw /sys/fs/cgroup/cpuacct
"""
# No machine may set a clock. chronyd runs all the same, and looks on.
_CHRONY_DROP_IN = """\
[Unit]
ConditionCapability=

[Service]
ExecStart=
ExecStart=!/usr/sbin/chronyd -F 1 -x
"""


@dataclass(frozen=True)
class Options:
    """What a rack has. Kept in its directory, for the commands that come later."""

    suite: str = images.BOOKWORM  # the machines' release of Debian
    nodes: int = 3  # n1, n2, ... beside ctl
    others: tuple[str, ...] = ()  # more machines, without Slurm
    slurm: bool = True  # a site that has Slurm; else blank machines
    debs: str | None = None  # a directory with Muster's packages


class Rack:
    """Machines of this name, which need not run yet. As a context manager: start on entry, stop on exit.

    Every method raises ClusterError with a text for a person. Programs (command, popen, run) may be run from several
    threads at once, everything else from one.
    """

    def __init__(self, name: str | None = None, options: Options | None = None, **changes: Any) -> None:
        """Without a name, a name of this process. `changes` are fields of Options: Rack("x", nodes=2)."""
        self.names = Names(name or f"t{os.getpid()}", "rack")
        self.options = options or Options(**changes)
        self._report: Callable[[str], None] = lambda text: None
        nodes = (f"n{i}" for i in range(1, self.options.nodes + 1))
        self._assemble(None, [slurm.CONTROLLER, *nodes, *self.options.others])

    @classmethod
    def open(cls, name: str) -> "Rack":
        """A rack that runs."""
        rack = cls(name)
        try:
            state = json.loads((rack.directory / "rack.json").read_text())
        except FileNotFoundError:
            raise ClusterError(f"no rack named '{name}' runs (there is no {rack.directory})") from None
        rack.options = Options(**state["options"])
        rack._assemble(state["subnet"], state["hosts"])
        return rack

    @property
    def directory(self) -> Path:
        return self.names.directory

    @property
    def hosts(self) -> list[str]:
        return list(self._machines)

    @property
    def nodes(self) -> list[str]:
        return [name for name in self._machines if name != slurm.CONTROLLER and name not in self.options.others]

    def root(self, name: str) -> Path:
        """A machine's file system as the host sees it."""
        return self._machine(name).root

    def memory(self) -> int:
        """The bytes that the programs and tmpfs of its machines, its mirror and Ansible have; the page cache is not in it."""
        return self._cgroups.memory()

    def shared(self, name: str) -> Path:
        """A directory that all machines have, `home` or `checkpoints`, as the host sees it."""
        return self.directory / "shared" / name

    def __enter__(self) -> "Rack":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- life of the rack

    def start(self, report: Callable[[str], None] = lambda text: None) -> None:
        """Starts everything and returns when it is ready. On any failure or interruption nothing is left."""
        self._report = report
        self._check()
        try:
            self.directory.mkdir()
        except FileExistsError:
            raise ClusterError(
                f"a rack named '{self.names.name}' exists already ({self.directory}): stop it with "
                f"`rackctl stop --name {self.names.name}`, or take another --name"
            ) from None
        try:
            self._start()
        except BaseException:
            self._destroy()
            raise

    def stop(self, keep_logs: Path | None = None) -> bool:
        """Removes the rack and every trace of it, also of a start that was interrupted; False if none was."""
        existed = self.directory.exists()
        if keep_logs is not None and (self.directory / "log").exists():
            self._collect_journals()
            shutil.copytree(self.directory / "log", keep_logs, dirs_exist_ok=True)
        self._destroy()
        return existed

    def add(self, name: str) -> None:
        """One more machine, which has what a node of this rack has before anything was done to it."""
        if name in self._machines:
            raise ClusterError(f"there is a machine '{name}' already")
        self._machines[name] = Machine(self.names, self._cgroups, name)
        self._cgroups.create([name])
        self._save()
        for machine in self._machines.values():
            if machine.init() is not None:
                host.write(machine.root / "etc" / "hosts", self._hosts_file())
        self._write_known_hosts()
        self._boot([name])

    # --- programs

    def command(self, name: str, argv: list[str], user: str | None = None, env: dict[str, str] | None = None) -> list[str]:
        """The host command that runs a program on a machine: as root in /, or as a user at home."""
        return self._machine(name).command(argv, user, env)

    def popen(
        self, name: str, argv: list[str], user: str | None = None, env: dict[str, str] | None = None, **kw: Any
    ) -> "subprocess.Popen[str]":
        """A running program on a machine. Signals sent to it reach the program; kill() kills it. kw: as of Popen."""
        return subprocess.Popen(self.command(name, argv, user, env), **({"text": True} | kw))

    def run(
        self,
        name: str,
        argv: list[str],
        user: str | None = None,
        env: dict[str, str] | None = None,
        timeout: float = RUN_TIMEOUT_S,
        check: bool = False,
        stdin: str | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a program on a machine to its end. With `check` one that fails raises ClusterError."""
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        try:
            done = subprocess.run(
                self.command(name, argv, user, env), capture_output=True, text=True, timeout=timeout, check=False, **given
            )
        except subprocess.TimeoutExpired:
            raise ClusterError(f"`{' '.join(argv)}` on {name} has not ended after {timeout:g} s") from None
        if check and done.returncode != 0:
            raise ClusterError(f"`{' '.join(argv)}` on {name} failed ({done.returncode}): {done.stderr.strip()}")
        return done

    # --- faults

    def kill(self, name: str) -> None:
        """The machine loses its power: nothing of it survives, and its peers hear nothing of it any more."""
        machine = self._machine(name)
        if machine.init() is None:
            raise ClusterError(f"machine {name} is dead already")
        # The cable first: else the kernel would say goodbye on every connection, as no dead machine does.
        self.network.set_up(name, False)
        machine.kill()
        self.network.remove(name)

    def revive(self, name: str) -> None:
        """A killed machine boots again, with the disk that it had."""
        if self._machine(name).init() is not None:
            raise ClusterError(f"machine {name} is alive")
        self._power_on([name])

    def replace(self, name: str) -> None:
        """In place of a killed machine another one boots, with its name and address and a blank disk."""
        machine = self._machine(name)
        if machine.init() is not None:
            raise ClusterError(f"machine {name} is alive")
        machine.wipe()
        self._boot([name])

    # --- what start() does

    def _check(self) -> None:
        if os.geteuid() != 0:
            raise ClusterError("a rack needs root")
        host.require_programs(_PROGRAMS)

    def _assemble(self, subnet: str | None, hosts: list[str]) -> None:
        self.network = Network(self.names, subnet, self.options.others)
        self._cgroups = RackCgroups(self.names)
        self._machines = {name: Machine(self.names, self._cgroups, name) for name in hosts}
        self.mirror = Mirror(self.names, self.network, self._cgroups)
        self.playbooks = Playbooks(self.names, self.network.address, lambda words: inside(self._cgroups, HOST, words))

    def _start(self) -> None:
        began = time.monotonic()

        def say(text: str) -> None:
            self._report(f"[{time.monotonic() - began:4.1f} s] {text}")

        self._remove_leftovers()  # of a rack whose directory somebody deleted
        for name in ("log", "images", "machines", "shared/home", "shared/checkpoints", "shared/bytecode", "ssh"):
            (self.directory / name).mkdir(parents=True)
        # A third of a GB that is read and thrown away: not for a disk that others are waiting for.
        host.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(self.directory / "images")])
        os.chmod(self.directory / "shared" / "checkpoints", 0o700)
        trainer = self.directory / "shared" / "home" / "trainer"
        trainer.mkdir(mode=0o700)
        os.chown(trainer, images.TRAINER, images.TRAINER)
        self.network.create()
        # A machine whose MTU becomes smaller, down to IPv6's least, would lose packets of connections that the host has to it.
        route = ["dev", self.names.bridge, "proto", "kernel", "scope", "link", "src", f"{self.network.subnet}.254"]
        host.run(["ip", "route", "replace", f"{self.network.subnet}.0/24", *route, "mtu", "1280"])
        self._cgroups.create([HOST, *self.hosts])
        self._save()

        root = images.root(self.options.suite)
        say(f"the root file system: {root}")
        self._unpack(root, "root")
        packages = images.packages(root, self.options.suite, slurm.PACKAGES)
        if self.options.slurm:
            for role, names in slurm.ROLES.items():
                self._unpack(images.layer(root, packages, names), role)
        debs = None if self.options.debs is None else Path(self.options.debs)
        self.mirror.start(packages, images.needed_by(root, self.options.suite, debs) if debs else None, debs)
        say(f"the site's mirror: {self.mirror.url}")
        if self.options.slurm:
            slurm.write_site(self.directory / "site", self.names.name, self.network, self.nodes)
        host.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.names.name, "-f", str(self.playbooks.key)])
        self._write_known_hosts()
        self._boot(self.hosts)
        say(f"{len(self.hosts)} machines are up: {', '.join(self.hosts)}")
        if self.options.slurm:
            self.wait_for_idle(self.nodes)
            say(f"Slurm is up: {len(self.nodes)} idle nodes")

    def wait_for_idle(self, nodes: list[str]) -> None:
        """Returns when Slurm says of these nodes that they are idle."""

        def idle() -> bool:
            done = self.run(slurm.CONTROLLER, ["sinfo", "-h", "-N", "-o", "%N %t"], timeout=60)
            states = dict(line.split() for line in done.stdout.splitlines())
            return all(states.get(name) == "idle" for name in nodes)

        wait_until(idle, _SLURM_TIMEOUT_S, f"idle nodes: {', '.join(nodes)}", interval=0.2)

    def _unpack(self, image: Path, kind: str) -> None:
        directory = self.directory / "images" / kind
        directory.mkdir()
        tar = ["tar", "--extract", "--zstd", "--xattrs", "--xattrs-include=*", f"--file={image}", f"--directory={directory}"]
        host.run(inside(self._cgroups, HOST, tar))  # with what it starts

    def _boot(self, names: list[str]) -> None:
        for name in names:
            self._prepare(name)
        self._power_on(names)

    def _power_on(self, names: list[str]) -> None:
        shared = self.directory / "shared"
        binds = [Bind(shared / "home", "/home"), Bind(shared / "checkpoints", "/srv/checkpoints"), Bind(shared / "bytecode", _BYTECODE)]
        boots: dict[str, Boot] = {name: self._machines[name].power_on(binds) for name in names}
        leaders = {name: boot.leader() for name, boot in boots.items()}
        self.network.connect(leaders)
        for name, leader in leaders.items():
            self._machines[name].record(leader)
        for boot in boots.values():
            boot.ready()

    def _prepare(self, name: str) -> None:
        """A machine's disk before its first boot."""
        machine = self._machines[name]
        has_slurm = self.options.slurm and name not in self.options.others
        kinds = [slurm.role(name), "root"] if has_slurm else ["root"]
        machine.prepare([self.directory / "images" / kind for kind in kinds])
        machine.write("/etc/hostname", f"{name}\n")  # what --hostname says is overruled by it
        machine.write("/etc/hosts", self._hosts_file())
        machine.write("/etc/machine-id", "")
        machine.write(
            "/etc/systemd/network/eth0.network",
            f"[Match]\nName=eth0\n\n[Network]\nAddress={self.network.address(name)}/24\nLinkLocalAddressing=no\n",
        )
        machine.write("/etc/apt/sources.list", self.mirror.sources())
        machine.write("/root/.ssh/authorized_keys", self.playbooks.key.with_suffix(".pub").read_text(), 0o600)
        machine.write("/etc/systemd/system/writable-cgroups.service", _CGROUPS_UNIT)
        machine.link("/etc/systemd/system/sysinit.target.wants/writable-cgroups.service", "../writable-cgroups.service")
        machine.write("/etc/systemd/system/chrony.service.d/container.conf", _CHRONY_DROP_IN)
        machine.write(f"{_PYTHON}/rack_bytecode.py", Path(__file__).with_name("bytecode.py").read_text())
        machine.write(f"{_PYTHON}/rack_bytecode.pth", f"import rack_bytecode; rack_bytecode.keep('{_BYTECODE}')\n")
        if has_slurm:
            slurm.install(machine, self.directory / "site")

    def _hosts_file(self) -> str:
        lines = ["127.0.0.1 localhost", *(f"{self.network.address(name)} {name}" for name in self._machines)]
        return "".join(line + "\n" for line in lines)

    def _write_known_hosts(self) -> None:
        key = (self.directory / "images" / "root" / "etc" / "ssh" / "ssh_host_ed25519_key.pub").read_text().split()
        lines = [f"{self.network.address(name)} {key[0]} {key[1]}" for name in self._machines]
        host.write(self.playbooks.known_hosts, "".join(line + "\n" for line in lines))

    def _save(self) -> None:
        state = {"options": asdict(self.options), "subnet": self.network.subnet, "hosts": self.hosts}
        host.write(self.directory / "rack.json", json.dumps(state, indent=2) + "\n")

    # --- what stop() does

    def _destroy(self) -> None:
        """Removes everything. Not to be interrupted: the signals that would are ignored in the main thread."""
        with host.uninterrupted():
            for machine in self._machines.values():
                machine.abort()
            self._remove_leftovers()
            for machine in self._machines.values():
                machine.reap()
            self.mirror.reap()
            host.remove(self.directory)

    def _remove_leftovers(self) -> None:
        self._cgroups.kill()
        self._cgroups.destroy()
        self.network.destroy()

    def _collect_journals(self) -> None:
        for name, machine in self._machines.items():
            journal = host.run(["journalctl", "-q", "-D", str(machine.root / "var" / "log" / "journal")], check=False)
            host.write(self.directory / "log" / f"{name}.journal", journal)

    def _machine(self, name: str) -> Machine:
        if name not in self._machines:
            raise ClusterError(f"no machine '{name}'; there are {', '.join(self._machines)}")
        return self._machines[name]
