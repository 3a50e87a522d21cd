"""Compat patches: a DEP-3 style header and a unified diff, read strictly and applied exactly or not at all.

A patch is edits of existing text files with at most two context lines. Nothing is ever applied with fuzz; an offset is
taken only where a hunk's text stands in the file exactly once, and it is recorded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import groupby
from typing import Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk as DiffHunk
from unidiff.patch import PatchedFile, PatchSet

from builder.errors import InputError
from builder.hunks import HEADING, Hunk, Placed, place_hunks
from builder.model import Digest, ReadTree, Tree
from builder.predicates import Expression, Truth, evaluate, parse
from builder.suggest import did_you_mean

__all__ = ["Expression", "Field", "Hunk", "Patch", "PatchOutcome", "Series", "Truth", "apply_series", "evaluate"]
__all__ += ["load", "parse"]

FIELDS = {
    "Description": "what the patch does and why (required)",
    "Needed-If": "the condition under which this base needs it (required)",
    "Applies-To": "a version specifier that narrows Needed-If",
    "Removes": "the capability that the patch takes away",
    "Reason": "why it is done this way",
    "Origin": "where the edit comes from",
    "Forwarded": "whether it was sent upstream",
    "Author": "who wrote it",
    "Bug": "the upstream report",
    "Applied-Upstream": "the upstream version or commit that makes it superfluous",
    "Reviewed-By": "who checked it",
    "Last-Update": "when it was last changed",
}
"""The header fields, as in DEP-3, with our own in front."""

MAX_CONTEXT = 2
"""Context lines allowed at each side of a change: a patch is an edit, not a place for upstream's text."""


@dataclass(frozen=True)
class Field:
    """One header field: its text, folded lines joined by newlines, and its line in the patch."""

    text: str
    line: int


@dataclass(frozen=True)
class FileEdit:
    """The hunks for one file, under the path that the patch itself writes."""

    path: str
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class Patch:
    """A compat patch as its author wrote it; `sha256` is that of `text`, the file's bytes.

    `raw_sha256` is that of the file as it stood on disk, where its line ends were normalised before it was read.
    """

    id: str
    source: str
    fields: Mapping[str, Field]
    needed_if: Expression
    applies_to: SpecifierSet | None
    files: tuple[FileEdit, ...]
    sha256: Digest
    text: bytes
    raw_sha256: Digest | None = None

    def value(self, name: str) -> str:
        """Return a header field's text, empty where it is not given."""
        return self.fields[name].text if name in self.fields else ""


Outcome = Literal["applied", "not needed", "already present", "rejected"]


@dataclass(frozen=True)
class PatchOutcome:
    """What became of one patch.

    `fact` is the evidence that decided; `reason` says why it was rejected, then a line for each hunk that did not fit
    and each place that tempts. `kept` tells that its edits are in the result. `offset` is in lines, one number per hunk
    in the patch's order; `strip` counts the leading folders dropped from its own paths.
    """

    id: str
    outcome: Outcome
    fact: str
    kept: bool = False
    reason: str = ""
    paths: tuple[str, ...] = ()
    strip: int | None = None
    offset: tuple[int, ...] = ()
    removes: str = ""


@dataclass(frozen=True)
class Series:
    """All outcomes in order, and the files to write; `edits` is empty when any patch was rejected."""

    outcomes: tuple[PatchOutcome, ...]
    edits: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def is_rejected(self) -> bool:
        """Whether at least one patch was rejected, so that none is kept."""
        return any(outcome.outcome == "rejected" for outcome in self.outcomes)


# -- reading -----------------------------------------------------------------------------------------------------------

_ID = re.compile(r"[a-z0-9][a-z0-9._-]*/\d{4}-[a-z0-9][a-z0-9._-]*")
_FIELD = re.compile(r"([A-Za-z][A-Za-z-]*):[ \t]*(.*)")
_HUNK_HEADER = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_BETWEEN = re.compile(r"diff |index |--- |\+\+\+ |-- $|\d+\.\d+[\w.]*$|$")
_UNSUPPORTED = {
    "new file mode": "adds a file; carry it from the pull request with [[carry]]",
    "deleted file mode": "deletes a file",
    "rename ": "renames a file",
    "copy ": "copies a file",
    "old mode": "changes a file's mode",
    "new mode": "changes a file's mode",
    "similarity index": "renames or copies a file",
    "Binary files": "changes a binary file",
    "GIT binary patch": "changes a binary file",
}
_NO_NEWLINE = "\\"
_EDITS_ONLY = "a compat patch edits existing text files and nothing else"

