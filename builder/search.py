"""Plan, propose, plan again with the proposals, until nothing more can be proposed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from builder import adapt, build, carry, compat, donors, patches, rewrites, shelving
from builder.adapt import Offers
from builder.build import Doors, Prepared
from builder.catalogue import Carry, Catalogue, LeaveOut, Overlay
from builder.definition_file import Additions
from builder.doors import Complaint, Upstream
from builder.errors import InputError
from builder.findings import Finding
from builder.leaving import FALLEN
from builder.model import Oid, Tree
from builder.plan import Plan
from builder.proposals import CarryOver, Draft, LeftOut, Proposal, Trees, in_sequence, key_of, patch_text
from builder.shelving import Target
from builder.statements import parts
from builder.suggest import did_you_mean
from builder.symbols import UnreadableError


@dataclass(frozen=True)
class Left:
    """A finding that stays open, why nothing settles it mechanically, and the alternatives for it."""

    finding: Finding
    why: str
    alternatives: tuple[str, ...]


@dataclass(frozen=True)
class Adaptation:
    """What an adaptation came to: the plan with all that was taken, what was taken and offered, and what is left."""

    plan: Plan
    taken: tuple[Proposal, ...]
    offered: tuple[Proposal, ...]
    left: tuple[Left, ...]
    additions: Additions = field(default_factory=Additions)
    texts: Mapping[str, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    written: tuple[str, ...] = ()

    @property
    def needed_a_person(self) -> int:
        """Count the findings that only a person's choice settled, and those that are still open."""
        chosen = {key_of(finding) for proposal in self.taken if proposal.needs_accept for finding in proposal.settles}
        return len(chosen) + sum(entry.why != FALLEN for entry in self.left)


@dataclass(frozen=True)
class _State:
    """How far a search has come: what is planned from, and what was taken so far with the patches made of it."""

    prepared: Prepared
    taken: tuple[Proposal, ...] = ()
    patches: tuple[patches.Patch, ...] = ()
    """Those that were made, in order."""


class _NamesOnly:
    """Stands for the type checker between two full checks: what names alone show is settled first, in no time."""

    name = "none"

    def version(self) -> str:
        return ""

    def check(self, tree: Tree, package: str, files: Collection[str] | None = None) -> tuple[Complaint, ...]:  # noqa: ARG002
        return ()


