"""Pure: small edits of one Python source, exact to the byte, and the unified diff that makes them.

A place is found by syntax, never by searching text; what cannot be placed for certain gives None.
"""

from __future__ import annotations

import ast
import codecs
import io
import re
import tokenize
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from builder.symbols import UnreadableError, absolute, parse

Placed = ast.expr | ast.stmt | ast.alias | ast.keyword
"""Nodes that know where they stand."""

_LONGEST_LINE = 88
"""Upstream's own limit: a single import that would be longer is put into parentheses, as its formatter does."""


@dataclass(frozen=True, order=True)
class Rewrite:
    """The bytes from `start` to `end` of a source become `text`."""

    start: int
    end: int
    text: bytes


class Source:
    """A source and its syntax; raises UnreadableError where it has none, or where edits could not be placed in it.

    Positions of nodes are counted in bytes of their lines, as `ast` does.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.tree = parse(data)
        if not _is_editable(data):
            raise UnreadableError("it is not UTF-8 with plain line ends, so no edit is made of it")
        self.starts = line_starts(data)
        # A byte order mark is no column.
        self._bom = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes, in no order that matters."""
        return tuple(ast.walk(self.tree))

    def span(self, node: Placed) -> tuple[int, int]:
        """Return where a node starts and ends in the data."""
        first, last = node.lineno, node.end_lineno or node.lineno
        start = self.starts[first - 1] + node.col_offset + (self._bom if first == 1 else 0)
        return start, self.starts[last - 1] + (node.end_col_offset or 0) + (self._bom if last == 1 else 0)

    def text(self, node: Placed) -> str:
        """Return a node as it is written."""
        start, end = self.span(node)
        return self.data[start:end].decode("utf-8", "replace")

    @property
    def newline(self) -> bytes:
        return b"\r\n" if b"\r\n" in self.data else b"\n"

    def lines(self, first: int, last: int) -> tuple[int, int]:
        """Return the offsets of whole lines (1-based, inclusive)."""
        return self.starts[first - 1], self.starts[last]


def _is_editable(data: bytes) -> bool:
    """Tell whether the places that `ast` names are those of the data: it reads UTF-8, and takes all line ends."""
    try:
        coding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        data.decode("utf-8")
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return False
    return (coding.startswith("utf-8") or data.isascii()) and re.search(rb"\r(?!\n)", data) is None


def line_starts(data: bytes) -> list[int]:
    """Return the offset of each line and of the end; lines end at line feeds only."""
    found = [0]
    found += [match.end() for match in re.finditer(rb"\n", data)]
    return found if found[-1] == len(data) else [*found, len(data)]


def apply(data: bytes, rewrites: Iterable[Rewrite]) -> bytes:
    """Return the data with all rewrites done; they must not overlap."""
    for edit in sorted(rewrites, reverse=True):
        data = data[: edit.start] + edit.text + data[edit.end :]
    return data


def shifted(rewrites: Iterable[Rewrite], done: Sequence[Rewrite], data: bytes) -> tuple[Rewrite, ...] | None:
    """Return rewrites of these data as they stand after others of the same data; None where lines touch."""
    starts = line_starts(data)
    taken = [_changed_rows(edit, starts) for edit in done]
    moved = []
    for edit in rewrites:
        first, last = _changed_rows(edit, starts)
        if any(first <= high and low <= last for low, high in taken):
            return None
        by = sum(len(other.text) - (other.end - other.start) for other in done if other.end <= edit.start)
        moved.append(Rewrite(edit.start + by, edit.end + by, edit.text))
    return tuple(moved)


# -- imports -----------------------------------------------------------------------------------------------------------


def find_alias(source: Source, line: int, name: str) -> tuple[ast.ImportFrom, ast.alias] | None:
    """Find the `from` import that takes a name in this line."""
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node.lineno <= line <= (node.end_lineno or node.lineno):
            for alias in node.names:
                if alias.name == name and alias.lineno == line:
                    return node, alias
    return None


