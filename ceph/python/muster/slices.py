"""Parts of tensors, which a gang of any size restores from whatever members saved them.

    rows = muster.Slice(weights[first:last], global_shape=(1000, 64), offset=(first, 0))
    gang.save(state, step, slices={"weights": rows})
    ...
    mine = muster.Slice(torch.empty(other_rows, 64), global_shape=(1000, 64), offset=(other_first, 0))
    gang.restore_slices({"weights": mine})          # fills its data
"""

import ctypes
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .tree import Buffer, dense_tensor

DIMS_MAX = 8
ANY_RANK = 2**32 - 1


@dataclass(frozen=True)
class Slice:
    """A part of a named tensor: a torch tensor, numpy array or bytes, and where it lies in the whole.

    Without `global_shape` it is all of it; without `offset` it begins at the first element. `first_rank` says, when it is
    restored, whose shard most likely has it.
    """

    data: Any
    global_shape: Sequence[int] | None = None
    offset: Sequence[int] | None = None
    first_rank: int | None = None


@dataclass(frozen=True)
class SliceInfo:
    """What a tensor is: the name of its elements' type, the bytes of one, and its global shape."""

    dtype: str
    element_bytes: int
    global_shape: tuple[int, ...]


@dataclass(frozen=True)
class Described:
    """A slice as libmuster takes it. After a restore `done` brings it to where it belongs."""

    dtype: bytes
    element_bytes: int
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    buffer: Buffer
    first_rank: int
    done: Callable[[], None] | None = None


class CSlice(ctypes.Structure):
    """muster_slice."""

    _fields_ = [
        ("dtype", ctypes.c_char_p),
        ("element_bytes", ctypes.c_uint32),
        ("dims", ctypes.c_uint32),
        ("global_shape", ctypes.c_uint64 * DIMS_MAX),
        ("offset", ctypes.c_uint64 * DIMS_MAX),
        ("shape", ctypes.c_uint64 * DIMS_MAX),
    ]

    @staticmethod
    def of(described: Described) -> "CSlice":
        dims = ctypes.c_uint64 * DIMS_MAX
        return CSlice(
            described.dtype,
            described.element_bytes,
            len(described.shape),
            dims(*described.global_shape),
            dims(*described.offset),
            dims(*described.shape),
        )


class CWanted(ctypes.Structure):
    """muster_slice_wanted."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("into", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("first_rank", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("want", CSlice),
    ]


Slices = Mapping[str, "Slice | Sequence[Slice]"] | Iterable[tuple[str, Slice]]


def each(slices: Slices) -> Iterator[tuple[str, Slice]]:
    """Names and slices one by one."""
    if not isinstance(slices, Mapping):
        yield from slices
        return
    for name, one in slices.items():
        for part in [one] if isinstance(one, Slice) else one:
            yield name, part


def to_save(name: str, part: Slice) -> Described:
    """What is to be copied out of `part`."""
    if isinstance(part.data, (bytes, bytearray, memoryview)):
        data = bytes(part.data)
        return _described(name, part, "bytes", 1, (len(data),), Buffer.of(data))
    if _is_tensor(part.data):
        dense, buffer = dense_tensor(part.data, repr(name))
        return _described(name, part, tensor_dtype(dense.dtype), dense.element_size(), tuple(dense.shape), buffer)
    array = _array(name, part.data)
    dense = array if array.flags.c_contiguous else array.copy(order="C")
    buffer = Buffer(dense, dense.ctypes.data if dense.nbytes else 0, dense.nbytes)
    return _described(name, part, array_dtype(dense.dtype), dense.dtype.itemsize, dense.shape, buffer)


def to_restore(name: str, part: Slice) -> Described:
    """What is to be filled, in place where that is possible."""
    if isinstance(part.data, bytearray):
        size = len(part.data)
        address = ctypes.addressof((ctypes.c_char * size).from_buffer(part.data)) if size else 0
        return _described(name, part, "bytes", 1, (size,), Buffer(part.data, address, size))
    if _is_tensor(part.data):
        return _tensor_to_restore(name, part)
    array = _array(name, part.data)
    if not array.flags.writeable:
        raise ValueError(f"{name!r} cannot be restored into an array that is read-only")
    import numpy

    dense = array if array.flags.c_contiguous else numpy.empty(array.shape, array.dtype)
    buffer = Buffer(dense, dense.ctypes.data if dense.nbytes else 0, dense.nbytes)
    done = None if dense is array else lambda: numpy.copyto(array, dense)
    return _described(name, part, array_dtype(dense.dtype), dense.dtype.itemsize, dense.shape, buffer, done)


def _tensor_to_restore(name: str, part: Slice) -> Described:
    import torch

    tensor = part.data.detach()
    not_meta(name, tensor)
    in_place = tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.is_contiguous()
    in_place = in_place and not tensor.is_conj() and not tensor.is_neg()
    dense = tensor if in_place else torch.empty(tensor.shape, dtype=tensor.dtype)
    size = dense.numel() * dense.element_size()
    buffer = Buffer(dense, dense.data_ptr() if size else 0, size)
    done = None if in_place else lambda: tensor.copy_(dense)
    return _described(
        name, part, tensor_dtype(tensor.dtype), dense.element_size(), tuple(dense.shape), buffer, done
    )


def not_meta(name: str, tensor: Any) -> None:
    if tensor.is_meta:
        what = "cannot be restored into a tensor on the meta device, which has no memory: give it some first"
        raise ValueError(f"{name!r} {what} (torch.empty_like(tensor, device='cpu'), Module.to_empty)")


def _is_tensor(data: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(data, torch.Tensor)


def _array(name: str, data: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(data, numpy.ndarray):
        raise TypeError(f"{name!r} is a {type(data).__name__}, not a tensor, an array or bytes")
    if data.dtype.hasobject or data.dtype.names is not None or data.dtype.kind == "V":
        raise TypeError(f"{name!r} is an array of {data.dtype}, which cannot be saved")
    return data


def tensor_dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def array_dtype(dtype: Any) -> str:
    """torch's name where it has the type, else numpy's with the byte order."""
    return str(dtype.name) if dtype.kind in "biufc" and dtype.isnative else str(dtype.str)


def _described(
    name: str,
    part: Slice,
    dtype: str,
    element_bytes: int,
    shape: tuple[int, ...],
    buffer: Buffer,
    done: Callable[[], None] | None = None,
) -> Described:
    whole = shape if part.global_shape is None else tuple(int(n) for n in part.global_shape)
    offset = (0,) * len(whole) if part.offset is None else tuple(int(n) for n in part.offset)
    if len(whole) > DIMS_MAX:
        raise ValueError(f"{name!r} has {len(whole)} dimensions; up to {DIMS_MAX} are allowed")
    if len(shape) != len(whole) or len(offset) != len(whole):
        raise ValueError(f"{name!r} has {len(shape)} dimensions, its global shape {len(whole)}, its offset {len(offset)}")
    if any(n < 0 for n in (*whole, *offset)):
        raise ValueError(f"{name!r} has a negative global shape or offset: {whole}, {offset}")
    rank = ANY_RANK if part.first_rank is None else part.first_rank
    assert math.prod(shape) * element_bytes == buffer.bytes
    return Described(dtype.encode(), element_bytes, whole, offset, shape, buffer, rank, done)
