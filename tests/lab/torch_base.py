"""The torch base: CPU torch and what SGLang imports, so that real model classes are built.

The 1.1 GB of packages are one image layer that the bases of all versions share.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import docker
from docker.errors import ContainerError

from tests.lab import bases, cache, host, images, rootfs, wheels
from tests.lab.layers import MTIME, Layer

_HERE: Final = Path(__file__).parent
_REQUIREMENTS: Final = _HERE / "torch-requirements.txt"
_HELPS: Final = _HERE / "in_image" / "overlay_lab_helps.py"
_WARM: Final = _HERE / "in_image" / "warm.py"
#: The tree that is imported to compile what it needs.
_WARM_VERSION: Final = "0.5.19"

#: What only those need who compile against the packages, or test them.
_DROPPED: Final = (
    "bin",
    "torch/include",
    "torch/share",
    "torch/test",
    "xgrammar/lib/libxgrammar.a",
)
_KEPT_PROGRAM: Final = "torch_shm_manager"

_RECIPE: Final = "1"


def torch_base(
    engine: docker.DockerClient, version: str = "0.5.17", variant: bases.Variant = "editable"
) -> bases.BaseImage:
    """Return a base on which real SGLang imports and builds its models (1.1 GB)."""
    below = lambda: _root_image(engine)  # noqa: E731  made only if the base is not there
    return bases.base_on(engine, below, "torch", _key(), version, variant)


def _root_image(engine: docker.DockerClient) -> str:
    name = f"{images.REPOSITORY}/torch-root:{rootfs.SUITE}"

    def make(name: str, labels: Mapping[str, str]) -> None:
        images.import_tar(engine, name, _joined(_packages_tar(engine)), labels=labels)

    images.made_once(engine, name, _key(), make)
    return name


def _key() -> str:
    texts = (path.read_text() for path in (_REQUIREMENTS, _HELPS, _WARM))
    return cache.recipe_key("torch", _RECIPE, rootfs.key(), _WARM_VERSION, *_DROPPED, *texts)


def _joined(packages: Path) -> Iterator[bytes]:
    """Chain two tars into one: `docker import` makes one layer in one pass."""
    root = rootfs.root_filesystem()
    return itertools.chain(images.chunks(root, end=rootfs.end_of_members(root)), images.chunks(packages))


def _packages_tar(engine: docker.DockerClient) -> Path:
    return cache.made_once("torch.tar", _key(), lambda path: _make_tar(engine, path))


def _make_tar(engine: docker.DockerClient, target: Path) -> None:
    # Beside the target: the packages are too large for a /tmp that lies in memory.
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name) / "packages"
        _install(folder)
        _trim(folder)
        _add_helps(folder)
        _compile(engine, folder)
        layer = Layer(parents=False)
        layer.put_tree(bases.SITE, folder)
        with target.open("wb") as file:
            layer.write(file)


def _install(folder: Path) -> None:
    try:
        host.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"),
                *("--python-version", wheels.PYTHON, "--only-binary=:all:"),
                *("--target", folder, "--requirement", _REQUIREMENTS),
            ]
        )
    except host.LabError as error:
        raise host.LabError(
            f"{error}\n"
            "The CPU build of torch is not on every index: name one that has it, or a folder,"
            " in PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS."
        ) from error


def _trim(folder: Path) -> None:
    programs = [path for path in (folder / "torch/bin").iterdir() if path.name != _KEPT_PROGRAM]
    for path in [*(folder / name for name in _DROPPED), *programs]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _add_helps(folder: Path) -> None:
    module = _HELPS.stem
    shutil.copyfile(_HELPS, folder / _HELPS.name)
    (folder / f"{module}.pth").write_text(f"import {module}; {module}.install()\n")


def _compile(engine: docker.DockerClient, folder: Path) -> None:
    # Bytecode names its source's time, and the layer gives every file the same one.
    for path in folder.rglob("*.py"):
        os.utime(path, (MTIME, MTIME))
    mounts = {
        str(folder): {"bind": bases.SITE, "mode": "rw"},
        str(wheels.tree(_WARM_VERSION)): {"bind": "/tree", "mode": "ro"},
        str(_WARM): {"bind": "/warm.py", "mode": "ro"},
    }
    try:
        engine.containers.run(
            bases.root_image(engine),
            ["/usr/bin/python3", "/warm.py"],
            environment={"PYTHONPATH": "/tree", "HOME": "/tmp"},
            network_mode="none",
            volumes=mounts,
            remove=True,
            stderr=True,
        )
    except ContainerError as error:
        said = host.last_lines(_text(error.stderr or b""))
        raise host.LabError(f"SGLang does not import on the torch base:\n{said}") from error


def _text(output: bytes | str) -> str:
    return output if isinstance(output, str) else output.decode(errors="replace")
