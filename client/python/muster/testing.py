"""A Gang without Muster, for a laptop and for tests: steps, saves and restores as under Muster, in files of a directory.

    from muster.testing import ask, local_gang

    def test_it_saves_before_it_leaves(tmp_path):
        gang = local_gang(tmp_path)
        ask(gang, save=True, exit=True)
        train(gang)
        assert local_gang(tmp_path).restore_step == 1

Needs no libmuster, and neither Slurm nor Ceph. muster.init(fallback="local") gives the same to a program.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from . import Gang
from ._local import Local

__all__ = ["ask", "local_gang"]


def local_gang(directory: str | os.PathLike[str], *, rank: int = 0, world_size: int = 1) -> Gang:
    """A member of a gang whose checkpoints are in `directory`; each of its members has a Gang of its own, in any process.

    It starts from the newest checkpoint there, as a gang does that was started again, and as a gang of another size may. A
    save is in its file when it returns; the newest three checkpoints stay. `muster checkpoint import` takes the files to a
    cluster. Nobody watches steps here, nothing is started again, and flipped bits in a file are not found. One run at a time
    uses a directory, and its members have the same MASTER_ADDR and MASTER_PORT, if any.

    ValueError: there is no such rank. StoreError, later: the directory takes no file.
    """
    return Gang(Local(Path(directory), rank, world_size))


def fallback_gang(directory: str | os.PathLike[str] | None) -> Gang:
    """What muster.init gives outside of a gang."""
    rank, world_size = (os.environ.get(name, default) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    if not rank.isdecimal() or not world_size.isdecimal():
        raise ValueError(f"RANK and WORLD_SIZE are numbers, not {rank!r} and {world_size!r}")
    if directory is not None:
        return local_gang(directory, rank=int(rank), world_size=int(world_size))
    if int(world_size) > 1:
        raise ValueError(f"this is one of {world_size} members: give init a directory that they all see")
    own = tempfile.TemporaryDirectory(prefix="muster-local-")
    return Gang(Local(Path(own.name), int(rank), int(world_size), own.cleanup))


def ask(gang: Gang, *, save: bool = False, exit: bool = False, reason: str = "a test asks") -> None:
    """Has `gang` answer so at the next step that it enters, as a drain (save) or the end of the job's time (both) would.

    ValueError: it is none of local_gang. In a gang of several members ask each of them, before one enters the step.
    """
    if not isinstance(gang._library, Local):
        raise ValueError("this Gang is Muster's: ask one of local_gang")
    gang._library.ask(save, exit, reason)
