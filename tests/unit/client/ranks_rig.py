"""A gang's ranks as processes of their own, each with a musterd of the test's own, in one process group of torch."""

import contextlib
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import muster
import muster.torch
import torch
import torch._dynamo  # which each rank would import by itself at its first DTensor
from fake_musterd import FakeMusterd
from torch import distributed

DEADLINE = 60.0  # seconds; a rank that has not ended by then is killed, and fails its test
_FORK = multiprocessing.get_context("fork")


class RanksCase(unittest.TestCase):
    """run(function) calls function(gang) in each of `ranks` processes, and gives what they give, by rank."""

    ranks = 2

    def setUp(self) -> None:
        torch.set_num_threads(1)  # what a fork may have
        directory = tempfile.TemporaryDirectory(prefix="muster-test-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.musterds: list[FakeMusterd] = []
        self.groups = 0
        self.gang_of(self.ranks)

    def gang_of(self, ranks: int) -> None:
        """From here on the gang has so many members, and starts from the newest checkpoint."""
        before, self.musterds = self.musterds, []
        step = max((step for musterd in before[:1] for step in musterd.shards), default=None)
        for rank in range(ranks):
            musterd = FakeMusterd(self.socket(ranks, rank), ranks)
            self.addCleanup(musterd.stop)
            self.musterds.append(musterd)
            if step is not None:
                musterd.others[step] = [one.shards[step] for one in before]
                musterd.restore_step = step
        for musterd in self.musterds:
            musterd.peers = self.musterds

    def socket(self, ranks: int, rank: int) -> str:
        return str(self.directory / f"{ranks}-{rank}.sock")

    def run_ranks(self, function: Callable[[muster.Gang], Any], grouped: bool = True) -> list[Any]:
        """An exception of a rank is what that rank gives."""
        self.groups += 1
        ends = [_FORK.Pipe(duplex=False) for _ in self.musterds]
        processes = [
            _FORK.Process(target=self._rank, args=(function, rank, send, grouped)) for rank, (_, send) in enumerate(ends)
        ]
        for process in processes:
            process.start()
        for _, send in ends:
            send.close()
        deadline, given = time.monotonic() + DEADLINE, []
        try:
            for rank, (receive, _) in enumerate(ends):
                self.assertTrue(receive.poll(max(0, deadline - time.monotonic())), f"rank {rank} has not ended")
                given.append(pickle.loads(receive.recv_bytes()))
        finally:
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()) if len(given) == len(processes) else 0.0)
                process.kill()
                process.join()
        return given

    def good(self, function: Callable[[muster.Gang], Any]) -> list[Any]:
        """The same where no rank is to fail."""
        given = self.run_ranks(function)
        for rank, one in enumerate(given):
            self.assertNotIsInstance(one, BaseException, f"rank {rank}: {one!r}\n{''.join(getattr(one, '__notes__', []))}")
        return given

    def _rank(self, function: Callable[[muster.Gang], Any], rank: int, send: Any, grouped: bool) -> None:
        world = len(self.musterds)
        os.environ |= {
            "MUSTER_GANG": "7.0",
            "MUSTER_GENERATION": "4",
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MUSTER_TOKEN": "00" * 16,
            "MUSTER_SOCKET": self.socket(world, rank),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        try:
            if grouped:
                store = f"file://{self.directory}/group-{self.groups}"
                distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
            with muster.init() as gang:
                given = function(gang)
        except BaseException as error:  # torch's CheckpointException is no Exception
            error.add_note(traceback.format_exc())
            given = error
        send.send_bytes(pickle.dumps(given))
        send.close()
        with contextlib.suppress(Exception):
            if grouped:
                distributed.barrier()  # none takes the group away while another one is in it
        os._exit(0)
