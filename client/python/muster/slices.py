"""Parts of tensors, which a gang of any size restores from whatever members saved them.

    rows = muster.Slice(weights[first:last], global_shape=(1000, 64), offset=(first, 0))
    gang.save(state, step, slices={"weights": rows})
    ...
    mine = muster.Slice(torch.empty(other_rows, 64), global_shape=(1000, 64), offset=(other_first, 0))
    gang.restore_slices({"weights": mine})          # fills its data
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from .errors import Corrupt, Invalid

DIMS_MAX = 8
ANY_RANK = 2**32 - 1


@dataclass(frozen=True)
class Buffer:
    """Memory to be copied; `owner` keeps it alive."""

    owner: object
    address: int
    size: int
    stream: int | None = None  # of CUDA, in whose order it is to be copied: it is memory of a GPU then
    copy: Callable[[], Buffer] | None = None  # gives the memory, where it is to be made when its turn comes

    def ready(self) -> Buffer:
        """What has an address. Not before it is needed: where it is a copy, a state's would take as much memory as the state."""
        return self if self.copy is None else self.copy()

    def used(self) -> None:
        """After the copy has been asked for: the memory is not to be used again before it, once the owner is gone."""
        if self.stream is not None:
            import torch

            owner: Any = self.owner
            owner.record_stream(torch.cuda.current_stream(owner.device))


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
    def of(part: Described) -> "CSlice":
        dims = ctypes.c_uint64 * DIMS_MAX
        whole, offset, shape = dims(*part.global_shape), dims(*part.offset), dims(*part.shape)
        return CSlice(part.dtype, part.element_bytes, len(part.shape), whole, offset, shape)


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


Slices = Union[Mapping[str, Union[Slice, Sequence[Slice]]], Iterable[tuple[str, Slice]]]


def describe(parts: Iterable[tuple[str, Slice]]) -> list[tuple[str, Described]]:
    """All of them, so that what cannot be saved is refused before a save begins."""
    return [(name, to_save(name, part)) for name, part in parts]


def size_of(described: Iterable[tuple[str, Described]]) -> int:
    return sum(part.buffer.size + 64 for _, part in described)


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
        buffer = Buffer(data, ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0, len(data))
        return _described(name, part, "bytes", (len(data),), 1, buffer)
    if is_tensor(part.data):
        tensor = _plain_tensor(name, part.data)
        return _described(name, part, dtype_of(tensor), tensor.shape, tensor.element_size(), _tensor_to_save(name, tensor))
    array = _array(name, part.data)
    dense = array.flags.c_contiguous
    buffer = _array_buffer(array) if dense else Buffer(array, 0, array.nbytes, copy=lambda: _array_buffer(array.copy(order="C")))
    return _described(name, part, dtype_of(array), array.shape, array.itemsize, buffer)


def to_restore(name: str, part: Slice) -> Described:
    """What is to be filled, in place where that is possible."""
    if isinstance(part.data, bytearray):
        size = len(part.data)
        address = ctypes.addressof((ctypes.c_char * size).from_buffer(part.data)) if size else 0
        return _described(name, part, "bytes", (size,), 1, Buffer(part.data, address, size))
    if is_tensor(part.data):
        return _tensor_to_restore(name, part)
    array = _array(name, part.data)
    if not array.flags.writeable:
        raise ValueError(f"{name!r} cannot be restored into an array that is read-only")
    import numpy

    dense = array if array.flags.c_contiguous else numpy.empty(array.shape, array.dtype)
    buffer = _array_buffer(dense)
    done = None if dense is array else lambda: numpy.copyto(array, dense)
    return _described(name, part, dtype_of(dense), dense.shape, dense.itemsize, buffer, done)


def _tensor_to_save(name: str, plain: Any) -> Buffer:
    """The tensor's memory, row by row: a GPU's where libmuster copies out of that, else the CPU's."""
    import torch

    if plain.is_meta:
        raise ValueError(f"{name!r} is a tensor on the meta device, which has no data to save")
    dense = plain.is_contiguous() and not plain.is_conj() and not plain.is_neg()
    if dense and plain.device.type == "cuda" and torch.version.cuda is not None:  # ROCm says cuda too
        return _tensor_buffer(name, plain, torch.cuda.current_stream(plain.device).cuda_stream)
    if dense and plain.device.type == "cpu":
        return _tensor_buffer(name, plain)

    def copy() -> Buffer:
        # To the CPU first: a GPU may be full.
        return _tensor_buffer(name, plain.cpu().resolve_conj().resolve_neg().contiguous())

    return Buffer(plain, 0, plain.numel() * plain.element_size(), copy=copy)


def _array_buffer(dense: Any) -> Buffer:
    return Buffer(dense, dense.ctypes.data if dense.nbytes else 0, dense.nbytes)


