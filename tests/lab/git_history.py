"""Write git repositories quickly and with the same commit ids everywhere.

A `History` is told what happened (commits, and pull requests merged in each of the ways a
forge offers) and writes it as one bare repository through `git fast-import`: milliseconds
for a small one, seconds for eight releases of SGLang.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from tests.lab import host

#: git without any configuration or identity of the machine.
GIT_ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": host.ENVIRONMENT.get("PATH", "/usr/bin:/bin"),
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
}

_CONFIG: Final = """\
[core]
\trepositoryformatversion = 0
\tbare = true
[uploadpack]
\tallowFilter = true
\tallowAnySHA1InWant = true
"""

_START: Final = datetime(2026, 7, 1, 12, tzinfo=UTC)
_STEP: Final = timedelta(hours=1)
_WHO: Final = "Lab <lab@example.invalid>"

#: fast-import needs a ref to write commits to; those that stay are set at the end.
_SCRATCH_REF: Final = "refs/lab"

Kind = Literal["squash", "merge", "rebase", "open", "closed"]


class Content(NamedTuple):
    """A file's bytes and git mode (100644, 100755, 120000 for a link)."""

    data: bytes
    mode: str = "100644"


#: What one commit changes: path to new content; None deletes.
Changes = Mapping[str, bytes | str | Content | None]

#: A whole tree: path to (mode, mark of the blob).
_Tree = Mapping[str, tuple[str, int]]


@dataclass(frozen=True)
class Commit:
    """A commit of a history that is not written yet."""

    mark: int
    message: str
    at: datetime
    parents: tuple[Commit, ...] = field(repr=False)
    tree: _Tree = field(repr=False)


@dataclass(frozen=True)
class Pull:
    """A pull request as the forge knows it; commit ids are full and hexadecimal."""

    number: int
    title: str
    kind: Kind
    #: Tip of the target branch when the forge last looked: neither the parent of a merged PR nor
    #: the merge base of an open one.
    base: str
    head: str
    #: Where the PR's own branch left the target branch.
    fork: str
    #: The PR's own commits, oldest first; a rebase-merge has others with the same content.
    commits: tuple[str, ...]
    #: ISO 8601, None unless merged.
    merged_at: str | None
    #: For an open or closed PR the forge names a test merge that is on no branch.
    merge_commit: str
    #: What a right reader takes as the PR's parent and result.
    parent: str
    result: str

    @property
    def is_merged(self) -> bool:
        return self.merged_at is not None

    @property
    def state(self) -> Literal["open", "closed"]:
        return "open" if self.kind == "open" else "closed"


@dataclass(frozen=True)
class Repository:
    """A bare repository on disk, and what happened in it."""

    path: Path
    branch: str
    pulls: Mapping[int, Pull]
    #: Commit ids by the name that the history's writer gave them.
    commits: Mapping[str, str]

    @property
    def url(self) -> str:
        return self.path.as_uri()

    def git(self, *words: str) -> str:
        """Ask git about this repository."""
        return self._git(*words).decode().rstrip("\n")

    def read(self, commit: str, path: str) -> bytes:
        """Return a file's bytes at a commit."""
        return self._git("cat-file", "blob", f"{commit}:{path}")

    def _git(self, *words: str) -> bytes:
        argv = ["git", f"--git-dir={self.path}", *words]
        return host.run_bytes(argv, environment=GIT_ENVIRONMENT)


