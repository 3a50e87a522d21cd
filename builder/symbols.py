"""Pure: what one Python source defines and imports at top level, read without running it."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

_GLOBAL_STATEMENT = re.compile(rb"^[ \t]+global[ \t]+[\w \t,]+", re.MULTILINE)
_OPENS_NAMESPACE = {
    "writes globals()": re.compile(rb"\bglobals\(\)\s*(?:\[[^\]\n]*\]\s*=[^=]|\.update|\.setdefault)"),
    "writes through sys.modules": re.compile(
        rb"\bsys\.modules\[__name__\]\s*(?:=[^=]|\.__class__\s*=|\.__dict__)|(?:\bsetattr\(|=)\s*sys\.modules\[__name__\]"
    ),
}

IMPLICIT_NAMES = frozenset(
    f"__{name}__" for name in ("name", "file", "doc", "path", "spec", "loader", "package", "dict")
)
"""Names that every module has without defining them."""


class UnreadableError(Exception):
    """The text cannot be judged here: it does not parse, or is newer than the Python that runs this tool."""


@dataclass(frozen=True)
class Binding:
    """One statement that binds a top-level name; an import has the `module` it takes from.

    `name` is what an import takes out of `module`, None where it binds the module itself.
    """

    line: int
    module: str | None = None
    name: str | None = None
    is_typing_only: bool = False


@dataclass(frozen=True)
class Symbols:
    """The top-level names of one module.

    `stars` are the modules it imports all names from; `public` is `__all__` (every name where that is computed), None
    where it has none; `open_because` says why other names may exist as well, empty where these and the stars are all.
    """

    names: Mapping[str, tuple[Binding, ...]]
    stars: tuple[str, ...]
    public: frozenset[str] | None
    open_because: str

    def at_runtime(self, name: str) -> tuple[Binding, ...]:
        """Return the bindings of a name that exist when the code runs."""
        return tuple(binding for binding in self.names.get(name, ()) if not binding.is_typing_only)

    def is_exported(self, name: str) -> bool:
        """Tell whether `from module import *` would take this name."""
        return name in self.public if self.public is not None else not name.startswith("_")


def module_of(path: str) -> str | None:
    """Return the dotted module of a package path, None if it is not a Python source.

    `sglang/srt/a.py` is `sglang.srt.a`, `sglang/srt/__init__.py` is `sglang.srt`.
    """
    if not path.endswith(".py"):
        return None
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def as_bytes(name: str) -> bytes:
    """Return a name as it stands in a source; one from a path may hold bytes that are no text."""
    return name.encode("utf-8", "surrogateescape")


def path_candidates(module: str) -> tuple[str, str]:
    """Return the paths a module may have, in the order in which Python looks for them."""
    stem = module.replace(".", "/")
    return f"{stem}/__init__.py", f"{stem}.py"


def parse(data: bytes) -> ast.Module:
    """Parse a source as Python reads it, coding line and byte order mark included; raise UnreadableError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in upstream's strings are none of our business
            return ast.parse(data)
    except SyntaxError as error:
        raise UnreadableError(f"line {error.lineno} does not parse: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError(f"does not parse: {str(error) or type(error).__name__}") from None


@lru_cache(maxsize=24)
def syntax(data: bytes) -> ast.Module:
    """Parse a source that several rules look at, once; nobody may change the answer. Raise UnreadableError."""
    return parse(data)


def absolute(node: ast.ImportFrom, path: str) -> str | None:
    """Return the module that a `from` import names, None where it climbs out of the tree."""
    if not node.level:
        return node.module
    parts = path.split("/")[: -node.level]
    return ".".join([*parts, node.module] if node.module else parts) if parts else None


def is_type_checking(test: ast.expr) -> bool:
    """Tell `TYPE_CHECKING` and `typing.TYPE_CHECKING`, which are false when the code runs."""
    return getattr(test, "id", getattr(test, "attr", None)) == "TYPE_CHECKING"


def blocks(node: ast.stmt) -> Iterator[tuple[list[ast.stmt], bool]]:
    """Yield the statement lists of an `if`, `try`, loop, `with` or `match`, and whether only type checkers enter."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    test = getattr(node, "test", None)
    is_typing = test is not None and is_type_checking(test)
    is_untyping = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and is_type_checking(test.operand)
    yield getattr(node, "body", []), is_typing
    yield getattr(node, "orelse", []), is_untyping
    yield getattr(node, "finalbody", []), False
    for part in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
        yield part.body, False


@lru_cache(maxsize=1024)
def symbols(data: bytes, path: str) -> Symbols:
    """Return what a module defines at top level, inside `if`, `try`, `with` and loops too; raise UnreadableError."""
    names: dict[str, tuple[Binding, ...]] = {}
    tree = parse(data)
    gone = {name for node in tree.body if isinstance(node, ast.Delete) for name in _deleted(node, tree)}
    for name, binding in (*_bindings(tree.body, path, False), *_lazy_names(tree), *_global_statements(tree, data)):
        names[name] = (*names.get(name, ()), binding)
    for name in gone:
        names.pop(name, None)
    stars = tuple(binding.module for binding in names.pop("*", ()) if binding.module)
    return Symbols(names, stars, _public(tree, names), _open_because(names, data))


def _deleted(node: ast.Delete, tree: ast.Module) -> Iterator[str]:
    """Yield the names that a top-level `del` takes away for good: nothing after it binds them again."""
    later = [name for after in tree.body if after.lineno > node.lineno for name in bound_names(after)]
    yield from (t.id for t in node.targets if isinstance(t, ast.Name) and t.id not in later)


def _bindings(body: list[ast.stmt], path: str, is_typing_only: bool) -> Iterator[tuple[str, Binding]]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imported(node, path, is_typing_only)
        else:
            for name in bound_names(node):
                yield name, Binding(node.lineno, is_typing_only=is_typing_only)
        for block, is_typing in blocks(node):
            yield from _bindings(block, path, is_typing_only or is_typing)


def _imported(node: ast.Import | ast.ImportFrom, path: str, is_typing_only: bool) -> Iterator[tuple[str, Binding]]:
    source = absolute(node, path) if isinstance(node, ast.ImportFrom) else None
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, Binding(alias.lineno, source, alias.name, is_typing_only)
        else:
            # `import a.b` binds a; `import a.b as m` binds b.
            module = alias.name if alias.asname else alias.name.split(".")[0]
            yield alias.asname or module, Binding(alias.lineno, module, None, is_typing_only)


def bound_names(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement itself binds, imports and nested blocks left out."""
    targets: list[ast.expr | None] = []
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.Assign():
            targets = list(node.targets)
        case ast.AnnAssign() if node.value is not None:
            targets = [node.target]
        case ast.AugAssign() | ast.For() | ast.AsyncFor():
            targets = [node.target]
        case ast.With() | ast.AsyncWith():
            targets = [item.optional_vars for item in node.items]
        case ast.If() | ast.While():
            targets = [part.target for part in ast.walk(node.test) if isinstance(part, ast.NamedExpr)]
        case _ if type(node).__name__ == "TypeAlias":  # Python 3.12 and later
            targets = [node.name]  # type: ignore[attr-defined]
    for target in targets:
        for part in ast.walk(target) if target else ():
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id


def _lazy_names(tree: ast.Module) -> Iterator[tuple[str, Binding]]:
    """Yield the names that the module's own `__getattr__` compares its argument with."""
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and function.name == "__getattr__":
            for node in ast.walk(function):
                if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.In):
                    for part in ast.walk(node.comparators[0]):
                        if isinstance(part, ast.Constant) and isinstance(part.value, str):
                            yield part.value, Binding(node.lineno)


def _global_statements(tree: ast.Module, data: bytes) -> Iterator[tuple[str, Binding]]:
    # Searched in the text first, as walking every function for this one statement would cost more than all the rest.
    if b"global" in data and _GLOBAL_STATEMENT.search(data):
        for node in ast.walk(tree):
            if isinstance(node, ast.Global):
                yield from ((name, Binding(node.lineno)) for name in node.names)


def _public(tree: ast.Module, names: Mapping[str, tuple[Binding, ...]]) -> frozenset[str] | None:
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and "__all__" in bound_names(node)
    ]
    if not values:
        return None
    try:
        return frozenset(name for value in values if value for name in ast.literal_eval(value))
    except (ValueError, TypeError):
        return frozenset(names)


def _open_because(names: Mapping[str, tuple[Binding, ...]], data: bytes) -> str:
    if "__getattr__" in names:
        return f"line {names['__getattr__'][0].line} defines __getattr__"
    for what, pattern in _OPENS_NAMESPACE.items():
        if (b"globals()" in data or b"sys.modules" in data) and (found := pattern.search(data)):
            line = data.count(b"\n", 0, found.start()) + 1
            return f"line {line} {what}"
    return ""
