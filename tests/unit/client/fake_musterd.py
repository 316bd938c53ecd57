"""A musterd for tests of the Python package: keeps shards in memory, serves one client at a time and refuses another."""

import array
import contextlib
import fcntl
import mmap
import os
import select
import socket
import struct
import threading

_HEADER = struct.Struct("=IHHII")
_MAGIC = 0x3152534D
_CLIENT_HELLO, _SAVE, _RESTORE, _STEP_PAGE, _DESCRIBE, _READ_RANGE, _EXCHANGE = 64, 65, 66, 68, 69, 70, 74
_CLIENT_WELCOME, _SHARD_DURABLE, _COMMITTED, _RESTORED, _STEP_PAGE_TAKEN, _DESCRIBED, _RANGE_READ, _EXCHANGED = 96, 97, 98, 99, 101, 102, 103, 106
_INVALID, _NOT_FOUND, _CORRUPT, _STORE = -4, -5, -6, -10
_REFUSED, _INVALID_REFUSAL = 37, 7
_OWN_SHARD = 2**32 - 1
_FEATURES = 1 | 2 | 16  # shards, ranges, exchanges
_F_ADD_SEALS, _SHRINK_GROW_WRITE = 1033, 0xE
NO_STEP = 2**64 - 1
_CALLS, _ORDER, _AGREED = 24, 128, 192  # wire/step_page.h


def _packet(kind: int, body: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, 1, kind, _HEADER.size + len(body), 0) + body


