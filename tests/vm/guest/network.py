"""The guests' networks: bridges in a network namespace that has no way out, and a cable to each guest."""

import subprocess
from pathlib import Path

from vc import host
from vc.host import ClusterError
from vc.wait import wait_until

_READY_S = 60.0
_MTU = 9216  # of the switch: what guests set is theirs

# When its parent ends, however that may be, a process that was started with this ends too.
END_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]


class Network:
    """Not thread-safe. To be created from the thread that lives as long as the network is to."""

    def __init__(self) -> None:
        self._keeper: subprocess.Popen[bytes] | None = None

    def create(self, management: str | None = None) -> None:
        """Makes the namespace, which is there until destroy(), with the fabric's switch. `management`: an address with its prefix that
        programs in the namespace have in a second network, of this machine and the guests."""
        own = Path("/proc/self/ns/net").readlink()
        keeper = [*END_WITH_PARENT, "unshare", "--net", "sleep", "infinity"]
        self._keeper = subprocess.Popen(keeper, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/")
        namespace = Path(f"/proc/{self._keeper.pid}/ns/net")
        wait_until(lambda: namespace.readlink() != own, _READY_S, "a network namespace")
        for command in (
            ["ip", "link", "set", "lo", "up"],
            ["ip", "link", "add", "fabric", "type", "bridge"],
            # The switch itself says nothing on it.
            ["ip", "link", "set", "fabric", "addrgenmode", "none", "up"],
        ):
            self.run(command)
        if management is not None:
            self.run(["ip", "link", "add", "management", "type", "bridge"])
            self.run(["ip", "link", "set", "management", "addrgenmode", "none", "up"])
            self.run(["ip", "address", "add", management, "dev", "management"])

    def inside(self, command: list[str]) -> list[str]:
        """The command that runs a program of this machine in the namespace; it ends with the caller."""
        if self._keeper is None:
            raise ClusterError("the guests' network is not there")
        return [*END_WITH_PARENT, "nsenter", f"--net=/proc/{self._keeper.pid}/ns/net", "--", *command]

    def run(self, command: list[str]) -> str:
        """Runs a program of this machine in the namespace to its end."""
        return host.run(self.inside(command))

    def add_cable(self, switch: str, name: str) -> None:
        """A tap device that is plugged into a switch."""
        self.run(["ip", "tuntap", "add", "dev", name, "mode", "tap"])
        self.run(["ip", "link", "set", name, "mtu", str(_MTU), "addrgenmode", "none", "master", switch, "up"])

    def destroy(self) -> None:
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.wait()
            self._keeper = None