def alias_import(source: Source, line: int, name: str, instead: str) -> tuple[Rewrite, ...] | None:
    """Import another name of the same module under the name that the file uses."""
    found = find_alias(source, line, name)
    if found is None:
        return None
    node, alias = found
    start, end = source.span(alias)
    text = f"{instead} as {alias.asname or alias.name}".encode()
    is_alone = len(node.names) == 1 and node.lineno == node.end_lineno and source.span(node)[1] == end
    length = end - source.starts[line - 1] - (end - start) + len(text)
    if is_alone and length > _LONGEST_LINE:
        indent = b" " * node.col_offset
        newline = source.newline
        text = b"(" + newline + indent + b"    " + text + b"," + newline + indent + b")"
    return (Rewrite(start, end, text),)


def import_elsewhere(source: Source, line: int, module: str, instead: str) -> tuple[Rewrite, ...] | None:
    """Import from another module what a statement in this line takes from an absolute one."""
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node.lineno == line and node.module == module and not node.level:
            start, _ = source.span(node)
            at = source.data.index(module.encode(), start)
            return (Rewrite(at, at + len(module.encode()), instead.encode()),)
    return None


def drop_import(source: Source, line: int, name: str) -> tuple[Rewrite, ...] | None:
    """Take one name out of the `from` import in this line, the whole statement where it was the only one."""
    found = find_alias(source, line, name)
    if found is None:
        return None
    node, alias = found
    if len(node.names) == 1:
        return _drop_statements(source, node, 1)
    return _drop_item(source, alias)


def is_imported_still(source: Source, line: int, name: str, module: str, path: str) -> bool:
    """Tell whether a module is imported all the same where one name of it is no longer taken in this line."""
    found = find_alias(source, line, name)
    if found is None:
        return False
    if len(found[0].names) > 1:
        return True
    for node in source.tree.body:
        taken = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node is not found[0]:
            above = absolute(node, path)
            taken = [f"{above}", *(f"{above}.{alias.name}" for alias in node.names)]
        if any(f"{each}.".startswith(f"{module}.") for each in taken):
            return True
    return False


def is_used(source: Source, name: str, line: int) -> bool:
    """Tell whether a file has a name anywhere but in the import of this line; its mere mention counts as a use.

    A string may be an annotation or an entry of `__all__`, so only comments are not looked at.
    """
    found = find_alias(source, line, name)
    if found is None:
        return True
    node, alias = found
    start, end = source.span(node)
    rest = source.data[:start] + source.data[end:]
    word = (alias.asname or name).encode()
    lines = (row.partition(b"#")[0] if b"'" not in row and b'"' not in row else row for row in rest.split(b"\n"))
    return any(re.search(rb"\b%b\b" % re.escape(word), row) for row in lines)


# -- attributes, keywords, calls ---------------------------------------------------------------------------------------


def attributes(source: Source, line: int, name: str) -> list[ast.Attribute]:
    """Find the reads of an attribute of this name whose name stands in this line."""
    return [
        node
        for node in source.nodes
        if isinstance(node, ast.Attribute) and node.attr == name and (node.end_lineno == line or node.lineno == line)
    ]


def attribute_at(source: Source, line: int, column: int, name: str) -> ast.Attribute | None:
    """Find the access to an attribute whose expression starts in this column (0: unknown); None where it is not one."""
    found = attributes(source, line, name)
    if column:
        found = [node for node in found if node.lineno == line and _column(source, node) == column]
    return found[0] if len(found) == 1 else None


def _column(source: Source, node: ast.Attribute) -> int:
    start = source.starts[node.lineno - 1]
    return len(source.data[start : source.span(node)[0]].decode("utf-8-sig")) + 1


