"""Pure: modules that fail when they are imported, and the base's own modules that go down with them.

An import test sees only the first name that is missing, and what imports the module sees nothing: a registry that
swallows import errors answers with another class.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache

from builder.findings import Finding
from builder.modules import Modules
from builder.symbols import UnreadableError, as_bytes, module_of, parse, syntax
from builder.uses import Use, shown, uses

_IMPORT = re.compile(rb"^from ([\w.]+) import ([^(\n#]*)|^import ([\w.]+)", re.MULTILINE)

_AT_IMPORT = ("module-missing", "name-missing")


def check(new: Modules, changed: Collection[str], causes: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return a reverse finding for each module of the base that imports, when it is loaded, one that fails to.

    `causes` are the findings that can be reached; `changed` are the overlay's own files.
    """
    broken: dict[str, Finding] = {}
    for finding in causes:
        module = module_of(finding.path)
        if module and finding.kind in _AT_IMPORT and _fails_at_import(finding, new):
            broken.setdefault(module, finding)
    return tuple(_fallen(broken, changed, new)) if broken else ()


def _fails_at_import(finding: Finding, new: Modules) -> bool:
    name = finding.symbol.rpartition(".")[2] if finding.kind == "name-missing" else None
    at = _uses_by_line(finding.path, new).get(finding.line, [])
    return any(_runs_at_import(use) for use in at if use.name in (name, None))


@lru_cache(maxsize=16)
def _uses_by_line(path: str, new: Modules) -> Mapping[int, list[Use]]:
    found: dict[int, list[Use]] = {}
    try:
        tree = syntax(new.read(path))
    except UnreadableError:
        return found
    for use in uses(tree, path, new):
        found.setdefault(use.line, []).append(use)
    return found


def _runs_at_import(use: Use) -> bool:
    is_inside = any(guard.word == "in def" for guard in use.guards)
    return not is_inside and not use.is_tolerated and not use.is_typing


def _fallen(broken: Mapping[str, Finding], changed: Collection[str], new: Modules) -> Iterator[Finding]:
    found = list(_importers(frozenset(broken), new))
    further = _further({module for path, _, use in found if _runs_at_import(use) and (module := module_of(path))}, new)
    for path, module, use in found:
        if path not in changed:
            yield _finding(path, use, module, broken[module], further)


def _finding(path: str, use: Use, module: str, cause: Finding, further: int) -> Finding:
    where = f"{cause.path}:{cause.line}: {cause.symbol}"
    if not _runs_at_import(use):
        message = f"imports {module} when it gets there, which fails at import ({where})"
    else:
        more = f"; {further} modules import what goes down with it" if further else ""
        message = f"goes down with {module}, which fails at import ({where}){more}"
    return Finding("reverse", path, use.line, module, shown(use.guards), None, message, names=use.names)


def _importers(wanted: frozenset[str], new: Modules) -> Iterator[tuple[str, str, Use]]:
    """Yield each file that imports one of these modules at any depth, once for each module, by its first import."""
    for path in _sources(new):
        try:
            data = new.read(path)
            is_near = any(may_import(module, data) for module in wanted)
            found = list(uses(parse(data), path, new)) if is_near else []
        except UnreadableError:
            continue
        first: dict[str, Use] = {}
        for use in found:
            module = use.module if use.module in wanted else f"{use.module}.{use.name}"
            if module in wanted and use.is_import and not use.is_typing:
                earlier = first.get(module)
                if earlier is None or (_runs_at_import(use) and not _runs_at_import(earlier)):
                    first[module] = use
        yield from ((path, module, use) for module, use in first.items())


def may_import(module: str, data: bytes) -> bool:
    """Tell whether a text may import a module: by its full name, or by its last one out of the package around it."""
    name = as_bytes(module)
    above, _, tail = name.rpartition(b".")
    return tail in data and (name in data or above + b" import" in data or b"from ." in data)


def _further(fallen: set[str], new: Modules) -> int:
    """Count the modules that import these when they are loaded, and those that import them in turn.

    Told by the lines that start with an import: to count them, no file has to be parsed.
    """
    graph = {path: _loaded_with(path, new) for path in _sources(new)}
    down = set(fallen)
    while more := {m for path, loaded in graph.items() if (m := module_of(path)) and m not in down and loaded & down}:
        down |= more
    return len(down) - len(fallen)


def _loaded_with(path: str, new: Modules) -> set[str]:
    try:
        data = new.read(path)
    except UnreadableError:
        return set()
    found = set()
    for match in _IMPORT.finditer(data):
        source, names, plain = (part.decode("ascii", "replace") if part else "" for part in match.groups())
        found |= {source or plain, *(f"{source}.{name.strip()}" for name in names.split(","))}
    return found


def _sources(modules: Modules) -> list[str]:
    return sorted(path for path in modules.paths.values() if path.endswith(".py"))
