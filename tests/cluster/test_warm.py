#!/usr/bin/python3
"""Warm starts (--gang=warm=yes) on real Slurm: docs/warm-starts.md."""

import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import ClusterCase, Job, Record  # noqa: E402
from vc import environment  # noqa: E402
from vc.names import BUILD_IN_NODE, SOURCE_IN_NODE  # noqa: E402

PROGRAM = f"{SOURCE_IN_NODE}/tests/cluster/programs/warm_member.py"
PYTHON = f"/home/trainer/{environment.NAME}/bin/python3"  # that has the hook, in the nodes

# Of the environment, what another generation or another process must have: musterd's new ports, the number of the generation,
# why there is one.
OF_THE_GENERATION = {
    "MASTER_PORT", "JAX_COORDINATOR_ADDRESS", "TORCHELASTIC_RESTART_COUNT", "MUSTER_GENERATION", "MUSTER_RESTART_CAUSE",
    "SLURM_TASK_PID", "TF_CONFIG", "DMLC_PS_ROOT_PORT",
}  # fmt: skip

# What is slow to import, as a framework is.
SLOW = "import time\nprint('slow says', flush=True)\ntime.sleep(2)\n"
# A standby does not have the script's directory in its path.
STANDBY = "import os, sys, time\nstandby = not any(path.endswith('/programs') for path in sys.path)\n"
HANGS = f"{STANDBY}if standby: open(f'{{sys.argv[1]}}/hangs.{{os.uname().nodename}}.{{os.getpid()}}', 'w').close(); time.sleep(3600)\n"
FORKS = "import subprocess\nchild = subprocess.Popen(['sleep', '3600'])\n"
FAILS = f"{STANDBY}if standby: raise OSError('no such device')\n"


def setUpModule() -> None:
    cluster = harness.start("warm", nodes=2, ceph=False)
    environment.make(cluster.directory / "home", "trainer", {"slow": SLOW, "slow_hangs": HANGS, "slow_forks": FORKS, "slow_fails": FAILS})


class WarmCase(ClusterCase):
    def start_warm(self, module: str = "slow", before: tuple[str, ...] = ()) -> tuple[Job, list[Record]]:
        program = [*before, PYTHON, "-X", "dev", PROGRAM, "{FILES}", module]
        job = self.srun(program, "warm=yes,restarts=10", env={"PYTHONPATH": f"{BUILD_IN_NODE}/python"})
        return job, job.wait_for_generation(1, 4)

    def warm(self, job: Job) -> str:
        return str(self.status(job)["warm"])

    def restart(self, job: Job, victim: Record) -> list[Record]:
        self.kill_member(victim)
        return job.wait_for_generation(victim.generation + 1, 4)

    def finish(self, job: Job) -> None:
        job.release()
        self.assertEqual(job.wait(), 0, job.err)


class Warm(WarmCase):
    def test_a_killed_member_makes_the_whole_gang_start_warm_again_and_again(self) -> None:
        job, cold = self.start_warm()
        records = cold
        for generation in (2, 3):
            self.wait(lambda: self.warm(job).startswith("4 of 4 standbys are ready"), "the standbys")
            records = self.restart(job, records[generation - 1])
            self.wait(lambda: len(self.event_texts(job, "warm")) == generation - 1, "the event")
            self.assertEqual(self.event_texts(job, "warm")[-1], "4 of 4 members were started warm")
            for one, before in zip(records, cold, strict=True):
                self.assertLess(one.said["imported"], 1.5, "what takes 2 s was imported before")
                self.assertEqual(one.said["world"], before.said["world"])
                self.assertEqual(self.settled(one), self.settled(before))
        self.finish(job)
        self.assertEqual(job.out.count("slow says\n"), 12, "what a module says is said once in each generation")

    def test_so_does_a_script_of_torchrun_with_its_word_exchanged(self) -> None:
        variables = {"PYTHONPATH": f"{BUILD_IN_NODE}/python", "PYTHON_EXEC": PYTHON}
        flags = "--nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=$(hostname):29500"
        script = "#SBATCH -N2 --ntasks-per-node=2 --gang=warm=yes,restarts=10\n"
        job = self.batch(f"{script}srun muster-run {flags} {PROGRAM} {{FILES}} slow", env=variables)
        cold = job.wait_for_generation(1, 4)
        self.wait(lambda: self.warm(job).startswith("4 of 4 standbys are ready"), "the standbys")
        records = self.restart(job, cold[1])
        self.wait(lambda: self.event_texts(job, "warm") == ["4 of 4 members were started warm"], "the event")
        for one, before in zip(records, cold, strict=True):
            self.assertEqual(one.said["world"], before.said["world"])
            self.assertEqual(self.settled(one), self.settled(before))
            self.assertEqual(one.env["OMP_NUM_THREADS"], "1")
        self.finish(job)

    @staticmethod
    def settled(record: Record) -> dict[str, str]:
        return {key: value for key, value in record.env.items() if key not in OF_THE_GENERATION}


class Cold(WarmCase):
    def check(self, module: str, reason: str, before: tuple[str, ...] = (), standby: bool = True) -> None:
        job, records = self.start_warm(module, before)
        if standby:
            self.wait(lambda: reason in self.warm(job), f"'{reason}' in the status")
        records = self.restart(job, records[0])
        self.wait(lambda: self.event_texts(job, "warm"), "the event")
        self.assertIn(reason, self.event_texts(job, "warm")[0])
        self.assertIn("0 of 4 members were started warm", self.warm(job))
        self.finish(job)

    def test_a_standby_whose_import_hangs_is_not_waited_for(self) -> None:
        job, records = self.start_warm("slow_hangs")
        self.wait(lambda: len(list(job.files.glob("hangs.*"))) == 4, "the standbys to hang")
        self.restart(job, records[0])
        self.wait(lambda: self.event_texts(job, "warm"), "the event")
        self.assertIn("it was importing slow_hangs", self.event_texts(job, "warm")[0])
        self.finish(job)

    def test_a_standby_whose_import_fails_is_none(self) -> None:
        self.check("slow_fails", "importing slow_fails fails in a standby: OSError: no such device")

    def test_a_standby_that_starts_processes_is_none(self) -> None:
        self.check("slow_forks", "starts another process (sleep)")

    def test_a_script_that_starts_python_is_no_program_for_it(self) -> None:
        self.check("slow", "the program is no Python, but starts one", ("bash", "-c", '"$@"; exit $?', "script"), standby=False)


if __name__ == "__main__":
    unittest.main()
