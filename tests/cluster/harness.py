"""What the cluster tests have in common: one cluster for each file, gangs with their output, what a failure prints.

A file's setUpModule calls start(); its test cases derive from ClusterCase. The members of most gangs are
programs/member.py, which records itself and then runs the few lines of Python that the test gives it.
"""

import atexit
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from vc import Cluster, wait_until
from vc.host import ClusterError, tail
from vc.names import BUILD_IN_NODE, CONTROLLER, SOURCE_IN_NODE
from vc.users import USERS

T = TypeVar("T")

PYTHON = ["/usr/bin/python3", "-I", "-S"]
MEMBER = [*PYTHON, f"{SOURCE_IN_NODE}/tests/cluster/programs/member.py"]
PROGRAMS = f"{BUILD_IN_NODE}/tests"  # where the C++ programs are, in a node

# A deadline for what should take a moment, on a machine that is busy with something else.
SOON = 120.0
# The same for what Slurm does in its own time (SlurmdTimeout, KillWait, COMPLETING).
SLURM = 180.0
# When a node is lost. A busy machine may stand still for longer than the default limits, and then gangs start again
# rightly: no test depends on that but those that are about these limits.
PATIENT = {"beat": "500ms", "lease": "20s", "silence": "30s"}  # what all other tests have: not while a machine stands still
PROMPT = {"beat": "300ms", "lease": "2s", "silence": "4s"}  # within seconds
# A musterd that is started again, which takes seconds on a busy machine, keeps its part; one that stands still loses it.
RESTARTS = {"beat": "300ms", "lease": "8s", "silence": "12s"}
DEFAULT: dict[str, str] = {}
# musterd's own verdict on its main loop, which a busy machine may keep waiting. Only tests of that verdict have another one.
LOOP_STALL = {"loop_stall": "60s"}
# For a whole file: below ctest's limit, so that the cluster is taken down in order.
FILE_TIMEOUT_S = 840

_cluster: "HurtCluster | None" = None
_failed = True  # until a test has passed, and when one has not: the logs are kept then


class HurtCluster(Cluster):
    """A cluster that knows which nodes a test has hurt. One whose musterd is away for a while, or is started again, is none."""

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self.hurt: set[str] = set()

    def kill(self, node: str) -> None:
        self.hurt.add(node)
        super().kill(node)

    def cut(self, node: str) -> None:
        self.hurt.add(node)
        super().cut(node)

    def stop_daemon(self, node: str, daemon: str, signal_number: int = signal.SIGTERM, timeout: float = 15) -> None:
        if daemon != "musterd":
            self.hurt.add(node)
        super().stop_daemon(node, daemon, signal_number, timeout)

    def signal_daemon(self, node: str, daemon: str, signal_number: int) -> None:
        self.hurt.add(node)
        super().signal_daemon(node, daemon, signal_number)


def start(
    name: str, limits: dict[str, str] = PATIENT, settings: dict[str, str] | None = None, **options: Any
) -> Cluster:
    """Starts this file's cluster; it is stopped when the module's tests are over, or the file is interrupted.

    `limits` and `settings` are keys of muster.yaml. Ceph has one OSD; a test that stops OSDs passes `osds=3`.
    """
    global _cluster
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, _interrupted)
    signal.alarm(FILE_TIMEOUT_S)
    if limits is RESTARTS:
        # Slurm hears of a lost node from Muster, after 12 s, or 28 without a store, before it finds out itself.
        options.setdefault("slurm", {"SlurmdTimeout": "60"})
    options.setdefault("osds", 1)
    if "MUSTER_BUILD" in os.environ:
        options.setdefault("build", os.environ["MUSTER_BUILD"])
    _cluster = HurtCluster(f"{name}-{os.getpid()}", settings=LOOP_STALL | limits | (settings or {}), **options)
    unittest.addModuleCleanup(_stop)
    atexit.register(_stop)  # unittest forgets its cleanups when it is interrupted
    _cluster.start()
    return _cluster


