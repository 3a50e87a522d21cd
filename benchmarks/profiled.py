"""The child: the `overlay` command under cProfile."""

from __future__ import annotations

import cProfile
import os


def main() -> None:
    """Run the command; write the profile to the file that OVERLAY_BENCHMARK_PROFILE names."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        from builder.cli import main as overlay

        overlay()
    finally:
        profile.disable()
        profile.dump_stats(os.environ["OVERLAY_BENCHMARK_PROFILE"])
