#!/usr/bin/python3
"""site.yml makes blank machines a cluster, in which a gang loses a node and finishes. The packages are those of build/packages,
or of the directory that MUSTER_PACKAGES names."""

import os
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]

from gang_job import GangJob  # noqa: E402
from rack import Play, Rack, rack_of_test  # noqa: E402
from vc.names import REPOSITORY  # noqa: E402

PACKAGES = Path(os.environ.get("MUSTER_PACKAGES", REPOSITORY / "build" / "packages"))
NODES = ["n1", "n2", "n3"]


class Site(unittest.TestCase):
    """One rack, which the first play makes a cluster. Each test finds it whole and leaves it whole."""

    rack: Rack

    @classmethod
    def setUpClass(cls) -> None:
        cls.rack = rack_of_test("b", nodes=len(NODES), slurm=False, others=("login",), debs=str(PACKAGES))
        cls.addClassCleanup(cls.rack.stop)
        cls.rack.start()
        cls.rack.playbooks.prepare(
            {"controller": ["ctl"], "login": ["login"], "compute": NODES},
            {
                "muster_apt_source": cls.rack.mirror.source,
                "muster_compute_packages": ["muster", "python3-muster", "muster-train"],
                "muster_config": {"store": "dir:/srv/checkpoints"},
                # A container says that it has all of the host's memory.
                "slurm_node_parameters": {"CPUs": 4, "RealMemory": 4000},
                "slurm_controller_settings": {"SlurmdParameters": "config_overrides", "DefMemPerCPU": 500, "SelectTypeParameters": "CR_CPU_Memory"},
            },
        )
        play = cls.rack.playbooks.play("site")
        if play.code != 0:
            raise AssertionError(play.output)

    def play(self, name: str, *arguments: str) -> Play:
        """One that must end well."""
        play = self.rack.playbooks.play(name, *arguments)
        self.assertEqual(play.code, 0, play.output)
        return play

    def test_a_second_run_changes_nothing(self) -> None:
        for arguments in (["--check", "--diff"], []):
            play = self.play("site", *arguments)
            self.assertEqual(set(play.changed.values()), {0}, play.output)

    def test_a_gang_loses_a_node_and_finishes(self) -> None:
        self.rack.wait_for_idle(NODES)
        job = GangJob(self.rack, NODES)
        job.submit()
        job.wait_for_checkpoint()
        self.rack.kill("n2")
        job.wait_for_restart()
        job.wait_for_end()
        self.assertEqual(job.complaint(), "", job.evidence())
        self.rack.revive("n2")
        self.rack.wait_for_idle(NODES)
        self.play("validate")


if __name__ == "__main__":
    unittest.main(verbosity=2)
