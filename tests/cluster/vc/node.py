"""One virtual node: its init process, its namespaces, the daemons that run in it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from . import host
from .cgroups import Cgroups
from .host import ClusterError
from .names import BUILD_IN_NODE, REPOSITORY, SOURCE_IN_NODE, Names

ENTER = Path(__file__).with_name("enter.py")
INIT = Path(__file__).with_name("node_init.sh")

_PATH = f"{BUILD_IN_NODE}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def environment(user: str = "root") -> dict[str, str]:
    """The clean environment of a program in a node; nothing is inherited but the terminal's kind."""
    return {
        "PATH": _PATH,
        "HOME": "/root" if user == "root" else f"/home/{user}",
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": os.environ.get("TERM", "dumb"),
        "LD_LIBRARY_PATH": f"{BUILD_IN_NODE}/lib",
        "PYTHONPATH": f"{BUILD_IN_NODE}/python",
        "MUSTER_SRC": SOURCE_IN_NODE,
    }


@dataclass(frozen=True)
class Daemon:
    """How to run a daemon in the foreground."""

    name: str
    argv: list[str]
    log: str | None = None  # the log file that it writes itself, in the cluster's log directory
    env: dict[str, str] = field(default_factory=dict)


class Node:
    """Not thread-safe by itself; different nodes may be used from different threads."""

    def __init__(self, names: Names, cgroups: Cgroups, name: str) -> None:
        self.name = name
        self._names = names
        self._cgroups = cgroups
        self._directory = names.directory / "nodes" / name
        self._starting: subprocess.Popen[str] | None = None

    # --- the node itself

    def boot(self, address: str, build: Path | None, ceph: Path, state: Path) -> None:
        """Starts the init process; when this returns it has mounted its view and waits for plug()."""
        self._directory.mkdir(parents=True, exist_ok=True)
        hierarchies = [f"{h.mount.name} {h.options}" for h in self._cgroups.hierarchies()]
        procs = " ".join(f"'{path}'" for path in self._cgroups.procs_files(self.name))
        # Enter the cgroups first: they become the root of the node's cgroup namespace. Where they have gone the cluster has too.
        enter = f'for f in {procs}; do echo $$ >"$f" || exit 1; done'
        script = f'{enter}; exec unshare -m -u -i -n -p -C --fork --mount-proc "$@"'
        arguments = [str(self._names.directory), self._names.name, self.name, address]
        arguments += [str(REPOSITORY), str(build) if build else "", str(ceph), str(state), *hierarchies]
        with open(self.log("init"), "ab") as log:
            self._starting = subprocess.Popen(
                ["/bin/sh", "-c", script, "sh", "/bin/bash", str(INIT), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd="/",
                start_new_session=True,
                env=environment(),
            )
        self._expect("mounted")

    def init_of_booting(self) -> int:
        """The init's pid between boot() and plug()."""
        pid = host.child_of(self._starting.pid) if self._starting else None
        if pid is None:
            raise ClusterError(f"node {self.name} died while it started\n{host.tail(self.log('init'))}")
        return pid

    def plug(self) -> None:
        """Lets a booted node configure its eth0, and records it as alive."""
        assert self._starting is not None and self._starting.stdin is not None
        pid = self.init_of_booting()
        host.write(self._directory / "init", f"{pid} {host.start_time(pid)}\n")
        with contextlib.suppress(BrokenPipeError):
            self._starting.stdin.write("go\n")
            self._starting.stdin.flush()
        self._expect("ready")
        self._starting.stdin.close()
        if self._starting.stdout is not None:
            self._starting.stdout.close()

    def init_pid(self) -> int | None:
        """The host pid of the node's init, None when the node is dead."""
        return self._recorded(self._directory / "init")

    def kill(self) -> None:
        """Kills everything in the node at once and waits until nothing is left of it."""
        pid = self.init_pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        self._cgroups.kill(self.name)
        self._cgroups.clean(self.name)
        if self._starting is not None:
            self._starting.wait()

    def abort(self) -> None:
        """Ends a start that has not come as far as its cgroup."""
        if self._starting is not None and self._starting.poll() is None:
            self._starting.kill()
            self._starting.wait()

    def reap(self) -> None:
        """Collects the exit status of the process that boot() started, once the node is dead."""
        if self._starting is not None:
            self._starting.wait()

    def host_path(self, path: str) -> Path | None:
        """A path of the node as the host can open it, None when the node is dead."""
        pid = self.init_pid()
        return None if pid is None else Path(f"/proc/{pid}/root{path}")

    # --- programs and daemons

    def command(
        self,
        argv: list[str],
        user: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        log: str | None = None,
    ) -> list[str]:
        """The host command that runs a program in the node (see enter.py); with `log`, a file's name, as a daemon."""
        pid = self.init_pid()
        if pid is None:
            raise ClusterError(f"node {self.name} is dead")
        full = environment(user or "root")
        spec = {
            "node": self.name,
            "init": pid,
            "start": host.start_time(pid),
            "argv": argv,
            "env": full | (env or {}),
            "cwd": cwd or (full["HOME"] if user else "/"),
            "user": user,
            "cgroups": self._cgroups.procs_files(self.name) if log else [],
            "log": f"/var/log/{log}" if log else None,
        }
        return [sys.executable or "/usr/bin/python3", "-I", "-S", str(ENTER), json.dumps(spec)]

    def start(self, daemon: Daemon) -> None:
        """Starts a daemon. It may still fail after this: the caller waits for what makes it ready."""
        if self.daemon_pid(daemon.name) is not None:
            raise ClusterError(f"{daemon.name} runs on {self.name} already")
        pid = int(host.run(self.command(daemon.argv, env=daemon.env, log=self.output(daemon).name)))
        (self._directory / "daemons").mkdir(exist_ok=True)
        # A daemon that has failed by now has no start time: its record must match no later process.
        host.write(self._directory / "daemons" / daemon.name, f"{pid} {host.start_time(pid) or 0}\n")

    def stop(self, name: str, signal_number: int, timeout: float) -> None:
        """Signals a daemon and waits until it has gone; SIGKILL after `timeout` seconds."""
        pid = self.daemon_pid(name)
        if pid is None:
            return
        deadline = time.monotonic() + timeout
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal_number)
            os.kill(pid, signal.SIGCONT)  # a stopped one would not notice
        while self.daemon_pid(name) is not None:
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    def signal(self, name: str, signal_number: int) -> None:
        """Sends a signal to a daemon."""
        pid = self.daemon_pid(name)
        if pid is None:
            raise ClusterError(f"{name} does not run on {self.name}")
        os.kill(pid, signal_number)

    def daemon_pid(self, name: str) -> int | None:
        """The host pid of a daemon, None when it does not run."""
        return self._recorded(self._directory / "daemons" / name)

    def daemons(self) -> dict[str, int | None]:
        """Every daemon that was ever started on the node, with its pid while it runs."""
        with contextlib.suppress(FileNotFoundError):
            return {n: self.daemon_pid(n) for n in sorted(os.listdir(self._directory / "daemons"))}
        return {}

    def log(self, daemon: str) -> Path:
        """The log of a daemon, or of the node's init."""
        return self._names.directory / "log" / f"{self.name}.{daemon}.log"

    def output(self, daemon: Daemon) -> Path:
        """Where a daemon's stdout and stderr go: its log, or a file beside the log that it writes itself."""
        return self.log(daemon.name) if daemon.log is None else self.log(daemon.name).with_suffix(".out")

    def failure(self, daemon: Daemon) -> str:
        """What to tell a person about a daemon that failed: its logs and their last lines."""
        logs = [self.output(daemon)]
        if daemon.log is not None:
            logs.append(self._names.directory / "log" / daemon.log)
        return "\n".join(f"  {log}:\n{host.tail(log)}" for log in logs)

    # --- inside

    @staticmethod
    def _recorded(path: Path) -> int | None:
        try:
            pid, start = (int(number) for number in path.read_text().split())
        except (FileNotFoundError, ValueError):
            return None
        return pid if host.start_time(pid) == start else None

    def _expect(self, word: str) -> None:
        assert self._starting is not None and self._starting.stdout is not None
        if self._starting.stdout.readline().strip() != word:
            raise ClusterError(
                f"node {self.name} did not start: {self.log('init')}:\n{host.tail(self.log('init'))}"
            )
