"""A member whose state has every kind of leaf: stateful.py DIRECTORY save|check [STEP].

save makes the state that follows from the rank, saves it as STEP, and waits until that is committed. check restores, and
compares with that state, type by type and bit by bit. Each then writes DIRECTORY/MODE.RANK: the step.
"""

import os
import sys
from collections import OrderedDict

import numpy
import torch

import muster

directory, mode = sys.argv[1:3]
rank = int(os.environ["RANK"])


def make():
    generator = torch.Generator().manual_seed(1000 + rank)

    def random(*shape):
        return torch.rand(shape, generator=generator)

    floats = {str(t).removeprefix("torch."): random(3, 5).to(t) for t in (torch.float64, torch.float16, torch.bfloat16)}
    integers = [(random(7) * 100).to(t) for t in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)]
    return {
        "model": OrderedDict([("layers.0.weight", random(300, 70)), ("layers.0.bias", random(70)), ("empty", random(0, 4))]),
        "floats": floats,
        "integers": integers,
        "mask": random(9) > 0.5,
        "complex": torch.view_as_complex(random(4, 2)),
        "numpy": (numpy.arange(12, dtype=">i4").reshape(3, 4), numpy.float32(rank + 0.5), numpy.array(["ä", "bc"])),
        "plain": {"step": 3, 7: None, (1, "x"): True, "nan": float("inf"), "text": "snow \u2603\n", "raw": b"\x00\xff" * 33},
        "a.b": b"first",
        "a": {"b": b"second"},
    }


def same(mine, given):
    if type(mine) is not type(given):
        return False
    if isinstance(mine, torch.Tensor):
        alike = mine.dtype == given.dtype and mine.shape == given.shape
        return alike and mine.numpy(force=True).tobytes() == given.numpy(force=True).tobytes() if mine.dtype != torch.bfloat16 \
            else alike and torch.equal(mine.view(torch.int16), given.view(torch.int16))
    if isinstance(mine, (numpy.ndarray, numpy.generic)):
        return mine.dtype == given.dtype and mine.shape == given.shape and mine.tobytes() == given.tobytes()
    if isinstance(mine, dict):
        return list(mine) == list(given) and all(same(mine[key], given[key]) for key in mine)
    if isinstance(mine, (list, tuple)):
        return len(mine) == len(given) and all(map(same, mine, given))
    return mine == given


with muster.init() as gang:
    if mode == "save":
        step = int(sys.argv[3])
        gang.save(make(), step)
        gang.wait(step)
    else:
        found = gang.restore()
        if found is None:
            sys.exit("there is nothing to restore")
        state, step = found
        if not same(make(), state):
            sys.exit(f"the state of step {step} is another one")
with open(os.path.join(directory, f"{mode}.{rank}"), "w", encoding="utf-8") as file:
    file.write(f"{step}\n")
