#!/usr/bin/python3
"""A gang's life on real Slurm: restarts in place, exit codes, environment, first causes, what others may see."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import MEMBER, SOON, ClusterCase, Job, Record  # noqa: E402
from vc.names import BUILD_IN_NODE, CONTROLLER  # noqa: E402


def setUpModule() -> None:
    harness.start("gang", nodes=4, ceph=False)


RECORD_AND_WAIT = "record(); until_released()"


def steps(records: list[Record]) -> set[str]:
    return {f"{r.env['SLURM_JOB_ID']}.{r.env['SLURM_STEP_ID']}" for r in records}


class Restart(ClusterCase):
    def test_a_killed_member_makes_the_whole_gang_run_again_in_the_same_step(self) -> None:
        """Row: Process exits, signal, OOM."""
        job = self.gang(RECORD_AND_WAIT, nodes=4, tasks=16)
        first = job.wait_for_generation(1, 16)
        self.kill_member(first[5])
        second = job.wait_for_generation(2, 16)
        job.release()
        self.assertEqual(job.wait(), 0)
        self.assertEqual(steps(first) | steps(second), {job.gang})
        self.assertTrue({r.pid for r in first if r.host == "n1"}.isdisjoint(r.pid for r in second if r.host == "n1"))
        self.assertEqual({r.env["MUSTER_GENERATION"] for r in second}, {"2"})
        self.assertEqual(len(job.records()), 32, "two generations of 16, and no third")
        # Slurm itself has seen one step, from its beginning to its end.
        log = (self.cluster.directory / "log" / "ctl.slurmctld.log").read_text()
        self.assertNotIn(f"StepId={job.id}.1", log)

    def test_the_job_is_told_the_fault_and_how_long_the_restart_took(self) -> None:
        job = self.gang(RECORD_AND_WAIT)
        victim = job.wait_for_generation(1, 4)[2]
        self.kill_member(victim, signal.SIGSEGV)
        job.wait_for_generation(2, 4)
        self.wait(lambda: "ms after the fault" in job.err, "the report of the restart")
        comment = rf"AdminComment=muster: rank 2 on {victim.host} \(python3, pid {victim.pid}\) was killed by SIGSEGV"
        show = ["scontrol", "show", "job", job.id]
        self.wait(lambda: re.search(comment, self.cluster.exec(CONTROLLER, show).stdout), "the job's comment in Slurm")
        job.release()
        self.assertEqual(job.wait(), 0)
        self.assertRegex(job.err, rf"generation 1 ended: rank 2 on {victim.host} \(python3, pid {victim.pid}\) was killed by SIGSEGV")
        self.assertRegex(job.err, r"generation 2 runs, [0-9.]+ ms after the fault")

    def test_a_single_node_gang_runs_again(self) -> None:
        job = self.gang("record(); sys.exit(3 if generation == 1 and rank == 1 else 0)", nodes=1, tasks=4)
        self.assertEqual(job.wait(), 0)
        self.assertEqual(len(job.records(2)), 4)

    def test_a_single_task_gang_runs_again(self) -> None:
        job = self.gang("record(); sys.exit(generation == 1)", nodes=1, tasks=1)
        self.assertEqual(job.wait(), 0)
        self.assertEqual([r.generation for r in job.records()], [1, 2])

    def test_members_of_all_ranks_and_generations_may_fail_in_turn(self) -> None:
        """Switched off: User's bug. A higher limit lets it go on."""
        job = self.gang("record(); sys.exit(1 if generation == rank + 1 else 0)", "restarts=4", nodes=4, tasks=4)
        self.assertEqual(job.wait(), 0)
        self.assertEqual(self.status(job)["restarts"], 4)
        self.assertEqual(len(job.records(5)), 4)


# Holds tasks (processes or threads) in the kernel when SIGKILL has ended them, as the freeing of much memory does. Each line of
# stdin lets the next one go, and the end of stdin all.
HOLDER = """
import ctypes, os, sys
SEIZE, CONT, TRACE_EXIT, WALL = 0x4206, 7, 0x40, 0x40000000
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
tasks = [int(word) for word in sys.argv[1:]]
for task in tasks:
    assert ptrace(SEIZE, task, None, TRACE_EXIT) == 0, os.strerror(ctypes.get_errno())
print("held", flush=True)
for task in tasks:
    sys.stdin.readline()
    os.waitpid(task, WALL)
    ptrace(CONT, task, None, None)
    os.waitpid(task, WALL)
    print("gone", flush=True)
"""

