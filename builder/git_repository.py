"""DOOR: git (GitPython's command door): reads one repository, speaks to a remote one, and finds a file's edits."""

from __future__ import annotations

import os
import re
import tempfile
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from builder.doors import Progress
from builder.errors import Refused, Unavailable, last_lines
from builder.model import Change, Oid, commit_subject
from builder.three_way import Edit, lines

try:
    import git
except ImportError as error:  # GitPython looks for the executable when it is imported
    raise Unavailable("git", "there is no git to run", hint="install git 2.32 or newer") from error

_OLDEST_GIT = (2, 32)

GITLINK = "160000"
"""The mode git gives a submodule."""

_SEALED = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_PARAMETERS": "",
    "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "core.attributesFile",
    "GIT_CONFIG_VALUE_0": os.devnull,
    "GIT_CONFIG_KEY_1": "log.showSignature",
    "GIT_CONFIG_VALUE_1": "false",
    "GIT_CONFIG_KEY_2": "log.follow",
    "GIT_CONFIG_VALUE_2": "false",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_DIFF_OPTS": "",
    "GIT_GRAFT_FILE": os.devnull,
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
    # A partial clone would fetch what it lacks, object by object and into the user's own repository.
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
}
"""For reading: no configuration but the repository's own, no transfers, no replaced or grafted objects."""

_PLAIN_HISTORY = ("-c", "blame.ignoreRevsFile=", "-c", "diff.algorithm=myers", "-c", "log.showRoot=true")
"""What the repository's own configuration may say otherwise, and would change the answer."""

_TRANSFER = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "GIT_HTTP_LOW_SPEED_LIMIT": "1",
    "LC_ALL": "C",
}
"""For transfers: the user's configuration stays (proxies, certificates, credential helpers), questions do not."""

_PROTOCOLS = "file:git:http:https:ssh"
"""For transfers too, unless the environment says otherwise: none of these runs a program that the URL names."""

_REMOTE = "sglang-overlay-upstream"
"""A name that no configuration has."""

_QUIET = {
    "core.hooksPath": os.devnull,
    "fetch.unpackLimit": "1",  # a pack is complete or not there at all; loose objects come one by one
    "fetch.writeCommitGraph": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.version": "2",
    f"remote.{_REMOTE}.promisor": "true",
}

_KINDS: Mapping[str, Literal["added", "modified", "deleted", "renamed"]] = {
    "A": "added",
    "D": "deleted",
    "R": "renamed",
}
_GONE = re.compile(r"(?:not our ref|unadvertised object|remote ref) ([0-9a-f]{40})")
_PERCENT = re.compile(r"([A-Z][a-z]+ [a-z]+): +\d+% \((\d+)/(\d+)\)")
_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")


class Gone(Exception):
    """A commit that the repository does not have, or not any more."""

    def __init__(self, oid: Oid) -> None:
        super().__init__(oid)
        self.oid = oid


@dataclass(frozen=True)
class Commit:
    """What a commit object says; `title` is the pull request's where the message is a forge's own for a merge."""

    oid: Oid
    parents: tuple[Oid, ...]
    committed: int
    subject: str
    title: str


