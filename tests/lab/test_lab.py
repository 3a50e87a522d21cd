"""The lab keeps its own promises: other tests' expectations stand on them."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import requests

from tests.lab import cache, checkpoints, host, wheels
from tests.lab.forge_server import Forge
from tests.lab.git_history import History, Repository, read
from tests.lab.upstream_repo import FOLLOW_UP, FOLLOW_UP_FILES, PULL_REQUEST, PULL_REQUEST_FILES

if TYPE_CHECKING:
    import docker

    from tests.conftest import MakeBase, MakeToyBase
    from tests.lab.images import RunLabel
    from tests.lab.registry_server import Registry

ServeForge = Callable[[Mapping[str, Repository]], Forge]


# -- cache ---------------------------------------------------------------------------------


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache, "FOLDER", tmp_path)
    return tmp_path


def test_an_artefact_is_made_once_per_recipe(own_cache: Path) -> None:
    made: list[Path] = []

    def make(path: Path) -> None:
        path.write_text(f"{len(made)}")
        made.append(path)

    for key in ("a", "a", "b", "b"):
        found = cache.made_once("thing", key, make)
    assert found.read_text() == "1"
    assert len(made) == 2


def test_what_was_half_made_is_not_used(own_cache: Path) -> None:
    def stop_half_way(path: Path) -> None:
        path.mkdir()
        (path / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.made_once("thing", "a", stop_half_way)
    assert not (own_cache / "thing").exists()
    found = cache.made_once("thing", "a", lambda path: path.mkdir())
    assert list(found.iterdir()) == []
    assert sorted(path.name for path in own_cache.iterdir()) == ["locks", "thing", "thing.recipe"]


# -- history and forge ---------------------------------------------------------------------


def _every_kind(history: History) -> None:
    start = history.commit({"a": "1\n2\n", "b": "b\n"}, "Start")
    history.commit({"c": "c\n"}, "Later")
    history.squash(7, "Squashed", [{"a": "1\n2\n3\n"}, {"t/x": "x"}], fork=start)
    history.merge(8, "Merged", [{"b": None, "d": "b\n"}], fork=start)
    history.rebase(9, "Rebased", [{"e": "1"}, {"f": "2"}], fork=start)
    history.open(10, "Open", [{"c": "cc\n"}], fork=start)
    history.close(11, "Closed", [{"g": "g"}])


def test_a_history_has_the_same_ids_everywhere(tmp_path: Path) -> None:
    histories = [History(), History()]
    for history in histories:
        _every_kind(history)
    first, second = (h.write(tmp_path / str(n)) for n, h in enumerate(histories))
    assert first.pulls == second.pulls
    assert read(first.path) == first
    first.git("fsck", "--strict")


@pytest.mark.parametrize("number", [7, 8, 9])
def test_parent_and_result_differ_by_the_pull_request(number: int, tmp_path: Path) -> None:
    history = History()
    _every_kind(history)
    repository = history.write(tmp_path / "git")
    pull = repository.pulls[number]
    merged = repository.git("diff", pull.parent, pull.result)
    assert merged == repository.git("diff", pull.fork, pull.head)
    assert pull.parent != pull.base, "the forge's base is not the parent"


def test_the_forge_answers_like_githubs(serve_forge: ServeForge, tmp_path: Path) -> None:
    history = History()
    _every_kind(history)
    repository = history.write(tmp_path / "git")
    forge = serve_forge({"o/n": repository})

    def ask(path: str) -> tuple[int, dict[str, object]]:
        answer = requests.get(f"{forge.url}/repos/o/n/{path}", timeout=10)
        return answer.status_code, answer.json()

    status, pull = ask("pulls/7")
    assert (status, pull["merged"], pull["commits"]) == (200, True, 2)
    assert pull["merge_commit_sha"] == repository.pulls[7].result
    assert ask("pulls/10")[1]["merged_at"] is None
    assert ask("pulls/99") == (404, {"message": "Not Found", "status": "404"})
    assert ask("commits/" + "0" * 40)[0] == 422
    opened = repository.pulls[10]
    compared = ask(f"compare/{opened.base}...{opened.head}")[1]
    assert compared["merge_base_commit"]["sha"] == opened.fork  # type: ignore[index]
    forge.behaviour = "rate-limited"
    assert ask("pulls/7")[0] == 403


def test_the_stand_in_changes_the_five_files_and_what_is_outside(
    upstream_repository: Repository, trees: Callable[[str], Path]
) -> None:
    pull = upstream_repository.pulls[PULL_REQUEST]
    changed = upstream_repository.git("diff", "--name-only", pull.parent, pull.result).split()
    inside = [path.removeprefix("python/") for path in changed if path.startswith("python/")]
    assert tuple(inside) == PULL_REQUEST_FILES
    assert len(changed) == len(inside) + 3
    assert upstream_repository.git("diff", pull.head, pull.result) == ""
    for side, version in ((pull.parent, "0.5.18"), (pull.result, "0.5.19")):
        for path in PULL_REQUEST_FILES:
            expected = (trees(version) / path).read_bytes()
            assert upstream_repository.read(side, f"python/{path}") == expected


def test_the_follow_up_stands_on_the_stand_in_and_is_part_of_the_next_release(
    upstream_repository: Repository, trees: Callable[[str], Path]
) -> None:
    first, pull = (upstream_repository.pulls[number] for number in (PULL_REQUEST, FOLLOW_UP))
    assert pull.parent == first.result
    changed = upstream_repository.git("diff", "--name-only", pull.parent, pull.result).split()
    assert tuple(path for path in changed if path.startswith("python/")) == tuple(
        f"python/{p}" for p in FOLLOW_UP_FILES
    )
    assert upstream_repository.git("diff", pull.head, pull.result) == ""
    release = upstream_repository.commits["0.5.20"]
    for path in FOLLOW_UP_FILES:
        expected = (trees("0.5.20") / path).read_bytes()
        assert upstream_repository.read(pull.result, f"python/{path}") == expected
    assert upstream_repository.git("diff", "--name-only", pull.result, release, "--", *changed[:2]) == ""


@pytest.mark.parametrize("version", wheels.VERSIONS)
def test_the_tree_at_a_release_is_that_release(
    version: str, upstream_repository: Repository, trees: Callable[[str], Path]
) -> None:
    at = upstream_repository.git("rev-parse", f"refs/tags/v{version}")
    listed = upstream_repository.git("ls-tree", "-r", "--name-only", at, "python/").splitlines()
    folder = trees(version)
    released = [path for path in (folder / "sglang").rglob("*") if path.is_file() and path.suffix != ".so"]
    small = {f"python/{path.relative_to(folder)}" for path in released if path.stat().st_size < 1 << 20}
    assert set(listed) == small
    for path in FOLLOW_UP_FILES:
        assert upstream_repository.read(at, f"python/{path}") == (folder / path).read_bytes()


def test_the_upstream_serves_blobless_shallow_fetches_by_id(upstream_repository: Repository, tmp_path: Path) -> None:
    oid = upstream_repository.commits["later-work"]
    fetch = ["fetch", "-q", "--depth=1", "--filter=blob:none", upstream_repository.url, oid]
    for words in (["init", "-q"], fetch):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)


# -- checkpoints ---------------------------------------------------------------------------


def _header(path: Path) -> dict[str, dict[str, object]]:
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header: dict[str, dict[str, object]] = json.loads(file.read(size))
    header.pop("__metadata__", None)
    ends = [int(entry["data_offsets"][1]) for entry in header.values()]  # type: ignore[index]
    assert 8 + size + max(ends) == path.stat().st_size
    return header


def test_the_small_draft_has_36_tensors(draft_checkpoint: Path) -> None:
    names = _header(draft_checkpoint / "model.safetensors")
    assert len(names) == 36
    assert sum("_conv." in name or "selector" in name for name in names) == 11


def test_the_published_draft_has_its_real_size_to_the_byte(tmp_path: Path) -> None:
    path = checkpoints.write_published_draft(tmp_path) / "model.safetensors"
    assert len(_header(path)) == 81
    assert path.stat().st_size == 3_848_817_896
    assert path.stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize("head", ["bf16", "fp8", "packed", "tied", "absent"])
def test_targets_store_their_head_as_asked(head: checkpoints.Head, tmp_path: Path) -> None:
    checkpoints.write_target(tmp_path, head)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    stored = {name for shard in tmp_path.glob("*.safetensors") for name in _header(shard)}
    assert stored == set(index)
    assert {name for name in stored if "lm_head" in name} == set(checkpoints.target_head(head))


# -- environment ---------------------------------------------------------------------------


def test_the_environment_is_sealed(own_home: Path) -> None:
    assert Path.home() == own_home
    assert not [name for name in os.environ if name.startswith("OVERLAY_")]
    config = subprocess.run(["git", "config", "--list"], capture_output=True, text=True, cwd=own_home)
    assert config.stdout == ""
    assert not str(cache.FOLDER).startswith(str(own_home))


# -- Docker --------------------------------------------------------------------------------

_LOCATE = """
import importlib.util, json
spec = importlib.util.find_spec("sglang")
print(json.dumps([spec.origin, list(spec.submodule_search_locations)]))
"""


@pytest.mark.parametrize("variant", ["editable", "installed", "dead-checkout", "dead-install", "owned"])
def test_a_base_imports_from_its_live_root(
    variant: str, tiny_base: MakeBase, docker_daemon: docker.DockerClient
) -> None:
    base = tiny_base("0.5.17", variant)  # type: ignore[arg-type]
    assert _locate(docker_daemon, base.id) == [
        f"{base.package_parent}/sglang/__init__.py",
        [f"{base.package_parent}/sglang"],
    ]


def test_the_finder_base_has_no_origin_from_its_workdir(
    tiny_base: MakeBase, docker_daemon: docker.DockerClient
) -> None:
    base = tiny_base("0.5.17", "finder")
    assert _locate(docker_daemon, base.id)[0] is None
    live = _locate(docker_daemon, base.id, folder="/")
    assert live[0] == f"{base.package_parent}/sglang/__init__.py"


def _locate(engine: docker.DockerClient, image: str, folder: str | None = None) -> list[object]:
    argv = ["-c", _LOCATE]
    output = engine.containers.run(
        image, argv, entrypoint="python3", network_mode="none", remove=True, working_dir=folder
    )
    found: list[object] = json.loads(output)
    return found


def test_the_entrypoint_prints_a_banner(tiny_base: MakeBase, docker_daemon: docker.DockerClient) -> None:
    output = docker_daemon.containers.run(
        tiny_base().id, ["python3", "-c", "print(1)"], network_mode="none", remove=True
    )
    *banner, last = output.decode().splitlines()
    assert (len(banner), last) == (8, "1")


def test_a_pushed_image_comes_back_with_its_digest(
    tiny_base: MakeBase, registry: Registry, docker_daemon: docker.DockerClient
) -> None:
    digest = registry.push(tiny_base().name, "pushed-by-lab-test")
    assert registry.digest("pushed-by-lab-test") == digest
    names = [tag for image in docker_daemon.images.list() for tag in image.tags]
    assert not [name for name in names if name.endswith(":pushed-by-lab-test")]


def test_what_is_built_on_a_base_of_the_run_carries_its_label(
    toy_base: MakeToyBase, run_label: RunLabel, docker_daemon: docker.DockerClient
) -> None:
    from tests.lab import images

    name = toy_base({"/app/sglang/__init__.py": ""}, lines=["WORKDIR /app"])
    images.build(docker_daemon, f"{name}-above", name)
    tags = {tag for image in run_label.images(docker_daemon) for tag in image.tags}
    assert {name, f"{name}-above"} <= tags


def test_a_daemon_that_does_not_start_says_its_last_words(tmp_path: Path) -> None:
    from tests.lab import services

    script = "print('no disk left'); raise SystemExit(3)"
    with pytest.raises(host.LabError, match=r"ended with status 3(.|\n)*no disk left"):
        services.start([sys.executable, "-c", script], log=tmp_path / "log", is_ready=lambda: False)
