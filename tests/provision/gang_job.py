"""A batch job with a gang on a rack: submitted on the controller, followed, asked about."""

import json
import re
from collections.abc import Callable
from typing import Any

from rack import ClusterError, Options, Rack, wait_until

USER = "trainer"
_ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}
_SOON_S = 180.0
_END_S = 400.0
# For an answer while the coordinator's host, without power, says nothing to who asks it: `muster` gives up after 5 s.
ANSWER_S = 60.0
_STEPS = 200


class GangJob:
    """Two nodes with two ranks each, and a spare. Its files lie in the user's home, which all machines share."""

    _SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=try --exclusive --nodes=3 --ntasks-per-node=2 --output=try.out
#SBATCH --gang=spares=1
srun muster-train --text /usr/share/common-licenses/GPL-3 --width 128 --depth 4 --context 32 \\
    --steps {steps} --checkpoint-every 20 --log-every 1{pace}
"""
    # From Slurm 23.02 on srun's exit code is 1 when a node was lost, though the step goes on without it.
    _ASK_MUSTER = """\
test $? = 0 || muster --json status "$SLURM_JOB_ID" | grep -q '"succeeded": true'
"""

    def __init__(self, rack: Rack, nodes: list[str], endless: bool = False) -> None:
        """An endless one leaves the processors to others."""
        self._rack = rack
        self._steps = steps = 10**6 if endless else _STEPS
        self._nodes = nodes
        self._home = rack.shared("home") / USER
        self.script = self._SCRIPT.format(steps=steps, pace=" --step-seconds 0.1" if endless else "")
        if set(rack.nodes) != set(nodes):
            self.script = self.script.replace("--nodes=3", f"--nodelist={','.join(nodes)}", 1)
        if rack.options.suite != Options().suite:
            self.script += self._ASK_MUSTER
        self.id = ""

    def submit(self) -> None:
        (self._home / "try.sh").write_text(self.script)
        self.id = self._rack.run("ctl", ["sbatch", "--parsable", "try.sh"], user=USER, check=True).stdout.strip()

    def lines(self) -> list[str]:
        """What the job has written."""
        output = self._home / "try.out"
        return output.read_text(errors="replace").splitlines() if output.exists() else []

    def muster_lines(self) -> list[str]:
        return [line for line in self.lines() if line.startswith("muster: ")]

    def last_line(self) -> str:
        return self.lines()[-1]

    def step(self) -> int:
        """The newest step that it has reported."""
        steps = [int(found[1]) for line in self.lines() if (found := re.match(r"step (\d+) loss", line))]
        return max(steps, default=0)

    def state(self) -> str:
        return self._field("JobState")

    def events(self, timeout: float = _SOON_S) -> list[dict[str, Any]]:
        """The gang's history, as a node of the job tells it."""
        done = self._rack.run(self._nodes[0], ["muster", "events", self.id, "--json"], user=USER, timeout=timeout)
        return list(json.loads(done.stdout)["events"]) if done.stdout else []

    def wait_for_checkpoint(self) -> None:
        """Until there is one to go on from, and some steps more."""
        self._wait(lambda: self.step() > 0 and any(e["kind"] == "checkpoint" for e in self.events()), _SOON_S, "a checkpoint")
        self.wait_for_step(self.step() + 5)

    def wait_for_step(self, step: int) -> None:
        self._wait(lambda: self.step() >= step, _SOON_S, f"step {step}")

    def wait_for_restart(self, after: int = 0) -> None:
        """Until a generation has its state from a checkpoint of a later step."""
        self._wait(lambda: self.resumed_from() > after, _SOON_S, "a generation that resumes")

    def resumed_from(self) -> int:
        """The step of the checkpoint from which the newest generation goes on, 0 for the first one."""
        steps = [int(found[1]) for line in self.lines() if (found := re.match(r"resumed from step (\d+)", line))]
        return steps[-1] if steps else 0

    def began(self, generation: int) -> float:
        """When all members of a generation ran, in seconds since the epoch."""
        times = [e["time_ns"] for e in self.events() if (e["kind"], e["generation"]) == ("running", generation)]
        if not times:
            raise ClusterError(f"generation {generation} never ran\n{self.evidence()}")
        return float(times[0]) / 1e9

    def wait_for_end(self) -> None:
        self._wait(lambda: self.state() in _ENDED, _END_S, "the job's end", always=True)

    def cancel(self) -> None:
        self._rack.run("ctl", ["scancel", self.id], user=USER, check=True)
        self.wait_for_end()

    def complaint(self, generations: int = 2) -> str:
        """What was not as it must be; nothing when all was."""
        checks = {
            f"the job is {self.state()}": self.state() != "COMPLETED",
            "the job has been requeued": self._field("Restarts") != "0",
            f"it has not had {generations} generations": max(event["generation"] for event in self.events()) != generations,
            "no node was lost": not any(event["kind"] == "node_lost" for event in self.events()),
            "it did not resume from a checkpoint": self.resumed_from() == 0,
            "the training is not finished": self.step() != self._steps,
        }
        return "; ".join(text for text, bad in checks.items() if bad)

    def evidence(self) -> str:
        """What a person needs when something went wrong."""
        events = self._rack.run(self._nodes[0], ["muster", "events", self.id], user=USER)
        parts = [f"job {self.id} is {self.state()}; the end of its output:", *self.lines()[-15:]]
        parts += ["its gang's last events:", *(events.stdout + events.stderr).splitlines()[-20:]]
        return "\n".join("       " + part for part in parts)

    def _field(self, name: str) -> str:
        show = self._rack.run("ctl", ["scontrol", "--oneliner", "show", "job", self.id], user=USER).stdout
        found = re.search(rf"\b{name}=(\S+)", show)
        return found[1] if found else "UNKNOWN"

    def _wait(self, condition: Callable[[], bool], timeout: float, what: str, always: bool = False) -> None:
        """Until the condition holds; a job that ends before that is an error."""

        def done() -> bool:
            ended = not always and self.state() in _ENDED  # asked first: what was true before the end is seen afterwards
            return condition() or ended

        try:
            wait_until(done, timeout, what, interval=0.2)
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self.evidence()}") from None
        if not condition():
            raise ClusterError(f"the job ended before {what}\n{self.evidence()}")
