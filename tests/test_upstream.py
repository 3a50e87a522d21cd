"""Pull requests out of real git repositories: found, fetched, listed and read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from builder.doors import Forge
from builder.errors import InputError, OverlayError, Refused, Unavailable
from builder.forge import GitHubForge
from builder.model import Change, Oid, PullRequest, PullRequestRef
from builder.upstream import GitUpstream, merge_file
from tests.lab import forge_server
from tests.lab.git_history import Content, History, Repository
from tests.lab.upstream_repo import PULL_REQUEST, PULL_REQUEST_FILES
from tests.support.loopback import Answer, serve

SQUASHED, MERGED, REBASED, OPEN, CLOSED = 1, 2, 3, 4, 5
PACKAGE = {f"pkg/m{number}.py": f"value = {number}\n" * 20 for number in range(40)}
GONE = Oid("1" * 40)


def ref(number: int) -> PullRequestRef:
    return PullRequestRef("someone/project", number)


@pytest.fixture(autouse=True)
def _configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test writes to this file is the user's configuration of git."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "user.gitconfig"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """One pull request of each kind; the branch went on while each was open."""
    history = History()
    fork = history.commit(PACKAGE, "Start")
    history.commit({"pkg/m0.py": "value = 'meanwhile'\n"}, "Meanwhile")
    history.squash(SQUASHED, "Squash it", [{"pkg/m1.py": "one\n"}, {"pkg/new.py": "new\n"}], fork=fork)
    history.merge(MERGED, "Merge it", [{"pkg/m2.py": "two\n"}, {"pkg/m3.py": None}], fork=fork)
    history.rebase(
        REBASED, "Rebase it", [{"pkg/m4.py": "four\n"}, {"pkg/m5.py": "five\n"}, {"docs/x.md": "x\n"}], fork=fork
    )
    history.open(OPEN, "Still open", [{"pkg/m6.py": "six\n"}], fork=fork)
    history.close(CLOSED, "Never merged", [{"pkg/m7.py": "seven\n"}], fork=fork)
    history.commit({"pkg/m8.py": "value = 'afterwards'\n"}, 'Revert "Squash it (#1)" (#9)')
    return history.write(tmp_path_factory.mktemp("shared") / "upstream.git")


@pytest.fixture(params=["path", "url"])
def source(request: pytest.FixtureRequest, shared: Repository) -> str:
    return str(shared.path) if request.param == "path" else shared.url


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@contextmanager
def forge_of(repository: Repository, **changed: object) -> Iterator[GitHubForge]:
    """The lab's forge of a repository; `changed` replaces what it tells of pull request 4."""
    if changed:
        pulls = {**repository.pulls, OPEN: replace(repository.pulls[OPEN], **changed)}  # type: ignore[arg-type]
        repository = replace(repository, pulls=pulls)
    with forge_server.forge({"someone/project": repository}) as forge:
        yield GitHubForge(forge.url)


def opened(source: str | Path, cache: Path, forge: Forge | None = None, branch: str | None = None) -> GitUpstream:
    return GitUpstream(str(source), forge=forge, cache=cache, branch=branch)


def paths(changes: tuple[Change, ...]) -> list[str]:
    return [change.path for change in changes]


EXPECTED_PATHS = {
    SQUASHED: ["pkg/m1.py", "pkg/new.py"],
    MERGED: ["pkg/m2.py", "pkg/m3.py"],
    REBASED: ["docs/x.md", "pkg/m4.py", "pkg/m5.py"],
    OPEN: ["pkg/m6.py"],
    CLOSED: ["pkg/m7.py"],
}


@pytest.mark.parametrize("number", [SQUASHED, MERGED, REBASED, OPEN])
def test_a_forge_leads_to_parent_and_result(number: int, source: str, shared: Repository, cache: Path) -> None:
    with forge_of(shared) as forge:
        upstream = opened(source, cache, forge)
        found = upstream.resolve(ref(number))
    told = shared.pulls[number]
    assert (found.parent, found.result, found.kind) == (told.parent, told.result, told.kind)
    assert found.committed == int(shared.git("show", "-s", "--format=%ct", told.result))
    assert paths(upstream.changes(found)) == EXPECTED_PATHS[number]


@pytest.mark.parametrize(("number", "title"), [(SQUASHED, "Squash it"), (MERGED, "Merge it"), (REBASED, "Step 3")])
def test_the_title_comes_from_the_commit_so_that_a_lock_gives_it_too(
    number: int, title: str, source: str, shared: Repository, cache: Path
) -> None:
    with forge_of(shared) as forge:
        found = opened(source, cache, forge).resolve(ref(number))
    assert found.title == title
    assert opened(source, cache).pinned(ref(number), found.parent, found.result).title == title


def test_a_pull_request_closed_unmerged_is_refused_unless_asked_for(
    source: str, shared: Repository, cache: Path
) -> None:
    with forge_of(shared) as forge:
        upstream = opened(source, cache, forge)
        with pytest.raises(Refused, match=f"closed without being merged.*{shared.pulls[CLOSED].head}") as caught:
            upstream.resolve(ref(CLOSED))
        assert caught.value.hint.endswith("--accept-closed")
        found = upstream.resolve(ref(CLOSED), accept_closed=True)
    assert (found.kind, found.parent, found.result) == ("closed", shared.pulls[CLOSED].fork, shared.pulls[CLOSED].head)


@pytest.mark.parametrize("number", [SQUASHED, MERGED, OPEN])
def test_a_repository_alone_leads_to_parent_and_result(
    number: int, source: str, shared: Repository, cache: Path
) -> None:
    upstream = opened(source, cache)
    found = upstream.resolve(ref(number))
    told = shared.pulls[number]
    assert (found.parent, found.result, found.kind) == (told.parent, told.result, told.kind)
    assert paths(upstream.changes(found)) == EXPECTED_PATHS[number]


def test_a_rebased_pull_request_without_a_forge_is_its_own_branch(source: str, shared: Repository, cache: Path) -> None:
    """No message names it, but its head has a ref."""
    found = opened(source, cache).resolve(ref(REBASED))
    assert (found.parent, found.result) == (shared.pulls[REBASED].fork, shared.pulls[REBASED].head)


def test_nothing_found_says_what_was_searched(source: str, cache: Path) -> None:
    with pytest.raises(InputError) as caught:
        opened(source, cache).resolve(ref(77))
    text = "\n".join(caught.value.facts)
    assert "(#77)" in text
    assert "Merge pull request #77" in text
    assert "8 first-parent commits" in text
    assert "refs/pull/77/head" in text
    assert "--upstream-branch" in caught.value.hint


