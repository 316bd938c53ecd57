"""Muster for Python programs: progress, checkpoints and restores of a member of a gang.

    import muster

    gang = muster.open()                      # muster.NotInGang outside of a gang
    start = 0                                 # how many steps are done
    found = gang.restore()                    # (state, step) of the newest verified checkpoint, or None
    if found is not None:
        state, start = found
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for step in range(start + 1, steps + 1):
        train()
        gang.progress(step)
        if step % 100 == 0 or step == steps:
            gang.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)
    gang.wait()                               # until the last one is committed; nothing saved, nothing to wait for

A save copies into shared memory and returns; musterd writes it to the store meanwhile. Every member saves its own state
under the same step, and the checkpoint is committed when all of them are durable. Nothing is pickled: see muster.tree
for what a state may consist of. What a gang of another size is to restore part by part is saved as slices (muster.slices),
which muster.torch does for PyTorch's states. A Gang may be used by several threads, one save at a time, and not in a
forked process.

In a gang, importing this registers a faulthandler on a real-time signal, by which Muster sees where a program hangs;
MUSTER_PYTHON_STACKS=0 in the environment prevents that.
"""

import contextlib
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from . import _stacks, tree
from ._library import LATEST, Handle, Library, Restore, library
from .errors import INVALID, Busy, Corrupt, Denied, MusterError, NotFound, NotInGang, TimedOut, TooLarge, Unreachable
from .slices import ANY_RANK, Slice, SliceInfo, Slices, each, to_restore, to_save

__all__ = [
    "Busy",
    "Corrupt",
    "Denied",
    "Gang",
    "MusterError",
    "NotFound",
    "NotInGang",
    "Slice",
    "SliceInfo",
    "TimedOut",
    "TooLarge",
    "Unreachable",
    "open",
    "tree",
]

T = TypeVar("T")
P = ParamSpec("P")
_POLL, _LONGEST_POLL = 0.0005, 0.005  # seconds
_NESTED = (
    "a call of this Gang is in progress on this thread, and a signal handler (or a finalizer) has made another: "
    "set a flag there, and save in the loop"
)
_ONE_BUFFER = "there is room for one only"  # as the library says it, and then which limit it is
_ONE_GANG = (
    "a member has one Gang at a time: use the one that this program has, or close() it first "
    "(or another process of this task has it)"
)


