"""One interpreter and the package in it: real modules, real names, and what instances of real classes have."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import importlib.util
import inspect
import io
import os
import re
import signal
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Literal

from .sources import Binding, Source, arguments, defined

State = Literal["ok", "missing", "undecidable"]

_SECONDS_PER_IMPORT = 60
_MODULE_CLASS = "torch.nn.modules.module.Module"
"""Its `__getattr__` serves what was registered, which is read from the sources instead."""
_REGISTERS = {"register_buffer", "register_parameter", "register_module", "add_module"}
_WRITTEN = re.compile(rb"(?<!self)(?<!cls)\.(\w+)[ \t]*(?::[^=\n]+)?=[^=]|setattr\(\s*\w+,\s*[\"'](\w+)[\"']")


@dataclass(frozen=True)
class Answer:
    """What a name is; `why` explains the other states."""

    state: State
    value: Any = None
    why: str = ""


@dataclass
class Members:
    """The attributes that instances of a class have; `open_because` says why there may be others."""

    names: set[str] = field(default_factory=set)
    open_because: str = ""


class TimeLimit(BaseException):
    """An import that takes too long; no `except Exception` of the package may swallow it."""


class World:
    """A real interpreter that imports whatever it is asked for, each thing guarded and once."""

    def __init__(self, package: str, root: Path) -> None:
        self.package = package
        self.root = root
        self.broken: dict[str, str] = {}
        self._absent: set[str] = set()
        self._sources: dict[str, Source | None] = {}
        self._members: dict[type, Members] = {}
        self._parts: dict[type, Members] = {}
        self.readers: dict[str, Any] = {}
        """The reader of each imported module, for those that evaluate what other modules say."""

    def owns(self, module: str | None) -> bool:
        return module is not None and (module == self.package or module.startswith(f"{self.package}."))

    # -- modules and names ---------------------------------------------------------------------------------------------

    def module(self, name: str) -> types.ModuleType | None:
        """Import a module, None where it does not import."""
        if name in self.broken:
            return None
        known = sys.modules.get(name)
        if isinstance(known, types.ModuleType) and not getattr(known.__spec__, "_initializing", False):
            return known
        try:
            with _bounded():
                return importlib.import_module(name)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self.broken[name] = f"{type(error).__name__}: {error}"[:300]
            if isinstance(error, ModuleNotFoundError) and error.name and _is_within(name, error.name):
                self._absent.add(name)
            return None

    def import_all(self, names: list[str]) -> None:
        """Import these modules; then try those again that failed, with stubs for other packages that they miss.

        The second round comes after everything that needs no stub, so that no stub changes what those do.
        """
        for name in names:
            self.module(name)
        for _ in range(4):
            lacking = {name: found for name, why in self.broken.items() if (found := self._lacks(why))}
            if not lacking:
                break
            for stubbed in sorted(set(lacking.values())):
                sys.meta_path.append(_Stubs(stubbed))
            for name in lacking:
                del self.broken[name]
                self.module(name)
        # What failed in a circle, or below something that imports now.
        for name in [name for name in self.broken if name not in self._absent]:
            del self.broken[name]
            self.module(name)

    def _lacks(self, why: str) -> str | None:
        found = re.match(r"ModuleNotFoundError: No module named '([^']+)'", why)
        top = found[1].partition(".")[0] if found else self.package
        stubbed = {finder.top for finder in sys.meta_path if isinstance(finder, _Stubs)}
        return None if top in stubbed or top == self.package else top

    def exists(self, name: str) -> Answer:
        """Tell whether a module of the package is there, importable or not."""
        if self.module(name) is not None:
            return Answer("ok")
        if name in self._absent:
            return Answer("missing", why=self.broken[name])
        stem = self.root.parent / name.replace(".", "/")
        is_there = stem.with_suffix(".py").is_file() or stem.is_dir() or any(stem.parent.glob(f"{stem.name}.*.so"))
        return Answer("ok") if is_there else Answer("missing", why=self.broken[name])

    def name(self, module: str, name: str) -> Answer:
        """Look a name up in a module as `from module import name` does."""
        found = self.module(module)
        if found is None:
            return Answer("undecidable", why=f"{module} does not import: {self.broken.get(module)}")
        with contextlib.suppress(Exception):
            return Answer("ok", getattr(found, name))
        below = f"{module}.{name}"
        if self.owns(module) and hasattr(found, "__path__") and self.exists(below).state == "ok":
            imported = self.module(below)
            return Answer("ok", imported) if imported else Answer("undecidable", why=f"{below} does not import")
        bindings = self._bindings(module, name)
        if any(not binding.is_typing for binding in bindings):
            # A name that only CUDA or another vendor's code gives a value is no break on a machine that has it.
            return Answer("undecidable", why=f"{module} binds {name} only under a condition")
        return Answer("missing", why=f"{module} has no {name}")

    def is_ambiguous(self, module: str, name: str) -> bool:
        """Tell whether a module binds a name in several places, so that another machine may see another object."""
        return len([binding for binding in self._bindings(module, name) if not binding.is_typing]) > 1

    def origins(self, module: str, name: str) -> tuple[str, ...]:
        """Return the module that a module takes a name from, and the name there; nothing if it defines it itself."""
        source = self.source(module)
        found = []
        for binding in self._bindings(module, name):
            if isinstance(binding.node, ast.ImportFrom) and binding.alias and source:
                taken = source.absolute(binding.node)
                found += [taken, f"{taken}.{binding.alias.name}"] if taken else []
        return tuple(found)

    def _bindings(self, module: str, name: str) -> list[Binding]:
        source = self.source(module)
        return source.root.names.get(name, []) if source else []

    def source(self, module: str) -> Source | None:
        """Return the parsed source of an imported module, None where it has none."""
        if module not in self._sources:
            self._sources[module] = self._parse(module)
        return self._sources[module]

    def _parse(self, module: str) -> Source | None:
        found = self.module(module)
        path = getattr(found, "__file__", None)
        if not path or not path.endswith(".py"):
            return None
        try:
            return Source(Path(path).read_bytes(), module, is_package=hasattr(found, "__path__"))
        except (OSError, SyntaxError, ValueError, RecursionError):
            return None

    # -- classes -------------------------------------------------------------------------------------------------------

    def members(self, cls: type) -> Members:
        """Return what instances of a class have: by its MRO, its annotations, and what its methods assign on self."""
        if cls not in self._members:
            parts = [self.members_of(part) for part in cls.__mro__]
            names = set().union(*(part.names for part in parts))
            self._members[cls] = Members(names, next((why for part in parts if (why := part.open_because)), ""))
        return self._members[cls]

    def members_of(self, cls: type) -> Members:
        """Return what a class gives its instances by itself, bases left out."""
        if cls not in self._parts:
            self._parts[cls] = Members()
            self._add(cls, self._parts[cls])
        return self._parts[cls]

    def _add(self, cls: type, found: Members) -> None:
        found.names.update(vars(cls), vars(cls).get("__annotations__", ()))
        if cls.__module__ == "builtins":
            return
        full = f"{cls.__module__}.{cls.__qualname__}"
        for name in ("__getattr__", "__getattribute__"):
            if name in vars(cls) and full != _MODULE_CLASS:
                found.open_because = f"{full} has {name}"
        nodes = self.class_nodes(cls)
        if is_inert(cls):
            found.open_because = f"{full} is a stub"
        elif not nodes and self.owns(cls.__module__):
            found.open_because = f"no source of {full} was found"
        for node in nodes:
            add_stores(node, found)

    def class_nodes(self, cls: type) -> list[ast.ClassDef]:
        source = self.source(cls.__module__)
        nodes = source.definitions(cls.__qualname__) if source else []
        return [node for node in nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def written_elsewhere(self) -> set[str]:
        """The attributes that some file of the package writes on anything but `self`."""
        found: set[str] = set()
        for path in self.root.rglob("*.py"):
            found |= {(name or named).decode() for name, named in _WRITTEN.findall(path.read_bytes())}
        return found


def add_stores(node: ast.ClassDef, found: Members) -> None:
    """Add what a class's body and methods give to its instances."""
    for statement in ast.walk(node):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found.names.add(statement.target.id)
    for method in defined(node.body):
        if isinstance(method, ast.ClassDef):
            continue
        named = arguments(method.args)
        if named and method.name != "__setstate__":  # which gives back what others have set
            _add_method(method, named[0].arg, found)


