"""A member whose work can be divided among any number of members, and shows when it lived: walker.py DIRECTORY [WORD...].

The work is a walk of 60 numbers, each of which changes with every step in a way that depends on its index and the step
alone; rank R of a world of W walks those with index % W == R. A checkpoint is saved every 5 steps, and the next step
waits until it is committed; with the word `free` none but the last is waited for. With `stoic` it does not die of
SIGTERM. After a restart the numbers are collected from all shards, whatever number of members saved
them, and must be what they have to be. It writes:

    g<G>.r<R>.json            who it is, as programs/member.py does; `said` has the step it started from
    life.<G>.<R>.<HOST>       as walk.py says
    final.<R>                 its numbers at the end
    wrong.<G>.<R>             what it was given back was not what had been saved
    errors.<G>.<R>            saves that failed; it goes on after them

It goes on until DIRECTORY/target holds the step that it has made, and DIRECTORY/go is there.
"""

import contextlib
import json
import os
import signal
import sys
import time

# python3 -I ignores both
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "").split(":")[0]]
import muster  # noqa: E402
import walk  # noqa: E402

NUMBERS = 60
EVERY = 5
free = "free" in sys.argv[2:]
if "stoic" in sys.argv[2:]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
me = {"rank": walk.rank, "generation": walk.generation, "host": walk.host, "pid": os.getpid()}
here = f"{walk.generation}.{walk.rank}"

life = walk.Life()
with muster.init() as gang:
    values = {index: 0 for index in range(walk.rank, NUMBERS, walk.world)}
    step = 0
    found = gang.restore_info()
    if found is not None:
        step = found[0]
        whole = {}
        for shard in gang.restore_shards():
            whole.update(dict(shard["values"]))
        if whole != {index: walk.walked(index, step) for index in range(NUMBERS)}:
            walk.write(f"wrong.{here}", f"the numbers of step {step} are others: {whole}")
            sys.exit(9)
        values = {index: whole[index] for index in values}
    life.begin(step)
    walk.write(f"g{walk.generation}.r{walk.rank}.json", json.dumps(me | {"env": dict(os.environ), "said": {"from": step}}))
    while True:
        target = walk.read_target()
        if target is not None and step >= target:
            if step == target and os.path.exists(walk.path("go")):
                break
            gang.step(step)
            time.sleep(0.01)
            continue
        step += 1
        values = {index: walk.after(value, index, step) for index, value in values.items()}
        gang.step(step)
        life.step = step
        if step % EVERY == 0:
            try:
                last = not free or step == walk.read_target()
                with contextlib.nullcontext() if last else contextlib.suppress(muster.Busy):
                    gang.save({"values": sorted(values.items())}, step, block=last)
                if last:
                    gang.wait(step)
                life.committed = step if last else gang.committed or 0
            except muster.MusterError as error:
                walk.append(f"errors.{here}", f"step {step}: {error}\n")
        time.sleep(0.01)
    final = {"world": walk.world, "step": step, "values": sorted(values.items())}
    walk.write(f"final.{walk.rank}", json.dumps(final))
