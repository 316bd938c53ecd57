"""PyTorch's distributed checkpoint on Muster's store: a StorageWriter and a StorageReader.

In the shards (all of it slices): `tensor/FQN`, the parts of a tensor; `dcp/bytes/FQN`, what the planner made of another
value; and in the coordinator's `dcp/metadata`, JSON, from which PyTorch's Metadata are built again. Nothing of this is
pickled here; what PyTorch's default planner makes of values that are not tensors is (torch.save).
"""

import io
import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.futures import Future

from .. import Gang
from ..errors import CORRUPT, Corrupt, NotFound
from ..slices import Slice, not_meta
from ..tree import torch_dtype
from . import _torch_dcp as of

_METADATA, _BYTES, _TENSOR = "dcp/metadata", "dcp/bytes/", "tensor/"
_FORMAT = {"format": "muster-dcp", "version": 1}
_AT_ONCE = 1 << 30  # bytes of tensors that are not in the CPU's memory, or not contiguous: they need memory on the way
_MEMORY_FORMATS = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "preserve": torch.preserve_format,
}


class StorageWriter(of.storage.StorageWriter):  # type: ignore[misc,name-defined]
    """Writes a checkpoint of `step`, which may also be given as a checkpoint_id that ends in it ("step-100").

    All members of the gang must take part. finish() waits until the checkpoint is committed; with wait=False it does not,
    and Gang.wait tells.
    """

    def __init__(self, gang: Gang, step: int | None = None, *, wait: bool = True) -> None:
        super().__init__()
        self.gang = gang
        self.step = step
        self.wait = wait

    # --- whose names differ between PyTorch's versions

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self.step = _step_of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:
        if self.step is None:
            raise ValueError("which step is saved? Give StorageWriter one, or a checkpoint_id that ends in it")

    init = set_up_storage_writer

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return re.search(r"\d+$", os.fspath(checkpoint_id)) is not None

    def storage_meta(self) -> None:
        return None

    # --- the same in all

    def prepare_local_plan(self, plan: Any) -> Any:
        # So that the coordinator knows whose shard an item will be in.
        return replace(plan, storage_data={"rank": self.gang.rank})

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        text = _encode(plans, [(plan.storage_data or {}).get("rank", i) for i, plan in enumerate(plans)])
        return [replace(plan, storage_data={"metadata": text} if i == 0 else None) for i, plan in enumerate(plans)]

    def write_data(self, plan: Any, planner: Any) -> Any:
        results: list[Any] = []

        def slices() -> Iterator[tuple[str, Slice]]:
            if plan.storage_data is not None:
                yield _METADATA, Slice(plan.storage_data["metadata"])
            for item in plan.items:
                data = planner.resolve_data(item)
                if item.type == of.planner.WriteItemType.BYTE_IO:
                    content = data.getvalue()
                    yield _BYTES + item.index.fqn, Slice(content)
                    size = len(content)
                else:
                    chunk = item.tensor_data.chunk
                    yield _TENSOR + item.index.fqn, Slice(data.detach(), tuple(item.tensor_data.size), tuple(chunk.offsets))
                    size = data.numel() * data.element_size()
                results.append(of.storage.WriteResult(index=item.index, size_in_bytes=size, storage_data=None))

        assert self.step is not None
        self.gang.save_slices(slices(), self.step, bytes_hint=_bytes_of(plan))
        return _done(results)

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        if self.wait:
            self.gang.wait(self.step)


class StorageReader(of.storage.StorageReader):  # type: ignore[misc,name-defined]
    """Reads the checkpoint that this generation starts from, or that of `step` (or of a checkpoint_id that ends in it)."""

    def __init__(self, gang: Gang, step: int | None = None) -> None:
        super().__init__()
        self.gang = gang
        self.step = step
        self._metadata: Any = None
        self._ranks: dict[Any, int] = {}

    # --- whose names differ between PyTorch's versions

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self.step = _step_of(checkpoint_id)

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *_: Any, **__: Any) -> None:
        pass

    init = set_up_storage_reader

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return re.search(r"\d+$", os.fspath(checkpoint_id)) is not None

    # --- the same in all

    def read_metadata(self, *_: Any, **__: Any) -> Any:
        text = self.gang.restore_bytes(_METADATA, self.step, first_rank=0)
        if text is None:
            which = "that this generation starts from" if self.step is None else f"of step {self.step}"
            raise NotFound(-5, f"there is no checkpoint {which} that was saved with muster.torch.StorageWriter")
        try:
            self._metadata, self._ranks = _decode(text)
        except (KeyError, ValueError, TypeError, AttributeError) as why:
            raise Corrupt(CORRUPT, f"the checkpoint's metadata do not read: {why!r}") from why
        return self._metadata

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        waiting: list[tuple[Any, Any, Slice]] = []
        size = 0

        def read() -> None:
            self.gang.restore_slices([(_TENSOR + i.storage_index.fqn, part) for i, _, part in waiting], self.step)
            for item, tensor, part in waiting:
                if part.data is not tensor:
                    tensor.copy_(part.data)
                planner.commit_tensor(item, tensor)
            waiting.clear()

        for item in plan.items:
            rank = self._ranks.get((item.storage_index.fqn, tuple(item.storage_index.offset or ())))
            if item.type == of.planner.LoadItemType.BYTE_IO:
                data = self.gang.restore_bytes(_BYTES + item.storage_index.fqn, self.step, first_rank=rank)
                if data is None:
                    raise NotFound(-5, f"{item.storage_index.fqn!r} is not in the checkpoint")
                planner.load_bytes(item, io.BytesIO(data))
                continue
            tensor = planner.resolve_tensor(item).detach()
            not_meta(item.storage_index.fqn, tensor)
            offset = tuple(a + b for a, b in zip(item.storage_index.offset, item.storage_offsets))
            saved = self._metadata.state_dict_metadata[item.storage_index.fqn]
            # PyTorch's own storage converts where the types differ.
            same = saved.properties.dtype == tensor.dtype
            data = tensor if same else torch.empty(tensor.shape, dtype=saved.properties.dtype)
            waiting.append((item, tensor, Slice(data, tuple(saved.size), offset, rank)))
            size += 0 if same and tensor.device.type == "cpu" and tensor.is_contiguous() else tensor.numel() * tensor.element_size()
            if size > _AT_ONCE:
                read()
                size = 0
        read()
        return _done(None)