STUCK_AFTER_S = 16
# A process with threads and children: its tasks go one after another, in the order in which they are recorded.
SEVERAL_TASKS = """
import subprocess, threading
for _ in range(2): threading.Thread(target=until_released).start()
threads = [thread.native_id for thread in threading.enumerate() if thread.native_id != os.getpid()]
children = [subprocess.Popen(["sleep", "infinity"]).pid for _ in range(3)]
record(tasks=[*threads, os.getpid(), *children])
until_released()
"""


class SlowToGo(ClusterCase):
    @contextlib.contextmanager
    def held(self, host: str, *tasks: int) -> Iterator[Callable[[], None]]:
        """Holds tasks when SIGKILL has ended them, until the context ends; what it yields lets the first one go that is held."""
        words = ["/usr/bin/python3", "-c", HOLDER, *map(str, tasks)]
        with self.cluster.popen(host, words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdin is not None and holder.stdout is not None
            orders, answers = holder.stdin, holder.stdout

            def let_one_go() -> None:
                orders.write("\n")
                orders.flush()
                self.assertEqual(answers.readline(), "gone\n")

            self.assertEqual(answers.readline(), "held\n")
            yield let_one_go
            self.assertEqual(set(holder.communicate(timeout=SOON)[0].split()), {"gone"})

    def test_a_spare_takes_a_nodes_place_until_its_processes_have_gone(self) -> None:
        job = self.gang(RECORD_AND_WAIT, "spares=1", nodes=4, tasks=4)
        first = job.wait_for_generation(1, 3)
        with self.held("n2", first[1].pid):
            self.kill_member(first[0])
            second = job.wait_for_generation(2, 3)
            self.assertEqual([r.host for r in second], ["n1", "n4", "n3"])
            said = "node n2: SIGKILL has ended all processes of generation 1, and some of them have not gone yet"
            self.assertIn(said, self.event_texts(job, "node_exiting"))
            self.assertEqual(self.status(job)["exiting"], [1])
            self.assertIn(f"{job.gang}: n2: SIGKILL has ended", self.muster("status", job.id).stdout)
            self.assertEqual(self.event_texts(job, "node_returned"), [])
        self.wait(lambda: self.event_texts(job, "node_returned"), "n2 to be a spare")
        self.assertEqual(self.status(job)["exiting"], [])
        # It is used like any other spare.
        with self.held("n4", second[1].pid):
            self.kill_member(second[0])
            self.assertEqual([r.host for r in job.wait_for_generation(3, 3)], ["n1", "n2", "n3"])
        self.wait(lambda: len(self.event_texts(job, "node_returned")) == 2, "n4 to be a spare")
        self.assertEqual(self.event_texts(job, "unkillable"), [])
        job.release()
        self.assertEqual(job.wait(), 0, job.err)

    def test_processes_that_go_one_after_another_are_not_stuck_however_long_all_take(self) -> None:
        self.configure(f"unkillable_after: {STUCK_AFTER_S}s\n")
        job = self.gang(SEVERAL_TASKS, "spares=1", nodes=4, tasks=4)
        first = job.wait_for_generation(1, 3)
        tasks = first[1].said["tasks"]
        with self.held("n2", *tasks) as let_one_go:
            self.kill_member(first[0])
            for task in tasks:
                time.sleep(STUCK_AFTER_S / 4)  # they stand still for so long, which is not long enough
                if task != tasks[-1]:
                    let_one_go()
            self.assertEqual([r.host for r in job.wait_for_generation(2, 3)], ["n1", "n4", "n3"])
            self.assertEqual(self.status(job)["exiting"], [1])
        self.wait(lambda: self.event_texts(job, "node_returned"), "n2 to be a spare")
        self.assertEqual(self.event_texts(job, "unkillable"), [])
        self.assertNotRegex(self.node_states()["n2"], "drain|drng")
        job.release()
        self.assertEqual(job.wait(), 0, job.err)

    def test_processes_of_which_none_goes_are_stuck_and_their_node_is_drained(self) -> None:
        self.configure(f"unkillable_after: {STUCK_AFTER_S}s\n")
        self.addCleanup(self.mend)
        self.hurts("n2")
        job = self.gang(SEVERAL_TASKS, "spares=1", nodes=4, tasks=4)
        first = job.wait_for_generation(1, 3)
        with self.held("n2", *first[1].said["tasks"]):
            self.kill_member(first[0])
            self.assertEqual([r.host for r in job.wait_for_generation(2, 3)], ["n1", "n4", "n3"])
            said = r"node n2: \d processes of generation 1 survive SIGKILL \(uninterruptible I/O\?\)"
            self.assertRegex(self.wait(lambda: self.event_texts(job, "unkillable"), "n2 to be left")[0], said)
            self.wait(lambda: "survive SIGKILL" in self.node_states()["n2"], "n2 to be drained")
        job.release()
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(self.event_texts(job, "node_returned"), [])


class ExitCode(ClusterCase):
    def compare(self, program: str, gang: str, code: int) -> None:
        """srun's exit code with the gang must be what it is for the same program without one."""
        shell = ["bash", "-c", "ulimit -c 0; " + program]
        plain = self.srun(shell, gang=None)
        self.assertEqual(plain.wait(), code, plain.err)
        with_gang = self.srun(shell, gang=gang)
        self.assertEqual(with_gang.wait(), code, with_gang.err)

    def test_success_is_zero(self) -> None:
        self.compare("exit 0", "", 0)

    def test_an_exit_code_of_all_members_is_sruns(self) -> None:
        self.compare("exit 7", "restarts=1", 7)

    def test_an_exit_code_of_one_member_is_sruns(self) -> None:
        self.compare("[ $SLURM_PROCID = 2 ] && exit 201; exit 0", "restarts=1", 201)

    def test_a_signal_is_128_and_its_number(self) -> None:
        for name in ("SEGV", "ABRT", "KILL", "TERM"):
            with self.subTest(signal=name):
                number = signal.Signals[f"SIG{name}"]
                self.compare(f"[ $SLURM_PROCID = 1 ] && kill -{name} $$; exit 0", "restarts=0", 128 + number)

    def test_the_first_causes_code_counts_and_not_that_of_its_consequences(self) -> None:
        job = self.gang(
            "if rank == 3: until(lambda: all(os.path.exists(path(f'ready{other}')) for other in range(3))); sys.exit(7)\n"
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); open(path(f'ready{rank}'), 'w').close(); until_released()",
            "restarts=0",
        )
        self.assertEqual(job.wait(), 7)

    def test_the_last_generations_code_counts(self) -> None:
        job = self.gang("sys.exit(10 + generation)", "restarts=2")
        self.assertEqual(job.wait(), 13)


