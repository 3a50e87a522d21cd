"""The language of Needed-If: what it reads, what it answers, and that it never guesses."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from builder.errors import InputError
from builder.predicates import Truth, evaluate, parse

NOTHING: Mapping[str, bytes] = {}


def ask(text: str, merged: Mapping[str, str | bytes], base: Mapping[str, str | bytes] | None = None) -> Truth:
    def read(tree: Mapping[str, str | bytes], path: str) -> bytes | None:
        data = tree.get(path)
        return data.encode() if isinstance(data, str) else data

    base = merged if base is None else base
    return evaluate(parse(text, "p:1"), lambda path: read(merged, path), lambda path: read(base, path))


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("exist sglang/x.py", 1, "did you mean 'exists'?"),
        ("base:define sglang/x.py f", 1, "did you mean 'base:defines'?"),
        ("exists sglang/x.py nad exists sglang/y.py", 20, "'and', 'or' or the end; found 'nad'"),
        ("exists a and nto exists b", 14, "did you mean 'not'?"),
        ("defines sglang/x.py", 20, "NAME[.ATTR] after 'defines'"),
        ("defines sglang/x.py a.b.c", 21, "more than one dot"),
        ("defines sglang/x.py 1x", 21, "not a Python name"),
        ("accepts sglang/x.py f", 22, "PARAMETER after 'accepts'"),
        ("(exists a", 10, "')', 'and' or 'or'"),
        ("exists a)", 9, "'and', 'or' or the end"),
        ("exists a or", 12, "found the end"),
        ("", 1, "found the end"),
        ("not", 4, "found the end"),
        ("contains sglang/x.py line", 22, '"LINE" after'),
        ('contains sglang/x.py "line', 22, "a string in double quotes"),
        ("exists python/sglang/x.py", 8, "did you mean 'sglang/x.py'?"),
        ("exists ../etc/passwd", 8, "not a path below"),
        ("exists /etc/passwd", 8, "not a path below"),
        ("exists and", 8, "PATH after 'exists'"),
    ],
)
def test_an_error_names_the_column_and_what_was_expected(text: str, column: int, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, "patches/a/0001-b.patch:4")
    assert caught.value.where == "patches/a/0001-b.patch:4"
    assert caught.value.message.startswith(f"column {column}: expected ")
    assert expected in caught.value.message
    line, caret = caught.value.facts
    assert line == text
    assert caret == " " * (column - 1) + "^"


def test_a_folded_expression_shows_the_line_that_is_wrong() -> None:
    with pytest.raises(InputError) as caught:
        parse("exists sglang/a.py and\nnot exsts sglang/b.py", "p:1")
    assert caught.value.message.startswith("column 5: ")
    assert caught.value.facts == ("not exsts sglang/b.py", "    ^")


def test_and_binds_tighter_than_or_and_not_tighter_than_both() -> None:
    tree = {"t": ""}
    assert ask("exists t or exists f and exists f", tree).value is True
    assert ask("(exists t or exists f) and exists f", tree).value is False
    assert ask("not exists t or exists t", tree).value is True
    assert ask("not (exists t or exists t)", tree).value is False


# -- three values ------------------------------------------------------------------------------------------------------

VALUES = {"exists t": True, "exists f": False, "defines broken name": None}
KLEENE_TREE = {"t": "", "broken": "def ("}


@pytest.mark.parametrize(("left", "right"), list(itertools.product(VALUES, VALUES)))
def test_unknown_is_carried_by_kleenes_tables(left: str, right: str) -> None:
    a, b = VALUES[left], VALUES[right]
    expected_and = False if False in (a, b) else None if None in (a, b) else True
    expected_or = True if True in (a, b) else None if None in (a, b) else False
    assert ask(f"{left} and {right}", KLEENE_TREE).value is expected_and
    assert ask(f"{left} or {right}", KLEENE_TREE).value is expected_or
    assert ask(f"not {left}", KLEENE_TREE).value is (None if a is None else not a)


def test_the_fact_is_that_of_the_part_which_decided() -> None:
    assert ask("exists t and exists f", KLEENE_TREE).fact == "f does not exist"
    assert ask("exists t or defines broken name", KLEENE_TREE).fact == "t exists"
    assert ask("exists t and not exists f", KLEENE_TREE).fact == "t exists; f does not exist"


# -- terms -------------------------------------------------------------------------------------------------------------


def test_base_terms_see_the_untouched_base() -> None:
    merged, base = {"sglang/new.py": "x = 1\n"}, {"sglang/old.py": "x = 1\n"}
    assert ask("exists sglang/new.py and not base:exists sglang/new.py", merged, base).value is True
    truth = ask("base:defines sglang/old.py x", merged, base)
    assert truth == Truth(True, "base: sglang/old.py:1 defines x")


DEFINES = """\
import os
import a.b.c
import d.e as f
from g import h, i as j
try:
    import fast
