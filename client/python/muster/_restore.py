"""A state out of a checkpoint: by one member's structure, from a shard that is open and from all members' slices."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Optional

from . import _jax, tree
from ._library import Entry
from ._parts import parts
from .errors import Invalid, NotFound
from .slices import Described, Slice, SliceInfo, check_jax_type, dtype_of, is_array, is_tensor, numpy_dtype, to_restore, torch_dtype

_NOTHING: Any = object()  # in place of a target that is not there, or of a node that the structure does not have
_MOST_NAMED = 20
Info = Callable[[str, Optional[int]], Optional[SliceInfo]]
Fill = Callable[[list[tuple[str, Described]]], None]


class Reading:
    """One restore of a step, by the entries of the shard that is open (None: none is), slice_info and restore_slices."""

    def __init__(self, step: int, entries: dict[str, Entry] | None, info: Info, fill: Fill) -> None:
        self._step, self._open = step, entries is not None
        self._slice_info, self._fill_slices = info, fill
        self._infos: dict[str, SliceInfo] = {}
        self._own: dict[Any, Callable[[int], None]] = {}
        for entry, found in (entries or {}).items():
            if (part := found.slice_of(entry)) is not None:
                self._infos[part[0]] = part[1]
                self._own[part] = found.fill
        self._rank: int | None = None
        self._wanted: list[tuple[str, Described]] = []
        self._missing: list[str] = []
        self._wrong: list[str] = []
        self._has_targets = False

    def structure(self, rank: int | None) -> Any:
        """That of the open shard, else of whoever has one: `rank` first (None: the member in this one's place)."""
        if self._info(tree.STRUCTURE, rank) is not None:
            node = tree.decode(self.leaf("bytes", tree.STRUCTURE, rank))
            if not self._open or tree.STRUCTURE in self._infos or tree.kind_of(node)[0] == "dcp":
                return node
        what = f"the checkpoint of step {self._step} has no state of this member, as Gang.save and muster.torch.save save it"
        raise Invalid(f"{what}: Gang.restore_slices reads slices")

    def state(self, rank: int | None, into: Any, strict: bool) -> Any:
        """The state as the structure of `rank` says, with what `into` has filled; nothing is filled before all is checked."""
        self._rank = rank
        state = self._state(self.structure(rank), _NOTHING if into is None else into, "")
        failed = [*self._wrong, *(self._missing if strict or self._wrong else ())]
        if failed:
            more = f" and {len(failed) - _MOST_NAMED} more" if len(failed) > _MOST_NAMED else ""
            text = f"the checkpoint of step {self._step} does not have what is to be restored: {'; '.join(failed[:_MOST_NAMED])}{more}"
            raise Invalid(text) if self._wrong else NotFound(text)
        self._fill(self._wanted)
        return _made(state) if self._has_targets else state

    def _state(self, node: Any, into: Any, path: str) -> Any:
        if is_tensor(into) or is_array(into) or _jax.is_target(into):
            return self._target(node, into, path)
        if isinstance(into, dict):
            return self._dict(node, into, path)
        if isinstance(into, (list, tuple)):
            return self._list(node, into, path)
        if node is not _NOTHING:
            return tree.unflatten(node, self.leaf)
        self._missing.append(f"{path!r} is missing")
        return into

    def _dict(self, node: Any, into: Any, path: str) -> Any:
        pairs = [] if node is _NOTHING else tree.pairs_of(node)
        if pairs is None:
            return self._differs(node, into, path)
        saved = {tree.unflatten(key, self.leaf): item for key, item in pairs}
        state = copy.copy(into) if node is _NOTHING else tree.empty_dict(node)
        for key in [*saved, *(key for key in into if key not in saved)]:
            state[key] = self._state(saved.get(key, _NOTHING), into.get(key, _NOTHING), tree.join(path, key))
        return state

    def _list(self, node: Any, into: Any, path: str) -> Any:
        kind, items = ("tuple" if isinstance(into, tuple) else "list", []) if node is _NOTHING else tree.kind_of(node)
        if kind not in ("list", "tuple"):
            return self._differs(node, into, path)
        if len(items) > len(into):
            self._missing.append(f"{path or '/'!r} has {len(items)} items in the checkpoint, {len(into)} here")
        both = enumerate(zip_longest(items, into, fillvalue=_NOTHING))
        state = [self._state(item, target, tree.join(path, i)) for i, (item, target) in both]
        return tuple(state) if kind == "tuple" else state

    def _differs(self, node: Any, into: Any, path: str) -> Any:
        self._wrong.append(f"{path or '/'!r} is a {tree.kind_of(node)[0]} in the checkpoint, a {type(into).__name__} here")
        return into

    def _target(self, node: Any, into: Any, path: str) -> Any:
        """A tensor or an array of `into` is to be filled, whoever has saved it. One of JAX, which never changes, is made anew."""
        name, rank = tree.name_of(path), self._rank
        if _jax.is_target(into):
            check_jax_type(name, into)
        if node is not _NOTHING:
            kind, value = tree.kind_of(node)
            if kind not in tree.LEAVES:
                return self._differs(node, into, path)
            name, rank = value[0], rank if value[1] is None else value[1]
        info = self._info(name, rank)
        if info is None:
            self._missing.append(f"{name!r} is missing")
        elif (info.dtype, info.global_shape) != (dtype_of(into), tuple(into.shape)):
            was = f"is {info.dtype} of shape {info.global_shape} in the checkpoint"
            self._wrong.append(f"{name!r} {was}, {dtype_of(into)} of shape {tuple(into.shape)} here")
        else:
            target = _jax.Target(name, into) if _jax.is_target(into) else None
            here = parts(name, into) if target is None else target.slices
            self._wanted += [(name, to_restore(name, replace(p, first_rank=rank))) for p in here]
            self._has_targets = self._has_targets or target is not None
            return target or into
        return into

    def leaf(self, kind: str, name: str, rank: int | None) -> Any:
        """The whole of one, in new memory."""
        rank = self._rank if rank is None else rank
        info = self._info(name, rank)
        if info is None:
            raise NotFound(f"nobody saved {name!r} in the checkpoint of step {self._step}")
        value: Any
        if kind == "bytes":
            value = bytearray(info.global_shape[0])
        elif kind == "tensor":
            import torch

            value = torch.empty(info.global_shape, dtype=torch_dtype(info.dtype, name), device="cpu")
        else:
            import numpy

            value = numpy.empty(info.global_shape, numpy_dtype(info.dtype, name))
        wanted = name, to_restore(name, Slice(value, first_rank=rank))
        if kind in ("tensor", "array"):
            self._wanted.append(wanted)
            return value
        self._fill([wanted])
        return bytes(value) if kind == "bytes" else value[()]

    def _info(self, name: str, rank: int | None) -> SliceInfo | None:
        return self._infos.get(name) or self._slice_info(name, rank)

    def _fill(self, wanted: list[tuple[str, Described]]) -> None:
        others = []
        for name, part in wanted:
            info = SliceInfo(part.dtype.decode(), part.element_bytes, part.global_shape)
            fill = self._own.get((name, info, part.offset, part.shape))
            if fill is None:
                others.append((name, part))
            elif part.buffer.size:
                fill(part.buffer.address)
        if others:
            self._fill_slices(others)
        for _, part in wanted:
            if part.done is not None:
                part.done()


def _made(state: Any) -> Any:
    """The state with its arrays of JAX. Its dicts and lists are of this restore."""
    if isinstance(state, _jax.Target):
        return state.make()
    if isinstance(state, tuple):
        return tuple(_made(item) for item in state)
    if isinstance(state, (dict, list)):
        for key, item in state.items() if isinstance(state, dict) else enumerate(state):
            state[key] = _made(item)
    return state
