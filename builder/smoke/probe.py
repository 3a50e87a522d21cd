"""Run the model probe in the image and read its answers; what did not answer is said, never guessed."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from builder.checkpoint import Checkpoint
from builder.doors import Limits
from builder.errors import last_lines
from builder.model import Completed, Digest
from builder.smoke.subject import Answer, ModuleAnswer, Subject

ENVIRONMENT: Final[Mapping[str, str]] = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONIOENCODING": "utf-8",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    # The same answer on every host: no GPU, even where the engine's default runtime would hand one out.
    "NVIDIA_VISIBLE_DEVICES": "void",
    # Imports alone must not start a thread per core under the container's bounds.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # torch asks for the user's name to find this folder; an image's numeric user may have none.
    "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor",
    "TRITON_CACHE_DIR": "/tmp/triton",
}


@cache
def program() -> str:
    """Return the probe's source."""
    return (files("builder.smoke") / "probes" / "model_probe.py").read_text(encoding="utf-8")


def ask(
    subject: Subject, image: Digest, modules: Sequence[str], *, with_registry: bool = False, with_model: bool = False
) -> Answer:
    """Run the probe once in an image; whatever goes wrong with it is the answer's `fault`."""
    nonce = secrets.token_hex(16)
    request = {
        "nonce": nonce,
        "package": subject.package,
        "live_root": subject.live_root,
        "modules": list(modules),
        "registry": with_registry,
        "model": _model(subject) if with_model else None,
    }
    completed = subject.engine.run(
        image,
        [subject.interpreter, "-B", "-c", program()],
        stdin=json.dumps(request).encode(),
        environment=ENVIRONMENT,
        limits=subject.limits,
    )
    return read_answer(completed, nonce, subject.interpreter, subject.limits)


def _model(subject: Subject) -> dict[str, Any] | None:
    draft = subject.draft_data
    if draft is None or not draft.architectures:
        return None
    return {
        "architectures": list(draft.architectures),
        "config": dict(draft.config),
        # A published table holds the fields that matter, which no config reader of a model family can complete.
        "whole_config": isinstance(draft, Checkpoint),
        "tensors": [[name, dtype, list(shape)] for name, (dtype, shape) in draft.shapes.items()],
        "tp": subject.tp,
    }


def read_answer(completed: Completed | None, nonce: str, interpreter: str, limits: Limits) -> Answer:
    """Read what the probe printed: lines behind the nonce count, everything else is the image's own talk."""
    if completed is None:
        return Answer(fault=f"the image has no {interpreter}")
    steps = list(_steps(completed.stdout, nonce))
    found: dict[str, Mapping[str, Any]] = {step["step"]: step for step in steps}
    modules = {
        step["module"]: ModuleAnswer(step["module"], step["error"], step["file"], step["blob"], step["stale"])
        for step in steps
        if step["step"] == "module"
    }
    fault = "" if "end" in found else _fault(completed, limits, steps)
    said = last_lines(completed.stderr, 20) if fault else ()
    return Answer(
        found.get("interpreter"),
        modules,
        found.get("registry"),
        found.get("class"),
        found.get("weights"),
        fault,
        said,
    )


def _steps(stdout: str, nonce: str) -> Iterator[dict[str, Any]]:
    for line in stdout.splitlines():
        if not line.startswith(nonce + " "):
            continue
        try:
            yield json.loads(line.removeprefix(nonce + " "))
        except ValueError:
            # The last line of a probe that was killed while it wrote; the missing end says so.
            continue


def _fault(completed: Completed, limits: Limits, steps: Sequence[Mapping[str, Any]]) -> str:
    after = f" after its step {steps[-1]['step']!r}" if steps else " before its first answer"
    if completed.stopped_by == "time":
        return f"the probe was stopped at its limit of {limits.seconds:g} s{after}"
    if completed.stopped_by == "memory":
        return f"the probe was killed at its limit of {limits.memory_bytes / 2**30:g} GiB of memory{after}"
    if completed.exit_code == 0:
        return f"the probe ended{after} and did not say so"
    if completed.exit_code is None or completed.exit_code > 128:
        signal = f" (signal {completed.exit_code - 128})" if completed.exit_code else ""
        return f"the probe was killed{signal}{after}"
    return f"the probe exited {completed.exit_code}{after}"