def written(tmp_path: Path, *subjects: str) -> tuple[Repository, list[str]]:
    history = History()
    made = [history.commit({"f": f"{number}\n"}, subject) for number, subject in enumerate(subjects)]
    names = {str(number): commit for number, commit in enumerate(made)}
    repository = history.write(tmp_path / "small.git", names)
    return repository, [repository.commits[str(number)] for number in range(len(subjects))]


@pytest.mark.parametrize("is_url", [False, True])
def test_several_commits_that_claim_a_number_are_listed(is_url: bool, tmp_path: Path, cache: Path) -> None:
    repository, oids = written(
        tmp_path, "Start", "Add it (#12)", "Mention (#12) only", "Add it again (#12)", "x (#112)"
    )
    with pytest.raises(InputError, match=r"2 commits on .* claim this number") as caught:
        opened(repository.url if is_url else repository.path, cache).resolve(ref(12))
    assert caught.value.exit_code == 2
    assert caught.value.facts == (f"{oids[3]} Add it again (#12)", f"{oids[1]} Add it (#12)")


@pytest.mark.parametrize("is_url", [False, True])
def test_the_branch_asked_for_is_the_one_searched(is_url: bool, tmp_path: Path, cache: Path) -> None:
    repository, oids = written(tmp_path, "Start", "Add it (#12)")
    repository.git("update-ref", "refs/heads/release", oids[0])
    source = repository.url if is_url else str(repository.path)
    assert opened(source, cache, branch="main").resolve(ref(12)).result == oids[1]
    with pytest.raises(InputError, match="no such pull request"):
        opened(source, cache, branch="release").resolve(ref(12))
    with pytest.raises(InputError, match="has no nightly"):
        opened(source, cache, branch="nightly").resolve(ref(12))


def test_a_clone_knows_upstreams_branch_better_than_its_own(tmp_path: Path, cache: Path) -> None:
    repository, oids = written(tmp_path, "Start", "Add it (#12)")
    subprocess.run(["git", "clone", "-q", repository.path, tmp_path / "clone"], check=True)
    subprocess.run(["git", "checkout", "-q", "-b", "topic", oids[0]], cwd=tmp_path / "clone", check=True)
    assert opened(tmp_path / "clone", cache).resolve(ref(12)).result == oids[1]


def test_a_first_commit_has_no_parent_to_compare_with(tmp_path: Path, cache: Path) -> None:
    repository, _ = written(tmp_path, "Start (#12)")
    with pytest.raises(Refused, match="no parent"):
        opened(repository.path, cache).resolve(ref(12))


def test_a_head_that_is_on_the_branch_already_cannot_be_told(tmp_path: Path, cache: Path) -> None:
    repository, oids = written(tmp_path, "Start", "Step 1", "Step 2")
    repository.git("update-ref", "refs/pull/5/head", oids[1])
    with pytest.raises(Refused, match="on the branch already"):
        opened(repository.path, cache).resolve(ref(5))


def merged_as(repository: Repository, result: str, subjects: list[str]) -> dict[str, object]:
    """What a forge tells of a pull request with such commits that was merged as this one."""
    empty = repository.git("rev-parse", f"{result}^{{tree}}")
    identity = ["-c", "user.name=x", "-c", "user.email=x"]
    own = tuple(repository.git(*identity, "commit-tree", "-p", result, "-m", subject, empty) for subject in subjects)
    return {"merged_at": "2026-08-19T12:00:00+00:00", "merge_commit": result, "commits": own}


@pytest.fixture
def chain(tmp_path: Path) -> tuple[Repository, list[str]]:
    history = History()
    made = [
        history.commit({"f": f"{n}\n"}, subject) for n, subject in enumerate(["Start", "a", "b", "c", "Title (#4)"])
    ]
    history.open(OPEN, "Title", [{"g": "1\n"}])
    repository = history.write(tmp_path / "chain.git", {str(n): commit for n, commit in enumerate(made)})
    return repository, [repository.commits[str(n)] for n in range(5)]


@pytest.mark.parametrize(
    ("result", "subjects", "parent", "kind"),
    [
        (3, ["a", "b", "c"], 0, "rebase"),
        (3, ["b (#4)", "c (#4)"], 1, "rebase"),
        (3, ["c"], 2, "squash"),
        (3, ["whatever"], 2, "squash"),
        (3, ["x", "y"], 2, "squash"),
        (4, ["x", "Title"], 3, "squash"),
        (4, [f"s{n}" for n in range(3)], 3, "squash"),
    ],
)
def test_squash_and_rebase_are_told_apart_by_the_commits_subjects(
    chain: tuple[Repository, list[str]], cache: Path, result: int, subjects: list[str], parent: int, kind: str
) -> None:
    repository, oids = chain
    with forge_of(repository, **merged_as(repository, oids[result], subjects)) as forge:
        for source in (str(repository.path), repository.url):
            found = opened(source, cache, forge).resolve(ref(OPEN))
            assert (found.parent, found.kind) == (oids[parent], kind)


def test_what_cannot_be_told_apart_is_refused_with_both_candidates(
    chain: tuple[Repository, list[str]], cache: Path
) -> None:
    repository, oids = chain
    told = merged_as(repository, oids[3], ["x", "b", "c"])
    with forge_of(repository, **told) as forge, pytest.raises(Refused, match="cannot be told") as caught:
        opened(repository.path, cache, forge).resolve(ref(OPEN))
    assert f"parent {oids[2]} if squashed" in caught.value.facts
    assert f"parent {oids[0]} if rebased" in caught.value.facts


@pytest.mark.parametrize(("result", "is_told"), [(4, True), (3, False)])
def test_more_commits_than_the_forge_lists_need_the_squash_title(
    chain: tuple[Repository, list[str]], cache: Path, result: int, is_told: bool
) -> None:
    repository, oids = chain
    told = merged_as(repository, oids[result], ["x"])
    with forge_of(repository, **{**told, "commits": ("2" * 40,) * 300}) as forge:
        upstream = opened(repository.path, cache, forge)
        if is_told:
            assert upstream.resolve(ref(OPEN)).parent == oids[result - 1]
        else:
            with pytest.raises(Refused, match="cannot be told"):
                upstream.resolve(ref(OPEN))


def test_a_commit_that_only_the_forge_knows_is_named_with_the_way_to_get_it(
    source: str, shared: Repository, cache: Path
) -> None:
    gone = {"merged_at": "2026-08-19T12:00:00+00:00", "merge_commit": GONE}
    with forge_of(shared, **gone) as forge, pytest.raises(Unavailable) as caught:
        opened(source, cache, forge).resolve(ref(OPEN))
    assert GONE in caught.value.message
    assert "pull/4/head" in caught.value.hint


# Pins


