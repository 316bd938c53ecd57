#!/usr/bin/python3
"""muster-train on CUDA devices in a gang: its state goes from the device's memory into checkpoints, and back after a fault.

Driver, cuBLAS and NCCL are stand-ins for machines without a GPU (tests/unit/net/stand_in_*.cc).
"""

import json
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import PROGRAMS, ClusterCase, Job  # noqa: E402

MEMBERS = 3
LAST = 60
# In the first generation rank 1 stands still at its operation FAULT, so that the checkpoints before it can be waited for.
PROGRAM = """
if [ "$MUSTER_GENERATION.$RANK" = 1.1 ]; then export MUSTER_STAND_IN_NCCL=operation-hangs=$FAULT; fi
export LD_LIBRARY_PATH=@:$LD_LIBRARY_PATH
exec muster-train --device=cuda --collectives=nccl --text /usr/share/common-licenses/GPL-3 --width 16 --depth 1 --heads 2 \\
    --context 16 --batch 2 --checkpoint-every 10 --log-every 10 --steps # --params-out "$FILES/params"
""".replace("@", f"{PROGRAMS}/stand_in_nccl").replace("#", str(LAST))


def setUpModule() -> None:
    harness.start("cuda", nodes=2, ceph=False)


class CudaTrainer(ClusterCase):
    def train(self, fault: int) -> Job:
        return self.srun(["sh", "-c", f"FILES={{FILES}} FAULT={fault}{PROGRAM}"], nodes=1, tasks=MEMBERS, options=("--nodelist=n1",))

    def test_a_lost_member_costs_no_bit(self) -> None:
        clean = self.train(fault=0)
        self.assertEqual(clean.wait(), 0, clean.err)
        self.assertRegex(clean.out, rf"step {LAST} loss")

        faulty = self.train(fault=LAST - 20)
        self.wait(lambda: self.steps(faulty), "a committed checkpoint")
        self.assertTrue(faulty.running(), faulty.err)
        self.assertNotIn(f"step {LAST} loss", faulty.out)
        self.assertEqual(self.cluster.exec("n1", ["pkill", "-KILL", "-o", "muster-train"]).returncode, 0)
        self.assertEqual(faulty.wait(), 0, faulty.err)
        self.assertIn("generation 2 runs", faulty.err)
        self.assertRegex(faulty.out, r"resumed from step [1-3]0")
        self.assertEqual((faulty.files / "params").read_bytes(), (clean.files / "params").read_bytes())

    def steps(self, job: Job) -> list[int]:
        done = self.muster("checkpoint", "list", job.gang, "--json") if job.gang else None
        if done is None or done.returncode != 0:
            return []
        listed: list[int] = [item["step"] for item in json.loads(done.stdout)["checkpoints"]]
        return listed


if __name__ == "__main__":
    unittest.main(verbosity=2)
