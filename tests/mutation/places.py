"""Finds the places of C++ sources where tests/mutate may make a mistake on purpose, draws some, and writes the sources that have them.

Clang's syntax tree says where expressions and statements are (`-ast-dump=json`), so comments, strings and declarations are never taken
for code. Left out: what a macro expands to, templates, constant expressions, defaults of parameters, and what only a planted bug
(base/planted.h) would run.
"""

import collections
import dataclasses
import json
import random
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Node = dict[str, Any]

# Operator: what it does.
OPERATORS = {
    "boundary": "< and <=, > and >= stand for each other",
    "comparison": "a comparison says the opposite",
    "logic": "&& and || stand for each other",
    "condition": "a condition that is no comparison says the opposite",
    "constant": "a number is one higher, true and false stand for each other, the next enumerator stands for an enumerator",
    "arithmetic": "+ and -, += and -=, ++ and -- stand for each other",
    "deletion": "an assignment, a call whose result nobody takes, a continue, or a return without a value is gone",
    "result": "a function returns the opposite, or the value that {} is",
}

_BOUNDARY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_COMPARISON = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_LOGIC = {"&&": "||", "||": "&&"}
_ARITHMETIC = {"+": "-", "-": "+", "+=": "-=", "-=": "+=", "++": "--", "--": "++"}
_INTEGER = r"(?:unsigned |signed )?(?:char|short|int|long|long long)"

# What is no code of its own: templates are compiled for types that are not known here, and a constant needs a constant.
_LEFT_OUT = {
    "ClassTemplateDecl",
    "ClassTemplatePartialSpecializationDecl",
    "ClassTemplateSpecializationDecl",
    "ConstantExpr",
    "CXXDefaultArgExpr",
    "CXXDefaultInitExpr",
    "EnumDecl",
    "FunctionTemplateDecl",
    "ParmVarDecl",
    "StaticAssertDecl",
    "VarTemplateDecl",
}
_FUNCTIONS = {"FunctionDecl", "CXXMethodDecl", "CXXConstructorDecl", "CXXDestructorDecl", "CXXConversionDecl"}
_STATEMENTS = {
    "BinaryOperator",
    "CallExpr",
    "CompoundAssignOperator",
    "ContinueStmt",
    "CXXMemberCallExpr",
    "CXXOperatorCallExpr",
    "ExprWithCleanups",
    "UnaryOperator",
}
_TRANSPARENT = {"CXXBindTemporaryExpr", "ExprWithCleanups", "ImplicitCastExpr", "MaterializeTemporaryExpr", "ParenExpr"}
_COMMENTS = re.compile(r"""("(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])*')|//[^\n]*|/\*.*?\*/""", re.DOTALL)


