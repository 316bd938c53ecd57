"""Prints what `validate` compares of a host, as one JSON object. Changes nothing. Arguments: what the host is."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

LIMIT_S = 20


def _run(*argv):
    """What a program says and how it ends; 127 where there is none, 124 when it does not end."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except FileNotFoundError:
        return 127, f"{argv[0]}: not installed"
    except subprocess.TimeoutExpired:
        return 124, f"{argv[0]}: no answer after {LIMIT_S} s"
    return done.returncode, (done.stdout + done.stderr).strip()


def _packages():
    code, said = _run("dpkg-query", "--show", "--showformat", "${source:Package} ${db:Status-Status} ${Package} ${Version}\n")
    rows = [line.split() for line in said.splitlines()] if code == 0 else []
    return {row[2]: row[3] for row in rows if row[:2] == ["muster", "installed"]}


def main(kinds):
    units = ["munge.service"]
    units += ["slurmd.service", "musterd.service"] if "compute" in kinds else []
    units += ["slurmctld.service"] if "controller" in kinds else []
    code, plugin = _run("muster", "node", "check-plugin")
    try:
        config = hashlib.sha256(Path("/etc/muster/muster.yaml").read_bytes()).hexdigest()
    except OSError as error:
        config = error.strerror
    found = {
        "units": {unit: _run("systemctl", "is-active", unit)[1] for unit in units},
        "packages": _packages(),
        "plugin": {"loads": code == 0, "says": plugin},
        "option": "--gang=" in _run("srun", "--help")[1],
        "config": config,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
