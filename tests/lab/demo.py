"""The main job on real SGLang code, from an empty machine to an audited image.

Runs the real `overlay` command and prints what happens. Ends with 1 when any step's result is
not what the project promises.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import docker
from docker.errors import ImageNotFound

from builder.model import Oid
from tests.lab import bases, cache, checkpoints, daemon, host, images, torch_base, wheels
from tests.lab.git_history import Repository
from tests.lab.registry_server import HUB_REPOSITORY, Registry, registry
from tests.lab.upstream_repo import PULL_REQUEST, PULL_REQUEST_FILES, upstream_repository

_HERE: Final = Path(__file__).parent
_BASE: Final = "qwen38-27b"
_TAG: Final = "sglang-qwen38-27b-dflash2:local"
_ARCHITECTURE: Final = "DFlash2DraftModel"

_CATALOGUE: Final = _HERE / "catalogue"
_DEFINITION: Final = "overlays/dflash2.toml"
_QUICK: Final = _HERE / "quick-acknowledgements.toml"

_STAND_IN: Final = """\
The pull request here is a STAND-IN: the real merge of #35371 cannot be reached from a test
machine. Its five files go from SGLang release 0.5.18's bytes to release 0.5.19's, which is the
first release that has DFlash2: real upstream code, and harder than the real pull request,
because a release drags later work along. The base is release 0.5.17 laid out as the official
image has it; everything is served on this machine alone."""

Document = dict[str, Any]


@dataclass
class Demo:
    """What the steps share."""

    engine: docker.DockerClient
    is_quick: bool
    scratch: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Sequence[str] = ()
    times: list[tuple[str, float]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Announce a step and note how long it takes."""
        print(f"\n=== {title}", flush=True)
        start = time.monotonic()
        yield
        self.times.append((title, time.monotonic() - start))

    def promise(self, text: str, is_kept: bool) -> None:
        """Print a promise of the project with whether it was kept."""
        print(f"  {'ok  ' if is_kept else 'FAIL'} {text}", flush=True)
        if not is_kept:
            self.broken.append(text)

    def overlay(self, *arguments: str) -> tuple[int, Document]:
        """Run `overlay` and return its exit code and document; its talk goes to the terminal."""
        # What the step itself says comes last, and counts.
        command = [arguments[0], *self.settings, *arguments[1:]]
        print(f"  $ overlay {shlex.join(arguments)}", flush=True)
        argv = [str(Path(sys.executable).with_name("overlay")), *command, "--json"]
        done = subprocess.run(argv, env=dict(self.environment), cwd=self.scratch, stdout=subprocess.PIPE, check=False)
        try:
            document: Document = json.loads(done.stdout)
        except ValueError:
            document = {"verdict": "no document"}
        return done.returncode, document


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit code."""
    parser = argparse.ArgumentParser(prog="./demo", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="on the tiny base, without torch")
    parser.add_argument("--clean", action="store_true", help="remove the image at the end")
    words = parser.parse_args(arguments)
    print(_STAND_IN)
    start = time.monotonic()
    try:
        with daemon.docker_daemon() as engine:
            demo = _prepare_and_run(engine, words.quick)
            if words.clean:
                _forget_demo(engine)
    except host.LabError as error:
        print(f"\ndemo: the lab cannot be brought up: {error}", file=sys.stderr)
        return 1
    return _conclude(demo, time.monotonic() - start, is_kept=not words.clean)


def _prepare_and_run(engine: docker.DockerClient, is_quick: bool) -> Demo:
    with (
        tempfile.TemporaryDirectory(prefix="overlay-demo-") as name,
        registry(engine, cache.FOLDER / "registry") as hub,
    ):
        scratch = Path(name)
        demo = Demo(engine, is_quick, scratch)
        with demo.step("Upstream: SGLang's releases as a git repository"):
            upstream = upstream_repository()
            print(f"  {upstream.path}")
        demo.environment = _environment(scratch)
        demo.settings = _settings(hub, upstream, _quick_catalogue(scratch) if is_quick else _CATALOGUE)
        _forget_demo(engine)
        with _served_base(demo, hub) as base:
            _run(demo, base)
        return demo


def _run(demo: Demo, base: Served) -> None:
    draft = checkpoints.write_draft(demo.scratch / "draft")
    if not demo.is_quick:
        _derive(demo)
    _plan(demo)
    built = _build(demo, draft)
    image = (built.get("image") or {}).get("id")
    if image and built["verdict"] == "ok":
        _history(demo, image, base)
        _record(demo, image, built["manifest"]["path"])
        _audit(demo)
        _build_again(demo, draft, image)


def _environment(scratch: Path) -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY_")}
    # An empty cache, so that the times are a first run's; and no network but loopback.
    folders = {f"XDG_{kind}_HOME": str(scratch / kind) for kind in ("CACHE", "STATE")}
    return {**kept, **folders, "GIT_ALLOW_PROTOCOL": "file"}


def _quick_catalogue(scratch: Path) -> Path:
    """Return the lab's catalogue, whose definition acknowledges what cannot be told without torch."""
    copy = Path(shutil.copytree(_CATALOGUE, scratch / "catalogue"))
    with (copy / _DEFINITION).open("a", encoding="utf-8") as definition:
        definition.write(_QUICK.read_text())
    return copy


