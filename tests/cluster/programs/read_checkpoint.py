#!/usr/bin/python3
"""Restores a checkpoint without Muster, by docs/formats.md, librados, xxhash and zstd alone.

usage: read_checkpoint.py POOL NAMESPACE KEY [STEP]

Prints one JSON object: step, world_size, and for each rank its entries by name: metadata, bytes, and the SHA-256 of the data.
"""

import ctypes
import hashlib
import json
import struct
import sys
from typing import Any, NoReturn

import rados


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


xxhash = ctypes.CDLL("libxxhash.so.0")
xxhash.XXH3_128bits.restype = Hash128
xxhash.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


zstd = ctypes.CDLL("libzstd.so.1")
zstd.ZSTD_decompress.restype = ctypes.c_size_t
zstd.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]


def fail(why: str) -> NoReturn:
    sys.exit(f"read_checkpoint.py: {why}")


def digest(data: bytes) -> str:
    value = xxhash.XXH3_128bits(data, len(data))
    return f"{value.high:016x}{value.low:016x}"


def read(io: Any, name: str) -> bytes:
    try:
        return bytes(io.read(name, io.stat(name)[0]))
    except rados.ObjectNotFound:
        fail(f"object {name} is missing")


def head(io: Any, name: str) -> dict[str, bytes]:
    """Section 3: a head's entries are its omap."""
    with rados.ReadOpCtx() as operation:
        entries, _ = io.get_omap_vals(operation, "", "", 100_000)
        try:
            io.operate_read_op(operation, name)
        except rados.ObjectNotFound:
            fail(f"there is no {name}")
        return {key: bytes(value) for key, value in entries}


def decode(stored: bytes, width: int, size: int) -> bytes:
    """Section 5: a zstd frame, and in it the bytes of each place in an element, one place after another."""
    content = ctypes.create_string_buffer(size)
    if zstd.ZSTD_decompress(content, size, stored, len(stored)) != size:
        return b""
    shuffled, plain, count = content.raw, bytearray(content.raw), size // width
    for place in range(width):
        plain[place : width * count : width] = shuffled[place * count : (place + 1) * count]
    return bytes(plain)


def shard(io: Any, entry: dict[str, Any]) -> bytes:
    """Section 5: chunks one after another, each with its digest."""
    data = b""
    for number in range(len(entry["chunks"]) // 32):
        elsewhere = (prefix for first, count, prefix in entry.get("elsewhere", []) if first <= number < first + count)
        name = f"{next(elsewhere, entry['prefix'])}.{number}"
        chunk = read(io, name)
        for first, width, sizes in entry.get("encoded", []):
            if first <= number < first + len(sizes) and len(chunk) == sizes[number - first]:
                chunk = decode(chunk, width, min(entry["chunk_bytes"], entry["bytes"] - len(data)))
        if digest(chunk) != entry["chunks"][32 * number : 32 * number + 32]:
            fail(f"object {name} does not verify")
        data += chunk
    if len(data) != entry["bytes"]:
        fail(f"the shard of rank {entry['rank']} has {len(data)} bytes, not {entry['bytes']}")
    return data


def entries(data: bytes) -> dict[str, dict[str, Any]]:
    """Section 6: what a shard holds."""
    magic, version, count, at, size = struct.unpack_from("<8sIIQQ", data)
    if magic != b"MUSTSHRD" or version != 1:
        fail(f"this is no shard of version 1: {magic!r}, {version}")
    found: dict[str, dict[str, Any]] = {}
    for _ in range(count):
        offset, length, name_bytes, meta_bytes = struct.unpack_from("<QQII", data, at)
        text = data[at + 24 : at + 24 + name_bytes + meta_bytes]
        content = hashlib.sha256(data[offset : offset + length]).hexdigest()
        found[text[:name_bytes].decode()] = {"meta": text[name_bytes:].decode(), "bytes": length, "sha256": content}
        at += (24 + name_bytes + meta_bytes + 7) // 8 * 8
    return found


def main(pool: str, namespace: str, key: str, step: str = "") -> None:
    with rados.Rados(conffile="/etc/ceph/ceph.conf") as cluster, cluster.open_ioctx(pool) as io:
        io.set_namespace(namespace)
        gang = head(io, f"gang/{key}")
        step = step or gang.get("latest", b"").decode()
        if f"checkpoint/{step}" not in gang:
            fail(f"{key} has no checkpoint of step {step or 'any'}")
        known = json.loads(gang[f"checkpoint/{step}"])
        if digest(text := read(io, known["manifest"])) != known["digest"]:
            fail(f"object {known['manifest']} does not verify")
        manifest = json.loads(text)
        ranks = [entries(shard(io, entry)) for entry in manifest["shards"]]
        print(json.dumps({"step": manifest["step"], "world_size": manifest["world_size"], "ranks": ranks}))


if __name__ == "__main__":
    main(*sys.argv[1:])
