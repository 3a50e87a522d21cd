"""An engine whose "images" are folders and whose containers are processes of this interpreter.

A fake at the process boundary only: the probe, its answers and all judgement are the real ones. What a container does
beyond that (limits of memory, no network, a read-only root) is tested with Docker.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.doors import Limits
from builder.model import Completed, Digest
from builder.smoke import Subject


def digest(word: str) -> Digest:
    """Return a digest that stands for an image."""
    return Digest.of(word.encode())


@dataclass
class ProcessEngine:
    """Runs a program in the folder that stands for an image, and remembers which images were asked."""

    folders: Mapping[Digest, Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    ran: list[Digest] = field(default_factory=list)

    def run(
        self,
        image: Digest,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        working_dir: str | None = None,
        limits: Limits | None = None,
        user: str | None = None,
    ) -> Completed | None:
        self.ran.append(image)
        seconds = (limits or Limits()).seconds
        try:
            done = subprocess.run(
                list(argv),
                input=stdin,
                capture_output=True,
                cwd=self.folders[image],
                env={"PATH": "/usr/bin:/bin", **self.environment, **(environment or {})},
                timeout=seconds,
                check=False,
            )
        except FileNotFoundError:
            return None
        except subprocess.TimeoutExpired as late:
            return Completed(None, _text(late.stdout), _text(late.stderr), "time")
        code = 128 - done.returncode if done.returncode < 0 else done.returncode
        return Completed(code, _text(done.stdout), _text(done.stderr))


def _text(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace")


Files = Mapping[str, str | None]


def write_tree(folder: Path, files: Files) -> Path:
    """Write a package's files below a folder; None leaves one out."""
    for path, text in files.items():
        if text is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    return folder


def toy_subject(tmp_path: Path, base: Files, overlaid: Files, *, importers: Sequence[str] = (), **more: Any) -> Subject:
    """Return a subject whose base is one set of files and whose image is that set with others put on top."""
    built = {**base, **overlaid}
    folder = write_tree(tmp_path / "image", built)
    engine = ProcessEngine(
        {digest("image"): folder, digest("base"): write_tree(tmp_path / "base", base)},
    )
    wanted = {
        "engine": engine,
        "image": digest("image"),
        "base": digest("base"),
        "read": lambda path: text.encode() if (text := built.get(path)) is not None else None,
        "package": "toy",
        "interpreter": sys.executable,
        # Relative to the container's working directory, which stands for the image's root.
        "live_root": ".",
        "overlaid": tuple(path for path in overlaid if overlaid[path] is not None),
        "added": frozenset(overlaid) - frozenset(base),
        "importers": tuple(importers),
        "limits": Limits(seconds=60),
    }
    return Subject(**{**wanted, **more})
