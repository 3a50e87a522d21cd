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


def attribute(name: str, donor: str, base: str) -> list[tuple[str, bool]]:
    sides = [parse(f"class C:\n{text}".encode()).body[0] for text in (donor, base)]
    assert all(isinstance(side, ast.ClassDef) for side in sides)
    return [(each.name, each.likeness == "same code") for each in counterparts.of_attribute(name, *sides)]


SETS = "    def {1}(self, x, y):\n        self.{0} = {2}\n"


@pytest.mark.parametrize(
    ("donor", "base"),
    [
        # the same declaration between the same neighbours, with a word in common or not
        ("    a: int = 1\n    new: str = ''\n", "    a: int = 1\n    old: str = ''\n"),
        ("    num_p_tokens: int = 0\n    new: int = 0\n", "    num_p_tokens: int = 0\n    old: int = 0\n"),
        # two that could be it are told apart by their place
        ("    new_a: int = 0\n    new: int = 0\n", "    old_a: int = 0\n    old: int = 0\n"),
        # methods by their code
        ("    def new(self):\n        return self.x\n", "    def old(self):\n        return self.x\n"),
    ],
)
def test_a_declaration_in_the_same_place_is_a_hint_and_no_proof(donor, base):
    assert attribute("new", donor, base) == [("old", False)]


@pytest.mark.parametrize(
    ("donor", "base"),
    [
        ("    a: int = 1\n    new: str = ''\n", "    a: int = 1\n    old: int = 0\n"),
        ("    new: str = ''\n    a: int = 1\n", "    a: int = 1\n    old: str = ''\n"),
        ("    new: int = 0\n", "    new: int = 0\n"),
        ("    other: int = 0\n", "    old: int = 0\n"),
        (SETS.format("new", "f", "x + 1"), SETS.format("old", "g", "x + 1")),
        (SETS.format("new", "f", "None"), SETS.format("old", "f", "None")),
    ],
)
def test_what_a_declaration_contradicts_or_nothing_shows_is_no_counterpart(donor, base):
    assert attribute("new", donor, base) == []


@pytest.mark.parametrize(
    ("value", "is_proof"),
    [
        ("x + 1", True),
        ("len(x)", True),
        ("self.y[:x]", True),
        ("None", False),
        ("0", False),
        ("'a' + 'b'", False),
        ("[]", False),
        ("dict()", False),
        ("Lock()", False),
        ("DEFAULT", False),
        ("x", False),
    ],
)
def test_equal_values_prove_something_only_where_they_are_made_of_what_the_function_is_given(value, is_proof):
    sides = SETS.format("new_len", "f", value), SETS.format("old_len", "f", value)
    assert attribute("new_len", *sides) == [("old_len", is_proof)]


@pytest.mark.parametrize(
    ("lines", "is_proof"),
    [
        ("        made = self.buffer[:x]\n", True),
        ("        made = []\n", False),
        ("        made = self.buffer[:x]\n        made = y.z\n", False),
        ("        for made in x: pass\n", False),
    ],
)
def test_a_variable_stands_for_the_one_value_that_it_was_made_from(lines, is_proof):
    new, old = (f"    def f(self, x, y):\n{lines}        self.{name}_len = made\n" for name in ("new", "old"))
    assert attribute("new_len", new, old) == [("old_len", is_proof)]


def test_a_value_that_several_attributes_have_tells_none_of_them():
    donor, base = (
        f"    def f(self, x):\n        self.same_{name} = x + 1\n        self.{name}_len = x + 1\n"
        for name in ("new", "old")
    )
    assert attribute("new_len", donor, base) == []


@pytest.mark.parametrize(
    ("names", "value", "is_proof"),
    [
        (("new_len_cpu", "new_len_sum", "old_len_cpu", "old_len_sum"), "x + 1", True),
        (("cpu_len_new", "sum_len_new", "cpu_len_old", "sum_len_old"), "x + 1", True),
        (("new_len_cpu", "new_len_sum", "old_len_cpu", "old_len_sum"), "None", False),
    ],
)
def test_a_change_of_prefix_or_suffix_counts_where_it_is_proved_for_another_attribute(names, value, is_proof):
    one, two, old_one, old_two = names
    body = "    def f(self, x, {0}):\n        self.{1} = " + value + "\n        self.{2} = {0}\n"
    found = attribute(two, body.format("y", one, two), body.format("z", old_one, old_two))
    assert ((old_two, True) in found) is is_proof


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

class Base: ...
class Kind: ...

class Child(Base):
    field: Kind = TABLE

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
