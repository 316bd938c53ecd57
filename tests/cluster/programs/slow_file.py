"""slow_file.py PATH UID SECONDS: lays over PATH a file of that user, a FUSE server's that never answers when one is closed.

Whoever closes it hangs in the kernel until this program ends: by a signal, or after SECONDS. It prints "ready", and then
"closed by PID" for each who hangs. It speaks to the kernel itself, so that no package is needed.
"""

import ctypes
import os
import signal
import stat
import struct
import sys

GETATTR, OPEN, STATFS, RELEASE, FLUSH, INIT, ACCESS, INTERRUPT, FORGET, BATCH_FORGET = 3, 14, 17, 18, 25, 26, 34, 36, 2, 42
NO_ANSWER = (FORGET, BATCH_FORGET, INTERRUPT)
ENOSYS = 38
MODE = stat.S_IFREG | 0o600
libc = ctypes.CDLL(None, use_errno=True)


def attributes(uid):
    # struct fuse_attr_out: how long it is valid, then ino, size, blocks, times, mode, nlink, uid, gid, rdev, blksize
    return struct.pack("=QII6Q10I", 3600, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, MODE, 1, uid, uid, 0, 4096, 0)


def answer(opcode, body, uid):
    """The error and the body of an answer."""
    if opcode == INIT:
        major, minor = struct.unpack_from("=II", body)
        return 0, struct.pack("=4I2H2I2H8I", major, min(minor, 31), 0, 0, 0, 0, 4096, 1, 0, 0, *[0] * 8)
    if opcode == GETATTR:
        return 0, attributes(uid)
    if opcode == OPEN:
        return 0, struct.pack("=QII", 1, 0, 0)
    return (0 if opcode in (RELEASE, ACCESS) else -ENOSYS), b""


def main():
    path, uid, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    signal.alarm(seconds)
    device = os.open("/dev/fuse", os.O_RDWR)
    with open(path, "wb"):
        pass
    options = f"fd={device},rootmode={MODE:o},user_id={uid},group_id={uid}"
    if libc.mount(b"slow", path.encode(), b"fuse", 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    print("ready", flush=True)
    while True:
        request = os.read(device, 1 << 17)
        _, opcode, unique, _, _, _, pid, _ = struct.unpack_from("=IIQQIIII", request)
        if opcode == FLUSH:
            print(f"closed by {pid}", flush=True)
        elif opcode not in NO_ANSWER:
            error, body = answer(opcode, request[40:], uid)
            os.write(device, struct.pack("=IiQ", 16 + len(body), error, unique) + body)


main()
