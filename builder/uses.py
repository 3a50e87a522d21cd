"""Pure: what a file imports from its own package or reads of it, and what stands around each such place."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from builder.modules import Modules
from builder.symbols import UnreadableError, absolute

_TOLERANT = frozenset({"", "ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"})
"""What an `except` may name to catch a missing module or attribute; the empty name is a bare `except`."""


@dataclass(frozen=True)
class Guard:
    """What stands around a statement: an `if`, `try`, function or class.

    `text` is the test (or the names), in full. `is_true` tells what the test came to where the statement is reached,
    None for what is no test. An `elif` is preceded by one guard without a `word` for each test that failed before it:
    those are for judging, and not shown.
    """

    word: str
    text: str
    is_true: bool | None = None

    def __str__(self) -> str:
        return f"{self.word} {shortened(self.text)}".rstrip()


def shown(guards: Iterable[Guard]) -> str:
    """Return a chain of guards as people read it, the outermost first."""
    return ", ".join(str(guard) for guard in guards if guard.word)


@dataclass(frozen=True)
class Use:
    """A module, or a name of one, that a file imports or reads; `names` are those an import takes from a module."""

    line: int
    module: str
    name: str | None
    guards: tuple[Guard, ...]
    names: tuple[str, ...] = ()
    is_import: bool = True

    @property
    def is_typing(self) -> bool:
        return any(guard.is_true and guard.text.removeprefix("typing.") == "TYPE_CHECKING" for guard in self.guards)

    @property
    def is_tolerated(self) -> bool:
        caught = [guard.text for guard in self.guards if guard.word == "try/except"]
        return any(name.strip() in _TOLERANT for names in caught for name in names.split(","))


def uses(tree: ast.Module, path: str, modules: Modules) -> Iterator[Use]:
    """Yield every import from the package at any depth, and every attribute read of a module of it.

    A `from` import yields its module first, then each name. Attributes are followed only where a name stands for one
    module wherever the file binds it, so that a parameter of the same name is never mistaken for it.
    """
    aliases = _module_aliases(tree, path, modules)
    imports_by_name = any(_names_importlib(node) for node in tree.body)
    for node, guards in _guarded(tree.body, ()):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if modules.owns(alias.name):
                    yield Use(alias.lineno, alias.name, None, guards)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(node, path)
            if module and modules.owns(module):
                names = tuple(alias.name for alias in node.names if alias.name != "*")
                yield Use(node.lineno, module, None, guards, names)
                for alias in node.names:
                    if alias.name != "*":
                        yield Use(alias.lineno, module, alias.name, guards)
        else:
            if aliases:
                yield from _attribute_uses(node, guards, aliases, modules)
            if imports_by_name:
                yield from _imported_by_name(node, guards, modules)


def _names_importlib(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] == "importlib" for alias in node.names)
    return isinstance(node, ast.ImportFrom) and node.module == "importlib"


def _imported_by_name(node: ast.stmt, guards: tuple[Guard, ...], modules: Modules) -> Iterator[Use]:
    """Yield the modules that a statement imports by a name written out: `importlib.import_module("a.b")`."""
    for part in _own_expressions(node):
        match part:
            case ast.Call(func=function, args=[ast.Constant(value=str(module)), *_]):
                if dotted(function)[-1] == "import_module" and modules.owns(module):
                    yield Use(part.lineno, module, None, guards)


def _attribute_uses(
    node: ast.stmt, guards: tuple[Guard, ...], aliases: Mapping[str, str], modules: Modules
) -> Iterator[Use]:
    for part in _own_expressions(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Load):
            root, *names = dotted(part)
            module = aliases.get(root)
            # Walk down the submodules; what follows the first other name belongs to an object, not to a module.
            while module and len(names) > 1 and modules.has(f"{module}.{names[0]}"):
                module = f"{module}.{names.pop(0)}"
            if module and len(names) == 1 and modules.has(module):
                yield Use(part.lineno, module, names[0], guards, is_import=False)


def _own_expressions(node: ast.stmt) -> Iterator[ast.AST]:
    """Yield the expressions of a statement, those of nested statements left out."""
    queue: list[ast.AST] = [node]
    while queue:
        for child in ast.iter_child_nodes(queue.pop()):
            if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                yield child
                queue.append(child)


def dotted(node: ast.expr) -> tuple[str, ...]:
    """Return ('a', 'b', 'c') of `a.b.c`; of anything else, an empty root."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id if isinstance(node, ast.Name) else "", *reversed(names))


def _module_aliases(tree: ast.Module, path: str, modules: Modules) -> Mapping[str, str]:
    """Return the names that stand for one module of the package wherever this file binds them."""
    imports = [node for node, _ in _guarded(tree.body, ()) if isinstance(node, ast.Import | ast.ImportFrom)]
    if not any(module for node in imports for _, module in _bound_modules(node, path, modules)):
        return {}
    bound: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        for name, module in _bound_modules(node, path, modules):
            bound.setdefault(name, set()).add(module)
    return {name: found.pop() for name, found in bound.items() if len(found) == 1 and "" not in found}


