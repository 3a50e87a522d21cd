"""The style that CONTRIBUTING promises: ruff and mypy are clean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("command", [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]], ids=" ".join)
def test_is_clean(command, tmp_path):
    environment = {"PATH": "/usr/bin:/bin", "MYPY_CACHE_DIR": str(tmp_path), "RUFF_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
