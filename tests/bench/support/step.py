"""A job step whose members note their starts in a file, and die at the benchmark's hand."""

import contextlib
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from types import TracebackType

from vc import Cluster, ClusterError, wait_until

USER = "trainer"
_POLL_S = 0.01


class Step:
    """One srun (or another program that brings members about), from entry to exit of the context. Its members are
    bench_member (member.c): see there for the log."""

    def __init__(
        self, cluster: Cluster, name: str, members: int, words: list[str], program: str = "srun", variables: dict[str, str] | None = None
    ) -> None:
        self.members = members
        self._variables = variables or {}
        self.job = ""
        self._cluster = cluster
        self._command = [program, *words]
        # The name tells this step's members from those of another benchmark that runs at the same time.
        self._log = cluster.directory / "home" / USER / f"{cluster.names.name}-{name}.log"
        self._log_in_node = f"/home/{USER}/{self._log.name}"
        self._output = tempfile.TemporaryFile("w+")

    def __enter__(self) -> "Step":
        # OMP_NUM_THREADS is what torchrun would set: the same for all.
        env = {"BENCH_LOG": self._log_in_node, "OMP_NUM_THREADS": "1", **self._variables}
        self._process = self._cluster.user_popen(
            "ctl", self._command, env=env, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._output:
            if self._process.poll() is None:
                self._cluster.exec("ctl", ["scancel", "--quiet", "--user", USER])
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()

    def wait(self, what: str, since_ns: int, timeout: float) -> dict[int, int]:
        """When each member was seen to `what` ("exec", "joined") after a moment: rank -> ns, once all are there."""

        def all_there() -> dict[int, int] | None:
            if self._process.poll() is not None:
                self._output.seek(0)
                raise ClusterError(f"{self._command[0]} has ended ({self._process.returncode}):\n{self._output.read()[-3000:]}")
            with contextlib.suppress(FileNotFoundError):
                times: dict[int, int] = {}
                for line in self._log.read_text().splitlines():
                    kind, rank, when = line.split()
                    if kind == what and int(when) > since_ns:
                        times[int(rank)] = int(when)
                return times if len(times) == self.members else None
            return None

        return wait_until(all_there, timeout, f"all members to {what}", interval=_POLL_S)

    def marks(self, of: Iterable[str]) -> list[str]:
        """Those that members have noted."""
        noted = {line.split()[0] for line in self._log.read_text().splitlines()}
        return [mark for mark in of if mark in noted]

    def kill_one(self, choose: random.Random) -> int:
        """Kills a member with SIGKILL; the moment just before that (CLOCK_REALTIME, ns)."""
        members = self._find()
        if len(members) != self.members:
            raise ClusterError(f"{len(members)} members run, not {self.members}")
        # The descriptor names the process for good; the pid could go to another one.
        process = os.pidfd_open(choose.choice(members))
        try:
            now = time.time_ns()
            signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)
        return now

    def _find(self) -> list[int]:
        """The members' pids on the host: processes that have exec'd with this step's log and a rank."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                variables = dict(item.partition(b"=")[::2] for item in file.read().split(b"\0"))
                if variables.get(b"BENCH_LOG", b"").decode() == self._log_in_node and b"RANK" in variables:
                    found.append(int(entry))
                    self.job = variables[b"SLURM_JOB_ID"].decode()
        return found
