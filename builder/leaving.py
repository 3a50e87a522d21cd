"""Pure: leaving a file of the pull request out, where no other overlaid file needs it, and what is lost with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from builder import names, presence
from builder.definition_file import table
from builder.findings import Finding
from builder.model import Tree
from builder.modules import Modules
from builder.proposals import LeftOut, Proposal, key_of
from builder.view import View

FALLEN = "it stands again when what it imports does"
"""Why nothing is proposed for a module of the base that goes down with an overlaid one."""

_FEW = 6

_KINDS = frozenset({"signature", "config-leaf-missing", "reverse"})
"""Where leaving the whole file out is a way of its own; for other kinds it is the last resort."""


def leave_outs(findings: Sequence[Finding], found: Sequence[Proposal], view: View) -> Iterator[Proposal]:
    """Offer to leave a file out where something in it is for a person to settle and no other overlaid file needs it."""
    settled = {key_of(f) for proposal in found if not proposal.needs_accept for f in proposal.settles}
    offered = {key_of(f) for proposal in found if proposal.change for f in proposal.settles}
    by_path: dict[str, list[Finding]] = {}
    for finding in findings:
        # What goes down with something else stands up with it again.
        if not _is_fallen(view, finding):
            by_path.setdefault(_blamed(view, finding), []).append(finding)
    for path, group in sorted(by_path.items()):
        open_ends = [f for f in group if key_of(f) not in settled and (f.kind in _KINDS or key_of(f) not in offered)]
        if path in view.trees.put_on and open_ends:
            yield from _left_out(tuple(group), path, view)


def _left_out(group: tuple[Finding, ...], path: str, view: View) -> Iterator[Proposal]:
    needing = _needing(view, path)
    if needing:
        view.explain(group, f"{path} cannot be left out: {needing}")
        return
    tail = path.rpartition("/")[2].removesuffix(".py")
    lacking = ", ".join(sorted({finding.symbol.rpartition(".")[2] for finding in group}))
    change = LeftOut(path, f"this base lacks {lacking}, which it uses")
    loses = f"what the pull request brings there: {_lost(view, path)}"
    text = table("leave-out", change.entry)
    yield Proposal(f"{tail}/leave-out", "leave-out", f"leave {path} out", path, group, text, change, loses, True)


def of_reverse(group: tuple[Finding, ...], view: View) -> Iterator[Proposal]:
    """Say why nothing mends what the overlay breaks in the base."""
    is_fallen = _is_fallen(view, group[0])
    view.explain(group, FALLEN if is_fallen else "the overlay takes away what the base's own code uses")
    yield from ()


def _is_fallen(view: View, finding: Finding) -> bool:
    """Tell a module of the base that only fails because an overlaid one does."""
    return finding.kind == "reverse" and finding.symbol in view.merged.paths and not finding.base_has


def _blamed(view: View, finding: Finding) -> str:
    if finding.kind != "reverse":
        return finding.path
    module = finding.symbol if view.merged.paths.get(finding.symbol) else finding.symbol.rpartition(".")[0]
    return view.merged.paths.get(module, "")


def _needing(view: View, path: str) -> str:
    """Say which overlaid file needs what this one brings; empty where none does."""
    ours = view.trees.base.read(path)
    paths = view.trees.merged.paths if ours is not None else view.trees.merged.paths - {path}
    edits = {path: ours} if ours is not None else {}
    without = Modules(Tree(paths, view.trees.merged.overlaid(edits).read), view.trees.package)
    changed = set(view.trees.brought) - {path}
    known = {(f.path, f.symbol) for f in view.missing}
    fresh = [
        f
        for f in names.check(view.base, without, changed).findings
        if (f.path, f.symbol) not in known and f.path != path
    ]
    return f"{fresh[0].path}:{fresh[0].line} needs {fresh[0].symbol}" if fresh else ""


def _lost(view: View, path: str) -> str:
    number = view.trees.brought[path]
    before = view.trees.parents[number](path)
    after = view.trees.donors[number].read(path)
    old = presence.definitions(before) if before is not None else {}
    new = presence.definitions(after) if after is not None else {}
    lost = [name for name in new if name not in old or not new[name].is_same_as(old[name])]
    more = f" and {len(lost) - _FEW} more" if len(lost) > _FEW else ""
    return f"its changes to {', '.join(lost[:_FEW])}{more}" if lost else "its changes outside of definitions"