class Environment(ClusterCase):
    def test_every_member_of_every_generation_is_told_its_place(self) -> None:
        code = "record(); sys.exit(5) if generation == 1 and rank == 6 else until_released()"
        job = self.gang(code, "restarts=2,role=chief", nodes=4, tasks=8)
        job.wait_for_generation(2, 8)
        job.release()
        self.assertEqual(job.wait(), 0)
        for generation in (1, 2):
            records = self.wait(lambda: job.records(generation), "records")
            # In the first generation members may have been killed before they could record themselves.
            self.assertIn(6, [r.rank for r in records])
            self.check_places(job, records, generation)
        self.assertEqual(len(job.records(2)), 8)
        causes = {r.env["MUSTER_RESTART_CAUSE"] for r in job.records(2)}
        self.assertEqual(len(causes), 1)
        self.assertRegex(causes.pop(), r"rank 6 on n\d \(python3, pid \d+\) exited with code 5")
        self.assertEqual({r.env["MUSTER_RESTART_CAUSE"] for r in job.records(1)}, {""})

    def check_places(self, job: Job, records: list[Record], generation: int) -> None:
        chief = {(r.env["MASTER_ADDR"], r.env["MASTER_PORT"]) for r in records}
        self.assertEqual(len(chief), 1, "all members meet at one place")
        for r in records:
            env = r.env
            place = {
                "RANK": env["SLURM_PROCID"],
                "WORLD_SIZE": "8",
                "LOCAL_RANK": env["SLURM_LOCALID"],
                "LOCAL_WORLD_SIZE": "2",
                "GROUP_RANK": env["SLURM_NODEID"],
                "MASTER_ADDR": "n1",
                "SLURM_NTASKS": "8",
                "MUSTER_GANG": job.gang,
                "MUSTER_GENERATION": str(generation),
                "MUSTER_ROLE": "chief",
                "MUSTER_SOCKET": "/run/muster/musterd.sock",
                "TORCHELASTIC_RESTART_COUNT": str(generation - 1),
            }
            self.assertEqual({key: env.get(key) for key in place}, place)
            self.assertEqual(r.rank, int(env["RANK"]))
            self.assertEqual(r.host, f"n{int(env['GROUP_RANK']) + 1}")
            self.assertRegex(env["MUSTER_TOKEN"], "^[0-9a-f]{32}$")
            config = json.loads(env["TF_CONFIG"])
            self.assertEqual(config["task"], {"type": "chief", "index": r.rank})
            addresses = config["cluster"]["chief"]
            self.assertEqual(len(addresses), 8)
            self.assertEqual(len(set(addresses)), 8, "an address for each task")
            self.assertTrue(addresses[r.rank].startswith(f"{r.host}:"), addresses)
        ranks = [r.rank for r in records]
        self.assertEqual(len(ranks), len(set(ranks)))

    def test_the_leased_ports_can_be_bound_at_once_in_every_generation(self) -> None:
        code = (
            "import socket\n"
            "addresses = json.loads(os.environ['TF_CONFIG'])['cluster']['worker']\n"
            "ports = [int(addresses[rank].split(':')[1])]\n"
            "if rank == 0: ports.append(int(os.environ['MASTER_PORT']))\n"
            "servers = [socket.create_server(('', port)) for port in ports]\n"
            "record(ports=ports)\n"
            "sys.exit(1) if generation < 4 and rank == 0 else None"
        )
        job = self.gang(code, "restarts=3")
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(len(job.records(4)), 4)

    def test_what_the_user_had_set_is_kept(self) -> None:
        job = self.gang("record(); sys.exit(generation == 1)", env={"KEPT": "a b\nc", "OMP_NUM_THREADS": "3"})
        self.assertEqual(job.wait(), 0)
        for r in job.records():
            self.assertEqual((r.env["KEPT"], r.env["OMP_NUM_THREADS"]), ("a b\nc", "3"))


