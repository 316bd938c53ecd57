"""A PyTorch member that saves with PyTorch's distributed checkpoint: dcp_member.py DIRECTORY save|load.

`save`: a DTensor and a ShardedTensor of 24 rows, divided among the members, a tensor and values that all have, as step 10,
and with muster.torch.save as step 20. `load`: a gang of any size restores both, and compares every number. Writes done.<R>:
what it has found.
"""

import json
import sys
from pathlib import Path

import muster
import muster.torch
import torch
from torch import distributed
from torch.distributed import checkpoint as dcp
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

directory, what = Path(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank, world = distributed.get_rank(), distributed.get_world_size()
mesh = init_device_mesh("cpu", (world,))
WHOLE = torch.arange(24 * 5, dtype=torch.float32).reshape(24, 5)


def sharded(fill):
    """Tensors of 24 rows of which each rank has some."""
    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{r}/cpu" for r in range(world)])
    tensor = sharded_tensor.empty(spec, 24, 5)
    for shard in tensor.local_shards():
        (first, _), (rows, _) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
        shard.tensor.copy_(WHOLE[first : first + rows] if fill else torch.zeros(rows, 5))
    return {"sharded": tensor, "dtensor": distribute_tensor(WHOLE if fill else torch.zeros(24, 5), mesh, [Shard(0)])}


def right(state):
    for shard in state["sharded"].local_shards():
        (first, _), (rows, _) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
        if not torch.equal(shard.tensor, WHOLE[first : first + rows]):
            return False
    return torch.equal(state["dtensor"].full_tensor(), WHOLE)


with muster.init() as gang:
    assert (gang.rank, gang.world_size) == (rank, world)
    if what == "save":
        state = sharded(True) | {"all": WHOLE + 1, "epoch": 3, "names": ["a", "b"]}
        dcp.save(state, storage_writer=muster.torch.StorageWriter(gang, 10))
        gang.wait(10, timeout=60)
        committed = gang.committed
        muster.torch.save(gang, {"model": state, "mine": torch.tensor([rank])}, 20)
        gang.wait(20, timeout=60)
        said = {"committed": committed}
    else:
        state = sharded(False) | {"all": torch.zeros(24, 5), "epoch": None, "names": None}
        dcp.load(state, storage_reader=muster.torch.StorageReader(gang, 10))
        into = {"model": sharded(False) | {"all": torch.zeros(24, 5)}}
        plain, step = muster.torch.load(gang, into)
        whole = muster.torch.load(gang)[0]["model"]
        said = {
            "dcp": [right(state), torch.equal(state["all"], WHOLE + 1), state["epoch"], state["names"]],
            "plain": [right(plain["model"]), torch.equal(plain["model"]["all"], WHOLE + 1), plain["model"]["epoch"]],
            "whole": all(torch.equal(whole[name], WHOLE) for name in ("sharded", "dtensor")),
            "mine": plain["mine"].tolist(),
            "step": step,
        }
    distributed.barrier()
(directory / f"done.{rank}").write_text(json.dumps(said | {"world": world}))