def _stop() -> None:
    global _cluster
    signal.alarm(0)
    if _cluster is not None:
        keep = os.environ.get("MUSTER_TEST_LOGS") if _failed else None
        _cluster.stop(Path(keep) / _cluster.names.name if keep else None)
    _cluster = None


def _interrupted(number: int, frame: object) -> NoReturn:
    signal.alarm(0)
    traceback.print_stack(limit=12)  # where it hung
    raise KeyboardInterrupt(signal.Signals(number).name)


@dataclass
class Record:
    """What one member of one generation wrote when it started (programs/member.py)."""

    rank: int
    generation: int
    host: str
    pid: int
    env: dict[str, str]
    said: dict[str, Any] = field(default_factory=dict)


class Job:
    """A program that a user runs on the submit host, mostly an srun; its output goes to files."""

    def __init__(self, cluster: Cluster, number: int, argv: list[str], user: str, env: dict[str, str]) -> None:
        self._cluster = cluster
        self.user = user
        self.name = f"test{os.getpid()}-{number}"
        self.argv = argv
        home = cluster.directory / "home" / user
        self.files = home / self.name  # on this machine
        self.files_in_node = f"/home/{user}/{self.name}"
        self.files.mkdir()
        for path in (self.files, self.files / "out", self.files / "err"):
            path.touch()
            os.chown(path, USERS.get(user, 0), USERS.get(user, 0))
        argv = [word.replace("{FILES}", self.files_in_node) for word in argv]
        full = {"SLURM_JOB_NAME": self.name, "SBATCH_JOB_NAME": self.name, "FILES": self.files_in_node} | env
        with open(self.files / "out", "ab") as out, open(self.files / "err", "ab") as err:
            self._process = cluster.popen(CONTROLLER, argv, user, env=full, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        self._id = ""
        self._key = ""

    @property
    def out(self) -> str:
        return (self.files / "out").read_text(errors="replace")

    @property
    def err(self) -> str:
        return (self.files / "err").read_text(errors="replace")

    @property
    def id(self) -> str:
        """Slurm's number of the job."""
        if not self._id:
            self._id = wait_until(self._find, SOON, f"job {self.name} in squeue")
        return self._id

    @property
    def gang(self) -> str:
        return f"{self.id}.0"

    @property
    def key(self) -> str:
        """Of its gang's record and checkpoints in the store (docs/formats.md)."""
        if not self._key:
            self._key = wait_until(self._find_key, SOON, f"the gang of job {self.name}")
        return self._key

    def _find_key(self) -> str:
        done = self._cluster.user(CONTROLLER, ["muster", "--json", "status", self.gang], user=self.user)
        return str(json.loads(done.stdout)["gangs"][-1]["key"]) if done.stdout else ""

    def _find(self) -> str:
        query = ["squeue", "-h", "-t", "all", "-n", self.name, "-o", "%A"]
        lines = self._cluster.exec(CONTROLLER, query).stdout.split()
        return min(lines, key=int) if lines else ""  # a heterogeneous job has several, and is known by its first

    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout: float = SOON) -> int:
        """The program's exit code as its shell would have it: 128 + n for a signal."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ClusterError(f"{self.name} has not ended within {timeout:g} s") from None
        return code if code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def release(self) -> None:
        """Lets members go on that are in until_released()."""
        (self.files / "go").touch()

    def records(self, generation: int | None = None) -> list[Record]:
        found = []
        for path in self.files.glob("g*.r*.json" if generation is None else f"g{generation}.r*.json"):
            found.append(Record(**json.loads(path.read_text())))
        return sorted(found, key=lambda r: (r.generation, r.rank))

    def wait_for_generation(self, generation: int, members: int, timeout: float = SOON) -> list[Record]:
        """Waits until all members of a generation have recorded themselves."""

        def ready() -> bool:
            if not self.running() and len(self.records(generation)) < members:
                raise ClusterError(f"{self.name} ended with {self.wait()} before generation {generation} ran")
            return len(self.records(generation)) == members

        wait_until(ready, timeout, f"{members} members of generation {generation} of {self.name}")
        return self.records(generation)

    def wait_for_file(self, name: str, timeout: float = SOON) -> str:
        path = self.files / name
        wait_until(path.exists, timeout, f"{name} of {self.name}")
        return path.read_text()

    def end(self) -> None:
        """Cancels it if it still runs. A job that outlives that is a failure of the test."""
        self.release()

        def gone() -> bool:
            if self.running():  # one that is not in Slurm's queue yet is cancelled when it is
                self._cluster.exec(CONTROLLER, ["scancel", "-n", self.name])
            return not self.running()

        try:
            wait_until(gone, SLURM, f"the end of {self.name}, which was cancelled", interval=0.5)
        finally:
            if self.running():
                self._process.kill()
                self._process.wait()

    def explain(self) -> str:
        """Its command and output, for whoever looks into a failure."""
        state = "still runs" if self.running() else f"exit code {self.wait()}"
        text = f"--- {self.name} (job {self._id or '?'}, {self.user}, {state}): {' '.join(self.argv)[:600]}\n"
        for name in ("out", "err"):
            text += f"{name}:\n{tail(self.files / name, 60)}\n"
        return text


class ClusterCase(unittest.TestCase):
    """A test on this file's cluster. A test that fails prints its jobs' output, their events and the daemons' logs."""

    maxDiff = 4000
    _number = 0

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        self.jobs: list[Job] = []
        self._log_marks = self._log_sizes()
        self._expected_errors: list[str] = []
        self.cluster.hurt.clear()
        before = _failures(result)
        # The last of the cleanups, in this order: what a test has added comes before.
        self.addCleanup(self._check_musterd)
        self.addCleanup(self._check_given_back)
        self.addCleanup(self.end_jobs)
        done = super().run(result)
        global _failed
        _failed = _failures(result) > 0
        if _failures(result) > before:
            print(self._explain(), file=sys.stderr, flush=True)
        return done

    @property
    def cluster(self) -> HurtCluster:
        assert _cluster is not None
        return _cluster

    # --- running things

    def start_job(self, argv: list[str], user: str = "trainer", env: dict[str, str] | None = None) -> Job:
        """Starts a program on the submit host. "{FILES}" in its words becomes the job's directory."""
        ClusterCase._number += 1
        job = Job(self.cluster, ClusterCase._number, argv, user, env or {})
        self.jobs.append(job)
        return job

    def end_jobs(self) -> None:
        """Ends every job of this test."""
        lasting = []
        for job in self.jobs:
            try:
                job.end()
            except ClusterError as error:
                lasting.append(str(error))
        self.assertEqual(lasting, [])

    def srun(
        self,
        program: list[str],
        gang: str | None = "",
        nodes: int = 2,
        tasks: int = 4,
        user: str = "trainer",
        options: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> Job:
        """Starts an srun; `gang` is the value of --gang ("": the defaults, None: no gang)."""
        words = ["srun", f"-N{nodes}", f"-n{tasks}", f"--ntasks-per-node={tasks // nodes}", *options]
        if gang is not None:
            words.append(f"--gang={gang}" if gang else "--gang")
        return self.start_job([*words, *program], user, env)

    def gang(self, code: str, gang: str = "", **kw: Any) -> Job:
        """Starts a gang whose members run a few lines of Python (see programs/member.py)."""
        return self.srun([*MEMBER, "{FILES}", code], gang, **kw)

    def batch(self, script: str, user: str = "trainer", env: dict[str, str] | None = None) -> Job:
        """Submits a script with sbatch and waits for it as a job; "{FILES}" in it becomes the job's directory."""
        home = self.cluster.directory / "home" / user
        ClusterCase._number += 1
        path = home / f"script{os.getpid()}-{ClusterCase._number}"
        number = ClusterCase._number + 1
        files = f"/home/{user}/test{os.getpid()}-{number}"
        path.write_text("#!/bin/bash\n" + script.replace("{FILES}", files))
        argv = ["sbatch", "--wait", "--output={FILES}/out", "--error={FILES}/err", "--open-mode=append"]
        return self.start_job([*argv, f"/home/{user}/{path.name}"], user, env)

    def muster(self, *words: str, user: str = "trainer", node: str = CONTROLLER) -> "subprocess.CompletedProcess[str]":
        return self.cluster.user(node, ["muster", *words], user=user, timeout=90)

    def muster_json(self, *words: str, user: str = "trainer", code: int = 0) -> Any:
        done = self.muster(*words, "--json", user=user)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        return json.loads(done.stdout)

    def status(self, job: Job, code: int = 0) -> dict[str, Any]:
        """`muster status` of the job's first gang."""
        gangs = self.muster_json("status", job.gang, user=job.user, code=code)["gangs"]
        self.assertEqual(len(gangs), 1, gangs)
        found: dict[str, Any] = gangs[0]
        return found

    def events(self, job: Job, kind: str | None = None) -> list[dict[str, Any]]:
        found = self.muster_json("events", job.gang, user=job.user)["events"]
        return [event for event in found if kind is None or event["kind"] == kind]

    def event_texts(self, job: Job, kind: str) -> list[str]:
        return [event["text"] for event in self.events(job, kind)]

    def kill_member(self, record: Record, number: int = signal.SIGKILL) -> None:
        """Signals a member's program."""
        done = self.cluster.exec(record.host, ["kill", f"-{int(number)}", str(record.pid)])
        self.assertEqual(done.returncode, 0, done.stderr)

    def wait(self, predicate: Callable[[], T], what: str, timeout: float = SOON) -> T:
        return wait_until(predicate, timeout, what)

    def wait_until_idle(self, cluster: Cluster | None = None) -> None:
        """Waits until Slurm would give each node to a job."""
        of = cluster or self.cluster

        def idle() -> bool:
            return set(of.exec("ctl", ["sinfo", "-h", "-N", "-o", "%t"]).stdout.split()) == {"idle"}

        self.wait(idle, "all nodes to be idle", 2 * SOON)

    def stored_files(self) -> list[Path]:
        """What is in the cluster's directory store, which may change meanwhile."""
        # Unlike Path.glob, os.walk passes over a directory that is gone by the time it comes there.
        walk = os.walk(self.cluster.directory / "store")
        return [Path(directory) / name for directory, _, names in walk for name in names]

    # --- what a test breaks

    def hurts(self, *nodes: str) -> None:
        """Announces that Slurm may rightly hold these nodes DOWN or drained when the test is over: by what it does itself.
        (What it does by the cluster's kill(), cut(), stop_daemon() and signal_daemon() is known.)"""
        self.cluster.hurt.update(nodes)

    def configure(self, lines: str) -> None:
        """Adds lines to muster.yaml, and starts every musterd again; when the test is over both are as before."""
        path = self.cluster.directory / "etc" / "muster" / "muster.yaml"
        text = path.read_text()

        def write(text: str) -> None:
            path.write_text(text)
            for node in [CONTROLLER, *self.cluster.compute_nodes]:
                self.cluster.restart_daemon(node, "musterd")

        self.addCleanup(write, text)
        write(text + lines)

    def expect_error(self, pattern: str) -> None:
        """Announces that musterd may log errors that match this. Any other, a crash, or a loop that stands still fails."""
        self._expected_errors.append(pattern)

    def mend(self) -> None:
        """All nodes alive, plugged in and idle, all daemons running, no job left. A node that Slurm holds DOWN or drained
        though the test has not hurt it is a failure."""
        nodes = self.cluster.compute_nodes
        hurt = set(self.cluster.hurt)
        states = self.node_states()
        wronged = {node: states[node] for node in nodes if node not in hurt and _OUT_OF_WORK.match(states.get(node, ""))}
        alive = {entry["hostname"]: entry["state"] for entry in self.cluster.status()["nodes"]}
        for node in nodes:
            if alive[node] == "dead":
                self.cluster.revive(node)
            elif alive[node] == "cut":
                self.cluster.heal(node)
            for daemon in ("slurmd", "musterd"):
                if self.cluster.daemon_pid(node, daemon) is None:
                    self.cluster.start_daemon(node, daemon)
        self.end_jobs()

        def at_work() -> bool:
            states = self.node_states()
            for node in nodes:
                state = states.get(node, "")
                if _OUT_OF_WORK.match(state) or state.startswith("idle*"):
                    self.cluster.exec(CONTROLLER, ["scontrol", "update", f"NodeName={node}", "State=RESUME"])
            return all(states.get(node, "").startswith("idle ") for node in nodes)

        self.wait(at_work, "all nodes to be idle again", SLURM)
        self.assertEqual(wronged, {}, "Slurm holds nodes out of work that the test has not hurt")

    def node_states(self) -> dict[str, str]:
        """Every node's state and reason, as in "down* muster: ..."."""
        lines = self.cluster.exec(CONTROLLER, ["sinfo", "-h", "-N", "-o", "%N|%t|%E"]).stdout.splitlines()
        return {line.split("|")[0]: " ".join(line.split("|")[1:]) for line in lines}

    # --- what a failure prints

    def _log_sizes(self) -> dict[Path, int]:
        return {path: path.stat().st_size for path in (self.cluster.directory / "log").glob("*.log")}

    def _since_the_test_began(self, path: Path) -> list[str]:
        """The lines of a log."""
        with open(path, "rb") as log:
            log.seek(self._log_marks.get(path, 0))
            return log.read().decode(errors="replace").splitlines()

    def _check_musterd(self) -> None:
        """A musterd that has crashed, or has logged an error that the test has not announced, is a failure, also of a test that
        would have lost it anyway."""
        logs = (self.cluster.directory / "log").glob("*.musterd.log")
        errors = [f"{log.name}: {line}" for log in logs for line in self._since_the_test_began(log) if _ERROR.search(line)]
        # A node that loses its power loses its processes one by one: musterd may see the door's end before its own.
        expected = [*self._expected_errors, *(rf"^{node}\.musterd\.log: .*muster-door: it has ended" for node in self.cluster.hurt)]
        unexpected = [line for line in errors if not any(re.search(pattern, line) for pattern in expected)]
        with self.red_at_once("musterd has crashed") if any("has crashed:" in line for line in unexpected) else contextlib.nullcontext():
            self.assertEqual(unexpected, [])

    @contextlib.contextmanager
    def red_at_once(self, why: str) -> Iterator[None]:
        """What fails in here fails the whole run: ./test.sh does not give the test a second look (scripts/test_report.py)."""
        try:
            yield
        except AssertionError:
            print(f"{RED_AT_ONCE}{why}", flush=True)
            raise

    def _check_given_back(self) -> None:
        """No member was given back anything but what it had saved: it would have written that into a file wrong.*."""
        wrong = [path.read_text() for job in self.jobs for path in job.files.glob("wrong.*")]
        with self.red_at_once("a checkpoint is wrong"):
            self.assertEqual(wrong, [])

    def _explain(self) -> str:
        parts = [f"======== {self.id()} failed; what there is to know about it:"]
        for job in self.jobs:
            with contextlib.suppress(OSError, ClusterError):
                parts.append(job.explain())
            if job._id:
                with contextlib.suppress(Exception):
                    parts.append("events:\n" + self.muster("events", job.id, user=job.user).stdout)
        for path, size in sorted(self._log_sizes().items()):
            old = self._log_marks.get(path, 0)
            if size > old and any(word in path.name for word in ("musterd", "slurmd", "slurmctld")):
                lines = [line for line in self._since_the_test_began(path) if "is committed" not in line][-40:]
                parts.append(f"--- {path.name} since the test began:\n" + "\n".join("    " + line[:400] for line in lines))
        return "\n".join(parts) + "\n========"


# States in which Slurm gives a node no job.
_OUT_OF_WORK = re.compile(r"(down|drain|drng|fail)")
# What scripts/test_report.py looks for in the output of a failed test, at the beginning of a line.
RED_AT_ONCE = "\nred at once: "
# A line of musterd's log that tells of its own failure.
_ERROR = re.compile(r"has crashed:|^\S+ \S+ (error|critical) ")


def _failures(result: unittest.TestResult | None) -> int:
    return len(result.failures) + len(result.errors) if result is not None else 0


def report(text: str) -> None:
    """A figure that belongs into the test's output."""
    print(f"    {text}", flush=True)


def now() -> float:
    return time.monotonic()
