"""The catalogue: `overlays/*.toml`, `images/*.toml` and `patches/` read into checked values; no network."""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from builder.errors import InputError
from builder.model import Digest, ImageRef, Oid
from builder.suggest import did_you_mean

MARKERS = ("overlays", "images")
"""A folder that holds both is a catalogue."""

PACKAGED = Path(__file__).parent / "_catalogue"
_CHECKOUT = Path(__file__).parent.parent
_NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")


def _kebab(name: str) -> str:
    return name.removesuffix("_").replace("_", "-")


class _Section(BaseModel):
    """A TOML table: keys in kebab-case, nothing unknown, nothing coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=_kebab)


def _written(text: str) -> str:
    if not text.strip():
        raise ValueError("must say why; it is empty")
    return text


def _package_path(path: str) -> str:
    parts = path.split("/")
    if path.startswith("/") or "" in parts or "." in parts or ".." in parts or "\\" in path:
        raise ValueError("must be a path inside the package, like 'sglang/srt/models/dflash.py'")
    return path


def _blob_prefix(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{8,40}", text):
        raise ValueError("must be a git blob id: 8 to 40 lower-case hex digits")
    return text


Reason = Annotated[str, AfterValidator(_written)]
PackagePath = Annotated[str, AfterValidator(_package_path)]
BlobPrefix = Annotated[str, AfterValidator(_blob_prefix)]


class Accept(_Section):
    """A base file for which a whole-file copy was reviewed."""

    base_blob: BlobPrefix
    reason: Reason


class FileRule(_Section):
    """How one file is put on: merged, or copied whole."""

    path: PackagePath
    strategy: Literal["merge", "copy"] = "merge"
    on_conflict: Literal["refuse", "take-pr"] = "refuse"
    accept: tuple[Accept, ...] = Field(default=(), strict=False)
    reason: Reason

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.accept and self.strategy != "copy":
            raise ValueError("'accept' belongs to strategy = \"copy\"")
        if self.strategy == "copy" and self.on_conflict != "refuse":
            raise ValueError("'on-conflict' belongs to strategy = \"merge\"")
        return self


class LeaveOut(_Section):
    """A runtime file of the pull request that is not put on, and why that is safe."""

    path: PackagePath
    reason: Reason


class Carry(_Section):
    """A whole file, or named top-level definitions, taken from a pull request's result tree."""

    path: PackagePath
    symbols: tuple[str, ...] = Field(default=(), strict=False)
    from_: Annotated[str, Field(pattern=r"^pr:[1-9][0-9]*$")]
    reason: Reason

    @property
    def number(self) -> int:
        """The pull request's number."""
        return int(self.from_.removeprefix("pr:"))


class Acknowledge(_Section):
    """A finding, an unknown check or a file that needs a build, accepted with a written reason."""

    check: str | None = None
    kind: str | None = None
    path: str | None = None
    symbol: str | None = None
    reason: Reason

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if (self.check is None) == (self.kind is None):
            raise ValueError("needs either 'check' (a smoke check's name) or 'kind' (a finding's kind)")
        if self.kind is not None and self.path is None:
            raise ValueError("a 'kind' needs a 'path' too: one acknowledgement settles one place")
        return self


_MOST_NAMES = 100_000


def _pattern(text: str) -> str:
    pieces = re.split(r"\{([^{}]*)\}", text)
    if any("{" in piece or "}" in piece for piece in pieces):
        raise ValueError("has a brace without its other one")
    sizes = [_choice_count(piece) for piece in pieces[1::2]]
    if 0 in sizes or math.prod(sizes) > _MOST_NAMES:
        raise ValueError(f"choices are {{first-last}} or {{one,other}}, {_MOST_NAMES} names at most")
    return text


def _choice_count(text: str) -> int:
    span = re.fullmatch(r"(\d+)-(\d+)", text)
    if span:
        return max(0, int(span[2]) - int(span[1]) + 1)
    return text.count(",") + 1 if all(text.split(",")) and "-" not in text else 0


