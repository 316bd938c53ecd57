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
_KINDS = "biufcmMSU"  # of numpy's types: not objects, and not records
_ADDED = 2  # dtype.isbuiltin of a type that a package has added


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
    """A part of a named tensor: a torch tensor, a numpy array, one of JAX (to save it) or bytes, and where it lies in the whole.

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
    if is_jax_array(part.data):
        jax_array = check_jax_array(name, part.data)
        if not jax_array.is_fully_addressable:
            raise TypeError(f"{name!r} is a jax.Array of several processes: give Slice one of its addressable_shards, or save it in the state")
        size = jax_array.size * jax_array.dtype.itemsize
        buffer = Buffer(jax_array, 0, size, copy=lambda: _jax_buffer(jax_array))
        return _described(name, part, dtype_of(jax_array), jax_array.shape, jax_array.dtype.itemsize, buffer)
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
    if is_jax_array(part.data):
        raise TypeError(f"{name!r} cannot be restored into a jax.Array, which never changes: give Slice a numpy array")
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
        dense = _as_bytes(plain).cpu().resolve_conj().resolve_neg().contiguous()
        return _tensor_buffer(name, dense.view(plain.dtype))

    return Buffer(plain, 0, plain.numel() * plain.element_size(), copy=copy)


def _as_bytes(tensor: Any) -> Any:
    """The same memory, as PyTorch can copy it: of int4 and other types of one byte it copies no tensor that has gaps."""
    import torch

    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def _array_buffer(dense: Any) -> Buffer:
    return Buffer(dense, dense.ctypes.data if dense.nbytes else 0, dense.nbytes)


def _jax_buffer(array: Any) -> Buffer:
    """Its memory where that is the CPU's, row by row and whole bytes; else a copy."""
    import jax
    import numpy

    # Of an array of its own: JAX keeps a copy as long as the array.
    shards = [shard.data for shard in array.addressable_shards]
    host = numpy.asarray(jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards))
    return _array_buffer(host if host.flags.c_contiguous else host.copy(order="C"))


def _tensor_to_restore(name: str, part: Slice) -> Described:
    import torch

    tensor = _plain_tensor(name, part.data)
    not_meta(name, tensor)
    in_place = tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    dense = tensor if in_place else torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    done = None if in_place else lambda: _as_bytes(tensor).copy_(_as_bytes(dense))
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


def is_jax_array(data: Any) -> bool:
    return is_of(data, "jax", "Array")


def check_jax_array(name: str, array: Any) -> Any:
    """The same, or why it has no values that can be saved."""
    if is_of(array, "jax.core", "Tracer"):
        raise TypeError(f"{name!r} is a jax.Array that is being traced, which has no values yet: save outside of what jax transforms")
    check_jax_type(name, array)
    if array.is_deleted():
        raise ValueError(f"{name!r} is a jax.Array that was deleted, or donated to a function: save it before, or what that has given")
    return array


def check_jax_type(name: str, array: Any) -> None:
    import numpy

    if not isinstance(array.dtype, numpy.dtype):
        raise TypeError(f"{name!r} is a jax.Array of {array.dtype}, which cannot be saved or restored: use jax.random.key_data(it)")


def _is_of_ml_dtypes(dtype: Any) -> bool:
    """Whether the package ml_dtypes, which JAX uses, has added it to numpy: bfloat16, and types of 8 bits and less."""
    return bool(dtype.type.__module__ == "ml_dtypes")


def dtype_of(data: Any) -> str:
    """Of a tensor or an array: torch's name where it has the type, else numpy's with the byte order."""
    dtype = data.dtype
    if is_tensor(data):
        return str(dtype).removeprefix("torch.")
    named = dtype.kind in "biufc" or _is_of_ml_dtypes(dtype)
    return str(dtype.name) if named and dtype.isnative else str(dtype.str)


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
        try:
            dtype = numpy.dtype(name)
        except TypeError:
            import ml_dtypes  # noqa: F401  # adds its types

            dtype = numpy.dtype(name)
    except (TypeError, ImportError) as why:
        more = " without the package ml_dtypes, which cannot be imported" if isinstance(why, ImportError) else ""
        raise Invalid(f"{what!r} is of type {name!r}, which numpy {numpy.__version__} does not have{more}") from None
    if dtype.hasobject:
        raise Corrupt(f"{what!r} is an array of {name!r}, which cannot have been saved")
    return dtype


def _array(name: str, data: Any) -> Any:
    if not is_array(data) or is_of(data, "numpy.ma", "MaskedArray"):
        raise TypeError(f"{name!r} is a {type(data).__name__}, not a tensor, an array or bytes")
    dtype = data.dtype
    # Of types that other packages add to numpy, a name says nothing to a program that reads them.
    known = dtype.kind in _KINDS and dtype.isbuiltin != _ADDED or (_is_of_ml_dtypes(dtype) and dtype.isnative)
    if not known:
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
