"""Raw packets of the local protocol for the tests of bad input (docs/formats.md, section 1): what no library sends."""

import array
import os
import socket
import struct

SOCKET = "/run/muster/musterd.sock"
MAGIC = 0x3152534D
SUPERVISOR_HELLO, CLIENT_HELLO, SAVE, RESTORE, STEP_PAGE = 1, 64, 65, 66, 68
REFUSED, CLIENT_WELCOME, SHARD_DURABLE = 37, 96, 97
UNASKED = (98,)  # Committed
NAMES = {1: "version", 2: "malformed", 3: "denied", 4: "no gang", 5: "stale generation", 6: "disabled", 7: "invalid"}


def packet(kind, body=b"", version=1, magic=MAGIC, size=None):
    total = 16 + len(body) if size is None else size
    return struct.pack("=IHHII", magic, version, kind, total, 0) + body


def connect():
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(SOCKET)  # waits while musterd's queue is full
    peer.settimeout(20)
    return peer


def send(peer, data, fds=()):
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    peer.sendmsg([data], control)


def receive(peer):
    """(type, body) of the next packet, (0, b"") when musterd has closed."""
    try:
        data = peer.recv(1 << 17)
    except ConnectionError:
        return 0, b""
    return (struct.unpack_from("=IHH", data)[2], data[16:]) if data else (0, b"")


def answer(peer):
    """The next packet but for what musterd says unasked, which may come at any time."""
    kind, body = receive(peer)
    while kind in UNASKED:
        kind, body = receive(peer)
    return kind, body


def refusal(peer):
    """musterd's refusal as "reason: text", after which it must close; else what came instead."""
    kind, body = answer(peer)
    if kind != REFUSED:
        return f"not refused, but type {kind}"
    reason, size = struct.unpack_from("=II", body)
    text = body[8 : 8 + size].decode(errors="replace")
    closed = receive(peer)[0] == 0
    return f"{NAMES[reason]}: {text}" + ("" if closed else " (and the connection is open)")


def answer_to(data, fds=()):
    with connect() as peer:
        send(peer, data, fds)
        return refusal(peer)


def client_hello(gang, token, generation, rank):
    name = gang.encode()
    return packet(CLIENT_HELLO, bytes.fromhex(token) + struct.pack("=QII", generation, rank, len(name)) + name)


def supervisor_hello(job, nodes, node, uid=0, lengths=None, reconnecting=0, token=bytes(16)):
    texts = [nodes.encode(), node.encode(), b""]
    counts = [job, 0, 0, uid, uid, 0, 1, 1, 1, 0, 0, os.getpid(), reconnecting, 0]
    sizes = lengths if lengths is not None else [len(text) for text in texts]
    body = struct.pack("=14IQii", *counts, 0, 0, 0) + token + struct.pack("=4IQq", *sizes, 0, 0, 0)
    return packet(SUPERVISOR_HELLO, body + b"".join(texts))


def member():
    """This member's own connection, let in."""
    env = os.environ
    peer = connect()
    send(peer, client_hello(env["MUSTER_GANG"], env["MUSTER_TOKEN"], int(env["MUSTER_GENERATION"]), int(env["RANK"])))
    kind, body = receive(peer)
    if kind != CLIENT_WELCOME:
        raise RuntimeError(f"not let in: {kind} {body!r}")
    return peer


def saved(peer, step, size, fds):
    """The status and text of a save."""
    send(peer, packet(SAVE, struct.pack("=QQ", step, size)), fds)
    kind, body = answer(peer)
    if kind != SHARD_DURABLE:
        return f"type {kind}"
    _, status, length = struct.unpack_from("=QiI", body)
    return f"{status} {body[16 : 16 + length].decode(errors='replace')}".strip()
