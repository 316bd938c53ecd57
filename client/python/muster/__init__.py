"""Muster for Python programs: steps, checkpoints and restores of a member of a gang.

    import muster

    gang = muster.init()                      # muster.NotInGang outside of a gang; fallback="local": without Muster too
    start = 0                                 # how many steps are done
    found = gang.restore()                    # the newest verified checkpoint, or None
    if found is not None:
        start = found.step
        model.load_state_dict(found.state["model"])
        optimizer.load_state_dict(found.state["optimizer"])
    for step in range(start + 1, steps + 1):
        train()
        wish = gang.step(step)                # the same on every rank
        if wish.save or step % 100 == 0 or step == steps:
            gang.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)
        if wish.exit:
            break
    gang.wait()                               # until the last one is committed; nothing saved, nothing to wait for

A save copies into shared memory and returns; musterd writes it to the store meanwhile. Every member saves its own state
under the same step, and the checkpoint is committed when all of them are durable. Nothing is pickled: see muster.tree
for what a state may consist of. A gang of another size restores by name what it needs (Gang.restore, muster.slices).
muster.torch saves and loads by all members together, and muster.testing is for tests. A Gang may be used by several threads, but
not in a forked process. Their saves come one after another; while muster.torch saves, no other thread may.

In a gang, importing this registers a faulthandler on a real-time signal, by which Muster sees where a program hangs;
MUSTER_PYTHON_STACKS=0 in the environment prevents that.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from operator import index
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeVar

from . import _stacks, tree
from ._library import LATEST, CWish, Entry, Handle, Library, Restore, library
from ._parts import chunks
from ._restore import Reading
from ._saves import Outcome, Save
from .errors import (
    Busy,
    Corrupt,
    Denied,
    DeviceError,
    Invalid,
    MusterError,
    NoMemory,
    NotFound,
    NotInGang,
    ProtocolError,
    StoreError,
    TimedOut,
    TooLarge,
    Unreachable,
)
from .slices import Described, Slice, SliceInfo, Slices, describe, each, size_of, to_restore, to_save

__all__ = [
    "Busy",
    "Corrupt",
    "Denied",
    "DeviceError",
    "Gang",
    "Invalid",
    "MusterError",
    "NoMemory",
    "NotFound",
    "NotInGang",
    "ProtocolError",
    "Restored",
    "Save",
    "Slice",
    "SliceInfo",
    "StoreError",
    "TimedOut",
    "TooLarge",
    "Unreachable",
    "Wish",
    "in_gang",
    "init",
    "tree",
]

if TYPE_CHECKING:
    from ._local import Local

T = TypeVar("T")
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

_STEPS = 2**63


class Wish(NamedTuple):
    """What all members of the gang are asked to do at a step. No wish: false, false, None."""

    save: bool
    """To save this step."""
    exit: bool
    """To exit, behind the save if there is one: Slurm is about to end the job."""
    reason: str | None
    """Why, in a few words."""


_NOTHING = Wish(False, False, None)


class Restored(NamedTuple):
    """What a checkpoint has."""

    state: Any
    """What was given to save, or `into`."""
    step: int
    """Of which step it is: how many are done."""


class Gang:
    """This member's connection to its node's musterd.

    A call that is made while the same thread is in another one of this Gang, as a signal's handler or a finalizer may,
    raises Invalid and does nothing: the one below it would wait for it for ever. A handler of SIGTERM sets a flag,
    and the loop saves; step() gives such a flag, which Muster sets for all members at once.

    A member has one. It closes at the end of a `with`, by close(), or when nothing refers to it any more.
    """

    def __init__(self, by: Library | Local) -> None:
        self._library = by
        self._lock = threading.RLock()  # a handler that runs before or behind the call itself may go ahead
        self._inside = False  # the lock's owner is in a call
        self._step_lock = threading.RLock()  # of step(), which waits for no other call
        self._save_lock = threading.RLock()  # of a whole save; other calls may be made meanwhile
        self._entering = False
        self._wish = CWish()
        self._enter = self._library.stepper(self._wish)
        self._handle: Handle | None = self._open()
        # At the interpreter's end other threads may be in a call still; the process's end closes it then.
        self._end = weakref.finalize(self, self._library.close, self._handle)
        self._end.atexit = False
        self.rank: int = self._library.number(self._handle, "rank")
        self.world_size: int = self._library.number(self._handle, "world_size")
        self.generation: int = self._library.number(self._handle, "generation")
        self._tell_again = 0.0  # when a wait may be told of
        self._saved = False  # there may be something to wait for
        self._begun = 0  # the step of the newest save
        self._pending: list[Outcome] = []  # of saves whose end is not known yet
        self._held: int | None = None  # the step of a save of muster.torch.StorageWriter that is not complete yet

    def _open(self) -> Handle:
        try:
            return self._library.open()
        except Invalid as why:
            if "is open already" in str(why):
                raise Invalid(f"{why}: {_ONE_GANG}") from None
            raise

    def close(self) -> None:
        """Closes the connection. Saves in flight go on in musterd; wait() first to know how they end."""
        self._locked(self._close)

    def _close(self) -> None:
        with self._step_lock:
            if self._entering:
                raise Invalid(_NESTED)
            if self._handle is not None:
                self._handle = None
                self._end()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Gang cannot be brought to another process: torch's async_save is to use a thread, not a process")

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _locked(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls what uses the library; one thread at a time, and one call of a thread."""
        with self._lock:
            if self._inside:
                raise Invalid(_NESTED)
            try:
                self._inside = True
                return function(*arguments)
            finally:
                self._inside = False

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls a function of the library that takes the handle."""

        def call() -> T:
            if self._handle is None:
                raise ValueError("this Gang has been closed")
            return function(self._handle, *arguments)

        return self._locked(call)

    @property
    def restore_step(self) -> int | None:
        """The step this generation starts from: the same on every member. None: from the beginning."""
        return _step(self._call(self._library.number, "restore_step"))

    @property
    def committed(self) -> int | None:
        """The newest step known to be committed."""
        return _step(self._call(self._library.number, "committed"))

    def step(self, n: int) -> Wish:
        """Says that this member has entered step `n` (0 to 2^63 - 1); gives what all members are asked to do at exactly this step.

        Every member that enters a step gets the same answer, so no collective is needed to agree; the same step again gets the
        same answer again. Call it in every step, where the step's own work is done and the wait for the other members begins: Muster
        learns from it how long a step takes, finds a gang that hangs and who hangs it, and marks members that are slower than the
        rest. In a long phase without steps call it now and then with the same step: it says that the member goes on.

        It is a few writes to shared memory, about a microsecond, and waits for no other call of this Gang. It waits only at a step
        that is being agreed on at this moment: a second at most, and longer only while the gang has no coordinator, or this node no
        musterd. Python's signal handlers run when it returns. Steps go up, and all members enter the same ones; where they do not, nothing is asked that could not be done by
        all, and `muster events` says so.

        Any thread may call it. ValueError: `n` is no step, or this Gang has been closed. Denied: the generation is over. Unreachable:
        musterd went away while it waited, and did not come back in time.
        """
        n = index(n)
        if not 0 <= n < _STEPS:
            raise ValueError(f"{n} is no step: steps go from 0 to 2^63 - 1")
        with self._step_lock:
            if self._handle is None:
                raise ValueError("this Gang has been closed")
            if self._entering:
                raise Invalid(_NESTED)
            self._entering = True
            try:
                self._enter(self._handle, n)
                wish = self._wish
                if not wish.save and not wish.exit:
                    return _NOTHING
                return Wish(wish.save == 1, wish.exit == 1, (wish.reason or b"").decode(errors="replace"))
            finally:
                self._entering = False

    def exchange(self, key: str, value: bytes, *, timeout: float | None = None) -> list[bytes]:
        """Gives the other members `value` under `key`, and returns all members' values in the order of their ranks.

        It waits until all have called it, for at most `timeout` seconds (None: for ever), so it is a barrier too. All members use
        the same keys (1 to 63 visible characters) in the same order, each once in a generation. A value has at most 4096 bytes,
        or 8 MiB divided by the number of members. The values go through musterd: no port is opened.

        TimedOut names members that have given nothing; what this one has given stands, and the same call again goes on waiting.
        A member that goes on with another key instead may never get the values of that one.
        TooLarge: the value is too long. Busy: sixteen exchanges wait for other members. Invalid: the key was used before in this
        generation, or is none. Denied: the generation is over.
        """
        milliseconds = -1 if timeout is None else max(0, min(int(timeout * 1000), 2**31 - 1))
        return self._call(self._library.exchange, key, bytes(value), milliseconds)

    def save(self, state: Any, step: int, *, slices: Slices = (), block: bool = True) -> Save:
        """Saves `state` as this member's part of the checkpoint of `step`, and `slices` of tensors by their names.

        It returns once all is copied, and the Save says how it ends. What has failed, and nobody has asked for, is told on stderr
        at the next save. Waits while two earlier saves are still on their way, or another thread saves; with block=False it raises
        Busy then, and saves nothing: what the others save of that step fails once two newer checkpoints are committed.
        TypeError, ValueError: something of it cannot be saved, and nothing is. Invalid: the step is not above the last one, which
        is committed. NoMemory, TooLarge: no room for it. Denied: the generation is over. Unreachable: musterd stays away.
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

    def save_slices(self, slices: Slices, step: int, *, bytes_hint: int = 0, block: bool = True) -> Save:
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
        self._tell(f"the save of step {step} waited {waited:.1f} s for a staging buffer: {text}")

    def _tell_of_failures(self) -> None:
        """What has failed, without a word to the program: it may never ask."""
        pending, self._pending = self._pending, []
        for outcome in pending:
            with contextlib.suppress(Unreachable, Invalid):  # later, perhaps
                Save(self, outcome).done()
            if not outcome.is_known:
                self._pending.append(outcome)
            elif outcome.failure is not None and not outcome.is_told:
                self._tell(str(outcome.failure))

    def _tell(self, sentence: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a stderr that is full or closed is no reason not to save
            print(f"muster: rank {self.rank}: {sentence}", file=sys.stderr, flush=True)

    def _save(self, step: int, parts: Iterable[tuple[str, Described]], size: int, block: bool) -> Save:
        # Within a call of this thread: another thread's save, which would be waited for, may wait for that.
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise Invalid(_NESTED)
        if not self._save_lock.acquire(blocking=block):
            raise Busy("another thread's save is being copied")
        try:
            self._begin(step, size, block)
            self._add(parts)
            return self._commit()
        finally:
            self._save_lock.release()

    def _begin(self, step: int, size: int, block: bool = True) -> None:
        """Begins a save, which _add fills and _commit completes."""
        step = index(step)
        self._tell_of_failures()
        began, why = time.monotonic(), ""
        while True:
            try:
                if self._held is not None:  # another member has failed, so that nobody will complete it
                    self._abort()
                self._call(self._library.save_begin, step, size)
                break
            except Busy as busy:
                if not block:
                    raise
                why = str(busy)
            time.sleep(_POLL)  # other threads may use the connection meanwhile
        try:
            self._tell_of_wait(step, time.monotonic() - began, why)
        except BaseException:
            self._abort()
            raise
        self._begun = step

    def _add(self, parts: Iterable[tuple[str, Described]]) -> None:
        try:
            for name, part in parts:
                self._call(self._library.save_add_slice, name, part)
        except BaseException:
            self._abort()
            raise

    def _commit(self) -> Save:
        self._saved = True
        try:
            self._call(self._library.save_commit)
        except BaseException:
            self._abort()  # nothing, once it has been committed
            raise
        outcome = Outcome(self._begun)
        self._pending.append(outcome)
        return Save(self, outcome)

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
        and verified; where there are many, ask for them in one call. NotFound names what nobody saved; Invalid: it was saved
        with another type or shape.
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
    ) -> Restored | None:
        """Gives this member's state of the checkpoint this generation starts from (or of `step`), and its step.

        None when the generation starts from the beginning; a `step` that is not there raises NotFound. All of it has been
        verified. Tensors come back whole and on the CPU, or fill those that `into`, a state too, has at the same place:
        of distributed ones this member's parts, whoever saved them. What else `into` has is taken from the checkpoint as
        well. With `strict` all that `into` has must be there, which the error names if not; without, what is missing
        stays as it is. Another dtype, shape or kind is an error always. Nothing is filled before all is checked.

        A checkpoint that another number of members saved has no state of this one and raises Invalid, unless `into`
        or `replicated` is given: what is no tensor comes from the member in this one's place then. With `replicated` all
        of the state does, which is right where every member saves the same, as under DDP. Else see restore_shards.
        """
        found = self.restore_step if step is None else step
        if found is None:
            return None
        try:
            # Its own shard first: that may be in memory, and nothing asks the store then.
            opened = self._call(self._library.restore_open, LATEST if step is None else step)
        except Invalid:  # another number of members saved it, perhaps
            if into is None and not replicated:
                raise
            return Restored(self._reading(found, None).state(None, into, strict), found)
        return Restored(self._read(opened, found, None, into, strict), found)

    def restore_shard(self, rank: int, step: int | None = None) -> Restored | None:
        """Gives what the member `rank` saved, and the step; None when the generation starts from the beginning."""
        found = self.restore_info(step)
        return None if found is None else Restored(self._shard(rank, found[0]), found[0])

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


def in_gang() -> bool:
    """Whether Muster has started this process, as a member of a gang."""
    return "MUSTER_GANG" in os.environ


def init(*, fallback: Literal["error", "local"] = "error", directory: str | os.PathLike[str] | None = None) -> Gang:
    """Opens this member's connection to its gang. The environment that Muster has set says which.

    Outside of a gang it raises NotInGang; with fallback="local" it gives a Gang without Muster then, of the member that RANK
    and WORLD_SIZE say (one alone when they are not set): muster.testing.local_gang in `directory`, by default one that is
    removed when the Gang is closed. Several members need one that they all see. In a gang `directory` is of no account.

    Invalid: this member has a Gang already. Unreachable: musterd does not answer. ImportError: libmuster is missing, or of
    another release.
    """
    if fallback not in ("error", "local"):
        raise ValueError(f"fallback is 'error' or 'local', not {fallback!r}")
    if in_gang() or fallback == "error":
        return Gang(library())
    from .testing import fallback_gang

    return fallback_gang(directory)


if in_gang():
    _stacks.register()
