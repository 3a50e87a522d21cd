"""The smoke test: what can be known of a built image without a GPU, before anybody relies on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from builder.errors import InputError
from builder.model import Check
from builder.smoke.architecture import check_architecture
from builder.smoke.draft_config import check_draft_config
from builder.smoke.imports import (
    check_importers,
    check_imports,
    importers_of,
    modules_of_base,
    modules_to_import,
    needs_base,
)
from builder.smoke.lm_head import check_lm_head
from builder.smoke.probe import ask
from builder.smoke.subject import Answer, Evidence, ModuleAnswer, Subject
from builder.smoke.weight_drop import check_weight_drop
from builder.suggest import did_you_mean

__all__ = ["CHECKS", "Answer", "Evidence", "ModuleAnswer", "Subject", "gather", "importers_of", "is_passed", "run"]

CHECKS: Final[Mapping[str, Callable[[Subject, Evidence], Check]]] = {
    "imports": check_imports,
    "importers": check_importers,
    "architecture": check_architecture,
    "weight-drop": check_weight_drop,
    "draft-config": check_draft_config,
    "lm-head": check_lm_head,
}
"""Name -> the check, a pure judgement of what is known; order is the order of reports."""

INPUTS: Final[Mapping[str, str]] = {
    "architecture": "draft",
    "weight-drop": "draft",
    "draft-config": "draft",
    "lm-head": "target",
}
"""Which input of the user's own a check wants (`--draft`, `--target`)."""

_OF_MODULES: Final = frozenset({"imports", "importers"})
_OF_MODEL: Final = frozenset({"architecture", "weight-drop", "draft-config"})


def run(
    subject: Subject,
    names: Sequence[str] = tuple(CHECKS),
    *,
    require: frozenset[str] = frozenset(),
    acknowledge: Mapping[str, str] | None = None,
) -> tuple[Check, ...]:
    """Run these checks; InputError for a name nobody knows.

    The image's interpreter is asked once for all of them, the base's only where a failure needs the comparison. An
    input in `require` that was not given fails the checks that want it. `acknowledge` (name -> reason) settles an
    unknown, never a failure.
    """
    for name in names:
        if name not in CHECKS:
            known = f"is not a check{did_you_mean(name, CHECKS)}; there are: {', '.join(CHECKS)}"
            raise InputError(f"check {name!r}", known)
    evidence = gather(subject, names)
    checks = (_required(subject, CHECKS[name](subject, evidence), require) for name in names)
    return tuple(_acknowledged(check, acknowledge or {}) for check in checks)


def gather(subject: Subject, names: Sequence[str]) -> Evidence:
    """Ask the built image all that these checks want, and the base what has to be compared."""
    wants_model = bool(_OF_MODEL.intersection(names)) and subject.draft_data is not None
    wants_modules = bool(_OF_MODULES.intersection(names)) and bool(subject.overlaid or subject.importers)
    if not wants_model and not wants_modules:
        return Evidence()
    modules = modules_to_import(subject)
    built = ask(subject, subject.image, modules, with_registry=wants_model, with_model=wants_model)
    if subject.base is None or not needs_base(built):
        return Evidence(built)
    return Evidence(built, ask(subject, subject.base, modules_of_base(subject)))


def is_passed(checks: Sequence[Check]) -> bool:
    """Tell whether nothing failed and every unknown was acknowledged."""
    return all(
        check.outcome in ("pass", "not-applicable", "not-run")
        or (check.outcome == "unknown" and check.acknowledged is not None)
        for check in checks
    )


def _required(subject: Subject, check: Check, require: frozenset[str]) -> Check:
    wanted = INPUTS.get(check.name)
    if wanted is None or wanted not in require or getattr(subject, wanted) is not None:
        return check
    return replace(check, outcome="fail", message=f"--require {wanted}: {check.message}")


def _acknowledged(check: Check, acknowledge: Mapping[str, str]) -> Check:
    reason = acknowledge.get(check.name)
    return replace(check, acknowledged=reason) if reason and check.outcome == "unknown" else check