def _step_of(checkpoint_id: str | os.PathLike[str]) -> int:
    found = re.search(r"\d+$", os.fspath(checkpoint_id))
    if found is None:
        raise ValueError(f"checkpoint_id {os.fspath(checkpoint_id)!r} does not end in the number of a step")
    return int(found[0])


def _done(value: Any) -> Any:
    future: Any = Future()
    future.set_result(value)
    return future


def _bytes_of(plan: Any) -> int:
    sizes = (item.tensor_data for item in plan.items if item.tensor_data is not None)
    return sum(data.chunk.sizes.numel() * _element_bytes(data.properties.dtype) + 64 for data in sizes)


def _element_bytes(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype).element_size()


def _encode(plans: list[Any], ranks: list[int]) -> bytes:
    """What all plans together save, in the order in which PyTorch's planner numbers it."""
    entries: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for plan, rank in zip(plans, ranks):
        if isinstance(plan.planner_data, dict):
            paths = plan.planner_data | paths
        for item in plan.items:
            if item.tensor_data is None:
                entries[item.index.fqn] = {"rank": rank}
                continue
            if item.index.fqn not in entries:
                entries[item.index.fqn] = _describe(item.tensor_data)
            chunk = item.tensor_data.chunk
            entries[item.index.fqn]["chunks"].append([list(chunk.offsets), list(chunk.sizes), rank])
    known = {fqn: list(path) for fqn, path in paths.items() if isinstance(path, tuple)}
    return json.dumps(_FORMAT | {"entries": entries, "paths": known}).encode()


def _describe(data: Any) -> dict[str, Any]:
    properties = data.properties
    formats = {value: name for name, value in _MEMORY_FORMATS.items()}
    return {
        "dtype": str(properties.dtype).removeprefix("torch."),
        "layout": str(properties.layout).removeprefix("torch."),
        "requires_grad": bool(properties.requires_grad),
        "memory_format": formats[properties.memory_format],
        "pin_memory": bool(properties.pin_memory),
        "size": list(data.size),
        "chunks": [],
    }


def _layout(name: str) -> torch.layout:
    found = getattr(torch, name)
    if not isinstance(found, torch.layout):
        raise ValueError(f"{name!r} is no layout")
    return found


def _decode(text: bytes) -> tuple[Any, dict[Any, int]]:
    """PyTorch's Metadata, and whose shard has what by name and offset."""
    form = json.loads(text)
    if {key: form[key] for key in _FORMAT} != _FORMAT:
        raise ValueError(f"unknown format {form['format']!r}, version {form['version']}")
    entries: dict[str, Any] = {}
    ranks: dict[Any, int] = {}
    for fqn, entry in form["entries"].items():
        if "size" not in entry:
            entries[fqn] = of.metadata.BytesStorageMetadata()
            ranks[fqn, ()] = int(entry["rank"])
            continue
        chunks = []
        for offsets, sizes, rank in entry["chunks"]:
            chunks.append(of.metadata.ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes)))
            ranks[fqn, tuple(offsets)] = int(rank)
        properties = of.metadata.TensorProperties(
            dtype=torch_dtype(entry["dtype"], repr(fqn)),
            layout=_layout(entry["layout"]),
            requires_grad=bool(entry["requires_grad"]),
            memory_format=_MEMORY_FORMATS[entry["memory_format"]],
            pin_memory=bool(entry["pin_memory"]),
        )
        size = torch.Size(entry["size"])
        entries[fqn] = of.metadata.TensorStorageMetadata(properties=properties, size=size, chunks=chunks)
    paths = {fqn: tuple(path) for fqn, path in form["paths"].items()}
    return of.metadata.Metadata(entries, planner_data=paths), ranks
