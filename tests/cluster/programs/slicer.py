"""A member that keeps its part of a matrix of numbers, and restores it after its gang has shrunk: slicer.py DIRECTORY.

The matrix has 60 rows of 40 numbers, which change with every step in a way that depends on their place and the step alone.
Each member has some of the rows; a second matrix is divided by columns, and a vector is the same on all. All are saved as
slices every 5 steps. After a restart each member restores the parts that are its own in the gang as it is now, of whatever
size, and compares every number. It writes, beside what programs/walk.py says,

    g<G>.r<R>.json            who it is; `said` has the step it started from
    wrong.<G>.<R>             what it was given back was not what had been saved
    final.<R>                 its rows at the end

and goes on as programs/walker.py does.
"""

import json
import os
import sys
import time

import numpy

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import muster  # noqa: E402
import walk  # noqa: E402

ROWS, COLUMNS, EVERY = 60, 40, 5
me = {"rank": walk.rank, "generation": walk.generation, "host": walk.host, "pid": os.getpid()}
here = f"{walk.generation}.{walk.rank}"


def at(step, first, rows, first_column, columns):
    """The numbers of a part after a step."""
    places = numpy.add.outer(numpy.arange(first, first + rows) * 1000, numpy.arange(first_column, first_column + columns))
    return places * 2654435761 + step * 40503


def share(whole):
    """This member's part: where it begins, and how much it is."""
    first = whole * walk.rank // walk.world
    return first, whole * (walk.rank + 1) // walk.world - first


def slices(rows, columns, vector):
    return {
        "rows": muster.Slice(rows, (ROWS, COLUMNS), (share(ROWS)[0], 0)),
        "columns": muster.Slice(columns, (ROWS, COLUMNS), (0, share(COLUMNS)[0])),
        "vector": muster.Slice(vector),
    }


def state(step):
    return (
        at(step, *share(ROWS), 0, COLUMNS),
        at(step, 0, ROWS, *share(COLUMNS)),
        at(step, 0, 1, 0, 7)[0],
    )


life = walk.Life()
with muster.init() as gang:
    step, mine = 0, state(0)
    found = gang.restore_info()
    if found is not None:
        step = found[0]
        for array in mine:
            array[:] = -1
        gang.restore_slices(slices(*mine))
        for array, expected in zip(mine, state(step)):
            if not numpy.array_equal(array, expected):
                walk.write(f"wrong.{here}", f"the numbers of step {step} are others: {array}")
                sys.exit(9)
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
        for array in mine:
            array += 40503
        gang.step(step)
        life.step = step
        if step % EVERY == 0:
            gang.save({"step": step}, step, slices=slices(*mine))
            gang.wait(step)
            life.committed = step
        time.sleep(0.01)
    final = {"world": walk.world, "step": step, "first": share(ROWS)[0], "rows": mine[0].tolist()}
    walk.write(f"final.{walk.rank}", json.dumps(final))
