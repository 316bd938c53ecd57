"""A gang's checkpoints in RADOS, as docs/formats.md describes them: what a soak verifies, and what it damages.

It knows nothing of Muster's code: programs/read_checkpoint.py reads by that page, programs/soak_state.py says what the
members had.
"""

import hashlib
import json
import random
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import rados

sys.path.insert(0, str(Path(__file__).resolve().parent / "programs"))
import read_checkpoint  # noqa: E402
import soak_state  # noqa: E402
from object_names import step_and_generation  # noqa: E402

POOL = "muster"
_TIMEOUT_S = 5


@dataclass(frozen=True)
class Entry:
    """One entry of the gang's head."""

    step: int
    manifest: str
    digest: str
    generation: int
    good: bool


class Store:
    """The pool, as an administrator reaches it from outside the cluster's nodes. For one thread."""

    def __init__(self, directory: Path, space: str, key: str) -> None:
        etc = directory / "etc" / "ceph-admin"
        timeouts = {"rados_osd_op_timeout": str(_TIMEOUT_S), "rados_mon_op_timeout": str(_TIMEOUT_S)}
        options = {"keyring": str(etc / "ceph.client.admin.keyring")} | timeouts
        self._cluster = rados.Rados(conffile=str(etc / "ceph.conf"), name="client.admin", conf=options)
        self._cluster.connect()
        self.io = self._cluster.open_ioctx(POOL)
        self.io.set_namespace(space)
        self._key = key

    def close(self) -> None:
        self.io.close()
        self._cluster.shutdown()

    def command(self, prefix: str, **arguments: str) -> None:
        """A command to the monitor; raises rados.Error when it is refused or not answered."""
        code, _, error = self._cluster.mon_command(json.dumps({"prefix": prefix, **arguments}), b"")
        if code != 0:
            raise rados.Error(f"ceph {prefix}: {error}", -code)

    def listed(self) -> list[Entry]:
        """The head's checkpoints, the oldest first."""
        found = []
        try:
            head = read_checkpoint.head(self.io, f"gang/{self._key}")
        except SystemExit:
            return []
        for name, text in head.items():
            if name.startswith("checkpoint/"):
                entry = json.loads(text)
                generation = int(entry["fence"].partition(".")[2], 16)
                step = int(name.partition("/")[2])
                found.append(Entry(step, entry["manifest"], entry["digest"], generation, entry["state"] == "good"))
        return sorted(found, key=lambda entry: entry.step)

    def manifest(self, entry: Entry) -> dict[str, Any]:
        """SystemExit, with a sentence: it is missing or damaged."""
        text = read_checkpoint.read(self.io, entry.manifest)
        if read_checkpoint.digest(text) != entry.digest:
            read_checkpoint.fail(f"object {entry.manifest} does not verify")
        found: dict[str, Any] = json.loads(text)
        return found

    def objects(self) -> list[str]:
        """The names of all data objects of the gang."""
        return [item.key for item in self.io.list_objects() if item.key.startswith(f"data/{self._key}/")]


