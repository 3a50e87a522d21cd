"""Pure: proposals for names and modules that the base lacks: its own name for them, a carry, or a person's choice."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from builder import carry_risks, counterparts, rewrites
from builder.carry_risks import Twin
from builder.closure import closure
from builder.counterparts import Counterpart
from builder.definition_file import table
from builder.findings import Finding
from builder.modules import Modules
from builder.proposals import CarryOver, Draft, Proposal, contains, patch, slug
from builder.rewrites import Rewrite, Source
from builder.sameness import Place, differing
from builder.statements import definitions
from builder.symbols import UnreadableError, module_of, symbols
from builder.view import View, all_of, line_at

_FEW = 6


def of_name(group: tuple[Finding, ...], view: View) -> Iterator[Proposal]:
    """Propose what settles a name that a module of the base lacks."""
    finding = group[0]
    module, _, name = finding.symbol.rpartition(".")
    if module == module_of(finding.path):
        yield from _carried(view, group, module, name)
        return
    unused = _unused(view, group, module, name)
    yield from [unused] if unused is not None else []
    if unused is not None and not unused.needs_accept:
        return
    for number in view.numbers(finding.path):
        donor = view.donors[number]
        if donor.has(f"{module}.{name}") and not view.merged.has(f"{module}.{name}"):
            yield from of_module(tuple(replace(each, symbol=finding.symbol) for each in group), view)
            return
        definer = view.definer(donor, module, name)
        if definer is not None:
            yield from _from_definer(view, group, number, definer, name)
            return
    view.explain(group, f"no pull request's result defines {name} in {module} in a way that can be taken over")


def of_module(group: tuple[Finding, ...], view: View) -> Iterator[Proposal]:
    """Propose what settles a missing module: the older place of the very same code, or a carry."""
    module = group[0].symbol
    for number in view.numbers(group[0].path):
        donor = view.donors[number]
        path = donor.paths.get(module, "")
        if not donor.has(module) or not path.endswith(".py"):
            continue
        moved = _moved(view, group, number, module, path)
        if moved is not None:
            yield moved
        if moved is not None and not moved.needs_accept:
            return
        if path in view.trees.merged.paths:
            view.explain(group, f"{path} is there, and a folder above it is no package")
        else:
            yield from _whole_file(view, group, number, module, moved)
        return
    view.explain(group, f"no pull request's result has the module {module}")


def _whole_file(
    view: View, group: tuple[Finding, ...], number: int, module: str, moved: Proposal | None
) -> Iterator[Proposal]:
    """Propose to carry a module that the base lacks."""
    donor = view.trees.donors[number]
    path = view.donors[number].paths[module]
    tail = module.rpartition(".")[2]
    twins = carry_risks.twins(definitions(donor.read(path) or b""), path, donor, view)
    loses = [twin.loses for twin in twins]
    loses += [setter.loses for setter in carry_risks.idle_setters(path, donor, view)]
    if moved is None:
        yield from _older_places(view, group, number, module, twins)
    else:
        loses.append(f"the base has the same in another place ({moved.title[:1].lower()}{moved.title[1:]})")
    if loses:
        view.explain(group, f"{path} can be carried, and {carry_risks.few(loses)}: a person has to choose")
    reason = f"{group[0].path} imports it, and this base has no such module"
    yield _carry_over(f"{tail}/carry", group, CarryOver(path, (), number, reason), loses)


def _moved(view: View, group: tuple[Finding, ...], number: int, module: str, path: str) -> Proposal | None:
    """Propose to import from where the base has the very same definitions."""
    donor = view.donors[number]
    tail = module.rpartition(".")[2]
    wanted = sorted({name for finding in group for name in finding.names})
    theirs = counterparts.top_level(view.tree_of(donor, path))
    for other, place in sorted(view.merged.paths.items()):
        if not other.endswith(f".{tail}") or not place.endswith(".py") or donor.has(other) or not wanted:
            continue
        ours = counterparts.top_level(view.tree_of(view.merged, place))
        if not all(n in theirs and n in ours and counterparts.is_same_code(theirs[n], ours[n]) for n in wanted):
            continue
        source = view.source(group[0].path)
        sides = Place(donor, module), Place(view.merged, other)
        apart = sorted({each for n in wanted for each in differing(n, sides[0], n, sides[1])})
        edits = all_of(rewrites.import_elsewhere(source, f.line, module, other) for f in group)
        draft = Draft(
            group[0].path,
            slug(f"{tail}-older-place"),
            f"Import {', '.join(wanted)} from the older place of {tail}",
            (f"{place} has the same code under the same names (compared with #{number}).",),
            (f"imports {group[0].path} {module}", f"not exists {path}", f"exists {place}"),
            edits or (),
        )
        if edits and view.is_sound(draft, number):
            loses = _apart(f"the code in {place}", apart)
            if apart:
                view.explain(group, f"{loses}: a person has to choose")
            return patch(f"{tail}/older-place", group, draft, loses=loses, needs_accept=bool(apart))
    return None


def _apart(what: str, names: Sequence[str]) -> str:
    """Say that equal code uses what is not equal; empty where nothing is named."""
    few = ", ".join(names[:_FEW])
    return f"{what} uses {few}, which this base has otherwise than the pull request" if names else ""


def _from_definer(view: View, group: tuple[Finding, ...], number: int, module: str, name: str) -> Iterator[Proposal]:
    donor = view.donors[number]
    path = donor.paths[module]
    if view.merged.paths.get(module) != path:
        view.explain(group, f"{module} is not the same file in the base ({path} in the pull request's tree)")
        return
    found = counterparts.of_definition(name, view.tree_of(donor, path), view.tree_of(view.merged, path))
    same = [other for other in found if other.likeness == "same code"]
    doubts = [_doubt(view, number, module, name, other, is_choice=len(same) > 1) for other in same]
    aliases = [
        _alias(view, group, number, module, name, other, doubt=doubt, is_choice=len(same) > 1)
        for other, doubt in zip(same, doubts, strict=True)
    ]
    if any(aliases):
        yield from filter(None, aliases)
        if any(doubts):
            view.explain(group, f"{next(filter(None, doubts))}: a person has to choose")
            yield from _ported(view, group, module, name, same[0])
    elif found:
        yield from _changed(view, group, number, module, name, found)
    else:
        yield from _carried(view, group, module, name)


def _doubt(view: View, number: int, module: str, name: str, other: Counterpart, *, is_choice: bool) -> str:
    """Say why equal code is no proof that it is the same thing; empty for a function that uses the same things."""
    sides = Place(view.donors[number], module), Place(view.merged, module)
    node = counterparts.top_level(sides[1].tree())[other.name]
    if not isinstance(node, counterparts.Function):
        return f"{other.name} is the base's own object: what is put into it or compared with it is not {name}'s"
    if not counterparts.does_something(node):
        return f"{other.name} has no code that shows what it is for"
    apart = differing(name, sides[0], other.name, sides[1])
    return _apart(other.name, apart) or ("several have the same code" if is_choice else "")


def _ported(view: View, group: tuple[Finding, ...], module: str, name: str, other: Counterpart) -> Iterator[Proposal]:
    """Offer to carry a definition although the base has something in its place."""
    loses = f"nothing is taken away; the base then has both {name} and its own {other.name}"
    for ported in _carried(view, group, module, name):
        if isinstance(ported.change, CarryOver):
            also = f"; {ported.loses}" if ported.loses else ""
            ported = replace(ported, id=f"{name}/port", needs_accept=True, loses=loses + also)
        yield ported


def _unused(view: View, group: tuple[Finding, ...], module: str, name: str) -> Proposal | None:
    """Propose to drop an import whose name nothing in the merged file uses."""
    finding = group[0]
    source = view.source(finding.path)
    if finding.path.endswith("/__init__.py") or any(rewrites.is_used(source, name, each.line) for each in group):
        return None
    edits = all_of(rewrites.drop_import(source, each.line, name) for each in group)
    for number in view.numbers(finding.path) if edits else ():
        donor = view.donors[number].tree
        used = _lines_with(donor.read(finding.path) or b"", name)
        terms = [f"imports {finding.path} {module}.{name}", _lacks(view, module, name)]
        terms += [f"not {contains(finding.path, line)}" for line in used[:2]]
        why = f"The merged file imports {name} of {module} and never uses it, and this base does not define it."
        stays = all(rewrites.is_imported_still(source, each.line, name, module, finding.path) for each in group)
        loses = "" if stays else f"the import of {module} itself, and what it does when it is imported (registering)"
        draft = Draft(
            finding.path,
            slug(f"{name}-unused-import"),
            f"Drop the import of {name}, which is not used",
            (f"{why} No capability goes." if stays else why,),
            (*terms,),
            edits or (),
        )
        if view.is_sound(draft, number):
            if loses:
                view.explain(group, f"to drop the import of {name} loses {loses}: a person has to choose")
            return patch(f"{name}/drop-import", group, draft, loses=loses, needs_accept=bool(loses))
    return None


def _lines_with(data: bytes, name: str) -> list[bytes]:
    """Return the lines in which a source reads a name, each once."""
    try:
        source = Source(data)
    except UnreadableError:
        return []
    lines = [n.lineno for n in source.nodes if isinstance(n, ast.Name) and n.id == name]
    return list(dict.fromkeys(line_at(source, line) for line in sorted(lines)))


def _lacks(view: View, module: str, name: str) -> str:
    return f"not defines {view.merged.paths[module]} {name}"


def _alias(
    view: View,
    group: tuple[Finding, ...],
    number: int,
    module: str,
    name: str,
    other: Counterpart,
    *,
    doubt: str = "",
    is_choice: bool = False,
) -> Proposal | None:
    """Propose to take the base's own name for it."""
    finding = group[0]
    path = view.merged.paths[module]
    source = view.source(finding.path)
    edits = all_of(_aliased(source, each, module, name, other.name) for each in group)
    if edits is None:
        return None
    uses = [f"imports {finding.path} {finding.symbol}"]
    if rewrites.find_alias(source, finding.line, name) is None:
        uses = [contains(finding.path, line_at(source, finding.line))]
    needs_accept = is_choice or bool(doubt) or other.likeness != "same code"
    draft = Draft(
        finding.path,
        slug(f"{name}-alias"),
        f"Take {name} under its name on this base, {other.name}",
        (f"{path}:{other.line} defines {other.name}; {other.evidence} (compared with #{number}).",),
        (*uses, f"defines {path} {other.name}", f"not defines {path} {name}"),
        edits,
    )
    if not view.is_sound(draft, number):
        return None
    loses = f"{doubt or other.evidence}: what {other.name} does is the base's, not the pull request's"
    loses = loses if needs_accept else ""
    option = f"{name}/alias-{slug(other.name)}" if is_choice else f"{name}/alias"
    return patch(option, group, draft, loses=loses, needs_accept=needs_accept)


