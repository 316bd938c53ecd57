"""Huge pages for shared memory, as packaging/systemd/muster.conf sets them on a node."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


@contextmanager
def huge_pages() -> Iterator[str]:
    """While it lasts; the host's setting is put back. Gives what holds then: "advise", or what cannot be changed."""
    try:
        before = _chosen()
        if before in ("never", "deny"):
            _SETTING.write_text("advise")
    except OSError:
        yield "none"
        return
    try:
        yield _chosen()
    finally:
        _SETTING.write_text(before)


def _chosen() -> str:
    words = _SETTING.read_text().split()
    return next(word.strip("[]") for word in words if word.startswith("["))