def _settings(hub: Registry, upstream: Repository, catalogue: Path) -> Sequence[str]:
    return [
        *("--catalogue", str(catalogue)),
        *("--upstream", str(upstream.path)),
        *("--registry-mirror", hub.prefix),
    ]


def _forget_demo(engine: docker.DockerClient) -> None:
    """Remove a demo's image, never one that somebody made of a real base."""
    try:
        image = engine.images.get(_TAG)
    except ImageNotFound:
        return
    if images.RECIPE_LABEL in image.labels:
        engine.images.remove(_TAG)


@dataclass(frozen=True)
class Served:
    """The demo's base as the registry has it; the engine has it no more, or again."""

    name: str
    id: str
    layers: list[str]


@contextmanager
def _served_base(demo: Demo, hub: Registry) -> Iterator[Served]:
    kind = "tiny base" if demo.is_quick else "torch base"
    with demo.step(f"Base: {HUB_REPOSITORY}:{_BASE}, made of release 0.5.17 ({kind})"):
        served = _demo_base(demo)
        print(f"  pushed to the local registry: {hub.push(served.name, _BASE)}")
        # Gone from the engine, so that the tool has to pull what it works on.
        demo.engine.images.remove(served.name)
    try:
        yield served
    finally:
        _take_back(demo.engine, served, hub)


def _demo_base(demo: Demo) -> Served:
    """Return an image of the demo's own: the lab's bases stay where other runs look for them."""
    make = bases.tiny_base if demo.is_quick else torch_base.torch_base
    base = make(demo.engine)

    def derive(name: str, labels: Mapping[str, str]) -> None:
        bases.labelled(demo.engine, base, name, labels)

    name = f"{images.REPOSITORY}/demo-{'quick' if demo.is_quick else 'full'}:{_BASE}"
    image = images.made_once(demo.engine, name, cache.recipe_key("demo", base.id), derive)
    return Served(name, image, _layers(demo.engine, image))


def _take_back(engine: docker.DockerClient, served: Served, hub: Registry) -> None:
    """Give the pulled base its name in the lab again, instead of the registry's."""
    with suppress(ImageNotFound):
        image = engine.images.get(served.id)
        image.tag(served.name)
        for name in image.attrs["RepoDigests"]:
            if name.startswith(hub.prefix):
                engine.images.remove(name, noprune=True)


# -- steps ---------------------------------------------------------------------------------


_LACKS: Final = (
    "spec_utils.sample_simulated_acc_len",
    "logprob_processor.compute_spec_logprobs",
    "lora.layers.unwrap_lora_layer",
    "runtime_context.mamba_track_grid",
    "speculative.spec_tp_sync",
    "kv_cache_dtype.configure_kv_cache_dtype",
    "DFlashDraftInputV2.nxt_kv_lens_cpu",
    "get_spec().speculative_draft_kv_cache_dtype",
)