def dotted(node: ast.expr) -> str:
    """Return a name, or names with dots, as written; empty for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    inner = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{inner}.{node.attr}" if inner and isinstance(node, ast.Attribute) else ""


def same_receiver(source: Source, node: ast.Attribute, owner: str) -> list[ast.Attribute]:
    """Find the accesses to the same attribute of the same object in the function around this one, itself included.

    That is told only where the receiver is a plain or dotted name whose variable the function binds once, and nothing
    in it sets an attribute on the way or asks for its type; but it may end where the type is not the `owner`.
    """
    receiver, function = dotted(node.value), _function_around(source, node)
    if not receiver or function is None or not _is_steady(function, receiver, owner):
        return [node]
    every = (part for part in ast.walk(function) if isinstance(part, ast.Attribute) and part.attr == node.attr)
    return [part for part in every if dotted(part.value) == receiver]


def _function_around(source: Source, node: ast.Attribute) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    first, last = node.lineno, node.end_lineno or node.lineno
    functions = (part for part in source.nodes if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))
    around = [part for part in functions if part.lineno <= first and last <= (part.end_lineno or part.lineno)]
    return max(around, key=lambda part: part.lineno, default=None)


def _is_steady(function: ast.FunctionDef | ast.AsyncFunctionDef, receiver: str, owner: str) -> bool:
    name = receiver.partition(".")[0]
    binds = 0
    allowed = {id(test) for part in ast.walk(function) if (test := _ensured(part, owner))}
    for part in ast.walk(function):
        if isinstance(part, ast.Name | ast.Attribute) and not isinstance(part.ctx, ast.Load):
            binds += part.id == name if isinstance(part, ast.Name) else 0
            if isinstance(part, ast.Attribute) and f"{receiver}.".startswith(f"{dotted(part) or '?'}."):
                return False
        elif isinstance(part, ast.Call) and called_name(part) in ("isinstance", "issubclass", "hasattr", "type"):
            if part.args and dotted(part.args[0]) == receiver and id(part) not in allowed:
                return False
        elif isinstance(part, ast.Match) and dotted(part.subject) == receiver:
            return False
        else:
            binds += name in bound_names(part)
    is_its_own = not any(
        isinstance(part, ast.Global | ast.Nonlocal) and name in part.names for part in ast.walk(function)
    )
    return binds == 1 and is_its_own


def _ensured(node: ast.AST, owner: str) -> ast.expr | None:
    """Return the `isinstance` test of a class without which a function does not go on."""
    test = None
    if isinstance(node, ast.Assert):
        test = node.test
    elif isinstance(node, ast.If) and isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not):
        ends = isinstance(node.body[-1], ast.Raise | ast.Return)
        test = node.test.operand if ends and not node.orelse else None
    if not isinstance(test, ast.Call) or called_name(test) != "isinstance" or len(test.args) < 2:
        return None
    return test if dotted(test.args[1]).rpartition(".")[2] == owner else None


def bound_names(node: ast.AST) -> list[str]:
    """Return the names that a node itself binds in another way than by an assignment, or leaves to other scopes."""
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.Global | ast.Nonlocal):
        return list(node.names)
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    name = getattr(node, "name", None) if not isinstance(node, ast.alias) else None
    return [name] if isinstance(name, str) else []


def through_module(source: Source, line: int, module: str, name: str, path: str) -> list[ast.Attribute] | None:
    """Find the reads of a module's name in this line; None where what stands for the module is bound otherwise too."""
    handles = set(_handles(source, module, path))
    found = [node for node in attributes(source, line, name) if dotted(node.value) in handles]
    for root in {dotted(node.value).partition(".")[0] for node in found}:
        imports = [n for n in source.nodes if isinstance(n, ast.Import | ast.ImportFrom) and root in bound_names(n)]
        others = [n for n in source.nodes if not isinstance(n, ast.Import | ast.ImportFrom) and root in bound_names(n)]
        stored = [
            n for n in source.nodes if isinstance(n, ast.Name) and n.id == root and not isinstance(n.ctx, ast.Load)
        ]
        is_plain = all(isinstance(node, ast.Import) for node in imports) or len(imports) == 1
        if others or stored or not is_plain:
            return None
    return found or None


