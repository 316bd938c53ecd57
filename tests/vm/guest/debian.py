"""A guest with systemd and a site's packages, as an operator's host is before a playbook is run."""

import shutil
from pathlib import Path

from rack import images as rack_images
from rack.debian import make_by_script

from . import images
from .images import Image

_HERE = Path(__file__).resolve().parent
# What the playbook would install: under QEMU dpkg takes minutes.
_PACKAGES = ["chrony", "ethtool", "kmod", "munge", "slurmctld", "slurmd", "slurm-client", "rdma-core", "ibverbs-utils", "qemu-guest-agent"]


def disk(directory: Path, debs: Path, files: dict[str, tuple[str, int]]) -> Image:
    """The image of one guest, in a directory, with Muster's packages of `debs`. `files`: more of its files, each with its mode."""
    small = images.fabric()
    root = rack_images.root(images.SUITE)
    site = rack_images.packages(root, images.SUITE, _PACKAGES)
    needed = rack_images.needed_by(root, images.SUITE, debs)
    added = directory / "added"
    for path, (text, mode) in files.items():
        file = added / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
    (added / "root" / ".ssh").chmod(0o700)
    made = directory / "debian.ext4"
    parts = [root, site, needed, debs, small.disk, added]
    make_by_script(_HERE / "debian.sh", made, *map(str, parts), *_PACKAGES, "muster")
    shutil.rmtree(added)
    return Image(small.kernel, small.initrd, made)


def host_key() -> str:
    """The public key with which it proves itself to ssh: kind and key."""
    return " ".join(rack_images.file_of(rack_images.root(images.SUITE), "/etc/ssh/ssh_host_ed25519_key.pub").decode().split()[:2])
