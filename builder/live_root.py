"""Which copy of a package would an image import? Its own interpreters are asked, in a throwaway container."""

from __future__ import annotations

import json
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from posixpath import basename, dirname, join
from typing import Any, Literal

from builder.doors import Engine, Limits
from builder.errors import Refused, last_lines
from builder.model import PLUG_INS, Completed, FileMeta, LocalImage

_PROBE_LIMITS = Limits(seconds=300, memory_bytes=2 << 30)
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
# Where a Python may be that neither the command nor PATH names.
_USUAL_PYTHONS = ("python3", "python", "/usr/bin/python3", "/usr/local/bin/python3", "/opt/venv/bin/python3")
_HINT = "choose with --live-root PATH"


@dataclass(frozen=True)
class LiveRoot:
    """The folder whose `package` the image imports, and what the interpreter told beside it.

    `folders` holds the package's folders, their ancestors and the asked extra ones, as far as they exist: absolute
    path -> metadata with times in nanoseconds. `installed` and `direct_url` are the distribution's, where it has any.
    """

    path: str
    interpreter: str
    found_by: str
    dead_copies: tuple[str, ...]
    folders: Mapping[str, FileMeta]
    installed: str | None
    direct_url: str | None
    distributions: Mapping[str, str]
    """Name -> version of torch and the plug-ins that are there; empty where only the module is."""
    torch: str
    """The text of torch's own version file, empty without one."""


def find(
    engine: Engine, image: LocalImage, package: str, *, given: str | None = None, extra_folders: Sequence[str] = ()
) -> LiveRoot:
    """Ask every interpreter of the image, started in each way it can be; `given` settles a disagreement.

    Refused: no Python, no copy, copies that differ by interpreter or by way of starting, a namespace package, a
    `given` root that nothing imports from, or a folder among those of the result that is a link.
    """
    told = _ask(engine, image, package, given, extra_folders)
    chosen, root = _choose(told, _name(image), package, given)
    if link := next((f"{path} -> {target}" for path, target in told.links.items()), None):
        raise Refused(_name(image), f"a folder the layer needs is a link in the base: {link}")
    return LiveRoot(
        path=root,
        interpreter=chosen.interpreter,
        found_by=_found_by(chosen, told, given),
        dead_copies=tuple(copy for copy in told.copies if copy != join(root, package)),
        folders=told.folders,
        installed=chosen.installed,
        direct_url=chosen.direct_url,
        distributions=chosen.distributions,
        torch=chosen.torch,
    )


@dataclass(frozen=True)
class _Answer:
    """What one interpreter, started in one way, said: the folder it imports the package from, or why it does not.

    `role` is how it was found: command, console script, PATH, elsewhere. `outcome` is `package` where `root` is set,
    `odd` for a copy that cannot be overlaid, `absent`, or `silent` where it gave no answer.
    """

    interpreter: str
    role: str
    mode: str
    first: str
    outcome: Literal["package", "odd", "absent", "silent"]
    root: str | None
    trouble: str
    installed: str | None
    direct_url: str | None
    distributions: Mapping[str, str]
    torch: str

    def __str__(self) -> str:
        way = f"{self.interpreter} ({self.role}), started as {self.mode} with {self.first} first"
        return f"{way}: {self.root or self.trouble}"


@dataclass(frozen=True)
class _Told:
    """The probe's whole answer, read and checked."""

    answers: tuple[_Answer, ...]
    copies: tuple[str, ...]
    folders: Mapping[str, FileMeta]
    links: Mapping[str, str]
    live_root: str | None
    working_dir: str


def _ask(engine: Engine, image: LocalImage, package: str, given: str | None, extra_folders: Sequence[str]) -> _Told:
    """Run the probe with the first Python of the image that answers."""
    program = resources.files("builder.smoke").joinpath("probes", "live_root.py").read_text("utf-8")
    nonce = secrets.token_hex(16)
    command = _command(image)
    request = {
        "nonce": nonce,
        "package": package,
        "command": command,
        "live_root": given,
        "extra_folders": list(extra_folders),
        "distributions": {"torch": "torch", **PLUG_INS},
    }
    said: list[str] = []
    for python in _pythons(command):
        done = engine.run(image.id, [python, "-I", "-c", program, json.dumps(request)], limits=_PROBE_LIMITS)
        if done is None:
            continue
        told = _read_answer(done.stdout, nonce, package)
        if told is not None:
            return told
        said += [f"{python}: {line}" for line in _silence(done)]
    where = _name(image)
    if said:
        raise Refused(where, "no Python of the image answered which copy it imports", facts=said)
    looked = ", ".join(_pythons(command))
    raise Refused(where, f"the image has no Python, so nothing in it imports {package}", facts=[f"tried {looked}"])


def _name(image: LocalImage) -> str:
    return next(iter((*image.repo_tags, *image.repo_digests)), str(image.id))


