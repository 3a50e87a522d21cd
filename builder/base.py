"""Resolve what a person calls a base to digests, find it in the engine, and pull it only if it is absent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from builder.catalogue import Catalogue, Image
from builder.doors import Engine, Progress, Registry
from builder.errors import InputError, OverlayError, Refused
from builder.model import Digest, ImageRef, LocalImage, Platform, RemoteImage
from builder.records import BasePin, Lock, PlatformPin, write_atomic

FOLDER = "dir:"


@dataclass(frozen=True)
class FolderBase:
    """A folder that holds the package: a venv's site-packages, or an unpacked tree."""

    name: str
    path: Path


@dataclass(frozen=True)
class ImageBase:
    """An image as resolved: digests, the config blob's bytes where a registry told them, and whether it is here.

    `local` is None until it is pulled. `index` is None for a plain manifest; it and `manifest` are None for a local
    image that no registry knows, which is pinned by its config digest.
    """

    reference: ImageRef
    alias: str | None
    platform: Platform
    index: Digest | None
    manifest: Digest | None
    config_digest: Digest
    config: bytes | None
    local: LocalImage | None
    live_root: str | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def digest(self) -> Digest | None:
        """The digest that names the base to a registry: the index where there is one."""
        return self.index or self.manifest


@dataclass(frozen=True)
class Sources:
    """Where bases come from: the engine, a registry, the mirror in front of Docker Hub, and the config blob cache."""

    engine: Engine
    registry: Registry
    mirror: str | None
    cache: Path


def named(name: str, catalogue: Catalogue) -> FolderBase | tuple[ImageRef, Image | None]:
    """Read a base's name: `dir:PATH`, a catalogue alias, or an image reference. Nothing is asked of anybody."""
    if name.startswith(FOLDER):
        if name == FOLDER:
            raise InputError("--base", "dir: names no folder", hint="write dir:PATH, for example dir:.")
        path = Path(name.removeprefix(FOLDER)).expanduser()
        return FolderBase(name, path)
    if name in catalogue.image_names():
        image = catalogue.image(name)
        return ImageRef.parse(image.reference), image
    if name.startswith(("/", ".", "~")):
        raise InputError("--base", f"{name!r} looks like a folder", hint=f"write dir:{name}")
    is_bare_word = not any(mark in name for mark in ":/@.")
    if is_bare_word:
        catalogue.image(name)  # raises, naming the closest alias
    return ImageRef.parse(name), None


def resolve(
    name: str, catalogue: Catalogue, sources: Sources, platform: Platform | None, lock: Lock | None
) -> ImageBase:
    """Resolve an image base to digests; manifests and configs only, nothing is pulled.

    A pin in the lock wins over what the tag says now. Raises Refused where the lock and the world disagree.
    """
    found = named(name, catalogue)
    if isinstance(found, FolderBase):
        raise InputError(name, "is a folder; this needs an image", hint="use plan, or give an image")
    reference, image = found
    wanted = platform or sources.engine.info().platform
    pin = lock.base(image.alias if image else None, reference.repository_and_tag) if lock else None
    base = _locked(reference, wanted, pin, sources) if pin else _unlocked(reference, wanted, sources)
    return replace(base, alias=image.alias if image else None, live_root=image.live_root if image else None)


def _locked(reference: ImageRef, platform: Platform, pin: BasePin, sources: Sources) -> ImageBase:
    seen = next((entry for entry in pin.platforms if entry.platform == str(platform)), None)
    index = Digest(pin.index)
    if seen is not None:
        manifest, config_digest = Digest(seen.manifest), Digest(seen.config)
        local = find_local(sources.engine, config_digest, (manifest, index))
        config = _cached_config(sources.cache, config_digest)
        if local is not None and config is not None:
            return ImageBase(reference, None, platform, index, manifest, config_digest, config, local)
    remote = sources.registry.resolve(reference.pinned(index).mirrored(sources.mirror), platform)
    if seen is not None and (remote.manifest, remote.config_digest) != (seen.manifest, seen.config):
        raise Refused(
            f"lock of {pin.alias}",
            f"the index {index} now answers another image for {platform}",
            facts=(
                f"lock:     manifest {seen.manifest}, config {seen.config}",
                f"registry: manifest {remote.manifest}, config {remote.config_digest}",
            ),
            hint="an index digest cannot change its content: check the registry or mirror",
        )
    return _from_remote(reference, remote, sources)


