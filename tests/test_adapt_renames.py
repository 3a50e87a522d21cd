"""A name or attribute of the base is taken for another one on proof only; what may differ waits for a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from builder import adapt, compat
from builder.compat import Comparison
from builder.model import Tree
from builder.proposals import Proposal, Trees
from builder.type_checker import Pyrefly

Files = Mapping[str, str | bytes]
Offered = tuple[dict[str, Proposal], tuple[str, ...]]


def tree(files: Files) -> Tree:
    data = {f"sglang/{path}": text.encode() if isinstance(text, str) else text for path, text in files.items()}
    data = {"sglang/__init__.py": b"", **data}
    return Tree(frozenset(data), data.get)


@pytest.fixture
def propose(tmp_path: Path) -> Callable[..., Offered]:
    """`propose(base, upstream, pull)`: what is proposed by id, and why something is left to a person."""

    def run(base: Files, upstream: Files, pull: Files) -> Offered:
        before, parent, donor = tree(base), tree(upstream), tree({**upstream, **pull})
        brought = {f"sglang/{path}": donor.read(f"sglang/{path}") or b"" for path in pull}
        merged = before.overlaid(brought)
        comparison = Comparison(before, merged, frozenset(brought), dict.fromkeys(brought, donor))
        found = compat.check(comparison, Pyrefly(tmp_path / "cache"))
        assert found.unknown == ()
        sides = Trees(before, merged, {1: donor}, {1: parent.read}, dict.fromkeys(brought, 1), frozenset(brought))
        offers = adapt.propose(found.findings, sides, is_last_resort=False)
        return {proposal.id: proposal for proposal in offers.proposals}, tuple(offers.why.values())

    return run


def automatic(offered: Offered) -> set[str]:
    return {name for name, proposal in offered[0].items() if not proposal.needs_accept}


def choices(offered: Offered) -> set[str]:
    """Return what a person may choose; each says what may be lost."""
    assert all(proposal.loses for proposal in offered[0].values() if proposal.needs_accept)
    return {name for name, proposal in offered[0].items() if proposal.needs_accept}


# -- attributes --------------------------------------------------------------------------------------------------------

FIELDS = "from dataclasses import dataclass\n\n\n@dataclass\nclass C:\n    bs: int\n    {}: int = 0\n    end: int = 9\n"
READS = "from sglang.c import C\n\n\ndef f(c: C):\n    return c.{}\n"
MADE = "class C:\n    def __init__(self, x):\n        self.bs = 1\n        self.{} = {}\n"


def renamed(propose: Callable[..., Offered], before: str, after: str, value: str) -> Offered:
    sides = ({"c.py": MADE.format(name, value)} for name in (before, after))
    return propose(*sides, {"u.py": READS.format(after)})


def test_a_field_in_the_place_of_another_with_words_in_common_is_offered_and_never_taken(propose):
    base, newer = ({"c.py": FIELDS.format(f"num_{word}_tokens")} for word in ("decode", "prefill"))
    found = propose(base, newer, {"u.py": READS.format("num_prefill_tokens")})
    assert automatic(found) == set()
    assert choices(found) == {"num_prefill_tokens/rename-num-decode-tokens", "num_prefill_tokens/declare"}
    assert "num_decode_tokens may be what it is" in found[0]["num_prefill_tokens/declare"].loses


def test_that_both_are_set_to_nothing_does_not_make_one_the_other(propose):
    found = renamed(propose, "stream", "cache", "None")
    assert (found[0], len(found[1])) == ({}, 1)
    assert "nothing in the base's C (sglang/c.py) is shown to be what cache is" in found[1]


def test_an_attribute_that_the_same_function_makes_of_the_same_data_is_taken(propose):
    found = renamed(propose, "stream", "cache", "len(x) + 1")
    assert (automatic(found), choices(found)) == ({"cache/rename"}, set())
    assert "__init__ sets it to the same value" in found[0]["cache/rename"].text


TWO_RECEIVERS = "from sglang.c import C\n\n\ndef f(c: C, d):\n    {}\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return c.q + d.q", "return c._q + d.q"),
        ("return d.q + c.q", "return d.q + c._q"),
        ("return d.q, 'é€', c.q", "return d.q, 'é€', c._q"),
        ("return c.q(d.q)", "return c._q(d.q)"),
    ],
)
def test_only_the_object_that_lacks_the_attribute_is_read_by_another_name(propose, body, expected):
    sides = ({"c.py": MADE.format(name, "len(x)")} for name in ("_q", "q"))
    found = propose(*sides, {"u.py": TWO_RECEIVERS.format(body)})
    assert automatic(found) == {"q/rename"}
    assert f"-    {body}\n+    {expected}\n" in found[0]["q/rename"].text


def test_a_variable_that_is_bound_again_is_another_object_from_there(propose):
    user = "from sglang.c import C\n\n\ndef f(made):\n    c = C('')\n    x = c.q\n    c = made\n    return x, c.q\n"
    sides = ({"c.py": MADE.format(name, "len(x)")} for name in ("_q", "q"))
    text = propose(*sides, {"u.py": user})[0]["q/rename"].text
    assert "+    x = c._q\n" in text
    assert "return" not in text


# -- declarations ------------------------------------------------------------------------------------------------------

DECLARES = "class C:\n    bs = 1\n    is_retracted = False\n"


@pytest.mark.parametrize(
    "writer",
    [
        "def f(c):\n    c.is_retracted = True\n",
        "def f(c):\n    setattr(c, 'is_retracted', True)\n",
        "def f(c):\n    c.replace(is_retracted=True)\n",
        "def f(c):\n    with c.is_retracted.override(True):\n        pass\n",
    ],
)
def test_a_default_that_upstream_changes_elsewhere_is_declared_only_by_choice(propose, writer):
    newer = {"c.py": DECLARES, "sched.py": "\n" + writer}
    found = propose({"c.py": "class C:\n    bs = 1\n"}, newer, {"u.py": READS.format("is_retracted")})
    assert (automatic(found), choices(found)) == (set(), {"is_retracted/declare"})
    assert "sglang/sched.py:3 sets it in #1" in found[0]["is_retracted/declare"].loses


@pytest.mark.parametrize("more", [{}, {"sched.py": "def f(c):\n    return c.is_retracted\n"}])
def test_a_default_that_nothing_changes_is_declared(propose, more):
    newer = {"c.py": DECLARES, **more}
    found = propose({"c.py": "class C:\n    bs = 1\n"}, newer, {"u.py": READS.format("is_retracted")})
    assert (automatic(found), choices(found)) == ({"is_retracted/declare"}, set())


# -- definitions -------------------------------------------------------------------------------------------------------

CALLS = "from sglang.c import {0}\n\n\ndef f(x):\n    return {0}(x)\n"
WORK = "def {}(x):\n    total = {}(x) + 1\n    return total * total\n"


@pytest.mark.parametrize(
    ("base", "newer", "use"),
    [
        ("ENCODE_KINDS = {}\n", "DECODE_KINDS = {}\n", "from sglang.c import DECODE_KINDS\n\nDECODE_KINDS['x'] = 1\n"),
        ("class PrefixError(Exception): ...\n", "class PrefillError(Exception): ...\n", CALLS.format("PrefillError")),
        ("def _hook(x):\n    pass\n", "def hook(x):\n    pass\n", CALLS.format("hook")),
    ],
)
def test_equal_text_of_what_has_an_identity_or_does_nothing_is_no_proof(propose, base, newer, use):
    found = propose({"c.py": base}, {"c.py": newer}, {"u.py": use})
    assert automatic(found) == set()
    assert {name.partition("/")[2] for name in choices(found)} == {"alias", "port"}


@pytest.mark.parametrize(
    ("ours", "theirs", "more"),
    [
        ("def _h(x):\n    return x\n", "def _h(x):\n    return x * 2\n", {}),
        ("_h = 1 .__add__\n", "_h = 2 .__add__\n", {}),
        ("from sglang.one import _h\n", "from sglang.two import _h\n", {}),
        ("from math import floor as _h\n", "from math import ceil as _h\n", {}),
        ("K = 1\n\n\ndef _h(x):\n    return x + K\n", "K = 2\n\n\ndef _h(x):\n    return x + K\n", {}),
    ],
)
def test_equal_code_that_uses_other_things_is_other_code(propose, ours, theirs, more):
    parts = {"one.py": "def _h(x):\n    return x\n", "two.py": "def _h(x):\n    return x * 2\n"}
    base = {"c.py": f"{ours}\n\n{WORK.format('old_g', '_h')}", **parts}
    newer = {"c.py": f"{theirs}\n\n{WORK.format('new_g', '_h')}", **parts}
    found = propose(base, newer, {"u.py": CALLS.format("new_g")})
    assert automatic(found) == set()
    assert "new_g/alias" in choices(found)
    assert "which this base has otherwise" in found[0]["new_g/alias"].loses


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("def _h(x):\n    return x\n", "def _h(x):\n    '''Docs.'''\n    return x\n"),
        ("from sglang.one import _h\n", "from sglang.two import _h\n"),
        ("from math import floor as _h\n", "from math import floor as _h\n"),
        ("_h = len\n", "_h = len\n"),
    ],
)
def test_equal_code_that_uses_the_same_things_is_taken(propose, ours, theirs):
    same = "def _h(x):\n    return x\n"
    base = {"c.py": f"{ours}\n\n{WORK.format('old_g', '_h')}", "one.py": same}
    newer = {"c.py": f"{theirs}\n\n{WORK.format('new_g', '_h')}", "one.py": same, "two.py": same}
    found = propose(base, newer, {"u.py": CALLS.format("new_g")})
    assert (automatic(found), choices(found)) == ({"new_g/alias"}, set())


@pytest.mark.parametrize(("value", "is_taken"), [("1", True), ("2", False)])
def test_an_older_place_is_taken_only_where_what_its_code_uses_is_the_same(propose, value, is_taken):
    code = "from sglang.{} import H\n\n\nclass Cfg(H):\n    pass\n"
    base = {"old/cfg.py": code.format("b"), "old/__init__.py": "", "b.py": "class H:\n    a = 1\n"}
    newer = {"new/cfg.py": code.format("n"), "new/__init__.py": "", "n.py": f"class H:\n    a = {value}\n"}
    found = propose(base, newer, {"u.py": "from sglang.new.cfg import Cfg\n\nprint(Cfg.a)\n"})
    assert ("cfg/older-place" in automatic(found)) is is_taken
    assert "cfg/older-place" in found[0]
    assert is_taken or "uses H" in found[0]["cfg/older-place"].loses
    assert ("cfg/carry" in choices(found)) is not is_taken


def test_a_name_read_through_its_module_is_not_taken_for_an_attribute_of_that_name(propose):
    user = "from sglang import c\n\n\ndef f(o):\n    return c.pub(o.pub)\n"
    sides = ({"c.py": WORK.format(name, "len")} for name in ("_pub", "pub"))
    found = propose(*sides, {"u.py": user})
    assert automatic(found) == {"pub/alias"}
    assert "+    return c._pub(o.pub)\n" in found[0]["pub/alias"].text


# -- imports -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("more", "is_taken"), [("", False), ("import sglang.c\n", True)])
def test_an_unused_import_that_is_the_only_one_of_its_module_is_dropped_only_by_choice(propose, more, is_taken):
    # What it names is carried instead: the module is imported as before, and nothing is lost.
    base, newer = {"c.py": "print('registers')\n"}, {"c.py": "print('registers')\ng = 1\n"}
    found = propose(base, newer, {"u.py": f"from sglang.c import g\n{more}x = 1\n"})
    assert ("g/drop-import" in automatic(found), "g/drop-import" in choices(found)) == (is_taken, not is_taken)
    assert ("g/carry" in automatic(found)) is not is_taken
    assert ("No capability goes" in found[0]["g/drop-import"].text) is is_taken


# -- sources in which no place can be told -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "user",
    [
        b"x = 1\rfrom sglang.c import pub\rpub([])\r",
        b"# coding: latin-1\nx = '\xe9\xe9'; from sglang.c import pub\npub([])\n",
    ],
)
def test_a_source_in_another_coding_or_with_other_line_ends_is_not_edited(propose, user):
    sides = ({"c.py": WORK.format(name, "len")} for name in ("_pub", "pub"))
    offered, why = propose(*sides, {"u.py": user})
    assert [proposal for proposal in offered.values() if proposal.kind == "patch"] == []
    assert any("sglang/u.py: it is not UTF-8 with plain line ends, so no edit is made of it" in each for each in why)
