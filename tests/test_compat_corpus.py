"""The corpus run judges its figures rightly, and its ground truth what it can tell; a toy package, no Docker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import compat_corpus, corpus_figures
from benchmarks.corpus_figures import Pair, Said, Use, compare, table, worst

PAIR = Pair("1", "2", "sglang/srt/user.py")
BENCHMARKS = Path(corpus_figures.__file__).parent


def use(status, symbol="sglang.lib.f", kind="name-missing", line=1, path=PAIR.path):
    return Use(kind, kind, path, line, symbol, status, "")


def said(symbol="sglang.lib.f", kind="name-missing", line=1, **more):
    return Said(kind, PAIR.path, line, symbol, "said", **more)


def tally(uses, findings, kind="name-missing"):
    return compare(PAIR, uses, findings).tallies[kind]


def test_a_break_is_found_by_its_symbol_whatever_the_line():
    found = tally([use("break", line=3)], [said(line=9)])
    assert (found.breaks, found.found, found.false_alarms) == (1, 1, 0)
    assert (found.precision, found.recall) == (1.0, 1.0)


def test_another_name_for_the_same_thing_is_found_on_the_same_line_only():
    assert tally([use("break", line=3)], [said("sglang.other.f", line=3)]).found == 1
    other = tally([use("break", line=3)], [said("sglang.other.f", line=4)])
    assert (other.found, other.not_judged) == (0, 1)


def test_another_kind_on_the_same_line_is_not_the_break():
    found = compare(PAIR, [use("break")], [said(kind="signature")])
    assert found.tallies["name-missing"].recall == 0.0
    assert "signature" in found.missed[0].tool


def test_a_break_that_stands_in_several_lines_counts_once():
    assert tally([use("break", line=1), use("break", line=2)], [said(line=1), said(line=2)]).breaks == 1


def test_a_finding_where_everything_fits_is_a_false_alarm():
    found = tally([use("fits")], [said()])
    assert (found.false_alarms, found.precision) == (1, 0.0)


@pytest.mark.parametrize("status", ["undecidable", "own-fault"])
def test_what_no_interpreter_can_tell_is_neither_right_nor_wrong(status):
    found = tally([use(status)], [said()])
    assert (found.breaks, found.false_alarms, found.not_judged, found.recall) == (0, 0, 1, None)


def test_a_break_that_the_file_is_ready_for_is_no_miss_and_no_false_alarm():
    assert tally([use("tolerated")], []).breaks == 0
    assert tally([use("tolerated")], [said()]).false_alarms == 0


def test_unknown_is_neither_found_nor_passed():
    found = tally([use("break")], [said(is_unknown=True)])
    assert (found.breaks, found.found, found.unknown, found.recall) == (1, 0, 1, 0.0)


def test_the_worst_of_each_kind_are_shown_in_turn():
    uses = [use("break", f"sglang.lib.f{n}", line=n) for n in range(5)]
    uses.append(use("break", "sglang.lib.g", kind="signature", line=9))
    rows = worst(compare(PAIR, uses, []).missed, 2)
    assert [("signature" in row) for row in rows] == [False, True]


def test_the_table_has_a_row_for_every_kind():
    text = table(compare(PAIR, [use("break")], [said()]))
    assert all(kind in text for kind in corpus_figures.KINDS)
    assert "1.000" in text


# -- ground truth ------------------------------------------------------------------------------------------------------

LIB = """\
import dataclasses

def kept(a, *, b=1): ...
def renamed(a): ...

@dataclasses.dataclass
class Info:
    size: int
    def __post_init__(self):
        self.made = 1

class Base:
    def __init__(self, name): self.name = name
    def run(self, a): ...

def give() -> Info: ...
"""

USER = """\
from sglang.srt.lib import Base, Info, kept, renamed
from sglang.srt import lib
import sglang.srt.helper

try:
    from sglang.srt.lib import optional
except ImportError:
    optional = None

class Mine(Base):
    def go(self):
        self.run(1)
        return self.name, self.other

def work(info: "Info | None", anything):
    kept(1, b=2)
    made = Info(1)
    return info.size, info.made, lib.give().size, made.size, anything.nothing
