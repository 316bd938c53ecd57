"""Runs on the controller: the bytes of all objects of a pool whose names begin with a prefix, in any namespace."""

import sys

import rados

pool, prefix = sys.argv[1:]
with rados.Rados(conffile="/etc/ceph/ceph.conf", name="client.admin") as cluster:
    with cluster.open_ioctx(pool) as everywhere:
        everywhere.set_namespace(rados.LIBRADOS_ALL_NSPACES)
        found = [(item.nspace, item.key) for item in everywhere.list_objects() if item.key.startswith(prefix)]
    total = 0
    with cluster.open_ioctx(pool) as objects:
        for namespace, key in found:
            objects.set_namespace(namespace)
            total += objects.stat(key)[0]
print(total)
