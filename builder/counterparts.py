"""Pure: what an older module or class has in the place of a definition or attribute that it lacks, and the evidence.

Two trees are compared: the one that the code comes from (the donor) and the base. A definition that both have is no
counterpart of anything: it is there beside the missing one. Names alone prove nothing; code, signatures and fields do.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from builder.symbols import blocks

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef

Likeness = Literal["same code", "same signature", "other signature"]

_SIMILAR = 0.75
_DECLARED = "declared alike"
_SUBSTANTIAL = 12
"""Nodes of syntax from which equal code under an unlike name is no coincidence."""


@dataclass(frozen=True)
class Counterpart:
    """A name that the base has instead, how it compares, and what shows it."""

    name: str
    line: int
    likeness: Likeness
    evidence: str


def top_level(tree: ast.Module) -> Mapping[str, ast.stmt]:
    """Return the functions, classes and assigned names of a module by name, those inside `if` and `try` too."""
    return dict(_named(tree.body))


def _named(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        if isinstance(node, Definition):
            yield node.name, node
        for target in _targets(node):
            if isinstance(target, ast.Name):
                yield target.id, node
        for block, _ in blocks(node):
            yield from _named(block)


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return list(node.targets)
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def of_definition(name: str, donor: ast.Module, base: ast.Module) -> tuple[Counterpart, ...]:
    """Return what the base's module has in the place of one of the donor's definitions, the likest first."""
    theirs, ours = top_level(donor), top_level(base)
    wanted = theirs.get(name)
    if wanted is None:
        return ()
    only_ours = [(other, node) for other, node in ours.items() if other not in theirs]
    found = [_compared(name, wanted, other, node) for other, node in only_ours]
    order: tuple[Likeness, ...] = ("same code", "same signature", "other signature")
    return tuple(
        sorted(filter(None, found), key=lambda each: (order.index(each.likeness), -_likeness(name, each.name)))
    )


def _compared(name: str, wanted: ast.stmt, other: str, node: ast.stmt) -> Counterpart | None:
    if type(wanted) is not type(node):
        return None
    is_close = name.strip("_") == other.strip("_") or _likeness(name, other) >= _SIMILAR
    if is_same_code(wanted, node) and (is_close or _size(wanted) >= _SUBSTANTIAL):
        return Counterpart(other, node.lineno, "same code", "the code is the same but for the name")
    if not is_close:
        return None
    if isinstance(wanted, Function) and isinstance(node, Function):
        if signature(wanted) == signature(node):
            return Counterpart(other, node.lineno, "same signature", "the parameters are the same, the code is not")
        evidence = f"it takes ({plain_arguments(node)}), wanted is ({plain_arguments(wanted)})"
        return Counterpart(other, node.lineno, "other signature", evidence)
    return Counterpart(other, node.lineno, "other signature", "the names are alike, the code is not")


def is_same_code(one: ast.AST, other: ast.AST) -> bool:
    """Tell whether two definitions are the same but for their own name, docstrings, comments and layout."""
    return _normal(one) == _normal(other)


def _normal(node: ast.AST) -> str:
    own = {node.name} if isinstance(node, Definition) else set(_own_names(node))
    return ast.dump(_Renamed(own).visit(_copy(node)))


def _own_names(node: ast.AST) -> Iterator[str]:
    for target in _targets(node) if isinstance(node, ast.stmt) else ():
        if isinstance(target, ast.Name):
            yield target.id


def _copy(node: ast.AST) -> ast.AST:
    """Return a copy of a statement that may be changed."""
    return ast.parse(ast.unparse(node)).body[0]


class _Renamed(ast.NodeTransformer):
    """Writes a placeholder for some names, and leaves docstrings out."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, Definition):
            node.name = "_" if node.name in self._names else node.name
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        elif isinstance(node, ast.Name) and node.id in self._names:
            node.id = "_"
        return self.generic_visit(node)


def signature(function: Function) -> str:
    """Return the parameters with kinds and defaults, annotations left out, in a form that compares."""
    return f"{type(function).__name__}({plain_arguments(function)})"


def plain_arguments(function: Function) -> str:
    """Return the parameters as written, without annotations."""
    bare = ast.parse(ast.unparse(function)).body[0]
    assert isinstance(bare, Function)
    for part in ast.walk(bare.args):
        if isinstance(part, ast.arg):
            part.annotation = None
    return ast.unparse(bare.args)


def _size(node: ast.AST) -> int:
    return sum(1 for _ in ast.walk(node))


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


# -- attributes of a class ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Member:
    """An attribute: where it is first bound, its declaration, and its values by the function that sets them."""

    name: str
    line: int
    declared: str
    """Annotation and default, or the code of a method; empty for what is only set on `self`."""
    values: tuple[tuple[str, str], ...]


