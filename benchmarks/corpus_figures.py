"""Pure: compare what the checker said of one overlaid file with what a real interpreter says, and add it up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, Literal, TypeVar

Status = Literal["break", "tolerated", "fits", "own-fault", "undecidable"]

KINDS: Final = ("module-missing", "name-missing", "signature", "attribute-missing", "config-leaf-missing", "reverse")
_BROAD: Final = frozenset({"Exception", "BaseException"})
_READY: Final = {
    "module-missing": frozenset({"ImportError", "ModuleNotFoundError"}) | _BROAD,
    "name-missing": frozenset({"ImportError", "AttributeError"}) | _BROAD,
    "attribute-missing": frozenset({"AttributeError"}),
    "config-leaf-missing": frozenset({"AttributeError"}),
    "signature": frozenset({"TypeError"}),
}
"""What a file catches that is ready for a break of this kind. A broad `except` around work only hides that it fails."""


@dataclass(frozen=True)
class Pair:
    """One newer file put alone on the tree of the release before it."""

    older: str
    newer: str
    path: str
    is_new: bool = False


@dataclass(frozen=True)
class Use:
    """A use of the package in one file, and what the two interpreters say of it together.

    `what` is the kind of the thing itself, which for a reverse break says how it breaks.
    """

    kind: str
    what: str
    path: str
    line: int
    symbol: str
    status: Status
    why: str
    guards: tuple[str, ...] = ()

    @property
    def runs_at_import(self) -> bool:
        return not any(guard.startswith("def ") for guard in self.guards) and not _is_ready(self.what, self.guards)

    @property
    def is_conditional(self) -> bool:
        return any(guard.startswith(("if ", "else of ", "except")) for guard in self.guards)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.path, self.symbol


@dataclass(frozen=True)
class Said:
    """One finding of the checker, or a use that it could not judge."""

    kind: str
    path: str
    line: int
    symbol: str
    message: str
    names: tuple[str, ...] = ()
    is_unknown: bool = False


_KIN: Final = {"config-leaf-missing": "attribute-missing"}
"""A leaf is an attribute too: an object that hands some names on to a config bag makes no difference in kind."""

_T = TypeVar("_T", Use, Said)
Record = Mapping[str, object]


def forward(path: str, older: Sequence[Record], newer: Sequence[Record]) -> list[Use]:
    """Judge what an overlaid file uses: a break is what the older tree lacks and the file's own release has."""
    own = {_place(record): record for record in newer}
    return [_use(record, path, _forward_status(record, own.get(_place(record)))) for record in older]


def _forward_status(older: Record, newer: Record | None) -> Status:
    if older["state"] != "missing":
        return "fits" if older["state"] == "ok" else "undecidable"
    if newer is None or newer["state"] == "undecidable":
        return "undecidable"
    return "own-fault" if newer["state"] == "missing" else _break(older)


def reverse(
    path: str, module: str, older: Sequence[Record], newer: Sequence[Record], lacking: Collection[str] = ()
) -> list[Use]:
    """Judge what a file of the older tree uses of a module that the overlay replaces by its newer self.

    `lacking` are the symbols that the newer module itself does not find in the older tree.
    """
    own = {_place(record): record for record in older}
    found = []
    for record in newer:
        before = own.get(_place(record))
        # Only where the old definition stood in that module is it the overlay that takes it away.
        if before is None or module not in _strings(before["homes"]):
            continue
        if record["kind"] in ("module-missing", "name-missing") and record["symbol"] == module:
            continue  # it is there: whether it can be imported is another question
        if set(_strings(record["origins"])) & set(lacking):
            # The newer module takes it from elsewhere in its own release, where the older tree has nothing.
            status: Status = _break(record)
        elif before["state"] != "ok":
            status = "own-fault" if before["state"] == "missing" else "undecidable"
        elif record["state"] == "missing":
            status = _break(record)
        else:
            status = "fits" if record["state"] == "ok" else "undecidable"
        found.append(_use({**record, "symbol": before["symbol"]}, path, status, kind="reverse"))
    return found


