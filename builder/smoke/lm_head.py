"""The check `lm-head`: how the target stores its head, from the headers, and whether the merged tree can use it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from builder.checkpoint import Checkpoint, Tensor
from builder.model import Check, CheckOutcome
from builder.smoke.head_path import Need, handles_heads, read_need
from builder.smoke.subject import Evidence, Subject, listed, text_of

DENSE: Final = ("BF16", "F16", "F32")
"""The dtypes that `is_dense_head_weight` accepts."""

SIBLINGS: Final = (
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_packed",
    "weight_zero_point",
    "qweight",
    "qzeros",
    "scales",
    "input_scale",
    "weight_global_scale",
    "input_global_scale",
)
"""Tensors beside a `weight` that say it is quantized, in the spellings of the formats in use."""

_PREFIXES: Final = ("", "model.", "language_model.", "model.language_model.", "text_model.", "thinker.", "llm.")
_EMBEDDINGS: Final = (
    "embed_tokens",
    "model.embed_tokens",
    "word_embeddings",
    "wte",
    "transformer.wte",
    "tok_embeddings",
)
_EXCLUDES: Final = (
    "ignore",
    "ignored_layers",
    "modules_to_not_convert",
    "exclude_modules",
    "exclude",
    "exclude_layers",
    "llm_int8_skip_modules",
    "modules_to_not_quantize",
)
"""Every spelling of "these modules are not quantized" that SGLang's quantization configs read."""


@dataclass(frozen=True)
class Head:
    """How the target stores what its logits come from.

    `kind`: dense (BF16, F16, F32), packed (quantized values with scales beside them), broken (neither can be right),
    unclear (two candidates, or a name nobody knows).
    """

    kind: Literal["dense", "packed", "broken", "unclear"]
    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    file: str = ""
    is_embedding: bool = False
    siblings: tuple[str, ...] = ()
    fault: str = ""

    @property
    def described(self) -> str:
        """The head as a short phrase."""
        what = f"{self.name} {self.dtype} {' x '.join(map(str, self.shape))}".strip()
        with_siblings = f" with {listed(self.siblings)} beside it" if self.siblings else ""
        return what + with_siblings + (" (tied to the embedding)" if self.is_embedding else "")


def read_head(target: Checkpoint) -> Head:
    """Judge the head by the headers of all shards."""
    heads = _named(target.tensors, "lm_head")
    embeddings = [name for stem in _EMBEDDINGS for name in _named(target.tensors, stem)]
    is_tied = target.text_config.get("tie_word_embeddings", target.config.get("tie_word_embeddings"))
    if len(heads) > 1:
        return Head("unclear", heads[0], fault=f"{len(heads)} tensors could be the head: {listed(heads)}")
    if heads and is_tied is not True:
        return _judge(target, heads[0], is_embedding=False)
    if not heads:
        elsewhere = sorted(name for name in target.tensors if re.search(r"(^|\.)lm_head\.", name))
        if elsewhere:
            return Head("unclear", elsewhere[0], fault=f"the head is under a prefix nobody knows: {listed(elsewhere)}")
        if is_tied is False:
            return Head("broken", "lm_head", fault="there is no lm_head, and the config says it is not tied")
    embeddings = list(dict.fromkeys(embeddings))
    if len(embeddings) != 1:
        found = listed(embeddings) if embeddings else "none"
        return Head(
            "unclear", "lm_head", fault=f"the head is the embedding, of which there are {len(embeddings)}: {found}"
        )
    return _judge(target, embeddings[0], is_embedding=True)


def _named(tensors: Mapping[str, Tensor], stem: str) -> list[str]:
    """List modules of this name under a known prefix that have a weight, or what stands for one."""
    modules = (prefix + stem for prefix in _PREFIXES)
    return [module for module in modules if any(f"{module}.{leaf}" in tensors for leaf in ("weight", *SIBLINGS))]


def _judge(target: Checkpoint, module: str, *, is_embedding: bool) -> Head:
    siblings = tuple(leaf for leaf in SIBLINGS if f"{module}.{leaf}" in target.tensors)
    weight = target.tensors.get(f"{module}.weight")
    stored = weight or target.tensors[f"{module}.{siblings[0]}"]
    name = f"{module}.weight" if weight else f"{module}.{siblings[0]}"
    head = Head("packed", name, stored.dtype, stored.shape, stored.file, is_embedding, siblings)
    if weight is None or siblings:
        return head
    if stored.dtype not in DENSE:
        return _as(head, "broken", f"{stored.dtype} values without a scale beside them mean nothing")
    wanted = tuple(target.text_config.get(key, target.config.get(key)) for key in ("vocab_size", "hidden_size"))
    if not all(isinstance(extent, int) for extent in wanted):
        return _as(head, "unclear", "the config does not tell vocab_size and hidden_size")
    if stored.shape != wanted:
        return _as(head, "broken", f"by the config it is {wanted[0]} x {wanted[1]}")
    return _as(head, "dense", "")


def _as(head: Head, kind: Literal["dense", "broken", "unclear"], fault: str) -> Head:
    return Head(kind, head.name, head.dtype, head.shape, head.file, head.is_embedding, head.siblings, fault)


# -- what the config says --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """What the config says of the head: quantized by name, excluded from quantization, or nothing."""

    verdict: Literal["quantized", "excluded", "nothing"]
    evidence: str = ""


def read_config(target: Checkpoint, module: str) -> Said:
    """Look the head up in every exclude list and every list of quantized layers."""
    quantization = target.quantization
    if quantization is None:
        return Said("excluded", "the config describes no quantization")
    tables = [quantization, *(value for value in quantization.values() if isinstance(value, Mapping))]
    for table in tables:
        for key in _EXCLUDES:
            pattern = _matching(table.get(key), module)
            if pattern is not None:
                return Said("excluded", f"{key} has {pattern!r}")
    for key, names in _by_name(tables):
        pattern = _matching(names, module)
        if pattern is not None:
            return Said("quantized", f"{key} has {pattern!r}")
    return Said("nothing")


