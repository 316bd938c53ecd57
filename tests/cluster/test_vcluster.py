#!/usr/bin/python3
"""The virtual cluster does what its README says, and leaves nothing behind. Needs root; takes about a minute."""

import json
import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

from vc import Cluster, ClusterError, wait_until  # noqa: E402
from vc.names import Names  # noqa: E402

VCLUSTER = str(Path(__file__).resolve().parent / "vcluster")


def traces(name: str) -> list[str]:
    """Whatever a cluster of this name still has on the host."""
    names = Names(name)
    found = [str(names.directory)] if names.directory.exists() else []
    found += [f"link {n}" for n in os.listdir("/sys/class/net") if n.startswith(names.bridge)]
    found += [str(p) for p in Path("/sys/fs/cgroup").glob(f"*/{names.cgroup}")]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(names.directory) in line]
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                command = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode()
                groups = Path("/proc", entry, "cgroup").read_text()
                mounts = Path("/proc", entry, "mountinfo").read_text()
            except OSError:
                continue
            if names.cgroup in groups or str(names.directory) in command + mounts:
                found.append(f"process {entry} {command}")
    return found


def node_state(cluster: Cluster, node: str) -> str:
    """A node's state in Slurm. Asks for all nodes: asked for one (sinfo -n), slurmctld may answer with an old state."""
    lines = cluster.exec("ctl", ["sinfo", "-h", "-N", "-o", "%N %t"]).stdout.splitlines()
    return dict(line.split() for line in lines).get(node, "unknown")


def reaches(cluster: Cluster, source: str, address: str) -> bool:
    """Whether a TCP connection to the slurmd at an address comes about."""
    connect = f"timeout 1 bash -c ': >/dev/tcp/{address}/6818'"
    return cluster.exec(source, ["bash", "-c", connect]).returncode == 0


def wait_for_idle(cluster: Cluster, node: str) -> None:
    wait_until(lambda: node_state(cluster, node) == "idle", 40, f"{node} idle in Slurm")


