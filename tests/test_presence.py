"""Presence is judged by definitions and lines, never by reversing a diff."""

from __future__ import annotations

import pytest

from builder.presence import Versions, definitions, judge

PARENT = b"import os\n\n\ndef kept():\n    return 1\n\n\nclass A:\n    def f(self):\n        return 1\n"
RESULT = PARENT.replace(b"        return 1\n", b"        return 2\n\n    def g(self):\n        return 'new one'\n")


def presence(ours: bytes | None, mentioned: tuple[str, ...] = (), parent: bytes = PARENT, result: bytes = RESULT):
    return judge("sglang/a.py", Versions(ours, parent, result), lambda name: name in mentioned)


def test_a_form_feed_is_no_line_end_where_the_lines_of_a_definition_are_compared():
    text = b'S = "\x0c"\n\n\ndef g():\n    a = 1\n    return a + %d\n'
    one, other = definitions(text % 1)["g"], definitions(text % 2)["g"]
    assert one.lines == ("def g():", "    a = 1", "    return a + 1")
    assert not one.is_same_as(other)


def test_the_result_itself_is_exact():
    assert presence(RESULT).presence == "exact"


def test_the_parent_is_absent():
    assert presence(PARENT).presence == "absent"


def test_a_missing_file_is_absent():
    assert presence(None).presence == "absent"


def test_all_definitions_there_with_later_edits_is_changed():
    later = RESULT.replace(b"return 2", b"return 3").replace(b"import os", b"import os\nimport sys")
    found = presence(later)
    assert found.presence == "changed"
    assert "1 added and 1 changed" in found.fact


def test_one_added_method_removed_is_absent_and_named():
    found = presence(RESULT.replace(b"def g(", b"def h("))
    assert found.presence == "absent"
    assert found.missing_definitions == ("A.g",)


def test_a_changed_method_that_is_as_before_is_absent():
    found = presence(RESULT.replace(b"return 2", b"return 1"))
    assert found.presence == "absent"
    assert "A.f" in found.fact


def test_a_share_of_lines_alone_decides_nothing():
    many = b"\n".join(b"def n%d():\n    return 'line %d'\n" % (i, i) for i in range(40))
    result = PARENT + many
    ours = PARENT + many.replace(b"def n39(", b"def renamed(")
    assert presence(ours, result=result).presence == "absent"


def test_a_changed_definition_removed_since_does_not_count_unless_it_is_still_used():
    ours = RESULT.replace(b"    def f(self):\n        return 2\n\n", b"")
    assert presence(ours).presence == "changed"
    assert presence(ours, mentioned=("f",)).presence == "absent"


@pytest.mark.parametrize("ours", [b"def (:\n", b"\xff\xfe"])
def test_what_does_not_parse_is_unknown(ours):
    assert presence(ours).presence == "unknown"


def test_a_change_without_definitions_is_unknown_unless_equal():
    parent, result = b"import os\n", b"import sys\n"
    assert presence(b"import re\n", parent=parent, result=result).presence == "unknown"
    assert presence(result, parent=parent, result=result).presence == "exact"


def test_a_merge_that_alters_nothing_is_exact():
    ours = RESULT + b"\n\ndef local():\n    pass\n"
    assert judge("sglang/a.py", Versions(ours, PARENT, RESULT, merged=ours), lambda _: False).presence == "exact"


def test_data_files_are_judged_by_content_alone():
    versions = Versions(b"a: 3\n", b"a: 1\n", b"a: 2\n")
    assert judge("sglang/a.yaml", versions, lambda _: False).presence == "unknown"


def test_somebodys_own_edit_of_a_changed_definition_is_no_sign_of_the_change():
    parent = b"def f():\n    return 1\n"
    result = b"def f():\n    return 2\n"
    found = presence(b"def f():\n    return 'mine'\n", parent=parent, result=result)
    assert found.presence == "unknown"
    assert "f differs" in found.fact


def test_a_change_that_only_takes_lines_away_is_there_when_they_are_gone():
    parent = b"def f():\n    check()\n    return 1\n"
    result = b"def f():\n    return 1\n"
    assert presence(b"def f():\n    log()\n    return 1\n", parent=parent, result=result).presence == "changed"
    assert presence(b"def f():\n    check()\n    log()\n", parent=parent, result=result).presence == "unknown"
