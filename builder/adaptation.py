"""Adapt a definition to a base: search for proposals, show them, and write them into the catalogue if asked to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from builder import build, catalogue, shelving
from builder import plan as plans
from builder.base import ImageBase
from builder.build import Doors, Prepared, Request
from builder.catalogue import Catalogue, Overlay
from builder.definition_file import created, edited
from builder.errors import InputError
from builder.plan import Plan
from builder.proposals import CarryOver, Draft, Proposal, holds, unique
from builder.records import AdaptDocument, FindingRecord, LeftRecord, PlaceRecord, ProposalRecord
from builder.search import Adaptation, Search
from builder.shelving import Target


@dataclass(frozen=True)
class Wish:
    """What a person asked of the proposals: alternatives to take, whether to write, a new definition's name."""

    accept: frozenset[str] = frozenset()
    is_writing: bool = False
    name: str | None = None


def run(request: Request, wish: Wish, shelf: Catalogue, doors: Doors) -> Adaptation:
    """Adapt a definition to a base; with `is_writing`, write what was proposed into the catalogue."""
    prepared = build.prepare(request, shelf, doors)
    title = "; ".join(pull.title or str(pull) for pull in prepared.pulls)
    target = shelving.find_target(shelf, prepared.overlay, title, wish.name, is_writing=wish.is_writing)
    found = Search(prepared, wish.accept, target, shelf, doors).run()
    if not wish.is_writing or not found.taken:
        return found
    text = _definition(found, prepared, target)
    written = shelving.write(target, text, found.texts, shelf)
    notes = (*found.notes, *_lock_notes(found, target, shelf), *_base_notes(prepared, target))
    return replace(found, written=written, notes=notes)


def document(made: Adaptation) -> AdaptDocument:
    """Return the adaptation as people script against it."""
    return AdaptDocument(
        verdict=made.plan.verdict,
        notes=made.notes,
        overlay=plans.overlay_record(made.plan.overlay),
        base=plans.base_record(made.plan),
        blocked=tuple(_blocked(made.plan)),
        proposals=tuple(
            _record(proposal, is_taken=index < len(made.taken))
            for index, proposal in enumerate(unique((*made.taken, *made.offered)))
        ),
        left=tuple(
            LeftRecord(
                **FindingRecord.model_validate(entry.finding).model_dump(),
                why=entry.why,
                alternatives=entry.alternatives,
            )
            for entry in made.left
        ),
        not_checked=made.plan.found.unknown,
        needed_a_person=made.needed_a_person,
        written=made.written,
    )


def _blocked(plan: Plan) -> Iterator[str]:
    """Say what refuses the plan before its findings count."""
    for result in plan.conflicts:
        yield f"{result.path}: {result.state}: {result.reason}".rstrip(": ")
    for entry in plan.found.carried:
        if entry.outcome == "rejected":
            yield f"{entry.path}: carry rejected: {entry.fact}"
    for patch, outcome in plan.found.patches:
        if outcome.outcome == "rejected":
            yield f"{patch.id}: patch rejected: {outcome.reason or outcome.fact}"


def _record(proposal: Proposal, *, is_taken: bool) -> ProposalRecord:
    return ProposalRecord(
        id=proposal.id,
        kind=proposal.kind,
        title=proposal.title,
        path=proposal.path,
        settles=tuple(PlaceRecord.model_validate(finding) for finding in proposal.settles),
        text=proposal.text,
        removes=proposal.removes or None,
        loses=proposal.loses or None,
        needs_accept=proposal.needs_accept,
        accepted=is_taken,
    )


def _definition(found: Adaptation, prepared: Prepared, target: Target) -> str:
    """Return the definition's text, proved to say what was planned."""
    where = f"overlays/{target.name}.toml"
    if target.text is not None:
        text = edited(target.text.decode("utf-8"), found.additions, where)
    else:
        overlay = prepared.overlay
        upstream = overlay.upstream if overlay.upstream != Overlay.model_fields["upstream"].default else None
        bases = [_base_entry(found, prepared)]
        text = created(target.title, overlay.pull_requests, bases, upstream, found.additions)
    said = catalogue.overlay_from(text, target.name)
    if said.model_copy(update={"bases": found.plan.overlay.bases}) != found.plan.overlay:
        raise InputError(where, "would not say what was planned", hint="report this; nothing was written")
    return text


def _base_entry(found: Adaptation, prepared: Prepared) -> str:
    """Return the base's alias, or a condition that holds for it and not where the pull requests are."""
    if isinstance(prepared.base, ImageBase) and prepared.base.alias:
        return prepared.base.alias
    read = prepared.tree.read
    lacking = [term for proposal in found.taken for term in _lacking(proposal.change)]
    path = next(result.path for merged in found.plan.found.merged for result in merged.files)
    for term in lacking:
        condition = f"exists {path} and {term}" if prepared.tree.files.get(path) else term
        if holds(condition, read, read) is True:
            return condition
    return f"exists {path}" if prepared.tree.files.get(path) else f"not exists {path}"


def _lacking(change: object) -> Iterator[str]:
    if isinstance(change, CarryOver):
        yield f"not defines {change.path} {change.symbols[-1]}" if change.symbols else f"not exists {change.path}"
    elif isinstance(change, Draft):
        yield from (term for term in change.terms if term.startswith(("not defines", "not exists")))


def _base_notes(prepared: Prepared, target: Target) -> tuple[str, ...]:
    """Say that a definition which is for any base was adapted to one."""
    if prepared.overlay.is_bare or prepared.overlay.bases:
        return ()
    what = f"overlays/{target.name}.toml has no 'bases', so it is used on every base, and it was adapted to this one"
    return (f"{what}: add bases = [...] with what it was reviewed for",)


def _lock_notes(found: Adaptation, target: Target, shelf: Catalogue) -> tuple[str, ...]:
    lock = shelf.lock_path(target.name)
    if not found.additions.patches or not lock.exists():
        return ()
    return (
        f"{lock.name} is stale now: it does not pin {', '.join(found.additions.patches)}; "
        "review them and write their digests into it, until then plan and build refuse",
    )
