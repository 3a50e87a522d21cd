"""The records: lock (input), manifest (in the layer), build report (outside), and the documents `--json` prints.

All are canonical JSON: UTF-8, keys sorted, two spaces, one newline at the end. Each names its schema and version.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from builder.errors import InputError, Unavailable
from builder.model import MergeKind
from builder.suggest import did_you_mean

PROJECT = "io.github.sglang-overlay"
"""Our reverse-DNS prefix for image labels."""

MANIFEST_FOLDER = "/usr/share/overlay"
MANIFEST_PATH = f"{MANIFEST_FOLDER}/manifest.json"

HexDigest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
HexOid = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Verdict = Literal["ok", "already-present", "refused", "failed", "unknown", "error"]


class Record(BaseModel):
    """A JSON object with exactly these keys; it may be taken from a value with attributes of the same names."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, from_attributes=True)


class PullRequestPin(Record):
    """A pull request by its two commits, and how it was merged."""

    repo: str
    number: int
    kind: MergeKind
    parent: HexOid
    result: HexOid


class PatchPin(Record):
    """A compat patch by the digest of its text."""

    id: str
    digest: HexDigest


class PlatformPin(Record):
    """One platform's image manifest and config, written when first seen."""

    platform: str
    manifest: HexDigest
    config: HexDigest


class BasePin(Record):
    """A base by its index digest (or plain manifest digest), and what was seen of its platforms."""

    alias: str
    reference: str
    index: HexDigest
    platforms: tuple[PlatformPin, ...] = ()


class Lock(Record):
    """The pins of a definition: input, committed, reviewed in diffs."""

    schema_: Annotated[Literal["overlay.lock/1"], Field(alias="schema")] = "overlay.lock/1"
    overlay: str
    tool: str
    checker: str
    bases: tuple[BasePin, ...] = ()
    pull_requests: tuple[PullRequestPin, ...] = ()
    patches: tuple[PatchPin, ...] = ()

    def base(self, alias: str | None, reference: str) -> BasePin | None:
        """Return the pin of a base, by alias or by reference."""
        return next((pin for pin in self.bases if pin.alias == alias or pin.reference == reference), None)

    def pull_request(self, number: int) -> PullRequestPin | None:
        """Return the pin of a pull request."""
        return next((pin for pin in self.pull_requests if pin.number == number), None)


class BaseRecord(Record):
    """The base image as resolved. A folder base has no digests; a local image has no index or manifest digest."""

    reference: str
    alias: str | None = None
    digest: HexDigest | None = None
    manifest_digest: HexDigest | None = None
    config_digest: HexDigest | None = None
    config_source: Literal["registry", "projection"] | None = None
    platform: str | None = None
    live_root: str
    found_by: str
    dead_copies: tuple[str, ...] = ()
    package: str
    version: str | None


class PullRequestRecord(PullRequestPin):
    """A pull request and whether the base has it."""

    title: str = ""
    presence: Literal["exact", "changed", "absent", "unknown"]


class FileRecord(Record):
    """One pull request and path. Blobs are git blob ids; `taken` are line pairs in the result; `removes` is a path
    that goes: the file itself where it is deleted, its old name where it is renamed.

    `lost`: lines of the base that the result lacks beyond those the pull request removes; `brought`: lines neither
    the base's nor added by the pull request.
    """

    pull_request: int
    path: str
    state: str
    strategy: Literal["merge", "copy"]
    presence: Literal["exact", "changed", "absent", "unknown"] | None = None
    presence_fact: str = ""
    base_blob: HexOid | None = None
    parent_blob: HexOid | None = None
    result_blob: HexOid | None = None
    blob: HexOid | None = None
    mode: str | None = None
    removes: str | None = None
    taken: tuple[tuple[int, int], ...] = ()
    lost: tuple[str, ...] = ()
    brought: tuple[str, ...] = ()
    reason: str = ""
    acknowledged: str | None = None


