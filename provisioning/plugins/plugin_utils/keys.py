"""The groups of hosts and the keys that an operator may write, each with its kind, its default, and whose it is.

The one table has two sources: the argument_specs of every role, for what that role reads, and site_keys.yml, for what several
roles read. A new role's keys are known here as soon as it has its argument_specs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

_COLLECTION = Path(__file__).resolve().parents[2]

# The groups that the playbooks know, with what their hosts do.
GROUPS = {
    "compute": "those that run tasks of gangs, and get musterd",
    "controller": "slurmctld's; one host",
    "login": "from which users submit",
    "database": "MariaDB's and slurmdbd's; one host",
    "mon": "Ceph's monitors and managers; an odd number",
    "osd": "those with Ceph's disks",
    "monitoring": "Prometheus'",
}

# The groups whose hosts run a role, and so need what it requires. What other roles require is left to Ansible.
_SLURM = ("compute", "controller", "login")
ROLES = {
    "base": tuple(GROUPS),
    "munge": (*_SLURM, "database"),
    "mariadb": ("database",),
    "slurmdbd": ("database",),
    "slurm_controller": ("controller",),
    "slurm_tenancy": ("controller",),
    "slurm_node": ("compute",),
    "nvidia": ("compute",),
    "login": ("login",),
    "ceph": ("mon", "osd", "compute"),
    "monitoring": ("monitoring",),
    "muster": _SLURM,
    "roce": ("compute",),
}

# What an argument_specs calls a type is called this here, where the messages say it.
_KINDS = {"str": "text", "path": "text", "bool": "flag", "int": "number", "list": "list", "dict": "mapping"}


@dataclass(frozen=True)
class Key:
    name: str
    kind: str  # text, flag, number, list, mapping; and of site_keys.yml also network, address, mtu
    default: Any
    owner: str  # the role that reads it; "site": several
    about: str
    required: bool = False
    choices: tuple[str, ...] = ()
    options: dict[str, Key] = field(default_factory=dict)  # of a mapping


def _key(name: str, spec: dict[str, Any], owner: str) -> Key:
    kind, about = spec.get("type", "str"), spec["description"]
    return Key(
        name,
        _KINDS.get(kind, kind),
        spec.get("default", ""),
        owner,
        about if isinstance(about, str) else " ".join(about),
        bool(spec.get("required", False)),
        tuple(str(choice) for choice in spec.get("choices", ())),
        {option: _key(option, about, owner) for option, about in spec.get("options", {}).items()},
    )


def _load() -> dict[str, Key]:
    site = yaml.safe_load(Path(__file__).with_name("site_keys.yml").read_text(encoding="utf-8"))
    keys = {name: _key(name, spec, "site") for name, spec in site.items()}
    for role in sorted(_COLLECTION.glob("roles/*/meta/argument_specs.yml")):
        owner = role.parents[1].name
        specs = yaml.safe_load(role.read_text(encoding="utf-8"))["argument_specs"]
        for name, spec in specs.get("main", {}).get("options", {}).items():
            keys.setdefault(name, _key(name, spec, owner))
    return keys


KEYS = _load()

# What begins like this is ours, so that a name that is not in the table is a mistake.
PREFIXES = tuple(sorted({f"{key.owner}_" for key in KEYS.values()}))

# The networks, by what stands in site_NAME_network, and the key of a host's address there.
NETWORKS = {
    "management": "ansible_host",
    "cluster": "site_cluster_address",
    "ceph_public": "site_ceph_public_address",
    "ceph_cluster": "site_ceph_cluster_address",
}

# Ansible's own variables that an inventory has. Another one that looks like one of them is a slip.
ANSIBLE = {
    "ansible_become",
    "ansible_become_method",
    "ansible_become_password",
    "ansible_become_user",
    "ansible_connection",
    "ansible_host",
    "ansible_password",
    "ansible_port",
    "ansible_python_interpreter",
    "ansible_ssh_common_args",
    "ansible_ssh_extra_args",
    "ansible_ssh_private_key_file",
    "ansible_user",
}

# What muster.yaml knows. musterd itself checks the values (musterd --check-config); a test holds the names equal.
MUSTER_YAML = frozenset(
    """
    store ceph_conf ceph_user store_timeout socket state_dir listen_address port servers cluster node_name service_user master_ports_first
    master_ports_last keep_checkpoints keep_every user_storage_limit incremental compression recovery_memory partner_memory
    partner_group partner_port slurm_topology collect_pause chunk_size max_shard_size reconnect unkillable_after stranded_after progress_after
    forgive_after beat lease silence hang_report loop_stall slurm_helper preflight_age fabric_settings metrics_file metrics_port metrics_address slurm_timeout
    slurm_requeue_timeout slurm_node_downs_per_minute time_limit_margin enabled
    exit_codes health_timeout health_nics health_disks health_memory_min health_disk_free memlock_limit nvml_library kernel_log log_level
    """.split()
)
