"""States as a structure (JSON) and leaves (raw bytes), without pickle: reading a checkpoint runs no code of it.

A state consists of dicts (keys of any kind below that is hashable), OrderedDicts, Counters, defaultdicts (of a plain
type), lists, tuples, None, bool, int, float, complex, str, bytes, torch tensors (dense), numpy arrays and scalars (of plain
types). Of exactly these types: a namedtuple, an Enum or another class made of one of them would come back as something
else, and is refused. A dict's order is kept. Tensors come back on the CPU and without gradients, a torch.Size as a tuple.
Neither torch nor numpy is imported unless such a leaf is there.
"""

import ctypes
import enum
import json
import math
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import CORRUPT, INVALID, Corrupt, MusterError

STRUCTURE = "structure"
META = '{"format": "muster-tree", "version": 1}'
_DICTS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_DICT_KINDS = {kind: name for name, kind in _DICTS.items()}
_FACTORIES = {kind.__name__: kind for kind in (bool, int, float, complex, str, bytes, list, tuple, dict, set)}


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


def is_dict(value: Any) -> bool:
    """Whether it is a dict of a type that can be saved."""
    return type(value) in _DICT_KINDS or type(value) is defaultdict


def like(value: Any, pairs: Iterable[tuple[Any, Any]]) -> Any:
    """A dict of the same type as `value`."""
    return _make_dict(type(value), getattr(value, "default_factory", None), pairs)


