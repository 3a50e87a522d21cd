"""DOOR: the forge's HTTP API (requests): a pull request's number -> its commits."""

from __future__ import annotations

import ipaddress
import json
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

import requests

from builder import __version__
from builder.doors import ForgePullRequest
from builder.errors import InputError, OverlayError, Unavailable
from builder.model import PullRequestRef, commit_subject

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_.-]*[A-Za-z0-9_-][\w.-]*", re.ASCII)
_OID = re.compile(r"[0-9a-f]{40}")
_PAGE = 100
_LISTED_COMMITS = 250
"""The API lists no more commits of a pull request than this, whatever its pages."""
_LARGEST_BODY = 8 << 20
_REDIRECTS = 3

Headers = requests.structures.CaseInsensitiveDict[str]
T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    """How long the forge may take, in seconds, and how often it is asked."""

    connect: float = 10.0
    read: float = 30.0
    body: float = 60.0
    attempts: int = 3
    pause: float = 1.0


class GitHubForge:
    """GitHub's REST API, version 2022-11-28 (docs.github.com/rest/pulls); GitHub Enterprise serves the same.

    The token goes to `api_url`'s own scheme, host and port only; a redirect elsewhere is refused.
    """

    def __init__(
        self, api_url: str = "https://api.github.com", token: str | None = None, patience: Patience | None = None
    ) -> None:
        self._api = _checked(api_url.rstrip("/"))
        self._token = token or None
        self._patience = patience or Patience()
        self._session = requests.Session()
        self._session.headers.update(
            {
                "Accept": "application/vnd.github+json",
                "X-GitHub-Api-Version": "2022-11-28",
                "User-Agent": f"sglang-overlay/{__version__}",
            }
        )

    def pull_request(self, ref: PullRequestRef) -> ForgePullRequest:
        """Ask for one pull request; InputError if there is none, Unavailable if the forge does not answer."""
        if not _REPOSITORY.fullmatch(ref.repository) or ref.number < 1:
            hint = "for example sgl-project/sglang#35371"
            raise InputError(str(ref), "is not owner/name and a positive number", hint=hint)
        try:
            return self._read(ref)
        except _Unexpected as error:
            hint = "check that --forge is the address of a GitHub API, for example https://api.github.com"
            found = self._stripped(repr(error.found))[:80]
            message = f"expected {error.expected} in the answer for {ref}, found {found}"
            raise Unavailable("forge", message, hint=hint) from None

    def _read(self, ref: PullRequestRef) -> ForgePullRequest:
        take = _Taker(self._get(ref, ""))
        is_merged = take("merged", bool)
        if (number := take("number", int)) != ref.number:
            raise _Unexpected(f"number {ref.number}", number)
        return ForgePullRequest(
            number=ref.number,
            title=take("title", str),
            state=take("state", str),
            merge_commit=take.oid("merge_commit_sha") if is_merged else None,
            base_ref=take("base.ref", str),
            base=take.oid("base.sha"),
            head=take.oid("head.sha"),
            commit_subjects=self._subjects(ref, take("commits", int)) if is_merged else (),
            clone_url=take("base.repo.clone_url", str),
        )

    def _subjects(self, ref: PullRequestRef, count: int) -> tuple[str, ...]:
        """List the subjects of the commits, oldest first; merges are left out, as a rebase drops them.

        Empty where the API would not list them all.
        """
        if count > _LISTED_COMMITS:
            return ()
        subjects: list[str] = []
        for page in range(1, _LISTED_COMMITS // _PAGE + 2):
            commits = self._get(ref, f"/commits?per_page={_PAGE}&page={page}")
            if not isinstance(commits, list):
                raise _Unexpected("a list of commits", commits)
            own = [take for take in map(_Taker, commits) if len(take("parents", list)) < 2]
            subjects += (commit_subject(take("commit.message", str)) for take in own)
            if len(commits) < _PAGE:
                break
        return tuple(subjects)

    def _get(self, ref: PullRequestRef, rest: str) -> object:
        url = f"{self._api}/repos/{ref.repository}/pulls/{ref.number}{rest}"
        for attempt in range(1, self._patience.attempts + 1):
            try:
                status, headers, body = self._ask(url)
            except (requests.RequestException, TimeoutError) as error:
                fault = self._unreachable(error)
            else:
                if status < 500:
                    return self._answer(ref, status, headers, body)
                fault = self._unavailable(f"answered HTTP {status}{self._words(body)}")
            if attempt < self._patience.attempts:
                time.sleep(self._patience.pause * attempt)
        raise fault

    def _ask(self, url: str) -> tuple[int, Headers, bytes]:
        """Send one request, following redirects on the forge itself only."""
        deadline = time.monotonic() + self._patience.body
        for _ in range(_REDIRECTS + 1):
            with self._session.get(
                url,
                auth=self._authorize,
                timeout=(self._patience.connect, self._patience.read),
                allow_redirects=False,
                stream=True,
            ) as response:
                if not response.is_redirect:
                    return response.status_code, response.headers, _body(response, deadline)
                url = self._followed(url, response.headers["Location"])
        raise self._unavailable(f"redirected more than {_REDIRECTS} times")

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the token; being asked at all keeps requests from sending a password out of ~/.netrc."""
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request

    def _followed(self, url: str, location: str) -> str:
        target = urljoin(url, location)
        if _origin(target) != _origin(self._api):
            shown = "://".join(str(part) for part in _origin(target)[:2])
            hint = "name the forge's own address with --forge"
            raise self._unavailable(f"redirects to {shown}; a redirect to another address is not followed", hint)
        return target

    def _answer(self, ref: PullRequestRef, status: int, headers: Headers, body: bytes) -> object:
        if status == 200:
            try:
                return json.loads(body)
            except (ValueError, RecursionError):
                raise _Unexpected("JSON", body[:200].decode(errors="replace")) from None
        if status in (403, 429) and ("Retry-After" in headers or headers.get("X-RateLimit-Remaining") == "0"):
            raise self._limited(headers)
        raise self._refusal(ref, status, body)

    def _refusal(self, ref: PullRequestRef, status: int, body: bytes) -> OverlayError:
        words = self._words(body)
        if status == 404:
            without = "a private repository answers the same without a token that may read it"
            hint = "check the repository and the number" + ("" if self._token else ", or set GITHUB_TOKEN")
            message = f"{self._api} knows no pull request {ref.number} in {ref.repository}; {without}"
            return InputError(str(ref), message, hint=hint)
        if status == 401:
            hint = "renew or unset GITHUB_TOKEN"
            return InputError("forge", f"{self._api} does not accept the token{words}", hint=hint)
        if status == 403:
            what = "the token may not read" if self._token else "reading needs a token:"
            hint = "give a token that may read pull requests" if self._token else "set GITHUB_TOKEN"
            return InputError("forge", f"{self._api}: {what} {ref.repository}{words}", hint=hint)
        return self._unavailable(f"answered HTTP {status} for {ref}{words}")

    def _limited(self, headers: Headers) -> OverlayError:
        until = ""
        if (stamp := headers.get("X-RateLimit-Reset", "")).isdecimal() and len(stamp) < 12:
            until = f"; it resets at {datetime.fromtimestamp(int(stamp), UTC):%Y-%m-%d %H:%M:%S} UTC"
        elif (seconds := headers.get("Retry-After", "")).isdecimal():
            until = f"; it asks to wait {seconds[:9]} s"
        hint = "wait until then" if self._token else "set GITHUB_TOKEN: requests with a token have a far higher limit"
        return self._unavailable(f"refuses further requests, its rate limit is used up{until}", hint)

    def _unreachable(self, error: Exception) -> OverlayError:
        kind = "did not answer in time" if isinstance(error, TimeoutError | requests.Timeout) else "cannot be reached"
        return self._unavailable(f"{kind} ({type(error).__name__}: {self._stripped(str(error))[:200]})")

    def _unavailable(self, what: str, hint: str = "") -> Unavailable:
        hint = hint or "try again, or give a git repository that holds the pull request with --upstream"
        return Unavailable("forge", f"{self._api} {what}", hint=hint)

    def _words(self, body: bytes) -> str:
        """Return the forge's own message, fit for a terminal."""
        try:
            message = str(json.loads(body)["message"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return ""
        return ": " + "".join(c for c in self._stripped(message)[:200] if c.isprintable())

    def _stripped(self, text: str) -> str:
        """Remove the token and any user:password@, of a proxy for example."""
        text = re.sub(r"//[^/@\s]+@", "//", text)
        return text.replace(self._token, "***") if self._token else text


class _Unexpected(Exception):
    """The forge's answer is not what its API promises."""

    def __init__(self, expected: str, found: object) -> None:
        super().__init__(expected)
        self.expected = expected
        self.found = found


class _Taker:
    """Takes checked fields out of an answer, by dotted key."""

    def __init__(self, answer: object) -> None:
        if not isinstance(answer, dict):
            raise _Unexpected("a JSON object", answer)
        self._answer = answer

    def __call__(self, key: str, kind: type[T]) -> T:
        value: object = self._answer
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _Unexpected(f"{key} of type {kind.__name__}", value)
        return value

    def oid(self, key: str) -> str:
        value = self(key, str)
        if not _OID.fullmatch(value):
            raise _Unexpected(f"{key} of 40 hex digits", value)
        return value


def _checked(url: str) -> str:
    """Accept https, and http on this machine's own addresses; a token must not cross a network in the open."""
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise InputError("--forge", "the address holds a user name or password", hint="use GITHUB_TOKEN instead")
    is_accepted = parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname or ""))
    if not is_accepted or not parts.hostname or parts.query or parts.fragment:
        message = f"{url!r} is not an https address (http is accepted on loopback only)"
        raise InputError("--forge", message, hint="for example https://api.github.com")
    return url


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"https": 443, "http": 80}.get(parts.scheme)


def _body(response: requests.Response, deadline: float) -> bytes:
    """Read a body of bounded size in bounded time, however slowly it trickles."""
    body = bytearray()
    for chunk in response.iter_content(16):  # a small piece, so that the deadline is looked at often
        body += chunk
        if len(body) > _LARGEST_BODY:
            raise requests.exceptions.ContentDecodingError(f"the answer is larger than {_LARGEST_BODY} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer is not complete")
    return bytes(body)
