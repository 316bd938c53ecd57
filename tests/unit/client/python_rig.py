"""A musterd of the test's own and the environment of a member, for tests of the Python package."""

import os
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import muster
from fake_musterd import FakeMusterd


class MemberCase(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="muster-test-")
        self.addCleanup(directory.cleanup)
        self.socket = path = str(Path(directory.name) / "musterd.sock")
        self.musterd = FakeMusterd(path)
        self.addCleanup(self.musterd.stop)
        environment = {
            "MUSTER_GANG": "7.0",
            "MUSTER_GENERATION": "4",
            "RANK": "1",
            "MUSTER_TOKEN": "00" * 16,
            "MUSTER_SOCKET": path,
        }
        os.environ.update(environment)
        self.addCleanup(lambda: [os.environ.pop(name, None) for name in environment])

    def save_as_gang_of(self, members: int, save: Callable[[muster.Gang, int], Any]) -> None:
        """The checkpoint of step 20, as so many members would have saved it: save(gang, step) is called for each rank."""
        shards = []
        for rank in range(members):
            self.musterd.world_size = members
            os.environ["RANK"] = str(rank)
            with muster.init() as gang:
                save(gang, 1)
                gang.wait(timeout=10)
                shards.append(self.musterd.shards.pop(1))
        os.environ["RANK"] = "1"
        self.musterd.world_size = 2
        self.musterd.others[20] = shards
        self.musterd.restore_step = 20
