"""What a check may look at: the built image, its merged tree, the checkpoints, and what the probe answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from builder.checkpoint import Checkpoint, PublishedDraft
from builder.doors import Engine, Limits
from builder.errors import InputError
from builder.model import Check, Digest, ReadTree

NO_DRAFT: Final = "no draft was given (--draft), and the definition has no published table"


@dataclass(frozen=True)
class Subject:
    """Everything a check may look at. Paths are package paths (`sglang/srt/models/dflash.py`).

    `base` is None where there is nothing to compare with. `added` are the overlaid paths that the base lacks,
    `importers` the base's modules that import overlaid ones (see `importers_of`), `read` the merged tree.
    `draft_tokens` is the number that the server will be started with, `tp` its tensor-parallel size.
    """

    engine: Engine
    image: Digest
    read: ReadTree
    package: str
    interpreter: str
    live_root: str
    base: Digest | None = None
    overlaid: tuple[str, ...] = ()
    added: frozenset[str] = frozenset()
    importers: tuple[str, ...] = ()
    draft: Checkpoint | None = None
    published: PublishedDraft | None = None
    target: Checkpoint | None = None
    draft_tokens: int | None = None
    tp: int = 1
    limits: Limits = field(default_factory=Limits)

    @property
    def draft_data(self) -> Checkpoint | PublishedDraft | None:
        """The draft to judge by: the user's own, else the published table."""
        return self.draft or self.published

    @property
    def draft_label(self) -> str:
        """Say which draft was judged; empty for the user's own."""
        if self.draft is not None or self.published is None:
            return ""
        return f" (against the published table of {self.published.name}, not your file)"


@dataclass(frozen=True)
class ModuleAnswer:
    """What the interpreter says of one module.

    `error` has the keys type, message, missing, at. `stale` is True where old bytecode would run instead of `file`.
    """

    module: str
    error: Mapping[str, Any] | None
    file: str | None = None
    blob: str | None = None
    stale: bool | None = None

    @property
    def reason(self) -> str:
        """The error as one line; empty if there is none."""
        return reason_of(self.error) if self.error else ""

    @property
    def missing_package(self) -> str:
        """The top-level package whose absence is the error; empty where it is another error."""
        missing = (self.error or {}).get("missing")
        is_absent = (self.error or {}).get("type") == "ModuleNotFoundError"
        return str(missing).partition(".")[0] if missing and is_absent else ""


@dataclass(frozen=True)
class Answer:
    """All that one run of the probe said. `fault` tells why it is not whole, and is empty where it is."""

    interpreter: Mapping[str, Any] | None = None
    modules: Mapping[str, ModuleAnswer] = field(default_factory=dict)
    registry: Mapping[str, Any] | None = None
    built: Mapping[str, Any] | None = None
    weights: Mapping[str, Any] | None = None
    fault: str = ""
    last_lines: tuple[str, ...] = ()

    @property
    def package_root(self) -> str | None:
        """The folder the interpreter takes the package from."""
        root = (self.interpreter or {}).get("package_root")
        return str(root) if root else None

    @property
    def real_live_root(self) -> str | None:
        """The live root that was asked for, links resolved inside the container."""
        root = (self.interpreter or {}).get("live_root")
        return str(root) if root else None


@dataclass(frozen=True)
class Evidence:
    """What the probe answered on the built image, and on the base where a comparison was needed."""

    built: Answer = field(default_factory=Answer)
    base: Answer | None = None


def reason_of(error: Mapping[str, Any]) -> str:
    """Return an error of the probe's (type, message, at) as one line."""
    message = (str(error.get("message")).strip().splitlines() or [""])[0]
    at = f" ({error['at']})" if error.get("at") else ""
    return f"{error.get('type')}: {message}{at}"


def not_answered(name: str, answer: Answer, what: str) -> Check:
    """Return the unknown of a check whose question the probe never answered."""
    fault = answer.fault or "the probe did not answer"
    facts = {"probe": fault, "last_lines": list(answer.last_lines)}
    return Check(name, "unknown", f"{what} could not be asked for: {fault}", facts)


def text_of(read: ReadTree, path: str) -> bytes | None:
    """Read a file of the tree; a link is none, since what it leads to has a path of its own."""
    try:
        return read(path)
    except InputError:
        return None


def module_name(path: str) -> str | None:
    """Return the dotted name of a package path, None if it is no importable module.

    `__main__.py` runs when it is imported, so it is none.
    """
    if not path.endswith(".py"):
        return None
    parts = path.removesuffix(".py").split("/")
    if parts[-1] == "__init__":
        parts.pop()
    is_name = bool(parts) and all(part.isidentifier() for part in parts) and parts[-1] != "__main__"
    return ".".join(parts) if is_name else None


def listed(items: list[str] | tuple[str, ...], limit: int = 4) -> str:
    """Join a few items for a sentence and count the rest."""
    shown = ", ".join(items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"
