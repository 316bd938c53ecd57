"""The program of the recovery benchmark, the same for Muster and for its peers: PyTorch's DDP over Gloo on CPUs, with Muster's
steps and 64 MiB of state a rank. It notes when it has imported, joined its peers, its state again, made its first optimizer step, and a
checkpoint of this generation."""

import os
import time

from recovery_marks import SAVED_AFTER, note  # first: it notes that the program has begun

import muster
import torch
import torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel

note("imported")
STATE = 64 << 20
gang = muster.init(fallback="local", directory=os.environ.get("BENCH_CHECKPOINTS"))
torch.set_num_threads(1)
distributed.init_process_group("gloo")
note("joined")
torch.manual_seed(17)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)))
optimizer = torch.optim.AdamW(model.parameters())
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "more": torch.empty(STATE, dtype=torch.uint8)}
note("built")
began = 0
if (found := gang.restore(into=state)) is not None:  # it fills the tensors
    state, began = found
    optimizer.load_state_dict(state["optimizer"])
note("restored")
step, saved = began, False
while True:
    step += 1
    optimizer.zero_grad()
    model(torch.full((16, 64), float(distributed.get_rank()))).square().mean().backward()
    optimizer.step()
    if step == began + 1:
        note("stepped")
    gang.step(step)
    if step == began + SAVED_AFTER:
        gang.save(state | {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)
    if not saved and (gang.committed or 0) >= began + SAVED_AFTER:
        saved = True
        note("saved")
    time.sleep(0.025 * gang.world_size)  # as steps on GPUs leave the processors
