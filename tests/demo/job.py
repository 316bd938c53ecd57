"""A batch job on the virtual cluster: submitted, followed, asked about."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vc import Cluster

USER = "trainer"
_ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}


class DemoError(Exception):
    """The demo did not show what it is to show; the text is meant for a person."""


class Job:
    """One job of the ordinary user. Its files lie in that user's home, which all nodes share."""

    def __init__(self, cluster: Cluster, name: str, script: str) -> None:
        """Submits the script."""
        self._cluster = cluster
        self._home = cluster.directory / "home" / USER
        (self._home / f"{name}.sh").write_text(script)
        done = cluster.user("ctl", ["sbatch", "--parsable", f"--output={name}.out", f"{name}.sh"], user=USER)
        if done.returncode != 0:
            raise DemoError(f"sbatch failed: {done.stderr.strip()}")
        self.id = done.stdout.strip()
        self._output = self._home / f"{name}.out"
        self._read = 0

    def file(self, name: str) -> Path:
        """A file in the user's home, as the host sees it."""
        return self._home / name

    def follow(self, timeout: float = 180) -> Iterator[str]:
        """The lines of the job's output as they come, until the job has ended. At times an empty one, to look up."""
        deadline = time.monotonic() + timeout
        asked = time.monotonic()
        while True:
            # Asked before reading: what the job wrote before its end is all there afterwards.
            ended = False
            if time.monotonic() - asked > 0.5:
                asked = time.monotonic()
                ended = self.state() in _ENDED
            yield from self._new_lines()
            if ended:
                return
            if time.monotonic() > deadline:
                raise DemoError(f"job {self.id} has not ended after {timeout:g} s\n{self.evidence()}")
            yield ""
            time.sleep(0.02)

    def state(self) -> str:
        """Slurm's word for it, such as RUNNING."""
        show = self._cluster.user("ctl", ["scontrol", "--oneliner", "show", "job", self.id], user=USER).stdout
        found = re.search(r"\bJobState=(\w+)", show)
        return found[1] if found else "UNKNOWN"

    def steps(self) -> list[str]:
        """Its steps that run now, but for the batch script's own."""
        steps = self._cluster.user("ctl", ["squeue", "--noheader", "--steps", "--job", self.id, "-o", "%i"], user=USER)
        return [step for step in steps.stdout.split() if step.rpartition(".")[2].isdigit()]

    def muster(self, *arguments: str) -> Any:
        """What `muster ARGUMENTS JOB --json` says."""
        done = self._cluster.user("ctl", ["muster", *arguments, self.id, "--json"], user=USER)
        if not done.stdout:
            raise DemoError(f"`muster {' '.join(arguments)} {self.id}` failed: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def kill_rank(self, rank: int) -> tuple[str, str]:
        """SIGKILL to the program of one rank; returns its node and its pid there."""
        script = (
            f"for f in $(grep -slzx MUSTER_GANG={self.id}.0 /proc/[0-9]*/environ); do"
            f" if grep -sqzx RANK={rank} $f; then p=${{f#/proc/}} p=${{p%/*}}; kill -KILL $p; echo $p; exit; fi; done"
        )
        for node in self._cluster.compute_nodes:
            pid = self._cluster.exec(node, ["sh", "-c", script]).stdout.strip()
            if pid:
                return node, pid
        raise DemoError(f"no process of rank {rank} was found\n{self.evidence()}")

    def bytes_in_rados(self) -> int:
        """The bytes of all objects that hold this job's checkpoints, one copy of each."""
        program = Path(__file__).with_name("rados_bytes.py").read_text()
        arguments = ["/usr/bin/python3", "-", "muster", f"data/job-{self.id}.0-"]
        done = self._cluster.exec("ctl", arguments, input=program)
        if done.returncode != 0:
            raise DemoError(f"RADOS did not answer: {done.stderr.strip()}")
        return int(done.stdout)

    def evidence(self) -> str:
        """What a person needs when something went wrong."""
        lines = self._output.read_text(errors="replace").splitlines()[-8:] if self._output.exists() else []
        events = self._cluster.user("ctl", ["muster", "events", self.id], user=USER).stdout.splitlines()[-20:]
        parts = [f"job {self.id} is {self.state()}; the end of its output:", *lines, "its gang's last events:", *events]
        return "\n".join("       " + part for part in parts)

    def _new_lines(self) -> list[str]:
        if not self._output.exists():
            return []
        with self._output.open("rb") as file:
            file.seek(self._read)
            whole, _, _ = file.read().rpartition(b"\n")
        if not whole:
            return []
        self._read += len(whole) + 1
        return whole.decode(errors="replace").split("\n")
