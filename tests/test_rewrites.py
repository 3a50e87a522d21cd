"""An edit of a source is exact to the byte, and its diff is a compat patch that makes just this edit."""

from __future__ import annotations

import pytest

from builder import rewrites
from builder.model import Tree
from builder.proposals import Draft, in_sequence, patch_text
from builder.rewrites import Rewrite, Source
from builder.symbols import UnreadableError

NAME = "n" * 70
LONG = f"from m import {NAME}\n"


def done(text: str, edits: tuple[Rewrite, ...] | None) -> str | None:
    return None if edits is None else rewrites.apply(text.encode(), edits).decode()


@pytest.mark.parametrize(
    ("text", "line", "name", "expected"),
    [
        ("from m import x\n", 1, "x", "from m import _x as x\n"),
        ("from m import x as y\n", 1, "x", "from m import _x as y\n"),
        ("from m import a, x, b\n", 1, "x", "from m import a, _x as x, b\n"),
        ("from m import (\n    a,\n    x,\n)\n", 3, "x", "from m import (\n    a,\n    _x as x,\n)\n"),
        (LONG, 1, NAME, f"from m import (\n    _x as {NAME},\n)\n"),
        (
            f"if y:\r\n    from m import {NAME}\r\n",
            2,
            NAME,
            f"if y:\r\n    from m import (\r\n        _x as {NAME},\r\n    )\r\n",
        ),
        ("import os\nfrom m import other\n", 2, "x", None),
        ("from m import x; 'é'; from n import x\n", 1, "x", "from m import _x as x; 'é'; from n import x\n"),
    ],
)
def test_an_import_takes_another_name(text, line, name, expected):
    assert done(text, rewrites.alias_import(Source(text.encode()), line, name, "_x")) == expected


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("from m import x\ny = 1\n", 1, "y = 1\n"),
        ("from m import x  # why\ny = 1\n", 1, "y = 1\n"),
        ("from m import a, x\n", 1, "from m import a\n"),
        ("from m import x, a\n", 1, "from m import a\n"),
        ("from m import (a, x)\n", 1, "from m import (a)\n"),
        ("from m import (\n    a,\n    x,\n)\n", 3, "from m import (\n    a,\n)\n"),
        ("from m import (\n    a,\n    x\n)\n", 3, "from m import (\n    a\n)\n"),
        ("def f():\n    from m import x\n", 2, "def f():\n    pass\n"),
        ("z = 1; from m import x\n", 1, None),
    ],
)
def test_an_import_goes(text, line, expected):
    assert done(text, rewrites.drop_import(Source(text.encode()), line, "x")) == expected


@pytest.mark.parametrize(
    ("rest", "is_used"),
    [
        ("", False),
        ("# x\n", False),
        ("y = xx\n", False),
        ("x()\n", True),
        ("__all__ = ['x']\n", True),
        ("y: 'x'\n", True),
    ],
)
def test_a_name_is_used_where_it_stands_but_in_a_comment(rest, is_used):
    assert rewrites.is_used(Source(f"from m import x\n{rest}".encode()), "x", 1) is is_used


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("f(a, k=1)\n", 1, "f(a)\n"),
        ("f(k=1, b=2)\n", 1, "f(b=2)\n"),
        ("f(k=1)\n", 1, "f()\n"),
        ("f(\n    k=(\n        1\n    ),\n)\n", 2, "f(\n    \n)\n"),
        ("f(\n    a,\n    k=(\n        g()\n    ),\n    b=2,\n)\n", 3, "f(\n    a,\n    b=2,\n)\n"),
        ("f(a)\n", 1, None),
    ],
)
def test_a_keyword_goes(text, line, expected):
    assert done(text, rewrites.drop_keyword(Source(text.encode()), line, "k")) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("if y:\n    x(\n        1,\n    )\n", "if y:\n    pass\n"),
        ("def f():\n    x()\n    return 1\n", "def f():\n    return 1\n"),
        ("y = x()\n", None),
        ("x()\ny = x\n", None),
        ("y(x())\n", None),
        ("x(); y()\n", None),
    ],
)
def test_a_call_goes_only_where_its_value_is_used_nowhere(text, expected):
    assert done(text, rewrites.drop_calls(Source(text.encode()), "x")) == expected


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("s = 'é'; f(old=a.old, b=b.old)  # old\n", 16, "s = 'é'; f(old=a.new, b=b.old)  # old\n"),
        ("s = 'é'; f(old=a.old, b=b.old)  # old\n", 25, "s = 'é'; f(old=a.old, b=b.new)  # old\n"),
        ("a.old.older = old\n", 0, "a.new.older = old\n"),
        ("\ufeffa.old\n", 1, "\ufeffa.new\n"),
        ("(a\n .old)\n", 2, "(a\n .new)\n"),
        ("f(a.old, b.old)\n", 0, None),
        ("a.old.old\n", 1, None),
        ("a.old\n", 2, None),
    ],
)
def test_only_the_attribute_whose_expression_starts_there_is_renamed(text, column, expected):
    source = Source(text.encode())
    node = rewrites.attribute_at(source, 1, column, "old")
    assert done(text, rewrites.rename(source, [node], "new") if node else None) == expected


