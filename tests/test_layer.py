from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile

import pytest

from builder import layer
from builder.errors import InputError
from builder.layer import LayerFile
from builder.model import Digest, FileMeta, Layer, LocalImage, Oid, Platform, SourceTree, TreeFile

ROOT = FileMeta(0o755, 0, 0, 1_700_000_000_123_456_789)
OWNED = FileMeta(0o2750, 1000, 1000, 1_600_000_000_000_000_000)
FOLDERS = {
    **dict.fromkeys(("/usr", "/usr/share", "/srv", "/srv/app"), ROOT),
    "/srv/app/sglang": OWNED,
    "/srv/app/sglang/models": OWNED,
}
TIME = 1_755_000_000 * 10**9


def file(path: str, data: bytes = b"x = 1\n", meta: FileMeta = FileMeta(0o640, 1000, 1000, 5)) -> LayerFile:  # noqa: B008
    return LayerFile(path, data, meta)


def sample() -> Layer:
    files = [file("/srv/app/sglang/models/dflash.py"), file("/usr/share/overlay/manifest.json", b"{}", ROOT)]
    return layer.build(files, ["/srv/app/sglang/models/__pycache__/x.pyc"], FOLDERS | {PYCACHE: OWNED}, TIME)


PYCACHE = "/srv/app/sglang/models/__pycache__"


def entries(built: Layer) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(built.tar)) as tar:
        return {entry.name: entry for entry in tar}


def test_the_diff_id_of_a_layer_never_changes() -> None:
    # A constant: another Python, tarfile or machine must give the same bytes, or locks stop being reproducible.
    assert sample().diff_id == "sha256:ae8c3b29c1dd59509bc0d30323872392143b5bd2eb3374f9e2c0e2112f91a9ba"
    assert sample().diff_id == Digest.of(sample().tar)


