"""Carrying takes what the base lacks from the pull request's result tree, and says what that needs in turn."""

from __future__ import annotations

from typing import Any

import pytest

from builder.carry import carry
from builder.catalogue import Carry

RESULT = b'''import math


def grid(page):
    """Doc."""
    return math.lcm(page, step())


@staticmethod
def track(page):
    return grid(page)


def step():
    return 2


class Box:
    size: int = 3
'''


def entry(path: str, *symbols: str) -> Carry:
    return Carry.model_validate({"path": path, "symbols": list(symbols), "from": "pr:1", "reason": "r"})


def run(ours: bytes | None, *entries: Carry):
    return carry(entries, lambda path: ours if path == "a.py" else None, {1: lambda p: RESULT if p == "a.py" else None})


def test_named_definitions_are_appended_with_their_decorators():
    (found,) = run(b"import math\n\n\ndef step():\n    return 5\n", entry("a.py", "grid", "track"))
    assert found.outcome == "carried"
    assert found.data is not None
    text = found.data.decode()
    assert text.startswith("import math\n\n\ndef step():\n    return 5\n")
    assert "@staticmethod\ndef track(page):\n    return grid(page)\n" in text
    compile(text, "a.py", "exec")


def test_what_a_carried_definition_needs_must_be_listed_too():
    (found,) = run(b"x = 1\n", entry("a.py", "grid"))
    assert found.outcome == "rejected"
    assert found.needs == ("math", "step")
    assert found.data is None


def test_imports_and_helpers_can_be_listed_as_symbols():
    (found,) = run(b"x = 1\n", entry("a.py", "math", "grid", "step"))
    assert found.outcome == "carried"
    namespace: dict[str, object] = {}
    exec(found.data, namespace)
    assert namespace["grid"](3) == 6


def test_two_entries_for_one_file_build_on_each_other():
    first, second = run(b"import math\n", entry("a.py", "step"), entry("a.py", "grid"))
    assert (first.outcome, second.outcome) == ("carried", "carried")
    assert first.data == second.data
    assert second.data.count(b"def step") == 1


def test_what_the_base_has_is_not_needed():
    (found,) = run(RESULT, entry("a.py", "grid"))
    assert (found.outcome, found.data) == ("not needed", None)


def test_a_whole_file_is_carried_only_where_the_base_has_none():
    assert run(None, entry("a.py"))[0].data == RESULT
    assert run(RESULT, entry("a.py"))[0].outcome == "not needed"
    assert run(b"other\n", entry("a.py"))[0].outcome == "rejected"


def test_unknown_symbols_and_files_are_rejected():
    (unknown,) = run(b"x = 1\n", entry("a.py", "nope"))
    assert unknown.outcome == "rejected"
    assert "nope" in unknown.fact
    assert run(b"x = 1\n", entry("b.py"))[0].outcome == "rejected"


MANY = b"""from typing import TYPE_CHECKING, Any
if TYPE_CHECKING:
    from x import Hint, Other

def f(a: Hint): ...
"""


@pytest.mark.parametrize(
    ("symbols", "expected"),
    [
        (("Any",), "from typing import Any\n"),
        (
            ("Hint", "TYPE_CHECKING"),
            "from typing import TYPE_CHECKING\n\n\nif TYPE_CHECKING:\n    from x import Hint\n",
        ),
    ],
)
def test_of_an_import_of_several_names_only_what_is_named_is_taken(symbols, expected):
    (found,) = carry((entry("a.py", *symbols),), {"a.py": b"x = 1\n"}.get, {1: {"a.py": MANY}.get})
    assert found.data == b"x = 1\n\n\n" + expected.encode()


# -- what is cut, and where it is put ----------------------------------------------------------------------------------

BODY = "def g(a):\n    b = a + 1\n    return b\n"


def carried(ours: str | bytes, theirs: str | bytes, *symbols: str):
    sides = [text.encode() if isinstance(text, str) else text for text in (ours, theirs)]
    (found,) = carry((entry("a.py", *symbols),), {"a.py": sides[0]}.get, {1: {"a.py": sides[1]}.get})
    return found


