"""Pure: a source as its top-level statements: what each binds, what each changes, and what it needs when it is run."""

from __future__ import annotations

import ast
import io
import re
import symtable
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from builder.symbols import UnreadableError, blocks, bound_names, parse, syntax

_GROWING = ("add", "append", "appendleft", "extend", "insert", "register", "set", "setdefault", "update")
_SHRINKING = ("clear", "discard", "pop", "popitem", "remove", "reverse", "sort")
MUTATORS = frozenset((*_GROWING, *_SHRINKING))
"""Methods that change their object, whatever is done with what they return."""

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Part:
    """One top-level statement with its first and last line (1-based, decorators included).

    `binds` are the names that it binds, `changes` those whose objects it changes, or hands to something that may.
    """

    node: ast.stmt
    first: int
    last: int
    binds: frozenset[str]
    changes: frozenset[str]

    @property
    def is_import(self) -> bool:
        return isinstance(self.node, ast.Import | ast.ImportFrom)


def source_text(data: bytes) -> str:
    """Return a source as text whose lines end at "\\n", as `ast` counts them; raise UnreadableError if it is not such.

    Only UTF-8 is: columns are counted in its bytes, and what is put together must be in one coding.
    """
    try:
        coding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        text = data.decode("utf-8-sig")
    except (SyntaxError, UnicodeDecodeError):
        raise UnreadableError("it is not UTF-8") from None
    if coding not in ("utf-8", "utf-8-sig", "ascii"):
        raise UnreadableError(f"it is not UTF-8 but {coding}")
    if re.search(r"\r(?!\n)", text):
        raise UnreadableError("it has carriage returns that end lines on their own")
    return text


def scopes(data: bytes) -> list[symtable.SymbolTable]:
    """Return the functions and classes of a module as the compiler sees their names; raise UnreadableError."""
    try:
        return symtable.symtable(source_text(data), "carried", "exec").get_children()
    except (SyntaxError, RecursionError) as error:
        raise UnreadableError(f"it cannot be compiled: {error}") from None


@lru_cache(maxsize=24)
def parts(data: bytes) -> tuple[Part, ...]:
    """Return the top-level statements of a source in order; raise UnreadableError."""
    return tuple(_part(node) for node in syntax(data).body)


def _part(node: ast.stmt) -> Part:
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    return Part(node, first, node.end_lineno or node.lineno, frozenset(bound(node)), frozenset(_changed(node)))


def definitions(data: bytes) -> Mapping[str, tuple[int, int]]:
    """Return the top-level names of a module with the lines (first and last, 1-based) of what binds them last."""
    return {name: (part.first, part.last) for part in parts(data) for name in part.binds}


def bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a top-level statement binds, those inside an `if`, `try`, loop or `with` too."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    else:
        yield from bound_names(node)
    for block, _ in blocks(node):
        for part in block:
            yield from bound(part)


def makers(data: bytes, name: str) -> tuple[Part, ...]:
    """Return the statements that make a top-level name what it is: those that bind it, and those that change it.

    What is imported is another module's; what is done to it there belongs to no definition of this file.
    """
    binding = tuple(part for part in parts(data) if name in part.binds)
    if all(part.is_import for part in binding):
        return binding
    return tuple(part for part in parts(data) if name in part.binds or name in part.changes)


def _changed(node: ast.stmt) -> Iterator[str]:
    """Yield the names whose objects a statement changes while the module is loaded."""
    if isinstance(node, ast.If) and "__name__" in {p.id for p in ast.walk(node.test) if isinstance(p, ast.Name)}:
        return  # it is not entered when the module is imported
    for part in _outside_scopes(node):
        for target in written(part):
            if isinstance(target, ast.Subscript | ast.Attribute) or isinstance(part, ast.Delete | ast.Call):
                yield from root(target)
        if isinstance(part, Scope):
            yield from (n for d in part.decorator_list if isinstance(_called(d), ast.Attribute) for n in root(d))
        elif isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            yield from root(part.value.func) if isinstance(part.value.func, ast.Attribute) else ()
            for argument in (*part.value.args, *(keyword.value for keyword in part.value.keywords)):
                yield from root(argument)


def written_inside(function: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the global names that a function sets, or whose objects it changes in place, with the line of each."""
    rebound = {name for part in ast.walk(function) if isinstance(part, ast.Global) for name in part.names}
    local = {p.id for p in ast.walk(function) if isinstance(p, ast.Name) and isinstance(p.ctx, ast.Store)} - rebound
    local |= {part.arg for part in ast.walk(function) if isinstance(part, ast.arg)}
    for part in ast.walk(function):
        found: list[str] = []
        for target in written(part):
            is_inside = isinstance(target, ast.Subscript | ast.Attribute) or isinstance(part, ast.Call)
            found += root(target) if is_inside or getattr(target, "id", "") in rebound else ()
        yield from ((name, getattr(part, "lineno", 0)) for name in found if name not in local)


def written(part: ast.AST) -> list[ast.expr]:
    """Return what one piece of syntax binds, sets items or attributes of, or changes by a method that does."""
    if isinstance(part, ast.Assign | ast.Delete):
        return [each for target in part.targets for each in getattr(target, "elts", [target])]
    if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in MUTATORS:
        return [part.func.value]
    return [part.target] if isinstance(part, ast.AugAssign | ast.AnnAssign | ast.For) else []


def _called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


def root(node: ast.expr) -> Iterator[str]:
    """Yield the name at the start of a chain of attributes, items and calls."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Name):
        yield node.id


def _outside_scopes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node) if not isinstance(node, Scope | ast.Lambda) else ():
        yield from _outside_scopes(child)


