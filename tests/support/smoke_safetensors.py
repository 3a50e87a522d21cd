"""Safetensors files with one thing wrong each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


def entry(dtype: object, shape: object, begin: object, end: object) -> Entry:
    """Return one tensor's entry of a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def encoded(header: bytes | Mapping[str, Any], data: int = 0, *, length: int | None = None) -> bytes:
    """Return a file of a header and this many bytes of data; `length` overrides what the first eight bytes say."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data)


def write_model(folder: Path, files: Mapping[str, bytes], *, config: Mapping[str, Any] | None = None) -> Path:
    """Write a checkpoint's folder: files as they are, and a config."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "config.json").write_text(json.dumps(config if config is not None else {"architectures": ["Toy"]}))
    return folder


def one(name: str = "w", elements: int = 4) -> bytes:
    """Return a sound file of one F32 tensor."""
    return encoded({name: entry("F32", [elements], 0, 4 * elements)}, 4 * elements)


def index(weight_map: Mapping[str, str]) -> bytes:
    """Return an index file."""
    return json.dumps({"metadata": {}, "weight_map": weight_map}).encode()


@dataclass
class CountedFiles:
    """A checkpoint in memory that counts what is read of it; a file may promise more bytes than it has."""

    files: Mapping[str, bytes]
    sizes: Mapping[str, int] = field(default_factory=dict)
    reads: list[tuple[str, int, int]] = field(default_factory=list)
    where: str = "memory"

    def names(self) -> frozenset[str]:
        return frozenset(self.files)

    def size(self, name: str) -> int:
        return self.sizes.get(name, len(self.files[name]))

    def read(self, name: str, begin: int, length: int) -> bytes:
        data = self.files[name][begin : begin + length]
        self.reads.append((name, begin, len(data)))
        return data

    def last_byte(self, names: Sequence[str]) -> int:
        """Return the furthest byte read of any of these files."""
        return max((begin + length for name, begin, length in self.reads if name in names), default=0)