def test_pins_are_taken_as_they_are(source: str, shared: Repository, cache: Path) -> None:
    for number, kind in {SQUASHED: "squash", MERGED: "merge", REBASED: "open"}.items():
        told = shared.pulls[number]
        upstream = opened(source, cache)
        found = upstream.pinned(ref(number), Oid(told.parent), Oid(told.result))
        assert (found.parent, found.result, found.kind) == (told.parent, told.result, kind)
        assert paths(upstream.changes(found)) == EXPECTED_PATHS[number]


@pytest.mark.parametrize("which", ["parent", "result"])
def test_a_pinned_commit_that_vanished_shows_the_pin_and_what_is_there_now(
    which: str, source: str, shared: Repository, cache: Path
) -> None:
    told = shared.pulls[OPEN]
    pins = {"parent": Oid(told.parent), "result": Oid(told.result), which: GONE}
    with pytest.raises(Refused, match=f"pinned {which} {GONE}") as caught:
        opened(source, cache).pinned(ref(OPEN), pins["parent"], pins["result"])
    facts = "\n".join(caught.value.facts)
    assert pins["parent"] in facts
    assert pins["result"] in facts
    assert f"refs/pull/4/head is {told.head}" in facts


def test_a_pinned_id_that_is_no_commit_is_refused(source: str, shared: Repository, cache: Path) -> None:
    blob = Oid(shared.git("rev-parse", "main:pkg/m9.py"))
    with pytest.raises(OverlayError, match="blob"):
        opened(source, cache).pinned(ref(SQUASHED), Oid(shared.pulls[SQUASHED].parent), blob)


def test_pins_in_the_wrong_order_are_refused_where_history_tells(shared: Repository, cache: Path) -> None:
    told = shared.pulls[SQUASHED]
    with pytest.raises(Refused, match="not an ancestor"):
        opened(shared.path, cache).pinned(ref(SQUASHED), Oid(told.result), Oid(told.parent))


# Changes and files


@pytest.fixture
def odd(tmp_path: Path) -> tuple[Path, PullRequest]:
    """A pull request of every kind of change, under names that nobody would choose."""
    history = History()
    text = "".join(f"line {n}\n" for n in range(30))
    same = {
        "renamed/old.py": text,
        "exact.py": "x\n" * 9,
        "gone.py": "gone\n",
        "tool": "#!\n",
        "link": Content(b"a", "120000"),
    }
    history.commit({**same, "data.bin": b"a\0b", "becomes": "text\n", "late.bin": b"y" * 9000}, "Start")
    changed: dict[str, bytes | str | Content | None] = {
        "renamed/old.py": None,
        "renamed/new.py": text.replace("line 3\n", "line three\n"),
        "exact.py": None,
        "moved.py": "x\n" * 9,
        "gone.py": None,
        "tool": Content(b"#!\n", "100755"),
        "link": Content(b"b", "120000"),
        "data.bin": b"a\0c",
        "becomes": Content(b"data.bin", "120000"),
        "late.bin": b"y" * 9000 + b"\0",
        "new.bin": b"\0",
    }
    history.squash(8, "Everything", [changed])
    repository = history.write(tmp_path / "odd.git")
    told = repository.pulls[8]
    return repository.path, PullRequest("a/b", 8, Oid(told.parent), Oid(told.result), 0, "squash")


@pytest.mark.parametrize("is_url", [False, True])
def test_every_kind_of_change_is_stated(is_url: bool, odd: tuple[Path, PullRequest], cache: Path) -> None:
    path, pull = odd
    changes = opened(path.as_uri() if is_url else path, cache).changes(pull)
    assert paths(changes) == sorted(paths(changes))
    found = {change.path: change for change in changes}
    assert {name: (each.kind, each.old_path) for name, each in found.items() if each.kind != "modified"} == {
        "renamed/new.py": ("renamed", "renamed/old.py"),
        "moved.py": ("renamed", "exact.py"),
        "gone.py": ("deleted", None),
        "new.bin": ("added", None),
    }
    assert {name for name, each in found.items() if each.is_binary} == {"data.bin", "new.bin"}
    assert (found["tool"].parent_mode, found["tool"].result_mode) == ("100644", "100755")
    assert found["tool"].parent_blob == found["tool"].result_blob
    assert (found["becomes"].kind, found["becomes"].result_mode) == ("modified", "120000")
    assert (found["gone.py"].result_blob, found["gone.py"].result_mode) == (None, None)
    assert (found["new.bin"].parent_blob, found["new.bin"].parent_mode) == (None, None)
    assert found["link"].result_blob == Oid.of_blob(b"b")


