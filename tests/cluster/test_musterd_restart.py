#!/usr/bin/python3
"""musterd is killed or restarted on any and on all nodes under a running gang: nothing of the gang is started again, and
checkpoints go on."""

import signal
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from walkers import WalkerCase, Walkers  # noqa: E402

# A user's program that takes whatever of musterd's is free, for as long as its standard input is open.
TAKER = """
import select, socket, sys
kinds = [(socket.SOCK_STREAM, 303), (socket.SOCK_DGRAM, 303), (socket.SOCK_STREAM, 304)]
tries, taken = 0, []
print("begun", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for kind, port in kinds:
        taker = socket.socket(socket.AF_INET, kind)
        try:
            taker.bind(("0.0.0.0", port))
            taken.append(taker)
        except PermissionError:
            taker.close()
    taker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        taker.bind("/run/muster/musterd.sock")
        taken.append(taker)
    except OSError:
        taker.close()
    tries += 1
print(tries, len(taken), flush=True)
"""
HOLDER = """
import socket, sys
holder = socket.create_server(("0.0.0.0", 304))
print("begun", flush=True)
sys.stdin.read()
"""
RESTARTS = 100

NODES = ["n1", "n2", "n3", "n4"]
COORDINATOR = "n2"


def setUpModule() -> None:
    harness.start("restart", nodes=4, ceph=False)


class Restart(WalkerCase):
    def restart(self, gang: Walkers, nodes: list[str], number: int) -> None:
        """Ends musterd on these nodes at once, starts it again, and waits for two checkpoints of the whole gang."""
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(lambda node: self.cluster.stop_daemon(node, "musterd", number), nodes))
            list(pool.map(lambda node: self.cluster.start_daemon(node, "musterd"), nodes))
        gang.commits(1)
        gang.commits(1)

    def check_untouched(self, gang: Walkers, pids: list[int]) -> None:
        self.assertEqual(gang.generation(), 1, "no other generation was started")
        self.assertEqual([r.pid for r in gang.job.records(1)], pids)
        gang.finish(8)
        self.assertEqual([p.read_text() for p in gang.job.files.glob("errors.*")], [], "no save has failed")
        status = self.status(gang.job)
        self.assertEqual((status["generation"], status["restarts"], status["succeeded"]), (1, 0, True))
        self.assertEqual(self.events(gang.job, "fault"), [])
        self.assertEqual(self.muster("checkpoint", "verify", gang.job.gang).returncode, 0)

    def run_rounds(self, rounds: list[list[str]], number: int) -> None:
        gang = self.walk(nodes=4, tasks=8)
        pids = [r.pid for r in gang.started(1, 8)]
        gang.commits(1)
        for nodes in rounds:
            with self.subTest(nodes=nodes, signal=signal.Signals(number).name):
                self.restart(gang, nodes, number)
        self.check_untouched(gang, pids)

    def test_it_is_killed_on_one_node_after_another(self) -> None:
        """Row: musterd dies."""
        self.run_rounds([[node] for node in NODES], signal.SIGKILL)

    def test_it_is_killed_on_all_nodes_at_once(self) -> None:
        """Row: musterd dies."""
        self.run_rounds([NODES] * 3, signal.SIGKILL)

    def test_it_is_restarted_in_order_on_one_node_after_another(self) -> None:
        """Row: musterd dies."""
        self.run_rounds([[node] for node in NODES], signal.SIGTERM)

    def test_it_is_restarted_in_order_on_all_nodes_at_once(self) -> None:
        """Row: musterd dies."""
        self.run_rounds([NODES] * 3, signal.SIGTERM)

    def test_it_is_killed_again_while_the_gang_recovers(self) -> None:
        gang = self.walk(nodes=4, tasks=8)
        pids = [r.pid for r in gang.started(1, 8)]
        gang.commits(1)
        for node in (COORDINATOR, "n1", COORDINATOR, "n3", COORDINATOR):
            self.cluster.stop_daemon(node, "musterd", signal.SIGKILL)
            self.cluster.start_daemon(node, "musterd")
        gang.commits(1)
        gang.commits(1)
        self.check_untouched(gang, pids)

    def test_a_member_that_ends_while_its_musterd_is_away_is_noticed_when_it_is_back(self) -> None:
        gang = self.walk(nodes=4, tasks=8)
        victim = gang.started(1, 8)[0]
        before = gang.commits(1)
        self.cluster.stop_daemon(victim.host, "musterd", signal.SIGKILL)
        self.kill_member(victim)
        self.cluster.start_daemon(victim.host, "musterd")
        gang.started(2, 8)
        gang.check_restored(2, before)
        self.assertIn("was killed by SIGKILL", self.status(gang.job)["first_cause"])
        gang.commits(2)
        gang.finish(8)

    def test_no_user_takes_its_ports_while_it_restarts(self) -> None:
        begun = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with self.cluster.user_popen("n1", ["/usr/bin/python3", "-c", TAKER], **begun) as taker:
            try:
                assert taker.stdout is not None
                self.assertEqual(taker.stdout.readline(), "begun\n")
                for number in [signal.SIGKILL, signal.SIGTERM] * (RESTARTS // 2):
                    self.cluster.stop_daemon("n1", "musterd", number)
                    self.cluster.start_daemon("n1", "musterd")
                tries, taken = taker.communicate(timeout=harness.SOON)[0].split()
            finally:
                taker.kill()
        self.assertGreater(int(tries), RESTARTS)
        self.assertEqual(int(taken), 0)
        gang = self.walk(nodes=4, tasks=8)
        gang.commits(1)
        gang.finish(8)

    def test_it_starts_without_partner_copies_when_their_port_is_taken(self) -> None:
        log = self.cluster.directory / "log" / "n1.musterd.log"
        said = log.stat().st_size
        self.cluster.stop_daemon("n1", "musterd")
        begun = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with self.cluster.popen("n1", ["/usr/bin/python3", "-c", HOLDER], **begun) as holder:
            try:
                assert holder.stdout is not None
                self.assertEqual(holder.stdout.readline(), "begun\n")
                self.cluster.start_daemon("n1", "musterd")
                self.assertIn("no partner copies: ", log.read_text()[said:])
                gang = self.walk(nodes=4, tasks=8)
                gang.commits(1)
                gang.commits(1)
                gang.finish(8)
            finally:
                holder.kill()
        self.cluster.restart_daemon("n1", "musterd")


if __name__ == "__main__":
    unittest.main(verbosity=2)
