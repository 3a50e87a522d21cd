"""Pure: where a file touches definitions of other files: classes it inherits from, what it calls, objects it writes to.

An object's class is known where it is annotated (parameters, variables, attributes), constructed or tested for with
`isinstance`, and never guessed from a name.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from builder.modules import MISSING, Answer, Modules
from builder.symbols import UnreadableError, absolute, bound_names, module_of, parse, symbols, syntax
from builder.uses import dotted

_DEFINITION = re.compile(rb"[ \t]*(?:async[ \t]+)?(def|class)[ \t]+(\w+)")
_ALIAS = re.compile(rb"[ \t]*\w+[ \t]*(?::[^=\n]+)?=[ \t]*([A-Za-z_][\w.]*)[ \t]*(?:#|$)")
_WRAPPERS = frozenset({"Annotated", "ClassVar", "Final", "NotRequired", "Optional", "Required", "Union"})
"""Words of annotations around the class that the value itself is of."""
_MOST_ALIASES = 8


@dataclass(frozen=True)
class Touch:
    """One place, at `line`, that touches the definition `name` of another file, `path`.

    `subject` is the class that inherits, the function called or the attribute written, as people read it. `is_class`
    tells that any member of `name` may matter. `through` is the class by which one inherits that is no direct base.
    """

    line: int
    verb: Literal["inherits", "calls", "writes"]
    path: str
    name: str
    subject: str
    is_class: bool = False
    through: str = ""


def touches(path: str, modules: Modules) -> tuple[Touch, ...]:
    """Return what a file touches of the package's other files; raise UnreadableError where it does not parse."""
    visitor = _Visitor(path, modules)
    visitor.visit(syntax(modules.read(path)))
    return tuple(dict.fromkeys(touch for touch in visitor.found if touch.path != path))


# -- definitions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Definition:
    """A function or class, and what of it was asked for: `rest` are the attributes after its name."""

    path: str
    line: int
    name: str
    is_class: bool
    rest: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Class:
    """A class: where it stands, its bases as written, and the names that its body binds."""

    path: str
    name: str
    line: int
    bases: tuple[tuple[str, ...], ...]
    members: frozenset[str]


@lru_cache(maxsize=256)
def _classes(data: bytes, path: str) -> Mapping[int, _Class]:
    """Return the classes of a source by their lines, wherever they stand; raise UnreadableError."""
    return {found.line: found for found in _classes_in(parse(data), path, "")}


