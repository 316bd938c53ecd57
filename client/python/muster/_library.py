"""libmuster's functions through ctypes, with exceptions in place of codes."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p, string_at
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import error
from .slices import ANY_RANK, CSlice, CWanted, Described, SliceInfo
from .tree import NAME_MAX

LATEST = 2**64 - 1
Handle = c_void_p
Restore = c_void_p
_Text = POINTER(c_char_p)


def _find() -> str:
    built = Path(__file__).resolve().parents[2] / "lib" / "libmuster.so.0"
    return os.environ.get("MUSTER_LIBRARY") or (str(built) if built.exists() else "libmuster.so.0")


def _step(step: int) -> int:
    if not 0 <= step <= LATEST:
        raise ValueError(f"{step} is no step: steps go from 0 to 2^64 - 2")
    return step


def _name(name: str) -> bytes:
    """An entry's or a tensor's name as C takes it, which would end at a NUL."""
    raw = name.encode()
    if not 0 < len(raw) <= NAME_MAX or b"\0" in raw:
        raise ValueError(f"{name!r} is no name: names have 1 to {NAME_MAX} bytes (this has {len(raw)}), and no NUL")
    return raw


@dataclass(frozen=True)
class Entry:
    """One of an open shard; `fill` copies all of it to an address."""

    meta: str
    fill: Callable[[int], None]

    def slice_of(self, name: str) -> "tuple[str, SliceInfo, tuple[int, ...], tuple[int, ...]] | None":
        """Of which tensor it is a part: the name, what that is, and the part's offset and shape. None: it is no slice."""
        found = re.match(r"muster-slice/1 (\S+) (\d+) (\d+) ([\d,-]+) ([\d,-]+) ([\d,-]+)\n", self.meta)
        if found is None:
            return None
        dtype, element_bytes, number, *dims = found.groups()
        whole, offset, shape = (tuple(map(int, re.findall(r"\d+", one))) for one in dims)
        tensor = name if number == "0" else name.removesuffix(f"#{number}")
        return tensor, SliceInfo(dtype, int(element_bytes), whole), offset, shape


class CWish(ctypes.Structure):
    _fields_ = (("save", c_int), ("exit", c_int), ("reason", c_char_p))