def is_tuple(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return type(value) is tuple or (torch is not None and type(value) is torch.Size)


def _make_dict(kind: type[dict[Any, Any]], factory: Any, pairs: Iterable[tuple[Any, Any]]) -> Any:
    if kind is defaultdict:
        return defaultdict(factory, pairs)
    return kind(dict(pairs))  # a Counter would count the pairs


def _flatten(value: Any, path: str, leaves: list[Leaf]) -> Any:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    kind = type(value)
    if torch is not None and isinstance(value, torch.Tensor):
        return {"tensor": _add(leaves, _tensor(value, path))}
    if numpy is not None and kind is numpy.ndarray:
        return {"array": _add(leaves, _array(value, path))}
    if numpy is not None and isinstance(value, numpy.generic):
        return {"scalar": _add(leaves, _array(numpy.asarray(value), path))}
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind is complex:
        return {"complex": [_flatten(value.real, path, leaves), _flatten(value.imag, path, leaves)]}
    if kind is SliceName:
        return {"slice": [value.name, value.rank]}
    if kind is bytes:
        return {"bytes": _add(leaves, Leaf("{}", Buffer.of(value)))}
    if kind is list:
        return [_flatten(item, f"{path}[{i}]", leaves) for i, item in enumerate(value)]
    if is_tuple(value):
        return {"tuple": [_flatten(item, f"{path}[{i}]", leaves) for i, item in enumerate(value)]}
    if not is_dict(value):
        raise TypeError(f"{path} is a {kind.__name__}, which cannot be saved{_hint(value)}")
    pairs = [
        [_flatten(key, f"{path}'s key", leaves), _flatten(item, f"{path}[{key!r}]", leaves)] for key, item in value.items()
    ]
    if kind is defaultdict:
        return {"default": [_factory(value.default_factory, path), pairs]}
    return {_DICT_KINDS[kind]: pairs}


def _factory(factory: Any, path: str) -> str | None:
    if factory is None:
        return None
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is not factory:
        raise TypeError(f"{path} is a defaultdict of {factory!r}, which cannot be saved: save dict(it)")
    return str(name)


def _hint(value: Any) -> str:
    """What to save in its place."""
    if isinstance(value, enum.Enum):
        return ": save its .value"
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return ": save its _asdict()"
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        masked = isinstance(value, numpy.ma.MaskedArray)
        return ": save its .data and .mask" if masked else ": save numpy.array(it)"
    if isinstance(value, (set, frozenset)):
        return ": save sorted(it)"
    plain = (dict, list, tuple, int, float, complex, str, bytes)
    base = bytes if isinstance(value, bytearray) else next((kind for kind in plain if isinstance(value, kind)), None)
    return "" if base is None else f": save {base.__name__}(it)"


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
    if value.is_meta:
        raise ValueError(f"{path} is a tensor on the meta device, which has no data to save")
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
    """Puts a state together again, copying the leaves. Raises Corrupt for what flatten would not have written.

    What this machine lacks for a good one is another error: MemoryError or PyTorch's RuntimeError, ImportError, and
    MusterError for a type that its PyTorch or numpy does not have.
    """
    try:
        structure = entries(STRUCTURE)
        form = json.loads(structure.meta)
        if form != json.loads(META):
            raise ValueError(f"unknown format {form}")
        return unflatten_text(structure.content(), entries)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as why:
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
    if kind in _DICTS:
        return _make_dict(_DICTS[kind], None, _pairs(value, entries))
    if kind == "default":
        factory, pairs = value
        return _make_dict(defaultdict, None if factory is None else _FACTORIES[factory], _pairs(pairs, entries))
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
    if kind not in ("bytes", "tensor", "array", "scalar"):
        raise ValueError(f"unknown kind {kind!r}, which a newer version of this package may have")
    entry = entries(str(int(value)))
    if kind == "bytes":
        return entry.content()
    if kind == "tensor":
        return _read_tensor(json.loads(entry.meta), entry)
    array = _read_array(json.loads(entry.meta), entry)
    return array[()] if kind == "scalar" else array


def _pairs(pairs: Any, entries: Entries) -> Iterable[tuple[Any, Any]]:
    return ((_unflatten(key, entries), _unflatten(item, entries)) for key, item in pairs)


def _read_tensor(meta: dict[str, Any], entry: Entry) -> Any:
    import torch

    dtype = torch_dtype(meta["dtype"], "a tensor of the checkpoint")
    shape = _shape(meta, torch.empty(0, dtype=dtype).element_size(), entry.bytes)
    tensor = torch.empty(shape, dtype=dtype)
    if entry.bytes:
        entry.fill(tensor.data_ptr())
    return tensor


def torch_dtype(name: Any, what: str) -> Any:
    """PyTorch's type of that name. MusterError where `what` may have it of a newer one."""
    import torch

    dtype = getattr(torch, name, None)
    if dtype is None:
        raise MusterError(INVALID, f"{what} is of type {name!r}, which PyTorch {torch.__version__} does not have")
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no type")
    return dtype


def _read_array(meta: dict[str, Any], entry: Entry) -> Any:
    import numpy

    name = meta["dtype"]
    try:
        dtype = numpy.dtype(name)
    except TypeError:
        what = f"an array of the checkpoint is of type {name!r}, which numpy {numpy.__version__} does not have"
        raise MusterError(INVALID, what) from None
    if dtype.hasobject:
        raise ValueError(f"an array of {name!r} cannot have been saved")
    array = numpy.empty(_shape(meta, dtype.itemsize, entry.bytes), dtype=dtype)
    if entry.bytes:
        entry.fill(array.ctypes.data)
    return array


def _shape(meta: dict[str, Any], bytes_each: int, size: int) -> list[int]:
    shape = meta["shape"]
    if any(type(n) is not int or n < 0 for n in shape) or math.prod(shape) * bytes_each != size:
        raise ValueError(f"{size} bytes cannot have the shape {shape} of elements of {bytes_each} bytes")
    return list(shape)


def without_structure(entries: Mapping[str, Entry]) -> MusterError:
    """Why a shard that has no structure is not one of this package's states, and what reads it."""
    if "muster.torch/state" in entries:
        return MusterError(INVALID, "the checkpoint was saved by muster.torch.save: muster.torch.load reads it")
    if any(name.startswith("dcp/") for name in entries):
        what = "the checkpoint was saved by muster.torch.StorageWriter: muster.torch.StorageReader reads it"
        return MusterError(INVALID, what)
    if all(entry.meta.startswith("muster-slice/") for entry in entries.values()):
        what = "this member's part of the checkpoint consists of slices: Gang.restore_slices reads what Gang.save_slices"
        return MusterError(INVALID, what + " has saved, muster.torch.StorageReader what StorageWriter has")
    return Corrupt(CORRUPT, "the checkpoint is not one that this package has written: it has no structure")
