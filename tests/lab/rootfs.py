"""The bases' root filesystem: a little of Debian 12, whose Python is the wheels' 3.11."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Final

from tests.lab import cache, host, packages

SUITE: Final = "bookworm"

_PACKAGES: Final = (
    "base-files",
    "bash",
    "coreutils",
    "dash",
    "findutils",
    "grep",
    "libgomp1",
    "libpython3-stdlib",
    "libstdc++6",
    "python3-minimal",
    "sed",
    "tar",
)
_EPOCH: Final = "1782907200"  # 2026-07-01: no file of the base is younger
_RECIPE: Final = "1"


def root_filesystem() -> Path:
    """Return the tar of the root filesystem (94 MB)."""
    return cache.made_once("rootfs.tar", key(), _make)


def key() -> str:
    return cache.recipe_key("rootfs", _RECIPE, SUITE, _EPOCH, *_PACKAGES)


def end_of_members(path: Path) -> int:
    """Return where a tar's closing zeros start, so that other members can follow."""
    with tarfile.open(path) as archive:
        archive.getmembers()
        return archive.offset


def _make(path: Path) -> None:
    argv: list[str | Path] = [packages.program("mmdebstrap"), "--quiet", "--variant=extract"]
    argv += [f"--include={','.join(_PACKAGES)}", SUITE, path, _mirror()]
    host.run(argv, environment={**host.ENVIRONMENT, "SOURCE_DATE_EPOCH": _EPOCH})


def _mirror() -> str:
    """Return the Debian mirror that the host itself uses."""
    chosen = host.ENVIRONMENT.get("OVERLAY_LAB_DEBIAN_MIRROR")
    if chosen:
        return chosen
    format_ = "$(RELEASE) $(COMPONENT) $(SITE)"
    lines = host.run(["apt-get", "indextargets", "--format", format_, "Created-By: Packages"])
    for release, component, site in (line.split() for line in lines.splitlines()):
        # The release itself: -security and -updates hold only a part of the packages.
        if component == "main" and release == _host_codename():
            return site
    raise host.LabError("apt of this host names no Debian mirror; set OVERLAY_LAB_DEBIAN_MIRROR to one")


def _host_codename() -> str:
    lines = Path("/etc/os-release").read_text().splitlines()
    release = dict(line.split("=", 1) for line in lines if "=" in line)
    return release.get("VERSION_CODENAME", "").strip('"')
