"""Arrays of JAX: what a process saves of them, and how they are made again. This module imports no JAX before it has one."""

from __future__ import annotations

import math
import zlib
from typing import Any

from .errors import Invalid
from .slices import Slice, check_jax_array, is_jax_array, is_of

Box = tuple[tuple[int, int], ...]  # by dimension: the first index, and the one behind the last


def parts(name: str, array: Any) -> list[Slice]:
    """What this process saves. Of shards that several devices have alike, in all processes together, that of one."""
    check_jax_array(name, array)
    if array.is_fully_addressable and array.is_fully_replicated:
        return [Slice(array)]
    chosen = zlib.crc32(name.encode()) % _replicas(array)
    mine = [shard for shard in array.addressable_shards if shard.replica_id == chosen]
    return [Slice(shard.data, array.shape, tuple(first for first, _ in _box(shard.index, array.shape))) for shard in mine]


def _replicas(array: Any) -> int:
    """How many devices have each shard; 1 where that is not the same of all shards."""
    shard, devices = array.sharding.shard_shape(array.shape), len(array.sharding.device_set)
    shards = math.prod(-(-whole // part) if part else 1 for whole, part in zip(array.shape, shard))
    return devices // shards if devices % shards == 0 else 1


def _box(index: Any, shape: tuple[int, ...]) -> Box:
    return tuple(one.indices(whole)[:2] for one, whole in zip(index, shape))


def is_target(value: Any) -> bool:
    """Whether an array like that can be made: an array, or its jax.ShapeDtypeStruct."""
    return is_jax_array(value) or is_of(value, "jax", "ShapeDtypeStruct")


class Target:
    """An array that is to be made like another one. `slices` are to be filled before: what this process's devices have."""

    def __init__(self, name: str, like: Any) -> None:
        import numpy

        self._name, self._like, self._whole = name, like, tuple((0, n) for n in like.shape)
        is_anywhere = is_jax_array(like) and not getattr(like, "committed", True)
        self._sharding = None if is_anywhere else like.sharding  # None: where JAX has what is not told where to be
        boxes = {self._whole}
        if self._sharding is not None:
            indices = self._sharding.addressable_devices_indices_map(like.shape).values()
            boxes = {_box(index, like.shape) for index in indices}
        self._filled = {box: numpy.empty([end - first for first, end in box], like.dtype) for box in boxes}

    @property
    def slices(self) -> list[Slice]:
        return [Slice(data, self._like.shape, tuple(first for first, _ in box)) for box, data in self._filled.items()]

    def make(self) -> Any:
        import jax

        if self._sharding is None:
            made = jax.device_put(self._filled[self._whole])
        else:
            shape, dtype = self._like.shape, {} if self._filled else {"dtype": self._like.dtype}
            made = jax.make_array_from_callback(shape, self._sharding, lambda index: self._filled[_box(index, shape)], **dtype)
        if made.dtype != self._like.dtype:
            raise Invalid(f"{self._name!r} is of type {self._like.dtype}, of which JAX makes {made.dtype}: set jax_enable_x64")
        return made
