"""Pure: the modules and names that the merged tree imports and does not have, and those that the overlay takes away.

By the standard library's parser: nothing is imported or run. A name that cannot be told is unknown, never missing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile
from typing import Literal

from builder.findings import Finding, Result
from builder.modules import Modules
from builder.symbols import UnreadableError, as_bytes, module_of, syntax
from builder.uses import Use, shown, uses

_SIMILAR = 0.75


def check(old: Modules, new: Modules, changed: Collection[str]) -> Result:
    """Resolve what the changed files import from the package in `new`, and what other files import from them.

    Differential: what the same file already had unresolved in `old` is no finding. `changed` are the paths that differ
    between the two trees, deleted ones included.
    """
    forward = [_new_faults(path, old, new) for path in sorted(changed) if path in new.tree.paths]
    reverse = [_new_faults(path, old, new) for path in _importers_of_lost(old, new, changed)]
    counterparts = _Counterparts(old, [fault for faults in forward for fault in faults])
    findings = [_forward(fault, counterparts) for faults in forward for fault in faults if not fault.unknown]
    findings += [_reverse(fault, old) for faults in reverse for fault in faults if not fault.unknown]
    unknown = [fault.unknown for faults in forward for fault in faults if fault.unknown]
    # A file that the overlay leaves alone and that does not parse here did not do so before either.
    unknown += [fault.unknown for faults in reverse for fault in faults if fault.unknown and not fault.is_whole_file]
    return Result(tuple(findings), tuple(unknown))


# -- what is new in a file ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fault:
    """A use that does not resolve; `unknown` says why it cannot be told."""

    path: str
    use: Use
    kind: Literal["module-missing", "name-missing"] = "name-missing"
    unknown: str = ""

    @property
    def symbol(self) -> str:
        return f"{self.use.module}.{self.use.name}" if self.use.name else self.use.module

    @property
    def is_whole_file(self) -> bool:
        return self.use.line == 0

    def key(self, is_tolerated: bool) -> tuple[str, str, bool, bool]:
        return self.kind, self.symbol, bool(self.unknown), is_tolerated


def _new_faults(path: str, old: Modules, new: Modules) -> tuple[_Fault, ...]:
    found = tuple(_faults(path, new))
    if not found or path not in old.tree.paths:
        return found  # nothing has to be told apart, and the other tree's side is half of the work
    known = {fault.key(fault.use.is_tolerated) for fault in _faults(path, old) if not fault.is_whole_file}
    # An import whose failure used to be caught, and no longer is, is new.
    return tuple(fault for fault in found if known.isdisjoint({fault.key(False), fault.key(fault.use.is_tolerated)}))


def _faults(path: str, modules: Modules) -> Iterator[_Fault]:
    if module_of(path) is None:
        return
    try:
        tree = syntax(modules.read(path))
    except UnreadableError as error:
        yield _Fault(path, Use(0, path, None, ()), unknown=f"{path}: {error}")
        return
    seen = set()
    for use in uses(tree, path, modules):
        fault = _fault(path, use, modules)
        if fault and (fault.symbol, use.line) not in seen:
            seen.add((fault.symbol, use.line))
            yield fault


def _fault(path: str, use: Use, modules: Modules) -> _Fault | None:
    if use.name is None:
        return None if modules.has(use.module) else _Fault(path, use, "module-missing")
    if not modules.has(use.module):
        return None  # said once, of the module
    answer = modules.look_up(use.module, use.name, is_typing=use.is_typing)
    if answer.state == "defined":
        return None
    reason = f"{path}:{use.line} uses {use.module}.{use.name}: {answer.why}" if answer.state == "unknown" else ""
    return _Fault(path, use, unknown=reason)


def _forward(fault: _Fault, counterparts: _Counterparts) -> Finding:
    use = fault.use
    if fault.kind == "module-missing":
        wanted = f" ({', '.join(use.names)})" if use.names else ""
        message = f"imports {use.module}{wanted}; there is no such module"
    else:
        verb = "imports" if use.is_import else "reads"
        message = f"{verb} {use.name} of {use.module}, which does not define it"
    names = (use.name,) if use.name else use.names
    has = counterparts.of(fault)
    return Finding(fault.kind, fault.path, use.line, fault.symbol, shown(use.guards), has, message, names)


def _reverse(fault: _Fault, old: Modules) -> Finding:
    use = fault.use
    verb = "imports" if use.is_import else "reads"
    message = f"{verb} {fault.symbol}, which the overlay takes away"
    had = old.look_up(use.module, use.name) if use.name else None
    where = f"{use.name} ({had.path}:{had.line})" if had else f"{use.module} ({old.paths.get(use.module)})"
    names = (use.name,) if use.name else use.names
    return Finding("reverse", fault.path, use.line, fault.symbol, shown(use.guards), where, message, names)


# -- what the overlay takes away ---------------------------------------------------------------------------------------


def _importers_of_lost(old: Modules, new: Modules, changed: Collection[str]) -> list[str]:
    """Return the unchanged files that may use a name or module which the changed ones no longer have.

    Found by searching bytes, so that only a few files of some thousand have to be parsed.
    """
    modules = {module for path in changed if (module := module_of(path))}
    lost = {module: gone for module in modules if (gone := _lost(module, old, new))}
    if not lost:
        return []
    words = [as_bytes(name) for gone in lost.values() for name in gone]
    tails = [as_bytes(module.rpartition(".")[2]) for module in _with_star_importers(set(lost), new)]
    found = []
    for path in sorted(new.tree.paths - set(changed)):
        if module_of(path) is None or not path.startswith(f"{new.package}/"):
            continue
        data = _text(path, new)
        # `from . import x` names no module, so only the name can be searched for.
        has_module = any(tail in data for tail in tails) or b"from ." in data
        if has_module and any(word in data for word in words):
            found.append(path)
    return found


def _lost(module: str, old: Modules, new: Modules) -> frozenset[str]:
    """Return the names that a module had and has no more; its own last name when it is gone as a whole."""
    if not old.has(module):
        return frozenset()
    if not new.has(module):
        return frozenset({module.rpartition(".")[2]})
    try:
        new.symbols(module)
    except UnreadableError:
        return frozenset()  # nothing can be told of it, which is said once
    return frozenset(
        name
        for name in old.names(module) - new.names(module)
        if old.look_up(module, name).state == "defined" and new.look_up(module, name).state != "defined"
    )


def _with_star_importers(modules: set[str], new: Modules) -> set[str]:
    """Add the modules that hand on all names of these, however far."""
    sources = {module: _text(path, new) for module, path in new.paths.items() if path.endswith(".py")}
    sources = {module: data for module, data in sources.items() if b"import *" in data}
    touched = set(modules)
    while more := {module for module, data in sources.items() if _hands_on(module, data, touched, new)} - touched:
        touched |= more
    return touched


def _hands_on(module: str, data: bytes, touched: set[str], new: Modules) -> bool:
    if not any(as_bytes(name.rpartition(".")[2]) in data for name in touched):
        return False  # parsing is the slow part
    try:
        return not touched.isdisjoint(new.symbols(module).stars)
    except UnreadableError:
        return False


def _text(path: str, modules: Modules) -> bytes:
    """Return a file's bytes to search in, nothing where it has none that can be read."""
    try:
        return modules.read(path)
    except UnreadableError:
        return b""


