"""Read one source: its scopes, what binds each name in them, and the places where something is used."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["module", "class", "function"]
Bound = Literal["import", "from", "def", "class", "argument", "value", "annotated", "other"]

_EMPTY = frozenset({ast.Name, ast.Constant, ast.Load, ast.Store, ast.Del, ast.Pass, ast.Break, ast.Continue})
_NOTED = frozenset({ast.Attribute, ast.Call})
_PLAIN = _NOTED | {
    ast.Expr, ast.Return, ast.keyword, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Subscript,
    ast.Tuple, ast.List, ast.Dict, ast.Set, ast.JoinedStr, ast.FormattedValue, ast.Starred, ast.Slice, ast.While,
    ast.Assert, ast.Raise, ast.Await, ast.Yield, ast.YieldFrom,
}  # fmt: skip
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True)
class Binding:
    """One thing that gives a name its value; `node` is the statement, expression or argument that does."""

    kind: Bound
    node: ast.AST
    alias: ast.alias | None = None
    is_typing: bool = False


@dataclass(eq=False)
class Scope:
    """A module, class or function (comprehensions count as functions) and the names bound in it."""

    kind: Kind
    node: ast.AST
    parent: Scope | None
    names: dict[str, list[Binding]] = field(default_factory=dict)
    outer: set[str] = field(default_factory=set)
    """Names declared global or nonlocal."""
    narrowed: set[str] = field(default_factory=set)
    """Expressions whose type is tested somewhere in this scope: what they are is no longer certain."""
    tested: set[str] = field(default_factory=set)
    """Attributes that `hasattr` asks for: the code is ready for their absence."""

    @property
    def root(self) -> Scope:
        return self if self.parent is None else self.parent.root

    @property
    def owner(self) -> Scope | None:
        """The class that this function is a method of."""
        return self.parent if self.kind == "function" and self.parent and self.parent.kind == "class" else None

    def chain(self) -> Iterator[Scope]:
        """Yield the scopes that a name is looked for in, the innermost first."""
        yield self
        above = self.parent
        while above is not None:
            if above.kind != "class":
                yield above
            above = above.parent

    def look_up(self, name: str) -> tuple[Scope, list[Binding]] | None:
        for scope in self.chain():
            if name in scope.names:
                return scope, scope.names[name]
        return None

    def bind(self, name: str, binding: Binding) -> None:
        scope = self
        if name in self.outer:
            scope, binding = self.root, Binding("other", binding.node)
        scope.names.setdefault(name, []).append(binding)


@dataclass(frozen=True)
class Event:
    """An import, an attribute that is read, or a call; where it stands, and what stands around it."""

    node: ast.Import | ast.ImportFrom | ast.Attribute | ast.Call
    scope: Scope
    guards: tuple[str, ...]


class Source:
    """One parsed source."""

    def __init__(self, data: bytes, module: str, *, is_package: bool) -> None:
        self.module = module
        self.package = module if is_package else module.rpartition(".")[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.tree = ast.parse(data)
        self.root = Scope("module", self.tree, None)
        self.events: list[Event] = []
        self.scopes: dict[ast.AST, Scope] = {self.tree: self.root}
        self._stores: dict[ast.ClassDef, dict[str, list[tuple[ast.AST, Scope]]]] = {}
        self._visit_all(self.tree.body, self.root, ())

    def absolute(self, node: ast.ImportFrom) -> str | None:
        """Return the module that a `from` import names."""
        if not node.level:
            return node.module
        parts = self.package.split(".")
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, node.module] if node.module else parts) if parts else None

    def definitions(self, qualified_name: str) -> list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
        """Return the definitions of `Class.method`, in all branches."""
        bodies: list[list[ast.stmt]] = [self.tree.body]
        found: list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef] = []
        for name in qualified_name.split("."):
            found = [node for body in bodies for node in defined(body) if node.name == name]
            bodies = [node.body for node in found]
        return found

    def stores(self, node: ast.ClassDef) -> dict[str, list[tuple[ast.AST, Scope]]]:
        """Return attribute -> the statements of the class's methods that assign it on the receiver."""
        if node not in self._stores:
            found: dict[str, list[tuple[ast.AST, Scope]]] = {}
            self._stores[node] = found
            for method in defined(node.body):
                if not isinstance(method, ast.ClassDef) and (named := arguments(method.args)):
                    for part in ast.walk(method):
                        for name in _assigned(part, named[0].arg):
                            found.setdefault(name, []).append((part, self.scopes[method]))
        return self._stores[node]

    # -- the walk ------------------------------------------------------------------------------------------------------

    def _visit_all(self, nodes: Iterable[ast.AST | None], scope: Scope, guards: tuple[str, ...]) -> None:
        for node in nodes:
            if node is not None:
                self._visit(node, scope, guards)

    def _visit(self, node: ast.AST, scope: Scope, guards: tuple[str, ...]) -> None:
        kind = type(node)
        # Asked first, as most nodes bind nothing and are of no interest: some millions are visited.
        if kind in _PLAIN:
            for name in node._fields:
                value = getattr(node, name)
                if isinstance(value, ast.AST):
                    if type(value) not in _EMPTY:
                        self._visit(value, scope, guards)
                elif isinstance(value, list):
                    for part in value:
                        if isinstance(part, ast.AST):
                            self._visit(part, scope, guards)
            if kind in _NOTED:
                self._note(node, scope, guards)  # type: ignore[arg-type]
        elif kind not in _EMPTY:
            self._visit_binding(node, scope, guards)

    def _visit_binding(self, node: ast.AST, scope: Scope, guards: tuple[str, ...]) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope.bind(node.name, Binding("def", node))
                self._visit_all([*node.decorator_list, node.returns, *_outside(node.args)], scope, guards)
                self._function(node, node.body, scope, (*guards, f"def {node.name}"))
            case ast.Lambda():
                self._visit_all(_outside(node.args), scope, guards)
                self._function(node, [node.body], scope, guards)
            case ast.ClassDef():
                scope.bind(node.name, Binding("class", node))
                self._visit_all([*node.decorator_list, *node.bases, *node.keywords], scope, guards)
                inner = self._scope("class", node, scope)
                self._visit_all(node.body, inner, (*guards, f"class {node.name}"))
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._visit_all(ast.iter_child_nodes(node), self._scope("function", node, scope), guards)
            case ast.Global() | ast.Nonlocal():
                scope.outer.update(node.names)
            case ast.If():
                self._if(node, scope, guards)
            case ast.Try() | ast.TryStar():
                self._try(node, scope, guards)
            case _:
                self._bind(node, scope, guards)
                if isinstance(node, ast.Import | ast.ImportFrom):
                    self._note(node, scope, guards)
                self._visit_all(ast.iter_child_nodes(node), scope, guards)

    def _scope(self, kind: Kind, node: ast.AST, parent: Scope) -> Scope:
        self.scopes[node] = Scope(kind, node, parent)
        return self.scopes[node]

    def _function(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
        body: Iterable[ast.AST],
        scope: Scope,
        guards: tuple[str, ...],
    ) -> None:
        inner = self._scope("function", node, scope)
        for argument in arguments(node.args):
            inner.bind(argument.arg, Binding("argument", argument))
        for many in (node.args.vararg, node.args.kwarg):
            if many:
                inner.bind(many.arg, Binding("other", many))
        self._visit_all(body, inner, guards)

    def _if(self, node: ast.If, scope: Scope, guards: tuple[str, ...]) -> None:
        text = ast.unparse(node.test)
        is_typing = text.rpartition(".")[2] == "TYPE_CHECKING"
        self._visit(node.test, scope, guards)
        self._visit_all(node.body, scope, (*guards, "TYPE_CHECKING" if is_typing else f"if {text[:80]}"))
        self._visit_all(node.orelse, scope, (*guards, f"else of {text[:80]}"))

    def _try(self, node: ast.Try | ast.TryStar, scope: Scope, guards: tuple[str, ...]) -> None:
        caught = {name for handler in node.handlers for name in _caught(handler)}
        inner = (*guards, f"catches {' '.join(sorted(caught))}") if caught else guards
        self._visit_all(node.body, scope, inner)
        for handler in node.handlers:
            if handler.name:
                scope.bind(handler.name, Binding("other", handler))
            self._visit_all([handler.type, *handler.body], scope, (*guards, "except"))
        self._visit_all([*node.orelse, *node.finalbody], scope, guards)

    def _bind(self, node: ast.AST, scope: Scope, guards: tuple[str, ...]) -> None:
        is_typing = "TYPE_CHECKING" in guards
        match node:
            case ast.Import():
                for alias in node.names:
                    name = alias.asname or alias.name.split(".")[0]
                    scope.bind(name, Binding("import", node, alias, is_typing))
            case ast.ImportFrom():
                for alias in node.names:
                    if alias.name != "*":
                        scope.bind(alias.asname or alias.name, Binding("from", node, alias, is_typing))
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                scope.bind(name, Binding("value", value))
            case ast.AnnAssign(target=ast.Name(id=name)):
                scope.bind(name, Binding("annotated", node))
            case ast.Assign() | ast.AugAssign() | ast.For() | ast.AsyncFor() | ast.Delete():
                self._bind_other(node, scope)
            case ast.withitem(optional_vars=ast.AST() as target) | ast.comprehension(target=target):
                self._bind_other(target, scope)
            case ast.NamedExpr(target=ast.Name(id=name)):
                place = next(s for s in scope.chain() if not isinstance(s.node, _COMPREHENSIONS))
                place.bind(name, Binding("other", node))
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                scope.bind(name, Binding("other", node))

    @staticmethod
    def _bind_other(node: ast.AST, scope: Scope) -> None:
        targets: list[ast.AST] = [node]
        if isinstance(node, ast.Assign | ast.Delete):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor):
            targets = [node.target]
        for target in targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
                    scope.bind(part.id, Binding("other", node))

    def _note(
        self,
        node: ast.Import | ast.ImportFrom | ast.Attribute | ast.Call,
        scope: Scope,
        guards: tuple[str, ...],
    ) -> None:
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            return
        self.events.append(Event(node, scope, guards))
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass" | "type"), args=[first, *_]):
                _function_of(scope).narrowed.add(ast.unparse(first))
            case ast.Call(func=ast.Name(id="hasattr"), args=[_, ast.Constant(value=str(name))]):
                _function_of(scope).tested.add(name)


