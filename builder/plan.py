"""Pure: a plan (everything known before the engine is touched), its manifest, layer and digest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from builder import __version__, compat, layer
from builder.base import FolderBase, ImageBase
from builder.carry import Carried
from builder.catalogue import Overlay
from builder.compat import Finding
from builder.drift import Drift
from builder.errors import Refused
from builder.merge import FileResult, Merged
from builder.model import Digest, FileMeta, Layer, LocalImage, Oid, SourceTree
from builder.patches import Patch, PatchOutcome
from builder.prerequisites import Search
from builder.records import (
    MANIFEST_FOLDER,
    MANIFEST_PATH,
    PROJECT,
    BaseRecord,
    CarriedRecord,
    ConflictRecord,
    DriftRecord,
    FileRecord,
    FinalFile,
    FindingRecord,
    LayerRecord,
    Manifest,
    OverlayRecord,
    PatchRecord,
    PlanDocument,
    PrerequisiteRecord,
    PullRequestRecord,
    SkippedRecord,
    Tool,
    Verdict,
    canonical,
    canonical_json,
)
from builder.source_tree import stale_bytecode

_OCI_LABELS = "org.opencontainers.image."


@dataclass(frozen=True)
class Edit:
    """What will stand at a path: bytes and git mode; None as data removes it."""

    data: bytes | None
    git_mode: str | None = None


@dataclass(frozen=True)
class Findings:
    """What the pipeline found out, step by step; later steps are empty where an earlier one refused."""

    merged: tuple[Merged, ...] = ()
    carried: tuple[Carried, ...] = ()
    patches: tuple[tuple[Patch, PatchOutcome], ...] = ()
    findings: tuple[Finding, ...] = ()
    unknown: tuple[str, ...] = ()
    drift: tuple[Drift, ...] = ()
    prerequisites: Search = field(default_factory=Search)
    checker: Tool | None = None
    """The type checker of the compat check; None where an earlier refusal, or a base that has everything, left nothing
    to check."""


@dataclass(frozen=True)
class Built:
    """The bytes that will be put into the engine, and their identities; all known before it is touched."""

    manifest: bytes
    layer: Layer
    config: bytes
    deletions: tuple[str, ...]
    plan_digest: Digest

    @property
    def config_digest(self) -> Digest:
        """The image ID on the classic store."""
        return Digest.of(self.config)


@dataclass(frozen=True)
class Plan:
    """A plan: the verdict, what led to it, and (where something is to be built) the bytes."""

    overlay: Overlay
    base: FolderBase | ImageBase
    tree: SourceTree
    found: Findings
    edits: Mapping[str, Edit]
    verdict: Verdict
    built: Built | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def image_base(self) -> ImageBase:
        """The base image; a folder base has none, and nothing is built on it."""
        assert isinstance(self.base, ImageBase)
        return self.base

    @property
    def local_base(self) -> LocalImage:
        """The base as the engine has it; its tree was read from there."""
        assert self.image_base.local is not None
        return self.image_base.local

    @property
    def to_build(self) -> Built:
        """The bytes to build; only where the verdict is ok and the base an image."""
        assert self.built is not None
        return self.built

    def read(self, path: str) -> bytes | None:
        """Read a path of the merged tree."""
        return self.edits[path].data if path in self.edits else self.tree.read(path)

    @property
    def overlaid(self) -> tuple[str, ...]:
        """The paths that the layer sets."""
        return tuple(sorted(path for path, edit in self.edits.items() if edit.data is not None))

    @property
    def added(self) -> frozenset[str]:
        """The overlaid paths that the base lacks."""
        return frozenset(path for path in self.overlaid if path not in self.tree.files)

    @property
    def conflicts(self) -> tuple[FileResult, ...]:
        """The files that refuse the build."""
        return tuple(result for merged in self.found.merged for result in merged.files if result.is_blocking)


def verdict_of(found: Findings, *, is_present: bool, has_edits: bool) -> Verdict:
    """Judge the steps: a refusal beats unknown, unknown beats ok; nothing to change is `already-present`."""
    has_conflict = any(result.is_blocking for merged in found.merged for result in merged.files)
    has_rejected = any(outcome.outcome == "rejected" for _, outcome in found.patches)
    has_rejected = has_rejected or any(entry.outcome == "rejected" for entry in found.carried)
    if has_conflict or has_rejected or any(finding.is_open for finding in found.findings):
        return "refused"
    if is_present:
        return "already-present"
    if found.unknown:
        return "unknown"
    # Neither there nor anything to put on: nothing was shown either way.
    return "ok" if has_edits else "unknown"


def refuse_hiding(tree: SourceTree, edits: Mapping[str, Edit]) -> None:
    """Refuse a path below a file or link of the base: the layer would silently put a folder in its place."""
    kept = {path for path in tree.files if edits.get(path, Edit(b"")).data is not None}
    hidden = [
        f"{path}: {parent} is a {'link' if tree.files[parent].link is not None else 'file'} in the base"
        for path, edit in sorted(edits.items())
        if edit.data is not None
        for parent in map(str, PurePosixPath(path).parents)
        if parent in kept
    ]
    if hidden:
        hint = "leave the path out in a definition, or choose another base"
        raise Refused("plan", "a folder would take the place of something in the base", facts=hidden, hint=hint)


def is_present(merged: Iterable[Merged]) -> bool:
    """Tell whether every pull request is in the base in all its runtime files."""
    return all(entry.presence in ("exact", "changed") for entry in merged)


def document(plan: Plan) -> PlanDocument:
    """Return the plan as people script against it."""
    results = [result for merged in plan.found.merged for result in merged.files]
    built = plan.built
    return PlanDocument(
        verdict=plan.verdict,
        notes=plan.notes,
        overlay=overlay_record(plan.overlay),
        base=base_record(plan),
        pull_requests=tuple(_pull_request_record(merged) for merged in plan.found.merged),
        files=tuple(_file_record(result) for result in results),
        conflicts=tuple(record for result in results if result.is_blocking for record in _conflicts(result)),
        skipped=_skipped(plan.found.merged),
        carried=tuple(CarriedRecord.model_validate(entry) for entry in plan.found.carried),
        patches=tuple(_patch_record(patch, outcome) for patch, outcome in plan.found.patches),
        findings=tuple(FindingRecord.model_validate(finding) for finding in plan.found.findings),
        drift=tuple(DriftRecord.model_validate(drift) for drift in plan.found.drift),
        prerequisites=tuple(PrerequisiteRecord.model_validate(entry) for entry in plan.found.prerequisites.found),
        not_searched=plan.found.prerequisites.not_searched,
        not_checked=(*compat.NOT_CHECKED, *plan.found.unknown) if plan.found.checker else (),
        plan_digest=built.plan_digest if built else None,
        config_digest=built.config_digest if built else None,
        layer=_layer_record(built.layer) if built else None,
    )


def with_bytes(plan: Plan, committed: int) -> Plan:
    """Return the plan with its manifest, layer, config and digest; `committed` (s since 1970) dates every file."""
    time_ns = committed * 1_000_000_000
    stale = stale_bytecode(plan.tree, tuple(plan.edits))
    files = _layer_files(plan, time_ns)
    manifest = canonical(_manifest(plan, files, stale))
    own = _own_files(plan, manifest, time_ns)
    deletions = tuple(sorted(_absolute(plan.tree, path) for path in (*stale, *_removed(plan))))
    made = layer.build([*files.values(), *own], deletions, plan.tree.folders, time_ns)
    plan_digest = _plan_digest(plan, files, own, deletions)
    config = layer.image_config(
        plan.image_base.config or layer.projected_config(plan.local_base),
        made,
        created=committed,
        labels=_labels(plan, plan_digest, Digest.of(manifest)),
        created_by=f"overlay build {plan.overlay.name} (plan {plan_digest})",
    )
    return replace(plan, built=Built(manifest, made, config, deletions, plan_digest))


def _plan_digest(
    plan: Plan, files: Mapping[str, layer.LayerFile], own: Sequence[layer.LayerFile], deletions: Sequence[str]
) -> Digest:
    """Digest the canonical plan: what goes where, on which base; the manifest is one of the files."""
    base = plan.image_base
    entries = [[f.path, Oid.of_blob(f.data), f.meta.mode, f.meta.uid, f.meta.gid] for f in (*files.values(), *own)]
    value = {
        "schema": "overlay.canonical-plan/1",
        "base": base.config_digest,
        "platform": str(base.platform),
        "files": sorted(entries),
        "deletions": list(deletions),
        "mtime_ns": own[0].meta.mtime_ns,
    }
    return Digest.of(canonical_json(value))


def _layer_files(plan: Plan, time_ns: int) -> dict[str, layer.LayerFile]:
    """Return package path -> layer entry; a replaced file keeps the base's metadata, a new one takes its siblings'."""
    files = {}
    for path in plan.overlaid:
        edit = plan.edits[path]
        assert edit.data is not None
        meta = _meta(plan.tree, path, edit.git_mode, time_ns)
        files[path] = layer.LayerFile(_absolute(plan.tree, path), edit.data, meta)
    return files


def _meta(tree: SourceTree, path: str, git_mode: str | None, time_ns: int) -> FileMeta:
    known = tree.files.get(path)
    if known is None:
        return replace(layer.new_file_meta(tree, path, executable=git_mode == "100755"), mtime_ns=time_ns)
    meta = known.meta
    is_executable = git_mode == "100755" if git_mode else bool(meta.mode & 0o100)
    if is_executable != bool(meta.mode & 0o100):
        mode = meta.mode | (meta.mode & 0o444) >> 2 if is_executable else meta.mode & ~0o111
        meta = replace(meta, mode=mode)
    return replace(meta, mtime_ns=time_ns)


def _own_files(plan: Plan, manifest: bytes, time_ns: int) -> list[layer.LayerFile]:
    meta = FileMeta(0o644, 0, 0, time_ns)
    texts = {f"{MANIFEST_FOLDER}/patches/{p.id}.patch": p.text for p, outcome in plan.found.patches if outcome.kept}
    return [
        layer.LayerFile(MANIFEST_PATH, manifest, meta),
        *(layer.LayerFile(path, text, meta) for path, text in sorted(texts.items())),
    ]


def _removed(plan: Plan) -> list[str]:
    return [path for path, edit in plan.edits.items() if edit.data is None and path in plan.tree.files]


def _absolute(tree: SourceTree, path: str) -> str:
    return f"{tree.live_root.rstrip('/')}/{path}"


def _labels(plan: Plan, plan_digest: Digest, manifest_digest: Digest) -> dict[str, str]:
    base = plan.image_base
    labels = {
        "org.opencontainers.image.base.name": base.reference.repository_and_tag,
        f"{PROJECT}.version": __version__,
        f"{PROJECT}.overlay": plan.overlay.name,
        f"{PROJECT}.pull-requests": " ".join(f"{m.pull_request}@{m.pull_request.result}" for m in plan.found.merged),
        f"{PROJECT}.plan-digest": plan_digest,
        f"{PROJECT}.manifest": MANIFEST_PATH,
        f"{PROJECT}.manifest-digest": manifest_digest,
        f"{PROJECT}.base-config-digest": base.config_digest,
    }
    inherited = plan.local_base.labels
    labels |= {f"{PROJECT}.base.{key}": value for key, value in inherited.items() if key.startswith(_OCI_LABELS)}
    if base.digest is not None or f"{_OCI_LABELS}base.digest" in inherited:
        # Empty rather than the grandparent's, where the base has no digest of its own.
        labels[f"{_OCI_LABELS}base.digest"] = base.digest or ""
    return labels


def _manifest(plan: Plan, files: Mapping[str, layer.LayerFile], stale: Sequence[str]) -> Manifest:
    talk = document(plan)
    assert talk.base is not None
    assert plan.found.checker is not None
    assert talk.overlay is not None
    final = [_final_file(path, plan, files.get(path)) for path in sorted(plan.edits)]
    base = plan.base
    previous = (
        base.local.labels.get(f"{PROJECT}.manifest-digest") if isinstance(base, ImageBase) and base.local else None
    )
    return Manifest(
        tool=Tool(name="sglang-overlay", version=__version__),
        checker=plan.found.checker,
        overlay=talk.overlay,
        base=talk.base,
        pull_requests=talk.pull_requests,
        files=talk.files,
        result=tuple(final),
        bytecode_removed=tuple(stale),
        skipped=talk.skipped,
        carried=talk.carried,
        patches=talk.patches,
        # Who introduced a thing depends on how much history is at hand: it is told, and not part of the record.
        findings=tuple(finding.model_copy(update={"introduced_by": None}) for finding in talk.findings),
        drift=talk.drift,
        not_checked=talk.not_checked,
        acknowledged_checks=tuple((a.check, a.reason) for a in plan.overlay.acknowledge if a.check),
        previous_manifest=previous,
    )


def _final_file(path: str, plan: Plan, file: layer.LayerFile | None) -> FinalFile:
    known = plan.tree.files.get(path)
    base_blob = known.blob if known else None
    if file is None:
        return FinalFile(path=path, blob=None, base_blob=base_blob, mode=None, uid=None, gid=None)
    meta = file.meta
    blob = Oid.of_blob(file.data)
    return FinalFile(path=path, blob=blob, base_blob=base_blob, mode=meta.mode, uid=meta.uid, gid=meta.gid)


def overlay_record(overlay: Overlay) -> OverlayRecord:
    """Return which definition was used, as recorded."""
    return OverlayRecord(name=overlay.name, title=overlay.title, is_bare=overlay.is_bare)


def base_record(plan: Plan) -> BaseRecord:
    """Return the base as recorded; a folder base has no digests."""
    tree, base = plan.tree, plan.base
    common = {
        "live_root": tree.live_root,
        "found_by": tree.found_by,
        "dead_copies": tree.dead_copies,
        "package": tree.package,
        "version": tree.version,
    }
    if isinstance(base, FolderBase):
        return BaseRecord.model_validate({"reference": base.name, **common})
    return BaseRecord.model_validate(
        {
            "reference": base.reference.repository_and_tag,
            "alias": base.alias,
            "digest": base.digest,
            "manifest_digest": base.manifest,
            "config_digest": base.config_digest,
            "config_source": "registry" if base.config else "projection",
            "platform": str(base.platform),
            **common,
        }
    )


def _pull_request_record(merged: Merged) -> PullRequestRecord:
    pull = merged.pull_request
    return PullRequestRecord(
        repo=pull.repository,
        number=pull.number,
        parent=pull.parent,
        result=pull.result,
        title=pull.title,
        kind=pull.kind,
        presence=merged.presence,
    )


def _file_record(result: FileResult) -> FileRecord:
    evidence = result.presence
    return FileRecord(
        pull_request=result.pull_request,
        path=result.path,
        state=result.state,
        strategy=result.strategy,
        presence=evidence.presence if evidence else None,
        presence_fact=evidence.fact if evidence else "",
        base_blob=result.base_blob,
        parent_blob=result.parent_blob,
        result_blob=result.result_blob,
        blob=_blob_after(result),
        mode=result.mode,
        removes=result.removes,
        taken=result.taken,
        lost=result.lost,
        brought=result.brought,
        reason=result.reason,
        acknowledged=result.acknowledged,
    )


def _blob_after(result: FileResult) -> Oid | None:
    """Return the blob this pull request leaves; an unchanged or present file keeps the base's."""
    if result.blob is not None or result.is_blocking:
        return result.blob
    return result.base_blob if result.state in ("already-present", "unchanged") else None


