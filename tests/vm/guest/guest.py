"""One guest: a machine that QEMU emulates."""

import contextlib
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from vc import host
from vc.host import ClusterError
from vc.wait import wait_until

from .agent import Agent, Ended
from .images import Image
from .network import Network
from .qmp import Qmp

# QEMU emulates every instruction, on a machine that others use too.
BOOT_TIMEOUT_S = 300.0
RUN_TIMEOUT_S = 180.0
_LOOK_AGAIN_S = 0.05
_CARGO = "/opt/cargo"


@dataclass(frozen=True)
class Plan:
    """What a guest has."""

    name: str
    address: str  # in the fabric, with its prefix: 10.77.0.1/16
    number: int  # from 1 on
    memory_mib: int
    image: Image
    cargo: Path | None  # a second disk, read-only
    management: bool  # whether it has a card in the network of this machine and the guests


class Program:
    """A program that runs in a guest."""

    def __init__(self, guest: "Guest", argv: list[str], number: int) -> None:
        self.argv = argv
        self.number = number  # its process there
        self._guest = guest
        self._ended: Ended | None = None

    def poll(self) -> "subprocess.CompletedProcess[str] | None":
        """What it has come to, None while it runs."""
        if self._ended is None:
            self._ended = self._guest.agent.ended(self.number)
        if self._ended is None:
            return None
        return subprocess.CompletedProcess(self.argv, self._ended.code, self._ended.out, self._ended.err)

    def wait(self, timeout: float = RUN_TIMEOUT_S) -> "subprocess.CompletedProcess[str]":
        """What it has come to, when it has ended. One that does not end in time is killed."""
        deadline = time.monotonic() + timeout
        while (done := self.poll()) is None:
            if time.monotonic() >= deadline:
                self.kill()
                raise ClusterError(f"`{' '.join(self.argv)}` on {self._guest.name} has not ended after {timeout:g} s")
            time.sleep(_LOOK_AGAIN_S)
        return done

    def kill(self) -> None:
        """Ends it, if it still runs."""
        if self.poll() is None:
            self._guest.run(["sh", "-c", f"kill -KILL {self.number}"])
            wait_until(lambda: self.poll() is not None, RUN_TIMEOUT_S, f"the end of `{' '.join(self.argv)}`")


