"""The check `weight-drop`: what the real `load_weights` never consumes of the draft, and what it leaves unfilled."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from builder.checkpoint import Shapes, size_of
from builder.model import Check, CheckOutcome
from builder.smoke.subject import NO_DRAFT, Evidence, Subject, listed, not_answered, reason_of

_NAME: Final = "weight-drop"

#: Errors by which a loader refuses a tensor in its own words; others may come from there being no bytes and no GPU.
_REFUSALS: Final = ("ValueError", "AssertionError", "KeyError")

#: Words of tensor names that say nothing about which part of a config is meant.
_COMMON: Final = frozenset(
    {"attention", "attn", "mlp", "weight", "proj", "projection", "kernel", "layer", "layers", "model", "norm", "hidden"}
    | {"size", "block", "base", "head"}
)
_WRAPPERS: Final = frozenset({"model", "language_model", "transformer", "draft_model"})


def check_weight_drop(subject: Subject, evidence: Evidence) -> Check:
    """Every tensor of the draft is consumed by the real `load_weights`, and every parameter is filled."""
    draft = subject.draft_data
    if draft is None:
        return Check(_NAME, "not-run", NO_DRAFT)
    built, weights = evidence.built.built, evidence.built.weights
    if built is None or weights is None:
        return not_answered(_NAME, evidence.built, "the draft's class")
    if not built.get("cls"):
        why = reason_of(built["error"]) if built.get("error") else str(built.get("reason"))
        return Check(_NAME, "unknown", f"the class of {listed(draft.architectures)} was not built: {why}", dict(built))
    return judge_weights(str(built["cls"]), weights, draft.shapes, draft.config, subject.draft_label)


def judge_weights(
    cls: str, weights: Mapping[str, Any], shapes: Shapes, config: Mapping[str, object], label: str = ""
) -> Check:
    """Compare what two trackers saw the loader consume with what the checkpoint holds.

    `weights` is the probe's answer: by_loader, by_copy and kept (names; kept are tensors the model holds something of
    beside its parameters), filled (parameter -> elements written, elements).
    """
    by_loader, by_copy, kept = (set(weights[key]) for key in ("by_loader", "by_copy", "kept"))
    dropped = [name for name in shapes if name not in by_copy | kept]
    facts: dict[str, Any] = {
        "class": cls,
        "tensors": len(shapes),
        "consumed": len(shapes) - len(dropped),
        "dropped": dropped,
        "unfilled": [name for name, (written, size) in weights["filled"].items() if written < size],
        "method": weights["method"],
        "groups": group_by_prefix(dropped, shapes),
        "contradictions": contradictions(cls, dropped, config),
        "cast": weights["cast"],
        "repeated": weights["repeated"],
        "only_by_loader": sorted(by_loader - by_copy),
        "only_by_copy": sorted(by_copy - by_loader),
        "source": "the published table" if label else "the checkpoint's headers",
    }
    outcome, message = _judged(cls, weights, facts)
    return Check(_NAME, outcome, message + label, facts)


def _judged(cls: str, weights: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[CheckOutcome, str]:
    error = weights.get("error")
    if error:
        is_refusal = error.get("raised_by_package") and error.get("type") in _REFUSALS
        found = f"{cls}.load_weights stops at {error.get('tensor') or 'its end'}: {reason_of(error)}"
        return "fail" if is_refusal else "unknown", found
    doubtful = sorted(facts["only_by_loader"] + facts["only_by_copy"])
    if doubtful:
        return "unknown", f"the two trackers disagree about {listed(doubtful)}"
    if facts["dropped"] or facts["unfilled"]:
        return "fail", "; ".join(_sentences(cls, facts, weights["filled"]))
    return "pass", f"{cls} loads all {facts['tensors']} tensors and fills every parameter"


def _sentences(cls: str, facts: Mapping[str, Any], filled: Mapping[str, Sequence[int]]) -> Iterator[str]:
    groups, dropped, unfilled = facts["groups"], facts["dropped"], facts["unfilled"]
    if dropped:
        parameters = sum(group["parameters"] for group in groups)
        share = sum(group["share_of_bytes"] for group in groups)
        names = ", ".join(f"{group['prefix']} ({group['tensors']})" for group in groups)
        count = f"{len(dropped)} of {facts['tensors']} tensors"
        yield f"{cls} drops {count} ({parameters:,} parameters, {share:.1%} of the bytes): {names}"
    if unfilled:
        partly = [f"{name} ({filled[name][0]:,} of {filled[name][1]:,})" for name in unfilled]
        yield f"{len(unfilled)} parameters are not filled, or not wholly: {listed(partly)}"
    yield from facts["contradictions"]


def group_by_prefix(names: Iterable[str], shapes: Shapes) -> list[dict[str, Any]]:
    """Group tensors by the part of the model they belong to, with counts, parameters and share of all bytes."""
    total = sum(size_of(*shape) for shape in shapes.values()) or 1
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(prefix_of(name), []).append(name)
    return [
        {
            "prefix": prefix,
            "tensors": len(members),
            "parameters": sum(math.prod(shapes[name][1]) for name in members),
            "share_of_bytes": sum(size_of(*shapes[name]) for name in members) / total,
        }
        for prefix, members in groups.items()
    ]


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
    words = {word for name in dropped for word in _words(prefix_of(name))}
    fields = [
        f"{key} = {value}" for key, value in _leaves(config) if value and set(_words(key.rpartition(".")[2])) & words
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
