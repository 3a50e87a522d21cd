"""The forge's API over real HTTP: what a pull request says, and every way in which no answer comes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from builder.errors import InputError, OverlayError, Unavailable
from builder.forge import GitHubForge, Patience
from builder.model import PullRequestRef
from tests.support.loopback import Answer, Request, Server, serve

REF = PullRequestRef("someone/project", 7)
MERGE, BASE, HEAD = "a" * 40, "b" * 40, "c" * 40
TOKEN = "ghp_secret0123456789"
HASTY = Patience(connect=1.0, read=0.4, body=0.6, attempts=2, pause=0.01)


def pull(**changed: object) -> dict[str, object]:
    """A merged pull request of one commit, as the API describes it."""
    return {
        "number": 7,
        "title": "Add a thing",
        "state": "closed",
        "merged": True,
        "merge_commit_sha": MERGE,
        "commits": 1,
        "base": {"ref": "main", "sha": BASE, "repo": {"clone_url": "https://forge.example/someone/project.git"}},
        "head": {"sha": HEAD, "repo": None},
        **changed,
    }


def commit(subject: str, parents: int = 1) -> dict[str, object]:
    return {"commit": {"message": f"{subject}\n\nA body."}, "parents": [{"sha": BASE}] * parents}


def answering(body: object, commits: list[dict[str, object]] | None = None) -> Callable[[Request], Answer]:
    def answer(request: Request) -> Answer:
        return Answer(commits if "/commits?" in request.path else body)

    return answer


def always(answer: Answer) -> AbstractContextManager[Server]:
    return serve(lambda request: answer)


def refusal(answer: Answer, token: str | None = None, patience: Patience = HASTY) -> OverlayError:
    with always(answer) as server, pytest.raises(OverlayError) as caught:
        GitHubForge(server.url, token, patience).pull_request(REF)
    return caught.value


def test_a_merged_pull_request_names_its_merge_commit_and_its_commits() -> None:
    with serve(answering(pull(), [commit("Add a thing")])) as server:
        found = GitHubForge(server.url).pull_request(REF)
    assert (found.merge_commit, found.base, found.head) == (MERGE, BASE, HEAD)
    assert (found.title, found.state, found.base_ref) == ("Add a thing", "closed", "main")
    assert found.commit_subjects == ("Add a thing",)
    assert found.clone_url == "https://forge.example/someone/project.git"
    assert server.requests[0].path == "/repos/someone/project/pulls/7"


def test_the_test_merge_of_an_open_pull_request_is_not_a_merge_commit() -> None:
    with serve(answering(pull(state="open", merged=False))) as server:
        found = GitHubForge(server.url).pull_request(REF)
    assert found.merge_commit is None
    assert len(server.requests) == 1, "commits are only asked for where they decide something"


def test_commits_are_paged_and_merges_left_out() -> None:
    listed = [commit(f"Step {n}") for n in range(120)] + [commit("Merge branch 'main'", parents=2)]

    def answer(request: Request) -> Answer:
        if "/commits?" not in request.path:
            return Answer(pull(commits=121))
        page = int(request.path.rpartition("page=")[2])
        return Answer(listed[(page - 1) * 100 : page * 100])

    with serve(answer) as server:
        found = GitHubForge(server.url).pull_request(REF)
    assert found.commit_subjects == tuple(f"Step {n}" for n in range(120))
    assert len(server.requests) == 3


def test_endless_pages_end() -> None:
    full = [commit(f"Step {n}") for n in range(100)]
    with serve(answering(pull(commits=250), full)) as server:
        GitHubForge(server.url).pull_request(REF)
    assert len(server.requests) == 1 + 3


def test_more_commits_than_the_api_lists_are_unknown_rather_than_cut_off() -> None:
    with serve(answering(pull(commits=251))) as server:
        assert GitHubForge(server.url).pull_request(REF).commit_subjects == ()


def test_no_such_pull_request_names_repository_and_number() -> None:
    error = refusal(Answer({"message": "Not Found"}, 404))
    assert isinstance(error, InputError)
    assert "someone/project" in error.message
    assert "pull request 7" in error.message
    assert "private" in error.message
    assert "GITHUB_TOKEN" in error.hint


def test_a_token_that_is_not_accepted_is_the_users_to_mend() -> None:
    error = refusal(Answer({"message": "Bad credentials"}, 401), TOKEN)
    assert isinstance(error, InputError)
    assert "Bad credentials" in error.message
    assert "GITHUB_TOKEN" in error.hint


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_forbidden_repository_says_what_the_forge_says(token: str | None) -> None:
    error = refusal(Answer({"message": "Resource protected by SSO\x1b[2J"}, 403), token)
    assert isinstance(error, InputError)
    assert "someone/project" in error.message
    assert "protected by SSO[2J" in error.message, "without control characters"


@pytest.mark.parametrize("status", [403, 429])
def test_a_used_up_rate_limit_says_when_it_resets_and_that_a_token_helps(status: int) -> None:
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1787000000"}
    error = refusal(Answer({"message": "API rate limit exceeded"}, status, headers))
    assert isinstance(error, Unavailable)
    assert "2026-08-17 20:53:20 UTC" in error.message
    assert "GITHUB_TOKEN" in error.hint


def test_a_secondary_limit_says_how_long_to_wait() -> None:
    error = refusal(Answer({"message": "slow down"}, 429, {"Retry-After": "60"}), TOKEN)
    assert isinstance(error, Unavailable)
    assert "wait 60 s" in error.message
    assert "GITHUB_TOKEN" not in error.hint


def test_a_fault_of_the_forge_is_tried_again_a_few_times() -> None:
    count = itertools.count()

    def answer(request: Request) -> Answer:
        if "/commits?" in request.path:
            return Answer([commit("Add a thing")])
        return Answer({"message": "oops"}, 502) if next(count) == 0 else Answer(pull())

    with serve(answer) as server:
        assert GitHubForge(server.url, patience=HASTY).pull_request(REF).merge_commit == MERGE

    with always(Answer({"message": "oops"}, 503)) as server, pytest.raises(Unavailable, match="HTTP 503: oops"):
        GitHubForge(server.url, patience=HASTY).pull_request(REF)
    assert len(server.requests) == HASTY.attempts


@pytest.mark.parametrize("slow", [Answer(pull(), pause=3.0), Answer(pull(), drip=0.05)], ids=["silent", "dripping"])
def test_a_forge_that_does_not_answer_in_time_is_unavailable(slow: Answer) -> None:
    error = refusal(slow)
    assert isinstance(error, Unavailable)
    assert "did not answer in time" in error.message


def test_a_forge_that_is_not_there_is_unavailable() -> None:
    with always(Answer()) as server:
        pass
    with pytest.raises(Unavailable, match="cannot be reached"):
        GitHubForge(server.url, TOKEN, HASTY).pull_request(REF)


def without(key: str) -> dict[str, object]:
    return {name: value for name, value in pull().items() if name != key}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"<html>a captive portal</html>", "expected JSON"),
        (b"\xff\xfe", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b"null", "expected a JSON object"),
        (without("merged"), "merged of type bool"),
        (without("base"), "base.ref of type str"),
        (pull(merged=False, base={"ref": "main", "sha": BASE, "repo": "x"}), "base.repo.clone_url of type str"),
        (pull(title=None), "title of type str"),
        (pull(commits=True), "commits of type int"),
        (pull(number=8), "expected number 7"),
        (pull(merge_commit_sha="--upload-pack=x"), "merge_commit_sha of 40 hex digits"),
        (pull(merge_commit_sha="ABCDEF" + "0" * 34), "merge_commit_sha of 40 hex digits"),
        (pull(merged=1), "merged of type bool"),
    ],
)
def test_another_answer_than_the_api_promises_is_named(body: object, expected: str) -> None:
    error = refusal(Answer(body))
    assert isinstance(error, Unavailable)
    assert expected in error.message
    assert "--forge" in error.hint


@pytest.mark.parametrize("commits", [{"message": "?"}, ["x"], [{"commit": {}, "parents": []}]])
def test_another_list_of_commits_than_the_api_promises_is_named(commits: object) -> None:
    with serve(answering(pull(), commits)) as server, pytest.raises(Unavailable, match="expected"):  # type: ignore[arg-type]
        GitHubForge(server.url).pull_request(REF)


def test_an_answer_without_end_is_not_read() -> None:
    error = refusal(Answer(b" " * (9 << 20)), patience=Patience(attempts=1))
    assert isinstance(error, Unavailable)
    assert "larger than" in error.message


def test_a_redirect_on_the_forge_itself_is_followed() -> None:
    """A renamed repository answers so."""

    def answer(request: Request) -> Answer:
        if request.path.startswith("/repos/"):
            return Answer(b"", 301, {"Location": request.path.replace("/repos/someone/project", "/repositories/5")})
        return Answer([commit("Add a thing")] if "/commits?" in request.path else pull())

    with serve(answer) as server:
        assert GitHubForge(server.url, TOKEN).pull_request(REF).merge_commit == MERGE
    assert {request.headers["Authorization"] for request in server.requests} == {f"Bearer {TOKEN}"}


def test_the_token_never_follows_a_redirect_to_another_address() -> None:
    with always(Answer(pull())) as elsewhere:
        error = refusal(Answer(b"", 302, {"Location": f"{elsewhere.url}/x"}), TOKEN)
    assert elsewhere.requests == []
    assert isinstance(error, Unavailable)
    assert "redirects to http://127.0.0.1" in error.message
    assert "--forge" in error.hint


def test_a_circle_of_redirects_ends() -> None:
    error = refusal(Answer(b"", 302, {"Location": "/round"}))
    assert isinstance(error, Unavailable)
    assert "redirected more than" in error.message


@pytest.mark.parametrize(
    "answer",
    [
        Answer({"message": f"your token {TOKEN} is bad"}, 401),
        Answer({"message": f"your token {TOKEN} is bad"}, 403),
        Answer({"message": f"your token {TOKEN} is bad"}, 500),
        Answer({"message": f"your token {TOKEN} is bad"}, 418),
        Answer({"message": f"your token {TOKEN} is bad"}, 429, {"Retry-After": TOKEN}),
        Answer(pull(title=[TOKEN])),
        Answer(TOKEN.encode()),
        Answer(b"", 302, {"Location": f"http://{TOKEN}@example.invalid/{TOKEN}"}),
    ],
)
def test_no_message_holds_the_token(answer: Answer) -> None:
    error = refusal(answer, TOKEN)
    assert TOKEN not in " ".join([str(error), error.hint, *error.facts])


def test_no_other_credentials_are_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    netrc = f"{tmp_path}/netrc"
    with open(netrc, "w") as file:  # noqa: PTH123
        file.write("machine 127.0.0.1 login someone password hunter2\n")
    monkeypatch.setenv("NETRC", netrc)
    with serve(answering(pull(), [commit("x")])) as server:
        GitHubForge(server.url).pull_request(REF)
    assert all("Authorization" not in request.headers for request in server.requests)


@pytest.mark.parametrize(
    "url",
    [
        "http://api.github.com",
        "http://127.0.0.1.example.com",
        "ftp://127.0.0.1",
        "api.github.com",
        "https://",
        "https://api.github.com?x=1",
        "file:///etc/passwd",
        "",
    ],
)
def test_a_token_crosses_no_network_in_the_open(url: str) -> None:
    with pytest.raises(InputError, match="https"):
        GitHubForge(url, TOKEN)


def test_a_password_does_not_belong_into_the_address() -> None:
    with pytest.raises(InputError, match="user name or password") as caught:
        GitHubForge("https://someone:hunter2@api.github.com")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1", "https://ghe.example/api/v3/"]
)
def test_loopback_and_enterprise_addresses_are_accepted(url: str) -> None:
    GitHubForge(url)


@pytest.mark.parametrize(
    "repository", ["project", "a/b/c", "../..", "a/..", "a/b?x", "a/b#", "a/b\n", "", "-a/b", "a/.", "ä/b"]
)
def test_a_repository_that_is_not_owner_and_name_is_never_asked_for(repository: str) -> None:
    with always(Answer(pull())) as server, pytest.raises(InputError, match="owner/name"):
        GitHubForge(server.url).pull_request(PullRequestRef(repository, 7))
    assert server.requests == []