def falls(uses: Sequence[Use], path: str, module: str, importer: Sequence[Record]) -> list[Use]:
    """Judge what becomes of a file that imports an overlaid module which lacks something already at its import.

    `uses` are the overlaid file's own. Whether an `if` around the missing import is entered is not known here.
    """
    causes = [
        use
        for use in uses
        if use.status == "break" and use.kind in ("module-missing", "name-missing") and use.runs_at_import
    ]
    if not causes:
        return []
    cause = min(causes, key=lambda use: use.is_conditional)
    found = []
    for record in importer:
        if (
            record["symbol"] == module
            and record["state"] == "ok"
            and record["kind"] in ("module-missing", "name-missing")
        ):
            status: Status = "undecidable" if cause.is_conditional else _break(record)
            why = f"{module} fails at line {cause.line}: {cause.symbol}"
            found.append(_use({**record, "why": why, "kind": "falls"}, path, status, kind="reverse"))
    return found


def _break(record: Record) -> Status:
    return "tolerated" if _is_ready(str(record["kind"]), _strings(record["guards"])) else "break"


def _is_ready(kind: str, guards: Iterable[str]) -> bool:
    caught = {name for guard in guards if guard.startswith("catches ") for name in guard.split()[1:]}
    return "TYPE_CHECKING" in guards or not _READY[kind].isdisjoint(caught)


def _use(record: Record, path: str, status: Status, kind: str = "") -> Use:
    what, line = str(record["kind"]), record["line"]
    assert isinstance(line, int)
    guards = tuple(_strings(record["guards"]))
    return Use(kind or what, what, path, line, str(record["symbol"]), status, str(record["why"]), guards)


def _place(record: Record) -> tuple[object, ...]:
    return record["kind"], record["line"], record["column"], record["text"]


def _strings(value: object) -> Sequence[str]:
    assert isinstance(value, list | tuple)
    return value


# -- the comparison ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disagreement:
    """A break that was missed, or a finding where nothing breaks: both sides' words."""

    pair: Pair
    kind: str
    path: str
    line: int
    symbol: str
    truth: str
    tool: str


@dataclass
class Tally:
    """What was found of one kind. Breaks count once per file and symbol, findings likewise."""

    breaks: int = 0
    found: int = 0
    unknown: int = 0
    """Breaks of which the checker says that it cannot tell: neither found nor passed."""
    false_alarms: int = 0
    not_judged: int = 0
    """Findings at places where the interpreters say nothing certain: neither right nor wrong."""
    tolerated: int = 0
    """Breaks that the file itself is ready for: caught, or for type checkers alone."""
    own_faults: int = 0
    undecidable: int = 0
    fitting: int = 0

    @property
    def recall(self) -> float | None:
        return self.found / self.breaks if self.breaks else None

    @property
    def precision(self) -> float | None:
        judged = self.found + self.false_alarms
        return self.found / judged if judged else None

    def add(self, other: Tally) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Compared:
    """The comparison of one pair, or of many."""

    tallies: dict[str, Tally] = field(default_factory=lambda: {kind: Tally() for kind in KINDS})
    missed: list[Disagreement] = field(default_factory=list)
    false_alarms: list[Disagreement] = field(default_factory=list)
    not_judged: list[Disagreement] = field(default_factory=list)

    def add(self, other: Compared) -> None:
        for kind, tally in other.tallies.items():
            self.tallies[kind].add(tally)
        self.missed += other.missed
        self.false_alarms += other.false_alarms
        self.not_judged += other.not_judged


def compare(pair: Pair, uses: Sequence[Use], said: Sequence[Said]) -> Compared:
    """Match findings with uses of the same kind and file, by symbol or by place and last name."""
    found = Compared()
    for status, field_name in (("own-fault", "own_faults"), ("undecidable", "undecidable"), ("fits", "fitting")):
        for kind in KINDS:
            keys = {use.key for use in uses if use.kind == kind and use.status == status}
            setattr(found.tallies[kind], field_name, len(keys))
    for lenient in _once(use for use in uses if use.status == "tolerated"):
        found.tallies[lenient.kind].tolerated += 1
    for use in _once(use for use in uses if use.status == "break"):
        _count_break(pair, use, uses, said, found)
    for finding in _once(one for one in said if not one.is_unknown):
        _count_finding(pair, finding, uses, found)
    return found