def run_source(data: bytes | None) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(data or b"", "a.py", "exec"), namespace)
    return namespace


@pytest.mark.parametrize("sign", ["\x0c", "\x1c", "\x1d", "\x85", "\u2028", "\u2029", "\x0b"])
def test_only_a_line_feed_ends_a_line(sign):
    found = carried("x = 1\n", f'S = """{sign}"""\nT = "{sign}"\n\n\n# no part of it\n{BODY}\n\ny = 2\n', "g")
    assert found.data == f"x = 1\n\n\n{BODY}".encode()
    assert carried(f'S = "{sign}"\n', BODY, "g").data == f'S = "{sign}"\n\n\n{BODY}'.encode()


@pytest.mark.parametrize(("ours", "theirs"), [("\n", "\n"), ("\n", "\r\n"), ("\r\n", "\n"), ("\r\n", "\r\n")])
def test_what_is_carried_takes_the_line_ends_of_the_file(ours, theirs):
    found = carried(f"x = 1{ours}", BODY.replace("\n", theirs), "g")
    assert found.data == f"x = 1\n\n\n{BODY}".replace("\n", ours).encode()


LATIN = b"# -*- coding: latin-1 -*-\ns = '\xe9'\n"


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (b"x = 1\n", LATIN + BODY.encode(), "not UTF-8"),
        (LATIN, BODY.encode(), "not UTF-8"),
        (b"# coding: latin-1\nx = 1\n", BODY.replace("a + 1", "'\u00e9'").encode(), "not UTF-8"),
        (b"x = 1\n", BODY.replace("\n", "\r").encode(), "carriage returns"),
        (b"x = 1\ry = 2\r", BODY.encode(), "carriage returns"),
    ],
)
def test_a_source_that_cannot_be_cut_for_certain_is_rejected(ours, theirs, expected):
    found = carried(ours, theirs, "g")
    assert (found.outcome, found.data) == ("rejected", None)
    assert expected in found.fact


def test_a_whole_file_is_carried_in_whatever_coding_it_is():
    (found,) = carry((entry("a.py"),), {}.get, {1: {"a.py": LATIN}.get})
    assert (found.outcome, found.data) == ("carried", LATIN)


def test_a_byte_order_mark_stays_in_front():
    mark = b"\xef\xbb\xbf"
    assert carried(mark + b"x = 1\n", mark + BODY.encode(), "g").data == mark + f"x = 1\n\n\n{BODY}".encode()


# -- names that more than one statement makes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "symbols", "call", "expected"),
    [
        ("def w(f):\n    return lambda: f() + 1\n\n\ndef g():\n    return 1\n\n\ng = w(g)\n", ("w", "g"), "g", 2),
        ("T = {}\nfor i in range(3):\n    T[i] = i\n\n\ndef g():\n    return T[2]\n", ("T", "g"), "g", 2),
        ("A = [1]\nA.append(2)\nA += [3]\n\n\ndef g():\n    return sum(A)\n", ("A", "g"), "g", 6),
        ("T = {}\nT.update(a=1)\nT['b'] = 2\n\n\ndef g():\n    return len(T)\n", ("T", "g"), "g", 2),
        ("def g():\n    return g.n\n\n\ng.n = 5\n", ("g",), "g", 5),
        ("L = []\n\n\ndef g():\n    return L[0](3)\n\n\nL.append(abs)\n", ("L", "g"), "g", 3),
        ("def r(f):\n    return f\n\n\n@r\ndef g():\n    return 7\n", ("r", "g"), "g", 7),
    ],
)
def test_all_statements_that_make_a_name_what_it_is_are_taken_in_their_order(theirs, symbols, call, expected):
    found = carried("x = 1\n", theirs, *symbols)
    assert found.outcome == "carried", found.fact
    assert run_source(found.data)[call]() == expected


