"""Random states as frameworks have them: of each case, what every rank of a gang saves, and what it loads into.

All of a case follows from a seed and its number, in every process alike; so do a tensor's values, from its name.
"""

import hashlib
import itertools
import math
import random
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes  # noqa: F401  # its types
import numpy
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float8_e8m0fnu, torch.float4_e2m1fn_x2, torch.uint16),
    *(torch.complex64, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
]
# Of NumPy's and ml_dtypes' arrays, as JAX has them; one in each case.
ARRAYS = [numpy.dtype(name) for name in ("int16", "bfloat16", "float8_e4m3b11fnuz", "float8_e5m2", "int4", "float4_e2m1fn", "complex128")]
# pp: one rank has the name. ep: some have. pp+fsdp: some have parts of it.
PLACEMENTS = ["plain", "fsdp", "hsdp", "tp", "fsdp+tp", "pp", "ep", "pp+fsdp"]
EVERYWHERE = PLACEMENTS[:5]  # on all ranks
SIZES = [1, 2, 3, 4]  # of gangs
CHANGES = ["same", "more", "fewer"]
SAVES = ["Gang.save", "torch.save", "replicated", "dcp.save", "dcp cached", "async_save"]
LOADS = {"plain": ["restore into", "load into", "load"], "dcp": ["dcp.load"]}
# What a load may ask for that is not there, and what a save may be given that cannot be saved: errors, never silence.
_INTO = ["more tensors", "a longer list", "not strict", "not a box", "the other load"]
_TWISTS = {
    "restore into": _INTO,
    "load into": _INTO,
    "load": ["not a box"],
    "dcp.load": ["more tensors", "no collectives", "not a box", "the other load"],
}
DEALT, TWISTED = 4, 2  # cases of a round
LARGE = 3 << 16  # bytes of a tensor that is nearly alike on all ranks


def kind_of(save: str) -> str:
    return "plain" if save in SAVES[:3] else "dcp"


def routes() -> list[tuple[str, str]]:
    return [(save, load) for save in SAVES for load in LOADS[kind_of(save)]]


@dataclass
class Item:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    saved: str  # placements
    loaded: str
    path: tuple[Any, ...]
    born: int = 0  # of the saves of the case, the first one that has it
    layouts: tuple[str, str] = ("dense", "dense")  # when it is saved, when it is loaded
    traits: set[str] = field(default_factory=set)


@dataclass
class Case:
    seed: int
    number: int
    route: tuple[str, str]
    change: str
    twist: str | None
    sizes: tuple[int, int]
    meshes: tuple[tuple[int, int], tuple[int, int]]
    saves: int
    planner: str
    strict: bool
    items: list[Item]

    def random(self, *what: object) -> random.Random:
        return random.Random(f"{self.seed}/{self.number}/{what}")

    @property
    def alone(self) -> bool:
        """Whether the one rank saves without the collectives of PyTorch's checkpoint."""
        return self.sizes[0] == 1 and "dcp" in self.route[1] and self.number % 2 == 0

    def covered(self) -> set[str]:
        """What it has beside placements and types."""
        found = {f"{self.route[0]}, twist: {self.twist}"} if self.twist else set()
        if self.route[1] == "dcp.load":
            found.add(f"planner: {self.planner}")
        if self.alone:
            found.add("no collectives, alone")
        for item in self.items:
            found |= item.traits | {f"saved {item.layouts[0]}", f"loaded {item.layouts[1]}"}
            if item.saved != item.loaded:
                found.add("placed in another way")
            if item.born:
                found.add("a name that comes later")
        return found


def cells() -> list[tuple[tuple[str, str], str, str, torch.dtype]]:
    return list(itertools.product(routes(), CHANGES, PLACEMENTS, DTYPES))


