"""Pure: documents as people read them at a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from builder import records

_STYLES = {
    "ok": "bold green",
    "pass": "green",
    "applied": "green",
    "clean": "green",
    "copied": "green",
    "carried": "green",
    "already-present": "cyan",
    "already present": "cyan",
    "not needed": "cyan",
    "taken": "yellow",
    "unknown": "bold yellow",
    "not-run": "yellow",
    "not-applicable": "dim",
    "unchanged": "dim",
    "outside-runtime": "dim",
}
_ALARM = "bold red"
_CONFLICT_LINES = 12
_SHOWN_PULLS, _SHOWN_COMMITS, _SHOWN_PLACES = 5, 3, 4
_SHOWN_FILES = 16
_SHOWN_REVERSE = 6


def plan(document: records.PlanDocument) -> RenderableType:
    """Return the plan: base, pull requests, files, patches, findings, verdict."""
    parts = (*_plan_parts(document), _verdict(document))
    if document.verdict == "ok" and document.layer is not None:
        return Group(*parts, Text("next     overlay build with the same arguments"))
    return Group(*parts, _next_step(document, ()))


def adapt(document: records.AdaptDocument) -> RenderableType:
    """Return the proposals that were taken, the alternatives with what each loses, and what is left."""
    parts: list[RenderableType] = [_notes(document.notes)]
    if document.base is not None:
        parts.append(_base(document.base))
    parts += [Text(f"  blocked  {entry}", style=_ALARM) for entry in document.blocked]
    for proposal in document.proposals:
        parts += _proposal(proposal)
    if document.left:
        table = _table("left open", "where", "what")
        for finding in document.left:
            found = [finding.message, finding.why, f"introduced by {finding.introduced_by}"]
            found = found if finding.introduced_by else found[:2]
            found += [f"alternatives: {', '.join(finding.alternatives)}"] if finding.alternatives else []
            where = f"{finding.path}:{finding.line}"
            table.add_row(Text(finding.kind, style=_ALARM), where, "\n".join(part for part in found if part))
        parts.append(table)
    parts += [Text(f"  not checked: {entry}", style="yellow") for entry in document.not_checked]
    parts += [Text(f"written  {path}", style="green") for path in document.written]
    return Group(*parts, *_tally(document), _verdict(document), _adapt_steps(document))


def _proposal(proposal: records.ProposalRecord) -> Iterable[RenderableType]:
    word = "proposed" if proposal.accepted else "sketch" if proposal.kind == "sketch" else "alternative"
    style = "bold green" if proposal.accepted else "bold yellow"
    yield Text.assemble((f"{word}  {proposal.id}", style), f"  ({proposal.kind}) {proposal.title}")
    places: dict[str, list[str]] = {}
    for place in proposal.settles:
        places.setdefault(f"{place.kind} {place.path}", []).append(str(place.line))
    yield Text("\n".join(f"  settles  {name}:{','.join(lines)}" for name, lines in places.items()), style="dim")
    if proposal.loses:
        yield Text(f"  loses    {proposal.loses}", style="yellow")
    if not proposal.accepted and proposal.kind != "sketch":
        yield Text(f"  take it  --accept {proposal.id}")
    yield Text("".join(f"    {line}\n" for line in proposal.text.splitlines()))


def _tally(document: records.AdaptDocument) -> Iterable[RenderableType]:
    taken = sum(proposal.accepted for proposal in document.proposals)
    if not document.proposals and not document.left:
        yield Text("nothing to propose")
    elif document.verdict != "already-present":
        yield Text(f"{taken} proposals; {document.needed_a_person} findings needed a person")


def _adapt_steps(document: records.AdaptDocument) -> RenderableType:
    steps = []
    if any(proposal.accepted for proposal in document.proposals) and not document.written:
        steps.append("add --write to write the proposals into the catalogue; nothing was written")
    if any(finding.alternatives for finding in document.left):
        steps.append("choose an alternative with --accept ID, or settle it by hand")
    elif document.verdict == "refused" and not document.left:
        steps.append("overlay plan with the same arguments shows what refuses; adapt starts where nothing conflicts")
    return Text("\n".join(f"next     {step}" for step in steps))


def build(document: records.BuildDocument) -> RenderableType:
    """Return the build: the plan, the smoke test and the image."""
    parts = list(_plan_parts(document))
    if document.smoke is not None:
        parts.append(_checks(document.smoke.checks))
    if document.image is not None:
        image = document.image
        verb = "reused" if image.reused else f"loaded by {image.loaded_by}"
        parts.append(_facts("image", [("tag", image.tag), ("id", f"{image.id} ({verb})")]))
    if document.manifest is not None and document.image is not None:
        parts.append(Text(f"  record   {document.manifest.path} {document.manifest.digest}"))
    if document.report is not None:
        parts.append(Text(f"  report   {document.report}"))
    if document.verdict != "ok" and document.smoke is not None:
        parts.append(Text("  nothing was tagged", style=_ALARM))
    checks = document.smoke.checks if document.smoke else ()
    return Group(*parts, _verdict(document), _next_step(document, checks))


def smoke(document: records.SmokeDocument) -> RenderableType:
    """Return the checks of one image."""
    return Group(_notes(document.notes), _checks(document.checks), _verdict(document))


def audit(document: records.AuditDocument) -> RenderableType:
    """Return the findings, and what the image is made of."""
    parts: list[RenderableType] = [_notes(document.notes), _facts(document.target, [("", e) for e in document.lineage])]
    if document.findings:
        table = _table("class", "path", "expected", "found", "what")
        for finding in document.findings:
            table.add_row(_mark(finding.class_), finding.path, finding.expected, finding.found, finding.message)
        parts.append(table)
    parts += [Text(f"  not inspected: {entry}", style="yellow") for entry in document.not_inspected]
    return Group(*parts, _verdict(document))


def listing(document: records.ListDocument) -> RenderableType:
    """Return the catalogue and the images built here."""
    overlays = _table("overlay", "pull requests", "bases", "locked", "title")
    for overlay in document.overlays:
        numbers = " ".join(f"#{number}" for number in overlay.pull_requests)
        locked = "yes" if overlay.is_locked else "no"
        overlays.add_row(overlay.name, numbers, "\n".join(overlay.bases) or "any", locked, overlay.title)
    bases = _table("base", "reference", "notes")
    for base in document.bases:
        bases.add_row(base.alias, base.reference, "\n".join(base.notes))
    parts: list[RenderableType] = [_notes(document.notes), Text(f"catalogue {document.catalogue}"), overlays, bases]
    if document.images:
        images = _table("image", "overlay", "id")
        for image in document.images:
            images.add_row(", ".join(image.tags) or "(untagged)", image.overlay, image.id[:19])
        parts.append(images)
    return Group(*parts)


def _plan_parts(document: records.PlanDocument) -> Iterable[RenderableType]:
    yield _notes(document.notes)
    if document.base is not None:
        yield _base(document.base)
    yield from _pull_requests(document)
    if document.carried:
        table = _table("carried", "symbols", "outcome", "fact")
        for entry in document.carried:
            table.add_row(entry.path, ", ".join(entry.symbols) or "(whole file)", _mark(entry.outcome), entry.fact)
        yield table
    if document.patches:
        yield _patches(document.patches)
    yield from _findings(document)
    yield from _prerequisites(document)
    if document.layer is not None:
        layer = document.layer
        yield _facts(
            "layer",
            [
                ("diff ID", f"{layer.diff_id} ({layer.files} files, {layer.bytes:,} bytes)"),
                ("plan", document.plan_digest or ""),
                ("config", document.config_digest or ""),
            ],
        )


def _base(base: records.BaseRecord) -> RenderableType:
    facts = [("name", base.reference), ("digest", base.digest or base.config_digest or "none (a folder)")]
    facts += [("live root", f"{base.live_root} ({base.found_by})"), ("version", base.version or "unknown")]
    facts += [("not live", copy) for copy in base.dead_copies]
    return _facts("base", facts)


def _pull_requests(document: records.PlanDocument) -> Iterable[RenderableType]:
    for pull in document.pull_requests:
        title = f"  {pull.title}" if pull.title else ""
        yield Text.assemble((f"{pull.repo}#{pull.number}", "bold"), title)
        yield Text(f"  {pull.kind}: parent {pull.parent[:12]}, result {pull.result[:12]}; in the base: {pull.presence}")
    table = _table("PR", "file", "state", "why")
    for file in document.files:
        why = file.reason or file.presence_fact
        account = _account(file)
        table.add_row(str(file.pull_request), file.path, _mark(file.state), f"{why}\n{account}" if account else why)
    if document.files:
        yield table
    for conflict in document.conflicts:
        yield _conflict(conflict)
    if document.skipped:
        names = ", ".join(f"{entry.path} ({entry.reason.splitlines()[0]})" for entry in document.skipped)
        yield Text(f"  not put on: {names}", style="dim")


def _account(file: records.FileRecord) -> str:
    parts = []
    if file.taken:
        spans = ", ".join(f"{first}-{last}" for first, last in file.taken)
        parts.append(f"the PR's side was taken at lines {spans}")
    if file.lost:
        parts.append(f"{len(file.lost)} lines of the base lost")
    if file.brought:
        parts.append(f"{len(file.brought)} lines brought along")
    return "; ".join(parts)


def _conflict(conflict: records.ConflictRecord) -> RenderableType:
    first, last = conflict.base_lines
    if (first, last) == (0, 0) and not conflict.base_text:
        return Text(f"  {conflict.path}: nothing to compare line by line; the reason stands above", style="red")
    if (first, last) == (0, 0):
        return Text(f"  {conflict.path}: lines that would be lost:\n{_indented(conflict.base_text)}", style="red")
    head = f"  {conflict.path}: base lines {first}-{last}, #{conflict.pull_request} lines "
    head += f"{conflict.pr_lines[0]}-{conflict.pr_lines[1]}"
    return Text.assemble(
        (head + "\n", _ALARM),
        ("    base\n", "bold"),
        _indented(conflict.base_text) + "\n",
        (f"    #{conflict.pull_request}\n", "bold"),
        _indented(conflict.pr_text),
    )


def _indented(text: str) -> str:
    lines = text.splitlines() or ["(nothing)"]
    shown = [f"      {line}" for line in lines[:_CONFLICT_LINES]]
    if len(lines) > _CONFLICT_LINES:
        shown.append(f"      ... {len(lines) - _CONFLICT_LINES} more lines; --json has them all")
    return "\n".join(shown)


def _patches(patches: Iterable[records.PatchRecord]) -> RenderableType:
    table = _table("patch", "outcome", "fact")
    for patch in patches:
        outcome = _mark(patch.outcome)
        if patch.outcome == "applied" and not patch.kept:
            outcome = Text("applies, not kept", style="yellow")
        detail = [patch.fact, patch.reason]
        if any(patch.offset):
            detail.append(f"offset {', '.join(f'{offset:+d}' for offset in patch.offset)} lines")
        if patch.removes:
            detail.append(f"removes: {patch.removes}")
        table.add_row(patch.id, outcome, "\n".join(part for part in detail if part))
    return table


def _findings(document: records.PlanDocument) -> Iterable[RenderableType]:
    if document.findings:
        table = _table("finding", "where", "what")
        groups: dict[tuple[str, str, str, str], list[records.FindingRecord]] = {}
        for finding in document.findings:
            groups.setdefault((finding.kind, finding.path, finding.symbol, finding.message), []).append(finding)
        reverse = [group for group in groups.values() if group[0].kind == "reverse"]
        for group in groups.values():
            if group not in reverse[_SHOWN_REVERSE:]:
                _add_finding(table, group)
        yield table
        if len(reverse) > _SHOWN_REVERSE:
            yield Text(f"  ... and {len(reverse) - _SHOWN_REVERSE} more reverse findings; --json has them all")
    yield from _drift(document.drift)
    if document.not_checked:
        yield Text(f"  not checked: {', '.join(document.not_checked)}", style="yellow")


def _add_finding(table: Table, group: Sequence[records.FindingRecord]) -> None:
    """Add one row for the same thing found in several lines of a file."""
    first = group[0]
    said = {
        "the base has": first.base_has,
        "upstream has": first.donor_has,
        "introduced by": first.introduced_by,
        "never reached:": first.unreachable,
        "acknowledged:": first.acknowledged,
    }
    guard = f" ({first.guard})" if first.guard else ""
    is_open = any(finding.acknowledged is None and finding.unreachable is None for finding in group)
    table.add_row(
        Text(first.kind, style=_ALARM if is_open else "yellow"),
        f"{first.path}:{','.join(str(finding.line) for finding in group)}{guard}",
        "\n".join((first.message, *(f"{key} {value}" for key, value in said.items() if value))),
    )


def _drift(drift: Sequence[records.DriftRecord]) -> Iterable[RenderableType]:
    """Say where the overlaid files touch what is not as they were written against, and name the other files."""
    if not drift:
        return
    yield Text(f"  drift: {len(drift)} files that the overlaid ones use are not as they were written against")
    shown = [f"    look at {entry.touched[0]}" for entry in drift if entry.touched][:_SHOWN_FILES]
    if rest := sum(len(entry.touched) for entry in drift) - len(shown):
        shown.append(f"    ... and {rest} more places; --json has them all")
    others = [entry.path.rpartition("/")[2] for entry in drift if not entry.touched]
    if others:
        more = f" and {len(others) - 6} more" if len(others) > 6 else ""
        shown.append(f"    others, where nothing is seen to touch what differs: {', '.join(others[:6])}{more}")
    yield Text("\n".join(shown), style="dim")


def _prerequisites(document: records.PlanDocument) -> Iterable[RenderableType]:
    numbered = [entry for entry in document.prerequisites if entry.needs is not None]
    others = [entry for entry in document.prerequisites if entry.needs is None]
    if document.prerequisites:
        table = _table("prerequisite", "of", "what the base lacks of it (lines of a conflict: at the PR's parent)")
        for entry in (*numbered[:_SHOWN_PULLS], *others[:_SHOWN_COMMITS]):
            oid, _, subject = entry.commit.partition(" ")
            name = f"#{entry.needs}" if entry.needs is not None else oid[:12]
            table.add_row(name, f"#{entry.pull_request}", "\n".join((f"{subject} ({oid[:12]})", *_traces(entry))))
        yield table
    more = [(len(numbered) - _SHOWN_PULLS, "pull requests"), (len(others) - _SHOWN_COMMITS, "commits without one")]
    if rest := " and ".join(f"{count} more {what}" for count, what in more if count > 0):
        yield Text(f"  {rest} brought what the base lacks; --json has all", style="dim")
    for reason in document.not_searched:
        yield Text(f"  prerequisites not searched: {reason}", style="yellow")


def _traces(entry: records.PrerequisiteRecord) -> Iterable[str]:
    """Say where the evidence stands, a line for each file."""
    places: dict[str, list[str]] = {}
    for trace in entry.evidence:
        places.setdefault(trace.path, []).append(_place(trace))
    for path, found in places.items():
        more = f" and {len(found) - _SHOWN_PLACES} more" if len(found) > _SHOWN_PLACES else ""
        yield f"{path}: {', '.join(found[:_SHOWN_PLACES])}{more}"


def _place(trace: records.TraceRecord) -> str:
    if trace.lines is None:
        return "the file"
    first, last = trace.lines
    if trace.kind == "finding":
        return f"{trace.symbol}, used at line {first}"
    span = f"line {first}" if first == last else f"lines {first}-{last}"
    return f"{span} ({trace.symbol})" if trace.symbol else span


def _checks(checks: Iterable[records.CheckRecord]) -> RenderableType:
    table = _table("check", "outcome", "what it found")
    for check in checks:
        known = f"\nacknowledged: {check.acknowledged}" if check.acknowledged else ""
        table.add_row(check.name, _mark(check.outcome), check.message + known)
    return table


class _Table(Table):
    """A table whose cells are plain text: rich's own markup, as in `[/x]`, means nothing in a file name."""

    def add_row(self, *cells: RenderableType | None, **words: Any) -> None:
        """Add a row; strings are taken as they are."""
        super().add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), **words)


