#!/usr/bin/python3
"""What Muster says to Slurm: --no-kill for gangs, nodes set DOWN, requeues past a dead batch host, comments.

The requests are those of daemon/slurm/slurm.h, made by programs/slurm_client.cc on its own event loop. The gangs' steps
run without their supervisor (as under a parallel debugger), so that what happens is Slurm's doing alone.
"""

import json
import os
import re
import selectors
import signal
import struct
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import PROGRAMS, SOON, ClusterCase, Job, report  # noqa: E402
from vc.host import ClusterError  # noqa: E402
from vc.names import BUILD_IN_NODE, CONTROLLER  # noqa: E402

CLIENT = [f"{PROGRAMS}/slurm_client", f"helper={BUILD_IN_NODE}/bin/muster-slurm"]
NODES = 5
DENIED = 4  # Errc::kDenied
UNAVAILABLE = 5
SHT_DYNSYM = 11

# A step whose tasks run until the file `go` is there, and how its srun ends.
STEP = """
echo "began $(date +%s.%N) restart=$SLURM_RESTART_COUNT on $(hostname) no-kill=$SLURM_NO_KILL" >> {FILES}/log
MUSTER_PARALLEL_DEBUGGER=1 srun bash -c 'touch {FILES}/up.$SLURM_RESTART_COUNT.$SLURM_PROCID; until [ -e {FILES}/go ]; do sleep 0.05; done'
echo "srun $?" >> {FILES}/log
"""


def setUpModule() -> None:
    harness.start("slurmctl", nodes=NODES, ceph=False, cpus=8)


