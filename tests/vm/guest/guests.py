"""Guests that share a network, as tests use them."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from vc import host
from vc.host import ClusterError
from vc.names import REPOSITORY, Names

from . import images
from .guest import Guest, Plan
from .images import Image
from .network import Network

_PROGRAMS = ("qemu-system-x86_64", "mmdebstrap", "mke2fs", "cpio", "ldd", "nsenter", "setpriv", "unshare", "ip")
BUILD = Path(os.environ.get("MUSTER_BUILD", REPOSITORY / "build"))


@dataclass(frozen=True)
class Options:
    memory_mib: int = 320  # of each
    # Makes what they boot from; it is given their directory.
    image: Callable[[Path], Image] = lambda directory: images.fabric()
    management: str | None = None  # this machine's address, with its prefix, in a second network
    programs: tuple[Path, ...] = (BUILD / "bin" / "muster",)  # which all guests have in their PATH


class Guests:
    """Small guests with an RDMA device each: `with Guests(2) as (a, b): a.run(["muster", "net", "check"])`.

    They are called a, b, ... and have the addresses 10.77.0.1, 10.77.0.2, ... Everything ends with the block, and with the thread that
    has started it, however that ends.
    """

    def __init__(self, count: int, options: Options | None = None, name: str | None = None) -> None:
        """Without a name, a name of this process."""
        self.names = Names(name or f"t{os.getpid()}", "vm")
        self.options = options or Options()
        self.network = Network()
        self.guests: list[Guest] = []
        self._count = count
        self._made = False  # the directory is its own

    def __enter__(self) -> list[Guest]:
        self.start()
        return self.guests

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when all of them run programs. On any failure or interruption nothing is left."""
        if os.geteuid() != 0:
            raise ClusterError("guests need root")
        host.require_programs(_PROGRAMS)
        images.fabric()  # which may take a minute
        try:
            self.names.directory.mkdir()
        except FileExistsError:
            raise ClusterError(f"guests of the name '{self.names.name}' are there already ({self.names.directory})") from None
        self._made = True
        try:
            image = self.options.image(self.names.directory)
            programs = list(self.options.programs)
            cargo = images.cargo(self.names.directory, programs) if programs else None
            self.network.create(self.options.management)
            for number in range(1, self._count + 1):
                plan = Plan(
                    name=chr(ord("a") + number - 1),
                    address=f"10.77.0.{number}/16",
                    number=number,
                    memory_mib=self.options.memory_mib,
                    image=image,
                    cargo=cargo,
                    management=self.options.management is not None,
                )
                guest = Guest(plan, self.names.directory, self.network)
                self.guests.append(guest)
                guest.power_on()
            for guest in self.guests:
                guest.boot()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Removes every trace of them. Not to be interrupted: the signals that would are ignored in the main thread."""
        with host.uninterrupted():
            for guest in self.guests:
                guest.power_off()
            self.guests.clear()
            self.network.destroy()
            if self._made:
                host.remove(self.names.directory)
                self._made = False