class Gang:
    """This member's connection to its node's musterd.

    A call that is made while the same thread is in another one of this Gang, as a signal's handler or a finalizer may,
    raises MusterError and does nothing: the one below it would wait for it for ever. A handler of SIGTERM sets a flag,
    and the loop saves; should_exit() is such a flag, which Muster sets.

    A member has one. It closes at the end of a `with`, by close(), or when nothing refers to it any more.
    """

    def __init__(self) -> None:
        self._library: Library = library()
        self._lock = threading.RLock()  # a handler that runs before or behind the call itself may go ahead
        self._inside = False  # the lock's owner is in a call
        self._handle: Handle | None = self._open()
        # At the interpreter's end other threads may be in a call still; the process's end closes it then.
        self._end = weakref.finalize(self, self._library.close, self._handle)
        self._end.atexit = False
        self._tell_again = 0.0  # when a wait may be told of
        self._saved = False  # there may be something to wait for

    def _open(self) -> Handle:
        try:
            return self._library.open()
        except MusterError as why:
            if why.code == INVALID and "is open already" in str(why):
                raise MusterError(INVALID, f"{why}: {_ONE_GANG}") from None
            raise

    def close(self) -> None:
        """Closes the connection. Saves in flight go on in musterd; wait() first to know how they end."""
        self._locked(self._close)

    def _close(self) -> None:
        if self._handle is not None:
            self._handle = None
            self._end()

    def __enter__(self) -> "Gang":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _locked(self, function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Calls what uses the library; one thread at a time, and one call of a thread."""
        with self._lock:
            if self._inside:
                raise MusterError(INVALID, _NESTED)
            try:
                self._inside = True
                return function(*arguments, **options)
            finally:
                self._inside = False

    def _call(self, function: Callable[Concatenate[Handle, P], T], *arguments: P.args, **options: P.kwargs) -> T:
        """Calls a function of the library that takes the handle."""

        def call() -> T:
            if self._handle is None:
                raise ValueError("this Gang has been closed")
            return function(self._handle, *arguments, **options)

        return self._locked(call)

    @property
    def rank(self) -> int:
        return self._call(self._library.rank)

    @property
    def world_size(self) -> int:
        return self._call(self._library.world_size)

    @property
    def generation(self) -> int:
        return self._call(self._library.generation)

    @property
    def restore_step(self) -> int | None:
        """The step this generation starts from: the same on every member. None: from the beginning."""
        return _step(self._call(self._library.restore_step))

    @property
    def committed(self) -> int | None:
        """The newest step known to be committed."""
        return _step(self._call(self._library.committed))

    def progress(self, step: int) -> None:
        """Says that this member has entered `step`. Cheap enough for every step: musterd reads it from shared memory.

        Muster learns from it how long a step takes, finds a gang that hangs and who hangs it, and marks members that
        are slower than the rest. Call it where a step's own work is done and the wait for the other members begins. In
        a long phase without steps call it now and then with the same step: it says that the member goes on.
        """
        self._call(self._library.progress, step)

    def should_checkpoint(self) -> bool:
        """Whether a checkpoint should be taken now.

        Not all members learn it at the same step, and all must save the same one: agree on it first, as on should_exit().

            wish = torch.tensor([gang.should_checkpoint(), gang.should_exit()], dtype=torch.int32)
            torch.distributed.all_reduce(wish, op=torch.distributed.ReduceOp.MAX)
            if wish.any():
                gang.save(state, step)
        """
        return self._call(self._library.should_checkpoint)

    def should_exit(self) -> bool:
        """Whether the program should save and exit (Slurm is about to end the job). See should_checkpoint()."""
        return self._call(self._library.should_exit)

    def save(self, state: Any, step: int, *, slices: Slices = (), block: bool = True) -> bool:
        """Saves `state` as this member's part of the checkpoint of `step`, and `slices` of tensors by their names.

        Waits while two earlier saves are still on their way; with block=False gives False then, and saves nothing:
        what the others save of that step fails once two newer checkpoints are committed.
        Tensors on an NVIDIA GPU are copied straight from there, in the order of their device's current stream.
        """
        structure, leaves = tree.flatten(state)
        entries: list[tuple[str, str, tree.Buffer]] = [(tree.STRUCTURE, tree.META, tree.Buffer.of(structure))]
        entries += [(str(i), leaf.meta, leaf.buffer) for i, leaf in enumerate(leaves)]
        parts = [(name, to_save(name, part)) for name, part in each(slices)]
        size = sum(buffer.bytes + 64 for _, _, buffer in entries) + sum(p.buffer.bytes + 64 for _, p in parts)

        def add() -> None:
            for name, meta, buffer in entries:
                self._call(self._library.save_add, name, meta, buffer)
            for name, part in parts:
                self._call(self._library.save_add_slice, name, part)

        return self._save(step, size, block, add)

    def save_slices(self, slices: Slices, step: int, *, bytes_hint: int = 0, block: bool = True) -> bool:
        """Saves parts of tensors, and nothing else, as this member's part of the checkpoint of `step`.

        They may come out of an iterator of names and slices, one after the other, so that what one needs in memory is
        free again when the next one comes.
        """

        def add() -> None:
            for name, part in each(slices):
                self._call(self._library.save_add_slice, name, to_save(name, part))

        return self._save(step, bytes_hint, block, add)

    def _tell_of_wait(self, step: int, waited: float, why: str) -> None:
        """As muster_save_begin does. `why`: what muster_save_begin_nowait said last."""
        now = time.monotonic()
        if waited < 1 or now < self._tell_again:
            return
        self._tell_again = now + 60
        _, room, limit = why.partition(_ONE_BUFFER)
        text = room + limit if room else "the store takes saves more slowly than they come"
        sentence = f"muster: rank {self.rank}: the save of step {step} waited {waited:.1f} s for a staging buffer: {text}"
        with contextlib.suppress(OSError, ValueError):  # a stderr that is full or closed is no reason not to save
            print(sentence, file=sys.stderr, flush=True)

    def _save(self, step: int, size: int, block: bool, add: Callable[[], None]) -> bool:
        began, why = time.monotonic(), ""
        while True:
            try:
                self._call(self._library.save_begin, step, size, False)
                break
            except Busy as busy:
                if not block:
                    return False
                why = str(busy)
            time.sleep(_POLL)  # other threads may use the connection meanwhile
        try:
            self._tell_of_wait(step, time.monotonic() - began, why)
            add()
            self._saved = True
            self._call(self._library.save_commit)
        except BaseException:
            self._call(self._library.save_abort)  # nothing, once it has been committed
            raise
        return True

    def wait(self, step: int | None = None, timeout: float | None = None) -> None:
        """Waits (at most `timeout` seconds) until the save of `step`, or the newest one, is committed by all members.

        Raises TimedOut when it is not yet, another MusterError when it has failed. Without `step` it returns at once
        when this Gang has saved nothing: a program that is resumed behind its last save has none to wait for.
        """
        if step is None and not self._saved:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _POLL
        while True:
            try:
                return self._call(self._library.wait, LATEST if step is None else step, 0)
            except TimedOut:
                if deadline is not None and time.monotonic() >= deadline:
                    raise
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_POLL)

    def restore_slices(self, slices: Slices, step: int | None = None) -> None:
        """Fills the data of `slices` with what was saved of them in the checkpoint this generation starts from (or `step`).

        It does not matter how many members saved it, and how it was divided among them. What is needed is read, no more,
        and verified; where there are many, ask for them in one call. Raises NotFound that names what nobody saved, or
        MusterError where it was saved with another type or shape.
        """
        wanted = [(name, to_restore(name, part)) for name, part in each(slices)]
        self._call(self._library.restore_slices, LATEST if step is None else step, wanted)
        for _, part in wanted:
            if part.done is not None:
                part.done()

    def slice_info(self, name: str, step: int | None = None, *, first_rank: int | None = None) -> SliceInfo | None:
        """What the tensor `name` is in a checkpoint; None when nobody saved it, or there is no checkpoint.

        `first_rank`: whose shard most likely has some of it.
        """
        rank = ANY_RANK if first_rank is None else first_rank
        try:
            return self._call(self._library.slice_info, LATEST if step is None else step, name, rank)
        except NotFound:
            return None

    def restore_bytes(self, name: str, step: int | None = None, *, first_rank: int | None = None) -> bytes | None:
        """Bytes that were saved as a slice; None when nobody saved them, or there is no checkpoint."""
        info = self.slice_info(name, step, first_rank=first_rank)
        if info is None:
            return None
        data = bytearray(math.prod(info.global_shape))
        self.restore_slices({name: Slice(data, first_rank=first_rank)}, step)
        return bytes(data)

    def restore(self, step: int | None = None, *, replicated: bool = False) -> tuple[Any, int] | None:
        """Gives this member's state of the checkpoint this generation starts from (or of `step`), and its step.

        None when there is no checkpoint. All of it has been verified. Tensors are on the CPU. A checkpoint that was
        saved by another number of members has no state of this one and raises MusterError; if every member saves the
        same, as under DDP, replicated=True takes one of theirs then. Else see restore_shards.
        """
        wanted = LATEST if step is None else step
        try:
            if replicated:
                _, size = self._call(self._library.restore_info, wanted)
                return self._read(self._call(self._library.restore_open_shard, wanted, self.rank % size))
            return self._read(self._call(self._library.restore_open, wanted))
        except NotFound:
            return None

    def restore_info(self, step: int | None = None) -> tuple[int, int] | None:
        """The step of the checkpoint this generation starts from (or of `step`), and how many members saved it.

        None when there is no checkpoint. When the number is not this gang's world_size, see restore_shards.
        """
        try:
            return self._call(self._library.restore_info, LATEST if step is None else step)
        except NotFound:
            return None

    def restore_shard(self, rank: int, step: int | None = None) -> tuple[Any, int] | None:
        """Gives what the member `rank` saved, and the step; None when there is no checkpoint."""
        try:
            return self._read(self._call(self._library.restore_open_shard, LATEST if step is None else step, rank))
        except NotFound:
            return None

    def restore_shards(self, step: int | None = None) -> Iterator[Any]:
        """Gives the states that all members saved, by rank, one after the other: to be divided among more or fewer.

        Nothing when there is no checkpoint. Each is read and verified when its turn comes, so a member needs memory
        for one of them and for what it keeps.
        """
        found = self.restore_info(step)
        if found is None:
            return
        # The same checkpoint to the end, whatever `step` says.
        for rank in range(found[1]):
            yield self._read(self._call(self._library.restore_open_shard, found[0], rank))[0]

    # An open restore belongs to its handle's thread: what it does to the handle is done under the lock too.
    def _read(self, restore: Restore) -> tuple[Any, int]:
        try:
            entries = self._locked(self._library.entries, restore, self._locked)
            if tree.STRUCTURE not in entries:
                raise tree.without_structure(entries)
            return tree.unflatten(entries.__getitem__), self._library.restore_step_of(restore)
        finally:
            self._locked(self._library.restore_close, restore)  # which may outlive the handle: not _call


def _step(step: int) -> int | None:
    return None if step == LATEST else step


def open() -> Gang:
    """Opens this member's connection. The environment that Muster has set says which gang.

    Raises NotInGang outside of one. A program that runs there too asks first:
    gang = muster.open() if "MUSTER_GANG" in os.environ else None
    """
    return Gang()


if "MUSTER_GANG" in os.environ:
    _stacks.register()