def _table(*headings: str) -> Table:
    table = _Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _facts(name: str, facts: Iterable[tuple[str, str]]) -> RenderableType:
    text = Text(name, style="bold")
    for key, value in facts:
        text.append(f"\n  {key:<9} ", style="dim")
        text.append(value, style="not bold")
    return text


def _notes(notes: Iterable[str]) -> RenderableType:
    return Text("\n".join(f"note: {note}" for note in notes), style="dim")


def _mark(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, _ALARM))


def _next_step(document: records.PlanDocument, checks: Iterable[records.CheckRecord]) -> RenderableType:
    """Say what to do about a plan or build that did not pass."""
    steps = []
    # Only the first of each: what follows may be settled by it, and the next plan tells.
    first = {entry.pull_request: entry.needs for entry in reversed(document.prerequisites) if entry.needs is not None}
    is_bare = document.overlay is None or document.overlay.is_bare
    for number, needs in first.items():
        step = f"give --pr {needs} before --pr {number}" if is_bare else f"put {needs} before {number} in pull-requests"
        steps.append(f"{step}, and plan again")
    if document.conflicts:
        steps.append("settle each file in a definition: [[file]] path, strategy, on-conflict or accept, and the reason")
    if any(patch.outcome == "rejected" for patch in document.patches):
        steps.append("mend the rejected patch, or its Needed-If")
    if any(entry.outcome == "rejected" for entry in document.carried):
        steps.append("mend the [[carry]] entries that were rejected")
    if any(finding.acknowledged is None and finding.unreachable is None for finding in document.findings):
        steps.append("overlay adapt with the same arguments proposes compat patches and carries for the findings")
        steps.append("or settle each by hand: a compat patch, a [[carry]], a prerequisite --pr, or [[acknowledge]]")
    for check in checks:
        if check.outcome == "unknown" and check.acknowledged is None:
            steps.append(
                f'{check.name}: find out, or accept it in a definition: [[acknowledge]] check = "{check.name}"'
            )
    if document.verdict == "unknown" and not document.files:
        steps.append("nothing to put on: the pull request changes no file of the package")
    return Text("\n".join(f"next     {step}" for step in steps))


def _verdict(document: records.Document) -> RenderableType:
    return Text.assemble("verdict  ", (document.verdict, _STYLES.get(document.verdict, _ALARM)))
