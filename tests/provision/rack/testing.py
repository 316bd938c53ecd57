"""Racks of tests: stopped in every case, also when the test is interrupted."""

import atexit
import os
import signal
from typing import Any

from .rack import Rack


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt  # unittest passes it on, and what else would end the process it does not


def rack_of_test(prefix: str, **options: Any) -> Rack:
    """A rack that is still to be started, with a name of this process."""
    rack = Rack(f"{prefix}{os.getpid()}", **options)
    atexit.register(rack.stop)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    return rack
