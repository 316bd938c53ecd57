"""File systems of Debian from the mirror that the host itself has."""

import subprocess
from pathlib import Path

from vc.host import ClusterError, run

# A mirror may be a snapshot; of all suites sid's says soonest that it is out of date.
_SOURCE_OPTIONS = "signed-by=/usr/share/keyrings/debian-archive-keyring.gpg check-valid-until=no"
# Everything that is made has a minute per package at most on a slow line; this is for one that stands still.
_TIMEOUT_S = 1200.0


def sources_list(suite: str) -> str:
    """The lines of a sources.list with a suite of Debian, from the mirrors that the host has its own suite from."""
    targets = ["Created-By: Packages", "Origin: Debian", "Component: main"]
    wanted = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", *targets]
    if not run(wanted).strip():
        run(["apt-get", "-qq", "update"])
    lines = []
    for line in run(wanted).splitlines():
        uri, release, component = line.split()
        part = release.partition("-")[2]  # updates, security
        if not part or suite != "sid":
            lines.append(f"deb [{_SOURCE_OPTIONS}] {uri} {suite}{part and '-' + part} {component}")
    if not lines:
        raise ClusterError("apt on this host has no mirror of Debian")
    return "".join(line + "\n" for line in dict.fromkeys(lines))


def make_by_script(script: Path, path: Path, *arguments: str) -> None:
    """Runs a script, with the path that it makes and arguments, in namespaces of its own: its processes and mounts end with it, and
    it ends with this process, whatever happens."""
    apart = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = [*apart, str(script), str(path), *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{script.name} is not done after {_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        end = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise ClusterError(f"{script.name} failed ({done.returncode}):\n{end}")
