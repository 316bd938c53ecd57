#!/usr/bin/python3
"""Heterogeneous jobs as one gang: every component is a role, and what a role is decides who waits for it."""

import json
import re
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import MEMBER, SLURM, Job, Record  # noqa: E402
from walkers import WalkerCase  # noqa: E402

# Each test gives its components their nodes, so that they are known, and not in the order of the components.
Component = tuple[str, int, str, str]  # nodes, tasks, --gang, what the members do


def setUpModule() -> None:
    # Slurm starts heterogeneous jobs from its backfill cycle only.
    scheduler = "bf_interval=1,sched_interval=5,sched_min_interval=0"
    slurm = {"SlurmdTimeout": "60", "SchedulerParameters": scheduler}
    harness.start("roles", nodes=6, ceph=False, limits=harness.RESTARTS, slurm=slurm)


class RoleCase(WalkerCase):
    def roles(self, *components: Component, options: tuple[str, ...] = ()) -> Job:
        """One srun of several components."""
        words = ["srun", *options]
        for number, (nodes, tasks, gang, code) in enumerate(components):
            words += [":"] if number else []
            count = len(self.expand(nodes))
            words += ["-w", nodes, f"-N{count}", f"-n{tasks}", f"--ntasks-per-node={tasks // count}", f"--gang={gang}"]
            words += [*MEMBER, "{FILES}", code]
        return self.start_job(words)

    @staticmethod
    def expand(nodes: str) -> list[str]:
        found = re.fullmatch(r"n\[(\d)-(\d)\]", nodes)
        return [f"n{i}" for i in range(int(found[1]), int(found[2]) + 1)] if found else nodes.split(",")

    def of_role(self, records: list[Record], role: str) -> list[Record]:
        return [record for record in records if record.env["MUSTER_ROLE"] == role]

    def refused(self, job: Job, *patterns: str) -> None:
        """It ends without having started anything, and says why."""
        self.assertNotEqual(job.wait(), 0)
        for pattern in patterns:
            self.assertRegex(job.err, pattern)
        self.assertEqual(job.records(), [])


STAY = "record(); until_released()"
FOR_EVER = "record(); until(lambda: False)"


