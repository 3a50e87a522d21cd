"""The child: a build without its smoke test, by the pipeline's own steps, and the seconds that each of them took."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path

from builder import build, catalogue
from builder.base import ImageBase, Sources
from builder.doors import no_progress
from builder.engine import connect
from builder.model import ImageRef
from builder.registry import HttpRegistry
from builder.upstream import GitUpstream, merge_file


def main() -> None:
    """Plan, load, tag; print one JSON document."""
    gc.disable()  # as the command does
    words = _words()
    engine = connect()
    doors = build.Doors(
        sources=lambda: Sources(engine, HttpRegistry(), None, words.cache),
        upstream=lambda _: GitUpstream(str(words.upstream), forge=None, cache=words.cache / "upstream"),
        merge3=merge_file,
        progress=no_progress,
        say=lambda _: None,
    )
    shelf = catalogue.find(words.catalogue, Path.cwd())
    clock = [time.perf_counter()]
    made = build.make_plan(build.Request(words.base, (words.pr,)), shelf, doors)
    clock.append(time.perf_counter())
    if made.built is None or not isinstance(made.base, ImageBase) or made.base.local is None:
        sys.exit(f"the plan's verdict is {made.verdict}: there is nothing to build")
    # What `build` does when no identical image is there, but for the smoke test and the report.
    tag = ImageRef.parse(words.tag)
    build.refuse_tag(tag, made, engine, is_replacing=False)
    if build.same_image(engine, made) is not None:
        sys.exit("an identical image is there already: nothing would be measured")
    clock.append(time.perf_counter())
    image, way = engine.load(made.built.config, made.built.layer, made.base.local, made.built.deletions)
    clock.append(time.perf_counter())
    engine.tag(image.id, tag)
    clock.append(time.perf_counter())
    if words.layer:
        words.layer.write_bytes(made.built.layer.tar)
    names = ("plan", "look", "load", "tag")
    steps = {name: end - start for name, start, end in zip(names, clock, clock[1:], strict=False)}
    print(json.dumps({"image": image.id, "way": way, "steps": steps}))


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.build_step", description=__doc__)
    for name in ("base", "tag"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("catalogue", "upstream", "cache"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    parser.add_argument("--pr", required=True, type=int)
    parser.add_argument("--layer", type=Path, help="write the layer's tar here")
    return parser.parse_args()
