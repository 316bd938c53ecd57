"""What one rank does of a case: saves its part, or loads into a state of which every bit is wrong, and compares."""

import logging
import warnings
from collections.abc import Callable
from typing import Any

import models
import muster
import muster.torch
import numpy
import states
import torch
import torch._dynamo  # by an optimizer, else, in each rank anew
from states import EVERYWHERE, Case, Item, Placed, case_of
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException

FIRST = 10  # the step of a case's first save
LOST = "model", "not there"

TRAITS = {
    *("0-d", "empty", "empty shard", "no shape", "uneven", "tied", "conj", "parameter", "own", "alike but the end", "alike but the order"),
    *("saved gaps", "saved transposed", "saved offset", "loaded gaps", "loaded transposed", "loaded offset"),
    *("placed in another way", "a name that comes later", "planner: default", "planner: muster", "planner: cached"),
    "no collectives, alone",
    *(f"{save}, twist: {twist}" for save in states.SAVES[:3] for twist in ("more tensors", "a longer list", "not strict")),
    *(f"{save}, twist: {twist}" for save in states.SAVES[3:] for twist in ("more tensors", "no collectives")),
    *(f"{save}, twist: {twist}" for save in states.SAVES for twist in ("not a box", "the other load")),
}


def ready(size: int) -> None:
    warnings.simplefilter("ignore")  # of PyTorch, about its own ways
    logging.disable(logging.WARNING)
    states.make_meshes(size)


def steps(case: Case) -> list[int]:
    return [FIRST + save for save in range(case.saves)]


def is_to_fail(case: Case) -> bool:
    """No rank may take it for saved."""
    return case.twist in ("no collectives", "not a box")


def work(what: tuple[Any, ...]) -> Any:
    """What the rank answers: what is wrong, or what a model was when it was saved."""
    kind, seed, number, *rest = what
    with muster.init() as gang:
        if kind == "train":
            return models.train(gang, models.training_of(seed, number))
        if kind == "resume":
            return models.resume(gang, models.training_of(seed, number), *rest)
        return (_save if kind == "save" else _load)(gang, case_of(seed, number))


# --- saves


def _save(gang: muster.Gang, case: Case) -> list[str]:
    planner: Any = type(f"Planner{case.number}", (dcp.DefaultSavePlanner,), {})  # whose name is that of its cache
    for save, step in enumerate(steps(case)):
        state, memories = _state_to_save(case, save, gang.rank)
        try:
            done = _save_one(gang, case, state, step, planner)
            for memory in memories:  # the program goes on
                memory.copy_(states.opposite(memory))
            done()
        except (Exception, CheckpointException) as why:
            return [] if is_to_fail(case) else [f"rank {gang.rank}, save of step {step}: {_told(why)}"]
        if is_to_fail(case):
            return [f"rank {gang.rank}: what cannot be saved has been taken for saved, {case.twist}"]
        gang.wait(step, timeout=30)
    return []


def _save_one(gang: muster.Gang, case: Case, state: Any, step: int, planner: Any) -> Callable[[], Any]:
    save = case.route[0]
    if save == "Gang.save":
        gang.save(state, step)
    elif save in ("torch.save", "replicated"):
        muster.torch.save(gang, state, step, replicated=save == "replicated")
    else:
        options: dict[str, Any] = {"storage_writer": muster.torch.StorageWriter(gang, step), "planner": muster.torch.SavePlanner()}
        if case.planner != "muster":
            options["planner"] = planner(enable_plan_caching=case.planner == "cached")
        if case.twist == "no collectives" or case.alone:
            options["use_collectives"] = False
        if save == "async_save":
            return dcp.async_save(state, **options).result
        dcp.save(state, **options)
    return lambda: None


def _state_to_save(case: Case, save: int, rank: int) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """And the memory of its tensors."""
    state: dict[str, Any] = {"model": {}, "optimizer": {"state": {}}, "list": []}
    memories = []
    for item in case.items:
        of = states.whole(case, item, save, rank)
        placed = states.place(case, item, False, rank, of)
        if item.born > save or placed is None:
            continue
        if "conj" in item.traits:
            local, memory = states.laid_out(placed.local.conj().resolve_conj(), item.layouts[0])
            local = local.conj()
        else:
            local, memory = states.laid_out(placed.local, item.layouts[0])
        tensor = placed.tensor(local, of)
        tensor = torch.nn.Parameter(tensor) if "parameter" in item.traits else tensor
        states.put(state, item.path, tensor)
        if "tied" in item.traits:
            states.put(state, ("tied", *item.path), tensor)
        memories.append(memory)
    if case.twist == "not a box":
        of = states.bits_of("no box", torch.float32, (8, 3))
        placed = states.no_box(of, rank)
        states.put(state, LOST, placed.tensor(placed.local.clone(), of))
    if case.twist == "a longer list":
        state["short"] = [torch.zeros(2)]
    state["values"] = states.values(case, save, rank)
    if states.kind_of(case.route[0]) == "plain":
        state["array"] = states.array(case, save)
    return state, memories


def _emptied(values: Any) -> Any:
    if isinstance(values, list):
        return [_emptied(value) for value in values]
    return {key: _emptied(value) for key, value in values.items()} if isinstance(values, dict) else None


def _same_array(got: Any, array: Any) -> bool:
    return (got.dtype, got.shape, got.tobytes()) == (array.dtype, array.shape, array.tobytes())


# --- loads