def _conflicts(result: FileResult) -> Iterable[ConflictRecord]:
    if not result.regions:
        yield ConflictRecord(
            pull_request=result.pull_request,
            path=result.path,
            base_lines=(0, 0),
            pr_lines=(0, 0),
            base_text="\n".join(result.lost),
            pr_text="",
        )
    for region in result.regions:
        yield ConflictRecord(
            pull_request=result.pull_request,
            path=result.path,
            base_lines=region.base_lines,
            pr_lines=region.pr_lines,
            base_text=region.base_text,
            pr_text=region.pr_text,
        )


def _skipped(merged: Iterable[Merged]) -> tuple[SkippedRecord, ...]:
    return tuple(SkippedRecord(path=path, reason=reason) for entry in merged for path, reason in entry.skipped)


def _patch_record(patch: Patch, outcome: PatchOutcome) -> PatchRecord:
    return PatchRecord(
        id=patch.id,
        digest=patch.sha256,
        raw_digest=patch.raw_sha256,
        outcome=outcome.outcome,
        kept=outcome.kept,
        fact=outcome.fact,
        offset=outcome.offset,
        strip=outcome.strip,
        paths=outcome.paths,
        removes=outcome.removes or None,
        reason=outcome.reason,
    )


def _layer_record(made: Layer) -> LayerRecord:
    return LayerRecord(diff_id=made.diff_id, bytes=len(made.tar), files=made.files)
