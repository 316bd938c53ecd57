"""PyTorch's distributed checkpoint on Muster's store: a StorageWriter and a StorageReader.

Each item is a slice called as its FQN; the structure, in the coordinator's shard, says what there is and where, from which
PyTorch's Metadata are built again. Nothing of this is pickled here; what PyTorch's default planner makes of values that are
not tensors is (torch.save).
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as md
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.futures import Future

from .. import Gang, tree
from ..errors import Corrupt, Invalid, MusterError, NotFound
from ..slices import Described, Slice, describe, not_meta, to_save, torch_dtype

_AT_ONCE = 1 << 30  # bytes of tensors that are not in the CPU's memory, or not contiguous: they need memory on the way


class _Storage:
    """Of which step, as both ask for it: the one that is given, or the one in which the checkpoint_id of this call ends."""

    def __init__(self, gang: Gang, step: int | None = None) -> None:
        super().__init__()
        self.gang = gang
        self._given = step
        self._named: int | None = None

    @property
    def step(self) -> int | None:
        return self._named if self._given is None else self._given

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._named = None if checkpoint_id is None else _step_in(checkpoint_id)
        if checkpoint_id is None:
            return
        shown = f"checkpoint_id {os.fspath(checkpoint_id)!r}"
        if self._named is None and self._given is None:
            raise ValueError(f"{shown} does not end in the number of a step")
        if None not in (self._named, self._given) and self._named != self._given:
            raise ValueError(f"{shown} ends in {self._named}, and the step that is given is {self._given}: they must be the same")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return _step_in(checkpoint_id) is not None

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        return plans


class StorageWriter(_Storage, storage.StorageWriter):
    """Writes a checkpoint of `step`, or of the step in which the checkpoint_id of a save ends ("step-100").

    Where both are given they are the same, and ValueError says so if not. An id without a number at its end is of no account then.
    All members of the gang must take part. dcp.save returns when they have handed over what they save, and waits for no
    store: Gang.wait tells when the checkpoint is committed, or why it is not.
    """

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:
        if self.step is None:
            raise ValueError("which step is saved? Give StorageWriter one, or a checkpoint_id that ends in it")
        self._is_coordinator = is_coordinator

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        if len(plans) != self.gang.world_size:
            what = f"{len(plans)} of the gang's {self.gang.world_size} members take part in this save, and all must"
            raise ValueError(f"{what}: with no_dist=True or use_collectives=False each would be alone")
        return plans

    def write_data(self, plan: Any, planner: Any) -> Future[list[storage.WriteResult]]:
        results: list[storage.WriteResult] = []

        def parts() -> Iterator[tuple[str, Described]]:
            for item in plan.items:
                data, name = planner.resolve_data(item), _name(item.index.fqn)
                if item.type == WriteItemType.BYTE_IO:
                    part = to_save(name, Slice(data.getvalue()))
                else:
                    plan_of = item.tensor_data
                    if data.numel() == 0 == plan_of.chunk.sizes.numel():  # FSDP2 gives a part without elements any shape
                        data = data.new_empty(plan_of.chunk.sizes)
                    part = to_save(name, Slice(data, plan_of.size, plan_of.chunk.offsets))
                    if part.shape != tuple(plan_of.chunk.sizes):
                        raise ValueError(f"{name!r} is planned as {tuple(plan_of.chunk.sizes)}, and is {part.shape}")
                results.append(storage.WriteResult(item.index, part.buffer.size, self.gang.rank))
                yield name, part

        assert self.step is not None
        self.gang._begin(self.step, _bytes_of(plan))
        self.gang._add(parts())
        if self._is_coordinator:
            self.gang._held = self.step
        else:
            self.gang._commit()
        return _done(results)

    def finish(self, metadata: md.Metadata, results: list[list[storage.WriteResult]]) -> None:
        # Not of the plans: these are but what has changed where the planner keeps them from save to save.
        if self.gang._held is None or self.gang._held != self.step:
            raise Invalid(f"the save of step {self.step} has ended on this member before all had written theirs")
        structure = describe([(tree.STRUCTURE, Slice(tree.encode({"dcp": _table(metadata, results)})))])
        self.gang._held = None
        self.gang._add(structure)
        self.gang._commit()


class StorageReader(_Storage, storage.StorageReader):
    """Reads the checkpoint that this generation starts from, or that of a step, which is said as to StorageWriter."""

    _metadata: md.Metadata
    _ranks: dict[Any, int]
    _error: Exception | None = None

    def read_metadata(self, *_: Any, **__: Any) -> md.Metadata:
        # PyTorch would say no more of an error than that there are no metadata; the next call brings it to all members.
        self._metadata, self._ranks, self._error = md.Metadata({}), {}, None
        try:
            self._metadata, self._ranks = self._read_metadata()
        except Exception as why:
            self._error = why
        return self._metadata

    def set_up_storage_reader(self, metadata: md.Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        if self._error is not None:
            raise self._error

    def _read_metadata(self) -> tuple[md.Metadata, dict[Any, int]]:
        found = self.gang.restore_info(self.step)
        if found is None:
            raise NotFound("there is no checkpoint that this generation starts from")
        self._from = found[0]  # the same to the end of this load
        structure = self.gang._reading(self._from, None).structure(0)
        if not isinstance(structure, dict) or "dcp" not in structure:
            what = f"the checkpoint of step {self._from} was not saved by muster.torch.StorageWriter"
            raise Invalid(f"{what}: muster.torch.load and Gang.restore read it")
        try:
            return _metadata_of(structure["dcp"])
        except MusterError:
            raise
        except (KeyError, ValueError, TypeError, AttributeError) as why:
            raise Corrupt(f"the metadata of the checkpoint of step {self._from} do not read: {why!r}") from why

    def read_data(self, plan: Any, planner: Any) -> Future[None]:
        waiting: list[tuple[Any, Any, Slice]] = []
        size = 0

        def read() -> None:
            self.gang.restore_slices([(_name(i.storage_index.fqn), part) for i, _, part in waiting], self._from)
            for item, tensor, part in waiting:
                if part.data is not tensor:
                    tensor.copy_(part.data)
                planner.commit_tensor(item, tensor)
            waiting.clear()

        for item in plan.items:
            fqn = item.storage_index.fqn
            rank = self._ranks[fqn, tuple(item.storage_index.offset or ())]
            if item.type == LoadItemType.BYTE_IO:
                data = self.gang._reading(self._from, None).leaf("bytes", _name(fqn), rank)
                planner.load_bytes(item, io.BytesIO(data))
                continue
            tensor = planner.resolve_tensor(item).detach()
            not_meta(fqn, tensor)
            offset = tuple(a + b for a, b in zip(item.storage_index.offset, item.storage_offsets))
            saved: Any = self._metadata.state_dict_metadata[fqn]
            # PyTorch's own storage converts where the types differ.
            same = saved.properties.dtype == tensor.dtype
            data = tensor if same else torch.empty(tensor.shape, dtype=saved.properties.dtype, device="cpu")
            waiting.append((item, tensor, Slice(data, tuple(saved.size), offset, rank)))
            in_place = same and tensor.device.type == "cpu" and tensor.is_contiguous()
            size += 0 if in_place else tensor.numel() * tensor.element_size()
            if size > _AT_ONCE:
                read()
                size = 0
        read()
        return _done(None)


def _name(fqn: str) -> str:
    return tree.name_of(tree.join("", fqn))


def _step_in(checkpoint_id: str | os.PathLike[str]) -> int | None:
    found = re.search(r"(\d+)/*$", os.fspath(checkpoint_id))
    return None if found is None else int(found[1])


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _bytes_of(plan: Any) -> int:
    sizes = (item.tensor_data for item in plan.items if item.tensor_data is not None)
    return sum(data.chunk.sizes.numel() * data.properties.dtype.itemsize + 64 for data in sizes)


def _table(metadata: md.Metadata, results: list[list[storage.WriteResult]]) -> dict[str, Any]:
    """What is saved, as the structure says it: what the metadata name, which must be what was written."""
    ranks = {(r.index.fqn, tuple(r.index.offset or ())): r.storage_data for written in results for r in written}
    paths = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
    table: dict[str, Any] = {}
    named = set()
    for fqn, entry in metadata.state_dict_metadata.items():
        table[fqn] = {"path": list(paths[fqn])} if isinstance(paths.get(fqn), tuple) else {}
        if isinstance(entry, md.TensorStorageMetadata):
            chunks = [(tuple(c.offsets), tuple(c.sizes), ranks.get((fqn, tuple(c.offsets)))) for c in entry.chunks]
            dtype = str(entry.properties.dtype).removeprefix("torch.")
            table[fqn] |= {"dtype": dtype, "size": list(entry.size), "chunks": chunks}
            named |= {(fqn, offset) for offset, *_ in chunks}
        else:
            table[fqn]["rank"] = ranks.get((fqn, ()))
            named.add((fqn, ()))
    for fqn, offset in named ^ ranks.keys():
        what = "planned and not written" if (fqn, offset) in named else "written and not planned"
        raise Invalid(f"{fqn!r}, from {offset} on, was {what}: the checkpoint would not have what was saved")
    return table


def _metadata_of(table: dict[str, Any]) -> tuple[md.Metadata, dict[Any, int]]:
    """PyTorch's Metadata, and whose shard has what by FQN and offset."""
    entries: dict[str, Any] = {}
    ranks: dict[Any, int] = {}
    for fqn, entry in table.items():
        if "size" not in entry:
            entries[fqn] = md.BytesStorageMetadata()
            ranks[fqn, ()] = int(entry["rank"])
            continue
        ranks |= {(fqn, tuple(offset)): int(rank) for offset, _, rank in entry["chunks"]}
        chunks = [md.ChunkStorageMetadata(torch.Size(offset), torch.Size(sizes)) for offset, sizes, _ in entry["chunks"]]
        properties = md.TensorProperties(dtype=torch_dtype(entry["dtype"], fqn))
        entries[fqn] = md.TensorStorageMetadata(properties, torch.Size(entry["size"]), chunks)
    paths = {fqn: tuple(entry["path"]) for fqn, entry in table.items() if "path" in entry}
    return md.Metadata(entries, planner_data=paths), ranks