def _aliased(source: Source, finding: Finding, module: str, name: str, other: str) -> tuple[Rewrite, ...] | None:
    reads = rewrites.through_module(source, finding.line, module, name, finding.path)
    return rewrites.alias_import(source, finding.line, name, other) or rewrites.rename(source, reads or (), other)


def _changed(
    view: View, group: tuple[Finding, ...], number: int, module: str, name: str, found: Sequence[Counterpart]
) -> Iterator[Proposal]:
    """Offer the ways around a definition that the base has in another form."""
    other = found[0]
    path = view.merged.paths[module]
    view.explain(group, f"{path}:{other.line} has {other.name} instead, and {other.evidence}: a person has to choose")
    if other.likeness == "same signature":
        alias = _alias(view, group, number, module, name, other)
        yield from [alias] if alias else []
    yield from _ported(view, group, module, name, other)
    yield _call_sketch(view, group, name, other, path)
    yield from _dropped_call(view, group, number, module, name)


def _call_sketch(view: View, group: tuple[Finding, ...], name: str, other: Counterpart, path: str) -> Proposal:
    source = view.source(group[0].path)
    calls = [n for n in source.nodes if isinstance(n, ast.Call) and rewrites.called_name(n) == name]
    shown = [f"{group[0].path}:{call.lineno}: {ast.unparse(call)}" for call in calls]
    text = "\n".join([*shown, f"{path}:{other.line} {other.name}: {other.evidence}"]) + "\n"
    title = f"call the base's {other.name} instead: how the arguments map is for a person to say, in a compat patch"
    loses = "nothing, where the arguments can be mapped"
    return Proposal(f"{name}/call", "sketch", title, group[0].path, group, text, None, loses, needs_accept=True)