def test_nothing_a_user_configured_changes_what_is_listed(
    odd: tuple[Path, PullRequest], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pull = odd
    expected = opened(path, cache).changes(pull)
    config = "[diff]\n\trenames = false\n\texternal = false\n\tnoprefix = true\n\trenameLimit = 1\n"
    config += "\torderFile = /nonexistent\n[core]\n\tattributesFile = /etc/hostname\n\tquotePath = true\n"
    (tmp_path / "user.gitconfig").write_text(config)
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    monkeypatch.setenv("GIT_DIFF_OPTS", "-u0")
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'diff.renames=false'")
    assert opened(path, cache).changes(pull) == expected
    assert opened(path.as_uri(), cache).changes(pull) == expected


def test_a_replaced_object_is_not_believed(odd: tuple[Path, PullRequest], cache: Path) -> None:
    path, pull = odd
    subprocess.run(["git", f"--git-dir={path}", "replace", pull.result, pull.parent], check=True)
    assert opened(path, cache).changes(pull) != ()


def committed(git_dir: Path, entries: list[tuple[str, str, bytes]], parent: str | None = None) -> str:
    """Commit a tree with any names; an entry is (mode, object id, path)."""
    index = {**os.environ, "GIT_INDEX_FILE": str(git_dir / "index.test"), "GIT_AUTHOR_DATE": "1000000000 +0000"}
    index |= {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    index["GIT_COMMITTER_DATE"] = "1000000000 +0000"
    lines = b"".join(b"%s %s\t%s\0" % (mode.encode(), oid.encode(), path) for mode, oid, path in entries)

    def git(*words: str, stdin: bytes = b"") -> str:
        command = ["git", f"--git-dir={git_dir}", *words]
        return subprocess.run(command, input=stdin, env=index, check=True, capture_output=True).stdout.decode().strip()

    (git_dir / "index.test").unlink(missing_ok=True)
    git("update-index", "-z", "--index-info", stdin=lines)
    return git("commit-tree", "-m", "x", *(["-p", parent] if parent else []), git("write-tree"))


ODD_NAMES = [
    b"a b.py",
    b"a\nb.py",
    b'a"b.py',
    b"a\tb.py",
    b"\xff\xfe.py",
    b"-rf",
    b":(top)x",
    b"*.py",
    b"\xc3\xa9.py",
    b"a\\b",
]


@pytest.mark.parametrize("is_url", [False, True])
def test_any_path_name_is_listed_and_read(is_url: bool, tmp_path: Path, cache: Path) -> None:
    repository, _ = written(tmp_path, "Start")
    blobs = [repository.git("rev-parse", "HEAD:f")]
    command = ["git", f"--git-dir={repository.path}", "hash-object", "-w", "--stdin"]
    blobs.append(subprocess.run(command, input=b"other\n", check=True, capture_output=True).stdout.decode().strip())
    parent = committed(repository.path, [("100644", blobs[0], b"pkg/" + name) for name in ODD_NAMES])
    result = committed(repository.path, [("100644", blobs[1], b"pkg/" + name) for name in ODD_NAMES], parent)
    upstream = opened(repository.url if is_url else repository.path, cache)
    pull = upstream.pinned(ref(1), Oid(parent), Oid(result))
    names = sorted("pkg/" + name.decode(errors="surrogateescape") for name in ODD_NAMES)
    assert paths(upstream.changes(pull)) == names
    assert sorted(upstream.paths(pull.result, "pkg")) == names
    assert {upstream.read(pull.result, name) for name in names} == {b"other\n"}


@pytest.mark.parametrize("is_url", [False, True])
def test_a_submodule_is_stated_and_holds_no_file(is_url: bool, tmp_path: Path, cache: Path) -> None:
    repository, _ = written(tmp_path, "Start")
    blob = repository.git("rev-parse", "HEAD:f")
    parent = committed(repository.path, [("160000", "2" * 40, b"third"), ("100644", blob, b"f")])
    result = committed(repository.path, [("160000", "3" * 40, b"third"), ("100644", blob, b"f")], parent)
    upstream = opened(repository.url if is_url else repository.path, cache)
    (change,) = upstream.changes(upstream.pinned(ref(1), Oid(parent), Oid(result)))
    assert (change.path, change.parent_mode, change.result_mode) == ("third", "160000", "160000")
    assert (change.parent_blob, change.result_blob) == ("2" * 40, "3" * 40)
    assert upstream.read(Oid(result), "third") is None
    upstream.prefetch(Oid(result), ["third", "f"])
    assert list(upstream.paths(Oid(result), "")) == ["f"]


def test_files_are_read_byte_for_byte_and_absent_ones_are_none(source: str, shared: Repository, cache: Path) -> None:
    upstream, result = opened(source, cache), Oid(shared.pulls[SQUASHED].result)
    assert upstream.read(result, "pkg/new.py") == b"new\n"
    assert upstream.read(result, "pkg/m9.py") == PACKAGE["pkg/m9.py"].encode()
    for absent in ("pkg/none.py", "pkg", "", "/pkg/new.py", "../x"):
        assert upstream.read(result, absent) is None


def test_paths_need_no_blobs_and_are_those_of_a_folder(source: str, shared: Repository, cache: Path) -> None:
    upstream, result = opened(source, cache), Oid(shared.pulls[REBASED].result)
    found = upstream.paths(result, "pkg")
    assert found == upstream.paths(result, "pkg/")
    assert found["pkg/m9.py"] == Oid.of_blob(PACKAGE["pkg/m9.py"].encode())
    assert "docs/x.md" not in found
    assert "docs/x.md" in upstream.paths(result, "")
    assert upstream.paths(result, "pk") == {}
    if source == shared.url:
        assert objects(cache)["blob"] == set()


def test_a_link_reads_as_its_target_and_is_no_regular_file(odd: tuple[Path, PullRequest], cache: Path) -> None:
    path, pull = odd
    upstream = opened(path, cache)
    assert upstream.read(pull.result, "link") == b"b"
    assert "link" not in upstream.paths(pull.result, "")


# What is fetched


def objects(cache: Path) -> dict[str, set[str]]:
    """The ids of everything in the store of commits and files, by type."""
    (store,) = (path for path in cache.glob("*.git") if not path.name.endswith(".commits.git"))
    command = ["git", f"--git-dir={store}", "cat-file", "--batch-all-objects", "--batch-check"]
    found: dict[str, set[str]] = {"commit": set(), "tree": set(), "blob": set()}
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        oid, kind, _ = line.split()
        found[kind].add(oid)
    return found


@contextmanager
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Collect the commands by which git spoke to a remote."""
    trace = tmp_path / "trace"
    trace.write_text("")
    monkeypatch.setenv("GIT_TRACE", str(trace))
    spoken: list[str] = []
    yield spoken
    monkeypatch.delenv("GIT_TRACE")
    spoken += [line for line in trace.read_text().splitlines() if "built-in: git upload-pack" in line]


def test_only_the_commits_and_files_needed_are_fetched(shared: Repository, cache: Path) -> None:
    told = shared.pulls[SQUASHED]
    with forge_of(shared) as forge:
        upstream = opened(shared.url, cache, forge)
        pull = upstream.resolve(ref(SQUASHED))
    assert objects(cache)["commit"] == {told.parent, told.result}
    assert objects(cache)["blob"] == set()
    upstream.changes(pull)
    sides = [f"{told.parent}:pkg/m1.py", f"{told.result}:pkg/m1.py", f"{told.result}:pkg/new.py"]
    assert objects(cache)["blob"] == {shared.git("rev-parse", side) for side in sides}
    assert not list(cache.glob("*.commits.git")), "history is only fetched where it decides something"


def test_history_is_fetched_without_files(shared: Repository, cache: Path) -> None:
    opened(shared.url, cache).resolve(ref(SQUASHED))
    (store,) = cache.glob("*.commits.git")
    command = ["git", f"--git-dir={store}", "cat-file", "--batch-all-objects", "--batch-check=%(objecttype)"]
    kinds = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert set(kinds) == {"commit"}


def test_many_files_come_in_one_transfer(
    shared: Repository, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = shared.pulls[SQUASHED]
    upstream = opened(shared.url, cache)
    pull = upstream.pinned(ref(SQUASHED), Oid(told.parent), Oid(told.result))
    with counted(tmp_path, monkeypatch) as spoken:
        upstream.changes(pull)
    assert len(spoken) == 1
    with counted(tmp_path, monkeypatch) as spoken:
        upstream.prefetch(pull.result, [*PACKAGE, "not/there.py"])
    assert len(spoken) == 1
    with counted(tmp_path, monkeypatch) as spoken:
        assert [upstream.read(pull.result, path) is None for path in PACKAGE] == [False] * len(PACKAGE)
        upstream.prefetch(pull.result, PACKAGE)
    assert spoken == []


def test_a_new_tip_only_fetches_what_is_new(tmp_path: Path, cache: Path) -> None:
    repository, _ = written(tmp_path, "Start", *(f"c{n}" for n in range(50)), "Add it (#12)")
    opened(repository.url, cache).resolve(ref(12))
    (store,) = cache.glob("*.commits.git")
    first = {path.name for path in (store / "objects/pack").glob("*.pack")}
    blob = repository.git("rev-parse", "HEAD:f")
    tip = committed(repository.path, [("100644", blob, b"f")], repository.git("rev-parse", "main"))
    repository.git("update-ref", "refs/heads/main", tip)
    opened(repository.url, cache).resolve(ref(12))
    (second,) = {path for path in (store / "objects/pack").glob("*.idx") if path.with_suffix(".pack").name not in first}
    listed = subprocess.run(["git", "show-index"], input=second.read_bytes(), capture_output=True, check=True).stdout
    assert len(listed.splitlines()) == 1


def test_what_is_cached_needs_no_network(tmp_path: Path, cache: Path) -> None:
    repository, oids = written(tmp_path, "Start", "Add it (#12)")
    pins = (ref(12), Oid(oids[0]), Oid(oids[1]))
    first = opened(repository.url, cache)
    expected = first.changes(first.pinned(*pins))
    repository.path.rename(tmp_path / "away")
    again = opened(repository.url, cache)
    pull = again.pinned(*pins)
    assert again.changes(pull) == expected
    assert again.read(pull.result, "f") == b"1\n"
    with pytest.raises(Unavailable) as caught:
        opened(repository.url, tmp_path / "empty").pinned(*pins)
    assert repository.url in caught.value.message
    assert any("does not" in fact for fact in caught.value.facts), "git's own words are kept"
    with pytest.raises(Unavailable):
        again.resolve(ref(12))


def test_a_server_that_cannot_filter_is_used_all_the_same(tmp_path: Path, cache: Path) -> None:
    repository, oids = written(tmp_path, "Start", "Add it (#12)", "More")
    repository.git("config", "uploadpack.allowFilter", "false")
    upstream = opened(repository.url, cache)
    pull = upstream.resolve(ref(12))
    assert (pull.parent, pull.result) == (oids[0], oids[1])
    assert upstream.read(pull.result, "f") == b"1\n"


SCRIPT = """
import json, sys
from pathlib import Path
from builder.model import PullRequestRef
from builder.upstream import GitUpstream
upstream = GitUpstream(sys.argv[1], forge=None, cache=Path(sys.argv[2]))
pull = upstream.resolve(PullRequestRef("someone/project", int(sys.argv[3])))
changes = upstream.changes(pull)
print(json.dumps([pull.parent, pull.result, [change.path for change in changes]]))
"""


def started(source: str, cache: Path, number: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, source, str(cache), str(number)]
    pipe = subprocess.PIPE
    here = Path(__file__).parent.parent
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=here, start_new_session=True)


def test_two_processes_share_a_cache(shared: Repository, cache: Path) -> None:
    numbers = [SQUASHED, MERGED, SQUASHED, OPEN]
    running = [started(shared.url, cache, number) for number in numbers]
    for number, process in zip(numbers, running, strict=True):
        out, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert json.loads(out) == [shared.pulls[number].parent, shared.pulls[number].result, EXPECTED_PATHS[number]]


def test_a_killed_fetch_leaves_a_cache_that_works(
    shared: Repository, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stops in the middle of the pack; then everything is killed."""
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\n\"$@\" | head -c 100\ntouch '{tmp_path}/started'\nexec sleep 60\n")
    hook.chmod(0o755)
    (tmp_path / "user.gitconfig").write_text(f"[uploadpack]\n\tpackObjectsHook = {hook}\n")
    process = started(shared.url, cache, SQUASHED)
    deadline = time.monotonic() + 30
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    (tmp_path / "user.gitconfig").unlink()
    (store,) = cache.glob("*.git")
    assert (store / "HEAD").exists()
    upstream = opened(shared.url, cache)
    assert paths(upstream.changes(upstream.resolve(ref(SQUASHED)))) == EXPECTED_PATHS[SQUASHED]


def test_locks_and_half_packs_that_a_killed_process_left_do_not_matter(shared: Repository, cache: Path) -> None:
    opened(shared.url, cache).resolve(ref(SQUASHED))
    for store in cache.glob("*.git"):
        for name in (
            "shallow.lock",
            "index.lock",
            "config.lock",
            "packed-refs.lock",
            "refs/x.lock",
            "objects/pack/tmp_pack_1",
        ):
            (store / name).write_text("junk")
        (store / "shallow").write_text(f"{GONE}\n")
    upstream = opened(shared.url, cache)
    for number in (MERGED, OPEN):
        assert paths(upstream.changes(upstream.resolve(ref(number)))) == EXPECTED_PATHS[number]
    assert not list(cache.rglob("tmp_pack_*"))


def test_a_damaged_cache_is_said_to_be_one(shared: Repository, cache: Path) -> None:
    told = shared.pulls[SQUASHED]
    upstream = opened(shared.url, cache)
    upstream.changes(upstream.pinned(ref(SQUASHED), Oid(told.parent), Oid(told.result)))
    for pack in cache.glob("*.git/objects/pack/*.pack"):
        pack.chmod(0o644)
        data = bytearray(pack.read_bytes())
        data[20:-20] = bytes(len(data) - 40)
        pack.write_bytes(data)
    again = opened(shared.url, cache)
    with pytest.raises(OverlayError) as caught:
        again.changes(again.pinned(ref(SQUASHED), Oid(told.parent), Oid(told.result)))
    assert str(cache) in f"{caught.value} {caught.value.hint} {caught.value.facts}"


def test_a_cache_that_cannot_be_written_is_named(shared: Repository, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(Unavailable, match=r"cache .*file.* cannot be used"):
        opened(shared.url, tmp_path / "file").resolve(ref(SQUASHED))


def test_progress_is_told(shared: Repository, cache: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    upstream = GitUpstream(shared.url, forge=None, cache=cache, progress=lambda *words: told.append(words))
    upstream.resolve(ref(SQUASHED))
    assert any(what == f"receiving objects from {shared.url}" and done == total for what, done, total in told)


# The user's own repository


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_a_local_repository_is_never_written_to(shared: Repository, cache: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "-q", shared.path, tmp_path / "clone"], check=True)
    (tmp_path / "clone/pkg/m1.py").write_text("work in progress\n")
    before = snapshot(tmp_path / "clone")
    upstream = opened(tmp_path / "clone", cache)
    pull = upstream.resolve(ref(SQUASHED))
    upstream.changes(pull)
    upstream.prefetch(pull.result, PACKAGE)
    assert upstream.read(pull.result, "pkg/m1.py") == b"one\n"
    upstream.introduced("value", "pkg", pull.result)
    with pytest.raises(InputError):
        upstream.resolve(ref(77))
    assert snapshot(tmp_path / "clone") == before
    assert not cache.exists()


def test_a_repository_of_somebody_else_is_read(
    shared: Repository, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "clone", "-q", shared.path, tmp_path / "clone"], check=True)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    asked = subprocess.run(["git", "status"], cwd=tmp_path / "clone", capture_output=True, text=True, check=False)
    assert "dubious ownership" in asked.stderr, "else this test shows nothing"
    upstream = opened(tmp_path / "clone", cache)
    assert paths(upstream.changes(upstream.resolve(ref(SQUASHED)))) == EXPECTED_PATHS[SQUASHED]


def test_a_linked_work_tree_is_a_repository_too(shared: Repository, cache: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "-q", shared.path, tmp_path / "clone"], check=True)
    subprocess.run(["git", "worktree", "add", "-q", "../linked", "HEAD~2"], cwd=tmp_path / "clone", check=True)
    assert opened(tmp_path / "linked", cache).resolve(ref(SQUASHED)).result == shared.pulls[SQUASHED].result


