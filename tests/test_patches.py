"""Compat patches: read strictly, applied exactly, and only all of them or none."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import InputError
from builder.model import Digest
from builder.patches import Patch, PatchOutcome, Series, apply_series, load

PATH = "sglang/srt/a.py"
HEADER = "Description: Mend it\nNeeded-If: exists sglang/srt/a.py\n\n"


def read_patch(diff: str | bytes, *, header: str = HEADER, id: str = "topic/0001-mend") -> Patch:
    data = header.encode() + (diff.encode() if isinstance(diff, str) else diff)
    return load(id, data, f"patches/{id}.patch")


def faults_of(diff: str | bytes, *, header: str = HEADER) -> str:
    with pytest.raises(InputError) as caught:
        read_patch(diff, header=header)
    return "\n".join((str(caught.value), *caught.value.facts))


def make_diff(old: bytes, new: bytes, *, path: str = PATH, context: int = 2) -> bytes:
    """Write the diff of two files as `diff -U2` does, the missing newline at the end of the file included."""
    before, after = (data.decode("latin-1").split("\n") for data in (old, new))
    a, b = ([line + "\n" for line in lines[:-1]] + lines[-1:] * bool(lines[-1]) for lines in (before, after))
    lines = difflib.unified_diff(a, b, f"a/{path}", f"b/{path}", n=context)
    marked = [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return "".join(marked).encode("latin-1")


def apply(
    patches: Sequence[Patch],
    files: Mapping[str, bytes | str],
    *,
    base: Mapping[str, bytes] | None = None,
    version: str | None = None,
) -> Series:
    tree = {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}
    return apply_series(patches, tree.get, tree.keys(), (tree if base is None else base).get, version)


def apply_one(diff: str | bytes, data: bytes | str, *, header: str = HEADER) -> tuple[PatchOutcome, bytes | None]:
    series = apply([read_patch(diff, header=header)], {PATH: data})
    return series.outcomes[0], series.edits.get(PATH)


# -- header ------------------------------------------------------------------------------------------------------------

EDIT = "--- a/sglang/srt/a.py\n+++ b/sglang/srt/a.py\n@@ -1 +1 @@\n-old\n+new\n"


def test_a_patch_keeps_its_header_its_lines_and_its_digest() -> None:
    header = (
        "Description: Mend it\n in two lines\n .\n and a paragraph\nOrigin: project\nForwarded: not-needed\n"
        "Needed-If: exists sglang/srt/a.py\n and not exists sglang/b.py\nRemoves: logprobs\n---\n"
    )
    patch = read_patch(EDIT, header=header)
    assert patch.value("Description") == "Mend it\nin two lines\n\nand a paragraph"
    assert patch.fields["Needed-If"].line == 7
    assert patch.value("Removes") == "logprobs"
    assert patch.value("Reason") == ""
    assert patch.sha256 == Digest.of((header + EDIT).encode())
    assert patch.text == (header + EDIT).encode()


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Needed-If: exists a\n\n", "1: the header lacks Description"),
        ("Description: x\n\n", "1: the header lacks Needed-If"),
        ("Description: x\nNeeded-If:\n\n", "2: the header lacks Needed-If"),
        (HEADER + "Neded-If: exists b\n", "4: unknown header field 'Neded-If' (did you mean 'Needed-If'?)"),
        (HEADER + "description: x\n", "4: unknown header field 'description' (did you mean 'Description'?)"),
        (HEADER + "Description: y\n", "4: Description stands there twice, first in line 1"),
        (HEADER + "some text\n", "4: expected 'Field: text' or a line that starts with a space; found 'some text'"),
        ("Description: x\nNeeded-If: exits a\n\n", "2: Needed-If: column 1: expected"),
        (HEADER + "Applies-To: 0.5.17\n", "4: Applies-To: '0.5.17' is not a version specifier"),
        ("\ufeff" + HEADER, "1: the header is not plain UTF-8 text"),
        (HEADER + "Reason: \udcff\n", "4: the header is not plain UTF-8 text"),
    ],
)
def test_a_fault_in_the_header_names_its_line(header: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        load("topic/0001-mend", header.encode("utf-8", "surrogateescape") + EDIT.encode(), "p.patch")
    told = [str(caught.value).removeprefix("p.patch:"), *(fact.removeprefix("line ") for fact in caught.value.facts)]
    assert any(line.startswith(expected) for line in told), told


def test_all_faults_of_a_patch_are_told_at_once() -> None:
    text = faults_of("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\n+b\n", header="Descripton: x\nOrigin: y\n\n")
    assert "faults" in text
    for expected in ("did you mean 'Description'", "lacks Description", "lacks Needed-If", "header says 2 old lines"):
        assert expected in text


def test_an_id_that_is_not_topic_and_number_is_refused() -> None:
    with pytest.raises(InputError, match="TOPIC/NNNN-slug"):
        read_patch(EDIT, id="mend")


# -- C9: the diff's own consistency ------------------------------------------------------------------------------------


def test_a_hunk_header_must_count_its_body() -> None:
    text = faults_of("--- a/sglang/srt/a.py\n+++ b/sglang/srt/a.py\n@@ -1,3 +1,7 @@\n a\n-b\n+c\n+d\n+e\n f\n")
    assert "topic/0001-mend.patch:6" in text
    assert "the hunk's header says 7 new lines, its body has 5" in text
    assert "old" not in text


@pytest.mark.parametrize(
    ("diff", "expected"),
    [
        # unidiff alone would drop the surplus line and say nothing.
        ("@@ -1,1 +1,1 @@\n-a\n+b\n+c\n", "says 1 new lines, its body has 2"),
        ("@@ -1,2 +1,1 @@\n-a\n+b\n@@ -9 +9 @@\n-x\n+y\n", "says 2 old lines, its body has 1"),
        ("@@ -1,3 +1,3 @@\n-a\n+b\n--- a/sglang/b.py\n+++ b/sglang/b.py\n@@ -1 +1 @@\n-x\n+y\n", "its body has 1"),
        ("@@ -1 +1 @@\n-a\n+b\nleft over\n", "expected a file or hunk header; found 'left over'"),
        ("", "is named and has no hunk"),
        ("@@ -1 +1 @@\n-a\n+b\n\n--- a/sglang/b.py\n", "a '---' line without a '+++' line after it"),
        ("@@ -0,0 +0,0 @@\n", "the hunk has no body"),
        ("@@ -1,2 +1,2 @@\n a\n-b\n+b\n", "changes nothing"),
        ("@@ -3,0 +4,1 @@\n+a\n", "no context or removed line"),
        ("@@ -1,1 +0,0 @@\n-a\n", "leaves no line"),
    ],
)
def test_a_diff_that_does_not_hold_together_is_refused(diff: str, expected: str) -> None:
    assert expected in faults_of(f"--- a/{PATH}\n+++ b/{PATH}\n{diff}")


def test_a_file_that_is_named_without_a_hunk_is_refused() -> None:
    assert "is named and has no hunk" in faults_of(f"diff --git a/{PATH} b/{PATH}\nindex 1..2 100644\n" + EDIT[:0])
    assert "is named and has no hunk" in faults_of(f"--- a/x\n+++ b/x\n{EDIT}")
    assert "there is no file in the diff" in faults_of("diff -r a b\n")


def test_a_removed_line_that_looks_like_a_file_header_is_a_removed_line() -> None:
    diff = f"--- a/{PATH}\n+++ b/{PATH}\n@@ -1,2 +1,2 @@\n--- old\n+++ new\n c\n"
    outcome, data = apply_one(diff, "-- old\nc\n")
    assert (outcome.outcome, data) == ("applied", b"++ new\nc\n")


def test_a_mail_signature_after_the_diff_is_no_part_of_it() -> None:
    assert apply_one(EDIT + "-- \n2.39.2\n\n", "old\n")[1] == b"new\n"


def test_a_patch_without_a_diff_is_refused() -> None:
    assert "there is no diff after the header" in faults_of("")


@pytest.mark.parametrize(
    ("diff", "expected"),
    [
        ("--- /dev/null\n+++ b/sglang/n.py\n@@ -0,0 +1 @@\n+a\n", "adds a file; carry it"),
        ("--- a/sglang/n.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "deletes a file"),
        ("--- a/sglang/n.py\n+++ b/sglang/m.py\n@@ -1 +1 @@\n-a\n+b\n", "renames a file"),
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", "changes a file's mode"),
        ("diff --git a/x b/y\nsimilarity index 90%\nrename from x\nrename to y\n", "renames"),
        ("diff --git a/x b/x\nindex 1..2 100644\nBinary files a/x and b/x differ\n", "changes a binary file"),
        ("diff --git a/x b/x\nindex 1..2 100644\nGIT binary patch\nliteral 3\n", "changes a binary file"),
        (EDIT + EDIT, "stands there 2 times"),
    ],
)
def test_a_patch_is_edits_of_existing_text_files_only(diff: str, expected: str) -> None:
    assert expected in faults_of(diff)


def test_more_than_two_lines_of_context_are_refused_where_they_start() -> None:
    lines = "".join(f"{n}\n" for n in range(1, 10))
    edited = lines.replace("5\n", "five\n")
    assert read_patch(make_diff(lines.encode(), edited.encode(), context=2))
    text = faults_of(make_diff(lines.encode(), edited.encode(), context=3))
    assert "line 7: 3 lines of context where 2 are allowed" in text  # the first of them
    assert "line 14: 3 lines of context where 2 are allowed" in text  # the last of them
    between = "@@ -1,7 +1,7 @@\n-a\n+A\n 1\n 2\n 3\n 4\n 5\n-b\n+B\n"
    assert "5 lines of context where 4 are allowed" in faults_of(f"--- a/{PATH}\n+++ b/{PATH}\n{between}")


@pytest.mark.parametrize(
    ("written", "strip"),
    [("a/sglang/srt/a.py", 1), ("sglang/srt/a.py", 0), ("a/python/sglang/srt/a.py", 2), ("python/sglang/srt/a.py", 1)],
)
def test_the_strip_level_is_found_by_the_trees_paths_and_recorded(written: str, strip: int) -> None:
    outcome, data = apply_one(EDIT.replace("a/sglang/srt/a.py", written).replace("b/sglang/srt/a.py", written), "old\n")
    assert (outcome.outcome, outcome.strip, outcome.paths, data) == ("applied", strip, (PATH,), b"new\n")


def test_an_ambiguous_strip_level_is_refused() -> None:
    series = apply([read_patch(EDIT)], {PATH: "old\n", "srt/a.py": "old\n"})
    assert series.outcomes[0].outcome == "rejected"
    assert "ambiguous: sglang/srt/a.py and srt/a.py are both in the tree" in series.outcomes[0].reason
    assert not series.edits


def test_files_that_fit_at_different_strip_levels_are_refused() -> None:
    other = EDIT.replace("/sglang/srt/a.py", "/python/sglang/b.py")
    series = apply([read_patch(EDIT + other)], {PATH: "old\n", "sglang/b.py": "old\n"})
    assert "different numbers of leading folders" in series.outcomes[0].reason


def test_a_target_that_is_not_there_is_named_with_its_namesake() -> None:
    header = "Description: x\nNeeded-If: not exists sglang/none.py\n\n"
    series = apply([read_patch(EDIT, header=header)], {"sglang/elsewhere/a.py": "old\n"})
    assert series.outcomes[0].outcome == "rejected"
    assert "a/sglang/srt/a.py is not in the tree (there is sglang/elsewhere/a.py)" in series.outcomes[0].reason


# -- C1: exact or not at all -------------------------------------------------------------------------------------------

TARGET = textwrap.dedent(
    """\
    class Target:
        def step(self):
            prepare(self)
            run()
            finish(self)


    class Draft:
        def step(self):
            begin()
            run()
            finish(self)
            end()
    """
)
INSERTION = make_diff(TARGET.encode(), TARGET.replace("run()\n", "run()\n        log()\n", 1).encode())


def test_exact_context_at_its_place_is_applied_without_offset() -> None:
    outcome, data = apply_one(INSERTION, TARGET)
    assert (outcome.outcome, outcome.offset, outcome.kept) == ("applied", (0,), True)
    assert data == TARGET.replace("run()\n", "run()\n        log()\n", 1).encode()


def test_a_look_alike_is_named_and_never_patched() -> None:
    refactored = TARGET.replace("        prepare(self)\n        run()\n        finish(self)\n", "        go(self)\n", 1)
    outcome, data = apply_one(INSERTION, refactored)
    assert (outcome.outcome, outcome.kept, data) == ("rejected", False, None)
    assert f"hunk 1 of {PATH} does not match" in outcome.reason
    assert "only its inner lines stand at line 9 in Draft.step" in outcome.reason
    assert "line 8 is 'begin()', the patch wants 'prepare(self)'" in outcome.reason


def test_a_unique_exact_place_elsewhere_is_taken_and_its_offset_recorded() -> None:
    outcome, data = apply_one(INSERTION, "import os\n\n" + TARGET)
    assert (outcome.outcome, outcome.offset) == ("applied", (2,))
    assert data == b"import os\n\n" + TARGET.replace("run()\n", "run()\n        log()\n", 1).encode()


TWINS = "def a():\n    run()\n    end()\n\n\ndef b():\n    run()\n    end()\n"
TWIN_EDIT = (
    f"--- a/{PATH}\n+++ b/{PATH}\n@@ -{{line}},2 +{{line}},3 @@{{heading}}\n     run()\n+    log()\n     end()\n"
)


def test_two_exact_places_are_ambiguous_unless_the_patch_names_the_line() -> None:
    outcome, data = apply_one(TWIN_EDIT.format(line=3, heading=""), TWINS)
    assert (outcome.outcome, data) == ("rejected", None)
    assert "is ambiguous" in outcome.reason
    assert "its old text stands at line 2 in a" in outcome.reason
    assert "its old text stands at line 7 in b" in outcome.reason
    outcome, data = apply_one(TWIN_EDIT.format(line=7, heading=""), TWINS)
    assert data == TWINS.encode()[:-10] + b"    log()\n    end()\n"


def test_a_hunks_heading_tells_two_places_apart() -> None:
    outcome, data = apply_one(TWIN_EDIT.format(line=3, heading=" def b():"), TWINS)
    assert (outcome.outcome, outcome.offset) == ("applied", (4,))
    assert data is not None
    assert data.index(b"log()") > data.index(b"def b")


def test_text_in_another_function_than_the_heading_names_is_refused() -> None:
    outcome, data = apply_one(TWIN_EDIT.format(line=2, heading=" def c():"), TWINS)
    assert (outcome.outcome, data) == ("rejected", None)
    assert "is for c, and its text stands at line 2 in a" in outcome.reason


def test_a_line_number_counts_only_while_the_other_hunks_bear_it_out() -> None:
    first = "@@ -1 +1 @@\n-first\n+1st\n"
    both = TWIN_EDIT.format(line=7, heading="").replace("@@ -7", first + "@@ -7", 1)
    twins = "first\n    run()\n    end()\n\n\n\n    run()\n    end()\n"
    assert apply_one(both, twins)[0].offset == (0, 0)
    moved = "\nfirst\n    run()\n    end()\n\n\n    run()\n    end()\n"
    outcome, data = apply_one(both, moved)
    assert (outcome.outcome, data) == ("rejected", None)
    assert "its neighbours do not stand where the patch says" in outcome.reason


def test_hunks_that_would_change_places_are_refused() -> None:
    diff = f"--- a/{PATH}\n+++ b/{PATH}\n@@ -1 +1 @@\n-a\n+A\n@@ -3 +3 @@\n-b\n+B\n"
    assert apply_one(diff, "a\n\nb\n")[1] == b"A\n\nB\n"
    outcome, _ = apply_one(diff, "b\n\na\n")
    assert "fit only in another order (lines 3 and 1)" in outcome.reason


# -- already there -----------------------------------------------------------------------------------------------------


def test_text_that_is_already_there_is_recognised_by_content() -> None:
    patched = "\n\n" + TARGET.replace("run()\n", "run()\n        log()\n", 1)
    outcome, data = apply_one(INSERTION, patched)
    assert (outcome.outcome, outcome.kept, data, outcome.offset) == ("already present", False, None, (2,))
    assert outcome.fact.startswith(f"hunk 1 of {PATH} stands at line 5; ")


def test_an_addition_at_the_end_is_not_added_twice() -> None:
    diff = make_diff(b"a\nb\n", b"a\nb\nc\n")
    assert apply_one(diff, "a\nb\n")[1] == b"a\nb\nc\n"
    assert apply_one(diff, "a\nb\nc\n")[0].outcome == "already present"
    assert apply_one(diff, "x\na\nb\nc\n")[0].outcome == "already present"


def test_a_removal_at_the_end_is_still_to_be_done() -> None:
    diff = make_diff(b"a\nb\nc\n", b"a\nb\n")
    assert apply_one(diff, "a\nb\nc\n")[1] == b"a\nb\n"
    assert apply_one(diff, "a\nb\n")[0].outcome == "already present"


def test_old_and_new_text_in_two_places_are_ambiguous() -> None:
    diff = f"--- a/{PATH}\n+++ b/{PATH}\n@@ -9 +9 @@\n-a\n+b\n"
    outcome, data = apply_one(diff, "a\nx\nb\n")
    assert (outcome.outcome, data) == ("rejected", None)
    assert "it may be there already" in outcome.reason


def test_a_patch_that_is_there_in_part_is_refused() -> None:
    diff = f"--- a/{PATH}\n+++ b/{PATH}\n@@ -1 +1 @@\n-a\n+A\n@@ -3 +3 @@\n-b\n+B\n"
    outcome, data = apply_one(diff, "A\n\nb\n")
    assert (outcome.outcome, data) == ("rejected", None)
    assert f"only a part of it is there already: hunk 1 of {PATH}" in outcome.reason


# -- C10: line endings, byte order mark, end of file -------------------------------------------------------------------


def test_a_crlf_patch_against_an_lf_file_differs_only_in_line_endings() -> None:
    crlf = read_patch((EDIT.replace("\n", "\r\n")), header=HEADER.replace("\n", "\r\n"))
    series = apply([crlf], {PATH: b"old\n"})
    assert series.outcomes[0].outcome == "rejected"
    assert "differs only in line endings from line 1 (patch CRLF, file LF)" in series.outcomes[0].reason
    assert not series.edits


def test_an_lf_patch_against_a_crlf_file_differs_only_in_line_endings() -> None:
    outcome, data = apply_one(EDIT, b"old\r\n")
    assert (outcome.outcome, data) == ("rejected", None)
    assert "differs only in line endings from line 1 (patch LF, file CRLF)" in outcome.reason


def test_a_crlf_patch_fits_a_crlf_file() -> None:
    crlf = read_patch((EDIT.replace("\n", "\r\n")), header=HEADER.replace("\n", "\r\n"))
    assert crlf.files[0].path == "a/sglang/srt/a.py"
    assert apply([crlf], {PATH: b"old\r\n"}).edits == {PATH: b"new\r\n"}


def test_a_removed_line_of_dashes_keeps_its_carriage_return() -> None:
    diff = make_diff(b"-- x\r\ny\r\n", b"++ z\r\ny\r\n")
    assert apply_one(diff, b"-- x\r\ny\r\n")[1] == b"++ z\r\ny\r\n"


def test_a_byte_order_mark_stays_where_it_is() -> None:
    data = b"\xef\xbb\xbfold\nnext\n"
    assert apply_one(make_diff(data, data.replace(b"next", b"later")), data)[1] == data.replace(b"next", b"later")
    outcome, _ = apply_one(EDIT, data)
    assert "differs only in the byte order mark from line 1" in outcome.reason


def test_bytes_that_are_not_utf_8_pass_unchanged() -> None:
    data = b"# caf\xe9\nold\n"
    assert apply_one(make_diff(data, b"# caf\xe9\nnew\n"), data)[1] == b"# caf\xe9\nnew\n"


@pytest.mark.parametrize(
    ("old", "new"), [(b"a\nb", b"a\nc"), (b"a\nb", b"a\nb\n"), (b"a\nb\n", b"a\nb"), (b"a", b"a\nb")]
)
def test_a_file_without_a_newline_at_its_end(old: bytes, new: bytes) -> None:
    diff = make_diff(old, new)
    assert apply_one(diff, old)[1] == new
    assert apply_one(diff, new)[0].outcome == "already present"


def test_text_without_a_newline_never_stands_before_other_text() -> None:
    outcome, data = apply_one(make_diff(b"a\nb\n", b"a\nb"), b"a\nb\nmore\n")
    assert (outcome.outcome, data) == ("rejected", None)


def test_a_missing_newline_is_told_apart_from_other_line_endings() -> None:
    outcome, _ = apply_one(EDIT, b"old")
    assert "differs only in line endings from line 1 (the newline at the end of the file)" in outcome.reason


def test_other_white_space_is_told_and_not_ignored() -> None:
    outcome, data = apply_one(EDIT, b"    old\n")
    assert (outcome.outcome, data) == ("rejected", None)
    assert "differs only in white space from line 1" in outcome.reason


# -- Needed-If and Applies-To ------------------------------------------------------------------------------------------

ALIAS = (
    "--- a/sglang/user.py\n+++ b/sglang/user.py\n@@ -1,1 +1,1 @@\n"
    "-from sglang.lib import pub_len\n+from sglang.lib import _pub_len as pub_len\n"
)
ALIAS_HEADER = (
    "Description: Import pub_len under its older name\n"
    "Needed-If: defines sglang/lib.py _pub_len and not defines sglang/lib.py pub_len\n\n"
)
USER = "from sglang.lib import pub_len\n"
OLDER, NEWER = "def _pub_len(): ...\n", "def pub_len(): ...\n"


@pytest.mark.parametrize(
    ("library", "outcome", "fact"),
    [
        (OLDER, "applied", "sglang/lib.py:1 defines _pub_len; sglang/lib.py has no pub_len"),  # D1 A
        (NEWER, "not needed", "sglang/lib.py has no _pub_len"),  # D1 B
        (OLDER + NEWER, "not needed", "sglang/lib.py:2 defines pub_len"),  # D1 C
        ("", "not needed", "sglang/lib.py has no _pub_len"),  # D1 D: compat.check refuses what is left
    ],
)
def test_an_edit_is_made_where_it_is_needed_and_the_fact_says_why(library: str, outcome: str, fact: str) -> None:
    series = apply([read_patch(ALIAS, header=ALIAS_HEADER)], {"sglang/lib.py": library, "sglang/user.py": USER})
    assert (series.outcomes[0].outcome, series.outcomes[0].fact) == (outcome, fact)
    assert bool(series.edits) == (outcome == "applied")


def test_an_unknown_condition_refuses() -> None:
    files = {"sglang/lib.py": "def (\n", "sglang/user.py": USER}
    series = apply([read_patch(ALIAS, header=ALIAS_HEADER)], files)
    assert series.outcomes[0].outcome == "rejected"
    assert series.outcomes[0].reason.startswith("whether it is needed is unknown: sglang/lib.py: line 1 does not parse")


def test_a_condition_sees_the_base_and_the_edits_before_it() -> None:
    first = read_patch(EDIT, id="topic/0001-first")
    header = 'Description: x\nNeeded-If: contains sglang/srt/a.py "new" and base:contains sglang/srt/a.py "old"\n\n'
    second = read_patch(
        f"--- a/{PATH}\n+++ b/{PATH}\n@@ -1 +1 @@\n-new\n+last\n", header=header, id="topic/0002-second"
    )
    series = apply([first, second], {PATH: b"old\n"})
    assert [outcome.outcome for outcome in series.outcomes] == ["applied", "applied"]
    assert series.edits == {PATH: b"last\n"}


@pytest.mark.parametrize(
    ("version", "outcome", "fact"),
    [
        ("0.5.17", "applied", "the base's version 0.5.17 is in Applies-To"),
        ("0.5.17.post1", "applied", "0.5.17.post1 is in"),
        ("0.5.18rc1", "applied", "0.5.18rc1 is in"),
        ("0.5.19", "not needed", "the base's version 0.5.19 is not in Applies-To"),
        ("0.0.0.dev0+qwen38.27b.g561c8f3", "rejected", "which is no release"),
        (None, "rejected", "the base's version is not known"),
        ("built by hand", "rejected", "the base's version is built by hand"),
    ],
)
def test_applies_to_counts_only_where_the_version_means_something(version: str | None, outcome: str, fact: str) -> None:
    header = HEADER.rstrip("\n") + "\nApplies-To: >=0.5.16,<0.5.19\n\n"
    series = apply([read_patch(EDIT, header=header)], {PATH: b"old\n"}, version=version)
    assert series.outcomes[0].outcome == outcome
    assert fact in series.outcomes[0].fact


def test_a_condition_that_is_false_needs_no_version() -> None:
    header = "Description: x\nNeeded-If: exists sglang/none.py\nApplies-To: >=0.5.16\n\n"
    assert apply([read_patch(EDIT, header=header)], {PATH: b"old\n"}).outcomes[0].outcome == "not needed"


def test_a_capability_that_is_taken_away_is_said_only_where_it_is() -> None:
    header = HEADER.rstrip("\n") + "\nRemoves: logprobs\n\n"
    assert apply_one(EDIT, b"old\n", header=header)[0].removes == "logprobs"
    assert apply_one(EDIT, b"new\n", header=header)[0].removes == "logprobs"
    assert apply_one(EDIT, b"other\n", header=header)[0].removes == ""


# -- C3: all or none ---------------------------------------------------------------------------------------------------


def three_patches() -> list[Patch]:
    edits = [("one", "ONE"), ("two", "TWO"), ("three", "THREE")]
    return [
        read_patch(f"--- a/{PATH}\n+++ b/{PATH}\n@@ -{line} +{line} @@\n-{old}\n+{new}\n", id=f"topic/000{line}-{old}")
        for line, (old, new) in enumerate(edits, 1)
    ]


def test_one_rejected_patch_keeps_all_from_being_applied_and_all_are_reported() -> None:
    series = apply(three_patches(), {PATH: "one\nchanged\nthree\n"})
    assert series.is_rejected
    assert series.edits == {}
    assert [(outcome.outcome, outcome.kept) for outcome in series.outcomes] == [
        ("applied", False),
        ("rejected", False),
        ("applied", False),
    ]
    assert f"hunk 1 of {PATH} does not match" in series.outcomes[1].reason
    assert "the file has no line 'two'" in series.outcomes[1].reason


def test_a_patch_after_a_rejected_one_is_tried_on_the_tree_without_it() -> None:
    patches = three_patches()
    bad = read_patch(
        f"--- a/{PATH}\n+++ b/{PATH}\n@@ -1 +1 @@\n-ONE\n+1\n@@ -9 +9 @@\n-none\n+NONE\n", id="topic/0009-bad"
    )
    header = f'Description: x\nNeeded-If: contains {PATH} "ONE"\n\n'
    last = read_patch(f"--- a/{PATH}\n+++ b/{PATH}\n@@ -1 +1 @@\n-ONE\n+uno\n", header=header, id="topic/0010-last")
    outcomes = apply([patches[0], bad, last], {PATH: "one\ntwo\nthree\n"}).outcomes
    assert [outcome.outcome for outcome in outcomes] == ["applied", "rejected", "applied"]


def test_all_patches_of_a_series_are_kept_when_none_is_rejected() -> None:
    series = apply(three_patches(), {PATH: "one\ntwo\nthree\n"})
    assert [(outcome.outcome, outcome.kept) for outcome in series.outcomes] == [("applied", True)] * 3
    assert series.edits == {PATH: b"ONE\nTWO\nTHREE\n"}


def test_a_patch_on_two_files_edits_both_or_none() -> None:
    diff = EDIT + EDIT.replace("srt/a.py", "srt/b.py")
    both = apply([read_patch(diff)], {PATH: "old\n", "sglang/srt/b.py": "old\n"})
    assert both.edits == {PATH: b"new\n", "sglang/srt/b.py": b"new\n"}
    assert both.outcomes[0].offset == (0, 0)
    one = apply([read_patch(diff)], {PATH: "old\n", "sglang/srt/b.py": "other\n"})
    assert one.edits == {}


def test_a_patch_that_is_named_twice_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"topic/0001-mend stands there twice"):
        apply([read_patch(EDIT), read_patch(EDIT)], {PATH: "old\n"})


def test_the_same_edit_under_two_names_is_made_once() -> None:
    series = apply([read_patch(EDIT), read_patch(EDIT, id="topic/0002-again")], {PATH: "old\n"})
    assert [outcome.outcome for outcome in series.outcomes] == ["applied", "already present"]


def test_a_target_that_is_a_link_is_refused() -> None:
    def read(path: str) -> bytes | None:
        raise InputError(path, "is a link in the base")

    header = "Description: x\nNeeded-If: not base:exists sglang/none.py\n\n"
    series = apply_series([read_patch(EDIT, header=header)], read, {PATH}, lambda path: None, None)
    assert series.outcomes[0].reason == f"{PATH} is a link in the base"


# -- the shipped patches on real trees ---------------------------------------------------------------------------------

SHIPPED = sorted((Path(__file__).parents[1] / "patches").glob("*/*.patch"))
ALIAS_ID = "dflash2/0001-simulated-acc-len-alias"


@pytest.mark.parametrize(
    ("version", "outcome"), [("0.5.16", "applied"), ("0.5.17", "applied"), ("0.5.18", "not needed")]
)
def test_the_shipped_patches_fit_the_stand_ins_files_on_real_bases(
    trees: Callable[[str], Path], version: str, outcome: str
) -> None:
    overlaid = ("srt/speculative/dflash_utils.py", "srt/speculative/dflash_worker_v2.py")

    def read_from(release: str, path: str) -> bytes | None:
        file = trees(release) / path
        return file.read_bytes() if file.is_file() else None

    def merged(path: str) -> bytes | None:
        return read_from("0.5.19" if path.removeprefix("sglang/") in overlaid else version, path)

    patches = [load(f"{path.parent.name}/{path.stem}", path.read_bytes(), str(path)) for path in SHIPPED]
    paths = {str(path.relative_to(trees(version))) for path in (trees(version) / "sglang").rglob("*.py")}
    series = apply_series(patches, merged, paths, lambda path: read_from(version, path), version)
    assert not series.is_rejected, [outcome.reason for outcome in series.outcomes]
    assert {found.id: found.outcome for found in series.outcomes}[ALIAS_ID] == outcome


# -- properties --------------------------------------------------------------------------------------------------------

ENDINGS = st.sampled_from([b"\n", b"\r\n"])


@st.composite
def edits(draw: st.DrawFn, *, distinct: bool) -> tuple[bytes, bytes]:
    """Return a file and an edited version of it, with and without newlines at the ends."""
    words = st.binary(min_size=0, max_size=4).map(lambda word: word.replace(b"\n", b"-").replace(b"\r", b"+"))
    few = st.sampled_from([b"x", b"y", b"-- x", b"++ y", b""])
    lines = draw(st.lists(words if distinct else few, min_size=1, max_size=14))
    if distinct:
        lines = [b"%d %s" % (number, line) for number, line in enumerate(lines)]
    ending = draw(ENDINGS)
    old = [line + ending for line in lines]
    new = [*old]
    for number in draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)):
        at = draw(st.integers(0, len(new)))
        added = [b"new %d" % number + ending] if distinct else [draw(few) + ending]
        new[at : at + draw(st.integers(0, 2))] = added * draw(st.integers(0, 1))
    sides = [b"".join(old), b"".join(new)]
    if draw(st.booleans()):
        sides = [side.removesuffix(ending) for side in sides]
    return sides[0], sides[1]


def try_to_read(old: bytes, new: bytes) -> Patch | None:
    try:
        return read_patch(make_diff(old, new))
    except InputError:
        return None  # no change at all, or one that leaves nothing to find its place by


@given(edits(distinct=True), st.lists(st.binary(max_size=3), max_size=3))
@settings(max_examples=300, deadline=None)
def test_an_edit_of_distinct_lines_is_applied_exactly_and_then_recognised(
    sides: tuple[bytes, bytes], above: list[bytes]
) -> None:
    old, new = sides
    patch = try_to_read(old, new)
    if patch is None:
        return
    prefix = b"".join(b"above %d\n" % number for number in range(len(above)))
    series = apply([patch], {PATH: prefix + old})
    assert series.outcomes[0].outcome == "applied", series.outcomes[0].reason
    assert series.edits[PATH] == prefix + new
    assert set(series.outcomes[0].offset) == {len(above)}
    again = apply([patch], {PATH: prefix + new})
    assert (again.outcomes[0].outcome, again.edits) == ("already present", {})


@given(edits(distinct=False))
@settings(max_examples=500, deadline=None)
def test_lines_that_repeat_are_edited_rightly_or_not_at_all(sides: tuple[bytes, bytes]) -> None:
    old, new = sides
    patch = try_to_read(old, new)
    if patch is None:
        return
    series = apply([patch], {PATH: old})
    if series.outcomes[0].outcome == "applied":
        assert series.edits.get(PATH, old) == new
    else:
        assert (series.outcomes[0].outcome, series.edits) == ("rejected", {})
    again = apply([patch], {PATH: new})
    assert again.outcomes[0].outcome in ("already present", "rejected")
    assert again.edits == {}


@given(edits(distinct=True), st.integers(0, 30), st.binary(max_size=3))
@settings(max_examples=300, deadline=None)
def test_bytes_outside_the_hunks_never_change(sides: tuple[bytes, bytes], at: int, noise: bytes) -> None:
    old, new = sides
    patch = try_to_read(old, new)
    if patch is None:
        return
    damaged = old[:at] + noise + old[at:]
    series = apply([patch], {PATH: damaged})
    if series.outcomes[0].outcome != "applied":
        assert series.edits == {}
        return
    hunks = patch.files[0].hunks
    rest = damaged
    edited = series.edits[PATH]
    for hunk in hunks:
        before, _, rest = rest.partition(b"".join(hunk.old))
        assert edited.startswith(before + b"".join(hunk.new))
        edited = edited[len(before + b"".join(hunk.new)) :]
    assert edited == rest


SNIPPETS = [b"", b"-", b"+", b"\n", b"\\ ", b"\r", b"@@ -1 +1 @@\n", b"--- a/x\n+++ b/x\n"]
MUTATIONS = st.lists(
    st.tuples(st.integers(0, 200), st.integers(0, 12), st.sampled_from(SNIPPETS)), min_size=1, max_size=4
)


@given(MUTATIONS)
@settings(max_examples=500, deadline=None)
def test_a_damaged_patch_is_read_or_refused_with_a_reason(mutations: list[tuple[int, int, bytes]]) -> None:
    data = HEADER.encode() + make_diff(b"a\nb\nc\nd\n-- e", b"a\nB\nc\nD\n-- f\n") + EDIT.encode()
    for at, length, replacement in mutations:
        data = data[:at] + replacement + data[at + length :]
    try:
        patch = load("topic/0001-mend", data, "p.patch")
    except InputError:
        return
    assert patch.files
    assert all(hunk.old and hunk.new and hunk.old != hunk.new for edit in patch.files for hunk in edit.hunks)