def _count_break(pair: Pair, use: Use, uses: Sequence[Use], said: Sequence[Said], found: Compared) -> None:
    tally = found.tallies[use.kind]
    tally.breaks += 1
    same = [other for other in uses if other.key == use.key and other.status == "break"]
    matching = [one for one in said if any(_matches(one, other) for other in same)]
    if any(not one.is_unknown for one in matching):
        tally.found += 1
        return
    tally.unknown += bool(matching)
    words = matching[0].message if matching else "says nothing"
    near = [one for one in said if one.path == use.path and one.line == use.line]
    words = f"{words} (but {near[0].kind} {near[0].symbol} on this line)" if near and not matching else words
    found.missed.append(Disagreement(pair, use.kind, use.path, use.line, use.symbol, f"{use.what}: {use.why}", words))


def _count_finding(pair: Pair, finding: Said, uses: Sequence[Use], found: Compared) -> None:
    matching = [use for use in uses if _matches(finding, use)]
    statuses = {use.status for use in matching}
    if statuses & {"break", "tolerated"}:
        return
    tally = found.tallies.setdefault(finding.kind, Tally())
    here = [use for use in uses if use.path == finding.path and use.line == finding.line]
    words = [f"{use.kind} {use.symbol} {use.status} {use.why}".strip() for use in (matching or here)]
    both = Disagreement(
        pair, finding.kind, finding.path, finding.line, finding.symbol, "; ".join(words)[:600], finding.message
    )
    if statuses == {"fits"}:
        tally.false_alarms += 1
        found.false_alarms.append(both)
    else:
        tally.not_judged += 1
        found.not_judged.append(both)


def _matches(finding: Said, use: Use) -> bool:
    if (_KIN.get(finding.kind, finding.kind), finding.path) != (_KIN.get(use.kind, use.kind), use.path):
        return False
    if _plain(finding.symbol) == _plain(use.symbol) or use.symbol.endswith(f".{finding.symbol}"):
        return True
    if use.what == "falls" and finding.line == use.line:
        return True  # said of a name on this line instead: one finding for each import is enough
    # The same thing may be named by where it is taken from, or by where it is defined.
    is_named = _last(use.symbol) in {_last(finding.symbol), *finding.names}
    return finding.line == use.line and is_named


def _plain(symbol: str) -> str:
    """Leave out that a class is called by its `__init__`."""
    return symbol.removesuffix(".__init__").removesuffix(".__new__")


def _last(symbol: str) -> str:
    return _plain(symbol).rpartition(".")[2]


def _once(items: Iterable[_T]) -> Iterator[_T]:
    seen = set()
    for item in items:
        key = (item.kind, item.path, item.symbol)
        if key not in seen:
            seen.add(key)
            yield item


# -- for people and programs -------------------------------------------------------------------------------------------

_COLUMNS: Final = (
    "breaks", "found", "unknown", "false alarms", "precision", "recall", "not judged", "tolerated", "undecidable"
)  # fmt: skip


def table(compared: Compared) -> str:
    """Return the figures by kind as text."""
    lines = [f"{'kind':22}" + "".join(f"{column:>14}" for column in _COLUMNS)]
    for kind, tally in compared.tallies.items():
        cells = [
            tally.breaks, tally.found, tally.unknown, tally.false_alarms, _share(tally.precision),
            _share(tally.recall), tally.not_judged, tally.tolerated, tally.undecidable,
        ]  # fmt: skip
        lines.append(f"{kind:22}" + "".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def worst(disagreements: Sequence[Disagreement], count: int) -> list[str]:
    """Return the first of each kind in turn, so that one kind does not hide the others."""
    by_kind: dict[str, list[Disagreement]] = {}
    for one in disagreements:
        by_kind.setdefault(one.kind, []).append(one)
    rows = [row for rank in range(count) for found in by_kind.values() for row in found[rank : rank + 1]]
    return [
        f"{one.pair.newer} on {one.pair.older}  {one.kind}  {one.path}:{one.line}  {one.symbol}\n"
        f"      interpreter: {one.truth or 'says nothing'}\n      checker: {one.tool}"
        for one in rows[:count]
    ]


def document(compared: Compared) -> Mapping[str, object]:
    """Return the figures and every disagreement as JSON values."""
    kinds = {
        kind: {**asdict(tally), "precision": tally.precision, "recall": tally.recall}
        for kind, tally in compared.tallies.items()
    }
    return {
        "kinds": kinds,
        "missed": [asdict(one) for one in compared.missed],
        "false_alarms": [asdict(one) for one in compared.false_alarms],
        "not_judged": [asdict(one) for one in compared.not_judged],
    }
