"""Muster for Python programs: progress, checkpoints and restores of a member of a gang.

    import muster

    gang = muster.open()                      # muster.NotInGang outside of a gang
    found = gang.restore()                    # (state, step) of the newest verified checkpoint, or None
    for step in range(start, steps):
        train()
        gang.progress(step)
        if step % 100 == 0:
            gang.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)
    gang.wait()

A save copies into shared memory and returns; musterd writes it to the store meanwhile. Every member saves its own state
under the same step, and the checkpoint is committed when all of them are durable. Nothing is pickled: see muster.tree
for what a state may consist of. A Gang may be used from one thread at a time, and not in a forked process.
"""

import math
from collections.abc import Callable
from types import TracebackType
from typing import Any

from . import tree
from ._library import LATEST, Handle, Library, library
from .errors import Busy, Corrupt, Denied, MusterError, NotFound, NotInGang, TimedOut, TooLarge, Unreachable

__all__ = [
    "Busy",
    "Corrupt",
    "Denied",
    "Gang",
    "MusterError",
    "NotFound",
    "NotInGang",
    "TimedOut",
    "TooLarge",
    "Unreachable",
    "open",
    "tree",
]


class Gang:
    """This member's connection to its node's musterd."""

    def __init__(self) -> None:
        self._library: Library = library()
        self._handle: Handle | None = self._library.open()

    def close(self) -> None:
        """Closes the connection. Saves in flight go on in musterd; wait() first to know how they end."""
        if self._handle is not None:
            self._library.close(self._handle)
            self._handle = None

    def __enter__(self) -> "Gang":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _open(self) -> Handle:
        if self._handle is None:
            raise ValueError("this Gang has been closed")
        return self._handle

    @property
    def rank(self) -> int:
        return self._library.rank(self._open)

    @property
    def world_size(self) -> int:
        return self._library.world_size(self._open)

    @property
    def generation(self) -> int:
        return self._library.generation(self._open)

    @property
    def restore_step(self) -> int | None:
        """The step this generation starts from: the same on every member. None: from the beginning."""
        return _step(self._library.restore_step(self._open))

    @property
    def committed(self) -> int | None:
        """The newest step known to be committed."""
        return _step(self._library.committed(self._open))

    def progress(self, step: int) -> None:
        """Says that training has reached `step`. Cheap enough for every step."""
        self._library.progress(self._open, step)

    def should_checkpoint(self) -> bool:
        """Whether a checkpoint should be taken now."""
        return self._library.should_checkpoint(self._open)

    def should_exit(self) -> bool:
        """Whether the program should save and exit (Slurm is about to end the job)."""
        return self._library.should_exit(self._open)

    def save(self, state: Any, step: int, *, block: bool = True) -> bool:
        """Saves `state` as this member's part of the checkpoint of `step`.

        Waits while two earlier saves are still on their way; with block=False gives False then, and saves nothing.
        """
        structure, leaves = tree.flatten(state)
        entries: list[tuple[str, str, tree.Buffer]] = [(tree.STRUCTURE, tree.META, tree.Buffer.of(structure))]
        entries += [(str(i), leaf.meta, leaf.buffer) for i, leaf in enumerate(leaves)]
        try:
            self._library.save_begin(self._open, step, sum(buffer.bytes + 64 for _, _, buffer in entries), block)
        except Busy:
            return False
        try:
            for name, meta, buffer in entries:
                self._library.save_add(self._open, name, meta, buffer.address, buffer.bytes)
        except BaseException:
            self._library.save_abort(self._open)
            raise
        self._library.save_commit(self._open)
        return True

    def wait(self, step: int | None = None, timeout: float | None = None) -> None:
        """Waits (at most `timeout` seconds) until the save of `step`, or the newest one, is committed by all members.

        Raises TimedOut when it is not yet, another MusterError when it has failed or nothing has been saved.
        """
        milliseconds = -1 if timeout is None else min(math.ceil(max(timeout, 0.0) * 1000), 2**31 - 1)
        self._library.wait(self._open, LATEST if step is None else step, milliseconds)

    def restore(self, step: int | None = None) -> tuple[Any, int] | None:
        """Gives this member's state of the checkpoint this generation starts from (or of `step`), and its step.

        None when there is no checkpoint. All of it has been verified. Tensors are on the CPU.
        """
        try:
            restore = self._library.restore_open(self._open, LATEST if step is None else step)
        except NotFound:
            return None
        try:
            entries = self._library.entries(restore)
            at: Callable[[str], tuple[str, int, int]] = entries.__getitem__
            return tree.unflatten(at), self._library.restore_step_of(restore)
        finally:
            self._library.restore_close(restore)


def _step(step: int) -> int | None:
    return None if step == LATEST else step


def open() -> Gang:
    """Opens this member's connection. The environment that Muster has set says which gang."""
    return Gang()
