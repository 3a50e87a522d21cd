"""Pure: what the merged tree needs and the base lacks, what the overlay breaks, and whether any of it is reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from builder import calls, falls, guards, leaves, names, typed
from builder.doors import TypeChecker
from builder.errors import Unavailable
from builder.findings import KINDS, NOT_CHECKED, Finding, Kind, Result
from builder.guards import Hardware
from builder.model import Tree
from builder.modules import Modules
from builder.symbols import UnreadableError, module_of, syntax
from builder.uses import Guard, guards_at, shown

__all__ = ["KINDS", "NOT_CHECKED", "Comparison", "Finding", "Kind", "Result", "Tree", "check", "module_of"]


@dataclass(frozen=True)
class Comparison:
    """The trees that a check compares.

    `changed` are the paths that differ between the base and the merged tree, deleted ones included. `donors` has for
    each changed path the whole tree that it comes from: the result of the last pull request that brings it. Without
    `looks_back` only the changed files are judged, and not what they break in the others.
    """

    before: Tree
    after: Tree
    changed: frozenset[str]
    donors: Mapping[str, Tree] = field(default_factory=dict)
    package: str = "sglang"
    hardware: Hardware = field(default_factory=Hardware)
    looks_back: bool = True


def check(
    comparison: Comparison,
    checker: TypeChecker,
    acknowledged: Callable[[Finding], str | None] = lambda _finding: None,
) -> Result:
    """Find what does not resolve or fit in the merged tree and does in the trees it is made of.

    `acknowledged` gives the written reason why a finding is accepted. A checker that did not run leaves its kinds
    unknown.
    """
    old, new = Modules(comparison.before, comparison.package), Modules(comparison.after, comparison.package)
    donors = _modules_of(comparison)
    parts = [names.check(old, new, comparison.changed)]
    sides = typed.Sides(old, new, comparison.changed, donors, looks_back=comparison.looks_back)
    parts.append(_typed(sides, checker))
    parts.append(Result(calls.check(old, new, comparison.changed, donors), ()))
    absent = {finding.symbol for finding in parts[0].findings}
    parts.append(leaves.check(old, new, comparison.changed, donors, absent))
    judge = _Reach(new, comparison.hardware)
    found = [judge.judged(finding) for finding in _once(finding for part in parts for finding in part.findings)]
    found = [replace(finding, acknowledged=acknowledged(finding)) for finding in found]
    causes = [finding for finding in found if finding.is_open and comparison.looks_back]
    fallen = falls.check(new, comparison.changed, causes)
    found += [replace(f, acknowledged=acknowledged(f)) for f in map(judge.judged, _unsaid(fallen, found))]
    order = sorted(found, key=lambda f: (f.kind == "reverse", f.path, f.line, f.kind, f.symbol))
    return Result(tuple(order), tuple(line for part in parts for line in part.unknown))


def check_names(comparison: Comparison) -> tuple[Finding, ...]:
    """Find what names alone show: the part of a check that takes no time, for a look ahead."""
    old, new = Modules(comparison.before, comparison.package), Modules(comparison.after, comparison.package)
    judge = _Reach(new, comparison.hardware)
    return tuple(map(judge.judged, names.check(old, new, comparison.changed).findings))


def _modules_of(comparison: Comparison) -> dict[str, Modules]:
    """Return path -> modules of its donor; one object for each tree, however many paths it has."""
    made = {id(tree): Modules(tree, comparison.package) for tree in comparison.donors.values()}
    return {path: made[id(tree)] for path, tree in comparison.donors.items()}


def _typed(sides: typed.Sides, checker: TypeChecker) -> Result:
    try:
        return Result(typed.check(sides, checker), ())
    except Unavailable as error:
        said = "; ".join((error.message, *error.facts[-1:]))
        return Result((), (f"attribute-missing, signature: {error.where}: {said}",))


def _once(findings: Iterable[Finding]) -> list[Finding]:
    """Keep of several rules' findings on one thing in one line the first: earlier rules know more of it."""
    kept: dict[tuple[str, int, str], Finding] = {}
    for finding in findings:
        key = (finding.path, finding.line, finding.symbol.rpartition(".")[2])
        kept.setdefault(key, finding)
    return list(kept.values())


def _unsaid(fallen: Iterable[Finding], found: Iterable[Finding]) -> list[Finding]:
    said = {(finding.path, finding.line) for finding in found}
    return [finding for finding in fallen if (finding.path, finding.line) not in said]


class _Reach:
    """Adds to a finding what stands around it, and why it cannot be reached on this base."""

    def __init__(self, modules: Modules, hardware: Hardware) -> None:
        self._modules = modules
        self._hardware = hardware
        self._known: dict[tuple[str, tuple[Guard, ...]], str | None] = {}

    def judged(self, finding: Finding) -> Finding:
        """Return the finding with its guards, and the reason why nothing gets there, if there is one."""
        try:
            chain = guards_at(syntax(self._modules.read(finding.path)), finding.line)
        except UnreadableError:
            return finding
        place = finding.path, chain
        if place not in self._known:
            self._known[place] = guards.unreachable(chain, finding.path, self._modules, self._hardware)
        why = self._known[place]
        return replace(finding, guard=finding.guard or shown(chain), unreachable=why)
