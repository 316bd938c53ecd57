"""What this member has of a tensor: its local parts of a distributed one, all of a plain one."""

import sys
from typing import Any

from ..slices import Slice


def distributed(tensor: Any) -> list[Slice] | None:
    """The local parts of a ShardedTensor or a DTensor; None of another."""
    if _is(tensor, "torch.distributed._shard.sharded_tensor", "ShardedTensor"):
        whole = tuple(tensor.size())
        return [Slice(shard.tensor, whole, tuple(shard.metadata.shard_offsets)) for shard in tensor.local_shards()]
    for module in ("torch.distributed.tensor", "torch.distributed._tensor"):
        if _is(tensor, module, "DTensor"):
            return _dtensor(tensor, module)
    return None


def _is(value: Any, module: str, name: str) -> bool:
    found = getattr(sys.modules.get(module), name, None)
    return isinstance(found, type) and isinstance(value, found)


def _dtensor(tensor: Any, module: str) -> list[Slice]:
    from importlib import import_module

    if any(placement.is_partial() for placement in tensor.placements):
        raise TypeError("a DTensor that has not been reduced yet (Partial) cannot be saved or restored")
    if tensor.device_mesh.get_coordinate() is None:
        return []
    place = import_module(module + "._utils").compute_local_shape_and_global_offset
    _, offset = place(tensor.shape, tensor.device_mesh, tensor.placements)
    return [Slice(tensor.to_local(), tuple(tensor.shape), tuple(offset))]
