#!/usr/bin/python3
"""Batch files as people write them: what a user meets in the first hour."""

import json
import re
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import MEMBER, ClusterCase, Job  # noqa: E402
from vc.names import REPOSITORY  # noqa: E402


def setUpModule() -> None:
    harness.start("hour", nodes=5, ceph=False)


IDENTITY = set(re.findall(r'^    "(\w+)",$', (REPOSITORY / "wire" / "member_variables.h").read_text(), re.MULTILINE))


def member(code: str = "record(); until_released()") -> str:
    """The program of a gang's step, in a batch file."""
    return " ".join([*MEMBER, "{FILES}", f'"{code}"'])


class OneNameOneGang(ClusterCase):
    def setUp(self) -> None:
        self.wait_until_idle()
        self.expect_error(r"name=\w+ is that of gang")

    def named(self, words: str = "name=exp", options: str = "") -> Job:
        return self.batch(f"#SBATCH -N1 -n1 --requeue --gang={words}\n{options}\nsrun {member()}\n")

    def state(self, job: Job) -> str:
        return self.cluster.exec("ctl", ["squeue", "-h", "-t", "all", "-j", job.id, "-o", "%T"]).stdout.strip()

    def is_refused(self, second: Job, first: Job, state: str) -> None:
        self.assertNotEqual(second.wait(), 0)
        self.assertRegex(second.err, rf"muster: gang {second.gang}: name=exp is that of gang {first.gang}, job {first.id} \({state}\), coordinator n\d, since")
        self.assertIn("sbatch --dependency=singleton", second.err)
        self.assertIn("--gang=name=exp:wait", second.err)
        self.assertEqual(second.records(), [])

    def test_a_name_stays_with_the_job_that_trains_and_with_its_next_run_until_it_ends(self) -> None:
        first = self.named()
        first.wait_for_generation(1, 1)
        self.is_refused(self.named(), first, "RUNNING")
        status = self.status(first)
        self.assertEqual((status["state"], status["term"], status["generation"]), ("running", 1, 1))
        self.cluster.exec("ctl", ["scontrol", "requeuehold", first.id])
        self.wait(lambda: "PENDING" in self.state(first), "the job to be held", harness.SLURM)
        self.is_refused(self.named(), first, "PENDING")
        self.cluster.exec("ctl", ["scontrol", "release", first.id])
        self.wait(lambda: len(first.records()) == 2, "the next run", harness.SLURM)
        first.release()
        self.assertEqual(first.wait(harness.SLURM), 0, first.err)
        last = self.named()
        self.wait(last.records, "a later job, which has the name")
        last.release()
        self.assertEqual(last.wait(), 0, last.err)

    def test_who_waits_for_a_name_has_it_when_the_first_has_ended_and_may_be_cancelled(self) -> None:
        first = self.named("name=turn")
        first.wait_for_generation(1, 1)
        waiting = [self.named("name=turn:wait") for _ in range(2)]
        for job in waiting:
            self.wait(lambda job=job: f"waits: name=turn is that of gang {first.gang}, job {first.id} (RUNNING)" in job.err, "it to say so")
        second, third = waiting
        node = self.cluster.exec("ctl", ["squeue", "-h", "-j", second.id, "-o", "%N"]).stdout.strip()
        shown = json.loads(self.muster("--json", "status", node=node).stdout)["gangs"]
        states = {gang["gang"]: gang["state"] for gang in shown}
        self.assertEqual((states[first.gang], states[second.gang]), ("running", "waiting"))
        self.cluster.exec("ctl", ["scancel", third.id])
        third.wait()
        self.assertEqual(third.records(), [])
        first.release()
        self.assertEqual(first.wait(), 0, first.err)
        self.wait(second.records, "the second to have its turn")
        self.assertEqual(self.event_texts(second, "waiting")[0][:20], "name=turn is that of")
        second.release()
        self.assertEqual(second.wait(), 0, second.err)

    def test_of_an_array_with_one_name_one_task_trains(self) -> None:
        job = self.named(options="#SBATCH --array=1-3")
        self.wait(lambda: job.err.count(" is that of gang ") == 2, "two to be refused")
        self.assertEqual(len(job.records()), 1)
        job.release()
        self.assertNotEqual(job.wait(), 0)