def test_a_partial_clone_is_searched_but_fetches_nothing(shared: Repository, cache: Path, tmp_path: Path) -> None:
    clone = tmp_path / "partial.git"
    subprocess.run(["git", "clone", "-q", "--bare", "--filter=blob:none", shared.url, clone], check=True)
    before = snapshot(clone)
    upstream = opened(clone, cache)
    pull = upstream.resolve(ref(SQUASHED))
    assert pull.result == shared.pulls[SQUASHED].result
    for reading in (lambda: upstream.changes(pull), lambda: upstream.read(pull.result, "pkg/m9.py")):
        with pytest.raises(Unavailable, match="partial clone"):
            reading()
    assert upstream.introduced("one", "pkg", pull.result) is None
    assert snapshot(clone) == before


def test_a_shallow_clone_says_that_its_history_is_cut_off(shared: Repository, cache: Path, tmp_path: Path) -> None:
    clone = tmp_path / "shallow.git"
    subprocess.run(["git", "clone", "-q", "--bare", "--depth=2", shared.url, clone], check=True)
    upstream = opened(clone, cache)
    with pytest.raises(InputError) as caught:
        upstream.resolve(ref(SQUASHED))
    assert any("shallow" in fact for fact in caught.value.facts)
    assert upstream.introduced("value", "pkg", Oid(shared.git("rev-parse", "main"))) is None


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_a_path_that_is_no_repository_is_an_input_error(name: str, cache: Path, tmp_path: Path) -> None:
    """Also where a repository is around it: that one is not meant."""
    subprocess.run(["git", "init", "-q", tmp_path / "around"], check=True)
    (tmp_path / "around/empty").mkdir()
    (tmp_path / "around/file").write_text("text")
    with pytest.raises(InputError, match="not a git repository"):
        opened(tmp_path / "around" / name, cache)


