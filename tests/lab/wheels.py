"""SGLang's release wheels, fetched by pip and unpacked: the real source of eight bases."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from tests.lab import cache, host

VERSIONS: Final = tuple(f"0.5.{patch}" for patch in range(16, 24))

#: The wheels' Python, and so the bases'. The host's own may be another.
PYTHON: Final = "3.11"

#: Pinned so that the upstream repository made of them has the same commit ids everywhere.
#: Each architecture has its own wheel; only the source in them is the same.
_SHA256: Final = {
    "sglang-0.5.16-cp311-cp311-manylinux_2_34_x86_64.whl": (
        "d5f345a18953dd35df568ac56bdcb7f5ee910ab39efea4469b714556d1070713"
    ),
    "sglang-0.5.17-cp311-cp311-manylinux_2_34_x86_64.whl": (
        "575e38f5683624ded3b4bb267f637a098e5ed37d13a1d1ff5ea09bd781a04d16"
    ),
    "sglang-0.5.18-cp311-cp311-manylinux_2_34_x86_64.whl": (
        "e97b585dd2d5db2802599feba47c84cce972f5e1231a6816fef996200207b5cf"
    ),
    "sglang-0.5.19-cp311-cp311-manylinux_2_34_x86_64.whl": (
        "425e87377e725d03db8262382008f3fd9561a6cf5d82f485f8b9929f02ffe12b"
    ),
    "sglang-0.5.20-cp311-cp311-manylinux_2_34_x86_64.whl": (
        "1573527042f4f6b4ead838302818595fc77fdc611dbcc2e40cd150fbc8f8513c"
    ),
    "sglang-0.5.21-cp311-cp311-manylinux_2_34_x86_64.whl": (
        "96c029f75dec99baa33a5db3d41b1bebefdd6bcfba3a2f7c807fe1cf49a87c20"
    ),
    "sglang-0.5.22-cp311-cp311-manylinux_2_34_x86_64.whl": (
        "cc9a0f15bd8f877a0584fdb7a1702240177a1f1cc8d17c978715161717b9037b"
    ),
    "sglang-0.5.23-cp311-cp311-manylinux_2_34_x86_64.whl": (
        "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937"
    ),
}

_RECIPE: Final = "1"


def tree(version: str) -> Path:
    """Return the folder that holds `sglang/` of one release; shared, so never write into it."""
    key = cache.recipe_key("tree", _RECIPE, version)
    return cache.made_once(f"trees/{version}", key, lambda path: _make_tree(version, path))


def dist_info(version: str) -> Path:
    """Return the release's `.dist-info` folder, which lies beside its `sglang/`."""
    return tree(version) / f"sglang-{version}.dist-info"


def _make_tree(version: str, target: Path) -> None:
    # The wheel itself is not kept: the tree is what is used, and pip can fetch it again.
    with tempfile.TemporaryDirectory() as folder:
        wheel = _download(version, Path(folder))
        unpacked = Path(folder) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        target.mkdir()
        for name in ("sglang", f"sglang-{version}.dist-info"):
            shutil.move(unpacked / name, target / name)


def _download(version: str, folder: Path) -> Path:
    host.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--python-version", PYTHON, "--only-binary=:all:"),
            *("--dest", folder, f"sglang=={version}"),
        ]
    )
    (wheel,) = folder.glob("*.whl")
    expected = _SHA256.get(wheel.name)
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if expected is not None and found != expected:
        raise host.LabError(f"{wheel.name}: sha256 {found}, expected {expected}")
    return wheel
