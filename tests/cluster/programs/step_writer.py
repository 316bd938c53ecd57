"""A member that knows nothing of Muster but MUSTER_CHECKPOINT_DIR: step_writer.py DIRECTORY STEPS.

It makes step N when DIRECTORY/step.N is there, and closes each step's directory: an even one by renaming it, an odd one by a
file `commit` in it. What a step's directory has follows from the rank and the step alone. It writes these files:

    started.G.R     generation, rank: the step it started from, 0 for the beginning; then who it is, as a line of JSON
    committed.N.R   step, rank: the watcher says that the step is a checkpoint
    failed.N.R      step, rank: it is none; why
    wrong.G.R       what it was given back was not what it had saved

With DIRECTORY/torn.N one rank takes that file and dies in the middle of writing step N. It ends with 0 when STEPS steps are done.
"""

import hashlib
import json
import os
import signal
import sys
import time

directory, steps = sys.argv[1], int(sys.argv[2])
rank = int(os.environ["RANK"])
generation = int(os.environ["MUSTER_GENERATION"])
top = os.environ["MUSTER_CHECKPOINT_DIR"]


def path(name):
    return os.path.join(directory, name)


def write(name, text):
    with open(path(name) + ".part", "w", encoding="utf-8") as file:
        file.write(f"{text}\n")
    os.rename(path(name) + ".part", path(name))


def contents(step):
    """What the directory of a step has: path, mode, bytes; None is a directory."""

    def blob(name, size):
        return hashlib.shake_128(f"{rank}/{step}/{name}".encode()).digest(size)

    return {
        "weights.bin": (0o644, blob("weights", 300_000)),
        "empty": (0o600, b""),
        "run.sh": (0o755, b"#!/bin/sh\n"),
        "optimizer": (0o755, None),
        "optimizer/state 1.bin": (0o640, blob("state", 70_001)),
        "optimizer/none": (0o700, None),
    }


def found(base):
    tree = {}
    for folder, folders, files in os.walk(base):
        for name in folders + files:
            full = os.path.join(folder, name)
            mode = os.stat(full).st_mode & 0o7777
            data = None if name in folders else open(full, "rb").read()
            tree[os.path.relpath(full, base)] = (mode, data)
    return tree


def taken(name):
    """Whether there was such a file; it is gone then, and nobody else takes it."""
    try:
        os.unlink(name)
    except FileNotFoundError:
        return False
    return True


def fill(base, step):
    for name, (mode, data) in contents(step).items():
        full = os.path.join(base, name)
        if data is None:
            os.mkdir(full)
        else:
            with open(full, "wb") as file:
                file.write(data)
        os.chmod(full, mode)
        if name == "empty" and taken(path(f"torn.{step}")):
            os.kill(os.getpid(), signal.SIGKILL)


def save(step):
    name = f"{top}/step-{step}"
    work = name if step % 2 else name + ".tmp"
    os.mkdir(work)
    fill(work, step)
    if step % 2:
        open(name + "/commit", "w").close()
    else:
        os.rename(work, name)


there = sorted(os.listdir(top))
before = sorted((int(name.split("-")[1]), name) for name in there if name.startswith("step-"))
step = before[-1][0] if before else 0
expected = [f"committed.step-{step}", f"step-{step}"] if before else []
if there != expected or (before and found(f"{top}/{before[-1][1]}") != contents(step)):
    write(f"wrong.{generation}.{rank}", f"{there}: the directory of step {step} is another one")
    sys.exit(9)
me = {"host": os.uname().nodename, "pid": os.getpid(), "top": top}
write(f"started.{generation}.{rank}", f"{step}\n{json.dumps(me)}")
while step < steps:
    while not os.path.exists(path(f"step.{step + 1}")):
        time.sleep(0.01)
    step += 1
    save(step)
    if os.path.exists(path("hurry")):
        continue
    while True:
        if os.path.exists(f"{top}/committed.step-{step}"):
            write(f"committed.{step}.{rank}", generation)
            break
        if os.path.exists(f"{top}/failed.step-{step}"):
            with open(f"{top}/failed.step-{step}", encoding="utf-8") as file:
                write(f"failed.{step}.{rank}", file.read())
            break
        time.sleep(0.01)
