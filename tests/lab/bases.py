"""Base images of the lab, laid out as the images that people really have.

Official images hold an editable checkout; others hold an installed package, or both with one
of them dead. All of them print a banner when they start, as official ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import docker

from tests.lab import cache, images, rootfs, wheels
from tests.lab.layers import ROOT, Layer, Owner

Variant = Literal[
    "editable",  # as in official images: a checkout that a `.pth` points at
    "compiled",  # the same, with bytecode beside the sources
    "installed",  # in SITE
    "dead-checkout",  # installed, with a checkout of another version that nobody imports
    "dead-install",  # editable, with another version in DEBIAN_SITE that nobody imports
    "finder",  # editable by an import hook: from WORKDIR the package has no origin
    "owned",  # editable, everything owned by 1000:1000 with mode 2750, non-root USER
]

WORKDIR: Final = "/sgl-workspace"
CHECKOUT: Final = "/sgl-workspace/sglang/python"
#: Where pip installs on Debian; the lab's alone: the tool asks the image.
SITE: Final = f"/usr/local/lib/python{wheels.PYTHON}/dist-packages"
#: Where Debian's own packages lie; searched after what `.pth` files in SITE name.
DEBIAN_SITE: Final = "/usr/lib/python3/dist-packages"

_USER: Final = Owner(1000, 1000, folder_mode=0o2750, file_mode=0o640)
_RECIPE: Final = "1"
_ENTRYPOINT: Final = "/opt/lab/entrypoint.sh"

#: Eight lines, one of them empty, two that look like what a probe might be after.
_BANNER: Final = """\
#!/bin/bash
cat <<'TEXT'

