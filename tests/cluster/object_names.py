"""What the names of a gang's data objects say (docs/formats.md, section 3)."""

import re


def step_and_generation(name: str) -> tuple[int, int]:
    """Of a data object."""
    match = re.match(r"data/[^/]+/(\d+)\.\d+\.(\d+)/", name)
    if match is None:
        raise AssertionError(f"{name} is no name of a data object")
    return int(match[1]), int(match[2])


def rank_and_chunk(name: str) -> tuple[int, int] | None:
    """Of a shard's object; None for a manifest."""
    match = re.search(r"/(\d+)(?:-[0-9a-f]{8})?\.(\d+)$", name)
    if match is None and not name.endswith("/manifest"):
        raise AssertionError(f"{name} is no name of a data object")
    return (int(match[1]), int(match[2])) if match else None