def _add_method(method: ast.FunctionDef | ast.AsyncFunctionDef, receiver: str, found: Members) -> None:
    for part in ast.walk(method):
        match part:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute, ctx=ast.Store()) if name == receiver:
                found.names.add(attribute)
            case ast.Call(func=ast.Name(id="setattr"), args=[ast.Name(id=name), key, *_]) if name == receiver:
                _add_key(key, method, found)
            case ast.Call(func=ast.Attribute(attr="__setattr__"), args=[ast.Name(id=name), key, *_]) if (
                name == receiver
            ):
                _add_key(key, method, found)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attribute), args=[key, *_]) if (
                name == receiver and attribute in _REGISTERS
            ):
                _add_key(key, method, found)
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(value=ast.Name(id=name), attr="__dict__"), attr=how)
            ) if name == receiver and how in ("update", "setdefault"):
                found.open_because = f"{method.name} writes {receiver}.__dict__"
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="__dict__"), ctx=ast.Store()) if (
                name == receiver
            ):
                found.open_because = f"{method.name} writes {receiver}.__dict__"


def _add_key(key: ast.expr, method: ast.FunctionDef | ast.AsyncFunctionDef, found: Members) -> None:
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        found.names.add(key.value)
    elif method.name != "__setattr__":
        found.open_because = f"{method.name} sets attributes by computed names"


