#!/usr/bin/python3
"""Gangs that save parts of tensors on Ceph, and go on with another number of members: by slices, and with PyTorch."""

import json
import sys
import unittest
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import SLURM, SOON, ClusterCase, Job  # noqa: E402
from lives import set_target  # noqa: E402
from pool import Rados  # noqa: E402
from vc.names import FRAMEWORKS_PYTHON, SOURCE_IN_NODE  # noqa: E402
from walkers import WalkerCase  # noqa: E402

PROGRAMS = f"{SOURCE_IN_NODE}/tests/cluster/programs"
ROWS, COLUMNS = 60, 40  # of programs/slicer.py


def setUpModule() -> None:
    harness.start("slices", nodes=4, limits=harness.RESTARTS)


class Slices(WalkerCase):
    PROGRAM = ["/usr/bin/python3", f"{PROGRAMS}/slicer.py", "{FILES}"]

    def test_four_members_lose_a_node_and_three_go_on_with_every_number(self) -> None:
        gang = self.walk("min=3", nodes=4, tasks=4)
        gang.started(1, 4)
        before = gang.commits(1)
        self.cluster.kill("n3")
        records = gang.started(2, 3, SLURM)
        self.assertEqual([r.host for r in records], ["n1", "n2", "n4"])
        gang.check_restored(2, before)
        self.assertGreater(records[0].said["from"], 0)
        gang.commits(2)
        target = gang.end(3, timeout=SLURM)
        # Each number after so many steps, from all members' rows.
        rows: dict[int, list[int]] = {}
        for rank in range(3):
            final = json.loads((gang.job.files / f"final.{rank}").read_text())
            self.assertEqual((final["world"], final["step"]), (3, target))
            rows.update({final["first"] + i: row for i, row in enumerate(final["rows"])})
        self.assertEqual(sorted(rows), list(range(ROWS)))
        for row, numbers in rows.items():
            places = [row * 1000 + column for column in range(COLUMNS)]
            self.assertEqual(numbers, [place * 2654435761 + target * 40503 for place in places])

    def test_a_damaged_chunk_of_a_slice_sends_the_gang_to_the_checkpoint_before(self) -> None:
        gang = self.walk(nodes=2, tasks=2)
        gang.started(1, 2)
        before = gang.commits(1)
        target = before + 300
        set_target(gang.job.files, target)
        self.wait(lambda: [life.committed for life in gang.lives(1)] == [target] * 2, "the last step")
        rados = Rados(self.cluster, "trainer")
        rados.flip(rados.list(f"data/{gang.job.key}/{target}.")[0])
        self.kill_member(gang.job.records(1)[1])
        records = gang.started(3, 2)
        self.assertEqual({record.said["from"] for record in records}, {target - 5})
        bad = self.event_texts(gang.job, "checkpoint_bad")
        self.assertEqual(len(bad), 1, bad)
        self.assertRegex(bad[0], rf"the checkpoint of step {target} does not verify: .* has digest ")
        # The step is made, saved and committed once more.
        self.assertGreater(gang.end(2), target)


class Torch(ClusterCase):
    def member(self, what: str, members: int) -> tuple[Job, list[Any]]:
        words = [FRAMEWORKS_PYTHON, f"{PROGRAMS}/dcp_member.py", "{FILES}", what]
        job = self.srun(words, "name=dcp", nodes=members, tasks=members, env={"OMP_NUM_THREADS": "1"})
        self.assertEqual(job.wait(SOON * 3), 0, job.err)
        return job, [json.loads((job.files / f"done.{rank}").read_text()) for rank in range(members)]

    def test_distributed_checkpoints_of_three_are_loaded_by_two_and_by_four(self) -> None:
        _, said = self.member("save", 3)
        self.assertEqual(said, [{"committed": 10, "world": 3}] * 3)
        for members in (2, 4):
            with self.subTest(members=members):
                _, said = self.member("load", members)
                for rank, one in enumerate(said):
                    self.assertEqual(one["dcp"], [True, True, 3, ["a", "b"]])
                    self.assertEqual(one["plain"], [True, True, 3])
                    self.assertEqual((one["whole"], one["step"]), (True, 20))
                    self.assertEqual(one["mine"], [rank * 3 // members], "that of the member in this one's place")


if __name__ == "__main__":
    unittest.main(verbosity=2)
