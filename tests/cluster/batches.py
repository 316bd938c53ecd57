"""What the tests of sbatch jobs that are requeued have in common: a cluster of five nodes, and a look at batch scripts."""

import re

import harness
from harness import SLURM
from vc.names import CONTROLLER
from walkers import WalkerCase, Walkers

OLD_SCRIPT = 'echo "old script went on on $(hostname), run ${SLURM_RESTART_COUNT:-0}, code $code" >> {FILES}/after'


def start(limits: dict[str, str]) -> None:
    settings = {"time_limit_margin": "30s"}
    slurm = {"SlurmdTimeout": "60", "PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
    cluster = harness.start("batchhost", nodes=5, limits=limits, settings=settings, slurm=slurm)
    # A second partition on the same nodes whose jobs may push others out, who are told so some time before.
    conf = cluster.directory / "etc" / "slurm" / "slurm.conf"
    lines = conf.read_text().replace("PartitionName=main", "PartitionName=main GraceTime=30")
    lines += "PartitionName=urgent Nodes=n[1-5] PriorityTier=10 MaxTime=INFINITE State=UP\n"
    conf.write_text(lines + "PartitionName=abrupt Nodes=n[1-5] MaxTime=INFINITE State=UP\n")
    done = cluster.exec(CONTROLLER, ["scontrol", "reconfigure"])
    if done.returncode != 0:
        raise AssertionError(done.stderr)


class BatchCase(WalkerCase):
    def batch_host(self, gang: Walkers) -> str:
        query = ["scontrol", "show", "job", gang.job.id]
        found = re.search(r"BatchHost=(\S+)", self.cluster.exec(CONTROLLER, query).stdout)
        assert found is not None
        return found[1]

    def after(self, gang: Walkers) -> list[str]:
        """What the scripts of all runs have written after their srun."""
        path = gang.job.files / "after"
        return path.read_text().splitlines() if path.exists() else []

    def walk_with_old_script(self) -> tuple[Walkers, int, str]:
        """A gang of six and a spare that runs, its newest checkpoint, and its batch host."""
        gang = self.walk_in_batch("spares=1", nodes=4, after=OLD_SCRIPT)
        gang.started(1, 6)
        return gang, gang.commits(1), self.batch_host(gang)

    def check_requeued(self, gang: Walkers, generation: int, at_least: int, members: int = 6) -> list[harness.Record]:
        records = gang.started(generation, members, SLURM)
        self.assertEqual({r.env["SLURM_RESTART_COUNT"] for r in records}, {"1"})
        gang.check_restored(generation, at_least)
        gang.commits(generation)
        return records
