"""Guests of tests: stopped in every case, also when the test is interrupted."""

import atexit
import signal

from .guests import Guests, Options


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt  # unittest passes it on, and what else would end the process it does not


def guests_of_test(count: int, options: Options | None = None) -> Guests:
    """Guests that are still to be started, with a name of this process."""
    guests = Guests(count, options)
    atexit.register(guests.stop)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    return guests