class ConflictRecord(Record):
    """Both sides of one conflict; lines are first and last, 1-based."""

    pull_request: int
    path: str
    base_lines: tuple[int, int]
    pr_lines: tuple[int, int]
    base_text: str
    pr_text: str


class SkippedRecord(Record):
    """An upstream path that is never applied, and why."""

    path: str
    reason: str


class CarriedRecord(Record):
    """A file, or definitions, taken from a pull request's result tree."""

    path: str
    symbols: tuple[str, ...]
    from_: Annotated[str, Field(alias="from")]
    outcome: Literal["carried", "not needed", "rejected"]
    fact: str
    reason: str


class PatchRecord(Record):
    """A compat patch's outcome and the fact that decided; `offset` has one entry a hunk.

    `digest` is that of the text that was used; `raw_digest` that of the file, where its line ends were normalised.
    """

    id: str
    digest: HexDigest
    raw_digest: HexDigest | None = None
    outcome: Literal["applied", "not needed", "already present", "rejected"]
    kept: bool
    fact: str
    offset: tuple[int, ...] = ()
    strip: int | None = None
    paths: tuple[str, ...] = ()
    removes: str | None = None
    reason: str = ""


class FindingRecord(Record):
    """Something the merged tree needs and the base lacks, or that the overlay breaks."""

    kind: str
    path: str
    line: int
    symbol: str
    guard: str = ""
    base_has: str | None = None
    donor_has: str | None = None
    introduced_by: str | None = None
    message: str
    unreachable: str | None = None
    acknowledged: str | None = None


class DriftRecord(Record):
    """A file that overlaid files depend on, and that differs between the base and what they were written against.

    `touched` says where an overlaid file touches a definition that differs: the places to look at.
    """

    path: str
    lines: int
    definitions: tuple[str, ...]
    touched: tuple[str, ...] = ()


class TraceRecord(Record):
    """A piece of evidence for a prerequisite; `lines` are at the pull request's parent for a conflict, in the merged
    file for a finding, null for a file that is missing as a whole.
    """

    kind: Literal["missing-in-base", "conflict", "finding"]
    path: str
    lines: tuple[int, int] | None
    symbol: str


class PrerequisiteRecord(Record):
    """A commit (`oid subject`) that a pull request builds on and the base lacks; `needs` is its pull request."""

    pull_request: int
    needs: int | None
    commit: str
    evidence: tuple[TraceRecord, ...]


class FinalFile(Record):
    """A path as it stands in the image; `blob` null means that the layer removes it."""

    path: str
    blob: HexOid | None
    base_blob: HexOid | None
    mode: int | None
    uid: int | None
    gid: int | None


class LayerRecord(Record):
    """The layer: diff ID (sha256 of the uncompressed tar), its size, and how many files it sets or removes."""

    diff_id: HexDigest
    bytes: int
    files: int


class Tool(Record):
    """A program and its version."""

    name: str
    version: str


class OverlayRecord(Record):
    """Which definition was used."""

    name: str
    title: str
    is_bare: bool


class Manifest(Record):
    """Our record inside the image. Reproducible: no time of day, host, diff ID or image ID."""

    schema_: Annotated[Literal["overlay.manifest/1"], Field(alias="schema")] = "overlay.manifest/1"
    tool: Tool
    checker: Tool
    overlay: OverlayRecord
    base: BaseRecord
    pull_requests: tuple[PullRequestRecord, ...]
    files: tuple[FileRecord, ...]
    result: tuple[FinalFile, ...]
    bytecode_removed: tuple[str, ...]
    skipped: tuple[SkippedRecord, ...]
    carried: tuple[CarriedRecord, ...]
    patches: tuple[PatchRecord, ...]
    findings: tuple[FindingRecord, ...]
    drift: tuple[DriftRecord, ...]
    not_checked: tuple[str, ...]
    acknowledged_checks: tuple[tuple[str, str], ...] = ()
    previous_manifest: HexDigest | None = None
    """The digest of the base's own manifest, where the base is itself an overlay."""


