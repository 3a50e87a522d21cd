"""Per-file states of a pull request on a tree, with git's own merge behind them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from builder.catalogue import Overlay, bare_overlay
from builder.errors import InputError
from builder.merge import BaseFile, Sides, Subject, classify, merge_pull_request, refuse_strangers
from builder.model import Change, Oid, PullRequest
from builder.upstream import merge_file

PARENT = b"".join(b"line %d\n" % n for n in range(20))
RESULT = PARENT.replace(b"line 10\n", b"line ten by the pull request\n")


def overlay(**sections: object) -> Overlay:
    return Overlay.model_validate({"name": "x", "title": "t", "pull-requests": [1], **sections})


def change(path: str, parent: bytes | None, result: bytes | None, old_path: str | None = None, **modes: str) -> Change:
    kind = "added" if parent is None else "deleted" if result is None else "renamed" if old_path else "modified"
    return Change(
        path,
        kind,
        Oid.of_blob(parent) if parent is not None else None,
        Oid.of_blob(result) if result is not None else None,
        modes.get("parent_mode", "100644") if parent is not None else None,
        modes.get("result_mode", "100644") if result is not None else None,
        old_path,
    )


def run(
    tree: Mapping[str, bytes],
    *files: tuple[str, bytes | None, bytes | None],
    definition: Overlay | None = None,
    base: Mapping[str, bytes] | None = None,
    forced: bool = False,
    old_paths: Mapping[str, str] | None = None,
):
    old_paths = old_paths or {}
    changes = [change(path, parent, result, old_paths.get(path)) for path, parent, result in files]
    parents = {old_paths.get(path, path): parent for path, parent, _ in files}
    results = {path: result for path, _, result in files}

    def as_files(contents: Mapping[str, bytes]) -> dict[str, BaseFile]:
        return {path: BaseFile(Oid.of_blob(data), "100644", data) for path, data in contents.items()}

    subject = Subject(
        PullRequest("o/r", 1, Oid("1" * 40), Oid("2" * 40), 0, "squash"),
        definition or bare_overlay((1,)),
        as_files(tree),
        as_files(base if base is not None else tree),
        Sides(parents.get, results.get),
        merge_file,
        lambda name: any(name.encode() in data for data in tree.values()),
        is_forced=forced,
    )
    return merge_pull_request(changes, subject)


UPSTREAM, PATH = "python/sglang/srt/a.py", "sglang/srt/a.py"


def one(tree: Mapping[str, bytes], parent: bytes | None, result: bytes | None, **words: object):
    merged = run(tree, (UPSTREAM, parent, result), **words)
    (found,) = merged.files
    return found


def test_a_base_equal_to_the_parent_takes_the_result():
    found = one({PATH: PARENT}, PARENT, RESULT)
    assert (found.state, found.data, found.lost, found.brought) == ("clean", RESULT, (), ())


def test_a_local_change_elsewhere_is_kept_by_the_merge():
    ours = PARENT.replace(b"line 2\n", b"line two by the base\n")
    found = one({PATH: ours}, PARENT, RESULT)
    assert found.state == "clean"
    assert found.data == ours.replace(b"line 10\n", b"line ten by the pull request\n")
    assert (found.lost, found.brought) == ((), ())


def test_both_sides_of_a_conflict_are_shown_with_their_lines():
    ours = PARENT.replace(b"line 10\n", b"line ten by the base\n")
    found = one({PATH: ours}, PARENT, RESULT)
    assert (found.state, found.data, found.is_blocking) == ("conflict", None, True)
    (region,) = found.regions
    assert region.base_text == "line ten by the base\n"
    assert region.pr_text == "line ten by the pull request\n"
    assert (region.base_lines, region.pr_lines) == ((11, 11), (11, 11))


def test_take_pr_settles_a_conflict_and_lists_the_region():
    rule = {"path": PATH, "on-conflict": "take-pr", "reason": "reviewed"}
    ours = PARENT.replace(b"line 10\n", b"line ten by the base\n").replace(b"line 2\n", b"kept\n")
    found = one({PATH: ours}, PARENT, RESULT, definition=overlay(file=[rule]))
    assert found.state == "taken"
    assert found.data == RESULT.replace(b"line 2\n", b"kept\n")
    assert found.taken == ((11, 11),)
    assert found.lost == ("line ten by the base",)


class TestCopyNeverRevertsSilently:
    """Case D9."""

    rule = MappingProxyType({"path": PATH, "strategy": "copy", "reason": "whole file"})
    ours = PARENT.replace(b"line 2\n", b"line two by the base\n")

    def test_an_exact_pre_image_is_safe(self):
        found = one({PATH: PARENT}, PARENT, RESULT, definition=overlay(file=[dict(self.rule)]))
        assert (found.state, found.data) == ("copied", RESULT)
        assert "exact pre-image" in found.reason

    def test_a_copy_that_would_revert_is_refused_with_the_lines(self):
        found = one({PATH: self.ours}, PARENT, RESULT, definition=overlay(file=[dict(self.rule)]))
        assert (found.state, found.data, found.lost) == ("conflict", None, ("line two by the base",))
        assert "would revert 1 lines" in found.reason

    def test_it_is_taken_for_the_accepted_base_file_only(self):
        blob = Oid.of_blob(self.ours)
        rule = dict(self.rule) | {"accept": [{"base-blob": blob[:8], "reason": "reviewed"}]}
        found = one({PATH: self.ours}, PARENT, RESULT, definition=overlay(file=[rule]))
        assert (found.state, found.data, found.lost) == ("copied", RESULT, ("line two by the base",))
        other = one({PATH: self.ours + b"more\n"}, PARENT, RESULT, definition=overlay(file=[rule]))
        assert other.state == "conflict"

    def test_acceptance_looks_at_the_untouched_base(self):
        rule = dict(self.rule) | {"accept": [{"base-blob": Oid.of_blob(self.ours), "reason": "reviewed"}]}
        found = one({PATH: PARENT + b"x\n"}, PARENT, RESULT, definition=overlay(file=[rule]), base={PATH: self.ours})
        assert found.state == "copied"

    def test_lines_brought_along_are_recorded(self):
        parent = PARENT + b"later upstream work\n"
        result = RESULT + b"later upstream work\n"
        rule = dict(self.rule) | {"accept": [{"base-blob": Oid.of_blob(PARENT), "reason": "reviewed"}]}
        found = one({PATH: PARENT}, parent, result, definition=overlay(file=[rule]))
        assert found.brought == ("later upstream work",)


def test_a_new_file_is_clean_and_another_one_there_is_a_conflict():
    assert one({}, None, RESULT).data == RESULT
    found = one({PATH: b"something else\n"}, None, RESULT)
    assert found.state == "conflict"
    assert "adds this file" in found.reason


def test_a_deletion_needs_an_untouched_file():
    found = one({PATH: PARENT}, PARENT, None)
    assert (found.state, found.removes) == ("clean", PATH)
    assert one({PATH: RESULT}, PARENT, None).state == "conflict"
    gone = one({}, PARENT, None)
    assert gone.state == "already-present"


def test_a_changed_file_that_the_base_lacks_is_named_with_its_likeness():
    found = one({"sglang/old/a.py": PARENT}, PARENT, RESULT)
    assert found.state == "missing-in-base"
    assert "sglang/old/a.py" in found.reason


def test_a_rename_is_merged_along_the_rename():
    old, new = "python/sglang/srt/old.py", UPSTREAM
    ours = PARENT.replace(b"line 2\n", b"kept\n")
    merged = run({"sglang/srt/old.py": ours}, (new, PARENT, RESULT), old_paths={new: old})
    (found,) = merged.files
    assert (found.state, found.removes) == ("clean", "sglang/srt/old.py")
    assert found.data == RESULT.replace(b"line 2\n", b"kept\n")


def test_a_rename_out_of_the_package_deletes_what_was_there():
    merged = run({PATH: PARENT}, ("examples/a.py", PARENT, PARENT), old_paths={"examples/a.py": UPSTREAM})
    assert [(f.path, f.state, f.removes) for f in merged.files] == [(PATH, "clean", PATH)]
    assert merged.skipped == (("examples/a.py", "not in the package"),)


def test_a_rename_into_the_package_adds_the_file():
    merged = run({}, (UPSTREAM, PARENT, RESULT), old_paths={UPSTREAM: "scripts/a.py"})
    assert [(f.path, f.state, f.data) for f in merged.files] == [(PATH, "clean", RESULT)]


def test_a_rename_whose_target_is_there_still_takes_the_old_name_away():
    tree = {"sglang/srt/old.py": PARENT, PATH: RESULT}
    (found,) = run(tree, (UPSTREAM, PARENT, RESULT), old_paths={UPSTREAM: "python/sglang/srt/old.py"}).files
    assert (found.state, found.removes) == ("clean", "sglang/srt/old.py")
    tree["sglang/srt/old.py"] = PARENT + b"edited\n"
    (found,) = run(tree, (UPSTREAM, PARENT, RESULT), old_paths={UPSTREAM: "python/sglang/srt/old.py"}).files
    assert found.state == "conflict"


def test_the_content_without_the_mode_is_not_the_change():
    files = [change(UPSTREAM, PARENT, PARENT, result_mode="100755")]
    base = {PATH: BaseFile(Oid.of_blob(PARENT), "100644", PARENT)}
    pull = PullRequest("o/r", 1, Oid("1" * 40), Oid("2" * 40), 0, "squash")
    sides = Sides(lambda _: PARENT, lambda _: PARENT)
    merged = merge_pull_request(
        files, Subject(pull, bare_overlay((1,)), base, base, sides, merge_file, lambda _: False)
    )
    assert merged.presence == "unknown"
    assert "only the mode changes" in merged.files[0].reason


def test_a_pure_rename_moves_the_file():
    old_paths = {UPSTREAM: "python/sglang/srt/old.py"}
    merged = run({"sglang/srt/old.py": PARENT}, (UPSTREAM, PARENT, PARENT), old_paths=old_paths)
    (found,) = merged.files
    assert (found.state, found.data, found.removes) == ("clean", PARENT, "sglang/srt/old.py")


def test_a_file_with_conflict_markers_is_refused():
    ours = b"<<<<<<< x\na\n=======\nb\n>>>>>>> y\n" + PARENT
    found = one({PATH: ours}, PARENT, RESULT)
    assert found.state == "conflict"
    assert "marker" in found.reason


def test_binary_files_are_never_merged():
    found = one({PATH: b"\0ours"}, b"\0parent", b"\0result")
    assert found.state == "conflict"
    assert "binary" in found.reason
    assert one({PATH: b"\0parent"}, b"\0parent", b"\0result").data == b"\0result"


@pytest.mark.parametrize("result", [b"\0result", None])
def test_a_large_file_known_by_its_blob_is_the_pull_requests_to_change(result):
    data = b"\0parent"
    base = {PATH: BaseFile(Oid.of_blob(data), "100644", None)}
    pull = PullRequest("o/r", 1, Oid("1" * 40), Oid("2" * 40), 0, "squash")
    sides = Sides(lambda _: data, lambda _: result)
    subject = Subject(pull, bare_overlay((1,)), base, base, sides, merge_file, lambda _: False)
    (found,) = merge_pull_request([change(UPSTREAM, data, result)], subject).files
    assert (found.state, found.data) == ("clean", result)
    assert found.removes == (PATH if result is None else None)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("python/sglang/srt/a.py", "runtime"),
        ("python/sglang/srt/configs/a.json", "runtime"),
        ("python/sglang/kernels/jit/csrc/a.cuh", "runtime"),
        ("python/sglang/test/test_a.py", "outside-runtime"),
        ("test/registered/test_a.py", "outside-runtime"),
        ("docs/a.md", "outside-runtime"),
        (".github/workflows/a.yml", "outside-runtime"),
        ("docker/Dockerfile", "outside-runtime"),
        ("python/pyproject.toml", "needs-build"),
        ("sgl-kernel/csrc/a.cu", "needs-build"),
        ("sgl-kernel/CMakeLists.txt", "needs-build"),
        ("python/sglang/srt/native.cpp", "needs-build"),
    ],
)
def test_upstream_paths_are_partitioned(path, kind):
    assert classify(change(path, b"a\n", b"b\n"), bare_overlay((1,)))[0] == kind


def test_only_runtime_files_decide():
    """Case C7."""
    merged = run(
        {PATH: PARENT},
        (UPSTREAM, PARENT, RESULT),
        ("test/x.py", PARENT, RESULT),
        ("docs/y.md", PARENT, RESULT),
        (".github/z.yml", PARENT, RESULT),
    )
    assert [(f.path, f.state) for f in merged.files] == [(PATH, "clean")]
    assert merged.skipped == (("test/x.py", "test"), ("docs/y.md", "documentation"), (".github/z.yml", "CI"))


def test_what_needs_a_build_is_refused_unless_acknowledged_for_that_path():
    files = ((UPSTREAM, PARENT, RESULT), ("python/pyproject.toml", b'"torch==1"\n', b'"torch==2"\n'))
    blocked = run({PATH: PARENT}, *files)
    assert [f.state for f in blocked.files if f.is_blocking] == ["needs-build"]
    assert '-"torch==1"; +"torch==2"' in blocked.files[1].reason
    settled = {"kind": "needs-build", "path": "pyproject.toml", "reason": "the base has torch 2"}
    free = run({PATH: PARENT}, *files, definition=overlay(acknowledge=[settled]))
    assert not any(f.is_blocking for f in free.files)
    assert free.files[1].acknowledged == "the base has torch 2"


def test_a_left_out_file_is_listed_with_its_reason():
    merged = run(
        {PATH: PARENT},
        (UPSTREAM, PARENT, RESULT),
        definition=overlay(**{"leave-out": [{"path": PATH, "reason": "not wanted here"}]}),
    )
    assert merged.files == ()
    assert merged.skipped == ((UPSTREAM, "left out: not wanted here"),)
    assert merged.presence == "absent"


def test_a_definition_that_names_a_file_no_pull_request_changes_is_refused():
    merged = run({PATH: PARENT}, (UPSTREAM, PARENT, RESULT))
    for table in ("file", "leave-out"):
        strange = overlay(**{table: [{"path": "sglang/srt/aa.py", "reason": "r"}]})
        with pytest.raises(InputError, match=r"did you mean 'sglang/srt/a\.py'"):
            refuse_strangers(strange, [merged])
    refuse_strangers(overlay(file=[{"path": PATH, "reason": "r"}]), [merged])


def test_a_conflict_of_line_endings_is_named():
    found = one({PATH: PARENT.replace(b"\n", b"\r\n")}, PARENT, RESULT)
    assert found.state == "conflict"
    assert "line endings" in found.reason


def test_presence_counts_every_runtime_file():
    other = "python/sglang/srt/b.py"
    both = ((UPSTREAM, PARENT, RESULT), (other, PARENT, RESULT))
    assert run({PATH: RESULT, "sglang/srt/b.py": RESULT}, *both).presence == "exact"
    assert run({PATH: RESULT, "sglang/srt/b.py": PARENT}, *both).presence == "absent"


def test_a_pull_request_without_runtime_files_is_never_present():
    assert run({}, ("docs/a.md", None, b"x\n")).presence == "unknown"


def test_force_merges_what_is_present():
    code = b"def f():\n    return 1\n"
    result = b"def f():\n    return 2\n\n\ndef g():\n    return 'g'\n"
    ours = result.replace(b"2", b"3")
    assert one({PATH: ours}, code, result).state == "already-present"
    assert one({PATH: ours}, code, result, forced=True).state == "conflict"


def test_the_executable_bit_follows_the_pull_request_only_where_it_changes_it():
    files = [change(UPSTREAM, PARENT, RESULT, result_mode="100755")]
    subject = Subject(
        PullRequest("o/r", 1, Oid("1" * 40), Oid("2" * 40), 0, "squash"),
        bare_overlay((1,)),
        {PATH: BaseFile(Oid.of_blob(PARENT), "100644", PARENT)},
        {PATH: BaseFile(Oid.of_blob(PARENT), "100644", PARENT)},
        Sides(lambda _: PARENT, lambda _: RESULT),
        merge_file,
        lambda _: False,
    )
    assert merge_pull_request(files, subject).files[0].mode == "100755"


def test_a_symbolic_link_is_stated_not_guessed():
    files = [change(UPSTREAM, PARENT, b"target", result_mode="120000")]
    subject = Subject(
        PullRequest("o/r", 1, Oid("1" * 40), Oid("2" * 40), 0, "squash"),
        bare_overlay((1,)),
        {PATH: BaseFile(Oid.of_blob(PARENT), "100644", PARENT)},
        {},
        Sides(lambda _: PARENT, lambda _: b"target"),
        merge_file,
        lambda _: False,
    )
    (found,) = merge_pull_request(files, subject).files
    assert found.state == "conflict"
    assert "symbolic link" in found.reason
