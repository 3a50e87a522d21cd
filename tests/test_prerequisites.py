"""A stack in the wrong order, and a pull request whose prerequisite is absent, are named with their evidence."""

from __future__ import annotations

import dataclasses
import json
import stat
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from builder import records, render
from builder.findings import Finding
from builder.merge import Merged
from builder.model import Oid, PullRequest
from builder.prerequisites import Prerequisite, Search, Trace, number_of, with_findings
from tests.lab.git_history import Changes, History, Repository
from tests.support.scene import write_catalogue

UP = "python/sglang/srt/"
A, B, C = "sglang/srt/a.py", "sglang/srt/b.py", "sglang/srt/c.py"

OLD = "def first():\n    return 'first'\n\n\ndef walk(path):\n    return [path]\n\n\ndef last():\n    return 'last'\n"
SELECTED = OLD.replace(
    "def walk(path):\n    return [path]\n", "def walk(path, top):\n    chosen = top[:path]\n    return chosen\n"
)
QUANTIZED = SELECTED.replace("    return chosen\n", "    return chosen.dense()\n")

Plan = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def plan(overlay, tmp_path: Path) -> Plan:
    """`plan(repository, {"sglang/srt/a.py": ...}, 2)` plans on a folder with these files: exit code, document."""
    shelf = write_catalogue(tmp_path / "shelf")

    def run(
        upstream: Repository | str | Path,
        base: Mapping[str, str] | Path,
        *numbers: int,
        more: Sequence[str] = (),
        **environment: str,
    ) -> tuple[int, dict[str, Any]]:
        source = upstream.path if isinstance(upstream, Repository) else upstream
        folder = base if isinstance(base, Path) else _laid_out(tmp_path / "site", base)
        words = [word for number in numbers for word in ("--pr", str(number))]
        done = overlay(
            *("plan", "--json", "--catalogue", shelf, "--upstream", source, "--base", f"dir:{folder}", *words, *more),
            **environment,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    return run


def _laid_out(site: Path, files: Mapping[str, str]) -> Path:
    for path, text in {"sglang/__init__.py": "", "sglang/version.py": '__version__ = "1.0"\n', **files}.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    return site


def up(**files: str | None) -> Changes:
    """Return files under upstream's paths, by module name."""
    return {f"{UP}{name}.py": text for name, text in files.items()}


def started(history: History, **files: str) -> None:
    history.commit({"python/sglang/__init__.py": "", "python/sglang/version.py": "", **up(a=OLD, **files)}, "Start")


def stacked(history: History, folder: Path) -> Repository:
    """#1 rewrites `walk`, #2 changes what #1 wrote."""
    started(history)
    history.squash(1, "Select", [up(a=SELECTED)])
    history.squash(2, "Quantize", [up(a=QUANTIZED)])
    return history.write(folder / "upstream.git")


def states(document: dict[str, Any]) -> list[str]:
    return [file["state"] for file in document["files"]]


def brief(document: dict[str, Any]) -> list[tuple[int, int | None, list[tuple[str, str]]]]:
    return [
        (entry["pull_request"], entry["needs"], [(trace["kind"], trace["path"]) for trace in entry["evidence"]])
        for entry in document["prerequisites"]
    ]


# -- the order of a stack ----------------------------------------------------------------------------------------------


def test_a_stack_in_the_wrong_order_is_refused_with_the_right_one(history: History, plan: Plan, tmp_path: Path) -> None:
    repository = stacked(history, tmp_path)
    exit_code, document = plan(repository, {A: OLD}, 2, 1)
    assert (exit_code, document["verdict"]) == (1, "refused")
    error = document["error"]
    assert (error["where"], error["message"]) == ("#2", "was written on top of #1, which is put on after it")
    assert error["hint"] == "give --pr 1 --pr 2"
    assert error["facts"] == [f"#1 is in the tree at #2's parent {repository.pulls[2].parent[:8]}, and not in the base"]


def test_a_stack_in_the_right_order_needs_nothing(history: History, plan: Plan, tmp_path: Path) -> None:
    _, document = plan(stacked(history, tmp_path), {A: OLD}, 1, 2)
    assert states(document) == ["clean", "clean"]
    assert (document["prerequisites"], document["not_searched"]) == ([], [])


@pytest.mark.parametrize("base", [SELECTED, "import os\n\n\n" + SELECTED], ids=["exact", "changed"])
def test_the_order_does_not_matter_where_the_base_has_the_lower_one(
    base: str, history: History, plan: Plan, tmp_path: Path
) -> None:
    _, document = plan(stacked(history, tmp_path), {A: base}, 2, 1)
    assert (states(document), document["prerequisites"]) == (["clean", "already-present"], [])


def test_the_order_is_judged_by_content_and_not_by_dates(history: History, plan: Plan, tmp_path: Path) -> None:
    """#1 was merged before #2 and taken back, so #2 was not written on top of it."""
    started(history)
    history.squash(1, "Select", [up(a=SELECTED)])
    history.commit(up(a=OLD), 'Revert "Select (#1)"')
    history.squash(2, "Rename", [up(a=OLD.replace("'last'", "'end'"))])
    _, document = plan(history.write(tmp_path / "upstream.git"), {A: OLD}, 2, 1)
    assert states(document) == ["clean", "clean"]


def test_the_order_does_not_matter_where_no_file_is_shared(history: History, plan: Plan, tmp_path: Path) -> None:
    started(history, b="y = 1\n")
    history.squash(1, "Select", [{**up(a=SELECTED), "docs/x.md": "1\n"}])
    history.squash(2, "Other", [{**up(b="y = 2\n"), "docs/x.md": "2\n"}])
    repository = history.write(tmp_path / "upstream.git")
    for order in ((1, 2), (2, 1)):
        _, document = plan(repository, {A: OLD, B: "y = 1\n"}, *order)
        assert states(document) == ["clean", "clean"]


def test_all_pairs_are_named_and_the_hint_keeps_what_is_right(history: History, plan: Plan, tmp_path: Path) -> None:
    """Of 4 3 2 1: 3 and 2 stand on 1, 4 on 3; 2 has no file with 3 and 4, so it stays behind them."""
    started(history, b="y = 1\n", c="z = 1\n")
    history.squash(1, "One", [up(a=SELECTED, b="def y():\n    return 2\n")])
    history.squash(2, "Two", [up(b="def y():\n    return 3\n")])
    history.squash(3, "Three", [up(a=QUANTIZED, c="def z():\n    return 2\n")])
    history.squash(4, "Four", [up(c="def z():\n    return 3\n")])
    base = {A: OLD, B: "y = 1\n", C: "z = 1\n"}
    _, document = plan(history.write(tmp_path / "upstream.git"), base, 4, 3, 2, 1)
    assert document["error"]["hint"] == "give --pr 1 --pr 3 --pr 4 --pr 2"
    assert [fact.split(" is in")[0] + fact.split("at ")[1].split("'")[0] for fact in document["error"]["facts"]] == [
        "#3#4",
        "#1#3",
        "#1#2",
    ]


def test_a_definition_in_the_wrong_order_is_refused_in_its_own_words(
    history: History, plan: Plan, tmp_path: Path
) -> None:
    (tmp_path / "shelf/overlays/both.toml").write_text('title = "Both"\npull-requests = [2, 1]\n')
    _, document = plan(stacked(history, tmp_path), {A: OLD}, more=["--overlay", "both"])
    assert document["error"]["hint"] == "write pull-requests = [1, 2] in overlays/both.toml"


def test_the_order_needs_no_history(history: History, plan: Plan, tmp_path: Path) -> None:
    repository = stacked(history, tmp_path)
    _, document = plan(repository.url, {A: OLD}, 2, 1)
    assert document["error"]["hint"] == "give --pr 1 --pr 2"
    _, document = plan(repository.url, {A: OLD}, 1, 2)
    assert (states(document), document["not_searched"]) == (["clean", "clean"], [])


def test_a_lower_one_that_later_work_hides_is_named_by_the_conflict(
    history: History, plan: Plan, tmp_path: Path
) -> None:
    """One of its definitions is gone at the parent, so nothing tells that it is below; its lines do."""
    started(history)
    history.squash(1, "Select", [up(a=SELECTED + "\n\ndef extra():\n    return 0\n")])
    history.commit(up(a=SELECTED), "Drop extra (#9)")
    history.squash(2, "Quantize", [up(a=QUANTIZED)])
    repository = history.write(tmp_path / "upstream.git")
    _, document = plan(repository, {A: OLD}, 2, 1)
    assert document["error"] is None
    assert [(number, needs) for number, needs, _ in brief(document)] == [(2, 1)]
    _, document = plan(repository, {A: OLD}, 1, 2)
    assert brief(document) == []


# -- a file that is missing in the base --------------------------------------------------------------------------------


def test_who_added_a_missing_file_is_the_prerequisite(history: History, plan: Plan, tmp_path: Path) -> None:
    started(history)
    history.squash(1, "Add it", [up(b="y = 1\n")])
    history.commit(up(b="y = 2\n"), "Touch it (#9)")
    history.squash(2, "Change it", [up(b="y = 3\n")])
    repository = history.write(tmp_path / "upstream.git")
    exit_code, document = plan(repository, {A: OLD}, 2)
    assert (exit_code, brief(document)) == (1, [(2, 1, [("missing-in-base", B)])])
    assert document["prerequisites"][0]["commit"] == f"{repository.pulls[1].result} Add it (#1)"
    assert document["prerequisites"][0]["evidence"][0]["lines"] is None
    assert brief(plan(repository, {A: OLD, B: "y = 2\n"}, 2)[1]) == []


def test_a_commit_without_a_pull_request_is_named_by_its_id(history: History, plan: Plan, tmp_path: Path) -> None:
    started(history)
    added = history.commit(up(b="y = 1\n"), "Add it by hand")
    history.squash(2, "Change it", [up(b="y = 3\n")])
    repository = history.write(tmp_path / "upstream.git", {"added": added})
    _, document = plan(repository, {A: OLD}, 2)
    assert document["prerequisites"][0]["commit"] == f"{repository.commits['added']} Add it by hand"
    assert brief(document) == [(2, None, [("missing-in-base", B)])]


def test_a_renamed_file_is_sought_under_its_old_name(history: History, plan: Plan, tmp_path: Path) -> None:
    started(history)
    history.squash(1, "Add it", [up(b=SELECTED)])
    history.squash(2, "Move it", [up(b=None, c=QUANTIZED)])
    _, document = plan(history.write(tmp_path / "upstream.git"), {A: OLD}, 2)
    assert brief(document) == [(2, 1, [("missing-in-base", B)])]


def test_a_file_that_a_newer_base_dropped_has_no_prerequisite(history: History, plan: Plan, tmp_path: Path) -> None:
    started(history)
    history.squash(1, "Add it", [up(b="y = 1\n", a=SELECTED)])
    history.open(2, "Change it", [up(b="y = 3\n")])
    history.commit(up(b=None), "Drop it")
    repository = history.write(tmp_path / "upstream.git")
    exit_code, document = plan(repository, {A: SELECTED}, 2)
    assert (exit_code, states(document)) == (1, ["missing-in-base"])
    assert brief(document) == []
    assert brief(plan(repository, {A: OLD}, 2)[1]) == [(2, 1, [("missing-in-base", B)])]


# -- conflicts ---------------------------------------------------------------------------------------------------------


def test_who_brought_the_lines_in_conflict_is_the_prerequisite(history: History, plan: Plan, tmp_path: Path) -> None:
    repository = stacked(history, tmp_path)
    exit_code, document = plan(repository, {A: OLD}, 2)
    assert (exit_code, document["verdict"]) == (1, "refused")
    trace = {"kind": "conflict", "path": A, "lines": [5, 7], "symbol": "walk"}
    commit = f"{repository.pulls[1].result} Select (#1)"
    assert document["prerequisites"] == [{"pull_request": 2, "needs": 1, "commit": commit, "evidence": [trace]}]


def test_a_base_that_has_the_lines_has_no_prerequisite(history: History, plan: Plan, tmp_path: Path) -> None:
    _, document = plan(stacked(history, tmp_path), {A: SELECTED}, 2)
    assert (states(document), document["prerequisites"]) == (["clean"], [])


def test_a_locally_changed_base_still_lacks_what_was_brought(history: History, plan: Plan, tmp_path: Path) -> None:
    """Its file is no version of upstream's, so the definitions decide."""
    local = OLD.replace("'first'", "'ours'")
    _, document = plan(stacked(history, tmp_path), {A: local}, 2)
    assert brief(document) == [(2, 1, [("conflict", A)])]


REWRITTEN = SELECTED.replace("    chosen = top[:path]\n    return chosen\n", "    return sorted(top)[:path]\n")


@pytest.mark.parametrize("base", [REWRITTEN, REWRITTEN.replace("'first'", "'ours'")], ids=["upstreams", "changed"])
def test_a_newer_base_conflicts_and_has_no_prerequisite(
    base: str, history: History, plan: Plan, tmp_path: Path
) -> None:
    started(history)
    history.squash(1, "Select", [up(a=SELECTED)])
    history.open(2, "Quantize", [up(a=QUANTIZED)])
    history.commit(up(a=REWRITTEN), "Sort (#3)")
    exit_code, document = plan(history.write(tmp_path / "upstream.git"), {A: base}, 2)
    assert (exit_code, states(document)) == (1, ["conflict"])
    assert brief(document) == []


def test_lines_that_the_base_has_elsewhere_in_the_file_are_no_evidence(
    history: History, plan: Plan, tmp_path: Path
) -> None:
    local = OLD + "\n\ndef other(path, top):\n    chosen = top[:path]\n    return chosen\n"
    _, document = plan(stacked(history, tmp_path), {A: local}, 2)
    assert [trace["lines"] for entry in document["prerequisites"] for trace in entry["evidence"]] == [[5, 5]]


@pytest.mark.parametrize(("base", "needs"), [('{"top": 16}\n', [1]), ('{"top": 4, "rank": 2}\n', [])])
def test_what_has_no_definitions_is_judged_by_upstreams_versions(
    base: str, needs: list[int], history: History, plan: Plan, tmp_path: Path
) -> None:
    """The older base lacks what #1 brought; the newer one had it, and has what came later."""
    table = f"{UP}table.json"
    started(history)
    history.commit({table: '{"top": 16}\n'}, "Table")
    history.squash(1, "Halve", [{table: '{"top": 8}\n'}])
    history.open(2, "Rank", [{table: '{"top": 8, "rank": 1}\n'}])
    history.commit({table: '{"top": 4, "rank": 2}\n'}, "Halve again (#3)")
    repository = history.write(tmp_path / "upstream.git")
    _, document = plan(repository, {A: OLD, "sglang/srt/table.json": base}, 2)
    assert states(document) == ["conflict"]
    assert [entry["needs"] for entry in document["prerequisites"]] == needs


def test_one_commit_is_one_entry_and_the_best_evidence_comes_first(
    history: History, plan: Plan, tmp_path: Path
) -> None:
    """A pull request's number comes before a commit without one, a missing file before lines in conflict."""
    started(history, c="def c():\n    return 0\n")
    history.squash(1, "Select", [up(a=SELECTED.replace("'last'", "'finally'"))])
    history.commit(up(c="def c():\n    value = 'c'\n    return value\n"), "By hand")
    history.squash(3, "Add it", [up(b="y = 1\n")])
    changed = QUANTIZED.replace("'last'", "'the end'")
    history.squash(2, "All", [up(a=changed, b="y = 2\n", c="def c():\n    value = 'c'\n    return value + value\n")])
    _, document = plan(history.write(tmp_path / "upstream.git"), {A: OLD, C: "def c():\n    return 0\n"}, 2)
    assert brief(document) == [
        (2, 3, [("missing-in-base", B)]),
        (2, 1, [("conflict", A), ("conflict", A)]),
        (2, None, [("conflict", C)]),
    ]


def test_a_merge_counts_as_the_pull_request_and_not_as_its_commits(
    history: History, plan: Plan, tmp_path: Path
) -> None:
    started(history)
    history.merge(1, "Select", [up(a=SELECTED)])
    history.merge(2, "Quantize", [up(a=QUANTIZED)])
    _, document = plan(history.write(tmp_path / "upstream.git"), {A: OLD}, 2)
    assert brief(document) == [(2, 1, [("conflict", A)])]


# -- findings ----------------------------------------------------------------------------------------------------------


def test_who_introduced_a_missing_name_is_the_prerequisite(history: History, plan: Plan, tmp_path: Path) -> None:
    started(history, b="y = 1\n")
    history.squash(1, "Help", [up(a=OLD + "\n\ndef helper():\n    return 1\n")])
    history.squash(2, "Use it", [up(b="from sglang.srt.a import helper\n\ny = helper()\n")])
    repository = history.write(tmp_path / "upstream.git")
    exit_code, document = plan(repository, {A: OLD, B: "y = 1\n"}, 2)
    trace = {"kind": "finding", "path": B, "lines": [1, 1], "symbol": "sglang.srt.a.helper"}
    assert (exit_code, [entry["needs"] for entry in document["prerequisites"]]) == (1, [1])
    assert document["prerequisites"][0]["evidence"] == [trace]
    _, document = plan(repository, {A: OLD, B: "y = 1\n"}, 1, 2)
    assert (states(document), document["findings"], document["prerequisites"]) == (["clean", "clean"], [], [])


PULL = PullRequest("o/n", 2, Oid("a" * 40), Oid("b" * 40), 0, "squash")
MERGED = (Merged(PULL, "absent", (), (), frozenset({A})),)
HELP = f"{'1' * 40} Help (#1)"


def finding(**changed: Any) -> Finding:
    made = Finding("name-missing", A, 7, "sglang.srt.b.helper", "", None, "imports helper", introduced_by=HELP)
    return dataclasses.replace(made, **changed)


def test_a_finding_joins_what_is_known_of_the_same_commit() -> None:
    known = Search((Prerequisite(2, 1, HELP, (Trace("conflict", A, (3, 4), "f"),)),), ("x",))
    found = with_findings(known, [finding(), finding()], MERGED, has_history=True)
    told = Trace("finding", A, (7, 7), "sglang.srt.b.helper")
    assert found == Search((Prerequisite(2, 1, HELP, (Trace("conflict", A, (3, 4), "f"), told)),), ("x",))


@pytest.mark.parametrize(
    "changed",
    [
        {"acknowledged": "reviewed"},
        {"unreachable": "another vendor's"},
        {"introduced_by": f"{'1' * 40} By hand"},
        {"introduced_by": f"{'1' * 40} Itself (#2)"},
        {"introduced_by": None},
        {"kind": "reverse"},
    ],
    ids=str,
)
def test_a_finding_that_names_no_other_pull_request_or_is_settled_tells_none(changed: dict[str, Any]) -> None:
    assert with_findings(Search(), [finding(**changed)], MERGED, has_history=True) == Search()


def test_a_finding_that_could_not_be_traced_without_history_is_said() -> None:
    untraced = finding(introduced_by=None)
    found = with_findings(Search(), [untraced, untraced], MERGED, has_history=False)
    assert found.found == ()
    assert found.not_searched == ("what #2 builds on: only a complete local clone can be searched (--upstream PATH)",)


@pytest.mark.parametrize(
    ("subject", "number"),
    [
        ("Help (#12)", 12),
        ('Revert "Help (#12)" (#13)', 13),
        ("Merge pull request #14 from someone/topic", 14),
        ('Revert "Help (#12)"', None),
        ("Fix #15", None),
        ("Help (#16) again", None),
    ],
)
def test_a_commits_subject_names_its_pull_request(subject: str, number: int | None) -> None:
    assert number_of(f"{'1' * 40} {subject}") == number


# -- what was not searched ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["url", "shallow"])
def test_without_history_it_is_said_that_nothing_was_searched(
    how: str, history: History, plan: Plan, tmp_path: Path
) -> None:
    repository = stacked(history, tmp_path)
    source: str | Path = repository.url
    if how == "shallow":
        source = tmp_path / "clone.git"
        subprocess.run(["git", "clone", "-q", "--bare", "--depth=2", repository.url, source], check=True)
    exit_code, document = plan(source, {A: OLD}, 2)
    assert (exit_code, document["verdict"], document["prerequisites"]) == (1, "refused", [])
    assert document["not_searched"] == [
        "what #2 builds on: only a complete local clone can be searched (--upstream PATH)"
    ]


def test_a_search_that_git_does_not_end_is_said(history: History, plan: Plan, tmp_path: Path) -> None:
    """What a git that was stopped leaves: another status than 0."""
    stopped = tmp_path / "git"
    stopped.write_text('#!/bin/sh\ncase "$*" in *" blame "*) exit 137;; esac\nexec git "$@"\n')
    stopped.chmod(stopped.stat().st_mode | stat.S_IXUSR)
    repository = stacked(history, tmp_path)
    _, document = plan(repository, {A: OLD}, 2, GIT_PYTHON_GIT_EXECUTABLE=str(stopped))
    assert document["prerequisites"] == []
    assert document["not_searched"] == [f"who brought what #2 needs of {A}: git could not tell in time"]


# -- what people see ---------------------------------------------------------------------------------------------------


def entry(needs: int | None, number: int) -> records.PrerequisiteRecord:
    traces = tuple(
        records.TraceRecord(kind="conflict", path=A, lines=(n, n + 1), symbol="walk") for n in range(10, 80, 10)
    )
    subject = f"Change {number}" + (f" (#{needs})" if needs else "")
    return records.PrerequisiteRecord(pull_request=2, needs=needs, commit=f"{number:040x} {subject}", evidence=traces)


def shown(document: records.PlanDocument) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(render.plan(document))
    return capture.get()


def test_a_long_list_is_cut_and_the_rest_is_counted() -> None:
    entries = (*(entry(100 + n, n) for n in range(12)), *(entry(None, 50 + n) for n in range(30)))
    text = shown(records.PlanDocument(verdict="refused", prerequisites=entries))
    assert [word for word in text.split() if word.startswith("#1")] == [f"#{100 + n}" for n in range(5)]
    assert text.count("Change 5") == 3
    assert "7 more pull requests and 27 more commits without one" in text
    assert "lines 10-11 (walk), lines 20-21 (walk), lines 30-31 (walk), lines 40-41 (walk) and 3 more" in text
    assert text.count("next ") == 1
    assert "give --pr 100 before --pr 2, and plan again" in text


def test_nothing_is_shown_where_nothing_is_missing() -> None:
    text = shown(records.PlanDocument(verdict="ok"))
    assert "prerequisite" not in text
    assert "next" not in text


def test_what_was_not_searched_is_shown() -> None:
    text = shown(records.PlanDocument(verdict="refused", not_searched=("what #2 builds on: no",)))
    assert "prerequisites not searched: what #2 builds on: no" in text


# -- real trees --------------------------------------------------------------------------------------------------------

MODELS, UTILS = "sglang/srt/models/dflash.py", "sglang/srt/speculative/dflash_utils.py"


@pytest.mark.parametrize(("version", "others"), [("0.5.17", ["Release v0.5.18"]), ("0.5.18", [])])
def test_35496_alone_names_35371(
    version: str, others: list[str], plan: Plan, upstream_repository: Repository, trees: Callable[[str], Path]
) -> None:
    exit_code, document = plan(upstream_repository, trees(version), 35496)
    assert (exit_code, document["verdict"]) == (1, "refused")
    first, *rest = document["prerequisites"]
    assert (first["pull_request"], first["needs"]) == (35496, 35371)
    assert first["commit"].startswith(upstream_repository.pulls[35371].result)
    assert {(trace["kind"], trace["path"]) for trace in first["evidence"]} == {("conflict", MODELS)}
    assert "DFlashAttention.forward" in {trace["symbol"] for trace in first["evidence"]}
    assert [(each["needs"], each["commit"].partition(" ")[2]) for each in rest] == [(None, name) for name in others]


def test_each_line_told_is_one_that_the_prerequisite_brought(
    plan: Plan, upstream_repository: Repository, trees: Callable[[str], Path]
) -> None:
    _, document = plan(upstream_repository, trees("0.5.18"), 35496)
    pull = upstream_repository.pulls[35371]
    before, after = (
        upstream_repository.read(oid, f"python/{MODELS}").decode().splitlines() for oid in (pull.parent, pull.result)
    )
    told = [trace["lines"] for entry in document["prerequisites"] for trace in entry["evidence"]]
    assert len(told) > 3
    for first, last in told:
        assert after[first - 1] not in before
        assert after[last - 1] not in before


@pytest.mark.parametrize("version", ["0.5.17", "0.5.18"])
@pytest.mark.parametrize("is_url", [False, True])
def test_35496_before_35371_is_refused_with_the_right_order(
    is_url: bool, version: str, plan: Plan, upstream_repository: Repository, trees: Callable[[str], Path]
) -> None:
    source = upstream_repository.url if is_url else upstream_repository
    exit_code, document = plan(source, trees(version), 35496, 35371)
    assert (exit_code, document["verdict"]) == (1, "refused")
    assert document["error"]["message"] == "was written on top of #35371, which is put on after it"
    assert document["error"]["hint"] == "give --pr 35371 --pr 35496"


def test_35371_and_35496_in_order_have_no_prerequisite(
    plan: Plan, upstream_repository: Repository, trees: Callable[[str], Path]
) -> None:
    _, document = plan(upstream_repository, trees("0.5.18"), 35371, 35496)
    assert {file["state"] for file in document["files"]} == {"clean"}
    assert (document["prerequisites"], document["not_searched"]) == ([], [])


@pytest.mark.parametrize("version", ["0.5.19", "0.5.20", "0.5.21"])
def test_a_release_that_has_35371_gives_35496_no_prerequisite(
    version: str, plan: Plan, upstream_repository: Repository, trees: Callable[[str], Path]
) -> None:
    _, document = plan(upstream_repository, trees(version), 35496)
    assert set(states(document)) <= {"clean", "already-present"}
    assert (document["prerequisites"], document["not_searched"]) == ([], [])


def test_the_stand_in_of_35371_names_few_commits(
    plan: Plan, upstream_repository: Repository, trees: Callable[[str], Path]
) -> None:
    """Five files and a dozen conflicts: what is missing came with one release."""
    _, document = plan(upstream_repository, trees("0.5.17"), 35371)
    assert len({conflict["path"] for conflict in document["conflicts"]}) > 2
    assert [entry["commit"].partition(" ")[2] for entry in document["prerequisites"]] == ["Release v0.5.18"]
    assert {trace["kind"] for trace in document["prerequisites"][0]["evidence"]} == {"conflict"}