class ErrorRecord(Record):
    """What went wrong, where, and the next step."""

    where: str
    message: str
    hint: str
    facts: tuple[str, ...] = ()


class CheckRecord(Record):
    """One check of the smoke test."""

    name: str
    outcome: Literal["pass", "fail", "unknown", "not-applicable", "not-run"]
    message: str
    facts: dict[str, Any] = Field(default_factory=dict)
    acknowledged: str | None = None


class SmokeRecord(Record):
    """The smoke test: the image judged, and its checks."""

    image: str
    checks: tuple[CheckRecord, ...]


class ImageRecord(Record):
    """The built image: its ID in the engine, the tag, and how the engine took the layer."""

    id: str
    tag: str
    loaded_by: str
    reused: bool = False


class ManifestPointer(Record):
    """Where the manifest is, and its digest."""

    path: str
    digest: HexDigest


class Document(Record):
    """What every `--json` document has."""

    verdict: Verdict
    notes: tuple[str, ...] = ()
    error: ErrorRecord | None = None


class PlanDocument(Document):
    """`overlay plan --json`."""

    schema_: Annotated[str, Field(alias="schema")] = "overlay.plan/1"
    overlay: OverlayRecord | None = None
    base: BaseRecord | None = None
    pull_requests: tuple[PullRequestRecord, ...] = ()
    files: tuple[FileRecord, ...] = ()
    conflicts: tuple[ConflictRecord, ...] = ()
    skipped: tuple[SkippedRecord, ...] = ()
    carried: tuple[CarriedRecord, ...] = ()
    patches: tuple[PatchRecord, ...] = ()
    findings: tuple[FindingRecord, ...] = ()
    drift: tuple[DriftRecord, ...] = ()
    prerequisites: tuple[PrerequisiteRecord, ...] = ()
    not_searched: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    plan_digest: HexDigest | None = None
    config_digest: HexDigest | None = None
    layer: LayerRecord | None = None


class BuildDocument(PlanDocument):
    """`overlay build --json`: the plan, the image, the smoke test and the manifest."""

    schema_: Annotated[str, Field(alias="schema")] = "overlay.build/1"
    image: ImageRecord | None = None
    smoke: SmokeRecord | None = None
    manifest: ManifestPointer | None = None
    report: str | None = None