class Draft(_Section):
    """The published draft checkpoint: config fields, tensor names and shapes, as its repository shows them.

    A name may hold ranges and choices: `layers.{0-4}.self_attn.{q,k}_norm.weight` stands for ten tensors.
    """

    checkpoint: str
    dtype: Literal["BF16", "F16", "F32", "F8_E4M3", "F8_E5M2", "U8", "I8"]
    config: dict[str, Any]
    tensors: dict[Annotated[str, AfterValidator(_pattern)], Annotated[tuple[int, ...], Field(strict=False)]]

    def expanded(self) -> dict[str, tuple[int, ...]]:
        """Return every tensor name with its shape."""
        names = [(name, shape) for pattern, shape in self.tensors.items() for name in _expand(pattern)]
        return dict(names)


def _expand(pattern: str) -> Iterator[str]:
    pieces = re.split(r"\{([^}]*)\}", pattern)
    choices = [_choices(piece) if index % 2 else [piece] for index, piece in enumerate(pieces)]
    for parts in itertools.product(*choices):
        yield "".join(parts)


def _choices(text: str) -> list[str]:
    span = re.fullmatch(r"(\d+)-(\d+)", text)
    return [str(n) for n in range(int(span[1]), int(span[2]) + 1)] if span else text.split(",")


class Overlay(_Section):
    """A definition: which pull requests, on which bases, and how."""

    name: str = ""
    title: str = ""
    upstream: str = "sgl-project/sglang"
    package: str = "sglang"
    upstream_prefix: str = "python/"
    pull_requests: Annotated[tuple[Annotated[int, Field(gt=0)], ...], Field(strict=False, min_length=1)]
    bases: tuple[str, ...] = Field(default=(), strict=False)
    file: tuple[FileRule, ...] = Field(default=(), strict=False)
    leave_out: tuple[LeaveOut, ...] = Field(default=(), strict=False)
    carry: tuple[Carry, ...] = Field(default=(), strict=False)
    patches: tuple[str, ...] = Field(default=(), strict=False)
    acknowledge: tuple[Acknowledge, ...] = Field(default=(), strict=False)
    draft: Draft | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for label, values in (
            ("pull-requests", self.pull_requests),
            ("file path", [rule.path for rule in self.file] + [entry.path for entry in self.leave_out]),
            ("patches", self.patches),
        ):
            twice = sorted({str(value) for value in values if list(values).count(value) > 1})
            if twice:
                raise ValueError(f"{label}: {', '.join(twice)} stands there twice")
        paths = [rule.path for rule in self.file] + [e.path for e in self.leave_out] + [e.path for e in self.carry]
        outside = [path for path in paths if not path.startswith(f"{self.package}/")]
        if outside:
            raise ValueError(f"path: {outside[0]!r} is not inside the package {self.package!r}")
        strangers = [entry.from_ for entry in self.carry if entry.number not in self.pull_requests]
        if strangers:
            raise ValueError(f"carry: {strangers[0]} is none of pull-requests")
        return self

    @property
    def is_bare(self) -> bool:
        """Whether this stands for `--pr` numbers without a definition."""
        return not self.title and not self.bases

    def rule(self, path: str) -> FileRule | None:
        """Return what the definition says of this path."""
        return next((rule for rule in self.file if rule.path == path), None)

    def left_out(self, path: str) -> str | None:
        """Return why this path is left out, None if it is not."""
        return next((entry.reason for entry in self.leave_out if entry.path == path), None)


class KnownDigest(_Section):
    """A digest the image was seen with: informative, only a lock pins."""

    kind: Literal["index", "manifest", "config", "unknown"]
    digest: str
    platform: str | None = None
    seen: str = ""

    @model_validator(mode="after")
    def _is_digest(self) -> Self:
        try:
            Digest(self.digest)
        except InputError as error:
            raise ValueError(error.message) from None
        return self


