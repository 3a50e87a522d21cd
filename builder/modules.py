"""Pure: the modules of a tree, and where a name in one of them is defined, through re-imports and star imports."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from builder.errors import InputError
from builder.model import Tree
from builder.symbols import IMPLICIT_NAMES, Binding, Symbols, UnreadableError, module_of, symbols

_EXTENSION = re.compile(r"(?:\.[\w-]+)?\.(?:so|pyd)$")


@dataclass(frozen=True)
class Answer:
    """Where a name is defined; `state` decides, `why` explains an unknown."""

    state: Literal["defined", "unknown", "missing"]
    path: str = ""
    line: int = 0
    why: str = ""


MISSING = Answer("missing")


class Modules:
    """The modules of one tree, by dotted name, and what their names are."""

    def __init__(self, tree: Tree, package: str) -> None:
        self.tree = tree
        self.package = package
        self.paths: dict[str, str] = {}
        """Dotted name -> path; a folder without `__init__.py` is a namespace package with the path ''."""
        self._answers: dict[tuple[str, str, bool], Answer] = {}
        for path in sorted(path for path in tree.paths if path.startswith(f"{package}/")):
            self._add(path)

    def _add(self, path: str) -> None:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            self.paths.setdefault(".".join(parts[:depth]), "")
        module = module_of(path) or _EXTENSION.sub("", path).replace("/", ".")
        # A package wins over a module of the same name, and both win over a folder.
        if path.endswith("/__init__.py") or not self.paths.get(module):
            self.paths[module] = path

    def owns(self, module: str | None) -> bool:
        return module is not None and (module == self.package or module.startswith(f"{self.package}."))

    def has(self, module: str) -> bool:
        """Tell whether this module can be imported: it is there, and all above it are packages."""
        above = module.rpartition(".")[0]
        return module in self.paths and (not above or (self._is_package(above) and self.has(above)))

    def _is_package(self, module: str) -> bool:
        path = self.paths.get(module)
        return path is not None and (path == "" or path.endswith("/__init__.py"))

    def read(self, path: str) -> bytes:
        """Return a file's bytes; raise UnreadableError where the tree does not tell them."""
        try:
            data = self.tree.read(path)
        except InputError as error:
            raise UnreadableError(error.message) from None
        if data is None:
            raise UnreadableError("is not there")
        return data

    def symbols(self, module: str) -> Symbols:
        """Return a module's own symbols; raise UnreadableError."""
        path = self.paths[module]
        if path and module_of(path) is None:
            raise UnreadableError("is a compiled module")
        return symbols(self.read(path), path) if path else Symbols({}, (), None, "")

    def names(self, module: str) -> frozenset[str]:
        """Return all names of a module that can be told, those of its star imports included."""
        found: set[str] = set()
        seen: set[str] = set()
        queue = [module]
        while queue:
            current = queue.pop()
            if current in seen or current not in self.paths:
                continue
            seen.add(current)
            try:
                known = self.symbols(current)
            except UnreadableError:
                continue
            found |= {name for name in known.names if current == module or known.is_exported(name)}
            queue += known.stars
        return frozenset(found)

    def look_up(self, module: str, name: str, *, is_typing: bool = False) -> Answer:
        """Find a name in a module, through re-imports and star imports of the package's own modules."""
        key = (module, name, is_typing)
        if key not in self._answers:
            self._answers[key] = MISSING  # a name that leads back to itself is defined nowhere
            self._answers[key] = self._search(module, name, is_typing)
        return self._answers[key]

    def _search(self, module: str, name: str, is_typing: bool) -> Answer:
        path = self.paths[module]
        if name in IMPLICIT_NAMES:
            return Answer("defined", path)
        answers = []
        if self.has(f"{module}.{name}"):
            answers.append(Answer("defined", self.paths[f"{module}.{name}"], 1))
        try:
            known = self.symbols(module)
        except UnreadableError as error:
            return answers[0] if answers else Answer("unknown", path, why=f"{path}: {error}")
        bindings = known.names.get(name, ()) if is_typing else known.at_runtime(name)
        answers += [self._follow(binding, path, is_typing) for binding in bindings]
        answers += [self._from_star(star, name, path, is_typing) for star in known.stars]
        if known.open_because:
            answers.append(Answer("unknown", path, why=f"{path} {known.open_because}"))
        order = ("defined", "unknown", "missing")
        return min(answers, key=lambda answer: order.index(answer.state), default=MISSING)

    def _follow(self, binding: Binding, path: str, is_typing: bool) -> Answer:
        module, name = binding.module, binding.name
        if module is None or name is None or not self.owns(module):
            return Answer("defined", path, binding.line)
        return self.look_up(module, name, is_typing=is_typing) if self.has(module) else MISSING

    def _from_star(self, star: str, name: str, path: str, is_typing: bool) -> Answer:
        if not self.owns(star):
            return Answer("unknown", path, why=f"{path} imports all names of {star}, which is not in the package")
        if not self.has(star):
            return MISSING
        try:
            is_exported = self.symbols(star).is_exported(name)
        except UnreadableError:
            is_exported = True
        return self.look_up(star, name, is_typing=is_typing) if is_exported else MISSING
