"""Interfaces of a test's own."""

import os
import sys

_INSIDE = "MUSTER_TEST_NAMESPACE"


def enter() -> None:
    """Starts this program again in a network namespace of its own, and with a /sys that shows it."""
    if _INSIDE in os.environ:
        return
    inside = 'mount -t sysfs sysfs /sys && exec "$@"'
    words = ["unshare", "--net", "--mount", "sh", "-c", inside, "sh", sys.executable, *sys.argv]
    os.execvpe(words[0], words, os.environ | {_INSIDE: "1"})
