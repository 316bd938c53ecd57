"""YAML with its places: what the operator has written, and in which line of which file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

VAULT = "$ANSIBLE_VAULT;"
# Takes an encrypted file's name, gives its text; raises ValueError with the reason where that cannot be.
Decrypt = Callable[[Path], str]

_KINDS = {
    "tag:yaml.org,2002:str": "text",
    "tag:yaml.org,2002:int": "number",
    "tag:yaml.org,2002:float": "number with a point",
    "tag:yaml.org,2002:bool": "flag",
    "tag:yaml.org,2002:null": "nothing",
    "tag:yaml.org,2002:seq": "list",
    "tag:yaml.org,2002:map": "mapping",
    "!vault": "secret",
    "!unsafe": "text",
}


_MERGE = "tag:yaml.org,2002:merge"  # <<, which takes over the keys of another mapping


@dataclass(frozen=True, order=True)
class Place:
    file: str
    line: int
    column: int = 0  # 0: the whole line is meant

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f":{self.column}" if self.column else "")


@dataclass(frozen=True, order=True)
class Finding:
    place: Place
    text: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {'warning: ' if self.warning else ''}{self.text}"


class Findings:
    def __init__(self) -> None:
        self._found: set[Finding] = set()

    def error(self, place: Place, text: str) -> None:
        self._found.add(Finding(place, text))

    def warning(self, place: Place, text: str) -> None:
        self._found.add(Finding(place, text, warning=True))

    def all(self) -> list[Finding]:
        return sorted(self._found)


@dataclass(frozen=True)
class Value:
    """A value of YAML. `kind` is one of _KINDS, or the tag itself; `data` is a text, but of a list or mapping."""

    kind: str
    data: Any
    place: Place

    @property
    def text(self) -> str:
        return self.data if isinstance(self.data, str) else ""

    @property
    def items(self) -> dict[str, Entry]:
        return self.data if self.kind == "mapping" else {}

    @property
    def what(self) -> str:
        """What it is, in a sentence."""
        return "empty" if self.kind == "nothing" else f"a {self.kind}"

    @property
    def template(self) -> bool:
        """Whether Ansible makes the value later, so that nothing is known of it."""
        return self.kind == "secret" or "{{" in self.text or "{%" in self.text


@dataclass(frozen=True)
class Entry:
    """A key of a mapping, and its value."""

    place: Place
    value: Value


class _Unreadable(Exception):
    def __init__(self, place: Place, why: str) -> None:
        super().__init__(why)
        self.place = place


@dataclass
class Reader:
    """Reads files. What cannot be read, and what a reader of the file would not expect, is a finding."""

    findings: Findings
    decrypt: Decrypt
    unread: list[str] = field(default_factory=list)  # files whose contents nobody knows

    def read(self, path: Path) -> Value | None:
        """A file's value; None where it has none, or cannot be read."""
        name = str(path)
        try:
            documents = self._documents(name, self._text(path))
        except _Unreadable as unreadable:
            self.findings.error(unreadable.place, str(unreadable))
            self.unread.append(name)
            return None
        if len(documents) > 1:
            place = Place(name, documents[1].start_mark.line + 1)
            self.findings.error(place, "a second document in one file, which Ansible refuses; make it two files")
        return self._value(name, documents[0]) if documents and documents[0] is not None else None

    def _text(self, path: Path) -> str:
        first = Place(str(path), 1)
        try:
            contents = path.read_bytes()
            text = contents.decode("utf-8")
            return self.decrypt(path) if text.startswith(VAULT) else text
        except UnicodeDecodeError as error:
            place = Place(str(path), contents[: error.start].count(b"\n") + 1)
            raise _Unreadable(place, "not UTF-8; save the file as UTF-8") from None
        except OSError as error:
            raise _Unreadable(first, f"cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise _Unreadable(first, str(error)) from None

    @staticmethod
    def _documents(name: str, text: str) -> list[Any]:
        try:
            return list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        except yaml.MarkedYAMLError as error:
            place = Place(name, error.problem_mark.line + 1, error.problem_mark.column + 1)
            if "'\\t'" in error.problem:
                raise _Unreadable(place, "a tab: YAML is indented with spaces") from None
            during = f", {error.context}" if error.context else ""
            raise _Unreadable(place, f"unreadable YAML: {error.problem}{during}") from None
        except yaml.YAMLError as error:
            raise _Unreadable(Place(name, 1), f"unreadable YAML: {error}") from None

    def _value(self, name: str, node: Any, above: tuple[int, ...] = ()) -> Value:
        """above: the nodes that this one is in."""
        place = Place(name, node.start_mark.line + 1)
        kind = _KINDS.get(node.tag, node.tag)
        if id(node) in above:
            self.findings.error(place, "an anchor that has itself in it; write what is meant")
            return Value("nothing", "", place)
        above += (id(node),)
        if isinstance(node, yaml.SequenceNode):
            return Value(kind, [self._value(name, item, above) for item in node.value], place)
        if not isinstance(node, yaml.MappingNode):
            return Value(kind, node.value, place)
        entries: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for key, node_of_key in node.value:
            at = Place(name, key.start_mark.line + 1)
            if not isinstance(key, yaml.ScalarNode):
                self.findings.error(at, 'braces without quotes: write "{{ ... }}"')
                return Value("secret", "", place)
            value = self._value(name, node_of_key, above)
            if key.tag == _MERGE:
                for part in value.data if value.kind == "list" else [value]:
                    merged = part.items | merged
                continue
            if key.value in entries:
                first = entries[key.value].place.line
                self.findings.error(at, f"{key.value} is here twice, first in line {first}: the last one wins; keep one")
            entries[key.value] = Entry(at, value)
        return Value(kind, merged | entries, place)


def nearest(name: str, known: Iterator[str] | list[str] | set[str], likeness: float = 0.6) -> str:
    """The known name that is most like this one; "" where none is."""
    found = get_close_matches(name, sorted(known), n=1, cutoff=likeness)
    return found[0] if found else ""


def did_you_mean(name: str, known: Iterator[str] | list[str] | set[str]) -> str:
    """An end of a sentence that says what may have been meant."""
    found = nearest(name, known)
    return f"; did you mean {found}?" if found else ""
