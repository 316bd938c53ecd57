"""The filter `slurm_nodes`: the lines of slurm.conf that describe the nodes."""

from __future__ import annotations

from typing import Any

# Of its memory a node offers jobs this share, in steps of so many MiB: another kernel's demand does not drain it.
_MEMORY_SHARE = 31 / 32
_MEMORY_STEP = 256


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
        parameters = {**parameters, **{key: str(value) for key, value in variables.get("slurm_node_parameters", {}).items()}}
        lines.append(" ".join([f"NodeName={host}", *(f"{key}={value}" for key, value in parameters.items())]))
    return lines


class FilterModule:
    def filters(self) -> dict[str, Any]:
        return {"slurm_nodes": slurm_nodes}
