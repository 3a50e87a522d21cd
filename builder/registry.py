"""DOOR: OCI distribution API over HTTP: one platform's manifest and config, no layer is ever downloaded.

Formats: OCI distribution-spec 1.1, OCI image-spec 1.1, Docker image manifest 2.2, and Docker's token authentication.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests

from builder.credentials import HUB_SERVER, Credentials, look_up
from builder.errors import InputError, OverlayError, Refused, Unavailable
from builder.model import DOCKER_HUB, Digest, ImageRef, Platform, RemoteImage

_HUB_HOST = "registry-1.docker.io"
_INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_CONFIG_TYPES = (
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
)
_MAXIMUM_BYTES = 4 << 20
_TIMEOUT = (10.0, 30.0)
_ATTEMPTS = 3
_WORTH_ANOTHER_TRY = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
_REDIRECTS = 5
_LONGEST_PAUSE = 5.0
_CHALLENGE = re.compile(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))')

# What an architecture's variant is when a platform does not say (containerd's normalisation).
_USUAL_VARIANT = {"arm64": "v8", "arm": "v7"}


@dataclass(frozen=True)
class _Request:
    method: str
    url: str
    accept: str = "*/*"
    authorization: str | None = field(default=None, repr=False)
    query: Mapping[str, str] | None = None
    form: Mapping[str, str] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpRegistry:
    """An OCI registry over HTTP; plain HTTP is spoken to loopback addresses only."""

    def __init__(self, docker_config: Path | None = None, pause: Callable[[float], None] = time.sleep) -> None:
        folder = os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker"
        self._docker_config = docker_config or Path(folder, "config.json")
        self._pause = pause
        self._authorizations: dict[str, str] = {}

    def resolve(self, ref: ImageRef, platform: Platform) -> RemoteImage:
        """Fetch manifest and config of one platform; nothing else is downloaded.

        A digest in `ref` goes before its tag. Refused: no such tag or digest, or the platform is absent. Unavailable:
        not allowed, rate limit, network. Every body is checked against the digest that asked for it.
        """
        body, media_type = self._manifest(ref, ref.digest or ref.tag or "latest")
        document, index = _read_json(body, ref), None
        if media_type in _INDEX_TYPES:
            index = Digest.of(body)
            entry = _choose(document, platform, ref)
            body, media_type = self._manifest(ref, Digest(_text(entry, "digest", ref)))
            document = _read_json(body, ref)
        if media_type not in _MANIFEST_TYPES:
            raise _wrong_media_type(ref, media_type)
        config_entry = document.get("config")
        if not isinstance(config_entry, dict) or config_entry.get("mediaType") not in _CONFIG_TYPES:
            found = config_entry.get("mediaType") if isinstance(config_entry, dict) else None
            raise InputError(str(ref), f"is not a container image: expected an image config, found {found!r}")
        config_digest = Digest(_text(config_entry, "digest", ref))
        config = self._blob(ref, config_digest)
        found_platform = _config_platform(_read_json(config, ref), ref)
        if not _is_match(found_platform, platform):
            raise _platform_absent(ref, platform, [found_platform])
        sizes = [layer.get("size", 0) for layer in document.get("layers", ())]
        return RemoteImage(ref, index, Digest.of(body), config_digest, config, found_platform, sum(sizes))

    def _manifest(self, ref: ImageRef, wanted: str) -> tuple[bytes, str]:
        accept = ", ".join(_INDEX_TYPES + _MANIFEST_TYPES)
        body, headers = self._get(ref, f"/manifests/{wanted}", accept)
        if ":" in wanted:
            _verify(ref, body, Digest(wanted))
        # The body's own word goes before the header's: some registries serve every manifest as JSON.
        media_type = _read_json(body, ref).get("mediaType") or headers.get("Content-Type", "").partition(";")[0].strip()
        return body, str(media_type)

    def _blob(self, ref: ImageRef, digest: Digest) -> bytes:
        body, _ = self._get(ref, f"/blobs/{digest}", "*/*")
        _verify(ref, body, digest)
        return body

    def _get(self, ref: ImageRef, path: str, accept: str) -> tuple[bytes, Mapping[str, str]]:
        """Fetch one small document, asking for a token when the registry wants one."""
        host = _HUB_HOST if ref.domain == DOCKER_HUB else ref.domain
        url = f"{'http' if _is_loopback(host) else 'https'}://{host}/v2/{ref.path}{path}"
        key = f"{host}/{ref.path}"
        answer = self._send(ref, _Request("GET", url, accept, self._authorizations.get(key)))
        if answer.status == 401:
            self._authorizations[key] = self._authorize(ref, host, answer, _subject(ref, path))
            answer = self._send(ref, _Request("GET", url, accept, self._authorizations[key]))
        if answer.status != 200:
            raise _status_error(ref, answer, _subject(ref, path))
        return answer.body, answer.headers

    def _authorize(self, ref: ImageRef, host: str, answer: _Answer, subject: str) -> str:
        """Turn a challenge into the value of an Authorization header."""
        scheme, _, rest = answer.headers.get("WWW-Authenticate", "").partition(" ")
        fields = {name: quoted or plain for name, quoted, plain in _CHALLENGE.findall(rest)}
        credentials = look_up(self._docker_config, HUB_SERVER if host == _HUB_HOST else host)
        if scheme.lower() == "basic" and credentials and credentials.user:
            return credentials.basic
        if scheme.lower() != "bearer" or "realm" not in fields:
            raise _status_error(ref, answer, subject)
        realm = fields["realm"]
        if urlsplit(realm).scheme != "https" and not (_is_loopback(host) and _is_loopback(urlsplit(realm).netloc)):
            raise Refused(str(ref), f"{host} wants a token from {_plain(realm)}, which is not https; nothing was sent")
        return f"Bearer {self._token(ref, realm, fields, credentials)}"

    def _token(self, ref: ImageRef, realm: str, fields: Mapping[str, str], credentials: Credentials | None) -> str:
        query = {"service": fields.get("service", ""), "scope": fields.get("scope") or f"repository:{ref.path}:pull"}
        if credentials and credentials.identity_token:
            form = {**query, "grant_type": "refresh_token", "client_id": "sglang-overlay"}
            form["refresh_token"] = credentials.identity_token
            request = _Request("POST", realm, form=form)
        else:
            request = _Request("GET", realm, authorization=credentials.basic if credentials else None, query=query)
        answer = self._send(ref, request)
        if answer.status != 200:
            raise _status_error(ref, answer, f"a token to pull {ref.path}")
        told = _read_json(answer.body, ref)
        token = told.get("token") or told.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise Unavailable(str(ref), f"{_plain(realm)} answered without a token")
        return token

    def _send(self, ref: ImageRef, request: _Request) -> _Answer:
        """Send one request, again when that may help."""
        for attempt in itertools.count(1):
            pause = 0.5 * attempt
            try:
                answer = _follow(ref, request)
            except requests.RequestException as error:
                is_hopeless = isinstance(error, requests.exceptions.SSLError) or not isinstance(
                    error, _WORTH_ANOTHER_TRY
                )
                if attempt == _ATTEMPTS or is_hopeless:
                    raise _network_error(ref, request.url, error) from None
            else:
                pause = _wanted_pause(answer.headers, pause)
                is_final = answer.status < 500 and answer.status != 429
                if is_final or attempt == _ATTEMPTS or pause > _LONGEST_PAUSE:
                    return answer
            self._pause(pause)
        raise AssertionError("the last attempt returns or raises")


def _is_loopback(host: str) -> bool:
    """Tell whether host[:port] is this machine; only then plain HTTP is spoken, as Docker does."""
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _follow(ref: ImageRef, request: _Request) -> _Answer:
    """Follow redirects by hand: another host never sees Authorization, and https never becomes http."""
    for _ in range(_REDIRECTS):
        with _open(request) as response:
            location = response.headers.get("Location")
            if response.status_code not in (301, 302, 303, 307, 308) or not location or request.method != "GET":
                return _Answer(response.status_code, response.headers, _bounded(ref, response))
        old, new = urlsplit(request.url), urlsplit(target := urljoin(request.url, location))
        if new.scheme != "https" and not (_is_loopback(old.netloc) and _is_loopback(new.netloc)):
            raise Refused(str(ref), f"was redirected to {_plain(target)}, which is not https; not followed")
        is_same_host = (old.scheme, old.netloc) == (new.scheme, new.netloc)
        authorization = request.authorization if is_same_host else None
        request = replace(request, url=target, query=None, authorization=authorization)
    raise Unavailable(str(ref), f"more than {_REDIRECTS} redirects, the last to {_plain(request.url)}")


@contextmanager
def _open(request: _Request) -> Iterator[requests.Response]:
    # Identity: a digest is one of the bytes as stored, and a bound on size must mean the same.
    headers = {"Accept": request.accept, "Accept-Encoding": "identity", "User-Agent": "sglang-overlay"}
    if request.authorization:
        headers["Authorization"] = request.authorization
    # Docker's daemon never asks a proxy for loopback either. The no-op `auth` keeps requests from reading ~/.netrc.
    proxies: Any = dict.fromkeys(("http", "https", "all")) if _is_loopback(urlsplit(request.url).netloc) else None
    with (
        requests.Session() as session,
        session.request(
            request.method,
            request.url,
            headers=headers,
            params=request.query,
            data=request.form,
            auth=lambda prepared: prepared,
            allow_redirects=False,
            stream=True,
            timeout=_TIMEOUT,
            proxies=proxies,
        ) as response,
    ):
        yield response


def _bounded(ref: ImageRef, response: requests.Response) -> bytes:
    body = bytearray()
    for piece in response.iter_content(1 << 16):
        body += piece
        if len(body) > _MAXIMUM_BYTES:
            limit = f"{_MAXIMUM_BYTES >> 20} MB"
            raise Refused(str(ref), f"the registry sent more than {limit} for a document of a few kB; not read")
    return bytes(body)


def _verify(ref: ImageRef, body: bytes, expected: Digest) -> None:
    found = Digest.of(body)
    if found != expected:
        facts = [f"expected {expected}", f"found    {found} ({len(body)} bytes)"]
        raise Refused(str(ref), "the registry sent other bytes than the digest names", facts=facts)


def _read_json(body: bytes, ref: ImageRef) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        start = body[:80].decode("utf-8", "replace")
        hint = "is this address a registry, or a login page in front of it?"
        raise Unavailable(str(ref), f"expected a JSON object from the registry, found {start!r}", hint=hint)
    return value


def _text(entry: Mapping[str, Any], key: str, ref: ImageRef) -> str:
    value = entry.get(key)
    if not isinstance(value, str):
        raise Unavailable(str(ref), f"the registry's document has no text under {key!r}, found {value!r}")
    return value


def _choose(index: Mapping[str, Any], wanted: Platform, ref: ImageRef) -> Mapping[str, Any]:
    """Pick one platform's entry of an index; build attestations (`unknown/unknown`) are no platform."""
    entries = [entry for entry in index.get("manifests") or () if isinstance(entry, dict)]
    offered = [(_platform_of(entry.get("platform") or {}), entry) for entry in entries]
    offered = [(platform, entry) for platform, entry in offered if platform.os not in ("", "unknown")]
    for platform, entry in offered:
        if _is_match(platform, wanted):
            return entry
    raise _platform_absent(ref, wanted, [platform for platform, _ in offered])