class OneGang(RoleCase):
    def test_the_components_of_an_srun_are_one_gang_with_ranks_and_addresses_by_role(self) -> None:
        job = self.roles(
            ("n[1-2]", 4, "role=worker", STAY),
            ("n4", 1, "role=chief", STAY),
            ("n3", 2, "role=ps", FOR_EVER),
            ("n5", 1, "role=evaluator", FOR_EVER),
        )
        records = job.wait_for_generation(1, 8)
        self.assertEqual({r.env["MUSTER_GANG"] for r in records}, {job.gang}, "the first component's job names it")
        self.assertEqual({r.env["MUSTER_ROLES"] for r in records}, {"chief=1,worker=4,ps=2,evaluator=1"})
        hosts = [(r.env["MUSTER_ROLE"], r.host) for r in records]
        expected = [("chief", "n4")] + [("worker", n) for n in ("n1", "n1", "n2", "n2")] + [("ps", "n3")] * 2
        self.assertEqual(hosts, [*expected, ("evaluator", "n5")])
        # The chief and the workers train together; the others are no part of that world.
        for variable in ("RANK", "SLURM_PROCID", "HOROVOD_RANK", "JAX_PROCESS_ID"):
            self.assertEqual([r.env[variable] for r in records], ["0", "1", "2", "3", "4", "0", "1", "0"], variable)
        for variable in ("WORLD_SIZE", "SLURM_NTASKS", "HOROVOD_SIZE", "JAX_NUM_PROCESSES"):
            self.assertEqual([r.env[variable] for r in records], ["5"] * 5 + ["2", "2", "1"], variable)
        self.assertEqual([r.env["MUSTER_ROLE_RANK"] for r in records], ["0", "0", "1", "2", "3", "0", "1", "0"])
        self.assertEqual([r.env["LOCAL_RANK"] for r in records], ["0", "0", "1", "0", "1", "0", "1", "0"])
        self.assertEqual([r.env["MASTER_ADDR"] for r in records], ["n4"] * 5 + ["n3", "n3", "n5"])
        self.assertEqual(len({r.env["MASTER_PORT"] for r in records[:5]}), 1)
        self.assertEqual(records[1].env["SLURM_JOB_NODELIST"], "n[4,1-2]")
        tf = [json.loads(r.env["TF_CONFIG"]) for r in records]
        self.assertEqual([len(tf[0]["cluster"][role]) for role in ("chief", "worker", "ps")], [1, 4, 2])
        self.assertTrue(all(config["cluster"] == tf[0]["cluster"] for config in tf))
        self.assertNotIn("evaluator", tf[0]["cluster"])
        self.assertEqual([(c["task"]["type"], c["task"]["index"]) for c in tf][3:6], [("worker", 2), ("worker", 3), ("ps", 0)])
        self.assertEqual({key for r in records for key in r.env if key.startswith("SLURM_MUSTER")}, {"SLURM_MUSTER_SUBMISSION"})

        # A worker's fault: all of them start again.
        self.kill_member(self.of_role(records, "worker")[2])
        again = job.wait_for_generation(2, 8)
        self.assertEqual([(r.env["MUSTER_ROLE"], r.host) for r in again], hosts)
        self.assertFalse({(r.host, r.pid) for r in records} & {(r.host, r.pid) for r in again})
        # The chief's end with 0 is the gang's: servers and evaluators are stopped.
        job.release()
        self.assertEqual(job.wait(), 0, job.err)
        status = self.status(job)
        self.assertEqual((status["succeeded"], status["generation"], status["restarts"]), (True, 2, 1))
        roles = dict(zip(status["nodes"], status["roles"]))
        self.assertEqual(roles, {"n1": "worker", "n2": "worker", "n3": "ps", "n4": "chief", "n5": "evaluator"})
        self.assertIn(f"{job.gang}: worker: n1, n2\n", self.muster("status", job.id).stdout)
        for node in ("n1", "n2", "n3", "n4", "n5"):
            self.assertEqual(self.member_processes(node, job), [])

    def test_a_batch_jobs_components_are_one_gang_too(self) -> None:
        """With roles that MXNet knows, and a component of the job that is not in the step."""
        member = " ".join([*MEMBER, "{FILES}", "'record(); until_released()'"])
        server = " ".join([*MEMBER, "{FILES}", "'record(); until(lambda: False)'"])
        script = "#SBATCH -N1 -n1\n#SBATCH hetjob\n#SBATCH -N1 -n1\n#SBATCH hetjob\n#SBATCH -N2 -n2\n"
        script += "#SBATCH hetjob\n#SBATCH -N1 -n2\n"
        script += f"srun --het-group=0 --gang=role=scheduler {server}"
        script += f" : --het-group=2 --gang=role=worker,restarts=0 {member} : --het-group=3 --gang=role=server {server}\n"
        job = self.batch(script)
        records = job.wait_for_generation(1, 5)
        roles = [(r.env["DMLC_ROLE"], r.env["DMLC_NUM_WORKER"], r.env["DMLC_NUM_SERVER"]) for r in records]
        expected = ["worker", "worker", "scheduler", "server", "server"]
        self.assertEqual(roles, [(role, "2", "2") for role in expected])
        self.assertEqual({r.env["DMLC_PS_ROOT_URI"] for r in records}, {records[2].host})
        self.assertEqual([r.env["RANK"] for r in records], ["0", "1", "0", "0", "1"])
        self.assertEqual(self.status(job)["restart_limit"], 0, "said by one component, and the gang's")
        job.release()
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(self.final_state(job), "COMPLETED")


