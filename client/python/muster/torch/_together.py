"""Saves and loads by all members together, through torch's process group: what fails on one of them fails on all."""

from __future__ import annotations

import contextlib
import functools
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import distributed

from .. import Gang, Restored, Save, tree
from .._parts import chunks, is_distributed
from ..slices import Described, Slice, describe, dtype_of, is_tensor, size_of

T = TypeVar("T")
_ROW = 1 << 16  # words of 32 bits of a tensor's content, each with a weight of its own
_ROWS = 16  # that are looked at at once: what a processor's cache, and a device that is nearly full, have room for
_STEP = 6364136223846793005  # odd
_told: set[str] = set()  # names of tensors that rank 0 has reported as different


def save(gang: Gang, state: Any, step: int, *, replicated: bool = False, block: bool = True) -> Save:
    """Saves `state` as this member's part of the checkpoint of `step`, as Gang.save does.

    All members call it, as they call a collective: where torch's default process group is there, an error of one of them is
    raised on all, also Busy with block=False. What cannot be saved is refused before anything is written.

    Of a ShardedTensor or DTensor each member saves its parts, of replicas one. A plain tensor is this member's own, all of
    it; with replicated=True, as under DDP, one that is the same (dtype, shape, content) on all members that have it is saved by
    one of them. Where it differs each member saves its own, as it saves all that is not a tensor; where most have the same,
    rank 0 says once on stderr who has not. To compare them takes about as long as to copy them.
    """
    parts: list[tuple[str, Described]] = []
    digests: dict[str, tuple[str, int]] = {}

    def prepare() -> tuple[Any, dict[str, tree.Leaf]]:
        structure, leaves = tree.flatten(state)
        parts.extend(describe(chunks(leaves)))
        for name, part in parts if replicated else ():
            if is_tensor(leaves[name].value) and not is_distributed(leaves[name].value):
                digests[name] = _digest(part.buffer.ready().owner), part.buffer.size
        if replicated and gang.world_size > 1 and not distributed.is_initialized():
            raise ValueError("replicated=True needs torch's process group, to know what all members have")
        return structure, leaves

    (structure, leaves), every = _together(gang, prepare, lambda _: digests)
    _tell_of_others(gang, every)
    for name, owner in _owners(every).items():
        if name in leaves and owner != gang.rank:
            leaves[name].place[1] = owner
    mine = [(name, part) for name, part in parts if leaves[name].place[1] is None]
    mine += describe([(tree.STRUCTURE, Slice(tree.encode(structure)))])

    with contextlib.ExitStack() as unless_copied:

        def copy() -> None:
            gang._begin(step, size_of(mine), block)
            unless_copied.callback(gang._abort)
            gang._add(mine)

        # Nobody hands over what not all have copied: the step may be saved again then.
        _together(gang, copy)
        unless_copied.pop_all()
    return _together(gang, gang._commit)[0]


def load(gang: Gang, into: Any = None, step: int | None = None, *, strict: bool = True) -> Restored | None:
    """Gives the state of the checkpoint this generation starts from (or of `step`), and its step; None when there is none.

    As Gang.restore, whatever number of members saved it; what is no tensor of `into` is as the member in this one's place
    had it. All members call it, and an error of one of them is raised on all, as by save.
    """
    return _together(gang, lambda: gang.restore(step, into=into, strict=strict, replicated=True))[0]


def _together(gang: Gang, work: Callable[[], T], shared: Callable[[T], Any] = lambda _: None) -> tuple[T, list[Any]]:
    """What the work gives here, and what is shared of it by all members. An error of any of them is raised on all."""
    done: list[T] = []
    error: Exception | None = None
    try:
        done.append(work())
    except Exception as why:
        error = why
    mine = None if error is not None else shared(done[0])
    every: list[Any] = [(mine, error)]
    if distributed.is_available() and distributed.is_initialized() and gang.world_size > 1:
        here, there = (gang.rank, gang.world_size), (distributed.get_rank(), distributed.get_world_size())
        if here != there:
            what = f"rank {here[0]} of {here[1]} in the gang, rank {there[0]} of {there[1]} in torch's process group"
            raise ValueError(f"this is {what}: they must be the same")
        every = [None] * gang.world_size
        distributed.all_gather_object(every, (mine, _portable(error)))
    if error is not None:
        raise error
    for rank, (_, theirs) in enumerate(every):
        if theirs is not None:
            raise theirs from RuntimeError(f"rank {rank} of the gang has failed so")
    return done[0], [value for value, _ in every]


def _portable(error: Exception | None) -> Exception | None:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _owners(every: list[dict[str, tuple[str, int]]]) -> dict[str, int]:
    """Who saves what is the same wherever it is: the same answer on every member, and about as many bytes for each."""
    loads = [0] * len(every)
    owners = {}
    sizes = {name: size for digests in every for name, (_, size) in digests.items()}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        having = [rank for rank, digests in enumerate(every) if name in digests]
        if len({every[rank][name] for rank in having}) == 1:
            owners[name] = min(having, key=lambda rank: loads[rank])
            loads[owners[name]] += sizes[name] + 64
    return owners


def _tell_of_others(gang: Gang, every: list[dict[str, tuple[str, int]]]) -> None:
    """Names, once for each tensor, the ranks whose tensor is not the one that most ranks have."""
    if gang.rank != 0:
        return
    for name in sorted({name for digests in every for name in digests} - _told):
        having = {rank: digests[name] for rank, digests in enumerate(every) if name in digests}
        counts = Counter(having.values())
        if len(counts) == 1:
            continue
        usual, count = counts.most_common(1)[0]
        others = [rank for rank, digest in having.items() if digest != usual]
        if 2 * count > len(having):
            _told.add(name)
            ranks = ", ".join(str(rank) for rank in others[:8]) + (", ..." if len(others) > 8 else "")
            print(f"muster: {name} is not the same on all members (rank {ranks}), so each saves its own", file=sys.stderr, flush=True)


@functools.cache
def _weights(device: torch.device) -> torch.Tensor:
    """The same odd numbers everywhere: those of a row's words, then those of a piece's rows."""
    random = torch.Generator("cpu").manual_seed(1)
    numbers = torch.randint(-(2**63), 2**63 - 1, (_ROW + _ROWS,), generator=random, dtype=torch.int64, device="cpu")
    return (numbers | 1).to(device)


def _digest(tensor: Any) -> str:
    """Of the type, the shape and the content: 64 bits, computed where the tensor is, at about the speed of a copy.

    A sum of all words of 32 bits, each times a weight, modulo 2^64. The weights are odd, so that two contents of which one word
    differs are never alike; of others hardly any are.
    """
    content = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)  # dense, but one element may have any stride
    weights = _weights(content.device)
    piece = 4 * _ROW * _ROWS
    total = torch.zeros((), dtype=torch.int64, device=content.device)
    for at in range(0, content.numel(), piece):
        part = content[at : at + piece]
        if part.storage_offset() % 4 or part.numel() % 4:
            part = torch.nn.functional.pad(part, (0, -part.numel() % 4))
        words = part.view(torch.int32)
        count = len(words) // _ROW
        rows = (words[: count * _ROW].view(count, _ROW) * weights[:_ROW]).sum(1)
        rest = words[count * _ROW :]  # no whole row
        total = total * _STEP + (rows * weights[_ROW : _ROW + count]).sum() + (rest * weights[: len(rest)]).sum() * weights[-1]
    return f"{dtype_of(tensor)} {tuple(tensor.shape)} {int(total.item()) & (2**64 - 1):016x}"
