"""A musterd for tests of the Python package: keeps shards in memory, serves one client after the other."""

import array
import fcntl
import os
import socket
import struct
import threading

_HEADER = struct.Struct("=IHHII")
_MAGIC = 0x3152534D
_CLIENT_HELLO, _SAVE, _RESTORE, _PROGRESS = 64, 65, 66, 67
_CLIENT_WELCOME, _SHARD_DURABLE, _COMMITTED, _RESTORED, _NOTIFY = 96, 97, 98, 99, 100
_NOT_FOUND = -5
_F_ADD_SEALS, _SHRINK_GROW_WRITE = 1033, 0xE
NO_STEP = 2**64 - 1


def _packet(kind: int, body: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, 1, kind, _HEADER.size + len(body), 0) + body


class FakeMusterd(threading.Thread):
    def __init__(self, path: str, world_size: int = 2) -> None:
        super().__init__(daemon=True)
        self.world_size = world_size
        self.shards: dict[int, bytes] = {}
        self.progress: list[int] = []
        self.restore_step = NO_STEP
        self.commit = True
        self.flags = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen()
        self.start()

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self.join(10)
        self._listener.close()

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                while self._serve(client):
                    pass

    def _serve(self, client: socket.socket) -> bool:
        packet, fds, _, _ = socket.recv_fds(client, 65536, 1)
        if not packet:
            return False
        kind = _HEADER.unpack_from(packet)[2]
        body = packet[_HEADER.size :]
        if kind == _CLIENT_HELLO:
            generation, rank = struct.unpack_from("=QI", body, 16)
            welcome = struct.pack("=QQIIQ", generation, self.restore_step, rank, self.world_size, 0)
            client.send(_packet(_CLIENT_WELCOME, welcome))
            client.send(_packet(_NOTIFY, struct.pack("=II", self.flags, 0)))
        elif kind == _SAVE:
            step, size = struct.unpack("=QQ", body)
            self.shards[step] = os.pread(fds[0], size, 0)
            os.close(fds[0])
            if self.commit:
                for answer in (_SHARD_DURABLE, _COMMITTED):
                    client.send(_packet(answer, struct.pack("=QiI", step, 0, 0)))
        elif kind == _RESTORE:
            (step,) = struct.unpack("=Q", body)
            self._restore(client, self.restore_step if step == NO_STEP else step)
        elif kind == _PROGRESS:
            self.progress.append(struct.unpack("=Q", body)[0])
        return True

    def _restore(self, client: socket.socket, step: int) -> None:
        shard = self.shards.get(step)
        if shard is None:
            client.send(_packet(_RESTORED, struct.pack("=QQiI", step, 0, _NOT_FOUND, 0)))
            return
        memory = os.memfd_create("shard", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(memory, shard)
        fcntl.fcntl(memory, _F_ADD_SEALS, _SHRINK_GROW_WRITE)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory]))]
        client.sendmsg([_packet(_RESTORED, struct.pack("=QQiI", step, len(shard), 0, 0))], rights)
        os.close(memory)