class Kinds(RoleCase):
    def test_a_sidecars_end_changes_nothing_and_an_evaluators_failure_is_a_fault(self) -> None:
        job = self.roles(
            ("n1", 1, "role=worker", STAY),
            ("n2", 1, "role=sidecar", "record(); die()"),
            ("n3", 1, "role=evaluator", STAY),
        )
        records = job.wait_for_generation(1, 3)
        self.wait(lambda: self.event_texts(job, "sidecar"), "the sidecar's end to be noticed")
        self.assertEqual(self.status(job)["generation"], 1)
        self.kill_member(self.of_role(records, "evaluator")[0])
        job.wait_for_generation(2, 3)
        self.assertEqual(len(self.event_texts(job, "fault")), 1)
        job.release()
        self.assertEqual(job.wait(), 0, job.err)

    def test_a_chief_that_fails_is_a_fault_and_its_exit_code_is_the_jobs(self) -> None:
        job = self.roles(
            ("n1", 1, "role=worker", FOR_EVER), ("n2", 1, "role=chief,restarts=1", "record(rank=rank); sys.exit(7)")
        )
        self.assertEqual(job.wait(), 7, job.err)
        self.assertEqual([r.generation for r in self.of_role(job.records(), "chief")], [1, 2])
        self.assertRegex(job.err, r"rank 0 on n2 .* exited with code 7")

    def test_the_workers_end_without_a_chief_is_the_gangs(self) -> None:
        job = self.roles(("n[1-2]", 2, "role=worker", STAY), ("n3", 1, "role=ps", FOR_EVER))
        job.wait_for_generation(1, 3)
        job.release()
        self.assertEqual(job.wait(), 0, job.err)
        self.assertIn("all tracked members have exited with code 0; the others are stopped", self.event_texts(job, "succeeded"))


class Order(RoleCase):
    def test_a_role_starts_after_another_runs_or_has_ended_in_every_generation(self) -> None:
        # When the process was forked, to 10 ms: what it does itself may be later than another's.
        at = "record(at=int(open('/proc/self/stat').read().rsplit(')', 1)[1].split()[19]))"
        job = self.roles(
            ("n1", 1, "role=worker,after=ps", f"{at}; until_released()"),
            ("n2", 1, "role=ps,after=prepare:done", f"{at}; until(lambda: False)"),
            ("n3", 1, "role=prepare,kind=untracked", f"{at}; until(lambda: os.path.exists(path(f'ready.{{generation}}')))"),
        )
        for generation in (1, 2):
            first = job.wait_for_generation(generation, 1)
            self.assertEqual([r.env["MUSTER_ROLE"] for r in first], ["prepare"])
            (job.files / f"ready.{generation}").touch()
            records = job.wait_for_generation(generation, 3)
            times = {r.env["MUSTER_ROLE"]: r.said["at"] for r in records}
            self.assertLess(times["prepare"], times["ps"])
            self.assertLessEqual(times["ps"], times["worker"])
            if generation == 1:
                self.kill_member(self.of_role(records, "ps")[0])
        job.release()
        self.assertEqual(job.wait(), 0, job.err)


