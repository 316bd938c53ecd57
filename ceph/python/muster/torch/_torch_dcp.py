"""PyTorch's distributed checkpoint, under the name that this version of PyTorch has for it."""

import dataclasses
import importlib
import sys
from types import ModuleType
from typing import Any


def _load() -> ModuleType:
    try:
        return importlib.import_module("torch.distributed.checkpoint")
    except ModuleNotFoundError:
        pass
    if sys.version_info < (3, 11):
        return importlib.import_module("torch.distributed._shard.checkpoint")
    # torch 1.13's module has dataclasses whose defaults have no hash, which Python 3.11 refuses. Giving them one is all that
    # is missing.
    original = dataclasses.dataclass

    def hashable(cls: Any = None, **options: Any) -> Any:
        if cls is None:
            return lambda one: hashable(one, **options)
        return original(cls, **({"unsafe_hash": "__hash__" not in cls.__dict__} | options))

    dataclasses.dataclass = hashable  # type: ignore[assignment]
    try:
        return importlib.import_module("torch.distributed._shard.checkpoint")
    finally:
        dataclasses.dataclass = original


dcp = _load()
default_planner = importlib.import_module(dcp.__name__ + ".default_planner")
metadata = importlib.import_module(dcp.__name__ + ".metadata")
planner = importlib.import_module(dcp.__name__ + ".planner")
storage = importlib.import_module(dcp.__name__ + ".storage")
