"""The command line: the only place that prints and sets exit codes. Heavy modules are imported when needed."""

from __future__ import annotations

import errno
import functools
import gc
import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from builder import __version__
from builder.errors import InputError, OverlayError, Unavailable

if TYPE_CHECKING:
    from builder.build import Doors, Request
    from builder.catalogue import Catalogue
    from builder.checkpoint import Checkpoint
    from builder.records import Document

EXIT_CODES = """\b
Exit codes:
  0    done, or already so
  1    the answer is no or unknown: conflict, rejected patch, failed check
  2    fix your input
  3    unavailable: engine, network, registry, forge or git; try again
  70   a bug of ours
  130  interrupted (143: by SIGTERM)
"""

_DOCUMENTED = ("plan", "adapt", "build", "smoke", "audit", "list")
_PIPE_WIDTH = 100_000
_VERDICT_EXIT = {"ok": 0, "already-present": 0, "refused": 1, "failed": 1, "unknown": 1}
_SETTING_KEYS = ("catalogue", "upstream", "upstream_branch", "forge", "registry_mirror", "json", "debug", "quiet")


@dataclass(frozen=True)
class Settings:
    """The global settings as given by options; None where an option was not given."""

    catalogue: str | None = None
    upstream: str | None = None
    upstream_branch: str | None = None
    forge: str | None = None
    registry_mirror: str | None = None
    json: bool | None = None
    debug: bool | None = None
    quiet: bool | None = None


_F = TypeVar("_F", bound=Callable[..., Any])
_D = TypeVar("_D", bound="Document")


