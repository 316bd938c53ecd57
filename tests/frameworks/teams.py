"""Gangs of each size whose ranks are processes that stay: forked from one that has imported torch, in a process group."""

import contextlib
import ctypes
import datetime
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_musterd import NO_STEP, FakeMusterd

SECONDS = 120.0  # for one answer of a rank
_PR_SET_PDEATHSIG = 1
_FORK = multiprocessing.get_context("fork")
Work = Callable[[Any], Any]


class Hung(Exception):
    """A rank does not answer, so that none of its gang goes on."""


class Team:
    """The gang of `size` ranks. Make all teams before one is started: a fork is to have one thread."""

    def __init__(self, size: int, directory: Path, work: Work, ready: Callable[[int], None]) -> None:
        self.size = size
        self._directory = directory
        self._ends: list[Any] = []
        self._processes = []
        for rank in range(size):
            here, there = _FORK.Pipe()
            process = _FORK.Process(target=self._rank, args=(rank, there, work, ready), daemon=True)
            process.start()
            there.close()
            self._ends.append(here)
            self._processes.append(process)
        self.musterds: list[FakeMusterd] = []

    def start(self) -> None:
        self.musterds = [FakeMusterd(self._socket(rank), self.size) for rank in range(self.size)]
        for musterd in self.musterds:
            musterd.peers = self.musterds

    def stop(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.send(None)
        for process in self._processes:
            process.join(10)
            process.kill()
            process.join()
        for musterd in self.musterds:
            musterd.stop()

    def ask(self, what: Any) -> list[Any]:
        """What the ranks answer."""
        for end in self._ends:
            end.send(what)
        deadline = time.monotonic() + SECONDS
        answers = []
        for rank, end in enumerate(self._ends):
            if not end.poll(max(0.0, deadline - time.monotonic())):
                raise Hung(f"rank {rank} of {self.size} has not answered")
            try:
                answers.append(end.recv())
            except EOFError:
                raise Hung(f"rank {rank} of {self.size} has died") from None
        return answers

    def checkpoints(self) -> dict[int, list[bytes]]:
        """Those that all ranks have saved."""
        steps = set.intersection(*(set(musterd.shards) for musterd in self.musterds))
        return {step: [musterd.shards[step] for musterd in self.musterds] for step in steps}

    def hold(self, checkpoints: dict[int, list[bytes]]) -> None:
        """From here on the gang starts from the newest of these, and has no others."""
        for musterd in self.musterds:
            musterd.shards = {}
            musterd.others = checkpoints
            musterd.restore_step = max(checkpoints, default=NO_STEP)

    def _socket(self, rank: int) -> str:
        return str(self._directory / f"{self.size}-{rank}")

    def _rank(self, rank: int, end: Any, work: Work, ready: Callable[[int], None]) -> None:
        import torch
        from torch import distributed

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.environ |= {
            "MUSTER_GANG": "7.0",
            "MUSTER_GENERATION": "4",
            "RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "MUSTER_TOKEN": "00" * 16,
            "MUSTER_SOCKET": self._socket(rank),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        torch.set_num_threads(1)
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{self._directory}/group-{self.size}",
            rank=rank,
            world_size=self.size,
            timeout=datetime.timedelta(seconds=SECONDS / 2),
        )
        ready(self.size)
        while (what := end.recv()) is not None:
            try:
                answer = work(what)
            except BaseException as why:  # CheckpointException of torch is no Exception
                answer = [f"rank {rank}: {why!r}\n{traceback.format_exc()}"]
            end.send(answer)
        sys.stdout.flush()
        os._exit(0)
