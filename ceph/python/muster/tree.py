"""States as a structure (JSON) and leaves (raw bytes), without pickle: reading a checkpoint runs no code of it.

A state consists of dicts (keys of any kind below that is hashable), lists, tuples, None, bool, int, float, complex,
str, bytes, torch tensors (dense), numpy arrays and scalars (of plain types). A dict's order is kept. Tensors come back
on the CPU and without gradients. Neither torch nor numpy is imported unless such a leaf is there.
"""

import ctypes
import json
import math
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .errors import CORRUPT, Corrupt

STRUCTURE = "structure"
META = '{"format": "muster-tree", "version": 1}'


@dataclass(frozen=True)
class Buffer:
    """Memory to be copied from; `owner` keeps it alive."""

    owner: object
    address: int
    bytes: int
    stream: int | None = None  # of CUDA, in whose order it is to be copied: it is memory of a GPU then

    @staticmethod
    def of(data: bytes) -> "Buffer":
        return Buffer(data, ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0, len(data))

    def used(self) -> None:
        """After the copy has been asked for: the memory is not to be used again before it, once the owner is gone."""
        if self.stream is not None:
            import torch

            owner: Any = self.owner
            owner.record_stream(torch.cuda.current_stream(owner.device))

    def content(self) -> bytes:
        if self.stream is not None:
            raise TypeError("memory of a GPU has no content that can be read")
        return ctypes.string_at(self.address, self.bytes) if self.bytes else b""


@dataclass(frozen=True)
class Leaf:
    meta: str
    buffer: Buffer


@dataclass(frozen=True)
class SliceName:
    """Stands in a state for a tensor that is saved as slices; `rank` is who most likely has some of it."""

    name: str
    rank: int | None = None


@dataclass(frozen=True)
class Entry:
    """One of a restored shard; `fill` copies all of it to an address."""

    meta: str
    address: int
    bytes: int
    fill: Callable[[int], None]

    @staticmethod
    def of(meta: str, data: bytes) -> "Entry":
        buffer = Buffer.of(data)

        def fill(to: int) -> None:  # keeps the data alive
            ctypes.memmove(to, buffer.address, buffer.bytes)

        return Entry(meta, buffer.address, buffer.bytes, fill)

    def content(self) -> bytes:
        return ctypes.string_at(self.address, self.bytes) if self.bytes else b""


Entries = Callable[[str], Entry]


def flatten(state: Any) -> tuple[bytes, list[Leaf]]:
    """Gives the structure and the leaves that it numbers. TypeError names the path of what cannot be saved."""
    leaves: list[Leaf] = []
    structure = _flatten(state, "state", leaves)
    return json.dumps(structure, separators=(",", ":")).encode(), leaves


