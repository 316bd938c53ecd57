"""A member that enters steps and does what it is asked to at them: stepper.py DIRECTORY.

It writes:

    g<G>.r<R>.json          who it is, as programs/member.py does; `said` has the step it started from
    step.<G>.<R>            two numbers of 8 bytes: the step it is entering, and the newest one that it was answered (after that
                            it has written down what it was asked)
    asked.<G>.<R>           a line for each step at which it was asked for something: step, save, exit, reason
    waited.<G>.<R>          the longest time in a step, in seconds

It saves when it is asked to, and ends when it is asked to.
"""

import json
import mmap
import os
import signal
import struct
import sys
import time

# python3 -I ignores both
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "").split(":")[0]]
import muster  # noqa: E402
from walk import append, generation, host, path, rank, write  # noqa: E402

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # step() says it, and to all at the same step
with open(path(f"step.{generation}.{rank}"), "wb+") as file:
    file.truncate(16)
    shown = mmap.mmap(file.fileno(), 16)
with muster.init() as gang:
    found = gang.restore()
    step = 0 if found is None else found[1]
    me = {"rank": rank, "generation": generation, "host": host, "pid": os.getpid()}
    write(f"g{generation}.r{rank}.json", json.dumps(me | {"env": dict(os.environ), "said": {"from": step}}))
    longest = 0.0
    while True:
        step += 1
        struct.pack_into("<q", shown, 0, step)
        began = time.monotonic()
        wish = gang.step(step)
        took = time.monotonic() - began
        if wish.save or wish.exit:
            append(f"asked.{generation}.{rank}", f"{step} {int(wish.save)} {int(wish.exit)} {wish.reason}\n")
        struct.pack_into("<q", shown, 8, step)
        if took > longest:
            longest = took
            write(f"waited.{generation}.{rank}", f"{took:.3f}\n")
        if wish.save:
            gang.save({"step": step}, step)
        if wish.exit:
            break
        time.sleep(0.01)
    gang.wait(step)
