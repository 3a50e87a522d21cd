from __future__ import annotations

import base64
import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from builder.errors import InputError, OverlayError, Refused, Unavailable
from builder.model import Digest, ImageRef, Platform, RemoteImage
from builder.registry import HttpRegistry
from tests.lab import packages, services
from tests.support.loopback import Answer, Request, Server, serve

AMD64 = Platform("linux", "amd64")
ARM64 = Platform("linux", "arm64")
OCI = "application/vnd.oci.image"
DOCKER = "application/vnd.docker.distribution"
LAYERS: list[dict[str, object]] = [
    {"mediaType": f"{OCI}.layer.v1.tar+gzip", "digest": "sha256:" + "1" * 64, "size": 11_000_000_000}
]
REPOSITORY = "lmsysorg/sglang"


class Store:
    """What a registry holds: documents by digest, and tags."""

    def __init__(self) -> None:
        self.blobs: dict[str, tuple[bytes, str]] = {}
        self.tags: dict[str, str] = {}

    def put(self, value: object, media_type: str, tag: str | None = None) -> str:
        data = value if isinstance(value, bytes) else json.dumps(value, indent=1).encode()
        digest = Digest.of(data)
        self.blobs[digest] = (data, media_type)
        if tag:
            self.tags[tag] = digest
        return digest

    def image(
        self,
        platform: Platform,
        tag: str | None = None,
        kind: str = f"{OCI}.manifest.v1+json",
        layers: list[dict[str, object]] = LAYERS,
    ) -> str:
        config = {"os": platform.os, "architecture": platform.architecture, "config": {"Labels": {"p": str(platform)}}}
        config_type = f"{OCI}.config.v1+json"
        if "docker" in kind:
            config_type = "application/vnd.docker.container.image.v1+json"
        entry = {"mediaType": config_type, "digest": self.put(config, config_type), "size": 1}
        return self.put({"schemaVersion": 2, "mediaType": kind, "config": entry, "layers": layers}, kind, tag)

    def index(self, platforms: dict[str, str], tag: str, kind: str = f"{OCI}.index.v1+json") -> str:
        def entry(platform: str, digest: str) -> dict[str, Any]:
            os, architecture, *variant = platform.split("/")
            told = {"os": os, "architecture": architecture, **({"variant": variant[0]} if variant else {})}
            return {"mediaType": self.blobs[digest][1], "digest": digest, "size": 1, "platform": told}

        manifests = [entry(platform, digest) for platform, digest in platforms.items()]
        return self.put({"schemaVersion": 2, "mediaType": kind, "manifests": manifests}, kind, tag)

    def answer(self, request: Request) -> Answer:
        name = request.path.rpartition("/")[2]
        found = self.blobs.get(self.tags.get(name, name))
        if not request.path.startswith(f"/v2/{REPOSITORY}/") or found is None:
            return Answer({"errors": [{"code": "MANIFEST_UNKNOWN", "message": f"unknown {name}"}]}, status=404)
        return Answer(found[0], headers={"Content-Type": found[1]})


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "docker" / "config.json"


def ask(server: Server | str, config: Path, name: str, platform: Platform = AMD64) -> RemoteImage:
    host = urlsplit(server if isinstance(server, str) else server.url).netloc
    separator = "@" if ":" in name else ":"
    pauses: list[float] = []
    return HttpRegistry(config, pauses.append).resolve(
        ImageRef.parse(f"{host}/{REPOSITORY}{separator}{name}"), platform
    )


