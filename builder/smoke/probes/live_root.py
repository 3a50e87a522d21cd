"""Runs inside the container, on any Python from 3.8 on: which copy of a package would the image's programs import?

Asked as `python -I -c PROGRAM REQUEST`, REQUEST being JSON: nonce, package, command (entrypoint and command of the
image), live_root (or null), extra_folders, distributions (name -> the module it brings). Answers with one JSON object
between two nonces; nothing is imported from the image but what its interpreters import when they start, and nothing is
written.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

SECONDS = 60
PYTHON = re.compile(r"python(\d+(\.\d+)?)?$")

# Where people put copies and virtual environments beside those on some sys.path.
COPIES = (
    "/sgl-workspace/*/python",
    "/sgl-workspace/*",
    "/workspace/*/python",
    "/workspace/*",
    "/root/*/python",
    "/app",
    "/src",
    "/usr/lib/python3*/*-packages",
    "/usr/local/lib/python3*/*-packages",
    "/opt/*/lib/python3*/site-packages",
    "/opt/*/*/lib/python3*/site-packages",
)
INTERPRETERS = (
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "/opt/*/bin/python3",
    "/opt/*/*/bin/python3",
    "/root/*/bin/python3",
    "/root/.venv/bin/python3",
    "/workspace/*/bin/python3",
    "/sgl-workspace/*/bin/python3",
    "/sgl-workspace/*/.venv/bin/python3",
    "/app/.venv/bin/python3",
    "/venv/bin/python3",
)

# What each interpreter is asked. The first entry of sys.path is taken out before anything else is imported, so that a
# file beside the program cannot stand in for the standard library, and then put back as the way of starting has it.
QUESTION = r"""
import sys
first, package, nonce, wanted = sys.argv[1:5]
if sys.path and sys.path[0] == "":
    del sys.path[0]
import importlib.util, json, os
answer = {"prefix": sys.prefix, "version": "%d.%d.%d" % tuple(sys.version_info[:3])}
try:
    from importlib import metadata
    installed = metadata.distribution(package)
    answer["installed"] = installed.version
    answer["direct_url"] = installed.read_text("direct_url.json")
except Exception:
    pass
if not getattr(sys.flags, "safe_path", False):
    sys.path.insert(0, first)
answer["path"] = [os.path.abspath(entry) for entry in sys.path]
try:
    spec = importlib.util.find_spec(package)
    if spec is not None:
        answer["origin"] = os.path.realpath(spec.origin) if spec.has_location else None
        answer["locations"] = [os.path.realpath(entry) for entry in spec.submodule_search_locations or ()]
except Exception as error:
    answer["error"] = "%s: %s" % (type(error).__name__, error)
# The module counts, as what was built in place may have no metadata; nothing of it is imported.
answer["distributions"] = {}
for name, module in json.loads(wanted).items():
    try:
        found = importlib.util.find_spec(module)
        if found is not None and found.has_location:
            answer["distributions"][name] = ""
            answer["distributions"][name] = metadata.version(name)
    except Exception:
        pass
try:
    folder = os.path.dirname(importlib.util.find_spec("torch").origin)
    with open(os.path.join(folder, "version.py"), errors="replace") as file:
        answer["torch"] = file.read(10000)
except Exception:
    pass
print("\n" + nonce + json.dumps(answer) + nonce, flush=True)
"""


def between(text: str, nonce: str) -> Any:
    """Return the JSON value between two nonces; None where there is not exactly one."""
    parts = text.split(nonce)
    if len(parts) != 3:
        return None
    try:
        return json.loads(parts[1])
    except ValueError:
        return None


def which(word: str) -> str | None:
    """Return the path a word of a command names, None if there is no such program."""
    if "/" in word:
        return word if os.path.isfile(word) and os.access(word, os.X_OK) else None
    for folder in os.get_exec_path():
        path = os.path.join(folder, word)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def script_interpreter(path: str) -> str | None:
    """Return the Python that a script's first lines name, None for any other program."""
    try:
        with open(path, "rb") as file:
            head = file.read(1024).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    if not head or not head[0].startswith("#!"):
        return None
    words = head[0][2:].split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    elif words and os.path.basename(words[0]) == "sh" and len(head) > 1:
        # How pip writes a first line that would be too long for the kernel.
        words = re.findall(r"exec'? \"?([^\" ]+)\"? \"\$0\"", head[1])
    if not words or not PYTHON.match(os.path.basename(words[0])):
        return None
    return which(words[0])


def command_words(command: list[str]) -> Iterator[str]:
    for argument in command:
        try:
            yield from shlex.split(argument)
        except ValueError:
            yield argument