def objects_of(entry: Entry, manifest: dict[str, Any]) -> set[str]:
    """All objects that a checkpoint consists of."""
    names = {entry.manifest}
    for shard in manifest["shards"]:
        for number in range(len(shard["chunks"]) // 32):
            elsewhere = (prefix for first, count, prefix in shard.get("elsewhere", []) if first <= number < first + count)
            names.add(f"{next(elsewhere, shard['prefix'])}.{number}")
    return names


@lru_cache(maxsize=200)
def _layer_digest(seed: int, rank: int, layer: int, version: int) -> str:
    step = version * soak_state.LAYERS[layer][0]
    return hashlib.sha256(soak_state.layer_at(seed, rank, step, layer)).hexdigest()


def expected(seed: int, rank: int, step: int) -> dict[str, tuple[int, str]]:
    """What the member had at the step: by the name of the entry, bytes and SHA-256."""
    structure, tail = soak_state.structure_at(step).encode(), soak_state.tail_at(seed, rank, step)
    found = {"structure": (len(structure), hashlib.sha256(structure).hexdigest())}
    for layer, (_, size, more) in enumerate(soak_state.LAYERS):
        found[f"/layers/{layer}"] = (size + rank * more, _layer_digest(seed, rank, layer, soak_state.version(layer, step)))
    return found | {"/tail": (len(tail), hashlib.sha256(tail).hexdigest())}


class Damage:
    """What has been damaged on purpose. For several threads."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._steps: set[int] = set()
        self._lock = threading.Lock()

    def names(self) -> set[str]:
        with self._lock:
            return set(self._names)

    def steps(self) -> set[int]:
        """The steps whose listed checkpoints had a damaged object at the moment of the damage. The verifier alone may not know that: a
        generation may begin from an older step, and save these steps anew, before the verifier has looked at them."""
        with self._lock:
            return set(self._steps)

    def _spread(self, store: Store, name: str) -> None:
        for entry in store.listed():
            with suppress(SystemExit):
                if name == entry.manifest or name in objects_of(entry, store.manifest(entry)):
                    with self._lock:
                        self._steps.add(entry.step)

    def inflict(self, store: Store, kind: str, number: int) -> str:
        """Damages an object of a listed checkpoint, the newest or (odd numbers) any; "number" decides which. No object is damaged
        twice: the same bit, flipped again, would mend it. Gives a sentence, "" when there is nothing to damage."""
        rng = random.Random(number)
        listed = store.listed()
        if not listed:
            return ""
        entry = rng.choice(listed) if number % 2 else listed[-1]
        try:
            candidates = {entry.manifest}
            if not kind.startswith("manifest"):
                candidates = objects_of(entry, store.manifest(entry)) - candidates
            candidates -= self.names()
            if not candidates:
                return ""
            name = rng.choice(sorted(candidates))
            self._spread(store, name)
            with self._lock:
                self._names.add(name)  # before: who reads it from now on may find it damaged
            if kind.endswith("removed"):
                store.io.remove_object(name)
            else:
                data = bytearray(read_checkpoint.read(store.io, name))
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                store.io.write_full(name, bytes(data))
        except (SystemExit, rados.ObjectNotFound):
            return ""  # damaged before, or removed with its checkpoint meanwhile
        return f"{name} of step {entry.step}"


class Verifier:
    """Reads every checkpoint as soon as it is listed, and compares every bit of it with what the members had. FILES/looked has
    the newest step that it has looked at."""

    def __init__(self, directory: Path, files: Path, space: str, key: str, seed: int, damage: Damage) -> None:
        self._store = Store(directory, space, key)
        self._looked = files / "looked"
        self._seed = seed
        self._damage = damage
        self.steps: set[int] = set()  # of all that were looked at
        self.verified = 0
        self.detected = 0  # had damaged objects, and did not verify
        self.bytes = 0
        self.compressed = 0  # chunks of what was verified
        self.missed: list[int] = []  # had gone before they were looked at
        self.wrong: list[str] = []
        self.unsound: set[int] = set()  # steps that had damaged objects when they were looked at, or later
        self._seen: dict[str, Entry] = {}  # by manifest
        self._objects: dict[str, set[str]] = {}
        self._answered = time.monotonic()
        self._judged: set[str] = set()  # damaged objects that have been looked for in all
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        self.stop()
        self._store.close()

    def _run(self) -> None:
        while not self._over.wait(0.2):
            try:
                self.look()
                self._answered = time.monotonic()
            except rados.Error:
                continue  # the store does not answer: the faults are to blame
            except Exception as error:
                self.wrong.append(f"the verifier has failed: {error!r}")
                raise

    def look(self) -> None:
        """At what is listed and was not looked at yet."""
        for entry in self._store.listed():
            if entry.manifest not in self._seen:
                self._verify(entry)
                self._seen[entry.manifest] = entry
                self.steps.add(entry.step)
                part = self._looked.with_suffix(".part")
                part.write_text(str(max(self.steps)))
                part.rename(self._looked)
                self._judge([entry.manifest], self._damage.names())
        damaged = self._damage.names()
        self._judge(list(self._objects), damaged - self._judged)
        self._judged = damaged

    def _judge(self, manifests: list[str], damaged: set[str]) -> None:
        """Which of the checkpoints have some of these objects."""
        for name in manifests:
            if name in self._seen and self._objects.get(name, {name}) & damaged:
                self.unsound.add(self._seen[name].step)

    def known_of(self, step: int) -> str:
        """For a report: each checkpoint of this step that was looked at, and whether its objects are known."""
        found = [
            f"{name} ({'good' if entry.good else 'bad'} when looked at, {len(self._objects.get(name, ()))} objects)"
            for name, entry in self._seen.items()
            if entry.step == step
        ]
        return f"step {step}: {', '.join(found) or 'never looked at'}"

    def silent(self) -> float:
        """For how many seconds the store has not answered."""
        return time.monotonic() - self._answered

    def again(self) -> list[Entry]:
        """Looks at all that are listed once more; gives them."""
        listed = self._store.listed()
        for entry in listed:
            self._verify(entry)
            self.steps.add(entry.step)
        return listed

    def sound(self, entry: Entry) -> bool:
        """Whether no object of it was damaged."""
        return not self._objects.get(entry.manifest, {entry.manifest}) & self._damage.names()

    def orphans(self, before: int | None = None) -> list[str]:
        """Objects (of generations before one) that no listed checkpoint has, and that were not written for one of them."""
        names = self._store.objects()
        listed = self._store.listed()
        needed: set[str] = set()
        for entry in listed:
            needed |= self._objects.get(entry.manifest, set()) | {entry.manifest}
        written_for = {(entry.step, entry.generation) for entry in listed}
        orphans = [name for name in names if name not in needed and step_and_generation(name) not in written_for]
        return [name for name in orphans if before is None or step_and_generation(name)[1] < before]

    def _verify(self, entry: Entry) -> None:
        damaged = self._damage.names()
        objects = {entry.manifest}
        try:
            manifest = self._store.manifest(entry)
            objects = self._objects[entry.manifest] = objects_of(entry, manifest)
            self._compare(entry, manifest)
        except SystemExit as why:
            there = {other.step: other.manifest for other in self._store.listed()}
            if objects & self._damage.names():
                self.detected += 1
            elif there.get(entry.step) == entry.manifest:
                self.wrong.append(f"step {entry.step}: {why}")
            elif entry.step not in there:  # else a later generation has saved it anew, which is looked at next
                self.missed.append(entry.step)
            return
        if objects & damaged:
            self.wrong.append(f"step {entry.step} verifies, though it has damaged objects: {sorted(objects & damaged)}")
        self.verified += 1

    def _compare(self, entry: Entry, manifest: dict[str, Any]) -> None:
        if (manifest["step"], manifest["world_size"]) != (entry.step, len(manifest["shards"])):
            read_checkpoint.fail(f"the manifest is of step {manifest['step']}")
        for rank, shard in enumerate(manifest["shards"]):
            data = read_checkpoint.shard(self._store.io, shard)
            self.bytes += len(data)
            self.compressed += sum(len(sizes) for _, _, sizes in shard.get("encoded", []))
            found = {name: (item["bytes"], item["sha256"]) for name, item in read_checkpoint.entries(data).items()}
            wanted = expected(self._seed, rank, entry.step)
            if shard["rank"] != rank or found != wanted:
                others = [name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)]
                read_checkpoint.fail(f"rank {rank} had something else, in the entries {sorted(others)}")