def _by_name(tables: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, object]]:
    for table in tables:
        for key, group in table.items():
            if isinstance(group, Mapping) and isinstance(group.get("targets"), list):
                yield f"{key}.targets", [name for name in group["targets"] if name != "Linear"]
        if isinstance(table.get("quantized_layers"), Mapping):
            yield "quantized_layers", list(table["quantized_layers"])
        if table.get("lm_head") is True:
            yield "lm_head", ["lm_head"]


def _matching(patterns: object, module: str) -> str | None:
    """Return the entry of a list that means this module: exact, last part, `re:` expression or wildcard."""
    if not isinstance(patterns, list | tuple):
        return None
    last = module.rpartition(".")[2]
    for pattern in patterns:
        if not isinstance(pattern, str):
            continue
        if pattern.startswith("re:"):
            is_match = _is_regex_match(pattern.removeprefix("re:"), module)
        else:
            is_match = any(fnmatch.fnmatchcase(name, pattern) for name in (module, last)) or module.endswith(
                "." + pattern
            )
        if is_match:
            return pattern
    return None


def _is_regex_match(pattern: str, module: str) -> bool:
    try:
        return re.match(pattern, module) is not None
    except re.error:
        return False


def method_of(target: Checkpoint) -> str | None:
    """Name the quantization method that SGLang derives from a config; None where nothing is described."""
    quantization = target.quantization
    if quantization is None:
        return None
    named = quantization.get("quant_method")
    if isinstance(named, str) and named != "modelopt":
        return named
    inner = quantization.get("quantization")
    algorithm = str((inner if isinstance(inner, Mapping) else quantization).get("quant_algo", "")).upper()
    if algorithm == "MIXED_PRECISION":
        return "modelopt_mixed"
    return (
        "modelopt_fp4" if "FP4" in algorithm else {"FP8": "modelopt_fp8", "MXFP8": "mxfp8"}.get(algorithm, "modelopt")
    )


# -- the check -------------------------------------------------------------------------------------------------------


def check_lm_head(subject: Subject, evidence: Evidence) -> Check:  # noqa: ARG001 - every check has this signature
    """The target's head is dense, or the merged tree can use it as it is stored."""
    name = "lm-head"
    if subject.target is None:
        return Check(name, "not-run", "no target was given (--target)")
    head = read_head(subject.target)
    said = read_config(subject.target, head.name.rpartition(".")[0] or head.name)
    path = f"{subject.package}/srt/models/dflash.py"
    need = read_need(text_of(subject.read, path), path)
    outcome, message = _judged(subject, head, said, need)
    disagreement = _disagreement(subject, head, said)
    facts = {
        "tensor": head.name,
        "kind": head.kind,
        "dtype": head.dtype,
        "shape": list(head.shape),
        "file": head.file,
        "is_embedding": head.is_embedding,
        "siblings": list(head.siblings),
        "config": f"{said.verdict}: {said.evidence}" if said.evidence else said.verdict,
        "tree": f"{need.verdict}: {need.evidence}",
        "disagreement": disagreement,
    }
    return Check(name, outcome, "; ".join(part for part in (message, disagreement) if part), facts)


def _judged(subject: Subject, head: Head, said: Said, need: Need) -> tuple[CheckOutcome, str]:
    if head.kind == "dense":
        return "pass", f"the target's head is dense: {head.described}"
    if head.kind == "broken":
        return "fail", f"{head.described}: {head.fault}"
    if head.kind == "unclear":
        return "unknown", head.fault
    if need.verdict == "dense-only":
        found = f"packed {head.dtype} + {'scales' if head.siblings else 'nothing'}"
        return "fail", f"dense head required, found {found} ({head.described}); overlay lacks quantized-head path"
    if need.verdict != "quantized-path":
        return (
            "unknown",
            f"the target's head is packed ({head.described}), and what the tree does with it: {need.evidence}",
        )
    return _judged_packed(subject, head, said, need)


def _judged_packed(subject: Subject, head: Head, said: Said, need: Need) -> tuple[CheckOutcome, str]:
    """A packed head where the selector has a path for it: the quantization method must see the head too."""
    if said.verdict == "excluded":
        return "fail", f"the target's head is packed ({head.described}), and {said.evidence}: it would be read as dense"
    method = method_of(subject.target) if subject.target else None
    handles, why = handles_heads(subject.read, subject.package, method or "")
    if handles is None:
        return "unknown", f"the target's head is packed ({head.described}); {why}"
    if not handles:
        return "fail", f"the target's head is packed ({head.described}); {why}: it is cast and its scale ignored"
    note = "the selector may run outside the draft graph"
    return "pass", f"the target's head is packed ({head.described}), and {need.evidence}; note: {note}"


def _disagreement(subject: Subject, head: Head, said: Said) -> str:
    """Say where the config and the headers differ; the headers win."""
    if head.kind == "dense" and said.verdict == "quantized":
        return f"the config says the head is quantized ({said.evidence}), the headers say it is dense"
    if head.kind == "dense" and said.verdict == "nothing" and subject.target and subject.target.quantization:
        method = method_of(subject.target)
        handles, why = handles_heads(subject.read, subject.package, method or "")
        if handles and method != "compressed-tensors":
            return f"the config does not exclude the head from {method} ({why}), the headers say it is dense"
        return ""
    if head.kind == "packed" and said.verdict == "excluded":
        return f"the config says the head is not quantized ({said.evidence}), the headers say it is"
    return ""