@pytest.mark.parametrize(
    "environment",
    [
        {"TZ": "Pacific/Kiritimati", "PYTHONHASHSEED": "1"},
        {"TZ": "America/St_Johns", "PYTHONHASHSEED": "2", "LC_ALL": "C", "PYTHONUTF8": "0"},
        {"LC_ALL": "tr_TR.UTF-8", "PYTHONHASHSEED": "77"},
    ],
)
def test_time_zone_umask_locale_and_hash_seed_do_not_show(environment: dict[str, str]) -> None:
    code = (
        "import os; os.umask(0o077)\n"
        "from tests.test_layer import sample, config_of\n"
        "print(sample().diff_id, config_of(sample()).hex())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"{sample().diff_id} {config_of(sample()).hex()}"


def test_the_order_of_the_arguments_does_not_show() -> None:
    files = [file(f"/srv/app/sglang/{name}.py", name.encode()) for name in "dacb"]
    gone = ["/srv/app/sglang/old.py", "/srv/app/sglang/models/old.py"]
    first = layer.build(files, gone, FOLDERS, TIME)
    second = layer.build(reversed(files), reversed(gone), dict(reversed(FOLDERS.items())), TIME)
    assert first.tar == second.tar
    assert first.files == 6


def test_every_parent_folder_repeats_the_bases_own_metadata() -> None:
    found = entries(sample())
    for path in ("usr", "usr/share", "srv", "srv/app"):
        assert (found[path].mode, found[path].uid, found[path].gid) == (0o755, 0, 0)
        assert found[path].isdir()
        assert found[path].pax_headers["mtime"] == "1700000000.123456789"
    owned = found["srv/app/sglang/models"]
    assert (owned.mode, owned.uid, owned.gid, owned.mtime) == (0o2750, 1000, 1000, 1_600_000_000)


def test_a_file_keeps_mode_and_owner_and_takes_the_layers_time() -> None:
    entry = entries(sample())["srv/app/sglang/models/dflash.py"]
    assert (entry.mode, entry.uid, entry.gid, entry.mtime, entry.uname) == (0o640, 1000, 1000, TIME // 10**9, "")


def test_parents_come_before_what_they_hold() -> None:
    names = list(entries(sample()))
    assert all(names.index(name.rpartition("/")[0]) < names.index(name) for name in names if "/" in name)


def test_a_new_folder_takes_mode_and_owner_of_its_siblings_else_of_its_parent() -> None:
    shared = FileMeta(0o775, 7, 7, 1)
    folders = FOLDERS | {"/srv/app/sglang/kernels": shared, "/srv/app/sglang/srt": shared}
    new = ["/srv/app/sglang/new/deep/a.py", "/usr/share/overlay/m.json"]
    found = entries(layer.build([file(path) for path in new], [], folders, TIME))
    sibling, below = found["srv/app/sglang/new"], found["srv/app/sglang/new/deep"]
    assert (sibling.mode, sibling.uid, sibling.mtime) == (0o775, 7, TIME // 10**9)
    assert (below.mode, below.uid) == (0o775, 7)
    assert (found["usr/share/overlay"].mode, found["usr/share/overlay"].uid) == (0o755, 0)


def test_a_deletion_is_a_whiteout() -> None:
    found = entries(layer.build([], ["/srv/app/sglang/gone.py"], FOLDERS, TIME))
    assert set(found) == {"srv", "srv/app", "srv/app/sglang", "srv/app/sglang/.wh.gone.py"}
    assert found["srv/app/sglang/.wh.gone.py"].size == 0


def test_names_beyond_a_tar_header_survive() -> None:
    long = "/srv/app/sglang/" + "/".join(["folder" * 12] * 3) + "/modül.py"
    assert long.lstrip("/") in entries(layer.build([file(long)], [], FOLDERS, TIME))


def test_an_empty_layer_is_a_valid_tar_of_no_files() -> None:
    empty = layer.build([], [], {}, TIME)
    assert (empty.files, entries(empty)) == (0, {})


@pytest.mark.parametrize(
    ("paths", "deletions", "says"),
    [
        (["/srv/a.py", "/srv/a.py"], [], "/srv/a.py: stands in it 2 times"),
        (["/srv/a.py"], ["/srv/a.py"], "/srv/a.py: stands in it 2 times"),
        (["srv/a.py"], [], "srv/a.py: is not an absolute path"),
        (["/srv/../etc/passwd"], [], "/srv/../etc/passwd: is not an absolute path"),
        (["/srv//a.py"], [], "/srv//a.py: is not an absolute path"),
        (["//srv/a.py"], [], "//srv/a.py: is not an absolute path"),
        (["/srv/a.py/"], [], "/srv/a.py/: is not an absolute path"),
        (["/srv/.wh.a.py"], [], "/srv/.wh.a.py: the name would be read as a whiteout"),
        (["/srv/.wh.b/a.py"], [], "/srv/.wh.b/a.py: the name would be read as a whiteout"),
        (["/srv/app"], [], "/srv/app: is a folder in the base"),
        (["/srv/a", "/srv/a/b.py"], [], "/srv/a: is a file, and another path needs it as a folder"),
        ([], ["/nowhere/a.py"], "/nowhere/a.py: its folder is not in the base"),
    ],
)
def test_paths_that_cannot_stand_in_a_layer_are_refused(paths: list[str], deletions: list[str], says: str) -> None:
    with pytest.raises(InputError) as caught:
        layer.build([file(path) for path in paths], deletions, FOLDERS, TIME)
    assert any(fact.startswith(says) for fact in caught.value.facts)


def test_all_faults_are_named_not_the_first() -> None:
    with pytest.raises(InputError) as caught:
        layer.build([file("a"), file("/srv/.wh.b")], ["/nowhere/c"], FOLDERS, TIME)
    assert len(caught.value.facts) == 3


# --- image config

BASE = {
    "architecture": "amd64",
    "os": "linux",
    "created": "2026-01-01T00:00:00Z",
    "config": {
        "Cmd": ["bash"],
        "Env": ["A=ü"],
        "Labels": {"kept": "1", "moved": "old"},
        "Healthcheck": {"Interval": 3},
    },
    "rootfs": {"type": "layers", "diff_ids": ["sha256:" + "a" * 64]},
    "history": [{"created_by": "RUN x"}, {"created_by": "CMD", "empty_layer": True}],
    "docker_version": "19.3",
    "container_config": {"Hostname": "builder-7"},
    "org.example.unknown": [1, {"b": None}],
}


def config_of(built: Layer, base: object = BASE) -> bytes:
    labels = {"moved": "new", "io.example.plan": "x"}
    created_by = "overlay build"
    return layer.image_config(
        json.dumps(base).encode(), built, created=1_755_000_000, labels=labels, created_by=created_by
    )


def test_the_config_gains_one_diff_id_one_history_entry_and_labels_and_loses_nothing() -> None:
    built = sample()
    config = json.loads(config_of(built))
    labels = {"kept": "1", "moved": "new", "io.example.plan": "x"}
    assert config == {
        **BASE,
        "created": "2025-08-12T12:00:00Z",
        "config": {**BASE["config"], "Labels": labels},  # type: ignore[dict-item]
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + "a" * 64, built.diff_id]},
        "history": [*BASE["history"], {"created": "2025-08-12T12:00:00Z", "created_by": "overlay build"}],  # type: ignore[misc]
    }


def test_the_config_is_canonical_json() -> None:
    shuffled = dict(reversed(BASE.items()))
    assert config_of(sample()) == config_of(sample(), shuffled)
    assert b'"A=\xc3\xbc"' in config_of(sample())
    assert b": " not in config_of(sample())


def test_our_history_entry_stands_beside_our_layer_even_where_the_base_tells_none() -> None:
    bare = {key: value for key, value in BASE.items() if key != "history"}
    history = json.loads(config_of(sample(), bare))["history"]
    assert [entry.get("created_by") for entry in history] == [None, "overlay build"]


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff"])
def test_a_base_config_that_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="expected a JSON object"):
        layer.image_config(data, sample(), created=0, labels={}, created_by="x")


