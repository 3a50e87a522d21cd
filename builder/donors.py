"""The trees that changed files come from: the whole tree at the result of the last pull request that brings a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from builder.carry import Carried
from builder.catalogue import Overlay
from builder.doors import Upstream
from builder.merge import Merged
from builder.model import Oid, PullRequest, SourceTree, Tree


def trees(
    changed: Iterable[str],
    merged: Sequence[Merged],
    carried: Iterable[Carried],
    overlay: Overlay,
    base: SourceTree,
    upstream: Upstream,
) -> dict[str, Tree]:
    """Return changed path -> its donor tree, one tree a pull request; a file that only a patch edits has none."""
    results = {entry.pull_request.number: entry.pull_request for entry in merged}
    comes_from = {file.path: file.pull_request for entry in merged for file in entry.files if file.data is not None}
    comes_from |= {entry.path: int(entry.from_.removeprefix("pr:")) for entry in carried if entry.data is not None}
    at = cache(lambda number: donor(results[number], overlay, base, upstream))
    return {path: at(comes_from[path]) for path in changed if path in comes_from}


def donor(pull: PullRequest, overlay: Overlay, base: SourceTree, upstream: Upstream) -> Tree:
    """Return the package at a pull request's result; what differs from the base is fetched when first asked for."""
    prefix = overlay.upstream_prefix
    found = upstream.paths(pull.result, prefix + overlay.package)
    blobs = {path.removeprefix(prefix): blob for path, blob in found.items()}

    @cache
    def brought() -> None:
        differing = [path for path, blob in blobs.items() if path.endswith(".py") and not _is_same(base, path, blob)]
        upstream.prefetch(pull.result, [prefix + path for path in differing])

    @cache
    def read(path: str) -> bytes | None:
        blob = blobs.get(path)
        if blob is None:
            return None
        if _is_same(base, path, blob):
            return base.read(path)
        brought()
        return upstream.read(pull.result, prefix + path)

    return Tree(frozenset(blobs), read, blobs)


def _is_same(base: SourceTree, path: str, blob: Oid) -> bool:
    known = base.files.get(path)
    return known is not None and known.blob == blob and known.data is not None