@pytest.mark.parametrize(
    ("ours", "theirs", "symbols", "expected"),
    [
        (
            "x = 1\n",
            "from functools import singledispatch\n@singledispatch\ndef g(a): ...\n@g.register\ndef _(a: int): ...\n",
            ("singledispatch", "g"),
            "line 4 registers _ with g",
        ),
        ("x = 1\n", "k = 1\ng = k + 1\ndel k\n", ("g", "k"), "line 3 deletes"),
        ("k = 1\n", "g, k = 2, 3\n", ("g",), "line 1, which makes g, binds k too"),
        ("i = 'mine'\n", "g = {}\nfor i in range(3):\n    g[i] = i\n", ("g",), "binds i too"),
        ("x = 1\n", "k = 1; g = 2\n", ("g",), "more than one statement"),
        ("x = 1\n", "def w(f): return f\ndef g(): ...\ng = w(g)\n", ("g",), "needs w too"),
    ],
)
def test_what_would_do_more_than_to_make_the_name_is_rejected(ours, theirs, symbols, expected):
    found = carried(ours, theirs, *symbols)
    assert (found.outcome, found.data) == ("rejected", None)
    assert expected in found.fact


def test_other_names_of_a_guarded_import_are_no_obstacle_where_the_base_imports_the_same():
    theirs = "if x:\n    from math import floor, ceil\n"
    assert carried("x = 1\nfrom math import ceil\n", theirs, "floor").outcome == "carried"
    assert carried("x = 1\nfrom os import ceil\n", theirs, "floor").outcome == "rejected"


def test_what_is_done_only_when_the_file_is_run_as_a_program_is_not_taken():
    found = carried("x = 1\n", "def g(): ...\n\n\nif __name__ == '__main__':\n    print(g)\n", "g")
    assert found.data == b"x = 1\n\n\ndef g(): ...\n"
    handed = carried("x = 1\n", "def g(): ...\n\n\nprint(g)\n", "g")
    assert handed.data == b"x = 1\n\n\ndef g(): ...\n\n\nprint(g)\n"


def test_what_the_module_does_to_something_imported_is_not_taken_with_the_import():
    found = carried("x = 1\n", "import os\nos.environ['A'] = '1'\n", "os")
    assert found.data == b"x = 1\n\n\nimport os\n"


# -- the place ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        "z = K + 1\n",
        "class C:\n    z = K\n",
        "def f(a=K):\n    return a\n",
        "def f(a: K):\n    return a\n",
        "def h():\n    return K\n\n\nz = h()\n",
        "z = [K for _ in range(2)]\n",
    ],
)
def test_what_the_file_needs_while_it_is_loaded_stands_in_front_of_that(use):
    found = carried(f"import math\n\n# of z\n{use}", "K = 3\n", "K")
    assert found.outcome == "carried", found.fact
    text = (found.data or b"").decode()
    assert text.index("import math") < text.index("K = 3\n")
    if not use.startswith("def h"):
        assert "K = 3\n\n\n# of z\n" in text
    run_source(found.data)


def test_what_is_used_only_later_is_put_at_the_end():
    ours = "import math\n\n\ndef f():\n    return K\n\n\ny = 2\n"
    assert carried(ours, "K = 3\n", "K").data == f"{ours}\n\nK = 3\n".encode()
    deferred = "from __future__ import annotations\n\n\ndef f(a: K):\n    return a\n"
    assert carried(deferred, "K = 3\n", "K").data == f"{deferred}\n\nK = 3\n".encode()


def test_a_carried_decorator_and_what_it_needs_stand_in_front_of_its_first_use():
    theirs = "import math\n\n\ndef wrap(f):\n    return lambda: math.floor(f())\n"
    found = carried("x = 1\n\n\n@wrap\ndef f():\n    return 1.5\n\n\nz = f()\n", theirs, "math", "wrap")
    assert run_source(found.data)["z"] == 1


def test_what_would_have_to_stand_before_something_that_it_needs_is_rejected():
    found = carried("z = K + 1\nbase = 2\n", "base = 2\nK = base\n", "K")
    assert (found.outcome, found.data) == ("rejected", None)
    assert found.fact == "line 1 uses K while the file is loaded, and base, which that needs, comes later"
    called = carried("z = k()\n\n\ndef h():\n    return 2\n", "def k():\n    return h()\n", "k")
    assert "and h, which that needs, comes later" in called.fact
