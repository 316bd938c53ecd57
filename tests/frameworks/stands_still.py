"""In the first generation the last rank stands still before step 12. The others' collective times out, which ends them."""

import datetime
import time

import muster
import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
gang = muster.init()
for step in range(1, 21):
    if gang.generation == 1 and step == 12 and gang.rank == gang.world_size - 1:
        time.sleep(3600)
    gang.step(step)
    dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
