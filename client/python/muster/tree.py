"""States as a structure (JSON) and leaves (slices), without pickle: reading a checkpoint runs no code of it.

A state consists of dicts (keys of any kind below that is hashable), OrderedDicts, Counters, defaultdicts (of a plain
type), lists, tuples, None, bool, int, float, complex, str, bytes, torch tensors (dense, also distributed ones), arrays of
JAX (also sharded ones), numpy arrays and scalars (of plain types, and of the package ml_dtypes). Of exactly these types: a namedtuple, an Enum or another class made of one of them would
come back as something else, and is refused. A dict's order is kept. Tensors come back on the CPU and without gradients, a
torch.Size as a tuple, an array of JAX as numpy's. No package is imported unless such a leaf is there. A leaf is called by its path, as in
"/model/layers.0.weight": docs/formats.md, section 6.
"""

from __future__ import annotations

import enum
import hashlib
import json
import math
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

from .errors import Corrupt, Invalid
from .slices import is_jax_array

STRUCTURE = "structure"
MARK = b"muster-tree/1\n"
NAME_MAX = 255  # MUSTER_NAME_MAX
LEAVES = ("tensor", "array", "scalar", "bytes")
_DICTS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_DICT_KINDS = {kind: name for name, kind in _DICTS.items()}
_FACTORIES = {kind.__name__: kind for kind in (bool, int, float, complex, str, bytes, list, tuple, dict, set)}


@dataclass
class Leaf:
    """What is saved as slices, and how the structure says it: its name, and who has it (None: whoever)."""

    value: Any
    place: list[Any]


ReadLeaf = Callable[[str, str, Optional[int]], Any]  # kind, name, who has it


def flatten(state: Any) -> tuple[Any, dict[str, Leaf]]:
    """Gives the structure and the leaves by their names. TypeError names the path of what cannot be saved."""
    leaves: dict[str, Leaf] = {}
    return _flatten(state, "", leaves), leaves


def encode(structure: Any) -> bytes:
    return MARK + json.dumps(structure, separators=(",", ":")).encode()


def decode(text: bytes) -> Any:
    """The structure. Raises Corrupt for what encode(flatten()) would not have written."""
    if not text.startswith(MARK):
        raise Corrupt(f"the checkpoint's structure is of an unknown format: it begins with {text[:20]!r}")
    try:
        structure = json.loads(text[len(MARK) :])
        if kind_of(structure)[0] != "dcp":
            unflatten(structure, lambda kind, name, rank: None)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as why:
        raise Corrupt(f"the checkpoint's structure is not one that this package has written: {why!r}") from why
    return structure


def join(path: str, key: object) -> str:
    return f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"


def name_of(path: str) -> str:
    """The name of a leaf: its path, or a digest of one that cannot be a name."""
    raw = path.encode(errors="surrogatepass")
    if len(raw) > NAME_MAX or not path.isprintable():
        return f"/~x{hashlib.sha256(raw).hexdigest()}"
    return path or "/"


def kind_of(node: Any) -> tuple[str, Any]:
    """Of a structure's node: list, value (which stands for itself), or the one key of an object; and what belongs to it."""
    if isinstance(node, list):
        return "list", node
    if not isinstance(node, dict):
        return "value", node
    ((kind, value),) = node.items()
    return kind, value


def pairs_of(node: Any) -> list[Any] | None:
    """The pairs of a dict's node, None of another's."""
    kind, value = kind_of(node)
    pairs: list[Any] | None = value[1] if kind == "default" else value if kind in _DICTS else None
    return pairs


def _flatten(value: Any, path: str, leaves: dict[str, Leaf]) -> Any:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    kind = type(value)
    if torch is not None and isinstance(value, torch.Tensor):
        return _leaf("tensor", value, path, leaves)
    if numpy is not None and kind is numpy.ndarray:
        return _leaf("array", value, path, leaves)
    if numpy is not None and isinstance(value, numpy.generic):
        return _leaf("scalar", numpy.asarray(value), path, leaves)
    if kind is bytes:
        return _leaf("bytes", value, path, leaves)
    if is_jax_array(value):
        return _leaf("array", value, path, leaves)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind is complex:
        return {"complex": [_flatten(value.real, path, leaves), _flatten(value.imag, path, leaves)]}
    if kind is list:
        return [_flatten(item, join(path, i), leaves) for i, item in enumerate(value)]
    if kind is tuple or (torch is not None and kind is torch.Size):
        return {"tuple": [_flatten(item, join(path, i), leaves) for i, item in enumerate(value)]}
    if kind not in _DICT_KINDS and kind is not defaultdict:
        raise TypeError(f"{path or '/'!r} is a {kind.__name__}, which cannot be saved{_hint(value)}")
    pairs = [
        [_flatten(key, f"{path}/~k{i}", leaves), _flatten(item, join(path, key), leaves)]
        for i, (key, item) in enumerate(value.items())
    ]
    if kind is defaultdict:
        return {"default": [_factory(value.default_factory, path), pairs]}
    return {_DICT_KINDS[kind]: pairs}


def _leaf(kind: str, value: Any, path: str, leaves: dict[str, Leaf]) -> Any:
    name = name_of(path)
    if name in leaves:
        raise ValueError(f"two leaves of the state are called {name!r}")
    leaves[name] = Leaf(value, [name, None])
    return {kind: leaves[name].place}


def _factory(factory: Any, path: str) -> str | None:
    if factory is None:
        return None
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is not factory:
        raise TypeError(f"{path or '/'!r} is a defaultdict of {factory!r}, which cannot be saved: save dict(it)")
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


def unflatten(node: Any, leaf: ReadLeaf) -> Any:
    """Puts a state together again. Its errors, where it is not as flatten has made it, are those of Python."""
    kind, value = kind_of(node)
    if kind == "value":
        return value
    if kind == "list":
        return [unflatten(item, leaf) for item in value]
    if (pairs := pairs_of(node)) is not None:
        made = empty_dict(node)
        for key, item in pairs:
            made[unflatten(key, leaf)] = unflatten(item, leaf)
        return made
    if kind == "tuple":
        return tuple(unflatten(item, leaf) for item in value)
    if kind == "float":
        return float(value)
    if kind == "complex":
        real, imaginary = value
        return complex(unflatten(real, leaf), unflatten(imaginary, leaf))
    if kind == "dcp":
        what = "the checkpoint was saved by muster.torch.StorageWriter: muster.torch.StorageReader reads it"
        raise Invalid(what)
    if kind not in LEAVES:
        raise ValueError(f"unknown kind {kind!r}, which a newer version of this package may have")
    name, rank = value
    return leaf(kind, str(name), None if rank is None else int(rank))


def empty_dict(node: Any) -> Any:
    """A dict of the type of the node's, for its pairs."""
    kind, value = kind_of(node)
    if kind == "default":
        factory, _ = value
        return defaultdict(None if factory is None else _FACTORIES[factory])
    return _DICTS[kind]()
