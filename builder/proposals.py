"""Pure: what may settle a finding (an edit, a carry, a file left out), and the compat patch that an edit becomes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from builder import patches, rewrites
from builder.errors import InputError
from builder.findings import Finding
from builder.model import ReadTree, Tree
from builder.predicates import evaluate, parse
from builder.rewrites import Rewrite

_WIDTH = 76
_CONTEXTS = tuple((before, after) for before, after in ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (0, 2), (2, 2)))
"""Lines of context before and after, the fewest first: upstream's text does not belong into patches."""


@dataclass(frozen=True)
class Trees:
    """The trees that proposals are made from.

    `donors` has the whole tree at each pull request's result and `parents` reads the one before it, by number in the
    order in which they are stacked. `brought` tells for each changed path the pull request it comes from, `put_on` are
    those paths that a pull request changes itself; what else is changed was carried or patched.
    """

    base: Tree
    merged: Tree
    donors: Mapping[int, Tree]
    parents: Mapping[int, ReadTree]
    brought: Mapping[str, int]
    put_on: frozenset[str]
    package: str = "sglang"


@dataclass(frozen=True)
class Draft:
    """A compat patch that has no number yet; the rewrites are of the file as merged so far.

    Drafts for one path and family are written as one patch.
    """

    path: str
    slug: str
    title: str
    why: tuple[str, ...]
    terms: tuple[str, ...]
    """What must all hold for the patch to be needed."""
    rewrites: tuple[Rewrite, ...]
    removes: str = ""
    family: str = ""

    @property
    def needed_if(self) -> str:
        """The condition as the patch's header has it."""
        return " and ".join(self.terms)


@dataclass(frozen=True)
class CarryOver:
    """A whole file, or named definitions, to be taken from a pull request's result."""

    path: str
    symbols: tuple[str, ...]
    number: int
    reason: str

    @property
    def entry(self) -> dict[str, Any]:
        """The keys and values of its `[[carry]]`, in the order in which they are written."""
        symbols = {"symbols": list(self.symbols)} if self.symbols else {}
        return {"path": self.path, **symbols, "from": f"pr:{self.number}", "reason": self.reason}


@dataclass(frozen=True)
class LeftOut:
    """A file of the pull request that is not put on."""

    path: str
    reason: str

    @property
    def entry(self) -> dict[str, Any]:
        """The keys and values of its `[[leave-out]]`."""
        return {"path": self.path, "reason": self.reason}


Kind = Literal["patch", "carry", "leave-out", "sketch"]


@dataclass(frozen=True)
class Proposal:
    """One way to settle findings.

    `needs_accept` marks one that a person has to choose, and `loses` says what is lost with it. A `sketch` is for a
    person to write: it is shown, and never written.
    """

    id: str
    kind: Kind
    title: str
    path: str
    settles: tuple[Finding, ...]
    text: str
    change: Draft | CarryOver | LeftOut | None = None
    loses: str = ""
    needs_accept: bool = False

    @property
    def removes(self) -> str:
        """The capability that goes, empty where none does."""
        return self.change.removes if isinstance(self.change, Draft) else ""


def key_of(finding: Finding) -> tuple[str, int, str]:
    """Return what tells findings apart: path, line and symbol."""
    return finding.path, finding.line, finding.symbol


def patch(
    name: str, group: tuple[Finding, ...], draft: Draft, *, loses: str = "", needs_accept: bool = False
) -> Proposal:
    """Propose an edit; its text is written when all is proposed."""
    return Proposal(name, "patch", draft.title, draft.path, group, "", draft, loses, needs_accept)


def contains(path: str, line: bytes) -> str:
    """Write the term that asks a file for an exact line."""
    text = line.decode("utf-8", "replace").rstrip("\r\n").replace("\\", "\\\\").replace('"', '\\"')
    return f'contains {path} "{text}"'


def holds(condition: str, tree: ReadTree, base: ReadTree) -> bool | None:
    """Answer a condition; None where it cannot be told or cannot be written."""
    try:
        return evaluate(parse(condition, "Needed-If"), tree, base).value
    except InputError:
        return None


def is_sound(draft: Draft, trees: Trees, donor: Tree) -> bool:
    """Tell whether the draft is needed here, would not be on the tree the code comes from, and can be written."""
    if holds(draft.needed_if, trees.merged.read, trees.base.read) is not True:
        return False
    if holds(draft.needed_if, donor.read, donor.read) is not False:
        return False
    return patch_text("check/0001-check", draft, trees.merged) is not None


def patch_text(patch_id: str, draft: Draft, tree: Tree) -> bytes | None:
    """Write the patch that makes the draft's edits on this tree, with as little context as places it exactly.

    It is read and applied before it is given; None where no form of it has exactly that result.
    """
    before = tree.read(draft.path)
    if before is None:
        return None
    after = rewrites.apply(before, draft.rewrites)
    for context in _CONTEXTS:
        body = rewrites.diff(draft.path, before, draft.rewrites, context)
        text = (_header(draft) + body).encode("utf-8", "surrogateescape")
        if _gives(patch_id, text, tree, draft.path, after):
            return text
    return None


def _gives(patch_id: str, text: bytes, tree: Tree, path: str, wanted: bytes) -> bool:
    try:
        patch = patches.load(patch_id, text, patch_id)
    except InputError:
        return False
    done = patches.apply_series([patch], tree.read, tree.paths, tree.read, None)
    return done.edits == {path: wanted} and not any(done.outcomes[0].offset)


def _header(draft: Draft) -> str:
    folded = [line for part in draft.why for line in textwrap.wrap(_plain(part), _WIDTH)]
    lines = [f"Description: {_plain(draft.title)}", *(f" {line}" for line in folded)]
    lines += ["Origin: project", "Forwarded: not-needed", f"Needed-If: {draft.needed_if}"]
    lines += [f"Removes: {_plain(draft.removes)}"] if draft.removes else []
    return "\n".join(lines) + "\n\n"


def _plain(text: str) -> str:
    """Return a text as one printable line: it quotes sources and titles of strangers."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def slug(text: str) -> str:
    """Return a text as the last part of a patch's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-") or "edit"


def in_sequence(drafts: Sequence[Draft], tree: Tree) -> tuple[Draft | None, ...]:
    """Return the drafts as they stand one after another; None for one that touches an earlier one's lines."""
    done: dict[str, list[Rewrite]] = {}
    kept: list[Draft | None] = []
    for draft in drafts:
        data = tree.read(draft.path) or b""
        earlier = done.setdefault(draft.path, [])
        moved = rewrites.shifted(draft.rewrites, earlier, data)
        kept.append(None if moved is None else replace(draft, rewrites=moved))
        earlier += () if moved is None else draft.rewrites
    return tuple(kept)


def unique(proposals: Iterable[Proposal]) -> tuple[Proposal, ...]:
    """Give proposals that would have one id a number each."""
    found: dict[str, Proposal] = {}
    for proposal in proposals:
        name, count = proposal.id, 1
        while name in found:
            count += 1
            name = f"{proposal.id}-{count}"
        found[name] = replace(proposal, id=name)
    return tuple(found.values())
