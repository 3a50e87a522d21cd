"""Say what an expression is, where that is certain: a real object, or an instance of a class that is known."""

from __future__ import annotations

import ast
import inspect
import types
from dataclasses import dataclass, field
from typing import Any

from .sources import Binding, Scope, Source, arguments
from .world import Members, World, add_stores, is_inert

_DEEPEST = 12


@dataclass(frozen=True)
class Real:
    """An object of the interpreter: a module, class, function or constant.

    `module` and `name` are where it was taken from.
    """

    value: Any
    module: str = ""
    name: str = ""


@dataclass(frozen=True)
class Instance:
    """Something whose class is known, and which is not at hand."""

    cls: type


@dataclass(frozen=True)
class Live:
    """An object that the package itself made, and `text`, the call that gave it."""

    value: Any
    text: str


@dataclass(frozen=True)
class Own:
    """A class that the judged file defines; the interpreter has an older one of the name, or none."""

    node: ast.ClassDef


@dataclass(frozen=True)
class OwnInstance:
    """An instance of a class of the judged file; `after` its own definitions for what `super()` gives."""

    node: ast.ClassDef
    is_super: bool = False


Value = Real | Instance | Live | Own | OwnInstance


@dataclass(frozen=True)
class Reader:
    """Evaluates the expressions of one source; `is_real` tells that the interpreter has imported this very source."""

    source: Source
    world: World
    is_real: bool = False
    known: dict[tuple[int, int], Value | None] = field(default_factory=dict, compare=False, repr=False)
    """What was found out, by expression and scope: the nodes live as long as the source does."""
    members: dict[ast.ClassDef, Members] = field(default_factory=dict, compare=False, repr=False)

    def value(self, node: ast.expr, scope: Scope, depth: int = 0) -> Value | None:
        """Return what an expression is, None where that is not certain."""
        key = (id(node), id(scope))
        if key not in self.known:
            self.known[key] = None  # what leads back to itself is not certain
            is_certain = depth <= _DEEPEST and not self._is_narrowed(node, scope)
            self.known[key] = self._evaluated(node, scope, depth) if is_certain else None
        return self.known[key]

    def _evaluated(self, node: ast.expr, scope: Scope, depth: int) -> Value | None:
        match node:
            case ast.Name():
                return self._name(node.id, scope, depth + 1)
            case ast.Attribute():
                return self._attribute(node, scope, depth + 1)
            case ast.Call():
                return self._call(node, scope, depth + 1)
        return None

    def _is_narrowed(self, node: ast.expr, scope: Scope) -> bool:
        if not isinstance(node, ast.Name | ast.Attribute):
            return False
        scopes = [found for found in scope.chain() if found.kind == "function" and found.narrowed]
        return bool(scopes) and any(ast.unparse(node) in found.narrowed for found in scopes)

    # -- names ---------------------------------------------------------------------------------------------------------

    def _name(self, name: str, scope: Scope, depth: int) -> Value | None:
        found = scope.look_up(name)
        if found is None:
            return None
        place, bindings = found
        if len(bindings) > 1 and any(binding.kind not in ("import", "from") for binding in bindings):
            return None
        values = [self._bound(name, binding, place, depth) for binding in bindings]
        first = values[0]
        # Several bindings of one object are a name imported twice, for type checkers and at run time.
        return first if all(_is_same(value, first) for value in values) else None

    def _bound(self, name: str, binding: Binding, scope: Scope, depth: int) -> Value | None:
        match binding.kind, binding.node, binding.alias:
            case "import", ast.Import(), ast.alias() as alias:
                module = self.world.module(alias.name)
                top = alias.name if alias.asname else alias.name.split(".")[0]
                return Real(self.world.module(top), top) if module else None
            case "from", ast.ImportFrom() as node, ast.alias() as alias:
                return self._imported(self.source.absolute(node), alias.name)
            case "def" | "class", _, _ if self.is_real and scope.kind == "module":
                return self._imported(self.source.module, name)
            case "class", ast.ClassDef() as node, _:
                return Own(node)
            case "argument", ast.arg() as node, _:
                return self._argument(node, scope, depth)
            case "annotated", ast.AnnAssign() as node, _:
                return self.annotated(node.annotation, scope, depth)
            case "value", ast.expr() as node, _:
                return self.value(node, scope, depth)
        return None

    def _imported(self, module: str | None, name: str) -> Value | None:
        if module is None or self.world.module(module) is None:
            return None
        answer = self.world.name(module, name)
        return Real(answer.value, module, name) if answer.state == "ok" and answer.value is not None else None

    def _argument(self, node: ast.arg, scope: Scope, depth: int) -> Value | None:
        function = scope.node
        if node.annotation is not None:
            # A head is evaluated around the function.
            return self.annotated(node.annotation, scope.parent or scope, depth)
        owner = scope.owner
        if owner is None or not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        if arguments(function.args)[:1] != [node] or not isinstance(owner.node, ast.ClassDef):
            return None
        decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in function.decorator_list}
        if "staticmethod" in decorators:
            return None
        is_class = "classmethod" in decorators or function.name in ("__new__", "__init_subclass__", "__class_getitem__")
        return self._class(owner.node, is_class=is_class)

    def _class(self, node: ast.ClassDef, *, is_class: bool) -> Value | None:
        if not self.is_real:
            return Own(node) if is_class else OwnInstance(node)
        found = self._imported(self.source.module, node.name)
        if not isinstance(found, Real) or not inspect.isclass(found.value):
            return None
        return found if is_class else Instance(found.value)

    # -- attributes and calls ------------------------------------------------------------------------------------------

    def _attribute(self, node: ast.Attribute, scope: Scope, depth: int) -> Value | None:
        match self.value(node.value, scope, depth):
            case Real(types.ModuleType() as module):
                return self._imported(module.__name__, node.attr)
            case Real(type() as cls):
                found = getattr(cls, node.attr, None)
                return Real(found, cls.__module__, f"{cls.__qualname__}.{node.attr}") if found is not None else None
            case Live(value=value, text=text):
                return self._read(value, text, node.attr, depth)
            case Real(value=value, module=module, name=name) if self.world.owns(type(value).__module__):
                return self._read(value, f"{module}.{name}", node.attr, depth)
            case Instance(cls=cls):
                return self._attribute_of(cls, node.attr, depth)
            case OwnInstance(node=own, is_super=False):
                return self._attribute_of_own(own, node.attr, depth)
        return None

    def _read(self, value: Any, text: str, name: str, depth: int) -> Value | None:
        """Return an attribute of a live object; properties are not run, as they may load a model."""
        static = inspect.getattr_static(value, name, None)
        if static is None:
            return None
        if inspect.isroutine(static):
            return Live(getattr(value, name), f"{text}.{name}")
        is_plain = name in getattr(value, "__dict__", {}) or not hasattr(type(static), "__get__")
        return Live(static, f"{text}.{name}") if is_plain else self._attribute_of(type(value), name, depth)

    def _attribute_of(self, cls: type, name: str, depth: int) -> Value | None:
        """Return what an attribute of an instance is: by its annotation, or by the one assignment that makes it."""
        for part in cls.__mro__:
            if not self.world.owns(part.__module__):
                continue
            source = self.world.source(part.__module__)
            for node in self.world.class_nodes(part):
                if source is None:
                    break
                found = self._reader_of(source)._stored(node, name, depth)
                if found != ():
                    return found  # type: ignore[return-value]
            if name in vars(part):
                made = vars(part)[name]
                function = made.fget if isinstance(made, property) else None
                return self.returned(function, depth) if function else None
        return None

    def _attribute_of_own(self, own: ast.ClassDef, name: str, depth: int) -> Value | None:
        found = self._stored(own, name, depth)
        if found != ():
            return found  # type: ignore[return-value]
        for base in own.bases:
            value = self.value(base, self._scope_around(own), depth)
            if isinstance(value, Real) and inspect.isclass(value.value):
                return self._attribute_of(value.value, name, depth)
            if isinstance(value, Own):
                return self._attribute_of_own(value.node, name, depth)
            return None
        return None

    def _stored(self, node: ast.ClassDef, name: str, depth: int) -> Value | tuple[()] | None:
        """Return the value of `self.name`; an empty tuple where the class says nothing of it."""
        scope = self.source.scopes.get(node)
        if scope is None:
            return None
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and getattr(statement.target, "id", "") == name:
                return self.annotated(statement.annotation, scope, depth)
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name == name:
                return None
        stores = self.source.stores(node).get(name)
        if not stores:
            return ()
        annotated = [s for s in stores if isinstance(s[0], ast.AnnAssign)]
        if annotated:
            return self.annotated(annotated[0][0].annotation, annotated[0][1], depth)  # type: ignore[attr-defined]
        if len(stores) == 1 and isinstance(stores[0][0], ast.Assign):
            return self.value(stores[0][0].value, stores[0][1], depth)
        return None

    def _call(self, node: ast.Call, scope: Scope, depth: int) -> Value | None:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            method = next((found for found in scope.chain() if found.owner), None)
            owner = method.owner if method else None
            is_certain = owner and isinstance(owner.node, ast.ClassDef) and not self.is_real
            return OwnInstance(owner.node, is_super=True) if is_certain else None  # type: ignore[union-attr, arg-type]
        match self.value(node.func, scope, depth):
            case Real(type() as cls) if not is_inert(cls):
                return Instance(cls)
            case Own(node=own):
                return OwnInstance(own)
            case Real(value=function, module=module) if inspect.isroutine(function) or hasattr(function, "__wrapped__"):
                if module == f"{self.world.package}.srt.runtime_context" and not node.args and not node.keywords:
                    return _live(function)
                return self.returned(function, depth)
        return None

    def returned(self, function: Any, depth: int) -> Value | None:
        """Return what a call of a real function gives, by its annotation."""
        plain = inspect.unwrap(function)
        plain = getattr(plain, "__func__", plain)
        source = self.world.source(getattr(plain, "__module__", None) or "")
        nodes = source.definitions(plain.__qualname__) if source and hasattr(plain, "__qualname__") else []
        if len(nodes) != 1 or not isinstance(nodes[0], ast.FunctionDef) or nodes[0].returns is None or source is None:
            return None
        if any(word in ast.unparse(d) for d in nodes[0].decorator_list for word in ("contextmanager",)):
            return None
        scope = source.scopes[nodes[0]].parent or source.root
        return self._reader_of(source).annotated(nodes[0].returns, scope, depth)

    def _reader_of(self, source: Source) -> Reader:
        """Return the one reader of an imported module."""
        reader: Reader = self.world.readers.setdefault(source.module, Reader(source, self.world, is_real=True))
        return reader

    # -- annotations ---------------------------------------------------------------------------------------------------

    def annotated(self, node: ast.expr, scope: Scope, depth: int) -> Value | None:
        """Return an instance of the one class that an annotation names, None and `Optional` left out."""
        match node:
            case ast.Constant(value=str(text)):
                try:
                    return self.annotated(ast.parse(text.strip(), mode="eval").body, scope, depth + 1)
                except (SyntaxError, ValueError):
                    return None
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                parts = [part for part in (left, right) if ast.unparse(part) != "None"]
                return self.annotated(parts[0], scope, depth + 1) if len(parts) == 1 else None
            case ast.Subscript(value=generic, slice=inner):
                word = ast.unparse(generic).rpartition(".")[2]
                if word in ("Optional", "Final", "ClassVar"):
                    return self.annotated(inner, scope, depth + 1)
                if word in ("Annotated", "Union") and isinstance(inner, ast.Tuple):
                    parts = [part for part in inner.elts if ast.unparse(part) != "None"]
                    is_one = word == "Annotated" or len(parts) == 1
                    return self.annotated(parts[0], scope, depth + 1) if is_one else None
                return None
            case ast.Name() | ast.Attribute():
                match self.value(node, scope, depth + 1):
                    case Real(type() as cls) if self.world.owns(cls.__module__):
                        return Instance(cls)
                    case Own(node=own):
                        return OwnInstance(own)
        return None

    # -- classes of the file itself ------------------------------------------------------------------------------------

    def _scope_around(self, node: ast.ClassDef) -> Scope:
        return self.source.scopes[node].parent or self.source.root

    def bases(self, node: ast.ClassDef, depth: int = 0) -> list[type | ast.ClassDef] | None:
        """Return all real bases and own classes of a class of the file, the nearest first; None if one is unknown."""
        found: list[type | ast.ClassDef] = []
        for base in node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            match self.value(plain, self._scope_around(node), depth):
                case Real(type() as cls):
                    found.append(cls)
                case Real(value=value) if getattr(value, "__module__", "") == "typing":
                    continue  # Generic[T], Protocol[T]: they give no attribute
                case Own(node=own) if depth < _DEEPEST:
                    above = self.bases(own, depth + 1)
                    if above is None:
                        return None
                    found += [own, *above]
                case _:
                    return None
        return found

    def own_members(self, node: ast.ClassDef) -> Members:
        """Return what a class of the file gives its instances by itself."""
        if node in self.members:
            return self.members[node]
        self.members[node] = found = Members()
        scope = self.source.scopes[node]
        found.names.update(scope.names)
        add_stores(node, found)
        if {"__getattr__", "__getattribute__"} & scope.names.keys():
            found.open_because = f"{node.name} has __getattr__"
        return found


def _is_same(value: Value | None, other: Value | None) -> bool:
    match value, other:
        case (Real(value=one), Real(value=two)) | (Live(value=one), Live(value=two)):
            return one is two  # objects may compare in ways of their own
        case (None, _) | (_, None) | (Real(), _) | (_, Real()) | (Live(), _) | (_, Live()):
            return False
    return value == other


def _live(function: Any) -> Live | None:
    """Call an accessor of the runtime context; what it gives is the package's own object."""
    try:
        found = function()
    except Exception:
        return None
    return Live(found, f"{function.__module__}.{function.__name__}()") if found is not None else None
