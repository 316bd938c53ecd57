"""The PyTorch script of the restart benchmark, the same under Muster and under torchrun: it joins its peers, says so in
BENCH_LOG, and waits to be killed."""

import os
import signal
import time

import torch.distributed as distributed

distributed.init_process_group("gloo")  # env://
line = f"joined {os.environ['RANK']} {time.time_ns()}\n"
log = os.open(os.environ["BENCH_LOG"], os.O_WRONLY | os.O_APPEND)
os.write(log, line.encode())
os.close(log)
while True:
    signal.pause()
