"""A forge on loopback: the few REST answers about pull requests that the tool asks for.

It answers from bare repositories that a `History` wrote, in the shapes of GitHub's REST API,
and can be told to refuse, to break or to hang.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from tests.lab.git_history import Pull, Repository
from tests.lab.host import LabError

Behaviour = Literal["normal", "rate-limited", "forbidden", "broken", "hanging", "not-json"]

#: The default repository of the lab's upstream.
UPSTREAM: Final = "sgl-project/sglang"

#: 2026-08-19T13:00Z, as the header of a spent rate limit tells it.
_RESET: Final = 1787144400
_PER_PAGE: Final = 30
_LARGEST_PAGE: Final = 100


@dataclass(frozen=True)
class Asked:
    """One request that the forge got."""

    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]


@dataclass
class Forge:
    """A running forge: `url` is what the tool gets as `--forge`."""

    url: str
    repositories: dict[str, Repository]
    #: May be changed while it runs.
    behaviour: Behaviour = "normal"
    #: What the forge was asked, for tests of tokens and of asking only once.
    asked: list[Asked] = field(default_factory=list)
    _released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        """Let requests go that hang."""
        self._released.set()

    def answer(self, path: str, query: Mapping[str, list[str]]) -> _Answer:
        """Return the answer to one GET."""
        if self.behaviour == "hanging":
            self._released.wait()
        if self.behaviour != "normal":
            return _MISBEHAVIOUR[self.behaviour]
        for pattern, route in _ROUTES:
            if match := re.fullmatch(pattern, path):
                name, *words = (unquote(part) for part in match.groups())
                if name in self.repositories:
                    asker = _Asker(self.url, path, name, self.repositories[name], query)
                    return route(asker, *words)
        return _not_found()


@contextmanager
def forge(repositories: Mapping[str, Repository]) -> Iterator[Forge]:
    """Run a forge that knows these repositories, by `owner/name`."""
    server = _Server(("127.0.0.1", 0), _Handler)
    # The port is known only now, and answers hold the forge's own address.
    server.forge = Forge(f"http://127.0.0.1:{server.server_port}", dict(repositories))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.forge
    finally:
        server.forge.release()
        server.shutdown()
        server.server_close()
        thread.join()


# -- answers -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Answer:
    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Asker:
    """What answers are made from."""

    url: str
    path: str
    name: str
    repository: Repository
    query: Mapping[str, list[str]]


_Route = Callable[..., _Answer]


def _pull_route(answer: Callable[[_Asker, Pull], _Answer]) -> _Route:
    def route(asker: _Asker, number: str) -> _Answer:
        pull = asker.repository.pulls.get(int(number))
        return answer(asker, pull) if pull else _not_found()

    return route


def _not_found() -> _Answer:
    return _Answer(404, {"message": "Not Found", "status": "404"})


@_pull_route
def _pull(asker: _Asker, pull: Pull) -> _Answer:
    side = {"repo": _repository(asker)}
    body = {
        "number": pull.number,
        "title": pull.title,
        "state": pull.state,
        "draft": False,
        "merged": pull.is_merged,
        "merged_at": _zulu(pull.merged_at),
        "merge_commit_sha": pull.merge_commit,
        "commits": len(pull.commits),
        "changed_files": len(_changed_files(asker.repository, pull)),
        "base": {"ref": asker.repository.branch, "sha": pull.base, **side},
        # A fork that was deleted since has no repository any more; the lab's has one.
        "head": {"ref": f"topic-{pull.number}", "sha": pull.head, **side},
        "html_url": f"{asker.url}/{asker.name}/pull/{pull.number}",
    }
    return _Answer(200, body)


@_pull_route
def _pull_commits(asker: _Asker, pull: Pull) -> _Answer:
    return _paged(asker, [_commit_body(asker, oid) for oid in pull.commits])


@_pull_route
def _pull_files(asker: _Asker, pull: Pull) -> _Answer:
    return _paged(asker, _changed_files(asker.repository, pull))


def _commit(asker: _Asker, name: str) -> _Answer:
    oid = _resolve(asker, name)
    if oid is None:
        return _Answer(422, {"message": f"No commit found for SHA: {name}", "status": "422"})
    return _Answer(200, _commit_body(asker, oid))


def _compare(asker: _Asker, base_name: str, head_name: str) -> _Answer:
    base, head = _resolve(asker, base_name), _resolve(asker, head_name)
    if base is None or head is None:
        return _not_found()
    merge_base = asker.repository.git("merge-base", base, head)
    count = asker.repository.git("rev-list", "--count", f"{merge_base}..{head}")
    body = {
        "merge_base_commit": _commit_body(asker, merge_base),
        "base_commit": _commit_body(asker, base),
        "ahead_by": int(count),
        "total_commits": int(count),
    }
    return _Answer(200, body)


def _repository_answer(asker: _Asker) -> _Answer:
    return _Answer(200, _repository(asker))


_ROUTES: Final[tuple[tuple[str, _Route], ...]] = (
    (r"/repos/([^/]+/[^/]+)", _repository_answer),
    (r"/repos/([^/]+/[^/]+)/pulls/(\d+)", _pull),
    (r"/repos/([^/]+/[^/]+)/pulls/(\d+)/commits", _pull_commits),
    (r"/repos/([^/]+/[^/]+)/pulls/(\d+)/files", _pull_files),
    (r"/repos/([^/]+/[^/]+)/commits/(.+)", _commit),
    (r"/repos/([^/]+/[^/]+)/compare/(.+)\.\.\.(.+)", _compare),
)

_MISBEHAVIOUR: Final[Mapping[str, _Answer]] = {
    "rate-limited": _Answer(
        403,
        {"message": "API rate limit exceeded for 192.0.2.1.", "status": "403"},
        {
            "X-RateLimit-Limit": "60",
            "X-RateLimit-Remaining": "0",
            "X-RateLimit-Reset": str(_RESET),
            "X-RateLimit-Resource": "core",
        },
    ),
    "forbidden": _Answer(401, {"message": "Bad credentials", "status": "401"}),
    "broken": _Answer(500, {"message": "Server Error", "status": "500"}),
    "hanging": _Answer(503, {"message": "Service Unavailable", "status": "503"}),
    "not-json": _Answer(200, "<html><body>Unicorn!</body></html>"),
}


def _resolve(asker: _Asker, name: str) -> str | None:
    try:
        return asker.repository.git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except LabError:
        return None


def _paged(asker: _Asker, items: list[Any]) -> _Answer:
    size = min(int(asker.query.get("per_page", [str(_PER_PAGE)])[0]), _LARGEST_PAGE)
    page = int(asker.query.get("page", ["1"])[0])
    shown = items[(page - 1) * size : page * size]
    if page * size >= len(items):
        return _Answer(200, shown)
    following = f"<{asker.url}{asker.path}?per_page={size}&page={page + 1}>"
    return _Answer(200, shown, {"Link": f'{following}; rel="next"'})


def _repository(asker: _Asker) -> dict[str, Any]:
    owner, _, name = asker.name.partition("/")
    return {
        "name": name,
        "full_name": asker.name,
        "owner": {"login": owner},
        "default_branch": asker.repository.branch,
        "clone_url": asker.repository.url,
    }


def _commit_body(asker: _Asker, oid: str) -> dict[str, Any]:
    # %B is last: a message has lines of its own.
    text = asker.repository.git("show", "--no-patch", "--format=%P%n%T%n%an%n%ae%n%cI%n%B", oid)
    parents, tree, name, email, date, message = text.split("\n", 5)
    who = {"name": name, "email": email, "date": _zulu(date)}
    return {
        "sha": oid,
        "commit": {"message": message, "author": who, "committer": who, "tree": {"sha": tree}},
        "parents": [{"sha": parent} for parent in parents.split()],
    }


def _changed_files(repository: Repository, pull: Pull) -> list[dict[str, Any]]:
    words = ("diff", "--name-status", "--no-renames", pull.fork, pull.head)
    names = {"A": "added", "M": "modified", "D": "removed", "T": "changed"}
    lines = repository.git(*words).splitlines()
    found = [line.split("\t", 1) for line in lines]
    return [{"filename": path, "status": names[status]} for status, path in found]


def _zulu(date: str | None) -> str | None:
    return date.replace("+00:00", "Z") if date else None


# -- serving -------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    forge: Forge

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that gave up waiting is what a hanging forge is for.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        # GitHub Enterprise serves the same below a prefix.
        path = parts.path.removeprefix("/api/v3")
        forge = self.server.forge
        forge.asked.append(Asked(path, query, dict(self.headers)))
        self._send(forge.answer(path, query))

    def _send(self, answer: _Answer) -> None:
        is_text = isinstance(answer.body, str)
        body = (answer.body if is_text else json.dumps(answer.body)).encode()
        self.send_response(answer.status)
        kind = "text/html" if is_text else "application/json"
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the requests are in `Forge.asked`."""