class Repository:
    """One git directory, and git commands that only read it."""

    def __init__(self, git_dir: Path, folder: Path | None = None) -> None:
        self.git_dir = git_dir
        self._git = git.Git(str(folder or git_dir))
        self._git.update_environment(**_SEALED)
        self._git.set_persistent_git_options(git_dir=str(git_dir))
        weakref.finalize(self, self._git.clear_cache)  # ends the process that reads objects

    def run(
        self, *words: str, stdin: bytes = b"", accept: Collection[int] = (0,), seconds: float | None = None
    ) -> bytes:
        """Return what a command prints; Unavailable with git's last words where its status is another than accepted."""
        status, out, said = self._execute(words, stdin, seconds)
        if status not in accept:
            message = f"git {words[0]} ended with status {status} in {self.git_dir}"
            hint = f"git --git-dir={self.git_dir} fsck"
            raise Unavailable("git", message, hint=hint, facts=last_lines(said))
        return out

    def status(self, *words: str) -> int:
        """Return a command's exit status alone."""
        return self._execute(words)[0]

    def _execute(
        self, words: Sequence[str], stdin: bytes = b"", seconds: float | None = None
    ) -> tuple[int, bytes, str]:
        command = [git.Git.GIT_PYTHON_GIT_EXECUTABLE, f"--git-dir={self.git_dir}", *words]
        with tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            try:
                status, out, said = self._git.execute(
                    command,
                    istream=given,
                    with_extended_output=True,
                    with_exceptions=False,
                    stdout_as_string=False,
                    strip_newline_in_stdout=False,
                    kill_after_timeout=seconds,
                )
            except git.GitCommandNotFound as error:
                raise Unavailable("git", "there is no git to run", hint="install git 2.32 or newer") from error
        return int(status), bytes(out), str(said)

    def lacks(self, oids: Collection[Oid]) -> list[Oid]:
        """List the objects that are not here."""
        if not (self.git_dir / "HEAD").exists():
            return list(oids)
        asked = "".join(f"{oid}\n" for oid in oids).encode()
        status, out, said = self._execute(["cat-file", "--batch-check"], asked)
        # A partial clone that may not fetch ends at the first object it lacks.
        if status != 0 and "promisor" not in said:
            hint = f"git --git-dir={self.git_dir} fsck"
            raise Unavailable("git", f"{self.git_dir} cannot be read", hint=hint, facts=last_lines(said))
        present = {line.split()[0] for line in out.decode().splitlines() if not line.endswith(" missing")}
        return [oid for oid in oids if oid not in present]

    def blob(self, oid: Oid) -> bytes | None:
        """Return a blob's bytes, None where it is not here; what is read is what its id says."""
        data = self._object(oid, "blob")
        if data is not None and Oid.of_blob(data) != oid:
            message = f"{self.git_dir} is damaged: object {oid} has other content"
            raise Unavailable("git", message, hint=f"git --git-dir={self.git_dir} fsck")
        return data

    def _object(self, oid: Oid, kind: str) -> bytes | None:
        try:
            _, found, _, data = self._git.get_object_data(oid)
        except (ValueError, OSError):
            self._git.clear_cache()  # the process behind it may have ended
            return None
        name = found.decode() if isinstance(found, bytes) else found  # annotated str, but is bytes
        if name != kind:
            raise Refused("git", f"{oid} is a {name}, expected a {kind}")
        return data

    def commit(self, oid: Oid) -> Commit:
        """Read a commit object itself, so that a shallow clone's cut does not hide its parents."""
        data = self._object(oid, "commit")
        if data is None:
            raise Gone(oid)
        head, _, message = data.partition(b"\n\n")
        fields = [line.partition(b" ")[::2] for line in head.split(b"\n")]
        committer = next(value for key, value in fields if key == b"committer")
        text = message.decode(errors="replace")
        return Commit(
            oid,
            tuple(Oid(value.decode()) for key, value in fields if key == b"parent"),
            int(committer.rsplit(b" ", 2)[1]),
            commit_subject(text),
            _title(text),
        )

    def tree(self, commit: Oid) -> dict[str, tuple[str, Oid]]:
        """Return path -> (mode, object id) for all files, links and submodules of a commit."""
        entries = self.run("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")[:-1]
        split = (entry.partition(b"\t")[::2] for entry in entries)
        return {_path(path): (head[:6].decode(), Oid(head[-40:].decode())) for head, path in split}

    def differences(self, parent: Oid, result: Oid, *options: str) -> list[Change]:
        """Compare two commits' trees."""
        out = self.run("diff-tree", "-r", "-z", "--raw", "--no-abbrev", *options, parent, result)
        fields = iter(out.split(b"\0")[:-1])
        return [_change(head, fields) for head in fields]

    def tip(self, *names: str) -> tuple[str, Oid] | None:
        """Return the first of these refs that names a commit, and that commit."""
        for name in names:
            out = self.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", accept=(0, 1, 128))
            if out:
                return name, Oid(out.decode().strip())
        return None

    def numbered(self, tip: Oid, number: int) -> list[Commit]:
        """List the first-parent commits whose subject says that they merged this pull request."""
        squashed, merged = f"(#{number})", f"Merge pull request #{number} from "
        patterns = ("--fixed-strings", f"--grep={squashed}", f"--grep={merged}")
        out = self.run("log", "--first-parent", "--format=%H", *patterns, tip)
        found = [self.commit(Oid(oid)) for oid in out.decode().split()]
        return [each for each in found if each.subject.endswith(squashed) or each.subject.startswith(merged)]

    def first_parents(self, tip: Oid, count: int) -> list[Commit]:
        """List up to so many commits of the first-parent chain, newest first."""
        out = self.run("rev-list", "--first-parent", f"--max-count={count}", tip)
        return [self.commit(Oid(oid)) for oid in out.decode().split()]

    def length(self, tip: Oid) -> int:
        """Count the commits of the first-parent chain."""
        return int(self.run("rev-list", "--first-parent", "--count", tip))

    def merge_bases(self, one: Oid, other: Oid) -> list[Oid]:
        """List all best common ancestors."""
        return [Oid(oid) for oid in self.run("merge-base", "--all", one, other, accept=(0, 1)).decode().split()]

    def is_ancestor(self, old: Oid, new: Oid) -> bool:
        """Tell whether `new` descends from `old`."""
        return self.status("merge-base", "--is-ancestor", old, new) == 0

    @property
    def is_shallow(self) -> bool:
        """Whether the history here is cut off."""
        return self.run("rev-parse", "--is-shallow-repository").strip() == b"true"

    @property
    def is_partial(self) -> bool:
        """Whether objects may be missing here by intent."""
        return self.status("config", "--get-regexp", r"^remote\..*\.promisor$") == 0

    def introduced(self, text: str, path: str, until: Oid, seconds: float) -> str | None:
        """Go back through the commits that change how often the text stands there, to one before which it did not."""
        deadline = time.monotonic() + seconds
        is_name = re.fullmatch(r"\w+", text, re.ASCII) is not None
        counted = ["--pickaxe-regex", rf"-S(^|[^[:alnum:]_]){text}([^[:alnum:]_]|$)"] if is_name else [f"-S{text}"]
        log = ("log", "--first-parent", "--format=%H", "--no-ext-diff", "--no-textconv", *counted, until, "--", path)
        status, out, _ = self._execute(log, seconds=seconds)
        if status != 0:
            return None
        for commit in (self.commit(Oid(oid)) for oid in out.decode().split()):
            grep = ["grep", "--quiet", "--fixed-strings", *(["--word-regexp"] if is_name else []), "-e", text]
            left = max(deadline - time.monotonic(), 0.01)
            before = self._execute([*grep, commit.parents[0], "--", path], seconds=left)[0] if commit.parents else 1
            if before == 1:
                return f"{commit.oid} {commit.subject}"
            if before != 0:
                return None
        return None

    def blame(
        self, commit: Oid, path: str, spans: Sequence[tuple[int, int]], seconds: float
    ) -> list[tuple[Oid, tuple[int, int], str]] | None:
        """List who brought which of these lines: commit, lines, and what the file was called there.

        None where it took too long, or there is no such file.
        """
        if not spans:
            return []
        asked = [f"-L{first},{last}" for first, last in spans]
        command = ("blame", "--incremental", "--first-parent", "--no-textconv", *asked, commit, "--", path)
        status, out, _ = self._execute([*_PLAIN_HISTORY, *command], seconds=seconds)
        return list(_blamed(out.split(b"\n"))) if status == 0 else None

    def added(self, path: str, until: Oid, seconds: float) -> list[Oid] | None:
        """Find the commit that last added a file (none, or one); None where it took too long."""
        command = ("log", "--first-parent", "--diff-filter=A", "--no-renames", "--format=%H", "--max-count=1")
        status, out, _ = self._execute([*_PLAIN_HISTORY, *command, until, "--", path], seconds=seconds)
        return [Oid(oid) for oid in out.decode().split()] if status == 0 else None

    def versions(self, path: str, tip: Oid, seconds: float) -> list[tuple[Oid, Oid | None]] | None:
        """List the commits that changed a file, newest first, and the blob each left; None where it took too long."""
        command = ["log", "--first-parent", "--diff-merges=first-parent", "--topo-order", "--no-renames"]
        command += ["--raw", "--no-abbrev", "--format=%H", tip, "--", path]
        status, out, _ = self._execute([*_PLAIN_HISTORY, *command], seconds=seconds)
        if status != 0:
            return None
        return list(_versions(out.decode(errors="replace").split("\n")))


