"""Pure: proposals for what is there in another form: attributes, calls whose signature does not fit, settings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from builder import counterparts, rewrites
from builder.counterparts import Counterpart
from builder.findings import Finding
from builder.proposals import Draft, Proposal, contains, patch, slug
from builder.symbols import UnreadableError, parse, syntax
from builder.view import View, all_of, line_at

_OVERRIDES = frozenset({"override", "set"})
"""Methods by which a declared setting is given another value."""


def of_attribute(group: tuple[Finding, ...], view: View) -> Iterator[Proposal]:
    """Propose the older name of an attribute, or to declare it where the base has nothing like it."""
    finding = group[0]
    owner, _, attribute = finding.symbol.rpartition(".")
    for number in view.numbers(finding.path):
        sides = _classes(view, number, owner)
        if sides is None:
            continue
        path, theirs, ours = sides
        found = counterparts.of_attribute(attribute, theirs, ours)
        is_choice = len(found) > 1 or any(other.likeness != "same code" for other in found)
        made = [
            _renamed(view, group, number, path, ours.name, attribute, other, is_choice=is_choice) for other in found
        ]
        if is_choice or not any(made):
            rivals = [other.name for other, proposal in zip(found, made, strict=True) if proposal]
            made.append(_declared(view, group, number, path, theirs, ours, attribute, rivals))
        if any(made):
            view.explain(group, "what is alike here may be chance, or hides what sets it: a person has to choose")
            yield from filter(None, made)
            return
        view.explain(group, f"nothing in the base's {ours.name} ({path}) is shown to be what {attribute} is")
    view.explain(group, f"the class that has {attribute} was not found in both trees")


def _classes(view: View, number: int, owner: str) -> tuple[str, ast.ClassDef, ast.ClassDef] | None:
    """Find a class by its dotted name in the donor's tree and in the merged one."""
    module = owner
    while module and not (view.donors[number].has(module) and view.donors[number].paths[module].endswith(".py")):
        module = module.rpartition(".")[0]
    path = view.donors[number].paths.get(module, "")
    if not module or module == owner or path not in view.trees.merged.paths:
        return None
    name = owner.rpartition(".")[2]
    theirs = counterparts.find_class(view.tree_of(view.donors[number], path), name)
    ours = counterparts.find_class(view.tree_of(view.merged, path), name)
    return (path, theirs, ours) if theirs and ours else None


def _renamed(
    view: View,
    group: tuple[Finding, ...],
    number: int,
    where: str,
    owner: str,
    attribute: str,
    other: Counterpart,
    *,
    is_choice: bool,
) -> Proposal | None:
    """Propose to read an attribute under its older name."""
    finding = group[0]
    source = view.source(finding.path)
    nodes = [rewrites.attribute_at(source, each.line, each.column, attribute) for each in group]
    found = [alike for node in nodes if node for alike in rewrites.same_receiver(source, node, owner)]
    edits = rewrites.rename(source, found, other.name)
    if edits is None or None in nodes:
        view.explain(group, f"which {attribute} in its line is meant cannot be told")
        return None
    lines = sorted({node.end_lineno or node.lineno for node in found})
    also = sorted(set(lines) - {each.line for each in group} - {node.end_lineno for node in nodes if node})
    more = (
        f" The same object is read in line {', '.join(map(str, also))}, which the checker cannot see." if also else ""
    )
    draft = Draft(
        finding.path,
        slug(f"{attribute}-older-name"),
        f"Use {owner}.{attribute} under its name on this base, {other.name}",
        (f"{where}:{other.line}: {other.evidence} (compared with #{number}).{more}",),
        (
            contains(finding.path, line_at(source, lines[0])),
            f"defines {where} {owner}.{other.name}",
            f"not defines {where} {owner}.{attribute}",
        ),
        edits,
        family=f"{where} {owner}",
    )
    if not view.is_sound(draft, number):
        return None
    loses = f"right only if {other.name} means what {attribute} does: {other.evidence}" if is_choice else ""
    option = f"{attribute}/rename-{slug(other.name)}" if is_choice else f"{attribute}/rename"
    return patch(option, group, draft, loses=loses, needs_accept=is_choice)


