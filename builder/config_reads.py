"""Pure: what a file reads of config namespaces, through imports and variables, and of anything else.

A namespace comes from an accessor: a function that does nothing but `return ....config_bag("spec")`. It is followed
through the names that a scope binds to it and to nothing else; where it is handed on as a value it is not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from builder.modules import Modules
from builder.symbols import UnreadableError, parse, syntax
from builder.uses import dotted, imported_names


@dataclass(frozen=True)
class Read:
    """An attribute that a file reads: of a config namespace, by the chain of names behind its accessor, or of anything.

    `accessor` is the function called (`get_spec`) and `namespace` what it stands for (`spec`); both are empty where the
    receiver is something else, and then `chain` has one name. `root` is the plain name that the receiver starts with.
    """

    line: int
    chain: tuple[str, ...]
    accessor: str = ""
    namespace: str = ""
    root: str = ""


def reads_of(path: str, modules: Modules) -> tuple[Read, ...]:
    """Return what a file reads; nothing where it is not there or cannot be judged, which is said elsewhere."""
    if not path.endswith(".py") or path not in modules.tree.paths:
        return ()
    try:
        tree = syntax(modules.read(path))
    except UnreadableError:
        return ()
    return tuple(_File(path, tree, modules).reads())


@dataclass(frozen=True)
class _Bag:
    """A config namespace, or a group in it."""

    accessor: str
    namespace: str
    prefix: tuple[str, ...] = ()


_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


@dataclass
class _Bound:
    """What one scope binds each name to: its namespaces, and None for anything else."""

    values: dict[str, set[_Bag | None]] = field(default_factory=dict)

    def add(self, name: str, value: _Bag | None) -> None:
        self.values.setdefault(name, set()).add(value)


class _File:
    def __init__(self, path: str, tree: ast.Module, modules: Modules) -> None:
        self._tree = tree
        self._modules = modules
        self._imports = imported_names(tree, path, modules)
        # Set on an object, a namespace is read in other methods than the one that set it.
        self._on_self: dict[str, _Bag] = {}

    def reads(self) -> Iterator[Read]:
        """Yield the reads of the whole file, the outer scopes first."""
        on_self = _Bound()
        for node in ast.walk(self._tree):
            for target, value in _assigned(node):
                if isinstance(target, ast.Attribute) and dotted(target)[0] == "self":
                    on_self.add(".".join(dotted(target)), self._bag(value, {}))
        self._on_self = _certain(on_self)
        yield from self._scope(self._tree, {})

    def _scope(self, scope: ast.AST, outer: Mapping[str, _Bag]) -> Iterator[Read]:
        own, inner = _parts(scope)
        bound = _Bound()
        for node in own:
            assigned = [(t, v) for t, v in _assigned(node) if isinstance(t, ast.Name)]
            for target, value in assigned:
                bound.add(target.id, self._bag(value, outer))
        for name in _other_names(scope, own):
            bound.add(name, None)
        here = {name: bag for name, bag in outer.items() if name not in bound.values} | _certain(bound)
        inside = {id(node.value) for node in own if isinstance(node, ast.Attribute)}
        for node in own:
            if isinstance(node, ast.Attribute) and id(node) not in inside:
                yield from self._reads(node, here)
            elif isinstance(node, ast.Call) and (read := self._got(node, here)):
                yield read
        for nested in inner:
            yield from self._scope(nested, here)

    def _reads(self, node: ast.Attribute, here: Mapping[str, _Bag]) -> Iterator[Read]:
        chain: list[tuple[str, bool]] = []
        at: ast.expr = node
        while isinstance(at, ast.Attribute):
            chain.insert(0, (at.attr, isinstance(at.ctx, ast.Load)))
            at = at.value
            if (bag := self._bag(at, here)) is not None:
                names = (*bag.prefix, *(name for name, _ in chain))
                yield Read(node.lineno, names, bag.accessor, bag.namespace)
                return
        root = at.id if isinstance(at, ast.Name) else ""
        yield from (Read(node.end_lineno or node.lineno, (name,), root=root) for name, is_read in chain if is_read)

    def _got(self, node: ast.Call, here: Mapping[str, _Bag]) -> Read | None:
        """Return what `getattr(get_spec(), "leaf")` reads; with a default it fails nowhere."""
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[of, ast.Constant(value=str(name))], keywords=[]):
                bag = self._bag(of, here)
                return Read(node.lineno, (*bag.prefix, name), bag.accessor, bag.namespace) if bag else None
        return None

    def _bag(self, node: ast.expr | None, here: Mapping[str, _Bag]) -> _Bag | None:
        match node:
            case ast.Name(id=name):
                return here.get(name)
            case ast.Attribute() if (found := self._on_self.get(".".join(dotted(node)))) is not None:
                return found
            case ast.Attribute(value=inner, attr=name) if (bag := self._bag(inner, here)) is not None:
                return replace(bag, prefix=(*bag.prefix, name))
            case ast.Call(func=function, args=[], keywords=[]):
                return self._of_accessor(function)
        return None

    def _of_accessor(self, function: ast.expr) -> _Bag | None:
        match function:
            case ast.Name(id=name) if name in self._imports:
                module, wanted = self._imports[name]
            case ast.Attribute(value=ast.Name(id=root), attr=wanted) if root in self._imports:
                module = ".".join(filter(None, self._imports[root]))
            case ast.Attribute(value=ast.Attribute() as inner, attr=wanted) if self._modules.owns(dotted(inner)[0]):
                module = ".".join(dotted(inner))
            case _:
                return None
        if not wanted or not self._modules.has(module):
            return None
        answer = self._modules.look_up(module, wanted)
        namespace = _namespaces(answer.path, self._modules).get(wanted)
        return _Bag(wanted, namespace) if namespace else None


def _certain(bound: _Bound) -> dict[str, _Bag]:
    """Return the names that are bound to one namespace and to nothing else."""
    single = {name: next(iter(values)) for name, values in bound.values.items() if len(values) == 1}
    return {name: bag for name, bag in single.items() if bag is not None}


def _parts(scope: ast.AST) -> tuple[list[ast.AST], list[_Scope]]:
    """Return a scope's own nodes, and the scopes directly inside it."""
    own: list[ast.AST] = []
    inner: list[_Scope] = []
    queue = list(ast.iter_child_nodes(scope))
    while queue:
        node = queue.pop()
        own.append(node)
        if isinstance(node, _Scope):
            inner.append(node)
        else:
            queue += ast.iter_child_nodes(node)
    return own, inner


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield the targets that a node assigns with the value of each, also pairwise (`a, b = x, y`)."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    yield from zip(target.elts, value.elts, strict=False)
                elif isinstance(target, ast.Tuple | ast.List):
                    yield from ((element, None) for element in target.elts)
                else:
                    yield target, value
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value
        case ast.NamedExpr(target=target, value=value):
            yield target, value