def _global_options(function: _F) -> _F:
    """Add the global settings to a command; they may stand before or after its name."""
    options = [
        click.option("--catalogue", metavar="DIR", help="Folder with overlays/ and images/ [OVERLAY_CATALOGUE]."),
        click.option("--upstream", metavar="URL|PATH", help="Git repository to read PRs from [OVERLAY_UPSTREAM]."),
        click.option("--upstream-branch", metavar="NAME", help="Branch to search for PRs [OVERLAY_UPSTREAM_BRANCH]."),
        click.option("--forge", metavar="URL", help="The forge's API [OVERLAY_FORGE]."),
        click.option(
            "--registry-mirror", metavar="PREFIX", help="Prefix for Docker Hub images [OVERLAY_REGISTRY_MIRROR]."
        ),
        click.option("--json", is_flag=True, default=None, help="Print one JSON document on stdout [OVERLAY_JSON]."),
        click.option("--debug", is_flag=True, default=None, help="Show tracebacks [OVERLAY_DEBUG]."),
        click.option("--quiet", is_flag=True, default=None, help="No progress and talk on stderr [OVERLAY_QUIET]."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def _command(function: Callable[..., int]) -> Callable[..., int]:
    """Collect the global settings from both places and hand them over as `settings`."""

    @_global_options
    @click.pass_context
    @functools.wraps(function)
    def wrapper(context: click.Context, /, **words: Any) -> int:
        here = {key: words.pop(key) for key in _SETTING_KEYS}
        outer = context.obj if isinstance(context.obj, Settings) else Settings()
        given = {key: value for key, value in here.items() if value is not None}
        settings = _from_environment(replace(outer, **given))
        context.obj = settings
        return function(settings, **words)

    return wrapper


def _from_environment(settings: Settings) -> Settings:
    found: dict[str, Any] = {}
    for key in _SETTING_KEYS:
        value = os.environ.get(f"OVERLAY_{key.upper()}")
        if getattr(settings, key) is None and value:
            is_flag = key in ("json", "debug", "quiet")
            found[key] = value.lower() not in ("0", "false", "no") if is_flag else value
    return replace(settings, **found)


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="overlay")
@_global_options
@click.pass_context
def cli(context: click.Context, /, **words: Any) -> None:
    """Put upstream pull requests onto a container image nobody can rebuild, and prove later what was done."""
    context.obj = Settings(**words)


def _plan_options(function: _F) -> _F:
    options = [
        click.option("--base", required=True, help="Catalogue alias, image reference, digest, or dir:PATH."),
        click.option(
            "--pr", "pull_requests", multiple=True, type=click.IntRange(1), help="PR number; repeat to stack."
        ),
        click.option("--overlay", "overlay_name", metavar="NAME", help="Use this definition of the catalogue."),
        click.option("--no-definition", is_flag=True, help="Merge every runtime file, whatever the catalogue says."),
        click.option("--platform", metavar="OS/ARCH", help="Platform of the base; the engine's own by default."),
        click.option("--live-root", metavar="PATH", help="Which copy of the package to use, where several are live."),
        click.option("--force", is_flag=True, help="Go on where the base already has the pull request."),
        click.option("--accept-closed", is_flag=True, help="Accept a pull request that was closed without merging."),
        click.option("--locked", is_flag=True, help="Refuse whatever the definition's lock does not pin."),
        click.option("--normalise-line-endings", is_flag=True, help="Read patches with CRLF as if they had LF."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def _checkpoint_options(function: _F) -> _F:
    options = [
        click.option("--draft", metavar="PATH", help="Draft checkpoint to judge (folder or .safetensors file)."),
        click.option("--target", metavar="PATH", help="Target checkpoint to judge (folder or .safetensors file)."),
        click.option("--require", metavar="draft,target", default="", help="Fail where this input is not given."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@cli.command()
@_plan_options
@_command
def plan(settings: Settings, **words: Any) -> int:
    """Show what a build would do: per-file states, conflicts, patches, findings. Builds and tags nothing."""
    from builder import build, render
    from builder import plan as plans

    shelf = _catalogue(settings)
    made = build.make_plan(_request(words), shelf, _doors(settings, shelf))
    document = plans.document(made)
    return _answer(settings, document, render.plan)


@cli.command()
@_plan_options
@click.option("--write", "is_writing", is_flag=True, help="Write patches and definition into the catalogue.")
@click.option("--name", metavar="NAME", help="Name of the new definition; pr<number> by default.")
@click.option("--accept", "accepted", metavar="ID", multiple=True, help="Take this alternative; repeat for several.")
@_command
def adapt(settings: Settings, **words: Any) -> int:
    """Propose what makes the pull requests fit this base: compat patches and carries. Writes only with --write."""
    from builder import adaptation, render

    shelf = _catalogue(settings)
    wish = adaptation.Wish(frozenset(words["accepted"]), words["is_writing"], words["name"])
    made = adaptation.run(_request(words), wish, shelf, _doors(settings, shelf))
    return _answer(settings, adaptation.document(made), render.adapt)


@cli.command()
@_plan_options
@_checkpoint_options
@click.option("--tag", metavar="REF", help="Tag of the new image; sglang-<base>-<overlay>:local by default.")
@click.option("--replace", "is_replacing", is_flag=True, help="Move the tag even if another image has it.")
@click.option("--report", metavar="FILE", help="Where to write the build report; the state folder by default.")
@_command
def build(settings: Settings, **words: Any) -> int:
    """Build the base plus one thin layer, smoke-test it, and tag it last."""
    from builder import build as pipeline
    from builder import render, results
    from builder.model import ImageRef

    shelf = _catalogue(settings)
    wanted = pipeline.Wanted(
        tag=ImageRef.parse(words["tag"]) if words["tag"] else None,
        is_replacing=words["is_replacing"],
        draft=_checkpoint(words["draft"], "--draft"),
        target=_checkpoint(words["target"], "--target"),
        require=_required(words["require"]),
        report=Path(words["report"]) if words["report"] else None,
        state=_state_folder(),
    )
    outcome = pipeline.build(_request(words), wanted, shelf, _doors(settings, shelf))
    document = results.build_document(outcome)
    return _answer(settings, document, render.build)


@cli.command()
@click.argument("image")
@_checkpoint_options
@click.option("--live-root", metavar="PATH", help="Which copy of the package to use, where several are live.")
@_command
def smoke(settings: Settings, **words: Any) -> int:
    """Smoke-test an image of ours, or judge a draft and a target against any image."""
    from builder import render, results

    shelf = _catalogue(settings)
    checks = results.smoke_image(
        results.require_image_name(words["image"]),
        _sources(settings, shelf).engine,
        shelf,
        draft=_checkpoint(words["draft"], "--draft"),
        target=_checkpoint(words["target"], "--target"),
        require=_required(words["require"]),
        live_root=words["live_root"],
    )
    return _answer(settings, checks, render.smoke)


@cli.command()
@click.argument("image")
@_command
def audit(settings: Settings, image: str) -> int:
    """Compare an image with the manifest in it: is it still what was built? Writes nothing."""
    from builder import render, results

    name = results.require_image_name(image)
    document = results.audit_image(name, _sources(settings, _catalogue(settings)).engine)
    return _answer(settings, document, render.audit)


@cli.command(name="list")
@_command
def list_(settings: Settings) -> int:
    """List the catalogue's definitions and bases, and the images built here."""
    from builder import render, results

    shelf = _catalogue(settings)
    document = results.listing(shelf, lambda: _sources(settings, shelf).engine)
    return _answer(settings, document, render.listing)


@cli.command()
@click.argument("name")
@_command
def schema(_settings: Settings, name: str) -> int:
    """Print the JSON Schema of a document: plan, adapt, build, smoke, list, audit, lock, manifest, report."""
    from builder import records

    click.echo(json.dumps(records.json_schema(name), indent=2, sort_keys=True))
    return 0


def _request(words: Mapping[str, Any]) -> Request:
    from builder.build import Request
    from builder.model import Platform

    return Request(
        base=words["base"],
        pull_requests=tuple(words["pull_requests"]),
        overlay=words["overlay_name"],
        is_bare=words["no_definition"],
        platform=Platform.parse(words["platform"]) if words["platform"] else None,
        live_root=words["live_root"],
        is_forced=words["force"],
        accept_closed=words["accept_closed"],
        is_normalising=words["normalise_line_endings"],
        is_locked=words["locked"],
    )


def _checkpoint(path: str | None, option: str) -> Checkpoint | None:
    if path is None:
        return None
    from builder.checkpoint import open_checkpoint

    folder = Path(path).expanduser()
    if not folder.exists():
        raise InputError(option, f"{path} does not exist", hint="give a checkpoint folder or a .safetensors file")
    return open_checkpoint(folder)


def _required(text: str) -> frozenset[str]:
    from builder.suggest import did_you_mean

    known = ("draft", "target")
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise InputError("--require", f"unknown input {word!r}{did_you_mean(word, known)}", hint="draft, target")
    return frozenset(words)


def _catalogue(settings: Settings) -> Catalogue:
    from builder import catalogue

    given = Path(settings.catalogue).expanduser() if settings.catalogue else None
    return catalogue.find(given, Path.cwd())


def _doors(settings: Settings, shelf: Catalogue) -> Doors:
    from builder.build import Doors
    from builder.type_checker import Pyrefly
    from builder.upstream import merge_file

    talk = _Talk(settings)
    return Doors(
        checker=Pyrefly(_cache_folder() / "type-checker"),
        sources=functools.cache(lambda: _sources(settings, shelf)),
        upstream=functools.cache(lambda repository: _upstream(settings, shelf, repository, talk)),
        merge3=merge_file,
        progress=talk.progress,
        say=talk.say,
    )


def _upstream(settings: Settings, shelf: Catalogue, repository: str, talk: _Talk) -> Any:
    from builder.forge import GitHubForge
    from builder.upstream import GitUpstream

    shared = shelf.settings()
    source = settings.upstream or shared.upstream
    forge_url = settings.forge or shared.forge
    # A catalogue is data from somebody: a forge that only it names is never given the user's token.
    is_trusted = settings.forge is not None or shared.forge is None
    token = (os.environ.get("GITHUB_TOKEN") or os.environ.get("GH_TOKEN")) if is_trusted else None
    forge = None
    if forge_url or not source:
        forge = GitHubForge(forge_url or "https://api.github.com", token=token)
    return GitUpstream(
        source or f"https://github.com/{repository}.git",
        forge=forge,
        branch=settings.upstream_branch or shared.upstream_branch,
        cache=_cache_folder() / "upstream",
        progress=talk.progress,
    )


def _sources(settings: Settings, shelf: Catalogue) -> Any:
    from builder import engine
    from builder.base import Sources
    from builder.registry import HttpRegistry

    mirror = settings.registry_mirror or shelf.settings().registry_mirror
    if mirror and "://" in mirror:
        hint = f"write {mirror.partition('://')[2]}"
        raise InputError("registry-mirror", f"{mirror} has a scheme; it is host[:port][/path]", hint=hint)
    return Sources(engine.connect(), HttpRegistry(), mirror, _cache_folder())


def _cache_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("overlay", appauthor=False))


def _state_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_state_dir("overlay", appauthor=False))


class _Talk:
    """Notes and progress on stderr; a live line at a terminal, a line now and then elsewhere."""

    def __init__(self, settings: Settings) -> None:
        self._is_quiet = bool(settings.quiet)
        self._is_live = sys.stderr.isatty() and not os.environ.get("CI")
        self._last: dict[str, int] = {}

    def say(self, text: str) -> None:
        """Print one note."""
        if not self._is_quiet:
            click.echo(f"overlay: {text}", err=True)

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Show how far long work is, in whole percent (every tenth where the line cannot be redrawn)."""
        if self._is_quiet or not total:
            return
        percent = 100 * done // total
        step = 1 if self._is_live else 10
        if percent // step <= self._last.get(what, -1):
            return
        self._last[what] = percent // step
        text = f"overlay: {what}: {percent} % of {total / 1e6:,.1f} MB"
        if self._is_live:
            click.echo(f"\r\033[K{text}", nl=percent >= 100, err=True)
        else:
            click.echo(text, err=True)


def _answer(settings: Settings, document: _D, rendered: Callable[[_D], Any]) -> int:
    """Print the document or its rendering, and return the exit code of its verdict."""
    if settings.json:
        body = document.model_dump(mode="json", by_alias=True)
        first = {"schema": body.pop("schema"), "verdict": body.pop("verdict")}
        click.echo(json.dumps({**first, **body}, indent=2, ensure_ascii=False))
    else:
        from rich.console import Console

        # A pipe gets whole lines: a path that is broken in two cannot be searched for.
        width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else _PIPE_WIDTH
        is_plain = bool(os.environ.get("NO_COLOR"))
        Console(highlight=False, width=width, color_system=None if is_plain else "auto").print(
            rendered(_printable(document))
        )
    return _VERDICT_EXIT[document.verdict]


def _printable(document: _D) -> _D:
    """Return the document without control characters: titles and file names come from strangers."""

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return "".join(
                sign if sign.isprintable() or sign in "\n\t" else "\N{REPLACEMENT CHARACTER}" for sign in value
            )
        if isinstance(value, list | tuple):
            return [clean(item) for item in value]
        return {clean(key): clean(item) for key, item in value.items()} if isinstance(value, dict) else value

    return type(document).model_validate(clean(document.model_dump(mode="json", by_alias=True)))


def main() -> None:
    """Run the command line and leave with the documented exit code."""
    # Syntax trees of large files make the collector run all the time and hold no cycles: a quarter of a plan's time.
    gc.disable()
    # Some of upstream's sources nest deeper than Python's own limit lets a walk over their syntax tree go.
    sys.setrecursionlimit(20_000)
    # A cancelled pipeline sends this; the way out must run, as for Ctrl-C, so that no container stays.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a title that the terminal cannot show is no reason to fail
    sys.exit(_run(sys.argv[1:]))


def _stop(number: int, _frame: object) -> None:
    for later in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(later, signal.SIG_IGN)  # the clean-up is under way, and a second signal must not cut it short
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise _Stopped(number)


class _Stopped(BaseException):
    """A signal asked for the end."""


class _Ended(OverlayError):
    """The end that somebody asked for, as an answer."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__("signal", message, hint="run the same command again")
        self.exit_code = exit_code


def _run(arguments: list[str]) -> int:
    is_json = "--json" in arguments or os.environ.get("OVERLAY_JSON", "").lower() not in ("", "0", "false", "no")
    is_debug = "--debug" in arguments or os.environ.get("OVERLAY_DEBUG", "").lower() not in ("", "0", "false", "no")
    command = next((word for word in arguments if word in cli.commands), "overlay")
    try:
        result = cli.main(arguments, prog_name="overlay", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except OverlayError as error:
        if is_debug:
            traceback.print_exc()
        return _fail(error, command, is_json=is_json)
    except (KeyboardInterrupt, click.exceptions.Abort):
        return _fail(_Ended("interrupted", 130), command, is_json=is_json)
    except _Stopped as stopped:
        number = signal.Signals(stopped.args[0])
        return _fail(_Ended(f"stopped by {number.name}", 128 + number), command, is_json=is_json)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.ClickException as error:
        hint = f"overlay {command} --help" if command != "overlay" else "overlay --help"
        return _fail(InputError("arguments", error.format_message(), hint=hint), command, is_json=is_json)
    except BrokenPipeError:
        return 141
    except OSError as error:
        where = str(error.filename or "output")
        failed = Unavailable(where, error.strerror or str(error), hint="free space, or mend the path or its rights")
        # What could not be written cannot be written again.
        return _fail(failed, command, is_json=is_json and error.errno not in (errno.ENOSPC, errno.EPIPE))
    except Exception as error:
        if is_debug:
            traceback.print_exc()
        wrapped = OverlayError(
            "bug",
            f"{type(error).__name__}: {error}",
            hint="report this, with the output of the same command and --debug",
        )
        return _fail(wrapped, command, is_json=is_json)


def _fail(error: OverlayError, command: str, *, is_json: bool) -> int:
    click.echo(f"overlay: {error.where}: {error.message}", err=True)
    for fact in error.facts:
        click.echo(f"    {fact}", err=True)
    if error.hint:
        click.echo(f"hint: {error.hint}", err=True)
    if is_json:
        body = {"where": error.where, "message": error.message, "hint": error.hint, "facts": list(error.facts)}
        verdict = "refused" if error.exit_code == 1 else "error"
        name = command if command in _DOCUMENTED else "error"
        click.echo(json.dumps({"schema": f"overlay.{name}/1", "verdict": verdict, "error": body}, indent=2))
    return error.exit_code
