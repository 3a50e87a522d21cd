"""Pure: the text of a definition with entries added or taken out; comments, order and layout of the rest are kept."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Array, InlineTable

from builder.errors import InputError
from builder.proposals import CarryOver, LeftOut

_HEADER = re.compile(r"\s*\[")
_FILE_HEADER = re.compile(r"\s*\[\[\s*file\s*\]\]")


@dataclass(frozen=True)
class Additions:
    """What a definition gets: patches by their names, entries of `[[carry]]`, and files that are left out."""

    patches: tuple[str, ...] = ()
    carries: tuple[CarryOver, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


def edited(text: str, additions: Additions, where: str) -> str:
    """Return a definition's text with additions; a file that is now left out loses its `[[file]]` entry.

    Everything else stays as it is, byte for byte. InputError where that is not possible.
    """
    unix = text.replace("\r\n", "\n")
    is_dos = "\r\n" in text and unix.count("\n") == text.count("\r\n")
    before = unix if is_dos else text
    try:
        after = _with(before, additions)
        _refuse_other_changes(before, after, additions, where)
    except (TOMLKitError, tomllib.TOMLDecodeError) as error:
        raise _cannot(where, str(error)) from None
    return after.replace("\n", "\r\n") if is_dos else after


def created(
    title: str, pull_requests: Sequence[int], bases: Sequence[str], upstream: str | None, additions: Additions
) -> str:
    """Return the text of a new definition."""
    head = {"title": title, **({"upstream": upstream} if upstream else {}), "pull-requests": [*pull_requests]}
    lines = [f"{key} = {tomlkit.item(value).as_string()}\n" for key, value in head.items()]
    return _with("".join(lines) + f"bases = {_array(bases).as_string()}\n", additions)


def _with(text: str, additions: Additions) -> str:
    gone = {entry.path for entry in additions.left_out}
    text = _without_files(text, gone) if gone else text
    if additions.patches:
        text = _extended(text, "patches", additions.patches) or _with_key(text, "patches", additions.patches)
    for key, changes in (("leave-out", additions.left_out), ("carry", additions.carries)):
        entries = [change.entry for change in changes]
        if entries:
            text = _extended(text, key, [_inline(entry) for entry in entries]) or _with_tables(text, key, entries)
    return text


def table(key: str, entry: dict[str, Any]) -> str:
    """Return one entry of an array of tables as text."""
    lines = [f"{name} = {tomlkit.item(value).as_string()}\n" for name, value in entry.items()]
    return f"[[{key}]]\n{''.join(lines)}"


def _extended(text: str, key: str, values: Iterable[Any]) -> str:
    """Add values to an array that is written in brackets; empty where there is none."""
    array = tomlkit.parse(text).get(key)
    if not isinstance(array, Array):
        return ""
    known = array.as_string()
    for value in values:
        array.append(value)
    place = re.search(rf'^[ \t]*"?{re.escape(key)}"?[ \t]*=[ \t]*(?={re.escape(known)})', text, re.MULTILINE)
    return text[: place.end()] + array.as_string() + text[place.end() + len(known) :] if place else ""


def _with_key(text: str, key: str, values: Sequence[str]) -> str:
    """Add an array before the first table: what stands after a table's header belongs to the table."""
    lines = text.splitlines(keepends=True)
    first = next((number for number, line in enumerate(lines) if _HEADER.match(line)), len(lines))
    at = _own_start(lines, first)
    head, tail = "".join(lines[:at]), "".join(lines[at:])
    return _ended(head) + f"{key} = {_array(values).as_string()}\n" + ("\n" if tail and tail[0] != "\n" else "") + tail


def _with_tables(text: str, key: str, entries: Iterable[dict[str, Any]]) -> str:
    """Add tables at the end: there nothing can be taken for part of them, and no comment loses its place."""
    return _ended(text) + "".join(f"\n{table(key, entry)}" for entry in entries)


def _without_files(text: str, paths: set[str]) -> str:
    """Take the `[[file]]` entries of these paths out, with the comments inside and without those before the next."""
    array = tomlkit.parse(text).get("file")
    if isinstance(array, Array):
        known = array.as_string()
        kept = [entry for entry in array if entry["path"] not in paths]
        array.clear()
        array.extend(kept)
        return text.replace(known, array.as_string(), 1)
    lines = text.splitlines(keepends=True)
    headers = [number for number, line in enumerate(lines) if _HEADER.match(line)] + [len(lines)]
    entries = tomllib.loads(text).get("file", [])
    starts = [number for number in headers[:-1] if _FILE_HEADER.match(lines[number])]
    for start, entry in reversed([*zip(starts, entries, strict=False)]):
        if entry.get("path") in paths:
            end = _own_start(lines, headers[headers.index(start) + 1])
            while end < len(lines) and not lines[end].strip():
                end += 1  # the empty line that set it apart
            del lines[start:end]
    return "".join(lines)


def _own_start(lines: Sequence[str], header: int) -> int:
    """Return where a header and the comments right above it start."""
    at = header
    while at > 0 and lines[at - 1].lstrip().startswith("#"):
        at -= 1
    return at


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _inline(entry: dict[str, Any]) -> InlineTable:
    inline = tomlkit.inline_table()
    inline.update(entry)
    return inline


def _array(values: Sequence[Any]) -> Array:
    array = tomlkit.array()
    array.extend(values)
    return array.multiline(len(values) > 0)


def _refuse_other_changes(before: str, after: str, additions: Additions, where: str) -> None:
    """Refuse a text that says anything but what was there and the additions."""
    wanted = tomllib.loads(before)
    gone = {entry.path for entry in additions.left_out}
    wanted["patches"] = [*wanted.get("patches", []), *additions.patches]
    wanted["file"] = [entry for entry in wanted.get("file", []) if entry.get("path") not in gone]
    wanted["leave-out"] = [*wanted.get("leave-out", []), *(change.entry for change in additions.left_out)]
    wanted["carry"] = [*wanted.get("carry", []), *(change.entry for change in additions.carries)]
    found = tomllib.loads(after)
    if found != {key: value for key, value in wanted.items() if value or key in found}:
        raise _cannot(where, "its form does not allow it without changing what else it says")


def _cannot(where: str, message: str) -> InputError:
    return InputError(
        where,
        f"cannot be edited in place: {message}",
        hint="add the entries by hand: overlay adapt without --write shows them",
    )
