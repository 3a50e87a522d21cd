"""The pipeline: the steps of a plan and a build in order. The rules are in the modules it calls."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import filelock

from builder import (
    __version__,
    carry,
    catalogue,
    compat,
    donors,
    patches,
    predicates,
    prerequisites,
    records,
    smoke,
    source_tree,
    symbols,
)
from builder import base as bases
from builder import drift as drifts
from builder import plan as plans
from builder.base import FolderBase, ImageBase, Sources
from builder.catalogue import Catalogue, Image, Overlay
from builder.checkpoint import Checkpoint, PublishedDraft
from builder.doors import Engine, Progress, TypeChecker, Upstream
from builder.errors import InputError, Refused, Unavailable
from builder.guards import Hardware
from builder.merge import BaseFile, FileResult, Merged, Sides, Subject, merge_pull_request, refuse_strangers
from builder.model import (
    Check,
    Digest,
    ImageRef,
    LocalImage,
    Merge3,
    Oid,
    Platform,
    PullRequest,
    PullRequestRef,
    SourceTree,
)
from builder.plan import Edit, Findings, Plan
from builder.records import PROJECT, Lock, Report, Tool, canonical, write_atomic
from builder.suggest import did_you_mean

_PLACE = re.compile(r" \(([^()]+):(\d+)\)$")
"""The path and line in what a finding says a tree has: `name (path:line)`."""


@dataclass(frozen=True)
class Request:
    """What a person asked to be planned."""

    base: str
    pull_requests: tuple[int, ...] = ()
    overlay: str | None = None
    is_bare: bool = False
    platform: Platform | None = None
    live_root: str | None = None
    is_forced: bool = False
    accept_closed: bool = False
    is_normalising: bool = False
    """Whether compat patches with CRLF line ends are read as if they had LF; both digests are recorded."""
    is_locked: bool = False
    """Whether all must be what the definition's lock says, the type checker's version included."""


@dataclass(frozen=True)
class Doors:
    """The doors, opened by the command line; `sources` is called only where an image base needs it."""

    sources: Callable[[], Sources]
    upstream: Callable[[str], Upstream]
    merge3: Merge3
    progress: Progress
    say: Callable[[str], None]
    checker: TypeChecker


@dataclass(frozen=True)
class Wanted:
    """What a build shall leave: the tag, what the smoke test judges, and where the report goes."""

    tag: ImageRef | None = None
    is_replacing: bool = False
    draft: Checkpoint | None = None
    target: Checkpoint | None = None
    require: frozenset[str] = frozenset()
    report: Path | None = None
    state: Path = Path()


@dataclass(frozen=True)
class Outcome:
    """What a build came to. `image` is None where nothing stayed in the engine."""

    plan: Plan
    image: LocalImage | None = None
    tag: ImageRef | None = None
    loaded_by: str = ""
    is_reused: bool = False
    checks: tuple[Check, ...] = ()
    report: Path | None = None

    @property
    def verdict(self) -> records.Verdict:
        """The plan's verdict, or the smoke test's where it ran."""
        if self.checks and self.plan.verdict == "ok":
            return checks_verdict(self.checks)
        return self.plan.verdict


@dataclass(frozen=True)
class Prepared:
    """What a plan is made from, resolved and read: the definition with its patches, the base and the pull requests."""

    overlay: Overlay
    series: tuple[patches.Patch, ...]
    base: FolderBase | ImageBase
    tree: SourceTree
    pulls: tuple[PullRequest, ...]
    upstream: Upstream
    notes: tuple[str, ...] = ()
    is_forced: bool = False


def make_plan(request: Request, shelf: Catalogue, doors: Doors) -> Plan:
    """Run steps 1 to 8: everything that can be known before the engine is given a layer."""
    return complete(prepare(request, shelf, doors), doors)


def prepare(request: Request, shelf: Catalogue, doors: Doors) -> Prepared:
    """Run steps 1 to 4: choose the definition, resolve base and pull requests, read the base's tree."""
    named = bases.named(request.base, shelf)
    alias = named[1].alias if isinstance(named, tuple) and named[1] else None
    choice = catalogue.choose(
        shelf, request.pull_requests, request.overlay, bare=request.is_bare, alias=alias, admits=_admits(named)
    )
    overlay, notes = choice.overlay, [choice.note]
    refuse_unknown_checks(overlay)
    series = _load_patches(shelf, overlay, is_normalising=request.is_normalising)
    lock = _read_lock(shelf, overlay, series)
    if request.is_locked:
        _refuse_unlocked(overlay, lock, named, doors.checker)
    # Whatever is wrong with the names is said before anything is fetched or pulled.
    base: FolderBase | ImageBase
    if isinstance(named, FolderBase):
        base, tree = named, source_tree.from_folder(named.path, overlay.package)
    else:
        base = bases.resolve(request.base, shelf, doors.sources(), request.platform, lock)
    upstream = doors.upstream(overlay.upstream)
    pulls = tuple(_resolve(upstream, overlay, number, lock, request) for number in overlay.pull_requests)
    if isinstance(base, ImageBase):
        base, tree = _pulled_tree(base, overlay, request, doors)
        notes += [*base.notes, *_lineage_notes(base, lock)]
    overlay, series, dropped = _admitted(overlay, series, alias, tree, request)
    if dropped:
        notes[0] = dropped  # instead of the choice that does not hold
    return Prepared(overlay, series, base, tree, pulls, upstream, tuple(notes), request.is_forced)