class Fault(ClusterCase):
    def test_the_same_fault_twice_without_progress_stops_early(self) -> None:
        job = self.gang("record()\nif rank == 1: warn(f'cannot open file {os.getpid()}'); sys.exit(4)\nuntil_released()", "restarts=9")
        self.assertEqual(job.wait(), 4)
        self.assertEqual(max(r.generation for r in job.records()), 2)
        self.assertIn("the same fault as the last time, without progress in between", job.err)

    def test_an_exit_with_a_stop_code_ends_the_gang_and_its_job_for_good(self) -> None:
        code = "record()\nif rank == 2: sys.exit(94)\nuntil_released()"
        job = self.gang(code, "stop_codes=93:94")
        self.assertEqual(job.wait(), 94, job.err)
        self.assertEqual({r.generation for r in job.records()}, {1})
        self.assertIn("muster:   by this code the program asks that the gang ends (--gang=stop_codes)\n", job.err)

    def test_a_users_bug_ends_the_gang_after_the_limit_with_its_first_cause(self) -> None:
        """Row: User's bug."""
        job = self.gang(
            "record()\nif rank == 2:\n  for i in range(30): warn(f'line {i} of {generation}')\n"
            "  warn('another fault ' + 'x' * generation)\n  sys.exit(1)\nuntil_released()",
            "restarts=2",
        )
        self.assertEqual(job.wait(), 1)
        last = job.wait_for_generation(3, 1 + len([r for r in job.records(3) if r.rank != 2]))
        self.assertEqual(max(r.generation for r in job.records()), 3)
        pid, host = next((r.pid, r.host) for r in last if r.rank == 2)
        cause = f"rank 2 on {host} (python3, pid {pid}) exited with code 1"
        self.assertIn(f"muster: gang {job.gang}: generation 3 ended: {cause}\n", job.err)
        self.assertIn("muster:   | line 29 of 3\n", job.err)
        self.assertNotIn("muster:   | line 10 of 3\n", job.err)
        self.assertIn("the limit of 2 restarts (--gang=restarts=N) is used up", job.err)
        faults = self.event_texts(job, "fault")
        self.assertEqual(len(faults), 3)
        self.assertIn(cause, faults[-1])
        self.assertIn("the limit of 2 restarts", faults[-1])
        status = self.status(job, code=1)
        self.assertEqual(status["first_cause"], cause)
        self.assertEqual((status["state"], status["succeeded"]), ("finished", False))
        self.assertEqual((status["restarts"], status["user_faults"], status["restart_limit"]), (2, 3, 2))

    def test_no_restart_is_made_when_none_is_allowed(self) -> None:
        """Switched off: Process exits, signal, OOM."""
        job = self.gang("record(); sys.exit(4) if rank == 0 else until_released()", "restarts=0")
        self.assertEqual(job.wait(), 4)
        self.assertEqual({r.generation for r in job.records()}, {1})
        self.assertEqual(len(self.event_texts(job, "fault")), 1)

    def test_the_first_cause_is_the_first_even_when_its_consequences_are_heard_of_earlier(self) -> None:
        code = (
            "record()\n"
            "if generation > 1: sys.exit(0)\n"
            "until(lambda: os.path.exists(path('first' if rank == 0 else 'others')))\n"
            "if rank > 0: warn('connection closed by rank 0')\n"
            "os._exit(42 if rank == 0 else 1)\n"
        )
        job = self.gang(code, nodes=4, tasks=8)
        members = job.wait_for_generation(1, 8)

        def gone(record: Record) -> bool:
            return self.cluster.exec(record.host, ["kill", "-0", str(record.pid)]).returncode != 0

        # The coordinator is on n2: while n1's musterd stands still it hears of the consequences alone.
        self.cluster.signal_daemon("n1", "musterd", signal.SIGSTOP)
        try:
            (job.files / "first").touch()
            self.wait(lambda: gone(members[0]), "the end of rank 0")
            (job.files / "others").touch()
            self.wait(lambda: all(gone(member) for member in members), "the end of the others")
            self.wait(lambda: self.events(job, "stopping"), "the coordinator to notice")
        finally:
            self.cluster.signal_daemon("n1", "musterd", signal.SIGCONT)
        self.assertEqual(job.wait(), 0, job.err)
        cause = f"rank 0 on n1 (python3, pid {members[0].pid}) exited with code 42"
        faults = self.event_texts(job, "fault")
        self.assertEqual(len(faults), 1, faults)
        self.assertIn(cause, faults[0])
        self.assertEqual(self.status(job)["first_cause"], cause)
        self.assertIn(cause, job.err)
        self.assertEqual({r.env["MUSTER_RESTART_CAUSE"] for r in job.records(2)}, {cause})

    def test_ten_restarts_without_progress_end_any_gang(self) -> None:
        job = self.gang("sys.exit(6)", "restarts=1000", nodes=1, tasks=1)
        self.assertEqual(job.wait(), 6)
        self.assertIn("10 restarts without progress", job.err)
        self.assertEqual(self.status(job, code=1)["generation"], 11)

    def test_a_program_that_cannot_be_started_is_a_fault_that_names_it(self) -> None:
        job = self.srun(["/no/such/program"], "restarts=1", tasks=2)
        self.assertNotEqual(job.wait(), 0)
        self.assertIn("/no/such/program", job.err)
        self.assertIn("the limit of 1 restarts", job.err)