def _handles(source: Source, module: str, path: str) -> Iterator[str]:
    """Yield the expressions that are a module in this file."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from (alias.asname or alias.name for alias in node.names if alias.name == module)
        elif isinstance(node, ast.ImportFrom):
            above = absolute(node, path)
            yield from (alias.asname or alias.name for alias in node.names if f"{above}.{alias.name}" == module)


def rename(source: Source, nodes: Iterable[ast.Attribute], instead: str) -> tuple[Rewrite, ...] | None:
    """Rename the attribute of these accesses."""
    found = {(source.span(node)[1], len(node.attr.encode())) for node in nodes}
    return tuple(Rewrite(end - size, end, instead.encode()) for end, size in sorted(found)) or None


def find_call(source: Source, line: int, keyword: str | None = None, function: str = "") -> ast.Call | None:
    """Find the innermost call around this line, with this keyword or to this function where one is given."""
    found = [
        node
        for node in source.nodes
        if isinstance(node, ast.Call)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        and (keyword is None or any(entry.arg == keyword for entry in node.keywords))
        and (not function or called_name(node) == function)
    ]
    return min(found, key=lambda node: (node.end_lineno or node.lineno) - node.lineno, default=None)


def call_with(source: Source, line: int, keyword: str, function: str = "") -> ast.Call | None:
    """Find the call around this line that has a keyword; of several the one of this function, None if not one."""
    calls = (n for n in source.nodes if isinstance(n, ast.Call) and any(k.arg == keyword for k in n.keywords))
    found = [node for node in calls if node.lineno <= line <= (node.end_lineno or node.lineno)]
    named = [node for node in found if called_name(node) == function]
    return found[0] if len(found) == 1 else named[0] if len(named) == 1 else None


def called_name(node: ast.Call) -> str:
    """Return the last name of what is called."""
    function = node.func
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def drop_keyword(source: Source, line: int, keyword: str, function: str = "") -> tuple[Rewrite, ...] | None:
    """Take one keyword argument out of the call around this line."""
    call = call_with(source, line, keyword, function)
    if call is None:
        return None
    (entry,) = [entry for entry in call.keywords if entry.arg == keyword][:1]
    if len(call.args) + len(call.keywords) == 1:
        start, end = source.span(entry)
        tail = re.match(rb"\s*,", source.data[end:])
        return (Rewrite(start, end + (tail.end() if tail else 0), b""),)
    return _drop_item(source, entry)


def statements_calling(source: Source, name: str) -> list[tuple[ast.Expr, int]]:
    """Find the statements that are nothing but a call of this name, with the length of the block each stands in."""
    found = []
    for node in source.nodes:
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                for part in value:
                    is_call = isinstance(part, ast.Expr) and isinstance(part.value, ast.Call)
                    if is_call and called_name(part.value) == name:
                        found.append((part, len(value)))
    return found


def loads(source: Source, name: str) -> int:
    """Count the reads of a name as such."""
    return sum(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in source.nodes)


def drop_calls(source: Source, name: str) -> tuple[Rewrite, ...] | None:
    """Take out every call of a name; None where the value of one is used, or the name is used in another way."""
    found = statements_calling(source, name)
    if not found or len(found) != loads(source, name):
        return None
    edits = [_drop_statements(source, node, size) for node, size in found]
    return None if None in edits else tuple(edit for made in edits for edit in made or ())


def replace(source: Source, node: Placed, text: str) -> tuple[Rewrite, ...]:
    """Write something else in a node's place."""
    return (Rewrite(*source.span(node), text.encode()),)


def insert_after(source: Source, node: ast.stmt, text: str) -> tuple[Rewrite, ...]:
    """Put a line after a statement, with the statement's own indentation."""
    at = source.starts[node.end_lineno or node.lineno]
    is_last_open = at == len(source.data) and not source.data.endswith(b"\n")
    line = b" " * node.col_offset + text.encode() + source.newline
    return (Rewrite(at, at, source.newline + line.rstrip() if is_last_open else line),)


def _drop_statements(source: Source, node: ast.stmt, size: int) -> tuple[Rewrite, ...] | None:
    """Take out a statement that has its lines for itself; the only one of a block leaves a `pass`."""
    start, end = source.span(node)
    line_start, line_end = source.lines(node.lineno, node.end_lineno or node.lineno)
    if source.data[line_start:start].strip() or source.data[end:line_end].partition(b"#")[0].strip():
        return None
    if size > 1 or not node.col_offset:
        return (Rewrite(line_start, line_end, b""),)
    return (Rewrite(start, end, b"pass"),)


