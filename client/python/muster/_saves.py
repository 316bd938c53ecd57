"""What a save becomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import Invalid, MusterError, TimedOut, Unreachable

if TYPE_CHECKING:
    from . import Gang


@dataclass
class Outcome:
    """How a save has ended, as far as it is known."""

    step: int
    is_known: bool = False
    failure: MusterError | None = None
    is_told: bool = False  # the program has asked


class Save:
    """A save that this member has handed over: committed, once all members' are durable. Any thread may ask it.

    It asks musterd when it is asked itself, and hears nothing new once its Gang has been closed (ValueError).
    """

    def __init__(self, gang: Gang, outcome: Outcome) -> None:
        self._gang = gang
        self._outcome = outcome

    @property
    def step(self) -> int:
        """Of which step."""
        return self._outcome.step

    def done(self) -> bool:
        """Whether it is committed, or has failed."""
        if not self._outcome.is_known:
            try:
                self._settle(0)
            except TimedOut:
                return False
        return True

    def result(self, timeout: float | None = None) -> None:
        """Waits (at most `timeout` seconds) until it is committed.

        TimedOut: it is not yet. Another MusterError: it has failed; StoreError, where the store or another member is why.
        """
        failure = self.exception(timeout)
        if failure is not None:
            raise failure

    def exception(self, timeout: float | None = None) -> MusterError | None:
        """Why it has failed, or None when it is committed. Waits, and raises TimedOut, as result() does."""
        self._settle(timeout)
        self._outcome.is_told = True
        return self._outcome.failure

    def _settle(self, timeout: float | None) -> None:
        if self._outcome.is_known:
            return
        try:
            self._gang.wait(self.step, timeout)
        except (TimedOut, Unreachable, Invalid):  # it may be known later
            raise
        except MusterError as why:
            self._outcome.failure = why
        self._outcome.is_known = True
