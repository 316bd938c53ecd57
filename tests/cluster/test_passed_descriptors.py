#!/usr/bin/python3
"""What a user passes to musterd, and what takes for ever to be closed, holds nobody up but that user."""

import re
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import PYTHON, SOON, Job  # noqa: E402
from vc.names import SOURCE_IN_NODE  # noqa: E402
from vc.users import USERS  # noqa: E402
from walkers import WalkerCase, Walkers  # noqa: E402

PROGRAMS = f"{SOURCE_IN_NODE}/tests/cluster/programs"
NODE = "n2"
USER = "other"
METRICS = "/run/muster/node.prom"
HELD_S = 600  # longer than any test; then the slow file's server ends, and with it what hangs


def setUpModule() -> None:
    harness.start("passed", nodes=2, ceph=False, limits=harness.RESTARTS, settings={"metrics_file": METRICS})


class PassedDescriptors(WalkerCase):
    def setUp(self) -> None:
        super().setUp()
        self.slow_file = f"/home/{USER}/slow-{self._testMethodName}"
        words = [*PYTHON, f"{PROGRAMS}/slow_file.py", self.slow_file, str(USERS[USER]), str(HELD_S)]
        self.server = self.cluster.popen(NODE, words, stdout=subprocess.PIPE)
        assert self.server.stdout is not None
        self.said = self.server.stdout
        self.addCleanup(self.said.close)
        self.addCleanup(self.let_go)
        self.assertEqual(self.said.readline(), "ready\n")

    def let_go(self) -> None:
        """Ends what hangs."""
        self.server.kill()
        self.server.wait()

    def doors(self) -> list[str]:
        """The state of each process of the door on the node that a musterd before the present one has left."""
        pid = self.cluster.exec(NODE, ["pgrep", "-x", "musterd"]).stdout.strip()
        door = self.cluster.exec(NODE, ["pgrep", "-x", "-P", pid, "muster-door"]).stdout.strip()
        listed = self.cluster.exec(NODE, ["ps", "-C", "muster-door", "-o", "pid=,ppid=,stat="]).stdout.split("\n")
        rows = [line.split() for line in listed if line]
        return [state for pid, parent, state in rows if door not in (pid, parent)]

    def victim(self) -> Walkers:
        gang = self.walk(nodes=2, tasks=4)
        gang.started(1, 4)
        gang.commits(1)
        return gang

    def restarts(self, gang: Walkers, generation: int) -> float:
        """Kills a member on the node, and waits for the next generation; the seconds to its first member."""
        record = next(r for r in gang.job.records(generation) if r.host == NODE)
        killed = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.kill_member(record)
        gang.started(generation + 1, 4)
        gang.commits(generation + 1)
        return min(life.start for life in gang.lives(generation + 1)) - killed

    def longest_turn(self) -> float:
        """Of musterd's main loop since it was started, in seconds: as it writes within the next 15 s."""
        now = time.time()

        def written() -> list[str]:
            listed = self.cluster.exec(NODE, ["find", METRICS, "-newermt", f"@{now}"]).stdout
            return re.findall(r"^muster_node_loop_seconds{} (\S+)$", self.cluster.exec(NODE, ["cat", METRICS]).stdout, re.M) if listed else []

        return float(self.wait(written, "musterd's metrics")[0])

    def holds_nobody_up(self, attack: "Attack") -> None:
        gang = self.victim()
        without = self.restarts(gang, 1)
        before = self.cluster.daemon_pid(NODE, "musterd")
        attack()
        under = self.restarts(gang, 2)
        asked = time.monotonic()
        self.assertEqual(self.muster("status", gang.job.gang, node=NODE).returncode, 0)
        answered = time.monotonic() - asked
        self.assertEqual(self.cluster.daemon_pid(NODE, "musterd"), before, "musterd is the one that it was")

        turn = self.longest_turn()

        killed = time.monotonic()
        self.cluster.stop_daemon(NODE, "musterd", signal.SIGKILL)
        self.cluster.start_daemon(NODE, "musterd")
        back = time.monotonic() - killed
        self.restarts(gang, 3)
        self.assertRegex(self.said.readline(), "closed by", "somebody hangs")
        self.let_go()
        self.wait(lambda: not self.doors(), "the processes that hung to end")
        gang.finish(4)
        status = self.status(gang.job)
        self.assertEqual((status["generation"], status["restarts"]), (4, 3), "only the killed members' faults")
        print(
            f"a gang's restart took {under * 1e3:.0f} ms, without the attack {without * 1e3:.0f} ms; muster status"
            f" {answered * 1e3:.0f} ms; the longest turn of musterd's loop {turn * 1e3:.0f} ms; musterd was killed and is back after {back:.2f} s"
        )

    def test_of_a_stranger(self) -> None:
        def attack() -> None:
            words = [*PYTHON[:1], f"{PROGRAMS}/passing.py", self.slow_file]
            stranger = self.cluster.popen(NODE, words, USER, stdout=subprocess.PIPE)
            self.addCleanup(stranger.communicate)
            self.addCleanup(stranger.kill)
            assert stranger.stdout is not None
            self.assertEqual(stranger.stdout.readline(), "passed\n")

        self.holds_nobody_up(attack)

    def test_of_a_member(self) -> None:
        def attack() -> None:
            code = f'import sys; sys.path.insert(0, "{PROGRAMS}"); from passing import *\n'
            code += f'kept = of_member("{self.slow_file}")\nrecord()\nuntil_released()'
            job = self.gang(code, nodes=1, tasks=1, user=USER, options=(f"--nodelist={NODE}",))
            job.wait_for_generation(1, 1)
            # What still has its file open hangs when it ends.
            self.addCleanup(self.let_go)

        self.holds_nobody_up(attack)


if __name__ == "__main__":
    unittest.main(verbosity=2)
