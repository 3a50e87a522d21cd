"""Documents of commands: build, smoke and audit of an existing image, list."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable
from pathlib import PurePosixPath

from builder import audit, build, records, smoke, source_tree
from builder import base as bases
from builder import plan as plans
from builder.catalogue import Catalogue, Overlay
from builder.checkpoint import Checkpoint
from builder.doors import Engine
from builder.errors import InputError, Unavailable
from builder.model import Digest, ImageRef, LocalImage
from builder.records import MANIFEST_PATH, PROJECT, Manifest


def build_document(outcome: build.Outcome) -> records.BuildDocument:
    """Return a build as people script against it."""
    made = outcome.plan
    talk = plans.document(made).model_dump(exclude={"schema_", "verdict"})
    checks = build.check_records(outcome.checks)
    image = outcome.image
    tag = str(outcome.tag)
    return records.BuildDocument.model_validate(
        {
            **talk,
            "verdict": outcome.verdict,
            "image": image
            and {"id": image.id, "tag": tag, "loaded_by": outcome.loaded_by, "reused": outcome.is_reused},
            "smoke": {"image": image.id if image else "", "checks": checks} if checks else None,
            "manifest": made.built and {"path": MANIFEST_PATH, "digest": Digest.of(made.built.manifest)},
            "report": str(outcome.report) if outcome.report else None,
        }
    )


def read_manifest(engine: Engine, image: LocalImage) -> tuple[Manifest, bytes] | None:
    """Read our manifest out of an image; None if it has none, InputError if it is damaged."""
    try:
        with engine.archive(image.id, MANIFEST_PATH) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            entry = tar.next()
            file = tar.extractfile(entry) if entry is not None and entry.isreg() else None
            data = file.read() if file else None
    except InputError:
        return None
    if data is None:
        return None
    return records.read(data, Manifest, f"{image.id}:{MANIFEST_PATH}"), data


def smoke_image(
    reference: str,
    engine: Engine,
    shelf: Catalogue,
    *,
    draft: Checkpoint | None,
    target: Checkpoint | None,
    require: frozenset[str],
    live_root: str | None,
) -> records.SmokeDocument:
    """Smoke-test an image in the engine; one without our manifest has nothing overlaid to import."""
    image = _present(engine, reference)
    recorded = read_manifest(engine, image)
    manifest = recorded[0] if recorded else None
    if manifest is None and draft is None and target is None:
        message = "has no manifest of ours, and neither a draft nor a target is given: there is nothing to judge"
        raise InputError(reference, message, hint="give --draft PATH or --target PATH")
    overlay = _definition(shelf, manifest)
    package = manifest.base.package if manifest else "sglang"
    root = live_root or (manifest.base.live_root if manifest else None)
    tree = source_tree.extract(engine, image, package=package, live_root=root)
    result = manifest.result if manifest else ()
    python = tuple(entry.path for entry in result if entry.blob and PurePosixPath(entry.path).suffix == ".py")
    base = engine.inspect(image.labels.get(f"{PROJECT}.base-config-digest", "")) if manifest else None
    subject = smoke.Subject(
        engine=engine,
        image=image.id,
        base=base.id if base else None,
        overlaid=python,
        added=frozenset(entry.path for entry in result if entry.base_blob is None and entry.path in python),
        importers=smoke.importers_of(tree.paths, tree.read, python),
        read=tree.read,
        draft=draft,
        published=build.published_draft(overlay) if overlay else None,
        target=target,
        package=package,
        live_root=tree.live_root,
        interpreter=tree.interpreter,
    )
    accepted = dict(manifest.acknowledged_checks) if manifest else {}
    checks = smoke.run(subject, require=require, acknowledge=accepted)
    note = () if manifest else (f"{reference} has no manifest of ours: what was overlaid is not known",)
    return records.SmokeDocument(
        verdict=build.checks_verdict(checks),
        notes=note,
        image=image.id,
        checks=build.check_records(checks),
    )


def audit_image(reference: str, engine: Engine) -> records.AuditDocument:
    """Compare an image with the manifest in it, and with its base where the engine has that; writes nothing."""
    image = _present(engine, reference)
    recorded = read_manifest(engine, image)
    if recorded is None:
        message = "the image has no manifest of this tool; what was patched in it is not known"
        finding = records.AuditFinding.model_validate(
            {
                "class": "record-missing",
                "path": MANIFEST_PATH,
                "expected": "present",
                "found": "absent",
                "message": message,
            }
        )
        return records.AuditDocument(verdict="unknown", target=reference, findings=(finding,))
    manifest, data = recorded
    base = engine.inspect(manifest.base.config_digest) if manifest.base.config_digest else None
    package = manifest.base.package
    observed = audit.Observed(
        image=image,
        manifest=manifest,
        manifest_bytes=data,
        tree=source_tree.extract(engine, image, package=package),
        base=base,
        base_tree=source_tree.extract(engine, base, package=package) if base else None,
    )
    findings, blind = audit.judge(observed), audit.not_inspected(observed)
    return records.AuditDocument(
        verdict=audit.verdict(findings, blind),
        target=reference,
        findings=findings,
        lineage=_lineage(manifest),
        pull_requests=manifest.pull_requests,
        not_inspected=blind,
    )


def _lineage(manifest: Manifest) -> tuple[str, ...]:
    base = manifest.base
    digest = base.digest or base.config_digest
    numbers = ", ".join(f"{pull.repo}#{pull.number}" for pull in manifest.pull_requests)
    return (f"{base.reference}@{digest} ({base.platform})", f"{manifest.overlay.name}: {numbers}")


def require_image_name(reference: str) -> str:
    """Refuse what can be no image in the engine, before one is asked."""
    if reference.startswith(bases.FOLDER):
        raise InputError(reference, "is a folder; this needs an image in the engine", hint="give an image's name or ID")
    if not re.fullmatch(r"(sha256:)?[0-9a-f]{6,64}", reference):
        ImageRef.parse(reference)
    return reference


def _present(engine: Engine, reference: str) -> LocalImage:
    image = engine.inspect(reference)
    if image is None:
        raise InputError(reference, "the engine has no such image", hint="docker images lists what it has")
    return image


def _definition(shelf: Catalogue, manifest: Manifest | None) -> Overlay | None:
    is_known = manifest is not None and not manifest.overlay.is_bare
    if not is_known or manifest is None or manifest.overlay.name not in shelf.overlay_names():
        return None
    return shelf.overlay(manifest.overlay.name)


def listing(shelf: Catalogue, engine: Callable[[], Engine]) -> records.ListDocument:
    """List the catalogue and, where an engine answers, the images built by this tool."""
    overlays = [shelf.overlay(name) for name in shelf.overlay_names()]
    images = [shelf.image(alias) for alias in shelf.image_names()]
    built: tuple[records.ListedImage, ...] | None
    notes: tuple[str, ...] = ()
    try:
        built = tuple(_listed(image) for image in engine().images() if f"{PROJECT}.plan-digest" in image.labels)
    except Unavailable as error:
        built, notes = None, (f"no engine answered, so built images are not listed ({error.message})",)
    return records.ListDocument(
        verdict="ok",
        notes=notes,
        catalogue=str(shelf.folder),
        overlays=tuple(
            records.ListedOverlay(
                name=overlay.name,
                title=overlay.title,
                pull_requests=overlay.pull_requests,
                bases=overlay.bases,
                is_locked=shelf.lock_path(overlay.name).exists(),
            )
            for overlay in overlays
        ),
        bases=tuple(
            records.ListedBase(alias=image.alias, reference=image.reference, notes=image.notes) for image in images
        ),
        images=built,
    )


def _listed(image: LocalImage) -> records.ListedImage:
    labels = image.labels
    return records.ListedImage(
        id=image.id,
        tags=image.repo_tags,
        overlay=labels.get(f"{PROJECT}.overlay", "?"),
        plan_digest=labels[f"{PROJECT}.plan-digest"],
    )
