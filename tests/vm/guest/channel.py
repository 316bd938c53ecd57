"""JSON messages, one a line, over a socket of QEMU's."""

import json
import socket
import time
from pathlib import Path
from typing import Any

from vc.host import ClusterError

Message = dict[str, Any]


class Channel:
    """One end of a socket on which QEMU or a program in a guest answers. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._buffer = b""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise ClusterError(f"{path}: {error.strerror}") from None

    def close(self) -> None:
        self._socket.close()

    def send(self, message: Message, before: bytes = b"") -> None:
        """Sends a message, with these bytes before it."""
        try:
            self._socket.settimeout(60)
            self._socket.sendall(before + json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise ClusterError(f"{self._path}: {error}") from None

    def receive(self, deadline: float) -> Message:
        """The next message; lines that are none are passed over. The deadline is one of time.monotonic()."""
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                try:
                    # The guest's agent begins the answer to a synchronisation with this byte, which no text has.
                    message = json.loads(line.rpartition(b"\xff")[2])
                except ValueError:
                    continue
                if isinstance(message, dict):
                    return message
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"nothing more comes from {self._path}")
            self._socket.settimeout(left)
            try:
                part = self._socket.recv(65536)
            except TimeoutError:
                continue
            except OSError as error:
                raise ClusterError(f"{self._path}: {error}") from None
            if not part:
                raise ClusterError(f"{self._path} was closed")
            self._buffer += part