class Remote:
    """A repository somewhere else. Its URL may hold a password: no file and no argument of git's names it."""

    def __init__(self, url: str, progress: Progress, stall_seconds: int) -> None:
        self.name = without_credentials(url)
        self._url = url
        self._progress = progress
        self._stall_seconds = stall_seconds

    def refs(self, *names: str) -> dict[str, Oid]:
        """Ask which of these refs there are."""
        answer = self._run(Path(os.devnull), ["ls-remote", _REMOTE, *names])
        pairs = (line.split("\t") for line in answer.splitlines() if "\t" in line)
        return {ref: Oid(oid) for oid, ref in pairs}

    def fetch(self, into: Path, wanted: Iterable[str], filter_: str, depth: int | None) -> None:
        """Fetch objects by id, or refspecs, into a git directory; Gone where the remote does not have one.

        What the directory has a ref for is not transferred again; without refs, each fetch is complete in itself.
        """
        words = ["fetch", "--progress", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--stdin"]
        words += [f"--filter={filter_}", *([f"--depth={depth}"] if depth else []), _REMOTE]
        settings = {f"remote.{_REMOTE}.partialclonefilter": filter_}
        self._run(into, words, "".join(f"{word}\n" for word in wanted).encode(), settings)

    def _run(
        self, git_dir: Path, words: Sequence[str], stdin: bytes = b"", settings: Mapping[str, str] | None = None
    ) -> str:
        command = [git.Git.GIT_PYTHON_GIT_EXECUTABLE, f"--git-dir={git_dir}", *words]
        environment = self._environment({**_QUIET, **(settings or {}), f"remote.{_REMOTE}.url": self._url})
        with tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            process = git.Git().execute(command, istream=given, as_process=True, env=environment)
        with closing(process.stdout), closing(process.stderr):
            said = self._watched(process)
            printed = process.stdout.read()
        try:
            process.wait(stderr=said)
        except git.GitCommandError as error:
            raise self._failed(f"{words[0]} ended with status {error.status}", said.decode(errors="replace")) from None
        return bytes(printed).decode()

    def _watched(self, process: git.Git.AutoInterrupt) -> bytes:
        """Read what git says until it ends, and pass on how far it is."""
        said = bytearray()
        while part := process.stderr.read1(1 << 16):
            said += part
            if found := _PERCENT.findall(part.decode(errors="replace")):
                what, done, total = found[-1]
                self._progress(f"{what.lower()} from {self.name}", int(done), int(total))
        return bytes(said)

    def _failed(self, what: str, said: str) -> Exception:
        if found := _GONE.search(said):
            return Gone(Oid(found[1]))
        words = [without_credentials(line) for line in re.split(r"[\r\n]+", said) if not _PERCENT.search(line)]
        hint = "check the address and the network, or give a local clone with --upstream PATH"
        return Unavailable("upstream", f"{self.name}: git {what}", hint=hint, facts=last_lines("\n".join(words)))

    def _environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Put settings behind those that the user may have given the same way."""
        given = os.environ.get("GIT_CONFIG_COUNT", "")
        first = int(given) if given.isdecimal() else 0
        pairs: dict[str, str] = {}
        for index, (key, value) in enumerate(settings.items(), first):
            pairs |= {f"GIT_CONFIG_KEY_{index}": key, f"GIT_CONFIG_VALUE_{index}": value}
        pairs["GIT_CONFIG_COUNT"] = str(first + len(settings))
        allowed = os.environ.get("GIT_ALLOW_PROTOCOL", _PROTOCOLS)
        stall = str(self._stall_seconds)
        return {**_TRANSFER, "GIT_ALLOW_PROTOCOL": allowed, "GIT_HTTP_LOW_SPEED_TIME": stall, **pairs}


def find_edits(ancestor: bytes, side: bytes) -> list[Edit]:
    """List the edits that lead from the ancestor to one side: those that git's own three-way merge starts from."""
    if ancestor == side:
        return []
    # Without context git trims common ends and would find other edits than its merge does: ask for all lines.
    options = ["--text", "--no-color", "--no-ext-diff", "--no-textconv", "--unified=999999999"]
    algorithm = ["--diff-algorithm=myers", "--no-indent-heuristic"]
    with tempfile.TemporaryDirectory(prefix="overlay-diff-") as name:
        folder = Path(name)
        (folder / "ancestor").write_bytes(ancestor)
        (folder / "side").write_bytes(side)
        # The repository named here does not exist, so that no configuration or attributes around the folder count.
        nowhere = Repository(folder / "no-repository", folder)
        answer = nowhere.run("diff", "--no-index", *options, *algorithm, "--", "ancestor", "side", accept=(0, 1))
    edits = list(_parsed_edits(line[:1] for line in answer.partition(b"\n@@ ")[2].split(b"\n")[1:]))
    grown = sum(edit.size - (edit.end - edit.start) for edit in edits)
    if not edits or grown != len(lines(side)) - len(lines(ancestor)):
        message = "git diff did not answer with all lines of two files"
        raise Unavailable("git", message, facts=last_lines(answer.decode(errors="replace")))
    return edits


def _parsed_edits(signs: Iterable[bytes]) -> Iterator[Edit]:
    """Read the first characters of a unified diff's lines."""
    at = start = size = 0
    for sign in (*signs, b" "):
        if sign == b"-":
            at += 1
        elif sign == b"+":
            size += 1
        elif sign == b" ":
            if at > start or size:
                yield Edit(start, at, size)
            at, size = at + 1, 0
            start = at


def require_git() -> None:
    """Refuse a git that lacks what is used here."""
    found = git.Git().version_info[:2]
    if found < _OLDEST_GIT:
        message = f"version {'.'.join(map(str, found))} is too old"
        raise Unavailable("git", message, hint="install git 2.32 or newer")


def is_branch_name(name: str) -> bool:
    """Tell whether git takes this as a branch's name; one that looks like an option is none."""
    nowhere = Repository(Path(os.devnull))
    return not name.startswith("-") and nowhere.status("check-ref-format", f"refs/heads/{name}") == 0


def without_credentials(text: str) -> str:
    """Remove what stands before the host in each URL."""
    return _CREDENTIALS.sub("", text)


def _title(message: str) -> str:
    """Return the pull request's title: a merge's own subject only names the branch."""
    subject, _, rest = message.strip().partition("\n\n")
    is_forges = subject.startswith("Merge pull request #") and rest.strip()
    return commit_subject(rest if is_forges else message)


def _versions(out: Iterable[str]) -> Iterator[tuple[Oid, Oid | None]]:
    """Read `log --raw --format=%H` of one file (git-diff-tree(1), RAW OUTPUT FORMAT)."""
    commit = None
    for line in out:
        if line.startswith(":") and commit is not None:
            blob = line.split(" ")[3]
            yield commit, Oid(blob) if blob.strip("0") else None
        elif line:
            commit = Oid(line)


def _blamed(out: Iterable[bytes]) -> Iterator[tuple[Oid, tuple[int, int], str]]:
    """Read `blame --incremental` (git-blame(1), INCREMENTAL OUTPUT): the file's name ends each block."""
    head: list[bytes] = []
    for line in out:
        head = head or line.split(b" ")
        if line.startswith(b"filename "):
            commit, _, first, count = head
            yield Oid(commit.decode()), (int(first), int(first) + int(count) - 1), _path(line[len(b"filename ") :])
            head = []


def _path(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def _change(head: bytes, fields: Iterator[bytes]) -> Change:
    """Read one entry of `diff-tree --raw -z` (git-diff-tree(1), RAW OUTPUT FORMAT) and the paths that follow it."""
    parent_mode, result_mode, parent, result, status = head.removeprefix(b":").decode().split(" ")
    path, old_path = _path(next(fields)), None
    if status[0] == "R":
        old_path, path = path, _path(next(fields))
    return Change(
        path,
        _KINDS.get(status[0], "modified"),
        Oid(parent) if status[0] != "A" else None,
        Oid(result) if status[0] != "D" else None,
        parent_mode if status[0] != "A" else None,
        result_mode if status[0] != "D" else None,
        old_path,
    )