class Interpreters:
    """The interpreters found, in the order of how surely they are the one that runs, each with its script folders."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], dict[str, Any]] = {}

    def add(self, path: str | None, role: str, script: str | None = None) -> None:
        if path is None or not os.access(path, os.X_OK):
            return
        path = os.path.abspath(path)
        home = os.path.dirname(os.path.dirname(path))
        # A virtual environment's python is a link to the one it was made with, so the target alone does not tell.
        environment = home if os.path.exists(os.path.join(home, "pyvenv.cfg")) else ""
        entry = self.found.setdefault(
            (os.path.realpath(path), environment), {"path": path, "role": role, "scripts": []}
        )
        folder = os.path.dirname(os.path.realpath(script)) if script else None
        if folder and folder not in entry["scripts"]:
            entry["scripts"].append(folder)


def interpreters(command: list[str], package: str) -> list[dict[str, Any]]:
    found = Interpreters()
    for word in command_words(command):
        path = which(word)
        if path and PYTHON.match(os.path.basename(path)):
            found.add(path, "command")
        elif path:
            found.add(script_interpreter(path), "command", path)
    console = which(package)
    if console:
        found.add(script_interpreter(console), "console script", console)
    for folder in os.get_exec_path():
        names = os.listdir(folder) if os.path.isdir(folder) else []
        # Shortest first: `python3` is what people type.
        for name in sorted(filter(PYTHON.match, names), key=lambda name: (len(name), name)):
            found.add(os.path.join(folder, name), "PATH")
    for pattern in INTERPRETERS:
        for path in sorted(glob.glob(pattern)):
            found.add(path, "elsewhere")
    return list(found.found.values())


def ask(interpreter: dict[str, Any], mode: str, first: str, request: dict[str, Any]) -> dict[str, Any]:
    """Ask one interpreter in one way of starting; `first` is what that way puts first on sys.path."""
    wanted = json.dumps(request["distributions"])
    argv = [interpreter["path"], "-c", QUESTION, first, request["package"], request["nonce"], wanted]
    known = {"interpreter": interpreter["path"], "role": interpreter["role"], "mode": mode, "first": first}
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return dict(known, error=f"no answer in {SECONDS} s")
    except OSError as error:
        return dict(known, error=str(error))
    answer = between(done.stdout.decode("utf-8", "replace"), request["nonce"])
    if not isinstance(answer, dict):
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return dict(known, error=f"no answer (exit status {done.returncode}) {''.join(last)}")
    return dict(answer, **known)


def copies(answers: list[dict[str, Any]], package: str) -> list[str]:
    """Return every copy of the package on some sys.path or in a usual place."""
    parents = [entry for answer in answers for entry in answer.get("path", ())]
    parents += [path for pattern in COPIES for path in sorted(glob.glob(pattern))]
    folders = {os.path.realpath(os.path.join(parent, package)) for parent in parents}
    return sorted(folder for folder in folders if os.path.isfile(os.path.join(folder, "__init__.py")))


def ancestors(path: str) -> Iterator[str]:
    while path not in ("/", ""):
        yield path
        path = os.path.dirname(path)


def folders(packages: Iterable[str], extra: Iterable[str]) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Return metadata of the folders a layer may touch, and the links among them."""
    paths = {parent for path in list(packages) + list(extra) for parent in ancestors(path)}
    for package in packages:
        paths.update(folder for folder, _, _ in os.walk(package))
    found: dict[str, list[int]] = {}
    links: dict[str, str] = {}
    for path in sorted(paths):
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode):
            found[path] = [stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns]
        elif stat.S_ISLNK(status.st_mode):
            links[path] = os.readlink(path)
    return found, links


def main() -> None:
    request = json.loads(sys.argv[1])
    answers = []
    for interpreter in interpreters(request["command"], request["package"]):
        answers.append(ask(interpreter, "python -m", os.getcwd(), request))
        for folder in interpreter["scripts"] or [os.path.dirname(interpreter["path"])]:
            answers.append(ask(interpreter, "script", folder, request))
    live = {location for answer in answers for location in answer.get("locations", ()) if answer.get("origin")}
    found, links = folders(live, request["extra_folders"])
    wanted = request["live_root"]
    told = {
        "answers": answers,
        "copies": copies(answers, request["package"]),
        "folders": found,
        "links": links,
        "live_root": os.path.realpath(wanted) if wanted else None,
        "working_dir": os.getcwd(),
    }
    for answer in answers:
        answer.pop("path", None)
    print("\n" + request["nonce"] + json.dumps(told) + request["nonce"], flush=True)


main()
