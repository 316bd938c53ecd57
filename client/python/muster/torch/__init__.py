"""PyTorch states in Muster's checkpoints, restored by a gang of any size; no tensor is pickled. torch 2.4 or newer.

Plain, by all members together:

    muster.torch.save(gang, {"model": model.state_dict(), "step": step}, step)
    found = muster.torch.load(gang, into={"model": model.state_dict()})     # its state and step, or None

With PyTorch's distributed checkpoint (torch.distributed.checkpoint, dcp):

    dcp.save(state, storage_writer=muster.torch.StorageWriter(gang, step))
    dcp.load(state, storage_reader=muster.torch.StorageReader(gang))

With planner=muster.torch.SavePlanner() and LoadPlanner() what is not a tensor is not pickled either, where JSON can say it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

if tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 4):
    raise ImportError(f"muster.torch needs torch 2.4 or newer, and this is {torch.__version__}; muster alone takes any")

from ._together import load, save

__all__ = ["LoadPlanner", "SavePlanner", "StorageReader", "StorageWriter", "load", "save"]


def __getattr__(name: str) -> Any:
    # Not before they are asked for: importing PyTorch's module takes a while, and not every build of PyTorch has it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("._dcp" if name.startswith("Storage") else "._planners", __name__), name)
