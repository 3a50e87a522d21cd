"""Pure: medians and spreads of what was measured, and the ratios between them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Figure:
    """The median of some rounds, and the quartiles: half of the rounds lie between them."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """Sum up the values of all rounds; one round is its own median and has no spread."""
        if not values:
            raise ValueError("nothing was measured")
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))

    def __str__(self) -> str:
        return f"{self.median:6.2f} ({self.low:.2f}-{self.high:.2f})"


def ratio(values: Sequence[float], to: Sequence[float]) -> Figure:
    """Divide round by round, so that what slowed a whole round down falls out."""
    return Figure.of([value / other for value, other in zip(values, to, strict=True)])


@dataclass(frozen=True)
class Target:
    """A figure and its limit; `is_ratio` tells what holds on any machine from what was seen on this one."""

    text: str
    value: float
    limit: float
    unit: str
    is_ratio: bool

    @property
    def is_met(self) -> bool:
        return self.value <= self.limit

    def __str__(self) -> str:
        verdict = "met   " if self.is_met else "MISSED"
        return f"{verdict} {self.text}: {self.value:.2f}{self.unit}, wanted at most {self.limit:g}{self.unit}"

    def record(self) -> Mapping[str, object]:
        """Return the target as JSON values."""
        return {**asdict(self), "is_met": self.is_met}