def case_of(seed: int, number: int) -> Case:
    """Of each round of a route and a change, the first cases are dealt all cells, and the others have twists."""
    groups = list(itertools.product(routes(), CHANGES))
    turn, group = divmod(number, len(groups))
    (route, change), (round_, turn) = groups[group], divmod(turn, DEALT + TWISTED)
    rng = random.Random(f"{seed}/{number}")
    deck = list(itertools.product(PLACEMENTS, DTYPES))
    random.Random(f"{seed}/{group}/{round_}").shuffle(deck)
    twist = None
    if turn >= DEALT:
        twists = [twist for twist in _TWISTS[route[1]] if twist != "not a box" or change != "more"]
        twist = twists[(round_ * TWISTED + turn - DEALT + group) % len(twists)] if twists else None
    before = {"not a box": 4, "no collectives": rng.choice([2, 3])}.get(
        twist or "", rng.choice({"same": SIZES, "more": SIZES[:-1], "fewer": SIZES[1:]}[change])
    )
    after = rng.choice({"same": [before], "more": SIZES[before:], "fewer": SIZES[: before - 1]}[change])
    saves = 3 if route[0] == "dcp cached" else rng.choice([1, 1, 2])
    meshes = (rng.choice(factors(before)), rng.choice(factors(after)))
    planner = "cached" if route[0] == "dcp cached" else rng.choice(["default", "muster"])
    case = Case(seed, number, route, change, twist, (before, after), meshes, saves, planner, twist != "not strict", [])
    for place, (saved, dtype) in enumerate(deck[turn % DEALT :: DEALT]):
        case.items.append(_item(case, rng, place, saved, dtype))
    for place, item in enumerate(item for item in case.items if item.path[0] == "list"):
        item.path = ("list", place)
    return case