class Search:
    """Takes proposals round by round. One that did not help is never taken again, and the search starts anew."""

    def __init__(
        self, prepared: Prepared, accept: frozenset[str], target: Target, shelf: Catalogue, doors: Doors
    ) -> None:
        self._start = prepared
        self._accept = accept
        self._target = target
        self._shelf = shelf
        self._doors = doors
        self._donors = {
            pull.number: donors.donor(pull, prepared.overlay, prepared.tree, prepared.upstream)
            for pull in prepared.pulls
        }
        self._left_out: dict[str, Proposal] = {}
        self._blocked: dict[_What, str] = {}
        self._seen: dict[str, Proposal] = {}
        self._is_named = False

    def run(self) -> Adaptation:
        """Return the plan with all that was taken, and what is left."""
        state = self._fresh()
        is_full = False
        while True:
            made = self._complete(state, is_full=is_full)
            trees = self._trees(state, made)
            offers = adapt.propose(made.found.findings, trees, is_last_resort=is_full, is_tried=self._is_blocked)
            self._seen |= {proposal.id: proposal for proposal in offers.proposals}
            if self._refused(state, made) or (is_full and self._dead_ends(state, made, offers, trees)):
                state, is_full = self._fresh(), False
                continue
            if self._is_new_start(state, offers):
                state, is_full = self._fresh(), False
            elif (following := self._ahead(state, made, offers, trees)) is not None:
                self._doors.say(f"planning again with {len(following.taken)} proposals")
                state, is_full = following, True
            elif is_full or not made.found.checker:
                return self._result(state, made, offers)
            else:
                is_full = True

    def _is_blocked(self, proposal: Proposal) -> bool:
        return _What.of(proposal) in self._blocked

    def _complete(self, state: _State, *, is_full: bool) -> Plan:
        if is_full:
            return build.complete(state.prepared, self._doors)
        return build.complete(state.prepared, replace(self._doors, checker=_NamesOnly(), say=lambda _text: None))

    def _fresh(self) -> _State:
        """Return the definition as it is, but for the files that are left out."""
        overlay = self._start.overlay
        if overlay.is_bare and self._is_named:
            overlay = overlay.model_copy(update={"name": self._target.name, "title": self._target.title})
        taken = tuple(self._left_out.values())
        return _State(replace(self._start, overlay=_changed(overlay, taken, ())), taken)

    def _trees(self, state: _State, made: Plan) -> Trees:
        tree, prepared = made.tree, state.prepared
        gone = {path for path, edit in made.edits.items() if edit.data is None}
        put_on = {f.path: f.pull_request for m in made.found.merged for f in m.files if f.data is not None}
        carried = {c.path: int(c.from_.removeprefix("pr:")) for c in made.found.carried if c.data is not None}
        prefix = prepared.overlay.upstream_prefix
        return Trees(
            base=Tree(tree.paths, tree.read),
            merged=Tree(frozenset((tree.paths | made.edits.keys()) - gone), made.read),
            donors=self._donors,
            parents={pull.number: partial(_read_at, prepared.upstream, pull.parent, prefix) for pull in prepared.pulls},
            brought=put_on | carried,
            put_on=frozenset(put_on),
            package=prepared.overlay.package,
        )

    # -- one round -----------------------------------------------------------------------------------------------------

    def _ahead(self, state: _State, made: Plan, offers: Offers, trees: Trees) -> _State | None:
        """Take what can be taken, and what that needs in turn as far as names alone show it; None where nothing can.

        What comes out is planned and checked like anything else: looking ahead only saves plans in between.
        """
        latest: _State | None = None
        known = {(finding.path, finding.symbol) for finding in made.found.findings}
        changed = frozenset(made.edits)
        hardware = build.hardware_of(made.base, made.tree)
        while (following := self._next(latest or state, offers, trees)) is not None:
            before = latest or state
            latest = following
            trees = self._with(trees, following.taken[len(before.taken) :], following.patches[len(before.patches) :])
            changed |= trees.brought.keys()
            seen = compat.check_names(
                compat.Comparison(trees.base, trees.merged, changed, package=trees.package, hardware=hardware)
            )
            fresh = [finding for finding in seen if (finding.path, finding.symbol) not in known]
            known |= {(finding.path, finding.symbol) for finding in seen}
            offers = adapt.propose(fresh, trees, is_last_resort=False, is_tried=self._is_blocked)
            self._seen |= {proposal.id: proposal for proposal in offers.proposals}
        return latest

    def _with(self, trees: Trees, proposals: Iterable[Proposal], series: Sequence[patches.Patch]) -> Trees:
        """Return the trees with what was just taken, as far as it fits; the plan judges what does not."""
        changes = [proposal.change for proposal in proposals]
        entries = tuple(Carry.model_validate(change.entry) for change in changes if isinstance(change, CarryOver))
        results = {number: donor.read for number, donor in trees.donors.items()}
        carried = {c.path: c for c in carry.carry(entries, trees.merged.read, results) if c.data is not None}
        merged = trees.merged.overlaid({path: entry.data for path, entry in carried.items() if entry.data is not None})
        done = patches.apply_series(series, merged.read, merged.paths, trees.base.read, None)
        brought = {path: int(entry.from_.removeprefix("pr:")) for path, entry in carried.items()}
        return replace(trees, merged=merged.overlaid(done.edits), brought={**trees.brought, **brought})

    def _next(self, state: _State, offers: Offers, trees: Trees) -> _State | None:
        """Take what can be taken; None where there is nothing."""
        picked = self._picked(state, offers)
        drafts = [(p, p.change) for p in picked if isinstance(p.change, Draft)]
        placed = in_sequence([draft for _, draft in drafts], trees.merged)
        made = list(
            self._numbered(state, [(p, d) for (p, _), d in zip(drafts, placed, strict=True) if d], trees.merged)
        )
        carries = [proposal for proposal in picked if isinstance(proposal.change, CarryOver)]
        if not made and not carries:
            return None
        taken = (*state.taken, *carries, *(proposal for proposal, _ in made))
        series = (*state.patches, *(patch for _, patch in made))
        overlay = _changed(self._fresh().prepared.overlay, taken, series)
        prepared = replace(self._start, overlay=overlay, series=(*self._start.series, *series))
        return _State(prepared, taken, series)

    def _is_new_start(self, state: _State, offers: Offers) -> bool:
        """Tell whether all that was taken has to be looked at anew, and note why.

        Nothing may be made for a file that is not put on; and a bare overlay gets a name with the first proposal.
        """
        picked = self._picked(state, offers)
        leaving = {p.change.path: p for p in picked if isinstance(p.change, LeftOut)}
        self._left_out |= leaving
        self._is_named |= bool(picked)
        return bool(leaving) or (state.prepared.overlay.is_bare and bool(picked))

    def _picked(self, state: _State, offers: Offers) -> list[Proposal]:
        done = {_What.of(proposal) for proposal in state.taken}
        return [p for p in offers.proposals if self._is_wanted(p) and _What.of(p) not in done]

    def _is_wanted(self, proposal: Proposal) -> bool:
        is_chosen = not proposal.needs_accept or proposal.id in self._accept
        return is_chosen and proposal.change is not None

    def _numbered(
        self, state: _State, drafts: Iterable[tuple[Proposal, Draft]], tree: Tree
    ) -> Iterator[tuple[Proposal, patches.Patch]]:
        """Write the drafts as patches, each on the tree with the earlier ones."""
        topic = self._target.name
        known = {*self._start.overlay.patches, *(patch.id for patch in state.patches)}
        waiting = set[str]()
        for proposal, draft in drafts:
            text = patch_text(f"{topic}/0000-{draft.slug}", draft, tree) if draft.path not in waiting else None
            if text is None:
                # The places of later drafts in this file count on this one.
                waiting.add(draft.path)
                continue
            patch_id = shelving.patch_id(self._shelf, topic, draft.slug, text, known)
            known.add(patch_id)
            edited = rewrites.apply(tree.read(draft.path) or b"", draft.rewrites)
            tree = tree.overlaid({draft.path: edited})
            yield proposal, patches.load(patch_id, text, f"patches/{patch_id}.patch")

    # -- what did not help ---------------------------------------------------------------------------------------------

    def _refused(self, state: _State, made: Plan) -> bool:
        """Block what the plan rejects although it was proposed."""
        ids = {outcome.id: outcome.reason for _, outcome in made.found.patches if outcome.outcome == "rejected"}
        paths = {entry.path: entry.fact for entry in made.found.carried if entry.outcome == "rejected"}
        refused = dict[_What, str]()
        for proposal in state.taken:
            if isinstance(proposal.change, CarryOver) and proposal.path in paths:
                refused[_What.of(proposal)] = paths[proposal.path]
        drafts = [proposal for proposal in state.taken if isinstance(proposal.change, Draft)]
        for proposal, patch in zip(drafts, state.patches, strict=True):
            if patch.id in ids:
                refused[_What.of(proposal)] = ids[patch.id]
        if not made.found.checker and not refused:
            # Something of the definition itself does not fit with what was taken.
            why = "with it, a patch or carry of the definition itself is rejected"
            refused = {_What.of(proposal): why for proposal in state.taken if not isinstance(proposal.change, LeftOut)}
        return self._block(refused)

    def _block(self, found: Mapping[_What, str]) -> bool:
        """Note what is not to be proposed again; tell whether any of it is new."""
        fresh = found.keys() - self._blocked.keys()
        self._blocked |= {what: found[what] for what in fresh}
        return bool(fresh)

    def _dead_ends(self, state: _State, made: Plan, offers: Offers, trees: Trees) -> bool:
        """Block what settled nothing, and what was carried and needs in turn what nothing can give.

        A carried definition that fails where it is used is no better than the name that was missing.
        """
        still = {(f.kind, f.path, f.symbol) for f in made.found.findings if f.is_open}
        dead = {
            _What.of(proposal): "it was tried, and the finding was still there"
            for proposal in state.taken
            if proposal.settles and all((f.kind, f.path, f.symbol) in still for f in proposal.settles)
        }
        offered = {key_of(f) for p in offers.proposals if p.change for f in p.settles}
        hopeless = [f for f in made.found.findings if f.is_open and f.kind != "reverse" and key_of(f) not in offered]
        for finding in hopeless:
            dead |= self._carries_leading_to(finding, state, trees)
        return self._block(dead)

    def _carries_leading_to(self, finding: Finding, state: _State, trees: Trees) -> dict[_What, str]:
        why = f"carried code would need {finding.symbol} ({finding.path}:{finding.line}), which this base lacks"
        found: dict[_What, str] = {}
        queue = [finding]
        while queue:
            current = queue.pop()
            for proposal in state.taken:
                if _is_inside(current, proposal, trees.merged) and _What.of(proposal) not in found:
                    found[_What.of(proposal)] = why
                    queue += proposal.settles
        return found

    # -- the end -------------------------------------------------------------------------------------------------------

    def _result(self, state: _State, made: Plan, offers: Offers) -> Adaptation:
        self._refuse_unknown_choices()
        if self._start.overlay.is_bare and not state.taken:
            made = build.complete(self._start, self._doors)
        blocked = {key: why for what, why in self._blocked.items() for key in what.settles}
        offered = tuple(p for p in offers.proposals if not self._is_wanted(p))
        # What a carry that was withdrawn came to on its way is still a person's to choose.
        on_the_way = tuple(self._chosen_by_nobody({p.id for p in (*state.taken, *offered)})) if blocked else ()
        left = []
        for finding in made.found.findings:
            if finding.is_open:
                why = blocked.get((finding.path, finding.symbol)) or offers.why.get(key_of(finding), "")
                ids = tuple(p.id for p in offered if p.change and key_of(finding) in map(key_of, p.settles))
                if (finding.path, finding.symbol) in blocked:
                    ids = (*(p.id for p in on_the_way), *ids)
                left.append(Left(finding, why, ids))
        offered = (*offered, *on_the_way)
        return Adaptation(
            made,
            state.taken,
            offered,
            tuple(left),
            _additions(state.taken, state.patches),
            {patch.id: patch.text for patch in state.patches},
            made.notes,
        )

    def _chosen_by_nobody(self, known: set[str]) -> Iterator[Proposal]:
        """Yield the carries that were alternatives on the way to a dead end: with them, it may be none."""
        for proposal in self._seen.values():
            is_open = proposal.needs_accept and isinstance(proposal.change, CarryOver)
            if is_open and proposal.id not in known and not self._is_wanted(proposal):
                yield proposal

    def _refuse_unknown_choices(self) -> None:
        choices = [proposal.id for proposal in self._seen.values() if proposal.change is not None]
        for name in sorted(self._accept):
            if name not in self._seen:
                listed = ", ".join(p.id for p in self._seen.values() if p.needs_accept and p.change) or "none"
                message = f"there is no proposal {name!r}{did_you_mean(name, choices)}"
                raise InputError("--accept", message, hint=f"alternatives: {listed}")
            if self._seen[name].change is None:
                raise InputError("--accept", f"{name} is a sketch for a person", hint="write the compat patch by hand")