def write_config(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


# --- what an answer means


@pytest.mark.parametrize("kind", [f"{OCI}.index.v1+json", f"{DOCKER}.manifest.list.v2+json"])
def test_an_index_and_a_manifest_list_lead_to_one_platforms_config(store: Store, config: Path, kind: str) -> None:
    amd64, arm64 = store.image(AMD64), store.image(ARM64, kind=f"{DOCKER}.manifest.v2+json")
    index = store.index({"linux/amd64": amd64, "linux/arm64/v8": arm64, "unknown/unknown": amd64}, "t", kind)
    with serve(store.answer) as server:
        for platform, manifest in ((AMD64, amd64), (ARM64, arm64), (Platform("linux", "arm64", "v8"), arm64)):
            found = ask(server, config, "t", platform)
            assert (found.index, found.manifest) == (index, manifest)
            assert found.config_digest == Digest.of(found.config)
            assert found.platform.architecture == platform.architecture
            assert found.compressed_size == 11_000_000_000


def test_a_plain_manifest_has_no_index(store: Store, config: Path) -> None:
    manifest = store.image(AMD64, "t")
    with serve(store.answer) as server:
        by_tag, by_digest = ask(server, config, "t"), ask(server, config, manifest)
    assert by_tag.index is None
    assert by_tag.manifest == by_digest.manifest == manifest


def test_only_manifests_and_the_config_are_downloaded(store: Store, config: Path) -> None:
    store.index({"linux/amd64": store.image(AMD64)}, "t")
    with serve(store.answer) as server:
        ask(server, config, "t")
    assert [request.path.split("/")[-2] for request in server.requests] == ["manifests", "manifests", "blobs"]


def test_a_digest_goes_before_the_tag_beside_it(store: Store, config: Path) -> None:
    old, _ = store.image(AMD64, "t"), store.index({"linux/amd64": store.image(ARM64)}, "t")
    with serve(store.answer) as server:
        host = urlsplit(server.url).netloc
        found = HttpRegistry(config).resolve(ImageRef.parse(f"{host}/{REPOSITORY}:t@{old}"), AMD64)
    assert found.manifest == old


def test_an_absent_platform_is_refused_and_the_present_ones_are_listed(store: Store, config: Path) -> None:
    store.index({"linux/amd64": store.image(AMD64), "linux/arm64": store.image(ARM64)}, "t")
    with serve(store.answer) as server, pytest.raises(Refused, match=r"linux/s390x; it has: linux/amd64, linux/arm64"):
        ask(server, config, "t", Platform("linux", "s390x"))


def test_a_plain_manifest_of_another_platform_is_refused(store: Store, config: Path) -> None:
    store.image(ARM64, "t")
    with serve(store.answer) as server, pytest.raises(Refused, match=r"linux/amd64; it has: linux/arm64"):
        ask(server, config, "t")


def test_a_manifest_without_its_own_media_type_is_judged_by_the_header(store: Store, config: Path) -> None:
    manifest = store.image(AMD64)
    bare = json.loads(store.blobs[manifest][0])
    del bare["mediaType"]
    store.put(bare, f"{OCI}.manifest.v1+json", "t")
    with serve(store.answer) as server:
        assert ask(server, config, "t").platform == AMD64


@pytest.mark.parametrize(
    ("media_type", "error", "says"),
    [
        (f"{DOCKER}.manifest.v1+prettyjws", Refused, "schema 1"),
        ("application/octet-stream", Unavailable, "expected an image manifest or index, found media type"),
    ],
)
def test_other_documents_are_named(
    store: Store, config: Path, media_type: str, error: type[OverlayError], says: str
) -> None:
    store.put({"schemaVersion": 1}, media_type, "t")
    with serve(store.answer) as server, pytest.raises(error, match=says):
        ask(server, config, "t")


def test_an_artifact_is_not_an_image(store: Store, config: Path) -> None:
    kind = f"{OCI}.manifest.v1+json"
    entry = {"mediaType": "application/vnd.example.model", "digest": store.put({}, "x"), "size": 2}
    store.put({"mediaType": kind, "config": entry, "layers": []}, kind, "t")
    with serve(store.answer) as server, pytest.raises(InputError, match=r"found 'application/vnd.example.model'"):
        ask(server, config, "t")


# --- bytes are proved


@pytest.mark.parametrize("forged", ["manifests", "blobs"])
def test_other_bytes_than_the_digest_names_are_refused(store: Store, config: Path, forged: str) -> None:
    manifest = store.image(AMD64)

    def answer(request: Request) -> Answer:
        found = store.answer(request)
        return Answer(found.data + b" ", headers=found.headers) if f"/{forged}/" in request.path else found

    with serve(answer) as server, pytest.raises(Refused, match="other bytes than the digest names") as caught:
        ask(server, config, manifest)
    assert caught.value.facts[0].startswith("expected sha256:")


def test_a_document_beyond_the_bound_is_not_read(store: Store, config: Path) -> None:
    store.put(b'{"a":"' + b"x" * (5 << 20) + b'"}', f"{OCI}.index.v1+json", "t")
    with serve(store.answer) as server, pytest.raises(Refused, match="more than 4 MB"):
        ask(server, config, "t")


def test_a_login_page_is_not_a_registry(store: Store, config: Path) -> None:
    with (
        serve(lambda request: Answer(b"<html>log in</html>")) as server,
        pytest.raises(Unavailable, match="expected a JSON object from the registry, found '<html>") as caught,
    ):
        ask(server, config, "t")
    assert "login page" in caught.value.hint


# --- what can go wrong on the way


def test_a_tag_that_is_not_there_is_the_callers_to_mend_with_the_registrys_words(store: Store, config: Path) -> None:
    with (
        serve(store.answer) as server,
        pytest.raises(InputError, match=rf"there is no tag t of .*{REPOSITORY}") as caught,
    ):
        ask(server, config, "t")
    assert caught.value.facts == ("MANIFEST_UNKNOWN: unknown t",)


def test_a_digest_that_is_gone_is_told_from_a_tag(store: Store, config: Path) -> None:
    gone = Digest.of(b"gone")
    with serve(store.answer) as server, pytest.raises(Refused, match=f"there is no digest {gone}.*deleted"):
        ask(server, config, gone)


def test_a_rate_limit_is_named_and_the_way_around_it(store: Store, config: Path) -> None:
    limited = Answer(b"{}", status=429, headers={"Retry-After": "3600"})
    with (
        serve(lambda request: limited) as server,
        pytest.raises(Unavailable, match=r"rate limit.*asks to wait 3600 s") as caught,
    ):
        ask(server, config, "t")
    assert len(server.requests) == 1
    assert "--registry-mirror" in caught.value.hint


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_fault_is_tried_again(store: Store, config: Path, status: int) -> None:
    store.image(AMD64, "t")

    def answer(request: Request) -> Answer:
        return Answer(b"{}", status=status) if len(server.requests) < 3 else store.answer(request)

    with serve(answer) as server:
        assert ask(server, config, "t").platform == AMD64


def test_tries_are_bounded(config: Path) -> None:
    pauses: list[float] = []
    with serve(lambda request: Answer(b"{}", status=502)) as server:
        ref = ImageRef.parse(f"{urlsplit(server.url).netloc}/a:t")
        with pytest.raises(Unavailable, match=r"expected HTTP 200 for tag t of .*, found 502"):
            HttpRegistry(config, pauses.append).resolve(ref, AMD64)
    assert len(server.requests) == 3
    assert sum(pauses) < 5


def test_nobody_listening_is_unavailable(config: Path) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1: no answer") as caught:
        ask(f"http://127.0.0.1:{services.free_port()}", config, "t")
    assert caught.value.exit_code == 3


def test_plain_http_is_spoken_to_loopback_only(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(request: Request) -> Answer:
        asked.append(request.path)
        return Answer(b"", status=502)

    with serve(refuse) as proxy:
        # A proxy sees what would leave this machine: CONNECT for https, never a GET for a registry elsewhere.
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        with pytest.raises(Unavailable, match=r"registry\.example: the proxy does not answer"):
            HttpRegistry(config, lambda _: None).resolve(ImageRef.parse("registry.example/a:t"), AMD64)
    assert asked == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_proxy_is_not_asked_for_loopback(
    store: Store, config: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    store.image(AMD64, "t")
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{services.free_port()}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with serve(store.answer) as server:
        assert ask(f"http://{host}:{urlsplit(server.url).port}", config, "t").platform == AMD64


# --- tokens and credentials

SECRET = "s3cret:pass"
TOKEN = "t0ken"


def guarded(
    store: Store, *, realm: str, user: str | None = None, identity: str | None = None
) -> Callable[[Request], Answer]:
    """Serve a store behind Docker's token flow, for everybody or for one user only."""

    def answer(request: Request) -> Answer:
        if urlsplit(request.path).path == "/token":
            return token(request)
        if request.headers.get("Authorization") == f"Bearer {TOKEN}":
            return store.answer(request)
        challenge = f'Bearer realm="{realm}/token",service="the registry",scope="repository:{REPOSITORY}:pull"'
        return Answer({"errors": [{"code": "UNAUTHORIZED"}]}, status=401, headers={"WWW-Authenticate": challenge})

    def token(request: Request) -> Answer:
        form = parse_qs(request.body.decode())
        query = parse_qs(urlsplit(request.path).query)
        asked = form if identity else query
        is_right = asked["scope"] == [f"repository:{REPOSITORY}:pull"] and asked["service"] == ["the registry"]
        basic = "Basic " + base64.b64encode(f"{user}:{SECRET}".encode()).decode()
        if identity:
            is_right = is_right and form["refresh_token"] == [identity] and form["grant_type"] == ["refresh_token"]
        elif user:
            is_right = is_right and request.headers.get("Authorization") == basic
        else:
            is_right = is_right and "Authorization" not in request.headers
        return Answer({"token": TOKEN}) if is_right else Answer({"details": "no"}, status=401)

    return answer


@pytest.fixture
def realm() -> Iterator[tuple[Server, list[Callable[[Request], Answer]]]]:
    """Yield a server whose answers a test sets once it knows the server's address."""
    answers: list[Callable[[Request], Answer]] = []
    with serve(lambda request: answers[-1](request)) as server:
        yield server, answers


Realm = tuple[Server, list[Callable[[Request], Answer]]]


def test_an_anonymous_token_is_fetched_once(store: Store, config: Path, realm: Realm) -> None:
    server, answers = realm
    answers.append(guarded(store, realm=server.url))
    store.index({"linux/amd64": store.image(AMD64)}, "t")
    assert ask(server, config, "t").platform == AMD64
    assert sum(1 for request in server.requests if request.path.startswith("/token")) == 1


def test_a_stored_password_buys_the_token(store: Store, config: Path, realm: Realm) -> None:
    server, answers = realm
    answers.append(guarded(store, realm=server.url, user="me"))
    store.image(AMD64, "t")
    auth = base64.b64encode(f"me:{SECRET}".encode()).decode()
    write_config(config, {"auths": {urlsplit(server.url).netloc: {"auth": auth}}})
    assert ask(server, config, "t").platform == AMD64


def test_an_identity_token_buys_the_token(store: Store, config: Path, realm: Realm) -> None:
    server, answers = realm
    answers.append(guarded(store, realm=server.url, identity="refresh me"))
    store.image(AMD64, "t")
    write_config(config, {"auths": {f"https://{urlsplit(server.url).netloc}": {"identitytoken": "refresh me"}}})
    assert ask(server, config, "t").platform == AMD64


HELPER = """#!/bin/sh
read server
[ "$1" = get ] && [ "$server" = {server} ] || {{ echo 'credentials not found in native keychain'; exit 1; }}
{act}
"""


def install_helper(folder: Path, server: Server, act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "docker-credential-lab"
    program.write_text(HELPER.format(server=urlsplit(server.url).netloc, act=act))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize("where", ["credsStore", "credHelpers"])
def test_a_credential_helper_is_asked(
    store: Store, config: Path, realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    server, answers = realm
    answers.append(guarded(store, realm=server.url, user="me"))
    store.image(AMD64, "t")
    install_helper(tmp_path, server, f'echo \'{{"Username": "me", "Secret": "{SECRET}"}}\'', monkeypatch)
    host = urlsplit(server.url).netloc
    write_config(config, {where: "lab" if where == "credsStore" else {host: "lab"}})
    assert ask(server, config, "t").platform == AMD64


@pytest.mark.parametrize("config_text", ['{"credsStore": "missing"}', '{"credsStore": "lab"}'])
def test_a_helper_that_holds_nothing_leaves_the_registry_anonymous(
    store: Store, config: Path, realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config_text: str
) -> None:
    server, answers = realm
    answers.append(guarded(store, realm=server.url))
    store.image(AMD64, "t")
    install_helper(tmp_path, server, "exit 1", monkeypatch)
    write_config(config, json.loads(config_text))
    assert ask(server, config, "t").platform == AMD64


def test_a_helper_that_hangs_is_given_up(
    config: Path, realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, answers = realm
    answers.append(guarded(Store(), realm=server.url))
    install_helper(tmp_path, server, "exec sleep 60", monkeypatch)
    monkeypatch.setattr("builder.credentials._HELPER_SECONDS", 0.2)
    write_config(config, {"credsStore": "lab"})
    started = time.monotonic()
    with pytest.raises(Unavailable, match="docker-credential-lab gave no answer"):
        ask(server, config, "t")
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("kind", ["wrong password", "helper's noise"])
def test_a_secret_never_stands_in_an_error(
    config: Path, realm: Realm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    server, answers = realm
    answers.append(guarded(Store(), realm=server.url, user="me"))
    if kind == "wrong password":
        pair = base64.b64encode(b"me:not-s3cret").decode()
        write_config(config, {"auths": {urlsplit(server.url).netloc: {"auth": pair}}})
    else:
        install_helper(tmp_path, server, "echo 's3cret is not JSON'", monkeypatch)
        write_config(config, {"credsStore": "lab"})
    with pytest.raises(Unavailable) as caught:
        ask(server, config, "t")
    error = caught.value
    assert "s3cret" not in " ".join([str(error), error.hint, *error.facts])
    assert kind == "helper's noise" or error.hint == f"docker login {urlsplit(server.url).netloc}"


def test_a_damaged_docker_config_is_named(config: Path, realm: Realm) -> None:
    server, answers = realm
    answers.append(guarded(Store(), realm=server.url))
    config.parent.mkdir()
    config.write_text("{")
    with pytest.raises(InputError, match=rf"{config}: expected Docker"):
        ask(server, config, "t")


def test_a_token_is_not_asked_for_in_the_clear(config: Path, realm: Realm) -> None:
    server, answers = realm
    answers.append(guarded(Store(), realm="http://auth.example"))
    with pytest.raises(Refused, match=r"http://auth\.example/token, which is not https; nothing was sent"):
        ask(server, config, "t")


def test_a_redirect_to_another_host_does_not_carry_authorization(store: Store, config: Path, realm: Realm) -> None:
    server, answers = realm
    store.image(AMD64, "t")
    inner = guarded(store, realm=server.url)

    def redirecting(request: Request) -> Answer:
        found = inner(request)
        if "/blobs/" in request.path and found.status == 200:
            return Answer(b"", status=307, headers={"Location": storage.url + request.path + "?signature=x"})
        return found

    answers.append(redirecting)
    with serve(lambda request: store.answer(Request(urlsplit(request.path).path, request.headers))) as storage:
        assert ask(server, config, "t").platform == AMD64
    (request,) = storage.requests
    assert "Authorization" not in request.headers
    assert any("Authorization" in request.headers for request in server.requests)


def test_netrc_is_not_read(store: Store, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.image(AMD64, "t")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password s3cret")
    monkeypatch.setenv("NETRC", str(netrc))
    with serve(store.answer) as server:
        ask(server, config, "t")
    assert all("Authorization" not in request.headers for request in server.requests)


def test_a_redirect_away_from_https_is_not_followed(store: Store, config: Path) -> None:
    away = Answer(b"", status=307, headers={"Location": "http://storage.example/x?token=s3cret"})
    with (
        serve(lambda request: away) as server,
        pytest.raises(Refused, match=r"redirected to http://storage\.example/x, which is not https"),
    ):
        ask(server, config, "t")


def test_redirects_are_bounded(config: Path) -> None:
    with (
        serve(lambda request: Answer(b"", status=307, headers={"Location": request.path})) as server,
        pytest.raises(Unavailable, match="more than 5 redirects"),
    ):
        ask(server, config, "t")


# --- a real registry

CONFIG = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:{port}"}}
auth: {{htpasswd: {{realm: lab, path: {htpasswd}}}}}
"""
# User `me`, password `s3cret:pass`.
HTPASSWD = "me:$2b$05$abcdefghijklmnopqrstuuKqhJSfTIYV1SkiVqP0GjQATd/vnrS1a\n"


@pytest.fixture(scope="module")
def real_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real registry with a password, and in it the image `t` for two platforms."""
    folder, port = tmp_path_factory.mktemp("registry"), services.free_port()
    (folder / "htpasswd").write_text(HTPASSWD)
    (folder / "config.yml").write_text(CONFIG.format(root=folder, port=port, htpasswd=folder / "htpasswd"))
    with (folder / "log").open("wb") as log:
        argv = [str(packages.program("docker-registry")), "serve", str(folder / "config.yml")]
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        wait_for(f"http://127.0.0.1:{port}/")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def wait_for(url: str) -> None:
    for _ in range(100):
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"{url} does not answer")


def upload(url: str, method: str, data: bytes, media_type: str) -> str:
    pair = base64.b64encode(f"me:{SECRET}".encode()).decode()
    headers = {"Authorization": f"Basic {pair}", "Content-Type": media_type}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=10) as answer:
        return answer.headers.get("Location") or ""


def test_a_real_registry_with_a_password_is_read(real_registry: str, store: Store, config: Path) -> None:
    layer = b"not really a layer"
    layers = [{"mediaType": f"{OCI}.layer.v1.tar", "digest": Digest.of(layer), "size": len(layer)}]
    amd64, arm64 = store.image(AMD64, layers=layers), store.image(ARM64, layers=layers)
    index = store.index({"linux/amd64": amd64, "linux/arm64": arm64}, "t")
    base = f"{real_registry}/v2/{REPOSITORY}"
    blobs = [data for data, kind in store.blobs.values() if kind.endswith("config.v1+json")]
    for data in [layer, *blobs]:
        where = upload(f"{base}/blobs/uploads/", "POST", b"", "application/octet-stream")
        upload(f"{where}&digest={Digest.of(data)}", "PUT", data, "application/octet-stream")
    for name in (amd64, arm64, index):
        data, kind = store.blobs[name]
        upload(f"{base}/manifests/{'t' if name == index else name}", "PUT", data, kind)

    with pytest.raises(Unavailable, match=r"not allowed to read tag t"):
        ask(real_registry, config, "t")
    pair = base64.b64encode(f"me:{SECRET}".encode()).decode()
    write_config(config, {"auths": {urlsplit(real_registry).netloc: {"auth": pair}}})
    found = ask(real_registry, config, "t", ARM64)
    assert (found.index, found.manifest, found.compressed_size) == (index, arm64, len(layer))
    with pytest.raises(InputError, match="there is no tag gone"):
        ask(real_registry, config, "gone")