_Fault = tuple[int, str]
"""A line of the patch (1-based) and what is wrong there."""


def load(id: str, data: bytes, source: str) -> Patch:
    """Read one patch; `source` names the file in messages. InputError tells every fault with its line."""
    faults: list[_Fault] = [] if _ID.fullmatch(id) else [(1, f"the id {id!r} is not TOPIC/NNNN-slug")]
    # Bytes that are not UTF-8 may stand in the file to be patched, so they must survive; the header is checked below.
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    body = next((n for n, line in enumerate(lines) if re.match(r"diff |--- .", line)), len(lines))
    fields = _read_header(lines[:body], faults)
    needed_if, applies_to = _read_conditions(fields, source, faults)
    files = _read_diff(lines, body, faults)
    if faults or needed_if is None:
        raise _explained(source, sorted(dict.fromkeys(faults)))
    return Patch(id, source, fields, needed_if, applies_to, files, Digest.of(data), data)


def _explained(source: str, faults: Sequence[_Fault]) -> InputError:
    line, message = faults[0]
    if len(faults) == 1:
        return InputError(f"{source}:{line}", message)
    return InputError(source, f"{len(faults)} faults", facts=[f"line {line}: {message}" for line, message in faults])


def _read_header(lines: Sequence[str], faults: list[_Fault]) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    name = ""
    for number, line in enumerate((line.rstrip("\r") for line in lines), 1):
        match = _FIELD.fullmatch(line)
        if not line.replace("\t", " ").isprintable():
            faults.append((number, "the header is not plain UTF-8 text (a byte order mark or control character?)"))
        elif line[:1] in (" ", "\t") and name:
            folded = "" if line.strip() == "." else line.strip()
            fields[name] = replace(fields[name], text=f"{fields[name].text}\n{folded}".removeprefix("\n"))
        elif match:
            name = match[1]
            if name not in FIELDS:
                faults.append((number, f"unknown header field {name!r}{did_you_mean(name, FIELDS)}"))
            elif name in fields:
                faults.append((number, f"{name} stands there twice, first in line {fields[name].line}"))
            fields[name] = Field(match[2].strip(), number)
        elif line.strip() not in ("", "---"):
            faults.append((number, f"expected 'Field: text' or a line that starts with a space; found {line[:40]!r}"))
    return fields


def _read_conditions(
    fields: Mapping[str, Field], source: str, faults: list[_Fault]
) -> tuple[Expression | None, SpecifierSet | None]:
    for name in ("Description", "Needed-If"):
        if name not in fields or not fields[name].text:
            line = fields[name].line if name in fields else 1
            faults.append((line, f"the header lacks {name}: {FIELDS[name]}"))
    needed_if = applies_to = None
    if condition := fields.get("Needed-If"):
        try:
            needed_if = parse(condition.text, source) if condition.text else None
        except InputError as error:
            faults.append((condition.line, "\n    ".join((f"Needed-If: {error.message}", *error.facts))))
    if versions := fields.get("Applies-To"):
        try:
            applies_to = SpecifierSet(versions.text)
        except InvalidSpecifier:
            faults.append(
                (versions.line, f"Applies-To: {versions.text!r} is not a version specifier such as '>=0.5.16'")
            )
    return needed_if, applies_to


def _read_diff(lines: Sequence[str], body: int, faults: list[_Fault]) -> tuple[FileEdit, ...]:
    if body == len(lines):
        faults.append((len(lines), "there is no diff after the header"))
        return ()
    found = list(_structure_faults(lines, body))
    faults += found
    if found:
        return ()
    try:
        parsed = PatchSet("\n".join(lines[body:]).removesuffix("\n") + "\n")
    except UnidiffParseError as error:
        faults.append((body + 1, f"not a unified diff: {error}"))
        return ()
    edits = [_file_edit(part, body, faults) for part in parsed]
    if not edits:
        faults.append((body + 1, "there is no file in the diff"))
    paths = [edit.path for edit in edits]
    for path in sorted({path for path in paths if paths.count(path) > 1}):
        faults.append((body + 1, f"{path} stands there {paths.count(path)} times"))
    return tuple(edits)


