"""The child: a build without its smoke test, by the pipeline's own steps, and the seconds that each of them took.

With `--pairs N` it then repeats what follows the plan, each time beside a `docker build` of the same files: so short a
thing is compared best with what ran in the same second.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import docker

from benchmarks import by_hand
from builder import build, catalogue
from builder.base import ImageBase, Sources
from builder.doors import no_progress
from builder.engine import DockerEngine, connect
from builder.model import ImageRef
from builder.plan import Plan
from builder.registry import HttpRegistry
from builder.upstream import GitUpstream, merge_file


def main() -> None:
    """Plan, load, tag; print one JSON document."""
    gc.disable()  # as the command does
    words = _words()
    engine, tag = connect(), ImageRef.parse(words.tag)
    start = time.perf_counter()
    made = _plan(words, engine)
    plan = time.perf_counter() - start
    if made.built is None:
        sys.exit(f"the plan's verdict is {made.verdict}: there is nothing to build")
    steps, image, way = _step(made, engine, tag)
    pairs = _pairs(words, made, engine, tag) if words.pairs else []
    if words.layer:
        words.layer.write_bytes(made.built.layer.tar)
    print(json.dumps({"image": image, "way": way, "steps": {"plan": plan, **steps}, "pairs": pairs}))


def _plan(words: argparse.Namespace, engine: DockerEngine) -> Plan:
    doors = build.Doors(
        sources=lambda: Sources(engine, HttpRegistry(), None, words.cache),
        upstream=lambda _: GitUpstream(str(words.upstream), forge=None, cache=words.cache / "upstream"),
        merge3=merge_file,
        progress=no_progress,
        say=lambda _: None,
    )
    shelf = catalogue.find(words.catalogue, Path.cwd())
    return build.make_plan(build.Request(words.base, (words.pr,)), shelf, doors)


def _step(made: Plan, engine: DockerEngine, tag: ImageRef) -> tuple[Mapping[str, float], str, str]:
    """Do what `build` does when no identical image is there, but for the smoke test and the report."""
    assert made.built is not None
    assert isinstance(made.base, ImageBase)
    assert made.base.local is not None
    clock = [time.perf_counter()]
    build.refuse_tag(tag, made, engine, is_replacing=False)
    if build.same_image(engine, made) is not None:
        sys.exit("an identical image is there already: nothing would be measured")
    clock.append(time.perf_counter())
    image, way = engine.load(made.built.config, made.built.layer, made.base.local, made.built.deletions)
    clock.append(time.perf_counter())
    engine.tag(image.id, tag)
    clock.append(time.perf_counter())
    names = ("look", "load", "tag")
    seconds = {name: end - start for name, start, end in zip(names, clock, clock[1:], strict=False)}
    return seconds, image.id, way


def _pairs(words: argparse.Namespace, made: Plan, engine: DockerEngine, tag: ImageRef) -> list[tuple[float, float]]:
    """Return (build step, docker build) in seconds, taken in turns; one of either is first."""
    client, by_hand_tag = docker.from_env(), f"{words.tag}-by-hand"
    client.images.remove(words.tag)
    pairs = []
    for number in range(words.pairs):
        took: dict[str, float] = {}
        for name in (words.tag, by_hand_tag) if number % 2 else (by_hand_tag, words.tag):
            if name == words.tag:
                took[name] = sum(_step(made, engine, tag)[0].values())
            else:
                took[name] = by_hand.build(client, words.context, name).seconds
            client.images.remove(name)  # so that both find the engine as it was
        pairs.append((took[words.tag], took[by_hand_tag]))
    return pairs


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.build_step", description=__doc__)
    for name in ("base", "tag"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("catalogue", "upstream", "cache"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    parser.add_argument("--pr", required=True, type=int)
    parser.add_argument("--layer", type=Path, help="write the layer's tar here")
    parser.add_argument("--pairs", type=int, default=0, help="how often to repeat the step beside a docker build")
    parser.add_argument("--context", type=Path, help="the docker build's folder")
    return parser.parse_args()
