"""Waiting for a condition with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

from .host import ClusterError

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout: float, what: str, interval: float = 0.02) -> T:
    """Returns the predicate's first true value; after `timeout` seconds raises ClusterError naming `what`, and the last value
    if that says anything."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            last = f"; the last that was seen: {value!r:.2000}" if value not in (None, False, "", 0) else ""
            raise ClusterError(f"waited {timeout:g} s in vain for {what}{last}")
        time.sleep(interval)
