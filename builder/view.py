"""Pure: the trees that proposals are made from, with their sources parsed once, and the reasons found on the way."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cached_property

from builder import names
from builder.findings import Finding
from builder.modules import Modules
from builder.proposals import Draft, Trees, is_sound, key_of
from builder.rewrites import Rewrite, Source
from builder.symbols import UnreadableError, syntax


class View:
    """The merged tree and the donors', and what is said of findings that nothing settles mechanically."""

    def __init__(self, trees: Trees) -> None:
        self.trees = trees
        self.merged = Modules(trees.merged, trees.package)
        self.donors = {number: Modules(tree, trees.package) for number, tree in trees.donors.items()}
        self.why: dict[tuple[str, int, str], str] = {}
        self._sources: dict[tuple[int, str], Source] = {}

    @cached_property
    def base(self) -> Modules:
        """The modules of the untouched base."""
        return Modules(self.trees.base, self.trees.package)

    @cached_property
    def missing(self) -> tuple[Finding, ...]:
        """The names that are missing now, whoever acknowledged them."""
        return names.check(self.base, self.merged, set(self.trees.brought)).findings

    def explain(self, findings: Iterable[Finding], why: str) -> None:
        for finding in findings:
            self.why.setdefault(key_of(finding), why)

    def numbers(self, path: str) -> list[int]:
        """Return the pull requests to ask, the one that a file comes from first."""
        own = self.trees.brought.get(path)
        return sorted(self.donors, key=lambda number: (number != own, -list(self.donors).index(number)))

    def source(self, path: str) -> Source:
        return self.source_in(self.merged, path)

    def tree_of(self, modules: Modules, path: str) -> ast.Module:
        return syntax(modules.read(path))

    def source_in(self, modules: Modules, path: str) -> Source:
        key = id(modules), path
        if key not in self._sources:
            try:
                self._sources[key] = Source(modules.read(path))
            except UnreadableError as error:
                raise UnreadableError(f"{path}: {error}") from None
        return self._sources[key]

    def definer(self, modules: Modules, module: str, name: str, seen: frozenset[str] = frozenset()) -> str | None:
        """Return the module that itself binds a name, following star imports only."""
        if module in seen or not modules.has(module) or not modules.paths[module].endswith(".py"):
            return None
        known = modules.symbols(module)
        if known.at_runtime(name):
            return module
        stars = (self.definer(modules, star, name, seen | {module}) for star in known.stars if modules.owns(star))
        return next(filter(None, stars), None)

    def is_sound(self, draft: Draft, number: int) -> bool:
        """Tell whether a draft may be proposed, judged with this pull request's tree."""
        return is_sound(draft, self.trees, self.trees.donors[number])


def all_of(parts: Iterable[tuple[Rewrite, ...] | None]) -> tuple[Rewrite, ...] | None:
    """Join rewrites; None where one of them could not be made."""
    found = list(parts)
    if any(part is None for part in found):
        return None
    return tuple(sorted({edit for part in found for edit in part or ()})) or None


def line_at(source: Source, line: int) -> bytes:
    """Return one line of a source with its ending."""
    start, end = source.lines(line, line)
    return source.data[start:end]