def complete(prepared: Prepared, doors: Doors) -> Plan:
    """Run steps 5 to 8 on what was prepared; a definition or patches that were changed since give another plan."""
    overlay, base, tree, pulls = prepared.overlay, prepared.base, prepared.tree, prepared.pulls
    found, edits = _compose(
        overlay,
        prepared.series,
        [*pulls],
        tree,
        prepared.upstream,
        doors,
        hardware_of(base, tree),
        is_forced=prepared.is_forced,
    )
    plans.refuse_hiding(tree, edits)
    present = plans.is_present(found.merged) and not prepared.is_forced
    verdict = plans.verdict_of(found, is_present=present, has_edits=bool(edits))
    made = Plan(overlay, base, tree, found, edits, verdict, notes=prepared.notes)
    is_buildable = verdict == "ok" and isinstance(base, ImageBase)
    return plans.with_bytes(made, max(pull.committed for pull in pulls)) if is_buildable else made


def hardware_of(base: FolderBase | ImageBase, tree: SourceTree) -> Hardware:
    """Return which hardware a base is made for, as its tree and the image's environment tell."""
    local = base.local if isinstance(base, ImageBase) else None
    settings = local.config.get("config") if local else None
    environment = settings.get("Env") if isinstance(settings, Mapping) else None
    return Hardware.of(tree, environment or ())


def refuse_unknown_checks(overlay: Overlay) -> None:
    """Refuse an acknowledgement of a check or a kind that nobody knows: it would settle nothing, silently."""
    where = f"overlays/{overlay.name}.toml: acknowledge"
    for entry in overlay.acknowledge:
        for key, word, known in (("check", entry.check, smoke.CHECKS), ("kind", entry.kind, compat.KINDS)):
            if word is not None and word not in known:
                hint = f"one of: {', '.join(known)}"
                raise InputError(where, f"{key}: there is no {word!r}{did_you_mean(word, known)}", hint=hint)


def build(request: Request, wanted: Wanted, shelf: Catalogue, doors: Doors) -> Outcome:
    """Run the whole pipeline; the tag moves last, and only after the smoke test."""
    _refuse_wishes(wanted)
    made = make_plan(request, shelf, doors)
    if not isinstance(made.base, ImageBase):
        raise InputError(made.base.name, "is a folder; an image is built on an image", hint="use plan for a folder")
    if made.built is None:
        return Outcome(made)
    sources = doors.sources()
    tag = wanted.tag or default_tag(made)
    # One lock for the tag, so that of two builds that want it the later one sees whose it is.
    with (
        _one_at_a_time(wanted.state, Digest.of(str(tag).encode())),
        _one_at_a_time(wanted.state, made.built.plan_digest),
    ):
        refuse_tag(tag, made, sources.engine, is_replacing=wanted.is_replacing)
        outcome = _load_and_smoke(made, tag, wanted, sources.engine, doors)
    _record_platform(shelf, made, doors)
    return outcome


def _refuse_wishes(wanted: Wanted) -> None:
    """Refuse what could only fail at the end, before any work is done."""
    if wanted.tag is not None and wanted.tag.digest is not None:
        raise InputError(
            "--tag", f"{wanted.tag} is pinned by digest and cannot be a tag", hint="leave @sha256:... away"
        )
    report = wanted.report
    if report is None:
        return
    folder = report.parent
    is_other = report.is_symlink() or (report.exists() and not report.is_file())
    if is_other or not folder.is_dir() or not os.access(folder, os.W_OK):
        message = f"{report} cannot be written: it is no regular file, or its folder is missing or read-only"
        raise InputError("--report", message, hint="give a file in an existing folder that you may write to")