def test_the_projection_keeps_what_describes_the_image_and_nothing_of_its_container() -> None:
    diff_id = Digest("sha256:" + "b" * 64)
    told = {
        "Hostname": "f00",
        "AttachStdin": False,
        "Image": "sha256:x",
        "User": "app",
        "Cmd": ["bash"],
        "Entrypoint": None,
        "Env": ["A=1"],
        "Volumes": {},
    }
    image = LocalImage(
        Digest.of(b""),
        (),
        (),
        Platform("linux", "arm64", "v8"),
        (diff_id,),
        {"config": told, "created": "2026-01-01T00:00:00Z", "author": ""},
        {},
        1,
    )
    assert json.loads(layer.projected_config(image)) == {
        "architecture": "arm64",
        "os": "linux",
        "variant": "v8",
        "created": "2026-01-01T00:00:00Z",
        "config": {"User": "app", "Cmd": ["bash"], "Env": ["A=1"]},
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"comment": "not told by the base"}],
    }


# --- thin archive


def test_the_thin_archive_holds_config_and_new_layer_alone() -> None:
    built, config = sample(), config_of(sample())
    archive = b"".join(layer.thin_archive(config, built, [Digest("sha256:" + "a" * 64)]))
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        found = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    (manifest,) = json.loads(found.pop("manifest.json"))
    assert manifest["RepoTags"] is None
    assert len(manifest["Layers"]) == 2
    assert found == {f"{Digest.of(config).hex}.json": config, manifest["Layers"][-1]: built.tar}


# --- owners of new files


def tree_file(mode: int, uid: int) -> TreeFile:
    return TreeFile(Oid.of_blob(b""), 0, FileMeta(mode, uid, uid, 9), b"")


TREE = SourceTree(
    "sglang",
    "/srv/app",
    {
        "sglang/a.py": tree_file(0o644, 0),
        "sglang/models/b.py": tree_file(0o640, 1000),
        "sglang/models/c.py": tree_file(0o640, 1000),
        "sglang/models/run.py": tree_file(0o750, 1000),
    },
)


@pytest.mark.parametrize(
    ("path", "executable", "mode", "uid"),
    [
        ("sglang/models/new.py", False, 0o640, 1000),
        ("sglang/models/new.sh", True, 0o750, 1000),
        ("sglang/models/deep/er/new.py", False, 0o640, 1000),
        ("sglang/other/new.py", False, 0o644, 0),
    ],
)
def test_a_new_file_takes_mode_and_owner_of_its_siblings(path: str, executable: bool, mode: int, uid: int) -> None:
    meta = layer.new_file_meta(TREE, path, executable=executable)
    assert (meta.mode, meta.uid, meta.gid) == (mode, uid, uid)


def test_a_new_file_outside_the_package_has_no_siblings() -> None:
    with pytest.raises(InputError, match="nothing tells its owner"):
        layer.new_file_meta(TREE, "elsewhere/a.py")
