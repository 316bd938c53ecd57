"""Programs that measure by themselves, and print JSON on their last line."""

import json
import subprocess
import tempfile
from typing import Any

from vc import ClusterError

TIMEOUT_S = 900


def measured(words: list[str]) -> Any:
    """What a program has measured."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{words[0]} took more than {TIMEOUT_S} s") from None
    except OSError as error:
        raise ClusterError(f"{words[0]}: {error.strerror}; build it first") from None
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(words)} failed ({done.returncode}): {done.stderr.strip()[-1000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measured_in_memory(words: list[str]) -> Any:
    """The same of one that is given a directory of memory for a store, as --directory."""
    with tempfile.TemporaryDirectory(prefix="muster-bench.", dir="/dev/shm") as directory:
        return measured([*words, "--directory", directory])
