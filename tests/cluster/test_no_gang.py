#!/usr/bin/python3
"""A job without --gang is untouched: the loaded plugin changes nothing that its programs could see."""

import contextlib
import re
import signal
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import ClusterCase, Job  # noqa: E402

# What differs between any two steps of one job.
OF_THE_STEP = {"SLURM_STEP_ID", "SLURM_STEPID", "SLURM_SRUN_COMM_PORT", "SLURM_STEP_LAUNCHER_PORT", "SLURM_TASK_PID", "FILES"}

# Everything about a process that a plugin could have changed for it.
LOOK = """
import resource
def text(path):
    with open(path) as file: return file.read()
def status(pid, *names):
    lines = dict(line.split(":", 1) for line in text(f"/proc/{pid}/status").splitlines())
    return {name: lines[name].strip() for name in names}
record(
    parent=text(f"/proc/{os.getppid()}/comm").strip(),
    leads_group=os.getpgrp() == os.getpid(),
    session_of_parent=os.getsid(0) == os.getsid(os.getppid()),
    signals=status("self", "SigBlk", "SigIgn", "SigCgt"),
    descriptors=sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
    kinds=[re.sub(r"[0-9]+", "N", os.readlink(f"/proc/self/fd/{fd}")) for fd in (0, 1, 2)],
    limits=[resource.getrlimit(number) for number in range(16)],
    cgroup=re.sub(r"step_[0-9]+", "step_N", text("/proc/self/cgroup")),
    umask=status("self", "Umask"), cwd=os.getcwd(), ids=(os.getresuid(), os.getresgid(), os.getgroups()),
    mapped=sorted({line.split()[-1] for line in text("/proc/self/maps").splitlines() if "/" in line}),
)
"""


def setUpModule() -> None:
    harness.start("nogang", nodes=2, ceph=False)


class NoGang(ClusterCase):
    @contextlib.contextmanager
    def without_plugin(self) -> Iterator[None]:
        path = self.cluster.directory / "etc" / "slurm" / "plugstack.conf"
        before = path.read_text()
        self.assertIn("spank_muster.so", before)
        path.write_text("")
        try:
            self.assertNotIn("--gang", self.cluster.user("ctl", ["srun", "--help"]).stdout)
            yield
        finally:
            path.write_text(before)

    @contextlib.contextmanager
    def allocation(self) -> Iterator[str]:
        done = self.cluster.user("ctl", ["salloc", "--no-shell", "-N2", "--ntasks-per-node=2"], timeout=60)
        found = re.search(r"job allocation (\d+)", done.stderr)
        assert found is not None, done.stderr
        try:
            yield found[1]
        finally:
            self.cluster.exec("ctl", ["scancel", found[1]])

    def seen(self, job: Job) -> dict[int, dict[str, Any]]:
        """What the members saw of themselves, by rank."""
        self.assertEqual(job.wait(), 0, job.err)
        records = job.records(0)
        self.assertEqual(len(records), 4)
        found = {}
        for record in records:
            env = {key: value for key, value in record.env.items() if key not in OF_THE_STEP}
            found[record.rank] = {"env": env, "host": record.host} | record.said
        return found

    def test_its_programs_see_what_they_see_without_the_plugin(self) -> None:
        with self.allocation() as job_id:

            def step() -> Job:
                env = {"SLURM_JOB_ID": job_id}
                return self.srun([*harness.MEMBER, "{FILES}", "import re\n" + LOOK], gang=None, env=env)

            with self.without_plugin():
                plain = self.seen(step())
            loaded = self.seen(step())
        for rank, expected in plain.items():
            for what, value in expected.items():
                self.assertEqual(self.unnumbered(loaded[rank][what]), self.unnumbered(value), f"{what} of rank {rank}")
            self.assertEqual(loaded[rank]["parent"], "slurmstepd")
            self.assertFalse([key for key in loaded[rank]["env"] if key.startswith("MUSTER_") and key != "MUSTER_SRC"])

    @staticmethod
    def unnumbered(value: Any) -> Any:
        """Without the names of this test's jobs, which count up."""
        if isinstance(value, str):
            return re.sub(r"test\d+-\d+", "test", value)
        if isinstance(value, dict):
            return {key: NoGang.unnumbered(item) for key, item in value.items()}
        if isinstance(value, list):
            return [NoGang.unnumbered(item) for item in value]
        return value

    def test_exit_codes_and_signals_are_its_own(self) -> None:
        for program, code in (("exit 0", 0), ("exit 9", 9), ("kill -SEGV $$", 128 + signal.SIGSEGV)):
            with self.subTest(program=program):
                words = ["bash", "-c", f"ulimit -c 0; {program}"]
                with self.without_plugin():
                    plain = self.srun(words, gang=None)
                    self.assertEqual(plain.wait(), code, plain.err)
                loaded = self.srun(words, gang=None)
                self.assertEqual(loaded.wait(), code, loaded.err)
                mask = re.compile(r"\d+")
                lines = (sorted(mask.sub("N", text).splitlines()) for text in (plain.err, loaded.err))
                self.assertEqual(*(self.nameless(part) for part in lines))

    @staticmethod
    def nameless(lines: list[str]) -> list[str]:
        """srun's complaints without the numbers and ranges of tasks, whose order is chance."""
        return sorted({re.sub(r"(tasks? )[N,-]+|nN", r"\1", line) for line in lines})

    def test_a_signal_is_delivered_once(self) -> None:
        code = (
            "signal.signal(signal.SIGUSR1, lambda *_: open(path(f'got.{rank}'), 'a').write('x'))\n"
            "record(); until_released()"
        )
        job = self.srun([*harness.MEMBER, "{FILES}", code], gang=None)
        job.wait_for_generation(0, 4)
        self.cluster.exec("ctl", ["scancel", "-s", "USR1", job.id])
        paths = [job.files / f"got.{rank}" for rank in range(4)]
        self.wait(lambda: all(path.exists() for path in paths), "the signal")
        job.release()
        self.assertEqual(job.wait(), 0)
        self.assertEqual([path.read_text() for path in paths], ["x"] * 4)

    def test_a_member_that_fails_is_not_started_again(self) -> None:
        job = self.srun([*harness.MEMBER, "{FILES}", "record(); open(path(f'ran.{rank}'), 'a').write('x'); sys.exit(3)"], gang=None)
        self.assertEqual(job.wait(), 3)
        self.assertEqual({(job.files / f"ran.{rank}").read_text() for rank in range(4)}, {"x"})
        self.assertNotIn("muster", job.err)
        self.assertEqual(self.muster("status", job.id).returncode, 1, "Muster knows nothing of it")

    def test_it_runs_where_no_musterd_does(self) -> None:
        for node in self.cluster.compute_nodes:
            self.cluster.stop_daemon(node, "musterd")
        try:
            job = self.srun(["hostname"], gang=None)
            self.assertEqual(job.wait(), 0, job.err)
            self.assertEqual((sorted(job.out.split()), job.err), (["n1", "n1", "n2", "n2"], ""))
            batch = self.batch("#SBATCH -N2\nsrun hostname\n")
            self.assertEqual(batch.wait(), 0, batch.err)
        finally:
            for node in self.cluster.compute_nodes:
                self.cluster.start_daemon(node, "musterd")


if __name__ == "__main__":
    unittest.main(verbosity=2)
