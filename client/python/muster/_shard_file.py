"""What one member of a local Gang has saved: a safetensors file, as `muster checkpoint import` takes it (docs/formats.md, section 13)."""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import os
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ._library import Entry
from .errors import Corrupt, NotFound, StoreError
from .slices import SliceInfo

_LENGTH = 8  # bytes of the header's length
_VERSION = 1
_PACKED = "float4_e2m1fn_x2"  # of which safetensors counts the two numbers in each byte
_DTYPES = {
    **{name: name.upper()[0] + re.sub(r"\D", "", name) for name in ("float64", "float32", "float16", "int64", "int32", "int16", "int8")},
    **{name: "U" + name[4:] for name in ("uint64", "uint32", "uint16", "uint8")},
    **{"bfloat16": "BF16", "bool": "BOOL", "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
    **{"float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", _PACKED: "F4"},
}
Box = tuple[range, ...]  # one for each dimension


class ShardFile:
    """One that is read, and stays open. `parts`: by tensor, what it is, its box, and where it begins."""

    def __init__(self, path: Path, step: int, rank: int, members: int) -> None:
        try:
            self._path, self._file = path, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as why:
            raise NotFound(f"{path} cannot be read: {why.strerror}") from why
        weakref.finalize(self, os.close, self._file)
        self.entries: dict[str, tuple[str, int, int]] = {}
        self.parts: dict[str, list[tuple[SliceInfo, Box, int]]] = {}
        try:
            size = os.fstat(self._file).st_size
            length = int.from_bytes(os.pread(self._file, _LENGTH, 0), "little")
            header = json.loads(os.pread(self._file, min(length, size), _LENGTH))
            about = json.loads(header.pop("__metadata__")["muster"])
            data = _LENGTH + length
            if size != data + max((tensor["data_offsets"][1] for tensor in header.values()), default=0):
                raise ValueError("it is cut off")
            found = [about[key] for key in ("version", "step", "rank", "world_size")]
            if found != [_VERSION, step, rank, members]:
                raise ValueError(f"version, step, rank and world_size are {found}")
            for name, meta, tensor in about["entries"]:
                begin, end = header[tensor]["data_offsets"]
                self.entries[name] = meta, data + begin, end - begin
                part = Entry(meta, lambda address: None).slice_of(name)
                if part is None or not 0 <= begin <= end or end - begin != part[1].element_bytes * math.prod(part[3]):
                    raise ValueError(f"{name!r} is no slice of so many bytes")
                self.parts.setdefault(part[0], []).append((part[1], box_of(part[2], part[3]), data + begin))
        except (KeyError, ValueError, TypeError, AttributeError) as why:
            raise Corrupt(f"{path} is no part of a checkpoint: {why!r}") from why

    def copy(self, start: int, size: int, address: int) -> None:
        """Bytes of the file, to an address."""
        into = memoryview((ctypes.c_char * size).from_address(address)).cast("B") if size else memoryview(b"")
        while into:
            got = os.preadv(self._file, [into], start)
            if got == 0:
                raise Corrupt(f"{self._path} has become shorter")
            into, start = into[got:], start + got

    def copy_box(self, start: int, element: int, source: Box, box: Box, target: Box, address: int) -> None:
        """`box`, which is in both, out of the elements of `source` into those of `target`, run by run."""
        last = len(box) - 1
        while last > 0 and box[last] == source[last] == target[last]:
            last -= 1
        run = element * math.prod(map(len, box[max(last, 0) :]))
        for place in itertools.product(*box[: max(last, 0)]):
            first = (*place, *(dim.start for dim in box[len(place) :]))
            self.copy(start + element * _index(source, first), run, address + element * _index(target, first))


def lay_out(step: int, rank: int, members: int, entries: dict[str, tuple[str, bytes]]) -> list[bytes]:
    """The file of entries: their metadata and content by name."""
    tensors: dict[str, tuple[str, list[int], bytes]] = {}
    listed = []
    for name, (meta, data) in entries.items():
        shown = "state" if name == "/" else name
        if shown.startswith("/"):
            shown = shown[1:].replace("/", ".").replace("~1", "/").replace("~0", "~")
        taken = (shown if n == 1 else f"{shown}~{n}" for n in itertools.count(1))
        unique = next(one for one in taken if one not in tensors and one not in ("", "__metadata__"))
        _, dtype, *_, shape = meta.split()
        lengths = [int(n) for n in re.findall(r"\d+", shape)]
        if dtype == _PACKED and lengths:
            lengths[-1] *= 2
        known = dtype in _DTYPES and (dtype != _PACKED or lengths)
        tensors[unique] = (_DTYPES[dtype], lengths, data) if known else ("U8", [len(data)], data)
        listed.append((name, meta, unique))
    header: dict[str, Any] = {}
    at, ordered = 0, []
    # With large elements first, so that each begins at a multiple of its element's size.
    for name, (dtype, lengths, data) in sorted(tensors.items(), key=lambda item: -len(item[1][2]) // (math.prod(item[1][1]) or 1)):
        header[name] = {"dtype": dtype, "shape": lengths, "data_offsets": [at, at + len(data)]}
        at += len(data)
        ordered.append(data)
    about = {"version": _VERSION, "key": "local", "step": step, "rank": rank, "world_size": members, "structure": None, "entries": listed}
    header["__metadata__"] = {"format": "pt", "muster": json.dumps(about)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _LENGTH)
    return [len(text).to_bytes(_LENGTH, "little"), text, *ordered]


def write(path: Path, parts: list[bytes]) -> None:
    """All of it or nothing. One process writes a file."""
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as why:
        part.unlink(missing_ok=True)
        raise StoreError(f"{path} cannot be written: {why.strerror}") from why


def box_of(offset: tuple[int, ...], shape: tuple[int, ...]) -> Box:
    return tuple(range(first, first + length) for first, length in zip(offset, shape))


def both(one: Box, other: Box) -> Box | None:
    """What is in both; None: no element."""
    box = tuple(range(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other))
    return box if all(box) else None


def without(box: Box, cut: Box) -> Iterator[Box]:
    """What is left of a box, in boxes."""
    inside = both(box, cut)
    if inside is None:
        yield box
        return
    for dim, (all_of, taken) in enumerate(zip(box, inside)):
        for rest in (range(all_of.start, taken.start), range(taken.stop, all_of.stop)):
            if rest:
                yield (*inside[:dim], rest, *box[dim + 1 :])


def _index(box: Box, place: tuple[int, ...]) -> int:
    index = 0
    for dim, at in zip(box, place):
        index = index * len(dim) + at - dim.start
    return index
