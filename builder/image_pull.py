"""Pure: what an engine tells while it pulls -> progress over all layers, and errors with a next step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from builder.doors import Progress
from builder.errors import OverlayError, Refused, Unavailable
from builder.model import DOCKER_HUB, ImageRef


def without_credentials(words: str) -> str:
    """Remove user:password@ from every URL in a text."""
    return re.sub(r"(//)[^/@\s]*@", r"\1", words)


class PullProgress:
    """Adds up what the engine tells of each layer; the total is known once every layer has told its size."""

    def __init__(self, what: str, progress: Progress) -> None:
        self._what = what
        self._progress = progress
        self._layers: dict[str, dict[str, tuple[int, int]]] = {"pull": {}, "unpack": {}}

    def take(self, event: Mapping[str, Any]) -> None:
        """Take one event of the pull stream and report where the work stands."""
        layer, status = str(event.get("id") or ""), str(event.get("status") or "")
        pulled, unpacked = self._layers.values()
        if status == "Pulling fs layer":
            pulled.setdefault(layer, (0, 0))
        detail = event.get("progressDetail") or {}
        if status in ("Download complete", "Pull complete") and layer in pulled:
            pulled[layer] = (pulled[layer][1],) * 2
        if not detail.get("total"):
            return
        step = {"Downloading": pulled, "Extracting": unpacked}.get(status)
        if step is not None:
            step[layer] = (int(detail.get("current") or 0), int(detail["total"]))
            self._report("pull" if step is pulled else "unpack", step)

    def _report(self, verb: str, step: Mapping[str, tuple[int, int]]) -> None:
        totals = [total for _, total in step.values()]
        known = sum(totals) if all(totals) else None
        self._progress(f"{verb} {self._what}", sum(done for done, _ in step.values()), known)


def pull_error(reference: ImageRef, words: str) -> OverlayError:
    """Return the error that belongs to the engine's words about a pull."""
    where, low = str(reference), words.lower()
    facts = [without_credentials(words)[:500]]

    def has(*signs: str) -> bool:
        return any(sign in low for sign in signs)

    login = "docker login" if reference.domain == DOCKER_HUB else f"docker login {reference.domain}"
    if has("no space left"):
        return Unavailable(where, "the engine's disk is full", hint="docker system df", facts=facts)
    if has("toomanyrequests", "rate limit"):
        hint = f"{login}, or --registry-mirror HOST"
        return Unavailable(where, "the registry's rate limit is used up", hint=hint, facts=facts)
    if has("no matching manifest", "does not match the specified platform", "cannot be used on this platform"):
        return Refused(where, "has no image for this platform", hint="choose with --platform", facts=facts)
    if has("manifest unknown", "not found: manifest", "name unknown", "not found"):
        message = "the registry has no such image; tags and digests of nightly images get deleted"
        return Refused(where, message, hint="look at the repository's tags", facts=facts)
    if has("unauthorized", "denied", "authentication required", "no basic auth"):
        return Unavailable(where, "not allowed to pull it, or it does not exist", hint=login, facts=facts)
    hint = "check the network of the machine the engine runs on, or use --registry-mirror"
    return Unavailable(where, "the engine could not pull it", hint=hint, facts=facts)
