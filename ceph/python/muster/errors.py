"""What can go wrong. The codes are those of muster.h."""


class MusterError(Exception):
    """A call of libmuster has failed. `code` is the muster_error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class NotInGang(MusterError):
    """This process was not started by Muster."""


class Unreachable(MusterError):
    """musterd does not answer."""


class Denied(MusterError):
    """Another user's gang, or a process of an older generation."""


class NotFound(MusterError):
    """No such checkpoint."""


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
INVALID, CORRUPT = -4, -6


def error(code: int, text: str) -> MusterError:
    return _CLASSES.get(code, MusterError)(code, text)
