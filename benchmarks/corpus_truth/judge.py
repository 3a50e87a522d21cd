"""Judge what one source uses of the package: each use resolves in this interpreter, does not, or cannot be told."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from .sources import Event, Scope, Source
from .values import Instance, Live, Own, OwnInstance, Reader, Real
from .world import Answer, World, is_inert

_IMPLICIT = frozenset(dir(types.ModuleType("m"))) | {"__file__", "__path__", "__builtins__"}
_OK = Answer("ok")
_ITSELF = Answer("undecidable", why="it rests on the judged file itself, of which the interpreter has another version")


@dataclass(frozen=True)
class Use:
    """One use and its verdict.

    `text` is the use as it is written; with line and column it names the place, whatever `symbol` it resolves to.
    `homes` are the modules of the package that decide; `why` explains all but "ok". `origins` are where those take an
    imported name from: the names of a module and of what is taken out of it.
    """

    kind: str
    line: int
    column: int
    text: str
    symbol: str
    state: str
    why: str
    homes: tuple[str, ...]
    guards: tuple[str, ...]
    origins: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        return asdict(self)


class Judge:
    """Judges one source, which need not be the one that the interpreter has imported under its name."""

    def __init__(self, source: Source, world: World) -> None:
        self.source = source
        self.world = world
        self.reader = Reader(source, world)

    def uses(self) -> Iterator[Use]:
        """Yield every use once per place."""
        seen = set()
        for event in self.source.events:
            for use in self._event(event):
                key = (use.kind, use.line, use.column, use.text)
                if key not in seen:
                    seen.add(key)
                    yield use

    def _event(self, event: Event) -> Iterator[Use]:
        match event.node:
            case ast.Import(names=names):
                for alias in names:
                    if self.world.owns(alias.name):
                        yield self._module(alias.name, alias, event)
            case ast.ImportFrom() as node:
                yield from self._from(node, event)
            case ast.Attribute() as node:
                yield from self._attribute(node, event)
            case ast.Call() as node:
                yield from self._call(node, event)

    def _use(
        self,
        kind: str,
        node: ast.expr | ast.stmt | ast.alias,
        symbol: str,
        answer: Answer,
        homes: tuple[str, ...],
        event: Event,
    ) -> Use:
        if self.source.module in homes:
            answer = _ITSELF
        # An attribute stands where it ends: a chain over several lines has each name on its own.
        line = (node.end_lineno if isinstance(node, ast.Attribute) else node.lineno) or node.lineno
        text = ast.unparse(node.func if isinstance(node, ast.Call) else node)[:200]
        column = node.col_offset if isinstance(node, ast.Call) else (node.end_col_offset or 0)
        return Use(kind, line, column, text, symbol, answer.state, answer.why[:300], homes, event.guards)

    # -- imports -------------------------------------------------------------------------------------------------------

    def _module(self, name: str, node: ast.alias | ast.ImportFrom, event: Event) -> Use:
        return self._use("module-missing", node, name, self.world.exists(name), (name,), event)

    def _from(self, node: ast.ImportFrom, event: Event) -> Iterator[Use]:
        module = self.source.absolute(node)
        if module is None or not self.world.owns(module):
            return
        said = self._module(module, node, event)
        yield said
        if self.world.exists(module).state == "ok":
            for alias in node.names:
                if alias.name != "*":
                    yield self._name(module, alias.name, alias, event)

    def _name(self, module: str, name: str, node: ast.alias | ast.Attribute, event: Event) -> Use:
        answer = self.world.name(module, name)
        below = f"{module}.{name}"
        homes = (module, below) if isinstance(answer.value, types.ModuleType) else (module,)
        use = self._use("name-missing", node, below, answer, homes, event)
        return replace(use, origins=self.world.origins(module, name))

    # -- attributes ----------------------------------------------------------------------------------------------------

    def _attribute(self, node: ast.Attribute, event: Event) -> Iterator[Use]:
        if any(node.attr in scope.tested for scope in event.scope.chain()):
            return
        value = self.reader.value(node.value, event.scope)
        match value:
            case Real(types.ModuleType() as module):
                if self.world.owns(module.__name__) and node.attr not in _IMPLICIT:
                    yield self._name(module.__name__, node.attr, node, event)
            case Real(type() as cls):
                yield from self._of_class(cls, self._has_itself(cls, node.attr), node, event)
            case Instance(cls=cls):
                yield from self._of_class(cls, self._has(cls, node.attr), node, event)
            case Real(value=held) | Live(value=held) if not inspect.isroutine(held):
                yield from self._of_live(held, value.text if isinstance(value, Live) else "", node, event)
            case OwnInstance(node=own, is_super=is_super):
                yield from self._of_own(own, node, event, is_super=is_super)

    def _of_class(self, cls: type, answer: Answer, node: ast.Attribute, event: Event) -> Iterator[Use]:
        if self.world.owns(cls.__module__):
            homes = self._homes(cls, node.attr)
            yield self._use("attribute-missing", node, f"{_name_of(cls)}.{node.attr}", answer, homes, event)

    def _has_itself(self, cls: type, name: str) -> Answer:
        """Tell whether a class itself, not its instances, has an attribute."""
        try:
            getattr(cls, name)
        except AttributeError as error:
            is_open = self.world.members(cls).open_because
            return Answer("undecidable", why=is_open) if is_open else Answer("missing", why=str(error))
        except Exception as error:
            return Answer("undecidable", why=str(error))
        return _OK

    def _has(self, cls: type, name: str) -> Answer:
        known = self.world.members(cls)
        if name in known.names or hasattr(cls, name):
            return _OK
        if known.open_because:
            return Answer("undecidable", why=known.open_because)
        if name in self.world.written_elsewhere:
            return Answer("undecidable", why=f"some file writes .{name} on an object")
        return Answer("missing", why=f"{_name_of(cls)} has no {name}")

    def _homes(self, cls: type, name: str) -> tuple[str, ...]:
        """Return the module of the class that defines an attribute; of all bases where none does."""
        bases = [part for part in cls.__mro__ if self.world.owns(part.__module__)]
        defining = next((part for part in bases if name in self.world.members_of(part).names), None)
        return (defining.__module__,) if defining else tuple(dict.fromkeys(part.__module__ for part in bases))

    def _of_live(self, value: Any, text: str, node: ast.Attribute, event: Event) -> Iterator[Use]:
        cls = type(value)
        if not self.world.owns(cls.__module__) or is_inert(value):
            return
        answer = _OK
        # Looked up without running properties, which may load a model; only a fallback of the class is called.
        if inspect.getattr_static(value, node.attr, None) is None and node.attr not in self.world.members(cls).names:
            try:
                getattr(value, node.attr)
            except AttributeError as error:
                answer = Answer("missing", why=str(error))
            except Exception as error:
                answer = Answer("undecidable", why=f"{type(error).__name__}: {error}")
        is_bag = cls.__name__.endswith("ConfigBag")
        symbol = f"{text if is_bag else _name_of(cls)}.{node.attr}"
        kind = "config-leaf-missing" if is_bag else "attribute-missing"
        yield self._use(kind, node, symbol, answer, self._homes(cls, node.attr), event)

    def _of_own(self, own: ast.ClassDef, node: ast.Attribute, event: Event, *, is_super: bool) -> Iterator[Use]:
        bases = self.reader.bases(own)
        if not bases:
            return
        members = [] if is_super else [self.reader.own_members(own)]
        members += [self.reader.own_members(base) for base in bases if isinstance(base, ast.ClassDef)]
        real = [base for base in bases if isinstance(base, type)]
        homes = tuple(dict.fromkeys(home for cls in real for home in self._homes(cls, node.attr)))
        if not homes or any(node.attr in known.names for known in members):
            return
        answers = {answer.state: answer for answer in (self._has(cls, node.attr) for cls in real)}
        opened = [known.open_because for known in members if known.open_because]
        if "ok" in answers:
            answer = _OK
        elif opened:
            answer = Answer("undecidable", why=opened[0])
        else:
            answer = answers.get("undecidable", answers.get("missing", _OK))
        yield self._use("attribute-missing", node, f"{self.source.module}.{own.name}.{node.attr}", answer, homes, event)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, event: Event) -> Iterator[Use]:
        found = self._callee(node.func, event.scope)
        if found is None or is_inert(found[0]):
            return
        called, is_method = found
        decides = _deciding(called)
        home = getattr(decides, "__module__", None)
        if isinstance(home, str) and self.world.owns(home):
            answer = self._fits(called, node, is_method=is_method)
            if self._is_ambiguous(decides, home):
                answer = Answer("undecidable", why=f"{home} defines it in several places, or not by name")
            yield self._use("signature", node, _name_of(_plain(called)), answer, (home,), event)

    def _is_ambiguous(self, decides: Any, home: str) -> bool:
        name = getattr(decides, "__qualname__", "")
        source = self.world.source(home)
        return source is None or "<locals>" in name or len(source.definitions(name)) != 1

    def _callee(self, node: ast.expr, scope: Scope) -> tuple[Any, bool] | None:
        """Return the object that is called, and whether it takes the receiver as one more argument."""
        if isinstance(node, ast.Attribute):
            match self.reader.value(node.value, scope):
                case Instance(cls=cls):
                    return self._method(cls, node.attr)
                case OwnInstance(node=own, is_super=is_super):
                    return self._method_of_own(own, node.attr, is_super=is_super)
        match self.reader.value(node, scope):
            case Real(value=value, module=module, name=name) if callable(value):
                if name and self.world.owns(module) and self.world.is_ambiguous(module, name.partition(".")[0]):
                    return None
                return value, False
            case Live(value=value) if inspect.ismethod(value):
                return value, False
            case Own(node=own) if not own.decorator_list and not own.keywords:
                return self._method_of_own(own, "__init__", is_super=False)
        return None

    def _method(self, cls: type, name: str) -> tuple[Any, bool] | None:
        try:
            raw = inspect.getattr_static(cls, name)
        except AttributeError:
            return None
        if isinstance(raw, staticmethod | classmethod):
            return raw.__func__, isinstance(raw, classmethod)
        return (raw, True) if inspect.isfunction(raw) else None

    def _method_of_own(self, own: ast.ClassDef, name: str, *, is_super: bool) -> tuple[Any, bool] | None:
        bases = self.reader.bases(own)
        for place in (bases if is_super else [own, *bases]) if bases else ():
            if isinstance(place, ast.ClassDef):
                known = self.reader.own_members(place)
                if name in known.names or known.open_because:
                    return None
            elif hasattr(place, name):
                return self._method(place, name)
        return None

    def _fits(self, called: Any, node: ast.Call, *, is_method: bool) -> Answer:
        try:
            signature = inspect.signature(called)
        except (ValueError, TypeError) as error:
            return Answer("undecidable", why=f"no signature: {error}")
        if self._swallows(signature, _plain(called)):
            return Answer("undecidable", why="a wrapper takes whatever it is given")
        positional = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
        named = {word.arg: None for word in node.keywords if word.arg}
        is_whole = len(positional) == len(node.args) and len(named) == len(node.keywords)
        try:
            # What `*` and `**` bring is not known, so only what is written can be too much.
            bind = signature.bind if is_whole else signature.bind_partial
            bind(*[None] * (len(positional) + is_method), **named)
        except TypeError as error:
            return Answer("missing", why=f"{error}; the signature is {signature}")
        return _OK

    def _swallows(self, signature: inspect.Signature, plain: Any) -> bool:
        """Tell whether a decorator hides the parameters that the source gives."""
        kinds = {parameter.kind for parameter in signature.parameters.values()}
        if not kinds or not kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            return False
        source = self.world.source(getattr(plain, "__module__", ""))
        nodes = source.definitions(getattr(plain, "__qualname__", "")) if source else []
        functions = [node for node in nodes if not isinstance(node, ast.ClassDef)]
        return not any(node.args.vararg or node.args.kwarg for node in functions)


def _plain(called: Any) -> Any:
    """Return what decorators wrap."""
    try:
        called = inspect.unwrap(called)
    except ValueError:
        return called
    return getattr(called, "__func__", called)


def _deciding(called: Any) -> Any:
    """Return the function or class whose definition decides what arguments are taken."""
    if not inspect.isclass(called):
        return _plain(called)
    for part in called.__mro__:
        made = vars(part).get("__init__") or vars(part).get("__new__")
        if made is not None:
            # What a dataclass makes stands nowhere in the source; its class does.
            is_written = inspect.isfunction(made) and made.__code__.co_filename != "<string>"
            return _plain(made) if is_written else part
    return called


def _name_of(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
