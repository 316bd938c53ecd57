"""What a Gang is without Muster: its checkpoints are files in a directory. It calls nothing of libmuster.

    DIRECTORY/step-120/rank00000-of-00002.safetensors

`muster checkpoint import` takes the files. A checkpoint is committed when all of its members' files are there. What a member finds
of its own in others, as it begins, is of a run that was killed, and goes. The newest three stay, and the one that it has begun from.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ._library import LATEST, CWish, Entry, Handle, Restore, _name, _step
from ._shard_file import ShardFile, both, box_of, lay_out, without, write
from .errors import Invalid, NotFound, StoreError, TimedOut, TooLarge
from .slices import ANY_RANK, Described, SliceInfo

_KEPT = 3
_POLL = 0.005  # seconds
_VALUE_MAX = 4096  # MUSTER_EXCHANGE_VALUE_MAX
_FILE = re.compile(r"rank(\d{5,})-of-(\d{5,})\.safetensors")
# Of members that are started together: the same for all of them, and another one for those that come after.
_GROUP = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
_openings: defaultdict[tuple[Path, int], Iterator[int]] = defaultdict(lambda: itertools.count(1))


class Local:
    """In the place of _library.Library, for one member."""

    def __init__(self, directory: Path, rank: int, world_size: int, end: Callable[[], None] = lambda: None) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"there is no rank {rank} of {world_size}")
        self._directory, self._rank, self._world_size, self._end = directory, rank, world_size, end
        directory.mkdir(parents=True, exist_ok=True)
        self._restore_step = self._latest()
        self._generation = next(_openings[directory.resolve(), rank])  # in this process
        self._entered = -1
        self._asked: tuple[int | None, bool, bool, bytes] | None = None  # the step, once one has been entered
        self._exchanged: set[str] = set()
        self._saving: tuple[int, dict[str, tuple[str, bytes]]] | None = None  # the step, and metadata and content by entry
        self._saved: dict[int, bool | None] = {}  # by step: whether it is committed; None: not yet
        self._shards: tuple[int, list[ShardFile | None]] = (-1, [])
        self._open: dict[int, ShardFile] = {}
        self._numbers = itertools.count(1)
        for step in self._uncommitted():
            self._remove(step, [self._path(step)])
        for value in directory.glob(f".exchange/*/*/{rank}"):
            value.unlink(missing_ok=True)

    def open(self) -> Handle:
        return Handle()

    def close(self, handle: Handle) -> None:
        self._saving, self._shards = None, (-1, [])
        self._end()

    def number(self, handle: Handle, name: str) -> int:
        if name in ("restore_step", "committed"):
            step = self._restore_step if name == "restore_step" else self._latest()
            return LATEST if step is None else step
        return {"rank": self._rank, "world_size": self._world_size, "generation": self._generation}[name]

    def ask(self, save: bool, exit: bool, reason: str) -> None:
        """What the next step to be entered is answered with."""
        self._asked = None, save, exit, reason.encode()

    def stepper(self, wish: CWish) -> Callable[[Handle, int], None]:
        def step(handle: Handle, n: int) -> None:
            wish.save, wish.exit, wish.reason = 0, 0, None
            if self._asked is not None:
                at, save, exit, reason = self._asked
                if at is None and n > self._entered:
                    at, self._asked = n, (n, save, exit, reason)
                if at == n:
                    wish.save, wish.exit, wish.reason = save, exit, reason
            self._entered = max(self._entered, n)

        return step

    def exchange(self, handle: Handle, key: str, value: bytes, timeout_ms: int) -> list[bytes]:
        if not re.fullmatch(r"[!-~]{1,63}", key):
            raise Invalid(f"{key!r} is no key: keys have 1 to 63 visible characters")
        if key in self._exchanged:
            raise Invalid(f"the key {key} was used before in this generation")
        if len(value) > _VALUE_MAX:
            raise TooLarge(f"the value of {key} has {len(value)} bytes; up to {_VALUE_MAX} are allowed")
        group = repr([os.environ.get(name) for name in _GROUP] + [self._generation])
        place = self._directory / ".exchange" / hashlib.sha256(group.encode()).hexdigest()[:16] / key.encode().hex()
        if not (place / str(self._rank)).exists():  # what this member has given stands
            write(place / str(self._rank), [value])
        deadline = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000
        files = [place / str(rank) for rank in range(self._world_size)]
        while missing := [file.name for file in files if not file.exists()]:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimedOut(f"the key {key} is not complete: nothing from rank {', '.join(missing)}")
            time.sleep(_POLL)
        self._exchanged.add(key)
        return [file.read_bytes() for file in files]

    def save_begin(self, handle: Handle, step: int, hint: int) -> None:
        if self._saving is not None:
            raise Invalid("a save has begun already")
        if self._restore_step is not None and step <= self._restore_step:
            raise Invalid(f"step {step} is not above step {self._restore_step}, which {self._directory} had when this Gang began")
        newest = max(self._saved, default=None)
        if newest is not None and (step < newest or (step == newest and step in self._committed())):
            raise Invalid(f"step {step} is not above step {newest}, which was saved before")
        self._saving = _step(step), {}

    def save_add_slice(self, handle: Handle, name: str, part: Described) -> None:
        if self._saving is None:
            raise Invalid("no save has begun")
        if any(ord(character) < 32 or ord(character) == 127 for character in name) or not _name(name):
            raise Invalid(f"{name!r} is no name: it has control characters")
        if any(first + length > whole for first, length, whole in zip(part.offset, part.shape, part.global_shape)):
            raise Invalid(f"{name!r} goes beyond its global shape {part.global_shape}: {part.shape} from {part.offset} on")
        entries, number = self._saving[1], 0
        while (entry := name if number == 0 else f"{name}#{number}") in entries:
            number += 1
        dims = (",".join(map(str, n)) or "-" for n in (part.global_shape, part.offset, part.shape))
        meta = f"muster-slice/1 {part.dtype.decode()} {part.element_bytes} {number} {' '.join(dims)}\n"
        entries[entry] = meta, _content(part)

    def save_commit(self, handle: Handle) -> None:
        if self._saving is None:
            raise Invalid("no save has begun")
        step, entries = self._saving
        write(self._path(step), lay_out(step, self._rank, self._world_size, entries))
        self._saving, self._saved[step] = None, None
        committed = self._committed()
        kept = sorted(committed)[-_KEPT:]
        for old, members in committed.items():
            if old < kept[0] and old != self._restore_step:
                self._saved[old] = True
                self._remove(old, [self._path(old, rank, members) for rank in range(members)])
        for old in self._uncommitted():
            if kept and old < kept[0]:
                self._saved[old] = False
                self._remove(old, [self._path(old)])

    def save_abort(self, handle: Handle) -> None:
        self._saving = None

    def wait(self, handle: Handle, step: int, milliseconds: int) -> None:
        wanted = max(self._saved, default=None) if step == LATEST else step
        if wanted is None or wanted not in self._saved:
            raise NotFound("this Gang has saved nothing" if wanted is None else f"this Gang has not saved step {wanted}")
        committed = self._committed()
        # Another member removes this one's file when the step is committed only.
        if self._saved[wanted] or wanted in committed or (self._saved[wanted] is None and not self._path(wanted).exists()):
            self._saved[wanted] = True
        elif self._saved[wanted] is False or sum(newer > wanted for newer in committed) > 1:
            raise StoreError(f"the checkpoint of step {wanted} has failed: other members have not saved it")
        else:
            raise TimedOut(f"the checkpoint of step {wanted} is not committed yet: other members' shards are missing")

    def restore_open(self, handle: Handle, step: int, rank: int | None = None) -> Restore:
        found, members = self.restore_info(handle, step)
        if rank is None and members != self._world_size:
            raise Invalid(f"the checkpoint of step {found} has {members} members, the gang has {self._world_size}")
        restore = Restore(next(self._numbers))
        self._open[restore.value or 0] = self._shard(found, self._rank if rank is None else rank)
        return restore

    def restore_close(self, restore: Restore) -> None:
        self._open.pop(restore.value or 0, None)

    def entries(self, restore: Restore, locked: Callable[..., Any]) -> dict[str, Entry]:
        shard = self._open[restore.value or 0]

        def fill(start: int, size: int) -> Callable[[int], None]:
            return lambda address: locked(shard.copy, start, size, address)

        return {name: Entry(meta, fill(start, size)) for name, (meta, start, size) in shard.entries.items()}

    def restore_info(self, handle: Handle, step: int) -> tuple[int, int]:
        wanted = self._restore_step if step == LATEST else step
        if wanted is None:
            raise NotFound("there is no checkpoint that this generation starts from")
        if self._shards[0] != wanted:
            members = self._committed().get(wanted)
            if members is None:
                raise NotFound(f"there is no checkpoint of step {wanted} in {self._directory}")
            self._shards = wanted, [None] * members
        return wanted, len(self._shards[1])

    def slice_info(self, handle: Handle, step: int, name: str, first_rank: int | None) -> SliceInfo:
        found, members = self.restore_info(handle, step)
        for rank in self._in_order(members, first_rank):
            if (parts := self._shard(found, rank).parts.get(name)) is not None:
                return parts[0][0]
        raise NotFound(f"nobody saved {name!r} in the checkpoint of step {found}")

    def restore_slices(self, handle: Handle, step: int, wanted: list[tuple[str, Described]]) -> None:
        found, members = self.restore_info(handle, step)
        for name, part in wanted:
            info = SliceInfo(part.dtype.decode(), part.element_bytes, part.global_shape)
            target = box_of(part.offset, part.shape)
            ranks = self._in_order(members, None if part.first_rank == ANY_RANK else part.first_rank)
            shards = (self._shard(found, rank) for rank in ranks)
            left = [target]
            for shard, (was, source, start) in ((shard, one) for shard in shards for one in shard.parts.get(name, ())):
                if was != info:
                    raise Invalid(f"{name!r} is {was} in the checkpoint of step {found}, {info} here")
                for box in left:
                    if (inside := both(box, source)) is not None:
                        shard.copy_box(start, part.element_bytes, source, inside, target, part.buffer.address)
                left = [rest for box in left for rest in without(box, source)]
                if not any(all(box) for box in left):
                    break
            else:
                raise NotFound(f"nobody saved {name!r}, or not all of it, in the checkpoint of step {found}")

    def _in_order(self, members: int, first: int | None) -> list[int]:
        """Whom to look at first, and then: the member in this one's place, unless another one is named."""
        if first is not None and not 0 <= first < members:
            raise Invalid(f"{first} is no rank: the checkpoint has {members} members")
        first = self._rank * members // self._world_size if first is None else first
        return [first, *(rank for rank in range(members) if rank != first)]

    def _shard(self, step: int, rank: int) -> ShardFile:
        shards = self._shards[1]
        if not 0 <= rank < len(shards):
            raise Invalid(f"the checkpoint of step {step} has {len(shards)} members, and no rank {rank}")
        shard = shards[rank]
        if shard is None:
            shard = shards[rank] = ShardFile(self._path(step, rank, len(shards)), step, rank, len(shards))
        return shard

    # --- the directory

    def _path(self, step: int, rank: int | None = None, members: int | None = None) -> Path:
        rank, members = self._rank if rank is None else rank, self._world_size if members is None else members
        return self._directory / f"step-{step}" / f"rank{rank:05}-of-{members:05}.safetensors"

    def _remove(self, step: int, files: list[Path]) -> None:
        with contextlib.suppress(OSError):  # another member does it, or somebody else's files are there
            for file in files:
                file.unlink(missing_ok=True)
            (self._directory / f"step-{step}").rmdir()

    def _latest(self) -> int | None:
        return max(self._committed(), default=None)

    def _committed(self) -> dict[int, int]:
        """The steps of which all files are there, and how many."""
        steps = {}
        for step, files in self._steps().items():
            for members in {of for _, of in files}:
                if all((rank, members) in files for rank in range(members)):
                    steps[step] = members
        return steps

    def _uncommitted(self) -> list[int]:
        """The steps that have a file of this member, but not all."""
        committed = self._committed()
        return [step for step, files in self._steps().items() if step not in committed and (self._rank, self._world_size) in files]

    def _steps(self) -> dict[int, set[tuple[int, int]]]:
        """By step, of which members of how many there are files."""
        steps: dict[int, set[tuple[int, int]]] = {}
        for name in self._names(self._directory):
            if re.fullmatch(r"step-(0|[1-9]\d*)", name) is not None:
                files = (_FILE.fullmatch(file) for file in self._names(self._directory / name))
                steps[int(name[5:])] = {(int(file[1]), int(file[2])) for file in files if file is not None}
        return steps

    @staticmethod
    def _names(directory: Path) -> list[str]:
        try:
            return os.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):  # another member has removed it, or it is none
            return []


def _content(part: Described) -> bytes:
    data, host = part.buffer.ready(), None
    if data.stream is not None:
        owner: Any = data.owner
        host = owner.cpu()
    return ctypes.string_at(host.data_ptr() if host is not None else data.address, data.size) if data.size else b""