def _platform_of(told: Mapping[str, Any]) -> Platform:
    return Platform(*(str(told.get(key) or "") for key in ("os", "architecture", "variant")))


def _config_platform(config: Mapping[str, Any], ref: ImageRef) -> Platform:
    platform = _platform_of(config)
    if not platform.os or not platform.architecture:
        raise InputError(str(ref), "its config names no os and architecture, so it is not an image config")
    return platform


def _is_match(offered: Platform, wanted: Platform) -> bool:
    def usual(platform: Platform) -> str:
        return platform.variant or _USUAL_VARIANT.get(platform.architecture, "")

    is_same = (offered.os, offered.architecture) == (wanted.os, wanted.architecture)
    return is_same and (not wanted.variant or usual(offered) == usual(wanted))


def _platform_absent(ref: ImageRef, wanted: Platform, offered: list[Platform]) -> OverlayError:
    names = ", ".join(sorted({str(platform) for platform in offered})) or "none"
    return Refused(str(ref), f"has no image for {wanted}; it has: {names}", hint="choose with --platform")


def _wrong_media_type(ref: ImageRef, media_type: str) -> OverlayError:
    if "v1+prettyjws" in media_type or media_type.endswith("manifest.v1+json"):
        message = "is an image of Docker's old format (schema 1), which cannot be pinned by content"
        return Refused(str(ref), message, hint="pull it and push it again with a current engine")
    return Unavailable(str(ref), f"expected an image manifest or index, found media type {media_type!r}")


