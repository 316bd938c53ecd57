"""A member that trains nothing and saves often: keeper.py DIRECTORY STEPS [BYTES [STILL]].

Its state after a step follows from the rank and the step alone, so that it can be checked wherever it comes from; STILL
bytes of it are the same in each step. It
makes step N when DIRECTORY/step.N is there, saves after each step, and writes these files:

    started.G.R     generation, rank: the step it started from, 0 for the beginning
    saved.N.R       step, rank: it has handed its state over
    committed.N.R   step, rank: its checkpoint is committed, as this member was told
    final.R         digest of the state after the last step
    wrong.G.R       what it was given back was not what it had saved

It ends with 0 when STEPS steps are done.
"""

import hashlib
import os
import sys
import time

sys.path.insert(0, os.environ.get("PYTHONPATH", "").split(":")[0])  # python3 -I ignores it
import muster  # noqa: E402

directory, steps, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 200_000
still_size = int(sys.argv[4]) if len(sys.argv) > 4 else 0
rank = int(os.environ["RANK"])
generation = int(os.environ["MUSTER_GENERATION"])


def path(name):
    return os.path.join(directory, name)


def write(name, text):
    with open(path(name) + ".part", "w", encoding="utf-8") as file:
        file.write(f"{text}\n")
    os.rename(path(name) + ".part", path(name))


def state_after(step):
    """Bytes that no other rank and no other step has."""
    return hashlib.shake_128(f"{rank}/{step}".encode()).digest(size)


still = hashlib.shake_128(f"{rank}".encode()).digest(still_size)

with muster.init() as gang:
    found = gang.restore()
    step = 0
    if found is not None:
        state, step = found
        if bytes(state["state"]) != state_after(step) or bytes(state["still"]) != still or state["step"] != step:
            write(f"wrong.{generation}.{rank}", f"the state of step {step} is another one")
            sys.exit(9)
    write(f"started.{generation}.{rank}", step)
    while step < steps:
        while not os.path.exists(path(f"step.{step + 1}")):
            gang.step(step)  # keeps the connection alive, as a program that trains does
            time.sleep(0.01)
        step += 1
        gang.save({"step": step, "still": still, "state": state_after(step)}, step)
        gang.step(step)
        write(f"saved.{step}.{rank}", generation)
        gang.wait(step)
        write(f"committed.{step}.{rank}", generation)
    write(f"final.{rank}", hashlib.sha256(state_after(step)).hexdigest())
