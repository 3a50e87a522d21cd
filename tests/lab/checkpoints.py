"""Checkpoints for the draft and the target, written by hand: no torch, no download.

Headers, names, shapes and config fields are those of real checkpoints; the values are not.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

DTYPE_BYTES: Final = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I32": 4}

Config = dict[str, Any]
Head = Literal["bf16", "fp8", "packed", "tied", "absent"]


class Tensor(NamedTuple):
    """One entry of a safetensors header."""

    shape: tuple[int, ...]
    dtype: str = "BF16"

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


Tensors = Mapping[str, Tensor]


# -- safetensors ---------------------------------------------------------------------------


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """Write a file whose values depend on the tensors' names alone."""
    with path.open("wb") as file:
        file.write(_header(tensors, {"__metadata__": {"format": "pt"}}))
        for name, tensor in tensors.items():
            file.write(_values(name, tensor.nbytes))


def write_sparse_safetensors(path: Path, tensors: Tensors) -> None:
    """Write the header over a hole: a file of the right size that takes no space."""
    header = _header(tensors)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + sum(tensor.nbytes for tensor in tensors.values()))


def _header(tensors: Tensors, metadata: Mapping[str, Any] | None = None) -> bytes:
    entries: dict[str, Any] = dict(metadata or {})
    offset = 0
    for name, tensor in tensors.items():
        span = [offset, offset + tensor.nbytes]
        entries[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": span}
        offset = span[1]
    text = json.dumps(entries, separators=(",", ":")).encode()
    # The format pads with spaces so that the data starts aligned.
    text = text.ljust(-(-len(text) // 8) * 8)
    return len(text).to_bytes(8, "little") + text


def _values(name: str, size: int) -> bytes:
    # A fixed high byte keeps BF16 values small and finite.
    data = bytearray(hashlib.shake_128(name.encode()).digest(size))
    data[1::2] = b"\x3c" * len(data[1::2])
    return bytes(data)


# -- draft ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class DraftSizes:
    """What decides the shapes of a DFlash2 draft."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    selector_rank: int
    selector_top_k: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    block_size: int = 8
    conv_kernel_size: int = 2
    conv_group_size: int = 16


SMALL_DRAFT: Final = DraftSizes(
    layers=2,
    hidden=64,
    intermediate=128,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=384,
    selector_rank=16,
    selector_top_k=4,
    target_layer_ids=(1, 3, 5),
    mask_token_id=380,
)

#: z-lab/Qwen3.8-27B-DFlash2.
PUBLISHED_DRAFT: Final = DraftSizes(
    layers=5,
    hidden=5120,
    intermediate=17408,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocab=248320,
    selector_rank=256,
    selector_top_k=16,
    target_layer_ids=(5, 19, 33, 47, 61),
    mask_token_id=248070,
)


def draft_tensors(sizes: DraftSizes = SMALL_DRAFT) -> dict[str, Tensor]:
    """Return a draft's tensors: 36 of the small one, 81 of the published one."""
    hidden, rank = sizes.hidden, sizes.selector_rank
    codebook = Tensor((sizes.vocab, rank))
    tensors = {
        "candidate_selector.hidden_projection.weight": Tensor((rank, hidden)),
        "candidate_selector.predecessor_codebook": codebook,
        "candidate_selector.successor_codebook": codebook,
        "fc.weight": Tensor((hidden, hidden * len(sizes.target_layer_ids))),
        "hidden_norm.weight": Tensor((hidden,)),
    }
    for layer in range(sizes.layers):
        for name, tensor in _layer_tensors(sizes).items():
            tensors[f"layers.{layer}.{name}"] = tensor
    return {**tensors, "norm.weight": Tensor((hidden,))}


def _layer_tensors(sizes: DraftSizes) -> dict[str, Tensor]:
    hidden, inner = sizes.hidden, sizes.intermediate
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    kernels = 2 * sizes.conv_kernel_size * hidden // sizes.conv_group_size
    base_kernel = Tensor((2, sizes.conv_kernel_size, hidden))
    return {
        "attention_conv.base_kernel": base_kernel,
        "attention_conv.kernel_projection.weight": Tensor((kernels, hidden)),
        "input_layernorm.weight": Tensor((hidden,)),
        "mlp.down_proj.weight": Tensor((hidden, inner)),
        "mlp.gate_proj.weight": Tensor((inner, hidden)),
        "mlp.up_proj.weight": Tensor((inner, hidden)),
        "mlp_conv.base_kernel": base_kernel,
        "mlp_conv.kernel_projection.weight": Tensor((kernels, hidden)),
        "post_attention_layernorm.weight": Tensor((hidden,)),
        "self_attn.k_norm.weight": Tensor((sizes.head_dim,)),
        "self_attn.k_proj.weight": Tensor((keys, hidden)),
        "self_attn.o_proj.weight": Tensor((hidden, queries)),
        "self_attn.q_norm.weight": Tensor((sizes.head_dim,)),
        "self_attn.q_proj.weight": Tensor((queries, hidden)),
        "self_attn.v_proj.weight": Tensor((keys, hidden)),
    }


def draft_config(sizes: DraftSizes = SMALL_DRAFT) -> Config:
    """Return a DFlash2 draft's config.json."""
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "attention_bias": False,
        "dflash_config": {
            "block_size": sizes.block_size,
            "conv_group_size": sizes.conv_group_size,
            "conv_kernel_size": sizes.conv_kernel_size,
            "mask_token_id": sizes.mask_token_id,
            "selector_rank": sizes.selector_rank,
            "selector_top_k": sizes.selector_top_k,
            "target_layer_ids": list(sizes.target_layer_ids),
        },
        "block_size": sizes.block_size,
        "head_dim": sizes.head_dim,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "is_causal": False,
        "layer_types": ["sliding_attention"] * sizes.layers,
        "max_position_embeddings": 32768,
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.kv_heads,
        "num_target_layers": max(sizes.target_layer_ids) + 3,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000000,
        "sliding_window": 2048,
        "tie_word_embeddings": False,
        "use_sliding_window": True,
        "vocab_size": sizes.vocab,
    }


def write_draft(folder: Path, *, config: Mapping[str, Any] | None = None, tensors: Tensors | None = None) -> Path:
    """Write the small draft (36 tensors, about 213 kB)."""
    write_safetensors(_prepared(folder) / "model.safetensors", tensors or draft_tensors())
    write_config(folder, config or draft_config())
    return folder


def write_draft_rewritten_to_v1(folder: Path) -> Path:
    """Write the draft as people edit it for old bases: the v1 class's name, v2's tensors."""
    return write_draft(folder, config={**draft_config(), "architectures": ["DFlashDraftModel"]})


def write_published_draft(folder: Path) -> Path:
    """Write the published draft's 81 tensors as a header over a sparse file of its full size.

    The size comes out right to the byte (3,848,817,896), which says that the names are too.
    """
    path = _prepared(folder) / "model.safetensors"
    write_sparse_safetensors(path, draft_tensors(PUBLISHED_DRAFT))
    write_config(folder, draft_config(PUBLISHED_DRAFT))
    return folder


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write config.json alone, to bend one field of a checkpoint."""
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _prepared(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# -- target --------------------------------------------------------------------------------

TARGET_VOCAB: Final = 384
TARGET_HIDDEN: Final = 64

_EMBEDDING: Final = "model.language_model.embed_tokens.weight"
_HEAD: Final = Tensor((TARGET_VOCAB, TARGET_HIDDEN))


def target_head(head: Head) -> dict[str, Tensor]:
    """Return the tensors that a target checkpoint of a kind stores for its head."""
    rows, columns = _HEAD.shape
    if head == "bf16":
        return {"lm_head.weight": _HEAD}
    if head == "fp8":
        scale = Tensor((-(-rows // 128), -(-columns // 128)))
        return {
            "lm_head.weight": Tensor(_HEAD.shape, "F8_E4M3"),
            "lm_head.weight_scale_inv": scale,
        }
    if head == "packed":
        return {
            "lm_head.weight": Tensor((rows, columns // 2), "U8"),
            "lm_head.weight_scale": Tensor((rows, columns // 16), "F8_E4M3"),
            "lm_head.weight_scale_2": Tensor((), "F32"),
        }
    return {}


def target_config(head: Head) -> Config:
    """Return a target's config.json: a nested text config, quantized as the kind says."""
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": head == "tied",
        "text_config": {
            "model_type": "qwen3_5_text",
            "dtype": "bfloat16",
            "hidden_size": TARGET_HIDDEN,
            "intermediate_size": 2 * TARGET_HIDDEN,
            "num_attention_heads": 4,
            "num_hidden_layers": 8,
            "num_key_value_heads": 2,
            "tie_word_embeddings": head == "tied",
            "vocab_size": TARGET_VOCAB,
        },
        "quantization_config": _quantization(head),
    }


def _quantization(head: Head) -> Config:
    if head == "packed":
        return {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": []}
    excluded = [] if head == "fp8" else ["lm_head"]
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": excluded,
    }


def write_target(
    folder: Path,
    head: Head = "bf16",
    *,
    config: Mapping[str, Any] | None = None,
    extra: Tensors | None = None,
) -> Path:
    """Write a target checkpoint of two shards; the head and `extra` lie in the second."""
    first = {_EMBEDDING: _HEAD, **_target_layer(0)}
    second = {**_target_layer(1), **target_head(head), **(extra or {})}
    shards = {
        "model-00001-of-00002.safetensors": first,
        "model-00002-of-00002.safetensors": second,
    }
    for name, tensors in shards.items():
        write_safetensors(_prepared(folder) / name, tensors)
    _write_index(folder, shards)
    write_config(folder, config or target_config(head))
    return folder


def _target_layer(layer: int) -> dict[str, Tensor]:
    prefix = f"model.language_model.layers.{layer}"
    return {
        f"{prefix}.input_layernorm.weight": Tensor((TARGET_HIDDEN,)),
        f"{prefix}.mlp.gate_proj.weight": Tensor((2 * TARGET_HIDDEN, TARGET_HIDDEN), "F8_E4M3"),
        f"{prefix}.mlp.gate_proj.weight_scale_inv": Tensor((1, 1)),
    }


def _write_index(folder: Path, shards: Mapping[str, Tensors]) -> None:
    weight_map = {name: shard for shard, tensors in shards.items() for name in tensors}
    size = sum(tensor.nbytes for tensors in shards.values() for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
