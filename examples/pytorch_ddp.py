#!/usr/bin/env python3
"""Trains a small language model of bytes with PyTorch's DistributedDataParallel.

    srun --gang --nodes=2 --ntasks-per-node=8 python3 examples/pytorch_ddp.py --text /usr/share/common-licenses/GPL-3

Without Muster: torchrun --nproc-per-node=2 examples/pytorch_ddp.py --checkpoints DIRECTORY --text ...
"""
import argparse
import gc
import os

os.environ |= {"GLOG_minloglevel": "2", "TORCH_CPP_LOG_LEVEL": "ERROR"}  # no warning about find_unused_parameters, which is meant
import muster
import torch
import torch.distributed as dist
import torch.distributed.nn  # DDP imports it, and it keeps for ever a process group that is there by then
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--text", required=True, help="the file to learn")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
parser.add_argument("--log-every", type=int, default=10, metavar="STEPS")
parser.add_argument("--width", type=int, default=128, help="of the hidden layers (default: %(default)s)")
parser.add_argument("--params-out", default="/dev/null", help="the file for the final parameters")
parser.add_argument("--checkpoints", help="the directory for them, without Muster")
options = parser.parse_args()
text = torch.frombuffer(bytearray(open(options.text, "rb").read()), dtype=torch.uint8).long()

dist.init_process_group("gloo")  # Muster sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun does
gang = muster.init(fallback="local", directory=options.checkpoints)
torch.set_num_threads(1)
torch.manual_seed(1)
hidden = [nn.Linear(16 * 32, options.width), nn.GELU(), nn.Linear(options.width, options.width), nn.GELU()]
model = nn.Sequential(nn.Embedding(256, 16), nn.Flatten(), *hidden, nn.Linear(options.width, 256))
parallel = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)  # else a start changes the order of its sums
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
state, first = gang.restore(replicated=True) or (None, 0)
if state:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
print(f"rank {gang.rank} of {gang.world_size} {'resumed from' if state else 'begins at'} step {first}", flush=True)
for step in range(first + 1, options.steps + 1):
    drawn = torch.Generator().manual_seed(step * gang.world_size + gang.rank)
    windows = text[torch.randint(len(text) - 32, (32, 1), generator=drawn) + torch.arange(33)]
    loss = nn.functional.cross_entropy(parallel(windows[:, :-1]), windows[:, -1])
    wish = gang.step(step)  # the same on all ranks; before they wait for each other
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if gang.rank == 0 and step % options.log_every == 0:
        print(f"step {step} loss {loss.item():.6f}", flush=True)
    if wish.save or step % options.checkpoint_every == 0 or step == options.steps:
        gang.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)
    if wish.exit:
        break
gang.wait()  # until the newest checkpoint is in the store
del parallel
gc.collect()  # what holds the group keeps Gloo's threads, which may abort a process that ends
dist.destroy_process_group()
if gang.rank == 0 and gang.committed == options.steps:
    with open(options.params_out, "wb") as file:
        file.writelines(parameter.detach().numpy().tobytes() for parameter in model.parameters())
