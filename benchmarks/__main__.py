"""Measure the tool against a hand-written `docker build` that COPYs the same files onto the same base.

    python -m benchmarks               five rounds on the tiny and the torch base of the lab
    python -m benchmarks --tiny        only on the tiny one: a minute, and nothing is told of growth
    python -m benchmarks --profile     say where the time of a plan goes, too
    python -m benchmarks --json        one document on stdout

Each round runs, on each base, `docker build --no-cache`, a build without its smoke test (the pipeline's own plan, load
and tag, in a process of its own), `overlay plan`, and three pairs of `docker build` and the build step alone, which is
what follows the plan. Ratios are taken within a round or pair, and their medians are what holds on other machines;
seconds and bytes are only what was seen on this one. The base is a local image and the upstream a local repository, so
no network is in it; caches are warm. The lab is set up as for the tests; what the runs make in Docker is labelled and
removed.
"""

from __future__ import annotations

import argparse
import json
import os
import pstats
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

import docker

from benchmarks.process import CHECKOUT, Taken
from benchmarks.report import Measured, Whole, document, table
from benchmarks.subjects import MEASURES, Subject
from tests.lab import bases, checkpoints, daemon, host, images, torch_base
from tests.lab.upstream_repo import upstream_repository

_LAB: Final = CHECKOUT / "tests" / "lab"
_PAIRS: Final = 3
_SHOWN: Final = 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code tells whether it could be run, not whether targets are met."""
    words = _parser().parse_args(arguments)
    try:
        with daemon.docker_daemon() as engine:
            return _run(engine, words)
    except host.LabError as error:
        _say(str(error))
        return 1
    except KeyboardInterrupt:
        _say("interrupted; what was made is removed")
        return 130


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=layout)
    parser.add_argument("--rounds", type=_count, default=5, metavar="N", help="how often everything is run (5)")
    parser.add_argument("--tiny", action="store_true", help="leave the torch base out")
    parser.add_argument("--profile", action="store_true", help="run one more plan under cProfile")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("at least one round is needed")
    return count


def _run(engine: docker.DockerClient, words: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="overlay-benchmark-") as name, _subjects(engine, words, Path(name)) as made:
        measured = _measure(made, words.rounds)
        if words.json:
            print(json.dumps(document(measured), indent=2))
        else:
            print(table(measured))
        if words.profile:
            _show_profile(made[-1], sys.stderr if words.json else sys.stdout)
    return 0


# -- setting up --------------------------------------------------------------------------------------------------------


@contextmanager
def _subjects(engine: docker.DockerClient, words: argparse.Namespace, scratch: Path) -> Iterator[Sequence[Subject]]:
    """Yield the bases under names of this run, so that no image of theirs is anybody else's."""
    label = images.RunLabel(uuid.uuid4().hex[:12])
    draft = checkpoints.write_draft(scratch / "draft")
    upstream = upstream_repository().path
    # The tiny base lacks torch, so its definition acknowledges what cannot be told without.
    wanted = {"tiny": (bases.tiny_base, _quick_catalogue(scratch))}
    if not words.tiny:
        wanted["torch"] = (torch_base.torch_base, _LAB / "catalogue")
    try:
        made = []
        for family, (make, catalogue) in wanted.items():
            _say(f"making the {family} base")
            name = f"overlay-benchmark/{label.value}:{family}"
            base = bases.labelled(engine, make(engine), name, label.labels).name
            folder = scratch / family
            folder.mkdir()
            made.append(Subject(engine, f"{family} base", base, catalogue, upstream, draft, folder))
        yield made
    finally:
        label.remove_all(engine)


def _quick_catalogue(scratch: Path) -> Path:
    copy = Path(shutil.copytree(_LAB / "catalogue", scratch / "catalogue"))
    with (copy / "overlays" / "dflash2.toml").open("a", encoding="utf-8") as definition:
        definition.write((_LAB / "quick-acknowledgements.toml").read_text())
    return copy


# -- measuring ---------------------------------------------------------------------------------------------------------


def _measure(subjects: Sequence[Subject], rounds: int) -> Measured:
    load_before = os.getloadavg()
    for subject in subjects:
        _say(f"warming up on the {subject.title}")
        subject.prepare()
    taken: dict[str, dict[str, list[Taken]]] = {s.title: {name: [] for name in MEASURES} for s in subjects}
    pairs: dict[str, list[tuple[float, float]]] = {subject.title: [] for subject in subjects}
    helps = []
    for number in range(rounds):
        _say(f"round {number + 1} of {rounds}")
        helps.append(subjects[0].help())
        for subject, name in _order(subjects, number):
            taken[subject.title][name].append(MEASURES[name](subject))
        for subject in subjects:
            pairs[subject.title] += subject.pairs(_PAIRS)
    whole = {subject.title: _whole(subject) for subject in subjects}
    _same_image_every_time(subjects)
    return Measured(
        bytes={subject.title: subject.size for subject in subjects},
        taken=taken,
        pairs=pairs,
        steps={subject.title: subject.steps for subject in subjects},
        whole=whole,
        helps=helps,
        load_average=(load_before[0], os.getloadavg()[0]),
        engine=str(subjects[0].engine.version()["Version"]),
        client=bool(shutil.which("docker")),
    )


def _order(subjects: Sequence[Subject], number: int) -> Iterator[tuple[Subject, str]]:
    """Interleave everything, in another order each round: what comes first or last has no advantage."""
    for subject in subjects if number % 2 == 0 else reversed(subjects):
        names = list(MEASURES)
        first = number % len(names)
        yield from ((subject, name) for name in names[first:] + names[:first])


def _whole(subject: Subject) -> Whole:
    _say(f"whole builds with the smoke test on the {subject.title}")
    return Whole(*subject.whole_builds())


def _same_image_every_time(subjects: Sequence[Subject]) -> None:
    for subject in subjects:
        if len(subject.images) != 1:
            raise host.LabError(f"{subject.title}: the builds differ: {sorted(subject.images)}")


# -- where the time goes -----------------------------------------------------------------------------------------------


def _show_profile(subject: Subject, stream: TextIO) -> None:
    path = subject.scratch / "plan.prof"
    subject.profile(path)
    print(f"\nplan on the {subject.title} under cProfile, by module of the tool and by own time", file=stream)
    show = pstats.Stats(str(path), stream=stream)
    show.sort_stats("cumulative").print_stats(re.escape(f"{CHECKOUT}/builder/"), _SHOWN)
    show.sort_stats("tottime").print_stats(_SHOWN // 2)


def _say(text: str) -> None:
    print(f"benchmarks: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
