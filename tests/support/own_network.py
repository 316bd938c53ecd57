"""Interfaces and ports of a test's own: no other test's port is in its way, nor a connection from such a port."""

import os
import sys

PORT = 29500  # for a program to listen at; below those that the kernel hands out
_INSIDE = "MUSTER_TEST_NAMESPACE"
_WORDS = ["unshare", "--net", "--mount", "sh", "-ec", 'mount -t sysfs sysfs /sys; ip link set lo up; exec "$@"', "sh"]


def within(command: list[str]) -> list[str]:
    """`command` in a network namespace of its own, with a /sys that shows it; both end when the command does."""
    return [*_WORDS, *command]


def enter() -> None:
    """Starts this program again in such a namespace."""
    if _INSIDE not in os.environ:
        os.execvpe(_WORDS[0], within([sys.executable, *sys.argv]), os.environ | {_INSIDE: "1"})