def _declared(
    view: View,
    group: tuple[Finding, ...],
    number: int,
    path: str,
    theirs: ast.ClassDef,
    ours: ast.ClassDef,
    name: str,
    rivals: Sequence[str],
) -> Proposal | None:
    """Propose to add the one line that declares an attribute with its default; `rivals` may be what it is instead."""
    node, before = _declaration(theirs, ours, name)
    if node is None or before is None or node.lineno != node.end_lineno:
        return None
    source = view.source(path)
    base_names = counterparts.top_level(source.tree)
    donor_names = counterparts.top_level(view.tree_of(view.donors[number], path))
    used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
    known = [
        n in base_names and counterparts.is_same_code(base_names[n], donor_names[n]) for n in used & donor_names.keys()
    ]
    is_plain = isinstance(node, ast.Assign) and not theirs.decorator_list and not theirs.bases
    terms = [f"defines {path} {ours.name}", f"not defines {path} {ours.name}.{name}"]
    writer = _left_behind(view, number, name)
    never = f"{writer} sets it in #{number}, and is not here" if writer else "nothing of this base sets it"
    draft = Draft(
        path,
        slug(f"{name}-declared"),
        f"Declare {ours.name}.{name}, with the pull request's own default",
        (f"{group[0].path}:{group[0].line} reads it; {never}, so it has its default.",),
        (contains(group[0].path, line_at(view.source(group[0].path), group[0].line)), *terms),
        rewrites.insert_after(source, before, view.source_in(view.donors[number], path).text(node)),
    )
    if not view.is_sound(draft, number):
        return None
    needs_accept = bool(writer or rivals) or not (is_plain and all(known))
    loses = f"{name} always has its default: {never}" if needs_accept else ""
    loses += f"; {', '.join(rivals)} may be what it is on this base" if rivals else ""
    return patch(f"{name}/declare", group, draft, loses=loses, needs_accept=needs_accept)


def _left_behind(view: View, number: int, name: str) -> str:
    """Return the first place of a pull request's tree that may set an attribute, in code that the merged one lacks."""
    donor = view.donors[number]
    for path in sorted(path for path in donor.paths.values() if path.endswith(".py")):
        ours = view.trees.merged.read(path) if path in view.trees.merged.paths else b""
        try:
            data = donor.read(path)
            found = list(_setting(data, name))
            if found and len(found) > len(list(_setting(ours or b"", name))):
                return f"{path}:{found[0]}"
        except UnreadableError:
            continue
    return ""


def _setting(data: bytes, name: str) -> Iterator[int]:
    """Yield the lines that may set an attribute: an assignment, setattr, a keyword, an override of a setting."""
    if name.encode() not in data:
        return
    for node in ast.walk(syntax(data)):
        if isinstance(node, ast.Attribute) and node.attr == name and not isinstance(node.ctx, ast.Load):
            yield node.lineno
        elif isinstance(node, ast.Call):
            receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
            is_its = isinstance(receiver, ast.Attribute) and receiver.attr == name
            is_override = is_its and rewrites.called_name(node) in _OVERRIDES
            is_named = rewrites.called_name(node) in ("setattr", "__setattr__") and any(
                isinstance(argument, ast.Constant) and argument.value == name for argument in node.args
            )
            if is_override or is_named or any(keyword.arg == name for keyword in node.keywords):
                yield node.lineno


def _declaration(theirs: ast.ClassDef, ours: ast.ClassDef, name: str) -> tuple[ast.stmt | None, ast.stmt | None]:
    """Return the statement that declares an attribute with a default, and the base's statement to put it after."""
    placed = {bound: node for node in ours.body for bound in _declares(node)}
    before: ast.stmt | None = None
    for node in theirs.body:
        if name in _declares(node):
            return (node if getattr(node, "value", None) is not None else None), before
        before = next((placed[bound] for bound in _declares(node) if bound in placed), before)
    return None, None


