"""Run the compatibility check over a corpus of real files, and compare it with a real interpreter.

    python -m benchmarks.compat_corpus                  210 files, 30 of each step between two releases
    python -m benchmarks.compat_corpus --step 0.5.17    only files of 0.5.17 put on 0.5.16
    python -m benchmarks.compat_corpus --per-step 60    more files
    python -m benchmarks.compat_corpus --skip 30        the next 210: files that nobody looked at when rules were made
    python -m benchmarks.compat_corpus --json           one document on stdout, with every disagreement

The corpus: files below `srt/` that changed between two releases, each put alone on the older tree, drawn by hash and
spread over steps and folders. Ground truth shares nothing with the check: `corpus_truth` resolves every import, name,
attribute and call in a real interpreter of the older tree, on the lab's torch base, and again in that of the file's own
release. What only the older one lacks is a break. What no interpreter here can tell (a module that needs a GPU's
packages, an object made at run time) is left out on both sides, and counted.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import docker

from benchmarks import corpus_figures as figures
from benchmarks.corpus_figures import Compared, Pair, Said, Use
from builder import compat
from builder.doors import Complaint, TypeChecker
from builder.model import Oid, Tree
from builder.type_checker import Pyrefly
from tests.lab import bases, cache, daemon, host, images, torch_base, wheels

_PACKAGE: Final = "sglang"
_FOLDER: Final = f"{_PACKAGE}/srt/"
_TRUTH: Final = Path(__file__).parent / "corpus_truth"
_PER_STEP: Final = 30
_SHOWN: Final = 20
_IMPORTERS: Final = 40
"""How many importers of each replaced file are judged, drawn by hash: some files have five hundred."""
_AT_ONCE: Final = 2
_MEMORY: Final = "8g"
_ENVIRONMENT: Final = {
    "PYTHONPATH": "/program",
    "PYTHONDONTWRITEBYTECODE": "1",
    "HOME": "/tmp",
    "HF_HUB_OFFLINE": "1",
}
_IMPORTS: Final = re.compile(rb"^[ \t]*(?:from|import)[ \t]+(?:%b\b|\.)" % _PACKAGE.encode(), re.MULTILINE)
_STEPS: Final = tuple(zip(wheels.VERSIONS, wheels.VERSIONS[1:], strict=False))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the corpus; the exit code tells whether it could be run, not whether targets are met."""
    words = _parser().parse_args(arguments)
    try:
        return _run(words)
    except host.LabError as error:
        _say(str(error))
        return 1


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compat_corpus", description=__doc__, formatter_class=layout
    )
    parser.add_argument("--step", action="append", choices=wheels.VERSIONS[1:], help="only files of this release")
    parser.add_argument("--per-step", type=int, default=_PER_STEP, metavar="N", help=f"files of each ({_PER_STEP})")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="leave out the first N files of each step")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N pairs only")
    parser.add_argument("--whole", action="store_true", help="let the type checker read every merged tree as a whole")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _run(words: argparse.Namespace) -> int:
    first, last = words.skip, words.skip + words.per_step
    corpus = [pair for older, newer in _STEPS for pair in choose(older, newer, last)[first:]]
    pairs = [pair for pair in corpus if not words.step or pair.newer in words.step][: words.limit]
    started = time.perf_counter()
    # What was found out for the whole corpus serves a part of it too.
    truth = Truth.of(corpus if Truth.is_kept(corpus) else pairs)
    took = {"truth": time.perf_counter() - started}
    compared, seconds = _compared(pairs, truth, is_whole=words.whole)
    took["check"] = sum(seconds)
    if words.json:
        print(json.dumps(_document(pairs, truth, compared, took, seconds), indent=1))
    else:
        print(_table(pairs, truth, compared, took, seconds))
    return 0


# -- the corpus --------------------------------------------------------------------------------------------------------