def _item(case: Case, rng: random.Random, place: int, saved: str, dtype: torch.dtype) -> Item:
    loaded = saved if rng.random() < 0.5 or case.route[1] == "load" else rng.choice(PLACEMENTS)
    anywhere = all(p in EVERYWHERE for p in (saved, loaded))
    traits = set()
    dims = rng.choice([1, 1, 2, 2, 3])
    shape = (rng.choice([0, 1, 2, 3, 5, 7, 9]), *(rng.choice([1, 2, 3, 4, 1, 2, 3, 4, 0]) for _ in range(dims - 1)))
    if rng.random() < 0.15 and {saved, loaded} <= {"plain", "pp", "ep"}:
        shape = ()
        traits.add("0-d")
    if 0 in shape:
        traits.add("empty")
    elif shape and shape[0] < max(case.sizes) and saved not in ("plain", "pp", "ep"):
        traits.add("empty shard")
    elif shape and saved not in ("plain", "pp", "ep") and shape[0] % case.sizes[0]:
        traits.add("uneven")
    if traits & {"empty", "empty shard"} and rng.random() < 0.5:
        traits.add("no shape")  # FSDP2 gives a part without elements any shape
    name = f"{saved}.{place}" + rng.choice(["", "", "", ".weight", "/w", "~1", " \u00e9", "x" * 300])
    path: tuple[Any, ...] = rng.choice([("model", name), ("optimizer", "state", name, "exp_avg"), ("optimizer", "state", name, "step")])
    if rng.random() < 0.15 and anywhere:
        path = ("list", place)
    item = Item(name, dtype, shape, saved, loaded, path, traits=traits)
    if case.saves > 1 and rng.random() < 0.2 and path[0] != "list":
        item.born = rng.randrange(1, case.saves)
    layouts = ["dense", "dense", "gaps", "transposed", "offset"]
    item.layouts = (rng.choice(layouts), rng.choice(layouts))
    if case.route[0] == "async_save" and item.layouts[0] == "offset" and saved not in ("plain", "pp", "ep"):
        item.layouts = ("dense", item.layouts[1])  # torch 2.13 refuses to stage a DTensor of such a one
    if rng.random() < 0.15 and item.path[0] != "list":
        traits.add("tied")
    if dtype.is_complex and saved == "plain" and case.route[0] != "async_save" and rng.random() < 0.5:
        traits.add("conj")  # a view, which torch 2.13 stages as if it were none
    if dtype.is_floating_point and {saved, loaded} == {"plain"} and dtype.itemsize > 1 and rng.random() < 0.5:
        traits.add("parameter")
    if case.route[0] in SAVES[:3] and {saved, loaded} == {"plain"} and rng.random() < 0.3:
        traits.add("own")  # each rank has its own values, as of its random numbers
        if 0 not in shape and shape and rng.random() < 0.3:
            item.shape = (LARGE // math.prod(shape[1:]) // dtype.itemsize, *shape[1:])
            traits.add(rng.choice(["alike but the end", "alike but the order"]))
    return item


def factors(size: int) -> list[tuple[int, int]]:
    found = [(n, size // n) for n in range(1, size + 1) if size % n == 0]
    return [pair for pair in found if 1 not in pair] * 3 + found


_meshes: dict[tuple[int, ...], DeviceMesh] = {}


def make_meshes(world: int) -> None:
    """Of this process's group. All ranks make them in the same order."""
    for shape in [(world,), *sorted(set(factors(world)))]:
        _meshes[shape] = init_device_mesh("cpu", shape, mesh_dim_names=("a", "b")[: len(shape)])


def whole(case: Case, item: Item, save: int, rank: int = 0) -> torch.Tensor:
    """What all ranks together have of it at one of the case's saves: random bits."""
    name = f"{case.seed}/{case.number}/{item.path}/{save}"
    if "own" not in item.traits:
        return bits_of(name, item.dtype, item.shape)
    if not any("alike" in trait for trait in item.traits):
        return bits_of(f"{name}/{rank}", item.dtype, item.shape)
    found = bits_of(name, item.dtype, item.shape)
    if "alike but the end" in item.traits:
        found.view(-1)[-1:] = bits_of(f"{name}/{rank}", item.dtype, (1,))
    else:
        content = found.view(-1).view(torch.uint8)
        words = content[: content.numel() // 8 * 8].view(torch.int64)
        words[[-1, -2 - rank]] = words[[-2 - rank, -1]]
    return found


def bits_of(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    size = math.prod(shape) * dtype.itemsize
    raw = numpy.frombuffer(hashlib.shake_128(name.encode()).digest(size), numpy.uint8).copy()
    if dtype == torch.bool:
        raw &= 1
    return torch.from_numpy(raw).view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Also of types that PyTorch fills with nothing."""
    memory = torch.empty(shape, dtype=dtype)
    memory.view(-1).view(torch.uint8).zero_()
    return memory


def array(case: Case, save: int) -> Any:
    """What all ranks have: random bits."""
    dtype = ARRAYS[case.number % len(ARRAYS)]
    return numpy.frombuffer(case.random("array", save).randbytes(6 * dtype.itemsize), dtype).reshape(2, 3)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.view(tensor.shape).copy_(tensor.detach())
    return flat.view(torch.uint8)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(raw(a), raw(b))


def opposite(tensor: torch.Tensor) -> torch.Tensor:
    """Another value in every element, and another bit in every place."""
    if tensor.dtype == torch.bool:
        return ~tensor
    return (raw(tensor) ^ 0xFF).view(tensor.dtype).reshape(tensor.shape) if tensor.numel() else tensor.clone()


def laid_out(tensor: torch.Tensor, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The same values in memory of this layout, and all of the memory."""
    if not tensor.shape or not tensor.numel():
        layout = "dense"
    if layout == "gaps":
        memory = zeros((*tensor.shape, 2), tensor.dtype)
        view = memory[..., 0]
    elif layout == "transposed":
        memory = zeros(tuple(reversed(tensor.shape)), tensor.dtype)
        view = memory.permute(*reversed(range(tensor.dim())))
    elif layout == "offset":
        memory = zeros((tensor.numel() + 2,), tensor.dtype)
        view = memory[1:-1].view(tensor.shape)
    else:
        memory = zeros(tuple(tensor.shape), tensor.dtype)
        view = memory
    view.copy_(tensor)
    return view, memory


@dataclass
class Placed:
    """What one rank has of an item: the local values, and how a DTensor of them is made."""

    local: torch.Tensor
    mesh: DeviceMesh | None = None
    placements: tuple[Any, ...] = ()

    def tensor(self, local: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        if self.mesh is None:
            return local
        stride = torch.empty(of.shape, device="meta").stride()
        return DTensor.from_local(local, self.mesh, self.placements, run_check=False, shape=of.shape, stride=stride)


def has(case: Case, item: Item, load: bool, rank: int) -> bool:
    """Whether this rank has the item's name."""
    kind, world, shape = item.loaded if load else item.saved, case.sizes[load], case.meshes[load]
    rng = case.random(item.path, "ranks", load)
    if kind == "pp":
        return rng.randrange(world) == rank
    if kind == "ep":
        return rank in rng.sample(range(world), rng.randint(1, world))
    return kind != "pp+fsdp" or rng.randrange(shape[0]) == rank // shape[1]


def place(case: Case, item: Item, load: bool, rank: int, of: torch.Tensor) -> Placed | None:
    """None where this rank has nothing of it, not even its name."""
    if not has(case, item, load, rank):
        return None
    if (item.loaded if load else item.saved) in ("plain", "pp", "ep"):
        return Placed(of)
    placed = _dtensor(case, item, load, rank, of)
    if "no shape" in item.traits and not placed.local.numel():
        placed.local = placed.local.new_empty([0] * of.dim())
    return placed


def _dtensor(case: Case, item: Item, load: bool, rank: int, of: torch.Tensor) -> Placed:
    kind, world, shape = item.loaded if load else item.saved, case.sizes[load], case.meshes[load]
    rng = case.random(item.path, kind, load)
    if kind == "fsdp":
        return _divided(of, _meshes[world,], (rank,), [Shard(0)])
    if kind == "tp":
        return _divided(of, _meshes[world,], (rank,), [Shard(rng.randrange(of.dim()))])
    at, mesh = divmod(rank, shape[1]), _meshes[shape]
    if kind == "hsdp":
        return _divided(of, mesh, at, [Replicate(), Shard(0)])
    if kind == "pp+fsdp":
        return _divided(of, mesh["b"], (at[1],), [Shard(0)])
    assert kind == "fsdp+tp"
    ways: list[Any] = [[_StridedShard(0, split_factor=shape[1]), Shard(0)]]
    if of.dim() > 1:
        ways += [[Shard(0), Shard(1)], [Shard(1), Shard(0)]]
    return _divided(of, mesh, at, rng.choice(ways))


def _divided(of: torch.Tensor, mesh: DeviceMesh, at: tuple[int, ...], placements: list[Any]) -> Placed:
    """As the frameworks divide: by one dimension of the mesh after the other, a strided one last."""
    local = of
    for dim in sorted(range(mesh.ndim), key=lambda i: isinstance(placements[i], _StridedShard)):
        if not isinstance(placements[dim], Replicate):
            local = chunk(local, placements[dim].dim, mesh.size(dim), at[dim])
    return Placed(local, mesh, tuple(placements))


def chunk(tensor: torch.Tensor, dim: int, parts: int, number: int) -> torch.Tensor:
    each = -(-tensor.shape[dim] // parts)
    first = min(number * each, tensor.shape[dim])
    return tensor.narrow(dim, first, min(each, tensor.shape[dim] - first))


def no_box(of: torch.Tensor, rank: int) -> Placed:
    """Of four ranks: each has two of eight rows, that do not lie next to each other."""
    at = divmod(rank, 2)
    local = of[at[0] * 4 :][[at[1], at[1] + 2]]
    return Placed(local, _meshes[2, 2], (Shard(0), _StridedShard(0, split_factor=2)))


def put(state: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        state = state.setdefault(key, [] if key == "list" else {})
    if isinstance(state, list):
        state.append(value)
    else:
        state[path[-1]] = value


def values(case: Case, save: int, rank: int) -> dict[str, Any]:
    """What is no tensor, as schedulers, loops and random numbers have it. The same on all ranks, but its own."""
    rng = case.random("values", save)
    found: dict[str, Any] = {
        "epoch": rng.randrange(1 << 40),
        "lr": rng.random(),
        "endless": math.inf,
        "flag": rng.random() < 0.5,
        "none": None,
        "text": rng.choice(["", "a", "\u00e9\u0000\U0001f600", "x" * 500]),
        "betas": (rng.random(), rng.random()),
        "scheduler": {"last_epoch": rng.randrange(100), "base_lrs": [rng.random()], "milestones": {"3": 2}},
        "groups": [{"lr": rng.random(), "params": [0, 1, 2]}, {"lr": 0.0, "params": []}],
    }
    if kind_of(case.route[0]) == "plain":
        found |= {"complex": complex(1, -0.0), "rank": rank, 7: {"step": rng.randrange(100)}, "bytes": rng.randbytes(5)}
    return found