class LastWords(ClusterCase):
    SAVING = """
sys.path.insert(0, BUILD + "/python")
import muster
gang = muster.init()
def last_words(number, frame):
    try:
        gang.save(b"words", 1)
        gang.wait(1)
        said = "saved"
    except muster.MusterError as error:
        said = str(error)
    with open(path(f"words.{rank}"), "w") as file: file.write(f"{signal.Signals(number).name} {said}")
    os._exit(0)
if generation == 1 and rank != 1: signal.signal(signal.SIGUSR1, last_words)
record(); until_released()
"""

    def test_members_that_live_say_them_in_vain_to_the_store_and_the_restart_waits_for_no_more(self) -> None:
        job = self.gang(f"BUILD = '{BUILD_IN_NODE}'" + self.SAVING, "last_words=60:USR1")
        self.kill_member(job.wait_for_generation(1, 4)[1], signal.SIGSEGV)
        job.wait_for_generation(2, 4)
        for rank in (0, 2, 3):
            self.assertRegex((job.files / f"words.{rank}").read_text(), "^SIGUSR1 .*generation 1 is over")
        words = self.event_texts(job, "last_words")
        self.assertEqual(len(words), 1, words)
        took = re.fullmatch(r"the members' last words took (\d+\.\d) s", words[0])
        self.assertIsNotNone(took, words)
        job.release()
        self.assertEqual(job.wait(), 0, job.err)
        status = self.status(job)
        self.assertEqual((status["generation"], status["restarts"]), (2, 1))
        self.assertRegex(status["first_cause"], "rank 1 .* was killed by SIGSEGV")

    def test_who_does_not_listen_is_killed_when_the_time_is_over(self) -> None:
        code = "if rank == 3: signal.signal(signal.SIGTERM, signal.SIG_IGN)\nrecord(); until_released()"
        job = self.gang(code, "last_words=2")
        first = job.wait_for_generation(1, 4)
        self.kill_member(first[0], signal.SIGSEGV)
        job.wait_for_generation(2, 4)
        self.assertRegex(
            self.event_texts(job, "last_words")[0],
            rf"the members' last words took \d\.\d s; killed when the time was over: members on {first[3].host}$",
        )
        job.release()
        self.assertEqual(job.wait(), 0, job.err)


