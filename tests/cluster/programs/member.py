"""A member of a gang for the tests: member.py DIRECTORY CODE.

Runs CODE, a few lines of Python, with this at hand:

    rank, generation, world, host      who and where it is
    record(**said)                     writes DIRECTORY/gG.rR.json: who it is, its whole environment, and `said`
    until_released(), until(condition) waits for DIRECTORY/go, or for a condition (polled)
    die(number)                        ends by a signal
    warn(text)                         a line on stderr
    path(name)                         DIRECTORY/name
"""

import json
import os
import resource
import signal
import sys
import time

directory, code = sys.argv[1:3]
rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))
generation = int(os.environ.get("MUSTER_GENERATION", "0"))
world = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1")))
host = os.uname().nodename


def path(name):
    return os.path.join(directory, name)


def record(**said):
    place = int(os.environ.get("MUSTER_RANK", rank))  # in the gang: those of RANK are of its role, in some
    target = path(f"g{generation}.r{place}.json")
    with open(f"{target}.part", "w", encoding="utf-8") as file:
        me = {"rank": place, "generation": generation, "host": host, "pid": os.getpid()}
        json.dump(me | {"env": dict(os.environ), "said": said}, file)
    os.rename(f"{target}.part", target)


def until(condition):
    while not condition():
        time.sleep(0.01)


def until_released():
    until(lambda: os.path.exists(path("go")))


def die(number=signal.SIGKILL):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    time.sleep(60)


def warn(text):
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


exec(code, globals())