def _tensor_to_restore(name: str, part: Slice) -> Described:
    import torch

    tensor = _plain_tensor(name, part.data)
    not_meta(name, tensor)
    in_place = tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    dense = tensor if in_place else torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    done = None if in_place else lambda: tensor.copy_(dense)
    buffer = _tensor_buffer(name, dense)
    return _described(name, part, dtype_of(dense), dense.shape, dense.element_size(), buffer, done)


def _plain_tensor(name: str, value: Any) -> Any:
    """The tensor that has the data, without gradients."""
    import torch

    if is_of(value, "torch.distributed._functional_collectives", "AsyncCollectiveTensor"):
        value = value.wait()
    if value.layout != torch.strided or value.is_quantized:
        raise TypeError(f"{name!r} is a sparse or quantized tensor, which cannot be saved or restored")
    if hasattr(type(value), "__tensor_flatten__"):
        raise _without_data(name, value)
    return value.detach()


def _tensor_buffer(name: str, dense: Any, stream: int | None = None) -> Buffer:
    size = dense.numel() * dense.element_size()
    address = dense.data_ptr() if size else 0
    if size and not address:
        raise _without_data(name, dense)
    return Buffer(dense, address, size, stream)


def _without_data(name: str, value: Any) -> TypeError:
    kind = type(value).__name__
    return TypeError(f"{name!r} is a {kind}, which has its data in other tensors and cannot be saved or restored: use those")


def not_meta(name: str, tensor: Any) -> None:
    if tensor.is_meta:
        what = "cannot be restored into a tensor on the meta device, which has no memory: give it some first"
        raise ValueError(f"{name!r} {what} (torch.empty_like(tensor, device='cpu'), Module.to_empty)")


def is_of(value: Any, module: str, kind: str) -> bool:
    """Whether it is of a class of a module, which is not imported for that."""
    found = getattr(sys.modules.get(module), kind, None)
    return isinstance(found, type) and isinstance(value, found)


def is_tensor(data: Any) -> bool:
    return is_of(data, "torch", "Tensor")


def is_array(data: Any) -> bool:
    return is_of(data, "numpy", "ndarray")


def dtype_of(data: Any) -> str:
    """Of a tensor or an array: torch's name where it has the type, else numpy's with the byte order."""
    dtype = data.dtype
    if is_tensor(data):
        return str(dtype).removeprefix("torch.")
    return str(dtype.name) if dtype.kind in "biufc" and dtype.isnative else str(dtype.str)


def torch_dtype(name: str, what: str) -> Any:
    """PyTorch's type of that name. MusterError where a newer one may have it."""
    import torch

    dtype = getattr(torch, name, None)
    if dtype is None:
        raise Invalid(f"{what!r} is of type {name!r}, which PyTorch {torch.__version__} does not have")
    if not isinstance(dtype, torch.dtype):
        raise Corrupt(f"{what!r} is of type {name!r}, which is none")
    return dtype


def numpy_dtype(name: str, what: str) -> Any:
    import numpy

    try:
        dtype = numpy.dtype(name)
    except TypeError:
        raise Invalid(f"{what!r} is of type {name!r}, which numpy {numpy.__version__} does not have") from None
    if dtype.hasobject:
        raise Corrupt(f"{what!r} is an array of {name!r}, which cannot have been saved")
    return dtype


def _array(name: str, data: Any) -> Any:
    if not is_array(data) or is_of(data, "numpy.ma", "MaskedArray"):
        raise TypeError(f"{name!r} is a {type(data).__name__}, not a tensor, an array or bytes")
    if data.dtype.hasobject or data.dtype.names is not None or data.dtype.kind == "V":
        raise TypeError(f"{name!r} is an array of {data.dtype}, which cannot be saved")
    return data


def _described(
    name: str, part: Slice, dtype: str, of_shape: Sequence[int], element_bytes: int, buffer: Buffer, done: Any = None
) -> Described:
    shape = tuple(of_shape)
    whole = shape if part.global_shape is None else tuple(int(n) for n in part.global_shape)
    offset = (0,) * len(whole) if part.offset is None else tuple(int(n) for n in part.offset)
    if len(whole) > DIMS_MAX:
        raise ValueError(f"{name!r} has {len(whole)} dimensions; up to {DIMS_MAX} are allowed")
    if len(shape) != len(whole) or len(offset) != len(whole):
        raise ValueError(f"{name!r} has {len(shape)} dimensions, its global shape {len(whole)}, its offset {len(offset)}")
    if any(n < 0 for n in (*whole, *offset)):
        raise ValueError(f"{name!r} has a negative global shape or offset: {whole}, {offset}")
    rank = ANY_RANK if part.first_rank is None else part.first_rank
    assert math.prod(shape) * element_bytes == buffer.size
    return Described(dtype.encode(), element_bytes, whole, offset, shape, buffer, rank, done)
