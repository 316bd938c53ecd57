"""What a member of a soak has at a step: it follows from the seed, the rank and the step alone, and needs to be kept nowhere.

A state is a dict: `step`, `layers` and `tail`. A layer's bytes are others every so many steps, so that some of a checkpoint
is new each time and some seldom; the tail has another length at each step. Every second layer is like float32 weights, which
compress; the rest does not.
"""

import hashlib

# How long a layer stays as it is, in steps, and how many bytes it has: some more for each rank.
LAYERS = ((1, 600_000, 37_003), (3, 500_000, 11_001), (9, 900_000, 70_007), (25, 1_500_000, 301_009))
TAIL = 100_000


def _bytes(text, size):
    return hashlib.shake_128(text.encode()).digest(size)


def _floats(text, size):
    """Little-endian; the upper half of each says nothing."""
    data = bytearray(size)
    low, high = len(data[0::4]), len(data[1::4])
    content = _bytes(text, low + high)
    data[0::4], data[1::4] = content[:low], content[low:]
    data[3::4] = b"\x3f" * len(data[3::4])
    return bytes(data)


def version(layer, step):
    """The number of the layer's content; what has the same number is the same."""
    return step // LAYERS[layer][0]


def layer_at(seed, rank, step, layer):
    _, size, more = LAYERS[layer]
    content = _floats if layer % 2 else _bytes
    return content(f"{seed}/{rank}/{layer}/{version(layer, step)}", size + rank * more)


def tail_at(seed, rank, step):
    return _bytes(f"{seed}/{rank}/tail/{step}", (step * 7919 + rank * 31 + seed) % TAIL)


def structure_at(step):
    """The entry `structure` (docs/formats.md, section 6)."""
    layers = ",".join('{"array":["/layers/%d",null]}' % number for number in range(len(LAYERS)))
    state = '{"dict":[["step",%d],["layers",[%s]],["tail",{"array":["/tail",null]}]]}' % (step, layers)
    return "muster-tree/1\n" + state
