"""PyTorch's default planners, but values that are not tensors are said in JSON (muster.tree) where that can say them.

What it cannot say is pickled, as PyTorch's own planners do with all of them. LoadPlanner reads both; a checkpoint of
SavePlanner needs LoadPlanner.
"""

import io
from importlib import import_module
from typing import Any

from .. import tree
from ..errors import CORRUPT, Corrupt
from . import _torch_dcp as of

_MARK = b"muster-tree/1\n"


def _no_leaf(name: str) -> tree.Entry:
    raise KeyError(name)


class SavePlanner(of.default_planner.DefaultSavePlanner):  # type: ignore[misc,name-defined]
    def transform_object(self, write_item: Any, object: Any) -> Any:
        if write_item.type == of.planner.WriteItemType.BYTE_IO:
            try:
                structure, leaves = tree.flatten(object)
            except (TypeError, ValueError, RecursionError):
                pass
            else:
                if not leaves:
                    return io.BytesIO(_MARK + structure)
        return super().transform_object(write_item, object)


class LoadPlanner(of.default_planner.DefaultLoadPlanner):  # type: ignore[misc,name-defined]
    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        content = value.getvalue()
        if not content.startswith(_MARK):
            super().load_bytes(read_item, value)
            return
        fqn = read_item.dest_index.fqn
        try:
            found = tree.unflatten_text(content[len(_MARK) :], _no_leaf)
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as why:
            raise Corrupt(CORRUPT, f"{fqn!r} does not read: {why!r}") from why
        if getattr(self, "flatten_state_dict", False):  # PyTorch 2
            set_element = import_module(of.dcp.__name__ + "._traverse").set_element
            set_element(self.original_state_dict, self.mappings[fqn], found)
        else:
            self.state_dict[fqn] = found