def find_class(tree: ast.Module, name: str) -> ast.ClassDef | None:
    """Return the class of this name, at any depth."""
    return next((node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name), None)


def of_attribute(name: str, donor: ast.ClassDef, base: ast.ClassDef) -> tuple[Counterpart, ...]:
    """Return what the base's class has in the place of an attribute, each with all of its evidence.

    Three things count: the same declaration in the same place between the fields that both classes have; the same value
    set by the function of the same name; a change of prefix that another attribute of the class shows as well. What a
    declaration contradicts is no counterpart; "same signature" marks one that its place alone speaks for.
    """
    theirs, ours = _members(donor), _members(base)
    if name not in theirs or name in ours:
        return ()
    shown = {wanted: _shown(wanted, theirs, ours) for wanted in theirs if wanted not in ours}
    found = list(shown[name].items())
    for other in ours:
        family = _family(name, other, shown) if other not in theirs and _agree(theirs[name], ours[other]) else ""
        if family and other not in shown[name]:
            found.append((other, [family]))
    return tuple(
        Counterpart(other, ours[other].line, _likeness_of_field(name, other, why), "; ".join(why))
        for other, why in found
    )


def _likeness_of_field(name: str, other: str, why: Sequence[str]) -> Likeness:
    """Tell proof from a hint: a field that stands where another one stood, without a word in common, may be chance."""
    has_word = not {*name.split("_")}.isdisjoint({*other.split("_")} - {""})
    return "same code" if has_word or len(why) > 1 or not why[0].startswith(_DECLARED) else "same signature"


def _shown(name: str, theirs: Mapping[str, _Member], ours: Mapping[str, _Member]) -> dict[str, list[str]]:
    """Return the base's attributes that declarations or values show to be the one of this name."""
    found: dict[str, list[str]] = {}
    wanted = theirs[name]
    place = _place(name, theirs, ours)
    for other, member in ours.items():
        if other in theirs or not _agree(wanted, member):
            continue
        why = []
        if wanted.declared and wanted.declared == member.declared and place == _place(other, ours, theirs):
            why.append(f"{_DECLARED}, after {place[0] or 'the start'} ({wanted.declared})")
        common = [function for function, value in wanted.values if (function, value) in member.values]
        if common:
            why.append(f"{', '.join(sorted(set(common)))} sets it to the same value")
        if why:
            found[other] = why
    return found


def _agree(one: _Member, other: _Member) -> bool:
    return not (one.declared and other.declared) or one.declared == other.declared


def _place(name: str, own: Mapping[str, _Member], others: Mapping[str, _Member]) -> tuple[str, int]:
    """Return the nearest declaration before it that both classes have, and how many one-sided ones lie between."""
    before = list(own)[: list(own).index(name)]
    between = 0
    for earlier in reversed(before):
        if earlier in others:
            return earlier, between
        between += bool(own[earlier].declared)
    return "", between


def _family(name: str, other: str, shown: Mapping[str, Mapping[str, list[str]]]) -> str:
    """Tell by which other attribute it is shown that the one prefix became the other."""
    for sibling, found in shown.items():
        for its in found if sibling != name and len(found) == 1 else ():
            tail = _common_suffix(sibling, its)
            old, new = its[: len(its) - len(tail)], sibling[: len(sibling) - len(tail)]
            rest = name.removeprefix(new)
            if new and old and rest != name and other == old + rest:
                return f"{its} became {sibling} likewise"
    return ""


def _common_suffix(one: str, other: str) -> str:
    count = 0
    while count < min(len(one), len(other)) and one[-1 - count] == other[-1 - count]:
        count += 1
    # Whole words only: the suffix starts at an underscore.
    tail = one[len(one) - count :]
    return tail[tail.index("_") :] if "_" in tail else ""


def _members(node: ast.ClassDef) -> Mapping[str, _Member]:
    found: dict[str, _Member] = {}
    for statement in node.body:
        for name, declared in _declarations(statement):
            found.setdefault(name, _Member(name, statement.lineno, declared, ()))
    for function in (part for part in node.body if isinstance(part, Function)):
        for name, line, value in _set_on_self(function):
            known = found.get(name, _Member(name, line, "", ()))
            values = (*known.values, (function.name, value))
            found[name] = _Member(name, known.line, known.declared, values)
    return found


def _declarations(node: ast.stmt) -> Iterator[tuple[str, str]]:
    if isinstance(node, Function):
        yield node.name, _normal(node)
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        default = f" = {ast.unparse(node.value)}" if node.value else ""
        yield node.target.id, f"{ast.unparse(node.annotation)}{default}"
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, f"= {ast.unparse(node.value)}"


def _set_on_self(function: Function) -> Iterator[tuple[str, int, str]]:
    first = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)][:1]
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in _targets(node):
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id in first:
                yield target.attr, node.lineno, ast.unparse(node.value)
