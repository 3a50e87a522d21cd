"""A carry is taken by itself only where it cannot mean something else; otherwise a person is told what may differ."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from builder import adapt, names
from builder.adapt import Offers
from builder.carry import carry
from builder.catalogue import Carry
from builder.model import Tree
from builder.modules import Modules
from builder.proposals import CarryOver, Proposal, Trees

Files = Mapping[str, str | bytes]


def tree(files: Files) -> Tree:
    named = {f"sglang/{name}": text for name, text in {"__init__.py": "", **files}.items()}
    data = {path: text.encode() if isinstance(text, str) else text for path, text in named.items()}
    return Tree(frozenset(data), data.get)


def proposed(base: Files, upstream: Files, pull: Files) -> Offers:
    """Return what is proposed for a pull request's files, put whole on the base."""
    older, donor, before = tree(base), tree({**upstream, **pull}), tree(upstream)
    brought = [f"sglang/{name}" for name in pull]
    merged = older.overlaid({path: donor.read(path) or b"" for path in brought})
    sides = Trees(older, merged, {1: donor}, {1: before.read}, dict.fromkeys(brought, 1), frozenset(brought))
    found = names.check(Modules(older, "sglang"), Modules(merged, "sglang"), brought).findings
    assert found
    return adapt.propose(found, sides, is_last_resort=False)


def only(offers: Offers) -> Proposal:
    (proposal,) = offers.proposals
    return proposal


def ids(offers: Offers) -> dict[str, bool]:
    return {proposal.id: proposal.needs_accept for proposal in offers.proposals}


def use(name: str, module: str = "lib") -> Files:
    return {"user.py": f"from sglang.{module} import {name}\n\n\ndef f():\n    return {name}\n"}


def symbols_of(proposal: Proposal) -> tuple[str, ...]:
    assert isinstance(proposal.change, CarryOver)
    return proposal.change.symbols


X = {"lib.py": "x = 1\n"}


# -- state that something else sets ------------------------------------------------------------------------------------

GRID = "x = 1\n_grid = None\n\n\ndef grid():\n    return _grid\n"
SET_GRID = "\n\ndef set_grid(value):\n    global _grid\n    _grid = value\n"


def test_a_reader_without_the_writer_of_its_state_waits_for_a_person():
    proposal = only(proposed(X, {"lib.py": GRID + SET_GRID}, use("grid")))
    assert (symbols_of(proposal), proposal.needs_accept) == (("_grid", "grid"), True)
    assert proposal.loses == "_grid is set by set_grid upstream (sglang/lib.py:11), which nothing here does"


def test_why_such_a_finding_stays_open_is_told():
    (why,) = proposed(X, {"lib.py": GRID + SET_GRID}, use("grid")).why.values()
    assert why.startswith("grid can be carried, and _grid is set by set_grid")
    assert not proposed(X, {"lib.py": GRID}, use("grid")).why


@pytest.mark.parametrize(
    "change",
    ["_grid[0] = value", "_grid.append(value)", "_grid.x = value"],
)
def test_to_change_the_object_is_to_set_it_too(change):
    writer = f"\n\ndef fill(value):\n    {change}\n"
    assert "_grid is set by fill" in only(proposed(X, {"lib.py": GRID + writer}, use("grid"))).loses


@pytest.mark.parametrize(
    "other",
    [
        "from sglang import lib\n\nlib._grid = 3\n",
        "import sglang.lib\n\nsglang.lib._grid = 3\n",
        "from . import lib as own\n\nown._grid[1] = 3\n",
        "from sglang.lib import _grid\n\n\ndef f():\n    _grid.append(3)\n",
    ],
)
def test_a_writer_in_another_file_counts(other):
    proposal = only(proposed(X, {"lib.py": GRID, "runner.py": other}, use("grid")))
    assert proposal.needs_accept
    assert "_grid is set by runner.py upstream (sglang/runner.py:" in proposal.loses


