"""Pure rules: a manifest and what is really in an image -> findings. Nothing is believed that can be hashed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from builder.model import Digest, LocalImage, SourceTree, TreeFile
from builder.records import MANIFEST_PATH, PROJECT, AuditFinding, Manifest, Verdict
from builder.source_tree import stale_bytecode

WARNINGS = frozenset({"declared-but-identical-to-base"})
"""Classes that are reported and do not fail the audit."""


@dataclass(frozen=True)
class Observed:
    """What was read from the image. `base` and `base_tree` are None where the base is not in the engine."""

    image: LocalImage
    manifest: Manifest
    manifest_bytes: bytes
    tree: SourceTree
    base: LocalImage | None
    base_tree: SourceTree | None


def judge(observed: Observed) -> tuple[AuditFinding, ...]:
    """Return every difference, sorted by class and path; none means that the image is what its manifest says."""
    found = [
        *_record(observed),
        *_root(observed),
        *_declared(observed.manifest, observed.tree),
        *_bytecode(observed),
        *_settings(observed),
        *_undeclared(observed),
        *_lineage(observed),
    ]
    return tuple(sorted(found, key=lambda finding: (finding.class_, finding.path)))


ELSEWHERE = "paths of the image outside the package and the record, and the patch texts beside the record"
"""What this audit never looks at; it is said each time."""


def verdict(findings: Iterable[AuditFinding], not_inspected: Iterable[str]) -> Verdict:
    """`failed` for any finding that is no warning; `unknown` where something needed could not be looked at."""
    if any(finding.class_ not in WARNINGS for finding in findings):
        return "failed"
    return "unknown" if set(not_inspected) - {ELSEWHERE} else "ok"


def not_inspected(observed: Observed) -> tuple[str, ...]:
    """List what could not be looked at."""
    if observed.base_tree is None:
        base = observed.manifest.base.config_digest
        return (ELSEWHERE, f"files that the manifest does not name: the base {base} is not here")
    return (ELSEWHERE,)


def _finding(kind: str, path: str, expected: object, found: object, message: str) -> AuditFinding:
    return AuditFinding.model_validate(
        {"class": kind, "path": path, "expected": str(expected), "found": str(found), "message": message}
    )


def _record(observed: Observed) -> Iterator[AuditFinding]:
    """Compare the labels with the manifest in the image."""
    actual = Digest.of(observed.manifest_bytes)
    labels = observed.image.labels
    claimed = labels.get(f"{PROJECT}.manifest-digest")
    if claimed is None:
        yield _finding("record-foreign", MANIFEST_PATH, actual, "no label", "the image does not name its manifest")
    elif claimed != actual:
        yield _finding("record-foreign", MANIFEST_PATH, claimed, actual, "the manifest is not the one the image names")
    base_label = labels.get(f"{PROJECT}.base-config-digest")
    if base_label is not None and base_label != observed.manifest.base.config_digest:
        expected = observed.manifest.base.config_digest
        yield _finding("record-foreign", MANIFEST_PATH, expected, base_label, "label and manifest name different bases")


def _root(observed: Observed) -> Iterator[AuditFinding]:
    expected, found = observed.manifest.base.live_root, observed.tree.live_root
    if expected != found:
        yield _finding("wrong-root", found, expected, found, "the interpreter imports from another folder")


def _declared(manifest: Manifest, tree: SourceTree) -> Iterator[AuditFinding]:
    """Re-hash every path that the manifest names."""
    for entry in manifest.result:
        there = tree.files.get(entry.path)
        if entry.blob is None:
            if there is not None:
                yield _finding("changed-undeclared", entry.path, "removed", there.blob, "was to be removed, is there")
        elif there is None:
            yield _finding("missing", entry.path, entry.blob, "absent", "a recorded file is gone")
        elif there.blob == entry.blob and _rights(there) != (entry.mode, entry.uid, entry.gid):
            mode, uid, gid = _rights(there)
            expected, found = f"{entry.mode:o} {entry.uid}:{entry.gid}", f"{mode:o} {uid}:{gid}"
            yield _finding("changed-undeclared", entry.path, expected, found, "mode or owner is not what was recorded")
        elif there.blob != entry.blob:
            yield _finding("changed-undeclared", entry.path, entry.blob, there.blob, "is not what was recorded")
        elif entry.blob == entry.base_blob:
            message = "recorded as overlaid, and equal to the base"
            yield _finding("declared-but-identical-to-base", entry.path, entry.blob, there.blob, message)


def _rights(file: TreeFile) -> tuple[int, int, int]:
    return file.meta.mode, file.meta.uid, file.meta.gid


def _run_config(image: LocalImage) -> Mapping[str, object]:
    told = image.config.get("config")
    return told if isinstance(told, Mapping) else {}


def _settings(observed: Observed) -> Iterator[AuditFinding]:
    """Compare how the image runs with the base: an overlay changes nothing there but labels."""
    if observed.base is None:
        return
    before, after = _run_config(observed.base), _run_config(observed.image)
    for key in ("Env", "Entrypoint", "Cmd", "User", "WorkingDir"):
        if (before.get(key) or None) != (after.get(key) or None):
            message = "the image's own setting is not the base's"
            yield _finding("changed-undeclared", f"config: {key}", before.get(key), after.get(key), message)


def _bytecode(observed: Observed) -> Iterator[AuditFinding]:
    """Bytecode of an overlaid module must be absent: the layer removed it, and nothing has put it back."""
    for path in stale_bytecode(observed.tree, tuple(entry.path for entry in observed.manifest.result)):
        yield _finding("stale-bytecode", path, "absent", "present", "bytecode of an overlaid module could run instead")


def _undeclared(observed: Observed) -> Iterator[AuditFinding]:
    """Compare every other file of the package with the base."""
    if observed.base_tree is None:
        return
    declared = {entry.path for entry in observed.manifest.result} | set(observed.manifest.bytecode_removed)
    before, after = _blobs(observed.base_tree), _blobs(observed.tree)
    for path in sorted((before.keys() | after.keys()) - declared):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        if old is None:
            yield _finding("added-undeclared", path, "absent", new, "neither the base nor the manifest has it")
        elif new is None:
            yield _finding("missing", path, old, "absent", "the base has it, the manifest does not remove it")
        else:
            yield _finding("changed-undeclared", path, old, new, "differs from the base and is not recorded")


def _blobs(tree: SourceTree) -> Mapping[str, str]:
    return {path: file.blob for path, file in tree.files.items()}


def _lineage(observed: Observed) -> Iterator[AuditFinding]:
    """The base's layers must be an unchanged prefix of the image's, with exactly one layer more."""
    if observed.base is None:
        return
    base, image = observed.base.diff_ids, observed.image.diff_ids
    if image[: len(base)] != base:
        yield _finding(
            "lineage-unknown", "/", base[-1] if base else "none", image, "the base's layers are not below it"
        )
    elif len(image) != len(base) + 1:
        extra = len(image) - len(base)
        yield _finding("lineage-unknown", "/", "one layer more", f"{extra} layers more", "somebody added layers")
