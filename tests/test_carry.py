"""Carrying takes what the base lacks from the pull request's result tree, and says what that needs in turn."""

from __future__ import annotations

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
