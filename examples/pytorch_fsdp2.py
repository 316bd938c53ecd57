#!/usr/bin/env python3
"""Trains a small language model of bytes with PyTorch's FSDP2, with checkpoints by PyTorch's DCP. PyTorch 2.6 or newer.

    srun --gang=min=4 --nodes=2 --ntasks-per-node=8 python3 examples/pytorch_fsdp2.py --text /usr/share/common-licenses/GPL-3

Each rank saves its parts of the parameters and of the optimizer's state, while it trains on. A gang of another size resumes from them.
"""
import argparse
import gc

import muster.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--text", required=True, help="the file to learn")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
parser.add_argument("--log-every", type=int, default=10, metavar="STEPS")
parser.add_argument("--checkpoints", help="the directory for them, without Muster")
options = parser.parse_args()
text = torch.frombuffer(bytearray(open(options.text, "rb").read()), dtype=torch.uint8).long()

dist.init_process_group("gloo")  # Muster sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun does
gang = muster.init(fallback="local", directory=options.checkpoints)
torch.manual_seed(1)
model = nn.Sequential(nn.Embedding(256, 16), nn.Flatten(), nn.Linear(16 * 32, 128), nn.GELU(), nn.Linear(128, 256))
fully_shard(model[2])
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
first, loss = gang.restore_step or 0, None
if first:
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.load(state, storage_reader=muster.torch.StorageReader(gang))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
print(f"rank {gang.rank} of {gang.world_size} {'resumed from' if first else 'begins at'} step {first}", flush=True)
for step in range(first + 1, options.steps + 1):
    drawn = torch.Generator().manual_seed(step * gang.world_size + gang.rank)
    windows = text[torch.randint(len(text) - 32, (32, 1), generator=drawn) + torch.arange(33)]
    loss = nn.functional.cross_entropy(model(windows[:, :-1]), windows[:, -1])
    wish = gang.step(step)  # the same on all ranks; before they wait for each other
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if gang.rank == 0 and step % options.log_every == 0:
        print(f"step {step} loss {loss.item():.6f}", flush=True)
    if wish.save or step % options.checkpoint_every == 0 or step == options.steps:
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        dcp.save(state, storage_writer=muster.torch.StorageWriter(gang, step))
    if wish.exit:
        break
gang.wait()  # until the newest checkpoint is in the store
del model, optimizer, loss
gc.collect()  # Gloo's threads let their tensors go meanwhile: without that a process may abort as it ends
dist.destroy_process_group()
