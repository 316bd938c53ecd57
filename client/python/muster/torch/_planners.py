"""PyTorch's default planners, but values that are not tensors are said in JSON (muster.tree) where that can say them.

What it cannot say is pickled, as PyTorch's own planners do with all of them. LoadPlanner reads both; a checkpoint of
SavePlanner needs LoadPlanner.
"""

from __future__ import annotations

import io
from typing import Any

from torch.distributed.checkpoint import default_planner
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.planner import ReadItem, WriteItem, WriteItemType

from .. import tree


class SavePlanner(default_planner.DefaultSavePlanner):
    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        if write_item.type == WriteItemType.BYTE_IO:
            try:
                structure, leaves = tree.flatten(object)
            except (TypeError, ValueError, RecursionError):
                pass
            else:
                if not leaves:
                    return io.BytesIO(tree.encode(structure))
        return super().transform_object(write_item, object)


class LoadPlanner(default_planner.DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        if not value.getvalue().startswith(tree.MARK):
            super().load_bytes(read_item, value)
            return
        fqn = read_item.dest_index.fqn
        found = tree.unflatten(tree.decode(value.getvalue()), _no_leaf)
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[fqn], found)
        else:
            self.state_dict[fqn] = found


def _no_leaf(kind: str, name: str, rank: int | None) -> Any:
    raise KeyError(name)
