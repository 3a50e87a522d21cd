"""The errors people see, each with an exit code and the next step."""

from __future__ import annotations

from collections.abc import Sequence


class OverlayError(Exception):
    """Something a person can act on; `where` names the file and key, PR, patch or door."""

    exit_code = 70

    def __init__(self, where: str, message: str, *, hint: str = "", facts: Sequence[str] = ()) -> None:
        super().__init__(f"{where}: {message}")
        self.where = where
        self.message = message
        self.hint = hint
        self.facts = tuple(facts)


class Refused(OverlayError):
    """The answer is no, or cannot be told: conflict, rejected patch, failed check, moved pin."""

    exit_code = 1


class InputError(OverlayError):
    """The caller's files or arguments need an edit."""

    exit_code = 2


class Unavailable(OverlayError):
    """Engine, network, registry, forge or git did not do their part; trying again may help."""

    exit_code = 3


def last_lines(text: str, count: int = 20) -> tuple[str, ...]:
    """Return the last lines of a tool's own words, for an error's facts."""
    return tuple(line.rstrip() for line in text.strip().splitlines()[-count:])