def _load_and_smoke(made: Plan, tag: ImageRef, wanted: Wanted, engine: Engine, doors: Doors) -> Outcome:
    started = _now()
    inputs = smoke_inputs(made, wanted)
    known = same_image(engine, made)
    earlier = _earlier_report(wanted.state, known, inputs) if known is not None else None
    if known is not None and earlier is not None:
        doors.say(f"an identical image exists ({known.id}); it is reused, with the smoke test of its build")
        path = wanted.report or report_path(wanted.state, known.id, inputs)
        write_atomic(path, canonical(earlier.model_copy(update={"tag": str(tag)})))
        engine.tag(known.id, tag)
        checks = tuple(Check(c.name, c.outcome, c.message, c.facts, c.acknowledged) for c in earlier.smoke)
        return Outcome(made, known, tag, "reused", is_reused=True, checks=checks, report=path)
    image, way = (known, "reused") if known is not None else _load(made, engine)
    doors.say("smoke test: the image imports the modules and loads the draft's names (imports may take half a minute)")
    # The state folder's copy tells a later run of the same build that its smoke test was done.
    kept = report_path(wanted.state, image.id, inputs)
    path = wanted.report or kept
    written: list[Path] = []
    try:
        outcome = Outcome(
            made, image, tag, way, is_reused=known is not None, checks=_smoke(made, image, wanted, engine), report=path
        )
        report = canonical(_report(outcome, inputs, started, engine, doors.sources().mirror))
        for place in sorted({path, kept}):
            write_atomic(place, report)
            written.append(place)
        if outcome.verdict == "ok":
            engine.tag(image.id, tag)
            return outcome
    except BaseException:
        # No report may claim a tag that was not given.
        for place in written:
            place.unlink(missing_ok=True)
        engine.remove(image.id)
        raise
    engine.remove(image.id)
    return replace(outcome, image=None, tag=None)


def _load(made: Plan, engine: Engine) -> tuple[LocalImage, str]:
    built = made.to_build
    return engine.load(built.config, built.layer, made.local_base, built.deletions)


def _read_lock(shelf: Catalogue, overlay: Overlay, series: tuple[patches.Patch, ...]) -> Lock | None:
    """Read a definition's lock and refuse one whose patches have other texts than the files now."""
    if overlay.is_bare:
        return None
    path = shelf.lock_path(overlay.name)
    lock = records.read_lock(path)
    if lock is None:
        return None
    if lock.overlay != overlay.name:
        message = f"is the lock of {lock.overlay!r}, not of {overlay.name!r}"
        raise InputError(path.name, f"overlay: {message}", hint="rename the file, or mend its key 'overlay'")
    pinned = {pin.id: pin.digest for pin in lock.patches}
    actual = {patch.id: patch for patch in series}
    facts = [_patch_difference(key, pinned.get(key), actual.get(key)) for key in sorted(pinned.keys() | actual.keys())]
    if differing := [fact for fact in facts if fact]:
        hint = f"review the patches, then write their digests into {path.name}"
        raise Refused(path.name, "the compat patches are not those that were locked", facts=differing, hint=hint)
    return lock


def _refuse_unlocked(
    overlay: Overlay, lock: Lock | None, named: FolderBase | tuple[ImageRef, Image | None], checker: TypeChecker
) -> None:
    """Refuse whatever `--locked` finds not pinned, or pinned to something else."""
    if lock is None:
        what = "a bare overlay has no lock" if overlay.is_bare else f"{overlay.name}.lock.json does not exist"
        raise Refused(
            "--locked", what, hint="write overlays/NAME.lock.json (overlay schema lock), or leave --locked out"
        )
    facts = [f"#{number} is not pinned" for number in overlay.pull_requests if lock.pull_request(number) is None]
    if isinstance(named, FolderBase):
        facts.append(f"{named.name} is a folder, which nothing pins")
    elif lock.base(named[1].alias if named[1] else None, named[0].repository_and_tag) is None:
        facts.append(f"{named[0]} is not pinned")
    found = f"{checker.name} {checker.version()}"
    if lock.checker != found:
        facts.append(f"type checker: the lock has {lock.checker}, here is {found}")
    if facts:
        hint = f"install the checker of the lock, or write what you reviewed into {overlay.name}.lock.json"
        raise Refused(f"{overlay.name}.lock.json", "does not hold what --locked needs", facts=facts, hint=hint)


