"""A plain save and load of a nested state.

In the shard (all of it slices): `muster.torch/state`, JSON as of muster.tree, in which {"slice": [name, rank]} stands for a
tensor, rank null or whoever saved it; `muster.torch/leaf/N`, what {"bytes": N}, {"array": N} and {"scalar": N} stand for;
`tensor/PATH`, a part of a tensor.
"""

import json
import math
from typing import Any

import torch

from .. import Gang, tree
from ..errors import CORRUPT, Corrupt, NotFound
from ..slices import Slice
from ._parts import distributed

_STATE, _LEAF, _TENSOR = "muster.torch/state", "muster.torch/leaf/", "tensor/"
_FORMAT = {"format": "muster-torch", "version": 1}


def save(gang: Gang, state: Any, step: int, *, replicated: bool = False, block: bool = True) -> bool:
    """Saves `state` as this member's part of the checkpoint of `step`; gives False when block=False and two are under way.

    Of a ShardedTensor or DTensor each member saves its parts. A plain tensor is this member's own, all of it; with
    replicated=True, as under DDP, all members have the same plain tensors, and each is saved by one member only. What is
    not a tensor is each member's own all the same: save a generator's state so, as torch.get_rng_state().numpy().
    """
    slices: dict[str, list[Slice]] = {}
    plain: dict[str, int] = {}
    replaced = _replace(state, "", slices, plain)
    owners = _divide(plain, gang.world_size) if replicated else {}
    for name, owner in owners.items():
        if owner != gang.rank:
            del slices[name]
    structure, leaves = tree.flatten(_with_owners(replaced, owners))
    text = json.dumps(_FORMAT | {"leaves": [leaf.meta for leaf in leaves]}).encode() + b"\n" + structure
    slices[_STATE] = [Slice(text)]
    for number, leaf in enumerate(leaves):
        slices[f"{_LEAF}{number}"] = [Slice(leaf.buffer.content())]
    size = sum(_bytes_of(part.data) + 64 for parts in slices.values() for part in parts)
    return gang.save_slices(slices, step, bytes_hint=size, block=block)


def load(gang: Gang, into: Any = None, step: int | None = None) -> tuple[Any, int] | None:
    """Gives the state of the checkpoint this generation starts from (or of `step`), and its step; None when there is none.

    Tensors that `into` has at the same place are filled, this member's parts of distributed ones, and are those in the
    state; others come back whole, on the CPU. What is not a tensor is as the member in this one's place had it. It does
    not matter how many members saved it, or how tensors were divided among them.
    """
    found = gang.restore_info(step)
    if found is None:
        return None
    text = gang.restore_bytes(_STATE, found[0])
    if text is None:
        raise NotFound(-5, f"the checkpoint of step {found[0]} has no state that muster.torch.save has saved")
    try:
        head, _, structure = text.partition(b"\n")
        form = json.loads(head)
        if {key: form[key] for key in _FORMAT} != _FORMAT:
            raise ValueError(f"unknown format {form}")
        metas = [str(meta) for meta in form["leaves"]]
    except (KeyError, ValueError, TypeError) as why:
        raise _corrupt(why) from why
    leaves = {}
    for number, meta in enumerate(metas):
        data = gang.restore_bytes(f"{_LEAF}{number}", found[0])
        if data is None:
            raise _corrupt(f"leaf {number} is missing")
        leaves[str(number)] = tree.Entry.of(meta, data)
    try:
        state = tree.unflatten_text(structure, leaves.__getitem__)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as why:
        raise _corrupt(why) from why
    wanted: list[tuple[str, Slice]] = []
    state = _fill(gang, state, into, found[0], wanted)
    gang.restore_slices(wanted, found[0])
    return state, found[0]


def _corrupt(why: object) -> Corrupt:
    return Corrupt(CORRUPT, f"the checkpoint is not one that muster.torch has written: {why!r}")


def _replace(value: Any, path: str, slices: dict[str, list[Slice]], plain: dict[str, int]) -> Any:
    """The value with a SliceName in place of each tensor; their parts by name, and the sizes of plain ones."""
    if isinstance(value, torch.Tensor) or distributed(value) is not None:
        name = _TENSOR + path
        if name in slices:
            raise ValueError(f"two tensors of the state are called {path!r}")
        parts = distributed(value)
        if parts is None:
            plain[name] = value.numel() * value.element_size()
            parts = [Slice(value)]
        slices[name] = parts
        return tree.SliceName(name)
    # What is of another type is left to muster.tree, which names it.
    if tree.is_dict(value):
        return tree.like(value, [(key, _replace(item, _join(path, key), slices, plain)) for key, item in value.items()])
    if type(value) is list:
        return [_replace(item, _join(path, i), slices, plain) for i, item in enumerate(value)]
    if tree.is_tuple(value):
        return tuple(_replace(item, _join(path, i), slices, plain) for i, item in enumerate(value))
    return value


def _fill(gang: Gang, value: Any, into: Any, step: int, wanted: list[tuple[str, Slice]]) -> Any:
    """The value with tensors in place of SliceNames; what is to be restored into them is added to `wanted`."""
    if isinstance(value, tree.SliceName):
        parts = distributed(into)
        if parts is None and isinstance(into, torch.Tensor):
            parts = [Slice(into)]
        if parts is None:
            info = gang.slice_info(value.name, step, first_rank=value.rank)
            if info is None:
                raise NotFound(-5, f"nobody saved a part of {value.name!r} in the checkpoint of step {step}")
            into = torch.empty(info.global_shape, dtype=tree.torch_dtype(info.dtype, repr(value.name)))
            parts = [Slice(into)]
        for part in parts:
            wanted.append((value.name, Slice(part.data, part.global_shape, part.offset, value.rank)))
        return into
    if isinstance(value, dict):
        there = into if isinstance(into, dict) else {}
        return tree.like(value, [(key, _fill(gang, item, there.get(key), step, wanted)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        same = isinstance(into, (list, tuple)) and len(into) == len(value)
        filled = [_fill(gang, item, into[i] if same else None, step, wanted) for i, item in enumerate(value)]
        return filled if isinstance(value, list) else tuple(filled)
    return value


def _with_owners(value: Any, owners: dict[str, int]) -> Any:
    if isinstance(value, tree.SliceName):
        return tree.SliceName(value.name, owners.get(value.name))
    if tree.is_dict(value):
        return tree.like(value, [(key, _with_owners(item, owners)) for key, item in value.items()])
    if type(value) is list:
        return [_with_owners(item, owners) for item in value]
    if type(value) is tuple:
        return tuple(_with_owners(item, owners) for item in value)
    return value


def _divide(sizes: dict[str, int], members: int) -> dict[str, int]:
    """Who saves which: the same answer on every member, and about as many bytes for each."""
    loads = [0] * members
    owners = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owners[name] = loads.index(min(loads))
        loads[owners[name]] += sizes[name] + 64
    return owners


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _bytes_of(data: Any) -> int:
    return math.prod(data.shape) * data.element_size() if isinstance(data, torch.Tensor) else len(data)
