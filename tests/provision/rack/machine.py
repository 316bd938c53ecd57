"""One machine of a rack: a systemd-nspawn container with its own disk, network, processes and cgroups."""

import contextlib
import json
import selectors
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from vc import host
from vc.cgroups import Cgroups
from vc.host import ClusterError
from vc.names import Names
from vc.node import ENTER
from vc.wait import wait_until

from .cgroups import inside

BOOT_TIMEOUT_S = 240.0
_DEATH_TIMEOUT_S = 60.0
_PROPAGATE = Path("/run/systemd/nspawn/propagate")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Bind:
    """A directory of the host that a machine has too."""

    source: Path
    target: str


class Machine:
    """Not thread-safe by itself; different machines may be used from different threads."""

    def __init__(self, names: Names, cgroups: Cgroups, name: str) -> None:
        self.name = name
        self._names = names
        self._cgroups = cgroups
        self._directory = names.directory / "machines" / name
        self._container = f"{names.cgroup}-{name}"  # the host has one such name for all racks
        self._nspawn: subprocess.Popen[bytes] | None = None

    @property
    def root(self) -> Path:
        """Its file system as the host sees it, from prepare() on."""
        return self._directory / "root"

    @property
    def console(self) -> Path:
        """What it has written to its console."""
        return self._names.directory / "log" / f"{self.name}.console.log"

    def prepare(self, layers: list[Path]) -> None:
        """Lays its own disk over directories, the topmost first. The disk is never synced: it does not outlive the rack."""
        for part in ("upper", "work", "root"):
            (self._directory / part).mkdir(parents=True)
        lower = ":".join(str(layer) for layer in layers)
        options = f"lowerdir={lower},upperdir={self._directory / 'upper'},workdir={self._directory / 'work'},volatile"
        host.run(["mount", "-t", "overlay", "-o", options, "overlay", str(self.root)])

    def wipe(self) -> None:
        """Takes the disk of a dead machine away, for another prepare()."""
        host.run(["umount", str(self.root)])
        for part in ("upper", "work", "root"):
            shutil.rmtree(self._directory / part)

    def write(self, path: str, text: str | bytes, mode: int = 0o644) -> None:
        """Writes a file of its disk before it boots, as root's."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        host.write(file, text, mode)

    def link(self, path: str, target: str) -> None:
        """Makes a symbolic link on its disk before it boots."""
        link = self.root / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def power_on(self, binds: list[Bind]) -> "Boot":
        """Starts it; the caller plugs its cable in (leader()) and waits for it."""
        boot = Boot(f"@{self._names.cgroup}/{self.name}")
        nspawn = [
            "systemd-nspawn",
            "--quiet",
            "--boot",
            f"--directory={self.root}",
            f"--machine={self._container}",
            "--register=no",  # there may be no systemd on the host
            "--keep-unit",
            "--private-users=no",
            "--private-network",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            "--notify-ready=yes",
            *(f"--bind={bind.source}:{bind.target}" for bind in binds),
            "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1",  # for systemd in it: from 256 on it refuses cgroup v1 otherwise
        ]
        environment = {
            "PATH": _PATH,
            "NOTIFY_SOCKET": boot.address,
            "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network",
            "SYSTEMD_NSPAWN_LOCK": "0",  # its directory is the rack's own
        }
        with open(self.console, "ab") as console:
            self._nspawn = subprocess.Popen(
                inside(self._cgroups, self.name, nspawn),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                cwd="/",
                start_new_session=True,
                env=environment,
            )
        boot.process = self._nspawn
        boot.machine = self
        return boot

    def record(self, leader: int) -> None:
        """Notes its first process, for commands that come later."""
        host.write(self._directory / "init", f"{leader} {host.start_time(leader)}\n")

    def init(self) -> tuple[int, int] | None:
        """The host pid and the start time of its first process, None when it is dead."""
        try:
            pid, start = (int(number) for number in (self._directory / "init").read_text().split())
        except (FileNotFoundError, ValueError):
            return None
        return (pid, start) if host.start_time(pid) == start else None

    def kill(self) -> None:
        """Kills everything in it at once and waits until nothing is left of it."""
        self._cgroups.kill(self.name)
        wait_until(lambda: self.init() is None, _DEATH_TIMEOUT_S, f"the death of {self.name}")
        self.reap()
        self._cgroups.clean(self.name)

    def reap(self) -> None:
        """Collects the exit status of its container, which is dead, and what that has left on the host."""
        if self._nspawn is not None:
            self._nspawn.wait()
        with contextlib.suppress(FileNotFoundError):
            (_PROPAGATE / self._container).rmdir()

    def abort(self) -> None:
        """Ends a start that has not come as far as its cgroup."""
        if self._nspawn is not None and self._nspawn.poll() is None:
            self._nspawn.kill()
            self._nspawn.wait()

    def command(self, argv: list[str], user: str | None = None, env: dict[str, str] | None = None) -> list[str]:
        """The host command that runs a program in it, as root in / or as a user at home; it dies with that command."""
        init = self.init()
        if init is None:
            raise ClusterError(f"machine {self.name} is dead")
        name = user or "root"
        home = "/root" if user is None else f"/home/{user}"
        environment = {"PATH": _PATH, "HOME": home, "USER": name, "LOGNAME": name, "SHELL": "/bin/bash", "LANG": "C.UTF-8"}
        spec = {
            "node": self.name,
            "init": init[0],
            "start": init[1],
            "argv": argv,
            "env": environment | (env or {}),
            "cwd": "/" if user is None else home,
            "user": user,
            "cgroups": self._cgroups.procs_files(self.name),
            "log": None,
        }
        return [sys.executable or "/usr/bin/python3", "-I", "-S", str(ENTER), json.dumps(spec)]


class Boot:
    """What a container that starts says about itself."""

    process: "subprocess.Popen[bytes]"
    machine: Machine

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:])
        self._socket.setblocking(False)
        self._said: dict[str, str] = {}

    def leader(self) -> int:
        """The host pid of its first process, as soon as it is there."""
        return int(self._wait_for("X_NSPAWN_LEADER_PID"))

    def ready(self) -> None:
        """Returns when systemd in it has started everything."""
        self._wait_for("READY")
        self._socket.close()

    def _wait_for(self, key: str) -> str:
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while key not in self._said:
                ended = self.process.poll() is not None
                selector.select(0.1)
                with contextlib.suppress(BlockingIOError):
                    for line in self._socket.recv(4096).decode().splitlines():
                        name, _, value = line.partition("=")
                        self._said[name] = value
                    continue
                if ended or time.monotonic() > deadline:
                    what = "has ended" if ended else f"has not come up in {BOOT_TIMEOUT_S:g} s"
                    tail = host.tail(self.machine.console)
                    raise ClusterError(f"machine {self.machine.name} {what}; {self.machine.console}:\n{tail}")
        return self._said[key]