@dataclass(frozen=True)
class _What:
    """What a proposal does and for what; lines move, and numbers behind an id differ from round to round."""

    option: str
    path: str
    settles: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, proposal: Proposal) -> _What:
        symbols = frozenset((finding.path, finding.symbol) for finding in proposal.settles)
        return cls(re.sub(r"-\d+$", "", proposal.id), proposal.path, symbols)


def _is_inside(finding: Finding, proposal: Proposal, tree: Tree) -> bool:
    """Tell whether a finding stands in what a proposal carried."""
    change = proposal.change
    if not isinstance(change, CarryOver) or change.path != finding.path:
        return False
    if not change.symbols:
        return True
    try:
        own = [part for part in parts(tree.read(change.path) or b"") if part.binds & {*change.symbols}]
    except UnreadableError:
        return True
    return any(part.first <= finding.line <= part.last for part in own)


def _read_at(upstream: Upstream, commit: Oid, prefix: str, path: str) -> bytes | None:
    return upstream.read(commit, prefix + path)


def _additions(taken: Iterable[Proposal], series: Iterable[patches.Patch]) -> Additions:
    """Return what a definition gets; carries from one file become one entry."""
    changes = [proposal.change for proposal in taken]
    carries: dict[tuple[str, int, bool], CarryOver] = {}
    for change in changes:
        if isinstance(change, CarryOver):
            key = change.path, change.number, bool(change.symbols)
            known = carries.get(key)
            carries[key] = _joined(known, change) if known else change
    left_out = tuple(change for change in changes if isinstance(change, LeftOut))
    return Additions(tuple(patch.id for patch in series), tuple(carries.values()), left_out)


def _joined(one: CarryOver, other: CarryOver) -> CarryOver:
    symbols = tuple(dict.fromkeys((*one.symbols, *other.symbols)))
    reason = one.reason if other.reason in one.reason else f"{one.reason}; {other.reason}"
    return replace(one, symbols=symbols, reason=reason)


def _changed(overlay: Overlay, taken: Iterable[Proposal], series: Iterable[patches.Patch]) -> Overlay:
    """Return a definition with what was taken, as the written file will have it."""
    additions = _additions(taken, series)
    gone = {entry.path for entry in additions.left_out}
    kept = {entry.path for entry in overlay.leave_out}
    return overlay.model_copy(
        update={
            "file": tuple(rule for rule in overlay.file if rule.path not in gone),
            "leave_out": (
                *overlay.leave_out,
                *(LeaveOut(path=e.path, reason=e.reason) for e in additions.left_out if e.path not in kept),
            ),
            "carry": (*overlay.carry, *(Carry.model_validate(entry.entry) for entry in additions.carries)),
            "patches": (*overlay.patches, *additions.patches),
        }
    )