def _dropped_call(view: View, group: tuple[Finding, ...], number: int, module: str, name: str) -> Iterator[Proposal]:
    """Offer to drop calls whose value nobody uses, with what they are for."""
    finding = group[0]
    source = view.source(finding.path)
    calls = rewrites.statements_calling(source, name)
    edits = all_of([rewrites.drop_calls(source, name), *(rewrites.drop_import(source, e.line, name) for e in group)])
    if edits is None:
        return
    where = "; ".join(dict.fromkeys(_circumstances(source.tree, node) for node, _ in calls))
    removes = f"what {name} does ({where})"
    draft = Draft(
        finding.path,
        slug(f"{name}-call-removed"),
        f"Leave the call of {name} out",
        (f"This base has no {name}; its result is used nowhere, what it does is gone.",),
        (f"imports {finding.path} {finding.symbol}", _lacks(view, module, name)),
        edits,
        removes,
    )
    if view.is_sound(draft, number):
        yield patch(f"{name}/drop-call", group, draft, loses=removes, needs_accept=True)


def _circumstances(tree: ast.Module, node: ast.stmt) -> str:
    """Name the function around a statement, and the conditions under which it is reached."""
    names, conditions = [], []
    for outer in ast.walk(tree):
        first, last = getattr(outer, "lineno", 0), getattr(outer, "end_lineno", 0) or 0
        if not isinstance(outer, ast.stmt) or outer is node or not first <= node.lineno <= last:
            continue
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(outer.name)
        elif isinstance(outer, ast.If) and any(part is node for child in outer.body for part in ast.walk(child)):
            conditions.append(f"if {ast.unparse(outer.test)}")
    return ", ".join([*conditions, f"in {'.'.join(names)}" if names else "at import"])


