"""What tests do with a musterd that stands still at a point of a save, a commit or a restore (base/crash_point.h)."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from harness import ClusterCase


def stands_still(case: ClusterCase, node: str) -> bool:
    pid = case.cluster.daemon_pid(node, "musterd")
    if pid is None:
        raise AssertionError(f"musterd on {node} has ended")
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "T"


def arm(case: ClusterCase, node: str, point: str) -> None:
    """Restarts a node's musterd under the running gang, so that it stands still at a point."""
    case.cluster.stop_daemon(node, "musterd")
    case.cluster.start_daemon(node, "musterd", env={"MUSTER_STOP_AT": point})
    case.addCleanup(_disarm, case, node)


def _disarm(case: ClusterCase, node: str) -> None:
    case.cluster.stop_daemon(node, "musterd", signal.SIGKILL)
    case.cluster.start_daemon(node, "musterd")


def wake(case: ClusterCase, node: str) -> None:
    case.cluster.signal_daemon(node, "musterd", signal.SIGCONT)


@contextmanager
def standing_still(case: ClusterCase, node: str, point: str) -> Iterator[None]:
    """Waits until the armed musterd has come to its point; it goes on after the block."""
    case.wait(lambda: stands_still(case, node), f"musterd on {node} to come to {point}")
    try:
        yield
    finally:
        wake(case, node)
