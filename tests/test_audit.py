"""Audit rules: a manifest and what is really there -> findings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder import audit
from builder.model import Digest, FileMeta, LocalImage, Oid, Platform, SourceTree, TreeFile
from builder.records import MANIFEST_PATH, PROJECT, BaseRecord, FinalFile, Manifest, OverlayRecord, Tool

META = FileMeta(0o644, 0, 0, 0)
BASE_DIGEST = Digest.of(b"base config")


def tree(**texts: str) -> SourceTree:
    files = {
        f"sglang/{name.replace('__pycache__', '__pycache__/')}": TreeFile(
            Oid.of_blob(text.encode()), len(text), META, text.encode()
        )
        for name, text in texts.items()
    }
    return SourceTree("sglang", "/app", files)


def py(**texts: str) -> SourceTree:
    return tree(**{f"{name}.py": text for name, text in texts.items()})


def final(path: str, text: str | None, base: str | None) -> FinalFile:
    blobs = [Oid.of_blob(each.encode()) if each is not None else None for each in (text, base)]
    return FinalFile(path=path, blob=blobs[0], base_blob=blobs[1], mode=0o644, uid=0, gid=0)


def manifest(*files: FinalFile) -> Manifest:
    base = BaseRecord(
        reference="r:t", config_digest=BASE_DIGEST, live_root="/app", found_by="x", package="sglang", version="1"
    )
    tool = Tool(name="t", version="1")
    empty = dict.fromkeys(
        ("pull_requests", "files", "bytecode_removed", "skipped", "carried", "patches", "findings", "drift"), ()
    )
    overlay = OverlayRecord(name="o", title="", is_bare=True)
    return Manifest(tool=tool, checker=tool, overlay=overlay, base=base, result=files, not_checked=(), **empty)


def image(*layers: str, **labels: str) -> LocalImage:
    diff_ids = tuple(Digest.of(layer.encode()) for layer in layers)
    labels = {f"{PROJECT}.{name.replace('_', '-')}": value for name, value in labels.items()}
    return LocalImage(Digest.of(b"i"), (), (), Platform("linux", "amd64"), diff_ids, {}, labels, 0)


DATA = b"the manifest"


def observed(after: SourceTree, *files: FinalFile, before: SourceTree | None = None) -> audit.Observed:
    return audit.Observed(
        image("a", "b", manifest_digest=Digest.of(DATA), base_config_digest=BASE_DIGEST),
        manifest(*files),
        DATA,
        after,
        image("a"),
        before if before is not None else py(a="old", b="same"),
    )


def classes(seen: audit.Observed) -> set[tuple[str, str]]:
    return {(finding.class_, finding.path) for finding in audit.judge(seen)}


DECLARED = final("sglang/a.py", "new", "old")


def test_an_image_that_is_what_its_manifest_says_has_no_finding():
    seen = observed(py(a="new", b="same"), DECLARED)
    assert classes(seen) == set()
    assert audit.verdict(audit.judge(seen), audit.not_inspected(seen)) == "ok"


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (py(a="newer", b="same"), ("changed-undeclared", "sglang/a.py")),
        (py(b="same"), ("missing", "sglang/a.py")),
        (py(a="new", b="edited"), ("changed-undeclared", "sglang/b.py")),
        (py(a="new"), ("missing", "sglang/b.py")),
        (py(a="new", b="same", c="x"), ("added-undeclared", "sglang/c.py")),
        (replace(py(a="new", b="same"), live_root="/other"), ("wrong-root", "/other")),
    ],
)
def test_each_difference_is_its_own_class(after, expected):
    """Case H7."""
    seen = observed(after, DECLARED)
    assert classes(seen) == {expected}
    assert audit.verdict(audit.judge(seen), ()) == "failed"


def test_another_mode_or_owner_is_found():
    seen = observed(py(a="new", b="same"), DECLARED.model_copy(update={"mode": 0o600}))
    assert classes(seen) == {("changed-undeclared", "sglang/a.py")}


def test_a_setting_of_the_image_that_is_not_the_bases_is_found():
    seen = observed(py(a="new", b="same"), DECLARED)
    evil = replace(seen.image, config={"config": {"Env": ["LD_PRELOAD=/x.so"]}})
    assert classes(replace(seen, image=evil)) == {("changed-undeclared", "config: Env")}


def test_what_is_never_looked_at_is_said_and_does_not_make_it_unknown():
    seen = observed(py(a="new", b="same"), DECLARED)
    assert audit.not_inspected(seen) == (audit.ELSEWHERE,)


def test_a_declared_file_equal_to_the_base_is_only_a_warning():
    seen = observed(py(a="old", b="same"), final("sglang/a.py", "old", "old"))
    assert classes(seen) == {("declared-but-identical-to-base", "sglang/a.py")}
    assert audit.verdict(audit.judge(seen), ()) == "ok"


def test_a_removed_file_that_is_back_is_found():
    seen = observed(py(a="old", b="same"), final("sglang/a.py", None, "old"))
    assert classes(seen) == {("changed-undeclared", "sglang/a.py")}


def test_without_the_base_the_rest_is_unknown_not_ok():
    seen = replace(observed(py(a="new", b="edited"), DECLARED), base=None, base_tree=None)
    assert classes(seen) == set()
    assert audit.verdict(audit.judge(seen), audit.not_inspected(seen)) == "unknown"


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"manifest_digest": Digest.of(b"another"), "base_config_digest": BASE_DIGEST},
        {"manifest_digest": Digest.of(DATA), "base_config_digest": Digest.of(b"another")},
    ],
)
def test_labels_must_agree_with_the_manifest(labels):
    seen = replace(observed(py(a="new", b="same"), DECLARED), image=image("a", "b", **labels))
    assert classes(seen) == {("record-foreign", MANIFEST_PATH)}


@pytest.mark.parametrize("layers", [("x", "b"), ("a", "b", "c"), ("a",)])
def test_the_bases_layers_must_be_below_with_one_more(layers):
    seen = observed(py(a="new", b="same"), DECLARED)
    seen = replace(seen, image=replace(seen.image, diff_ids=image(*layers).diff_ids))
    assert classes(seen) == {("lineage-unknown", "/")}
