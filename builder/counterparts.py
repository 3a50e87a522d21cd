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
    return dict(named(tree.body))


def named(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the functions, classes and assignments of a body with their names, those inside `if` and `try` too."""
    for node in body:
        if isinstance(node, Definition):
            yield node.name, node
        for target in _targets(node):
            if isinstance(target, ast.Name):
                yield target.id, node
        for block, _ in blocks(node):
            yield from named(block)


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


def does_something(node: ast.stmt) -> bool:
    """Tell a function that computes from one that only is there: equal code of such a one proves nothing."""
    rest = [part for part in node.body if not _is_idle(part)] if isinstance(node, Function) else []
    return bool(rest)


def _is_idle(node: ast.stmt) -> bool:
    value = getattr(node, "value", None)
    is_plain = value is None or isinstance(value, ast.Constant)
    return isinstance(node, ast.Pass | ast.Raise) or (isinstance(node, ast.Expr | ast.Return) and is_plain)


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
    values: tuple[_Value, ...]


@dataclass(frozen=True)
class _Value:
    """What a function sets an attribute to; a variable of the function stands with what it was made from."""

    function: str
    text: str
    tells: bool
    """Whether it is made of something the function is given: constants and bare names tell nothing."""


def find_class(tree: ast.Module, name: str) -> ast.ClassDef | None:
    """Return the class of this name, at any depth."""
    return next((node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name), None)


def of_attribute(name: str, donor: ast.ClassDef, base: ast.ClassDef) -> tuple[Counterpart, ...]:
    """Return what the base's class has in the place of an attribute, each with all of its evidence.

    Proof ("same code") is that a function of the same name sets both, and nothing else, to the same value that tells
    something; or that this proves another attribute's change of prefix or suffix, and it is the same change. That it is
    declared alike in the same place, or set to a value that tells nothing, is a hint ("same signature"): it may be
    chance. What a declaration contradicts is no counterpart.
    """
    theirs, ours = _members(donor), _members(base)
    if name not in theirs or name in ours:
        return ()
    proved = {wanted: _proved(wanted, theirs, ours) for wanted in theirs if wanted not in ours}
    found = []
    for other, member in ours.items():
        if other in theirs or not _agree(theirs[name], member):
            continue
        family = _family(name, other, proved)
        why = [*_hints(name, other, theirs, ours), *proved[name].get(other, ()), *([family] if family else ())]
        is_proof = bool(family) or other in proved[name]
        if why:
            found.append(Counterpart(other, member.line, "same code" if is_proof else "same signature", "; ".join(why)))
    return tuple(found)


def _proved(name: str, theirs: Mapping[str, _Member], ours: Mapping[str, _Member]) -> dict[str, list[str]]:
    """Return the base's attributes that are set to the same value by the function of the same name."""
    found = {}
    wanted = [value for value in theirs[name].values if value.tells and _count(value, theirs) == 1]
    for other, member in ours.items():
        common = {value.function for value in wanted if value in member.values and _count(value, ours) == 1}
        if common and other not in theirs and _agree(theirs[name], member):
            found[other] = [f"{', '.join(sorted(common))} sets it to the same value"]
    return found


def _count(value: _Value, members: Mapping[str, _Member]) -> int:
    return sum(value in member.values for member in members.values())


def _hints(name: str, other: str, theirs: Mapping[str, _Member], ours: Mapping[str, _Member]) -> list[str]:
    wanted, member = theirs[name], ours[other]
    place = _place(name, theirs, ours)
    has_word = not {*name.split("_")}.isdisjoint({*other.split("_")} - {""})
    why = []
    if wanted.declared and wanted.declared == member.declared and place == _place(other, ours, theirs):
        why.append(f"declared alike, after {place[0] or 'the start'} ({wanted.declared})")
    common = {value.function for value in wanted.values if value in member.values and not value.tells}
    if common and (has_word or why):
        why.append(f"{', '.join(sorted(common))} sets both to a value that tells nothing")
    return why


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


def _family(name: str, other: str, proved: Mapping[str, Mapping[str, list[str]]]) -> str:
    """Tell by which other attribute it is proved that the one prefix, or suffix, became the other."""
    for sibling, found in proved.items():
        for its in found if sibling != name and len(found) == 1 else ():
            if _is_same_change((its, sibling), (other, name)):
                return f"{its} became {sibling} likewise, which {found[its][0].replace('sets it', 'sets')}"
    return ""


def _is_same_change(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Tell whether two renames replace the same prefix or suffix, in whole words."""
    for old, new, its_old, its_new in ((*one, *other), (*_reversed(one), *_reversed(other))):
        tail = _common_suffix(old, new)
        before, after = old[: len(old) - len(tail)], new[: len(new) - len(tail)]
        rest = its_new.removeprefix(after)
        if (
            tail
            and before
            and after
            and rest.startswith("_")
            and its_new.startswith(after)
            and its_old == before + rest
        ):
            return True
    return False


def _reversed(names: tuple[str, str]) -> tuple[str, str]:
    one, other = ("_".join(reversed(name.split("_"))) for name in names)
    return one, other


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
            values = (*known.values, value)
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


def _set_on_self(function: Function) -> Iterator[tuple[str, int, _Value]]:
    first = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)][:1]
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in _targets(node):
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id in first:
                yield target.attr, node.lineno, _value(function, node.value)


def _value(function: Function, value: ast.expr) -> _Value:
    """Return a value with what tells it: a variable that is bound once stands for what it was made from."""
    arguments = {part.arg for part in ast.walk(function) if isinstance(part, ast.arg)}
    text, made = ast.unparse(value), value
    if isinstance(value, ast.Name) and value.id not in arguments:
        binds = [part for part in ast.walk(function) if isinstance(part, ast.Name) and _is_bound(part, value.id)]
        sources = [part.value for part in ast.walk(function) if isinstance(part, ast.Assign) and binds == part.targets]
        if len(sources) == 1:
            made = sources[0]
            text += f" = {ast.unparse(made)}"
    return _Value(function.name, text, not isinstance(made, ast.Name) and _is_made_of(made, function))


def _is_bound(node: ast.Name, name: str) -> bool:
    return node.id == name and not isinstance(node.ctx, ast.Load)


def _is_made_of(value: ast.expr, function: Function) -> bool:
    """Tell whether a value takes in a parameter or a variable of the function."""
    own = {part.arg for part in ast.walk(function) if isinstance(part, ast.arg)}
    own |= {part.id for part in ast.walk(function) if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}
    return any(isinstance(part, ast.Name) and part.id in own for part in ast.walk(value))