def _command(image: LocalImage) -> list[str]:
    config = image.config.get("config")
    config = config if isinstance(config, Mapping) else {}
    return [str(word) for key in ("Entrypoint", "Cmd") for word in config.get(key) or ()]


def _pythons(command: Sequence[str]) -> list[str]:
    named = [word for argument in command for word in _split(argument) if _PYTHON.fullmatch(basename(word))]
    return list(dict.fromkeys([*named, *_USUAL_PYTHONS]))


def _split(argument: str) -> list[str]:
    try:
        return shlex.split(argument)
    except ValueError:
        return [argument]


def _silence(done: Completed) -> tuple[str, ...]:
    if done.stopped_by:
        return (f"stopped at the limit of {done.stopped_by}",)
    return last_lines(done.stderr, 3) or (f"exit status {done.exit_code} and no answer",)


def _read_answer(stdout: str, nonce: str, package: str) -> _Told | None:
    """Read what stands between the two nonces; everything around it is the image's own talk."""
    parts = stdout.split(nonce)
    if len(parts) != 3:
        return None
    value = json.loads(parts[1])
    return _Told(
        answers=tuple(_read_one(answer, package) for answer in value["answers"]),
        copies=tuple(value["copies"]),
        folders={path: FileMeta(*numbers) for path, numbers in value["folders"].items()},
        links=value["links"],
        live_root=value["live_root"],
        working_dir=value["working_dir"],
    )


def _read_one(answer: Mapping[str, Any], package: str) -> _Answer:
    outcome, text = _judge(answer, package)
    return _Answer(
        interpreter=answer["interpreter"],
        role=answer["role"],
        mode=answer["mode"],
        first=answer["first"],
        outcome=outcome,
        root=text if outcome == "package" else None,
        trouble="" if outcome == "package" else text,
        installed=answer.get("installed"),
        direct_url=answer.get("direct_url"),
        distributions=answer.get("distributions", {}),
        torch=answer.get("torch", ""),
    )


def _judge(answer: Mapping[str, Any], package: str) -> tuple[Literal["package", "odd", "absent", "silent"], str]:
    """Return what an answer comes to, and the live root or what is wrong."""
    origin, locations = answer.get("origin"), answer.get("locations") or []
    if "error" in answer:
        return "silent", answer["error"]
    if "origin" not in answer:
        return "absent", f"does not find {package}"
    if origin is None:
        return "odd", f"a namespace package without __init__.py, from {', '.join(locations) or 'nowhere'}"
    if len(locations) != 1:
        return "odd", f"several folders, {', '.join(locations)}" if locations else f"a single file, {origin}"
    if basename(locations[0]) != package:
        return "odd", f"a link to a folder of another name, {locations[0]}"
    return "package", dirname(locations[0])


def _choose(told: _Told, where: str, package: str, given: str | None) -> tuple[_Answer, str]:
    """Return the answer that gives the live root, and that root; or refuse with all that speaks against one."""
    facts = [str(answer) for answer in told.answers]
    roots = {answer.root for answer in told.answers if answer.root}
    if given is not None:
        for answer in told.answers:
            if answer.root is not None and answer.root == told.live_root:
                return answer, answer.root
        seen = ", ".join(sorted(roots)) or "nowhere"
        message = f"no interpreter of the image imports {package} from {given}; they import it from {seen}"
        raise Refused(where, message, hint="leave --live-root away, or give one of these", facts=facts)
    found = [answer for answer in told.answers if _counts(answer)]
    # What the image's command, its console script or PATH would run decides; others only where these have no copy.
    found = [answer for answer in found if answer.role != "elsewhere"] or found
    if not found:
        raise Refused(where, f"no interpreter of the image imports {package}", facts=facts)
    if len({answer.root for answer in found}) > 1:
        message = f"its interpreters, or the ways to start them, do not import the same copy of {package}"
        raise Refused(where, message, hint=_HINT, facts=[str(answer) for answer in found])
    if found[0].root is None:
        raise Refused(where, f"its interpreters find {package}, but not as a package", facts=facts, hint=_HINT)
    return found[0], found[0].root


def _counts(answer: _Answer) -> bool:
    """Tell whether an answer has a say. Silence of what the image starts is unknown; an old Python on PATH is not."""
    is_started = answer.role in ("command", "console script")
    return answer.outcome in ("package", "odd") or (answer.outcome == "silent" and is_started)


def _found_by(chosen: _Answer, told: _Told, given: str | None) -> str:
    agreeing = [answer for answer in told.answers if answer.root == chosen.root]
    modes = " and ".join(dict.fromkeys(answer.mode for answer in agreeing if answer.interpreter == chosen.interpreter))
    asked = f"import lookup of {chosen.interpreter} ({chosen.role}) in {told.working_dir}, started as {modes}"
    return f"given as {given}, and {asked}" if given else asked
