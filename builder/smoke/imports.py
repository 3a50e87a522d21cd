"""The checks `imports` and `importers`: what is overlaid, and what imports it, still imports.

One that does not import on the base either tells nothing about the overlay and is unknown; one that the base lacks must
import; one that imported on the base and no longer does fails.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from builder.model import Check, CheckOutcome, Oid, ReadTree
from builder.smoke.subject import Answer, Evidence, ModuleAnswer, Subject, listed, module_name, text_of


def importers_of(paths: Iterable[str], read: ReadTree, overlaid: Iterable[str]) -> tuple[str, ...]:
    """Return the modules among `paths`, sorted, that import one of the overlaid files anywhere in their source.

    Relative imports and imports inside functions count. A file that does not parse is left to the interpreter: it is
    returned if its text names an overlaid module.
    """
    wanted = {name for path in overlaid if (name := module_name(path))}
    # Every way to import a module spells its last part; most files have none of them, and are not parsed.
    needles = tuple({name.rpartition(".")[2].encode() for name in wanted})
    found = []
    for path in sorted(set(paths) - set(overlaid)):
        name = module_name(path)
        data = text_of(read, path) if name else None
        if name and data and any(needle in data for needle in needles) and _imports_any(data, name, path, wanted):
            found.append(path)
    return tuple(found)


def _imports_any(data: bytes, name: str, path: str, wanted: set[str]) -> bool:
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return any(module.rpartition(".")[2].encode() in data for module in wanted)
    package = name if path.endswith("/__init__.py") else name.rpartition(".")[0]
    return any(imported in wanted for imported in _imported(tree, package))


def _imported(tree: ast.AST, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(node, package)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    anchor = parts[: len(parts) - node.level + 1]
    return ".".join([*anchor, *([node.module] if node.module else [])])


def modules_to_import(subject: Subject) -> list[str]:
    """Return the modules of both checks in the order in which they are tried, the package itself first."""
    names = [name for path in (*subject.overlaid, *subject.importers) if (name := module_name(path))]
    return list(dict.fromkeys([subject.package, *names]))


def modules_of_base(subject: Subject) -> list[str]:
    """Return those of them that the base has."""
    added = {module_name(path) for path in subject.added}
    return [name for name in modules_to_import(subject) if name not in added]


def needs_base(built: Answer) -> bool:
    """Tell whether a failure has to be compared with the base."""
    return any(answer.error is not None for answer in built.modules.values())


@dataclass(frozen=True)
class _Verdict:
    path: str
    outcome: CheckOutcome
    reason: str
    as_on_base: bool = False


def check_imports(subject: Subject, evidence: Evidence) -> Check:
    """Every overlaid module imports, from the file and with the bytes that were put there."""
    if not subject.overlaid:
        return Check("imports", "not-applicable", "nothing is overlaid")
    return _check("imports", subject, evidence, subject.overlaid, "overlaid modules")


def check_importers(subject: Subject, evidence: Evidence) -> Check:
    """Every module that imports an overlaid one, and imported on the base, still imports.

    One that stops at the same error on the base is named and asks nothing of the overlay; where that is all of them,
    nothing was shown.
    """
    if not subject.importers:
        return Check("importers", "not-applicable", "no module of the base imports an overlaid one")
    check = _check("importers", subject, evidence, subject.importers, "modules that import overlaid ones")
    unjudged = check.facts["not_imported"]
    count, modules = check.facts["imported"], check.facts["modules"]
    if check.outcome != "unknown" or not count or not isinstance(unjudged, list):
        return check
    if not all(entry["as_on_base"] for entry in unjudged):
        return check
    named = _few([f"{entry['path']}: {entry['reason']}" for entry in unjudged])
    message = f"{count} of {modules} modules that import overlaid ones still import; the rest {named}"
    return Check("importers", "pass", message, check.facts)


def _check(name: str, subject: Subject, evidence: Evidence, paths: Sequence[str], what: str) -> Check:
    verdicts = [judge_module(subject, evidence, path) for path in paths if module_name(path)]
    facts = {
        "modules": len(verdicts),
        "imported": sum(verdict.outcome == "pass" for verdict in verdicts),
        "not_imported": [vars(verdict) for verdict in verdicts if verdict.outcome != "pass"],
        "interpreter": dict(evidence.built.interpreter or {}),
    }
    if evidence.built.fault:
        facts |= {"probe": evidence.built.fault, "last_lines": list(evidence.built.last_lines)}
    found: Mapping[CheckOutcome, str] = {"fail": "fail", "unknown": "cannot be judged"}
    for outcome, words in found.items():
        bad = [f"{verdict.path}: {verdict.reason}" for verdict in verdicts if verdict.outcome == outcome]
        if bad:
            return Check(name, outcome, f"{len(bad)} of {len(verdicts)} {what} {words}: {_few(bad)}", facts)
    return Check(name, "pass", f"{len(verdicts)} {what} import", facts)


def _few(reasons: list[str]) -> str:
    same = {reason.partition(": ")[2] for reason in reasons}
    if len(reasons) > 1 and len(same) == 1:
        return f"{same.pop()} ({listed([reason.partition(': ')[0] for reason in reasons])})"
    return listed(reasons, 3)


def judge_module(subject: Subject, evidence: Evidence, path: str) -> _Verdict:
    """Judge one module by what the interpreter said of it in the built image and in the base."""
    name = module_name(path)
    answer = evidence.built.modules.get(name or "")
    if answer is None:
        return _Verdict(path, "unknown", evidence.built.fault or "the probe did not answer")
    misplaced = _misplaced(subject, evidence.built, path, answer)
    if misplaced:
        return _Verdict(path, "fail", misplaced)
    if answer.error is None:
        if answer.file is None:
            return _Verdict(path, "unknown", "it imports, and no file can be found for it")
        return _Verdict(path, "pass", "")
    if path in subject.added:
        return _judge_added(path, answer, evidence.base)
    return _judge_against_base(path, answer, evidence.base)


def _misplaced(subject: Subject, built: Answer, path: str, answer: ModuleAnswer) -> str:
    """Say why the interpreter would not run the file that was put there; empty if it would."""
    root = built.package_root
    if root and built.real_live_root and root != built.real_live_root:
        return f"the interpreter takes {subject.package} from {root}, the overlay is in {built.real_live_root}"
    if root and answer.file and answer.file != f"{root}/{path}":
        return f"the interpreter takes it from {answer.file}, the overlay is {root}/{path}"
    expected = text_of(subject.read, path) if path in subject.overlaid and answer.blob else None
    if expected is not None and answer.blob != Oid.of_blob(expected):
        return f"{answer.file} holds blob {answer.blob}, the overlay put {Oid.of_blob(expected)} there"
    return f"old bytecode beside {answer.file} would run instead of it" if answer.stale else ""


def _judge_added(path: str, answer: ModuleAnswer, base: Answer | None) -> _Verdict:
    """A module the base lacks must import, unless it wants what keeps the base's own modules from importing."""
    missing = answer.missing_package
    stopped = {module.missing_package for module in base.modules.values()} - {""} if base else set()
    if missing and missing in stopped:
        return _Verdict(path, "unknown", f"{answer.reason}; the base's own modules do not import without it either")
    return _Verdict(path, "fail", f"{answer.reason}; the base has no such module, so it must import")


def _judge_against_base(path: str, answer: ModuleAnswer, base: Answer | None) -> _Verdict:
    if base is None:
        return _Verdict(path, "unknown", f"{answer.reason}; there is no base to compare with")
    before = base.modules.get(answer.module)
    if before is None:
        why = base.fault or "the probe did not answer there"
        return _Verdict(path, "unknown", f"{answer.reason}; on the base {why}")
    if before.error is None:
        return _Verdict(path, "fail", f"{answer.reason}; it imported on the base")
    same = before.error.get("message") == (answer.error or {}).get("message")
    on_base = "does not import on the base either" if same else f"on the base: {before.reason}"
    return _Verdict(path, "unknown", f"{answer.reason}; {on_base}", as_on_base=same)