def _carried(view: View, group: tuple[Finding, ...], module: str, name: str) -> Iterator[Proposal]:
    """Propose to take a definition, and what it needs of its file, from a pull request's result."""
    path = view.merged.paths.get(module, "")
    ours = view.merged.read(path) if path.endswith(".py") else None
    for number in view.numbers(group[0].path):
        donor = view.trees.donors[number]
        theirs = donor.read(path)
        if ours is None or theirs is None or name not in definitions(theirs):
            continue
        found = closure([name], theirs, ours, path)
        if found.problem:
            view.explain(group, f"cannot be carried from #{number}: {found.problem}")
            continue
        if name not in found.names:
            view.explain(group, f"{path} has {name}, and what that leads to is missing")
            return
        reason = f"{group[0].path} needs {name}, which this base lacks"
        extra = [other for other in found.names if other != name]
        reason += f"; {', '.join(extra)} because {name} uses {'it' if len(extra) == 1 else 'them'}" if extra else ""
        apart = [other for other in found.differing if not _is_moved_only(view, number, path, other)]
        differing = ", ".join(apart[:_FEW])
        reason += f"; it uses the base's own {differing}, whose code differs from the pull request's" * bool(differing)
        moved = carry_risks.twins(found.names, path, donor, view)
        left = carry_risks.setters(found.variables, found.names, path, donor, view)
        loses = [f"it uses the base's own {differing}, whose code is not the pull request's"] if differing else []
        loses += [*(twin.loses for twin in moved), *(setter.loses for setter in left)]
        if loses:
            view.explain(group, f"{name} can be carried, and {carry_risks.few(loses)}: a person has to choose")
        yield from _older_places(view, group, number, module, moved)
        yield _carry_over(f"{name}/carry", group, CarryOver(path, found.names, number, reason), loses)
        return
    view.explain(group, f"no pull request's result defines {name} at the top level of {path or module}")