class PlaceRecord(Record):
    """A finding by what tells it apart."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True, from_attributes=True)

    kind: str
    path: str
    line: int
    symbol: str


class ProposalRecord(Record):
    """One way to settle findings. `text` is the unified diff with its header, or the definition's entry.

    `needs_accept` marks an alternative that only `--accept ID` takes; `loses` says what goes with it. `accepted` tells
    that the plan of this document has it. A `sketch` is for a person to write.
    """

    id: str
    kind: Literal["patch", "carry", "leave-out", "sketch"]
    title: str
    path: str
    settles: tuple[PlaceRecord, ...]
    text: str
    removes: str | None = None
    loses: str | None = None
    needs_accept: bool = False
    accepted: bool = False


class LeftRecord(FindingRecord):
    """A finding that is still open: why nothing settles it mechanically, and the ids of the alternatives for it."""

    why: str = ""
    alternatives: tuple[str, ...] = ()


class AdaptDocument(Document):
    """`overlay adapt --json`: the verdict of the plan with the accepted proposals, and what is left."""

    schema_: Annotated[str, Field(alias="schema")] = "overlay.adapt/1"
    overlay: OverlayRecord | None = None
    base: BaseRecord | None = None
    blocked: tuple[str, ...] = ()
    """What refuses before anything can be proposed: conflicts, and carries or patches that are rejected."""
    proposals: tuple[ProposalRecord, ...] = ()
    left: tuple[LeftRecord, ...] = ()
    not_checked: tuple[str, ...] = ()
    needed_a_person: int = 0
    written: tuple[str, ...] = ()


class SmokeDocument(Document):
    """`overlay smoke --json`."""

    schema_: Annotated[str, Field(alias="schema")] = "overlay.smoke/1"
    image: str = ""
    checks: tuple[CheckRecord, ...] = ()


class ListedOverlay(Record):
    """A definition of the catalogue."""

    name: str
    title: str
    pull_requests: tuple[int, ...]
    bases: tuple[str, ...]
    is_locked: bool


class ListedBase(Record):
    """A base of the catalogue."""

    alias: str
    reference: str
    notes: tuple[str, ...]


class ListedImage(Record):
    """An image in the engine that carries our labels."""

    id: str
    tags: tuple[str, ...]
    overlay: str
    plan_digest: str


class ListDocument(Document):
    """`overlay list --json`. `images` is null when no engine answered."""

    schema_: Annotated[str, Field(alias="schema")] = "overlay.list/1"
    catalogue: str = ""
    overlays: tuple[ListedOverlay, ...] = ()
    bases: tuple[ListedBase, ...] = ()
    images: tuple[ListedImage, ...] | None = None


class AuditFinding(Record):
    """One difference between an image and its manifest."""

    class_: Annotated[str, Field(alias="class")]
    path: str
    expected: str
    found: str
    message: str


class AuditDocument(Document):
    """`overlay audit --json`."""

    schema_: Annotated[str, Field(alias="schema")] = "overlay.audit/1"
    target: str = ""
    findings: tuple[AuditFinding, ...] = ()
    lineage: tuple[str, ...] = ()
    pull_requests: tuple[PullRequestRecord, ...] = ()
    not_inspected: tuple[str, ...] = ()


class ErrorDocument(Document):
    """What `--json` prints where the command itself was not understood."""

    schema_: Annotated[str, Field(alias="schema")] = "overlay.error/1"


class Report(Record):
    """The build report: what is true of this one build on this one machine."""

    schema_: Annotated[Literal["overlay.report/1"], Field(alias="schema")] = "overlay.report/1"
    verdict: Verdict
    plan_digest: HexDigest
    manifest_digest: HexDigest
    diff_id: HexDigest
    image_id: str
    tag: str | None
    loaded_by: str
    engine: str
    registry_mirror: str | None
    started: str
    finished: str
    smoke_inputs: HexDigest
    smoke: tuple[CheckRecord, ...]


DOCUMENTS: dict[str, type[Record]] = {
    "plan": PlanDocument,
    "adapt": AdaptDocument,
    "build": BuildDocument,
    "smoke": SmokeDocument,
    "list": ListDocument,
    "audit": AuditDocument,
    "error": ErrorDocument,
    "lock": Lock,
    "manifest": Manifest,
    "report": Report,
}


def json_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a document; InputError for an unknown name."""
    if name not in DOCUMENTS:
        listed = ", ".join(DOCUMENTS)
        raise InputError(
            "schema", f"no document named {name!r}{did_you_mean(name, DOCUMENTS)}", hint=f"one of {listed}"
        )
    schema = DOCUMENTS[name].model_json_schema(by_alias=True, mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def canonical(record: BaseModel) -> bytes:
    """Write a record as canonical JSON."""
    return canonical_json(record.model_dump(mode="json", by_alias=True))


def canonical_json(value: object) -> bytes:
    """Write JSON values canonically: the same value gives the same bytes on any machine."""
    return json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


_R = TypeVar("_R", bound=Record)


def read(data: bytes, model: type[_R], where: str) -> _R:
    """Read a record; InputError names the file and every key that does not fit."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc'])) or '(file)'}: {item['msg']}" for item in error.errors()]
        first, *others = lines
        raise InputError(where, first, facts=others, hint="restore the file, or write it again with the tool") from None


def read_lock(path: Path) -> Lock | None:
    """Read a lock file; None if there is none."""
    return read(path.read_bytes(), Lock, path.name) if path.exists() else None


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; its folder is made. Raises Unavailable and leaves nothing behind."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise Unavailable(str(path), f"could not be written: {error.strerror or error}") from None
