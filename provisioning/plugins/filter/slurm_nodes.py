"""The filters `slurm_nodes` and `slurm_gres`: the lines of slurm.conf and of gres.conf that describe the nodes."""

from __future__ import annotations

import itertools
import re
from typing import Any

# Of its memory a node offers jobs this share, in steps of so many MiB: another kernel's demand does not drain it.
_MEMORY_SHARE = 31 / 32
_MEMORY_STEP = 256
# A node with one of these has other cores than the kernel shows.
_LAYOUT = {"CPUs", "Boards", "Sockets", "SocketsPerBoard", "CoresPerSocket", "ThreadsPerCore", "CoreSpecCount", "CpuSpecList"}


def _parameters(line: str) -> dict[str, str]:
    """What stands in a line of slurm.conf, or in the first one that `slurmd -C` prints."""
    pairs = (word.split("=", 1) for word in line.split("\n")[0].split() if "=" in word)
    return {key: value for key, value in pairs if key != "NodeName"}


def _found(said: str) -> dict[str, str]:
    found = _parameters(said)
    if "RealMemory" in found:
        memory = int(int(found["RealMemory"]) * _MEMORY_SHARE)
        found["RealMemory"] = str(memory - memory % _MEMORY_STEP if memory >= _MEMORY_STEP else memory)
    return found


def _gpus(variables: Any) -> list[dict[str, Any]]:
    """The GPUs that a host has for jobs, each with its type in Slurm's words: as NVML's plugin of Slurm says it, or the operator's."""
    if not variables.get("nvidia_gpus", True):
        return []
    given = variables.get("nvidia_type", "")
    gpus = variables.get("nvidia_found", {}).get("gpus", [])
    return [{**gpu, "type": given or re.sub(r"[^a-z0-9._-]+", "_", gpu["model"].lower()).strip("_") or "gpu"} for gpu in gpus]


def slurm_nodes(hosts: list[str], hostvars: Any, before: list[str]) -> list[str]:
    """One line for each of the hosts, in their order. before: the lines that slurm.conf has, for hosts that were not reached."""
    known = {line.split()[0].partition("=")[2]: _parameters(line) for line in before}
    lines = []
    for host in hosts:
        variables = hostvars[host]
        said = variables.get("slurm_node_found", {}).get("stdout", "")
        parameters = _found(said) if said else known.get(host)
        if parameters is None:
            continue  # never described: it comes with the run that reaches it
        if said and (gpus := _gpus(variables)):
            types = sorted({gpu["type"] for gpu in gpus})
            counts = [f"gpu:{name}:{sum(gpu['type'] == name for gpu in gpus)}" for name in types]
            parameters["Gres"] = ",".join(counts)
        parameters = {**parameters, **{key: str(value) for key, value in variables.get("slurm_node_parameters", {}).items()}}
        lines.append(" ".join([f"NodeName={host}", *(f"{key}={value}" for key, value in parameters.items())]))
    return lines


def _gres(variables: Any) -> list[str]:
    """The lines of one host: GPUs that are alike and next to each other have one."""
    if variables.get("nvidia_gres"):
        return list(variables["nvidia_gres"])
    exact = not _LAYOUT & set(variables.get("slurm_node_parameters", {}))
    lines = []
    for (kind, cores), alike in itertools.groupby(_gpus(variables), lambda gpu: (gpu["type"], gpu["cores"] if exact else "")):
        minors = [str(gpu["minor"]) for gpu in alike]
        one = len(minors) == 1
        line = f"Name=gpu Type={kind} File=/dev/nvidia{minors[0] if one else '[' + ','.join(minors) + ']'}"
        lines.append(line + (f" Cores={cores}" if cores else ""))
    return lines


def slurm_gres(hosts: list[str], hostvars: Any, before: list[str]) -> list[str]:
    """The lines of gres.conf, in the hosts' order. before: those that it has, for hosts that were not reached."""
    lines = []
    for host in hosts:
        variables = hostvars[host]
        if variables.get("slurm_node_found", {}).get("stdout"):
            lines += [f"NodeName={host} {line}" for line in _gres(variables)]
        else:
            lines += [line for line in before if line.split()[0] == f"NodeName={host}"]
    return lines


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"slurm_nodes": slurm_nodes, "slurm_gres": slurm_gres}
