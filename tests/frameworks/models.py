"""Models, optimizers and schedulers that PyTorch itself has divided, trained for a step, saved, and loaded by another gang."""

import itertools
import random
from dataclasses import dataclass
from typing import Any

import muster
import muster.torch
import states
import torch
from torch import distributed
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEP = 10
DIVIDED = ["DDP", "FSDP2", "HSDP", "TP", "FSDP2+TP"]
_meshes: dict[tuple[int, ...], Any] = {}


@dataclass
class Training:
    """Of a case: how it is saved and loaded, by how many ranks, and how they have divided the model."""

    number: int
    route: tuple[str, str]
    sizes: tuple[int, int]
    divided: tuple[str, str]


def training_of(seed: int, number: int) -> Training:
    rng = random.Random(f"{seed}/model/{number}")
    routes = [route for route in states.routes() if route[1] != "load"]
    pairs = list(itertools.product(DIVIDED, DIVIDED))
    random.Random(seed).shuffle(pairs)
    return Training(number, routes[number % len(routes)], (rng.choice([2, 4, 3]), rng.choice([1, 2, 4, 3])), pairs[number % len(pairs)])


class Trainee:
    def __init__(self, divided: str, seed: int) -> None:
        torch.manual_seed(seed)
        world = distributed.get_world_size()
        self.model: Any = torch.nn.Sequential(torch.nn.Linear(5, 12), torch.nn.Tanh(), torch.nn.Linear(12, 7), torch.nn.Linear(7, 1))
        inner = 2 if world % 2 == 0 and "+" in divided else world if divided == "TP" else 1
        if divided == "HSDP" and world % 2 == 0:
            inner = 2  # each part is on so many others
        mesh = _mesh(world // inner, inner)
        if "TP" in divided:
            parallelize_module(self.model, mesh["b"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        if divided == "DDP":
            self.model = DistributedDataParallel(self.model)
        elif "FSDP2" in divided or divided == "HSDP":
            fully_shard(self.model[0], mesh=mesh if divided == "HSDP" else mesh["a"])
            fully_shard(self.model, mesh=mesh if divided == "HSDP" else mesh["a"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1 * seed, betas=(0.5, 0.9 / seed), foreach=False)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=seed, gamma=0.5)
        for _ in range(seed):
            self.model(torch.randn(3, 5)).square().sum().backward()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()

    def state(self, kind: str) -> dict[str, Any]:
        if kind == "dcp":
            model, optimizer = get_state_dict(self.model, self.optimizer)
        else:
            model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
            model = {name.removeprefix("module."): tensor for name, tensor in model.items()}
        return {"model": model, "optimizer": optimizer, "scheduler": self.scheduler.state_dict()}

    def take(self, kind: str, state: dict[str, Any]) -> None:
        if kind == "dcp":
            set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        else:
            self.optimizer.load_state_dict(state["optimizer"])  # the model's tensors are filled
        self.scheduler.load_state_dict(state["scheduler"])

    def whole(self) -> dict[str, Any]:
        """All of it: tensors as their bytes."""
        found: dict[str, Any] = {}
        for name, parameter in self.model.named_parameters():
            name = name.removeprefix("module.")
            found[name] = _bytes(parameter)
            for key, value in self.optimizer.state[parameter].items():
                found[f"{name}/{key}"] = _bytes(value)
        groups = [{key: value for key, value in group.items() if key != "params"} for group in self.optimizer.param_groups]
        return found | {"groups": groups, "scheduler": self.scheduler.state_dict()}


def _bytes(tensor: torch.Tensor) -> bytes:
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return states.raw(whole).numpy().tobytes()


def _mesh(a: int, b: int) -> Any:
    if (a, b) not in _meshes:
        _meshes[a, b] = init_device_mesh("cpu", (a, b), mesh_dim_names=("a", "b"))
    return _meshes[a, b]


def train(gang: muster.Gang, training: Training) -> dict[str, Any]:
    """Gives what has been saved."""
    trainee = Trainee(training.divided[0], 1)
    save = training.route[0]
    state = trainee.state(states.kind_of(save))
    if save == "Gang.save":
        gang.save(state, STEP)
    elif states.kind_of(save) == "plain":
        muster.torch.save(gang, state, STEP, replicated=save == "replicated")
    elif save == "async_save":
        dcp.async_save(state, storage_writer=muster.torch.StorageWriter(gang, STEP)).result()
    else:
        planner = dcp.DefaultSavePlanner(enable_plan_caching=save == "dcp cached")
        planner._cached_plans_key = f"model {training.number}"
        dcp.save(state, storage_writer=muster.torch.StorageWriter(gang, STEP), planner=planner)
    gang.wait(STEP, timeout=30)
    return trainee.whole()


def resume(gang: muster.Gang, training: Training, saved: dict[str, Any]) -> list[str]:
    trainee = Trainee(training.divided[1], 2)
    kind = states.kind_of(training.route[0])
    state = trainee.state(kind)
    before = trainee.whole()
    if kind == "dcp":
        dcp.load(state, storage_reader=muster.torch.StorageReader(gang))
    elif training.route[1] == "restore into":
        state, _ = gang.restore(into=state) or (None, 0)
    else:
        state, _ = muster.torch.load(gang, into=state) or (None, 0)
    trainee.take(kind, state)
    after = trainee.whole()
    wrong = [f"rank {gang.rank}: {name} is the same before and after" for name in saved if before.get(name) == saved[name]]
    wrong += [f"rank {gang.rank}: {name} is not what was saved" for name in saved if after.get(name) != saved[name]]
    return wrong + [f"rank {gang.rank}: {name} was not saved" for name in after if name not in saved]
