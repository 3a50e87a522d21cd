"""Safetensors headers and config.json: which tensors a checkpoint holds, without reading one and without torch.

Format: https://huggingface.co/docs/safetensors (eight bytes of header length, JSON, then the tensors' bytes). What
the reference reader refuses is refused here too: an unknown dtype, a span that is not shape x item size, and any
byte behind the header that belongs to no tensor or to two.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

from builder.errors import InputError

MAX_HEADER: Final = 100_000_000
"""Bytes of one header, the reference reader's own bound."""

MAX_JSON: Final = 100_000_000
"""Bytes of config.json or of an index."""

INDEX: Final = "model.safetensors.index.json"

_BITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
_TEXT_KEYS: Final = ("text_config", "llm_config", "language_config")
_QUANTIZATION_KEYS: Final = ("quantization_config", "compression_config")
_CACHE_NAME: Final = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)")
_LFS: Final = b"version https://git-lfs"
_SHOWN: Final = 20
_MAX_DIMENSIONS: Final = 64


@dataclass(frozen=True)
class Tensor:
    """One tensor of a header; `begin` and `end` are absolute byte positions in `file`."""

    dtype: str
    shape: tuple[int, ...]
    file: str
    begin: int
    end: int

    @property
    def elements(self) -> int:
        """Number of elements, as the shape says."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size of the tensor's span."""
        return self.end - self.begin


Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""Tensor name -> dtype in safetensors' spelling and shape."""