class History:
    """Collect commits and pull requests on one branch, then `write` them.

    Each commit is one hour younger than the one told before it, unless `at` is given; author
    and committer are fixed. So the ids depend on nothing but what is told.
    """

    def __init__(self, branch: str = "main") -> None:
        self.branch = branch
        self._stream: list[bytes] = []
        self._blobs: dict[bytes, int] = {}
        self._marks = 0
        self._now = _START - _STEP
        self._tip: Commit | None = None
        self._refs: dict[str, Commit] = {}
        self._pulls: list[_PlannedPull] = []

    @property
    def tip(self) -> Commit:
        """Return the newest commit of the branch."""
        if self._tip is None:
            raise ValueError("the history has no commit yet")
        return self._tip

    def commit(self, changes: Changes, message: str, *, at: datetime | None = None) -> Commit:
        """Add a commit to the branch."""
        parents = (self._tip,) if self._tip else ()
        self._tip = self._commit(self._changed(self._tip, changes), message, parents, at)
        return self._tip

    def tag(self, name: str, commit: Commit) -> None:
        """Point a lightweight tag at a commit."""
        self._refs[f"refs/tags/{name}"] = commit

    def squash(
        self,
        number: int,
        title: str,
        steps: Iterable[Changes],
        *,
        fork: Commit | None = None,
        at: datetime | None = None,
    ) -> None:
        """Merge a PR as one commit titled `title (#number)`."""
        base, branch = self.tip, self._branch_off(number, steps, fork)
        message = f"{title} (#{number})"
        self._tip = self._commit(branch.laid_on(base), message, (base,), at)
        self._pulls.append(_PlannedPull(number, title, "squash", base, branch, self.tip, base))

    def merge(self, number: int, title: str, steps: Iterable[Changes], *, fork: Commit | None = None) -> None:
        """Merge a PR by a commit with two parents."""
        base, branch = self.tip, self._branch_off(number, steps, fork)
        message = f"Merge pull request #{number} from someone/topic-{number}\n\n{title}"
        self._tip = self._commit(branch.laid_on(base), message, (base, branch.head))
        self._pulls.append(_PlannedPull(number, title, "merge", base, branch, self.tip, base))

    def rebase(self, number: int, title: str, steps: Sequence[Changes], *, fork: Commit | None = None) -> None:
        """Merge a PR by putting its commits on the branch; no message has the number."""
        base, branch = self.tip, self._branch_off(number, steps, fork)
        for changes, step in zip(steps, branch.steps, strict=True):
            self.commit(changes, step.message)
        self._pulls.append(_PlannedPull(number, title, "rebase", base, branch, self.tip, base))

    def open(self, number: int, title: str, steps: Iterable[Changes], *, fork: Commit | None = None) -> None:
        """Leave a PR open."""
        self._leave("open", number, title, self._branch_off(number, steps, fork))

    def close(self, number: int, title: str, steps: Iterable[Changes], *, fork: Commit | None = None) -> None:
        """Close a PR unmerged."""
        self._leave("closed", number, title, self._branch_off(number, steps, fork))

    def write(self, path: Path, names: Mapping[str, Commit] | None = None) -> Repository:
        """Write the bare repository at a path that does not exist; `names` are told to `read`."""
        _write_skeleton(path, self.branch)
        oids = self._import(path)
        pulls = {pull.number: pull.written(oids) for pull in self._pulls}
        commits = {name: oids[commit.mark] for name, commit in (names or {}).items()}
        repository = Repository(path, self.branch, pulls, commits)
        _describe(repository)
        return repository

    def _import(self, path: Path) -> Mapping[int, str]:
        marks = path / "lab-marks"
        refs = {f"refs/heads/{self.branch}": self.tip, **self._refs}
        # Level 1: the repository is a cache, and compression is most of the time.
        argv = ["git", f"--git-dir={path}", "-c", "core.compression=1", "fast-import", "--quiet"]
        argv.append(f"--export-marks={marks}")
        with tempfile.TemporaryFile() as stream:
            stream.writelines(self._stream)
            for name, commit in refs.items():
                stream.write(f"reset {name}\nfrom :{commit.mark}\n\n".encode())
            stream.seek(0)
            host.run(argv, stdin=stream, environment=GIT_ENVIRONMENT)
        (path / _SCRATCH_REF).unlink()
        lines = marks.read_text().splitlines()
        return {int(mark[1:]): oid for mark, oid in (line.split() for line in lines)}

    def _commit(
        self,
        tree: _Tree,
        message: str,
        parents: Sequence[Commit],
        at: datetime | None = None,
    ) -> Commit:
        self._now = at or self._now + _STEP
        made = Commit(self._mark(), message, self._now, tuple(parents), tree)
        self._stream.append(_commit_command(made))
        return made

    def _changed(self, onto: Commit | None, changes: Changes) -> _Tree:
        tree = dict(onto.tree) if onto else {}
        for path, content in changes.items():
            if content is None:
                del tree[path]
            else:
                tree[path] = self._file(content)
        return tree

    def _file(self, content: bytes | str | Content) -> tuple[str, int]:
        if isinstance(content, str):
            content = content.encode()
        if isinstance(content, bytes):
            content = Content(content)
        digest = hashlib.sha256(content.data).digest()
        if digest not in self._blobs:
            mark = self._blobs[digest] = self._mark()
            self._stream.append(b"blob\nmark :%d\n" % mark + _data(content.data))
        return content.mode, self._blobs[digest]

    def _mark(self) -> int:
        self._marks += 1
        return self._marks

    def _branch_off(self, number: int, steps: Iterable[Changes], fork: Commit | None) -> _TopicBranch:
        fork = head = fork or self.tip
        made: list[Commit] = []
        for index, changes in enumerate(steps, 1):
            head = self._commit(self._changed(head, changes), f"Step {index}", (head,))
            made.append(head)
        self._refs[f"refs/pull/{number}/head"] = head
        return _TopicBranch(fork, tuple(made))

    def _leave(self, kind: Kind, number: int, title: str, branch: _TopicBranch) -> None:
        base = self.tip
        message = f"Merge {number} into {self.branch}"
        test = self._commit(branch.laid_on(base), message, (base, branch.head))
        self._refs[f"refs/pull/{number}/merge"] = test
        self._pulls.append(_PlannedPull(number, title, kind, base, branch, test, branch.fork))