def _declares(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def of_signature(group: tuple[Finding, ...], view: View) -> Iterator[Proposal]:
    """Offer ways to make a call that the base's function takes; which one is right only a person can say."""
    finding = group[0]
    function = finding.symbol.rpartition(".")[2]
    has = f"; the base has {finding.base_has}" if finding.base_has else ""
    view.explain(
        group, "the newer function cannot be carried, as this base has one of that name: a person has to choose"
    )
    if "unknown keyword" not in finding.message:
        call = rewrites.find_call(view.source(finding.path), finding.line, function=function)
        shown = f"{finding.path}:{finding.line}: {ast.unparse(call) if call else finding.message}\n"
        title = f"fit the call to the base's {function}, in a compat patch{has}"
        yield Proposal(f"{function}/call", "sketch", title, finding.path, group, shown, None, "", needs_accept=True)
        return
    for keyword in finding.names:
        yield from _dropped_keyword(view, group, function, keyword)


def _dropped_keyword(view: View, group: tuple[Finding, ...], function: str, keyword: str) -> Iterator[Proposal]:
    finding = group[0]
    source = view.source(finding.path)
    call = rewrites.call_with(source, finding.line, keyword, function)
    entry = next((entry for entry in call.keywords if entry.arg == keyword), None) if call else None
    edits = all_of(rewrites.drop_keyword(source, each.line, keyword, function) for each in group)
    if entry is None or edits is None:
        return
    removes = f"the argument {keyword} of {function}: this base's {function} does not know it and goes without"
    path, inside = _function(view, finding.symbol)
    for number in view.numbers(finding.path):
        draft = Draft(
            finding.path,
            slug(f"{function}-without-{keyword}"),
            f"Call {function} without {keyword}",
            (f"{finding.message}. What it was to do does not happen on this base.",),
            (contains(finding.path, line_at(source, entry.lineno)), f"not accepts {path} {inside} {keyword}"),
            edits,
            removes,
        )
        if path and view.is_sound(draft, number):
            yield patch(f"{keyword}/drop-keyword", group, draft, loses=removes, needs_accept=True)
            return


def _function(view: View, symbol: str) -> tuple[str, str]:
    """Return the file of a function by its dotted name, and its name in it."""
    module = symbol.rpartition(".")[0]
    while module and not view.merged.paths.get(module, "").endswith(".py"):
        module = module.rpartition(".")[0]
    return view.merged.paths.get(module, ""), symbol.removeprefix(f"{module}.")


def of_leaf(group: tuple[Finding, ...], view: View) -> Iterator[Proposal]:
    """Offer the default that the donor's configuration has, in the place of reading it."""
    finding = group[0]
    accessor, _, leaf = finding.symbol.rpartition(".")
    view.explain(group, f"this base's configuration has no {leaf}: a person has to choose")
    place = re.search(r"\(([\w./-]+\.py):(\d+)\)|^([\w./-]+\.py):(\d+)$", finding.donor_has or "")
    source = view.source(finding.path)
    found = [rewrites.attributes(source, each.line, leaf) for each in group]
    reads = [nodes[0] for nodes in found if len(nodes) == 1]  # of two in a line it cannot be told which is the setting
    if place is None or len(reads) < len(found):
        return
    path, line = (place[1] or place[3]), int(place[2] or place[4])
    for number in view.numbers(finding.path):
        field = _field_at(view.trees.donors[number].read(path), line, leaf)
        if field is None:
            continue
        owner, default = field
        removes = f"the setting {leaf}: it always is {default}, as the pull request's own default"
        draft = Draft(
            finding.path,
            slug(f"{leaf}-default"),
            f"Take the default of {leaf}, {default}, instead of {accessor}",
            (f"{path}:{line} of #{number} declares it with this default; this base has no such setting.",),
            (
                contains(finding.path, line_at(source, reads[0].end_lineno or reads[0].lineno)),
                f"not defines {path} {owner}.{leaf}",
            ),
            tuple(edit for node in reads for edit in rewrites.replace(source, node, default)),
            removes,
        )
        if view.is_sound(draft, number):
            yield patch(f"{leaf}/default", group, draft, loses=removes, needs_accept=True)
            return


def _field_at(data: bytes | None, line: int, leaf: str) -> tuple[str, str] | None:
    """Return the class and the literal default of a field that is declared around a line."""
    for owner in ast.walk(parse(data)) if data is not None else ():
        for node in owner.body if isinstance(owner, ast.ClassDef) else ():
            is_there = node.lineno <= line <= (node.end_lineno or node.lineno)
            if is_there and leaf in _declares(node) and isinstance(getattr(node, "value", None), ast.Constant):
                return owner.name, ast.unparse(node.value)  # type: ignore[attr-defined]
    return None
