"""An inventory as Ansible reads it, with places: hosts, groups, and who has which variable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .places import Entry, Place, Reader, Value, did_you_mean

# What Ansible passes over in a directory of inventories (inventory_ignore_extensions), and what is no inventory there.
_IGNORED = re.compile(r"^\.|^(group|host)_vars$|^vars_plugins$|(~|\.(pyc|pyo|swp|bak|rpm|md|txt|rst|orig|ini|cfg|retry))$")
_YAML = (".yml", ".yaml", ".json")
_RANGE = re.compile(r"\[([^\]]*)\]")


@dataclass
class Node:
    """A host or a group."""

    name: str
    place: Place
    variables: dict[str, Entry] = field(default_factory=dict)
    parents: set[str] = field(default_factory=set)  # groups


@dataclass
class Inventory:
    hosts: dict[str, Node] = field(default_factory=dict)
    groups: dict[str, Node] = field(default_factory=dict)
    place: Place = Place("", 1)  # where what is missing could stand
    complete: bool = True  # whether all of it could be read
    # Each mapping of variables that has been read, with what it is for: a host or a group.
    variables: list[tuple[Node, dict[str, Entry]]] = field(default_factory=list)

    def ancestors(self, node: Node) -> list[str]:
        """The groups that a host or group is in, the nearest ones first, without `all`."""
        found: list[str] = []
        level = sorted(node.parents)
        while level:
            found += level
            level = sorted({parent for name in level for parent in self.groups[name].parents} - set(found))
        return [name for name in found if name != "all"]

    def members(self, group: str) -> list[str]:
        """The hosts of a group, and of those below it."""
        return [name for name, host in self.hosts.items() if group == "all" or group in self.ancestors(host)]

    def value(self, host: str, key: str) -> Entry | None:
        """What a host has of a key: its own, or else its nearest group's."""
        node = self.hosts[host]
        for name in ["", *self.ancestors(node), "all"]:
            owner = self.groups.get(name) if name else node
            if owner and key in owner.variables:
                return owner.variables[key]
        return None


def expand(pattern: str) -> list[str]:
    """The hosts that a name stands for, as Ansible's n[01:16] or n[a:c]; raises ValueError."""
    found = _RANGE.search(pattern)
    if not found:
        return [pattern]
    bounds = found[1].split(":")
    if len(bounds) not in (2, 3):
        raise ValueError(f"[{found[1]}] is no range: write [first:last] or [first:last:step]")
    first, last, step = bounds[0] or "0", bounds[1], bounds[2] if len(bounds) == 3 else "1"
    if not step.isdecimal() or int(step) == 0:
        raise ValueError(f"the step of [{found[1]}] is no number above 0")
    if first.isdecimal() and last.isdecimal():
        if first[0] == "0" and len(first) > 1 and len(first) != len(last):
            raise ValueError(f"[{found[1]}] has ends of different length: write [{first.zfill(len(last))}:{last}]")
        width = len(first) if first[0] == "0" else 0
        middle = [str(number).zfill(width) for number in range(int(first), int(last) + 1, int(step))]
    elif len(first) == len(last) == 1 and first.isalpha() and last.isalpha():
        middle = [chr(code) for code in range(ord(first), ord(last) + 1, int(step))]
    else:
        raise ValueError(f"[{found[1]}] is no range: write two numbers or two letters")
    if not middle:
        raise ValueError(f"[{found[1]}] is empty: the first one comes after the last one")
    return [found.string[: found.start()] + part + rest for part in middle for rest in expand(pattern[found.end() :])]


