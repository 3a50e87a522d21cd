"""Pure: is a pull request's change to a file already in the base? Judged by definitions, never by reversing a diff."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

Presence = Literal["exact", "changed", "absent", "unknown"]


@dataclass(frozen=True)
class Evidence:
    """What decided: the definitions the pull request adds or changes, and how its added lines fare.

    `lines` counts the non-trivial lines that the pull request adds, `lines_there` those that ours has too;
    `missing_lines` are the others. The share is reported and decides nothing.
    """

    presence: Presence
    fact: str
    lines: int = 0
    lines_there: int = 0
    missing_definitions: tuple[str, ...] = ()
    missing_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Versions:
    """One file's contents: in the image, before and after the pull request, and merged (None: no clean merge)."""

    ours: bytes | None
    parent: bytes | None
    result: bytes | None
    merged: bytes | None = None


def judge(path: str, versions: Versions, is_mentioned: Callable[[str], bool]) -> Evidence:
    """Judge one file; `is_mentioned` tells whether any file of the base holds a name."""
    ours, parent, result, merged = versions.ours, versions.parent, versions.result, versions.merged
    if ours == result:
        return Evidence("exact", "equal to the pull request's result")
    if ours is not None and merged == ours:
        return Evidence("exact", "merging the change alters nothing")
    if result is None:
        return Evidence("absent", "the pull request deletes the file, the base has it")
    if ours is None:
        return Evidence("absent", "the base has no such file")
    if ours == parent:
        return Evidence("absent", "equal to the file before the pull request")
    there, missing = _added_lines(ours, parent or b"", result)
    lines, kept = len(there) + len(missing), len(there)
    if not path.endswith(".py"):
        return Evidence("unknown", "not Python: no definitions to judge by", lines, kept, (), missing)
    try:
        found = _by_definitions(ours, parent or b"", result, is_mentioned)
    except (SyntaxError, ValueError) as error:
        found = Evidence("unknown", f"does not parse: {error}")
    fact = f"{found.fact}; {kept} of {lines} added lines verbatim"
    return replace(found, fact=fact, lines=lines, lines_there=kept, missing_lines=missing)


def _by_definitions(ours: bytes, parent: bytes, result: bytes, is_mentioned: Callable[[str], bool]) -> Evidence:
    mine, before, after = definitions(ours), definitions(parent), definitions(result)
    added = [name for name in after if name not in before]
    changed = [name for name in after if name in before and after[name] != before[name]]
    # What the base dropped for good after the pull request is no sign that it lacks it; what is still used is.
    gone = [name for name in changed if name not in mine and not is_mentioned(name.rsplit(".", 1)[-1])]
    judged = [name for name in changed if name not in gone]
    if not added and not judged:
        return Evidence("unknown", "the change touches no definition to judge by")
    missing = [name for name in (*added, *judged) if name not in mine]
    unchanged = [name for name in judged if name in mine and mine[name] == before[name]]
    if missing or unchanged:
        return Evidence("absent", _absence(missing, unchanged), missing_definitions=tuple(missing + unchanged))
    fact = f"all {len(added)} added and {len(judged)} changed definitions are there"
    return Evidence("changed", fact + (f", {_few(gone)} was removed since" if gone else ""))


def _absence(missing: list[str], unchanged: list[str]) -> str:
    parts = []
    if missing:
        parts.append(f"lacks {_few(missing)}")
    if unchanged:
        parts.append(f"{_few(unchanged)} as before the pull request")
    return "; ".join(parts)


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


def _added_lines(ours: bytes, parent: bytes, result: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the non-trivial lines that the change adds into those ours has and those it lacks (as multisets)."""
    added = Counter(_lines(result)) - Counter(_lines(parent))
    mine = Counter(_lines(ours))
    trivial = {line for line in added if len(line.strip()) < 4}
    wanted = [line for line in added.elements() if line not in trivial]
    there: list[str] = []
    missing: list[str] = []
    for line in wanted:
        (there if mine[line] > 0 else missing).append(line)
        mine[line] -= 1
    return tuple(there), tuple(missing)


def _lines(data: bytes) -> list[str]:
    return data.decode("utf-8", "replace").splitlines()


def definitions(source: bytes) -> Mapping[str, str]:
    """Return every class, function, method, class attribute and module assignment with a canonical dump of it.

    A class stands for its bases and decorators only, its members for themselves, so that a change in one method
    is a change of that method alone. Docstrings count, comments and layout do not.
    """
    return dict(_walk(ast.parse(source).body, ""))


def _walk(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, ast.dump(node)
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name, "|".join(ast.dump(n) for n in (*node.bases, *node.keywords, *node.decorator_list))
            yield from _walk(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield prefix + target.id, ast.dump(node)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _walk(getattr(node, part, []), prefix)
            for handler in getattr(node, "handlers", []):
                yield from _walk(handler.body, prefix)
