"""What the base has instead is shown by code, signatures and fields, never by a name; so is what carrying takes."""

from __future__ import annotations

import ast

import pytest

from builder import counterparts
from builder.closure import closure
from builder.symbols import parse

BODY = "    total = a + b\n    for x in range(a):\n        total += x\n    return total\n"


def definition(name: str, donor: str, base: str) -> list[tuple[str, str]]:
    found = counterparts.of_definition(name, parse(donor.encode()), parse(base.encode()))
    return [(each.name, each.likeness) for each in found]


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (f"def _work(a, b):\n    'Doc.'\n{BODY}  # comment\n", [("_work", "same code")]),
        (f"def elsewhere(a, b):\n{BODY}", [("elsewhere", "same code")]),
        ("def _work(a, b):\n    return a\n", [("_work", "same signature")]),
        (f"def _work(a, c):\n{BODY}", [("_work", "other signature")]),
        (f"async def _work(a, b):\n{BODY}", []),
        ("def unlike(a, b):\n    return a\n", []),
        (f"def both(a, b):\n{BODY}", []),
        ("_work = 1\n", []),
        ("", []),
    ],
)
def test_a_definition_is_compared_by_its_code(base, expected):
    donor = f"def work(a, b):\n{BODY}\n\ndef both(a, b):\n{BODY}"
    assert definition("work", donor, base) == expected


def test_a_function_that_calls_itself_is_the_same_under_another_name():
    code = "def {0}(n):\n    return 1 if n < 2 else n * {0}(n - 1)\n"
    assert definition("fac", code.format("fac"), code.format("_fac")) == [("_fac", "same code")]


def test_equal_code_under_an_unlike_name_counts_only_where_there_is_enough_of_it():
    assert definition("one", "def one(): ...\n", "def quite_different(): ...\n") == []


def attribute(name: str, donor: str, base: str) -> list[str]:
    sides = [parse(f"class C:\n{text}".encode()).body[0] for text in (donor, base)]
    assert all(isinstance(side, ast.ClassDef) for side in sides)
    return [each.name for each in counterparts.of_attribute(name, *sides)]


@pytest.mark.parametrize(
    ("name", "donor", "base", "expected"),
    [
        # the same declaration between the same neighbours
        ("new", "    a: int = 1\n    new: str = ''\n", "    a: int = 1\n    old: str = ''\n", ["old"]),
        ("new", "    a: int = 1\n    new: str = ''\n", "    a: int = 1\n    old: int = 0\n", []),
        ("new", "    new: str = ''\n    a: int = 1\n", "    a: int = 1\n    old: str = ''\n", []),
        # two that could be it, told apart by their place
        (
            "new_b",
            "    new_a: int = 0\n    new_b: int = 0\n",
            "    old_a: int = 0\n    old_b: int = 0\n",
            ["old_b"],
        ),
        # the same value, set by the function of the same name
        (
            "new",
            "    def f(self, x):\n        self.new = x + 1\n",
            "    def f(self, x):\n        self.old = x + 1\n",
            ["old"],
        ),
        (
            "new",
            "    def f(self, x):\n        self.new = x + 1\n",
            "    def g(self, x):\n        self.old = x + 1\n",
            [],
        ),
        # the change of prefix that a sibling shows
        (
            "new_len_sum",
            "    def f(self, x, y):\n        self.new_len_cpu = x\n        self.new_len_sum = y\n",
            "    def f(self, x, z):\n        self.old_len_cpu = x\n        self.old_len_sum = z\n",
            ["old_len_sum"],
        ),
        # methods by their code
        ("new", "    def new(self):\n        return self.x\n", "    def old(self):\n        return self.x\n", ["old"]),
        ("new", "    new: int = 0\n", "    new: int = 0\n", []),
        ("new", "    other: int = 0\n", "    old: int = 0\n", []),
    ],
)
def test_an_attribute_is_compared_by_declaration_value_and_family(name, donor, base, expected):
    assert attribute(name, donor, base) == expected


@pytest.mark.parametrize(("old", "likeness"), [("kept_len", "same code"), ("colour", "same signature")])
def test_that_a_field_stands_where_another_stood_proves_little_if_no_word_is_left(old, likeness):
    donor, base = (parse(f"class C:\n    a: int = 1\n    {name}: int = 0\n".encode()) for name in ("new_len", old))
    (found,) = counterparts.of_attribute("new_len", donor.body[0], base.body[0])
    assert (found.name, found.likeness) == (old, likeness)


DONOR = b"""
import math
from os import path, sep
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from x import Hint

LIMIT = math.pi
TABLE = {name: LIMIT for name in "ab"}

def decorate(f):
    return f

@decorate
def wanted(a, b=LIMIT, *, c: 'Hint' = None):
    local = helper(a)
    return path.join(local, sep)

def helper(a):
    return wanted(a)

class Child(Base):
    field: Kind = TABLE

class Base: ...
class Kind: ...
def hinted(x: Hint): ...
"""


@pytest.mark.parametrize(
    ("name", "base", "expected"),
    [
        ("wanted", b"", {"decorate", "helper", "LIMIT", "math", "path", "sep", "wanted"}),
        ("wanted", b"import math\nLIMIT = 3\ndef helper(a): ...\n", {"decorate", "path", "sep", "wanted"}),
        ("TABLE", b"", {"LIMIT", "TABLE", "math"}),
        ("Child", b"", {"Base", "Child", "Kind", "LIMIT", "TABLE", "math"}),
        ("Child", b"from __future__ import annotations\nTABLE = {}\n", {"Base", "Child", "Kind"}),
        ("hinted", b"from __future__ import annotations\n", {"hinted", "Hint", "TYPE_CHECKING"}),
        ("hinted", b"from __future__ import annotations\nfrom x import Hint\n", {"hinted"}),
    ],
)
def test_a_carried_definition_takes_along_what_it_uses_and_the_base_lacks(name, base, expected):
    found = closure([name], DONOR, base, "sglang/a.py")
    assert (set(found.names), found.problem) == (expected, "")


def test_what_the_base_has_with_other_code_is_said():
    assert closure(["wanted"], DONOR, b"def helper(a): ...\nLIMIT = math.pi\n", "a.py").differing == ("helper",)


def test_an_annotation_that_only_type_checkers_can_see_is_a_problem_where_it_is_evaluated():
    assert "type checkers only" in closure(["hinted"], DONOR, b"", "sglang/a.py").problem


def test_what_the_donor_does_not_define_is_a_problem():
    assert "does not define nothing" in closure(["nothing"], DONOR, b"", "sglang/a.py").problem