def choose(older: str, newer: str, count: int) -> list[Pair]:
    """Draw files that changed in a step: folders in turn, in an order that only hashes of their names decide."""
    before, after = (wheels.tree(version) for version in (older, newer))
    folders: dict[str, list[Pair]] = {}
    for path in sorted(file.relative_to(after).as_posix() for file in (after / _FOLDER).rglob("*.py")):
        data = (after / path).read_bytes()
        is_new = not (before / path).exists()
        if _IMPORTS.search(data) and (is_new or (before / path).read_bytes() != data):
            folder = path.removeprefix(_FOLDER).rpartition("/")[0].partition("/")[0]
            folders.setdefault(folder, []).append(Pair(older, newer, path, is_new))
    queues = [sorted(found, key=lambda pair: _drawn(newer, pair.path)) for found in folders.values()]
    queues.sort(key=lambda found: _drawn(newer, found[0].path))
    turns = (found[turn] for turn in range(max(map(len, queues))) for found in queues if turn < len(found))
    return [pair for pair, _ in zip(turns, range(count), strict=False)]


def _drawn(version: str, path: str) -> str:
    return hashlib.sha256(f"{version}:{path}".encode()).hexdigest()


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


# -- ground truth ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """What the interpreters of the releases say: release -> answer of `corpus_truth`."""

    answers: Mapping[str, Mapping[str, Any]]

    @classmethod
    def is_kept(cls, pairs: Sequence[Pair]) -> bool:
        """Tell whether every interpreter has been asked about these pairs."""
        return all(_is_kept(version, jobs) for version, jobs in _all_jobs(pairs).items())

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Truth:
        """Ask every interpreter that is needed; answers are kept by program, trees and jobs."""
        wanted = _all_jobs(pairs)
        missing = [version for version in wanted if not _is_kept(version, wanted[version])]
        if missing:
            with daemon.docker_daemon() as engine:
                _ask_all(engine, {version: wanted[version] for version in missing})
        return cls({version: json.loads(_kept(version, found).read_bytes()) for version, found in wanted.items()})

    def uses(self, pair: Pair) -> list[Use]:
        """Return everything that is known of a pair, forward and reverse."""
        older, newer = self.answers[pair.older]["uses"], self.answers[pair.newer]["uses"]
        name, module = f"forward:{pair.newer}:{pair.path}", _module(pair.path)
        found = figures.forward(pair.path, older.get(name, []), newer.get(name, []))
        own = tuple(found)
        lacking = {use.symbol for use in own if use.status == "break"}
        for path in [] if pair.is_new else _importers(pair.older, module):
            name = f"reverse:{pair.older}:{path}"
            found += figures.reverse(path, module, older.get(name, []), newer.get(name, []), lacking)
            found += figures.falls(own, path, module, older.get(name, []))
        return found

    @property
    def imported(self) -> Mapping[str, tuple[int, int]]:
        """Release -> modules that imported, and modules that were asked for."""
        return {version: (answer["imported"], answer["tried"]) for version, answer in self.answers.items()}


def _all_jobs(pairs: Sequence[Pair]) -> dict[str, list[dict[str, Any]]]:
    jobs = {version: _jobs(version, pairs) for version in wheels.VERSIONS}
    return {version: found for version, found in jobs.items() if found}


