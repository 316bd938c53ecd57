"""Every name that a cluster uses on the host, derived from its own name and directory."""

import hashlib
import os
import re
from pathlib import Path

from .host import ClusterError

CONTROLLER = "ctl"
CEPH_NODE = "ceph"

# The files of the project: this package lies in REPOSITORY/tests/cluster/vc.
REPOSITORY = Path(__file__).resolve().parents[3]

# Where every node sees the repository and the build, whatever directory they lie in on the host.
SOURCE_IN_NODE = "/opt/muster-src"
BUILD_IN_NODE = "/opt/muster-build"
# A Python that has today's PyTorch, in a node.
FRAMEWORKS_PYTHON = f"{SOURCE_IN_NODE}/tests/frameworks/python"


class Names:
    """Two clusters whose kinds, names or parent directories differ share none of these."""

    def __init__(self, name: str, kind: str = "vc") -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", name):
            raise ClusterError(f"cluster name '{name}': use 1 to 31 of a-z, 0-9 and -")
        self.name = name
        parent = Path(os.environ.get("MUSTER_VC_DIR", "/tmp")).resolve()
        self.directory = parent / f"muster-{kind}-{name}"
        self.id = hashlib.sha256(str(self.directory).encode()).hexdigest()[:6]
        self.bridge = f"{kind}{self.id}"
        self.cgroup = f"muster-{kind}-{name}-{self.id}"

    def veth(self, node: str) -> str:
        """The host's end of a node's cable: at most the 15 characters that Linux allows."""
        short = node if len(node) <= 4 else hashlib.sha256(node.encode()).hexdigest()[:4]
        return f"{self.bridge}-{short}"