def _is_within(name: str, missing: str) -> bool:
    return name == missing or name.startswith(f"{missing}.")


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeLimit(f"more than {_SECONDS_PER_IMPORT} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_SECONDS_PER_IMPORT)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# -- stubs -------------------------------------------------------------------------------------------------------------


class _Inert:
    """Stand for anything of a package that is not here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Inert()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # As a bare decorator it hands back what it decorates.
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __add__ = __radd__ = __or__

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (_Inert,)


class _InertType(type):
    """The class of inert classes: an enumeration's members, say, are attributes of the class itself."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Inert()


class _InertModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _InertType(name, (_Inert,), {}) if name[0].isupper() else _Inert()
        setattr(self, name, made)
        return made


class _Stubs:
    """Answer for one top-level package that is not installed, and for everything below it."""

    def __init__(self, top: str) -> None:
        self.top = top

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if _is_within(name, self.top) else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _InertModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(__version__="0.0.0", __path__=[], __file__=os.devnull)


def is_inert(value: Any) -> bool:
    """Tell whether an object comes from a stub."""
    cls = value if inspect.isclass(value) else type(value)
    return any(part.__name__ in ("_Inert", "_InertModule") for part in cls.__mro__)


def prepare() -> list[str]:
    """Put the stubs of the model probe in place: the rotary code takes kernels from vLLM where there is no CUDA.

    And one that cannot be inert: modules of the server make its class asyncio's own policy when they are imported.
    """
    made = {name: _InertModule(name) for name in ("vllm", "vllm._custom_ops", "uvloop")}
    for name, module in made.items():
        module.__spec__, module.__path__ = ModuleSpec(name, None, is_package=True), []
    setattr(made["vllm"], "_custom_ops", made["vllm._custom_ops"])  # noqa: B010
    setattr(made["uvloop"], "EventLoopPolicy", asyncio.DefaultEventLoopPolicy)  # noqa: B010
    sys.modules.update(made)
    return list(made)
