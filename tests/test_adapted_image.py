"""What `overlay adapt` proposed, on the torch base: it imports, loads the draft, and runs where no import looks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.model import Oid
from tests.support.scene import Scene, write_catalogue
from tests.test_derived_breaks import FIVE, WORKER, _rule

REACH = Path(__file__).parent / "lab/in_image/reach_draft_input.py"
ACCEPTED = ("compute_spec_logprobs/port", "spec_aux_hidden_state/leave-out", "model_override_base/carry")


@pytest.fixture(scope="module")
def program() -> str:
    return REACH.read_text(encoding="utf-8")


@pytest.fixture
def scene(overlay, upstream_repository, trees, docker_daemon, run_label, tmp_path) -> Iterator[Scene]:
    """A catalogue whose only definition copies the five files whole onto 0.5.17."""
    shelf = write_catalogue(tmp_path / "shelf")
    root = trees("0.5.17")
    rules = "".join(_rule(path, Oid.of_blob((root / path).read_bytes())) for path in FIVE)
    (shelf / "overlays/copies.toml").write_text(f'title = "Whole copies"\npull-requests = [35371]\n{rules}')
    made = Scene(overlay, shelf, upstream_repository.path, docker_daemon, run_label)
    yield made
    if made.image_id(made.tag):
        docker_daemon.images.remove(made.tag, force=True)


def run(image: str, program: str, *mounts: str) -> dict[str, Any]:
    """Run a program with the image's own interpreter; nothing of it stays."""
    words = [word for mount in mounts for word in ("--volume", mount)]
    argv = [
        "docker",
        "run",
        "--rm",
        "--interactive",
        "--network=none",
        *words,
        "--entrypoint",
        "python3",
        image,
        "-B",
        "-",
    ]
    done = subprocess.run(argv, input=program, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_the_proposals_accepted_pass_smoke_and_reach_what_no_import_shows(
    scene, torch_base, draft_checkpoint, tmp_path, program
) -> None:
    base = torch_base("0.5.17")
    accept = [word for choice in ACCEPTED for word in ("--accept", choice)]
    adapted = scene.run("adapt", "--base", base.name, "--overlay", "copies", "--write", *accept)
    assert (adapted.exit_code, adapted.document["verdict"], adapted.document["left"]) == (0, "ok", []), adapted
    assert adapted.document["needed_a_person"] == 4

    built = scene.build(base.name, "--overlay", "copies", "--draft", draft_checkpoint)
    assert (built.exit_code, built.document["verdict"]) == (0, "ok"), built
    checks = {check["name"]: check for check in built.document["smoke"]["checks"]}
    assert {checks[name]["outcome"] for name in ("imports", "importers", "weight-drop")} == {"pass"}
    assert checks["weight-drop"]["facts"]["dropped"] == []

    lengths = {
        "compact": {"bound": [11], "draft": 0, "verify": [[11], 11]},
        "shared": {"draft": 11, "verify": [[11], 11]},
    }
    assert run(scene.tag, program) == lengths

    # The same image with the worker as the pull request has it: everything imports, and this step breaks.
    place = f"{base.package_parent}/{WORKER}"
    unpatched = scene.read_file(place).replace(b"draft_input.reserved_seq_lens_", b"draft_input.nxt_kv_lens_")
    (tmp_path / "worker.py").write_bytes(unpatched)
    broken = run(scene.tag, program, f"{tmp_path / 'worker.py'}:{place}:ro")
    assert {kind: answer["error"].partition(":")[0] for kind, answer in broken.items()} == {
        "compact": "AttributeError",
        "shared": "AttributeError",
    }
