"""Pure: proposals for what a compat check found, each with its evidence; meaning is never invented.

What is mechanical is proposed to be written: the same code under another name, an unused import, what the base lacks
altogether and can be carried. Where a signature or a behaviour differs there are alternatives, each with what it loses,
for a person to choose from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from builder.findings import Finding
from builder.leaving import leave_outs, of_reverse
from builder.misfits import of_attribute, of_leaf, of_signature
from builder.missing import of_module, of_name
from builder.proposals import Draft, Proposal, Trees, patch_text, unique
from builder.symbols import UnreadableError
from builder.view import View

_RULES: Mapping[str, Callable[[tuple[Finding, ...], View], Iterable[Proposal]]] = {
    "name-missing": of_name,
    "module-missing": of_module,
    "attribute-missing": of_attribute,
    "signature": of_signature,
    "config-leaf-missing": of_leaf,
    "reverse": of_reverse,
}


@dataclass(frozen=True)
class Offers:
    """Proposals, and why a finding has none that settles it mechanically (by path, line and symbol)."""

    proposals: tuple[Proposal, ...]
    why: Mapping[tuple[str, int, str], str]


def propose(
    findings: Iterable[Finding],
    trees: Trees,
    *,
    is_last_resort: bool = True,
    is_tried: Callable[[Proposal], bool] = lambda _proposal: False,
) -> Offers:
    """Propose what settles the open findings; those that can be written as they are come first.

    To leave a file out is offered too, unless `is_last_resort` says that there may be other ways still. What `is_tried`
    tells to have been tried in vain is not proposed again.
    """
    view = View(trees)
    wanted = [finding for finding in findings if finding.is_open]
    found = [_shown(proposal, trees) for proposal in _joined(_ruled(wanted, view)) if not is_tried(proposal)]
    found += leave_outs(wanted, found, view) if is_last_resort else []
    found.sort(key=lambda proposal: proposal.needs_accept)
    return Offers(unique(found), view.why)


def _ruled(findings: Iterable[Finding], view: View) -> Iterator[Proposal]:
    for group in _grouped(findings):
        rule = _RULES.get(group[0].kind)
        try:
            yield from rule(group, view) if rule else ()
        except UnreadableError as error:
            view.explain(group, f"cannot be told: {error}")


def _shown(proposal: Proposal, trees: Trees) -> Proposal:
    """Add the text of a patch as it would be written now."""
    if not isinstance(proposal.change, Draft):
        return proposal
    text = patch_text("draft/0000-draft", proposal.change, trees.merged) or b""
    return replace(proposal, text=text.decode("utf-8", "replace"))


def _grouped(findings: Iterable[Finding]) -> Iterator[tuple[Finding, ...]]:
    """Group findings that one proposal settles: the same kind, file and symbol."""

    def kin(finding: Finding) -> tuple[str, str, str, tuple[str, ...]]:
        names = finding.names if finding.kind == "signature" else ()
        return finding.kind, finding.path, finding.symbol, names

    for _, group in groupby(sorted(findings, key=kin), key=kin):
        yield tuple(sorted(group, key=lambda finding: finding.line))


def _joined(proposals: Iterable[Proposal]) -> Iterator[Proposal]:
    """Put mechanical patches of one path and family into one."""
    together: dict[tuple[str, str], list[Proposal]] = {}
    for proposal in proposals:
        change = proposal.change
        if isinstance(change, Draft) and change.family and not proposal.needs_accept:
            together.setdefault((change.path, change.family), []).append(proposal)
        else:
            yield proposal
    yield from map(_one_patch, together.values())


def _one_patch(group: Sequence[Proposal]) -> Proposal:
    drafts = [proposal.change for proposal in group if isinstance(proposal.change, Draft)]
    first, *others = drafts
    title = "; ".join([first.title, *(draft.title[:1].lower() + draft.title[1:] for draft in others)])
    joined = replace(
        first,
        title=title,
        why=tuple(dict.fromkeys(part for draft in drafts for part in draft.why)),
        terms=tuple(dict.fromkeys(term for draft in drafts for term in draft.terms)),
        rewrites=tuple(sorted({edit for draft in drafts for edit in draft.rewrites})),
    )
    settles = tuple(dict.fromkeys(finding for proposal in group for finding in proposal.settles))
    return replace(group[0], title=title, change=joined, settles=settles)