@dataclasses.dataclass(frozen=True, order=True)
class Place:
    """A mutant: `before`, the text from `start` to `end`, and `after` are the original and the mutant with its switch."""

    file: str
    start: int
    end: int
    operator: str
    mutated: str  # the lines that differ, as one
    original: str
    function: str
    line: int
    last_line: int
    before: str  # NUL: the mutant's number
    after: str

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What says which one it is while the lines around it change."""
        return self.file, self.function, self.operator, self.original, self.mutated


def flat(text: str) -> str:
    """In one line, without comments."""
    return " ".join(_COMMENTS.sub(lambda found: found[1] or " ", text).split())


def _stripped(node: Node) -> Node:
    while node.get("kind") in _TRANSPARENT and len(node.get("inner", [])) == 1:
        node = node["inner"][0]
    return node


def _type(node: Node) -> str:
    kind = node.get("type", {})
    return str(kind.get("desugaredQualType", kind.get("qualType", "")))


def _known(node: Node) -> bool | None:
    """What a condition is where no bug is planted, if that alone says it."""
    node = _stripped(node)
    inner = node.get("inner", [])
    if node.get("kind") == "DeclRefExpr" and node["referencedDecl"].get("name") == "kPlanted":
        return False
    if node.get("kind") == "UnaryOperator" and node["opcode"] == "!":
        value = _known(inner[0])
        return None if value is None else not value
    if node.get("kind") == "BinaryOperator" and node["opcode"] in _LOGIC:
        decides = node["opcode"] == "||"
        return decides if decides in map(_known, inner) else None
    return None


class _Finder:
    """The places of the files of `texts` in one syntax tree."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts  # by the path that clang has: its bytes as characters, so that offsets fit
        self._records: dict[str, str] = {}
        self._next_enumerator: dict[str, str] = {}
        self._file = ""
        self.places: list[tuple[str, Place]] = []

    def locate(self, node: Node) -> None:
        """Gives each location its file: clang writes it where it differs from that of the location before."""
        for name in ("loc", "range"):
            ends = [node[name]] if name == "loc" and name in node else list(node.get(name, {}).values())
            for end in ends:
                for location in (end.get("spellingLoc"), end.get("expansionLoc"), end):
                    if location:
                        self._file = location["file"] = location.get("file", self._file)
        if node.get("kind") == "CXXRecordDecl":
            self._records[node["id"]] = node.get("name", "")
        if node.get("kind") == "EnumDecl":
            constants = [inner for inner in node.get("inner", []) if inner["kind"] == "EnumConstantDecl"]
            for constant, following in zip(constants, constants[1:] + constants[:1], strict=True):
                if constant is not following:
                    self._next_enumerator[constant["id"]] = following["name"]
        for inner in node.get("inner", []):
            self.locate(inner)

    def visit(self, node: Node, scope: str = "", statement: bool = False) -> None:
        kind = node.get("kind", "")
        if kind in _LEFT_OUT or node.get("isImplicit") or node.get("explicitlyDefaulted"):
            return
        if kind.endswith("Decl") and node.get("constexpr"):
            return
        if kind == "CXXRecordDecl" or kind in _FUNCTIONS:
            outer = scope or self._records.get(node.get("parentDeclContextId", ""), "")
            scope = "::".join(name for name in (outer, node.get("name", "")) if name)
        if statement and (kind in _STATEMENTS or (kind == "ReturnStmt" and "inner" not in node)):
            self._deletion(node, scope)
        visit_kind = getattr(self, f"_visit_{kind}", None)
        if visit_kind is not None:
            visit_kind(node, scope)
        else:
            self._visit_all(node.get("inner", []), scope, kind == "CompoundStmt")

    def _visit_all(self, nodes: Iterable[Node], scope: str, statement: bool = False) -> None:
        for node in nodes:
            self.visit(node, scope, statement)

    # ---- statements

    def _visit_IfStmt(self, node: Node, scope: str) -> None:
        parts = node["inner"]
        at = bool(node.get("hasInit")) + bool(node.get("hasVar"))
        condition, branches = parts[at], parts[at + 1 :]
        self._visit_all(parts[:at], scope)
        known = _known(condition)
        if known is None:
            if not node.get("hasVar"):
                self._condition(condition, scope)
            self.visit(condition, scope)
        for live, branch in zip((True, False), branches, strict=False):
            if known is None or known == live:
                self.visit(branch, scope, True)

    def _visit_ConditionalOperator(self, node: Node, scope: str) -> None:
        condition, yes, no = node["inner"]
        known = _known(condition)
        if known is None:
            self._condition(condition, scope)
            self.visit(condition, scope)
        if known is not False:
            self.visit(yes, scope)
        if known is not True:
            self.visit(no, scope)

    def _visit_WhileStmt(self, node: Node, scope: str) -> None:
        if not node.get("hasVar"):
            self._condition(node["inner"][-2], scope)
        self._visit_all(node["inner"][:-1], scope)
        self.visit(node["inner"][-1], scope, True)

    def _visit_DoStmt(self, node: Node, scope: str) -> None:
        body, condition = node["inner"]
        self.visit(body, scope, True)
        self._condition(condition, scope)
        self.visit(condition, scope)

    def _visit_ForStmt(self, node: Node, scope: str) -> None:
        # Not its step: any change there is an endless loop.
        self._visit_all(node["inner"][:-2], scope)
        self.visit(node["inner"][-1], scope, True)

    def _visit_CXXForRangeStmt(self, node: Node, scope: str) -> None:
        # Between the range and the body is what the compiler makes of it.
        self._visit_all(node["inner"][:2], scope)
        self.visit(node["inner"][-1], scope, True)

    def _visit_CaseStmt(self, node: Node, scope: str) -> None:
        self._visit_all(node["inner"], scope, True)

    _visit_DefaultStmt = _visit_CaseStmt

    def _visit_LambdaExpr(self, node: Node, scope: str) -> None:
        record, *others = node["inner"]
        if not any(inner.get("kind") == "FunctionTemplateDecl" for inner in record.get("inner", [])):
            self._visit_all(others, scope)

    def _visit_ReturnStmt(self, node: Node, scope: str) -> None:
        self._result(node, scope)
        self._visit_all(node.get("inner", []), scope)

    # ---- expressions

    def _visit_BinaryOperator(self, node: Node, scope: str) -> None:
        left, right = node["inner"]
        known = [_known(left), _known(right)]
        if known == [None, None]:
            self._binary(node, left, right, scope)
        self._visit_all((part for part, value in zip((left, right), known, strict=True) if value is None), scope)

    _visit_CompoundAssignOperator = _visit_BinaryOperator

    def _visit_CXXOperatorCallExpr(self, node: Node, scope: str) -> None:
        arguments = node["inner"][1:]
        if len(arguments) == 2:
            self._binary(node, arguments[0], arguments[1], scope)
        self._visit_all(arguments, scope)

    def _visit_CXXRewrittenBinaryOperator(self, node: Node, scope: str) -> None:
        # a != b by operator==: !(a == b), or !(b == a).
        found = node["inner"][0]
        while found.get("kind") != "CXXOperatorCallExpr" and found.get("inner"):
            found = found["inner"][0]
        arguments = found.get("inner", [])[1:]
        if len(arguments) != 2:
            return
        if any("offset" not in argument["range"]["begin"] for argument in arguments):
            return
        left, right = sorted(arguments, key=lambda argument: int(argument["range"]["begin"]["offset"]))
        self._binary(node, left, right, scope)
        self._visit_all(arguments, scope)

    def _visit_UnaryOperator(self, node: Node, scope: str) -> None:
        spread = self._spread(node)
        opcode = node["opcode"]
        if spread and opcode in _ARITHMETIC and len(opcode) == 2:
            path, start, end = spread
            at = end - 2 if node["isPostfix"] else start
            if self._texts[path][at : at + 2] == opcode:
                self._choice(spread, (at, at + 2, _ARITHMETIC[opcode]), "arithmetic", scope)
        self._visit_all(node["inner"], scope)

    def _visit_IntegerLiteral(self, node: Node, scope: str, cast: str = "") -> None:
        spread = self._spread(node)
        if not spread:
            return
        path, start, end = spread
        found = re.fullmatch(r"[0-9a-fA-FxX']+?([uUlLzZ]*)", self._texts[path][start:end])
        if found:
            higher = str(int(node["value"]) + 1) + found[1]
            self._choice(spread, (start, end, higher), "constant", scope, cast)

    def _visit_ImplicitCastExpr(self, node: Node, scope: str) -> None:
        inner = node["inner"][0]
        if inner.get("kind") == "IntegerLiteral" and re.fullmatch(_INTEGER, _type(node)):
            self._visit_IntegerLiteral(inner, scope, f"static_cast<{_type(node)}>")
        else:
            self.visit(inner, scope)

    def _visit_CXXBoolLiteralExpr(self, node: Node, scope: str) -> None:
        spread = self._spread(node)
        if spread:
            self._choice(spread, (*spread[1:], "false" if node["value"] else "true"), "constant", scope)

    def _visit_DeclRefExpr(self, node: Node, scope: str) -> None:
        spread = self._spread(node)
        following = self._next_enumerator.get(node["referencedDecl"].get("id", ""))
        if spread and following:
            end = spread[2]
            at = end - len(node["referencedDecl"]["name"])
            self._choice(spread, (at, end, following), "constant", scope)

    # ---- the operators

    def _binary(self, node: Node, left: Node, right: Node, scope: str) -> None:
        spread, left_spread, right_spread = self._spread(node), self._spread(left), self._spread(right)
        if not spread or not left_spread or not right_spread:
            return
        gap = self._texts[spread[0]][left_spread[2] : right_spread[1]]
        sign = flat(gap)
        at = left_spread[2] + gap.find(sign)
        for operator, others in (("boundary", _BOUNDARY), ("comparison", _COMPARISON), ("logic", _LOGIC), ("arithmetic", _ARITHMETIC)):
            if sign in others:
                if operator == "arithmetic" and re.search(r"string|iterator|\*$", _type(node)):
                    continue  # has no "-", or is no number
                self._choice(spread, (at, at + len(sign), others[sign]), operator, scope)

    def _condition(self, condition: Node, scope: str) -> None:
        spread = self._spread(condition)
        if not spread or _known(condition) is not None or self._compares(condition):
            return
        path, start, end = spread
        text = self._texts[path][start:end]
        opposite = text[1:] if re.fullmatch(r"!\w+", text) else f"!{text}" if re.fullmatch(r"\w+", text) else f"!({text})"
        self._add(spread, (start, end, opposite), "condition", scope, f"(muster_mutant(\0) ? {flat(f'!({text})')} : !!(", "))")

    def _result(self, node: Node, scope: str) -> None:
        spread = self._ended(node)
        if not spread or not node.get("inner"):
            return
        path, start, end = spread
        value = node["inner"][0]
        found = re.fullmatch(r"return\b\s*(.*?)\s*;", self._texts[path][start:end], re.DOTALL)
        if not found or value.get("valueCategory") == "lvalue":  # a reference
            return
        if _type(value) == "bool":
            if self._compares(value) or _stripped(value)["kind"] == "CXXBoolLiteralExpr":
                return  # the operators of these do the same
            other = f"!({found[1]})"
        elif found[1] in ("{}", "0", '""', "nullptr", "std::nullopt"):
            return
        else:
            other = "{}"
        changed = f"return {other};"
        self._add(spread, (start, end, changed), "result", scope, f"{{ if (muster_mutant(\0)) {flat(changed)} ", " }")

    def _deletion(self, node: Node, scope: str) -> None:
        spread = self._ended(node)
        if not spread:
            return
        if self._texts[spread[0]].startswith("spdlog::", spread[1]):
            return  # a log line
        what = _stripped(node)
        if what["kind"] == "BinaryOperator" and what["opcode"] != "=":
            return
        self._add(spread, (*spread[1:], ";"), "deletion", scope, "{ if (!muster_mutant(\0)) ", " }")

    # ---- what they share

    @staticmethod
    def _compares(node: Node) -> bool:
        node = _stripped(node)
        kind = node.get("kind")
        if kind == "CXXRewrittenBinaryOperator":
            return True
        if kind == "CXXOperatorCallExpr":
            name = _stripped(node["inner"][0]).get("referencedDecl", {}).get("name", "")
            return name.removeprefix("operator") in _COMPARISON
        return kind == "BinaryOperator" and node["opcode"] in _COMPARISON

    def _spread(self, node: Node) -> tuple[str, int, int] | None:
        """File and offsets of a node that lies in one of the files, and in no macro."""
        begin, end = node.get("range", {}).get("begin", {}), node.get("range", {}).get("end", {})
        if "offset" not in begin or "offset" not in end or begin["file"] != end["file"] or begin["file"] not in self._texts:
            return None
        return begin["file"], int(begin["offset"]), int(end["offset"]) + int(end["tokLen"])

    def _ended(self, node: Node) -> tuple[str, int, int] | None:
        """The same of a statement, with its semicolon."""
        spread = self._spread(node)
        if not spread:
            return None
        path, start, end = spread
        found = re.compile(r"\s*;").match(self._texts[path], end)
        return (path, start, found.end()) if found else None

    def _choice(self, spread: tuple[str, int, int], edit: tuple[int, int, str], operator: str, scope: str, cast: str = "") -> None:
        path, start, end = spread
        text = self._texts[path]
        changed = flat(text[start : edit[0]] + edit[2] + text[edit[1] : end])
        self._add(spread, edit, operator, scope, f"{cast}(muster_mutant(\0) ? ({changed}) : (", "))")

    def _add(self, spread: tuple[str, int, int], edit: tuple[int, int, str], operator: str, scope: str, before: str, after: str) -> None:
        path, start, end = spread
        text = self._texts[path]
        if re.search(r'R"|\n[ \t]*#', text[start:end]):
            return  # no line of its own can be made of these
        first = text.rfind("\n", 0, edit[0]) + 1
        last = text.find("\n", edit[1])
        shown = [flat(text[first:last]), flat(text[first : edit[0]] + edit[2] + text[edit[1] : last])]
        original, mutated = (one.encode("latin-1").decode() for one in shown)
        line, last_line = (text.count("\n", 0, offset) + 1 for offset in (start, end))
        self.places.append((path, Place("", start, end, operator, mutated, original, scope, line, last_line, before, after)))


