"""What provisioning/try.sh --all has found: a JSON document {faults, ceph, pairs, kills, clean, false, seed}, of lists of texts."""

import json
import os
from pathlib import Path

from vc.names import REPOSITORY

ALL = os.environ.get("MUSTER_FAULTS") == "all"
RESULT = Path(os.environ.get("MUSTER_FAULTS_RESULT", REPOSITORY / "build" / "all-faults.json"))


def note(kind: str, text: str) -> None:
    """Adds to the result; where not all faults are tried there is none."""
    if ALL:
        found = result()
        found.setdefault(kind, []).append(text)
        RESULT.write_text(json.dumps(found, indent=2) + "\n")


def result() -> dict[str, list[str]]:
    """{} before the first run."""
    return dict(json.loads(RESULT.read_text())) if RESULT.exists() else {}