class Image(_Section):
    """A base in the catalogue: its reference and what is known of it."""

    alias: str = ""
    reference: str
    digest: tuple[KnownDigest, ...] = Field(default=(), strict=False)
    live_root: str | None = None
    notes: tuple[str, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _has_reference(self) -> Self:
        try:
            ImageRef.parse(self.reference)
        except InputError as error:
            raise ValueError(error.message) from None
        return self


class Settings(_Section):
    """`overlay.toml` in the catalogue folder: the global settings people share."""

    upstream: str | None = None
    upstream_branch: str | None = None
    forge: str | None = None
    registry_mirror: str | None = None


@dataclass(frozen=True)
class Catalogue:
    """A catalogue folder; definitions are read when asked for."""

    folder: Path
    is_packaged: bool

    def settings(self) -> Settings:
        """Read `overlay.toml`; everything unset if there is none. A relative upstream path starts at the folder."""
        path = self.folder / "overlay.toml"
        found = _read(path, Settings) if path.exists() else Settings()
        if found.upstream and (self.folder / found.upstream).exists():
            return found.model_copy(update={"upstream": str(self.folder / found.upstream)})
        return found

    def overlay_names(self) -> list[str]:
        """List the definitions' names."""
        return _names(self.folder / "overlays")

    def image_names(self) -> list[str]:
        """List the base aliases."""
        return _names(self.folder / "images")

    def overlay(self, name: str) -> Overlay:
        """Read one definition; InputError names file, key and line."""
        path = _named(self.folder / "overlays", name, "overlay", self.overlay_names())
        overlay = _read(path, Overlay).model_copy(update={"name": name})
        aliases = self.image_names()
        for entry in overlay.bases:
            if is_base_alias(entry) and entry not in aliases:
                line = line_of(path.read_text(encoding="utf-8"), ("bases",))
                message = f"bases: the catalogue has no base {entry!r}{did_you_mean(entry, aliases)}"
                hint = f"add images/{entry}.toml, or mend the name; a predicate holds a space"
                raise InputError(f"overlays/{name}.toml:{line}", message, hint=hint)
        return overlay

    def image(self, alias: str) -> Image:
        """Read one base; InputError names file, key and line."""
        path = _named(self.folder / "images", alias, "base", self.image_names())
        return _read(path, Image).model_copy(update={"alias": alias})

    def patch_bytes(self, patch_id: str, wanted_by: str) -> tuple[str, bytes]:
        """Return (file name for messages, bytes) of `patches/TOPIC/NNNN-slug.patch`, named `TOPIC/NNNN-slug`."""
        folder = self.folder / "patches"
        path = folder / f"{patch_id}.patch"
        known = [str(p.relative_to(folder).with_suffix("")) for p in folder.glob("*/*.patch")]
        if patch_id not in known:
            hint = f"add {path.name} under patches/, or mend the name"
            message = f"no patch {patch_id!r}{did_you_mean(patch_id, known)}"
            raise InputError(f"{wanted_by}: patches", message, hint=hint)
        return f"patches/{patch_id}.patch", path.read_bytes()

    def lock_path(self, name: str) -> Path:
        """Return where the lock of a definition stands."""
        return self.folder / "overlays" / f"{name}.lock.json"


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.toml") if path.is_file() and not path.name.startswith("."))


def find(explicit: Path | None, start: Path) -> Catalogue:
    """Find the catalogue: the given folder, the nearest parent of `start` that is one, or the packaged copy."""
    if explicit is not None:
        missing = [name for name in MARKERS if not (explicit / name).is_dir()]
        if missing:
            raise InputError(str(explicit), f"is no catalogue: it has no folder {' or '.join(missing)}")
        return Catalogue(explicit, is_packaged=False)
    for folder in (start, *start.parents):
        if all((folder / name).is_dir() for name in MARKERS):
            return Catalogue(folder, is_packaged=False)
    packaged = PACKAGED if PACKAGED.is_dir() else _CHECKOUT
    return Catalogue(packaged, is_packaged=True)


def _named(folder: Path, name: str, what: str, known: list[str]) -> Path:
    if name in known:
        return folder / f"{name}.toml"
    listed = ", ".join(known) or "none"
    hint = f"the catalogue has: {listed}"
    raise InputError(f"{folder.parent}", f"no {what} named {name!r}{did_you_mean(name, known)}", hint=hint)


_Model = TypeVar("_Model", bound=BaseModel)


def _read(path: Path, model: type[_Model]) -> _Model:
    where = f"{path.parent.name}/{path.name}"
    if not is_name(path.stem):
        raise InputError(where, "file names are lower-case letters, digits and single dots, dashes or underscores")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(where, f"is not UTF-8 text: {error}", hint="save it as UTF-8") from None
    return _parsed(text, where, model)


def _parsed(text: str, where: str, model: type[_Model]) -> _Model:
    try:
        table = tomllib.loads(text)
        _refuse_own_name(table, where, text)
        return model.model_validate(table)
    except tomllib.TOMLDecodeError as error:
        raise InputError(where, f"is not TOML: {error}", hint="mend the line it names") from None
    except ValidationError as error:
        raise _explained(error, where, text, model) from None


def overlay_from(text: str, name: str) -> Overlay:
    """Read a definition from its text; InputError names file, key and line."""
    return _parsed(text, f"overlays/{name}.toml", Overlay).model_copy(update={"name": name})


def is_name(text: str) -> bool:
    """Tell whether a file of the catalogue may be called so."""
    return _NAME.fullmatch(text) is not None


def _refuse_own_name(table: Mapping[str, Any], where: str, text: str) -> None:
    for key in ("name", "alias"):
        if key in table:
            place = f"{where}:{line_of(text, (key,))}"
            raise InputError(
                place, f"{key}: the file's own name is the {key}", hint=f"remove the line, or rename {where}"
            )


def _explained(error: ValidationError, where: str, text: str, model: type[BaseModel]) -> InputError:
    """Turn all of pydantic's complaints into one error: file, line, key, what is wrong."""
    lines = []
    for item in error.errors():
        location = tuple(item["loc"])
        key = ".".join(str(part) for part in location) or "(file)"
        at = line_of(text, location)
        place = f"{where}:{at}" if at else where
        lines.append(f"{place}: {key}: {_complaint(dict(item), model, location)}")
    first, *others = lines
    place, _, message = first.partition(": ")
    return InputError(place, message, facts=others, hint="see CONTRIBUTING.md for the keys of each file")


def _complaint(item: Mapping[str, Any], model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    if item["type"] == "extra_forbidden":
        return f"unknown key{did_you_mean(str(location[-1]), _keys_at(model, location[:-1]))}"
    if item["type"] == "missing":
        return "is missing"
    plain = {
        "tuple_type": "must be a list, like [1, 2]",
        "too_short": "must hold at least one entry",
        "string_pattern_mismatch": "must be 'pr:' and the number of a pull request",
    }
    message = plain.get(item["type"], str(item["msg"]).removeprefix("Value error, "))
    found = item.get("input")
    return f"{message}; found {found!r}" if isinstance(found, str | int | float | bool) else message


def _keys_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """List the keys a table at this place may have."""
    schema: Any = model.model_json_schema(by_alias=True)
    definitions = schema.get("$defs", {})
    for part in location:
        schema = _resolved(schema, definitions)
        schema = schema.get("items", {}) if isinstance(part, int) else schema.get("properties", {}).get(part, {})
    return [key for key in _resolved(schema, definitions).get("properties", {}) if key != "name"]


def _resolved(schema: Any, definitions: Mapping[str, Any]) -> Any:
    for option in (schema, *schema.get("anyOf", ())):
        if "$ref" in option:
            return definitions[option["$ref"].rsplit("/", 1)[-1]]
    return schema


_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r'\s*"?([^"=\s]+)"?\s*=')


def line_of(text: str, location: tuple[int | str, ...]) -> int | None:
    """Find the line of a key such as ('file', 1, 'strategy') in TOML text; tomllib keeps no positions."""
    counts: dict[str, int] = {}
    here: tuple[int | str, ...] = ()
    best: tuple[int, int] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.fullmatch(line)
        key = _KEY.match(line)
        if header:
            here = tuple(part.strip() for part in header[2].split("."))
            if header[1] == "[[":
                counts[header[2]] = counts.get(header[2], -1) + 1
                here = (*here, counts[header[2]])
            place = here
        elif key:
            place = (*here, key[1])
        else:
            continue
        shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(place, location, strict=False))))
        if shared == len(place) and shared > (best[0] if best else 0):
            best = (shared, number)
    return best[1] if best else None