class Run(ClusterCase):
    """muster-run in the place of torchrun."""

    FLAGS = "--nnodes=2 --nproc_per_node={} --rdzv_backend=c10d --rdzv_endpoint=$(hostname):29500 --max-restarts 3"

    def test_a_script_of_torchrun_with_its_word_exchanged_heals(self) -> None:
        script = f"#SBATCH -N2 --ntasks-per-node=2 --gang\nsrun muster-run {self.FLAGS.format(2)}"
        job = self.batch(f"{script} {MEMBER[-1]} {{FILES}} '{RECORD_AND_WAIT}'")
        first = job.wait_for_generation(1, 4)
        self.kill_member(first[3])
        second = job.wait_for_generation(2, 4)
        job.release()
        self.assertEqual(job.wait(), 0, job.err)
        self.assertIn(f"rank 3 on {first[3].host} (python3, pid {first[3].pid}) was killed by SIGKILL", job.err)
        for record in first + second:
            self.assertEqual(record.env["OMP_NUM_THREADS"], "1")
        self.assertEqual([record.env["TORCHELASTIC_RESTART_COUNT"] for record in second], ["1"] * 4)

    def test_more_processes_than_tasks_name_the_line_to_change(self) -> None:
        job = self.batch(f"#SBATCH -N2 --ntasks-per-node=1 --gang=restarts=0\nsrun muster-run {self.FLAGS.format(8)} train.py")
        self.assertEqual(job.wait(), 2)
        self.assertIn("muster-run: --nproc-per-node=8 means 8 processes on this node, but the gang has 1 task here", job.err)
        self.assertIn("write #SBATCH --ntasks-per-node=8\n", job.err)

    def test_torchrun_itself_is_named_once_and_runs(self) -> None:
        program = self.cluster.directory / "home" / "trainer" / "torchrun"
        program.write_text("#!/bin/sh\necho $2\n")
        program.chmod(0o755)
        job = self.srun(["/home/trainer/torchrun", "--nproc_per_node=4", "train.py"])
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(job.out, "train.py\n" * 4)
        advice = "muster: torchrun starts processes that Muster does not know, and checkpoints do not work for: write muster-run"
        self.assertEqual(job.err.count(advice), 1, job.err)
        self.assertIn("#SBATCH --ntasks-per-node=4 for the 4 processes of a node\n", job.err)


class Joining(ClusterCase):
    def test_a_node_that_is_cut_off_is_named_when_the_join_time_is_over(self) -> None:
        # Without musterd on n4 its task waits there; by then Slurm has started it, and the node can be cut off.
        self.cluster.stop_daemon("n4", "musterd")
        job = self.gang(RECORD_AND_WAIT, "join=3s", nodes=4, tasks=4)
        self.wait(lambda: self.cluster.exec("n4", ["pgrep", "-f", r"slurmstepd: \["]).returncode == 0, "the task on n4")
        self.cluster.cut("n4")
        try:
            self.cluster.start_daemon("n4", "musterd")
            self.wait(lambda: "have not joined" in job.err, "the report")
        finally:
            self.cluster.heal("n4")
        self.assertEqual(job.wait(), 1)
        self.assertIn("after 3 s these have not joined: n4\n", job.err)
        self.assertEqual(job.records(), [], "nothing runs before all are there")
        self.assertIn("n4", self.status(job, code=1)["first_cause"])


