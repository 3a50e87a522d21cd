"""The check `architecture`: the class that the draft's config names is the class that the server would build."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from builder.model import Check, CheckOutcome
from builder.smoke.imports import judge_module
from builder.smoke.subject import NO_DRAFT, Evidence, Subject, listed, module_name, not_answered, reason_of, text_of

_NAME = "architecture"


def check_architecture(subject: Subject, evidence: Evidence) -> Check:
    """The architecture that the draft config names resolves to its own class, not to a fallback."""
    draft = subject.draft_data
    if draft is None:
        return Check(_NAME, "not-run", NO_DRAFT)
    if not draft.architectures:
        return Check(_NAME, "fail", f"the draft config names no architecture{subject.draft_label}")
    registry = evidence.built.registry
    if registry is None or not registry.keys() & {"architecture", "error"}:
        return not_answered(_NAME, evidence.built, "the model registry")
    facts: dict[str, Any] = {key: registry.get(key) for key in ("architecture", "cls", "module", "file", "known")}
    facts |= {"requested": list(draft.architectures), "swallowed": _swallowed(subject, registry)}
    outcome, message = _judged(subject, evidence, draft.architectures[0], registry)
    return Check(_NAME, outcome, message, facts)


def _judged(subject: Subject, evidence: Evidence, wanted: str, registry: Mapping[str, Any]) -> tuple[CheckOutcome, str]:
    if registry.get("error"):
        return "unknown", f"the model registry: {reason_of(registry['error'])}"
    if registry.get("architecture") != wanted:
        outcome, why = _why_fallback(subject, evidence, wanted, registry)
        found = f"{wanted} resolves to {registry.get('architecture')}, not to a class of its own: {why}"
        return outcome, found + subject.draft_label
    fault = _wrong_file(subject, evidence, wanted, registry)
    if fault:
        return "fail", fault
    swallowed = _swallowed(subject, registry)
    if swallowed:
        lost = "; ".join(f"{module}: {error}" for module, error in swallowed.items())
        is_failure = any(_fails(subject, evidence, module) for module in swallowed)
        return "fail" if is_failure else "unknown", f"the registry left out overlaid modules without a word: {lost}"
    return "pass", f"{wanted} resolves to its own class in {registry['module']}"


def _swallowed(subject: Subject, registry: Mapping[str, Any]) -> dict[str, str]:
    overlaid = {module_name(path) for path in subject.overlaid}
    return {name: error for name, error in (registry.get("swallowed") or {}).items() if name in overlaid}


def _fails(subject: Subject, evidence: Evidence, module: str) -> bool:
    judged = (*subject.overlaid, *subject.importers)
    path = next((path for path in judged if module_name(path) == module), None)
    return path is not None and judge_module(subject, evidence, path).outcome == "fail"


def _why_fallback(
    subject: Subject, evidence: Evidence, wanted: str, registry: Mapping[str, Any]
) -> tuple[CheckOutcome, str]:
    """Tell a class that is not there from one whose module cannot be imported where the probe ran."""
    for module, error in (registry.get("swallowed") or {}).items():
        path = module.replace(".", "/") + ".py"
        if wanted in _classes(text_of(subject.read, path)):
            why = f"the registry could not import {module}, which defines it: {error}"
            return "fail" if _fails(subject, evidence, module) else "unknown", why
    return "fail", "no model module of this image defines it"


def _wrong_file(subject: Subject, evidence: Evidence, wanted: str, registry: Mapping[str, Any]) -> str:
    root, file = evidence.built.package_root, registry.get("file")
    if root and not str(file).startswith(f"{root}/"):
        return f"{wanted} comes from {file}, outside the live root {root}"
    brought = [
        path for path in subject.overlaid if path.endswith(".py") and wanted in _classes(text_of(subject.read, path))
    ]
    if root and brought and file not in {f"{root}/{path}" for path in brought}:
        return f"{wanted} comes from {file}, and not from the overlaid {listed(brought)}"
    return ""


def _classes(source: bytes | None) -> frozenset[str]:
    try:
        tree = ast.parse(source or b"")
    except (SyntaxError, ValueError):
        return frozenset()
    return frozenset(node.name for node in tree.body if isinstance(node, ast.ClassDef))