def test_a_constant_and_state_whose_writer_is_carried_are_taken_by_themselves():
    assert not only(proposed(X, {"lib.py": GRID}, use("grid"))).needs_accept
    kept = "x = 1\n_seen = {}\n\n\ndef grid(k=1):\n    _seen[k] = 1\n    return _seen[k]\n"
    proposal = only(proposed(X, {"lib.py": kept}, use("grid")))
    assert (symbols_of(proposal), proposal.needs_accept) == (("_seen", "grid"), False)
    # A local variable of that name is another one, and so is another module's.
    others = "\n\ndef other():\n    _grid = 3\n    return _grid\n"
    stranger = {"lib.py": GRID + others, "runner.py": "from sglang import nolib\n\nnolib._grid = 3\n", "nolib.py": ""}
    assert not only(proposed(X, stranger, use("grid"))).needs_accept


def test_state_of_the_base_that_its_own_writer_sets_is_no_loss():
    base = {"lib.py": "_grid = None\n" + SET_GRID}
    assert not only(proposed(base, {"lib.py": GRID + SET_GRID}, use("grid"))).needs_accept
    assert only(proposed({"lib.py": "_grid = None\n"}, {"lib.py": GRID + SET_GRID}, use("grid"))).needs_accept


def test_a_whole_module_whose_state_nothing_here_sets_waits_for_a_person():
    upstream = {"lib.py": GRID + SET_GRID, "runner.py": "from sglang.lib import set_grid\n\nset_grid(3)\n"}
    proposal = only(proposed({}, upstream, use("grid")))
    assert (proposal.needs_accept, "set by set_grid" in proposal.loses) == (True, True)
    both = {"user.py": "from sglang.lib import grid, set_grid\n\nset_grid(1)\nprint(grid())\n"}
    assert not only(proposed({}, upstream, both)).needs_accept


# -- what upstream moved -----------------------------------------------------------------------------------------------

REQ = "class Req:\n    def __init__(self):\n        self.a = 1\n"


def test_a_class_that_upstream_moved_is_never_carried_a_second_time_by_itself():
    base = {"sched.py": REQ, "lib.py": "x = 1\n"}
    upstream = {"sched.py": "from sglang.lib import Req\n", "lib.py": f"x = 1\n\n\n{REQ}"}
    found = proposed(base, upstream, use("Req"))
    assert ids(found) == {"Req/older-place": True, "Req/carry": True}
    older, carried = found.proposals
    assert "+from sglang.sched import Req\n" in older.text
    assert "two of Req: the base's own (sglang/sched.py:1)" in carried.loses


def test_of_an_import_of_several_names_only_the_moved_one_is_taken_from_its_older_place():
    base = {"sched.py": REQ, "lib.py": "x = 1\n"}
    upstream = {"sched.py": "", "lib.py": f"x = 1\n\n\n{REQ}"}
    pull = {"user.py": "from sglang.lib import Req, x\n\nprint(Req, x)\n"}
    older = proposed(base, upstream, pull).proposals[0]
    assert older.id == "Req/older-place"
    assert "-from sglang.lib import Req, x\n+from sglang.sched import Req\n+from sglang.lib import x\n" in older.text


REGISTRY = "REGISTRY = {}\n\n\ndef register(n, v):\n    REGISTRY[n] = v\n"


def test_a_registry_that_upstream_moved_with_its_module_is_no_second_registry_by_itself():
    upstream = {"fresh/__init__.py": "", "fresh/reg.py": REGISTRY.replace("= v", "= (v, 1)")}
    base = {"old/__init__.py": "", "old/reg.py": REGISTRY}
    found = proposed(base, upstream, use("register", "fresh.reg"))
    assert ids(found) == {"register/older-place": True, "reg/carry": True}
    assert "two of REGISTRY" in found.proposals[1].loses


