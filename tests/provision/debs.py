"""Files of Debian packages, others made of them, and what of the tree is packaged as it is."""

import subprocess
import tempfile
from pathlib import Path

from vc.names import REPOSITORY


def field(deb: Path, name: str) -> str:
    done = subprocess.run(["dpkg-deb", "-f", deb, name], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def collection() -> set[str]:
    """The files of the Ansible collection, as paths below its directory."""
    tree = REPOSITORY / "provisioning"
    parts = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    return {part for part in parts if not part.startswith(("inventories/", ".")) and part not in ("try.sh", "check-inventory")}


def package(packages: Path, name: str) -> Path:
    """The one file of a package in a directory of them."""
    found = [deb for deb in packages.glob(f"{name}_*.deb") if field(deb, "Package") == name]
    if len(found) != 1:
        raise AssertionError(f"{packages} has {len(found)} files of the package {name}: packaging/build-deb makes them")
    return found[0]


def stand_in(
    directory: Path, name: str, version: str, depends: str = "libc6", conflicts: str = "", files: dict[str, bytes] | None = None
) -> None:
    """A package with these files, by their paths."""
    with tempfile.TemporaryDirectory() as temporary:
        control = Path(temporary) / "DEBIAN" / "control"
        control.parent.mkdir()
        control.write_text(
            f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nDepends: {depends}\n"
            + (f"Conflicts: {conflicts}\n" if conflicts else "")
            + "Maintainer: nobody <nobody@muster.invalid>\nDescription: stands in for another one\n"
        )
        for path, content in (files or {}).items():
            file = Path(temporary) / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        subprocess.run(["dpkg-deb", "--root-owner-group", "-b", temporary, directory], check=True, stdout=subprocess.DEVNULL)


def repack(deb: Path, directory: Path, changes: dict[str, str], shipped: str = "") -> None:
    """The same package with other words in what it says of itself, and with more text in each of its conffiles."""
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "tree"
        subprocess.run(["dpkg-deb", "-R", deb, tree], check=True)
        control = tree / "DEBIAN" / "control"
        text = control.read_text()
        for old, new in changes.items():
            text = text.replace(old, new)
        control.write_text(text)
        conffiles = control.with_name("conffiles")
        for name in conffiles.read_text().split() if shipped and conffiles.exists() else []:
            with open(tree / name.lstrip("/"), "a", encoding="utf-8") as file:
                file.write(shipped)
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, directory], check=True, stdout=subprocess.DEVNULL)