def _documents(text: str) -> Iterator[Node]:
    decoder = json.JSONDecoder()
    at = 0
    while (at := text.find("{", at)) >= 0:
        document, at = decoder.raw_decode(text, at)
        yield document


def find(source: Path, files: dict[str, Path], flags: Sequence[str], directory: Path) -> list[Place]:
    """The places of `files`, by the name that a place shall have, as clang sees them when it compiles `source` with these flags."""
    command = ["clang++-14", "-fsyntax-only", "-w", *flags, "-Xclang", "-ast-dump=json", "-Xclang", "-ast-dump-filter=muster", str(source)]
    dump = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, check=True).stdout
    names = {str(path): name for name, path in files.items()}
    finder = _Finder({path: Path(path).read_bytes().decode("latin-1") for path in names})
    documents = list(_documents(dump.decode("latin-1")))
    for document in documents:
        finder.locate(document)
    for document in documents:
        finder.visit(document)
    return sorted({dataclasses.replace(place, file=names[path]) for path, place in finder.places})


def draw(places: Iterable[Place], count: int, least: int, seed: str, refused: set[Place]) -> list[Place]:
    """`count` places, at least `least` of each folder, none that was refused; the same for the same seed."""
    order = sorted(places)
    random.Random(seed).shuffle(order)
    order = [place for place in order if place not in refused]
    of_folder: collections.Counter[str] = collections.Counter()
    first: list[Place] = []
    rest: list[Place] = []
    for place in order:
        folder = str(Path(place.file).parent)
        of_folder[folder] += 1
        (first if of_folder[folder] <= least else rest).append(place)
    return sorted([*first, *rest][:count])


def render(text: str, numbered: Sequence[tuple[int, Place]]) -> str:
    """The source with these mutants of it. Its lines keep their numbers; what includes the switch has none."""
    # An outer one before those within it; of those at one place the first is the outermost.
    order = sorted(numbered, key=lambda item: (item[1].start, -item[1].end, item[0]))

    def between(start: int, end: int, items: Sequence[tuple[int, Place]]) -> str:
        out, at = [], start
        while items:
            (number, place), items = items[0], items[1:]
            within = [item for item in items if item[1].end <= place.end]
            items = items[len(within) :]
            out += [
                text[at : place.start],
                place.before.replace("\0", str(number)),
                between(place.start, place.end, within),
                place.after,
            ]
            at = place.end
        return "".join([*out, text[at:end]])

    return f'#include "tests/mutation/switch.h"\n#line 1\n{between(0, len(text), order)}'
