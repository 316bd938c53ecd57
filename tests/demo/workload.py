"""A training program on the cluster, once with a fault and once without."""

import re
import time
from dataclasses import dataclass, field
from typing import Any

import screen
from job import DemoError, Job
from vc import Cluster

NODES = 4
_STEP = re.compile(r"step (\d+) loss ([\d.]+)")
_RESUMED = re.compile(r"(?:rank 0 of \d+ )?resumed from step (\d+)")
_SHOWN = re.compile(r"muster: |rank 0 |resumed |training |final |parameters |srun: |slurmstepd: ")
_AFTER = re.compile(r"([\d.]+) ms after the fault")


@dataclass(frozen=True)
class Workload:
    """What is trained, and when it is hurt."""

    name: str  # of its jobs and files
    title: str
    ranks_per_node: int
    command: list[str]  # what srun runs, one line of the script each; {parameters}: the file for the final ones
    steps: int
    every: int  # steps between checkpoints
    kill_rank: int
    kill_after: int  # steps
    show_every: int  # steps between the lines that the demo shows

    @property
    def ranks(self) -> int:
        return NODES * self.ranks_per_node

    def parameters(self, run: str) -> str:
        return f"{self.name}-{run}.parameters"

    def script(self, run: str) -> str:
        command = " \\\n    ".join(self.command).format(parameters=self.parameters(run))
        return (
            f"#!/bin/bash\n#SBATCH --job-name={self.name}-{run}\n"
            f"#SBATCH --nodes={NODES} --ntasks-per-node={self.ranks_per_node}\n"
            f"#SBATCH --gang\nsrun {command}\n"
        )


@dataclass
class Result:
    """What the run with the fault has shown; filled in as it goes."""

    job: str = ""
    node: str = ""
    restart_ms: float | None = None
    steps_lost: int | None = None
    resumed_from: int | None = None
    checkpoints_written: int = 0
    checkpoint_bytes_written: int = 0
    checkpoints_kept: int = 0
    bytes_kept: int = 0
    bytes_in_rados: int = 0
    steps_before: list[str] = field(default_factory=list)
    steps_after: list[str] = field(default_factory=list)
    state: str = ""
    reference_state: str = ""
    identical: bool = False
    verified: bool = False

    @property
    def same_step(self) -> bool:
        return self.steps_before == self.steps_after == [f"{self.job}.0"]

    def complaints(self) -> list[str]:
        """What was not as it must be."""
        checks = {
            "the time until all ranks ran again is not known": self.restart_ms is None,
            "the gang did not resume from a checkpoint": not self.resumed_from,
            "the Slurm step is not the same before and after": not self.same_step,
            "the job is not COMPLETED": self.state != "COMPLETED",
            "the job without the fault is not COMPLETED": self.reference_state != "COMPLETED",
            "a checkpoint does not verify": not self.verified,
            "RADOS holds fewer bytes than the checkpoints have": not 0 < self.bytes_kept <= self.bytes_in_rados,
            "the final parameters differ from those of the run without the fault": not self.identical,
        }
        return [text for text, bad in checks.items() if bad]


def run_with_fault(cluster: Cluster, work: Workload) -> tuple[Job, Result]:
    """Trains, kills a rank in mid-training, watches the recovery to the end."""
    screen.say(f"as an ordinary user: sbatch {work.name}-fault.sh, which is")
    for line in work.script("fault").splitlines():
        screen.quote(line)
    began = time.monotonic()
    job = Job(cluster, f"{work.name}-fault", work.script("fault"))
    screen.say(f"job {job.id}: {work.ranks} processes on {NODES} nodes, a checkpoint every {work.every} steps")
    screen.say("--gang is the line that Muster needs: the processes start, and start again, together")
    result = Result(job=job.id)
    story = _Story(work, job, result)
    for line in job.follow():
        story.line(line)
        story.look()
    result.state = job.state()
    screen.say(f"job {job.id} is {result.state} after {time.monotonic() - began:.0f} s")
    if result.node == "":
        raise DemoError(f"the job ended before a rank could be killed\n{job.evidence()}")
    _account(job, result)
    return job, result


