"""The whole pipeline through the command line, on a real daemon with a toy package."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from builder import records
from builder.model import Digest
from tests.lab.git_history import History
from tests.support.scene import ROOT, A, B, Scene, base_files, upstream_files, write_catalogue

NEW_A = A.replace("return 5\n", "return 55\n\n\ndef added():\n    return 'by the pull request'\n")


@pytest.fixture
def make_scene(tmp_path, overlay, docker_daemon, run_label):
    """`make_scene(history)` writes the upstream and an empty catalogue."""

    def make(history: History) -> Scene:
        repository = history.write(tmp_path / "upstream.git")
        return Scene(overlay, write_catalogue(tmp_path / "shelf"), repository.path, docker_daemon, run_label)

    made: list[Scene] = []

    def tracked(history: History) -> Scene:
        made.append(make(history))
        return made[-1]

    yield tracked
    for scene in made:
        if scene.image_id(scene.tag):
            docker_daemon.images.remove(scene.tag, force=True)


@pytest.fixture
def scene(make_scene, history):
    history.commit(upstream_files(), "start")
    history.squash(1, "Add a function", [{"python/sglang/srt/a.py": NEW_A, "test/test_a.py": "x = 1\n"}])
    history.squash(2, "Use it", [{"python/sglang/srt/b.py": B.replace("f1", "added")}])
    return make_scene(history)


def history_of(scene: Scene, reference: str) -> list[str]:
    return scene.engine.api.inspect_image(reference)["RootFS"]["Layers"]


def test_a_build_is_the_base_plus_exactly_one_layer(scene, toy_base):
    base = toy_base(base_files())
    done = scene.build(base, "--pr", "1")
    assert (done.exit_code, done.document["verdict"]) == (0, "ok"), done
    assert scene.image_id(scene.tag) == done.document["image"]["id"] == done.document["config_digest"]
    below, above = history_of(scene, base), history_of(scene, scene.tag)
    assert above[:-1] == below
    assert above[-1] == done.document["layer"]["diff_id"]
    assert len(scene.engine.images.get(scene.tag).history()) == len(scene.engine.images.get(base).history()) + 1
    assert scene.read_file(f"{ROOT}/sglang/srt/a.py").decode() == NEW_A
    assert done.document["skipped"] == [{"path": "test/test_a.py", "reason": "test"}]
    outcomes = {check["name"]: check["outcome"] for check in done.document["smoke"]["checks"]}
    assert outcomes["imports"] == "pass"
    assert outcomes["importers"] == "pass"
    assert outcomes["lm-head"] == "not-run"


def test_the_manifest_in_the_image_is_what_the_document_says(scene, toy_base):
    done = scene.build(toy_base(base_files()), "--pr", "1")
    data = scene.read_file(records.MANIFEST_PATH)
    manifest = records.read(data, records.Manifest, "manifest")
    assert records.canonical(manifest) == data
    assert Digest.of(data) == done.document["manifest"]["digest"]
    assert [file.path for file in manifest.result] == ["sglang/srt/a.py"]
    labels = scene.engine.images.get(scene.tag).labels
    assert labels["io.github.sglang-overlay.plan-digest"] == done.document["plan_digest"]
    assert labels["io.github.sglang-overlay.manifest-digest"] == done.document["manifest"]["digest"]
    assert labels["org.opencontainers.image.base.name"]


def test_documents_fit_their_published_schemas(scene, toy_base):
    import jsonschema

    base = toy_base(base_files())
    for command, done in (
        ("plan", scene.run("plan", "--base", base, "--pr", "1")),
        ("build", scene.build(base, "--pr", "1")),
        ("smoke", scene.run("smoke", scene.tag)),
        ("audit", scene.run("audit", scene.tag)),
        ("list", scene.run("list")),
        ("plan", scene.run("plan", "--base", "nonsense", "--pr", "1")),
    ):
        assert done.document["schema"] == f"overlay.{command}/1"
        jsonschema.validate(done.document, records.json_schema(command))


def test_the_same_build_again_is_reused_and_that_is_said(scene, toy_base):
    base = toy_base(base_files())
    first = scene.build(base, "--pr", "1")
    again = scene.build(base, "--pr", "1")
    assert again.document["image"] == {**first.document["image"], "reused": True, "loaded_by": "reused"}
    assert "identical image exists" in again.stderr
    assert again.document["smoke"]["checks"] == first.document["smoke"]["checks"]


def test_the_same_inputs_give_the_same_identities_in_another_environment(scene, toy_base, tmp_path):
    base = toy_base(base_files())
    first = scene.run("plan", "--base", base, "--pr", "1")
    other = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7", "HOME": str(tmp_path / "elsewhere")}
    second = scene.run("plan", "--base", base, "--pr", "1", **other)
    keys = ("plan_digest", "config_digest", "layer")
    assert [first.document[key] for key in keys] == [second.document[key] for key in keys]
    assert all(first.document[key] for key in keys)


def test_two_pull_requests_stack_in_the_stated_order(scene, toy_base):
    base = toy_base(base_files())
    done = scene.build(base, "--pr", "1", "--pr", "2")
    assert done.document["verdict"] == "ok", done
    assert scene.read_file(f"{ROOT}/sglang/srt/b.py").decode() == B.replace("f1", "added")
    assert [pull["number"] for pull in done.document["pull_requests"]] == [1, 2]


def test_a_pull_request_without_its_prerequisite_is_refused_with_the_name_that_is_missing(scene, toy_base):
    done = scene.build(toy_base(base_files()), "--pr", "2")
    assert (done.exit_code, done.document["verdict"]) == (1, "refused")
    assert [(f["kind"], f["symbol"], f["line"]) for f in done.document["findings"]] == [
        ("name-missing", "sglang.srt.a.added", 1)
    ]
    assert scene.image_id(scene.tag) is None


class TestNothingIsLeftBehindByAFailure:
    """Exit 1, everything listed, no new tag, an existing tag untouched, no container."""

    @pytest.fixture(autouse=True)
    def an_image_of_others(self, toy_base):
        self.other = toy_base(base_files(other="x = 1\n"))

    def check(self, scene: Scene, base: str, *arguments: str, expected: str):
        scene.engine.images.get(self.other).tag(scene.tag)
        before, untagged = scene.image_id(scene.tag), scene.untagged()
        done = scene.build(base, "--replace", *arguments)
        assert (done.exit_code, done.document["verdict"]) == (1, expected), done
        assert scene.image_id(scene.tag) == before
        assert scene.untagged() == untagged
        assert scene.containers() == []
        return done

    def test_a_conflict(self, scene, toy_base):
        mine = A.replace("return 5\n", "return 'mine'\n").replace("return 0\n", "return 'own'\n")
        base = toy_base(base_files(a=mine))
        done = self.check(scene, base, "--pr", "1", expected="refused")
        (conflict,) = done.document["conflicts"]
        assert conflict["path"] == "sglang/srt/a.py"
        assert "return 'mine'" in conflict["base_text"]
        assert "return 55" in conflict["pr_text"]
        assert conflict["base_lines"][0] == 22

    def test_all_conflicts_of_all_files_are_listed(self, make_scene, history, toy_base):
        history.commit(upstream_files(), "start")
        a, b = A.replace("return 3", "return 33"), "VALUE = 7\n"
        history.squash(1, "Both", [{"python/sglang/srt/a.py": a, "python/sglang/srt/b.py": b}])
        scene = make_scene(history)
        base = toy_base(base_files(a=A.replace("return 3", "return 'x'"), b=B.replace("VALUE", "OTHER")))
        done = self.check(scene, base, "--pr", "1", expected="refused")
        assert {conflict["path"] for conflict in done.document["conflicts"]} == {"sglang/srt/a.py", "sglang/srt/b.py"}

    def test_a_rejected_patch(self, scene, toy_base):
        header = "Description: x\nOrigin: project\nForwarded: no\nNeeded-If: exists sglang/srt/a.py\n\n"
        files = "--- a/sglang/srt/a.py\n+++ b/sglang/srt/a.py\n"
        edit = files + "@@ -{0},2 +{0},2 @@\n def {1}():\n-    {2}\n+    return 'p{0}'\n"
        places = ((1, "f0", "return 0"), (9, "f2", "return 'nothing'"), (5, "f1", "return 1"))
        patches = {f"t/000{number}-x": header + edit.format(*place) for number, place in enumerate(places, 1)}
        scene.define("o", f"title = 't'\npull-requests = [1]\npatches = {json.dumps(sorted(patches))}\n", patches)
        done = self.check(scene, toy_base(base_files()), "--pr", "1", expected="refused")
        outcomes = [(patch["outcome"], patch["kept"]) for patch in done.document["patches"]]
        assert outcomes == [("applied", False), ("rejected", False), ("applied", False)]

    def test_a_failing_smoke_test(self, make_scene, history, toy_base):
        history.commit(upstream_files(), "start")
        history.squash(1, "Break it", [{"python/sglang/srt/a.py": NEW_A + "\nraise RuntimeError('at import')\n"}])
        scene = make_scene(history)
        done = self.check(scene, toy_base(base_files()), "--pr", "1", expected="failed")
        checks = {check["name"]: check for check in done.document["smoke"]["checks"]}
        assert checks["imports"]["outcome"] == "fail"
        assert "at import" in checks["imports"]["message"]
        assert checks["importers"]["outcome"] == "fail"
        report = json.loads(Path(done.document["report"]).read_text())
        assert (report["verdict"], report["tag"]) == ("failed", None)


def test_another_images_tag_is_kept_unless_it_may_be_replaced(scene, toy_base):
    base, other = toy_base(base_files()), toy_base(base_files(c="x = 1\n"))
    scene.engine.images.get(other).tag(scene.tag)
    refused = scene.build(base, "--pr", "1")
    assert (refused.exit_code, refused.document["verdict"]) == (1, "refused")
    assert "belongs to another image" in refused.stderr
    assert scene.image_id(scene.tag) == scene.image_id(other)
    assert scene.build(base, "--pr", "1", "--replace").document["verdict"] == "ok"
    assert scene.image_id(scene.tag) != scene.image_id(other)


def test_the_bases_own_tag_is_never_moved(scene, toy_base):
    base = toy_base(base_files())
    before = scene.image_id(base)
    done = scene.run("build", "--base", base, "--pr", "1", "--tag", base, "--replace")
    assert (done.exit_code, done.document["verdict"]) == (2, "error")
    assert scene.image_id(base) == before


def test_a_base_that_has_the_pull_request_builds_nothing(scene, toy_base):
    """Case H1."""
    exact = scene.build(toy_base(base_files(a=NEW_A)), "--pr", "1")
    assert (exact.exit_code, exact.document["verdict"], exact.document["image"]) == (0, "already-present", None)
    assert exact.document["pull_requests"][0]["presence"] == "exact"
    edited = NEW_A.replace("'by the pull request'", "'and edited since'")
    later = scene.build(toy_base(base_files(a=edited)), "--pr", "1")
    assert (later.exit_code, later.document["verdict"]) == (0, "already-present")
    assert later.document["pull_requests"][0]["presence"] == "changed"
    assert [f["path"] for f in later.document["files"] if f["presence"] == "changed"] == ["sglang/srt/a.py"]
    assert scene.image_id(scene.tag) is None


def test_force_does_not_overwrite_newer_with_older_without_a_conflict(scene, toy_base):
    later = NEW_A.replace("'by the pull request'", "'and edited since'")
    done = scene.build(toy_base(base_files(a=later)), "--pr", "1", "--force")
    assert done.document["verdict"] == "refused"
    assert done.document["conflicts"]


def test_a_folder_and_an_image_of_the_same_tree_give_the_same_plan(scene, toy_base, tmp_path):
    files = base_files()
    for path, text in files.items():
        if path.startswith(ROOT):
            target = tmp_path / "site" / path.removeprefix(f"{ROOT}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    image = scene.run("plan", "--base", toy_base(files), "--pr", "1").document
    folder = scene.run("plan", "--base", f"dir:{tmp_path / 'site'}", "--pr", "1").document
    assert folder["base"]["config_digest"] is None
    assert folder["plan_digest"] is None
    for key in ("verdict", "files", "patches", "findings", "carried", "conflicts", "skipped", "drift"):
        assert folder[key] == image[key], key


def test_a_folder_cannot_be_built_on(scene, tmp_path):
    (tmp_path / "site" / "sglang").mkdir(parents=True)
    (tmp_path / "site" / "sglang" / "__init__.py").write_text("")
    done = scene.build(f"dir:{tmp_path / 'site'}", "--pr", "1")
    assert done.exit_code == 2


def test_stale_bytecode_of_an_overlaid_module_cannot_run(scene, toy_base):
    """Case E1: bytecode that is never checked against its source would hide the overlay."""
    compile_it = (
        'RUN python3 -c "import py_compile; m = py_compile.PycInvalidationMode.UNCHECKED_HASH; '
        f"py_compile.compile('{ROOT}/sglang/srt/a.py', invalidation_mode=m)\""
    )
    base = toy_base(base_files(), lines=[compile_it])
    done = scene.build(base, "--pr", "1")
    assert done.document["verdict"] == "ok", done
    answer = scene.engine.containers.run(
        scene.tag,
        ["-c", "from sglang.srt.a import added; print(added())"],
        entrypoint="python3",
        remove=True,
        network_mode="none",
    )
    assert answer.decode().strip() == "by the pull request"
    assert scene.run("audit", scene.tag).document["verdict"] == "ok"


def test_stale_bytecode_planted_afterwards_is_found(scene, toy_base):
    """Case E1, the audit half."""
    scene.build(toy_base(base_files()), "--pr", "1")
    planted = f"overlay-lab-run/{scene.run_label.value}:planted"
    program = f"import py_compile; py_compile.compile('{ROOT}/sglang/srt/a.py')"
    container = scene.engine.containers.create(scene.tag, ["-c", program], entrypoint="python3", network_mode="none")
    container.start()
    container.wait()
    container.commit(*planted.split(":"))
    container.remove()
    done = scene.run("audit", planted)
    assert (done.exit_code, done.document["verdict"]) == (1, "failed")
    assert "stale-bytecode" in {finding["class"] for finding in done.document["findings"]}


def test_audit_finds_each_changed_file_and_nothing_else(scene, toy_base):
    scene.build(toy_base(base_files(c="x = 1\n")), "--pr", "1")
    assert scene.run("audit", scene.tag).document["verdict"] == "ok"
    edited = f"overlay-lab-run/{scene.run_label.value}:edited"
    dockerfile = "\n".join(
        (
            f"FROM {scene.tag}",
            f"RUN echo '# more' >> {ROOT}/sglang/srt/a.py",
            f"RUN echo '# more' >> {ROOT}/sglang/srt/c.py",
            f"RUN echo '# more' > {ROOT}/sglang/srt/d.py && rm {ROOT}/sglang/srt/b.py",
        )
    )
    scene.engine.images.build(fileobj=io.BytesIO(dockerfile.encode()), tag=edited, rm=True, network_mode="none")
    found = {(f["class"], f["path"]) for f in scene.run("audit", edited).document["findings"]}
    assert found == {
        ("changed-undeclared", "sglang/srt/a.py"),
        ("changed-undeclared", "sglang/srt/c.py"),
        ("added-undeclared", "sglang/srt/d.py"),
        ("missing", "sglang/srt/b.py"),
        ("lineage-unknown", "/"),
    }


def test_an_image_without_a_manifest_is_unknown(scene, toy_base):
    done = scene.run("audit", toy_base(base_files()))
    assert (done.exit_code, done.document["verdict"]) == (1, "unknown")


def test_two_copies_of_the_package_only_the_live_one_is_overlaid(scene, toy_base):
    """Case A1."""
    dead = "/usr/local/lib/python3.11/dist-packages"
    files = base_files() | {f"{dead}/sglang/__init__.py": "", f"{dead}/sglang/version.py": '__version__ = "0.9"\n'}
    files["/usr/lib/python3/dist-packages/__editable__.sglang.pth"] = f"import sys; sys.path.insert(0, '{ROOT}')\n"
    base = toy_base(files)
    done = scene.build(base, "--pr", "1")
    assert done.document["base"]["live_root"] == ROOT
    assert done.document["base"]["dead_copies"] == [f"{dead}/sglang"]
    assert done.document["verdict"] == "ok"
    forced = scene.build(base, "--pr", "1", "--live-root", dead)
    assert forced.exit_code == 1
    assert ROOT in forced.stderr
    assert dead in forced.stderr


def test_a_base_without_a_repository_digest_is_pinned_by_its_config_digest_and_that_is_said(scene, toy_base):
    done = scene.run("plan", "--base", toy_base(base_files()), "--pr", "1")
    assert done.document["base"]["config_digest"]
    assert done.document["base"]["config_source"] == "projection"
    assert any("pinned by its config digest" in note for note in done.document["notes"])


def test_a_pull_request_without_anything_to_put_on_is_no_pass(make_scene, history, toy_base):
    history.commit(upstream_files(), "start")
    history.squash(1, "Only words", [{"docs/a.md": "words\n"}])
    done = make_scene(history).run("plan", "--base", toy_base(base_files()), "--pr", "1")
    assert (done.exit_code, done.document["verdict"]) == (1, "unknown")


def test_a_rename_says_what_goes(make_scene, history, toy_base):
    history.commit(upstream_files(), "start")
    history.squash(1, "Rename", [{"python/sglang/srt/b.py": None, "python/sglang/srt/c.py": B}])
    scene = make_scene(history)
    done = scene.build(toy_base(base_files()), "--pr", "1")
    assert [(f["path"], f["state"], f["removes"]) for f in done.document["files"]] == [
        ("sglang/srt/c.py", "clean", "sglang/srt/b.py")
    ]
    assert done.document["verdict"] == "ok", done
    listed = scene.engine.containers.run(
        scene.tag, [f"{ROOT}/sglang/srt"], entrypoint="ls", remove=True, network_mode="none"
    )
    assert listed.decode().split() == ["a.py", "c.py"]


class TestWhatCouldOnlyFailAtTheEnd:
    """It is refused before any work, and leaves no image and no report."""

    @pytest.mark.parametrize("wish", ["digest", "folder", "missing"])
    def test_it_is_refused_at_once(self, scene, toy_base, tmp_path, wish):
        words = {
            "digest": ["--tag", "a/b@sha256:" + "0" * 64],
            "folder": ["--report", tmp_path],
            "missing": ["--report", tmp_path / "no" / "r.json"],
        }
        untagged = scene.untagged()
        done = scene.run("build", "--base", toy_base(base_files()), "--pr", "1", *words[wish])
        assert done.exit_code == 2, done
        assert scene.untagged() == untagged


def test_the_report_that_was_asked_for_is_written_on_reuse_too(scene, toy_base, tmp_path):
    base = toy_base(base_files())
    scene.build(base, "--pr", "1")
    report = tmp_path / "r.json"
    done = scene.build(base, "--pr", "1", "--report", report)
    assert done.document["image"]["reused"]
    assert done.document["report"] == str(report)
    assert json.loads(report.read_text())["tag"] == scene.tag


def test_a_later_failure_does_not_overwrite_the_report_of_a_good_image(scene, toy_base, draft_checkpoint):
    base = toy_base(base_files())
    good = scene.build(base, "--pr", "1")
    before = Path(good.document["report"]).read_bytes()
    bad = scene.build(base, "--pr", "1", "--draft", draft_checkpoint)
    assert bad.exit_code == 1
    assert Path(good.document["report"]).read_bytes() == before
    assert scene.image_id(scene.tag) == good.document["image"]["id"]
    assert scene.build(base, "--pr", "1").document["image"]["reused"]


def test_an_image_without_manifest_and_nothing_to_judge_is_no_pass(scene, toy_base):
    done = scene.run("smoke", toy_base(base_files()))
    assert done.exit_code == 2
    assert "nothing to judge" in done.stderr


def test_a_rejected_patch_does_not_make_findings_of_the_others(scene, toy_base):
    header = "Description: x\nOrigin: project\nForwarded: no\nNeeded-If: exists sglang/srt/b.py\n\n"
    edit = header + "--- a/sglang/srt/b.py\n+++ b/sglang/srt/b.py\n@@ -1,1 +1,1 @@\n-{}\n+{}\n"
    good = edit.format("from sglang.srt.a import added", "from sglang.srt.a import f1 as added")
    patches = {"t/0001-x": good, "t/0002-x": edit.format("no such line", "anything")}
    scene.define("o", 'title = "t"\npull-requests = [2]\npatches = ["t/0001-x", "t/0002-x"]\n', patches)
    done = scene.run("plan", "--base", toy_base(base_files()), "--pr", "2")
    assert [patch["outcome"] for patch in done.document["patches"]] == ["applied", "rejected"]
    assert done.document["findings"] == []
    assert done.document["verdict"] == "refused"


def test_a_base_that_is_itself_an_overlay_is_named(scene, toy_base):
    base = toy_base(base_files())
    scene.build(base, "--pr", "1")
    done = scene.run("plan", "--base", scene.tag, "--pr", "2")
    assert done.document["verdict"] == "ok"
    assert any("was itself built by this tool" in note for note in done.document["notes"])


def test_an_impostor_with_the_same_label_is_not_reused(scene, toy_base):
    base = toy_base(base_files())
    real = scene.build(base, "--pr", "1").document["image"]["id"]
    labels = scene.engine.images.get(scene.tag).labels
    container = scene.engine.containers.create(base, ["-c", "echo evil > /evil"], entrypoint="sh", network_mode="none")
    container.start()
    container.wait()
    impostor = container.commit(f"overlay-lab-run/{scene.run_label.value}", "impostor", conf={"Labels": dict(labels)})
    container.remove()
    scene.engine.images.remove(scene.tag, force=True)
    done = scene.build(base, "--pr", "1")
    assert done.document["image"]["id"] == real != impostor.id
    assert not done.document["image"]["reused"]


def test_a_link_of_the_base_never_becomes_a_folder(make_scene, history, toy_base):
    history.commit(upstream_files(), "start")
    history.squash(1, "Add below", [{"python/sglang/srt/models/new.py": "x = 1\n"}])
    base = toy_base(base_files(), lines=[f"RUN mkdir -p /opt/models && ln -s /opt/models {ROOT}/sglang/srt/models"])
    done = make_scene(history).run("plan", "--base", base, "--pr", "1")
    assert (done.exit_code, done.document["verdict"]) == (1, "refused")
    assert "sglang/srt/models is a link in the base" in done.stderr


def test_a_report_never_replaces_what_is_no_file(scene, toy_base, tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real.json")
    done = scene.build(toy_base(base_files()), "--pr", "1", "--report", link)
    assert done.exit_code == 2
    assert link.is_symlink()


def test_names_from_strangers_are_shown_as_they_are_without_their_control_signs(make_scene, history, toy_base):
    history.commit(upstream_files(), "start")
    history.squash(1, "Add \x1b[31m[/x] title", [{"python/sglang/data/[/x].json": "{}\n"}])
    scene = make_scene(history)
    words = ("--catalogue", scene.catalogue, "--upstream", scene.upstream)
    done = scene.overlay("plan", *words, "--base", toy_base(base_files()), "--pr", "1")
    assert done.returncode == 0, done.stderr
    assert "sglang/data/[/x].json" in done.stdout
    assert "[/x] title" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_definition_that_is_not_used_hides_no_other_note(scene, toy_base):
    scene.define("o", 'title = "t"\npull-requests = [1]\nbases = ["exists sglang/srt/none.py"]\n')
    notes = scene.run("plan", "--base", toy_base(base_files()), "--pr", "1").document["notes"]
    assert len(notes) == 2
    assert "o does not admit this base" in notes[0]
    assert "pinned by its config digest" in notes[1]


class TestLineEndings:
    """Case C10: the image always gets LF; a patch with CRLF is refused unless it is to be normalised."""

    patch = (
        "Description: x\nOrigin: project\nForwarded: no\nNeeded-If: exists sglang/srt/a.py\n\n"
        "--- a/sglang/srt/a.py\n+++ b/sglang/srt/a.py\n@@ -1,2 +1,2 @@\n def f0():\n-    return 0\n+    return 'p'\n"
    )

    @pytest.fixture
    def scene(self, scene):
        scene.define("o", 'title = "t"\npull-requests = [1]\npatches = ["t/0001-x"]\n', {"t/0001-x": ""})
        (scene.catalogue / "patches/t/0001-x.patch").write_bytes(self.crlf)
        return scene

    @property
    def crlf(self) -> bytes:
        return self.patch.replace("\n", "\r\n").encode()

    def test_a_patch_with_other_line_ends_than_the_file_is_refused(self, scene, toy_base):
        done = scene.run("plan", "--base", toy_base(base_files()), "--pr", "1")
        assert (done.exit_code, done.document["verdict"]) == (1, "refused")
        (patch,) = done.document["patches"]
        assert patch["outcome"] == "rejected"
        assert "line endings" in patch["reason"] + patch["fact"]

    def test_normalised_it_is_built_and_both_digests_are_recorded(self, scene, toy_base):
        done = scene.build(toy_base(base_files()), "--pr", "1", "--normalise-line-endings")
        assert done.document["verdict"] == "ok", done
        (patch,) = done.document["patches"]
        assert patch["raw_digest"] == Digest.of(self.crlf)
        assert patch["digest"] == Digest.of(self.patch.encode())
        text = scene.read_file(f"{ROOT}/sglang/srt/a.py")
        assert b"return 'p'\n" in text
        assert b"\r" not in text
        assert b"\r" not in scene.read_file("/usr/share/overlay/patches/t/0001-x.patch")

    def test_a_lock_of_the_same_text_says_that_only_the_line_ends_differ(self, scene, toy_base):
        pull = {"repo": "sgl-project/sglang", "number": 1, "kind": "squash"}
        plan = scene.run("plan", "--base", toy_base(base_files()), "--pr", "1").document["pull_requests"][0]
        pull |= {"parent": plan["parent"], "result": plan["result"]}
        pin = {"id": "t/0001-x", "digest": Digest.of(self.patch.encode())}
        lock = {"overlay": "o", "tool": "t", "checker": "c", "pull_requests": [pull], "patches": [pin]}
        path = scene.catalogue / "overlays/o.lock.json"
        path.write_bytes(records.canonical(records.Lock.model_validate(lock)))
        base = toy_base(base_files())
        refused = scene.run("plan", "--base", base, "--pr", "1")
        assert (refused.exit_code, refused.document["verdict"]) == (1, "refused")
        assert "differs only in line endings" in refused.stderr
        assert scene.run("plan", "--base", base, "--pr", "1", "--normalise-line-endings").document["verdict"] == "ok"
