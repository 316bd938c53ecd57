"""Python reads this as it starts where it is in PYTHONPATH. With $NO_GLOO a program fails that ends while Gloo's threads
are left, which may abort it. A member's program stands still at step $HELD_AT until $FILES/go is there.
"""

import atexit
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any


@atexit.register  # the first, so it is called last
def no_thread_of_gloo_is_left() -> None:
    for thread in Path("/proc/self/task").iterdir() if "NO_GLOO" in os.environ else ():
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            if thread.joinpath("comm").read_text() == "pt_gloo_runloop\n":
                print("a thread of Gloo's is left at the program's end", file=sys.stderr, flush=True)
                os._exit(1)


if "MUSTER_GANG" in os.environ and "HELD_AT" in os.environ:
    import muster

    enter = muster.Gang.step

    def step(gang: Any, n: int) -> muster.Wish:
        wish = enter(gang, n)
        if n == int(os.environ["HELD_AT"]):
            files = os.environ["FILES"]
            me = {"rank": gang.rank, "generation": gang.generation, "host": os.uname().nodename, "pid": os.getpid(), "env": {}}
            target = f"{files}/g{gang.generation}.r{gang.rank}.json"
            with open(f"{target}.part", "w", encoding="utf-8") as file:
                json.dump(me, file)
            os.rename(f"{target}.part", target)
            while not os.path.exists(f"{files}/go"):
                time.sleep(0.05)
                enter(gang, n)
        return wish

    muster.Gang.step = step  # type: ignore[method-assign]
