"""QEMU's own protocol, with which its machine is changed while it runs."""

import time
from pathlib import Path
from typing import Any

from vc.host import ClusterError

from .channel import Channel, Message

_ANSWER_S = 60.0


class Qmp:
    """Not thread-safe."""

    def __init__(self, port: Path) -> None:
        self._channel = Channel(port)
        self._events: list[Message] = []
        try:
            if "QMP" not in self._receive():
                raise ClusterError(f"{port}: this is not QEMU")
            self.execute("qmp_capabilities")
        except BaseException:
            self._channel.close()
            raise

    def close(self) -> None:
        self._channel.close()

    def execute(self, command: str, **arguments: Any) -> Any:
        """What a command returns; events that come meanwhile are kept."""
        self._channel.send({"execute": command, "arguments": arguments})
        while True:
            answer = self._receive()
            if "event" in answer:
                self._events.append(answer)
            elif "error" in answer:
                raise ClusterError(f"{command}: {answer['error'].get('desc', answer['error'])}")
            else:
                return answer["return"]

    def forget_events(self) -> None:
        """Those that have come until now are never returned."""
        self.execute("query-status")  # whose answer comes after them
        self._events.clear()

    def wait_for(self, event: str, timeout: float) -> None:
        """Returns when an event of this name has come."""
        deadline = time.monotonic() + timeout
        while not any(one["event"] == event for one in self._events):
            try:
                message = self._channel.receive(deadline)
            except TimeoutError:
                raise ClusterError(f"waited {timeout:g} s in vain for QEMU's event {event}") from None
            if "event" in message:
                self._events.append(message)

    def _receive(self) -> Message:
        try:
            return self._channel.receive(time.monotonic() + _ANSWER_S)
        except TimeoutError as error:
            raise ClusterError(str(error)) from None