# -- what is needed while a module is loaded ---------------------------------------------------------------------------


def defers_annotations(tree: ast.Module) -> bool:
    """Tell whether a module's annotations are never evaluated."""
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__")
    return any(alias.name == "annotations" for node in imports for alias in node.names)


def loaded_names(node: ast.stmt, *, keeps_annotations: bool) -> set[str]:
    """Return the global names that a top-level statement reads when it is run; bodies of functions do not run yet."""
    own = {p.id for p in ast.walk(node) if isinstance(p, ast.Name) and isinstance(p.ctx, ast.Store)}
    own -= set(bound(node)) if not isinstance(node, ast.For | ast.AsyncFor | ast.With) else set()
    read = (p for p in _run_when_loaded(node, keeps_annotations) if isinstance(p, ast.Name))
    return {part.id for part in read if isinstance(part.ctx, ast.Load)} - own


def called_when_loaded(node: ast.AST, *, keeps_annotations: bool) -> set[str]:
    """Return the names of what a statement calls, or decorates with, when it is run."""
    found: set[str] = set()
    for part in _run_when_loaded(node, keeps_annotations):
        found |= set(root(part.func)) if isinstance(part, ast.Call) else set()
        found |= {name for d in part.decorator_list for name in root(d)} if isinstance(part, Scope) else set()
    return found


def _run_when_loaded(node: ast.AST, keeps_annotations: bool) -> Iterator[ast.AST]:
    yield node
    inner: list[ast.AST | None] = []
    if isinstance(node, _Function):
        arguments = node.args
        inner += [*arguments.defaults, *arguments.kw_defaults]
        if not isinstance(node, ast.Lambda):
            inner += node.decorator_list
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            hints = [*(argument.annotation for argument in every if argument), node.returns]
            inner += hints if keeps_annotations else []
    elif isinstance(node, ast.AnnAssign) and not keeps_annotations:
        inner += [node.target, node.value]
    elif isinstance(node, ast.If) and _is_typing(node):
        inner += [node.test, *node.orelse]
    else:
        inner += ast.iter_child_nodes(node)
    for child in inner:
        if child is not None:
            yield from _run_when_loaded(child, keeps_annotations)


def _is_typing(node: ast.If) -> bool:
    return any(is_typing for block, is_typing in blocks(node) if block is node.body)


def unready(nodes: list[ast.stmt], *, keeps_annotations: bool) -> set[tuple[int, str]]:
    """Return (index, name) for each statement that, when it is run, needs a name that a later one binds first.

    What is called meanwhile runs too, as far as its name tells what it is.
    """
    first: dict[str, int] = {}
    scopes: dict[str, list[ast.AST]] = {}
    for index, node in enumerate(nodes):
        for name in bound(node):
            first.setdefault(name, index)
        for part in ast.walk(node) if not isinstance(node, Scope) else [node]:
            if isinstance(part, Scope):
                scopes.setdefault(part.name, []).append(part)
    found = set()
    for index, node in enumerate(nodes):
        needed = loaded_names(node, keeps_annotations=keeps_annotations)
        queue = [*called_when_loaded(node, keeps_annotations=keeps_annotations)]
        seen: set[str] = set()
        while queue:
            name = queue.pop()
            if name in seen or first.get(name, index + 1) > index:
                continue
            seen.add(name)
            for scope in scopes.get(name, ()):
                needed |= _inside(scope)
                queue += [n for part in ast.walk(scope) if isinstance(part, ast.Call) for n in root(part.func)]
        found |= {(index, name) for name in needed if first.get(name, -1) > index}
    return found


def _inside(scope: ast.AST) -> set[str]:
    """Return the global names that a function or class reads anywhere."""
    words = [part for part in ast.walk(scope) if isinstance(part, ast.Name)]
    own = {word.id for word in words if isinstance(word.ctx, ast.Store)}
    own |= {part.arg for part in ast.walk(scope) if isinstance(part, ast.arg)}
    return {word.id for word in words if isinstance(word.ctx, ast.Load)} - own


def same_syntax(text: str, node: ast.stmt) -> bool:
    """Tell whether a piece of text is this very statement."""
    try:
        found = parse(text.encode()).body
    except UnreadableError:
        return False
    return len(found) == 1 and ast.dump(found[0]) == ast.dump(node)
