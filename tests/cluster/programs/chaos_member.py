"""A member that computes the same whatever happens to it: chaos_member.py DIRECTORY SEED STEPS_BETWEEN_CHECKPOINTS PACE.

Its work is a vector of 48 numbers, started from the seed; each changes with every step in a way that depends on its index
and the step alone. Rank R of a world of W computes those with index % W == R, so that the result does not depend on how
many members there are. A step takes PACE seconds or longer. After a restart the numbers are collected from all shards,
whatever number of members saved them, and compared with what they must be. It writes:

    life.<G>.<R>.<HOST>     as walk.py says
    told.<G>.<R>            a line for each commit that it was told: CLOCK_BOOTTIME in ns, step
    final.<R>               its numbers at the end
    wrong.<G>.<R>           what it was given back was not what had been saved
    errors.<G>.<R>          saves that failed; it goes on after them

It ends at the step that DIRECTORY/target holds.
"""

import json
import os
import sys
import time

# python3 -I ignores both
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "").split(":")[0]]
import muster  # noqa: E402
import walk  # noqa: E402

NUMBERS = 48
seed, every, pace = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
here = f"{walk.generation}.{walk.rank}"


def at_start(index):
    return (seed * 2862933555777941757 + index * 3037000493) % 2**64


life = walk.Life(every=0.02)
with muster.init() as gang:
    values = {index: at_start(index) for index in range(walk.rank, NUMBERS, walk.world)}
    step = 0
    found = gang.restore_info()
    if found is not None:
        step = found[0]
        whole = {}
        for shard in gang.restore_shards():
            whole.update(dict(shard["values"]))
        if whole != {index: walk.walked(index, step, at_start(index)) for index in range(NUMBERS)}:
            walk.write(f"wrong.{here}", f"the numbers of step {step} are others: {whole}")
            sys.exit(9)
        values = {index: whole[index] for index in values}
    life.begin(step)
    while True:
        target = walk.read_target()
        if target is not None and step >= target:
            break
        step += 1
        values = {index: walk.after(value, index, step) for index, value in values.items()}
        gang.step(step)
        life.step = step
        if step % every == 0:
            try:
                gang.save({"values": sorted(values.items())}, step)
                gang.wait(step)
                walk.append(f"told.{here}", f"{time.clock_gettime_ns(time.CLOCK_BOOTTIME)} {step}\n")
            except muster.MusterError as error:
                walk.append(f"errors.{here}", f"step {step}: {error}\n")
        time.sleep(pace)
    final = {"world": walk.world, "step": step, "values": sorted(values.items())}
    walk.write(f"final.{walk.rank}", json.dumps(final))
