"""The filter `osds_of`: which OSDs of a host are up, or down."""

from __future__ import annotations

import json
from typing import Any


def osds_of(said: str, host: str, status: str) -> list[int]:
    """said: what `ceph osd tree --format=json` has said; nothing, and there are none."""
    nodes = json.loads(said)["nodes"] if said else []
    [children] = [node["children"] for node in nodes if node["type"] == "host" and node["name"] == host] or [[]]
    return sorted(node["id"] for node in nodes if node["id"] in children and node.get("status") == status)


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"osds_of": osds_of}