class SlurmOnly(unittest.TestCase):
    """One cluster for all tests of this class, without Ceph and Muster."""

    cluster: Cluster

    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = Cluster(f"s{os.getpid()}", nodes=3, ceph=False, muster=False)
        cls.cluster.start()
        cls.addClassCleanup(cls.cluster.stop)

    def test_an_ordinary_user_runs_steps_on_all_nodes(self) -> None:
        done = self.cluster.user("ctl", ["srun", "-N3", "--ntasks-per-node=2", "hostname"])
        self.assertEqual((done.returncode, sorted(done.stdout.split())), (0, ["n1", "n1", "n2", "n2", "n3", "n3"]))

    def test_a_batch_job_completes_and_leaves_its_output_in_the_shared_home(self) -> None:
        done = self.cluster.user("ctl", ["sbatch", "-W", "-N2", "-o", "out-%j", "--wrap", "srun id -un"])
        self.assertEqual(done.returncode, 0, done.stderr)
        job = done.stdout.split()[-1]
        self.assertEqual(self.cluster.user("n3", ["cat", f"out-{job}"]).stdout.split(), ["trainer", "trainer"])

    def test_proctrack_kills_what_left_its_session(self) -> None:
        done = self.cluster.user("ctl", ["srun", "-w", "n1", "sh", "-c", "setsid sleep 4711 & exit 0"])
        self.assertEqual(done.returncode, 0, done.stderr)
        wait_until(lambda: self.cluster.exec("n1", ["pgrep", "-f", "sleep 4711"]).returncode == 1, 30, "its death")

    def test_exit_status_and_signals_pass_through_exec(self) -> None:
        self.assertEqual(self.cluster.exec("n1", ["sh", "-c", "exit 7"]).returncode, 7)
        self.assertEqual(self.cluster.exec("n1", ["sh", "-c", "kill -USR1 $$"]).returncode, -signal.SIGUSR1)
        self.assertEqual(self.cluster.exec("n1", ["cat"], input="through").stdout, "through")
        script = 'trap "echo caught; exit 5" INT; echo ready; while :; do sleep 0.05; done'
        with self.cluster.popen("n1", ["bash", "-c", script], stdout=subprocess.PIPE) as program:
            assert program.stdout is not None
            self.assertEqual(program.stdout.readline(), "ready\n")
            program.send_signal(signal.SIGINT)
            self.assertEqual(program.stdout.readline(), "caught\n")
            self.assertEqual(program.wait(), 5)

    def test_a_killed_exec_takes_its_program_along(self) -> None:
        with self.cluster.popen("n1", ["sleep", "4712"]) as program:
            alive = ["pgrep", "-f", "^sleep 4712"]
            wait_until(lambda: self.cluster.exec("n1", alive).returncode == 0, 30, "the program")
            program.kill()
        wait_until(lambda: self.cluster.exec("n1", alive).returncode == 1, 30, "its death")

    def test_users_and_files_of_the_nodes_are_not_the_hosts(self) -> None:
        self.assertEqual(self.cluster.user("n1", ["id", "-u"], user="other").stdout, "20002\n")
        name = f"vcluster-test-{os.getpid()}"
        self.cluster.user("n1", ["touch", f"/tmp/{name}"])
        self.assertEqual(self.cluster.exec("n2", ["test", "-e", f"/tmp/{name}"]).returncode, 0)
        self.assertFalse(Path("/tmp", name).exists())
        self.assertNotIn("trainer:", Path("/etc/passwd").read_text())

    def test_a_killed_node_is_gone_and_comes_back_into_service(self) -> None:
        program = self.cluster.popen("n3", ["sleep", "4713"])
        alive = ["pgrep", "-f", "^sleep 4713"]
        wait_until(lambda: self.cluster.exec("n3", alive).returncode == 0, 30, "the program")
        self.cluster.kill("n3")
        self.assertEqual(program.wait(30), -signal.SIGKILL)
        self.assertEqual(self.cluster.status()["nodes"][3]["state"], "dead")
        self.assertRaisesRegex(ClusterError, "dead", self.cluster.exec, "n3", ["true"])
        self.assertFalse(reaches(self.cluster, "ctl", "n3"))
        self.cluster.revive("n3")
        wait_for_idle(self.cluster, "n3")
        self.assertEqual(self.cluster.user("ctl", ["srun", "-w", "n3", "hostname"]).stdout, "n3\n")

    def test_a_cut_node_runs_on_alone_until_it_is_healed(self) -> None:
        with self.cluster.popen("n2", ["sh", "-c", "read x; echo still here"], stdin=-1, stdout=-1) as program:
            self.cluster.cut("n2")
            self.assertEqual(self.cluster.status()["nodes"][2]["state"], "cut")
            self.assertFalse(reaches(self.cluster, "ctl", "n2"))
            self.assertEqual(program.communicate("go\n", timeout=30)[0], "still here\n")
        self.cluster.heal("n2")
        wait_until(lambda: reaches(self.cluster, "ctl", "n2"), 30, "n2 to answer")
        wait_for_idle(self.cluster, "n2")

    def test_slurm_notices_a_dead_node_and_survivors_stay(self) -> None:
        self.cluster.kill("n3")
        wait_until(lambda: node_state(self.cluster, "n3").startswith("down"), 60, "n3 DOWN", interval=0.5)
        self.assertEqual(self.cluster.user("ctl", ["srun", "-N2", "true"]).returncode, 0)
        self.cluster.revive("n3")
        wait_for_idle(self.cluster, "n3")

    def test_the_controller_comes_back_with_its_jobs(self) -> None:
        done = self.cluster.user("ctl", ["sbatch", "--parsable", "-w", "n1", "--wrap", "sleep 600"])
        job = done.stdout.strip()
        queue = ["squeue", "-h", "-j", job, "-o", "%T"]

        def running() -> bool:
            return self.cluster.exec("ctl", queue).stdout == "RUNNING\n"

        wait_until(running, 30, f"job {job} running")
        began = time.time()
        changed = self.cluster.exec("ctl", ["scontrol", "update", f"JobId={job}", "Name=changed"])  # what has not changed is not saved again
        self.assertEqual(changed.returncode, 0, changed.stderr)
        state = self.cluster.directory / "slurmctld" / "job_state"
        wait_until(lambda: state.exists() and state.stat().st_mtime > began, 60, "slurmctld to save its state")
        self.cluster.kill("ctl")
        self.cluster.revive("ctl")
        wait_until(running, 30, f"job {job} running under the new controller")
        self.cluster.exec("ctl", ["scancel", job])
        wait_for_idle(self.cluster, "n1")

    def test_daemons_stop_and_start(self) -> None:
        # Killed, slurmctld would forget the jobs of its last five seconds.
        cases = (("n1", "slurmd", "KILL"), ("ctl", "slurmctld", "TERM"), ("n1", "munged", "KILL"))
        for node, daemon, name in cases:
            before = self._pid(node, daemon)
            self.cluster.stop_daemon(node, daemon, signal.Signals[f"SIG{name}"])
            self.assertIsNone(self._pid(node, daemon))
            self.cluster.start_daemon(node, daemon)
            self.assertNotIn(self._pid(node, daemon), (None, before))
        wait_for_idle(self.cluster, "n1")

    def test_an_existing_name_is_refused(self) -> None:
        again = Cluster(self.cluster.names.name, nodes=1, ceph=False, muster=False)
        self.assertRaisesRegex(ClusterError, "exists already", again.start)
        self.assertEqual(self.cluster.exec("n1", ["true"]).returncode, 0)

    def _pid(self, node: str, daemon: str) -> int | None:
        for entry in self.cluster.status()["nodes"]:
            if entry["hostname"] == node:
                pid: int | None = entry["daemons"][daemon]
                return pid
        raise AssertionError(node)