def _flatten(value: Any, path: str, leaves: list[Leaf]) -> Any:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return {"tensor": _add(leaves, _tensor(value, path))}
    if numpy is not None and isinstance(value, numpy.ndarray):
        return {"array": _add(leaves, _array(value, path))}
    if numpy is not None and isinstance(value, numpy.generic):
        return {"scalar": _add(leaves, _array(numpy.asarray(value), path))}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, complex):
        return {"complex": [_flatten(value.real, path, leaves), _flatten(value.imag, path, leaves)]}
    if isinstance(value, SliceName):
        return {"slice": [value.name, value.rank]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": _add(leaves, Leaf("{}", Buffer.of(bytes(value))))}
    if isinstance(value, list):
        return [_flatten(item, f"{path}[{i}]", leaves) for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": [_flatten(item, f"{path}[{i}]", leaves) for i, item in enumerate(value)]}
    if isinstance(value, dict):
        kind = "ordered" if isinstance(value, OrderedDict) else "dict"
        pairs = [
            [_flatten(key, f"{path}'s key", leaves), _flatten(item, f"{path}[{key!r}]", leaves)]
            for key, item in value.items()
        ]
        return {kind: pairs}
    raise TypeError(f"{path} is a {type(value).__name__}, which cannot be saved")


def _add(leaves: list[Leaf], leaf: Leaf) -> int:
    leaves.append(leaf)
    return len(leaves) - 1


def _tensor(value: Any, path: str) -> Leaf:
    dense, buffer = dense_tensor(value, path)
    meta = {"dtype": str(dense.dtype).removeprefix("torch."), "shape": list(dense.shape)}
    return Leaf(json.dumps(meta), buffer)


def dense_tensor(value: Any, path: str) -> tuple[Any, Buffer]:
    """The tensor row by row, and its memory: a GPU's where libmuster copies out of that, else the CPU's."""
    import torch

    if value.layout != torch.strided or value.is_quantized:
        raise TypeError(f"{path} is a sparse or quantized tensor, which cannot be saved")
    plain = value.detach().resolve_conj().resolve_neg()
    cuda = plain.device.type == "cuda" and torch.version.cuda is not None  # ROCm says cuda too
    cuda = cuda and plain.is_contiguous()  # else it would be once more on the GPU, which may be full
    dense = (plain if cuda else plain.cpu()).contiguous()
    size = dense.numel() * dense.element_size()
    stream = torch.cuda.current_stream(dense.device).cuda_stream if cuda else None
    return dense, Buffer(dense, dense.data_ptr() if size else 0, size, stream)


def _array(value: Any, path: str) -> Leaf:
    if value.dtype.hasobject or value.dtype.names is not None or value.dtype.kind == "V":
        raise TypeError(f"{path} is an array of {value.dtype}, which cannot be saved")
    dense = value if value.flags.c_contiguous else value.copy(order="C")
    meta = {"dtype": dense.dtype.str, "shape": list(dense.shape)}
    return Leaf(json.dumps(meta), Buffer(dense, dense.ctypes.data if dense.nbytes else 0, dense.nbytes))


def unflatten(entries: Entries) -> Any:
    """Puts a state together again, copying the leaves. Raises Corrupt for what flatten would not have written."""
    try:
        structure = entries(STRUCTURE)
        form = json.loads(structure.meta)
        if form != json.loads(META):
            raise ValueError(f"unknown format {form}")
        return unflatten_text(structure.content(), entries)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RuntimeError) as why:
        raise Corrupt(CORRUPT, f"the checkpoint is not one that this package has written: {why!r}") from why


def unflatten_text(structure: bytes, entries: Entries) -> Any:
    """The same from a structure alone. Its errors are those of Python."""
    return _unflatten(json.loads(structure), entries)


def _unflatten(node: Any, entries: Entries) -> Any:
    if isinstance(node, list):
        return [_unflatten(item, entries) for item in node]
    if not isinstance(node, dict):
        return node
    ((kind, value),) = node.items()
    if kind in ("dict", "ordered"):
        pairs = ((_unflatten(key, entries), _unflatten(item, entries)) for key, item in value)
        return OrderedDict(pairs) if kind == "ordered" else dict(pairs)
    if kind == "tuple":
        return tuple(_unflatten(item, entries) for item in value)
    if kind == "float":
        return float(value)
    if kind == "complex":
        real, imaginary = value
        return complex(_unflatten(real, entries), _unflatten(imaginary, entries))
    if kind == "slice":
        name, rank = value
        return SliceName(str(name), None if rank is None else int(rank))
    entry = entries(str(int(value)))
    if kind == "bytes":
        return entry.content()
    if kind == "tensor":
        return _read_tensor(json.loads(entry.meta), entry)
    if kind in ("array", "scalar"):
        array = _read_array(json.loads(entry.meta), entry)
        return array[()] if kind == "scalar" else array
    raise ValueError(f"unknown kind {kind!r}")


def _read_tensor(meta: dict[str, Any], entry: Entry) -> Any:
    import torch

    dtype = getattr(torch, meta["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown type {meta['dtype']!r}")
    bytes_each = torch.empty(0, dtype=dtype).element_size()
    if math.prod(meta["shape"]) * bytes_each != entry.bytes:
        raise ValueError(f"a tensor of {entry.bytes} bytes cannot have the shape {meta['shape']}")
    tensor = torch.empty(meta["shape"], dtype=dtype)
    if entry.bytes:
        entry.fill(tensor.data_ptr())
    return tensor


def _read_array(meta: dict[str, Any], entry: Entry) -> Any:
    import numpy

    dtype = numpy.dtype(meta["dtype"])
    if dtype.hasobject or math.prod(meta["shape"]) * dtype.itemsize != entry.bytes:
        raise ValueError(f"an array of {entry.bytes} bytes cannot have the shape {meta['shape']} of {dtype}")
    array = numpy.empty(meta["shape"], dtype=dtype)
    if entry.bytes:
        entry.fill(array.ctypes.data)
    return array
