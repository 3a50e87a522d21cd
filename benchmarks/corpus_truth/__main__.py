"""Answer one request: judge many sources in one interpreter. Usage: `python3 -m corpus_truth REQUEST ANSWER`.

Request: {package, root, jobs: [{id, file, module, is_package, only: null | [modules]}]}. With `only`, no use is told
but those that rest on these modules. Answer: {python, tried, imported, broken, notes, uses: {id: [...]}}.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from .judge import Judge
from .sources import Source
from .world import World, prepare


def main() -> None:
    gc.disable()  # imports make millions of objects that all stay
    request = json.loads(Path(sys.argv[1]).read_bytes())
    answer = Path(sys.argv[2])
    sys.argv[1:] = []
    notes = [f"{name} is a stub" for name in prepare()]
    started = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - started:.1f} s: {what}", file=sys.stderr, flush=True)

    world = World(request["package"], Path(request["root"]) / request["package"])
    sources = {job["id"]: _source(job) for job in request["jobs"]}
    wanted = sorted({module for source in sources.values() if source for module in _imported(source, world)})
    world.import_all([f"{request['package']}.srt.server_args", *wanted])
    say(f"{len(wanted)} modules asked for, {len(world.broken)} do not import")
    notes += _publish(request["package"])
    uses = {}
    for job in request["jobs"]:
        source = sources[job["id"]]
        if source is not None:
            only = None if job["only"] is None else set(job["only"])
            found = Judge(source, world).uses()
            uses[job["id"]] = [use.record() for use in found if only is None or only & set(use.homes)]
    say(f"{len(request['jobs'])} sources judged")
    answer.write_text(
        json.dumps(
            {
                "python": sys.version.split()[0],
                "tried": len(wanted),
                "imported": sum(name in sys.modules for name in wanted),
                "broken": world.broken,
                "notes": notes,
                "uses": uses,
            }
        )
    )


def _source(job: dict[str, Any]) -> Source | None:
    try:
        return Source(Path(job["file"]).read_bytes(), job["module"], is_package=job["is_package"])
    except (SyntaxError, ValueError, RecursionError):
        return None


def _imported(source: Source, world: World) -> list[str]:
    found = []
    for event in source.events:
        if isinstance(event.node, ast.Import):
            found += [alias.name for alias in event.node.names]
        elif isinstance(event.node, ast.ImportFrom) and (module := source.absolute(event.node)):
            found.append(module)
    return [name for name in found if world.owns(name)]


def _publish(package: str) -> list[str]:
    """Give the process what a scheduler has: server arguments, from which the config bags are made."""
    try:
        arguments = importlib.import_module(f"{package}.srt.server_args").ServerArgs(model_path="dummy")
        context = importlib.import_module(f"{package}.srt.runtime_context")
        if hasattr(context, "publish"):
            context.publish(arguments, role="test")
        else:
            context.get_context().set_server_args(arguments)
    except BaseException:
        return [f"nothing is published: {traceback.format_exc(limit=-3)}"]
    return ["ServerArgs are published"]


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)  # what imported packages would still do at their end is of no use, and may fail on a stub