class WithCeph(unittest.TestCase):
    def test_ceph_serves_and_survives_osds_and_nodes(self) -> None:
        with Cluster(f"c{os.getpid()}", nodes=2, muster=False) as cluster:
            put = ["rados", "-n", "client.muster", "-p", "muster", "put", "thing", "/etc/hosts"]
            self.assertEqual(cluster.exec("n1", ["timeout", "20", *put]).returncode, 0)
            self.assertEqual(cluster.exec("ctl", ["rados", "-p", "muster", "ls", "--all"]).stdout.split(), ["thing"])
            self.assertNotEqual(cluster.user("n1", ["timeout", "20", *put]).returncode, 0)  # the key is root's
            cluster.kill("n2")
            cluster.stop_daemon("ceph", "osd.0", signal.SIGKILL)
            self.assertEqual(cluster.exec("n1", ["timeout", "30", *put]).returncode, 0)
            cluster.start_daemon("ceph", "osd.0")
            up = ["timeout", "60", "ceph", "osd", "stat", "-f", "json"]

            def three() -> bool:
                said = cluster.exec("ctl", up).stdout
                return bool(said) and json.loads(said)["num_up_osds"] == 3

            wait_until(three, 120, "3 OSDs up")
        self.assertEqual(traces(cluster.names.name), [])


class Lifetime(unittest.TestCase):
    def test_two_clusters_live_at_once_and_leave_nothing(self) -> None:
        names = [f"p{os.getpid()}", f"q{os.getpid()}"]
        first, second = (Cluster(name, nodes=2, ceph=False, muster=False) for name in names)
        with first, second:
            for cluster in (first, second):
                done = cluster.user("ctl", ["srun", "-N2", "hostname"])
                self.assertEqual(sorted(done.stdout.split()), ["n1", "n2"], done.stderr)
            self.assertNotEqual(first.network.subnet, second.network.subnet)
            wait_until(lambda: reaches(first, "n1", first.network.address("n2")), 60, "n2 to answer")
            self.assertFalse(reaches(first, "n1", second.network.address("n2")))
        self.assertEqual([traces(name) for name in names], [[], []])

    def test_an_interrupted_start_leaves_nothing(self) -> None:
        name = f"i{os.getpid()}"
        self.addCleanup(Cluster(name).stop)
        for number, delay in ((s, d) for s in (signal.SIGINT, signal.SIGTERM) for d in (0, 0.1, 0.2, 0.5, 1.5, 3)):
            with self.subTest(signal=number, delay=delay):
                start = subprocess.Popen(
                    [VCLUSTER, "start", "--name", name, "--no-muster"],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=os.environ | {"PYTHONFAULTHANDLER": "1"},
                )
                assert start.stdout is not None
                self.assertIn(name, start.stdout.readline())  # it has begun
                time.sleep(delay)  # the moment to be interrupted at: nothing is waited for
                start.send_signal(number)
                try:
                    error = start.communicate(timeout=120)[1]
                except subprocess.TimeoutExpired:
                    start.send_signal(signal.SIGABRT)  # it says where it stands
                    Cluster(name).stop()
                    self.fail(start.communicate(timeout=30)[1])
                self.assertEqual(start.returncode, 130, error)
                self.assertEqual(traces(name), [])

    def test_stop_cleans_up_after_a_start_that_was_killed(self) -> None:
        name = f"k{os.getpid()}"
        for delay in (0, 0.2, 1.5):
            with self.subTest(delay=delay):
                command = [VCLUSTER, "start", "--name", name, "--no-muster"]
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as start:
                    assert start.stdout is not None
                    self.assertIn(name, start.stdout.readline())  # it has begun
                    time.sleep(delay)
                    start.kill()
                self.assertEqual(subprocess.run([VCLUSTER, "stop", "--name", name], check=False).returncode, 0)
                # A node that it had just begun to start finds no cgroups, and ends by itself.
                wait_until(lambda: traces(name) == [], 30, "the last of it to end")

    def test_a_failed_start_shows_the_log_and_leaves_nothing(self) -> None:
        cluster = Cluster(f"f{os.getpid()}", nodes=2, ceph=False, muster=False, plugins=["required /nowhere.so"])
        with self.assertRaisesRegex(ClusterError, "(?s)slurmd on n. has ended.*log.*nowhere.so"):
            cluster.start()
        self.assertEqual(traces(cluster.names.name), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
