"""The QEMU guest agent of a guest: it runs programs there. See "QEMU Guest Agent Protocol Reference"."""

import base64
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vc.host import ClusterError

from .channel import Channel

# A guest is ten times slower than the machine, which others use too.
_ANSWER_S = 120.0


@dataclass(frozen=True)
class Ended:
    """What a program has come to: `code` is the signal's number below zero when one has ended it."""

    code: int
    out: str
    err: str


def _text(data: object) -> str:
    return base64.b64decode(str(data)).decode(errors="replace")


class Agent:
    """Not thread-safe. Programs that it has started run beside each other."""

    def __init__(self, port: Path, deadline: float) -> None:
        """Returns when the agent answers; raises TimeoutError at the deadline, one of time.monotonic()."""
        self._channel = Channel(port)
        try:
            number = random.getrandbits(31)
            synchronise = {"execute": "guest-sync-delimited", "arguments": {"id": number}}
            self._channel.send(synchronise, before=b"\xff")  # which ends what the agent may have read of another message
            while self._channel.receive(deadline).get("return") != number:
                pass
        except BaseException:
            self._channel.close()
            raise

    def close(self) -> None:
        self._channel.close()

    def start(self, argv: list[str], stdin: bytes = b"") -> int:
        """Starts a program, which is found as a shell finds it; its number."""
        arguments: dict[str, Any] = {"path": argv[0], "arg": argv[1:], "capture-output": True}
        if stdin:
            arguments["input-data"] = base64.b64encode(stdin).decode()
        return int(self._call("guest-exec", arguments)["pid"])

    def ended(self, number: int) -> Ended | None:
        """What a program has come to, once: nothing is known of it afterwards. None while it runs."""
        status = self._call("guest-exec-status", {"pid": number})
        if not status["exited"]:
            return None
        code = -int(status["signal"]) if "signal" in status else int(status.get("exitcode", 0))
        if status.get("out-truncated") or status.get("err-truncated"):
            raise ClusterError("a program in a guest has written more than its agent keeps")
        return Ended(code, _text(status.get("out-data", "")), _text(status.get("err-data", "")))

    def _call(self, command: str, arguments: dict[str, Any]) -> Any:
        self._channel.send({"execute": command, "arguments": arguments})
        try:
            answer = self._channel.receive(time.monotonic() + _ANSWER_S)
        except TimeoutError as error:
            raise ClusterError(f"{command}: {error}") from None
        if "error" in answer:
            raise ClusterError(f"{command}: {answer['error'].get('desc', answer['error'])}")
        return answer["return"]
