"""What guests boot from, made once from Debian's packages and kept; and what a run adds: programs of the build."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rack.cache import cached
from rack.debian import make_by_script, sources_list
from vc.host import ClusterError, run

_HERE = Path(__file__).resolve().parent
SUITE = "bookworm"
# Of a guest that has an RDMA device and no systemd.
_PACKAGES = (
    "busybox-static",
    "ibverbs-providers",
    "ibverbs-utils",
    "iperf3",
    "iproute2",
    "iputils-ping",
    "kmod",
    "libnl-3-200",
    "perftest",
    "qemu-guest-agent",
    "rdmacm-utils",
)


@dataclass(frozen=True)
class Image:
    """What a guest boots from."""

    kernel: Path  # an ELF file
    initrd: Path
    disk: Path  # raw, never written to


def fabric() -> Image:
    """The small guest's."""
    packages = ",".join(_PACKAGES)
    parts = [_HERE / "image.sh", _HERE / "vmlinux.py", *sorted((_HERE / "files").iterdir())]

    def make(path: Path) -> None:
        sources = path.with_name("sources.list")
        sources.write_text(sources_list(SUITE))
        make_by_script(_HERE / "image.sh", path, str(sources), SUITE, packages)

    directory = cached("guest-fabric", [packages.encode(), *(part.read_bytes() for part in parts)], make)
    return Image(directory / "vmlinux", directory / "initrd", directory / "root.ext4")


def _libraries(program: Path) -> list[Path]:
    """The shared libraries that a program is loaded with on this machine."""
    found = []
    for line in run(["ldd", str(program)]).splitlines():
        path = line.partition("=>")[2].split()
        if path[:1] == ["not"]:
            raise ClusterError(f"{program}: {line.strip()}")
        if path and path[0].startswith("/"):
            found.append(Path(path[0]))
    return found


def cargo(directory: Path, programs: list[Path]) -> Path:
    """A disk with programs in `bin` and their libraries in `lib`. A guest's own libraries come before these."""
    tree = directory / "cargo"
    for part in ("bin", "lib"):
        (tree / part).mkdir(parents=True)
    for program in programs:
        shutil.copy(program, tree / "bin")
        for library in _libraries(program):
            shutil.copy(library, tree / "lib")
    size = sum(file.stat().st_size for file in tree.rglob("*")) // 2**20
    disk = directory / "cargo.ext4"
    make = ["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", str(tree), str(disk), f"{size * 5 // 4 + 16}M"]
    done = subprocess.run(make, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"mke2fs failed ({done.returncode}): {done.stderr.strip()}")
    shutil.rmtree(tree)
    return disk