def defined(body: Iterable[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the definitions of a block, those inside `if`, `try` and `with` too."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        else:
            for block in statements(node):
                yield from defined(block)


def statements(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a compound statement."""
    for name in ("body", "orelse", "finalbody"):
        yield getattr(node, name, [])
    for part in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
        yield part.body


def arguments(node: ast.arguments) -> list[ast.arg]:
    """Return the named arguments in order."""
    return [*node.posonlyargs, *node.args, *node.kwonlyargs]


def _assigned(node: ast.AST, receiver: str) -> Iterator[str]:
    """Yield the attributes of a receiver that a statement gives a value."""
    targets: list[ast.expr] = []
    match node:
        case ast.Assign(targets=found):
            targets = found
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            targets = [target]
        case ast.For(target=target) | ast.withitem(optional_vars=ast.expr() as target):
            targets = [target]
    for target in targets:
        for part in ast.walk(target):
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == receiver:
                yield part.attr


def _outside(node: ast.arguments) -> list[ast.AST | None]:
    """Return what of a function's head is evaluated around it: defaults and annotations."""
    every = [*arguments(node), *(many for many in (node.vararg, node.kwarg) if many)]
    return [*node.defaults, *node.kw_defaults, *(argument.annotation for argument in every)]


def _caught(handler: ast.ExceptHandler) -> set[str]:
    if handler.type is None:
        return {"BaseException"}
    parts = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {ast.unparse(part).rpartition(".")[2] for part in parts}


def _function_of(scope: Scope) -> Scope:
    return next(found for found in scope.chain() if not isinstance(found.node, _COMPREHENSIONS))