def _subject(ref: ImageRef, path: str) -> str:
    _, kind, name = path.split("/", 2)
    return f"{'blob' if kind == 'blobs' else 'digest' if ':' in name else 'tag'} {name} of {ref.repository}"


def _status_error(ref: ImageRef, answer: _Answer, subject: str) -> OverlayError:
    """Return the error that belongs to a status, with the registry's own words."""
    where, facts, status = str(ref), _own_words(answer.body), answer.status
    if status == 404:
        hint = "look at the repository's tags"
        if "digest" not in subject:
            return InputError(where, f"there is no {subject}", hint=hint, facts=facts)
        gone = "nightly tags are deleted, and with them their digests"
        return Refused(where, f"there is no {subject} ({gone})", hint=hint, facts=facts)
    if status in (401, 403):
        host = "" if ref.domain == DOCKER_HUB else f" {ref.domain}"
        message = f"not allowed to read {subject} (HTTP {status}), or it does not exist"
        return Unavailable(where, message, hint=f"docker login{host}", facts=facts)
    if status == 429:
        after = answer.headers.get("Retry-After", "")
        wait = f"; it asks to wait {after} s" if after.isdigit() else ""
        hint = "docker login raises the limit; --registry-mirror HOST goes around it"
        return Unavailable(where, f"the registry's rate limit is used up (HTTP 429){wait}", hint=hint, facts=facts)
    return Unavailable(where, f"expected HTTP 200 for {subject}, found {status}", hint="try again later", facts=facts)


def _own_words(body: bytes) -> tuple[str, ...]:
    try:
        errors = json.loads(body)["errors"]
        return tuple(f"{error.get('code', '')}: {error.get('message', '')}"[:200] for error in errors[:5])
    except (ValueError, LookupError, TypeError, AttributeError):
        return ()


def _network_error(ref: ImageRef, url: str, error: requests.RequestException) -> OverlayError:
    kind = {
        requests.exceptions.SSLError: "its TLS certificate is not accepted",
        requests.exceptions.ProxyError: "the proxy does not answer",
        requests.exceptions.ConnectTimeout: "no connection in time",
        requests.exceptions.ReadTimeout: "it stopped answering",
    }.get(type(error), f"no answer ({type(error).__name__})")
    # The library's own text may hold a URL with a token in its query, so only the kind is told.
    host = urlsplit(url).hostname
    return Unavailable(str(ref), f"{host}: {kind}", hint="check the network, or name a mirror with --registry-mirror")


def _wanted_pause(headers: Mapping[str, str], otherwise: float) -> float:
    after = headers.get("Retry-After", "")
    return float(after) if after.isdigit() else otherwise


def _plain(url: str) -> str:
    """Return a URL without user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"