def _is_moved_only(view: View, number: int, path: str, name: str) -> bool:
    """Tell whether both sides have the same code under a name, though one of them imports it from another file."""
    theirs, ours = (_origin(view, modules, path, name) for modules in (view.donors[number], view.merged))
    return theirs is not None and ours is not None and counterparts.is_same_code(theirs, ours)


def _origin(view: View, modules: Modules, path: str, name: str) -> ast.stmt | None:
    own = counterparts.top_level(view.tree_of(modules, path)).get(name)
    for binding in symbols(modules.read(path), path).at_runtime(name) if own is None else ():
        place = modules.paths.get(binding.module or "", "")
        if binding.name and place.endswith(".py"):
            return counterparts.top_level(view.tree_of(modules, place)).get(binding.name)
    return own


def _older_places(
    view: View, group: tuple[Finding, ...], number: int, module: str, moved: Sequence[Twin]
) -> Iterator[Proposal]:
    """Offer to import from where the base has what upstream moved."""
    finding = group[0]
    wanted = {name for each in group for name in each.names} or {finding.symbol.rpartition(".")[2]}
    path = view.donors[number].paths[module]
    for place in sorted({twin.path for twin in moved}):
        here = [twin for twin in moved if twin.path == place and twin.name in wanted]
        if {twin.name for twin in here} != wanted or place == finding.path:
            continue
        source = view.source(finding.path)
        edits = all_of(_taken_elsewhere(source, each.line, module, wanted, here[0].module) for each in group)
        names = ", ".join(sorted(wanted))
        draft = Draft(
            finding.path,
            slug(f"{names}-older-place"),
            f"Import {names} from its older place, {here[0].module}",
            (f"{place}:{here[0].line} defines it on this base; upstream has it in {path} (#{number}).",),
            (f"imports {finding.path} {module}", *(f"defines {place} {n} and not defines {path} {n}" for n in wanted)),
            edits or (),
        )
        if edits and view.is_sound(draft, number):
            loses = f"{names} is the base's ({place}), which the pull request was not written for"
            yield patch(f"{here[0].name}/older-place", group, draft, loses=loses, needs_accept=True)


def _taken_elsewhere(
    source: Source, line: int, module: str, names: set[str], instead: str
) -> tuple[Rewrite, ...] | None:
    """Import these names from another module, alone where the statement takes more."""
    for node in source.nodes:
        if not isinstance(node, ast.ImportFrom) or not node.lineno <= line <= (node.end_lineno or line):
            continue
        if {alias.name for alias in node.names} <= names:
            return rewrites.import_elsewhere(source, node.lineno, module, instead)
        kept = [alias for alias in node.names if alias.name in names and alias.lineno == line]
        rest = rewrites.drop_import(source, line, kept[0].name) if len(kept) == 1 else None
        if rest and not source.data[source.starts[node.lineno - 1] : source.span(node)[0]].strip():
            start = source.starts[node.lineno - 1]
            alone = ast.ImportFrom(instead, kept, 0)
            text = source.data[start : source.span(node)[0]] + ast.unparse(alone).encode() + source.newline
            return (Rewrite(start, start, text), *rest)
    return None


def _carry_over(name: str, group: tuple[Finding, ...], change: CarryOver, loses: Sequence[str]) -> Proposal:
    """Propose to carry; for a person to choose where something may differ then."""
    what = ", ".join(change.symbols) or "the whole file"
    title = f"carry {what} of {change.path} from #{change.number}"
    text, risk = table("carry", change.entry), carry_risks.few(loses)
    return Proposal(name, "carry", title, change.path, group, text, change, risk, needs_accept=bool(risk))
