"""A site's own Slurm and MUNGE: Debian's packages and units, configured as a site does it, without Muster."""

import os
from pathlib import Path

from vc import host
from vc.network import Network

from .machine import Machine

CONTROLLER = "ctl"
# Both have libibverbs, as with any RDMA network: its package makes a group that no purge removes.
ROLES = {
    "controller": ["munge", "slurmctld", "slurm-client", "libibverbs1"],
    "node": ["munge", "slurmd", "slurm-client", "libibverbs1"],
}
# Both, what else the playbooks install on blank machines, and what tests do.
PACKAGES = ["munge", "slurmctld", "slurmd", "slurm-client", "libibverbs1", "chrony", "ceph-mon", "ceph-mgr", "ceph-osd", "libfaketime"]
PACKAGES += ["mariadb-server", "slurmdbd", "prometheus", "prometheus-node-exporter", "rdma-core", "ethtool", "nftables"]

_SLURM_CONF = """\
ClusterName={cluster}
SlurmctldHost={controller}({address})
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=30
MessageTimeout=10
TCPTimeout=2
KillWait=5
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=500
SchedulerParameters=bf_interval=5,sched_interval=5,sched_min_interval=0
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MailProg=/bin/true
"""
_CGROUP_CONF = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace=yes
"""
def role(name: str) -> str:
    return "controller" if name == CONTROLLER else "node"


def write_site(directory: Path, cluster: str, network: Network, nodes: list[str]) -> None:
    """Writes what all machines of the site have the same of."""
    directory.mkdir()
    lines = [f"NodeName={node} NodeAddr={network.address(node)} CPUs=4 RealMemory=4000 State=UNKNOWN" for node in nodes]
    lines.append(f"PartitionName=main Nodes={','.join(nodes)} Default=YES MaxTime=INFINITE State=UP")
    settings = _SLURM_CONF.format(cluster=cluster, controller=CONTROLLER, address=network.address(CONTROLLER))
    host.write(directory / "slurm.conf", settings + "".join(line + "\n" for line in lines))
    host.write(directory / "munge.key", os.urandom(1024), 0o400)


def install(machine: Machine, site: Path) -> None:
    """Configures Slurm and MUNGE on a machine's disk."""
    machine.write("/etc/slurm/slurm.conf", (site / "slurm.conf").read_text())
    machine.write("/etc/slurm/cgroup.conf", _CGROUP_CONF)
    machine.write("/etc/munge/munge.key", (site / "munge.key").read_bytes(), 0o400)
    directory = (machine.root / "etc" / "munge").stat()
    os.chown(machine.root / "etc" / "munge" / "munge.key", directory.st_uid, directory.st_gid)
