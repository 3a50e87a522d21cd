"""Look one registry up where Docker keeps credentials: its config file, and the helper programs named there.

Formats: Docker's config.json (`auths`, `credsStore`, `credHelpers`) and the docker-credential-helpers protocol.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.errors import InputError, Unavailable

HUB_SERVER = "https://index.docker.io/v1/"
_WHERE = "docker credentials"
_HELPER_SECONDS = 30.0


@dataclass(frozen=True)
class Credentials:
    """What Docker's credential store holds for one registry; a token stands for a user and password."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """The value of a Basic Authorization header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def look_up(config_file: Path, server: str) -> Credentials | None:
    """Return what is stored for a registry (`host[:port]`, or HUB_SERVER); None where nothing is."""
    try:
        config = json.loads(config_file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(str(config_file), f"expected Docker's JSON config, found {type(error).__name__}") from None
    names = _server_names(server)
    helpers = config.get("credHelpers") or {}
    helper = next((helpers[name] for name in names if name in helpers), config.get("credsStore"))
    if helper and (found := _ask_helper(str(helper), server)):
        return found
    auths = config.get("auths") or {}
    entry = next((auths[name] for name in names if auths.get(name)), None)
    return _decode_entry(entry) if isinstance(entry, dict) else None


def _server_names(server: str) -> tuple[str, ...]:
    if server == HUB_SERVER:
        return (server, "index.docker.io", "docker.io", "registry-1.docker.io")
    return (server, f"https://{server}", f"http://{server}", f"https://{server}/v1/", f"https://{server}/v2/")


def _decode_entry(entry: Mapping[str, Any]) -> Credentials | None:
    if token := entry.get("identitytoken"):
        return Credentials(identity_token=str(token))
    try:
        user, _, password = base64.b64decode(str(entry.get("auth") or "")).decode().rstrip("\0").partition(":")
    except ValueError:
        return None
    user, password = user or str(entry.get("username") or ""), password or str(entry.get("password") or "")
    return Credentials(user, password) if user else None


def _ask_helper(helper: str, server: str) -> Credentials | None:
    """Ask a credential helper program (`docker-credential-NAME get`); None where it holds nothing or is missing."""
    command = f"docker-credential-{helper}"
    hint = "edit credsStore and credHelpers in Docker's config.json"
    if not re.fullmatch(r"[\w.-]+", helper):
        raise InputError(_WHERE, f"{helper!r} is not the name of a docker-credential program", hint=hint)
    try:
        done = subprocess.run([command, "get"], input=server, capture_output=True, text=True, timeout=_HELPER_SECONDS)
    except subprocess.TimeoutExpired:
        raise Unavailable(_WHERE, f"{command} gave no answer in {_HELPER_SECONDS:.0f} s", hint=hint) from None
    except OSError:
        # A store that went missing must not keep a public image from being read.
        return None
    if done.returncode != 0:
        # Nothing stored is the usual reason; its output may hold a secret, so it is not repeated.
        return None
    try:
        answer = json.loads(done.stdout)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, LookupError, TypeError):
        raise Unavailable(_WHERE, f"expected JSON with Username and Secret from {command}", hint=hint) from None
    return Credentials(identity_token=secret) if user == "<token>" else Credentials(user, secret)
