"""The PyTorch member of the checkpoint benchmark: torch_saver.py DIRECTORY BYTES ROUNDS.

Saves a state of 16 tensors with Muster, with torch.save to a file, and with PyTorch's distributed checkpoint to a directory,
one after another in each round, and prints "KIND NS" lines: KIND_stall is how long the program waited, KIND_total until the
checkpoint was whole. Ends with code 7; the next generation restores each, KIND_restore, and ends with 0. Muster and PyTorch's
distributed checkpoint restore into tensors that are there; muster_new_restore is the one restore of a program that has none yet.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import muster
import torch
from torch import distributed
from torch.distributed import checkpoint as dcp

TENSORS = 16
AGAIN = 7


def timed(kind: str, work: Callable[[], Any], since: int | None = None) -> Any:
    since = since or time.monotonic_ns()
    done = work()
    print(kind, time.monotonic_ns() - since, flush=True)
    return done


def save(gang: muster.Gang, state: dict[str, torch.Tensor], directory: Path, rounds: int) -> None:
    for step in range(1, rounds + 2):
        for tensor in state.values():
            tensor += step
        # The first round maps memory and makes files that are there from then on.
        first = "first_" if step == 1 else ""
        since = time.monotonic_ns()
        timed(f"{first}muster_stall", lambda: gang.save(state, step))
        timed(f"{first}muster_total", lambda: gang.wait(step), since)
        timed(f"{first}torch_save_stall", lambda: torch.save(state, directory / "state.pt"))
        timed(f"{first}dcp_stall", lambda: dcp.save(state, storage_writer=dcp.FileSystemWriter(directory / "dcp")))


def restore(gang: muster.Gang, state: dict[str, torch.Tensor], directory: Path, rounds: int) -> None:
    # Whether an allocator gives memory out again, or asks the kernel for more, would decide the figure.
    whole, _ = timed("muster_new_restore", lambda: gang.restore())
    ours = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    for number in range(rounds + 1):
        first = "first_" if number == 0 else ""
        timed(f"{first}muster_restore", lambda: gang.restore(into=ours))
        file = timed(f"{first}torch_save_restore", lambda: torch.load(directory / "state.pt"))
        timed(f"{first}dcp_restore", lambda: dcp.load(state, storage_reader=dcp.FileSystemReader(directory / "dcp")))
        for name, tensor in state.items():
            if not (torch.equal(ours[name], tensor) and torch.equal(file[name], tensor)):
                sys.exit(f"torch_saver.py: {name} is not what was saved")


def main(directory: Path, size: int, rounds: int) -> int:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    with muster.init() as gang:
        state = {f"layer{i}": torch.rand(size // TENSORS // 4) for i in range(TENSORS)}
        if gang.generation == 1:
            save(gang, state, directory, rounds)
            return AGAIN
        restore(gang, state, directory, rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