class Guest:
    """Not thread-safe; it ends with the thread that has started it. Every method raises ClusterError with a text for a person."""

    def __init__(self, plan: Plan, directory: Path, network: Network) -> None:
        self.name = plan.name
        self.address = plan.address.partition("/")[0]  # in the fabric
        self.interface = "eth0"  # of the fabric
        self._plan = plan
        self._directory = directory
        self._network = network
        self._qemu: subprocess.Popen[bytes] | None = None
        self._agent: Agent | None = None
        self._qmp: Qmp | None = None

    @property
    def cable(self) -> str:
        """The switch's end of its cable, in the network's namespace."""
        return f"{self.name}-fabric"

    @property
    def console(self) -> Path:
        """What its kernel and its init have written."""
        return self._directory / f"{self.name}.console"

    @property
    def pid(self) -> int:
        """Of QEMU on this machine."""
        assert self._qemu is not None
        return self._qemu.pid

    @property
    def agent(self) -> Agent:
        if self._agent is None:
            raise ClusterError(f"guest {self.name} does not run")
        return self._agent

    @property
    def qmp(self) -> Qmp:
        if self._qmp is None:
            raise ClusterError(f"guest {self.name} does not run")
        return self._qmp

    # --- its life

    def power_on(self) -> None:
        """Starts it; boot() waits for it."""
        self._network.add_cable("fabric", self.cable)
        if self._plan.management:
            self._network.add_cable("management", f"{self.name}-manage")
        with open(self._directory / f"{self.name}.qemu", "ab") as log:
            self._qemu = subprocess.Popen(
                self._network.inside(self._command()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=os.environ | {"TMPDIR": str(self._directory)},  # what it writes to its disk
            )

    def boot(self) -> None:
        """Returns when it runs programs."""
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        self._wait_for_socket("qmp", deadline)
        self._qmp = Qmp(self._socket("qmp"))
        self._meet_agent(deadline)

    def reboot(self) -> None:
        """It shuts down and boots again, with what it has written to its disk. Returns when it runs programs."""
        before = self.boot_id()
        self.qmp.forget_events()
        self.agent.start(["reboot"])
        self.qmp.wait_for("RESET", BOOT_TIMEOUT_S)
        self.agent.close()
        self._agent = None
        self._meet_agent(time.monotonic() + BOOT_TIMEOUT_S)
        if self.boot_id() == before:
            raise ClusterError(f"guest {self.name} has not rebooted")

    def boot_id(self) -> str:
        return self.read("/proc/sys/kernel/random/boot_id").strip()

    def power_off(self) -> None:
        """Ends it at once, also when it has not come up; nothing of it is left."""
        for connection in (self._agent, self._qmp):
            if connection is not None:
                connection.close()
        self._agent = self._qmp = None
        if self._qemu is not None:
            self._qemu.kill()
            self._qemu.wait()
            self._qemu = None

    # --- programs and files

    def start(self, argv: list[str], stdin: str | bytes = b"", env: dict[str, str] | None = None) -> Program:
        """Starts a program as root, which finds those of the cargo too; what it is given to read ends with `stdin`."""
        path = f"{_CARGO}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        variables = {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8"} | (env or {})
        command = ["env", *(f"{name}={value}" for name, value in variables.items()), *argv]
        data = stdin.encode() if isinstance(stdin, str) else stdin
        return Program(self, argv, self.agent.start(command, data))

    def run(
        self,
        argv: list[str],
        timeout: float = RUN_TIMEOUT_S,
        check: bool = False,
        stdin: str | bytes = b"",
        env: dict[str, str] | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a program as root to its end. With `check` one that fails raises ClusterError."""
        done = self.start(argv, stdin, env).wait(timeout)
        if check and done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            raise ClusterError(f"`{' '.join(argv)}` on {self.name} failed ({done.returncode}): {said}")
        return done

    def write(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        """Writes a file of root's, and the directories above it."""
        self.run(["install", "-D", "-m", f"{mode:o}", "/dev/stdin", path], check=True, stdin=content)

    def copy(self, source: Path, path: str) -> None:
        """A file of this machine, with its mode."""
        self.write(path, source.read_bytes(), source.stat().st_mode & 0o777)

    def read(self, path: str) -> str:
        return self.run(["cat", path], check=True).stdout

    # --- its network card

    def set_link(self, up: bool) -> None:
        """Plugs its cable of the fabric in, or pulls it out. Returns when the guest's kernel knows."""
        self.qmp.execute("set_link", name="fabric", up=up)
        wanted = "1" if up else "0"
        carrier = f"/sys/class/net/{self.interface}/carrier"
        wait_until(lambda: self.read(carrier).strip() == wanted, RUN_TIMEOUT_S, f"the carrier of {self.name}", interval=0.1)

    # --- how it is made

    def _socket(self, kind: str) -> Path:
        return self._directory / f"{self.name}.{kind}"

    def _wait_for_socket(self, kind: str, deadline: float) -> None:
        def there() -> bool:
            self._check_alive()
            return self._socket(kind).exists()

        wait_until(there, deadline - time.monotonic(), f"QEMU of {self.name}")

    def _meet_agent(self, deadline: float) -> None:
        try:
            self._agent = Agent(self._socket("agent"), deadline)
        except TimeoutError:
            why = f"guest {self.name} has not come up in {BOOT_TIMEOUT_S:g} s"
            raise ClusterError(f"{why}; its console:\n{host.tail(self.console)}") from None
        except ClusterError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                if self._qemu is not None:
                    self._qemu.wait(10)
            self._check_alive()
            raise

    def _check_alive(self) -> None:
        if self._qemu is None or self._qemu.poll() is not None:
            log = self._directory / f"{self.name}.qemu"
            raise ClusterError(f"QEMU of {self.name} has ended:\n{host.tail(log)}\n{host.tail(self.console)}")

    def _card(self, network: str, cable: str, mac: str) -> list[str]:
        return [
            *("-netdev", f"tap,id=of-{network},ifname={cable},script=no,downscript=no"),
            *("-device", f"virtio-net-pci,id={network},netdev=of-{network},mac={mac},romfile="),
        ]

    def _command(self) -> list[str]:
        plan = self._plan
        append = f"console=ttyS0 quiet net.ifnames=0 guest={plan.name} fabric={plan.address}"
        command = ["qemu-system-x86_64", "-no-user-config", "-nodefaults", "-display", "none", "-name", plan.name]
        # What is translated is kept in the memory of QEMU, by default in much of it.
        command += ["-machine", "pc", "-accel", "tcg,tb-size=128", "-m", str(plan.memory_mib), "-smp", "1"]
        command += ["-kernel", str(plan.image.kernel), "-initrd", str(plan.image.initrd), "-append", append]
        # What it writes goes to a file without a name, which ends with QEMU; a reboot does not end it.
        command += ["-drive", f"if=virtio,format=raw,snapshot=on,file={plan.image.disk}"]
        if plan.cargo is not None:
            command += ["-drive", f"if=virtio,format=raw,readonly=on,file={plan.cargo}"]
        command += self._card("fabric", self.cable, f"52:54:00:77:00:{plan.number:02x}")
        if plan.management:
            command += self._card("management", f"{self.name}-manage", f"52:54:00:78:00:{plan.number:02x}")
        command += ["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]
        command += ["-chardev", f"socket,id=agent,path={self._socket('agent')},server=on,wait=off"]
        command += ["-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"]
        command += ["-qmp", f"unix:{self._socket('qmp')},server=on,wait=off"]
        return [*command, "-serial", f"file:{self.console}"]