def _classes_in(node: ast.AST, path: str, prefix: str) -> Iterator[_Class]:
    for child in _statements(node):
        inner = prefix
        if isinstance(child, ast.ClassDef):
            bases = (dotted(base.value if isinstance(base, ast.Subscript) else base) for base in child.bases)
            members = frozenset(name for each in _in_scope(child) for name in bound_names(each))
            yield _Class(path, prefix + child.name, child.lineno, tuple(b for b in bases if b[0]), members)
            inner = f"{prefix}{child.name}."
        yield from _classes_in(child, path, inner)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements right within a node, those of its branches included."""
    for part in ("body", "orelse", "finalbody"):
        yield from getattr(node, part, ())
    for branch in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield from branch.body


def _in_scope(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of one function, class or module, those of functions and classes in it left out."""
    for child in _statements(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _in_scope(child)


class _Definitions:
    """Finds definitions of a tree by the names that a file has for them, through imports, re-exports and aliases."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules

    def seen_from(self, path: str, names: Sequence[str], *, hops: int = _MOST_ALIASES) -> _Definition | None:
        """Return what a dotted name means at the top level of a file."""
        module, (root, *rest) = module_of(path), names
        if module is None or not self._modules.has(module):
            return None
        try:
            bindings = symbols(self._modules.read(path), path).names.get(root, ())
        except UnreadableError:
            return None
        for binding in bindings if rest else ():
            found = f"{binding.module}.{binding.name}" if binding.name else binding.module
            if found and self._modules.owns(found) and self._modules.has(found):
                return self.member(found, rest, hops=hops)
        return self._at(self._modules.look_up(module, root, is_typing=True), rest, hops)

    def member(self, module: str, names: Sequence[str], *, hops: int = _MOST_ALIASES) -> _Definition | None:
        """Return what a dotted name means in a module, submodules included."""
        names = list(names)
        while len(names) > 1 and self._modules.has(f"{module}.{names[0]}"):
            module = f"{module}.{names.pop(0)}"
        is_there = names and self._modules.owns(module) and self._modules.has(module)
        answer = self._modules.look_up(module, names[0], is_typing=True) if is_there else MISSING
        return self._at(answer, names[1:], hops)

    def _at(self, answer: Answer, rest: Sequence[str], hops: int) -> _Definition | None:
        if answer.state != "defined" or not answer.path.endswith(".py"):
            return None
        line = self._modules.read(answer.path).split(b"\n", answer.line)[answer.line - 1]
        if match := _DEFINITION.match(line):
            is_class = match[1] == b"class"
            return _Definition(answer.path, answer.line, match[2].decode("utf-8", "replace"), is_class, tuple(rest))
        if (alias := _ALIAS.match(line)) and hops:
            target = alias[1].decode("utf-8", "replace").split(".")
            return self.seen_from(answer.path, [*target, *rest], hops=hops - 1)
        return None

    def class_of(self, found: _Definition | None) -> _Class | None:
        """Return the class that a definition is, None for a function or an attribute of a class."""
        if found is None or not found.is_class or found.rest:
            return None
        try:
            return _classes(self._modules.read(found.path), found.path).get(found.line)
        except UnreadableError:
            return None

    def lineage(self, of: _Class) -> Iterator[tuple[_Class, str]]:
        """Yield a class and all it inherits from, each with the name of the class by which it does."""
        queue, seen = [(of, "")], set()
        while queue:
            current, through = queue.pop(0)
            if (current.path, current.line) in seen:
                continue
            seen.add((current.path, current.line))
            yield current, through
            above = (self.class_of(self.seen_from(current.path, base)) for base in current.bases)
            queue = [*((base, current.name) for base in above if base is not None), *queue]

    def owner(self, of: _Class, member: str, *, is_above: bool = False) -> _Class | None:
        """Return the class that gives `of` this member: itself (unless only those above are asked for), or a base."""
        return next(
            (each for each, _ in self.lineage(of) if member in each.members and not (is_above and each == of)), None
        )


# -- one file ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Import:
    """What an import in a function binds a name to."""

    module: str
    name: str | None


_Scope = dict[str, "tuple[_Class, ...] | _Import"]
"""What the names of a function stand for: objects of these classes (none: not known), or something imported."""


class _Visitor(ast.NodeVisitor):
    """Walks one file and notes what it touches."""

    def __init__(self, path: str, modules: Modules) -> None:
        self.found: list[Touch] = []
        self._path = path
        self._own = _classes(modules.read(path), path)
        self._definitions = _Definitions(modules)
        self._scopes: list[_Scope] = []
        self._class: _Class | None = None
        self._is_in_body = False
        """Whether the walk is right in the body of `_class`, where functions are methods."""
        self._self = ""
        self._attributes: Mapping[str, tuple[_Class, ...]] = {}
        """Annotated attributes of `_class`."""

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer = self._class, self._is_in_body, self._attributes, self._self
        own = self._own[node.lineno]
        for base, through in self._definitions.lineage(own):
            via = through if through != own.name else ""
            self.found.append(Touch(node.lineno, "inherits", base.path, base.name, own.name, True, via))
        for decorator in node.decorator_list:
            self._decorated(decorator)
        self._class, self._is_in_body, self._attributes = own, True, dict(self._annotated_attributes(node))
        for statement in node.body:
            self.visit(statement)
        self._class, self._is_in_body, self._attributes, self._self = outer

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self._decorated(decorator)
        outer = self._is_in_body, self._self
        scope = _bound(node, self._path)
        self._scopes.append(scope)
        scope |= dict(self._classes_bound(node))
        if self._is_in_body and self._class and (first := _first_argument(node)):
            self._self = first
            scope[first] = (self._class,)
        self._is_in_body = False
        for child in (*node.args.defaults, *node.args.kw_defaults, *node.body):
            if child is not None:
                self.visit(child)
        self._scopes.pop()
        self._is_in_body, self._self = outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Call(self, node: ast.Call) -> None:
        self._called(node.func)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Store | ast.Del):
            self._written(node)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.ctx, ast.Store | ast.Del) and isinstance(node.value, ast.Attribute):
            self._written(node.value)
        self.generic_visit(node)

    def _decorated(self, node: ast.expr) -> None:
        if isinstance(node, ast.Name | ast.Attribute):
            self._called(node)
        self.visit(node)

    def _called(self, function: ast.expr) -> None:
        line = function.lineno
        if isinstance(function, ast.Attribute) and _is_super(function.value) and self._class:
            self._note_method(line, self._class, function.attr, is_above=True)
            return
        *of, name = dotted(function)
        for owner in self._classes_of(of):
            self._note_method(line, owner, name)
        found = self._defined([*of, name]) if (of or [name])[0] else None
        if found is None:
            return
        owner_of_method = self._definitions.class_of(_Definition(found.path, found.line, found.name, found.is_class))
        if found.rest and owner_of_method and len(found.rest) == 1:
            self._note_method(line, owner_of_method, found.rest[0])
        elif not found.rest:
            name = owner_of_method.name if owner_of_method else found.name
            subject = f"{(module_of(found.path) or '').rpartition('.')[2]}.{name}"
            self.found.append(Touch(line, "calls", found.path, name, subject, found.is_class))

    def _note_method(self, line: int, of: _Class, method: str, *, is_above: bool = False) -> None:
        owner = self._definitions.owner(of, method, is_above=is_above)
        if owner is not None:
            name = f"{owner.name}.{method}"
            self.found.append(Touch(line, "calls", owner.path, name, name))

    def _written(self, node: ast.Attribute) -> None:
        of = dotted(node.value)
        for owner in self._classes_of(of) if of != (self._self,) else ():
            for each, _ in self._definitions.lineage(owner):
                subject = f"{owner.name}.{node.attr}"
                self.found.append(Touch(node.lineno, "writes", each.path, each.name, subject, True))

    # -- what names stand for ------------------------------------------------------------------------------------------

    def _classes_of(self, names: Sequence[str]) -> tuple[_Class, ...]:
        """Return the classes that a variable, or an attribute of the own object, is annotated with."""
        if len(names) == 2 and names[0] == self._self:
            return self._attributes.get(names[1], ())
        meaning = self._meaning(names[0]) if len(names) == 1 and names[0] else None
        return meaning if isinstance(meaning, tuple) else ()

    def _meaning(self, name: str) -> tuple[_Class, ...] | _Import | None:
        return next((scope[name] for scope in reversed(self._scopes) if name in scope), None)

    def _defined(self, names: Sequence[str]) -> _Definition | None:
        root, *rest = names
        meaning = self._meaning(root)
        if isinstance(meaning, tuple):
            return None  # a name of this function, whatever the module has under it
        if meaning is None:
            return self._definitions.seen_from(self._path, names)
        below = [*([meaning.name] if meaning.name else []), *rest]
        return self._definitions.member(meaning.module, below) if below else None

    def _annotation(self, node: ast.expr | None) -> tuple[_Class, ...]:
        """Return the classes of the package that an annotation allows."""
        match node:
            case ast.Constant(value=str(text)):
                try:
                    return self._annotation(ast.parse(text.strip(), mode="eval").body)
                except (SyntaxError, ValueError):
                    return ()
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return (*self._annotation(left), *self._annotation(right))
            case ast.Subscript(value=value, slice=inner) if dotted(value)[-1:] and dotted(value)[-1] in _WRAPPERS:
                parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
                return tuple(found for part in parts for found in self._annotation(part))
            case ast.Subscript(value=value):
                return self._annotation(value)
            case ast.Name() | ast.Attribute() if dotted(node)[0]:
                found = self._definitions.class_of(self._defined(dotted(node)))
                return (found,) if found else ()
        return ()

    def _classes_bound(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, tuple[_Class, ...]]]:
        """Yield the names of a function whose classes are known; what is annotated comes last, and wins."""
        bound = Counter(name for statement in _in_scope(node) for name in bound_names(statement))
        told: list[tuple[str, ast.expr | None]] = []
        for part in ast.walk(node):
            match part:
                case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=name), of]):
                    told.append((name, of))
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=made)) if bound[name] == 1:
                    told.append((name, made))
        told += [(argument.arg, argument.annotation) for argument in _arguments(node)]
        for statement in _in_scope(node):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                told.append((statement.target.id, statement.annotation))
        yield from ((name, classes) for name, of in told if (classes := self._annotation(of)))

    def _annotated_attributes(self, node: ast.ClassDef) -> Iterator[tuple[str, tuple[_Class, ...]]]:
        """Yield the attributes that the body annotates, and those that methods annotate or take from a parameter."""
        for statement in _in_scope(node):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                yield statement.target.id, self._annotation(statement.annotation)
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._set_on_self(statement)

    def _set_on_self(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, tuple[_Class, ...]]]:
        annotations = {argument.arg: argument.annotation for argument in _arguments(node)}
        annotation: ast.expr | None
        for statement in _in_scope(node):
            match statement:
                case ast.AnnAssign(target=ast.Attribute(value=ast.Name(id=own), attr=name)):
                    annotation = statement.annotation
                case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=own), attr=name)], value=ast.Name(id=given)):
                    annotation = annotations.get(given)
                case _:
                    continue
            if own == _first_argument(node) and (classes := self._annotation(annotation)):
                yield name, classes


def _bound(node: ast.FunctionDef | ast.AsyncFunctionDef, path: str) -> _Scope:
    """Return the names that a function binds, imports with where they lead."""
    scope: _Scope = {}
    for statement in _in_scope(node):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            scope |= _imports(statement, path)
        for name in bound_names(statement):
            scope.setdefault(name, ())
    given = node.args
    named = (*_arguments(node), *filter(None, (given.vararg, given.kwarg)))
    return {**scope, **{argument.arg: () for argument in named}}


def _imports(node: ast.Import | ast.ImportFrom, path: str) -> _Scope:
    if isinstance(node, ast.Import):
        # `import a.b` binds a.
        parts = ((alias.asname, alias.name, alias.name.partition(".")[0]) for alias in node.names)
        return {asname or top: _Import(name if asname else top, None) for asname, name, top in parts}
    module = absolute(node, path) or ""
    return {alias.asname or alias.name: _Import(module, alias.name) for alias in node.names}


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    given = node.args
    # What `*args: X` and `**kwargs: X` bind is no X.
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def _first_argument(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    is_static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list)
    arguments = [*node.args.posonlyargs, *node.args.args]
    return arguments[0].arg if arguments and not is_static else ""


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