def run_without_fault(cluster: Cluster, work: Workload, faulty: Job, result: Result) -> None:
    """The same training left alone; compares what comes out."""
    began = time.monotonic()
    job = Job(cluster, f"{work.name}-calm", work.script("calm"))
    for _ in job.follow():
        pass
    result.reference_state = job.state()
    files = [faulty.file(work.parameters("fault")), job.file(work.parameters("calm"))]
    contents = [file.read_bytes() if file.exists() else b"" for file in files]
    result.identical = len(contents[0]) > 0 and contents[0] == contents[1]
    screen.say(f"{work.title}: job {job.id} is {result.reference_state} after {time.monotonic() - began:.0f} s")
    if result.identical:
        screen.say(f"its final parameters, {len(contents[0]):,} bytes, are bit for bit those above", "green")
    else:
        screen.say(f"its final parameters DIFFER: {files[0]}, {files[1]}", "red")


class _Story:
    """Follows one job through its fault: decides when to kill, and which lines are worth showing."""

    def __init__(self, work: Workload, job: Job, result: Result) -> None:
        self._work = work
        self._job = job
        self._result = result
        self._step = 0  # the newest one that the job has reported
        self._committed: int | None = None  # the newest checkpoint before the fault
        self._asked = 0.0
        self._recovering = False
        self._left_out = 0  # lines

    def line(self, line: str) -> None:
        """A line of the job's output."""
        if found := _STEP.match(line):
            self._step = int(found[1])
            if self._step % self._work.show_every == 0 or self._step == self._work.steps or self._recovering:
                screen.quote(line)
            if self._recovering:
                self._recovered()
        elif found := _RESUMED.match(line):
            screen.quote(line)
            self._result.resumed_from = int(found[1])
            self._result.steps_lost = self._step - int(found[1])
        elif _SHOWN.match(line) or (line and not self._recovering):
            screen.quote(line[:110])
        elif line:
            self._left_out += 1

    def look(self) -> None:
        """Kills the rank when the moment has come."""
        if self._result.node or self._step < self._work.kill_after:
            return
        if self._committed is None:
            if time.monotonic() - self._asked < 0.1:
                return
            self._asked = time.monotonic()
            steps = [item["step"] for item in self._job.muster("checkpoint", "list")["checkpoints"]]
            if steps:
                self._committed = max(steps)
                self._result.steps_before = self._job.steps()
            return
        if self._step < self._committed + 3:
            return
        self._result.node, pid = self._job.kill_rank(self._work.kill_rank)
        screen.say(
            f"NOW: kill -KILL {pid} on {self._result.node}: rank {self._work.kill_rank} is dead, at about step "
            f"{self._step}; the newest checkpoint is of step {self._committed}",
            "red",
        )
        self._recovering = True

    def _recovered(self) -> None:
        """The first step line after the fault may still be of the old generation."""
        if self._result.resumed_from is None:
            return
        self._recovering = False
        if self._left_out > 0:
            screen.say(f"({self._left_out} lines left out: the other ranks' tracebacks, their peer was gone)")
        self._result.steps_after = self._job.steps()
        screen.say(f"it trains again: the same job, the same Slurm step {', '.join(self._result.steps_after)}", "green")


def _account(job: Job, result: Result) -> None:
    """Reads the figures from Muster's history and from RADOS."""
    for event in job.muster("events")["events"]:
        if event["kind"] == "running" and event["generation"] == 2 and (found := _AFTER.search(event["text"])):
            result.restart_ms = float(found[1])
        elif event["kind"] == "checkpoint":
            result.checkpoints_written += 1
            written: Any = re.search(r"(\d+) bytes", event["text"])
            result.checkpoint_bytes_written += int(written[1]) if written else 0
    kept = job.muster("checkpoint", "list")["checkpoints"]
    result.checkpoints_kept = len(kept)
    result.bytes_kept = sum(item["bytes"] for item in kept)
    result.bytes_in_rados = job.bytes_in_rados()
    checked = job.muster("checkpoint", "verify")["checkpoints"]
    result.verified = len(checked) > 0 and all(item["verified"] for item in checked)
