"""Pure: files and deletions -> one deterministic layer, the image config that names it, and the thin archive of both.

Formats: OCI image-spec 1.1 (layer.md for whiteouts, config.md for the config) and `docker save` archives, version 1.2.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from posixpath import basename, dirname, normpath
from typing import Any

from builder.errors import InputError
from builder.model import Digest, FileMeta, Layer, LocalImage, SourceTree

WHITEOUT = ".wh."
_WHERE = "layer"
_NANOSECONDS = 10**9

# What an engine tells about an image beyond this describes the container it was made from, not the image.
_CONFIG_KEYS = frozenset(
    (
        *("ArgsEscaped", "Cmd", "Entrypoint", "Env", "ExposedPorts", "Healthcheck", "Labels", "OnBuild", "Shell"),
        *("StopSignal", "User", "Volumes", "WorkingDir"),
    )
)


@dataclass(frozen=True)
class LayerFile:
    """One file the layer sets: absolute path in the image, content, permission bits and owner.

    The time in `meta` is not used: every file of a layer carries the layer's own time.
    """

    path: str
    data: bytes
    meta: FileMeta


def build(files: Iterable[LayerFile], deletions: Iterable[str], folders: Mapping[str, FileMeta], time_ns: int) -> Layer:
    """Write the layer's tar: the same arguments give the same bytes, on any machine.

    `deletions` are absolute paths of files that the base has. `folders` holds every folder of the base that is on the
    way to one of the paths; a folder that is not in it is new and takes mode and owner of its siblings, else of its
    parent. Paths must not lead through a link of the base: the caller resolves those. Raises InputError with all
    faults.
    """
    files, deletions = list(files), list(deletions)
    _check([file.path for file in files], deletions, folders)
    entries = {file.path: (_entry(file.path, replace(file.meta, mtime_ns=time_ns)), file.data) for file in files}
    for path in deletions:
        whiteout = f"{dirname(path).rstrip('/')}/{WHITEOUT}{basename(path)}"
        entries[whiteout] = (_entry(whiteout, FileMeta(0o644, 0, 0, time_ns)), b"")
    known = dict(folders)
    for folder in sorted({folder for path in entries for folder in _parents(path)}):
        # Sorted, so that a new folder's parent is known before it.
        known.setdefault(folder, replace(_sibling_folder(folder, known), mtime_ns=time_ns))
        entries[folder] = (_entry(folder, known[folder], tarfile.DIRTYPE), b"")
    tar = _tar(entries[path] for path in sorted(entries))
    return Layer(tar, Digest.of(tar), len(files) + len(deletions))


def new_file_meta(tree: SourceTree, path: str, *, executable: bool = False) -> FileMeta:
    """Return mode and owner for a file that the tree (package path) does not have: those of its siblings.

    Siblings are the files of the same folder, or of the nearest folder above that has any.
    """
    folder = dirname(path)
    while folder:
        siblings = Counter(
            (entry.meta.mode & 0o7666, entry.meta.uid, entry.meta.gid)
            for name, entry in tree.files.items()
            if dirname(name) == folder and entry.link is None
        )
        if siblings:
            mode, uid, gid = _commonest(siblings)
            # As git does on checkout: a file that may run may be run by all who may read it.
            return FileMeta(mode | ((mode & 0o444) >> 2 if executable else 0), uid, gid, 0)
        folder = dirname(folder)
    raise InputError(path, f"no folder above it holds a file of {tree.package}, so nothing tells its owner")


def image_config(
    base_config: bytes, layer: Layer, *, created: int, labels: Mapping[str, str], created_by: str
) -> bytes:
    """Return the base's config with one diff ID, one history entry and our labels more, as canonical JSON.

    Every other key of the base stays, known or not, also what old builders left behind (`container`,
    `container_config`, `docker_version`): it is part of the pinned blob, so it cannot differ between two builds.
    `created` is in seconds since 1970.
    """
    config = _json_object(base_config)
    rootfs = dict(config.get("rootfs") or {})
    diff_ids = [str(Digest(diff_id)) for diff_id in rootfs.get("diff_ids") or ()]
    time = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    run_config = dict(config.get("config") or {})
    run_config["Labels"] = {**(run_config.get("Labels") or {}), **labels}
    history = _aligned_history(config.get("history") or [], len(diff_ids))
    return _canonical(
        {
            **config,
            "config": run_config,
            "created": time,
            "history": [*history, {"created": time, "created_by": created_by}],
            "rootfs": {**rootfs, "type": "layers", "diff_ids": [*diff_ids, str(layer.diff_id)]},
        }
    )


def projected_config(image: LocalImage) -> bytes:
    """Return an image config for a base in no registry, from what the engine tells, as canonical JSON.

    Holds architecture, os, variant, created, author, the OCI keys of `config` that are set, rootfs and history.
    It is not the blob that the base's own id names: the engine does not give that away without the layers.
    """
    told = {key: image.config[key] for key in ("created", "author") if image.config.get(key)}
    run_config = image.config.get("config")
    history = image.config.get("history")
    kept = {
        key: value
        for key, value in (run_config.items() if isinstance(run_config, Mapping) else ())
        if key in _CONFIG_KEYS and value not in (None, "", [], {}, False)
    }
    platform = {"architecture": image.platform.architecture, "os": image.platform.os}
    return _canonical(
        {
            **told,
            **platform,
            **({"variant": image.platform.variant} if image.platform.variant else {}),
            "config": kept,
            "rootfs": {"type": "layers", "diff_ids": [str(diff_id) for diff_id in image.diff_ids]},
            "history": _aligned_history(history if isinstance(history, list) else [], len(image.diff_ids)),
        }
    )


def thin_archive(config: bytes, layer: Layer, base_diff_ids: Sequence[Digest]) -> Iterator[bytes]:
    """Yield a `docker load` archive that holds only the config and the new layer, piece by piece.

    An engine that has the base's layers never opens them, so they stand in the list as names without content.
    """
    name = f"{Digest.of(config).hex}.json"
    layers = [*(f"{diff_id.hex}/in-the-engine.tar" for diff_id in base_diff_ids), f"{layer.diff_id.hex}/layer.tar"]
    manifest = _canonical([{"Config": name, "Layers": layers, "RepoTags": None}])
    for path, data in ((name, config), (layers[-1], layer.tar), ("manifest.json", manifest)):
        header = tarfile.TarInfo(path)
        header.size = len(data)
        yield header.tobuf(tarfile.PAX_FORMAT)
        yield data
        yield bytes(-len(data) % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _check(paths: list[str], deletions: list[str], folders: Mapping[str, FileMeta]) -> None:
    everything = paths + deletions
    parents = {parent for path in everything for parent in _parents(path)}
    faults = [
        fault
        for path, count in sorted(Counter(everything).items())
        for is_faulty, fault in (
            (count > 1, f"{path}: stands in it {count} times"),
            (not _is_plain(path), f"{path}: is not an absolute path without '.', '..' and empty parts"),
            (f"/{WHITEOUT}" in path, f"{path}: the name would be read as a whiteout"),
            (path in folders, f"{path}: is a folder in the base"),
            (path in parents, f"{path}: is a file, and another path needs it as a folder"),
        )
        if is_faulty
    ]
    faults += [f"{path}: its folder is not in the base" for path in sorted(deletions) if dirname(path) not in folders]
    if faults:
        raise InputError(_WHERE, f"{len(faults)} faults in the paths it should hold", facts=faults)


def _is_plain(path: str) -> bool:
    # normpath keeps two leading slashes, as POSIX wants it.
    return path.startswith("/") and path[1:2] not in ("", "/") and normpath(path) == path and "\0" not in path


def _parents(path: str) -> Iterator[str]:
    while (path := dirname(path)).strip("/"):
        yield path


def _sibling_folder(path: str, known: Mapping[str, FileMeta]) -> FileMeta:
    parent = dirname(path)
    siblings = Counter(
        (meta.mode, meta.uid, meta.gid) for other, meta in known.items() if dirname(other) == parent and other != "/"
    )
    if siblings:
        return FileMeta(*_commonest(siblings), 0)
    return known.get(parent, FileMeta(0o755, 0, 0, 0))


def _commonest(counted: Counter[tuple[int, int, int]]) -> tuple[int, int, int]:
    # The smaller one on a tie: the order in which an engine lists a folder must not show.
    return min(counted, key=lambda meta: (-counted[meta], meta))


def _entry(path: str, meta: FileMeta, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.type, entry.mode, entry.uid, entry.gid = kind, meta.mode & 0o7777, meta.uid, meta.gid
    entry.mtime, nanoseconds = divmod(meta.mtime_ns, _NANOSECONDS)
    if nanoseconds:
        # As text: a float cannot hold today's time in nanoseconds.
        entry.pax_headers = {"mtime": f"{entry.mtime}.{nanoseconds:09d}".rstrip("0")}
    return entry


def _tar(entries: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry, data in entries:
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _aligned_history(history: list[object], layers: int) -> list[object]:
    """Fill up a history that tells of fewer layers than there are, so that our entry is shown with our layer."""
    told = sum(1 for entry in history if not (isinstance(entry, Mapping) and entry.get("empty_layer")))
    return [*history, *({"comment": "not told by the base"} for _ in range(layers - told))]


def _json_object(data: bytes) -> dict[str, Any]:
    where = "base image config"
    try:
        value = json.loads(data)
    except ValueError as error:
        raise InputError(where, f"expected a JSON object, found {len(data)} bytes that are not: {error}") from None
    if not isinstance(value, dict):
        raise InputError(where, f"expected a JSON object, found {type(value).__name__}")
    return value


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
