"""Merging one file: what git itself would say, byte for byte, and where each conflict stands."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import Refused
from builder.model import ThreeWay
from builder.three_way import lines
from builder.upstream import merge_file

LINE = st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"}\n", b"d\r\n", b" a\n", b"\xff\n"])
TEXT = st.tuples(st.lists(LINE, max_size=9), st.sampled_from([b"", b"", b"e", b"a", b"d\r"])).map(
    lambda parts: b"".join(parts[0]) + parts[1]
)
MARKS = (b"<<<<<<<", b"|||||||", b"=======", b">>>>>>>")
THOROUGHLY = settings(max_examples=150, deadline=None)


def git_merge(folder: Path, sides: Sequence[bytes], *options: str) -> tuple[int, bytes]:
    for name, data in zip(("ours", "ancestor", "theirs"), sides, strict=True):
        (folder / name).write_bytes(data)
    command = ["git", "merge-file", "-p", *options, "ours", "ancestor", "theirs"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    assert done.returncode < 128, done.stderr
    return done.returncode, done.stdout


def edited(text: bytes) -> st.SearchStrategy[bytes]:
    """The text with a few lines replaced, removed or put in: what a side of a merge looks like."""
    old = lines(text)
    edit = st.tuples(st.integers(0, len(old)), st.integers(0, 2), st.lists(LINE, max_size=2))

    def apply(edits: list[tuple[int, int, list[bytes]]]) -> bytes:
        new = list(old)
        for at, removed, put in edits:
            new[at : at + removed] = put
        return b"".join(new)

    return st.lists(edit, max_size=3).map(apply)


SIDES = TEXT.flatmap(lambda text: st.tuples(edited(text), st.just(text), edited(text))) | st.tuples(TEXT, TEXT, TEXT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("git")


@THOROUGHLY
@given(sides=SIDES)
def test_the_outcome_is_gits_own(folder: Path, sides: tuple[bytes, bytes, bytes]) -> None:
    merged = merge_file(*sides)
    conflicts, text = git_merge(folder, sides)
    assert bool(conflicts) == bool(merged.regions)
    assert merged.text == (None if conflicts else text)
    if not sides[2].endswith(b"\n") and conflicts:
        return  # git puts a line end where a side has none; nothing is put in here
    assert merged.taken == git_merge(folder, sides, "--theirs")[1]


@THOROUGHLY
@given(sides=SIDES)
def test_each_region_stands_where_it_says(sides: tuple[bytes, bytes, bytes]) -> None:
    ours, ancestor, theirs = sides
    merged = merge_file(ours, ancestor, theirs)
    assert len(merged.regions) == len(merged.taken_lines)
    for region, taken in zip(merged.regions, merged.taken_lines, strict=True):
        assert part(ours, region.base_lines) == region.base_text
        assert part(theirs, region.pr_lines) == region.pr_text
        assert part(merged.taken, taken) == region.pr_text
        assert region.base_text != region.pr_text
        assert part(ancestor, region.ancestor_lines) == region.ancestor_text


def part(data: bytes, numbers: tuple[int, int]) -> str:
    first, last = numbers
    assert 1 <= first <= last + 1 <= len(lines(data)) + 1
    return b"".join(lines(data)[first - 1 : last]).decode(errors="replace")


@THOROUGHLY
@given(sides=SIDES)
def test_no_line_is_invented_and_no_marker_is_left(sides: tuple[bytes, bytes, bytes]) -> None:
    merged = merge_file(*sides)
    known = {line.rstrip(b"\n") for side in sides for line in lines(side)}
    assert {line.rstrip(b"\n") for line in lines(merged.taken)} <= known
    assert not any(mark in merged.taken for mark in MARKS)


@THOROUGHLY
@given(one=TEXT, other=TEXT)
def test_a_side_that_changed_nothing_has_no_say(one: bytes, other: bytes) -> None:
    assert merge_file(one, one, other).text == other
    assert merge_file(other, one, one).text == other
    assert merge_file(other, one, other).text == other


@THOROUGHLY
@given(sides=SIDES)
def test_a_clean_merge_does_not_depend_on_whose_side_it_is(sides: tuple[bytes, bytes, bytes]) -> None:
    ours, ancestor, theirs = sides
    one, other = merge_file(ours, ancestor, theirs), merge_file(theirs, ancestor, ours)
    assert one.text == other.text
    assert len(one.regions) == len(other.regions)


@THOROUGHLY
@given(st.data())
def test_edits_in_different_places_are_both_there(data: st.DataObject) -> None:
    count = data.draw(st.integers(3, 12))
    old = [b"line %d\n" % number for number in range(count)]
    middle = data.draw(st.integers(1, count - 2))
    upper, lower = data.draw(st.lists(LINE, max_size=3)), data.draw(st.lists(LINE, max_size=3))
    ours = b"".join(upper + old[middle:])
    theirs = b"".join(old[: middle + 1] + lower)
    assert merge_file(ours, b"".join(old), theirs).text == b"".join([*upper, old[middle], *lower])


def test_a_conflict_shows_all_three_texts_and_only_what_differs() -> None:
    ours = b"a\nx\nm\ny\nz\n"
    merged = merge_file(ours, b"a\nold\nz\n", b"a\nx\nn\nn\ny\nz\n")
    (region,) = merged.regions
    assert (region.base_text, region.ancestor_text, region.pr_text) == ("m\n", "old\n", "n\nn\n")
    assert (region.base_lines, region.pr_lines) == ((3, 3), (3, 4))
    assert merged.text is None
    assert (merged.taken, merged.taken_lines) == (b"a\nx\nn\nn\ny\nz\n", ((3, 4),))


def test_a_side_that_removed_the_lines_is_an_empty_range_at_its_place() -> None:
    merged = merge_file(b"a\nc\n", b"a\nb\nc\n", b"a\nB\nc\n")
    assert merged.regions[0].base_lines == (2, 1)
    assert merged.regions[0].pr_lines == (2, 2)
    merged = merge_file(b"a\nB\nc\n", b"a\nb\nc\n", b"a\nc\n")
    assert (merged.taken, merged.taken_lines) == (b"a\nc\n", ((2, 1),))


def test_all_conflicts_are_reported_between_clean_changes() -> None:
    old = b"".join(b"%d\n" % n for n in range(20))
    ours = old.replace(b"\n3\n", b"\nthree\n").replace(b"\n9\n", b"\nnine\n").replace(b"\n15\n", b"\nfifteen\n")
    theirs = old.replace(b"\n3\n", b"\nIII\n").replace(b"\n6\n", b"\nVI\nVI\n").replace(b"\n15\n", b"\nXV\n")
    merged = merge_file(ours, old, theirs)
    assert [region.pr_text for region in merged.regions] == ["III\n", "XV\n"]
    assert [region.base_lines for region in merged.regions] == [(4, 4), (16, 16)]
    assert [region.pr_lines for region in merged.regions] == [(4, 4), (17, 17)]
    assert merged.taken == theirs.replace(b"\n9\n", b"\nnine\n")


@pytest.mark.parametrize(
    ("old", "mine", "pr", "expected"),
    [
        (b"a\r\nb\r\nc\r\nd\r\n", b"A\r\nb\r\nc\r\nd\r\n", b"a\r\nb\r\nc\r\nD\r\n", b"A\r\nb\r\nc\r\nD\r\n"),
        (b"\xef\xbb\xbfa\nb\nc\n", b"\xef\xbb\xbfa\nb\nC\n", b"\xef\xbb\xbfA\nb\nc\n", b"\xef\xbb\xbfA\nb\nC\n"),
        (b"a\nb\nc", b"A\nb\nc", b"a\nb\nc\n", b"A\nb\nc\n"),
        (b"a\nb\nc\n", b"A\nb\nc\n", b"a\nb\nc", b"A\nb\nc"),
        (b"a\nb\nc", b"A\nb\nc", b"a\nb\nc\nd", b"A\nb\nc\nd"),
        (b"a\rb\nc\nd\n", b"a\rB\nc\nd\n", b"a\rb\nc\nD\n", b"a\rB\nc\nD\n"),
        (b"\xe9\nb\nc\n", b"\xe9\nb\nC\n", b"\xe9x\nb\nc\n", b"\xe9x\nb\nC\n"),
        (b"", b"", b"new\n", b"new\n"),
        (b"gone\n", b"gone\n", b"", b""),
        (b"a\x0cb\nc\nd\n", b"a\x0cb\nc\nD\n", b"A\x0cb\nc\nd\n", b"A\x0cb\nc\nD\n"),
    ],
    ids=["crlf", "bom", "end-added", "end-removed", "no-end", "lone-cr", "latin-1", "empty", "emptied", "form-feed"],
)
def test_line_ends_marks_and_odd_bytes_stay_as_they_are(old: bytes, mine: bytes, pr: bytes, expected: bytes) -> None:
    assert merge_file(mine, old, pr).text == expected


def test_a_file_with_other_line_ends_is_one_conflict_and_not_a_mixture() -> None:
    merged = merge_file(b"a\r\nb\r\n", b"a\nb\n", b"a\nB\n")
    assert merged.text is None
    assert merged.taken == b"a\nB\n"


CONFLICT = b"x\n%s ours\nA\n%s\nB\n%s theirs\n"


@pytest.mark.parametrize("size", [3, 5, 7, 8, 32, 100])
@pytest.mark.parametrize("side", [0, 1, 2])
def test_conflict_markers_of_any_size_are_refused(side: int, size: int) -> None:
    sides = [b"x\n"] * 3
    sides[side] = CONFLICT % (b"<" * size, b"=" * size, b">" * size)
    with pytest.raises(Refused, match="conflict marker at line 2"):
        merge_file(*sides)


@pytest.mark.parametrize("left", [b">>>>>>> theirs\n", b"<<<<<<< HEAD\r\n", b"<<<<<<<\n", b">>>>>>>"])
def test_a_marker_that_was_left_behind_is_refused(left: bytes) -> None:
    with pytest.raises(Refused, match="conflict marker at line 2"):
        merge_file(b"x\n" + left, b"x\n", b"y\n")


@pytest.mark.parametrize(
    "text",
    [
        b"Title\n=======\n\ntext\n",
        b">>> print(1)\n1\n",
        b"x = '<<<<<<<'\n",
        b"  <<<<<<< indented\n",
        b"<<< a\n=====\n>>> b\n",
        b">>>>\n====\n<<<<\n",
        b"<<<<<<<text\n",
    ],
)
def test_what_only_looks_like_a_marker_is_text(text: bytes) -> None:
    assert merge_file(text, text, text + b"more\n").text == text + b"more\n"


@pytest.mark.parametrize("side", [0, 1, 2])
def test_a_binary_file_is_refused(side: int) -> None:
    sides = [b"x\n"] * 3
    sides[side] = b"x\n" + b"y" * 9000 + b"\0"
    with pytest.raises(Refused, match="binary"):
        merge_file(*sides)


def conflicting() -> ThreeWay:
    ours = b"def f():\n    return 1\n\n\ndef g():\n    return 1\n"
    old = b"def f():\n    return 0\n\n\ndef g():\n    return 1\n"
    theirs = b"def f():\n    return 2\n\n\ndef h():\n    return 0\n\n\ndef g():\n    return 1\n"
    return merge_file(ours, old, theirs)


def test_nothing_a_user_configured_changes_a_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = conflicting()
    (tmp_path / "attributes").write_text("* binary diff=loud merge=ours\n")
    (tmp_path / "config").write_text(
        "[core]\n\tattributesFile = " + str(tmp_path / "attributes") + "\n\tautocrlf = true\n"
        "[diff]\n\talgorithm = patience\n\tnoprefix = true\n\texternal = false\n\tcontext = 0\n"
        "\tinterHunkContext = 9\n\tsuppressBlankEmpty = true\n\tindentHeuristic = true\n"
        '[diff "loud"]\n\ttextconv = rev\n\tcommand = false\n[merge]\n\tconflictStyle = diff3\n[color]\n\tui = always\n'
    )
    subprocess.run(["git", "init", "-q", tmp_path / "repo"], check=True)
    (tmp_path / "repo/.git/config").write_text((tmp_path / "config").read_text())
    monkeypatch.chdir(tmp_path / "repo")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "repo"))
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, str(tmp_path / "config"))
    monkeypatch.delenv("GIT_CONFIG_NOSYSTEM", raising=False)
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'diff.algorithm=histogram'")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    monkeypatch.setenv("GIT_DIFF_OPTS", "-u0")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "repo/.git"))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert conflicting() == expected


def test_real_files_merge_as_git_merges_them(trees: Callable[[str], Path], folder: Path) -> None:
    roots = [trees(version) / "sglang/srt/speculative" for version in ("0.5.17", "0.5.18", "0.5.19")]
    outcomes = set()
    for path in sorted(path.name for path in roots[0].glob("*.py")):
        if not all((root / path).exists() for root in roots):
            continue
        ours, ancestor, theirs = ((root / path).read_bytes() for root in roots)
        merged = merge_file(ours, ancestor, theirs)
        conflicts, text = git_merge(folder, (ours, ancestor, theirs))
        assert merged.text == (None if conflicts else text), path
        assert merged.taken == git_merge(folder, (ours, ancestor, theirs), "--theirs")[1], path
        outcomes.add(merged.text is None)
    assert outcomes == {True, False}
