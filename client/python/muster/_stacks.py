"""Lets musterd see where a program is that hangs.

A handler for one signal writes the stacks of all Python threads into memory that musterd reads; it is C code that runs
even while the interpreter is stuck. Registered when the package is imported in a gang; MUSTER_PYTHON_STACKS=0 in the
environment prevents that. musterd sends the signal to a program that hangs, and only while this memory is open in it.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal

_FIRST, _LAST = signal.SIGRTMIN + 15, signal.SIGRTMIN + 29  # far from what others take: SIGRTMIN and SIGRTMAX
_memory: int | None = None


def register() -> None:
    """Does it once. Without a free signal, or where the system refuses, the program goes on without."""
    global _memory
    if _memory is not None or os.environ.get("MUSTER_PYTHON_STACKS") == "0":
        return
    number = next((n for n in range(_FIRST, _LAST + 1) if signal.getsignal(n) == signal.SIG_DFL), None)
    if number is None:
        return
    memory = None
    try:
        memory = os.memfd_create(f"muster-stacks-{number}")
        fcntl.fcntl(memory, fcntl.F_SETFL, os.O_APPEND)  # musterd empties it after reading
        faulthandler.register(number, file=memory, all_threads=True)
    except OSError:
        if memory is not None:
            os.close(memory)
        return
    _memory = memory
