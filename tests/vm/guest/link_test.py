"""`muster net test` between two guests."""

import json
from typing import Any

from vc.host import ClusterError

from .guest import Guest, Program

Document = dict[str, Any]


class LinkTest:
    """A test that has begun. `address` is where the one that leads is reached, by default in the fabric. `root`: as which user."""

    def __init__(self, leads: Guest, follows: Guest, *words: str, address: str | None = None, root: bool = True) -> None:
        own = {"GROUP_WORLD_SIZE": "2", "MASTER_ADDR": address or leads.address, "MASTER_PORT": "29500"}
        user = [] if root else ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        command = [*user, "muster", "net", "test", "--json", "--wait=120", *words]
        self._programs: list[Program] = []
        for rank, guest in enumerate((leads, follows)):
            self._programs.append(guest.start(command, env=own | {"GROUP_RANK": str(rank), "SLURMD_NODENAME": guest.name}))

    def verdict(self) -> Document:
        """What the one that leads has printed, when both have ended."""
        try:
            done = [program.wait() for program in self._programs]
        finally:
            for program in self._programs:
                program.kill()
        document: Document = json.loads(done[0].stdout or "{}")
        code = 0 if document.get("ok") else 1
        if any((each.returncode, each.stderr) != (code, "") for each in done):
            raise ClusterError(f"`muster net test` ended with {[(each.returncode, each.stderr) for each in done]}: {document}")
        return document
