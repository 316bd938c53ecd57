"""What walker.py and chaos_member.py have in common: their numbers, their files, and how they show that they live.

    life.<G>.<R>.<HOST>     start, last sign of life (CLOCK_BOOTTIME, ns), newest step, newest committed step, the step it
                            started from (-1: not yet), pid
"""

import mmap
import os
import struct
import sys
import threading
import time

LIFE = struct.Struct("<6q")
directory = sys.argv[1]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
generation = int(os.environ["MUSTER_GENERATION"])
host = os.uname().nodename


def after(value, index, step):
    """A number's next value."""
    return (value * 6364136223846793005 + index * 1442695040888963407 + step) % 2**64


def walked(index, step, value=0):
    """A number's value after so many steps from its first one."""
    for number in range(1, step + 1):
        value = after(value, index, number)
    return value


def path(name):
    return os.path.join(directory, name)


def write(name, text):
    with open(path(name) + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(path(name) + ".part", path(name))


def append(name, text):
    with open(path(name), "a", encoding="utf-8") as file:
        file.write(text)


def read_target():
    try:
        with open(path("target"), encoding="utf-8") as file:
            return int(file.read())
    except FileNotFoundError:
        return None


class Life:
    """A file that another process reads when this one is dead."""

    def __init__(self, every=0.005):
        name = path(f"life.{generation}.{rank}.{host}")
        with open(name + ".part", "wb+") as file:
            file.truncate(LIFE.size)
            self._memory = mmap.mmap(file.fileno(), LIFE.size)
        with open("/proc/self/stat", encoding="ascii") as stat:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
        self._start = ticks * (10**9 // os.sysconf("SC_CLK_TCK"))
        self._every = every
        self.step = self.committed = 0
        self.began = -1
        self.sign()
        os.rename(name + ".part", name)
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self, step):
        """From here on it computes."""
        self.step = self.committed = self.began = step
        self.sign()

    def sign(self):
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        # One copy, in which each number is the old or the new one: pack_into() would set all of them to zero first.
        self._memory[:] = LIFE.pack(self._start, now, self.step, self.committed, self.began, os.getpid())

    def _run(self):
        while True:
            self.sign()
            time.sleep(self._every)