class FakeMusterd(threading.Thread):
    def __init__(self, path: str, world_size: int = 2) -> None:
        super().__init__(daemon=True)
        self.world_size = world_size
        self.shards: dict[int, bytes] = {}  # this member's, by step
        self.others: dict[int, list[bytes]] = {}  # by step: the shards of a checkpoint that another gang size saved
        self.peers: list[FakeMusterd] = []  # of all members, by rank, this one's too: a step that all have is a checkpoint
        self.rank = 0  # of the newest client
        self.client: socket.socket
        self.max_shard_bytes = 0
        self.ranges_fail = False
        self.page: mmap.mmap  # of the newest client
        self.agreed: tuple[int, int, bytes] | None = None  # on the page: a step, what is asked (1 save, 2 exit), why
        self.ranges: list[tuple[int, int, int]] = []  # that were asked for: rank, offset, bytes
        self.restore_step = NO_STEP
        self.commit = True
        self.failures: dict[int, str] = {}  # of saves that the store does not take, by step
        self._attended = socket.socket()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen()
        self.start()

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self.join(10)
        self._listener.close()

    def run(self) -> None:
        before: threading.Thread | None = None
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                break
            if before is not None:
                before.join(60 if self._has_closed() else 0)
            refused = before is not None and before.is_alive()
            self._attended = self._attended if refused else client
            attending = threading.Thread(target=self._refuse if refused else self._attend, args=(client,), daemon=True)
            attending.start()
            before = before if refused else attending
        if before is not None:
            before.join(1)

    def _has_closed(self) -> bool:
        """Whether the client that is attended has."""
        ended = select.poll()
        try:
            ended.register(self._attended, 0)  # POLLHUP is always told of
            return bool(ended.poll(0))
        except (ValueError, OSError):  # and this side too
            return True

    def _attend(self, client: socket.socket) -> None:
        with client, contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has gone without waiting
            while self._serve(client):
                pass

    def _refuse(self, client: socket.socket) -> None:
        with client:
            text = b"rank 1 is open already"
            client.recv(65536)
            client.send(_packet(_REFUSED, struct.pack("=II", _INVALID_REFUSAL, len(text)) + text))

    def _serve(self, client: socket.socket) -> bool:
        packet, fds, _, _ = socket.recv_fds(client, 65536, 1)
        if not packet:
            return False
        kind = _HEADER.unpack_from(packet)[2]
        body = packet[_HEADER.size :]
        if kind == _CLIENT_HELLO:
            generation, rank = struct.unpack_from("=QI", body, 16)
            welcome = struct.pack(
                "=QQIIQII", generation, self.restore_step, rank, self.world_size, self.max_shard_bytes, _FEATURES, 0
            )
            self.rank, self.client = rank, client
            client.send(_packet(_CLIENT_WELCOME, welcome))
        elif kind == _SAVE:
            step, size = struct.unpack_from("=QQ", body)
            with open(fds[0], "rb") as memory:
                memory.seek(0)
                self.shards[step] = memory.read(size)
            if step in self.failures:
                text = self.failures[step].encode()
                client.send(_packet(_SHARD_DURABLE, struct.pack("=QiI", step, _STORE, len(text)) + text))
            elif self.commit:
                client.send(_packet(_SHARD_DURABLE, struct.pack("=QiI", step, 0, 0)))
                self._commit(step)
        elif kind == _RESTORE:
            step, rank, _ = struct.unpack("=QII", body)
            self._restore(client, self.restore_step if step == NO_STEP else step, rank)
        elif kind == _DESCRIBE:
            (step,) = struct.unpack("=Q", body)
            step = self.restore_step if step == NO_STEP else step
            world = len(self._all(step))
            client.send(_packet(_DESCRIBED, struct.pack("=QQIiII", step, 0, world, 0 if world else _NOT_FOUND, 0, 0)))
        elif kind == _READ_RANGE:
            step, offset, size, rank, _ = struct.unpack("=QQQII", body)
            self._read_range(client, self.restore_step if step == NO_STEP else step, offset, size, rank)
        elif kind == _EXCHANGE:
            number, _, key_bytes, value_bytes, _ = struct.unpack_from("=QIIII", body)
            key, value = body[24 : 24 + key_bytes], body[24 + key_bytes : 24 + key_bytes + value_bytes]
            if key != b"late":
                self._exchange(client, number, value)
        elif kind == _STEP_PAGE:
            self.page = mmap.mmap(fds[0], 4096)
            os.close(fds[0])
            if self.agreed is not None:
                step, flags, why = self.agreed
                struct.pack_into("=QII", self.page, _AGREED, step, flags, len(why))
                self.page[_AGREED + 16 : _AGREED + 16 + len(why)] = why
            # It is seen for ever.
            struct.pack_into("=QqQQ", self.page, _ORDER, 2, 2**62, NO_STEP, 0 if self.agreed is None else 1)
            client.send(_packet(_STEP_PAGE_TAKEN, b""))
        return True

    def entered(self) -> tuple[int, int]:
        """The newest step that the member has entered, and how many it has said."""
        step, calls = struct.unpack_from("=QQ", self.page, _CALLS - 8)
        return step, calls

    def _exchange(self, client: socket.socket, number: int, value: bytes) -> None:
        """The other members give "of RANK"."""
        values = [value if rank == self.rank else f"of {rank}".encode() for rank in range(self.world_size)]
        ends = [sum(map(len, values[: rank + 1])) for rank in range(self.world_size)]
        content = struct.pack(f"<{len(ends)}I", *ends) + b"".join(values)
        _send_memory(client, _packet(_EXCHANGED, struct.pack("=QQIiII", number, len(content), self.world_size, 0, 0, 0)), content)

    def _commit(self, step: int) -> None:
        """Says it to all members once all of them have saved the step."""
        members = self.peers or [self]
        if all(step in member.shards for member in members):
            for member in members:
                with contextlib.suppress(OSError):  # it has gone without waiting
                    member.client.send(_packet(_COMMITTED, struct.pack("=QiI", step, 0, 0)))

    def _all(self, step: int) -> list[bytes]:
        """The shards of a checkpoint, none where there is none. Without others and peers all members' are like this one's."""
        if step in self.others:
            return self.others[step]
        if self.peers:
            shards = [peer.shards[step] for peer in self.peers if step in peer.shards]
            return shards if len(shards) == len(self.peers) else []
        return [self.shards[step]] * self.world_size if step in self.shards else []

    def _restore(self, client: socket.socket, step: int, rank: int) -> None:
        shards = self._all(step)
        status, shard = (_INVALID if shards else _NOT_FOUND), None
        if rank == _OWN_SHARD and len(shards) == self.world_size:
            rank = self.rank
        if rank < len(shards):
            shard = shards[rank]
        if shard is None:
            client.send(_packet(_RESTORED, struct.pack("=QQiI", step, 0, status, 0)))
            return
        _send_memory(client, _packet(_RESTORED, struct.pack("=QQiI", step, len(shard), 0, 0)), shard)

    def _read_range(self, client: socket.socket, step: int, offset: int, size: int, rank: int) -> None:
        self.ranges.append((rank, offset, size))
        shards = self._all(step)
        if self.ranges_fail:
            client.send(_packet(_RANGE_READ, struct.pack("=QQQQQiI", step, offset, 0, 0, 1, _CORRUPT, 0)))
            return
        part = shards[rank][offset : offset + size]
        answer = struct.pack("=QQQQQiI", step, offset, len(part), len(shards[rank]), 1, 0, 0)
        _send_memory(client, _packet(_RANGE_READ, answer), part)


def _send_memory(client: socket.socket, packet: bytes, content: bytes) -> None:
    memory = os.memfd_create("shard", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(memory, "wb", closefd=False) as file:
        file.write(content)
    fcntl.fcntl(memory, _F_ADD_SEALS, _SHRINK_GROW_WRITE)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory]))]
    client.sendmsg([packet], rights)
    os.close(memory)
