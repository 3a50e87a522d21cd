"""Pure: which tests around a statement are known to fail in this image, so that it is never reached there.

Nothing is known by a predicate's name: what `is_hip()` says is read from its own body, down to a few facts of the
installed torch. Whatever is rebound, computed or not known here is unknown, and unknown excludes nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache

from builder.model import PLUG_INS, SourceTree
from builder.modules import Modules
from builder.predicates import Truth, combine
from builder.symbols import UnreadableError, absolute, symbols, syntax
from builder.uses import Guard, dotted, shortened

_UNKNOWN = Truth(None, "")
_NOTHING = Truth(False, "")
_TYPING = Truth(False, "only type checkers get there")
_ALWAYS = {"typing.TYPE_CHECKING": _TYPING, "typing_extensions.TYPE_CHECKING": _TYPING}
_BUILDS = {"cu": "CUDA", "rocm": "ROCm", "xpu": "XPU", "cpu": "the CPU alone"}
"""How the local part of torch's version begins, and what that torch is built for."""
_OWN_WORDS = {"torch.version.cuda": "cu", "torch.version.hip": "rocm", "torch.version.xpu": "xpu"}
_LOCAL = re.compile(rf"\+({'|'.join(_BUILDS)})[\d.]*(?:$|[.+-])")
_ENVIRONMENT = {"CUDA_VERSION": "cu", "ROCM_HOME": "rocm", "ROCM_PATH": "rocm", "ROCM_VERSION": "rocm"}
"""What images for one vendor set, asked where torch tells nothing."""
_WRAPPERS = frozenset({"functools.lru_cache", "functools.cache", "functools.partial"})
"""What leaves a function's answer as it is."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_CATCHES_IMPORT_ERROR = frozenset({"", "ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


@dataclass(frozen=True)
class Hardware:
    """What is known of the GPUs that an image can run on, as truths of expressions in Python.

    Keys are canonical: `torch.version.hip` (whether it is set), `torch.cuda.is_available()`, `hasattr(torch, 'npu')`,
    `import torchada` (whether it succeeds). What has no entry is unknown.
    """

    facts: Mapping[str, Truth] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: SourceTree, environment: Iterable[str] = ()) -> Hardware:
        """Derive it from what the base has installed, else from the `NAME=value` lines of the image's environment."""
        installed = tree.distributions
        # Where torch itself was not found, that plug-ins were not found says nothing either.
        absent = PLUG_INS.keys() - installed.keys() if "torch" in installed else frozenset[str]()
        build, why = _build(installed) or _build_by_environment(environment) or ("", "")
        facts = {key: Truth(value, why) for key, value in _of_build(build, absent)} if build else {}
        for key, names in _of_plug_ins():
            if absent.issuperset(names):
                facts[key] = Truth(False, f"{names[0]} is not installed")
        return cls(facts)


def unreachable(chain: Sequence[Guard], path: str, modules: Modules, hardware: Hardware) -> str | None:
    """Say why a statement of `path` that stands within these guards is never reached; None where it may be.

    For example `is_hip() is false here: torch 2.13.0+cu130 is built for CUDA`.
    """
    reader = _Reader(modules, hardware)
    where = _Where(path, is_top=not any(guard.word in ("in def", "in class") for guard in chain))
    for guard in chain:
        truth = reader.truth(guard.text, where) if guard.is_true is not None else _UNKNOWN
        if truth.value is not None and truth.value is not guard.is_true:
            why = truth.fact.strip("; ")
            return f"{shortened(guard.text)} is {str(truth.value).lower()} here" + (f": {why}" if why else "")
    return None


# -- facts of an image -------------------------------------------------------------------------------------------------


def _build(installed: Mapping[str, str]) -> tuple[str, str] | None:
    """Return what torch is built for (a key of `_BUILDS`) and the words for it, None where that is not told."""
    version = installed.get("torch", "")
    local = _LOCAL.search(version)
    # Builds of vendors have a commit as local part; torch's own file says which of the libraries it was built with.
    told = [build for word, build in _OWN_WORDS.items() if installed.get(word)]
    build = local[1] if local else told[0] if len(told) == 1 else ""
    return (build, f"torch {version} is built for {_BUILDS[build]}") if build else None


def _build_by_environment(environment: Iterable[str]) -> tuple[str, str] | None:
    found = {}
    for line in environment:
        name, _, value = line.partition("=")
        if name in _ENVIRONMENT and value:
            found[_ENVIRONMENT[name]] = line
    if len(found) != 1:
        return None
    ((build, line),) = found.items()
    return build, f"the image is built for {_BUILDS[build]} ({line})"


