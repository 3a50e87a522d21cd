"""The check `draft-config`: the fields a DFlash draft depends on are there, and agree with its tensors and its target.

SGLang fills most absent fields with a default and goes on; a draft that was trained otherwise then drafts nonsense,
without a word. So nothing is defaulted here. Field names: `parse_dflash_draft_config` in SGLang's dflash_utils.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from builder.checkpoint import Checkpoint, Shapes, text_config_of
from builder.model import Check
from builder.smoke.subject import NO_DRAFT, Evidence, Subject, listed

_PAIRS: Final = (("conv_kernel_size", "conv_group_size"), ("selector_rank", "selector_top_k"))
_LAYER: Final = re.compile(r"(?:.*\.)?layers\.(\d+)\.")


@dataclass(frozen=True)
class Fields:
    """A draft's config as SGLang reads it: `dflash_config` first, then the config itself."""

    config: Mapping[str, object]

    @property
    def dflash(self) -> Mapping[str, object]:
        """The nested table of DFlash's own fields."""
        found = self.config.get("dflash_config")
        return found if isinstance(found, Mapping) else {}

    def own(self, key: str) -> object:
        """A field that belongs to `dflash_config` and may stand at the top of older checkpoints."""
        return self.dflash.get(key, self.config.get(key))

    def text(self, key: str) -> object:
        """A field of the language model."""
        return text_config_of(self.config).get(key, self.config.get(key))

    def number(self, key: str) -> int | None:
        """A field of the language model if it is a whole number."""
        return _whole(self.text(key))


def check_draft_config(subject: Subject, evidence: Evidence) -> Check:
    """Every field the draft depends on is there and agrees with its tensors, its target and the built class."""
    name = "draft-config"
    draft = subject.draft_data
    if draft is None:
        return Check(name, "not-run", NO_DRAFT)
    fields = Fields(draft.config)
    if not fields.dflash and not any("DFlash" in architecture for architecture in draft.architectures):
        asked = listed(draft.architectures) or "no architecture"
        return Check(name, "not-applicable", f"the draft is no DFlash draft ({asked}); its fields are not known here")
    faults = [
        *_tensor_faults(fields, draft.shapes),
        *_field_faults(fields),
        *_launch_faults(fields, subject.draft_tokens),
        *_target_faults(fields, subject.target),
        *_attention_faults(fields, evidence.built.built),
    ]
    notes = _notes(fields, subject, evidence)
    facts = {"faults": faults, "notes": notes}
    if faults:
        return Check(name, "fail", "; ".join(faults) + subject.draft_label, facts)
    return Check(name, "pass", "; ".join(["every field agrees", *notes]) + subject.draft_label, facts)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _layer_ids(fields: Fields) -> list[int] | None:
    found = fields.own("target_layer_ids")
    if not isinstance(found, list | tuple) or not found:
        return None
    numbers = [number for item in found if (number := _whole(item)) is not None]
    return numbers if len(numbers) == len(found) else None


def _field_faults(fields: Fields) -> Iterator[str]:
    """Fields that are absent or impossible by themselves."""
    for first, second in _PAIRS:
        values = {key: fields.dflash.get(key) for key in (first, second)}
        if bool(values[first]) != bool(values[second]):
            present, absent = (first, second) if values[first] else (second, first)
            yield f"{present} = {values[present]} is set without {absent}: each needs the other"
    layer_ids = _layer_ids(fields)
    if layer_ids is None:
        found = repr(fields.own("target_layer_ids"))
        yield f"target_layer_ids is {found}, not a list of layers: a default would be invented"
    elif len(set(layer_ids)) != len(layer_ids) or min(layer_ids) < 0:
        yield f"target_layer_ids {layer_ids} repeats a layer or names a negative one"
    block_size = _whole(fields.own("block_size"))
    if block_size is None or block_size < 2:
        yield f"block_size is {fields.own('block_size')!r}, not a whole number above 1: a default would be invented"
    yield from _mask_faults(fields)
    yield from _layer_type_faults(fields)
    if fields.own("sample_from_anchor") is False and fields.dflash.get("selector_rank"):
        yield "sample_from_anchor = false: the selector starts from the anchor in slot 0 and does not honour it"


