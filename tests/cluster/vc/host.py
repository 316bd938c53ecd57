"""Small helpers on the host: commands, processes, mounts."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path


class ClusterError(Exception):
    """Something about the virtual cluster went wrong; the text is meant for a person."""


def run(argv: Sequence[str], stdin: str | None = None, check: bool = True) -> str:
    """Runs a command on the host and returns its stdout; a failure raises ClusterError with its stderr."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise ClusterError(f"`{' '.join(argv)}` failed ({done.returncode}): {done.stderr.strip()}")
    return done.stdout


def start_time(pid: int) -> int | None:
    """When a process started (clock ticks since boot), None when it is gone or a zombie whose last thread has ended too.

    A pid together with its start time names one process for good: pids are used again.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    threads = int(fields[17])  # while others of a killed process end, its first thread is a zombie and its ports are taken
    return None if fields[0] in "ZX" and threads <= 1 else int(fields[19])


def child_of(pid: int) -> int | None:
    """The first child of a process, None when it has none."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(children[0]) if children else None


def require_programs(names: Iterable[str]) -> None:
    """All of these are installed, or ClusterError names those that are not."""
    path = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
    absent = [name for name in names if shutil.which(name, path=path) is None]
    if absent:
        raise ClusterError(f"not installed: {', '.join(absent)} (packaging/debian/control lists the packages)")


def remove(directory: Path) -> None:
    """Removes a directory, and what is mounted at or below it."""
    unmount_below(directory)
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        shutil.rmtree(directory)


def unmount_below(directory: Path) -> None:
    """Unmounts everything that the host has mounted at or below a directory."""
    prefix = str(directory)
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted((p for p in points if p == prefix or p.startswith(prefix + "/")), reverse=True):
        run(["umount", "-l", point], check=False)


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log, indented, for an error message."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return "    (no log)"
    return "\n".join("    " + line for line in text.splitlines()[-lines:]) or "    (empty)"


def write(path: Path, text: str | bytes, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
    """Writes a file whose mode is right from its first moment (keys must never be readable)."""
    data = text.encode() if isinstance(text, str) else text
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        os.fchmod(fd, mode)
        if owner is not None:
            os.fchown(fd, *owner)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignores what would interrupt the main thread, for an end that must not be left half done."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
