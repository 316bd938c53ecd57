#!/usr/bin/env python3
"""Trains a small language model of bytes with PyTorch's DistributedDataParallel, and survives what kills it.

Under Muster (#SBATCH --gang) every rank saves its part of a checkpoint each --checkpoint-every steps, and a gang that was
started again goes on from the newest one. Without Muster (torchrun, plain srun, one process) it trains all the same and
saves nothing. The run is deterministic: with the same text, options and number of ranks the final parameters are the
same bytes, whatever happened on the way.

    srun python3 examples/pytorch_ddp.py --text /usr/share/common-licenses/GPL-3 --steps 1000
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

# No warnings from torch's C++ side, which reads this when it is loaded (the first one if it was built with glog): the
# one it would give is about find_unused_parameters, which is meant.
os.environ.setdefault("GLOG_minloglevel", "2")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

if TYPE_CHECKING:
    import muster


class ByteModel(nn.Module):
    """Predicts the byte that follows `context` bytes."""

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 16)
        self.layers = nn.Sequential(
            nn.Linear(16 * context, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 256)
        )

    def forward(self, text: Tensor) -> Tensor:
        logits: Tensor = self.layers(self.embed(text).flatten(1))
        return logits


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--text", type=Path, required=True, help="the file to learn")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--log-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--batch", type=int, default=32, help="of each rank (default: %(default)s)")
    parser.add_argument("--context", type=int, default=32, help="bytes (default: %(default)s)")
    parser.add_argument("--width", type=int, default=128, help="of the hidden layers (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--params-out", type=Path, metavar="FILE", help="rank 0 writes the final parameters there")
    return parser.parse_args()


def join_group() -> tuple[int, int]:
    """Muster and torchrun set these variables; plain srun has its own, a single process none."""
    os.environ.setdefault("RANK", os.environ.get("SLURM_PROCID", "0"))
    os.environ.setdefault("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1"))
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def open_gang() -> muster.Gang | None:
    if "MUSTER_GANG" not in os.environ:
        return None
    import muster

    return muster.open()


class Trainer:
    def __init__(self, options: argparse.Namespace, rank: int, gang: muster.Gang | None) -> None:
        self.options = options
        self.rank = rank
        self.gang = gang
        torch.manual_seed(options.seed)
        self.text = torch.frombuffer(bytearray(options.text.read_bytes()), dtype=torch.uint8).long()
        if len(self.text) <= options.context:
            raise SystemExit(f"{options.text} is shorter than the context of {options.context} bytes")
        self.model = ByteModel(options.context, options.width)
        # Each rank draws its own batches: the state of its generator is its own part of the checkpoint.
        self.batches = torch.Generator().manual_seed(options.seed * 1_000_003 + rank)
        self.step = 0
        optimizer_state = self.restore()
        # Gives every rank the parameters of rank 0. After its first step it would sort the gradients anew by their
        # arrival and so add them up in another order, which a resumed run would do one step late and round otherwise;
        # with find_unused_parameters it keeps the order.
        self.parallel = DistributedDataParallel(self.model, find_unused_parameters=True)
        self.optimizer = torch.optim.AdamW(self.parallel.parameters(), lr=1e-3)
        if optimizer_state is not None:
            self.optimizer.load_state_dict(optimizer_state)
        # One tensor for the whole run, and made last so that it goes last: if Gloo's thread had to free it, it would wait
        # for Python's lock, which the end of the process group holds while it waits for that thread (torch 1.13).
        self.wished = torch.zeros(2, dtype=torch.int32)

    def restore(self) -> dict[str, Any] | None:
        """Takes over the newest checkpoint, if there is one; gives the optimizer's state, the same on every rank."""
        found = self.gang.restore_info() if self.gang is not None else None
        if found is None:
            return None
        self.step, members = found
        state: dict[str, Any] = {}
        # A gang that has grown since has ranks that saved nothing; they draw batches from the beginning.
        if self.gang is not None and self.rank < members:
            state, _ = self.gang.restore_shard(self.rank) or ({}, 0)
            self.batches.set_state(state["batches"])
        if self.rank == 0:
            self.model.load_state_dict(state["model"])
        shared = [state.get("optimizer")]
        dist.broadcast_object_list(shared, src=0)
        if self.rank == 0:
            print(f"resumed from step {self.step}", flush=True)
        return shared[0]

    def save(self) -> None:
        if self.gang is None:
            return
        state: dict[str, Any] = {"batches": self.batches.get_state()}
        if self.rank == 0:
            state |= {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        self.gang.save(state, self.step)

    def wishes(self) -> tuple[bool, bool]:
        """Whether to save now, and whether to save and exit: the same answer on every rank, as all must save or none."""
        if self.gang is None:
            return False, False
        self.wished[0], self.wished[1] = self.gang.should_checkpoint(), self.gang.should_exit()
        dist.all_reduce(self.wished, op=dist.ReduceOp.MAX)
        return bool(self.wished[0]), bool(self.wished[1])

    def train_step(self) -> float:
        options = self.options
        starts = torch.randint(len(self.text) - options.context, (options.batch,), generator=self.batches)
        windows = self.text[starts[:, None] + torch.arange(options.context + 1)]
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.parallel(windows[:, :-1]), windows[:, -1])
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return float(loss)

    def run(self) -> None:
        while self.step < self.options.steps:
            loss = self.train_step()
            if self.gang is not None:
                self.gang.progress(self.step)
            if self.rank == 0 and self.step % self.options.log_every == 0:
                print(f"step {self.step} loss {loss:.6f}", flush=True)
            save, leave = self.wishes()
            if save or leave or self.step % self.options.checkpoint_every == 0 or self.step == self.options.steps:
                self.save()
            if leave:
                break

    def finish(self) -> None:
        if self.rank == 0 and self.step == self.options.steps:
            self.write_parameters()
        if self.gang is None or self.gang.committed == self.step:
            return
        import muster

        try:
            self.gang.wait()
        except muster.MusterError as why:
            print(f"rank {self.rank}: the last checkpoint: {why}", file=sys.stderr)

    def write_parameters(self) -> None:
        parameters = b"".join(p.detach().numpy().tobytes() for p in self.model.parameters())
        if self.options.params_out is not None:
            self.options.params_out.write_bytes(parameters)
        print(f"parameters sha256 {hashlib.sha256(parameters).hexdigest()}", flush=True)


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rank, world_size = join_group()
    gang = open_gang()
    if rank == 0:
        print(f"training on {world_size} ranks{'' if gang else ', without Muster'}", flush=True)
    trainer = Trainer(options, rank, gang)
    trainer.run()
    trainer.finish()
    if gang is not None:
        gang.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