def test_a_name_that_upstream_has_in_both_places_or_that_many_files_have_is_not_moved():
    base = {"sched.py": REQ, "lib.py": "x = 1\n"}
    both = {"sched.py": REQ, "lib.py": f"x = 1\n\n\n{REQ}"}
    assert ids(proposed(base, both, use("Req"))) == {"Req/carry": False}
    many = {f"m{number}.py": "log = print\n" for number in range(4)}
    upstream = {"lib.py": "x = 1\nlog = print\n\n\ndef g():\n    log(1)\n"}
    assert ids(proposed({**many, "lib.py": "x = 1\n"}, upstream, use("g"))) == {"g/carry": False}


# -- helpers -----------------------------------------------------------------------------------------------------------


def test_a_helper_of_the_base_with_other_code_makes_a_carry_an_alternative():
    helper = "def _h(x):\n    return x\n"
    user = "\n\ndef g(x):\n    return _h(x)\n"
    proposal = only(proposed({"lib.py": helper}, {"lib.py": helper.replace("x\n", "x * 2\n") + user}, use("g")))
    assert (proposal.needs_accept, "the base's own _h" in proposal.loses) == (True, True)
    assert not only(proposed({"lib.py": helper}, {"lib.py": helper + user}, use("g"))).needs_accept


@pytest.mark.parametrize(
    ("ours", "theirs", "is_other"),
    [
        ("from sglang.one import _h\n", "from sglang.two import _h\n", True),
        ("from sglang.one import _h\n", "def _h(x): return 2\n", True),
        ("def _h(x): return 2\n", "from sglang.one import _h\n", True),
        ("def _h(x): ...\n", "from sglang.one import _h\n", False),
        ("from sglang.one import _h, other\n", "from sglang.one import _h\n", False),
        ("from .one import _h\n", "from sglang.one import _h\n", False),
    ],
)
def test_a_helper_that_comes_from_elsewhere_is_another_one(ours, theirs, is_other):
    files = {"one.py": "def _h(x): ...\n\n\nother = 1\n", "two.py": "def _h(x): return 2\n"}
    upstream = {**files, "lib.py": f"{theirs}\n\ndef g(x):\n    return _h(x)\n"}
    assert only(proposed({**files, "lib.py": ours}, upstream, use("g"))).needs_accept is is_other


# -- what would be wrong is not proposed -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "upstream", "expected"),
    [
        ("x = 1\n", b"# coding: latin-1\ns = '\xe9'\n\n\ndef g(): ...\n", "not UTF-8"),
        (b"# coding: latin-1\ns = '\xe9'\n", "def g(): ...\n", "not UTF-8"),
        ("x = 1\n", "def g(): ...\r", "carriage returns"),
        ("x = 1\ry = 2\n", "def g(): ...\n", "carriage returns"),
        ("x = 1\n", "class g: ...\n\n\n@g.register\ndef _(a): ...\n", "registers _ with g"),
        ("base = 0\nz = k()\nh = 2\n", "h = 2\n\n\ndef k():\n    return h\n\n\ng = k()\n", "comes later"),
    ],
)
def test_where_a_carry_would_be_wrong_none_is_proposed_and_the_reason_is_told(base, upstream, expected):
    found = proposed({"lib.py": base}, {"lib.py": upstream}, use("g"))
    assert expected in " ".join(found.why.values())
    assert found.proposals == ()


def test_a_name_that_several_statements_make_is_proposed_with_all_that_these_need():
    upstream = "x = 1\n\n\ndef wrap(f):\n    return lambda: f() + 1\n\n\ndef g():\n    return 1\n\n\ng = wrap(g)\n"
    proposal = only(proposed(X, {"lib.py": upstream}, use("g")))
    assert (symbols_of(proposal), proposal.needs_accept) == (("wrap", "g"), False)
    assert isinstance(proposal.change, CarryOver)
    entry = Carry.model_validate(proposal.change.entry)
    (carried,) = carry((entry,), tree(X).read, {1: tree({"lib.py": upstream}).read})
    assert carried.data is not None
    namespace: dict[str, object] = {}
    exec(carried.data, namespace)
    g = namespace["g"]
    assert callable(g)
    assert g() == 2
