"""Descriptors that take for ever to be closed, passed to musterd: what no library sends.

passing.py SLOW_FILE does so as a user of no gang. What has passed something keeps it, since it would hang as well.
"""

import os
import socket
import struct
import sys
import time

from packets import connect, member, packet, receive, send

PROGRESS, SAVE, PROGRESS_PAGE, ASK_MEMORY = 67, 65, 68, 73
COMMAND_HELLO, COMMAND_BEGIN, COMMAND_WRITE, COMMAND_ANSWER = 128, 132, 133, 160
OWN_UID = 2**32 - 1


def _lingering(listener):
    """A TCP connection with bytes that nobody takes, whose last close waits for an hour."""
    sender = socket.create_connection(listener.getsockname())
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 3600))
    sender.setblocking(False)
    try:
        while True:
            sender.send(bytes(1 << 20))
    except BlockingIOError:
        return sender


def _send(peer, data, fds):
    try:
        send(peer, data, fds)
    except OSError:
        pass  # musterd has closed it: it brought something before


class Passer:
    """Passes a file that nobody may close in this process, and connections by a process that has no such file: whose end is
    no close that waits."""

    def __init__(self, path):
        self._orders, orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            self._orders.close()
            self._serve(orders)
        orders.close()
        self._slow_file = os.open(path, os.O_RDWR)
        self._kept = []

    def _serve(self, orders):
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        while True:
            data, fds, _, _ = socket.recv_fds(orders, 1 << 16, 1)
            if not fds:
                os._exit(0)
            child = os.fork()
            if child == 0:
                lingering = [_lingering(listener) for _ in range(data[0])]  # closed by the end of the process alone
                _send(socket.socket(fileno=fds[0]), data[1:], [one.fileno() for one in lingering])
                os._exit(0)
            os.close(fds[0])
            os.waitpid(child, 0)
            orders.send(b"done")

    def __call__(self, peer, data, count=1):
        _send(peer, data, [self._slow_file] * count)
        socket.send_fds(self._orders, [bytes([count]) + data], [peer.fileno()])
        self._orders.recv(4)
        self._kept.append(peer)


def stranger(path):
    passes = Passer(path)
    for count in (1, 4):
        for packets in (1, 5):  # of several most are unread when musterd closes after the first
            peer = connect()
            for _ in range(packets):
                passes(peer, packet(PROGRESS), count)
    hello = packet(COMMAND_HELLO, struct.pack("=II", OWN_UID, 0))
    write = packet(COMMAND_WRITE, struct.pack("=QQII", 0, 4096, 0, 0))
    for data in (write, packet(COMMAND_BEGIN)):
        peer = connect()
        send(peer, hello)
        if receive(peer)[0] != COMMAND_ANSWER:
            raise RuntimeError("no command is let in")
        passes(peer, data)
    return passes


def let_in():
    """This member's connection, once the one before it is over."""
    until = time.monotonic() + 60
    while True:
        try:
            return member()
        except (OSError, RuntimeError):
            if time.monotonic() > until:
                raise
        time.sleep(0.01)


def of_member(path):
    passes = Passer(path)
    for data in (packet(SAVE, struct.pack("=QQ", 1, 4096)), packet(PROGRESS_PAGE), packet(ASK_MEMORY, bytes(16)), packet(0)):
        for count in (1, 4):
            peer = let_in()
            passes(peer, data, count)
            peer.shutdown(socket.SHUT_RDWR)
    return passes


if __name__ == "__main__":
    kept = stranger(sys.argv[1])
    print("passed", flush=True)
    time.sleep(600)