@pytest.mark.parametrize(
    ("head", "more", "is_seen"),
    [
        ("def f(c, d):\n", "c.q", True),
        ("def f(c, d):\n", "[c.q for x in d]", True),
        ("def f(c, d):\n", "d.q", False),
        ("def f(c, d):\n    c = d\n", "c.q", False),
        ("def f(c, d):\n    for c in d: pass\n", "c.q", False),
        ("def f(c, d):\n    g = lambda c: c\n", "c.q", False),
        ("def f(c, d):\n    import c\n", "c.q", False),
        ("def f(c, d):\n    if isinstance(c, int): pass\n", "c.q", False),
        ("def f(c, d):\n    match c:\n        case int(): pass\n", "c.q", False),
        ("def f(c, d):\n    if not isinstance(c, C):\n        raise d\n", "c.q", True),
        ("def f(c, d):\n    assert isinstance(c, m.C)\n", "c.q", True),
        ("def f(c, d):\n    if not isinstance(c, D):\n        raise d\n", "c.q", False),
        ("def f(c, d):\n    if not isinstance(c, C):\n        d()\n", "c.q", False),
        ("def f(d):\n    global c\n", "c.q", False),
        ("def f(d):\n", "c.q", False),
    ],
)
def test_more_reads_are_of_the_same_object_only_where_its_variable_is_bound_once(head, more, is_seen):
    source = Source(f"{head}    c.q\n    {more}\n".encode())
    line = head.count("\n") + 1
    node = rewrites.attribute_at(source, line, 5, "q")
    assert node is not None
    assert (line + 1 in {part.lineno for part in rewrites.same_receiver(source, node, "C")}) is is_seen


@pytest.mark.parametrize(
    ("before", "is_seen"), [("", True), ("    self.c.x = 1\n", True), ("    self.c = other\n", False)]
)
def test_a_dotted_receiver_is_the_same_while_nothing_on_the_way_is_set(before, is_seen):
    source = Source(f"def f(self, other):\n    self.c.q\n{before}    self.c.q\n".encode())
    node = rewrites.attribute_at(source, 2, 5, "q")
    assert node is not None
    assert (len(rewrites.same_receiver(source, node, "C")) == 2) is is_seen


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from sglang import lib\nlib.old(o.old)\n", "from sglang import lib\nlib.new(o.old)\n"),
        ("import sglang.lib\nsglang.lib.old(o.old)\n", "import sglang.lib\nsglang.lib.new(o.old)\n"),
        ("from . import lib as m\nm.old\n", "from . import lib as m\nm.new\n"),
        ("from sglang import lib\nother.old\n", None),
        ("from sglang import lib; lib = other\nlib.old\n", None),
        ("from sglang import lib\n(lambda lib: lib.old)\n", None),
    ],
)
def test_a_name_read_through_a_module_is_told_from_other_attributes(text, expected):
    source = Source(text.encode())
    found = rewrites.through_module(source, 2, "sglang.lib", "old", "sglang/a.py")
    assert done(text, rewrites.rename(source, found or (), "new")) == expected


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("from m.n import x\nimport m.n\n", True),
        ("from m.n import x, y\n", True),
        ("from m.n import x\nfrom m.n.o import y\n", True),
        ("from m.n import x\nfrom m import n\n", True),
        ("from m.n import x\n", False),
        ("from m.n import x\nimport m\n", False),
        ("from m.n import x\nfrom m.nn import y\n", False),
        ("from m.n import x\ndef f():\n    import m.n\n", False),
    ],
)
def test_a_module_is_imported_still_where_another_import_of_it_runs_too(text, stays):
    assert rewrites.is_imported_still(Source(text.encode()), 1, "x", "m.n", "m/a.py") is stays