class Client:
    """A running slurm_client on a node."""

    def __init__(self, case: "SlurmControl", node: str, *options: str, user: str | None = None) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = case.cluster.popen(node, [*CLIENT, *options], user, **pipes)
        case.addCleanup(self.close)

    def close(self) -> None:
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def send(self, request: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()

    def answer(self, timeout: float = SOON) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                raise ClusterError(f"slurm_client has not answered within {timeout:g} s")
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def ask(self, request: str, timeout: float = SOON) -> dict[str, Any]:
        self.send(request)
        return self.answer(timeout)


class SlurmControl(ClusterCase):
    def setUp(self) -> None:
        self.addCleanup(self.mend)

    def tearDown(self) -> None:
        self.cluster.exec(CONTROLLER, ["scancel", "-u", "trainer"])

    # --- jobs

    def submit(self, header: str, nodes: int = 3, script: str = STEP) -> Job:
        return self.batch(f"#SBATCH -N{nodes} --ntasks-per-node=1\n{header}\n{script}")

    def log(self, job: Job) -> str:
        path = job.files / "log"
        return path.read_text() if path.exists() else ""

    def wait_until_up(self, job: Job, nodes: int = 3, restart: str = "", timeout: float = SOON) -> None:
        paths = [job.files / f"up.{restart}.{rank}" for rank in range(nodes)]
        self.wait(lambda: all(path.exists() for path in paths), f"{job.name}'s tasks of run '{restart}'", timeout)

    def shown(self, job: Job) -> dict[str, str]:
        """Slurm's own words on a job."""
        text = self.cluster.exec(CONTROLLER, ["scontrol", "show", "job", "-o", job.id]).stdout
        return dict(re.findall(r"(\w+)=(.*?)(?= \w+=|$)", text.strip()))

    def node(self, name: str) -> str:
        return self.cluster.exec(CONTROLLER, ["scontrol", "show", "node", name]).stdout

    def batch_host(self, job: Job) -> str:
        return self.shown(job)["BatchHost"]

    def other_nodes(self, job: Job) -> list[str]:
        expression = self.shown(job)["NodeList"]
        names = self.cluster.exec(CONTROLLER, ["scontrol", "show", "hostnames", expression]).stdout.split()
        return [name for name in names if name != self.batch_host(job)]

    def good(self, answer: dict[str, Any]) -> dict[str, Any]:
        self.assertTrue(answer["ok"], answer)
        return answer

    # --- no-kill

    def lose_a_node(self, job: Job) -> str:
        """Kills a node of a running job that is not its batch host, and sets it DOWN."""
        victim = self.other_nodes(job)[0]
        self.cluster.kill(victim)
        client = Client(self, self.batch_host(job))
        self.good(client.ask(f"down {job.id} {victim} its musterd is silent"))
        client.close()
        return victim

    def test_a_gangs_job_and_step_outlive_a_node_and_srun_ends_as_the_others_do(self) -> None:
        job = self.submit("#SBATCH --gang")
        self.wait_until_up(job)
        began = time.monotonic()
        victim = self.lose_a_node(job)
        self.wait(lambda: victim not in self.shown(job)["NodeList"], "the job to go on without the node")
        report(f"node-loss: {1000 * (time.monotonic() - began):.0f} ms from its death to the job's smaller NodeList")
        self.assertIn("DOWN", self.node(victim))
        self.assertIn("Reason=muster: its musterd is silent", self.node(victim))
        self.assertEqual(self.shown(job)["JobState"], "RUNNING")
        began = time.monotonic()
        job.release()
        self.wait(lambda: "srun" in self.log(job), "srun to return")  # sbatch --wait looks only every few seconds
        report(f"srun returned {1000 * (time.monotonic() - began):.0f} ms after the others' tasks could end")
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(self.log(job).splitlines()[-1], "srun 0")
        self.assertIn("no-kill=set", self.log(job))
        self.assertIn(f"Node failure on {victim}", job.err)

    def test_two_lost_nodes_are_no_more_than_one(self) -> None:
        job = self.submit("#SBATCH --gang", nodes=4)
        self.wait_until_up(job, nodes=4)
        first = self.lose_a_node(job)
        self.wait(lambda: first not in self.shown(job)["NodeList"], "the first node to be out")
        second = self.lose_a_node(job)
        self.wait(lambda: second not in self.shown(job)["NodeList"], "the second node to be out")
        job.release()
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(self.log(job).splitlines()[-1], "srun 0")

    def test_a_node_that_is_set_down_after_the_others_have_ended_ends_srun(self) -> None:
        job = self.submit("#SBATCH --gang")
        self.wait_until_up(job)
        victim = self.other_nodes(job)[0]
        self.cluster.kill(victim)
        job.release()
        client = Client(self, self.batch_host(job))
        self.good(client.ask(f"down {job.id} {victim} its musterd is silent"))
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(self.log(job).splitlines()[-1], "srun 0")

    def requeued_after_a_lost_node(self, header: str) -> None:
        job = self.submit(header)
        self.wait_until_up(job)
        victim = self.lose_a_node(job)
        self.wait(lambda: self.shown(job)["Restarts"] == "1", "the whole job to be requeued by Slurm")
        log = (self.cluster.directory / "log" / f"{CONTROLLER}.slurmctld.log").read_text()
        self.assertIn(f"equeue job JobId={job.id} due to failure of node {victim}", log)

    def test_without_a_gang_a_lost_node_ends_the_run(self) -> None:
        self.requeued_after_a_lost_node("")

    def test_an_explicit_off_wins(self) -> None:
        self.requeued_after_a_lost_node("#SBATCH --gang\n#SBATCH --no-kill=off")

    def test_the_option_is_there_however_the_gang_is_submitted(self) -> None:
        show = 'echo "no-kill=$SLURM_NO_KILL" > {FILES}/log\n'
        script = f"#!/bin/bash\n#SBATCH -N2\n#SBATCH --gang\n{show}"
        whole = ["sbatch", "--wait", "--output={FILES}/out"]
        cases: dict[str, tuple[list[str], str]] = {
            "wrap": ([*whole, "-N2", "--gang", "--wrap", show], "set"),
            "no gang": ([*whole, "-N2", "--wrap", show], ""),
            "off on the command line": ([*whole, "-N2", "--gang", "--no-kill=off", "--wrap", show], "off"),
            "off in the environment": (["env", "SBATCH_NO_KILL=off", *whole, "-N2", "--gang", "--wrap", show], "off"),
            "export none": ([*whole, "--export=NONE", "-N2", "--gang", "--wrap", show], "set"),
            "script from a pipe": (["bash", "-c", f"echo '{script}' | sbatch --wait --output={{FILES}}/out"], "set"),
            "salloc": (["salloc", "-N2", "--gang", "bash", "-c", show], "set"),
        }
        for name, (argv, expected) in cases.items():
            with self.subTest(name):
                job = self.start_job(argv)
                self.assertEqual(job.wait(), 0, job.err)
                self.assertEqual(self.log(job).strip(), f"no-kill={expected}")
                self.assertNotIn("muster", job.err)

    # --- a Slurm whose programs do not show their options, as later releases' do not

    def blind(self, program: str) -> str:
        """A copy of a front end whose variable `opt` cannot be found; its path in the nodes."""
        code = bytearray(Path(f"/usr/bin/{program}").read_bytes())
        # ELF, 64 bits: the section headers, then the symbols, whose first word is their name's place in .dynstr.
        start, size, count = struct.unpack_from("<Q10xHH", code, 0x28)
        sections = [struct.unpack_from("<IIQQQQIIQQ", code, start + i * size) for i in range(count)]
        symbols = next(section for section in sections if section[1] == SHT_DYNSYM)
        names = sections[symbols[6]][4]
        found = 0
        for at in range(symbols[4], symbols[4] + symbols[5], symbols[9]):
            name = names + struct.unpack_from("<I", code, at)[0]
            if code[name : code.index(0, name)] == b"opt":
                struct.pack_into("<I", code, at, name - names + 1)  # "pt"
                found += 1
        self.assertEqual(found, 1)
        path = self.cluster.directory / "tmp" / f"{program}.blind"
        path.write_bytes(code)
        path.chmod(0o755)
        self.addCleanup(path.unlink)
        return f"/tmp/{path.name}"

    def test_a_front_end_that_hides_its_options_is_started_again_with_it(self) -> None:
        sbatch = self.blind("sbatch")
        show = 'echo "no-kill=$SLURM_NO_KILL,$SBATCH_NO_KILL,$MUSTER_NO_KILL_SET" > {FILES}/log\n'
        script = f"#!/bin/bash\n#SBATCH -N2\n#SBATCH --gang\n{show}"
        cases = {
            "wrap": (["-N2", "--gang", "--wrap", show], "set,,"),
            "no gang": (["-N2", "--wrap", show], ",,"),
        }
        for name, (words, expected) in cases.items():
            with self.subTest(name):
                job = self.start_job([sbatch, "--wait", "--output={FILES}/out", *words])
                self.assertEqual(job.wait(), 0, job.err)
                self.assertEqual(self.log(job).strip(), f"no-kill={expected}")
        for program, expected in (("srun", ",,"), ("salloc", "set,,")):
            with self.subTest(program):
                env = {"MUSTER_PARALLEL_DEBUGGER": "1"}
                job = self.start_job([self.blind(program), "-N1", "--gang", "bash", "-c", show], env=env)
                self.assertEqual(job.wait(), 0, job.err)
                self.assertEqual(self.log(job).strip(), f"no-kill={expected}")
        with self.subTest("script from a file"):
            command = f"echo '{script}' > {{FILES}}/script; {sbatch} --wait --output={{FILES}}/out < {{FILES}}/script"
            job = self.start_job(["bash", "-c", command])
            self.assertEqual(job.wait(), 0, job.err)
            self.assertEqual(self.log(job).strip(), "no-kill=set,,")
        with self.subTest("script from a pipe"):
            job = self.start_job(["bash", "-c", f"echo '{script}' | {sbatch} --wait --output={{FILES}}/out"])
            self.assertEqual(job.wait(), 0, job.err)
            self.assertIn("add '#SBATCH --no-kill' to the script", job.err)

    # --- requests

    def test_a_job_is_told_with_what_it_shares(self) -> None:
        first = self.submit("#SBATCH --gang\n#SBATCH -t 30", nodes=3)
        self.wait_until_up(first)
        client = Client(self, "n4")
        job = self.good(client.ask(f"job {first.id} sharing"))["job"]
        self.assertEqual((job["state"], job["batch"], job["requeueable"], job["shared_nodes"]), ("RUNNING", True, True, []))
        self.assertEqual(job["batch_host"], self.batch_host(first))
        self.assertEqual(job["end"] - job["start"], 1800)
        self.assertEqual(len(job["nodes"]), 3)
        second = self.submit(f"#SBATCH --nodelist={job['nodes'][1]},n5", nodes=2)
        self.wait_until_up(second, nodes=2)
        shared = self.good(client.ask(f"job {first.id} sharing"))["job"]["shared_nodes"]
        self.assertEqual(shared, [job["nodes"][1]])
        refused = client.ask(f"down {first.id} {job['nodes'][1]} lost")
        self.assertEqual((refused["ok"], refused["code"]), (False, DENIED), refused)
        self.assertIn(f"job {second.id} is on it too", refused["error"])
        self.assertNotIn("DOWN", self.node(job["nodes"][1]))
        refused = client.ask(f"down {first.id} n5 lost")
        self.assertIn("not one of job", refused["error"])
        for what in ("job 4000000 sharing", "drain nowhere sick"):
            self.assertFalse(client.ask(what)["ok"])
        first.release()
        second.release()

    def test_every_request_is_answered(self) -> None:
        job = self.submit("#SBATCH --gang")
        self.wait_until_up(job)
        client = Client(self, self.batch_host(job))
        requests = [f"job {job.id}", f"job {job.id} sharing", f"comment {job.id} warm", f"comment {job.id} restarted", "drain n5 Xid 79", "resume n5"]
        for request in requests:
            self.good(client.ask(request))
        job.release()

    def test_a_comment_is_seen_by_the_user(self) -> None:
        job = self.submit("#SBATCH --gang")
        self.wait_until_up(job)
        client = Client(self, "n5")
        self.good(client.ask(f"comment {job.id} muster: generation 2 runs"))
        text = self.cluster.user(CONTROLLER, ["scontrol", "show", "job", job.id]).stdout
        self.assertIn("AdminComment=muster: generation 2 runs", text)
        query = ["squeue", "-h", "-j", job.id, "-O", "admin_comment:60"]
        self.assertEqual(self.cluster.user(CONTROLLER, query).stdout.strip(), "muster: generation 2 runs")
        job.release()

    def test_only_what_muster_has_set_is_taken_back(self) -> None:
        client = Client(self, "n1")
        self.good(client.ask("drain n5 Xid 79"))
        self.assertIn("Reason=muster: Xid 79", self.node("n5"))
        self.assertIn("DRAIN", self.node("n5"))
        self.good(client.ask("resume n5"))
        self.assertNotIn("DRAIN", self.node("n5"))
        self.hurts("n5")
        self.cluster.exec(CONTROLLER, ["scontrol", "update", "NodeName=n5", "State=DRAIN", "Reason=RMA"])
        refused = client.ask("resume n5")
        self.assertEqual(refused["code"], DENIED, refused)
        self.assertIn("RMA", refused["error"])

    def test_an_ordinary_user_is_denied(self) -> None:
        client = Client(self, "n1", user="trainer")
        refused = client.ask("drain n5 mine")
        self.assertEqual((refused["ok"], refused["code"]), (False, DENIED), refused)

    # --- requeue

    def test_a_requeued_job_does_not_wait_two_minutes(self) -> None:
        job = self.submit("#SBATCH --gang")
        self.wait_until_up(job)
        client = Client(self, "n5")
        began = time.monotonic()
        self.good(client.ask(f"requeue {job.id} 0", timeout=100))
        self.wait_until_up(job, restart="1", timeout=100)
        report(f"requeue: {time.monotonic() - began:.1f} s to RUNNING again, all nodes alive")
        # Late, and twice: another run than this has begun.
        self.good(client.ask(f"requeue {job.id} 0"))
        self.assertEqual(self.shown(job)["Restarts"], "1")
        job.release()
        self.assertEqual(job.wait(), 0, job.err)

    def test_a_dead_batch_host_costs_a_few_seconds(self) -> None:
        job = self.submit("#SBATCH --gang")
        self.wait_until_up(job)
        host, others = self.batch_host(job), self.other_nodes(job)
        clients = [Client(self, node) for node in others]
        began = time.monotonic()
        self.cluster.kill(host)
        for client in clients:
            client.send(f"end-here {job.id}")
        for client in clients:
            self.good(client.answer())
        self.good(clients[0].ask(f"requeue {job.id} 0 {host}", timeout=100))
        arranged = time.monotonic() - began
        self.wait_until_up(job, restart="1", timeout=100)
        report(f"batch host dead: requeue arranged after {arranged:.1f} s, tasks up again after {time.monotonic() - began:.1f} s")
        self.assertIn("DOWN", self.node(host))
        job.release()
        self.wait(lambda: self.shown(job)["JobState"] == "COMPLETED", "the second run to end well")

    def test_what_may_not_be_requeued_is_refused_and_lives(self) -> None:
        job = self.submit("#SBATCH --gang\n#SBATCH --no-requeue")
        self.wait_until_up(job)
        refused = Client(self, "n5").ask(f"requeue {job.id} 0 {self.other_nodes(job)[0]}")
        self.assertEqual(refused["code"], DENIED, refused)
        self.assertIn("--no-requeue", refused["error"])
        self.assertNotIn("DOWN", self.node(self.other_nodes(job)[0]))
        job.release()
        self.assertEqual(job.wait(), 0, job.err)

    def test_a_cut_off_batch_host_ends_its_part_itself(self) -> None:
        job = self.submit("#SBATCH --gang")
        self.wait_until_up(job)
        host = self.batch_host(job)
        there = Client(self, host)
        self.cluster.cut(host)
        try:
            self.good(there.ask(f"end-here {job.id}"))
            left = self.cluster.exec(host, ["ps", "-e", "-o", "args"]).stdout
            self.assertNotIn(f"[{job.id}.", left)
            self.assertNotIn("until [ -e", left)
            self.assertNotRegex(left, r"\bsrun\b")
        finally:
            self.cluster.heal(host)

    # --- when Slurm does not answer

    def test_a_stopped_slurmctld_costs_the_deadline_and_no_more(self) -> None:
        client = Client(self, "n1", "timeout=5000")
        patient = Client(self, "n2", "timeout=60000")
        before = self.good(client.ask("resume n1"))["helper"]
        self.assertGreater(before, 0)
        self.cluster.signal_daemon(CONTROLLER, "slurmctld", signal.SIGSTOP)
        try:
            failed = client.ask("resume n1")
            waited = patient.ask("resume n1")
        finally:
            self.cluster.signal_daemon(CONTROLLER, "slurmctld", signal.SIGCONT)
        self.assertEqual((failed["ok"], failed["code"]), (False, UNAVAILABLE), failed)
        self.assertIn("has not answered 'node_resume' within 5000 ms", failed["error"])
        self.assertLess(failed["longest_stall_ms"], 4500, "the loop was blocked")
        # Slurm's own deadline, MessageTimeout, is 10 s.
        self.assertEqual((waited["ok"], waited["code"]), (False, UNAVAILABLE), waited)
        self.assertIn("timed out", waited["error"])
        report(f"slurmctld stopped: answer after {failed['ms']:.0f} ms, the loop's longest pause {failed['longest_stall_ms']:.1f} ms")
        after = self.good(client.ask("resume n1"))["helper"]
        self.assertNotEqual(before, after)

    def test_a_killed_helper_is_started_again(self) -> None:
        client = Client(self, "n1")
        pid = self.good(client.ask("resume n1"))["helper"]
        self.assertEqual(self.cluster.exec("n1", ["kill", "-9", str(pid)]).returncode, 0)
        self.wait(lambda: not self.cluster.exec("n1", ["ps", "-p", str(pid)]).returncode == 0, "its end")
        self.assertNotEqual(self.good(client.ask("resume n1"))["helper"], pid)

    def test_a_bad_slurm_conf_is_named(self) -> None:
        client = Client(self, "n1", "helper=/bin/false")
        failed = client.ask("resume n1")
        self.assertEqual(failed["code"], UNAVAILABLE)
        self.assertIn("/bin/false ended with exit status 1", failed["error"])
        conf = self.cluster.directory / "etc" / "slurm" / "slurm.conf"
        text = conf.read_text()
        try:
            conf.write_text(text + "NoSuchKey=1\n")
            failed = Client(self, "n1").ask("resume n1")
        finally:
            conf.write_text(text)
        self.assertEqual(failed["code"], UNAVAILABLE)
        self.assertRegex(failed["error"], "NoSuchKey|[Uu]nable to process configuration file|fatal")


if __name__ == "__main__":
    os.umask(0o022)
    unittest.main(verbosity=2)
