"""The upstream git repository of the lab: SGLang's releases as commits, and the stand-in PR.

The real merge of #35371 is on no package index; the first release that holds it is. So the
stand-in changes its five runtime files from release 0.5.18's bytes to 0.5.19's, on top of a
"later work" commit that has everything else of 0.5.19. It is real upstream code, and harder
than the real PR: a release drags later work along.

#35496 was written on top of it and has a stand-in too. Its own code is in 0.5.19 already, so the
stand-in takes two of the same files on to 0.5.20's bytes: the two that fit the rest of 0.5.19
(the worker of 0.5.20 needs a module of its own release).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.lab import cache, wheels
from tests.lab.git_history import Changes, Commit, History, Repository, read

PULL_REQUEST: Final = 35371
TITLE: Final = "[Spec] DFlash2: local convolution + candidate selector"

#: The runtime files of the PR, under `python/`.
PULL_REQUEST_FILES: Final = (
    "sglang/kernels/ops/speculative/dflash.py",
    "sglang/srt/model_executor/model_runner_components/spec_aux_hidden_state.py",
    "sglang/srt/models/dflash.py",
    "sglang/srt/speculative/dflash_utils.py",
    "sglang/srt/speculative/dflash_worker_v2.py",
)

FOLLOW_UP: Final = 35496
FOLLOW_UP_TITLE: Final = "[Spec] DFlash2: quantized target head in the selector"

#: The runtime files of the PR that needs the first one, under `python/`.
FOLLOW_UP_FILES: Final = (PULL_REQUEST_FILES[2], PULL_REQUEST_FILES[3])

_FIRST_STEP: Final = (PULL_REQUEST_FILES[0], PULL_REQUEST_FILES[2], PULL_REQUEST_FILES[3])

#: Written by us: what of a PR never belongs into an image.
_OUTSIDE_RUNTIME: Final[Mapping[str, str]] = {
    "test/registered/unit/spec/test_dflash2_config.py": '''\
"""The DFlash2 fields of a draft config are read together (stand-in)."""

import unittest


class TestDFlash2Config(unittest.TestCase):
    def test_rank_and_top_k_come_together(self):
        self.assertEqual(bool(256), bool(16))
''',
    "test/registered/unit/spec/test_dflash2_selector.py": '''\
"""The candidate selector walks one path (stand-in)."""

import unittest


class TestDFlash2Selector(unittest.TestCase):
    def test_greedy_path(self):
        self.assertEqual(max(range(4)), 3)
''',
    "docs/advanced_features/dflash2.md": "# DFlash2\n\nA stand-in for the PR's documentation.\n",
}

_FOLLOW_UP_OUTSIDE_RUNTIME: Final[Mapping[str, str]] = {
    "test/registered/unit/spec/test_dflash2_quantized_head.py": '''\
"""The selector reads a packed head through its quantization method (stand-in)."""

import unittest


class TestQuantizedHead(unittest.TestCase):
    def test_packed_width(self):
        self.assertEqual(5120 // 2, 2560)
''',
}

_DATES: Final = {
    "0.5.16": datetime(2026, 7, 1, 12, tzinfo=UTC),
    "0.5.17": datetime(2026, 7, 20, 12, tzinfo=UTC),
    "0.5.18": datetime(2026, 8, 10, 12, tzinfo=UTC),
    "later-work": datetime(2026, 8, 18, 12, tzinfo=UTC),
    "35371": datetime(2026, 8, 19, 12, tzinfo=UTC),
    "35496": datetime(2026, 8, 22, 12, tzinfo=UTC),
    "0.5.20": datetime(2026, 9, 5, 12, tzinfo=UTC),
    "0.5.21": datetime(2026, 9, 19, 12, tzinfo=UTC),
    "0.5.22": datetime(2026, 10, 3, 12, tzinfo=UTC),
    "0.5.23": datetime(2026, 10, 17, 12, tzinfo=UTC),
}

_LARGEST: Final = 1 << 20
_RECIPE: Final = "2"


def upstream_repository() -> Repository:
    """Return the bare repository.

    Its `commits` are named after releases, and "later-work" and "35371" for the PR's parent
    and result; release 0.5.19 is the tree at "35371", which is the parent of "35496".
    """
    key = cache.recipe_key("upstream", _RECIPE, *wheels.VERSIONS)
    return read(cache.made_once("upstream.git", key, _make))


def _make(path: Path) -> None:
    history = History()
    names: dict[str, Commit] = {}
    before: Mapping[str, bytes] = {}
    for version in ("0.5.16", "0.5.17", "0.5.18"):
        before = _release(history, names, before, version)
    before = _pull_request(history, names, before)
    before = _follow_up(history, names, before)
    for version in ("0.5.20", "0.5.21", "0.5.22", "0.5.23"):
        before = _release(history, names, before, version)
    history.write(path, names)


def _release(
    history: History, names: dict[str, Commit], before: Mapping[str, bytes], version: str
) -> Mapping[str, bytes]:
    after = _source(version)
    message = f"Release v{version}"
    names[version] = history.commit(_changes(before, after), message, at=_DATES[version])
    history.tag(f"v{version}", names[version])
    return after


def _pull_request(history: History, names: dict[str, Commit], before: Mapping[str, bytes]) -> Mapping[str, bytes]:
    after = _source("0.5.19")
    held_back = {f"python/{path}": before[f"python/{path}"] for path in PULL_REQUEST_FILES}
    later = _changes(before, {**after, **held_back})
    message = "Later work: everything of v0.5.19 but DFlash2"
    names["later-work"] = history.commit(later, message, at=_DATES["later-work"])
    first = {f"python/{path}": after[f"python/{path}"] for path in _FIRST_STEP}
    second = {path: after[path] for path in held_back if path not in first}
    steps: list[Changes] = [first, {**second, **_OUTSIDE_RUNTIME}]
    history.squash(PULL_REQUEST, TITLE, steps, at=_DATES["35371"])
    names["35371"] = history.tip
    history.tag("v0.5.19", history.tip)
    return after


def _follow_up(history: History, names: dict[str, Commit], before: Mapping[str, bytes]) -> Mapping[str, bytes]:
    newer = _source("0.5.20")
    changed = {f"python/{path}": newer[f"python/{path}"] for path in FOLLOW_UP_FILES}
    steps: list[Changes] = [{**changed, **_FOLLOW_UP_OUTSIDE_RUNTIME}]
    history.squash(FOLLOW_UP, FOLLOW_UP_TITLE, steps, at=_DATES["35496"])
    names["35496"] = history.tip
    return {**before, **changed}


def _source(version: str) -> Mapping[str, bytes]:
    """Read a release's text files as the upstream repository would have them."""
    root = wheels.tree(version)
    found: dict[str, bytes] = {}
    for path in sorted((root / "sglang").rglob("*")):
        if path.is_file() and path.suffix != ".so" and path.stat().st_size < _LARGEST:
            found[f"python/{path.relative_to(root).as_posix()}"] = path.read_bytes()
    return found


def _changes(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Changes:
    gone: dict[str, bytes | None] = dict.fromkeys(before.keys() - after.keys())
    changed = {path: data for path, data in after.items() if before.get(path) != data}
    return {**gone, **changed}