def _of_build(build: str, absent: Set[str]) -> Iterator[tuple[str, bool]]:
    yield "torch.version.hip", build == "rocm"
    # Some plug-ins put themselves in the place of torch.cuda, as torchada does.
    if absent == PLUG_INS.keys():
        yield "torch.version.cuda", build == "cu"
        if build in ("cpu", "xpu"):
            yield "torch.cuda.is_available()", False
    if build != "xpu" and "intel_extension_for_pytorch" in absent:
        yield "torch.xpu.is_available()", False
        yield "torch.version.xpu", False
    # Only builds for Linux and Windows name what they are for.
    yield "torch.backends.mps.is_available()", False
    yield "torch.mps.is_available()", False


def _of_plug_ins() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield what is false where none of these plug-ins is installed."""
    for name, module in PLUG_INS.items():
        yield f"import {module}", (name,)
    yield "hasattr(torch, 'npu')", ("torch_npu",)
    yield "hasattr(torch, 'hpu')", ("habana_torch_plugin",)
    for key in ("hasattr(torch, 'musa')", "hasattr(torch.version, 'musa')", "torch.version.musa"):
        yield key, ("torch_musa", "torchada")


# -- reading a condition -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Where:
    """A file, and whether at its top level: there the names that its functions bind for themselves mean nothing."""

    path: str
    is_top: bool


@dataclass(frozen=True)
class _Place:
    """A value or a function of the package, and where it stands."""

    where: _Where
    node: ast.expr | ast.FunctionDef


class _Reader:
    """Reads conditions in the files of one tree; a name is followed to the one statement that binds it."""

    def __init__(self, modules: Modules, hardware: Hardware) -> None:
        self._modules = modules
        self._facts = {**hardware.facts, **_ALWAYS}
        self._open: set[ast.AST] = set()
        """What is being read: something that leads back to itself is unknown."""

    def truth(self, text: str, where: _Where) -> Truth:
        """Judge a test as it is written in a file."""
        try:
            return self._of(ast.parse(text, mode="eval").body, where)
        except (SyntaxError, ValueError, RecursionError, UnreadableError):
            return _UNKNOWN

    def _of(self, node: ast.expr, where: _Where) -> Truth:
        match node:
            case ast.Constant():
                return Truth(bool(node.value), "")
            case ast.BoolOp(op=op, values=values):
                return combine("and" if isinstance(op, ast.And) else "or", [self._of(part, where) for part in values])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return _inverted(self._of(operand, where))
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as sign], comparators=[ast.Constant(value=None)]):
                truth = self._fact(self._name(left, where))
                return truth if isinstance(sign, ast.IsNot) else _inverted(truth)
            case ast.Call(args=[inner], keywords=[]) if self._name(node.func, where) == "builtins.bool":
                return self._of(inner, where)
            case ast.Call() if (function := self._function(node.func, where)) is not None:
                return self._once(function, lambda: self._returned(function))
        place = self._place(node, where)
        if not isinstance(place, _Place):
            return self._fact(self._name(node, where))
        value = place.node
        # A plain flag is there to be set by somebody else, and a function that is not called tells nothing.
        if isinstance(value, ast.Constant | ast.FunctionDef):
            return _UNKNOWN
        return self._once(place, lambda: self._of(value, place.where))

    def _once(self, place: _Place, ask: Callable[[], Truth]) -> Truth:
        if place.node in self._open:
            return _UNKNOWN
        self._open.add(place.node)
        try:
            return ask()
        finally:
            self._open.remove(place.node)

    def _fact(self, name: str | None) -> Truth:
        return self._facts.get(name or "", _UNKNOWN)

    # -- names ---------------------------------------------------------------------------------------------------------

    def _name(self, node: ast.expr, where: _Where) -> str | None:
        """Return how the facts call something that is not of the package, such as `torch.version.hip`."""
        match node:
            case ast.Call(func=function, args=arguments, keywords=[]):
                called = self._name(function, where)
                of = self._name(arguments[0], where) if arguments else None
                match called, arguments[1:]:
                    case str(), [] if not arguments:
                        return f"{called}()"
                    case "builtins.hasattr", [ast.Constant(value=str(name))] if of:
                        return f"hasattr({of}, {name!r})"
                    case "builtins.getattr", [ast.Constant(value=str(name)), ast.Constant(value=None)] if of:
                        return f"{of}.{name}"
                return None
        found = self._place(node, where)
        return found if isinstance(found, str) else None

    def _place(self, node: ast.expr, where: _Where) -> _Place | str | None:
        """Return what a name or attribute stands for: a place in the package, or a dotted name outside of it."""
        root, *names = dotted(node)
        return self._walk(self._bound(where, root), names) if root else None

    def _walk(self, found: _Place | str | None, names: Iterable[str]) -> _Place | str | None:
        for name in names:
            if not isinstance(found, str):
                return None
            found = self._member(found, name) if self._modules.owns(found) else f"{found}.{name}"
        return found

    def _member(self, module: str, name: str) -> _Place | str | None:
        path = self._modules.paths.get(module) if self._modules.has(module) else None
        own = self._bound(_Where(path, is_top=True), name) if path else f"builtins.{name}"
        if own != f"builtins.{name}":
            return own
        # What a package does not bind itself may be a module in it.
        return f"{module}.{name}" if self._modules.has(f"{module}.{name}") else None

    def _bound(self, where: _Where, name: str) -> _Place | str | None:
        """Return what a file binds a name to if that is one thing wherever it does, else a built-in one."""
        data = self._modules.read(where.path)
        known = symbols(data, where.path)
        found = {_key(each.to): each for each in _bindings(data).get(name, ()) if each.is_top or not where.is_top}
        stars = [star for star in known.stars if self._may_have(star, name)]
        if len(found) + len(stars) > 1 or "writes" in known.open_because:
            return None
        if stars:
            return self._member(stars[0], name)
        if not found:
            return f"builtins.{name}"
        ((_, binding),) = found.items()
        if isinstance(binding.to, _Import):
            return self._imported(binding.to, where.path)
        return _Place(_Where(where.path, binding.is_top), binding.to) if binding.to else None

    def _imported(self, source: _Import, path: str) -> _Place | str | None:
        module = absolute(ast.ImportFrom(source.module, [], source.level), path)
        return self._walk(module, [source.name] if source.name else [])

    def _may_have(self, star: str, name: str) -> bool:
        if not self._modules.owns(star) or not self._modules.has(star):
            return True
        return self._modules.look_up(star, name).state != "missing"

    def _function(self, node: ast.expr, where: _Where) -> _Place | None:
        """Return the function of the package that is called by this expression."""
        place = self._place(node, where)
        while isinstance(place, _Place) and isinstance(place.node, ast.Call):
            # `lru_cache(maxsize=1)(partial(function, ...))`
            call = place.node
            maker = call.func.func if isinstance(call.func, ast.Call) else call.func
            if self._name(maker, place.where) not in _WRAPPERS or not call.args:
                return None
            inner = call.args[0]
            place = self._place(inner, place.where) if dotted(inner)[0] else _Place(place.where, inner)
        return place if isinstance(place, _Place) and isinstance(place.node, ast.FunctionDef) else None

    # -- functions -----------------------------------------------------------------------------------------------------

    def _returned(self, place: _Place) -> Truth:
        """Judge what a function returns, by all ways through it and for all arguments."""
        function, where = place.node, _Where(place.where.path, is_top=False)
        assert isinstance(function, ast.FunctionDef)
        decorators = [each.func if isinstance(each, ast.Call) else each for each in function.decorator_list]
        if any(self._name(each, where) not in _WRAPPERS for each in decorators) or _is_generator(function):
            return _UNKNOWN
        returned, comes_to_end = self._run(function.body, where)
        truths = [*returned, *([_NOTHING] if comes_to_end else [])]
        is_agreed = len({truth.value for truth in truths}) == 1
        return max(truths, key=lambda truth: bool(truth.fact)) if is_agreed else _UNKNOWN

    def _run(self, body: Iterable[ast.stmt], where: _Where) -> _Ways:
        returned: list[Truth] = []
        for node in body:
            more, goes_on = self._step(node, where)
            returned += more
            if not goes_on:
                return returned, False
        return returned, True

    def _step(self, node: ast.stmt, where: _Where) -> _Ways:
        match node:
            case ast.Return(value=value):
                return [self._of(value, where) if value else _NOTHING], False
            case ast.Raise():
                return [], False
            case ast.If(test=test, body=body, orelse=other):
                truth = self._of(test, where)
                if truth.value is None:
                    return _either([self._run(body, where), self._run(other, where)])
                return _because(truth, self._run(body if truth.value else other, where))
            case ast.Import() if self._failing(node):
                return [], False
            case ast.Try(body=[ast.Import() as first, *_], handlers=handlers, finalbody=[]) if self._failing(first):
                catching = next((each.body for each in handlers if _catches_import_error(each)), None)
                return _because(self._failing(first), self._run(catching, where)) if catching else ([], False)
            case ast.Try(body=body, orelse=other, handlers=handlers, finalbody=[]):
                return _either([self._run(part, where) for part in ([*body, *other], *(h.body for h in handlers))])
            case ast.Pass() | ast.Import() | ast.ImportFrom() | ast.Assign() | ast.AnnAssign():
                return [], True
            case ast.Expr(value=ast.Constant()):
                return [], True
        return [_UNKNOWN], False

    def _failing(self, node: ast.Import) -> Truth | None:
        """Return the fact that makes an import fail."""
        facts = [self._fact(f"import {alias.name.partition('.')[0]}") for alias in node.names]
        return next((fact for fact in facts if fact.value is False), None)


_Ways = tuple[list[Truth], bool]
"""What a body may return, and whether it may come to its end."""


def _either(ways: list[_Ways]) -> _Ways:
    return [truth for returned, _ in ways for truth in returned], any(goes_on for _, goes_on in ways)


def _because(truth: Truth | None, ways: _Ways) -> _Ways:
    """Give the constants that are returned the reason why this way was taken."""
    why = truth.fact if truth else ""
    return [replace(each, fact=each.fact or why) for each in ways[0]], ways[1]


def _inverted(truth: Truth) -> Truth:
    return replace(truth, value=None if truth.value is None else not truth.value)


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(each is None or dotted(each)[-1] in _CATCHES_IMPORT_ERROR for each in caught)


def _is_generator(function: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))


@dataclass(frozen=True)
class _Import:
    """What an import takes: a module, or a name out of one; `level` counts the dots of a relative one."""

    module: str | None
    name: str | None = None
    level: int = 0


@dataclass(frozen=True, eq=False)
class _Binding:
    """What a name is bound to in one place, None for what is not read; `is_top` tells whether for the whole module."""

    to: ast.expr | ast.FunctionDef | _Import | None
    is_top: bool


def _key(to: ast.expr | ast.FunctionDef | _Import | None) -> object:
    """Return what is equal for bindings to the same thing."""
    return ast.dump(to) if isinstance(to, ast.expr) else to


@lru_cache(maxsize=64)
def _bindings(data: bytes) -> Mapping[str, tuple[_Binding, ...]]:
    """Return what a source binds each name to, in any scope."""
    found: dict[str, list[_Binding]] = {}
    of_module: set[str] = set()
    values: dict[ast.expr, ast.expr | None] = {}
    queue: list[tuple[ast.AST, bool]] = [(syntax(data), True)]
    while queue:
        node, is_top = queue.pop()
        match node:
            case ast.Assign(targets=targets, value=value):
                values |= dict.fromkeys(targets, value)
            case ast.AnnAssign(target=target, value=value):
                values[target] = value
            case ast.Global(names=names):
                of_module.update(names)
        for name, to in _bound_by(node, values):
            found.setdefault(name, []).append(_Binding(to, is_top))
        is_inner = not is_top or isinstance(node, _SCOPES)
        queue += [(child, not is_inner) for child in ast.iter_child_nodes(node)]
    return {
        name: tuple(replace(each, is_top=each.is_top or name in of_module) for each in bindings)
        for name, bindings in found.items()
    }


def _bound_by(
    node: ast.AST, values: Mapping[ast.expr, ast.expr | None]
) -> Iterator[tuple[str, ast.expr | ast.FunctionDef | _Import | None]]:
    """Yield what a node itself binds; `values` are those of the targets of plain assignments."""
    match node:
        case ast.Import(names=aliases):
            for alias in aliases:
                # `import a.b` binds a.
                top = alias.name.partition(".")[0]
                yield alias.asname or top, _Import(alias.name if alias.asname else top)
        case ast.ImportFrom(module=module, names=aliases, level=level):
            yield from ((alias.asname or alias.name, _Import(module, alias.name, level)) for alias in aliases)
        case ast.FunctionDef(name=name):
            yield name, node
        case ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
            yield name, None
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            # `x: int` alone binds nothing.
            if node not in values or values[node] is not None:
                yield name, values.get(node)
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name, None
        case ast.MatchMapping(rest=str(name)):
            yield name, None
