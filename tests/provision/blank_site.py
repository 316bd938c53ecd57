"""Blank machines, and the operator's input with which site.yml makes them a cluster."""

from pathlib import Path
from typing import Any

from rack import ClusterError, Options, Play, Rack

NODES = ["n1", "n2", "n3"]
ACCOUNTS: dict[str, Any] = {"physics": {"users": {"trainer": {}, "analyst": {}}}}
METRICS_PORT = 305
# A container cannot lock more memory than its host lets it.
STORE = {"store": "rados:muster", "memlock_limit": "8MiB", "metrics_port": METRICS_PORT, "metrics_address": "0.0.0.0"}
# A node is not lost because this machine is busy.
PATIENT = {"lease": "20s", "silence": "30s"}
GROUPS = {
    "controller": ["ctl"],
    "login": ["login1"],
    "compute": NODES,
    "database": ["db"],
    "monitoring": ["db"],
    "mon": ["ceph1"],
    "osd": ["ceph1"],
}


def options(suite: str, packages: Path) -> Options:
    others = sorted({name for names in GROUPS.values() for name in names} - {"ctl", *NODES})
    return Options(suite=suite, nodes=len(NODES), slurm=False, others=tuple(others), debs=str(packages.resolve()))


def variables(rack: Rack) -> dict[str, Any]:
    """The operator's file."""
    return {
        "base_apt_sources": rack.mirror.sources().splitlines(),
        "base_users": {"analyst": {"uid": 20002}},
        "muster_apt_source": rack.mirror.source,
        "muster_compute_packages": ["muster", "python3-muster", "muster-train"],
        "muster_config": STORE,
        "base_memlock": "",
        "site_management_network": f"{rack.network.subnet}.0/24",
        "base_firewall": True,
        "base_firewall_rules": ["tcp dport 9090 accept"],
        # The machines' own network stands in for the fabric; none of its drivers shows more than the MTU.
        "site_cluster_network": f"{rack.network.subnet}.0/24",
        "site_cluster_mtu": 1400,
        "roce_firmware_packages": [],
        # A container has no disks, and the host's may be rather full.
        "ceph_osd_devices": [{"path": "/var/lib/ceph/osd.img", "size": "4G"}],
        "ceph_settings": {"mon": {"mon_data_avail_warn": 2, "mon_data_avail_crit": 1}, "global": {"mon_target_pg_per_osd": 32}},
        "mariadb_buffer_pool_size": "64M",
        "monitoring_interval": "5s",
        # Beside the file that node exporter reads.
        "monitoring_scrape_configs": [{"job_name": "muster", "static_configs": [{"targets": [f"{node}:{METRICS_PORT}" for node in NODES]}]}],
        "slurm_controller_enforce": ["associations", "limits", "qos"],
        "slurm_tenancy_accounts": ACCOUNTS,
        # A container says that it has the host's processors and memory.
        "slurm_node_parameters": {"CPUs": 4, "Boards": 1, "SocketsPerBoard": 1, "CoresPerSocket": 4, "ThreadsPerCore": 1, "RealMemory": 4000},
        "slurm_controller_settings": {"SlurmdParameters": "config_overrides", "DefMemPerCPU": 500, "TaskPlugin": "task/cgroup"},
        "slurm_controller_cgroup_settings": {"ConstrainCores": "no", "ConstrainDevices": "no"},
    }


def play(rack: Rack, name: str, *arguments: str) -> Play:
    """One that must end well."""
    done = rack.playbooks.play(name, *arguments)
    if done.code != 0:
        raise ClusterError(f"the playbook {name} has failed ({done.code}):\n{done.output}")
    return done
