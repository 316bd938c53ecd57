"""The packages that machines can install: served over HTTP on the host's address in the rack, which has no other way out."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from vc import host
from vc.cgroups import Cgroups
from vc.host import ClusterError
from vc.names import Names
from vc.network import Network

from .cgroups import HOST, inside

_PORT = 80  # the address is the rack's own


class Mirror:
    def __init__(self, names: Names, network: Network, cgroups: Cgroups) -> None:
        self._directory = names.directory / "mirror"
        self._log = names.directory / "log" / "mirror.log"
        self._network = network
        self._cgroups = cgroups
        self._process: subprocess.Popen[str] | None = None
        self._published = 0  # when, in seconds since the epoch

    @property
    def url(self) -> str:
        return f"http://{self._network.subnet}.254"

    @property
    def source(self) -> str:
        """The line of a sources.list with Muster's own packages."""
        return f"deb [trusted=yes] {self.url}/muster ./"

    def sources(self) -> str:
        """The sources.list of the machines: Debian's packages."""
        parts = [part for part in ("site", "needed") if (self._directory / part).exists()]
        return "".join(f"deb [trusted=yes] {self.url}/{part} ./\n" for part in parts)

    def start(self, site: Path, needed: Path | None, debs: Path | None) -> None:
        """Serves repositories, and a directory of .deb files as one more."""
        self._directory.mkdir()
        (self._directory / "site").symlink_to(site)
        if needed is not None:
            (self._directory / "needed").symlink_to(needed)
        if debs is not None:
            self.publish(debs)
        server = [sys.executable or "/usr/bin/python3", "-I", "-u", "-m", "http.server", "--protocol=HTTP/1.1"]
        server += ["--bind", f"{self._network.subnet}.254", "--directory", str(self._directory), str(_PORT)]
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                inside(self._cgroups, HOST, server),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd="/",
                start_new_session=True,
            )
        assert self._process.stdout is not None
        if not self._process.stdout.readline().startswith("Serving HTTP"):
            raise ClusterError(f"the server of packages has ended; {self._log}:\n{host.tail(self._log)}")

    def publish(self, debs: Path) -> None:
        """Makes a directory of .deb files Muster's repository, in place of what it was."""
        repository = self._directory / "muster"
        shutil.rmtree(repository, ignore_errors=True)
        repository.mkdir()
        for deb in debs.glob("*.deb"):
            shutil.copy(deb, repository)
        scan = ["dpkg-scanpackages", "--multiversion", "."]
        done = subprocess.run(scan, cwd=repository, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not done.stdout:
            raise ClusterError(f"{debs} has no packages: {done.stderr.strip()}")
        index = repository / "Packages"
        host.write(index, done.stdout)
        # HTTP knows whole seconds, and the clock may be set back: apt must see that this one is newer.
        self._published = max(self._published + 1, int(time.time()))
        os.utime(index, (self._published, self._published))

    def reap(self) -> None:
        """Collects its exit status, once its cgroup has been killed."""
        if self._process is not None:
            self._process.wait()
