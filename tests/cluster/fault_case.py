"""What the tests of checkpoints under faults have in common: a cluster of three nodes with Ceph, and a look at checkpoints."""

import harness
from harness import ClusterCase, Job

# The gang's nodes: srun runs on ctl, the coordinator is the step's second node.
COORDINATOR, OTHER = "n2", "n1"
STILL = 1_000_000  # bytes of a member's state that never change, in the tests of shared chunks
KEPT = 3


def start() -> None:
    # From the store, always: what is damaged there is to be found. test_recovery.py has the other ways.
    settings = {"chunk_size": "64KiB", "keep_checkpoints": str(KEPT), "collect_pause": "1s", "recovery_memory": "0", "partner_memory": "0"}
    harness.start("faults", nodes=3, settings=settings)


class FaultCase(ClusterCase):
    def checkpoints(self, job: Job) -> dict[int, dict[str, object]]:
        listed = self.muster_json("checkpoint", "list", job.gang)["checkpoints"]
        return {entry["step"]: entry for entry in listed}

    def verify(self, job: Job, bad: int | None = None) -> str:
        """`muster checkpoint verify` finds this one step bad, and no other; gives its reason."""
        found = self.muster_json("checkpoint", "verify", job.gang, code=0 if bad is None else 1)["checkpoints"]
        self.assertEqual([entry["step"] for entry in found if not entry["verified"]], [] if bad is None else [bad])
        self.assertGreater(len(found), 0)
        reasons = [entry["reason"] for entry in found if not entry["verified"]]
        return str(reasons[0]) if reasons else ""

    def generations(self, job: Job) -> int:
        return int(self.status(job)["generation"])