@pytest.mark.parametrize(
    ("text", "line", "function", "expected"),
    [
        ("f(g(k=1), k=2)\n", 1, "f", "f(g(k=1))\n"),
        ("f(g(k=1), k=2)\n", 1, "g", "f(g(), k=2)\n"),
        ("f(g(k=1), k=2)\n", 1, "h", None),
    ],
)
def test_of_two_calls_with_a_keyword_the_named_one_loses_it(text, line, function, expected):
    assert done(text, rewrites.drop_keyword(Source(text.encode()), line, "k", function)) == expected


@pytest.mark.parametrize(
    ("data", "is_editable"),
    [
        (b"x = 1\r\ny = 2\n", True),
        ("x = 'é\x0c'\n".encode(), True),
        (b"# coding: latin-1\nx = 1\n", True),
        (b"# coding: latin-1\nx = '\xe9'\n", False),
        ("# coding: latin-1\nx = 'é'\n".encode(), False),
        (b"x = 1\ry = 2\r", False),
    ],
)
def test_no_edit_is_made_of_a_source_whose_places_are_not_those_of_its_bytes(data, is_editable):
    if is_editable:
        assert Source(data).data == data
        return
    with pytest.raises(UnreadableError, match="no edit is made"):
        Source(data)


def test_a_byte_order_mark_is_no_column():
    text = "\ufefffrom m import x\n"
    assert done(text, rewrites.alias_import(Source(text.encode()), 1, "x", "_x")) == "\ufefffrom m import _x as x\n"


def tree(text: str) -> Tree:
    return Tree(frozenset({"sglang/a.py"}), {"sglang/a.py": text.encode()}.get)


def draft(*edits: Rewrite) -> Draft:
    return Draft("sglang/a.py", "slug", "Title", ("why",), ("exists sglang/a.py",), edits)


REPEATED = "def f():\n    call()\n\n\ndef g():\n    call()\n"


@pytest.mark.parametrize(
    ("text", "edits"),
    [
        ("a = 1\nb = 2\nc = 3\n", [(6, 12, "")]),
        ("a = 1\nb = 2\nc = 3\n", [(0, 0, "z = 0\n")]),
        ("a = 1\nb = 2\nc = 3", [(16, 17, "4")]),
        ("a = 1\r\nb = 2\r\n", [(4, 5, "7")]),
        (REPEATED, [(REPEATED.rindex("call"), REPEATED.rindex("call") + 4, "other")]),
        (
            REPEATED,
            [(REPEATED.index("call"), REPEATED.index("call") + 6, "pass"), (len(REPEATED), len(REPEATED), "x\n")],
        ),
        ("x = 'é'\ny = 1\n", [(5, 7, "e")]),
    ],
)
def test_the_patch_of_an_edit_loads_and_makes_just_this_edit(text, edits):
    made = draft(*(Rewrite(start, end, new.encode()) for start, end, new in edits))
    patch = patch_text("t/0001-slug", made, tree(text))
    assert patch is not None  # it is read and applied before it is given
    context = [line for line in patch.decode().splitlines() if line.startswith(" ") and not line.startswith(" why")]
    assert len(context) <= 4


def test_drafts_for_one_file_are_made_one_after_another():
    text = "a = 1\nb = 2\nc = 3\nd = 4\ne = 5\n"
    first, second = draft(Rewrite(0, 5, b"a = 1\naa = 1")), draft(Rewrite(22, 23, b"44"))
    moved = in_sequence([first, second], tree(text))
    assert moved[0] == first
    assert moved[1] is not None
    after = rewrites.apply(rewrites.apply(text.encode(), first.rewrites), moved[1].rewrites)
    assert after == b"a = 1\naa = 1\nb = 2\nc = 3\nd = 44\ne = 5\n"


def test_a_draft_that_touches_the_lines_of_an_earlier_one_is_left_for_later():
    first, second = draft(Rewrite(0, 5, b"a = 2")), draft(Rewrite(4, 5, b"3"))
    assert in_sequence([first, second], tree("a = 1\nb = 2\n"))[1] is None