class _Loader:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._findings = reader.findings
        self.inventory = Inventory()

    def source(self, path: Path) -> None:
        """A file or directory that ansible-playbook has been given with -i."""
        if path.is_dir():
            for below in sorted(path.iterdir()):
                if not _IGNORED.search(below.name):
                    self.source(below)
            return
        if not self.inventory.place.file:
            self.inventory.place = Place(str(path), 1)
        if not path.exists():
            self._wrong(Place(str(path), 1), "there is no such inventory")
        elif path.suffix not in _YAML:
            what = "not read: only inventories in YAML, called *.yml, are checked; `ansible-inventory --list --yaml` makes one"
            self._findings.warning(Place(str(path), 1), what)
            self.inventory.complete = False
        elif tree := self._reader.read(path):
            if "plugin" in tree.items:
                self._findings.warning(tree.place, "not checked: the hosts come from a plugin")
                self.inventory.complete = False
            elif self._mapping(tree, "an inventory", "groups, and in them hosts"):
                for name, entry in tree.items.items():
                    self._group(name, entry, None)

    def _wrong(self, place: Place, text: str) -> None:
        """Who is in which group is not known then: what depends on that is not said besides."""
        self._findings.error(place, text)
        self.inventory.complete = False

    def _mapping(self, value: Value, what: str, should: str) -> bool:
        """Whether it is a mapping or nothing; else that is a finding."""
        if value.kind in ("mapping", "nothing"):
            return True
        self._wrong(value.place, f"{what} is {value.what}; it must be a mapping of {should}")
        return False

    def _group(self, name: str, entry: Entry, parent: str | None) -> None:
        group = self.inventory.groups.setdefault(name, Node(name, entry.place))
        if parent is not None:
            group.parents.add(parent)
        if not self._mapping(entry.value, f"group {name}", "hosts, children and vars"):
            return
        for key, part in entry.value.items.items():
            if key not in ("hosts", "children", "vars"):
                instead = did_you_mean(key, ["hosts", "children", "vars"]) or "; a group has hosts, children and vars"
                self._wrong(part.place, f"{key} in group {name}: Ansible passes it over{instead}")
            elif not self._mapping(part.value, f"{key} of group {name}", "one name a line, each with a colon"):
                continue
            elif key == "children":
                for child, below in part.value.items.items():
                    self._group(child, below, name)
            elif key == "vars":
                self._variables(group, part.value)
            else:
                for pattern, host in part.value.items.items():
                    self._hosts(pattern, host, name)

    def _hosts(self, pattern: str, entry: Entry, group: str) -> None:
        try:
            names = expand(pattern)
        except ValueError as error:
            self._wrong(entry.place, f"{pattern}: {error}")
            return
        if not self._mapping(entry.value, f"host {pattern}", "variables"):
            return
        for name in names:
            host = self.inventory.hosts.setdefault(name, Node(name, entry.place))
            host.parents.add(group)
            host.variables |= entry.value.items
        if entry.value.items:
            self.inventory.variables.append((self.inventory.hosts[names[0]], entry.value.items))

    def _variables(self, node: Node, value: Value) -> None:
        if self._mapping(value, "a file of variables", "keys and values"):
            node.variables |= value.items
            self.inventory.variables.append((node, value.items))

    def variables_beside(self, directory: Path) -> None:
        """group_vars and host_vars of an inventory's directory."""
        self.inventory.groups.setdefault("all", Node("all", self.inventory.place))
        for folder, nodes in (("group_vars", self.inventory.groups), ("host_vars", self.inventory.hosts)):
            for path in sorted((directory / folder).glob("*")):
                if path.name.startswith(".") or path.name.endswith("~"):
                    continue
                if path.suffix not in ("", *_YAML):
                    self._findings.error(Place(str(path), 1), f"Ansible passes it over; call it {path.stem}.yml")
                    continue
                name = path.name if path.is_dir() else path.name.removesuffix(path.suffix)
                node = nodes.get(name)
                if node is None and self.inventory.complete and name != "ungrouped":
                    what = folder.removesuffix("_vars")
                    self._findings.error(Place(str(path), 1), f"there is no {what} {name}{did_you_mean(name, set(nodes))}")
                for file in self._files(path):
                    value = self._reader.read(file)
                    if value is not None:
                        self._variables(node or Node(name, Place(str(path), 1)), value)

    @staticmethod
    def _files(path: Path) -> Iterator[Path]:
        if path.is_file():
            yield path
            return
        for below in sorted(path.rglob("*")):
            parts = below.relative_to(path).parts
            hidden = any(part.startswith(".") or part.endswith("~") for part in parts)
            if below.is_file() and not hidden and below.suffix in ("", *_YAML):
                yield below


def load(sources: list[Path], reader: Reader) -> Inventory:
    """The inventory that is in these files and directories, with the variables that stand beside them."""
    loader = _Loader(reader)
    for source in sources:
        loader.source(source)
    unread = bool(reader.unread)
    loader.inventory.complete &= not unread
    for directory in dict.fromkeys(source if source.is_dir() else source.parent for source in sources):
        loader.variables_beside(directory)
    return loader.inventory