def _jobs(version: str, pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """List what one release's interpreter is to judge: overlaid files, and the files that import what is replaced."""
    jobs = []
    replaced: dict[tuple[str, str], set[str]] = {}
    for pair in pairs:
        if version not in (pair.older, pair.newer):
            continue
        jobs.append(_job("forward", pair.newer, pair.path, None))
        if not pair.is_new:
            for path in _importers(pair.older, _module(pair.path)):
                replaced.setdefault((pair.older, path), set()).add(_module(pair.path))
    return jobs + [_job("reverse", older, path, sorted(modules)) for (older, path), modules in sorted(replaced.items())]


def _job(kind: str, version: str, path: str, only: list[str] | None) -> dict[str, Any]:
    return {
        "id": f"{kind}:{version}:{path}",
        "file": f"/trees/{version}/{path}",
        "module": _module(path),
        "is_package": path.endswith("/__init__.py"),
        "only": only,
    }


_texts: dict[str, dict[str, bytes]] = {}


@functools.cache
def _importers(version: str, module: str) -> list[str]:
    """Draw files of a release that may import a module: those that hold its last name in an import's words."""
    if version not in _texts:
        root = wheels.tree(version)
        files = (file for file in (root / _PACKAGE).rglob("*.py"))
        _texts[version] = {file.relative_to(root).as_posix(): file.read_bytes() for file in files}
    above, _, last = module.rpartition(".")
    absolute = rb"(?:from|import)\s+%b\b" % re.escape(module).encode()
    beside = rb"from\s+(?:%b|\.+[\w.]*)\s+import\s[^#]*?\b%b\b" % (re.escape(above).encode(), last.encode())
    relative = rb"from\s+\.+[\w.]*\b%b\s+import" % last.encode()
    pattern = re.compile(b"|".join((absolute, beside, relative)))
    word = last.encode()
    found = [path for path, data in _texts[version].items() if word in data and pattern.search(data)]
    return sorted(found, key=lambda path: _drawn(version, path))[:_IMPORTERS]


def _key(version: str, jobs: Sequence[Mapping[str, Any]]) -> str:
    program = [path.read_text() for path in sorted(_TRUTH.glob("*.py"))]
    return cache.recipe_key("corpus-truth", version, json.dumps(jobs), *program)


def _place(version: str, jobs: Sequence[Mapping[str, Any]]) -> str:
    return f"corpus/{version}-{_key(version, jobs)}.json"


def _is_kept(version: str, jobs: Sequence[Mapping[str, Any]]) -> bool:
    return (cache.FOLDER / _place(version, jobs)).exists()


def _kept(version: str, jobs: Sequence[Mapping[str, Any]]) -> Path:
    return cache.FOLDER / _place(version, jobs)


def _ask_all(engine: docker.DockerClient, jobs: Mapping[str, list[dict[str, Any]]]) -> None:
    base = torch_base.torch_base(engine)
    label = images.RunLabel(uuid.uuid4().hex[:12])
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            for version, done in [(v, pool.submit(_ask, engine, base, label, v, found)) for v, found in jobs.items()]:
                done.result()
                _say(f"the interpreter of {version} has answered")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            label.remove_all(engine)  # which also ends what the threads wait for


def _ask(
    engine: docker.DockerClient, base: bases.BaseImage, label: images.RunLabel, version: str, jobs: list[dict[str, Any]]
) -> None:
    """Run `corpus_truth` in a container of the torch base, whose tree another release's is mounted over."""

    def make(target: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="overlay-corpus-") as name:
            folder = Path(name)
            request = {"package": _PACKAGE, "root": base.package_parent, "jobs": jobs}
            (folder / "request.json").write_text(json.dumps(request))
            mounts = {
                str(wheels.tree(version) / _PACKAGE): {"bind": f"{base.package_parent}/{_PACKAGE}", "mode": "ro"},
                str(_TRUTH): {"bind": "/program/corpus_truth", "mode": "ro"},
                str(folder): {"bind": "/exchange", "mode": "rw"},
            }
            for other in wheels.VERSIONS:
                mounts[str(wheels.tree(other))] = {"bind": f"/trees/{other}", "mode": "ro"}
            container = engine.containers.create(
                base.name,
                entrypoint=[
                    "/usr/bin/python3",
                    "-m",
                    "corpus_truth",
                    "/exchange/request.json",
                    "/exchange/answer.json",
                ],
                environment=_ENVIRONMENT,
                network_mode="none",
                volumes=mounts,
                labels=label.labels,
                working_dir="/",
                mem_limit=_MEMORY,
            )
            container.start()
            status = container.wait(timeout=1800)["StatusCode"]
            if status or not (folder / "answer.json").exists():
                said = host.last_lines(container.logs().decode(errors="replace"))
                raise host.LabError(f"the interpreter of {version} exited {status}:\n{said}")
            target.write_bytes((folder / "answer.json").read_bytes())

    cache.made_once(_place(version, jobs), _key(version, jobs), make)


# -- the tool ----------------------------------------------------------------------------------------------------------


class Narrowed:
    """A type checker that reads whole releases once, and of a merged tree only some files.

    What it says of an unchanged file that imports nothing from the overlaid one seldom changes, and reading all of two
    hundred merged trees would take an hour; `--whole` does, to prove it.
    """

    def __init__(self, checker: TypeChecker, releases: Collection[Tree]) -> None:
        self.name = checker.name
        self.files: Collection[str] | None = None
        """What to read of merged trees; all of them if None."""
        self._checker = checker
        self._releases = {id(tree) for tree in releases}
        self._answers: dict[int, tuple[Complaint, ...]] = {}

    def version(self) -> str:
        return self._checker.version()

    def check(self, tree: Tree, package: str, files: Collection[str] | None = None) -> tuple[Complaint, ...]:
        if id(tree) not in self._releases:
            return self._checker.check(tree, package, self.files if files is None else files)
        if id(tree) not in self._answers:
            self._answers[id(tree)] = self._checker.check(tree, package)
        return tuple(said for said in self._answers[id(tree)] if files is None or said.path in files)


def _compared(pairs: Sequence[Pair], truth: Truth, *, is_whole: bool) -> tuple[Compared, list[float]]:
    trees = {version: release(version) for version in {v for pair in pairs for v in (pair.older, pair.newer)}}
    checker = Narrowed(Pyrefly(cache.FOLDER / "corpus" / "checker"), trees.values())
    for version, tree in sorted(trees.items()):
        _say(f"the checker reads {version}")
        checker.check(tree, _PACKAGE)
    every = Compared()
    seconds = []
    for number, pair in enumerate(pairs):
        if number % 10 == 0:
            _say(f"checking pair {number + 1} of {len(pairs)}")
        judged = {pair.path, *_importers(pair.older, _module(pair.path))}
        checker.files = None if is_whole else judged
        started = time.perf_counter()
        said = [one for one in _check(pair, trees, checker) if one.path in judged]
        seconds.append(time.perf_counter() - started)
        every.add(figures.compare(pair, truth.uses(pair), said))
    return every, seconds


def _check(pair: Pair, trees: Mapping[str, Tree], checker: TypeChecker) -> Iterator[Said]:
    """Run the check of the tool on one pair: the only place that knows how it is called."""
    before = trees[pair.older]
    data = trees[pair.newer].read(pair.path)
    assert data is not None
    after = before.overlaid({pair.path: data})
    comparison = compat.Comparison(before, after, frozenset({pair.path}), {pair.path: trees[pair.newer]})
    result = compat.check(comparison, checker)
    for finding in result.findings:
        yield Said(finding.kind, finding.path, finding.line, finding.symbol, finding.message, finding.names)
    for line in result.unknown:
        if match := re.match(r"(\S+?):(\d+) (?:uses|reads) (\S+?): ", line):
            kind = "config-leaf-missing" if "()." in match[3] else "name-missing"
            yield Said(kind, match[1], int(match[2]), match[3], line, is_unknown=True)
        elif line.startswith("attribute-missing, signature: "):
            raise host.LabError(f"{pair.path}: {line}")


def release(version: str) -> Tree:
    """Return the tree of a release, with its blob ids."""
    root = wheels.tree(version)
    files = [file for file in (root / _PACKAGE).rglob("*") if file.is_file()]
    paths = frozenset(file.relative_to(root).as_posix() for file in files)
    kept: dict[str, bytes] = {}

    def read(path: str) -> bytes | None:
        if path not in paths:
            return None
        if path not in kept:
            kept[path] = (root / path).read_bytes()
        return kept[path]

    blobs = {path: Oid.of_blob(data) for path in paths if path.endswith(".py") and (data := read(path)) is not None}
    return Tree(paths, read, blobs)


# -- the report --------------------------------------------------------------------------------------------------------


def _table(
    pairs: Sequence[Pair], truth: Truth, compared: Compared, took: Mapping[str, float], seconds: Sequence[float]
) -> str:
    new = sum(pair.is_new for pair in pairs)
    shares = ", ".join(f"{version} {done}/{asked}" for version, (done, asked) in truth.imported.items())
    return "\n".join(
        [
            f"{len(pairs)} pairs of {len({pair.newer for pair in pairs})} steps, {new} of them files the base lacks",
            f"modules that imported: {shares}",
            f"seen here: truth {took['truth']:.0f} s, check {took['check']:.0f} s, {max(seconds):.1f} s at most",
            "",
            figures.table(compared),
            "",
            *_listed("missed", compared.missed),
            *_listed("false alarms", compared.false_alarms),
        ]
    )


def _listed(title: str, found: Sequence[figures.Disagreement]) -> list[str]:
    return [f"{title}: {len(found)}", *(f"  {row}" for row in figures.worst(found, _SHOWN)), ""]


def _document(
    pairs: Sequence[Pair], truth: Truth, compared: Compared, took: Mapping[str, float], seconds: Sequence[float]
) -> Mapping[str, object]:
    return {
        "schema": "overlay.compat-corpus/1",
        "pairs": [vars(pair) for pair in pairs],
        "imported": truth.imported,
        **figures.document(compared),
        "seen": {"seconds": took, "check_seconds": list(seconds)},
    }


def _say(text: str) -> None:
    print(f"compat corpus: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