def _load(gang: muster.Gang, case: Case) -> list[str]:
    wrong: list[str] = []
    for save, step in enumerate(steps(case)):
        newest = save == case.saves - 1
        load = _check_whole if case.route[1] == "load" else _check_into
        wrong += [f"rank {gang.rank}, load of step {step}: {text}" for text in load(gang, case, save, None if newest else step)]
    return wrong


def _load_one(gang: muster.Gang, case: Case, load: str, state: Any, step: int | None) -> Any:
    """The state that is given back."""
    if load == "dcp.load":
        planner = muster.torch.LoadPlanner() if case.planner == "muster" else None
        dcp.load(state, storage_reader=muster.torch.StorageReader(gang, step), planner=planner)
        return state
    restore = gang.restore if load == "restore into" else lambda *a, **b: muster.torch.load(gang, b.pop("into"), *a, **b)
    found = restore(step, into=state, strict=case.strict)
    assert found is not None and found[1] == (steps(case)[-1] if step is None else step)
    return found[0]


def _check_into(gang: muster.Gang, case: Case, save: int, step: int | None) -> list[str]:
    state: dict[str, Any] = {"model": {}, "optimizer": {"state": {}}, "list": []}
    targets: list[tuple[Item, Placed, torch.Tensor, torch.Tensor, torch.Tensor]] = []
    peer = gang.rank * case.sizes[0] // case.sizes[1]
    for item in case.items:
        of = states.whole(case, item, save, peer)
        placed = states.place(case, item, True, gang.rank, of)
        if item.born > save or placed is None:
            continue
        local, memory = states.laid_out(states.opposite(placed.local), item.layouts[1])
        states.put(state, item.path, placed.tensor(local, of))
        targets.append((item, placed, local, memory, memory.clone()))
        if "tied" in item.traits:
            local, memory = states.laid_out(states.opposite(placed.local), "dense")
            states.put(state, ("tied", *item.path), placed.tensor(local, of))
            targets.append((item, placed, local, memory, memory.clone()))
    values = states.values(case, save, peer)
    state["values"] = _emptied(values)
    plain = states.kind_of(case.route[0]) == "plain"
    if plain:
        state["array"] = (~states.array(case, save).view(numpy.uint8)).view(states.array(case, save).dtype)
    missing = torch.full((2, 2), 7.0)
    if case.twist in ("more tensors", "not strict"):
        states.put(state, LOST, missing)
    if case.twist == "a longer list":
        state["short"] = [torch.ones(2), missing]
    load = case.route[1]
    if case.twist == "the other load":
        load = "dcp.load" if plain else "restore into" if case.number % 2 else "load into"
    try:
        given = _load_one(gang, case, load, state, step)
    except (Exception, CheckpointException) as why:
        if case.twist in ("more tensors", "a longer list", "the other load"):
            touched = [item.name for item, _, _, memory, before in targets if not states.same(memory, before)]
            return [f"{item!r} was filled before the error {why!r}" for item in touched[:3] if plain]
        return [_told(why)]
    if case.twist in ("more tensors", "a longer list", "the other load"):
        return [f"no error, though {case.twist!r} is asked for"]
    wrong = [f"{LOST} was not saved and is {missing}"] if not torch.equal(missing, torch.full((2, 2), 7.0)) else []
    for item, placed, local, memory, before in targets:
        if not states.same(local, placed.local):
            same = (states.raw(local) == states.raw(placed.local)).sum()
            wrong.append(f"{item}: {same} of {states.raw(local).numel()} bytes are right")
        local.copy_(states.opposite(placed.local))
        if not states.same(memory, before):
            wrong.append(f"{item}: what lies beside it has changed")
    if given["values"] != values or [*map(type, given["values"].values())] != [*map(type, values.values())]:
        wrong.append(f"values are {given['values']}, and not {values}")
    if plain and not _same_array(given["array"], states.array(case, save)):
        wrong.append(f"the array is {given['array']}")
    return wrong


def _check_whole(gang: muster.Gang, case: Case, save: int, step: int | None) -> list[str]:
    """What the member in this one's place has saved; and what each has, one after the other."""
    peer = gang.rank * case.sizes[0] // case.sizes[1]
    found = muster.torch.load(gang, step=step) if case.number % 2 else gang.restore(step, replicated=True)
    assert found is not None
    shards = list(gang.restore_shards(step))
    if len(shards) != case.sizes[0]:
        return [f"{len(shards)} shards, and not {case.sizes[0]}"]
    return [text for rank, state in [(peer, found[0]), *enumerate(shards)] for text in _check_state(case, save, rank, state)]


def _check_state(case: Case, save: int, rank: int, state: Any) -> list[str]:
    """All that this rank has saved, tensors as a whole."""
    wrong = []
    for item in case.items:
        of = states.whole(case, item, save, rank)
        if item.born > save or not states.has(case, item, False, rank):
            continue
        for path in [item.path] + ([("tied", *item.path)] if "tied" in item.traits else []):
            got = state
            for key in path:
                got = got[key]
            if not states.same(got, of):
                wrong.append(f"rank {rank}'s {item} is not what it has saved")
    values = states.values(case, save, rank)
    if state["values"] != values:
        wrong.append(f"rank {rank}'s values are {state['values']}, and not {values}")
    if not _same_array(state["array"], states.array(case, save)):
        wrong.append(f"rank {rank}'s array is {state['array']}")
    return wrong


def _told(why: BaseException) -> str:
    """The error; of torch's exception what it tells of the ranks' own."""
    failures = getattr(why, "failures", {0: (why, None)})
    return "; ".join(f"rank {rank}: {error!r}" for rank, (error, _) in list(failures.items())[:2])
