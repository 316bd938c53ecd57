"""The commands to a new monitor. Runs inside the node `ceph`, because the `ceph` command is slow to start.

    ceph_setup.py create UUID...   registers an OSD for each UUID, creates the pool, of which each has a copy
    ceph_setup.py wait OSDS        waits until the pool takes writes and a manager is active
"""

import json
import sys
import time
from typing import Any

import rados

POOL = "muster"
PG_NUM = 32
TIMEOUT_S = 40


def command(cluster: rados.Rados, prefix: str, data: str = "", **arguments: Any) -> Any:
    """One monitor command; returns its JSON output, or None where it has none."""
    request = json.dumps({"prefix": prefix, "format": "json", **arguments})
    code, output, error = cluster.mon_command(request, data.encode())
    if code != 0:
        sys.exit(f"ceph {prefix}: {error} ({code})")
    return json.loads(output) if output.strip() else None


def create(cluster: rados.Rados, uuids: list[str]) -> None:
    for number, uuid in enumerate(uuids):
        command(cluster, "osd new", uuid=uuid, id=number)
    command(cluster, "osd pool create", pool=POOL, pg_num=PG_NUM, pgp_num=PG_NUM, size=len(uuids))
    command(cluster, "osd pool set", pool=POOL, var="min_size", val=str((len(uuids) + 1) // 2))
    command(cluster, "osd pool application enable", pool=POOL, app=POOL)
    # The manager complains of the modules that ceph.conf keeps it from loading.
    command(cluster, "health mute", code="MGR_MODULE_ERROR", sticky=True)


def wait(cluster: rados.Rados, osds: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not command(cluster, "mgr stat")["available"]:
        if time.monotonic() > deadline:
            sys.exit("the manager does not become active")
        time.sleep(0.05)
    while command(cluster, "osd stat")["num_up_osds"] < osds:
        if time.monotonic() > deadline:
            sys.exit("the OSDs do not come up")
        time.sleep(0.05)
    with cluster.open_ioctx(POOL) as pool:
        pool.write_full("vcluster-ready", b"ready")
        pool.remove_object("vcluster-ready")


def main() -> None:
    options = {"rados_mon_op_timeout": str(TIMEOUT_S), "rados_osd_op_timeout": str(TIMEOUT_S)}
    with rados.Rados(conffile="/etc/ceph/ceph.conf", name="client.admin", conf=options) as cluster:
        if sys.argv[1] == "create":
            create(cluster, sys.argv[2:])
        else:
            wait(cluster, int(sys.argv[2]))


if __name__ == "__main__":
    main()