def _other_names(scope: ast.AST, own: list[ast.AST]) -> Iterator[str]:
    """Yield the names that a scope binds by anything but an assignment."""
    assigned = {id(target) for node in own for target, _ in _assigned(node)}
    arguments = scope.args if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) else None
    for node in ast.walk(arguments) if arguments else ():
        if isinstance(node, ast.arg):
            yield node.arg
    for node in own:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in assigned:
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def _namespaces(path: str, modules: Modules) -> Mapping[str, str]:
    try:
        data = modules.read(path) if path.endswith(".py") else b""
        return _namespaces_in(data) if b".config_bag(" in data else {}
    except UnreadableError:
        return {}


@lru_cache(maxsize=32)
def _namespaces_in(data: bytes) -> Mapping[str, str]:
    """Return the accessors of a module, with the namespace that each stands for."""
    body = parse(data).body
    falling_back = {node.name for node in body if isinstance(node, ast.ClassDef) and _falls_back(node)}
    found = {}
    for node in body:
        if not isinstance(node, ast.FunctionDef) or not isinstance(last := node.body[-1], ast.Return):
            continue
        match last.value:
            case ast.Call(func=ast.Attribute(attr="config_bag"), args=[ast.Constant(value=str(namespace))]):
                found[node.name] = namespace
        match node.returns:
            case ast.Name(id=name) if name in falling_back and node.name.startswith("get_"):
                # `get_parallel()` gives live values first, then those of the namespace of its own name.
                found[node.name] = node.name.removeprefix("get_")
    return found


def _falls_back(node: ast.ClassDef) -> bool:
    """Tell a class that answers a name it does not have from the published configuration."""
    methods = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__getattr__"]
    names = {n.attr for method in methods for n in ast.walk(method) if isinstance(n, ast.Attribute)}
    return "_config" in names
