"""A definition is edited in place: what was there stays byte for byte, and what is added is exactly what was meant."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from builder.catalogue import overlay_from
from builder.definition_file import Additions, created, edited
from builder.errors import InputError
from builder.proposals import CarryOver, LeftOut

SHIPPED = Path(__file__).parent.parent / "overlays/dflash2.toml"

ALL = Additions(
    patches=("t/0006-x", "t/0007-y"),
    carries=(CarryOver("sglang/a.py", ("f", "g"), 1, 'why "so"'), CarryOver("sglang/b.py", (), 1, "r")),
    left_out=(LeftOut("sglang/out.py", "not wanted"),),
)
CARRIED = [
    {"path": "sglang/a.py", "symbols": ["f", "g"], "from": "pr:1", "reason": 'why "so"'},
    {"path": "sglang/b.py", "from": "pr:1", "reason": "r"},
]


def kept_lines(before: str, after: str) -> bool:
    """Tell whether all lines are still there, in their order."""
    lines = iter(after.splitlines())
    return all(line in lines for line in before.splitlines())


@pytest.mark.parametrize(
    "text",
    [
        "pull-requests=[1]   # the one\n",
        "pull-requests = [1]",
        "# first\n\n\npull-requests = [1]\n\n# about the draft\n[draft]\ncheckpoint = 'x'\n",
        'patches = [ "t/0001-x", ]  # tail\npull-requests = [1]\n',
        'patches = [\n  "t/0001-x", # one\n  # two\n  "t/0002-x"\n]\npull-requests = [1]\n',
        'pull-requests = [1]\ncarry = [{path = "sglang/q.py", from = "pr:1", reason = "x"}]\n',
        'pull-requests = [1]\n[[carry]]\npath="sglang/q.py"\nfrom="pr:1"\nreason="x"\n\n# d\n[draft]\ncheckpoint="x"\n'
        '[[carry]]\npath = "sglang/r.py"\nfrom = "pr:1"\nreason = "x"',
        '"patches" = []\npull-requests = [1]\n[draft.config]\nx = [\n    [1, 2],\n]\n',
        SHIPPED.read_text(),
    ],
)
def test_what_was_there_stays_and_the_additions_are_exact(text):
    after = edited(text, ALL, "overlays/x.toml")
    before, found = tomllib.loads(text), tomllib.loads(after)
    assert found["patches"] == [*before.get("patches", []), *ALL.patches]
    assert found["carry"] == [*before.get("carry", []), *CARRIED]
    assert found["leave-out"][-1] == {"path": "sglang/out.py", "reason": "not wanted"}
    changed = ("patches", "carry", "leave-out")
    assert {k: v for k, v in found.items() if k not in changed} == {k: v for k, v in before.items() if k not in changed}
    lines = [line for line in text.splitlines() if not line.startswith(("patches", '"patches"', "carry =", '  "t/'))]
    assert kept_lines("\n".join(lines), after)


def test_nothing_to_add_changes_nothing():
    text = SHIPPED.read_text()
    assert edited(text, Additions(), "overlays/x.toml") == text


FILES = """\
pull-requests = [1]

[[file]]
path = "sglang/one.py"
reason = "r"  # inside

# about the second
[[file]]
path = "sglang/out.py"
reason = "r"

# about what follows
[[acknowledge]]
check = "imports"
reason = "r"
"""


def test_a_file_that_is_left_out_loses_its_entry_and_no_other():
    after = edited(FILES, Additions(left_out=ALL.left_out), "overlays/x.toml")
    assert "# about what follows\n[[acknowledge]]" in after
    assert 'reason = "r"  # inside' in after
    assert [entry["path"] for entry in tomllib.loads(after)["file"]] == ["sglang/one.py"]
    assert [entry.path for entry in overlay_from(after, "x").leave_out] == ["sglang/out.py"]


def test_a_file_entry_in_an_inline_table_is_found_too():
    text = (
        'pull-requests = [1]\nfile = [{path = "sglang/out.py", reason = "r"}, {path = "sglang/z.py", reason = "r"}]\n'
    )
    after = edited(text, Additions(left_out=ALL.left_out), "overlays/x.toml")
    assert [entry["path"] for entry in tomllib.loads(after)["file"]] == ["sglang/z.py"]


def test_line_endings_stay_what_they_are():
    after = edited(FILES.replace("\n", "\r\n"), ALL, "overlays/x.toml")
    assert after.count("\n") == after.count("\r\n")
    assert after.replace("\r\n", "\n") == edited(FILES, ALL, "overlays/x.toml")


def test_a_form_that_cannot_be_edited_is_refused_with_the_next_step():
    draft = '[draft]\ncheckpoint = """\n[[file]]\n"""\n'
    text = f'pull-requests = [1]\n{draft}[[file]]\npath = "sglang/out.py"\nreason = "r"\n'
    with pytest.raises(InputError) as caught:
        edited(text, ALL, "overlays/x.toml")
    assert caught.value.where == "overlays/x.toml"
    assert "in place" in caught.value.message
    assert "by hand" in caught.value.hint


def test_a_new_definition_loads():
    text = created('Title "quoted"', [1, 2], ["qwen", "exists a.py and not exists b.py"], None, ALL)
    overlay = overlay_from(text, "x")
    assert (overlay.title, overlay.pull_requests, overlay.patches) == ('Title "quoted"', (1, 2), ALL.patches)
    assert [entry.model_dump(by_alias=True, exclude_defaults=True) for entry in overlay.carry] == [
        {**entry, "symbols": tuple(entry["symbols"])} if "symbols" in entry else entry for entry in CARRIED
    ]
    assert overlay_from(created("t", [1], ["q"], "other/upstream", ALL), "x").upstream == "other/upstream"
