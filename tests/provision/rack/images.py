"""The file systems of a rack's machines, and the packages that a site's mirror has: from the host's own mirror of Debian."""

import subprocess
from pathlib import Path

from vc.host import run

from .cache import cached
from .debian import make_by_script, sources_list

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


def root(suite: str) -> Path:
    """The archive of the root file system that all machines have."""
    packages = ",".join(_ROOT_PACKAGES)

    def make(path: Path) -> None:
        sources = path.with_name("sources.list")
        sources.write_text(sources_list(suite))
        make_by_script(_HERE / "root.sh", path, str(sources), suite, packages)

    return cached("root.tar.zst", [(_HERE / "root.sh").read_bytes(), suite.encode(), packages.encode()], make)


def build_root(suite: str, control: Path) -> Path:
    """The root file system, a directory, with what a debian/control needs to build packages without their tests."""

    def make(path: Path) -> None:
        sources = path.with_name("sources.list")
        sources.write_text(sources_list(suite))
        make_by_script(_HERE / "build_root.sh", path, str(sources), suite, str(control))

    needed = control.read_text().partition("\n\n")[0]
    return cached(f"build-{suite}", [(_HERE / "build_root.sh").read_bytes(), needed.encode()], make)


def file_of(image: Path, path: str) -> bytes:
    """A file in the archive of a file system."""
    command = ["tar", "--extract", "--zstd", "--to-stdout", f"--file={image}", f".{path}"]
    return subprocess.run(command, capture_output=True, check=True).stdout


def _repository(kind: str, image: Path, suite: str, wanted: list[str], key: list[bytes]) -> Path:
    """An apt repository of these packages, or of what these .deb files need, without what an image has. `key`: what it is made of."""

    def make(path: Path) -> None:
        path.mkdir()
        sources = path.with_name("sources.list")
        sources.write_text(sources_list(suite))
        status = path.with_name("status")
        status.write_bytes(file_of(image, "/var/lib/dpkg/status"))
        make_by_script(_HERE / "packages.sh", path, str(sources), str(status), *wanted)

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
        make_by_script(_HERE / "layer.sh", path, str(below), str(repository), *names)

    script = (_HERE / "layer.sh").read_bytes()
    return cached("layer.tar.zst", [script, below.name.encode(), repository.name.encode(), " ".join(names).encode()], make)