class Library:
    def __init__(self, path: str) -> None:
        self._c = ctypes.CDLL(path)  # calls release the interpreter's lock
        for name, result, *arguments in (
            ("open", c_int, POINTER(Handle)),
            ("close", None, Handle),
            ("last_error", c_char_p, Handle),
            ("rank", c_uint32, Handle),
            ("world_size", c_uint32, Handle),
            ("generation", c_uint64, Handle),
            ("restore_step", c_uint64, Handle),
            ("committed", c_uint64, Handle),
            ("step", c_int, Handle, c_uint64, POINTER(CWish)),
            ("exchange", c_int, Handle, c_char_p, c_char_p, c_size_t, c_int),
            ("exchanged", c_int, Handle, c_uint32, POINTER(c_void_p), POINTER(c_size_t)),
            ("save_begin_nowait", c_int, Handle, c_uint64, c_size_t),
            ("save_commit", c_int, Handle),
            ("save_abort", None, Handle),
            ("wait", c_int, Handle, c_uint64, c_int),
            ("restore_open", c_int, Handle, c_uint64, POINTER(Restore)),
            ("restore_open_shard", c_int, Handle, c_uint64, c_uint32, POINTER(Restore)),
            ("restore_info", c_int, Handle, c_uint64, POINTER(c_uint64), POINTER(c_uint32)),
            ("restore_count", c_size_t, Restore),
            ("restore_entry", c_int, Restore, c_size_t, _Text, _Text, POINTER(c_void_p), POINTER(c_size_t)),
            ("restore_get", c_int, Restore, c_char_p, c_void_p, c_size_t),
            ("restore_close", None, Restore),
            ("save_add_slice", c_int, Handle, c_char_p, c_char_p, POINTER(CSlice), c_void_p, c_size_t),
            ("save_add_slice_device", c_int, Handle, c_char_p, c_char_p, POINTER(CSlice), c_void_p, c_size_t, c_void_p),
            ("restore_slices", c_int, Handle, c_uint64, POINTER(CWanted), c_size_t),
            ("slice_info", c_int, Handle, c_uint64, c_char_p, c_uint32, POINTER(CSlice), c_void_p),
        ):
            function = getattr(self._c, "muster_" + name, None)
            if function is None:
                raise ImportError(f"{path} has no muster_{name}: it is of another release than this Python package")
            function.restype = result
            function.argtypes = arguments

    def _check(self, handle: Handle | None, code: int) -> None:
        if code != 0:
            raise error(code, (self._c.muster_last_error(handle) or b"").decode(errors="replace"))

    def open(self) -> Handle:
        handle = Handle()
        self._check(None, self._c.muster_open(byref(handle)))
        return handle

    def close(self, handle: Handle) -> None:
        self._c.muster_close(handle)

    def number(self, handle: Handle, name: str) -> int:
        return int(getattr(self._c, "muster_" + name)(handle))

    def stepper(self, wish: CWish) -> Callable[[Handle, int], None]:
        """What enters a step and fills in `wish`. It takes any int: one that is no step must not come to it."""
        function, at = self._c.muster_step, byref(wish)

        def step(handle: Handle, n: int) -> None:
            if code := function(handle, n, at):
                raise error(code, (wish.reason or b"").decode(errors="replace"))

        return step

    def exchange(self, handle: Handle, key: str, value: bytes, timeout_ms: int) -> list[bytes]:
        self._check(handle, self._c.muster_exchange(handle, _name(key), value, len(value), timeout_ms))
        data, size, values = c_void_p(), c_size_t(), []
        for rank in range(self.number(handle, "world_size")):
            self._check(handle, self._c.muster_exchanged(handle, rank, byref(data), byref(size)))
            values.append(string_at(data.value or 0, size.value) if size.value else b"")
        return values

    def save_begin(self, handle: Handle, step: int, hint: int) -> None:
        self._check(handle, self._c.muster_save_begin_nowait(handle, _step(step), hint))

    def save_add_slice(self, handle: Handle, name: str, part: Described) -> None:
        data = part.buffer.ready()
        words = handle, _name(name), None, byref(CSlice.of(part)), data.address, data.size
        if data.stream is None:
            code = self._c.muster_save_add_slice(*words)
        else:
            code = self._c.muster_save_add_slice_device(*words, data.stream)
        self._check(handle, code)
        data.used()

    def restore_slices(self, handle: Handle, step: int, wanted: list[tuple[str, Described]]) -> None:
        array = (CWanted * len(wanted))()
        for entry, (name, part) in zip(array, wanted):
            entry.name, entry.into, entry.bytes = _name(name), part.buffer.address, part.buffer.size
            entry.first_rank, entry.want = part.first_rank, CSlice.of(part)
        self._check(handle, self._c.muster_restore_slices(handle, _step(step), array, len(wanted)))

    def slice_info(self, handle: Handle, step: int, name: str, first_rank: int | None) -> SliceInfo:
        found = CSlice()
        rank = ANY_RANK if first_rank is None else first_rank
        code = self._c.muster_slice_info(handle, _step(step), _name(name), rank, byref(found), None)
        self._check(handle, code)
        shape = tuple(int(n) for n in found.global_shape[: found.dims])
        return SliceInfo(found.dtype.decode(errors="replace"), int(found.element_bytes), shape)

    def save_commit(self, handle: Handle) -> None:
        self._check(handle, self._c.muster_save_commit(handle))

    def save_abort(self, handle: Handle) -> None:
        self._c.muster_save_abort(handle)

    def wait(self, handle: Handle, step: int, milliseconds: int) -> None:
        self._check(handle, self._c.muster_wait(handle, _step(step), milliseconds))

    def restore_open(self, handle: Handle, step: int, rank: int | None = None) -> Restore:
        restore = Restore()
        if rank is None:
            code = self._c.muster_restore_open(handle, _step(step), byref(restore))
        elif 0 <= rank < 2**32:
            code = self._c.muster_restore_open_shard(handle, _step(step), rank, byref(restore))
        else:
            raise ValueError(f"{rank} is no rank")
        self._check(handle, code)
        return restore

    def restore_info(self, handle: Handle, step: int) -> tuple[int, int]:
        found, world = c_uint64(), c_uint32()
        self._check(handle, self._c.muster_restore_info(handle, _step(step), byref(found), byref(world)))
        return int(found.value), int(world.value)

    def restore_close(self, restore: Restore) -> None:
        self._c.muster_restore_close(restore)

    def entries(self, restore: Restore, locked: Callable[..., Any]) -> dict[str, Entry]:
        """By their names; they are good until restore_close. `locked` calls what may touch the restore's handle."""
        found: dict[str, Entry] = {}
        name, meta, size = c_char_p(), c_char_p(), c_size_t()
        for i in range(self._c.muster_restore_count(restore)):
            self._c.muster_restore_entry(restore, i, byref(name), byref(meta), None, byref(size))
            raw, text = name.value or b"", (meta.value or b"").decode(errors="replace")
            fill = functools.partial(self._restore_get, locked, restore, raw, size.value)
            found[raw.decode(errors="replace")] = Entry(text, fill)
        return found

    def _restore_get(self, locked: Callable[..., Any], restore: Restore, name: bytes, size: int, to: int) -> None:
        code = locked(self._c.muster_restore_get, restore, name, to, size)
        if code != 0:
            raise error(code, f"{name.decode(errors='replace')!r} cannot be copied out of the shard")


@functools.cache
def library() -> Library:
    path = _find()
    try:
        return Library(path)
    except OSError as why:
        raise ImportError(f"cannot load libmuster ({path}): {why}; MUSTER_LIBRARY may name it") from why