# History


def test_a_text_is_traced_to_the_commit_that_last_added_it(tmp_path: Path, cache: Path) -> None:
    history = History()
    history.commit({"pkg/a.py": "def _pub_len(): ...\n", "pkg/b.py": "x\n"}, "Start")
    history.commit({"pkg/a.py": "def pub_len(): ...\n"}, "Publish it (#20)")
    history.commit({"pkg/a.py": "def _pub_len(): ...\n"}, 'Revert "Publish it (#20)" (#21)')
    again = history.commit({"pkg/a.py": "def pub_len(): ...\n"}, "Publish it again (#22)")
    use = history.commit({"pkg/b.py": "pub_len()\n"}, "Use it (#23)")
    last = history.commit({"pkg/a.py": "def pub_len(): ...\n# pub_len\n"}, "Comment on it (#24)")
    repository = history.write(tmp_path / "h.git", {"again": again, "use": use, "last": last})
    upstream, until = opened(repository.path, cache), Oid(repository.commits["last"])
    expected = f"{repository.commits['again']} Publish it again (#22)"
    assert upstream.introduced("pub_len", "pkg", until) == expected
    assert upstream.introduced("pub_len", "pkg/a.py", until) == expected
    assert upstream.introduced("def pub_len():", "pkg/a.py", until) == expected
    assert upstream.introduced("pub_len", "pkg/b.py", until) == f"{repository.commits['use']} Use it (#23)"
    assert upstream.introduced("pub_len", "pk*", until) is None
    assert upstream.introduced("nowhere", "pkg", until) is None
    assert upstream.introduced("-x", "pkg", until) is None
    assert opened(repository.url, cache).introduced("pub_len", "pkg", until) is None


LINES = "".join(f"line {number}\n" for number in range(1, 9))


@pytest.fixture
def changed(tmp_path: Path) -> Repository:
    """One file through a commit, a squash, a merge and a rename; another one deleted; and a pull request left open."""
    history = History()
    start = history.commit({"pkg/a.py": LINES, "pkg/gone.py": "x\n"}, "Start")
    history.squash(1, "Two", [{"pkg/a.py": LINES.replace("line 2", "two")}])
    both = LINES.replace("line 2", "two").replace("line 7", "seven")
    history.merge(2, "Seven", [{"pkg/a.py": both}])
    rename = history.commit({"pkg/a.py": None, "pkg/b.py": both}, "Move it (#3)")
    history.open(5, "Eight", [{"pkg/b.py": both.replace("line 8", "eight")}])
    history.commit({"pkg/b.py": both.replace("line 4", "four"), "pkg/gone.py": None}, "Four (#4)")
    last = history.commit({"pkg/gone.py": "y\n"}, "Again")
    return history.write(tmp_path / "h.git", {"start": start, "rename": rename, "last": last})


def test_lines_are_traced_to_the_commits_of_the_branch_that_brought_them(changed: Repository, cache: Path) -> None:
    """A merge stands for its own commits, and a rename does not hide who wrote the lines."""
    upstream, at = opened(changed.path, cache), Oid(changed.commits["last"])
    found = upstream.blame(at, "pkg/b.py", [(2, 4), (7, 7)])
    assert found is not None
    assert [(origin.lines, origin.subject, origin.path) for origin in found] == [
        ((2, 2), "Two (#1)", "pkg/a.py"),
        ((3, 3), "Start", "pkg/a.py"),
        ((4, 4), "Four (#4)", "pkg/b.py"),
        ((7, 7), "Merge pull request #2 from someone/topic-2", "pkg/a.py"),
    ]
    assert (found[0].commit, found[0].parent) == (changed.pulls[1].result, changed.pulls[1].parent)
    assert found[1].parent is None


