"""Waiting for a condition with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

from .host import ClusterError

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout: float, what: str, interval: float = 0.02) -> T:
    """Returns the predicate's first true value; after `timeout` seconds raises ClusterError naming `what`."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise ClusterError(f"waited {timeout:g} s in vain for {what}")
        time.sleep(interval)