def _bound_modules(node: ast.AST, path: str, modules: Modules) -> Iterator[tuple[str, str]]:
    """Yield each name that a node binds, with the module it stands for ('' for anything else)."""
    match node:
        case ast.Import():
            for alias in node.names:
                module = alias.name if alias.asname else alias.name.split(".")[0]
                yield alias.asname or module, module if modules.owns(module) else ""
        case ast.ImportFrom():
            source = absolute(node, path)
            for alias in node.names:
                module = f"{source}.{alias.name}"
                is_module = modules.owns(source) and modules.has(module) and not _is_bound(modules, source, alias.name)
                yield alias.asname or alias.name, module if is_module else ""
        case ast.Name(ctx=ast.Store() | ast.Del()):
            yield node.id, ""
        case ast.arg():
            yield node.arg, ""
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name, ""
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
            yield node.name or "", ""
        case ast.Attribute(ctx=ast.Store() | ast.Del()):
            # A file that writes into a module may define there whatever it reads.
            yield dotted(node)[0], ""


def imported_names(tree: ast.Module, path: str, modules: Modules) -> dict[str, tuple[str, str]]:
    """Return the names that stand for one import from the package wherever the file binds them: (module, name).

    A name without a second part stands for the module itself. One that the file also binds otherwise is left out.
    """
    bound: dict[str, set[tuple[str, str]]] = {}
    others: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = absolute(node, path)
            for alias in node.names:
                target = (module or "", alias.name) if modules.owns(module) else ("", "")
                bound.setdefault(alias.asname or alias.name, set()).add(target)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                target = (alias.name, "") if alias.asname and modules.owns(alias.name) else ("", "")
                bound.setdefault(alias.asname or alias.name.split(".")[0], set()).add(target)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            others.add(node.id)
        elif isinstance(node, ast.arg):
            others.add(node.arg)
    single = {name: next(iter(found)) for name, found in bound.items() if len(found) == 1 and name not in others}
    return {name: target for name, target in single.items() if target[0]}


def _is_bound(modules: Modules, module: str | None, name: str) -> bool:
    """Tell whether a package gives its submodule's name to something else than that submodule."""
    try:
        bindings = modules.symbols(module or "").names.get(name, ())
    except UnreadableError:
        return True
    return any(
        (binding.module, binding.name) not in ((module, name), (f"{module}.{name}", None)) for binding in bindings
    )


def guards_at(tree: ast.Module, line: int) -> tuple[Guard, ...]:
    """Return what stands around the innermost statement that covers a line; nothing where none does."""
    return _guards_by_line(tree).get(line, ())


@lru_cache(maxsize=24)
def _guards_by_line(tree: ast.Module) -> Mapping[int, tuple[Guard, ...]]:
    found: dict[int, tuple[Guard, ...]] = {}
    for node, guards in _guarded(tree.body, ()):  # an inner statement comes after the one around it
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        found.update(dict.fromkeys(range(first, (node.end_lineno or node.lineno) + 1), guards))
    return found


def _guarded(
    body: Iterable[ast.stmt], guards: tuple[Guard, ...], *, is_elif: bool = False
) -> Iterator[tuple[ast.stmt, tuple[Guard, ...]]]:
    """Yield every statement with what stands around it, the outermost first."""
    for node in body:
        yield node, guards
        for block, guard in _inner(node, is_elif):
            is_next_elif = guard is not None and not guard.word
            yield from _guarded(block, (*guards, guard) if guard else guards, is_elif=is_next_elif)


def _inner(node: ast.stmt, is_elif: bool) -> Iterator[tuple[list[ast.stmt], Guard | None]]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield node.body, Guard("in def", node.name)
        case ast.ClassDef():
            yield node.body, Guard("in class", node.name)
        case ast.If():
            word, test = "elif" if is_elif else "if", ast.unparse(node.test)
            yield node.body, Guard(word, test, is_true=True)
            yield node.orelse, Guard("" if _is_elif(node) else f"else of {word}", test, is_true=False)
        case ast.Try() | ast.TryStar():
            caught = [ast.unparse(handler.type).strip("()") if handler.type else "" for handler in node.handlers]
            yield node.body, Guard("try/except", ", ".join(caught)) if caught else None
            for handler, name in zip(node.handlers, caught, strict=True):
                yield handler.body, Guard("except", name)
            yield node.orelse, None
            yield node.finalbody, None
        case _:
            yield getattr(node, "body", []), None
            yield getattr(node, "orelse", []), None
            for case in getattr(node, "cases", []):
                yield case.body, None


def _is_elif(node: ast.stmt) -> bool:
    """Tell whether what follows an `if` is an `elif`: a nested `if` that starts in the same column."""
    following = node.orelse if isinstance(node, ast.If) else []
    return len(following) == 1 and isinstance(following[0], ast.If) and following[0].col_offset == node.col_offset


def shortened(text: str) -> str:
    """Return a text that fits into a line with others."""
    return text if len(text) <= 60 else text[:57] + "..."