def test_what_a_commit_does_not_have_is_not_traced(changed: Repository, cache: Path) -> None:
    upstream, at = opened(changed.path, cache), Oid(changed.commits["last"])
    assert upstream.blame(at, "pkg/b.py", []) == ()
    assert upstream.blame(at, "pkg/b.py", [(90, 91)]) is None
    assert upstream.blame(at, "pkg/none.py", [(1, 1)]) is None
    assert (upstream.added("pkg/none.py", at), upstream.versions("pkg/none.py", at)) == ((), ())


def test_commits_that_a_repository_wants_ignored_are_named_all_the_same(changed: Repository, cache: Path) -> None:
    (changed.path / "ignored").write_text(f"{changed.pulls[1].result}\n")
    with (changed.path / "config").open("a") as config:
        config.write(f"[blame]\n\tignoreRevsFile = {changed.path}/ignored\n[log]\n\tshowRoot = false\n")
    upstream, at = opened(changed.path, cache), Oid(changed.commits["last"])
    assert [origin.subject for origin in upstream.blame(at, "pkg/b.py", [(2, 2)]) or ()] == ["Two (#1)"]
    assert [origin.subject for origin in upstream.added("pkg/a.py", at) or ()] == ["Start"]


def test_who_last_added_a_file_is_named_until_a_commit(changed: Repository, cache: Path) -> None:
    upstream = opened(changed.path, cache)
    asked = {"pkg/b.py": "rename", "pkg/a.py": "start", "pkg/gone.py": "last"}
    for path, name in asked.items():
        (origin,) = upstream.added(path, Oid(changed.commits["last"])) or ()
        assert (origin.commit, origin.path, origin.lines) == (changed.commits[name], path, None)
    (before,) = upstream.added("pkg/gone.py", Oid(changed.commits["rename"])) or ()
    assert before.commit == changed.commits["start"]


def test_the_versions_of_a_file_go_beyond_a_commit_of_the_branch(changed: Repository, cache: Path) -> None:
    upstream = opened(changed.path, cache)
    at = Oid(changed.commits["rename"])
    found = upstream.versions("pkg/gone.py", at)
    assert found is not None
    assert [blob for _, blob in found] == [Oid.of_blob(b"y\n"), None, Oid.of_blob(b"x\n")]
    assert [commit for commit, _ in found][::2] == [changed.commits["last"], changed.commits["start"]]
    # What is on no branch has its own history only.
    own = upstream.versions("pkg/b.py", Oid(changed.pulls[5].result))
    assert own is not None
    assert [commit for commit, _ in own] == [changed.pulls[5].result, changed.commits["rename"]]


def test_what_a_commit_touched_is_told_against_its_first_parent(changed: Repository, cache: Path) -> None:
    upstream, at = opened(changed.path, cache), Oid(changed.commits["last"])
    (rename,) = upstream.added("pkg/b.py", at) or ()
    (start,) = upstream.added("pkg/a.py", at) or ()
    assert [(change.kind, change.path) for change in upstream.touched(rename)] == [
        ("deleted", "pkg/a.py"),
        ("added", "pkg/b.py"),
    ]
    assert upstream.touched(start) == ()


@pytest.mark.parametrize("is_shallow", [False, True], ids=["url", "shallow"])
def test_without_all_history_nothing_is_traced(
    is_shallow: bool, changed: Repository, cache: Path, tmp_path: Path
) -> None:
    clone = tmp_path / "clone.git"
    if is_shallow:
        subprocess.run(["git", "clone", "-q", "--bare", "--depth=1", changed.url, clone], check=True)
    upstream, at = opened(clone if is_shallow else changed.url, cache), Oid(changed.commits["last"])
    assert not upstream.has_history
    answers = (
        upstream.blame(at, "pkg/b.py", [(1, 1)]),
        upstream.added("pkg/b.py", at),
        upstream.versions("pkg/b.py", at),
    )
    assert answers == (None, None, None)
    assert opened(changed.path, cache).has_history


# What is not accepted


@pytest.mark.parametrize(
    "source",
    [
        "--upload-pack=touch {}",
        "-u{}",
        "ext::sh -c touch% {}",
        "ext://touch {}",
        "fd::17",
        "EXT::touch {}",
        "ssh://-oProxyCommand=touch${{IFS}}{}/x",
        "git@-oProxyCommand=touch {}:x",
        "git://-x/y",
        "https://forge.example/a\n--upload-pack=touch {}",
        "ftp://forge.example/a",
        "",
    ],
)
def test_a_source_that_git_would_run_is_refused(
    source: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "file:ext:fd:ssh:git:https")
    with pytest.raises(InputError) as caught:
        opened(source.format(tmp_path / "touched"), cache).resolve(ref(1))
    assert caught.value.where == "--upstream"
    assert not (tmp_path / "touched").exists()
    assert not cache.exists()


@pytest.mark.parametrize("branch", ["--output=x", "-x", "a..b", "a b", "a:b", "x\ny", "@{-1}", "a.lock"])
def test_a_branch_that_is_none_is_refused(branch: str, source: str, cache: Path) -> None:
    with pytest.raises(InputError, match="not a branch name"):
        opened(source, cache, branch=branch)


def test_a_protocol_that_the_environment_forbids_is_not_used(
    shared: Repository, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "https")
    with pytest.raises(Unavailable) as caught:
        opened(shared.url, cache).resolve(ref(SQUASHED))
    assert any("not allowed" in fact for fact in caught.value.facts)


