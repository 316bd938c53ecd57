"""What is below a directory, and how it differs from what was there before."""

import hashlib
import os
import stat
from pathlib import Path


class Tree(dict[str, str]):
    """Each path below a directory, with its kind, mode, owner and contents in one text."""

    @classmethod
    def of(cls, directory: Path) -> "Tree":
        tree = cls()
        for parent, directories, files in os.walk(directory):
            for name in directories + files:
                path = Path(parent, name)
                info = path.lstat()
                if stat.S_ISLNK(info.st_mode):
                    contents = os.readlink(path)
                elif stat.S_ISREG(info.st_mode):
                    contents = hashlib.sha256(path.read_bytes()).hexdigest()
                else:
                    contents = ""
                text = f"{stat.filemode(info.st_mode)} {info.st_uid}:{info.st_gid} {contents}"
                tree[str(path.relative_to(directory))] = text.strip()
        return tree


def compare(before: Tree, after: Tree) -> dict[str, str]:
    """The paths that differ, with what has happened to them."""
    found = {path: "added" for path in after.keys() - before.keys()}
    found |= {path: "removed" for path in before.keys() - after.keys()}
    found |= {path: f"{before[path]} became {after[path]}" for path in before.keys() & after.keys() if before[path] != after[path]}
    return dict(sorted(found.items()))
