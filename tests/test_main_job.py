"""What the project promises, shown on real SGLang code and a real daemon."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder import records
from tests.support.scene import Scene, base_files, upstream_files, write_catalogue

LAB_CATALOGUE = Path(__file__).parent / "lab" / "catalogue"
QUICK = (Path(__file__).parent / "lab" / "quick-acknowledgements.toml").read_text()


def test_the_demo_keeps_every_promise_on_the_torch_base(run_demo):
    done = run_demo()
    assert done.returncode == 0, done.stdout
    assert "STAND-IN" in done.stdout
    for promise in (
        "DFlash2DraftModel resolves to itself",
        "0 of 36 draft tensors are dropped",
        "what imported on the base still does (DSpark too)",
        "exactly one layer more than the base",
        "audit: verdict ok",
        "the image is used again, with the same ID",
    ):
        assert f"  ok   {promise}" in done.stdout, done.stdout
    assert "FAIL" not in done.stdout


@pytest.fixture
def quick_catalogue(tmp_path):
    """The lab's catalogue with what cannot be told without torch acknowledged."""
    folder = Path(shutil.copytree(LAB_CATALOGUE, tmp_path / "shelf"))
    with (folder / "overlays/dflash2.toml").open("a") as definition:
        definition.write(QUICK)
    return folder


@pytest.fixture
def scene(overlay, quick_catalogue, upstream_repository, docker_daemon, run_label) -> Iterator[Scene]:
    made = Scene(overlay, quick_catalogue, upstream_repository.path, docker_daemon, run_label)
    yield made
    if made.image_id(made.tag):
        docker_daemon.images.remove(made.tag, force=True)


def test_a_plan_on_the_folder_and_on_the_image_of_a_release_agree(scene, trees, tiny_base):
    base = tiny_base("0.5.17")
    image = scene.run("plan", "--base", base.name, "--pr", "35371").document
    folder = scene.run("plan", "--base", f"dir:{trees('0.5.17')}", "--pr", "35371").document
    for key in ("verdict", "pull_requests", "files", "patches", "findings", "carried", "conflicts", "drift"):
        assert folder[key] == image[key], key
    assert image["verdict"] == "ok"


def test_an_image_that_has_the_pull_request_builds_nothing(scene, tiny_base):
    done = scene.build(tiny_base("0.5.19").name, "--pr", "35371")
    assert (done.exit_code, done.document["verdict"], done.document["image"]) == (0, "already-present", None)
    assert {f["presence"] for f in done.document["files"]} == {"exact"}
    assert scene.image_id(scene.tag) is None


def listing(scene: Scene, reference: str, folder: Path) -> dict[str, tuple[object, ...]]:
    """Return every path of an image with kind, mode, owner, modification time and content."""
    container = scene.engine.containers.create(reference, entrypoint=["/nothing"], network_mode="none")
    try:
        with (folder / "export.tar").open("wb") as file:
            for chunk in container.export():
                file.write(chunk)
    finally:
        container.remove()
    found = {}
    with tarfile.open(folder / "export.tar") as tar:
        for entry in tar:
            data = tar.extractfile(entry) if entry.isreg() else None
            digest = hashlib.sha256(data.read()).hexdigest() if data else entry.linkname
            found[entry.name] = (entry.type, entry.mode & 0o7777, entry.uid, entry.gid, entry.mtime, digest)
    return found


