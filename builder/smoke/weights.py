"""The checks `architecture` and `weight-drop`: the class that the draft's config names, and what it loads."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from builder.checkpoint import Shapes, size_of
from builder.model import Check
from builder.smoke.imports import judge_module
from builder.smoke.subject import Evidence, Subject, listed, module_name

#: Errors by which a loader refuses a tensor in its own words; others may come from there being no bytes and no GPU.
_REFUSALS: Final = ("ValueError", "AssertionError", "KeyError")

#: Words of tensor names that say nothing about which part of a config is meant.
_COMMON: Final = frozenset(
    {"attention", "attn", "mlp", "weight", "proj", "projection", "kernel", "layer", "layers", "model", "norm", "hidden"}
    | {"size", "block", "base", "head"}
)
_WRAPPERS: Final = frozenset({"model", "language_model", "transformer", "draft_model"})


def check_architecture(subject: Subject, evidence: Evidence) -> Check:
    """The architecture that the draft config names resolves to its own class, not to a fallback."""
    name = "architecture"
    draft = subject.draft_data
    if draft is None:
        return Check(name, "not-run", "no draft was given (--draft), and the definition has no published table")
    if not draft.architectures:
        return Check(name, "fail", f"the draft config names no architecture{subject.draft_label}")
    registry = evidence.built.registry
    if registry is None or not registry.keys() & {"architecture", "error"}:
        return _not_answered(name, evidence, "the model registry")
    wanted = draft.architectures[0]
    facts = {key: registry.get(key) for key in ("architecture", "cls", "module", "file", "known")}
    facts |= {"requested": list(draft.architectures), "swallowed": _swallowed(subject, registry)}
    if registry.get("error"):
        return Check(name, "unknown", f"the model registry: {_reason(registry['error'])}", facts)
    if registry.get("architecture") != wanted:
        outcome, why = _why_fallback(subject, evidence, wanted, registry)
        found = f"{wanted} resolves to {registry.get('architecture')}, not to a class of its own: {why}"
        return Check(name, outcome, found + subject.draft_label, facts)
    fault = _wrong_file(subject, evidence, wanted, registry)
    if fault:
        return Check(name, "fail", fault, facts)
    swallowed = facts["swallowed"]
    if isinstance(swallowed, dict) and swallowed:
        lost = "; ".join(f"{module}: {error}" for module, error in swallowed.items())
        is_failure = any(_fails(subject, evidence, module) for module in swallowed)
        return Check(
            name,
            "fail" if is_failure else "unknown",
            f"the registry left out overlaid modules without a word: {lost}",
            facts,
        )
    return Check(name, "pass", f"{wanted} resolves to its own class in {registry['module']}", facts)


def _swallowed(subject: Subject, registry: Mapping[str, Any]) -> dict[str, str]:
    overlaid = {module_name(path) for path in subject.overlaid}
    return {name: error for name, error in (registry.get("swallowed") or {}).items() if name in overlaid}


def _fails(subject: Subject, evidence: Evidence, module: str) -> bool:
    path = next((path for path in subject.overlaid if module_name(path) == module), None)
    return path is not None and judge_module(subject, evidence, path).outcome == "fail"


def _why_fallback(subject: Subject, evidence: Evidence, wanted: str, registry: Mapping[str, Any]) -> tuple[Any, str]:
    """Tell a class that is not there from one whose module cannot be imported where the probe ran."""
    for module, error in (registry.get("swallowed") or {}).items():
        path = module.replace(".", "/") + ".py"
        if wanted in _classes(subject.read(path)):
            is_failure = _fails(subject, evidence, module) or path not in subject.overlaid
            why = f"the registry could not import {module}, which defines it: {error}"
            return ("fail" if is_failure and path in subject.overlaid else "unknown"), why
    return "fail", "no model module of this image defines it"


def _wrong_file(subject: Subject, evidence: Evidence, wanted: str, registry: Mapping[str, Any]) -> str:
    root, file = evidence.built.package_root, registry.get("file")
    if root and not str(file).startswith(f"{root}/"):
        return f"{wanted} comes from {file}, outside the live root {root}"
    brought = [path for path in subject.overlaid if path.endswith(".py") and wanted in _classes(subject.read(path))]
    if root and brought and file not in {f"{root}/{path}" for path in brought}:
        return f"{wanted} comes from {file}, and not from the overlaid {listed(brought)}"
    return ""


def _classes(source: bytes | None) -> frozenset[str]:
    try:
        tree = ast.parse(source or b"")
    except (SyntaxError, ValueError):
        return frozenset()
    return frozenset(node.name for node in tree.body if isinstance(node, ast.ClassDef))


def check_weight_drop(subject: Subject, evidence: Evidence) -> Check:
    """Every tensor of the draft is consumed by the real `load_weights`, and every parameter is filled."""
    name = "weight-drop"
    draft = subject.draft_data
    if draft is None:
        return Check(name, "not-run", "no draft was given (--draft), and the definition has no published table")
    built, weights = evidence.built.built, evidence.built.weights
    if built is None or weights is None:
        return _not_answered(name, evidence, "the draft's class")
    if not built.get("cls"):
        why = _reason(built["error"]) if built.get("error") else str(built.get("reason"))
        return Check(name, "unknown", f"the class of {listed(draft.architectures)} was not built: {why}", dict(built))
    return judge_weights(str(built["cls"]), weights, draft.shapes, draft.config, subject.draft_label)


def judge_weights(
    cls: str, weights: Mapping[str, Any], shapes: Shapes, config: Mapping[str, object], label: str = ""
) -> Check:
    """Compare what two trackers saw the loader consume with what the checkpoint holds.

    `weights` is the probe's answer: by_loader, by_copy and kept (names; kept are tensors the model holds something of
    beside its parameters), filled (parameter -> elements written, elements).
    """
    name = "weight-drop"
    by_loader, by_copy, kept = (set(weights[key]) for key in ("by_loader", "by_copy", "kept"))
    dropped = [tensor for tensor in shapes if tensor not in by_copy | kept]
    unfilled = [parameter for parameter, (written, size) in weights["filled"].items() if written < size]
    groups = group_by_prefix(dropped, shapes)
    facts: dict[str, Any] = {
        "class": cls,
        "tensors": len(shapes),
        "consumed": len(shapes) - len(dropped),
        "dropped": dropped,
        "unfilled": unfilled,
        "method": weights["method"],
        "groups": groups,
        "contradictions": contradictions(cls, dropped, config),
        "cast": weights["cast"],
        "repeated": weights["repeated"],
        "source": "the published table" if label else "the checkpoint's headers",
    }
    error = weights.get("error")
    if error:
        is_refusal = error.get("raised_by_package") and error.get("type") in _REFUSALS
        found = f"{cls}.load_weights stops at {error.get('tensor') or 'its end'}: {_reason(error)}"
        return Check(name, "fail" if is_refusal else "unknown", found + label, facts)
    if by_loader != by_copy:
        found = f"the two trackers disagree about {listed(sorted(by_loader ^ by_copy))}"
        facts |= {"only_by_loader": sorted(by_loader - by_copy), "only_by_copy": sorted(by_copy - by_loader)}
        return Check(name, "unknown", found + label, facts)
    if dropped or unfilled:
        return Check(name, "fail", _sentence(cls, facts, groups, weights["filled"]) + label, facts)
    return Check(name, "pass", f"{cls} loads all {len(shapes)} tensors and fills every parameter{label}", facts)


def _sentence(
    cls: str, facts: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], filled: Mapping[str, Any]
) -> str:
    parts = []
    if facts["dropped"]:
        parameters = sum(group["parameters"] for group in groups)
        share = sum(group["share_of_bytes"] for group in groups)
        names = ", ".join(f"{group['prefix']} ({group['tensors']})" for group in groups)
        count = f"{len(facts['dropped'])} of {facts['tensors']} tensors"
        parts.append(f"{cls} drops {count} ({parameters:,} parameters, {share:.1%} of the bytes): {names}")
    if facts["unfilled"]:
        partly = [f"{name} ({filled[name][0]:,} of {filled[name][1]:,})" for name in facts["unfilled"]]
        parts.append(f"{len(facts['unfilled'])} parameters stay unfilled or partly so: {listed(partly)}")
    return "; ".join([*parts, *facts["contradictions"]])


def group_by_prefix(names: Iterable[str], shapes: Shapes) -> list[dict[str, Any]]:
    """Group tensors by the part of the model they belong to, with counts, parameters and share of all bytes."""
    total = sum(size_of(*shape) for shape in shapes.values()) or 1
    groups: dict[str, dict[str, Any]] = {}
    for name in names:
        group = groups.setdefault(
            prefix_of(name), {"prefix": prefix_of(name), "tensors": 0, "parameters": 0, "share_of_bytes": 0.0}
        )
        group["tensors"] += 1
        group["parameters"] += _elements(shapes[name][1])
        group["share_of_bytes"] += size_of(*shapes[name]) / total
    return list(groups.values())


def _elements(shape: Sequence[int]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product


def prefix_of(name: str) -> str:
    """Return the part of a model a tensor belongs to, numbers replaced: `layers.*.mlp_conv`, `candidate_selector`."""
    parts = name.split(".")
    last_number = max((index for index, part in enumerate(parts) if part.isdigit()), default=-1)
    keep = last_number + 2
    while last_number < 0 and keep < len(parts) and parts[keep - 1] in _WRAPPERS:
        keep += 1
    return ".".join("*" if part.isdigit() else part for part in parts[:keep])


def contradictions(cls: str, dropped: Iterable[str], config: Mapping[str, object]) -> list[str]:
    """Say which config fields belong to parts of the checkpoint that the class never loads."""
    words = Counter(word for name in dropped for word in _words(prefix_of(name)))
    fields = [
        f"{key} = {value}"
        for key, value in _leaves(config)
        if value and set(_words(key.rpartition(".")[2])) & words.keys()
    ]
    return [f"the config sets {', '.join(fields)}, which {cls} does not use"] if fields else []


def _words(text: str) -> Iterator[str]:
    return (word for word in re.split(r"[._*\d]+", text) if word and word not in _COMMON)


def _leaves(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + key, value


def _reason(error: Mapping[str, Any]) -> str:
    message = (str(error.get("message")).strip().splitlines() or [""])[0]
    at = f" ({error['at']})" if error.get("at") else ""
    return f"{error.get('type')}: {message}{at}"


def _not_answered(name: str, evidence: Evidence, what: str) -> Check:
    fault = evidence.built.fault or "the probe did not answer"
    facts = {"probe": fault, "last_lines": list(evidence.built.last_lines)}
    return Check(name, "unknown", f"{what} could not be asked for: {fault}", facts)