"""


@pytest.fixture
def judged(tmp_path):
    """`judged(lib, user)` judges a user file in a fresh interpreter of a toy tree: (kind, line, symbol) -> state."""

    def run(lib: str, user: str, module: str = "sglang.srt.user"):
        tree = tmp_path / "tree"
        package = tree / "sglang" / "srt"
        package.mkdir(parents=True, exist_ok=True)
        (tree / "sglang" / "__init__.py").touch()
        (package / "lib.py").write_text(lib)
        (tmp_path / "user.py").write_text(user)
        job = {"id": "x", "file": str(tmp_path / "user.py"), "module": module, "is_package": False, "only": None}
        request = {"package": "sglang", "root": str(tree), "jobs": [job]}
        (tmp_path / "request.json").write_text(json.dumps(request))
        subprocess.run(
            [sys.executable, "-m", "corpus_truth", tmp_path / "request.json", tmp_path / "answer.json"],
            env={**os.environ, "PYTHONPATH": f"{BENCHMARKS}:{tree}"},
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
        return json.loads((tmp_path / "answer.json").read_text())["uses"]["x"]

    return run


def states(records):
    return {(r["kind"], r["line"], r["symbol"].rpartition(".")[2]): r["state"] for r in records}


def test_the_interpreter_tells_what_resolves_and_what_does_not(judged):
    found = states(judged(LIB, USER))
    assert found["module-missing", 3, "helper"] == "missing"
    assert found["name-missing", 6, "optional"] == "missing"
    assert found["attribute-missing", 13, "other"] == "missing"
    wrong = {key for key, state in found.items() if state != "ok"}
    assert wrong == {
        ("module-missing", 3, "helper"),
        ("name-missing", 6, "optional"),
        ("attribute-missing", 13, "other"),
    }


def test_an_older_library_lacks_names_attributes_and_keywords(judged):
    older = LIB.replace("renamed", "_renamed").replace("b=1", "").replace(", *, ", "").replace("made", "filled")
    found = states(judged(older, USER))
    assert found["name-missing", 1, "renamed"] == "missing"
    assert found["signature", 16, "kept"] == "missing"
    assert found["attribute-missing", 18, "made"] == "missing"
    assert found["attribute-missing", 18, "size"] == "ok"


def test_what_a_file_is_ready_for_is_tolerated_and_what_its_release_lacks_is_its_own_fault(judged):
    newer = judged(LIB + "optional = 1\n", USER)
    uses = corpus_figures.forward(PAIR.path, judged(LIB, USER), newer)
    assert {u.symbol: u.status for u in uses if u.symbol.endswith(("optional", "other"))} == {
        "sglang.srt.lib.optional": "tolerated",
        "sglang.srt.user.Mine.other": "own-fault",
    }


def test_a_broad_except_around_work_is_no_readiness(judged):
    broad = "from sglang.srt.lib import Info\ndef f(i: Info):\n    try:\n        i.new\n    except {}:\n        pass\n"
    newer = LIB.replace("size: int", "size: int\n    new: int")
    for caught, expected in (("Exception", "break"), ("AttributeError", "tolerated")):
        user = broad.format(caught)
        uses = corpus_figures.forward(PAIR.path, judged(LIB, user), judged(newer, user))
        assert [u.status for u in uses if u.kind == "attribute-missing"] == [expected]


def test_what_an_overlay_takes_away_is_a_reverse_break_of_its_importers(judged):
    older = judged(LIB, USER)
    newer = judged(LIB.replace("def run(self, a)", "def run(self)"), USER)
    uses = corpus_figures.reverse(PAIR.path, "sglang.srt.lib", older, newer)
    assert [(u.kind, u.what, u.line) for u in uses if u.status == "break"] == [("reverse", "signature", 12)]


def test_a_name_that_the_newer_module_takes_from_where_the_older_tree_has_nothing_is_taken_away(judged):
    older = judged(LIB, USER)
    newer = judged(LIB.replace("def renamed(a): ...", "from os import path as renamed"), USER)
    uses = corpus_figures.reverse(PAIR.path, "sglang.srt.lib", older, newer, {"os.path"})
    assert [u.symbol for u in uses if u.status == "break"] == ["sglang.srt.lib.renamed"]
    uses = corpus_figures.reverse(PAIR.path, "sglang.srt.lib", older, newer, set())
    assert [u.symbol for u in uses if u.status == "break"] == []


def test_a_class_may_be_named_by_its_constructor():
    found = tally(
        [use("break", "sglang.lib.C", "signature")], [said("sglang.lib.C.__init__", "signature")], "signature"
    )
    assert found.found == 1


def test_importers_go_down_with_a_module_that_fails_when_it_is_imported(judged):
    importer = judged(LIB, USER)
    at_once = [use("break", "sglang.srt.gone", "module-missing")]
    (fallen, *_) = corpus_figures.falls(at_once, "sglang/srt/b.py", "sglang.srt.lib", importer)
    assert (fallen.what, fallen.symbol, fallen.status) == ("falls", "sglang.srt.lib", "break")
    late = [Use("module-missing", "module-missing", PAIR.path, 1, "sglang.srt.gone", "break", "", ("def f",))]
    assert corpus_figures.falls(late, "sglang/srt/b.py", "sglang.srt.lib", importer) == []


def test_a_name_bound_under_a_condition_is_not_decided_here(judged):
    lib = LIB.replace("def renamed(a): ...", "if len('x') == 2:\n    def renamed(a): ...")
    assert states(judged(lib, USER))["name-missing", 1, "renamed"] == "undecidable"


def test_the_judged_file_itself_decides_nothing(judged):
    records = judged(LIB, "from sglang.srt.lib import absent\n", module="sglang.srt.lib")
    assert [r["state"] for r in records if r["kind"] == "name-missing"] == ["undecidable"]


# -- the corpus --------------------------------------------------------------------------------------------------------


def test_the_corpus_is_drawn_by_hash_spread_over_folders_and_large_enough(trees):
    for version in compat_corpus.wheels.VERSIONS:
        trees(version)
    drawn = [pair for older, newer in compat_corpus._STEPS for pair in compat_corpus.choose(older, newer, 30)]
    assert drawn == [pair for older, newer in compat_corpus._STEPS for pair in compat_corpus.choose(older, newer, 30)]
    assert len(set(drawn)) >= 150
    assert all(pair.path.startswith("sglang/srt/") for pair in drawn)
    assert len({pair.path.split("/")[2] for pair in drawn}) > 20
