"""Plans on real SGLang releases, without Docker: the stand-in of #35371 on each of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from builder.findings import NOT_CHECKED

LAB_CATALOGUE = Path(__file__).parent / "lab" / "catalogue"
RUNTIME = (
    "sglang/kernels/ops/speculative/dflash.py",
    "sglang/srt/model_executor/model_runner_components/spec_aux_hidden_state.py",
    "sglang/srt/models/dflash.py",
    "sglang/srt/speculative/dflash_utils.py",
    "sglang/srt/speculative/dflash_worker_v2.py",
)
WORKER = RUNTIME[-1]


@pytest.fixture
def plan(overlay, upstream_repository):
    """`plan(folder)` plans the stand-in on a folder and returns (exit code, document)."""

    def run(folder: Path, *more: str):
        settings = ("--catalogue", LAB_CATALOGUE, "--upstream", upstream_repository.path, "--json")
        done = overlay("plan", *settings, "--base", f"dir:{folder}", "--pr", "35371", *more)
        return done.returncode, json.loads(done.stdout)

    return run


@pytest.mark.parametrize(
    ("version", "presence", "changed"),
    [
        ("0.5.19", "exact", ()),
        ("0.5.20", "changed", RUNTIME[1:]),
        ("0.5.21", "changed", RUNTIME[1:]),
        ("0.5.22", "changed", RUNTIME),
        ("0.5.23", "changed", RUNTIME),
    ],
)
def test_releases_that_have_the_pull_request_need_nothing(plan, trees, version, presence, changed):
    exit_code, document = plan(trees(version))
    assert (exit_code, document["verdict"]) == (0, "already-present")
    assert [pull["presence"] for pull in document["pull_requests"]] == [presence]
    assert tuple(f["path"] for f in document["files"] if f["presence"] == "changed") == changed
    assert {f["state"] for f in document["files"]} == {"already-present"}


@pytest.mark.parametrize("version", ["0.5.16", "0.5.17", "0.5.18"])
def test_releases_before_it_do_not_have_it(plan, trees, version):
    _, document = plan(trees(version))
    assert [pull["presence"] for pull in document["pull_requests"]] == ["absent"]


@pytest.fixture
def without_a_method(trees, tmp_path):
    """0.5.21 with one of the pull request's methods removed."""
    site = tmp_path / "site"
    shutil.copytree(trees("0.5.21") / "sglang", site / "sglang", copy_function=shutil.copyfile)
    path = site / WORKER
    text = path.read_text()
    start = text.index("    def _propose_selector_block(")
    end = text.index("    def _selector_sampling_accept(")
    path.write_text(text[:start] + text[end:])
    return site


def test_one_method_removed_is_not_present(plan, without_a_method):
    exit_code, document = plan(without_a_method)
    assert exit_code == 1
    assert document["pull_requests"][0]["presence"] == "absent"
    (worker,) = [f for f in document["files"] if f["path"] == WORKER]
    assert worker["presence"] == "absent"
    assert "_propose_selector_block" in worker["presence_fact"]


def test_the_recipe_fits_the_release_it_was_made_for(plan, trees):
    exit_code, document = plan(trees("0.5.17"))
    assert (exit_code, document["verdict"], document["findings"]) == (0, "ok", [])
    states = {f["path"]: f["state"] for f in document["files"]}
    assert states == {RUNTIME[0]: "copied", RUNTIME[2]: "copied", RUNTIME[3]: "copied", WORKER: "taken"}
    (worker,) = [f for f in document["files"] if f["path"] == WORKER]
    assert len(worker["taken"]) in (6, 7)
    outcomes = {patch["id"]: (patch["outcome"], patch["kept"]) for patch in document["patches"]}
    assert outcomes == {
        "dflash2/0001-simulated-acc-len-alias": ("applied", True),
        "dflash2/0002-page-size-from-server-args": ("not needed", False),
        "dflash2/0003-spec-v2-logprobs-import": ("applied", True),
        "dflash2/0004-spec-v2-logprobs-call": ("not needed", False),
        "dflash2/0005-reserved-seq-lens": ("applied", True),
        "lab/0001-mamba-track-interval": ("applied", True),
        "lab/0002-spec-tp-sync-env": ("applied", True),
    }
    assert [(c["path"], c["symbols"], c["outcome"]) for c in document["carried"]] == [
        ("sglang/srt/speculative/spec_tp_sync.py", [], "carried"),
        ("sglang/srt/lora/layers.py", ["unwrap_lora_layer"], "carried"),
    ]
    aux = f"python/{RUNTIME[1]}"
    assert any(entry["path"] == aux and "muse_glimmer" in entry["reason"] for entry in document["skipped"])
    assert document["not_checked"] == list(NOT_CHECKED)


def test_on_the_release_just_before_it_a_plain_merge_is_clean(plan, trees):
    _, document = plan(trees("0.5.18"), "--no-definition")
    assert {f["state"] for f in document["files"]} == {"clean"}
    assert document["conflicts"] == []
    # What the stand-in drags along from its whole release, and a base of 0.5.18 lacks.
    info = "sglang.srt.speculative.dflash_info_v2.DFlashDraftInputV2"
    forward = [f for f in document["findings"] if f["kind"] != "reverse"]
    assert {f["symbol"] for f in forward} == {
        "sglang.srt.lora.layers.unwrap_lora_layer",
        "sglang.srt.runtime_context.mamba_track_grid",
        "sglang.srt.speculative.spec_tp_sync",
        f"{info}.nxt_kv_lens_cpu",
        f"{info}.nxt_kv_lens_sum",
    }
    assert document["verdict"] == "refused"
    assert all("Later work" in (f["introduced_by"] or "") for f in forward)


def test_a_bare_overlay_refuses_each_conflict_with_both_sides(plan, trees):
    exit_code, document = plan(trees("0.5.17"), "--no-definition")
    assert (exit_code, document["verdict"]) == (1, "refused")
    assert WORKER in {conflict["path"] for conflict in document["conflicts"]}
    assert all(conflict["base_text"] or conflict["pr_text"] for conflict in document["conflicts"])
    assert document["plan_digest"] is None


def test_a_base_the_copies_were_not_reviewed_for_is_refused_with_the_lines(plan, trees):
    exit_code, document = plan(trees("0.5.16"))
    assert (exit_code, document["verdict"]) == (1, "refused")
    states = {f["path"]: f["state"] for f in document["files"]}
    assert states[RUNTIME[2]] == states[RUNTIME[3]] == "conflict"
    (models,) = [f for f in document["files"] if f["path"] == RUNTIME[2]]
    assert "neither the pull request's parent nor accepted" in models["reason"]
    assert len(models["lost"]) == 8


def test_the_users_folder_is_not_touched(plan, trees):
    def listing(folder: Path) -> list[tuple[str, int, int]]:
        return sorted((str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in folder.rglob("*"))

    folder = trees("0.5.17")
    before = listing(folder)
    plan(folder)
    assert listing(folder) == before
