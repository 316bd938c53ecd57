#!/usr/bin/env python3
"""Trains a small model on bytes with JAX, data parallel over all processes. Each array of the state is saved by one of them.

    srun --gang --nodes=2 --ntasks-per-node=8 python3 examples/jax_train.py --text FILE       (without Muster: --checkpoints DIRECTORY)
"""
import argparse
import hashlib
import os
from pathlib import Path

import jax
import muster
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

parser = argparse.ArgumentParser()
for name, kind, default in ("--text", Path, None), ("--checkpoints", Path, None), ("--steps", int, 200), ("--checkpoint-every", int, 20):
    parser.add_argument(name, type=kind, default=default, required=name == "--text")
options = parser.parse_args()
gang = muster.init(fallback="local", directory=options.checkpoints)
if gang.world_size > 1:  # JAX itself reads JAX_COORDINATOR_ADDRESS, and nothing else that Muster sets
    jax.distributed.initialize(num_processes=gang.world_size, process_id=gang.rank, local_device_ids=[int(os.environ["LOCAL_RANK"])])
mesh = Mesh(np.array(jax.devices()), ("data",))
same, divided = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))


def loss_of(params, batch):
    hidden = jax.nn.gelu(params["embed"][batch[:, :-1]].reshape(len(batch), -1) @ params["in"])
    return -jax.numpy.mean(jax.numpy.take_along_axis(jax.nn.log_softmax(hidden @ params["out"]), batch[:, -1:], axis=1))


@jax.jit(out_shardings=same)
def train(params, momentum, batch):
    loss, gradients = jax.value_and_grad(loss_of)(params, batch)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    return jax.tree.map(lambda p, m: p - 0.05 * m, params, momentum), momentum, loss


draw = np.random.default_rng(1).normal
params = {name: np.float32(draw(0, 0.05, size)) for name, size in {"embed": (256, 16), "in": (16 * 32, 128), "out": (128, 256)}.items()}
state = jax.device_put((params, jax.tree.map(np.zeros_like, params)), same)
(params, momentum), first = gang.restore(into=state) or (state, 0)
if first and gang.rank == 0:
    print(f"rank 0 of {gang.world_size} resumed from step {first}", flush=True)
windows = np.lib.stride_tricks.sliding_window_view(np.fromfile(options.text, np.uint8), 33)
for step in range(first + 1, options.steps + 1):
    mine = windows[np.random.default_rng((step, gang.rank)).integers(len(windows), size=32)]
    params, momentum, loss = train(params, momentum, jax.make_array_from_process_local_data(divided, mine))
    wish = gang.step(step)
    if gang.rank == 0 and step % 5 == 0:
        print(f"step {step} loss {loss:.6f}", flush=True)
    if wish.save or step % options.checkpoint_every == 0 or step == options.steps:
        gang.save((params, momentum), step)
    if wish.exit:
        break
gang.wait()
if gang.rank == 0 and gang.committed == options.steps:
    print("final", hashlib.sha256(b"".join(np.asarray(p).tobytes() for p in jax.tree.leaves(params))).hexdigest(), flush=True)
