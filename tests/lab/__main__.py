"""Bring the lab up and down by hand: `python -m tests.lab up`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial

import docker

from tests.lab import bases, cache, checkpoints, daemon, host, images, torch_base, wheels
from tests.lab.upstream_repo import upstream_repository


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    words = _parser().parse_args(arguments)
    try:
        words.command(words)
    except host.LabError as error:
        print(f"lab: {error}")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    commands = parser.add_subparsers(required=True)
    up = commands.add_parser("up", help="start the daemon if none answers, make bases and upstream")
    up.add_argument("--tiny", action="store_true", help="leave the torch base out")
    up.add_argument("--version", action="append", choices=wheels.VERSIONS, help="default: 0.5.17")
    up.set_defaults(command=_up)
    down = commands.add_parser("down", help="stop the daemon if the lab started it")
    down.add_argument("--images", action="store_true", help="remove the lab's images first")
    down.set_defaults(command=_down)
    commands.add_parser("status", help="say what is there").set_defaults(command=_status)
    serve = commands.add_parser("serve", help="serve a base as the hub would, until Ctrl-C")
    serve.add_argument("--tiny", action="store_true", help="the base without torch")
    serve.set_defaults(command=_serve)
    return parser


def _up(words: argparse.Namespace) -> None:
    daemon.keep()
    engine = images.client()
    for version in words.version or ["0.5.17"]:
        _told(f"tiny base {version}", partial(bases.tiny_base, engine, version))
        if not words.tiny:
            _told(f"torch base {version}", partial(torch_base.torch_base, engine, version))
    _told("upstream repository", lambda: upstream_repository().path)
    _told("draft checkpoint", lambda: checkpoints.write_draft(cache.FOLDER / "draft"))


def _down(words: argparse.Namespace) -> None:
    if words.images and daemon.answers():
        _remove_images(images.client())
    pid = daemon.started_by_lab()
    daemon.release()
    if pid is None:
        print("the Docker daemon is not the lab's: left alone")
    elif daemon.started_by_lab() is None:
        print(f"the lab's Docker daemon (process {pid}) is stopped")
    else:
        print(f"the lab's Docker daemon (process {pid}) is still used by another run")


def _remove_images(engine: docker.DockerClient) -> None:
    for label in (images.RUN_LABEL, images.RECIPE_LABEL):
        for image in engine.images.list(filters={"label": label}):
            for tag in image.tags:
                engine.images.remove(tag, force=True)
                print(f"removed {tag}")


def _status(words: argparse.Namespace) -> None:
    print(f"cache            {cache.FOLDER}")
    for version in wheels.VERSIONS:
        if (cache.FOLDER / "trees" / version).exists():
            print(f"tree             {cache.FOLDER / 'trees' / version}")
    if not daemon.answers():
        print("docker           no daemon answers")
        return
    pid = daemon.started_by_lab()
    print(f"docker           {f'started by the lab, process {pid}' if pid else 'was there'}")
    for image in images.client().images.list(filters={"label": images.RECIPE_LABEL}):
        print(f"image            {', '.join(image.tags) or image.id}")


def _serve(words: argparse.Namespace) -> None:
    from tests.lab.registry_server import HUB_REPOSITORY, registry

    with daemon.docker_daemon() as engine:
        make = bases.tiny_base if words.tiny else torch_base.torch_base
        with registry(engine, cache.FOLDER / "registry") as hub:
            hub.push(make(engine).name, "qwen38-27b")
            print(f"{HUB_REPOSITORY}:qwen38-27b is served; give --registry-mirror {hub.prefix}")
            try:
                while True:
                    time.sleep(3600)
            except KeyboardInterrupt:
                print("stopped")


def _told(what: str, make: Callable[[], object]) -> None:
    start = time.monotonic()
    made = make()
    name = made.name if isinstance(made, bases.BaseImage) else made
    print(f"{what:20} {time.monotonic() - start:6.1f} s  {name}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