def bare_overlay(numbers: tuple[int, ...], upstream: str = "sgl-project/sglang") -> Overlay:
    """Return the overlay of `--pr` numbers without a definition: every runtime file merged, conflicts refused."""
    name = "pr" + "-".join(str(number) for number in numbers)
    return Overlay.model_validate({"name": name, "upstream": upstream, "pull-requests": numbers})


def is_base_alias(text: str) -> bool:
    """Tell an alias in `bases` from a predicate, which holds a space."""
    return " " not in text.strip()


def matches_blob(prefix: str, blob: Oid) -> bool:
    """Tell whether a blob id written in a definition (8 digits or more) means this blob."""
    return blob.startswith(prefix)


@dataclass(frozen=True)
class Choice:
    """The definition that `--pr` numbers or `--overlay` select, before the base is known; and what to say of it."""

    overlay: Overlay
    note: str


def choose(
    catalogue: Catalogue,
    numbers: tuple[int, ...],
    name: str | None,
    *,
    bare: bool,
    alias: str | None,
    admits: Callable[[Overlay], bool] | None = None,
) -> Choice:
    """Choose the definition; InputError where several fit or the words contradict each other.

    Definitions that name bases by alias only are admitted or not here; predicates need the tree. `admits` judges them
    where the tree is at hand, and is asked only where several definitions may fit.
    """
    if name is not None:
        return Choice(_chosen_by_name(catalogue, numbers, name, bare=bare), f"definition {name}, as asked for")
    if not numbers:
        raise InputError("arguments", "neither a pull request nor a definition is given", hint="give --pr or --overlay")
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        raise InputError(
            "--pr", f"{twice[0]} is given twice", hint="give each pull request once, in the order to stack"
        )
    if bare:
        return Choice(bare_overlay(numbers), "no definition, as asked for: every runtime file is merged")
    known = [catalogue.overlay(name) for name in catalogue.overlay_names()]
    fitting = [overlay for overlay in known if overlay.pull_requests == numbers]
    admitted = [overlay for overlay in fitting if may_admit(overlay, alias)]
    if len(admitted) > 1:
        admitted = _narrowed(admitted, alias, admits)
    if len(admitted) > 1:
        names = ", ".join(overlay.name for overlay in admitted)
        raise InputError("--pr", f"several definitions fit: {names}", hint=f"pick one: --overlay {admitted[0].name}")
    if admitted:
        return Choice(admitted[0], f"definition {admitted[0].name} lists exactly these pull requests")
    if fitting:
        names = ", ".join(overlay.name for overlay in fitting)
        return Choice(bare_overlay(numbers), f"definition {names} does not admit this base and is not used")
    reordered = [overlay.name for overlay in known if sorted(overlay.pull_requests) == sorted(numbers)]
    if reordered:
        note = f"definition {reordered[0]} lists these pull requests in another order and is not used"
    else:
        note = "no definition lists exactly these pull requests: every runtime file is merged"
    return Choice(bare_overlay(numbers), note)