@pytest.mark.parametrize("ways", ["load", "commit"])
def test_no_path_that_is_not_overlaid_changes(scene, tiny_base, tmp_path, ways):
    base = tiny_base("0.5.17", "owned")
    done = scene.build(base.name, "--pr", "35371", "--replace", OVERLAY_LOAD_WAYS=ways)
    assert done.document["verdict"] == "ok", done
    assert done.document["image"]["loaded_by"] == ways
    before, after = listing(scene, base.name, tmp_path), listing(scene, scene.tag, tmp_path)
    # What the engine itself puts into every container (/etc/hosts, /dev/console ...) is new each time.
    again = listing(scene, base.name, tmp_path)
    own = {path for path in before.keys() | again.keys() if before.get(path) != again.get(path)}
    own |= {".dockerenv", "dev", "etc", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf", "proc", "sys"}
    own |= {path for path in after if path.startswith("dev/")}
    manifest = json.loads(scene.read_file(records.MANIFEST_PATH))
    overlaid = {f"{base.package_parent}/{entry['path']}".lstrip("/"): entry for entry in manifest["result"]}
    ours = {path for path in after if path.startswith("usr/share/overlay")}
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed - own == set(overlaid) | ours
    for path, entry in overlaid.items():
        _, mode, uid, gid, _, _ = after[path]
        assert (mode, uid, gid) == (entry["mode"], entry["uid"], entry["gid"])
        if path in before:
            assert after[path][1:4] == before[path][1:4], path
        else:
            assert (uid, gid) == (1000, 1000)
    assert scene.engine.images.get(scene.tag).attrs["Config"]["User"]


class TestABaseFromARegistry:
    """Digests are resolved before any pull, a lock pins them, a mirror is only a way to get there."""

    @pytest.fixture
    def scene(self, overlay, tmp_path, docker_daemon, run_label, history):
        history.commit(upstream_files(), "start")
        history.squash(1, "Add a function", [{"python/sglang/srt/c.py": "def c():\n    return 3\n"}])
        repository = history.write(tmp_path / "upstream.git")
        shelf = write_catalogue(tmp_path / "shelf")
        made = Scene(overlay, shelf, repository.path, docker_daemon, run_label)
        self.pull = repository.pulls[1]
        yield made
        if made.image_id(made.tag):
            docker_daemon.images.remove(made.tag, force=True)

    def serve(self, scene: Scene, registry, toy_base, tag: str) -> str:
        """Push a toy base, forget it in the engine, and return its digest."""
        name = toy_base(base_files(tag=f"TAG = {tag!r}\n"))
        digest = registry.push(name, tag)
        scene.engine.images.remove(name)
        return digest

    def test_it_is_pulled_through_the_mirror_and_recorded_by_its_plain_name(self, scene, registry, toy_base):
        digest = self.serve(scene, registry, toy_base, "plain")
        reference = "lmsysorg/sglang:plain"
        done = scene.build(reference, "--pr", "1", "--registry-mirror", registry.prefix)
        assert done.document["verdict"] == "ok", done
        base = done.document["base"]
        assert (base["reference"], base["manifest_digest"], base["config_source"]) == (reference, digest, "registry")
        labels = scene.engine.images.get(scene.tag).labels
        assert labels["org.opencontainers.image.base.name"] == reference
        assert labels["org.opencontainers.image.base.digest"] == digest
        assert registry.prefix not in json.dumps(json.loads(scene.read_file(records.MANIFEST_PATH)))
        assert done.document["image"]["id"] == done.document["config_digest"]

    def test_a_reference_that_does_not_exist_is_named_before_anything_is_pulled(self, scene, registry):
        done = scene.build("lmsysorg/sglang:nope", "--pr", "1", "--registry-mirror", registry.prefix)
        assert done.exit_code == 2
        assert "nope" in done.stderr

    def lock(self, scene: Scene, digest: str, **more: object) -> Path:
        scene.define("o", "title = 't'\npull-requests = [1]\n")
        (scene.catalogue / "images/b.toml").write_text('reference = "lmsysorg/sglang:locked"\n')
        pin = {"alias": "b", "reference": "lmsysorg/sglang:locked", "index": digest, "platforms": [], **more}
        pull = {"repo": "sgl-project/sglang", "number": 1, "kind": "squash"}
        pull |= {"parent": self.pull.parent, "result": self.pull.result}
        lock = records.Lock.model_validate(
            {"overlay": "o", "tool": "t", "checker": "c", "bases": [pin], "pull_requests": [pull]}
        )
        path = scene.catalogue / "overlays/o.lock.json"
        path.write_bytes(records.canonical(lock))
        return path

    def test_a_locked_base_is_used_by_digest_wherever_its_tag_points_now(self, scene, registry, toy_base):
        first = self.serve(scene, registry, toy_base, "locked")
        path = self.lock(scene, first)
        self.serve(scene, registry, toy_base, "locked-2")
        registry.push(toy_base(base_files(moved="x = 1\n")), "locked")
        assert registry.digest("locked") != first
        done = scene.build("b", "--pr", "1", "--registry-mirror", registry.prefix)
        assert done.document["verdict"] == "ok", done
        assert done.document["base"]["digest"] == first
        seen = json.loads(path.read_text())["bases"][0]["platforms"]
        assert [(entry["manifest"], entry["config"]) for entry in seen] == [
            (first, done.document["base"]["config_digest"])
        ]
        assert "seen for the first time" in done.stderr

    def test_locked_holds_to_the_lock_and_to_its_type_checker(self, scene, registry, toy_base):
        path = self.lock(scene, self.serve(scene, registry, toy_base, "locked"))
        words = ("--base", "b", "--pr", "1", "--locked", "--registry-mirror", registry.prefix)
        refused = scene.run("plan", *words)
        assert (refused.exit_code, refused.document["verdict"]) == (1, "refused")
        here = f"pyrefly {importlib.metadata.version('pyrefly')}"
        assert f"type checker: the lock has c, here is {here}" in refused.stderr
        path.write_text(path.read_text().replace('"checker": "c"', f'"checker": "{here}"'))
        done = scene.run("plan", *words)
        assert (done.exit_code, done.document["verdict"]) == (0, "ok"), done

    def test_locked_refuses_what_nothing_pins(self, scene, registry, toy_base):
        path = self.lock(scene, self.serve(scene, registry, toy_base, "locked"))
        lock = json.loads(path.read_text()) | {"bases": [], "pull_requests": []}
        path.write_text(json.dumps(lock))
        words = ("--locked", "--registry-mirror", registry.prefix)
        refused = scene.run("plan", "--base", "b", "--pr", "1", *words)
        assert (refused.exit_code, refused.document["verdict"]) == (1, "refused")
        assert "#1 is not pinned" in refused.stderr
        assert "lmsysorg/sglang:locked is not pinned" in refused.stderr
        bare = scene.run("plan", "--base", "b", "--pr", "1", "--no-definition", *words)
        assert (bare.exit_code, bare.document["verdict"]) == (1, "refused")
        assert "a bare overlay has no lock" in bare.stderr

    def test_what_was_seen_is_verified_ever_after(self, scene, registry, toy_base):
        digest = self.serve(scene, registry, toy_base, "locked")
        other = "sha256:" + "0" * 64
        platform = str(records_platform(scene))
        seen = {"platform": platform, "manifest": digest, "config": other}
        self.lock(scene, digest, platforms=[seen])
        done = scene.build("b", "--pr", "1", "--registry-mirror", registry.prefix)
        assert (done.exit_code, done.document["verdict"]) == (1, "refused")
        assert other in done.stderr
        assert scene.image_id(scene.tag) is None

    def test_a_locked_digest_that_is_gone_is_refused(self, scene, registry, toy_base):
        digest = self.serve(scene, registry, toy_base, "locked")
        self.lock(scene, digest)
        registry.delete(digest)
        done = scene.build("b", "--pr", "1", "--registry-mirror", registry.prefix)
        assert done.exit_code != 0
        assert digest in done.stderr

    def test_patches_other_than_the_locked_ones_are_refused(self, scene, registry, toy_base):
        path = self.lock(scene, self.serve(scene, registry, toy_base, "locked"))
        lock = json.loads(path.read_text()) | {"patches": [{"id": "t/0001-x", "digest": "sha256:" + "1" * 64}]}
        path.write_text(json.dumps(lock))
        done = scene.build("b", "--pr", "1", "--registry-mirror", registry.prefix)
        assert (done.exit_code, done.document["verdict"]) == (1, "refused")
        assert "t/0001-x" in done.stderr


def records_platform(scene: Scene) -> str:
    version = scene.engine.version()
    return f"{version['Os']}/{version['Arch']}"