class StepsThatAreNoGang(ClusterCase):
    def setUp(self) -> None:
        # `sbatch --wait` may end while the job of the test before still has its nodes.
        self.wait_until_idle()

    def gangs(self, job: Job, number: str = "") -> list[str]:
        """The steps of the job, or of a component by its number, that musterd knows as gangs."""
        done = self.muster("--json", "status", number or job.id)
        return sorted(gang["gang"] for gang in json.loads(done.stdout)["gangs"]) if done.stdout else []

    def ends_well(self, job: Job) -> None:
        job.release()
        self.assertEqual(job.wait(), 0, job.err)

    def test_a_torchrun_file_asks_its_head_node_for_its_address_and_trains_with_a_spare(self) -> None:
        # The form of https://github.com/pytorch/examples/blob/main/distributed/ddp-tutorial-series/slurm/sbatch_run.sh.
        job = self.batch(
            "#SBATCH -N3 --ntasks-per-node=1 --gang=spares=1\n"
            "set -e\n"
            'nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))\n'
            "head=${nodes[0]}\n"
            'HEAD_IP=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address)\n'
            f"export HEAD_IP\nsrun {member()}\n"
        )
        records = job.wait_for_generation(1, 2)
        head = self.cluster.user("n1", ["hostname", "--ip-address"]).stdout.strip()
        self.assertEqual({record.env["HEAD_IP"] for record in records}, {head})
        self.assertEqual(self.gangs(job), [f"{job.id}.1"])
        self.ends_well(job)
        self.assertEqual(job.err.count("muster: "), job.err.count(f"muster: gang {job.id}.1: "))

    def test_a_one_task_step_of_several_nodes_is_plain_where_no_musterd_runs(self) -> None:
        self.cluster.stop_daemon("n2", "musterd")
        try:
            job = self.batch(
                "#SBATCH -N2 --ntasks-per-node=2 --gang=spares=1\n"
                "for export in ALL NONE; do\n"
                "  srun -N1 -n1 -w n2 --export=$export /bin/bash -c 'echo out; echo err >&2; /usr/bin/env >{FILES}/env.$0; exit 9' $export\n"
                "  echo $? >>{FILES}/codes\ndone\n"
            )
            self.assertEqual(job.wait(), 0)
        finally:
            self.cluster.start_daemon("n2", "musterd")
        self.assertEqual(job.out.splitlines()[1:], ["out"] * 2)
        self.assertEqual(sorted(job.err.splitlines()), ["err"] * 2 + ["srun: error: n2: task 0: Exited with exit code 9"] * 2)
        self.assertEqual((job.files / "codes").read_text(), "9\n9\n")
        for export in ("ALL", "NONE"):
            names = {line.split("=")[0] for line in (job.files / f"env.{export}").read_text().splitlines()}
            self.assertEqual({name for name in names if "MUSTER" in name} - {"MUSTER_SRC"}, {"SLURM_MUSTER_SUBMISSION"})

    def test_a_terminal_is_plain_and_what_it_starts_is_a_gang(self) -> None:
        job = self.batch(
            "#SBATCH -N2 --ntasks-per-node=1 --gang=spares=1\n"
            "cat >{FILES}/typed <<END\n"
            "[ \\$SLURM_PROCID = 0 ] || exit 0\ntty\n"
            f"srun --overlap {member()}\n"
            "srun --overlap --pty tty; srun --overlap --pty env </dev/null >{FILES}/none 2>&1\nexit 5\nEND\n"
            "script -qec 'srun --pty bash {FILES}/typed' {FILES}/terminal </dev/null >/dev/null\necho $?\n"
        )
        job.wait_for_generation(1, 1)
        self.ends_well(job)
        self.assertIn("/dev/pts/", (job.files / "terminal").read_text())
        self.assertEqual(job.out.splitlines()[1:], ["5"])
        self.assertIn(f"MUSTER_GANG={job.id}.3", (job.files / "none").read_text().splitlines())
        self.assertEqual(self.gangs(job), [f"{job.id}.1", f"{job.id}.3"])

    def test_pty_without_a_terminal_is_a_gang(self) -> None:
        job = self.batch("#SBATCH -N2 --ntasks-per-node=1 --gang\nsrun --pty -n2 env")
        self.assertEqual(job.wait(), 0, job.err)
        self.assertIn("Not using a pseudo-terminal, disregarding --pty option", job.err)
        self.assertEqual(job.out.splitlines().count(f"MUSTER_GANG={job.gang}"), 2)

    def test_a_plain_step_of_a_member_is_not_that_member(self) -> None:
        code = "record(); until_released(); rank == 0 and os.system('bash {FILES}/evaluate')"
        job = self.batch(
            "#SBATCH -N2 --ntasks-per-node=2 --gang\n"
            "cat >{FILES}/evaluate <<END\n"
            "srun -v --overlap -N1 -n1 env >{FILES}/one 2>{FILES}/verbose; srun --overlap --gang=off -n4 env >{FILES}/off\n"
            "MASTER_PORT=1 srun --overlap --gang=off -N1 -n1 --export=ALL,RANK=0 env >{FILES}/own\n"
            "srun --overlap -n2 -N2 env >{FILES}/gang\n"
            "sbatch --wait --gang=off -o {FILES}/job --wrap 'export MASTER_ADDR=x; srun -n1 --ntasks-per-node=1 env'\nEND\n"
            f"srun {member(code)}\n"
        )
        self.assertGreater(len(IDENTITY & set(job.wait_for_generation(1, 4)[0].env)), 30)
        self.ends_well(job)
        for name, own in (("one", set[str]()), ("off", set()), ("own", {"RANK"})):
            names = {line.split("=")[0] for line in (job.files / name).read_text().splitlines()}
            self.assertIn("SLURM_PROCID", names)
            self.assertEqual(names & IDENTITY, own)
        job_of_a_member = (job.files / "job").read_text().splitlines()
        self.assertIn("MASTER_ADDR=x", job_of_a_member)
        self.assertEqual({line.split("=")[0] for line in job_of_a_member} & IDENTITY, {"MASTER_ADDR"})
        self.assertIn("muster: no gang: one task of a job with 2 nodes; srun --gang makes it one", (job.files / "verbose").read_text())
        self.assertEqual((job.files / "gang").read_text().splitlines().count(f"MUSTER_GANG={job.id}.4"), 2)
        self.assertEqual(self.gangs(job), [f"{job.id}.0", f"{job.id}.4"])

    def test_every_other_step_of_the_job_is_a_gang_also_on_part_of_its_nodes(self) -> None:
        job = self.batch(
            "#SBATCH -N3 --ntasks-per-node=2 --gang\n"
            "srun -N2 -n2 true; srun -N1 -n2 true; srun -N1 -n1 true; srun -N1 -n1 --gang=restarts=1 true\n"
            f"srun -N2 -n2 {member()} & srun -N1 -n2 true & wait\n"
        )
        job.wait_for_generation(1, 2)
        self.ends_well(job)
        self.assertEqual(self.gangs(job), [f"{job.id}.{step}" for step in (0, 1, 3, 4, 5)])

    def test_one_task_is_the_gang_of_a_job_that_has_one_node_or_one_left(self) -> None:
        one = self.batch("#SBATCH -N1 -n1 --gang\nsrun true")
        shrunk = self.batch("#SBATCH -N2 -n2 --gang\nscontrol update JobId=$SLURM_JOB_ID NumNodes=1\nsrun -N1 -n1 true")
        for job in (one, shrunk):
            self.assertEqual(job.wait(), 0, job.err)
            self.assertEqual(self.gangs(job), [job.gang])

    def test_off_makes_any_step_plain_so_that_data_is_staged_on_the_spare_too(self) -> None:
        job = self.batch(
            "#SBATCH -N3 --ntasks-per-node=2 --gang=spares=1\n"
            "srun --gang=off --nodes=3 --ntasks=3 bash -c 'echo $(hostname) $SLURM_NTASKS ${MUSTER_GANG:-none} >>{FILES}/staged'\n"
            f"srun {member()}\n"
        )
        job.wait_for_generation(1, 4)
        self.assertEqual(sorted((job.files / "staged").read_text().splitlines()), [f"n{i} 3 none" for i in (1, 2, 3)])
        self.ends_well(job)
        self.assertEqual(self.gangs(job), [f"{job.id}.1"])
        of_the_job = self.batch("#SBATCH -N2 -n2 --gang=off\nsrun env")
        self.assertEqual(of_the_job.wait(), 0, of_the_job.err)
        self.assertNotRegex(of_the_job.out, "MUSTER_GANG|SLURM_NO_KILL")
        self.assertEqual(self.gangs(of_the_job), [])

    def test_a_gang_of_the_job_that_does_not_fit_its_step_is_refused_with_the_two_ways_out(self) -> None:
        job = self.batch(
            "#SBATCH -N3 --ntasks-per-node=2 --gang=spares=1,min=2\n"
            "srun -N1 -n2 true; echo $?; srun -N2 -n2 true; echo $?; srun -N1 -n2 --gang=off hostname\n"
            "sbatch -N1 --wrap true; echo $?\n"
            "sbatch --wait --output={FILES}/off -N1 -n2 --gang=off --wrap 'srun -n2 env' >/dev/null; echo $?\n"
        )
        self.assertEqual(job.wait(), 0)
        self.assertEqual(job.out.splitlines()[1:], ["1", "1", "n1", "n1", "1", "0"])
        ways = "; --gang is inherited from the job: write {0} --gang=off for no gang, or {0} -N3 for a gang"
        for line in (
            "srun: error: --gang: spares=1 of 1 nodes leaves none to run on" + ways.format("srun"),
            "srun: error: --gang: min=2 is more than the 1 nodes that the gang runs on (2, of which spares=1 wait)" + ways.format("srun"),
            "sbatch: error: --gang: spares=1 of 1 nodes leaves none to run on" + ways.format("sbatch"),
        ):
            self.assertIn(line, job.err.splitlines())
        self.assertEqual(self.gangs(job), [])
        off = (job.files / "off").read_text()
        self.assertEqual(off.count("SLURM_PROCID="), 2)
        self.assertNotIn("MUSTER_GANG", off)

    def test_each_component_of_a_heterogeneous_job_is_judged_by_its_own_nodes(self) -> None:
        job = self.batch(
            "#SBATCH -N1 --ntasks-per-node=2 --gang\n#SBATCH hetjob\n#SBATCH -N2 --ntasks-per-node=1\n"
            "srun --het-group=0 -n1 true; srun --het-group=1 -N1 -n1 true; srun --het-group=1 -N2 -n2 true\n"
            "srun --het-group=0 -n1 true : --het-group=1 -N1 -n1 true\n"
        )
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(self.gangs(job), [f"{job.id}.0", f"{job.id}.3"])
        other = str(int(job.id) + 1)
        self.assertEqual(self.gangs(job, other), [f"{other}.2"])

    def test_the_first_component_speaks_for_the_script_and_off_stands_in_each_of_an_srun(self) -> None:
        job = self.batch(
            "#SBATCH -N1 --ntasks-per-node=2 --gang=off\n#SBATCH hetjob\n#SBATCH -N2 --ntasks-per-node=1 --gang\n"
            "srun --het-group=1 -N2 -n2 env\n"
        )
        self.assertEqual(job.wait(), 0, job.err)
        self.assertNotIn("MUSTER_GANG", job.out)
        job = self.batch(
            "#SBATCH -N3 --ntasks-per-node=1 --gang\n"
            "srun --gang=off -n1 -N1 env : -n2 -N2 env; echo $?\nsrun --gang=off -n1 -N1 true : --gang=off -n2 -N2 true\n"
        )
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(job.out.splitlines()[1:], ["1"])
        self.assertIn("or --gang=off to each", job.err)
        self.assertEqual(self.gangs(job), [])