def _structure_faults(lines: Sequence[str], body: int) -> Iterator[_Fault]:
    """Compare every hunk's header with its body, and find lines that belong to nothing.

    unidiff drops what follows a hunk whose header counts too few lines, without a word; so this is judged first.
    """
    number = body
    while number < len(lines):
        line = lines[number].rstrip("\r")
        number += 1
        header = _HUNK_HEADER.match(line)
        if header:
            end, found = _hunk_body(lines, number, (int(header[1] or 1), int(header[2] or 1)))
            yield from _count_faults(number, header, found)
            number = end
        elif what := next((what for start, what in _UNSUPPORTED.items() if line.startswith(start)), None):
            yield number, f"{what}; {_EDITS_ONLY}"
        elif line.startswith("--- ") and not "".join(lines[number : number + 1]).startswith("+++ "):
            yield number, "a '---' line without a '+++' line after it"
        elif not _BETWEEN.match(line):
            yield number, f"expected a file or hunk header; found {line[:40]!r}"


def _hunk_body(lines: Sequence[str], start: int, wanted: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """Return where a hunk's body ends and how many old and new lines it has."""
    old = new = 0
    number = start
    while number < len(lines):
        line = lines[number]
        if not line and number == len(lines) - 1:
            break  # what follows the last newline is no line
        is_complete = (old, new) == wanted
        kind = line[:1].rstrip("\r") or " "
        if kind not in " +-\\" or (is_complete and _is_after(lines, number)):
            break
        # A short body may run into the next file's header, which looks like two more lines of it.
        if line.startswith("--- ") and _is_file_header(lines, number) and wanted != (old + 1, new + 1):
            break
        old += kind in " -"
        new += kind in " +"
        number += 1
    return number, (old, new)


def _is_after(lines: Sequence[str], number: int) -> bool:
    """Tell whether a complete hunk ends here: an empty line, a mail signature, the next file or the end."""
    line = lines[number].rstrip("\r")
    return line in ("", "-- ") or (line.startswith("--- ") and _is_file_header(lines, number))


def _is_file_header(lines: Sequence[str], number: int) -> bool:
    following = [*lines[number + 1 : number + 3], "", ""]
    return following[0].startswith("+++ ") and _HUNK_HEADER.match(following[1]) is not None


def _count_faults(line: int, header: re.Match[str], found: tuple[int, int]) -> Iterator[_Fault]:
    if found == (0, 0):
        yield line, "the hunk has no body"
    for side, wanted, count in (("old", header[1], found[0]), ("new", header[2], found[1])):
        if int(wanted or 1) != count:
            yield line, f"the hunk's header says {wanted or 1} {side} lines, its body has {count}"


def _file_edit(part: PatchedFile, body: int, faults: list[_Fault]) -> FileEdit:
    line = body + ((part[0][0].diff_line_no or 1) - 1 if part else 1)
    source, target = (name.rstrip("\r") for name in (part.source_file, part.target_file))
    if "/dev/null" in (source, target):
        what = "new file mode" if source == "/dev/null" else "deleted file mode"
        faults.append((line, f"{_UNSUPPORTED[what]}; {_EDITS_ONLY}"))
    elif source != target and source.partition("/")[2] != target.partition("/")[2]:
        faults.append((line, f"{_UNSUPPORTED['rename ']}, {source} to {target}; {_EDITS_ONLY}"))
    if source.startswith('"'):
        faults.append((line, f"{source}: quoted file names are not supported"))
    if not part:
        faults.append((line, f"{source} is named and has no hunk"))
    return FileEdit(source, tuple(_hunk(hunk, body, faults) for hunk in part))


@dataclass
class _Sides:
    """The two texts of a hunk while it is read; `kinds` has the mark and the patch line of every line of the body."""

    old: list[bytes] = field(default_factory=list)
    new: list[bytes] = field(default_factory=list)
    kinds: list[tuple[str, int]] = field(default_factory=list)

    def of(self, mark: str) -> tuple[list[bytes], ...]:
        return {" ": (self.old, self.new), "-": (self.old,), "+": (self.new,)}.get(mark, ())

    def add(self, mark: str, line: int, text: bytes) -> None:
        if mark == _NO_NEWLINE and self.kinds:
            for side in self.of(self.kinds[-1][0]):  # the marker belongs to the line before it
                side[-1] = side[-1].rstrip(b"\r\n")
        for side in self.of(mark):
            side.append(text)
        if mark in " -+":
            self.kinds.append((mark, line))


def _hunk(part: DiffHunk, body: int, faults: list[_Fault]) -> Hunk:
    sides = _Sides()
    for line in part:
        if line.line_type:
            text = line.value.encode("utf-8", "surrogateescape")
            sides.add(line.line_type, body + (line.diff_line_no or 0), text)
    header = sides.kinds[0][1] - 1
    faults += _context_faults(sides.kinds)
    faults += [(header, fault) for fault in _text_faults(sides)]
    changed = [index for index, (mark, _) in enumerate(sides.kinds) if mark != " "] or [0]
    heading = HEADING.match(part.section_header)
    return Hunk(
        line=header,
        old_start=part.source_start - 1,
        new_start=part.target_start - 1,
        old=tuple(sides.old),
        new=tuple(sides.new),
        leading=changed[0],
        trailing=len(sides.kinds) - 1 - changed[-1],
        heading=heading[1] if heading else "",
    )


def _text_faults(sides: _Sides) -> Iterator[str]:
    if not sides.old:
        yield "the hunk has no context or removed line to find its place by"
    elif not sides.new:
        yield "the hunk leaves no line to recognise it by; give it a line of context"
    elif sides.old == sides.new:
        yield "the hunk changes nothing"


def _context_faults(kinds: Sequence[tuple[str, int]]) -> Iterator[_Fault]:
    """Find runs of context that are too long: two lines before and after, so at most four between two changes."""
    runs = [list(run) for _, run in groupby(kinds, key=lambda item: item[0] == " ")]
    for position, run in enumerate(runs):
        allowed = MAX_CONTEXT if position in (0, len(runs) - 1) else 2 * MAX_CONTEXT
        if run[0][0] == " " and len(run) > allowed:
            line = run[-allowed - 1][1] if position == 0 else run[allowed][1]
            hint = f"make it with 'git diff -U{MAX_CONTEXT}'"
            yield line, f"{len(run)} lines of context where {allowed} are allowed; {hint}"


# -- applying ----------------------------------------------------------------------------------------------------------


def apply_series(
    patches: Sequence[Patch], tree: ReadTree, paths: Collection[str], base: ReadTree, version: str | None
) -> Series:
    """Apply patches in order to the tree as merged so far; all are tried, and one rejected means that none is kept.

    A patch after a rejected one is tried on the tree without it. `paths` are all files of the tree; `base` is the
    untouched base, for `base:` terms; `version` the base's own, for `Applies-To`. InputError for a patch named twice.
    """
    ids = [patch.id for patch in patches]
    if twice := sorted({id for id in ids if ids.count(id) > 1}):
        raise InputError("patches", f"{', '.join(twice)} stands there twice", hint="name each patch once")
    edits: dict[str, bytes] = {}
    outcomes = []
    for patch in patches:
        merged = Tree(frozenset(paths), tree).overlaid(dict(edits))
        outcome, written = _apply(patch, merged, base, version)
        edits.update(written)
        outcomes.append(outcome)
    if any(outcome.outcome == "rejected" for outcome in outcomes):
        return Series(tuple(outcomes))
    kept = tuple(replace(outcome, kept=outcome.outcome == "applied") for outcome in outcomes)
    return Series(kept, {path: data for path, data in sorted(edits.items()) if tree(path) != data})


def _apply(patch: Patch, tree: Tree, base: ReadTree, version: str | None) -> tuple[PatchOutcome, Mapping[str, bytes]]:
    need = _need(patch, tree.read, base, version)
    outcome = PatchOutcome(patch.id, "rejected", need.fact)
    if need.value is None:
        return replace(outcome, reason=f"whether it is needed is unknown: {need.fact}"), {}
    if not need.value:
        return replace(outcome, outcome="not needed"), {}
    strip, reason = _strip_level(patch.files, tree.paths)
    if strip is None:
        return replace(outcome, reason=reason), {}
    placed = [_place_file(edit, _stripped(edit.path, strip), tree.read) for edit in patch.files]
    outcome = replace(
        outcome,
        strip=strip,
        paths=tuple(file.path for file in placed),
        offset=tuple(place.offset for file in placed for place in file.places),
    )
    return _judge(outcome, placed, patch.value("Removes"))


def _judge(outcome: PatchOutcome, placed: Sequence[Placed], removes: str) -> tuple[PatchOutcome, Mapping[str, bytes]]:
    places = [place for file in placed for place in file.places]
    faults = [fault for file in placed for fault in file.faults]
    states = {place.state for place in places}
    if not faults and len(states) > 1:
        names = ", ".join(place.name for place in places if place.state == "present")
        faults = [f"only a part of it is there already: {names}"]
    if faults:
        details = [detail for place in places for detail in place.details]
        return replace(outcome, reason="\n".join((*faults, *details)), offset=()), {}
    if states == {"present"}:
        fact = f"{', '.join(f'{p.name} stands at line {p.at + 1}' for p in places)}; {outcome.fact}"
        return replace(outcome, outcome="already present", fact=fact, removes=removes), {}
    edits = {file.path: file.edited() for file in placed}
    return replace(outcome, outcome="applied", removes=removes), edits


def _place_file(edit: FileEdit, path: str, read: ReadTree) -> Placed:
    try:
        return place_hunks(edit.hunks, path, read(path) or b"")
    except InputError as error:  # a link, or a file whose content was not kept
        return Placed(path, (), (), (f"{path} {error.message}",))


def _need(patch: Patch, tree: ReadTree, base: ReadTree, version: str | None) -> Truth:
    needed = evaluate(patch.needed_if, tree, base)
    if patch.applies_to is None:
        return needed
    applies = _applies(patch.applies_to, version)
    for value in (False, None):
        for truth in (needed, applies):
            if truth.value is value:
                return truth
    return Truth(True, f"{needed.fact}; {applies.fact}")


def _applies(specifiers: SpecifierSet, version: str | None) -> Truth:
    try:
        known = Version(version or "")
    except InvalidVersion:
        return Truth(None, f"Applies-To is {specifiers}, and the base's version is {version or 'not known'}")
    if not any(known.release):
        # What a build without tags calls itself, 0.0.0.dev0+..., orders below every release and says nothing.
        return Truth(None, f"Applies-To is {specifiers}, and the base calls itself {version}, which is no release")
    is_in = specifiers.contains(known, prereleases=True)
    return Truth(is_in, f"the base's version {version} is {'' if is_in else 'not '}in Applies-To {specifiers}")


def _stripped(path: str, strip: int) -> str:
    return "/".join(path.split("/")[strip:])


def _strip_level(files: Sequence[FileEdit], paths: Collection[str]) -> tuple[int | None, str]:
    """Find the one number of leading folders without which all of the patch's paths stand in the tree."""
    levels = [
        {level for level in range(edit.path.count("/") + 1) if _stripped(edit.path, level) in paths} for edit in files
    ]
    missing = [edit.path for edit, fitting in zip(files, levels, strict=True) if not fitting]
    if missing:
        return None, "; ".join(f"{path} is not in the tree{_similar(path, paths)}" for path in missing)
    common = set.intersection(*levels)
    if len(common) == 1:
        return common.pop(), ""
    if not common:
        return None, "its paths fit the tree only with different numbers of leading folders dropped"
    fitting = " and ".join(_stripped(files[0].path, level) for level in sorted(common))
    return None, f"the path {files[0].path} is ambiguous: {fitting} are both in the tree"


def _similar(path: str, paths: Collection[str]) -> str:
    name = path.rpartition("/")[2]
    same = sorted(known for known in paths if known.rpartition("/")[2] == name)
    found = get_close_matches(path, same, n=1, cutoff=0) if same else []
    return f" (there is {found[0]})" if found else ""