def _patch_difference(patch_id: str, pinned: str | None, actual: patches.Patch | None) -> str:
    """Say how a patch differs from the lock; empty where it does not."""
    found = actual.sha256 if actual else None
    if pinned == found:
        return ""
    if actual and Digest.of(_with_unix_ends(actual.text)) == pinned:
        return f"{patch_id}: differs only in line endings; --normalise-line-endings reads it with the lock's"
    return f"{patch_id}: lock {pinned or 'has none'}, file {found or 'has none'}"


def _load_patches(shelf: Catalogue, overlay: Overlay, *, is_normalising: bool) -> tuple[patches.Patch, ...]:
    loaded = []
    for patch_id in overlay.patches:
        source, data = shelf.patch_bytes(patch_id, f"overlays/{overlay.name}.toml")
        text = _with_unix_ends(data) if is_normalising else data
        patch = patches.load(patch_id, text, source)
        loaded.append(patch if text == data else replace(patch, raw_sha256=Digest.of(data)))
    return tuple(loaded)


def _with_unix_ends(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n")


def _resolve(upstream: Upstream, overlay: Overlay, number: int, lock: Lock | None, request: Request) -> PullRequest:
    ref = PullRequestRef(overlay.upstream, number)
    pin = lock.pull_request(number) if lock else None
    if pin is None:
        return upstream.resolve(ref, accept_closed=request.accept_closed)
    # Commits alone do not always tell how they were merged, and the manifest says it: the lock decides.
    return replace(upstream.pinned(ref, Oid(pin.parent), Oid(pin.result)), kind=pin.kind)


def _pulled_tree(base: ImageBase, overlay: Overlay, request: Request, doors: Doors) -> tuple[ImageBase, SourceTree]:
    sources = doors.sources()
    present = bases.pulled(base, sources, doors.progress)
    assert present.local is not None
    live_root = request.live_root or present.live_root
    doors.say(f"reading {overlay.package} from {present.reference}")
    tree = source_tree.extract(sources.engine, present.local, package=overlay.package, live_root=live_root)
    return present, tree


def _lineage_notes(base: ImageBase, lock: Lock | None) -> list[str]:
    """Say what a person would be surprised by: a base that is itself an overlay, or one that the lock does not pin."""
    notes = []
    labels = base.local.labels if base.local else {}
    if f"{PROJECT}.plan-digest" in labels:
        below = labels.get("org.opencontainers.image.base.name", "another image")
        numbers = labels.get(f"{PROJECT}.pull-requests", "")
        notes.append(
            f"{base.reference} was itself built by this tool on {below} with {numbers}; build on {below} instead"
        )
    if lock is not None and lock.base(base.alias, base.reference.repository_and_tag) is None:
        notes.append(f"the lock of {lock.overlay} does not pin {base.reference}: its tag decides")
    return notes


def _admits(named: FolderBase | tuple[ImageRef, Image | None]) -> Callable[[Overlay], bool] | None:
    """Return what tells whether a definition admits a base that can be read before anything is chosen: a folder."""
    if not isinstance(named, FolderBase):
        return None
    tree_of = cache(lambda package: source_tree.from_folder(named.path, package))

    def admits(overlay: Overlay) -> bool:
        read = tree_of(overlay.package).read
        where = f"overlays/{overlay.name}.toml: bases"
        conditions = [entry for entry in overlay.bases if not catalogue.is_base_alias(entry)]
        truths = [predicates.evaluate(predicates.parse(text, where), read, read) for text in conditions]
        return not overlay.bases or any(truth.value for truth in truths)

    return admits


def _admitted(
    overlay: Overlay,
    series: tuple[patches.Patch, ...],
    alias: str | None,
    tree: SourceTree,
    request: Request,
) -> tuple[Overlay, tuple[patches.Patch, ...], str]:
    """Drop a definition that does not admit this base and say so; one asked for by name is refused instead."""
    if not overlay.bases or alias in overlay.bases:
        return overlay, series, ""
    conditions = [entry for entry in overlay.bases if not catalogue.is_base_alias(entry)]
    where = f"overlays/{overlay.name}.toml: bases"
    facts = [predicates.evaluate(predicates.parse(text, where), tree.read, tree.read) for text in conditions]
    if any(truth.value for truth in facts):
        return overlay, series, ""
    why = "; ".join(truth.fact for truth in facts) or f"it is for {', '.join(overlay.bases)}"
    if request.overlay is not None:
        hint = "add the base to its 'bases' after reviewing it, or leave --overlay out"
        raise InputError(where, f"does not admit {request.base}: {why}", hint=hint)
    note = f"definition {overlay.name} does not admit this base and is not used ({why})"
    return catalogue.bare_overlay(overlay.pull_requests, overlay.upstream), (), note


def _compose(
    overlay: Overlay,
    series: tuple[patches.Patch, ...],
    pulls: list[PullRequest],
    tree: SourceTree,
    upstream: Upstream,
    doors: Doors,
    hardware: Hardware,
    *,
    is_forced: bool,
) -> tuple[Findings, dict[str, Edit]]:
    """Steps 5 to 7: merge every pull request, carry, patch, check; a refusal ends the steps that build on it."""
    untouched = {path: BaseFile(f.blob, f.git_mode, f.data) for path, f in tree.files.items()}
    is_mentioned = _mentions(tree)
    subjects = [
        Subject(pull, overlay, untouched, untouched, _sides(upstream, pull), doors.merge3, is_mentioned, is_forced)
        for pull in pulls
    ]
    changes = {pull.number: upstream.changes(pull) for pull in pulls}
    prerequisites.refuse_order(subjects, changes, upstream)
    edits: dict[str, Edit] = {}
    merged: list[Merged] = []
    for index, subject in enumerate(subjects):
        doors.say(f"merging {subject.pull_request}")
        subjects[index] = replace(subject, ours=_as_merged(untouched, edits))
        merged.append(merge_pull_request(changes[subject.pull_request.number], subjects[index]))
        edits.update(_edits(merged[-1].files))
    refuse_strangers(overlay, merged)
    found = Findings(merged=tuple(merged))
    if any(result.is_blocking for entry in merged for result in entry.files):
        return replace(found, prerequisites=prerequisites.search(subjects, merged, changes, upstream)), edits
    if plans.is_present(merged) and not is_forced:
        return found, {}
    found, edits = _fit(found, edits, overlay, series, pulls, tree, upstream, doors, hardware)
    known = prerequisites.with_findings(found.prerequisites, found.findings, merged, has_history=upstream.has_history)
    return replace(found, prerequisites=known), edits


def _fit(
    found: Findings,
    edits: dict[str, Edit],
    overlay: Overlay,
    series: tuple[patches.Patch, ...],
    pulls: list[PullRequest],
    tree: SourceTree,
    upstream: Upstream,
    doors: Doors,
    hardware: Hardware,
) -> tuple[Findings, dict[str, Edit]]:
    """Carry and patch the merged tree so that it fits the base, then check that it does."""
    results = {pull.number: _reader_at(upstream, pull.result, overlay) for pull in pulls}
    carried = carry.carry(overlay.carry, _reader(tree, edits), results)
    edits = edits | {entry.path: Edit(entry.data) for entry in carried if entry.data is not None}
    paths = tree.paths | set(edits)
    outcome = patches.apply_series(series, _reader(tree, edits), paths, tree.read, tree.version)
    edits = edits | {path: Edit(data, _mode(edits, path)) for path, data in outcome.edits.items()}
    edits = {path: edit for path, edit in edits.items() if not _is_untouched(tree, path, edit)}
    found = replace(found, carried=carried, patches=tuple(zip(series, outcome.outcomes, strict=True)))
    if outcome.is_rejected or any(entry.outcome == "rejected" for entry in carried):
        return found, edits  # none of the patches is on the tree, so findings would be about their absence
    blobs = {path: file.blob for path, file in tree.files.items() if file.link is None}
    before = compat.Tree(tree.paths, tree.read, blobs)
    removed = {path for path, edit in edits.items() if edit.data is None}
    after = compat.Tree(frozenset(paths - removed), _reader(tree, edits), _blobs(blobs, edits))
    changed = frozenset(edits)
    donor_trees = donors.trees(changed, found.merged, carried, overlay, tree, upstream)
    comparison = compat.Comparison(before, after, changed, donor_trees, overlay.package, hardware)
    doors.say(f"checking what {len(changed)} files need of the base, and what they break in it")
    checked = compat.check(comparison, doors.checker, _acknowledgement(overlay))
    findings = _introduced(checked.findings, overlay, upstream, pulls[-1], donor_trees)
    # A file that only got a definition or two is the base's own: what else it uses is as it ever was.
    parts = {entry.path for entry in carried if entry.symbols} - {
        f.path for m in found.merged for f in m.files if f.data
    }
    whole = {path: donor for path, donor in donor_trees.items() if path not in parts}
    drift = drifts.drift(before, after, changed, whole, overlay.package)
    done = replace(found, findings=findings, unknown=checked.unknown, drift=drift, checker=_version_of(doors.checker))
    return done, edits


def _version_of(checker: TypeChecker) -> Tool:
    """Return the checker as it is recorded; one that cannot be run has made the plan unknown already."""
    try:
        return Tool(name=checker.name, version=checker.version())
    except Unavailable:
        return Tool(name=checker.name, version="")


def _blobs(blobs: Mapping[str, Oid], edits: Mapping[str, Edit]) -> dict[str, Oid]:
    """Return the blob ids of the merged tree."""
    kept = {path: blob for path, blob in blobs.items() if path not in edits}
    return kept | {path: Oid.of_blob(edit.data) for path, edit in edits.items() if edit.data is not None}


def _acknowledgement(overlay: Overlay) -> Callable[[compat.Finding], str | None]:
    """Return what tells the written reason why a finding is accepted."""

    def reason(finding: compat.Finding) -> str | None:
        fitting = (
            entry.reason
            for entry in overlay.acknowledge
            if (entry.kind, entry.path) == (finding.kind, finding.path) and entry.symbol in (None, finding.symbol)
        )
        return next(fitting, None)

    return reason


def _introduced(
    findings: tuple[compat.Finding, ...],
    overlay: Overlay,
    upstream: Upstream,
    pull: PullRequest,
    donor_trees: Mapping[str, compat.Tree],
) -> tuple[compat.Finding, ...]:
    """Add who introduced the missing things; history is searched once for each of them."""
    search = cache(lambda text, path: upstream.introduced(text, overlay.upstream_prefix + path, pull.result))
    return tuple(
        finding
        if finding.kind == "reverse"
        else replace(finding, introduced_by=search(*_sought(finding, donor_trees.get(finding.path))))
        for finding in findings
    )


def _sought(finding: compat.Finding, donor: compat.Tree | None) -> tuple[str, str]:
    """Return the text whose history tells who introduced a missing thing, and the package path to search.

    The line that declares it, where that is known: a name alone may stand in the same file for something else.
    """
    if finding.kind == "module-missing":
        name = finding.names[0] if finding.names else finding.symbol.rpartition(".")[2]
        return name, symbols.path_candidates(finding.symbol)[1]
    module, _, name = finding.symbol.rpartition(".")
    place = _PLACE.search(finding.donor_has or "")
    if place and donor and finding.kind in ("attribute-missing", "config-leaf-missing"):
        line = (donor.read(place[1]) or b"").split(b"\n")[int(place[2]) - 1 : int(place[2])]
        text = line[0].decode("utf-8", "replace").strip() if line else ""
        return text or name, place[1]
    return (finding.names[0] if finding.names else name), place[1] if place else symbols.path_candidates(module)[1]


def _as_merged(untouched: Mapping[str, BaseFile], edits: Mapping[str, Edit]) -> dict[str, BaseFile]:
    merged = dict(untouched)
    for path, edit in edits.items():
        if edit.data is None:
            merged.pop(path, None)
        else:
            mode = edit.git_mode or (untouched[path].git_mode if path in untouched else "100644")
            merged[path] = BaseFile(Oid.of_blob(edit.data), mode, edit.data)
    return merged


def _edits(files: tuple[FileResult, ...]) -> Iterator[tuple[str, Edit]]:
    for result in files:
        if result.is_blocking:
            continue
        if result.removes is not None:
            yield result.removes, Edit(None)
        if result.data is not None:
            yield result.path, Edit(result.data, result.mode)


def _mode(edits: Mapping[str, Edit], path: str) -> str | None:
    return edits[path].git_mode if path in edits else None


def _is_untouched(tree: SourceTree, path: str, edit: Edit) -> bool:
    known = tree.files.get(path)
    if known is None:
        return edit.data is None
    return edit.data is not None and known.data == edit.data and edit.git_mode in (None, known.git_mode)


def _reader(tree: SourceTree, edits: Mapping[str, Edit]) -> Callable[[str], bytes | None]:
    return lambda path: edits[path].data if path in edits else tree.read(path)


def _sides(upstream: Upstream, pull: PullRequest) -> Sides:
    return Sides(lambda path: upstream.read(pull.parent, path), lambda path: upstream.read(pull.result, path))


def _reader_at(upstream: Upstream, commit: Oid, overlay: Overlay) -> Callable[[str], bytes | None]:
    return lambda path: upstream.read(commit, overlay.upstream_prefix + path)


def _mentions(tree: SourceTree) -> Callable[[str], bool]:
    @cache
    def is_mentioned(name: str) -> bool:
        word = name.encode()
        return any(file.data is not None and word in file.data for file in tree.files.values())

    return is_mentioned


def default_tag(made: Plan) -> ImageRef:
    """Return `sglang-<alias>-<overlay>:local`; a base without an alias gives its own tag or digest."""
    base = made.image_base
    name = base.alias or base.reference.tag or base.config_digest.hex[:12]
    return ImageRef.parse(f"{made.overlay.package}-{name.lower().replace('_', '-')}-{made.overlay.name}:local")


def refuse_tag(tag: ImageRef, made: Plan, engine: Engine, *, is_replacing: bool) -> None:
    """Refuse the base's own tag always, and one that another image has unless it may be replaced."""
    there = engine.inspect(str(tag))
    own = {made.image_base.reference.repository_and_tag, *made.local_base.repo_tags}
    if tag.repository_and_tag in own or (there is not None and there.id == made.local_base.id):
        hint = "give another name with --tag"
        raise InputError(f"tag {tag}", "is the base's own; it is never moved", hint=hint)
    if there is None or is_replacing or there.labels.get(f"{PROJECT}.plan-digest") == made.to_build.plan_digest:
        return
    found = there.labels.get(f"{PROJECT}.plan-digest")
    fact = f"that image was built from plan {found}" if found else "that image was not built by this tool"
    raise Refused(
        f"tag {tag}",
        "belongs to another image",
        facts=(f"{fact}: {there.id}", f"this plan is {made.to_build.plan_digest}"),
        hint="give --replace to move the tag, or another --tag",
    )


def same_image(engine: Engine, made: Plan) -> LocalImage | None:
    """Find the image of this very plan: by its config digest, else by the plan digest its label holds.

    A label proves nothing: its layers must be the base's and the very layer of this plan. (An engine that repacked the
    layer gives it another diff ID; such an image is built again.)
    """
    built = made.to_build
    exact = engine.inspect(built.config_digest)
    if exact is not None:
        return exact
    layers = (*made.local_base.diff_ids, built.layer.diff_id)
    labelled = engine.find(f"{PROJECT}.plan-digest", built.plan_digest)
    return next((image for image in labelled if image.diff_ids == layers and image.repo_tags), None)


def checks_verdict(checks: Sequence[Check]) -> records.Verdict:
    """Judge a smoke test: a failure beats an unknown that nobody acknowledged, and that beats ok."""
    if any(check.outcome == "fail" for check in checks):
        return "failed"
    return "ok" if smoke.is_passed(checks) else "unknown"


def published_draft(overlay: Overlay) -> PublishedDraft | None:
    """Return the definition's table of the published draft, as the checks take it."""
    draft = overlay.draft
    if draft is None:
        return None
    tensors = {name: (draft.dtype, shape) for name, shape in draft.expanded().items()}
    return PublishedDraft(draft.checkpoint, draft.config, tensors)


def _smoke(made: Plan, image: LocalImage, wanted: Wanted, engine: Engine) -> tuple[Check, ...]:
    accepted = {entry.check: entry.reason for entry in made.overlay.acknowledge if entry.check}
    subject = smoke_subject(made, image, wanted, engine)
    return smoke.run(subject, require=wanted.require, acknowledge=accepted)


def smoke_subject(made: Plan, image: LocalImage, wanted: Wanted, engine: Engine) -> smoke.Subject:
    """Gather what the checks may look at."""
    python = tuple(path for path in made.overlaid if path.endswith(".py"))
    return smoke.Subject(
        engine=engine,
        image=image.id,
        base=made.local_base.id,
        overlaid=python,
        added=made.added & set(python),
        importers=smoke.importers_of(made.tree.paths, made.read, python),
        read=made.read,
        draft=wanted.draft,
        published=published_draft(made.overlay),
        target=wanted.target,
        package=made.tree.package,
        live_root=made.tree.live_root,
        interpreter=made.tree.interpreter,
    )


def smoke_inputs(made: Plan, wanted: Wanted) -> Digest:
    """Digest all that the smoke test's answer depends on, so that an earlier answer can be told to be of this test."""
    value = {
        "plan": made.to_build.plan_digest,
        "draft": _headers(wanted.draft),
        "target": _headers(wanted.target),
        "require": sorted(wanted.require),
        "definition": made.overlay.model_dump(mode="json"),
        "checks": list(smoke.CHECKS),
        "tool": __version__,
    }
    # Not the records' form: a checkpoint's config may hold NaN, Infinity and lone surrogates, as Python writes them.
    return Digest.of(json.dumps(value, sort_keys=True).encode())


def _headers(checkpoint: Checkpoint | None) -> object:
    """Return all that a check may read of a checkpoint, as JSON values."""
    if checkpoint is None:
        return None
    tensors = {n: [t.dtype, list(t.shape), t.file, t.begin, t.end] for n, t in checkpoint.tensors.items()}
    return [checkpoint.name, tensors, checkpoint.config, checkpoint.separate_quantization]


def report_path(state: Path, image: Digest, inputs: Digest) -> Path:
    """Return where the build report of an image and its smoke test's inputs stands in the user's state folder."""
    return state / "reports" / f"{image.hex}-{inputs.hex[:16]}.json"


def _earlier_report(state: Path, image: LocalImage, inputs: Digest) -> Report | None:
    """Return the report of an earlier build of this very image with these very inputs, if it passed."""
    path = report_path(state, image.id, inputs)
    try:
        report = records.read(path.read_bytes(), Report, path.name)
    except (OSError, InputError):
        return None
    is_same = report.verdict == "ok" and report.smoke_inputs == inputs and report.image_id == image.id
    return report if is_same else None


def _report(outcome: Outcome, inputs: Digest, started: str, engine: Engine, mirror: str | None) -> Report:
    built = outcome.plan.to_build
    assert outcome.image is not None
    is_ok = outcome.verdict == "ok"
    return Report(
        verdict=outcome.verdict,
        plan_digest=built.plan_digest,
        manifest_digest=Digest.of(built.manifest),
        diff_id=outcome.image.diff_ids[-1],
        image_id=outcome.image.id,
        tag=str(outcome.tag) if is_ok else None,
        loaded_by=outcome.loaded_by,
        engine=f"{engine.info().version} ({engine.info().store})",
        registry_mirror=mirror,
        started=started,
        finished=_now(),
        smoke_inputs=inputs,
        smoke=check_records(outcome.checks),
    )


def check_records(checks: Iterable[Check]) -> tuple[records.CheckRecord, ...]:
    """Return checks as they are recorded."""
    return tuple(records.CheckRecord.model_validate(check) for check in checks)


def _record_platform(shelf: Catalogue, made: Plan, doors: Doors) -> None:
    """Write the platform's digests into the definition's lock when they are seen for the first time."""
    base = made.base
    path = shelf.lock_path(made.overlay.name)
    lock = None if made.overlay.is_bare else records.read_lock(path)
    if lock is None or not isinstance(base, ImageBase):
        return
    updated = bases.with_platform_seen(lock, base)
    if updated is None:
        return
    if shelf.is_packaged:
        doors.say(f"{path.name} does not know {base.platform} yet; the packaged catalogue is left as it is")
        return
    try:
        write_atomic(path, canonical(updated))
    except Unavailable as error:
        doors.say(f"{error}; the build is not affected")
        return
    doors.say(f"{path.name}: wrote the digests of {base.platform}, seen for the first time; commit it")


@contextmanager
def _one_at_a_time(state: Path, plan_digest: Digest) -> Iterator[None]:
    """Let builds of the same plan wait for each other; the lock ends with its process."""
    folder = state / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / f"{plan_digest.hex}.lock")
        lock.acquire()
    except OSError as error:
        hint = "set XDG_STATE_HOME to a writable folder"
        raise Unavailable(str(folder), f"cannot be used: {error.strerror or error}", hint=hint) from None
    try:
        yield
    finally:
        lock.release()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