class Jobs(ClusterCase):
    def test_every_step_of_a_job_is_a_gang_of_its_own(self) -> None:
        script = "".join(
            f"srun -N2 -n2 --gang bash -c 'echo step $SLURM_STEP_ID; (( MUSTER_GENERATION > {n} )) || exit 1'\necho code $?\n"
            for n in range(3)
        )
        job = self.batch("#SBATCH -N2 -n2\n" + script)
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(job.out.count("code 0\n"), 3, job.out)
        gangs = self.muster_json("status", job.id)["gangs"]
        self.assertEqual([g["gang"] for g in gangs], [f"{job.id}.{n}" for n in range(3)])
        self.assertEqual([g["generation"] for g in gangs], [1, 2, 3])

    def test_two_gangs_live_in_one_job_at_once(self) -> None:
        step = "srun -N2 -n2 --exact --mem=0 --gang {member} {files}/{name} '{code}' & "
        code = "record(); sys.exit(1) if generation == 1 and rank == {rank} else until_released()"
        script = "#SBATCH -N2 --ntasks-per-node=2\nmkdir {FILES}/a {FILES}/b\n"
        for name, rank in (("a", 0), ("b", 1)):
            words = {"member": " ".join(harness.MEMBER), "files": "{FILES}", "name": name, "code": code.format(rank=rank)}
            script += step.format(**words) + f"{name}=$!\n"
        job = self.batch(script + "wait $a || exit 1; wait $b || exit 2; echo both")

        def both() -> bool:
            return all(len(list((job.files / name).glob("g2.r*.json"))) == 2 for name in "ab")

        self.wait(both, "both second generations, at the same time")
        running = ["running", "running"]
        self.wait(lambda: [g["state"] for g in self.muster_json("status", job.id)["gangs"]] == running, "both to run")
        for name in "ab":
            (job.files / name / "go").touch()
        self.assertEqual(job.wait(), 0, job.err)
        self.assertIn("both\n", job.out)

    def test_two_users_gangs_do_not_touch_each_other(self) -> None:
        mine = self.gang(RECORD_AND_WAIT, nodes=4, tasks=8)
        theirs = self.gang(RECORD_AND_WAIT, nodes=4, tasks=8, user="other")
        victim = mine.wait_for_generation(1, 8)[7]
        before = theirs.wait_for_generation(1, 8)
        self.kill_member(victim)
        mine.wait_for_generation(2, 8)
        for record in before:
            self.assertEqual(self.cluster.exec(record.host, ["kill", "-0", str(record.pid)]).returncode, 0)
        theirs.release()
        mine.release()
        self.assertEqual((mine.wait(), theirs.wait()), (0, 0))
        self.assertEqual(self.status(theirs)["generation"], 1)
        self.assertEqual(self.status(mine)["generation"], 2)

    def test_a_batch_scripts_option_reaches_its_steps_and_a_steps_own_overrides_it(self) -> None:
        step = "bash -c 'echo runs; exit 5'; echo code $?\n"
        job = self.batch("#SBATCH -N1 -n1 --gang=restarts=1\n" + f"srun {step}echo -- own\nsrun --gang=restarts=0 {step}")
        self.assertEqual(job.wait(), 0)
        outer, inner = job.out.split("-- own\n")
        self.assertEqual((outer.count("runs\n"), inner.count("runs\n")), (2, 1), job.out)
        self.assertEqual((outer.count("code 5\n"), inner.count("code 5\n")), (1, 1))

    def test_a_batch_script_itself_is_no_member(self) -> None:
        job = self.batch("#SBATCH -N1 -n1 --gang\nenv | grep ^MUSTER_GANG; exit 3\n")
        self.assertEqual(job.wait(), 3)
        self.assertNotIn("MUSTER_GANG", job.out)
        self.assertEqual(self.muster("status", job.id).returncode, 1)

    def test_salloc_passes_its_option_on(self) -> None:
        job = self.start_job(["salloc", "-N1", "-n1", "--gang=restarts=1", "srun", "bash", "-c", "echo runs; exit 5"])
        self.assertEqual(job.wait(), 5, job.err)
        self.assertEqual(job.out.count("runs\n"), 2)

    def test_a_cancelled_gang_gets_sigterm_once_and_is_not_started_again(self) -> None:
        code = (
            "signal.signal(signal.SIGTERM, lambda *_: (open(path(f'terms.{rank}'), 'a').write('x'), os._exit(0)))\n"
            "record(); until_released()"
        )
        job = self.gang(code)
        job.wait_for_generation(1, 4)
        self.assertEqual(self.cluster.exec("ctl", ["scancel", job.id]).returncode, 0)
        job.wait()
        self.assertEqual([(job.files / f"terms.{rank}").read_text() for rank in range(4)], ["x"] * 4)
        self.assertEqual({r.generation for r in job.records()}, {1})


