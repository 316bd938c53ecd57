#!/usr/bin/python3
"""The coordinator is lost: another one takes over, or the same comes back, and members that nothing has happened to
never notice."""

import json
import os
import signal
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import SLURM, SOON  # noqa: E402
from walkers import WalkerCase, Walkers  # noqa: E402

COORDINATOR, NEXT = "n2", "n3"  # the step's second node, and who takes over from it


def setUpModule() -> None:
    harness.start("coordloss", nodes=6, ceph=False, limits=harness.RESTARTS, settings={"reconnect": "2m"})


class CoordinatorCase(WalkerCase):
    def coordinator(self, gang: Walkers) -> str:
        return str(self.status(gang.job)["coordinator"])

    def coordinators(self, gang: Walkers) -> list[str]:
        """All that the gang has had."""
        return [text.split()[0] for text in self.event_texts(gang.job, "coordinator")]

    def term(self, gang: Walkers) -> int:
        return int(self.status(gang.job)["term"])

    def wait_for_coordinator(self, gang: Walkers, node: str) -> None:
        def found() -> bool:
            gangs = json.loads(self.muster("status", gang.job.gang, "--json").stdout or "{}").get("gangs", [])
            return len(gangs) == 1 and gangs[0]["coordinator"] == node and gangs[0]["live"]

        self.wait(found, f"{node} to coordinate", SOON)


class Node(CoordinatorCase):
    def test_the_coordinators_node_dies(self) -> None:
        """Row: Coordinator's node dies."""
        gang = self.walk("spares=1", nodes=4, tasks=8)
        gang.started(1, 6)
        before = gang.commits(1)
        self.assertEqual(self.coordinator(gang), COORDINATOR)
        self.cluster.kill(COORDINATOR)
        records = gang.started(2, 6)
        self.assertEqual([r.host for r in records], ["n1", "n1", "n4", "n4", "n3", "n3"])
        gang.check_restored(2, before)
        gang.commits(2)
        self.wait_for_coordinator(gang, NEXT)
        self.assertIn("muster: node n2 is lost", self.wait_for_state(COORDINATOR, "down"))
        gang.finish(6, timeout=SLURM)
        self.assertEqual(self.final_state(gang.job), "COMPLETED")

    def test_the_coordinators_node_is_cut_off(self) -> None:
        """Row: Coordinator's node dies."""
        gang = self.walk("spares=1", nodes=4, tasks=8)
        old = [r for r in gang.started(1, 6) if r.host == COORDINATOR]
        before = gang.commits(1)
        self.cluster.cut(COORDINATOR)
        records = gang.started(2, 6)
        self.assertNotIn(COORDINATOR, {r.host for r in records})
        gang.check_generations()
        self.assertEqual([r.pid for r in old if self.alive(r)], [])
        gang.check_restored(2, before)
        gang.commits(2)
        self.wait_for_coordinator(gang, NEXT)
        # Back in the network it finds that it has a successor, and leaves the gang alone.
        self.cluster.heal(COORDINATOR)
        gang.commits(2)
        gang.grows_old(2)
        self.assertEqual(self.member_processes(COORDINATOR, gang.job), [])
        self.assertEqual(self.coordinators(gang), [COORDINATOR, NEXT])
        self.assertEqual(gang.generation(), 2)

    def test_the_coordinators_node_and_another_die_at_once(self) -> None:
        """Row: Coordinator's node dies."""
        gang = self.walk("spares=2", nodes=6, tasks=12)
        gang.started(1, 8)
        before = gang.commits(1)
        self.cluster.kill(COORDINATOR)
        self.cluster.kill("n4")
        # One of them may be noticed before the other: then a generation begins that its members do not all reach.
        newest = self.wait(lambda: max((g for g in (2, 3) if len(gang.job.records(g)) == 8), default=0), "all members")
        records = gang.started(newest, 8)
        self.assertEqual([r.host for r in records], [host for host in ("n1", "n5", "n3", "n6") for _ in range(2)])
        gang.check_restored(newest, before)
        gang.commits(newest)
        gang.finish(8, timeout=SLURM)