class TheGangsEndIsSruns(ClusterCase):
    def healed(self) -> tuple[Job, str]:
        """A gang loses the node of rank 0 and succeeds on its spare: Slurm counts the task that was killed. The job, and srun's exit code."""
        code = "record(parent=os.getppid()); until_released()"
        job = self.batch(f"#SBATCH -N2 --ntasks-per-node=1 --gang=spares=1\nsrun {member(code)}\necho $? >{{FILES}}/code")
        first = job.wait_for_generation(1, 1)[0]
        self.cluster.exec(first.host, ["kill", "-KILL", str(first.said["parent"])])
        self.assertNotEqual(job.wait_for_generation(2, 1)[0].host, first.host)
        job.release()
        self.assertEqual(job.wait(), 0, job.err)
        return job, (job.files / "code").read_text().strip()

    def test_srun_ends_with_0_after_a_loss_that_the_gang_has_outlived(self) -> None:
        job, code = self.healed()
        self.assertEqual(code, "0", job.err)
        self.assertIn(f"srun: muster: gang {job.gang} has succeeded: srun ends with 0, not with 137", job.err)

    def test_srun_ends_as_slurm_has_it_where_muster_cannot_be_asked(self) -> None:
        muster = "/opt/muster-build/bin/muster"
        self.assertEqual(self.cluster.exec("n1", ["mount", "--bind", "/bin/false", muster]).returncode, 0)  # the batch host
        self.addCleanup(self.cluster.exec, "n1", ["umount", muster])
        job, code = self.healed()
        self.assertEqual(code, "137", job.err)

    def test_a_gang_that_has_failed_has_its_own_exit_code(self) -> None:
        job = self.batch("#SBATCH -N2 -n2 --gang=restarts=0\nsrun bash -c 'exit 7'")
        self.assertEqual(job.wait(), 7, job.err)
        self.assertNotIn("has succeeded", job.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