def _mask_faults(fields: Fields) -> Iterator[str]:
    mask, vocabulary = fields.own("mask_token_id"), fields.number("vocab_size")
    number = _whole(mask)
    if mask is None and not fields.own("mask_token"):
        yield "neither mask_token_id nor mask_token is set: a default token would be invented"
    elif mask is not None and number is None:
        yield f"mask_token_id is {mask!r}, not a whole number"
    elif number is not None and vocabulary is not None and not 0 <= number < vocabulary:
        yield f"mask_token_id {number} is outside the vocabulary of {vocabulary}"


def _layer_type_faults(fields: Fields) -> Iterator[str]:
    kinds, layers = fields.text("layer_types"), fields.number("num_hidden_layers")
    if not isinstance(kinds, list | tuple):
        return
    if layers is not None and len(kinds) != layers:
        yield f"layer_types has {len(kinds)} entries, num_hidden_layers is {layers}"
    if "sliding_attention" in kinds and not fields.text("sliding_window"):
        yield "layer_types has sliding_attention, and sliding_window is not set"


def _tensor_faults(fields: Fields, shapes: Shapes) -> Iterator[str]:
    """Fields that the tensors contradict."""
    hidden = fields.number("hidden_size")
    yield from _width_faults(fields, shapes)
    layers = {int(match[1]) for name in shapes if (match := _LAYER.match(name))}
    if fields.number("num_hidden_layers") != len(layers) or layers != set(range(len(layers))):
        yield f"num_hidden_layers is {fields.number('num_hidden_layers')}, the tensors have layers {sorted(layers)}"
    layer_ids, fc = _layer_ids(fields), _shape(shapes, "fc.weight")
    if layer_ids is not None and hidden and fc and fc[-1] != len(layer_ids) * hidden:
        expected = f"{len(layer_ids)} target_layer_ids x hidden_size {hidden} = {len(layer_ids) * hidden}"
        yield f"fc.weight takes {fc[-1]} inputs, {expected}"
    yield from _part_faults(fields, shapes, "conv_kernel_size", "_conv.")
    yield from _part_faults(fields, shapes, "selector_rank", "candidate_selector.")
    yield from _conv_faults(fields, shapes)
    yield from _selector_faults(fields, shapes)


def _shape(shapes: Shapes, ending: str) -> tuple[int, ...] | None:
    return next((shape for name, (_, shape) in shapes.items() if name == ending or name.endswith("." + ending)), None)


def _width_faults(fields: Fields, shapes: Shapes) -> Iterator[str]:
    hidden, heads, width = (fields.number(key) for key in ("hidden_size", "num_attention_heads", "head_dim"))
    key_heads, inner = fields.number("num_key_value_heads"), fields.number("intermediate_size")
    if heads and width is None and hidden:
        width = hidden // heads
    expected = {
        "hidden_norm.weight": (hidden,),
        "self_attn.q_proj.weight": (heads and width and heads * width, hidden),
        "self_attn.k_proj.weight": (key_heads and width and key_heads * width, hidden),
        "mlp.gate_proj.weight": (inner, hidden),
    }
    for ending, shape in expected.items():
        found = _shape(shapes, ending)
        if found and all(shape) and found != shape:
            yield f"{ending} is {_x(found)}, by the config it is {_x(shape)}"


def _x(shape: tuple[Any, ...]) -> str:
    return " x ".join(map(str, shape))


def _part_faults(fields: Fields, shapes: Shapes, key: str, part: str) -> Iterator[str]:
    """A part that only the config or only the tensors have."""
    tensors = sum(part in name for name in shapes)
    if tensors and not fields.dflash.get(key):
        yield f"the checkpoint has {tensors} tensors of *{part}*, and dflash_config.{key} is not set: they go unused"
    if fields.dflash.get(key) and not tensors:
        yield f"dflash_config.{key} = {fields.dflash[key]}, and the checkpoint has no tensor of *{part}*"


