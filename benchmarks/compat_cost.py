"""Measure what the compatibility check costs: the type checker on the patched files, on the whole tree, and again.

    python -m benchmarks.compat_cost               three rounds of five files of 0.5.19 on 0.5.17
    python -m benchmarks.compat_cost --json        one document on stdout

Each round runs, one after another and each in a process of its own: the type checker's own command by hand on the
merged tree laid out in a folder (the peer that ratios are taken to), our door to it on the patched files alone, on the
whole tree with nothing kept, and on the whole tree again; then the whole check, cold and warm. Ratios are taken within
a round; seconds and bytes are only what was seen on this machine. Memory is that of the largest process of each, the
checker's own included.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks import process
from benchmarks.compat_corpus import release
from benchmarks.figures import Figure, Target, ratio
from benchmarks.process import CHECKOUT, Taken
from builder import compat
from builder.model import Tree
from builder.type_checker import Pyrefly
from tests.lab import host

_PACKAGE: Final = "sglang"
_BASE, _DONOR = "0.5.17", "0.5.19"
_CHANGED: Final = (
    "sglang/kernels/ops/speculative/dflash.py",
    "sglang/srt/model_executor/model_runner_components/spec_aux_hidden_state.py",
    "sglang/srt/models/dflash.py",
    "sglang/srt/speculative/dflash_utils.py",
    "sglang/srt/speculative/dflash_worker_v2.py",
)

BY_HAND: Final = "by hand, whole tree"
NOTHING: Final = "reading the trees alone"
FILES: Final = "patched files"
WHOLE: Final = "whole tree, cold"
AGAIN: Final = "whole tree, warm"
CHECK: Final = "whole check, cold"
CHECK_AGAIN: Final = "whole check, warm"
_MEASURES: Final = (BY_HAND, NOTHING, FILES, WHOLE, AGAIN, CHECK, CHECK_AGAIN)
_FRESH: Final = frozenset({FILES, WHOLE, CHECK})
"""What starts with nothing kept."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, or one measure of it in this process."""
    words = _parser().parse_args(arguments)
    if words.measure:
        _measure(words.measure, words.cache)
        return 0
    try:
        taken = _rounds(words.rounds)
    except host.LabError as error:
        print(f"compat cost: {error}", file=sys.stderr)
        return 1
    print(json.dumps(document(taken), indent=1) if words.json else table(taken))
    return 0


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compat_cost", description=__doc__, formatter_class=layout
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often everything is run (3)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--measure", choices=_MEASURES, help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    return parser


def _measure(what: str, cache: Path) -> None:
    before, donor = release(_BASE), release(_DONOR)
    after = before.overlaid(_edits(donor))
    if what == FILES:
        Pyrefly(cache).check(after, _PACKAGE, _CHANGED)
    elif what in (WHOLE, AGAIN):
        Pyrefly(cache).check(after, _PACKAGE)
    elif what in (CHECK, CHECK_AGAIN):
        donors = dict.fromkeys(_CHANGED, donor)
        compat.check(compat.Comparison(before, after, frozenset(_CHANGED), donors), Pyrefly(cache))


def _edits(donor: Tree) -> dict[str, bytes]:
    found = {path: donor.read(path) for path in _CHANGED}
    return {path: data for path, data in found.items() if data is not None}


def _rounds(count: int) -> Mapping[str, list[Taken]]:
    taken: dict[str, list[Taken]] = {what: [] for what in _MEASURES}
    with tempfile.TemporaryDirectory(prefix="overlay-compat-cost-") as name:
        folder = Path(name)
        _lay_out(folder / "tree")
        for number in range(count):
            cache = folder / f"kept-{number}"
            for what in _MEASURES:
                print(f"compat cost: round {number + 1} of {count}: {what}", file=sys.stderr, flush=True)
                if what in _FRESH:
                    cache = folder / f"kept-{number}-{_MEASURES.index(what)}"
                taken[what].append(_run(what, cache, folder / "tree"))
    return taken


def _lay_out(root: Path) -> None:
    before = release(_BASE)
    after = before.overlaid(_edits(release(_DONOR)))
    for path in sorted(path for path in after.paths if path.endswith(".py")):
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(after.read(path) or b"")


def _run(what: str, cache: Path, tree: Path) -> Taken:
    if what == BY_HAND:
        program = Path(sys.executable).with_name("pyrefly")
        # It exits 1 when it found something, which it always does.
        words = f'"{program}" check --preset default {_PACKAGE} >/dev/null || [ $? = 1 ]'
        return process.run(what, ["sh", "-c", words], os.environ, cwd=tree)
    argv: list[str | Path] = [sys.executable, "-m", "benchmarks.compat_cost", "--measure", what, "--cache", cache]
    return process.run(what, argv, {**os.environ, "PYTHONPATH": str(CHECKOUT)}, cwd=tree)


# -- the report --------------------------------------------------------------------------------------------------------


def targets(taken: Mapping[str, Sequence[Taken]]) -> list[Target]:
    """Return the targets of the project and what was found; reading the trees is no part of them."""
    return [
        Target("type checker on patched files", _beyond(taken, FILES), 2.0, " s", False),
        Target("type checker on the whole tree, cold", _beyond(taken, WHOLE), 30.0, " s", False),
    ]


def _beyond(taken: Mapping[str, Sequence[Taken]], what: str) -> float:
    pairs = zip(taken[what], taken[NOTHING], strict=True)
    return Figure.of([one.seconds - other.seconds for one, other in pairs]).median


def table(taken: Mapping[str, Sequence[Taken]]) -> str:
    """Return the figures as text: ratios first, then what was seen on this machine."""
    lines = [f"Ratios to the checker's own command, by round: median (quartiles) of {len(taken[BY_HAND])} rounds"]
    lines += [f"  {what:28}{_ratio(taken, what)}" for what in _MEASURES[1:]]
    lines += ["", f"Seen here ({os.cpu_count()} processors): seconds, processor seconds, largest process in MB"]
    for what in _MEASURES:
        seconds = Figure.of([one.seconds for one in taken[what]])
        processor = Figure.of([one.processor_seconds for one in taken[what]])
        peak = max(one.peak_bytes for one in taken[what])
        lines.append(f"  {what:28}{seconds}  {processor}  {peak / 1e6:7.0f}")
    return "\n".join([*lines, "", *map(str, targets(taken))])


def _ratio(taken: Mapping[str, Sequence[Taken]], what: str) -> Figure:
    return ratio([one.seconds for one in taken[what]], [one.seconds for one in taken[BY_HAND]])


def document(taken: Mapping[str, Sequence[Taken]]) -> Mapping[str, object]:
    """Return the figures as JSON values; `seen` holds for this machine only."""
    seen = {
        what: [{key: value for key, value in asdict(one).items() if key != "stdout"} for one in found]
        for what, found in taken.items()
    }
    return {
        "schema": "overlay.compat-cost/1",
        "ratios_to_by_hand": {what: asdict(_ratio(taken, what)) for what in _MEASURES[1:]},
        "targets": [target.record() for target in targets(taken)],
        "seen": {"processors": os.cpu_count(), "processes": seen},
    }


if __name__ == "__main__":
    raise SystemExit(main())