def text_config_of(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the part of a config that describes the language model: a nested one, else the whole."""
    for key in _TEXT_KEYS:
        nested = config.get(key)
        if isinstance(nested, Mapping):
            return nested
    return config


def architectures_of(config: Mapping[str, object]) -> tuple[str, ...]:
    """Return the class names that a config asks for, in its order."""
    named = config.get("architectures")
    return tuple(name for name in named if isinstance(name, str)) if isinstance(named, list | tuple) else ()


def size_of(dtype: str, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor; the dtype must be known."""
    return math.prod(shape) * _BITS[dtype] // 8


@dataclass(frozen=True)
class Checkpoint:
    """The headers of one checkpoint and its config.

    `name` is the hub id where the path shows it, else the folder's or file's name; `revision` is None outside a hub
    cache. `notes` are oddities that do not keep a loader from reading it.
    """

    name: str
    path: str
    tensors: Mapping[str, Tensor]
    config: Mapping[str, object]
    revision: str | None = None
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    separate_quantization: Mapping[str, object] | None = field(default=None, repr=False)

    @property
    def architectures(self) -> tuple[str, ...]:
        """The class names that the config asks for."""
        return architectures_of(self.config)

    @property
    def text_config(self) -> Mapping[str, object]:
        """The language model's part of the config."""
        return text_config_of(self.config)

    @property
    def quantization(self) -> Mapping[str, object] | None:
        """What the config says of quantization; None where nothing is said."""
        for config in (self.config, self.text_config):
            for key in _QUANTIZATION_KEYS:
                found = config.get(key)
                if isinstance(found, Mapping):
                    return found
        return self.separate_quantization

    @cached_property
    def shapes(self) -> Shapes:
        """Name -> dtype and shape, in the order of names."""
        return {name: (tensor.dtype, tensor.shape) for name, tensor in sorted(self.tensors.items())}


@dataclass(frozen=True)
class PublishedDraft:
    """What a definition says of the draft checkpoint that its authors published."""

    name: str
    config: Mapping[str, object]
    tensors: Shapes

    @property
    def shapes(self) -> Shapes:
        """Name -> dtype and shape, in the order of names."""
        return dict(sorted(self.tensors.items()))

    @property
    def architectures(self) -> tuple[str, ...]:
        """The class names that the config asks for."""
        return architectures_of(self.config)

    @property
    def text_config(self) -> Mapping[str, object]:
        """The language model's part of the config."""
        return text_config_of(self.config)


class Files(Protocol):
    """Where a checkpoint's files are. Small reads only: headers and JSON."""

    @property
    def where(self) -> str:
        """Where that is, for messages."""

    def names(self) -> frozenset[str]:
        """List the files of the checkpoint's folder."""

    def size(self, name: str) -> int:
        """Return a file's size in bytes; InputError if it cannot be had."""

    def read(self, name: str, begin: int, length: int) -> bytes:
        """Return bytes of a file; fewer where the file ends."""


@dataclass(frozen=True)
class LocalFiles:
    """A folder on this machine. Links are followed, as a hub cache needs."""

    folder: Path

    @property
    def where(self) -> str:
        """The folder, for messages."""
        return str(self.folder)

    def names(self) -> frozenset[str]:
        return frozenset(entry.name for entry in self.folder.iterdir())

    def size(self, name: str) -> int:
        path = self.folder / name
        try:
            return path.stat().st_size
        except FileNotFoundError:
            if path.is_symlink():
                found = f"links to {path.readlink()}, which is missing: the download is not whole"
                raise InputError(str(path), found) from None
            raise InputError(str(path), "is not there") from None
        except OSError as error:
            raise InputError(str(path), f"cannot be read: {error.strerror}") from None

    def read(self, name: str, begin: int, length: int) -> bytes:
        path = self.folder / name
        try:
            with path.open("rb") as file:
                file.seek(begin)
                return file.read(length)
        except OSError as error:
            raise InputError(str(path), f"cannot be read: {error.strerror}") from None


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the headers of a checkpoint: a folder, one .safetensors file, or a hub cache (`models--org--name[/...]`).

    A folder with an index is read as the index says; without one, all its .safetensors files belong to it. Raises
    InputError that names each file and what is wrong with it.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a hub cache's links to its blobs
    if path.is_file():
        return _open_file(path)
    if not path.is_dir():
        raise InputError(str(path), "is neither a folder nor a file", hint="name a checkpoint's folder or file")
    folder = _snapshot(path)
    name, revision = _hub_name(folder)
    return read_checkpoint(LocalFiles(folder), name=name, revision=revision)


def read_checkpoint(files: Files, *, name: str, revision: str | None = None) -> Checkpoint:
    """Read the headers of a checkpoint that is a whole folder, wherever its files are."""
    present = files.names()
    if "config.json" not in present:
        hint = "name the folder that holds config.json and the .safetensors files"
        raise InputError(files.where, "has no config.json", hint=hint, facts=sorted(present)[:_SHOWN])
    config = _read_json(files, "config.json")
    weight_map = _weight_map(files) if INDEX in present else None
    shards = sorted(set(weight_map.values()) if weight_map is not None else _safetensors(present))
    if not shards:
        raise InputError(files.where, "has no .safetensors file", facts=sorted(present)[:_SHOWN])
    tensors, notes = _merge(files, shards, weight_map)
    separate = _separate_quantization(files) if "hf_quant_config.json" in present else None
    return Checkpoint(name, files.where, tensors, config, revision, tuple(shards), notes, separate)


def _open_file(path: Path) -> Checkpoint:
    files = LocalFiles(path.parent)
    if path.suffix != ".safetensors":
        hint = "name a checkpoint's folder or one of its .safetensors files"
        raise InputError(str(path), "is not a .safetensors file", hint=hint)
    config: Mapping[str, object] = {}
    notes: tuple[str, ...] = ("no config.json beside the file",)
    if (path.parent / "config.json").is_file():
        config, notes = _read_json(files, "config.json"), ()
    name, revision = _hub_name(path.parent)
    tensors, _ = _merge(files, [path.name], None)
    return Checkpoint(name, str(path), tensors, config, revision, (path.name,), notes)


def _snapshot(path: Path) -> Path:
    """Step from a hub cache's folder of one model into the snapshot that is meant."""
    snapshots = path / "snapshots"
    if not (_CACHE_NAME.fullmatch(path.name) and snapshots.is_dir()):
        return path
    main = path / "refs" / "main"
    if main.is_file() and (snapshots / main.read_text().strip()).is_dir():
        return snapshots / main.read_text().strip()
    revisions = sorted(entry.name for entry in snapshots.iterdir() if entry.is_dir())
    if len(revisions) != 1:
        found = f"holds {len(revisions)} snapshots and refs/main names none of them"
        raise InputError(str(path), found, hint="name one snapshot's folder", facts=revisions[:_SHOWN])
    return snapshots / revisions[0]


def _hub_name(folder: Path) -> tuple[str, str | None]:
    match = _CACHE_NAME.fullmatch(folder.parent.parent.name) if folder.parent.name == "snapshots" else None
    if match is None:
        return folder.name, None
    return f"{match['owner']}/{match['name']}", folder.name


def _safetensors(names: frozenset[str]) -> list[str]:
    # Mistral's own format lies beside the ordinary one in the same folder and holds the same weights once more.
    ordinary = [name for name in names if name.endswith(".safetensors") and not name.startswith("consolidated")]
    return ordinary or [name for name in names if name.endswith(".safetensors")]


def _merge(
    files: Files, shards: Sequence[str], weight_map: Mapping[str, str] | None
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Join the shards' headers and compare them with the index; raise InputError with every fault."""
    faults: list[str] = []
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        try:
            found = _read_header(files, shard)
        except InputError as error:
            faults += [f"{shard}: {error.message}", *error.facts]
            continue
        for name, tensor in found.items():
            if name in tensors:
                faults.append(f"{shard}: tensor {name} is also in {tensors[name].file}")
            tensors[name] = tensor
    notes: tuple[str, ...] = ()
    if weight_map is not None and not faults:
        faults += list(_index_faults(weight_map, tensors))
        unlisted = len(tensors.keys() - weight_map.keys())
        notes = (f"{unlisted} tensors of the shards are not in {INDEX}",) if unlisted else ()
    if faults:
        where = files.where if len(shards) != 1 else f"{files.where}/{shards[0]}"
        first = faults[0].removeprefix(f"{shards[0]}: ") if len(shards) == 1 else faults[0]
        hint = "download the checkpoint again, or name another one"
        raise InputError(where, first, hint=hint, facts=faults[1 : _SHOWN + 1])
    return tensors, notes


def _index_faults(weight_map: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Iterator[str]:
    for name, shard in sorted(weight_map.items()):
        found = tensors.get(name)
        if found is None:
            yield f"{INDEX}: tensor {name} should be in {shard}, which does not hold it"
        elif found.file != shard:
            yield f"{INDEX}: tensor {name} should be in {shard}, and is in {found.file}"


def _weight_map(files: Files) -> Mapping[str, str]:
    where = f"{files.where}/{INDEX}"
    weight_map = _read_json(files, INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(where, "has no weight_map, or an empty one")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or "/" in shard:
            raise InputError(where, f"weight_map: {name} is in {shard!r}, which is not the name of a .safetensors file")
    present = files.names()
    missing = sorted(set(weight_map.values()) - present)
    if missing:
        found = f"names {len(set(weight_map.values()))} shards, {len(missing)} of them are missing"
        raise InputError(where, found, hint="finish the download", facts=missing[:_SHOWN])
    return weight_map


def _separate_quantization(files: Files) -> Mapping[str, object] | None:
    """Read ModelOpt's own file, whose content sits one level down."""
    found = _read_json(files, "hf_quant_config.json")
    return found if isinstance(found.get("quantization"), Mapping) else None


def _read_header(files: Files, name: str) -> dict[str, Tensor]:
    where, size = f"{files.where}/{name}", files.size(name)
    if size < 8:
        raise InputError(where, f"has {size} bytes; a safetensors file starts with 8 bytes of header length")
    start = files.read(name, 0, 24)
    length = int.from_bytes(start[:8], "little")
    if start.startswith(_LFS):
        raise InputError(where, "is a Git LFS pointer, not the weights", hint="git lfs pull")
    if length > MAX_HEADER:
        raise InputError(where, f"says its header has {length} bytes; at most {MAX_HEADER} are allowed")
    if length > size - 8:
        found = f"says its header has {length} bytes, and only {size - 8} follow: the file is truncated"
        raise InputError(where, found)
    text = files.read(name, 8, length)
    if len(text) != length:
        raise InputError(where, f"gave {len(text)} of its header's {length} bytes")
    return _tensors(_parse(text, where, what="header"), where, name, 8 + length, size)


def _tensors(header: Mapping[str, object], where: str, file: str, start: int, size: int) -> dict[str, Tensor]:
    """Turn a header into tensors; `start` is where their bytes begin, `size` the file's."""
    faults: list[str] = []
    tensors: dict[str, Tensor] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            faults += _metadata_faults(entry)
            continue
        tensor = _tensor(entry, file, start)
        if isinstance(tensor, str):
            faults.append(f"tensor {name}: {tensor}")
        else:
            tensors[name] = tensor
    if not faults:
        faults += list(_span_faults(tensors, start, size))
    if faults:
        raise InputError(where, faults[0], facts=faults[1 : _SHOWN + 1])
    return tensors


def _metadata_faults(entry: object) -> list[str]:
    is_sound = isinstance(entry, dict) and all(isinstance(value, str) for value in entry.values())
    return [] if is_sound else ["__metadata__ is not a map of texts"]


def _tensor(entry: object, file: str, start: int) -> Tensor | str:
    """Read one tensor's entry, or say what is wrong with it."""
    if not isinstance(entry, dict):
        return "its entry is not an object"
    dtype, shape, offsets = entry.get("dtype"), _counts(entry.get("shape")), _counts(entry.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in _BITS:
        return f"dtype {dtype!r} is not known"
    if shape is None:
        return f"shape {_brief(entry.get('shape'))} is not a list of whole numbers"
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        return f"data_offsets {_brief(entry.get('data_offsets'))} are not begin and end"
    bits = math.prod(shape) * _BITS[dtype]
    if bits % 8 or bits // 8 != offsets[1] - offsets[0]:
        expected = f"{bits // 8}" if bits % 8 == 0 else f"{bits / 8}"
        return f"{dtype} {list(shape)} takes {expected} bytes, data_offsets span {offsets[1] - offsets[0]}"
    return Tensor(dtype, tuple(shape), file, start + offsets[0], start + offsets[1])


def _counts(value: object) -> list[int] | None:
    """Return a list of whole numbers, None if it is anything else; true and 1.0 are not whole numbers."""
    if not isinstance(value, list) or len(value) > _MAX_DIMENSIONS:
        return None
    return value if all(type(item) is int and 0 <= item < 2**63 for item in value) else None


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:76] + " ..."


def _span_faults(tensors: Mapping[str, Tensor], start: int, size: int) -> Iterator[str]:
    """Every byte behind the header belongs to exactly one tensor, as the reference reader demands."""
    last_end, last_name = start, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.end > size:
            yield f"tensor {name} ends at byte {tensor.end}, the file at {size}: it is truncated"
        if tensor.begin < last_end:
            yield f"tensors {last_name} and {name} overlap by {last_end - tensor.begin} bytes"
        elif tensor.begin > last_end:
            yield f"{tensor.begin - last_end} bytes before tensor {name} belong to no tensor"
        if tensor.end >= last_end:
            last_end, last_name = tensor.end, name
    if last_end < size:
        yield f"{size - last_end} bytes at the end belong to no tensor"


def _read_json(files: Files, name: str) -> Mapping[str, object]:
    where, size = f"{files.where}/{name}", files.size(name)
    if size > MAX_JSON:
        raise InputError(where, f"has {size} bytes; at most {MAX_JSON} are read")
    return _parse(files.read(name, 0, size), where, what="file")


def _parse(data: bytes, where: str, *, what: str) -> dict[str, object]:
    """Parse a JSON object; a key that is there twice is a fault, since readers differ in which one counts."""
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            repeated.extend(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return found

    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise InputError(where, f"the {what} is not UTF-8 text (byte {error.start})") from None
    except RecursionError:
        raise InputError(where, f"the {what} is nested too deeply") from None
    except ValueError as error:
        raise InputError(where, f"the {what} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError(where, f"the {what} is JSON, and not an object")
    if repeated:
        raise InputError(where, f"the {what} has {repeated[0]!r} twice", facts=repeated[1:_SHOWN])
    return found