class Daemon(CoordinatorCase):
    def check_untouched(self, gang: Walkers) -> None:
        gang.commits(1)
        gang.grows_old(2)
        self.assertEqual(gang.generation(), 1, "nothing has been started again")
        gang.finish(8)
        self.assertEqual(self.status(gang.job)["restarts"], 0)

    def test_only_the_coordinators_musterd_dies_and_comes_back(self) -> None:
        """Row: musterd dies."""
        gang = self.walk(nodes=4, tasks=8)
        gang.started(1, 8)
        gang.commits(1)
        term = self.term(gang)
        self.cluster.stop_daemon(COORDINATOR, "musterd", signal.SIGKILL)
        gang.grows_old(1)
        self.cluster.start_daemon(COORDINATOR, "musterd")
        gang.commits(1)
        self.assertGreater(self.term(gang), term, "who takes over raises the term")
        self.check_untouched(gang)

    def test_only_the_coordinators_musterd_dies_and_stays_away(self) -> None:
        """Row: Coordinator's node dies. Its members run on for `reconnect`, as everybody's do."""
        gang = self.walk(nodes=4, tasks=8)
        gang.started(1, 8)
        gang.commits(1)
        self.cluster.stop_daemon(COORDINATOR, "musterd", signal.SIGKILL)
        self.wait_for_coordinator(gang, NEXT)
        gang.grows_old(1)
        self.assertEqual(gang.generation(), 1, "nothing has been started again")
        self.cluster.start_daemon(COORDINATOR, "musterd")
        self.check_untouched(gang)

    def test_a_coordinator_that_stood_still_is_not_obeyed_when_it_wakes_up(self) -> None:
        """Row: Coordinator's node dies."""
        self.expect_error("the main loop has stood still")  # where the others take longer than its loop may
        gang = self.walk("spares=1", nodes=4, tasks=8)
        old = [r for r in gang.started(1, 6) if r.host == COORDINATOR]
        before = gang.commits(1)
        self.cluster.signal_daemon(COORDINATOR, "musterd", signal.SIGSTOP)
        try:
            records = gang.started(2, 6)
            self.assertNotIn(COORDINATOR, {r.host for r in records})
            gang.check_generations()
            gang.check_restored(2, before)
            self.assertEqual([r.pid for r in old if self.alive(r)], [], "its supervisors have killed its members")
            gang.commits(2)
            self.wait_for_coordinator(gang, NEXT)
        finally:
            self.cluster.signal_daemon(COORDINATOR, "musterd", signal.SIGCONT)
        gang.commits(2)
        gang.grows_old(2)
        self.assertEqual(gang.generation(), 2, "its orders are not obeyed")
        self.assertEqual(self.coordinators(gang), [COORDINATOR, NEXT])
        self.assertEqual(self.member_processes(COORDINATOR, gang.job), [])


class Record(CoordinatorCase):
    def head(self, name: str) -> Path:
        """The file of a gang's record in the directory store."""
        paths = [path for path in self.stored_files() if path.parent.name == "gang" and path.name.startswith(name)]
        self.assertEqual(len(paths), 1, paths)
        return paths[0]

    def spoil(self, name: str, change: str) -> tuple[Path, bytes]:
        """Runs a gang with a name to its end and changes its record; gives the file and what is in it then."""
        gang = self.walk(f"name={name}", nodes=2, tasks=4)
        gang.started(1, 4)
        gang.commits(1)
        gang.finish(4)
        path = self.head(f"name-{name}")
        head = json.loads(path.read_text())
        entries = head.get("entries", head)
        if change == "malformed":
            entries["record"] = "{ this is no record"
        else:
            record = json.loads(entries["record"])
            record["version"] = 99
            entries["record"] = json.dumps(record)
        path.write_text(json.dumps(head))
        return path, path.read_bytes()

    def check_left_alone(self, change: str, text: str) -> None:
        self.expect_error("cannot take its record over")
        name = f"{change}{os.getpid()}"
        path, content = self.spoil(name, change)
        again = self.walk(f"name={name},join=5s", nodes=2, tasks=4)
        self.assertNotEqual(again.job.wait(), 0)
        self.assertIn("cannot take its record over", again.job.err)
        self.assertRegex(again.job.err, text)
        self.assertEqual(again.lives(), [], "nothing has run")
        self.assertEqual(path.read_bytes(), content)

    def test_a_malformed_record_is_reported_and_left_alone(self) -> None:
        self.check_left_alone("malformed", "record")

    def test_a_record_of_a_foreign_version_is_reported_and_left_alone(self) -> None:
        self.check_left_alone("foreign", "version")


if __name__ == "__main__":
    unittest.main(verbosity=2)
