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
for what a state may consist of. A gang of another size restores by name what it needs (Gang.restore, muster.slices).
muster.torch saves and loads by all members together. A Gang may be used by several threads, one save at a time, and not
in a forked process.

In a gang, importing this registers a faulthandler on a real-time signal, by which Muster sees where a program hangs;
MUSTER_PYTHON_STACKS=0 in the environment prevents that.
"""

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

from . import _stacks, tree
from ._library import LATEST, Entry, Handle, Library, Restore, library
from ._parts import chunks
from ._restore import Reading
from .errors import INVALID, Busy, Corrupt, Denied, MusterError, NotFound, NotInGang, TimedOut, TooLarge, Unreachable
from .slices import Described, Slice, SliceInfo, Slices, describe, each, size_of, to_restore, to_save

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
        self.rank: int = self._library.number(self._handle, "rank")
        self.world_size: int = self._library.number(self._handle, "world_size")
        self.generation: int = self._library.number(self._handle, "generation")
        self._tell_again = 0.0  # when a wait may be told of
        self._saved = False  # there may be something to wait for
        self._held: int | None = None  # the step of a save of muster.torch.StorageWriter that is not complete yet

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

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Gang cannot be brought to another process: torch's async_save is to use a thread, not a process")

    def __enter__(self) -> "Gang":
        return self

    def __exit__(self, *_: object) -> None:
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
    def restore_step(self) -> int | None:
        """The step this generation starts from: the same on every member. None: from the beginning."""
        return _step(self._call(self._library.number, "restore_step"))

    @property
    def committed(self) -> int | None:
        """The newest step known to be committed."""
        return _step(self._call(self._library.number, "committed"))

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
        return self._call(self._library.number, "should_checkpoint") == 1

    def should_exit(self) -> bool:
        """Whether the program should save and exit (Slurm is about to end the job). See should_checkpoint()."""
        return self._call(self._library.number, "should_exit") == 1

    def save(self, state: Any, step: int, *, slices: Slices = (), block: bool = True) -> bool:
        """Saves `state` as this member's part of the checkpoint of `step`, and `slices` of tensors by their names.

        Waits while two earlier saves are still on their way; with block=False gives False then, and saves nothing:
        what the others save of that step fails once two newer checkpoints are committed.
        Tensors on an NVIDIA GPU are copied straight from there, in the order of their device's current stream.
        """
        structure, leaves = tree.flatten(state)
        parts = describe(chunks(leaves))
        for name, part in each(slices):
            if name == tree.STRUCTURE or name in leaves:
                raise ValueError(f"the slice {name!r} is called as a part of the state")
            parts.append((name, to_save(name, part)))
        parts += describe([(tree.STRUCTURE, Slice(tree.encode(structure)))])
        return self._save(step, parts, size_of(parts), block)

    def save_slices(self, slices: Slices, step: int, *, bytes_hint: int = 0, block: bool = True) -> bool:
        """Saves parts of tensors, and nothing else, as this member's part of the checkpoint of `step`.

        They may come out of an iterator of names and slices, one after the other, so that what one needs in memory is
        free again when the next one comes.
        """
        return self._save(step, ((name, to_save(name, part)) for name, part in each(slices)), bytes_hint, block)

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

    def _save(self, step: int, parts: Iterable[tuple[str, Described]], size: int, block: bool = True) -> bool:
        return self._begin(step, size, block) and self._add(parts)

    def _begin(self, step: int, size: int, block: bool = True) -> bool:
        """Begins a save, which _add completes."""
        began, why = time.monotonic(), ""
        while True:
            try:
                if self._held is not None:  # another member has failed, so that nobody will complete it
                    self._abort()
                self._call(self._library.save_begin, step, size)
                break
            except Busy as busy:
                if not block:
                    return False
                why = str(busy)
            time.sleep(_POLL)  # other threads may use the connection meanwhile
        try:
            self._tell_of_wait(step, time.monotonic() - began, why)
        except BaseException:
            self._abort()
            raise
        return True

    def _add(self, parts: Iterable[tuple[str, Described]], commit: bool = True) -> bool:
        try:
            for name, part in parts:
                self._call(self._library.save_add_slice, name, part)
            if commit:
                self._saved = True
                self._call(self._library.save_commit)
        except BaseException:
            self._abort()  # nothing, once it has been committed
            raise
        return True

    def _abort(self) -> None:
        self._held = None
        self._call(self._library.save_abort)

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

    def slice_info(self, name: str, step: int | None = None) -> SliceInfo | None:
        """What the tensor `name` is in a checkpoint; None when nobody saved it, or there is no checkpoint."""
        found = self.restore_info(step)
        return None if found is None else self._info(found[0], name, None)

    def _info(self, step: int, name: str, rank: int | None) -> SliceInfo | None:
        try:
            return self._call(self._library.slice_info, step, name, rank)
        except NotFound:
            return None

    def restore_info(self, step: int | None = None) -> tuple[int, int] | None:
        """The step of the checkpoint this generation starts from (or of `step`), and how many members saved it.

        None when the generation starts from the beginning. Raises NotFound for a `step` that is not there.
        """
        if step is None and self.restore_step is None:
            return None
        return self._call(self._library.restore_info, LATEST if step is None else step)

    def restore(
        self, step: int | None = None, *, into: Any = None, strict: bool = True, replicated: bool = False
    ) -> tuple[Any, int] | None:
        """Gives this member's state of the checkpoint this generation starts from (or of `step`), and its step.

        None when the generation starts from the beginning; a `step` that is not there raises NotFound. All of it has been
        verified. Tensors come back whole and on the CPU, or fill those that `into`, a state too, has at the same place:
        of distributed ones this member's parts, whoever saved them. What else `into` has is taken from the checkpoint as
        well. With `strict` all that `into` has must be there, which the error names if not; without, what is missing
        stays as it is. Another dtype, shape or kind is an error always. Nothing is filled before all is checked.

        A checkpoint that another number of members saved has no state of this one and raises MusterError, unless `into`
        or `replicated` is given: what is no tensor comes from the member in this one's place then. With `replicated` all
        of the state does, which is right where every member saves the same, as under DDP. Else see restore_shards.
        """
        found = self.restore_step if step is None else step
        if found is None:
            return None
        try:
            # Its own shard first: that may be in memory, and nothing asks the store then.
            opened = self._call(self._library.restore_open, LATEST if step is None else step)
        except MusterError as why:  # another number of members saved it, perhaps
            if why.code != INVALID or (into is None and not replicated):
                raise
            return self._reading(found, None).state(None, into, strict), found
        return self._read(opened, found, None, into, strict), found

    def restore_shard(self, rank: int, step: int | None = None) -> tuple[Any, int] | None:
        """Gives what the member `rank` saved, and the step; None when the generation starts from the beginning."""
        found = self.restore_info(step)
        return None if found is None else (self._shard(rank, found[0]), found[0])

    def restore_shards(self, step: int | None = None) -> Iterator[Any]:
        """Gives the states that all members saved, by rank, one after the other: to be divided among more or fewer.

        Nothing when the generation starts from the beginning. Each is read and verified when its turn comes, so a member
        needs memory for one of them and for what it keeps.
        """
        found = self.restore_info(step)
        if found is not None:  # the same checkpoint to the end, whatever `step` says
            yield from (self._shard(rank, found[0]) for rank in range(found[1]))

    def _shard(self, rank: int, step: int) -> Any:
        return self._read(self._call(self._library.restore_open, step, rank), step, rank)

    # An open restore belongs to its handle's thread: what it does to the handle is done under the lock too.
    def _read(self, opened: Restore, step: int, rank: int | None = None, into: Any = None, strict: bool = True) -> Any:
        try:
            entries = self._locked(self._library.entries, opened, self._locked)
            return self._reading(step, entries).state(rank, into, strict)
        finally:
            self._locked(self._library.restore_close, opened)  # which may outlive the handle: not _call

    def _reading(self, step: int, entries: dict[str, Entry] | None) -> Reading:
        def fill(wanted: list[tuple[str, Described]]) -> None:
            self._call(self._library.restore_slices, step, wanted)

        return Reading(step, entries, lambda name, rank: self._info(step, name, rank), fill)


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
