"""The file systems of a rack's machines, and the packages that a site's mirror has: from the host's own mirror of Debian."""

import subprocess
from pathlib import Path

from vc.host import ClusterError, run

from .cache import cached

_HERE = Path(__file__).resolve().parent
_ROOT_PACKAGES = (
    "systemd-sysv",
    "dbus",
    "udev",
    "openssh-server",
    "python3",
    "python3-apt",
    "nftables",
    "iproute2",
    "procps",
)
BOOKWORM = "bookworm"
TRAINER = 20001  # the user id of the ordinary user
# A mirror may be a snapshot; of all suites sid's says soonest that it is out of date.
_SOURCE_OPTIONS = "signed-by=/usr/share/keyrings/debian-archive-keyring.gpg check-valid-until=no"
# Everything that is made has a minute per package at most on a slow line; this is for one that stands still.
_TIMEOUT_S = 1200.0


def _sources(suite: str) -> str:
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


def _make(script: str, path: Path, *arguments: str) -> None:
    """Runs one of the scripts in namespaces of its own: its processes and mounts end with it, whatever happens."""
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = [*apart, str(_HERE / script), str(path), *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{script} is not done after {_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        end = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise ClusterError(f"{script} failed ({done.returncode}):\n{end}")


def root(suite: str) -> Path:
    """The archive of the root file system that all machines have."""
    packages = ",".join(_ROOT_PACKAGES)

    def make(path: Path) -> None:
        sources = path.with_name("sources.list")
        sources.write_text(_sources(suite))
        _make("root.sh", path, str(sources), suite, packages)

    return cached("root.tar.zst", [(_HERE / "root.sh").read_bytes(), suite.encode(), packages.encode()], make)


def build_root(suite: str, control: Path) -> Path:
    """The root file system, a directory, with what a debian/control needs to build packages without their tests."""

    def make(path: Path) -> None:
        sources = path.with_name("sources.list")
        sources.write_text(_sources(suite))
        _make("build_root.sh", path, str(sources), suite, str(control))

    needed = control.read_text().partition("\n\n")[0]
    return cached(f"build-{suite}", [(_HERE / "build_root.sh").read_bytes(), needed.encode()], make)


def _status(image: Path) -> bytes:
    """dpkg's status file in an archive."""
    command = ["tar", "--extract", "--zstd", "--to-stdout", f"--file={image}", "./var/lib/dpkg/status"]
    return subprocess.run(command, capture_output=True, check=True).stdout


def _repository(kind: str, image: Path, suite: str, wanted: list[str], key: list[bytes]) -> Path:
    """An apt repository of these packages, or of what these .deb files need, without what an image has. `key`: what it is made of."""

    def make(path: Path) -> None:
        path.mkdir()
        sources = path.with_name("sources.list")
        sources.write_text(_sources(suite))
        status = path.with_name("status")
        status.write_bytes(_status(image))
        _make("packages.sh", path, str(sources), str(status), *wanted)

    return cached(kind, [(_HERE / "packages.sh").read_bytes(), image.name.encode(), *key], make)


def packages(image: Path, suite: str, wanted: list[str]) -> Path:
    """An apt repository of these packages and all that they need beyond an image."""
    return _repository("packages", image, suite, wanted, [" ".join(wanted).encode()])


def needed_by(image: Path, suite: str, debs: Path) -> Path:
    """An apt repository of what a directory's .deb files need beyond an image, without those files themselves."""
    files = sorted(str(deb) for deb in debs.glob("*.deb"))
    fields = [run(["dpkg-deb", "--field", file, "Package", "Depends", "Pre-Depends"]) for file in files]
    return _repository("needed", image, suite, files, [field.encode() for field in fields])


def layer(below: Path, repository: Path, names: list[str]) -> Path:
    """The archive of what a machine has above the root: these packages, from that repository."""

    def make(path: Path) -> None:
        _make("layer.sh", path, str(below), str(repository), *names)

    script = (_HERE / "layer.sh").read_bytes()
    return cached("layer.tar.zst", [script, below.name.encode(), repository.name.encode(), " ".join(names).encode()], make)
