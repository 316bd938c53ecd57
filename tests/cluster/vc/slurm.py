"""Slurm and MUNGE of a virtual cluster."""

import os
import pwd

from . import host
from .names import BUILD_IN_NODE, CONTROLLER, REPOSITORY, Names
from .network import Network
from .node import Daemon

PLUGIN = f"{BUILD_IN_NODE}/lib/spank_muster.so"
_PLUGSTACK = REPOSITORY / "packaging" / "slurm" / "muster.conf"
MUNGE_SOCKET = "/run/munge/munge.socket.2"
SLURMCTLD_PORT = 6817
_CONTROLLER_LOG = f"{CONTROLLER}.slurmctld.log"

MUNGED = Daemon(
    "munged",
    # As the user munge, as on every machine: munged refuses nothing then, and needs no --force.
    ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "--foreground"]
    + [f"--socket={MUNGE_SOCKET}", "--key-file=/etc/munge/munge.key", "--seed-file=/run/munge/seed"]
    + ["--pid-file=/run/munge/munged.pid", "--num-threads=2"],
)


def shipped_line() -> str:
    """The line of plugstack.conf that sites have."""
    lines = [line for line in _PLUGSTACK.read_text().splitlines() if line and not line.startswith("#")]
    if len(lines) != 1 or "spank_muster.so" not in lines[0]:
        raise host.ClusterError(f"{_PLUGSTACK} has not one line with spank_muster.so")
    return lines[0]


def plugstack_line() -> str:
    """The same with this build's plugin and command."""
    return shipped_line().replace("spank_muster.so", PLUGIN) + f" muster={BUILD_IN_NODE}/bin/muster"


def slurmctld() -> Daemon:
    return Daemon("slurmctld", ["slurmctld", "-D"], log=_CONTROLLER_LOG)


def slurmd(node: str) -> Daemon:
    return Daemon("slurmd", ["slurmd", "-D"], log=f"{node}.slurmd.log")


def settings(names: Names, network: Network, cpus: int, overrides: dict[str, str]) -> dict[str, str]:
    """slurm.conf but for its node and partition lines; overrides replace keys whatever their case."""
    values = {
        "ClusterName": names.name,
        "SlurmctldHost": f"{CONTROLLER}({network.address(CONTROLLER)})",
        "SlurmctldPort": str(SLURMCTLD_PORT),
        "SlurmUser": "slurm",
        "AuthType": "auth/munge",
        "StateSaveLocation": "/var/spool/slurmctld",
        "SlurmdSpoolDir": "/var/spool/slurmd",
        "SlurmctldPidFile": "/run/slurm/slurmctld.pid",
        "SlurmdPidFile": "/run/slurm/slurmd.pid",
        "SlurmctldLogFile": f"/var/log/{_CONTROLLER_LOG}",
        "SlurmdLogFile": "/var/log/%n.slurmd.log",
        "ProctrackType": "proctrack/cgroup",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "SlurmdParameters": "config_overrides",
        "ReturnToService": "2",
        "SlurmdTimeout": "10",
        "MessageTimeout": "10",
        "TCPTimeout": "2",
        "KillWait": "5",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        "GresTypes": "gpu",
        "SchedulerParameters": "bf_interval=5,sched_interval=5,sched_min_interval=0",
        "AccountingStorageType": "accounting_storage/none",
        "JobCompType": "jobcomp/filetxt",
        "JobCompLoc": "/var/spool/slurmctld/jobcomp.log",
        "MailProg": "/bin/true",
        "PlugStackConfig": "/etc/slurm/plugstack.conf",
    }
    known = {key.lower(): key for key in values}
    for key, value in overrides.items():
        values[known.get(key.lower(), key)] = value
    return values


def write_config(
    names: Names,
    network: Network,
    nodes: list[str],
    cpus: int,
    overrides: dict[str, str],
    plugins: list[str],
    topology: list[str],
) -> None:
    """Writes /etc/slurm and /etc/munge of all nodes."""
    etc = names.directory / "etc"
    lines = [f"{key}={value}" for key, value in settings(names, network, cpus, overrides).items()]
    for node in nodes:
        lines.append(f"NodeName={node} NodeAddr={network.address(node)} CPUs={cpus} State=UNKNOWN")
    lines.append(f"PartitionName=main Nodes={','.join(nodes)} Default=YES MaxTime=INFINITE State=UP")
    (etc / "slurm").mkdir(parents=True)
    host.write(etc / "slurm" / "slurm.conf", "\n".join(lines) + "\n")
    host.write(
        etc / "slurm" / "cgroup.conf",
        "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n",
    )
    host.write(etc / "slurm" / "gres.conf", "")
    host.write(etc / "slurm" / "plugstack.conf", "".join(line + "\n" for line in plugins))
    if topology:
        host.write(etc / "slurm" / "topology.conf", "".join(line + "\n" for line in topology))

    munge = pwd.getpwnam("munge")
    (etc / "munge").mkdir(mode=0o700)
    os.chown(etc / "munge", munge.pw_uid, munge.pw_gid)
    host.write(etc / "munge" / "munge.key", os.urandom(1024), 0o400, (munge.pw_uid, munge.pw_gid))

    slurm = pwd.getpwnam("slurm")
    state = names.directory / "slurmctld"
    state.mkdir()
    os.chown(state, slurm.pw_uid, slurm.pw_gid)
    # slurmctld opens its log after it has become the user slurm, who cannot make files there.
    host.write(names.directory / "log" / _CONTROLLER_LOG, "", 0o644, (slurm.pw_uid, slurm.pw_gid))
