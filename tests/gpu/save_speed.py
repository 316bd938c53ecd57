"""How long a program that trains on a GPU is kept by a save of its memory: save_speed.py [MIB [ROUNDS]].

Each round saves the same state three ways, one after the other: with Muster (until gang.save returns: the memory may change
then), to CPU tensors as torch.save does first, and to memory that is pinned and there already, which is the least that a copy
takes. Prints medians.
"""

import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import muster
import torch
from fake_musterd import FakeMusterd

TENSORS = 16


def milliseconds(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begun = time.monotonic()
    work()
    torch.cuda.synchronize()
    return (time.monotonic() - begun) * 1000


def main() -> None:
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 2048
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    count = mib * (1 << 20) // TENSORS
    state = {f"t{i}": torch.randint(256, (count,), dtype=torch.uint8, device="cuda") for i in range(TENSORS)}
    pinned = {name: torch.empty(count, dtype=torch.uint8, pin_memory=True) for name in state}
    times: dict[str, list[float]] = {"muster": [], "pageable": [], "pinned": []}
    with tempfile.TemporaryDirectory(prefix="muster-gpu-") as directory:
        socket = str(Path(directory) / "musterd.sock")
        os.environ.update(MUSTER_GANG="7.0", MUSTER_GENERATION="4", RANK="0", MUSTER_TOKEN="00" * 16, MUSTER_SOCKET=socket)
        musterd = FakeMusterd(socket, world_size=1)
        musterd.flags = 1
        with muster.init() as gang:
            # The first two rounds make the memory that later ones find.
            for step in range(1, rounds + 3):
                for tensor in state.values():
                    tensor += step
                taken = {"muster": milliseconds(functools.partial(gang.save, state, step))}
                gang.wait(timeout=600)
                musterd.shards.pop(step - 1, None)
                taken["pageable"] = milliseconds(lambda: [tensor.cpu() for tensor in state.values()])
                taken["pinned"] = milliseconds(lambda: [pinned[name].copy_(t, non_blocking=True) for name, t in state.items()])
                if step == 1:
                    print(f"first save {taken['muster']:.0f} ms: it makes and pins the memory")
                if step > 2:
                    for kind, value in taken.items():
                        times[kind].append(value)
            medians = {kind: statistics.median(values) for kind, values in times.items()}
            print(f"{torch.cuda.get_device_name()}: {mib} MiB in {TENSORS} tensors, n = {rounds}")
            for kind, value in medians.items():
                print(f"{kind} {value:.1f} ms, {mib * 1.048576 / value:.2f} GB/s, {value / medians['pinned']:.2f} of pinned", flush=True)
            found = gang.restore(rounds + 2)
            assert found is not None
            wrong = [name for name, tensor in state.items() if not torch.equal(found[0][name], tensor.cpu())]
        musterd.stop()
    print(f"restored with other bits: {wrong}" if wrong else "restored bit for bit")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
