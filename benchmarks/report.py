"""Pure: what was measured, as a table for people and as a document for programs."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from benchmarks.figures import Figure, Target, ratio
from benchmarks.process import Taken

BY_HAND: Final = "docker build"
STEP: Final = "build step"
WITHOUT_SMOKE: Final = "build without smoke"
PLAN: Final = "plan"

_ROWS: Final = {
    STEP: "what follows the plan: look, load, tag",
    WITHOUT_SMOKE: "whole process: plan and build step",
    PLAN: "whole process",
}
_NO_GROWTH: Final = 1.25
"""What growth may come to by chance on a machine that others use too; the bases differ by a factor of almost seven."""


@dataclass(frozen=True)
class Whole:
    """`overlay build` with its smoke test, and the same again."""

    first: Taken
    again: Taken


@dataclass(frozen=True)
class Measured:
    """All rounds: base -> measure -> what each round took.

    `pairs` are the seconds of the build step alone and of `docker build`, in turns; `steps` are the parts of the builds
    without smoke.
    """

    bytes: Mapping[str, int]
    taken: Mapping[str, Mapping[str, Sequence[Taken]]]
    pairs: Mapping[str, Sequence[tuple[float, float]]]
    steps: Mapping[str, Sequence[Mapping[str, float]]]
    whole: Mapping[str, Whole]
    helps: Sequence[Taken]
    load_average: tuple[float, float]
    engine: str
    client: bool

    def seconds(self, base: str, measure: str) -> list[float]:
        """Return the seconds of each round; of the build step, those of each pair."""
        if measure == STEP:
            return [step for step, _ in self.pairs[base]]
        return [taken.seconds for taken in self.taken[base][measure]]

    def to_docker_build(self, base: str, measure: str) -> Figure:
        """Return the ratio to the `docker build` of the same round or pair."""
        by_hand = [hand for _, hand in self.pairs[base]] if measure == STEP else self.seconds(base, BY_HAND)
        return ratio(self.seconds(base, measure), by_hand)

    def growth(self, measure: str) -> Figure | None:
        """Return the seconds on the largest base by those on the smallest; None where there is only one."""
        small, large = min(self.bytes, key=self.bytes.__getitem__), max(self.bytes, key=self.bytes.__getitem__)
        if small == large:
            return None
        return ratio(self.seconds(large, measure), self.seconds(small, measure))

    @property
    def peak_bytes(self) -> int:
        """The most that the tool's own process ever held."""
        rounds = [taken for base in self.taken.values() for name in (WITHOUT_SMOKE, PLAN) for taken in base[name]]
        wholes = [taken for whole in self.whole.values() for taken in (whole.first, whole.again)]
        return max(taken.peak_bytes for taken in (*rounds, *wholes))


def targets(measured: Measured) -> list[Target]:
    """Return the targets of the project and what was found."""
    worst_step = max(measured.to_docker_build(base, STEP).median for base in measured.bytes)
    worst_plan = max(Figure.of(measured.seconds(base, PLAN)).median for base in measured.bytes)
    found = [Target("build step by `docker build`", worst_step, 1.0, "", True)]
    for measure in _ROWS:
        if (growth := measured.growth(measure)) is not None:
            found.append(Target(f"growth of {measure} with the base", growth.median, _NO_GROWTH, "", True))
    helped = Figure.of([taken.seconds for taken in measured.helps]).median
    return [
        *found,
        Target("plan, warm cache", worst_plan, 5.0, " s", False),
        Target("peak memory of the tool's own process", measured.peak_bytes / 1e6, 300.0, " MB", False),
        Target("overlay --help", helped, 0.3, " s", False),
    ]


# -- for people --------------------------------------------------------------------------------------------------------


def table(measured: Measured) -> str:
    """Return the figures as text: ratios first, then what was seen on this machine."""
    return "\n".join([*_ratios(measured), "", *_seen(measured), "", *map(str, targets(measured))])


