#!/usr/bin/python3
"""A gang on the Slurm of another release of Debian loses a process and a node, and finishes in the same job.

Run by hand: `test_series.py SUITE`, such as trixie. Builds the packages for it first. Needs root, and the network for its first run.
"""

import os
import subprocess
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]

from gang_job import USER, GangJob  # noqa: E402
from rack import Rack  # noqa: E402
from vc.names import REPOSITORY  # noqa: E402

SUITE = sys.argv.pop(1) if sys.argv[1:] and not sys.argv[1].startswith("-") else ""
NODES = ["n1", "n2", "n3"]  # n3 is the spare
LOST = "n2"
INSTALL = """\
export DEBIAN_FRONTEND=noninteractive
echo '{source}' >/etc/apt/sources.list.d/muster.list
apt-get -q update
apt-get -q -y install muster muster-train
echo 'store: dir:/srv/checkpoints' >>/etc/muster/muster.yaml
mkdir -p /etc/systemd/system/musterd.service.d
printf '[Service]\\nReadWritePaths=/srv/checkpoints\\n' >/etc/systemd/system/musterd.service.d/store.conf
systemctl daemon-reload
muster node enable-plugin
systemctl enable --now musterd
"""


class GangOnAnotherSlurm(unittest.TestCase):
    rack: Rack

    @classmethod
    def setUpClass(cls) -> None:
        packages = REPOSITORY / "build" / f"packages-{SUITE}"
        subprocess.run([REPOSITORY / "packaging" / "build-in", SUITE], check=True)
        cls.rack = Rack(f"s{os.getpid()}", suite=SUITE, nodes=len(NODES), debs=str(packages))
        cls.addClassCleanup(cls.rack.stop, Path(logs) if (logs := os.environ.get("MUSTER_TEST_LOGS")) else None)
        cls.rack.start(report=print)
        for name in cls.rack.hosts:
            cls.rack.run(name, ["sh", "-ec", INSTALL.format(source=cls.rack.mirror.source)], check=True, timeout=300)

    def test_a_gang_loses_a_process_and_a_node_and_finishes(self) -> None:
        print(self.rack.run("ctl", ["scontrol", "--version"], check=True).stdout, end="")
        job = GangJob(self.rack, NODES)
        job.submit()
        job.wait_for_step(30)
        self.rack.run("n1", ["pkill", "-KILL", "--oldest", "--exact", "muster-train"], check=True)
        job.wait_for_restart()
        first = job.resumed_from()
        job.wait_for_step(first + 40)
        self.rack.kill(LOST)
        job.wait_for_restart(first)
        job.wait_for_end()
        self.assertEqual(job.complaint(generations=3), "", job.evidence())
        print("\n".join(job.muster_lines()))

    def test_a_step_of_one_task_and_a_terminal_are_no_gang_and_a_gang_that_does_not_fit_is_refused(self) -> None:
        steps = "srun -N1 -n1 env; script -qec 'srun --pty env' /dev/null </dev/null; srun -N1 -n2 true || echo refused"
        allocate = ["salloc", "-w", "n1,n3", "--ntasks-per-node=2", "--gang=spares=1"]
        done = self.rack.run("ctl", [*allocate, "bash", "-c", steps], user=USER, check=True, timeout=180)
        self.assertGreaterEqual(done.stdout.count("SLURM_PROCID="), 2, done)
        self.assertNotIn("MUSTER_GANG=", done.stdout)
        self.assertIn("refused", done.stdout.splitlines())
        self.assertIn("write srun --gang=off for no gang, or srun -N2 for a gang", done.stderr)

    def test_a_step_of_a_job_that_has_fewer_nodes_by_now_starts_on_those(self) -> None:
        steps = "scontrol update JobId=$SLURM_JOB_ID NumNodes=1; srun --gang=off bash -c 'echo of $SLURM_NTASKS'"
        allocate = ["salloc", "-w", "n1,n3", "-n4", "--ntasks-per-node=2", "--gang"]
        done = self.rack.run("ctl", [*allocate, "bash", "-c", steps], user=USER, check=True, timeout=180)
        self.assertEqual(done.stdout.splitlines().count("of 2"), 2, done)


if __name__ == "__main__":
    if not SUITE:
        sys.exit(__doc__)
    unittest.main(verbosity=2)
