#!/usr/bin/python3
"""The module `gpus`: the NVIDIA GPUs that a host has, as its kernel shows them. Changes nothing."""

from __future__ import annotations

import os
import re

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: gpus
short_description: The NVIDIA GPUs that a host has
description:
  - Reads what the driver says below /proc and the kernel below /sys; needs no program of the driver.
options:
  root:
    description: Where /proc and /sys are; another place than / is for tests.
    type: path
    default: /
author: Muster developers (@muster)
"""
EXAMPLES = r"""
- name: Look for GPUs
  muster.appliance.gpus:
  register: nvidia_found
"""
RETURN = r"""
gpus:
  description: Each GPU of the driver's by its minor number, with model, PCI address, and the cores next to it as Slurm counts them.
  type: list
  elements: dict
  returned: always
lost:
  description: PCI addresses of GPUs that the driver does not show.
  type: list
  elements: str
  returned: always
mig:
  description: Whether a GPU is cut into MIG instances.
  type: bool
  returned: always
"""

NVIDIA = "0x10de"
CLASSES = ("0x0300", "0x0302")  # a display controller, a 3D controller


def _text(*path: str) -> str:
    """What a file says, without the line's end; nothing where there is none."""
    try:
        with open(os.path.join(*path), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _names(*path: str) -> list[str]:
    try:
        return sorted(os.listdir(os.path.join(*path)))
    except OSError:
        return []


def _numbers(ranges: str) -> set[int]:
    """Those of a list as 0-3,8."""
    found: set[int] = set()
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _ranges(numbers: list[int]) -> str:
    """The list as 0-3,8."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _cores(system: str) -> list[set[int]]:
    """The processors of each core, in the order in which Slurm numbers cores: by socket, NUMA node and core, each by its first one."""
    processors = [int(name[3:]) for name in _names(system, "cpu") if re.fullmatch(r"cpu\d+", name)]
    nodes = [_numbers(_text(system, "node", name, "cpulist")) for name in _names(system, "node") if re.fullmatch(r"node\d+", name)]
    cores: dict[int, tuple[int, int, int, set[int]]] = {}
    for processor in processors:
        topology = os.path.join(system, "cpu", f"cpu{processor}", "topology")
        siblings = _numbers(_text(topology, "thread_siblings_list"))
        if not siblings:
            continue  # it is offline
        socket = _numbers(_text(topology, "core_siblings_list")) or siblings
        node = next((node for node in nodes if processor in node), socket) & socket
        cores[min(siblings)] = (min(socket), min(node or socket), min(siblings), siblings)
    return [core[3] for core in sorted(cores.values(), key=lambda core: core[:3])]


def look(root: str) -> dict[str, object]:
    driver = os.path.join(root, "proc/driver/nvidia")
    devices = os.path.join(root, "sys/bus/pci/devices")
    cores = _cores(os.path.join(root, "sys/devices/system"))
    gpus, shown = [], set()
    for bus in _names(driver, "gpus"):
        said = dict(re.findall(r"^([^:\n]+):[ \t]*(.*?)[ \t]*$", _text(driver, "gpus", bus, "information"), re.MULTILINE))
        if not said.get("Device Minor", "").isdecimal():
            continue
        shown.add(bus.lower())
        if said.get("GPU Excluded", "No") == "Yes":
            continue
        near = _numbers(_text(devices, bus.lower(), "local_cpulist"))
        beside = [number for number, core in enumerate(cores) if core & near]
        # Where all are alike near there is nothing to say.
        where = _ranges(beside) if 0 < len(beside) < len(cores) else ""
        gpus.append({"minor": int(said["Device Minor"]), "model": said.get("Model", ""), "bus": bus.lower(), "cores": where})
    there = [
        bus for bus in _names(devices) if _text(devices, bus, "vendor") == NVIDIA and _text(devices, bus, "class").startswith(CLASSES)
    ]
    capabilities = os.path.join(driver, "capabilities")
    mig = any(name.startswith("gi") for gpu in _names(capabilities) for name in _names(capabilities, gpu, "mig"))
    return {"gpus": sorted(gpus, key=lambda gpu: gpu["minor"]), "lost": [bus for bus in there if bus.lower() not in shown], "mig": mig}


def main() -> None:
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/"}}, supports_check_mode=True)
    module.exit_json(changed=False, **look(module.params["root"]))


if __name__ == "__main__":
    main()