except ImportError:
    fast = None
if os.name == "posix":
    def inside(): ...
else:
    async def other(): ...
x, (y, *z) = 1, (2, 3)
annotated: int = 3
bare: int
for loop in (): ...
with open("f") as handle: ...
while (walrus := 0): ...
class C: ...
def function():
    global made_global
    local = 1
"""


@pytest.mark.parametrize(
    "name",
    [
        "os",
        "a",
        "f",
        "h",
        "j",
        "fast",
        "inside",
        "other",
        "x",
        "y",
        "z",
        "annotated",
        "loop",
        "handle",
        "walrus",
        "C",
        "function",
        "made_global",
    ],
)
def test_what_a_module_binds_at_top_level_is_defined(name: str) -> None:
    assert ask(f"defines m.py {name}", {"m.py": DEFINES}).value is True


@pytest.mark.parametrize("name", ["b", "c", "d", "e", "g", "i", "bare", "local", "self"])
def test_what_a_module_does_not_bind_is_not_defined(name: str) -> None:
    assert ask(f"defines m.py {name}", {"m.py": DEFINES}) == Truth(False, f"m.py has no {name}")


def test_a_fact_names_the_line() -> None:
    tree = {"sglang/spec_utils.py": "a = 1\n\n\n@decorated\ndef _pub_len(): ...\n"}
    truth = ask("defines sglang/spec_utils.py _pub_len and not defines sglang/spec_utils.py pub_len", tree)
    assert truth == Truth(True, "sglang/spec_utils.py:5 defines _pub_len; sglang/spec_utils.py has no pub_len")


def test_a_file_that_is_not_there_defines_nothing() -> None:
    for term in ("defines m.py x", "accepts m.py f p", "imports m.py a.b", 'contains m.py "x"', "exists m.py"):
        assert ask(term, NOTHING) == Truth(False, "m.py does not exist")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("from elsewhere import *\n", "imports all names of elsewhere"),
        ("def __getattr__(name): return 1\n", "line 1 defines __getattr__"),
        ("globals()['x'] = 1\n", "line 1 writes globals()"),
        ("import sys\nsys.modules[__name__] = object()\n", "line 2 writes through sys.modules"),
        ("def broken(:\n", "line 1 does not parse"),
        ("x = '\0'\n", "does not parse"),
    ],
)
def test_absence_is_unknown_where_the_source_cannot_tell(source: str, why: str) -> None:
    truth = ask("defines m.py missing", {"m.py": source})
    assert truth.value is None
    assert why in truth.fact


def test_presence_is_known_even_where_absence_is_not() -> None:
    assert ask("defines m.py x", {"m.py": "from elsewhere import *\nx = 1\n"}).value is True
    lazy = "def __getattr__(name):\n    if name == 'lazy':\n        return 1\n    raise AttributeError\n"
    assert ask("defines m.py lazy", {"m.py": lazy}).value is True


def test_a_name_for_type_checkers_only_is_not_defined() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a import Hint\n"
    truth = ask("defines m.py Hint", {"m.py": source})
    assert truth == Truth(False, "m.py:3 has Hint for type checkers only")


def test_a_link_or_a_file_that_was_not_kept_is_unknown() -> None:
    def read(path: str) -> bytes | None:
        raise InputError(path, "is a link")

    assert evaluate(parse("exists m.py", "p"), read, read) == Truth(None, "m.py: is a link")


CLASSES = """\
from abc import ABC
from typing import Generic, T
import outside
from sglang.far import Far, Open
class Base(ABC, Generic[T]):
    inherited = 1
    def method(self, given, *, named=None):
        self.assigned = given
        (self.one, [self.two]) = 1, [2]
        other.stranger = 3
    if True:
        def guarded(self): ...
class Child(Base):
    __slots__ = ("slot",)
    field: int
    import os as imported
    class Nested: ...
class FromFar(Far): ...
class FromOpen(Open): ...
class Foreign(outside.Thing): ...
class Meta(metaclass=Magic): ...
class Dynamic:
    def __getattr__(self, name): ...