def _unlocked(reference: ImageRef, platform: Platform, sources: Sources) -> ImageBase:
    """Ask the registry what the name means now.

    An image that was built here and never came from a registry is asked of nobody; a pulled one will do where the
    registry does not answer. Both are pinned by their config digest, and that is said.
    """
    local = sources.engine.inspect(str(reference))
    if local is not None and not local.repo_digests:
        return _from_local(reference, local, platform, "a local image without a repository digest")
    try:
        remote = sources.registry.resolve(reference.mirrored(sources.mirror), platform)
    except OverlayError as error:
        if local is None:
            raise
        return _from_local(reference, local, platform, f"no registry answered for it ({error.message})")
    return _from_remote(reference, remote, sources)


def _from_remote(reference: ImageRef, remote: RemoteImage, sources: Sources) -> ImageBase:
    write_atomic(_config_path(sources.cache, remote.config_digest), remote.config)
    digests = (remote.manifest, remote.index) if remote.index else (remote.manifest,)
    local = find_local(sources.engine, remote.config_digest, digests)
    return ImageBase(
        reference, None, remote.platform, remote.index, remote.manifest, remote.config_digest, remote.config, local
    )


def _from_local(reference: ImageRef, local: LocalImage, platform: Platform, why: str) -> ImageBase:
    if (local.platform.os, local.platform.architecture) != (platform.os, platform.architecture):
        raise InputError(
            str(reference),
            f"the local image is for {local.platform}, wanted {platform}",
            hint=f"give --platform {local.platform}, or name the right image",
        )
    digests = {Digest(entry.rpartition("@")[2]) for entry in local.repo_digests}
    note = f"{reference}: {why}; it is pinned by its config digest"
    manifest = next(iter(digests)) if len(digests) == 1 else None
    return ImageBase(reference, None, local.platform, None, manifest, local.id, None, local, notes=(note,))


def find_local(engine: Engine, config_digest: Digest, digests: tuple[Digest, ...]) -> LocalImage | None:
    """Find an image by its config digest, or by any repository digest, whatever its repository is called."""
    direct = engine.inspect(config_digest)
    if direct is not None:
        return direct
    wanted = set(digests)
    return next(
        (image for image in engine.images() if wanted & {entry.rpartition("@")[2] for entry in image.repo_digests}),
        None,
    )


def pulled(base: ImageBase, sources: Sources, progress: Progress) -> ImageBase:
    """Return the base with its local image, pulling it by digest if it is absent."""
    if base.local is not None:
        return base
    assert base.manifest is not None  # only what a registry resolved can be absent
    reference = base.reference.pinned(base.manifest).mirrored(sources.mirror)
    local = sources.engine.pull(reference, base.platform, progress)
    if local.id not in (base.config_digest, base.manifest, base.index):
        raise Refused(
            str(base.reference),
            "the engine pulled another image than the registry described",
            facts=(f"expected: config {base.config_digest}", f"found:    image {local.id}"),
            hint="run the command again; if it stays, the registry or mirror serves wrong content",
        )
    return replace(base, local=local)


def with_platform_seen(lock: Lock, base: ImageBase) -> Lock | None:
    """Return the lock with this platform's digests written in, None if it has them or does not pin this base."""
    pin = lock.base(base.alias, base.reference.repository_and_tag)
    if pin is None or base.manifest is None or any(entry.platform == str(base.platform) for entry in pin.platforms):
        return None
    seen = PlatformPin(platform=str(base.platform), manifest=base.manifest, config=base.config_digest)
    pinned = pin.model_copy(update={"platforms": tuple(sorted((*pin.platforms, seen), key=lambda e: e.platform))})
    return lock.model_copy(update={"bases": tuple(pinned if entry == pin else entry for entry in lock.bases)})


def _config_path(cache: Path, digest: Digest) -> Path:
    return cache / "configs" / f"{digest.hex}.json"


def _cached_config(cache: Path, digest: Digest) -> bytes | None:
    path = _config_path(cache, digest)
    if not path.exists():
        return None
    data = path.read_bytes()
    return data if Digest.of(data) == digest else None
