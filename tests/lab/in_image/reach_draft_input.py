"""Run a DFlash worker's decode step up to the target's verification: no import shows what it reads there.

Runs inside the torch base. What needs a GPU, weights or a scheduler is replaced; the step itself and the draft input
are the image's own. Prints one JSON object: the lengths that the step took from the draft input, for each kind of draft
cache, or the error that it met.
"""

from __future__ import annotations

import importlib.machinery
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

BLOCK = 4
LENGTHS = [11]


def main() -> None:
    """Run the step for a compact and for a shared draft cache."""
    _stub_vllm()
    print(json.dumps({kind: _step(is_compact=kind == "compact") for kind in ("compact", "shared")}))


class _Reached(Exception):
    """The step came to where it hands over to the target."""


def _stub_vllm() -> None:
    for name in ("vllm", "vllm._custom_ops"):
        module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=name == "vllm")
        sys.modules.setdefault(name, module)


def _step(*, is_compact: bool) -> dict[str, Any]:
    import torch
    from sglang.srt.speculative import dflash_worker_v2 as module
    from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2

    seen: dict[str, Any] = {}

    class OnCpu(torch.Tensor):
        def record_stream(self, _stream: object) -> None:
            pass

    class Worker(module.DFlashWorkerV2):
        device = "cpu"
        block_size = BLOCK
        selector = None
        use_compact_draft_cache = is_compact
        target_worker = MagicMock()
        draft_model = MagicMock()
        draft_model_runner = MagicMock()
        model_runner = MagicMock()
        _use_triton_prepare_block = False
        _mask_token_id = 0
        _noise_embed_scale = 1.0
        _block_pos_offsets = torch.arange(BLOCK)
        _draft_block_ids_buf = torch.zeros(1, BLOCK, dtype=torch.int64)
        _draft_block_positions_buf = torch.zeros(1, BLOCK, dtype=torch.int64)
        _draft_block_tokens_buf = torch.zeros(1, BLOCK, dtype=torch.int64)
        _draft_verify_out_cache_loc_buf = torch.zeros(1, BLOCK, dtype=torch.int64)
        _draft_block_end_buf = torch.zeros(1, dtype=torch.int64)
        _draft_seq_lens_cpu_buf = torch.zeros(1, dtype=torch.int32)
        _draft_block_spec_info = None
        _draft_sampler = None
        _need_mamba_verify_commit = False

        def __init__(self) -> None:
            self.target_worker.model_runner.model.lm_head = SimpleNamespace(weight=torch.zeros(2, 2))

        def _validate_phase1_sampling_support(self, _batch: object) -> None:
            pass

        def _ensure_draft_block_buffers(self, _size: int) -> None:
            pass

        def _compute_compact_draft_seq_lens(self, lengths: torch.Tensor) -> torch.Tensor:
            return lengths

        def _fill_compact_seq_lens_cpu_bound(self, *, nxt_kv_lens_cpu: torch.Tensor, **_words: object) -> None:
            seen["bound"] = nxt_kv_lens_cpu.tolist()

        def _rebuild_compact_draft_cache(self, **_words: object) -> None:
            pass

        def _greedy_sample_from_vocab_parallel_head(self, **_words: object) -> torch.Tensor:
            return torch.zeros(BLOCK - 1, dtype=torch.int64)

    class Verify:
        def __init__(self, **_words: object) -> None:
            pass

        def prepare_for_verify(self, batch: Any, _worker: object) -> None:
            seen["verify"] = [batch.seq_lens_cpu.tolist(), batch.seq_lens_sum]
            raise _Reached

    def forward(batch: SimpleNamespace) -> SimpleNamespace:
        seen["draft"] = int(batch.seq_lens_sum)
        hidden = torch.zeros(BLOCK, 2)
        return SimpleNamespace(logits_output=SimpleNamespace(hidden_states=hidden), can_run_graph=False)

    module.assign_extend_cache_locs_func = lambda **_words: torch.zeros(BLOCK, dtype=torch.int64)
    module._resolve_dflash_embedding_module = lambda *_: torch.nn.Embedding(4, 2)
    module.ForwardBatch = SimpleNamespace
    module.DFlashVerifyInput = Verify
    Worker.draft_model_runner.forward = forward
    batch = MagicMock(is_extend_in_batch=False, has_grammar=False, seq_lens_cpu=None, seq_lens_sum=None)
    batch.forward_mode.is_extend.return_value = batch.forward_mode.is_idle.return_value = False
    batch.seq_lens = torch.tensor([7]).as_subclass(OnCpu)
    batch.spec_info = draft = DFlashDraftInputV2.create_idle_input(device="cpu")
    draft.bonus_tokens = torch.tensor([1])
    older = hasattr(draft, "reserved_seq_lens_cpu")
    setattr(draft, "reserved_seq_lens_cpu" if older else "nxt_kv_lens_cpu", torch.tensor(LENGTHS))
    setattr(draft, "reserved_seq_lens_sum" if older else "nxt_kv_lens_sum", sum(LENGTHS))
    try:
        Worker().forward_batch_generation(batch)
    except _Reached:
        return seen
    except Exception as error:
        return {**seen, "error": f"{type(error).__name__}: {error}"}
    return {**seen, "error": "the step ended before it was verified"}


main()
