"""`rados bench` in the cluster's pool, from a node."""

import re

from vc import Cluster, ClusterError

MIB = 1 << 20
RADOS = ["rados", "-n", "client.muster", "-p", "muster", "-N", "bench"]


def write_and_read(cluster: Cluster, node: str, mib: int, object_bytes: int, depth: int) -> tuple[float, float]:
    """MiB/s of writing so many MiB in objects of `object_bytes`, and of reading them in the same order."""

    def rate(*words: str) -> float:
        done = cluster.exec(node, [*RADOS, "bench", "600", *words, "-t", str(depth)], timeout=900)
        told = re.search(r"Bandwidth \(MB/sec\): +([\d.]+)", done.stdout)
        if done.returncode != 0 or not told:
            raise ClusterError(f"rados bench {words[0]} failed: {done.stderr[-2000:]}{done.stdout[-2000:]}")
        return float(told[1])

    objects = str(mib * MIB // object_bytes)
    write = rate("write", "-b", str(object_bytes), "--max-objects", objects, "--no-cleanup")
    read = rate("seq")
    cluster.exec(node, [*RADOS, "cleanup"], timeout=300)
    return write, read