class Nodes(RoleCase):
    def test_a_components_spare_takes_its_own_lost_nodes_place(self) -> None:
        job = self.roles(
            ("n[2-4]", 3, "role=worker,spares=1", STAY), ("n1", 1, "role=chief", STAY), ("n5", 1, "role=ps", FOR_EVER)
        )
        records = job.wait_for_generation(1, 4)
        self.assertEqual([r.host for r in records], ["n1", "n2", "n3", "n5"])
        self.cluster.kill("n3")
        again = job.wait_for_generation(2, 4)
        roles = [(r.env["MUSTER_ROLE"], r.host) for r in again]
        self.assertEqual(roles, [("chief", "n1"), ("worker", "n2"), ("worker", "n4"), ("ps", "n5")])
        self.wait_for_state("n3", "down")
        job.release()
        self.assertEqual(job.wait(SLURM), 0, job.err)

    def test_slurm_is_not_told_of_a_lost_node_when_it_would_end_the_job_for_it(self) -> None:
        """It would where a component before the node's has a single node."""
        job = self.roles(("n1", 1, "role=chief", STAY), ("n[2-4]", 3, "role=worker,spares=1", STAY))
        job.wait_for_generation(1, 3)
        self.cluster.kill("n3")
        again = job.wait_for_generation(2, 3)
        self.assertEqual([(r.env["MUSTER_ROLE"], r.host) for r in again], [("chief", "n1"), ("worker", "n2"), ("worker", "n4")])
        self.wait(lambda: [t for t in self.event_texts(job, "slurm") if "n3 is not set DOWN before" in t], "the reason")
        self.assertFalse(self.node_states()["n3"].startswith("down"))
        job.release()
        job.wait(SLURM)
        self.assertTrue(self.status(job)["succeeded"])
        self.wait_for_state("n3", "down")

    def test_a_batch_job_without_room_in_one_component_is_requeued_with_all_of_them(self) -> None:
        member = " ".join([*MEMBER, "{FILES}", "'record(); until_released()'"])
        script = "#SBATCH -N1 -n1 --gang\n#SBATCH hetjob\n#SBATCH -N2 -n2\n"
        script += f"srun --het-group=0 --gang=role=chief {member} : --het-group=1 --gang=role=worker {member}\n"
        job = self.batch(script)
        first = job.wait_for_generation(1, 3)
        lost = first[2].host
        self.cluster.kill(lost)
        again = job.wait_for_generation(2, 3, SLURM)
        self.assertEqual([r.env["MUSTER_ROLE"] for r in again], ["chief", "worker", "worker"])
        self.assertEqual({r.env["SLURM_RESTART_COUNT"] for r in again}, {"1"})
        self.assertEqual({r.env["MUSTER_GANG"] for r in again}, {f"{job.gang}-r1"})
        self.assertNotIn(lost, {r.host for r in again})
        job.release()
        self.assertEqual(job.wait(SLURM), 0, job.err)

    def test_a_component_that_does_not_come_is_named(self) -> None:
        self.cluster.stop_daemon("n3", "musterd")
        job = self.roles(("n[1-2]", 2, "role=worker,join=15s", STAY), ("n3", 1, "role=chief", STAY))
        self.refused(job, r"after 15 s these have not joined: n3")


class Refused(RoleCase):
    def test_what_contradicts_itself_is_refused_with_the_reason(self) -> None:
        worker: Component = ("n[1-2]", 2, "role=worker", STAY)
        cases: list[tuple[str, Component]] = [
            ("2 tasks are chief", ("n3", 2, "role=chief", STAY)),
            ("after=db: no component", ("n3", 1, "role=ps,after=db", STAY)),
            ("role=worker is kind=tracked .* and kind=sidecar", ("n3", 1, "role=worker,kind=sidecar", STAY)),
            ("spares=1 of 1 nodes", ("n3", 1, "role=ps,spares=1", STAY)),
        ]
        for reason, other in cases:
            with self.subTest(reason):
                self.refused(self.roles(worker, other), reason)

    def test_a_component_without_gang_is_refused_by_srun(self) -> None:
        for first, second in (("--gang", "--"), ("--", "--gang")):
            job = self.start_job(["srun", "-n1", first, *MEMBER, "{FILES}", STAY, ":", "-n1", second, *MEMBER, "{FILES}", STAY])
            self.refused(job, "each component")
            self.assertEqual(job._find(), "", "no job has been submitted")

    def test_roles_within_one_job_are_refused_and_one_role_is_not(self) -> None:
        words = " ".join([*MEMBER, "{FILES}", "'record(); until_released()'"])
        job = self.batch(f"#SBATCH -N3 -n3\nsrun -N1 -n1 --gang=role=chief {words} : -N2 -n2 --gang {words}\n")
        self.refused(job, "submit a heterogeneous job")
        job = self.batch(f"#SBATCH -N3 -n3\nsrun -N1 -n1 --gang {words} : -N2 -n2 --gang {words}\n")
        records = job.wait_for_generation(1, 3)
        self.assertEqual([r.env["RANK"] for r in records], ["0", "1", "2"])
        job.release()
        self.assertEqual(job.wait(), 0, job.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
