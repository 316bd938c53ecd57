#!/usr/bin/python3
"""Five hundred checkpoints in a row: nothing that musterd, the members or the store hold grows with them; the figures are in the
output."""

import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import ClusterCase, Job, report  # noqa: E402
from pool import Rados  # noqa: E402
from vc.names import BUILD_IN_NODE  # noqa: E402

LOOKS = (100, 200, 300, 400, 500)  # allocators and caches are filled when the first one comes
MEMBERS, NODES, KEPT = 4, 2, 3
STILL, MOVING, CHUNK = 300_000, 200_000, 64 * 1024

CODE = f"""
sys.path.insert(0, "{BUILD_IN_NODE}/python")
import muster
still = bytes([rank]) * {STILL}
with muster.init() as gang:
    for step in range(1, {LOOKS[-1]} + 1):
        gang.save({{"still": still, "moving": bytes([step % 251, rank]) * {MOVING // 2}}}, step)
        gang.wait(step)
        gang.step(step)
        if step == 1:
            record()
        if step in {LOOKS}:
            open(path(f"at.{{step}}.{{rank}}"), "w").close()
            until(lambda: os.path.exists(path(f"go.{{step}}")))
"""

# In a node: what musterd and the members hold. Of memory their own; the shared staging memory is counted as memfds.
LOOK = r"""
look() {
    echo "$1_descriptors $(ls /proc/$2/fd | wc -l)"
    echo "$1_memfds $(ls -l /proc/$2/fd | grep -c memfd:)"
    echo "$1_threads $(ls /proc/$2/task | wc -l)"
    echo "$1_anonymous_kb $(awk '/RssAnon/ {print $2}' /proc/$2/status)"
}
look musterd "$(pgrep -x musterd)"
for pid in PIDS; do look member "$pid"; done
"""

# How much more there may be after the first look. Memory: what allocators keep, and the history of events, which is full at 500;
# most of that comes before the third look.
ALLOWED = {"musterd_anonymous_kb": 8192, "member_anonymous_kb": 1024, "musterd_threads": 4, "musterd_descriptors": 8}
LATER_KB = 2048
# What changes of those that are kept, and what stays once, or a few times.
OWN = -(-(MOVING + CHUNK) // CHUNK) + 1
MOST_OBJECTS = MEMBERS * (KEPT * (OWN + 1) + -(-STILL // CHUNK)) + KEPT


def setUpModule() -> None:
    harness.start("manyckpt", nodes=NODES, settings={"keep_checkpoints": str(KEPT), "chunk_size": "64KiB"})


class ManyCheckpoints(ClusterCase):
    def look(self, job: Job) -> dict[str, int]:
        """What all nodes hold, by node and name, and the store."""
        held: dict[str, int] = {}
        for node in self.cluster.compute_nodes:
            pids = " ".join(str(record.pid) for record in job.records(1) if record.host == node)
            done = self.cluster.exec(node, ["bash", "-c", LOOK.replace("PIDS", pids)])
            self.assertEqual(done.returncode, 0, done.stderr)
            for line in done.stdout.splitlines():
                name, value = line.split()
                held[f"{node} {name}"] = held.get(f"{node} {name}", 0) + int(value)
        return held | {"store objects": self.objects(job)}

    def objects(self, job: Job) -> int:
        return len(Rados(self.cluster, "trainer").list(f"data/{job.key}/"))

    def test_five_hundred_checkpoints_in_a_row_leave_nothing_behind(self) -> None:
        job = self.gang(CODE, nodes=NODES, tasks=MEMBERS)
        looks = []
        for step in LOOKS:
            for rank in range(MEMBERS):
                job.wait_for_file(f"at.{step}.{rank}", timeout=harness.SOON * 4)
            # What the last commits have replaced is removed beside them.
            self.wait(lambda: self.objects(job) <= MOST_OBJECTS, "old checkpoints' objects to be removed")
            looks.append(self.look(job))
            (job.files / f"go.{step}").touch()
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(self.event_texts(job, "checkpoint_failed"), [])
        self.muster_json("checkpoint", "verify", job.gang)

        report(f"after {', '.join(map(str, LOOKS))} checkpoints of {MEMBERS} members:")
        for name in looks[0]:
            report(f"{name:28}" + " ".join(f"{look[name]:8}" for look in looks))
        for name, first in looks[0].items():
            allowed = first + ALLOWED.get(name.split()[1], 0)
            if name == "store objects":
                allowed = MOST_OBJECTS
            values = [look[name] for look in looks]
            self.assertLessEqual(max(values), allowed, f"{name}: {values}")
            if name.endswith("anonymous_kb"):
                self.assertLessEqual(values[-1], values[2] + LATER_KB, f"{name}: {values}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
