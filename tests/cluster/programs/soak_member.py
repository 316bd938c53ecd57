"""A member whose state is large, known at each step, and overwritten as soon as a save of it has returned.

soak_member.py DIRECTORY SEED PACE [AHEAD]: a step takes PACE seconds or longer, and is saved; no save is waited for but the last.
No member is ahead of another by more than a step, nor by more than AHEAD commits of the step in DIRECTORY/looked. What its
state is at a step is in soak_state.py. After a restart every bit of what is given back is compared: the member's own shard,
or all when another number of members saved them. It writes:

    life.<G>.<R>.<HOST>     as walk.py says
    told.<G>.<R>            a line for each commit that it was told: CLOCK_BOOTTIME in ns, step
    final.<R>               the step at which it has ended
    wrong.<G>.<R>           what it was given back was not what had been saved
    errors.<G>.<R>          saves and restores that failed; it goes on after them

It ends at the step that DIRECTORY/target holds.
"""

import glob
import math
import os
import sys
import time

import muster
import numpy
import soak_state
import walk

seed, pace = int(sys.argv[2]), float(sys.argv[3])
ahead = float(sys.argv[4]) if len(sys.argv) > 4 else math.inf
here = f"{walk.generation}.{walk.rank}"
LAYERS = range(len(soak_state.LAYERS))


def is_state(state, rank, step):
    """Whether it is what the member `rank` had at a step, bit for bit."""
    if list(state) != ["step", "layers", "tail"] or state["step"] != step or len(state["layers"]) != len(LAYERS):
        return False
    same = all(state["layers"][number].tobytes() == soak_state.layer_at(seed, rank, step, number) for number in LAYERS)
    return same and state["tail"].tobytes() == soak_state.tail_at(seed, rank, step)


def restore(gang):
    """The step to go on from. What cannot be read now (the store does not answer) is asked for again; what does not verify
    ends this generation."""
    while True:
        try:
            found = gang.restore_info()
            if found is None:
                return 0
            step, members = found
            if members == walk.world:
                states = {walk.rank: gang.restore()[0]}
            else:
                states = dict(enumerate(gang.restore_shards()))
        except muster.Corrupt:
            raise
        except muster.MusterError as error:
            walk.append(f"errors.{here}", f"restore: {error}\n")
            time.sleep(0.2)
            continue
        bad = [rank for rank, state in states.items() if not is_state(state, rank, step)]
        if bad:
            walk.write(f"wrong.{here}", f"the state of ranks {bad} of step {step} is another one")
            sys.exit(9)
        return step


class Told:
    """How the saves end, which nobody waits for."""

    def __init__(self, gang):
        self._gang = gang
        self._open = []

    def add(self, step):
        self._open.append(step)

    def look(self, timeout=0.0):
        for step in list(self._open):
            try:
                self._gang.wait(step, timeout)
                walk.append(f"told.{here}", f"{time.clock_gettime_ns(time.CLOCK_BOOTTIME)} {step}\n")
                life.committed = step
            except muster.TimedOut:
                continue
            except muster.MusterError as error:
                walk.append(f"errors.{here}", f"step {step}: {error}\n")
            self._open.remove(step)
        return not self._open


def wait_for_others(step):
    """As a collective operation does."""
    while True:
        steps = []
        for name in glob.glob(walk.path(f"life.{walk.generation}.*[0-9]")):  # nodes end with a number
            with open(name, "rb") as file:
                steps.append(walk.LIFE.unpack(file.read())[2])
        if len(steps) >= walk.world and min(steps) >= step:
            return
        gang.step(step)
        time.sleep(0.005)


def looked():
    """The newest step that somebody has looked at; -1: none."""
    try:
        with open(walk.path("looked")) as file:
            return int(file.read())
    except FileNotFoundError:
        return -1


life = walk.Life(every=0.02)
with muster.init() as gang:
    step = restore(gang)
    life.begin(step)
    told = Told(gang)
    layers, versions = [numpy.zeros(0, numpy.uint8)] * len(LAYERS), [-1] * len(LAYERS)
    while True:
        target = walk.read_target()
        if target is not None and step >= target:
            break
        wait_for_others(step)
        began = time.monotonic()
        step += 1
        for number in LAYERS:
            if versions[number] != soak_state.version(number, step):
                versions[number] = soak_state.version(number, step)
                layers[number] = numpy.frombuffer(bytearray(soak_state.layer_at(seed, walk.rank, step, number)), numpy.uint8)
        tail = numpy.frombuffer(bytearray(soak_state.tail_at(seed, walk.rank, step)), numpy.uint8)
        gang.step(step)
        life.step = step
        try:
            gang.save({"step": step, "layers": layers, "tail": tail}, step)
            told.add(step)
        except muster.MusterError as error:
            walk.append(f"errors.{here}", f"step {step}: {error}\n")
        # At once others, and then what they were: whatever reads them after save() has returned reads wrong ones.
        for tensor in [*layers, tail]:
            tensor ^= 0xFF
        told.look()
        while time.monotonic() < began + pace or life.committed > looked() + ahead:
            gang.step(step)
            time.sleep(0.01)
            told.look()
        for tensor in [*layers, tail]:
            tensor ^= 0xFF
    while not told.look(0.1):
        gang.step(step)
    walk.write(f"final.{walk.rank}", f"{step}\n")
