"""Waiting for a condition with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

from .host import ClusterError

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout: float, what: str, interval: float = 0.02) -> T:
    """Returns the predicate's first true value; after `timeout` seconds raises ClusterError naming `what`, and the last value
    if that says anything. A predicate that takes long, as one that runs a command, is asked less often: at most a fifth of the
    time is spent in it, but at least once a second."""
    deadline = time.monotonic() + timeout
    while True:
        asked = time.monotonic()
        value = predicate()
        if value:
            return value
        answered = time.monotonic()
        if answered >= deadline:
            last = f"; the last that was seen: {value!r:.2000}" if value not in (None, False, "", 0) else ""
            raise ClusterError(f"waited {timeout:g} s in vain for {what}{last}")
        time.sleep(max(interval, min(1.0, 4 * (answered - asked))))