==========================
== SGLang (a lab's base) ==
==========================
Package: /usr/local/lib/python3/dist-packages/sglang
Commit: 0123456789abcdef0123456789abcdef01234567
WARNING: The NVIDIA Driver was not detected. GPU functionality will not be available.
==========================
TEXT
exec "$@"
"""

_CONSOLE_SCRIPT: Final = """\
#!/usr/bin/python3
import sys
from sglang.cli.main import main
sys.exit(main())
"""

#: The least that an editable install by a finder needs: found after every folder on sys.path.
_FINDER: Final = """\
import sys
from importlib.machinery import ModuleSpec, PathFinder

MAPPING = {"sglang": "/sgl-workspace/sglang/python"}


class _EditableFinder:
    @classmethod
    def find_spec(cls, fullname: str, path=None, target=None) -> ModuleSpec | None:
        folder = MAPPING.get(fullname)
        return PathFinder.find_spec(fullname, [folder]) if folder else None


def install() -> None:
    if _EditableFinder not in sys.meta_path:
        sys.meta_path.append(_EditableFinder)
"""

_CONFIG_LINES: Final = (
    "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "ENV DEBIAN_FRONTEND=noninteractive",
    "ENV NVIDIA_VISIBLE_DEVICES=all",
    "ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    f"WORKDIR {WORKDIR}",
    f'ENTRYPOINT ["{_ENTRYPOINT}"]',
    'CMD ["python3", "-m", "sglang.launch_server"]',
)

_EXTRA_LINES: Final[Mapping[Variant, tuple[str, ...]]] = {
    "compiled": (f"RUN python3 -m compileall -q {CHECKOUT}/sglang",),
    "owned": ("USER 1000:1000",),
}


@dataclass(frozen=True)
class BaseImage:
    """A local base image, and what a right reader of it finds."""

    name: str
    id: str
    version: str
    variant: Variant
    #: The folder that holds the live `sglang/`.
    package_parent: str
    #: The folder that holds a dead copy, if there is one, and its version.
    dead_parent: str | None = None
    dead_version: str | None = None


# -- images --------------------------------------------------------------------------------


def root_image(engine: docker.DockerClient) -> str:
    """Return the name of the image that holds the root filesystem alone."""
    name = f"{images.REPOSITORY}/root:{rootfs.SUITE}"

    def make(name: str, labels: Mapping[str, str]) -> None:
        images.import_tar(engine, name, images.chunks(rootfs.root_filesystem()), labels=labels)

    images.made_once(engine, name, rootfs.key(), make)
    return name


def tiny_base(engine: docker.DockerClient, version: str = "0.5.17", variant: Variant = "editable") -> BaseImage:
    """Return a base without torch (166 MB): everything but real imports works on it."""
    name = f"{images.REPOSITORY}/tiny:{version}-{variant}"
    key = cache.recipe_key("tiny", _RECIPE, rootfs.key(), version, variant, *_texts())
    return _base(engine, name, key, version, variant, lambda: root_image(engine))


def labelled(engine: docker.DockerClient, base: BaseImage, name: str, labels: Mapping[str, str]) -> BaseImage:
    """Return the same base under another name with more labels; no layer is added."""
    return replace(base, name=name, id=images.build(engine, name, base.name, labels=labels))


def toy_base(
    engine: docker.DockerClient,
    name: str,
    files: Mapping[str, bytes | str],
    *,
    lines: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
) -> str:
    """Make a small image of files at absolute paths on the root filesystem; return its ID.

    Nothing else is added: no entrypoint, no package. `lines` are Dockerfile instructions.
    """
    layer = Layer()
    for path, content in files.items():
        layer.put(path, content)
    return images.build(engine, name, root_image(engine), layer=layer, lines=lines, labels=labels)


def base_on(
    engine: docker.DockerClient,
    below: Callable[[], str],
    family: str,
    below_key: str,
    version: str,
    variant: Variant = "editable",
) -> BaseImage:
    """Return a base whose tree lies on another image than the bare root filesystem."""
    name = f"{images.REPOSITORY}/{family}:{version}-{variant}"
    key = cache.recipe_key(family, _RECIPE, below_key, version, variant, *_texts())
    return _base(engine, name, key, version, variant, below)


def _base(
    engine: docker.DockerClient,
    name: str,
    key: str,
    version: str,
    variant: Variant,
    below: Callable[[], str],
) -> BaseImage:
    def make(name: str, labels: Mapping[str, str]) -> None:
        lines = [*_CONFIG_LINES, *_EXTRA_LINES.get(variant, ())]
        labels = {**_official_labels(version), **labels}
        layer = base_layer(version, variant)
        images.build(engine, name, below(), layer=layer, lines=lines, labels=labels)

    image = images.made_once(engine, name, key, make)
    parent = SITE if variant in ("installed", "dead-checkout") else CHECKOUT
    dead = {"dead-checkout": CHECKOUT, "dead-install": DEBIAN_SITE}.get(variant)
    dead_version = _other(version) if dead else None
    return BaseImage(name, image, version, variant, parent, dead, dead_version)


def _official_labels(version: str) -> Mapping[str, str]:
    return {
        "SGLANG_BUILD_COMMIT": "unknown",
        "SGLANG_IMAGE_TAG": f"v{version}",
        "maintainer": "overlay lab",
        "org.opencontainers.image.ref.name": "debian",
        "org.opencontainers.image.version": "12",
    }


def _texts() -> tuple[str, ...]:
    return (_BANNER, _CONSOLE_SCRIPT, _FINDER, *_CONFIG_LINES)


# -- layers --------------------------------------------------------------------------------


def base_layer(version: str, variant: Variant) -> Layer:
    """Return what a base has on top of the root filesystem."""
    layer = Layer()
    layer.put(_ENTRYPOINT, _BANNER, mode=0o755)
    layer.put("/usr/local/bin/sglang", _CONSOLE_SCRIPT, mode=0o755)
    # The root filesystem is extracted, not configured: nobody wrote these.
    layer.put("/etc/passwd", "root:x:0:0:root:/root:/bin/bash\nsgl:x:1000:1000::/tmp:/bin/bash\n")
    layer.put("/etc/group", "root:x:0:\nsgl:x:1000:\n")
    layer.put_folder(WORKDIR)
    _VARIANTS[variant](layer, version)
    return layer


def _editable(layer: Layer, version: str, owner: Owner = ROOT) -> None:
    _checkout(layer, version, owner)
    layer.put(f"{SITE}/__editable__.sglang-{version}.pth", f"{CHECKOUT}\n")
    _dist_info(layer, SITE, version, editable=True)


def _owned(layer: Layer, version: str) -> None:
    layer.put_folder(WORKDIR, owner=_USER)
    _editable(layer, version, _USER)


def _finder(layer: Layer, version: str) -> None:
    _checkout(layer, version)
    module = f"__editable___sglang_{version.replace('.', '_')}_finder"
    layer.put(f"{SITE}/{module}.py", _FINDER)
    line = f"import {module}; {module}.install()\n"
    layer.put(f"{SITE}/__editable__.sglang-{version}.pth", line)
    _dist_info(layer, SITE, version, editable=True)


def _installed(layer: Layer, version: str, site: str = SITE) -> None:
    layer.put_tree(f"{site}/sglang", wheels.tree(version) / "sglang")
    _dist_info(layer, site, version, editable=False)


def _dead_checkout(layer: Layer, version: str) -> None:
    _installed(layer, version)
    _checkout(layer, _other(version))


def _dead_install(layer: Layer, version: str) -> None:
    _editable(layer, version)
    _installed(layer, _other(version), DEBIAN_SITE)


_VARIANTS: Final[Mapping[Variant, Callable[[Layer, str], None]]] = {
    "editable": _editable,
    "compiled": _editable,
    "installed": _installed,
    "dead-checkout": _dead_checkout,
    "dead-install": _dead_install,
    "finder": _finder,
    "owned": _owned,
}


def _checkout(layer: Layer, version: str, owner: Owner = ROOT) -> None:
    for folder in ("/sgl-workspace/sglang", CHECKOUT):
        layer.put_folder(folder, owner=owner)
    layer.put_tree(f"{CHECKOUT}/sglang", wheels.tree(version) / "sglang", owner=owner)


def _dist_info(layer: Layer, site: str, version: str, *, editable: bool) -> None:
    folder = f"{site}/sglang-{version}.dist-info"
    layer.put_tree(folder, wheels.dist_info(version))
    layer.put(f"{folder}/INSTALLER", "pip\n")
    if editable:
        # pip's own RECORD of an editable install names no file of the package.
        layer.put(f"{folder}/RECORD", f"__editable__.sglang-{version}.pth,,\n")
        url = f'{{"dir_info": {{"editable": true}}, "url": "file://{CHECKOUT}"}}'
        layer.put(f"{folder}/direct_url.json", url)


def _other(version: str) -> str:
    return "0.5.17" if version == "0.5.16" else "0.5.16"