def _narrowed(admitted: list[Overlay], alias: str | None, admits: Callable[[Overlay], bool] | None) -> list[Overlay]:
    """Prefer the one definition that lists the base by its alias; else keep those whose predicates hold."""
    named = [overlay for overlay in admitted if alias is not None and alias in overlay.bases]
    if len(named) == 1:
        return named
    return [overlay for overlay in admitted if admits(overlay)] if admits else admitted


def _chosen_by_name(catalogue: Catalogue, numbers: tuple[int, ...], name: str, *, bare: bool) -> Overlay:
    if bare:
        raise InputError("arguments", "--overlay and --no-definition exclude each other", hint="give one of them")
    overlay = catalogue.overlay(name)
    if numbers and numbers != overlay.pull_requests:
        listed = " ".join(f"--pr {number}" for number in overlay.pull_requests)
        message = f"definition {name} is for {listed}, in this order"
        raise InputError("--pr", message, hint="leave --pr out, or add --no-definition instead of --overlay")
    return overlay


def may_admit(overlay: Overlay, alias: str | None) -> bool:
    """Tell whether a definition can admit a base of this alias; with predicates only the tree can tell for sure."""
    return not overlay.bases or alias in overlay.bases or any(not is_base_alias(entry) for entry in overlay.bases)