def _derive(demo: Demo) -> None:
    """Show what the five files lack on this base when they are copied whole, as hand-made overlays do."""
    root = wheels.tree("0.5.17")
    shelf = demo.scratch / "copies"
    for name in ("overlays", "images", "patches"):
        (shelf / name).mkdir(parents=True)
    rules = "".join(_copied(path, root) for path in PULL_REQUEST_FILES)
    definition = f'title = "Whole copies"\npull-requests = [{PULL_REQUEST}]\n{rules}'
    (shelf / "overlays/copies.toml").write_text(definition)
    with demo.step("Derive: what the five files, copied whole, would lack on 0.5.17, and what settles it"):
        words = ("--base", f"dir:{root}", "--overlay", "copies", "--catalogue", str(shelf))
        _, plan = demo.overlay("plan", *words)
        _, adapted = demo.overlay("adapt", *words)
    for finding in plan.get("findings", []):
        print(f"  {finding['kind']:20} {finding['path']}:{finding['line']}  {finding['symbol']}")
    for proposal in adapted.get("proposals", []):
        print(f"  {'proposed' if proposal['accepted'] else 'offered':9} {proposal['id']}: {proposal['title'][:100]}")
    symbols = [finding["symbol"] for finding in plan.get("findings", [])]
    found = [lack for lack in _LACKS if any(symbol.endswith(lack) for symbol in symbols)]
    demo.promise(f"{len(_LACKS)} forward breaks are derived, of every kind", found == list(_LACKS))
    fallen = {finding["path"] for finding in plan.get("findings", []) if finding["kind"] == "reverse"}
    demo.promise("DSpark and the scheduler are said to go down with them", {*_FALLEN} <= fallen)
    left = adapted.get("needed_a_person")
    demo.promise("what has a mechanical answer is settled by proposals; four need a person", left == 4)


_FALLEN: Final = ("sglang/srt/models/dspark.py", "sglang/srt/managers/scheduler.py")


def _copied(path: str, root: Path) -> str:
    blob = Oid.of_blob((root / path).read_bytes())
    accept = f'[{{ base-blob = "{blob}", reason = "the demo shows what is wrong with it" }}]'
    return f'[[file]]\npath = "{path}"\nstrategy = "copy"\nreason = "as people do by hand"\naccept = {accept}\n'


def _plan(demo: Demo) -> None:
    with demo.step("Plan"):
        code, plan = demo.overlay("plan", "--base", _BASE, "--pr", str(PULL_REQUEST))
    for file in plan.get("files", []):
        print(f"  {file['state']:16} {file.get('strategy') or '':6} {file['path']}")
    for carried in plan.get("carried", []):
        print(f"  {'carried':16} {'':6} {carried['path']} {' '.join(carried['symbols'])}")
    for patch in plan.get("patches", []):
        print(f"  patch {patch['id']}: {patch['outcome']} ({patch['fact']})")
    for finding in plan.get("findings", []):
        said = "acknowledged" if finding["acknowledged"] else "OPEN"
        print(f"  finding {finding['kind']}: {finding['symbol']} ({said})")
    demo.promise("plan: verdict ok, exit 0", (code, plan["verdict"]) == (0, "ok"))


def _build(demo: Demo, draft: Path) -> Document:
    with demo.step("Build"):
        code, built = _run_build(demo, draft)
    for check in (built.get("smoke") or {}).get("checks", []):
        print(f"  smoke {check['outcome']:14} {check['name']}: {check['message']}")
        if reason := check.get("acknowledged"):
            print(f"  {'':20} acknowledged: {reason}")
    demo.promise("build: verdict ok, exit 0", (code, built["verdict"]) == (0, "ok"))
    image = (built.get("image") or {}).get("id")
    tagged = images.image_id(demo.engine, _TAG)
    demo.promise(f"{_TAG} is the image that was built", bool(image) and image == tagged)
    if not demo.is_quick:
        _promise_weights(demo, built)
    return built


def _run_build(demo: Demo, draft: Path) -> tuple[int, Document]:
    report = demo.scratch / "report.json"
    words = ("--draft", str(draft), "--report", str(report))
    return demo.overlay("build", "--base", _BASE, "--pr", str(PULL_REQUEST), *words)