def test_a_user_cannot_be_tricked_into_a_program_by_a_rewritten_url(
    shared: Repository, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GIT_ALLOW_PROTOCOL")
    rewritten = f'[url "ext::touch {tmp_path}/touched "]\n\tinsteadOf = {shared.url}\n[protocol]\n\tallow = always\n'
    (tmp_path / "user.gitconfig").write_text(rewritten)
    with pytest.raises(Unavailable):
        opened(shared.url, cache).resolve(ref(SQUASHED))
    assert not (tmp_path / "touched").exists()


def test_the_users_own_settings_count_for_transfers(shared: Repository, cache: Path, tmp_path: Path) -> None:
    """Proxies, certificates and address rewriting are how a network works."""
    rewritten = f'[url "{shared.url}"]\n\tinsteadOf = https://forge.example/project.git\n'
    (tmp_path / "user.gitconfig").write_text(rewritten)
    upstream = opened("https://forge.example/project.git", cache)
    assert upstream.resolve(ref(SQUASHED)).result == shared.pulls[SQUASHED].result


@pytest.mark.parametrize("password", ["hunter2", "hun@ter2", ""])
def test_no_message_and_no_file_holds_credentials(
    password: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "http")
    with serve(lambda request: Answer(b"no", 403)) as server:
        url = server.url.replace("://", f"://secretuser:{password}@") + "/project.git"
        upstream = opened(url, cache)
        for failing in (lambda: upstream.resolve(ref(1)), lambda: upstream.pinned(ref(1), GONE, Oid("2" * 40))):
            with pytest.raises(Unavailable) as caught:
                failing()
            shown = " ".join([str(caught.value), caught.value.hint, *caught.value.facts])
            assert f"{server.url}/project.git" in shown
            assert "secretuser" not in shown
            assert not any(part and part in shown for part in password.split("@"))
    assert not any("secretuser" in str(path) or b"secretuser" in data for path, (_, data) in snapshot(cache).items())


def test_a_remote_that_stalls_is_given_up(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "http")
    start = time.monotonic()
    with serve(lambda request: Answer(b"", pause=30.0)) as server, pytest.raises(Unavailable) as caught:
        GitUpstream(f"{server.url}/p.git", forge=None, cache=cache, stall_seconds=1).resolve(ref(1))
    assert time.monotonic() - start < 15
    assert caught.value.facts


def test_a_question_for_a_password_is_not_asked(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "http")
    (tmp_path / "ask").write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    (tmp_path / "ask").chmod(0o755)
    for name in ("GIT_ASKPASS", "SSH_ASKPASS"):
        monkeypatch.setenv(name, str(tmp_path / "ask"))
    asking = Answer(b"", 401, {"WWW-Authenticate": 'Basic realm="x"'})
    with serve(lambda request: asking) as server, pytest.raises(Unavailable):
        opened(f"{server.url}/p.git", cache).resolve(ref(1))
    assert not (tmp_path / "asked").exists()


# The lab's upstream: real releases of SGLang


WORKER = "sglang/srt/speculative/dflash_worker_v2.py"


@pytest.mark.parametrize("is_asked", [True, False], ids=["forge", "repository-alone"])
@pytest.mark.parametrize("is_url", [False, True])
def test_the_stand_in_is_found_on_real_trees(
    is_asked: bool, is_url: bool, upstream_repository: Repository, forge: forge_server.Forge, cache: Path
) -> None:
    source = upstream_repository.url if is_url else str(upstream_repository.path)
    upstream = opened(source, cache, GitHubForge(forge.url) if is_asked else None)
    pull = upstream.resolve(PullRequestRef(forge_server.UPSTREAM, PULL_REQUEST))
    told = upstream_repository.pulls[PULL_REQUEST]
    assert (pull.parent, pull.result, pull.kind) == (told.parent, told.result, "squash")
    changes = upstream.changes(pull)
    assert [each.path for each in changes if each.path.startswith("python/")] == sorted(
        f"python/{path}" for path in PULL_REQUEST_FILES
    )
    assert {each.kind for each in changes} == {"modified", "added"}
    assert not any(each.is_binary for each in changes)
    assert len(upstream.paths(pull.result, "python/sglang")) > 2500


def test_only_the_pull_requests_files_of_a_real_tree_are_fetched(upstream_repository: Repository, cache: Path) -> None:
    told = upstream_repository.pulls[PULL_REQUEST]
    upstream = opened(upstream_repository.url, cache)
    pull = upstream.pinned(PullRequestRef(forge_server.UPSTREAM, PULL_REQUEST), Oid(told.parent), Oid(told.result))
    changes = upstream.changes(pull)
    sides = {blob for each in changes for blob in (each.parent_blob, each.result_blob) if blob}
    assert objects(cache)["blob"] == sides
    assert sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) < 2_000_000


def test_the_real_worker_merges_as_git_merges_it(
    upstream_repository: Repository, trees: Callable[[str], Path], tmp_path: Path, cache: Path
) -> None:
    told = upstream_repository.pulls[PULL_REQUEST]
    upstream = opened(upstream_repository.path, cache)
    ours = (trees("0.5.17") / WORKER).read_bytes()
    ancestor, theirs = (upstream.read(Oid(oid), f"python/{WORKER}") for oid in (told.parent, told.result))
    assert ancestor is not None
    assert theirs is not None
    merged = merge_file(ours, ancestor, theirs)
    assert merged.text is None
    assert len(merged.regions) == 7
    for name, data in {"ours": ours, "ancestor": ancestor, "theirs": theirs}.items():
        (tmp_path / name).write_bytes(data)
    command = ["git", "merge-file", "-p", "--theirs", "ours", "ancestor", "theirs"]
    assert merged.taken == subprocess.run(command, cwd=tmp_path, check=True, capture_output=True).stdout
    assert merge_file((trees("0.5.18") / WORKER).read_bytes(), ancestor, theirs).text == theirs


def test_the_commit_that_brought_a_name_is_named_in_bounded_time(upstream_repository: Repository, cache: Path) -> None:
    upstream = opened(upstream_repository.path, cache)
    until = Oid(upstream_repository.pulls[PULL_REQUEST].result)
    expected = f"{upstream_repository.commits['0.5.18']} Release v0.5.18"
    assert upstream.introduced("sample_simulated_acc_len", "python/sglang", until, seconds=120.0) == expected
    start = time.monotonic()
    assert upstream.introduced("sample_simulated_acc_len", "python/sglang", until, seconds=0.05) is None
    assert time.monotonic() - start < 5


# The git that is installed


@pytest.mark.parametrize(
    ("program", "expected"),
    [("#!/bin/sh\necho 'git version 2.30.2'\n", "version 2.30 is too old"), ("", "there is no git to run")],
    ids=["old", "none"],
)
def test_a_git_that_is_too_old_or_missing_is_named(
    program: str, expected: str, shared: Repository, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    if program:
        (tmp_path / "bin/git").write_text(program)
        (tmp_path / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    process = started(str(shared.path), cache, SQUASHED)
    said = process.communicate(timeout=60)[1]
    assert process.returncode != 0
    assert expected in said.splitlines()[-1]


def test_waiting_for_another_process_is_said(shared: Repository, cache: Path) -> None:
    told: list[str] = []
    upstream = GitUpstream(shared.url, forge=None, cache=cache, progress=lambda what, done, total: told.append(what))
    upstream.resolve(ref(SQUASHED))
    told.clear()
    (lock,) = (path for path in cache.glob("*.lock") if not path.name.endswith(".commits.git.lock"))
    holder = "import fcntl, sys, time; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX); "
    holder += "print('held', flush=True); time.sleep(2)"
    with subprocess.Popen([sys.executable, "-c", holder, lock], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        upstream.resolve(ref(MERGED))
    assert told[0] == f"waiting for another process that fetches from {shared.url}"
