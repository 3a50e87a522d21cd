"""Pure: attributes that no type checker can judge, because what they are read of answers to any name.

Two rules. A config leaf (`get_spec().page_size`) is looked up among the fields that declare themselves for that
namespace: by a marker `NS("spec")` in the annotation, or by a class with `_NS_PATH = "spec"`. Any other attribute is
missing where its name stands nowhere in the base, while the tree that the file comes from defines it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache

from builder.config_reads import Read, reads_of
from builder.findings import Finding, Result
from builder.modules import Modules
from builder.symbols import UnreadableError, absolute, parse, syntax

_MARKER, _CLASS_MARKER = "NS", "_NS_PATH"
_IDENTIFIER = re.compile(rb"\w")
_IS_SET = re.compile(rb"\s*(?::[^=\n]+)?=[^=]")
_BOUND = rb"^[ \t]+(?:async )?def %b\b|^[ \t]+%b *(?::[^=\n]+)?(?:=[^=]|$)|\.%b *(?::[^=\n]+)?=[^=]"
_DOT = ord(".")
_SET_BY_HAND = re.compile(rb'\._set\(\s*"(\w+)"|^    def (\w+)\(self', re.MULTILINE)


def check(
    old: Modules, new: Modules, changed: Collection[str], donors: Mapping[str, Modules], absent: Collection[str] = ()
) -> Result:
    """Judge the attributes that the changed files read and their versions in the base do not.

    `absent` are the symbols known to be missing: what is read of them needs no line of its own.
    """
    fresh = {path: tuple(_fresh(path, old, new, absent)) for path in sorted(changed) if path in donors}
    fresh = {path: reads for path, reads in fresh.items() if reads}
    findings: list[Finding] = []
    unknown: list[str] = []
    if not fresh:
        return Result((), ())
    words = {read.chain[0] for reads in fresh.values() for read in reads if not read.namespace}
    lacking = _lacking(new, words, changed)
    for path, reads in fresh.items():
        places = _bound_in(donors[path], lacking) if lacking else {}
        for read in reads:
            answer = _leaf(path, read, new, donors[path]) if read.namespace else _attribute(path, read, places)
            if isinstance(answer, Finding):
                findings.append(answer)
            elif answer:
                unknown.append(answer)
    return Result(tuple(findings), tuple(unknown))


def _fresh(path: str, old: Modules, new: Modules, absent: Collection[str]) -> Iterator[Read]:
    """Yield what a changed file reads, of what is there, and its version in the base does not."""
    known = {(read.namespace, read.chain) for read in reads_of(path, old)}
    reads = [read for read in reads_of(path, new) if (read.namespace, read.chain) not in known]
    gone = _names_of(path, new, absent) if reads else frozenset()
    yield from (read for read in reads if read.root not in gone)


def _names_of(path: str, modules: Modules, symbols: Collection[str]) -> frozenset[str]:
    """Return the names under which a file imports any of these symbols, or something out of them."""
    wanted = set(symbols)
    found = set()
    for node in ast.walk(syntax(modules.read(path))):
        if isinstance(node, ast.ImportFrom) and (module := absolute(node, path)):
            taken = [alias for alias in node.names if not wanted.isdisjoint({module, f"{module}.{alias.name}"})]
            found |= {alias.asname or alias.name for alias in taken}
    return frozenset(found)


# -- config leaves -----------------------------------------------------------------------------------------------------


def _leaf(path: str, read: Read, new: Modules, donor: Modules) -> Finding | str | None:
    ours, theirs = leaves(new), leaves(donor)
    there = _first_missing(read, ours, theirs)
    if there == "" or read.chain[0] in _set_by_hand(new):
        return None
    shown = ".".join((f"{read.accessor}()", *read.chain))
    if (place := theirs.get(f"{read.namespace}.{there}") or _set_by_hand(donor).get(read.chain[0])) is None:
        return f"{path}:{read.line} reads {shown}: no config field says that it belongs to {read.namespace}"
    name = there.rpartition(".")[2]
    elsewhere = [f"{key} ({at})" for key, at in sorted(ours.items()) if key.rpartition(".")[2] == name]
    return Finding(
        "config-leaf-missing",
        path,
        read.line,
        f"{read.accessor}().{there}",
        "",
        elsewhere[0] if elsewhere else None,
        f"reads {shown}; the config namespace {read.namespace} has no {there}",
        names=(name,),
        donor_has=f"{read.namespace}.{there} ({place})",
    )


def _first_missing(read: Read, ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Return the dotted leaf that is not there; empty where the chain leads to a field, or stays inside a group."""
    keys = [f"{read.namespace}.{'.'.join(read.chain[:length])}" for length in range(1, len(read.chain) + 1)]
    if any(key in ours for key in keys) or any(field.startswith(f"{keys[-1]}.") for field in ours):
        return ""
    missing = next((key for key in keys if key in theirs), keys[0])
    return missing.partition(".")[2]


