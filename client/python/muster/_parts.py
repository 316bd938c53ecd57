"""What this member has of a tensor: its local parts of a distributed one, all of a plain one."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any

from . import _jax
from .slices import Slice, is_jax_array, is_of
from .tree import Leaf


def chunks(leaves: dict[str, Leaf]) -> Iterator[tuple[str, Slice]]:
    """What this member saves of a state's leaves. Says in their places what another one saves."""
    for name, leaf in leaves.items():
        here = parts(name, leaf.value)
        if leaf.place[1] is None:
            leaf.place[1] = _saved_by(name, leaf.value)
        if leaf.place[1] is None:
            yield from ((name, part) for part in here)


def parts(name: str, value: Any) -> list[Slice]:
    """The local parts of a ShardedTensor, a DTensor or an array of JAX; another tensor (or array, or bytes) as a whole."""
    if is_jax_array(value):
        return _jax.parts(name, value)
    if _is_sharded(value):
        whole = tuple(value.size())
        return [Slice(shard.tensor, whole, tuple(shard.metadata.shard_offsets)) for shard in value.local_shards()]
    return _dtensor(name, value) if _is_dtensor(value) else [Slice(value)]


def is_distributed(value: Any) -> bool:
    return _is_sharded(value) or _is_dtensor(value)


def _is_sharded(value: Any) -> bool:
    return is_of(value, "torch.distributed._shard.sharded_tensor", "ShardedTensor")


def _is_dtensor(value: Any) -> bool:
    return is_of(value, "torch.distributed.tensor", "DTensor") or is_of(value, "torch.distributed._tensor", "DTensor")


def _saved_by(name: str, value: Any) -> int | None:
    """Of a DTensor that several members have alike: the one that saves this member's part. None: this member does."""
    if not _is_dtensor(value) or value.device_mesh.get_coordinate() is None:
        return None
    mesh, chosen, number = value.device_mesh, list(value.device_mesh.get_coordinate()), zlib.crc32(name.encode())
    for dim, placement in enumerate(value.placements):
        if placement.is_replicate():
            number, chosen[dim] = divmod(number, mesh.size(dim))
    return None if chosen == list(mesh.get_coordinate()) else int(mesh.mesh[tuple(chosen)])


def _dtensor(name: str, tensor: Any) -> list[Slice]:
    if any(placement.is_partial() for placement in tensor.placements):
        raise TypeError(f"{name!r} is a DTensor that has not been reduced yet (Partial): it cannot be saved or restored")
    if tensor.device_mesh.get_coordinate() is None:
        return []
    local, whole = tensor.to_local(), tuple(tensor.shape)
    rows = [_rows(tensor, dim) for dim in range(len(whole))]
    box = tuple(-1 if r is None else len(r) for r in rows)
    if local.numel() == 0 == math.prod(box):  # FSDP2 gives a part without elements any shape
        local = local.new_empty(box)
    if box != tuple(local.shape):
        what = f"a DTensor of shape {whole}, {tensor.placements} on {tensor.device_mesh}, of which {tuple(local.shape)} is here"
        raise TypeError(f"{name!r} is {what}: that is no one box of the whole, and cannot be saved or restored")
    return [Slice(local, whole, tuple(0 if r is None else r.start for r in rows))]


def _rows(tensor: Any, dim: int) -> range | None:
    """Which of a dimension's indexes this member has; None where they do not lie next to each other."""
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    order: list[int] = []  # in which the dimensions of the mesh have divided this one
    right = 1  # into so many parts, by those to the right
    for i in reversed([i for i, p in enumerate(tensor.placements) if getattr(p, "dim", None) == dim]):
        # One that is strided, as by FSDP2 with tensor parallelism, has divided what those to its right have left.
        strided = getattr(tensor.placements[i], "split_factor", None)
        if strided not in (None, right):
            return None
        order = [i, *order] if strided is None else [*order, i]
        right *= mesh.size(i)
    rows = range(tensor.shape[dim])
    for i in order:
        each = -(-len(rows) // mesh.size(i))
        rows = rows[coordinate[i] * each : (coordinate[i] + 1) * each]
    return rows