class Status(ClusterCase):
    def test_exit_codes_say_good_bad_usage_and_not_reachable(self) -> None:
        good = self.gang("pass")
        bad = self.gang("sys.exit(1)", "restarts=0")
        self.assertEqual((good.wait(), bad.wait()), (0, 1))
        for words, code in (
            (["status"], 0),
            (["status", good.id], 0),
            (["status", bad.id], 1),
            (["status", good.gang], 0),
            (["events", bad.id], 0),
            (["checkpoint", "list", good.id], 0),
            (["checkpoint", "verify", good.id], 0),
            (["checkpoint", "verify", good.id, "--step", "5"], 1),
            (["status", "999999"], 1),
            (["events", "999999"], 1),
            (["status", "../etc"], 2),
            (["status", "--bogus"], 2),
            (["events"], 2),
            (["bogus"], 2),
            ([], 2),
            (["--uid", "0", "status"], 2),
            (["--config", "/no/such/file", "status"], 2),
            (["--help"], 0),
            (["--version"], 0),
        ):
            with self.subTest(words=words):
                done = self.muster(*words)
                self.assertEqual(done.returncode, code, done.stdout + done.stderr)
                if code in (1, 2) and words[:1] != ["status"]:
                    self.assertNotEqual(done.stderr, "")
        self.cluster.stop_daemon("ctl", "musterd")
        try:
            done = self.muster("status")
            self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
            self.assertIn("musterd.service", done.stderr)
        finally:
            self.cluster.start_daemon("ctl", "musterd")

    def test_a_running_gang_is_shown_as_it_is_on_every_node(self) -> None:
        job = self.gang("record(); sys.exit(1) if generation == 1 and rank == 1 else until_released()", nodes=4)
        job.wait_for_generation(2, 4)
        self.wait(lambda: self.status(job)["state"] == "running", "its state")
        for node in ("ctl", "n1", "n2", "n4"):
            done = self.muster("status", job.id, "--json", node=node)
            gang = json.loads(done.stdout)["gangs"][0]
            shown = {key: gang[key] for key in ("gang", "state", "generation", "restarts", "tasks", "nodes", "live")}
            expected = {"gang": job.gang, "state": "running", "generation": 2, "restarts": 1, "tasks": 4}
            self.assertEqual(shown, expected | {"nodes": ["n1", "n2", "n3", "n4"], "live": True}, node)
        kinds = [event["kind"] for event in self.events(job)]
        for kind in ("joining", "joined", "starting", "fault", "running"):
            self.assertIn(kind, kinds)
        self.assertIn("running", self.muster("status").stdout)
        self.assertIn("fault", self.muster("events", job.id).stdout)

    def test_another_user_sees_nothing_of_a_gang_and_root_sees_it(self) -> None:
        job = self.gang("sys.exit(1)", "restarts=0")
        self.assertEqual(job.wait(), 1)
        uid = str(harness.USERS["trainer"])
        self.assertEqual(len(self.muster_json("status")["gangs"]) > 0, True)
        others = self.muster_json("status", user="other")["gangs"]
        self.assertNotIn(job.gang, [g["gang"] for g in others])
        for words in (["status", job.id], ["events", job.id], ["checkpoint", "list", job.id]):
            done = self.muster(*words, user="other")
            self.assertEqual((done.returncode, done.stdout), (1, ""), words)
            refused = self.muster("--uid", uid, *words, user="other")
            self.assertEqual((refused.returncode, refused.stdout), (2, ""), words)
            self.assertIn("only root", refused.stderr)
            as_root = self.cluster.exec("ctl", ["muster", "--uid", uid, *words, "--json"])
            self.assertIn(job.gang, as_root.stdout, words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
