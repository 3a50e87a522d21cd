"""A git repository's pull requests: their commits, their files, and the three-way merge of one file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from builder.doors import Forge, ForgePullRequest, Origin, Progress, no_progress
from builder.errors import InputError, Refused, Unavailable
from builder.git_repository import GITLINK, Commit, Gone, Repository, find_edits, is_branch_name
from builder.git_store import open_store
from builder.model import Change, MergeKind, Oid, PullRequest, PullRequestRef, ThreeWay
from builder.three_way import combine, require_mergeable

_SNIFFED = 8000
"""git calls a file binary when its first 8000 bytes hold a NUL."""


class GitUpstream:
    """The pull requests of one git repository, given as a URL or as the path of a local one.

    With a forge, the forge says what became of a pull request. Without, the first-parent history of the branch
    (default: the repository's own) is searched for its number, then `refs/pull/N/head` is looked for.
    """

    def __init__(
        self,
        source: str,
        *,
        forge: Forge | None,
        cache: Path,
        branch: str | None = None,
        progress: Progress = no_progress,
        stall_seconds: int = 60,
    ) -> None:
        self._forge = forge
        self._store = open_store(source, cache, progress, stall_seconds)
        if branch and not is_branch_name(branch):
            raise InputError("--upstream-branch", f"{branch!r} is not a branch name", hint="for example main")
        self._branch = branch
        self._trees: dict[Oid, dict[str, tuple[str, Oid]]] = {}

    def resolve(self, ref: PullRequestRef, *, accept_closed: bool = False) -> PullRequest:
        """Find parent and result of a pull request.

        InputError where there is none or several commits claim the number; Refused where it was closed unmerged (unless
        that is accepted), or where its parent cannot be told.
        """
        try:
            if self._forge is None:
                return self._search(ref)
            said = self._forge.pull_request(ref)
            if said.merge_commit is not None:
                return self._merged(ref, said, Oid(said.merge_commit))
            return self._unmerged(ref, said, accept_closed)
        except Gone as gone:
            raise self._lacking(ref, gone.oid) from gone

    def pinned(self, ref: PullRequestRef, parent: Oid, result: Oid) -> PullRequest:
        """Make these two commits available and return them as the pull request; Refused if they cannot be had.

        `kind` is what the commits' shape tells: squash or merge where the parent is the result's first parent,
        otherwise open (the parent is then a merge base, or the commit before the first of several).
        """
        try:
            self._store.bring((parent, result), depth=1)
        except Gone as gone:
            raise self._vanished(ref, parent, result, gone.oid) from gone
        commit = self._store.objects.commit(result)
        if commit.parents[:1] == (parent,):
            return _pull_request(ref, parent, commit, _kind(commit))
        if self._store.is_complete and not self._store.objects.is_ancestor(parent, result):
            message = f"the pinned parent {parent} is not an ancestor of the pinned result {result}"
            raise Refused(str(ref), message, hint="lock the pull request anew")
        return _pull_request(ref, parent, commit, "open")

    def changes(self, pull_request: PullRequest) -> tuple[Change, ...]:
        """List the files that differ between parent and result, renames followed, sorted by path.

        A submodule shows as mode 160000 with the commit it points at as its blob; a link as mode 120000.
        """
        sides = (pull_request.parent, pull_request.result)
        self._store.bring(sides, depth=1)
        plain = self._store.objects.differences(*sides, "--no-renames")
        # Renames are judged by content, so all of it has to be here before they are.
        self._store.bring_blobs({blob for change in plain for blob in _blobs(change)})
        found = self._store.objects.differences(*sides, "--find-renames=50%", "-l0")
        return tuple(sorted(map(self._sniffed, found), key=lambda change: change.path))

    def read(self, commit: Oid, path: str) -> bytes | None:
        """Return a file's bytes in a commit (upstream path), None where it is absent or a submodule.

        A symbolic link reads as its target text, as in git.
        """
        mode, blob = self._tree(commit).get(path, (GITLINK, commit))
        if mode == GITLINK:
            return None
        data = self._store.objects.blob(blob)
        if data is None:
            self._store.bring_blobs([blob])
            data = self._store.objects.blob(blob)
        return data

    def prefetch(self, commit: Oid, paths: Iterable[str]) -> None:
        """Make many files of a commit available in one transfer; those that are absent are passed over."""
        tree = self._tree(commit)
        found = (tree[path] for path in paths if path in tree)
        self._store.bring_blobs({blob for mode, blob in found if mode != GITLINK})

    def paths(self, commit: Oid, prefix: str) -> Mapping[str, Oid]:
        """Return path -> blob id of the regular files below a folder of a commit; needs no blobs."""
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        entries = self._tree(commit).items()
        return {path: blob for path, (mode, blob) in entries if mode.startswith("100") and path.startswith(folder)}

    def introduced(self, text: str, path: str, until: Oid, seconds: float = 20.0) -> str | None:
        """Name the commit (`oid subject`) that last added this text to the path, a file or a folder.

        A text that is a name is searched as a whole word. None where it is not there, where the time ran out, or where
        history cannot be searched: only a complete local repository can.
        """
        if not self._store.is_complete:
            return None
        return self._store.objects.introduced(text, path, until, seconds)

    @property
    def has_history(self) -> bool:
        """Whether all history and content is at hand: only a complete local repository has that."""
        return self._store.is_complete

    def blame(
        self, commit: Oid, path: str, spans: Sequence[tuple[int, int]], seconds: float = 20.0
    ) -> tuple[Origin, ...] | None:
        """Tell which commits of the first-parent history brought these lines (1-based, inclusive) of a file.

        None where history cannot be searched, the time ran out, or the commit has no such lines.
        """
        found = self._store.objects.blame(commit, path, spans, seconds) if self.has_history else None
        if found is None:
            return None
        origins = [replace(self._origin(oid, there), lines=lines) for oid, lines, there in found]
        return tuple(sorted(origins, key=lambda origin: origin.lines or (0, 0)))

    def added(self, path: str, until: Oid, seconds: float = 20.0) -> tuple[Origin, ...] | None:
        """Tell which commit last added a file, renames into place included; empty where none did.

        None where history cannot be searched or the time ran out.
        """
        found = self._store.objects.added(path, until, seconds) if self.has_history else None
        return None if found is None else tuple(self._origin(oid, path) for oid in found)

    def versions(self, path: str, until: Oid, seconds: float = 20.0) -> tuple[tuple[Oid, Oid | None], ...] | None:
        """List the commits that changed a file, newest first, and the blob each left (None: it deleted the file).

        Of the whole branch where `until` is on it, else up to `until`. None as for `added`.
        """
        if not self.has_history:
            return None
        tip = self._store.branch(self._branch)[1]
        start = tip if self._store.objects.is_ancestor(until, tip) else until
        found = self._store.objects.versions(path, start, seconds)
        return None if found is None else tuple(found)

    def touched(self, origin: Origin) -> tuple[Change, ...]:
        """List what a commit changed against its first parent, renames as two changes; nothing for a first commit."""
        if origin.parent is None:
            return ()
        return tuple(self._store.objects.differences(origin.parent, origin.commit, "--no-renames"))

    def _origin(self, oid: Oid, path: str) -> Origin:
        commit = self._store.objects.commit(oid)
        return Origin(oid, commit.parents[0] if commit.parents else None, commit.subject, path)

    def _search(self, ref: PullRequestRef) -> PullRequest:
        branch, tip = self._store.branch(self._branch)
        history = self._store.history(tip)
        hits = history.numbered(tip, ref.number)
        if len(hits) > 1:
            facts = [f"{commit.oid} {commit.subject}" for commit in hits]
            hint = "pin the right one in the lock"
            raise InputError(str(ref), f"{len(hits)} commits on {branch} claim this number", hint=hint, facts=facts)
        if hits:
            self._store.bring((hits[0].oid,), depth=2)
            return _pull_request(ref, self._first_parent(ref, hits[0]), hits[0], _kind(hits[0]))
        if (head := self._store.head(ref.number)) is not None:
            return self._range(ref, tip, head, "open")
        raise self._not_found(ref, branch, tip, history)

    def _merged(self, ref: PullRequestRef, said: ForgePullRequest, result: Oid) -> PullRequest:
        self._store.bring((result,), depth=2)
        commit = self._store.objects.commit(result)
        parent = self._first_parent(ref, commit)
        own = said.commit_subjects
        if len(commit.parents) > 1 or len(own) == 1:
            return _pull_request(ref, parent, commit, _kind(commit))
        if not own:
            # The forge does not list as many commits; only the title it gives a squash can tell.
            if commit.subject.endswith(f"(#{ref.number})"):
                return _pull_request(ref, parent, commit, "squash")
            raise _ambiguous(ref, {"if squashed": parent}, result)
        if _alike(own[-1:], [commit], ref.number) == 0:
            return _pull_request(ref, parent, commit, "squash")
        chain = self._store.history(result).first_parents(result, len(own) + 1)
        alike = _alike(reversed(own), chain, ref.number)
        if alike == len(own) < len(chain):
            return _pull_request(ref, chain[-1].oid, commit, "rebase")
        if alike == 1 and commit.subject.endswith(f"(#{ref.number})"):
            return _pull_request(ref, parent, commit, "squash")
        raise _ambiguous(ref, {"if squashed": parent, "if rebased": chain[-1].oid}, result)

    def _unmerged(self, ref: PullRequestRef, said: ForgePullRequest, accept_closed: bool) -> PullRequest:
        is_open = said.state == "open"
        if not is_open and not accept_closed:
            message = f"was closed without being merged ({said.title!r}, head {said.head})"
            raise Refused(str(ref), message, hint="accept that with --accept-closed")
        return self._range(ref, Oid(said.base), Oid(said.head), "open" if is_open else "closed")

    def _range(self, ref: PullRequestRef, base: Oid, head: Oid, kind: MergeKind) -> PullRequest:
        """Take what stands between the merge base and the head."""
        bases = self._store.history(base, head).merge_bases(base, head)
        if len(bases) != 1:
            message = f"head {head} and base {base} have {len(bases) or 'no'} merge bases; exactly one is needed"
            raise Refused(str(ref), message, hint="pin parent and result in the lock", facts=bases)
        if bases[0] == head:
            message = f"head {head} is on the branch already, but which commit merged it cannot be told"
            raise Refused(str(ref), message, hint="ask the forge, or pin parent and result in the lock")
        self._store.bring((bases[0], head), depth=1)
        return _pull_request(ref, bases[0], self._store.objects.commit(head), kind)

    def _first_parent(self, ref: PullRequestRef, commit: Commit) -> Oid:
        if not commit.parents:
            raise Refused(str(ref), f"its result {commit.oid} has no parent to compare with")
        return commit.parents[0]

    def _not_found(self, ref: PullRequestRef, branch: str, tip: Oid, history: Repository) -> InputError:
        facts = [
            f"searched: the {history.length(tip)} first-parent commits of {branch}, for a title ending in "
            f"(#{ref.number}) or 'Merge pull request #{ref.number} from ...'",
            f"searched: refs/pull/{ref.number}/head",
        ]
        if history.is_shallow:
            facts.append("that history is cut off: the repository is a shallow clone")
        hint = "name the branch with --upstream-branch, or ask a forge"
        return InputError(str(ref), f"{self._store.name} holds no such pull request", hint=hint, facts=facts)

    def _lacking(self, ref: PullRequestRef, oid: Oid) -> Unavailable:
        message = f"its commit {oid} is not in {self._store.name}"
        return Unavailable(str(ref), message, hint=self._store.advice(f"pull/{ref.number}/head"))

    def _vanished(self, ref: PullRequestRef, parent: Oid, result: Oid, gone: Oid) -> Refused:
        which = "result" if gone == result else "parent"
        facts = [f"pinned: parent {parent}, result {result}"]
        head = self._store.head(ref.number)
        facts.append(f"now:    refs/pull/{ref.number}/head is {head or 'not there'}")
        message = f"the pinned {which} {gone} is not in {self._store.name} (any more)"
        return Refused(str(ref), message, hint="look at what changed, then lock the pull request anew", facts=facts)

    def _tree(self, commit: Oid) -> dict[str, tuple[str, Oid]]:
        if commit not in self._trees:
            self._store.bring((commit,), depth=1)
            self._trees[commit] = self._store.objects.tree(commit)
        return self._trees[commit]

    def _sniffed(self, change: Change) -> Change:
        starts = ((self._store.objects.blob(blob) or b"")[:_SNIFFED] for blob in _blobs(change))
        return replace(change, is_binary=any(b"\0" in start for start in starts))


def merge_file(ours: bytes, ancestor: bytes, theirs: bytes) -> ThreeWay:
    """Merge one file three ways, as `git merge-file --zdiff3` does, whatever git is configured to do.

    git finds the edits (Myers, so that every version of git finds the same); combining them here instead of parsing
    markers tells where each conflict stands in either file and keeps line ends, a missing last newline and a BOM byte
    for byte. Refused where a side is binary or already holds conflict markers.
    """
    named = {"ours (the base's file)": ours, "the file at the PR's parent": ancestor, "theirs (the PR's file)": theirs}
    for name, data in named.items():
        require_mergeable(name, data)
    return combine(ours, ancestor, theirs, find_edits(ancestor, ours), find_edits(ancestor, theirs))


def _pull_request(ref: PullRequestRef, parent: Oid, commit: Commit, kind: MergeKind) -> PullRequest:
    title = commit.title.removesuffix(f" (#{ref.number})")
    return PullRequest(ref.repository, ref.number, parent, commit.oid, commit.committed, kind, title)


def _kind(commit: Commit) -> MergeKind:
    return "merge" if len(commit.parents) > 1 else "squash"


def _alike(own: Iterable[str], chain: Sequence[Commit], number: int) -> int:
    """Count how many of the pull request's subjects, newest first, stand on the branch in the same order."""
    suffix = f" (#{number})"  # some bots add it to each commit that they rebase
    pairs = zip(own, (commit.subject for commit in chain), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0].removesuffix(suffix) == pair[1].removesuffix(suffix), pairs))


def _ambiguous(ref: PullRequestRef, candidates: Mapping[str, Oid], result: Oid) -> Refused:
    facts = [f"parent {parent} {case}" for case, parent in candidates.items()]
    message = f"whether {result} is its squash or the last of its rebased commits cannot be told"
    return Refused(str(ref), message, hint="pin the right parent and the result in the lock", facts=facts)


def _blobs(change: Change) -> list[Oid]:
    """List the file contents of a change; a submodule has none."""
    sides = ((change.parent_mode, change.parent_blob), (change.result_mode, change.result_blob))
    return [blob for mode, blob in sides if blob is not None and mode != GITLINK]
