"""What can go wrong. The codes are those of muster.h."""

from __future__ import annotations


class MusterError(Exception):
    """A call has failed, as the text says. `code` is the muster_error of its class."""

    code = 0


class NotInGang(MusterError):
    """This process was not started by Muster."""

    code = -1


class Unreachable(MusterError):
    """musterd does not answer."""

    code = -2


class Denied(MusterError):
    """Another user's gang, or a process of an older generation."""

    code = -3


class Invalid(MusterError, ValueError):
    """It cannot be done so: the text names what is wrong."""

    code = -4


class NotFound(MusterError):
    """No such checkpoint, or no such name in it."""

    code = -5


class Corrupt(MusterError):
    """A checkpoint does not verify or does not read."""

    code = -6


class TooLarge(MusterError):
    """Above a limit of musterd's configuration."""

    code = -7


class Busy(MusterError):
    """Both staging buffers are still being written."""

    code = -8


class TimedOut(MusterError, TimeoutError):
    """Not yet."""

    code = -9


class StoreError(MusterError):
    """The store refused or did not answer; the checkpoint is not committed."""

    code = -10


class NoMemory(MusterError, MemoryError):
    """The job's memory limit, or the node, has no room for what a save or a restore needs."""

    code = -11


class ProtocolError(MusterError):
    """musterd and libmuster do not understand each other."""

    code = -12


class DeviceError(MusterError):
    """A GPU, or its driver, has failed."""

    code = -13


def error(code: int, text: str) -> MusterError:
    for kind in MusterError.__subclasses__():
        if kind.code == code:
            return kind(text)
    unknown = MusterError(text)
    unknown.code = code
    return unknown