@dataclass(frozen=True)
class _TopicBranch:
    """The branch that a pull request wants merged."""

    fork: Commit
    steps: tuple[Commit, ...]

    @property
    def head(self) -> Commit:
        return self.steps[-1]

    def laid_on(self, base: Commit) -> _Tree:
        """Return a tree with all of the branch's changes; on one file, the branch wins."""
        before, after, tree = self.fork.tree, self.head.tree, dict(base.tree)
        for path in before.keys() - after.keys():
            tree.pop(path, None)
        tree.update({path: file for path, file in after.items() if before.get(path) != file})
        return tree


@dataclass(frozen=True)
class _PlannedPull:
    number: int
    title: str
    kind: Kind
    base: Commit
    branch: _TopicBranch
    merge_commit: Commit
    parent: Commit

    def written(self, oids: Mapping[int, str]) -> Pull:
        is_merged = self.kind in ("squash", "merge", "rebase")
        return Pull(
            number=self.number,
            title=self.title,
            kind=self.kind,
            base=oids[(self.branch.fork if is_merged else self.base).mark],
            head=oids[self.branch.head.mark],
            fork=oids[self.branch.fork.mark],
            commits=tuple(oids[step.mark] for step in self.branch.steps),
            merged_at=self.merge_commit.at.isoformat() if is_merged else None,
            merge_commit=oids[self.merge_commit.mark],
            parent=oids[self.parent.mark],
            result=oids[(self.merge_commit if is_merged else self.branch.head).mark],
        )


def read(path: Path) -> Repository:
    """Describe a repository that a history was written to earlier."""
    facts: dict[str, Any] = json.loads((path / "lab.json").read_text())
    pulls = [Pull(**{**pull, "commits": tuple(pull["commits"])}) for pull in facts["pulls"]]
    return Repository(path, facts["branch"], {pull.number: pull for pull in pulls}, facts["commits"])


def _describe(repository: Repository) -> None:
    facts = {
        "branch": repository.branch,
        "pulls": [asdict(pull) for pull in repository.pulls.values()],
        "commits": dict(repository.commits),
    }
    (repository.path / "lab.json").write_text(json.dumps(facts, indent=1))


def _write_skeleton(path: Path, branch: str) -> None:
    # By hand: `git init` would copy templates, and is one more process for each small repository.
    for folder in ("objects/pack", "objects/info", "refs/heads", "refs/tags"):
        (path / folder).mkdir(parents=True)
    (path / "HEAD").write_text(f"ref: refs/heads/{branch}\n")
    (path / "config").write_text(_CONFIG)


def _commit_command(commit: Commit) -> bytes:
    when = f"{_WHO} {int(commit.at.timestamp())} +0000"
    head = [
        f"commit {_SCRATCH_REF}",
        f"mark :{commit.mark}",
        f"author {when}",
        f"committer {when}",
    ]
    lines = [f"from :{commit.parents[0].mark}"] if commit.parents else []
    lines += [f"merge :{parent.mark}" for parent in commit.parents[1:]]
    lines += _difference(commit.parents[0].tree if commit.parents else {}, commit.tree)
    # Without this a root commit would continue whatever the ref points at.
    reset = "" if commit.parents else f"reset {_SCRATCH_REF}\n\n"
    start = (reset + "\n".join(head) + "\n").encode()
    return start + _data(commit.message.encode()) + ("\n".join(lines) + "\n\n").encode()


def _difference(before: _Tree, after: _Tree) -> list[str]:
    gone = [f"D {path}" for path in sorted(before.keys() - after.keys())]
    changed = [path for path in sorted(after) if before.get(path) != after[path]]
    return gone + [f"M {after[path][0]} :{after[path][1]} {path}" for path in changed]


def _data(data: bytes) -> bytes:
    return b"data %d\n" % len(data) + data + b"\n"