def _ratios(measured: Measured) -> Iterator[str]:
    rounds = len(measured.helps)
    yield f"Ratios, by round: median (quartiles) of {rounds} rounds"
    sized = [f"{base}, {size / 1e6:,.0f} MB" for base, size in measured.bytes.items()]
    yield _row("to `docker build` of the same files", [*sized, "growth with the base" if len(sized) > 1 else ""])
    for measure, what in _ROWS.items():
        cells = [str(measured.to_docker_build(base, measure)) for base in measured.bytes]
        yield _row(f"{measure} ({what})", [*cells, str(measured.growth(measure) or "")])
    yield _row(BY_HAND, [*("1" for _ in sized), str(measured.growth(BY_HAND) or "")])


def _seen(measured: Measured) -> Iterator[str]:
    loads = " to ".join(f"{load:.1f}" for load in measured.load_average)
    client = "docker's own command" if measured.client else "no docker command: the engine's time alone"
    yield f"Seen here ({os.cpu_count()} processors, load average {loads}; engine {measured.engine}, {client})"
    bases = list(measured.bytes)
    yield _row("seconds", bases)
    for measure in (BY_HAND, *_ROWS):
        yield _row(measure, [str(Figure.of(measured.seconds(base, measure))) for base in bases])
    for name in measured.steps[bases[0]][0]:
        yield _row(
            f"  {name}, within the build", [str(Figure.of([s[name] for s in measured.steps[base]])) for base in bases]
        )
    for measure in (WITHOUT_SMOKE, PLAN):
        processor = [
            str(Figure.of([taken.processor_seconds for taken in measured.taken[base][measure]])) for base in bases
        ]
        yield _row(f"{measure}, processor time", processor)
    yield _row("build with smoke, once", [f"{measured.whole[base].first.seconds:6.2f}" for base in bases])
    yield _row("the same build again", [f"{measured.whole[base].again.seconds:6.2f}" for base in bases])
    peaks = [max(taken.peak_bytes for taken in measured.taken[base][PLAN]) for base in bases]
    yield _row("peak memory of plan, MB", [f"{peak / 1e6:6.0f}" for peak in peaks])


def _row(title: str, cells: Sequence[str]) -> str:
    return f"  {title:60}" + "".join(f"{cell:>26}" for cell in cells)


# -- for programs ------------------------------------------------------------------------------------------------------


def document(measured: Measured) -> Mapping[str, object]:
    """Return the figures as JSON values; `seen` holds for this machine only."""
    bases = list(measured.bytes)
    return {
        "schema": "overlay.benchmark/1",
        "rounds": len(measured.helps),
        "ratios_to_docker_build": {
            measure: {base: asdict(measured.to_docker_build(base, measure)) for base in bases} for measure in _ROWS
        },
        "growth_with_base": {
            measure: asdict(growth) if (growth := measured.growth(measure)) else None for measure in (BY_HAND, *_ROWS)
        },
        "targets": [target.record() for target in targets(measured)],
        "seen": {
            "processors": os.cpu_count(),
            "load_average": list(measured.load_average),
            "python": platform.python_version(),
            "engine": measured.engine,
            "has_docker_command": measured.client,
            "base_bytes": dict(measured.bytes),
            "seconds": {
                measure: {base: measured.seconds(base, measure) for base in bases} for measure in (BY_HAND, *_ROWS)
            },
            "pairs": {base: list(pairs) for base, pairs in measured.pairs.items()},
            "steps": {base: list(steps) for base, steps in measured.steps.items()},
            "processes": {
                base: {
                    measure: [_record(taken) for taken in rounds] for measure, rounds in measured.taken[base].items()
                }
                for base in bases
            },
            "whole_build": {
                base: {"first": _record(whole.first), "again": _record(whole.again)}
                for base, whole in measured.whole.items()
            },
            "help": [_record(taken) for taken in measured.helps],
        },
    }


def _record(taken: Taken) -> Mapping[str, float]:
    return {name: value for name, value in asdict(taken).items() if name != "stdout"}
