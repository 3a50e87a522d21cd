"""What the stand-in's five files need of real releases and do not find there, derived by `overlay plan`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from builder import compat
from builder.compat import Comparison, Result
from builder.findings import NOT_CHECKED
from builder.model import Oid, Tree
from builder.type_checker import Pyrefly
from tests.support.scene import write_catalogue

KERNELS = "sglang/kernels/ops/speculative/dflash.py"
AUX = "sglang/srt/model_executor/model_runner_components/spec_aux_hidden_state.py"
MODELS = "sglang/srt/models/dflash.py"
UTILS = "sglang/srt/speculative/dflash_utils.py"
WORKER = "sglang/srt/speculative/dflash_worker_v2.py"
FIVE = (KERNELS, AUX, MODELS, UTILS, WORKER)

INPUT = "sglang.srt.speculative.dflash_info_v2.DFlashDraftInputV2"
DTYPE = "sglang.srt.mem_cache.kv_cache_dtype.configure_kv_cache_dtype"

ATTRIBUTES = {
    ("attribute-missing", WORKER, 1958, f"{INPUT}.nxt_kv_lens_cpu"),
    ("attribute-missing", WORKER, 1982, f"{INPUT}.nxt_kv_lens_cpu"),
    ("attribute-missing", WORKER, 1985, f"{INPUT}.nxt_kv_lens_sum"),
    ("attribute-missing", WORKER, 2083, f"{INPUT}.nxt_kv_lens_cpu"),
    ("attribute-missing", WORKER, 2085, f"{INPUT}.nxt_kv_lens_sum"),
}
ON_0_5_18 = ATTRIBUTES | {
    ("name-missing", WORKER, 25, "sglang.srt.lora.layers.unwrap_lora_layer"),
    ("name-missing", WORKER, 40, "sglang.srt.runtime_context.mamba_track_grid"),
    ("module-missing", WORKER, 65, "sglang.srt.speculative.spec_tp_sync"),
}
ON_0_5_17 = ON_0_5_18 | {
    ("name-missing", UTILS, 21, "sglang.srt.speculative.spec_utils.sample_simulated_acc_len"),
    ("name-missing", WORKER, 24, "sglang.srt.layers.logprob_processor.compute_spec_logprobs"),
    ("signature", AUX, 228, DTYPE),
    ("config-leaf-missing", AUX, 229, "get_spec().speculative_draft_kv_cache_dtype"),
}
ON_0_5_16 = (ON_0_5_17 - {("config-leaf-missing", AUX, 229, "get_spec().speculative_draft_kv_cache_dtype")}) | {
    ("name-missing", AUX, 10, "sglang.srt.runtime_context.get_model"),
    ("name-missing", AUX, 12, "sglang.srt.runtime_context.get_spec"),
    ("name-missing", MODELS, 39, "sglang.srt.runtime_context.get_spec"),
    ("name-missing", UTILS, 20, "sglang.srt.runtime_context.get_spec"),
    ("module-missing", UTILS, 56, "sglang.kernels.ops.sampling.renorm_triton"),
    ("module-missing", UTILS, 59, "sglang.kernels.ops.sampling.renorm_triton"),
    ("module-missing", WORKER, 16, "sglang.kernels.ops.speculative.dspark.dspark_accept"),
    ("name-missing", WORKER, 37, "sglang.srt.runtime_context.get_exec"),
    ("name-missing", WORKER, 38, "sglang.srt.runtime_context.get_schedule"),
    ("name-missing", WORKER, 39, "sglang.srt.runtime_context.get_spec"),
    ("name-missing", WORKER, 70, "sglang.srt.speculative.spec_utils.GrammarTree"),
    ("name-missing", WORKER, 72, "sglang.srt.speculative.spec_utils.build_grammar_vocab_mask"),
}
"""The config leaf goes unsaid on 0.5.16: its accessor is missing there, and that is said."""


@pytest.fixture
def copied(overlay, upstream_repository, trees, tmp_path) -> Callable[[str], dict[str, Any]]:
    """`copied("0.5.17")` plans whole copies of the five files on a release, as hand-made overlays put them on."""

    def run(version: str) -> dict[str, Any]:
        root = trees(version)
        catalogue = write_catalogue(tmp_path / "catalogue")
        rules = "".join(_rule(path, Oid.of_blob((root / path).read_bytes())) for path in FIVE)
        (catalogue / "overlays/copies.toml").write_text(f'title = "Whole copies"\npull-requests = [35371]\n{rules}')
        settings = ("--catalogue", catalogue, "--upstream", upstream_repository.path, "--json")
        done = overlay("plan", *settings, "--base", f"dir:{root}", "--pr", "35371")
        document: dict[str, Any] = json.loads(done.stdout)
        assert (done.returncode, document["verdict"]) == (1, "refused")
        return document

    return run


def _rule(path: str, blob: Oid) -> str:
    accept = f'[{{ base-blob = "{blob}", reason = "a test" }}]'
    return f'[[file]]\npath = "{path}"\nstrategy = "copy"\nreason = "a test"\naccept = {accept}\n'


def forward(document: dict[str, Any]) -> set[tuple[str, str, int, str]]:
    return {(f["kind"], f["path"], f["line"], f["symbol"]) for f in document["findings"] if f["kind"] != "reverse"}


@pytest.mark.parametrize(
    ("version", "expected", "names"), [("0.5.16", ON_0_5_16, 18), ("0.5.17", ON_0_5_17, 6), ("0.5.18", ON_0_5_18, 4)]
)
def test_whole_copies_lack_on_an_older_release_what_the_lab_says(copied, version, expected, names) -> None:
    document = copied(version)
    assert forward(document) == expected
    missing = [f for f in document["findings"] if f["kind"] in ("module-missing", "name-missing")]
    # A missing module counts once for each name taken out of it: SpecTpSync and SpecTpSyncSite, in one import.
    modules = {f["symbol"] for f in missing if f["symbol"].endswith("spec_tp_sync")}
    assert len(missing) + len(modules) == names
    assert document["not_checked"] == list(NOT_CHECKED)
    # History is searched for a bounded time, so that not every answer has to be there.
    assert any("Later work" in (finding["introduced_by"] or "") for finding in document["findings"])


def test_all_nine_breaks_on_the_release_of_the_image(copied) -> None:
    found = copied("0.5.17")["findings"]
    by_symbol = {finding["symbol"]: finding for finding in found}
    # 1 to 5: an import shows the first of these alone.
    alias = by_symbol["sglang.srt.speculative.spec_utils.sample_simulated_acc_len"]
    assert alias["base_has"].startswith("_sample_simulated_acc_len (sglang/srt/speculative/spec_utils.py:")
    logprobs = by_symbol["sglang.srt.layers.logprob_processor.compute_spec_logprobs"]
    assert logprobs["base_has"].startswith("compute_spec_v2_logprobs (sglang/srt/layers/logprob_processor.py:")
    # 6: swallowed by a broad except.
    keyword = by_symbol[DTYPE]
    assert keyword["guard"] == "in def _resolve_dflash_draft_cell_size, try/except Exception"
    assert keyword["message"] == f"calls {DTYPE} with the unknown keyword speculative_draft_kv_cache_dtype"
    assert "speculative_draft_kv_cache_dtype" not in keyword["base_has"]
    assert "speculative_draft_kv_cache_dtype" in keyword["donor_has"]
    # 7: on an object from a file that nobody replaces.
    renamed = by_symbol[f"{INPUT}.nxt_kv_lens_cpu"]
    assert renamed["base_has"].startswith("reserved_seq_lens_cpu (sglang/srt/speculative/dflash_info_v2.py:")
    assert renamed["donor_has"].startswith("DFlashDraftInputV2.nxt_kv_lens_cpu (sglang/srt/speculative/dflash_info_v2")
    # 8: no static tool sees it.
    leaf = by_symbol["get_spec().speculative_draft_kv_cache_dtype"]
    assert leaf["donor_has"].startswith("spec.speculative_draft_kv_cache_dtype (sglang/srt/server_args.py:")
    # 9: the base's own modules that go down with them, DSpark and the scheduler.
    fallen = {finding["path"]: finding for finding in found if finding["kind"] == "reverse"}
    for path in ("models/dspark.py", "managers/scheduler.py", "speculative/dspark_components/dspark_verify.py"):
        assert fallen[f"sglang/srt/{path}"]["message"].startswith(
            f"goes down with {'sglang.srt.speculative.dflash_utils'}"
        )
    assert not fallen.keys() & set(FIVE)


WITHOUT_CHECKER = """\
import sysconfig
real = sysconfig.get_path
sysconfig.get_path = lambda name, *words, **more: "/nowhere" if name == "scripts" else real(name, *words, **more)
from builder.cli import main
main()
"""


def test_a_plan_without_a_type_checker_is_unknown_and_never_a_pass(history, tmp_path) -> None:
    upstream = {"python/sglang/a.py": "x = 1\n"}
    history.commit(upstream, "start")
    history.squash(1, "Add a name", [{"python/sglang/a.py": "x = 1\ny = 2\n"}])
    repository = history.write(tmp_path / "upstream.git")
    for name, text in {"__init__.py": "", "a.py": "x = 1\n"}.items():
        (tmp_path / "site/sglang").mkdir(parents=True, exist_ok=True)
        (tmp_path / "site/sglang" / name).write_text(text)
    words = ("plan", "--json", "--upstream", repository.path, "--base", f"dir:{tmp_path / 'site'}", "--pr", "1")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "PATH": "/usr/bin:/bin"}
    argv = [sys.executable, "-c", WITHOUT_CHECKER, *map(str, words)]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    document = json.loads(done.stdout)
    assert (done.returncode, document["verdict"]) == (1, "unknown"), done
    said = "attribute-missing, signature: type checker: pyrefly is not installed"
    assert document["not_checked"] == [*NOT_CHECKED, said]


def test_of_several_definitions_the_one_that_admits_the_folder_is_used(overlay, history, tmp_path) -> None:
    upstream = {"python/sglang/a.py": "x = 1\n"}
    history.commit(upstream, "start")
    history.squash(1, "Add a name", [{"python/sglang/a.py": "x = 1\ny = 2\n"}])
    repository = history.write(tmp_path / "upstream.git")
    (tmp_path / "site/sglang").mkdir(parents=True)
    for name, text in {"__init__.py": "", "a.py": "x = 1\n"}.items():
        (tmp_path / "site/sglang" / name).write_text(text)
    shelf = write_catalogue(tmp_path / "shelf")
    for name, condition in {"older": "exists sglang/a.py", "newer": "exists sglang/b.py", "others": "nowhere"}.items():
        bases = f'bases = ["{condition}"]' if " " in condition else ""
        text = f'title = "{name}"\npull-requests = [{1 if bases else 2}]\n{bases}\n'
        (shelf / f"overlays/{name}.toml").write_text(text)
    words = ("--catalogue", shelf, "--upstream", repository.path, "--json", "--pr", "1")
    done = overlay("plan", "--base", f"dir:{tmp_path / 'site'}", *words)
    assert json.loads(done.stdout)["overlay"]["name"] == "older", done


@pytest.fixture(scope="module")
def real(trees: Callable[[str], Path]) -> Callable[[str], Tree]:
    @cache
    def load(version: str) -> Tree:
        root = trees(version)
        paths = frozenset(str(path.relative_to(root)) for path in (root / "sglang").rglob("*") if path.is_file())
        read = cache(lambda path: (root / path).read_bytes() if path in paths else None)
        return Tree(paths, read)

    return load


@pytest.mark.parametrize("version", ["0.5.17", "0.5.18", "0.5.19"])
def test_a_release_untouched_yields_nothing(real, type_checker_cache: Path, version: str) -> None:
    tree = real(version)
    comparison = Comparison(tree, tree, frozenset(FIVE), dict.fromkeys(FIVE, tree))
    assert compat.check(comparison, Pyrefly(type_checker_cache)) == Result((), ())


def test_a_release_that_takes_names_away_breaks_its_own_callers(real, type_checker_cache: Path) -> None:
    """An older file on a newer tree: whatever finds nothing forward must still look back."""
    base, older = real("0.5.19"), real("0.5.17")
    path = "sglang/srt/mem_cache/kv_cache_dtype.py"
    after = base.overlaid({path: older.read(path) or b""})
    result = compat.check(Comparison(base, after, frozenset({path}), {path: older}), Pyrefly(type_checker_cache))
    found = {(f.kind, f.path, f.symbol) for f in result.findings}
    assert ("reverse", AUX, DTYPE) in found
    assert ("reverse", "sglang/srt/model_executor/model_runner.py", DTYPE) in found
    assert {kind for kind, _, _ in found} == {"reverse"}
