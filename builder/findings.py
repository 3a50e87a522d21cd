"""What a compat check finds: the kinds of findings, and one finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "module-missing", "name-missing", "attribute-missing", "signature", "config-leaf-missing", "reverse", "semantic"
]
KINDS: tuple[str, ...] = (*get_args(Kind), "needs-build")
"""What an acknowledgement may name: the kinds of findings, and files that need a build."""

NOT_CHECKED: tuple[str, ...] = ("semantic", "what is imported from other packages")
"""What no rule looks for: its absence from a plan says nothing. For the first, drift says where to look."""


@dataclass(frozen=True)
class Finding:
    """One thing that the merged tree names and does not have, or a call that does not fit.

    `symbol` is the full dotted name of what is missing, or of the function that is called; `names` are the names asked
    for (of a signature: the keywords or parameters). `line` is that of the use in `path`; `guard` is the chain of `if`,
    `try`, function and class around it, the outermost first. `base_has` is the closest definition of the base and where
    it stands, `donor_has` the same in the tree that the file comes from. `unreachable` says why this base never gets
    there; None where it may. `column` is where a checker's complaint starts (1-based characters), 0 where nobody said.
    """

    kind: Kind
    path: str
    line: int
    symbol: str
    guard: str
    base_has: str | None
    message: str
    names: tuple[str, ...] = ()
    donor_has: str | None = None
    introduced_by: str | None = None
    unreachable: str | None = None
    acknowledged: str | None = None
    column: int = 0

    @property
    def is_open(self) -> bool:
        """Whether this refuses a build: it can be reached, and nobody accepted it."""
        return self.acknowledged is None and self.unreachable is None


@dataclass(frozen=True)
class Result:
    """All findings, and one line for each use that could not be judged: an unknown is never a pass."""

    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]
