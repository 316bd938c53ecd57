"""PyTorch states in Muster's checkpoints, restored by a gang of any size; no tensor is pickled.

Plain:

    muster.torch.save(gang, {"model": model.state_dict(), "step": step}, step)
    found = muster.torch.load(gang, into={"model": model.state_dict()})     # (state, step), or None

With PyTorch's distributed checkpoint (torch.distributed.checkpoint; torch.distributed._shard.checkpoint in torch 1.13):

    dcp.save(state, storage_writer=muster.torch.StorageWriter(gang, step))
    dcp.load(state, storage_reader=muster.torch.StorageReader(gang))

With planner=muster.torch.SavePlanner() and LoadPlanner() what is not a tensor is not pickled either, where JSON can say it.
All members of the gang must take part in a save. `muster.torch.dcp` is that module of PyTorch, whatever its version calls
it.
"""

from typing import Any

from ._plain import load, save

__all__ = ["LoadPlanner", "SavePlanner", "StorageReader", "StorageWriter", "dcp", "load", "save"]


def __getattr__(name: str) -> Any:
    # Not before they are asked for: importing PyTorch's module takes a while, and not every build of PyTorch has it.
    if name in ("StorageReader", "StorageWriter"):
        from . import _dcp

        return getattr(_dcp, name)
    if name in ("LoadPlanner", "SavePlanner"):
        from . import _planners

        return getattr(_planners, name)
    if name == "dcp":
        from ._torch_dcp import dcp

        return dcp
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