value = Base()
"""
FAR = "class Root:\n    from_root = 1\nclass Far(Root): ...\nclass Open(unknown()): ...\n"
CLASS_TREE = {"m.py": CLASSES, "sglang/far.py": FAR}


@pytest.mark.parametrize(
    "name",
    [
        "Base.inherited",
        "Base.method",
        "Base.assigned",
        "Base.one",
        "Base.two",
        "Base.guarded",
        "Child.inherited",
        "Child.field",
        "Child.imported",
        "Child.Nested",
        "Child.slot",
        "Child.assigned",
        "FromFar.from_root",
    ],
)
def test_a_class_has_its_own_members_and_those_of_bases_that_can_be_read(name: str) -> None:
    assert ask(f"defines m.py {name}", CLASS_TREE).value is True


@pytest.mark.parametrize("name", ["Base.stranger", "Child.missing", "FromFar.missing", "Base.given"])
def test_a_member_is_absent_when_every_base_was_read(name: str) -> None:
    assert ask(f"defines m.py {name}", CLASS_TREE).value is False


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Foreign.x", "outside.Thing"),
        ("Meta.x", "Magic"),
        ("Dynamic.x", "Dynamic.__getattr__"),
        ("FromOpen.x", "unknown()"),
        ("value.x", "no class of this file"),
    ],
)
def test_a_member_is_unknown_where_a_base_cannot_be_read(name: str, why: str) -> None:
    truth = ask(f"defines m.py {name}", CLASS_TREE)
    assert truth.value is None
    assert why in truth.fact


def test_classes_that_inherit_from_each_other_end() -> None:
    assert ask("defines m.py A.x", {"m.py": "class A(B): ...\nclass B(A): ...\n"}).value is False


ACCEPTS = """\
from dataclasses import dataclass
from elsewhere import foreign
def plain(a, b=1, /, c=2, *, d=3): ...
def wide(a, **rest): ...
if a:
    def split(x): ...
else:
    def split(y): ...
class K:
    def __init__(self, size): ...
    def m(self, given): ...
class L(K): ...
@dataclass
class D:
    field: int
class Q(Unseen): ...
class E: ...
"""


@pytest.mark.parametrize(
    ("function", "parameter", "expected"),
    [
        ("plain", "c", True),
        ("plain", "d", True),
        ("plain", "a", False),
        ("plain", "nope", False),
        ("wide", "anything", True),
        ("split", "x", None),
        ("split", "z", False),
        ("foreign", "x", None),
        ("absent", "x", False),
        ("K", "size", True),
        ("K", "nope", False),
        ("K.m", "given", True),
        ("L.m", "given", True),
        ("L", "size", True),
        ("D", "field", True),
        ("Q", "x", None),
        ("E", "x", False),
        ("absent.m", "x", False),
        ("foreign.m", "x", None),
    ],
)
def test_accepts_asks_for_a_parameter_by_name(function: str, parameter: str, expected: bool | None) -> None:
    assert ask(f"accepts m.py {function} {parameter}", {"m.py": ACCEPTS}).value is expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("sglang.srt.a.x", True),
        ("sglang.srt.a", True),
        ("sglang.srt.b.y", True),
        ("sglang.srt.sibling.z", True),
        ("sglang.srt.c.d", True),
        ("sglang.srt.c", True),
        ("sglang.srt.a.other", False),
        ("sglang.srt.starred.anything", None),
        ("sglang.srt.nowhere", False),
    ],
)
def test_imports_finds_every_form_of_import_at_any_depth(wanted: str, expected: bool | None) -> None:
    source = (
        "from sglang.srt.a import x\nfrom .sibling import z as w\nimport sglang.srt.c.d\nfrom .starred import *\n"
        "def f():\n    from ..srt.b import (\n        q,\n        y,\n    )\n"
    )
    assert ask(f"imports sglang/srt/m.py {wanted}", {"sglang/srt/m.py": source}).value is expected


def test_imports_names_the_line_of_the_name() -> None:
    source = "from sglang.a import (\n    x,\n    y,\n)\n"
    assert ask("imports m.py sglang.a.y", {"m.py": source}).fact == "m.py:3 imports sglang.a.y"


def test_contains_wants_the_whole_line_with_its_indentation() -> None:
    tree = {"m.py": b'\xef\xbb\xbffirst\r\n    x = "1"\n'}
    assert ask(r'contains m.py "    x = \"1\""', tree).value is True
    assert ask(r'contains m.py "x = \"1\""', tree).value is False
    assert ask('contains m.py "first"', tree) == Truth(True, "m.py:1 is 'first'")
