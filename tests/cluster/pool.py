"""Muster's pool on a test's cluster."""

import harness
from vc import Cluster


def space_of(cluster: Cluster, user: str) -> str:
    """Where a user's objects are: the cluster's name, which is Slurm's too, and the user's number."""
    return f"{cluster.names.name}.u{harness.USERS[user]}"


class Rados:
    """The objects of a user's namespace, as an administrator reaches them."""

    def __init__(self, cluster: Cluster, user: str) -> None:
        self._cluster = cluster
        self._space = space_of(cluster, user)

    def run(self, *words: str) -> str:
        done = self._cluster.exec("ctl", ["timeout", "30", "rados", "-p", "muster", "-N", self._space, *words])
        if done.returncode != 0:
            raise AssertionError(f"rados {' '.join(words)}: {done.stderr}")
        return done.stdout

    def list(self, prefix: str) -> list[str]:
        return sorted(name for name in self.run("ls").splitlines() if name.startswith(prefix))

    def get(self, name: str) -> bytes:
        self.run("get", name, "/tmp/rados-object")
        return (self._cluster.directory / "tmp" / "rados-object").read_bytes()

    def put(self, name: str, data: bytes) -> None:
        (self._cluster.directory / "tmp" / "rados-object").write_bytes(data)
        self.run("put", name, "/tmp/rados-object")

    def flip(self, name: str) -> None:
        data = bytearray(self.get(name))
        data[len(data) // 2] ^= 1
        self.put(name, bytes(data))
