"""What all runs have in common, below /var/cache/muster-tests: named by what it is made from, whole or not there."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

CACHE = Path("/var/cache/muster-tests")


def cached(name: str, ingredients: list[bytes], make: Callable[[Path], None]) -> Path:
    """A file or directory that `make` makes from the ingredients, once. The name may have a suffix."""
    digest = hashlib.sha256()
    for part in ingredients:
        digest.update(len(part).to_bytes(8, "little") + part)
    stem, dot, suffix = name.partition(".")
    path = CACHE / f"{stem}-{digest.hexdigest()[:16]}{dot}{suffix}"
    if path.exists():
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    lock = os.open(CACHE, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may make it, or may just have made it
        if not path.exists():
            scratch = CACHE / "new"
            shutil.rmtree(scratch, ignore_errors=True)  # of one that was interrupted
            scratch.mkdir()
            try:
                make(scratch / path.name)
                (scratch / path.name).rename(path)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    finally:
        os.close(lock)
    return path
