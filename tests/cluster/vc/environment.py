"""A virtual environment of a user of the virtual cluster, with the Python package and the hook of warm starts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .names import BUILD_IN_NODE, REPOSITORY
from .users import USERS

NAME = "environment"


def make(homes: Path, user: str, modules: dict[str, str] | None = None, frameworks: bool = False) -> str:
    """Makes it in the user's home below `homes`, with modules of such texts, and with the packages of tests/frameworks if wanted.
    Gives its Python, as the nodes see it."""
    home = homes / user / NAME
    packages = home / f"lib/python3.{sys.version_info.minor}/site-packages"
    packages.mkdir(parents=True)
    (home / "bin").mkdir()
    (home / "bin" / "python3").symlink_to("/usr/bin/python3")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    for name in ("muster-warm.pth", "muster_warm.py"):
        shutil.copy(REPOSITORY / "client/python" / name, packages)
    (packages / "muster").symlink_to(f"{BUILD_IN_NODE}/python/muster")
    for name, text in (modules or {}).items():
        (packages / f"{name}.py").write_text(text)
    if frameworks:
        said = subprocess.run([REPOSITORY / "tests/frameworks/python", "--where"], stdout=subprocess.PIPE, text=True, check=True)
        (found,) = Path(said.stdout.strip()).parent.parent.glob("lib/python3.*/site-packages")
        (packages / "frameworks.pth").write_text(f"{found}\n")
    for path in (home, *home.rglob("*")):
        os.chown(path, USERS[user], USERS[user], follow_symlinks=False)
    return f"/home/{user}/{NAME}/bin/python3"