def _promise_weights(demo: Demo, built: Document) -> None:
    checks = {check["name"]: check for check in (built.get("smoke") or {}).get("checks", [])}
    facts = (checks.get("weight-drop") or {}).get("facts") or {}
    demo.promise(f"{_ARCHITECTURE} resolves to itself", _ARCHITECTURE in str(facts.get("class", "")))
    counted = (facts.get("tensors"), facts.get("dropped"))
    demo.promise("0 of 36 draft tensors are dropped", counted == (36, []))
    settled = [_is_settled(checks.get(name, {})) for name in ("imports", "importers")]
    demo.promise("what imported on the base still does (DSpark too)", all(settled))


def _is_settled(check: Mapping[str, Any]) -> bool:
    # Modules that do not import on the untouched base either: the definition says which, and why.
    acknowledged = check.get("outcome") == "unknown" and check.get("acknowledged")
    return check.get("outcome") == "pass" or bool(acknowledged)


def _history(demo: Demo, image: str, base: Served) -> None:
    with demo.step("docker history (newest five)"):
        layers = demo.engine.images.get(image).history()
    for layer in layers[:5]:
        created_by = " ".join(layer["CreatedBy"].split())
        print(f"  {layer['Size']:>12,} B  {created_by[:80]}")
    demo.promise(
        "exactly one layer more than the base, whose layers are an unchanged prefix",
        _layers(demo.engine, image)[:-1] == base.layers,
    )


def _audit(demo: Demo) -> None:
    with demo.step("Audit"):
        code, audited = demo.overlay("audit", _TAG)
    for finding in audited.get("findings", []):
        print(f"  {finding['class']} {finding['path']}: {finding['message']}")
    demo.promise("audit: verdict ok, exit 0", (code, audited["verdict"]) == (0, "ok"))


def _build_again(demo: Demo, draft: Path, image: str) -> None:
    with demo.step("The same build again"):
        code, built = _run_build(demo, draft)
    again = built.get("image") or {}
    is_same = (code, again.get("id"), again.get("reused")) == (0, image, True)
    demo.promise("the image is used again, with the same ID", is_same)


def _record(demo: Demo, image: str, path: str) -> None:
    with demo.step(f"Record: {path} in the image"):
        manifest = json.loads(_read_file(demo.engine, image, path))
    base = manifest["base"]
    print(f"  base      {base['reference']} {base['digest']}")
    print(f"  live root {base['live_root']}, by {base['found_by']}")
    for pull in manifest["pull_requests"]:
        print(f"  pull      {pull['repo']}#{pull['number']} {pull['parent']}..{pull['result']}")
    for file in manifest["result"]:
        print(f"  file      {(file['base_blob'] or 'new')[:8]:8} -> {file['blob'][:8]} {file['path']}")
    others = ("carried", "patches", "skipped", "drift", "findings", "not_checked")
    print("  recorded  " + ", ".join(f"{len(manifest.get(name) or ())} {name}" for name in others))


def _read_file(engine: docker.DockerClient, image: str, path: str) -> bytes:
    container = engine.containers.create(image, ["true"], network_mode="none")
    try:
        stream, _ = container.get_archive(path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
            member = archive.extractfile(archive.getmembers()[0])
            return member.read() if member else b""
    finally:
        container.remove()


def _layers(engine: docker.DockerClient, image: str) -> list[str]:
    return list(engine.images.get(image).attrs["RootFS"]["Layers"])


def _conclude(demo: Demo, seconds: float, *, is_kept: bool) -> int:
    print("\n=== Times")
    for title, spent in demo.times:
        print(f"  {spent:7.1f} s  {title}")
    print(f"  {seconds:7.1f} s  in all")
    if demo.broken:
        print(f"\ndemo: {len(demo.broken)} promise(s) broken:")
        print("\n".join(f"  {text}" for text in demo.broken))
        return 1
    print("\ndemo: every promise kept")
    if is_kept:
        print(f"{_TAG} stays; remove it with: docker rmi {_TAG}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