def _drop_item(source: Source, node: Placed) -> tuple[Rewrite, ...]:
    """Take one of several items of a comma-separated list out, its whole lines where it has them for itself."""
    start, end = source.span(node)
    after = re.match(rb"[ \t]*,[ \t]*", source.data[end:])
    line_start = source.data.rfind(b"\n", 0, start) + 1
    stop = end + (after.end() if after else 0)
    line_end = source.data.find(b"\n", stop) + 1 or len(source.data)
    rest = source.data[stop:line_end].strip()
    if not source.data[line_start:start].strip() and not rest and after:
        return (Rewrite(line_start, line_end, b""),)
    if after and (rest or not source.data[stop:].lstrip().startswith(b")")):
        return (Rewrite(start, stop, b""),)
    before = re.search(rb",\s*\Z", source.data[:start])
    return (Rewrite(before.start() if before else start, end, b""),)


# -- the diff ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Block:
    """Lines `first` to before `last` (0-based) that become others."""

    first: int
    last: int
    new: tuple[bytes, ...]


def diff(path: str, before: bytes, edits: Iterable[Rewrite], context: tuple[int, int] = (0, 0)) -> str:
    """Write the edits as a unified diff with so many lines of context before and after each."""
    old = _lines(before)
    out = [f"--- a/{path}\n", f"+++ b/{path}\n"]
    shift = 0
    for group in _hunks(_blocks(before, edits), context):
        low, high = max(group[0].first - context[0], 0), min(group[-1].last + context[1], len(old))
        body, at = [], low
        for block in group:
            body += [(" ", line) for line in old[at : block.first]]
            body += [("-", line) for line in old[block.first : block.last]] + [("+", line) for line in block.new]
            at = block.last
        body += [(" ", line) for line in old[at:high]]
        added = sum(len(block.new) - (block.last - block.first) for block in group)
        counts = (high - low, high - low + added)
        starts = (low + min(counts[0], 1), low + shift + min(counts[1], 1))
        out.append(f"@@ -{starts[0]},{counts[0]} +{starts[1]},{counts[1]} @@\n")
        out += [_diff_line(mark, line) for mark, line in body]
        shift += added
    return "".join(out)


def _hunks(blocks: Iterable[_Block], context: tuple[int, int]) -> list[list[_Block]]:
    """Put blocks whose context would touch into one hunk."""
    groups: list[list[_Block]] = []
    for block in blocks:
        if groups and block.first <= groups[-1][-1].last + sum(context):
            groups[-1].append(block)
        else:
            groups.append([block])
    return groups


def _blocks(data: bytes, edits: Iterable[Rewrite]) -> Iterator[_Block]:
    """Yield the lines that change, those of edits in neighbouring lines together."""
    starts = line_starts(data)
    groups: list[tuple[int, int, list[Rewrite]]] = []
    for edit in sorted(edits):
        first, last = _changed_rows(edit, starts)
        if groups and first <= groups[-1][1]:
            low, high, known = groups.pop()
            groups.append((low, max(high, last), [*known, edit]))
        else:
            groups.append((first, last, [edit]))
    for first, last, group in groups:
        begin, end = starts[first], starts[last]
        inner = [Rewrite(edit.start - begin, edit.end - begin, edit.text) for edit in group]
        yield _Block(first, last, tuple(_lines(apply(data[begin:end], inner))))


def _changed_rows(edit: Rewrite, starts: Sequence[int]) -> tuple[int, int]:
    """Return the lines that an edit changes, as a half-open range; whole lines that are put in change none."""
    first = max(bisect_right(starts, edit.start) - 1, 0)
    is_whole_lines = starts[first] == edit.start and (edit.start == edit.end or edit.end in starts)
    if is_whole_lines and edit.text[-1:] in (b"", b"\n"):
        return first, bisect_left(starts, edit.end)
    return first, min(bisect_right(starts, max(edit.end - 1, edit.start)), len(starts) - 1)


def _lines(data: bytes) -> list[bytes]:
    return re.findall(rb"[^\n]*\n|[^\n]+", data)  # at line feeds only, as diff does; endings are kept


def _diff_line(mark: str, line: bytes) -> str:
    text = line.decode("utf-8", "surrogateescape")
    return f"{mark}{text}" if text.endswith("\n") else f"{mark}{text}\n\\ No newline at end of file\n"
