"""What can go wrong. The codes are those of muster.h."""


class MusterError(Exception):
    """A call of libmuster has failed. `code` is the muster_error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)  # both, so that it can be pickled: torch brings a rank's error to the others so
        self.code = code

    def __str__(self) -> str:
        return str(self.args[1])


class NotInGang(MusterError):
    """This process was not started by Muster."""


class Unreachable(MusterError):
    """musterd does not answer."""


class Denied(MusterError):
    """Another user's gang, or a process of an older generation."""


class NotFound(MusterError):
    """No such checkpoint, or no such name in it."""


class Corrupt(MusterError):
    """A checkpoint does not verify or does not read."""


class TooLarge(MusterError):
    """Above a limit of musterd's configuration."""


class Busy(MusterError):
    """Both staging buffers are still being written."""


class TimedOut(MusterError, TimeoutError):
    """Not yet."""


_CLASSES: dict[int, type[MusterError]] = {
    -1: NotInGang,
    -2: Unreachable,
    -3: Denied,
    -5: NotFound,
    -6: Corrupt,
    -7: TooLarge,
    -8: Busy,
    -9: TimedOut,
}
INVALID, NOT_FOUND, CORRUPT = -4, -5, -6


def error(code: int, text: str) -> MusterError:
    return _CLASSES.get(code, MusterError)(code, text)
