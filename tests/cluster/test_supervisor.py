#!/usr/bin/python3
"""The supervisor's rules of DESIGN.md on real Slurm, a test for each: containers, signals, stdio, process trees, ends."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import SOON, ClusterCase, Job, now  # noqa: E402
from vc import Cluster  # noqa: E402
from vc.names import BUILD_IN_NODE  # noqa: E402
from vc.slurm import plugstack_line  # noqa: E402

KILL_WAIT_S = 600  # longer than tests wait for anything: what ends sooner was not ended by Slurm's SIGKILL
RECONNECT_S = 10
PLUGINS = [f"required {BUILD_IN_NODE}/tests/{name}.so" for name in ("mount_namespace", "memory_limit")]


def setUpModule() -> None:
    harness.start("sup", nodes=2, ceph=False, plugins=PLUGINS, settings={"reconnect": f"{RECONNECT_S}s"}, slurm={"KillWait": str(KILL_WAIT_S)})


def counting(signals: str) -> str:
    """Code of a member that counts signals: one line "NAME" in the file counts.gG.rR for each that arrives."""
    return (
        "log = open(path(f'counts.g{generation}.r{rank}'), 'a', buffering=1)\n"
        f"for name in '{signals}'.split():\n"
        "  signal.signal(getattr(signal, 'SIG' + name), lambda n, f: log.write(signal.Signals(n).name[3:] + '\\n'))\n"
        "record(); until_released()"
    )


class Containers(ClusterCase):
    ENV = {"MUSTER_TEST_NAMESPACE": "1"}
    SHELL = 'echo "$MUSTER_GENERATION [$(ls /run)] [$(ls /proc)]"; '

    def test_what_an_earlier_plugin_entered_holds_for_every_generation(self) -> None:
        job = self.srun(["sh", "-c", self.SHELL + "[ $MUSTER_GENERATION = 2 ]"], nodes=2, tasks=2, env=self.ENV)
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(sorted(set(job.out.splitlines())), ["1 [] []", "2 [] []"])

    def test_musterd_is_found_again_from_inside_a_container(self) -> None:
        shell = 'touch "$FILES/g$MUSTER_GENERATION"; while [ ! -e "$FILES/go" ]; do sleep 0.05; done; [ $MUSTER_GENERATION = 2 ]'
        job = self.srun(["sh", "-c", shell], nodes=1, tasks=1, env=self.ENV, options=("-w", "n1"))
        job.wait_for_file("g1")
        self.cluster.restart_daemon("n1", "musterd")
        job.release()  # the program ends with 1, which musterd is to hear of
        self.assertEqual(job.wait(), 0, job.err)

    def test_a_tree_is_swept_although_the_container_hides_proc(self) -> None:
        shell = (
            'if [ $MUSTER_GENERATION = 1 ]; then (setsid sleep 4713 &); sleep 0.2; exit 1; fi; touch "$FILES/g2";'
            'while [ ! -e "$FILES/go" ]; do sleep 0.05; done'
        )
        job = self.srun(["sh", "-c", shell], nodes=1, tasks=1, env=self.ENV, options=("-w", "n1"))
        job.wait_for_file("g2")
        self.assertEqual(self.cluster.exec("n1", ["pgrep", "-f", "^sleep 4713"]).stdout, "")
        job.release()
        self.assertEqual(job.wait(), 0, job.err)


class Signals(ClusterCase):
    # Every signal that a program can catch, but those that stop it, continue it or mean the job's end.
    NAMES = (
        "HUP INT QUIT ILL TRAP ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM STKFLT URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS"
    )

    def counts(self, job: Job, generation: int, rank: int) -> list[str]:
        return (job.files / f"counts.g{generation}.r{rank}").read_text().split()

    def scancel(self, job: Job, name: str) -> None:
        number = str(int(getattr(signal, f"SIG{name}")))  # scancel knows few names
        done = self.cluster.exec("ctl", ["scancel", "-s", number, f"{job.id}.0"])
        self.assertEqual(done.returncode, 0, done.stderr)

    def send_and_count(self, job: Job, names: str) -> None:
        """Each signal, and the proof that it arrived once: what came before it is there, and it is there once."""
        for number, name in enumerate(names.split()):
            before = names.split()[:number]
            self.scancel(job, name)
            for rank in (0, 1):
                self.wait(lambda r=rank: len(self.counts(job, 1, r)) > len(before), f"{name} at rank {rank}")
                self.assertEqual(self.counts(job, 1, rank), [*before, name])

    def test_every_catchable_signal_reaches_the_program_once_and_the_supervisor_survives(self) -> None:
        job = self.gang(counting(self.NAMES + " TERM"), nodes=2, tasks=2)
        first = job.wait_for_generation(1, 2)
        self.send_and_count(job, self.NAMES)
        self.kill_member(first[0])
        job.wait_for_generation(2, 2)
        job.release()
        self.assertEqual(job.wait(), 0, job.err)
        for rank in (0, 1):
            self.assertEqual(self.counts(job, 1, rank), self.NAMES.split())
            self.assertEqual(self.counts(job, 2, rank), [])

    def test_under_linuxproc_which_reaches_all_processes_itself_a_signal_also_arrives_once(self) -> None:
        options = {"nodes": 1, "ceph": False, "slurm": {"ProctrackType": "proctrack/linuxproc"}}
        with Cluster(f"lp-{os.getpid()}", **options) as cluster:
            (cluster.directory / "etc/slurm/plugstack.conf").write_text(f"{plugstack_line()} signals=all\n")
            code = "import signal\nfor s in (1, 10, 12): signal.signal(s, lambda n, f: print('got', n, flush=True))\n"
            code += "print('ready', flush=True)\nwhile True: signal.pause()"
            srun = ["srun", "--unbuffered", "--gang", "/usr/bin/python3", "-c", code]
            with cluster.user_popen("ctl", srun, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as step:
                assert step.stdout is not None
                self.assertEqual(step.stdout.readline(), "ready\n")
                for name, number in (("HUP", 1), ("USR1", 10), ("USR2", 12), ("HUP", 1)):
                    cluster.exec("ctl", ["scancel", "-s", name, "-u", "trainer"])
                    self.assertEqual(step.stdout.readline(), f"got {number}\n")
                cluster.exec("ctl", ["scancel", "-u", "trainer"])
                self.assertEqual([line for line in step.stdout if line.startswith("got")], [])

    def test_sigterm_lets_the_program_save_and_starts_no_new_generation(self) -> None:
        code = (
            "def save(n, f): open(path(f'saved.g{generation}.r{rank}'), 'w').close(); sys.exit(9)\n"
            "signal.signal(signal.SIGTERM, save); record(); until_released()"
        )
        job = self.gang(code, nodes=2, tasks=2)
        job.wait_for_generation(1, 2)
        self.cluster.exec("ctl", ["scancel", job.id])
        self.assertNotEqual(job.wait(), 0)
        self.assertEqual(sorted(p.name for p in job.files.glob("saved.*")), ["saved.g1.r0", "saved.g1.r1"])
        self.assertEqual({r.generation for r in job.records()}, {1})

    def test_a_program_that_ignores_sigterm_is_gone_after_killwait(self) -> None:
        code = "import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(os.getpid(), flush=True)\nwhile True: signal.pause()"
        with Cluster(f"kw-{os.getpid()}", nodes=1, ceph=False, slurm={"KillWait": "6"}) as cluster:
            srun = ["srun", "--unbuffered", "--gang", "/usr/bin/python3", "-c", code]
            with cluster.user_popen("ctl", srun, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as step:
                assert step.stdout is not None
                pid = step.stdout.readline().strip()
                began = now()
                cluster.exec("ctl", ["scancel", "-u", "trainer"])
                self.wait(lambda: cluster.exec("n1", ["kill", "-0", pid]).returncode != 0, "its death")
                self.assertGreater(now() - began, 3, "Slurm waited for it")

    def test_sigterm_ends_a_task_whose_gang_is_not_complete(self) -> None:
        self.cluster.stop_daemon("n2", "musterd")
        self.addCleanup(self.cluster.start_daemon, "n2", "musterd")
        job = self.gang("record()", "join=1h", nodes=2, tasks=2)
        supervisor = ["pgrep", "-x", "muster", "-u", "trainer"]
        self.wait(lambda: self.cluster.exec("n1", supervisor).returncode == 0, "the supervisor on n1")
        self.cluster.exec("ctl", ["scancel", job.id])
        self.wait(lambda: self.cluster.exec("n1", supervisor).returncode == 1, "its end")
        self.assertNotEqual(job.wait(), 0)
        self.assertEqual(job.records(), [])


class Stdio(ClusterCase):
    def test_the_end_of_stdin_reaches_every_task(self) -> None:
        done = self.cluster.user("ctl", ["srun", "-N2", "-n4", "--gang", "cat"], input="from stdin\n", timeout=SOON)
        self.assertEqual((done.returncode, done.stdout), (0, "from stdin\n" * 4), done.stderr)

    def test_generation_2_reads_nothing_from_stdin(self) -> None:
        shell = 'if [ $MUSTER_GENERATION = 1 ]; then read a; echo "1 $a"; exit 1; fi; cat; echo "2 end"'
        words = ["srun", "-N1", "-n1", "--gang", "sh", "-c", shell]
        done = self.cluster.user("ctl", words, input="one\ntwo\n", timeout=SOON)
        self.assertEqual((done.returncode, done.stdout), (0, "1 one\n2 end\n"), done.stderr)

    def test_lines_of_all_generations_keep_their_tasks_label(self) -> None:
        shell = 'echo "err $SLURM_PROCID $MUSTER_GENERATION" >&2; echo "out $SLURM_PROCID $MUSTER_GENERATION"; '
        shell += "[ $MUSTER_GENERATION = 2 ] && sleep 0.1"
        job = self.srun(["sh", "-c", shell], nodes=2, tasks=4, options=("-l",))
        self.assertEqual(job.wait(), 0, job.err)
        lines = [line for line in (job.out + job.err).splitlines() if re.match(r"\d+: (out|err) ", line)]
        for line in lines:
            label, _, rank, _ = line.split()
            self.assertEqual(label, f"{rank}:")
        second = sorted(line for line in lines if line.endswith(" 2"))
        self.assertEqual(second, sorted(f"{r}: {stream} {r} 2" for r in range(4) for stream in ("err", "out")))

    def test_all_of_a_large_stderr_arrives_in_order(self) -> None:
        # slurmstepd that ends before it has read srun's word of the end of stdin resets the connection, and output on its way is lost.
        job = self.srun(["sh", "-c", "cat; seq 1 100000 >&2"], nodes=1, tasks=1)
        self.assertEqual(job.wait(), 0)
        self.assertEqual(job.err, "".join(f"{i}\n" for i in range(1, 100001)))

    def test_a_pseudo_terminal_is_the_programs_and_ctrl_c_reaches_it_once(self) -> None:
        # The trap comes first: while bash sets one, it ignores the signal.
        shell = "trap 'echo caught' INT; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo terminal; read a; echo end $a; exit 6"
        words = ["srun", "-n1", "--pty", "--gang", "bash", "-c", shell]
        child, fd = pty.fork()
        if child == 0:
            command = self.cluster.command("ctl", words, "trainer")
            os.execv(command[0], command)
        self.addCleanup(os.close, fd)
        seen = b""

        def read_until(what: bytes) -> None:
            nonlocal seen
            end = now() + SOON
            while what not in seen:
                ready, _, _ = select.select([fd], [], [], max(0.0, end - now()))
                if not ready:
                    self.fail(f"no {what!r} in {seen!r}")
                seen += os.read(fd, 4096)

        read_until(b"terminal\r\n")
        os.write(fd, b"\x03")
        read_until(b"caught\r\n")
        os.write(fd, b"now\n")
        read_until(b"end now\r\n")
        self.assertEqual(seen.count(b"caught"), 1)
        with contextlib.suppress(OSError):
            while os.read(fd, 4096):
                pass
        # The first end with 6 makes a second generation, which has nothing to read.
        self.assertNotEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)


class ProcessTree(ClusterCase):
    HELPERS = {
        "setsid": "setsid sleep 4714 & echo $!",
        "double_fork": "(setsid sh -c 'sh -c \"echo \\$\\$; exec sleep 4714\" &' &)",
        "ignores_sigterm": "sh -c 'trap \"\" TERM HUP INT QUIT; echo $$; exec sleep 4714' &",
        "background": "sleep 4714 & echo $!",
        "stopped": "sleep 4714 & echo $!; kill -STOP $!",
    }

    def test_no_process_of_generation_1_is_alive_when_generation_2_starts(self) -> None:
        helpers = ";".join(part.rstrip("&").strip() + (" &" if part.endswith("&") else "") for part in self.HELPERS.values())
        script = helpers.replace("& ;", "& ").replace("&;", "& ")
        code = (
            "import subprocess\n"
            "if generation == 1:\n"
            f"  out = subprocess.Popen(['sh', '-c', {script!r}], stdout=subprocess.PIPE, text=True).stdout\n"
            f"  pids = [int(out.readline()) for _ in range({len(self.HELPERS)})]\n"
            "  record(pids=pids)\n"
            "  until_released()\n"
            "alive = []\n"
            "for r in range(world):\n"
            "  one = json.load(open(path(f'g1.r{r}.json')))\n"
            "  for pid in one['said']['pids'] + [one['pid']]:\n"
            "    if one['host'] == host and os.path.exists(f'/proc/{pid}'): alive.append(pid)\n"
            "record(alive=alive)\n"
        )
        job = self.gang(code, nodes=2, tasks=4)
        first = job.wait_for_generation(1, 4)
        for r in first:
            for pid in r.said["pids"]:
                self.assertEqual(self.cluster.exec(r.host, ["kill", "-0", str(pid)]).returncode, 0, "a helper runs")
        self.kill_member(first[1])
        second = job.wait_for_generation(2, 4)
        self.assertEqual([r.said["alive"] for r in second], [[], [], [], []])
        self.assertEqual(job.wait(), 0, job.err)

    def test_helpers_of_a_program_that_has_ended_are_gone_with_the_step(self) -> None:
        job = self.srun(["sh", "-c", "setsid sleep 4715 & exit 0"], nodes=1, tasks=1, options=("-w", "n1"))
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(self.cluster.exec("n1", ["pgrep", "-f", "^sleep 4715"]).stdout, "")

    def test_each_generation_has_its_own_process_group_below_the_supervisor(self) -> None:
        code = (
            "record(group=os.getpgid(0), parent=os.getppid(), name=open(f'/proc/{os.getppid()}/comm').read().strip())\n"
            "sys.exit(generation == 1)"
        )
        job = self.gang(code, nodes=1, tasks=2)
        self.assertEqual(job.wait(), 0, job.err)
        second = job.records(2)
        self.assertEqual([r.said["group"] for r in second], [r.pid for r in second])
        self.assertEqual({r.said["name"] for r in second}, {"muster"})
        for r in job.records(1):
            self.assertEqual(r.said["parent"], next(s.said["parent"] for s in second if s.rank == r.rank))

    def test_a_supervisors_death_takes_its_program_along(self) -> None:
        job = self.gang("record(parent=os.getppid()); until_released()", "restarts=0", nodes=1, tasks=1)
        member = job.wait_for_generation(1, 1)[0]
        self.cluster.exec(member.host, ["kill", "-KILL", str(member.said["parent"])])
        self.wait(lambda: self.cluster.exec(member.host, ["kill", "-0", str(member.pid)]).returncode != 0, "its death")
        self.assertEqual(job.wait(), 137)

    def test_what_a_killed_supervisors_program_has_forked_is_gone_before_the_next_generation(self) -> None:
        # The one keeps its environment, the other has none: it is known by the step's cgroup.
        code = (
            "import subprocess\n"
            "script = 'trap \"\" TERM HUP INT; (setsid sleep 4716 & echo $!); (setsid env -i sleep 4716 & echo $!)'\n"
            "out = subprocess.Popen(['sh', '-c', script], stdout=subprocess.PIPE, text=True).stdout\n"
            "record(parent=os.getppid(), pids=[int(out.readline()) for _ in range(2)])\n"
            "until_released()\n"
        )
        job = self.gang(code, "spares=1", nodes=2, tasks=2)
        member = job.wait_for_generation(1, 1)[0]
        self.cluster.exec(member.host, ["kill", "-KILL", str(member.said["parent"])])
        second = job.wait_for_generation(2, 1)[0]
        self.assertNotEqual(second.host, member.host)
        for pid in member.said["pids"]:
            self.assertNotEqual(self.cluster.exec(member.host, ["kill", "-0", str(pid)]).returncode, 0, "it runs on")
        for pid in second.said["pids"]:
            self.assertEqual(self.cluster.exec(second.host, ["kill", "-0", str(pid)]).returncode, 0)
        job.release()
        job.wait()

    def test_a_core_dump_counts_as_a_death_by_its_signal(self) -> None:
        pattern = Path("/proc/sys/kernel/core_pattern").read_text()
        if pattern[0] in "|/":
            self.skipTest(f"cores do not go to the program's directory here: {pattern.strip()}")
        code = "os.chdir(directory); record(); data = b'x' * (300 << 20); os.abort() if generation == 1 else 0"
        shell = ["sh", "-c", f'ulimit -c unlimited; exec srun --propagate=CORE -n1 --gang {" ".join(harness.MEMBER)} "$FILES" "$0"', code]
        job = self.start_job(shell)
        self.assertEqual(job.wait(), 0, job.err)
        self.assertIn("was killed by SIGABRT", job.err)
        self.assertEqual([r.generation for r in job.records()], [1, 2])


class Ends(ClusterCase):
    def test_an_oom_kill_is_named_and_counts_as_the_users_fault(self) -> None:
        """Row: Process exits, signal, OOM."""
        code = "record(); data = b'x' * (400 << 20)"
        job = self.gang(code, "restarts=1", nodes=1, tasks=1, env={"MUSTER_TEST_MEMORY_LIMIT": str(100 << 20)})
        self.assertEqual(job.wait(), 137, job.err)
        self.assertEqual(job.err.count("was killed by the kernel's out-of-memory killer"), 2)
        self.assertIn("OUT_OF_MEMORY", job.err)

    def suspend(self, job: Job, host: str, pid: int) -> None:
        """Until this process of its stands still."""
        self.assertEqual(self.cluster.exec("ctl", ["scontrol", "suspend", job.id]).returncode, 0)
        stopped = ["sh", "-c", f"grep -q 'State:.[DT]' /proc/{pid}/status"]
        self.wait(lambda: self.cluster.exec(host, stopped).returncode == 0, "the job to be stopped")

    def test_a_suspended_jobs_timers_stand_still(self) -> None:
        job = self.gang("record(parent=os.getppid()); until_released()", nodes=1, tasks=2, options=("-w", "n1"))
        first = job.wait_for_generation(1, 2)
        self.suspend(job, first[0].host, first[0].said["parent"])
        self.cluster.stop_daemon("n1", "musterd")
        began = now()
        self.wait(lambda: now() > began + RECONNECT_S + 1.5, "longer than a member runs without musterd")
        self.assertEqual(self.cluster.exec("ctl", ["scontrol", "resume", job.id]).returncode, 0)
        self.cluster.start_daemon("n1", "musterd")
        self.kill_member(first[0])  # a gang that works still heals itself
        job.wait_for_generation(2, 2)
        job.release()
        self.assertEqual(job.wait(), 0, job.err)
        self.assertNotIn("is killed on this node", job.err)

    def test_musterd_may_be_restarted_while_a_job_is_suspended(self) -> None:
        """It waits for the supervisors for as long as they are stopped."""
        job = self.gang("record(parent=os.getppid()); until_released()", nodes=2, tasks=4)
        first = job.wait_for_generation(1, 4)
        self.suspend(job, first[0].host, first[0].said["parent"])
        for node in ("n1", "n2"):  # the coordinator's too
            self.cluster.stop_daemon(node, "musterd")
            self.cluster.start_daemon(node, "musterd")
        began = now()
        self.wait(lambda: now() > began + RECONNECT_S + 3, "longer than supervisors are waited for")
        self.assertEqual(self.cluster.exec("ctl", ["scontrol", "resume", job.id]).returncode, 0)
        job.release()
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual({record.generation for record in job.records()}, {1}, job.err)

    def test_a_member_is_killed_when_musterd_stays_away(self) -> None:
        """Switched off: musterd dies."""
        job = self.gang("record(); until_released()", nodes=1, tasks=1, options=("-w", "n1"))
        member = job.wait_for_generation(1, 1)[0]
        began = now()
        self.cluster.stop_daemon("n1", "musterd")
        self.addCleanup(self.cluster.start_daemon, "n1", "musterd")
        self.wait(lambda: self.cluster.exec("n1", ["kill", "-0", str(member.pid)]).returncode != 0, "its death")
        self.assertGreater(now() - began, RECONNECT_S - 1)
        self.wait(lambda: "musterd has gone" in job.err, "the reason in the job's stderr")

    def test_a_running_gang_never_notices_a_restart_of_musterd(self) -> None:
        job = self.gang("record(); until_released()", nodes=2, tasks=4)
        job.wait_for_generation(1, 4)
        self.cluster.restart_daemon("n1", "musterd")
        self.cluster.restart_daemon("n2", "musterd")
        job.release()
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual({r.generation for r in job.records()}, {1})

    def test_the_task_prolog_runs_for_each_generation_and_the_epilog_at_the_end(self) -> None:
        script = self.cluster.directory / "home/trainer" / f"hook{os.getpid()}"
        script.write_text('#!/bin/bash\necho "${0##*.} ${MUSTER_GENERATION-none}" >> "$FILES/hooks"\necho export SAID=prolog\n')
        script.chmod(0o755)
        for end in ("prolog", "epilog"):
            link = script.with_name(f"{script.name}.{end}")
            if not link.exists():
                link.symlink_to(script.name)
        inside = f"/home/trainer/{script.name}"
        options = (f"--task-prolog={inside}.prolog", f"--task-epilog={inside}.epilog")
        job = self.gang("record(); sys.exit(generation == 1)", nodes=1, tasks=1, options=options)
        self.assertEqual(job.wait(), 0, job.err)
        hooks = (job.files / "hooks").read_text().splitlines()
        self.assertEqual([h for h in hooks if h.startswith("prolog")], ["prolog 1", "prolog 2"])
        self.assertEqual(len([h for h in hooks if h.startswith("epilog")]), 1)
        self.assertEqual({r.env.get("SAID") for r in job.records()}, {"prolog"})


class TimeLimit(ClusterCase):
    def test_a_job_at_its_time_limit_may_save_and_is_gone_within_killwait(self) -> None:
        code = (
            "def save(n, f): open(path(f'saved.r{rank}'), 'w').close(); sys.exit(0)\n"
            "signal.signal(signal.SIGTERM, save); record(); until_released()"
        )
        job = self.gang(code, nodes=2, tasks=2, options=("--time=1",))
        job.wait_for_generation(1, 2)
        job.wait(timeout=150)
        self.assertEqual(sorted(path.name for path in job.files.glob("saved.*")), ["saved.r0", "saved.r1"])
        self.assertEqual({r.generation for r in job.records()}, {1})


class Refusals(ClusterCase):
    def refused(self, words: list[str]) -> str:
        done = self.cluster.user("ctl", words, timeout=SOON)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout, "")
        return done.stderr

    def test_a_bad_option_is_refused_at_sbatch_srun_and_salloc_with_the_good_ones(self) -> None:
        for command in (["sbatch", "--wrap", "true"], ["srun", "true"], ["salloc", "true"]):
            for value in ("restart=3", "restarts=many", "restarts=1001", "join=0", "name=../up", "role=", ",", "a" * 1025):
                with self.subTest(command=command[0], value=value[:20]):
                    said = self.refused([command[0], f"--gang={value}", *command[1:]])
                    self.assertIn("--gang: ", said)
                    if len(value) < 1000:
                        self.assertIn("restarts=N (0..1000), join=DURATION (1s..24h), spares=N (0..1024 nodes)", said)
                        self.assertIn("after=ROLE[:done], name=KEY", said)

    def test_a_bad_option_in_a_batch_script_is_refused_at_sbatch(self) -> None:
        done = self.cluster.user("ctl", ["sbatch"], input="#!/bin/bash\n#SBATCH --gang=spare=2\ntrue\n", timeout=SOON)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("unknown key 'spare'", done.stderr)

    def test_pmi2_is_refused_with_the_reason_and_what_to_do(self) -> None:
        said = self.refused(["srun", "-n1", "--mpi=pmi2", "--gang", "hostname"])
        self.assertIn("--mpi=pmi2", said)
        self.assertIn("does not survive a restart", said)
        self.assertIn("--mpi=none", said)

    def test_without_musterd_the_message_names_the_socket_and_the_unit(self) -> None:
        self.cluster.stop_daemon("n1", "musterd")
        self.addCleanup(self.cluster.start_daemon, "n1", "musterd")
        began = now()
        said = self.refused(["srun", "-w", "n1", "-n1", "--gang", "hostname"])
        self.assertIn("/run/muster/musterd.sock", said)
        self.assertIn("musterd.service", said)
        self.assertGreater(now() - began, 5, "it waits: musterd may be restarting")

    def test_a_musterd_that_is_just_restarting_is_waited_for(self) -> None:
        self.cluster.stop_daemon("n1", "musterd")
        job = self.srun(["hostname"], nodes=1, tasks=2, options=("-w", "n1"))
        tasks = ["pgrep", "-f", "slurmstepd: "]
        try:
            self.wait(lambda: self.cluster.exec("n1", tasks).returncode == 0, "the step's tasks on n1")
        finally:
            self.cluster.start_daemon("n1", "musterd")
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(job.out, "n1\nn1\n")

    def test_under_a_parallel_debugger_there_is_no_supervisor(self) -> None:
        job = self.srun(["sleep", "4716"], nodes=1, tasks=1, options=("-w", "n1", "--debugger-test"))
        self.wait(lambda: "runs without its gang" in job.err, "the warning")
        parent = "ps -o comm= -p $(ps -o ppid= -p $(pgrep -f 'sleep 4716' | head -1))"
        self.wait(lambda: "slurmstepd" in self.cluster.exec("n1", ["sh", "-c", parent]).stdout, "the task below slurmstepd")
        self.assertEqual(self.cluster.exec("n1", ["pgrep", "-x", "muster", "-u", "trainer"]).stdout, "")


class Untouched(ClusterCase):
    WHO = 'echo "$(cat /proc/$PPID/comm) $(env | grep -c "^MUSTER_\\|^MASTER_\\|^TF_CONFIG")"'

    def test_a_step_without_gang_has_no_supervisor_and_nothing_of_muster(self) -> None:
        job = self.srun(["env", "-u", "MUSTER_SRC", "sh", "-c", self.WHO], gang=None, nodes=1, tasks=1)
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(job.out, "slurmstepd 0\n")

    def test_the_batch_script_of_a_gang_job_is_not_a_member(self) -> None:
        self.cluster.stop_daemon("n1", "musterd")
        self.addCleanup(self.cluster.start_daemon, "n1", "musterd")
        job = self.batch(f"#SBATCH --gang -w n1\nunset MUSTER_SRC\n{self.WHO}\n")
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(job.out.splitlines()[-1], "slurmstepd 0")

    def test_sruns_in_a_gang_job_inherit_the_option_and_may_override_it(self) -> None:
        script = (
            "#SBATCH --gang=role=chief -n2\n"
            "srun -n2 sh -c 'echo first $MUSTER_ROLE'\nsrun -n1 --gang=role=ps sh -c 'echo second $MUSTER_ROLE'\n"
        )
        job = self.batch(script)
        self.assertEqual(job.wait(), 0, job.err)
        lines = [line for line in job.out.splitlines() if line.startswith(("first", "second"))]
        self.assertEqual(lines, ["first chief", "first chief", "second ps"])


if __name__ == "__main__":
    unittest.main()
