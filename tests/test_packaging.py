"""The wheel carries the catalogue and installs nothing else at top level."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_catalogue_is_inside_the_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    data = {
        f"builder/_catalogue/{path.relative_to(ROOT)}"
        for kind in ("overlays", "patches", "images")
        for path in (ROOT / kind).rglob("*")
        if path.is_file()
    }
    assert data
    assert data <= set(names)
    assert {name.split("/")[0] for name in names} == {"builder", "sglang_overlay-0.1.0.dist-info"}
    assert "builder/smoke/probes/model_probe.py" in names


def test_an_installed_wheel_works_outside_a_checkout(wheel, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    program = "import sys; sys.argv = ['overlay', 'list', '--json', '--quiet']; from builder.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "DOCKER_HOST": "unix:///none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(site / "builder/_catalogue") in done.stdout
    assert '"dflash2"' in done.stdout
