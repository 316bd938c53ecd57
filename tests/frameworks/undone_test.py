#!/usr/bin/env python3
"""The cases of states_test.py find what was lost in silence before: with any one of its mends undone some of them fail.

Each is undone in a copy of the package, whose text must have what is replaced. PYTHONPATH: the build's python folder.

    tests/frameworks/python tests/frameworks/undone_test.py [NAME...]
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SECONDS = 300


@dataclass
class Mend:
    file: str
    now: str
    before: str


MENDS = {
    "the metadata are those of the planner, not of the plans": [
        Mend("torch/_dcp.py", "        if len(plans) !=", "        self._plans = plans\n        if len(plans) !="),
        Mend("torch/_dcp.py", "_table(metadata, results)})", "_table(_planned(self._plans), results)})"),
        Mend("torch/_dcp.py", "    for fqn, offset in named ^ ranks.keys():\n", "    for fqn, offset in ():\n"),
        Mend(
            "torch/_dcp.py",
            "def _table(",
            '''def _planned(plans: Any) -> md.Metadata:
    entries: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for plan in plans:
        paths |= plan.planner_data or {}
        for item in plan.items:
            if item.tensor_data is None:
                entries[item.index.fqn] = md.BytesStorageMetadata()
            else:
                what = item.tensor_data
                entries.setdefault(item.index.fqn, md.TensorStorageMetadata(what.properties, what.size, [])).chunks.append(what.chunk)
    return md.Metadata(entries, planner_data=paths)


def _table(''',
        ),
    ],
    "a save without the others is refused": [
        Mend("torch/_dcp.py", "        if len(plans) != self.gang.world_size:\n", "        if False:\n"),
        Mend("torch/_dcp.py", "        if self.gang._held is None or self", "        if self.gang._held is None:\n            return\n        if self"),
    ],
    "a tensor is saved by one of those that have it": [
        Mend(
            "torch/_together.py",
            "        having = [rank for rank, digests in enumerate(every) if name in digests]\n",
            "        having = list(range(len(every)))\n",
        ),
        Mend(
            "torch/_together.py",
            "        if len({every[rank][name] for rank in having}) == 1:\n",
            "        if len({digests[name] for digests in every if name in digests}) == 1:\n",
        ),
    ],
    "what is asked for is looked up, not what is in the structure": [
        Mend("_restore.py", "[*saved, *(key for key in into if key not in saved)]", "saved"),
        Mend("_restore.py", "enumerate(zip_longest(items, into, fillvalue=_NOTHING))", "enumerate(zip(items, into))"),
    ],
    "FSDP2 with tensor parallelism divides from right to left": [
        Mend("_parts.py", "[i, *order] if strided is None else [*order, i]", "[i, *order]"),
        Mend("_parts.py", "    if box != tuple(local.shape):\n", "    if False:\n"),
    ],
    "what is no box of the whole is refused": [
        Mend("_parts.py", "        if strided not in (None, right):\n            return None\n", ""),
        Mend("_parts.py", "    if box != tuple(local.shape):\n", "    if False:\n"),
    ],
}


def undone(name: str, directory: Path) -> dict[str, str]:
    """The environment with the copy in which it is undone."""
    built = Path(os.environ.get("PYTHONPATH", "").split(":")[0] or ROOT / "build/python")
    shutil.copytree(built / "muster", directory / "muster", ignore=shutil.ignore_patterns("__pycache__"))
    for mend in MENDS[name]:
        file = directory / "muster" / mend.file
        text = file.read_text()
        if text.count(mend.now) != 1:
            raise SystemExit(f"{mend.file} has {text.count(mend.now)} times what is to be undone of {name!r}, and not once: {mend.now!r}")
        file.write_text(text.replace(mend.now, mend.before))
    library = os.environ.get("MUSTER_LIBRARY", str(built.parent / "lib/libmuster.so.0"))
    return os.environ | {"PYTHONPATH": str(directory), "MUSTER_LIBRARY": library, "PYTHONDONTWRITEBYTECODE": "1"}


def main() -> int:
    missed = 0
    for name in sys.argv[1:] or MENDS:
        with tempfile.TemporaryDirectory(prefix="muster-test-") as directory:
            words = [sys.executable, str(HERE / "states_test.py"), "--failures", "1"]
            done = subprocess.run(
                words, env=undone(name, Path(directory)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS
            )
        found = re.search(r"^FAILED case .*(\n  .*)?", done.stdout, re.MULTILINE)
        ended = done.stdout.strip().rpartition("\n")[2]
        print(f"{name}: {'its cases fail without it' if found else 'NOTHING FAILS WITHOUT IT'}: {ended}")
        print(f"  {found[0][:400] if found else done.stdout[-2000:]}", flush=True)
        missed += not found
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