def _conv_faults(fields: Fields, shapes: Shapes) -> Iterator[str]:
    kernel, rows = _shape_of_part(shapes, "base_kernel"), _shape_of_part(shapes, "kernel_projection.weight")
    taps, group, hidden = (
        _whole(fields.dflash.get("conv_kernel_size")),
        _whole(fields.dflash.get("conv_group_size")),
        fields.number("hidden_size"),
    )
    if kernel and taps and hidden and kernel != (2, taps, hidden):
        yield f"base_kernel is {_x(kernel)}, by conv_kernel_size it is 2 x {taps} x {hidden}"
    if rows and taps and group and hidden and rows[0] * group != 2 * taps * hidden:
        yield f"kernel_projection.weight has {rows[0]} rows, by conv_group_size it has {2 * taps * hidden / group:g}"


def _selector_faults(fields: Fields, shapes: Shapes) -> Iterator[str]:
    rank, vocabulary = _whole(fields.dflash.get("selector_rank")), fields.number("vocab_size")
    for book in ("predecessor_codebook", "successor_codebook"):
        found = _shape_of_part(shapes, book)
        if found and rank and vocabulary and found != (vocabulary, rank):
            yield f"{book} is {_x(found)}, by vocab_size and selector_rank it is {vocabulary} x {rank}"


def _shape_of_part(shapes: Shapes, ending: str) -> tuple[int, ...] | None:
    return next((shape for name, (_, shape) in shapes.items() if name.endswith(ending)), None)


def _launch_faults(fields: Fields, draft_tokens: int | None) -> Iterator[str]:
    block_size = _whole(fields.own("block_size"))
    if draft_tokens and block_size and draft_tokens > block_size:
        yield f"{draft_tokens} draft tokens are asked for, the draft was trained on blocks of {block_size}"


def _target_faults(fields: Fields, target: Checkpoint | None) -> Iterator[str]:
    if target is None:
        layers = _whole(fields.own("num_target_layers"))
        owner = "num_target_layers is"
    else:
        theirs = Fields(target.config)
        for key in ("hidden_size", "vocab_size"):
            if fields.number(key) != theirs.number(key):
                yield f"{key} is {fields.number(key)}, the target's is {theirs.number(key)}"
        layers, owner = theirs.number("num_hidden_layers"), "the target's num_hidden_layers is"
    outside = [number for number in _layer_ids(fields) or () if layers is not None and number >= layers]
    if outside:
        yield f"target_layer_ids {outside} do not exist: {owner} {layers}"


def _attention_faults(fields: Fields, built: Mapping[str, Any] | None) -> Iterator[str]:
    """What the config says of causality against what the class was really built with."""
    is_causal = fields.text("is_causal")
    if not isinstance(is_causal, bool):
        return
    wrong = [
        layer["name"]
        for layer in (built or {}).get("attention", ())
        if str(layer["type"]).lower().startswith("decoder") != is_causal
    ]
    if wrong:
        found = "bidirectional" if is_causal else "causal"
        said = str(is_causal).lower()
        yield f"is_causal = {said}, and {(built or {})['cls']} builds {len(wrong)} layers {found}: {listed(wrong, 2)}"


def _notes(fields: Fields, subject: Subject, evidence: Evidence) -> list[str]:
    notes = []
    if isinstance(fields.text("is_causal"), bool) and not (evidence.built.built or {}).get("attention"):
        notes.append("whether the class honours is_causal was not seen")
    block_size = _whole(fields.own("block_size"))
    if subject.draft_tokens and block_size and subject.draft_tokens < block_size:
        notes.append(f"{subject.draft_tokens} draft tokens use only part of the block of {block_size}")
    if subject.draft and subject.published:
        differ = sorted(
            name
            for name in subject.draft.shapes.keys() | subject.published.shapes.keys()
            if subject.draft.shapes.get(name) != subject.published.shapes.get(name)
        )
        if differ:
            notes.append(f"{len(differ)} tensors differ from the published {subject.published.name}: {listed(differ)}")
    return notes