@lru_cache(maxsize=8)
def leaves(modules: Modules) -> Mapping[str, str]:
    """Return `namespace.leaf` -> `path:line` of every config field that says where it belongs."""
    found: dict[str, str] = {}
    for path in sorted(path for path in modules.paths.values() if path.endswith(".py")):
        try:
            data = modules.read(path)
        except UnreadableError:
            continue
        if b"NS(" in data or b"_NS_PATH" in data:
            found.update({leaf: f"{path}:{line}" for leaf, line in _leaves_in(data)})
    return found


@lru_cache(maxsize=64)
def _leaves_in(data: bytes) -> tuple[tuple[str, int], ...]:
    try:
        tree = parse(data)
    except UnreadableError:
        return ()
    return tuple(leaf for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for leaf in _leaves_of(node))


def _leaves_of(node: ast.ClassDef) -> Iterator[tuple[str, int]]:
    values = [n.value for n in node.body if isinstance(n, ast.Assign) and _text_target(n) == _CLASS_MARKER]
    values += [n.value for n in node.body if isinstance(n, ast.AnnAssign) and n.value and _target(n) == _CLASS_MARKER]
    of_class = _text(values[0]) if values else ""
    for statement in node.body:
        if of_class and isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            yield f"{of_class}.{_text_target(statement)}", statement.lineno  # computed: `name = Derived(...)`
        if isinstance(statement, ast.AnnAssign) and (name := _target(statement)):
            own = [call for call in ast.walk(statement.annotation) if isinstance(call, ast.Call)]
            marks = [_text(call.args[0]) for call in own if getattr(call.func, "id", "") == _MARKER and call.args]
            if place := (marks[0] if marks else of_class):
                yield f"{place}.{name}", statement.lineno


@lru_cache(maxsize=8)
def _set_by_hand(modules: Modules) -> Mapping[str, str]:
    """Return where a statement sets what by name (`bag._set("leaf", value)`), and the methods of what does so."""
    found: dict[str, str] = {}
    for path in sorted(path for path in modules.paths.values() if path.endswith(".py")):
        try:
            data = modules.read(path)
        except UnreadableError:
            continue
        if b"._set(" in data or b".config_bag(" in data:
            for match in _SET_BY_HAND.finditer(data):
                line = data.count(b"\n", 0, match.start()) + 1
                found.setdefault((match[1] or match[2]).decode(), f"{path}:{line}")
    return found


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _target(node: ast.AnnAssign) -> str:
    return node.target.id if isinstance(node.target, ast.Name) else ""


def _text_target(node: ast.Assign) -> str:
    return node.targets[0].id if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) else ""


# -- attributes of anything --------------------------------------------------------------------------------------------


def _lacking(modules: Modules, words: Collection[str], first: Collection[str]) -> frozenset[bytes]:
    """Return those of some words that stand nowhere in a tree, except where they are read as attributes.

    `first` are the paths where most of them are to be expected.
    """
    wanted = {word.encode() for word in words}
    paths = [path for path in modules.paths.values() if path.endswith(".py")]
    for path in sorted(paths, key=lambda path: path not in first):
        if not wanted:
            break
        try:
            data = modules.read(path)
        except UnreadableError:
            continue
        # Searching for plain bytes is far cheaper than splitting every file into words.
        wanted -= {word for word in wanted if word in data and _is_bound_or_foreign(word, data)}
    return frozenset(wanted)


def _is_bound_or_foreign(word: bytes, data: bytes) -> bool:
    """Tell whether a text has the word other than as an attribute that is read."""
    at = data.find(word)
    while at >= 0:
        end = at + len(word)
        is_whole = not _IDENTIFIER.match(data, end) and not (at and _IDENTIFIER.match(data, at - 1))
        if is_whole and (not (at and data[at - 1] == _DOT) or _IS_SET.match(data, end)):
            return True
        at = data.find(word, end)
    return False


def _attribute(path: str, read: Read, places: Mapping[str, str]) -> Finding | None:
    (name,) = read.chain
    if (place := places.get(name)) is None:
        return None
    message = f"reads .{name}, which nothing in the base defines or sets"
    has = f"{name} ({place})"
    return Finding("attribute-missing", path, read.line, f".{name}", "", None, message, names=(name,), donor_has=has)


@lru_cache(maxsize=8)
def _bound_in(modules: Modules, words: frozenset[bytes]) -> Mapping[str, str]:
    """Return word -> `path:line` of the first statement that binds it as a member or sets it as an attribute."""
    patterns = {word: re.compile(_BOUND % (word, word, word), re.MULTILINE) for word in words}
    found: dict[str, str] = {}
    for path in sorted(path for path in modules.paths.values() if path.endswith(".py")):
        try:
            data = modules.read(path)
        except UnreadableError:
            continue
        for word in [word for word in patterns if word in data]:
            if match := patterns[word].search(data):
                line = data.count(b"\n", 0, match.start()) + 1
                found[word.decode()] = f"{path}:{line}"
                del patterns[word]
    return found
