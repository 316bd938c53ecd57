"""A Slurm and Ceph cluster of virtual nodes on one machine, for people and for tests."""

from .cluster import Cluster, Options
from .host import ClusterError
from .wait import wait_until

__all__ = ["Cluster", "ClusterError", "Options", "wait_until"]