# -- what the base has instead -----------------------------------------------------------------------------------------


class _Counterparts:
    """The closest definitions that the base has for the names it lacks; the whole tree is searched once."""

    def __init__(self, old: Modules, faults: list[_Fault]) -> None:
        self._old = old
        names = {fault.use.name for fault in faults if fault.use.name and not fault.unknown}
        self._elsewhere = _definitions_anywhere(old, names) if names else {}
        """Name -> `path:line` of every top-level definition of that name."""

    def of(self, fault: _Fault) -> str | None:
        """Return `name (path:line)` of the most plausible counterpart, None where there is none."""
        module, name = fault.use.module, fault.use.name
        if name is None:
            return self._of_module(module)
        known = self._old.names(module) if self._old.has(module) else frozenset()
        for candidate in (f"_{name}", name.lstrip("_")):
            if candidate in known and candidate != name:
                return self._place(module, candidate)
        if places := self._elsewhere.get(name):
            return f"{name} ({max(places, key=lambda place: _nearness(place, module))})"
        close = get_close_matches(name, sorted(known), n=1, cutoff=_SIMILAR)
        return self._place(module, close[0]) if close else None

    def _of_module(self, module: str) -> str | None:
        above, _, tail = module.rpartition(".")
        paths = self._old.paths
        same = [known for known, path in paths.items() if path and known.endswith(f".{tail}")]
        siblings = [known for known, path in paths.items() if path and known.rpartition(".")[0] == above]
        found = [max(same, key=lambda known: _nearness(paths[known], module))] if same else []
        found = found or get_close_matches(module, siblings, n=1, cutoff=0.9)
        return f"{found[0]} ({paths[found[0]]})" if found else None

    def _place(self, module: str, name: str) -> str:
        answer = self._old.look_up(module, name, is_typing=True)
        return f"{name} ({answer.path}:{answer.line})"


def _nearness(path: str, module: str) -> int:
    """Return how many leading folders a path shares with a module."""
    pairs = zip(path.split("/"), module.split("."), strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def _definitions_anywhere(old: Modules, names: Collection[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    wanted = {name: as_bytes(name) for name in names}
    for path in sorted(path for path in old.paths.values() if path.endswith(".py")):
        data = _text(path, old)
        for name, word in wanted.items():
            if word in data:
                match = re.search(rb"^(?:(?:async )?def|class) %b\b|^%b *(?::[^=\n]+)?=[^=]" % (word, word), data, re.M)
                if match:
                    line = data.count(b"\n", 0, match.start()) + 1
                    found.setdefault(name, []).append(f"{path}:{line}")
    return found
