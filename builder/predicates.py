"""Predicates over trees: the language of `Needed-If` and of a definition's `bases`. No eval; three-valued.

    expression := and-part { "or" and-part }            and-part := part { "and" part }
    part       := "not" part | "(" expression ")" | ["base:"] term
    term       := exists PATH | defines PATH NAME[.ATTR] | accepts PATH FUNCTION PARAMETER
                | imports PATH MODULE.NAME | contains PATH "exact line"

A term sees the tree as merged so far, the untouched base with `base:` in front. It is unknown where the source cannot
be judged, and Kleene's tables carry that on: `false and unknown` is false, `true and unknown` is unknown.
"""

from __future__ import annotations

import ast
import codecs
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn

from builder.errors import InputError
from builder.model import ReadTree
from builder.suggest import did_you_mean
from builder.symbols import UnreadableError, absolute, blocks, bound_names, path_candidates, symbols
from builder.symbols import parse as parse_source

_TOKEN = re.compile(r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<bracket>[()])|(?P<word>[^\s()"]+)|(?P<bad>\S))')
_NAME = re.compile(r"[^\W\d]\w*")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class Term:
    """One question to one file."""

    word: str
    arguments: tuple[str, ...]
    is_base: bool = False


@dataclass(frozen=True)
class Not:
    """The opposite."""

    part: Expression


@dataclass(frozen=True)
class Both:
    """`and` or `or` over two or more parts."""

    word: Literal["and", "or"]
    parts: tuple[Expression, ...]


Expression = Term | Not | Both


@dataclass(frozen=True)
class Truth:
    """True, false or unknown (None), and a sentence that names the evidence."""

    value: bool | None
    fact: str


# -- reading an expression ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Token:
    kind: str
    """`string`, `bracket`, `word` or `end`."""
    text: str
    start: int


def parse(text: str, where: str) -> Expression:
    """Read an expression; InputError names the column and what was expected there."""
    return _Parser(text, where).expression()


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where
        self._tokens = self._read()
        self._at = 0

    def expression(self) -> Expression:
        whole = self._joined("or", lambda: self._joined("and", self._part))
        if self._token.kind != "end":
            self._fail("'and', 'or' or the end")
        return whole

    def _read(self) -> list[_Token]:
        tokens = []
        for match in _TOKEN.finditer(self._text):
            kind = match.lastgroup or ""
            tokens.append(_Token(kind, match[kind], match.start(kind)))
            if kind == "bad":
                self._fail("a string in double quotes", tokens[-1])
        return [*tokens, _Token("end", "", len(self._text.rstrip()))]

    @property
    def _token(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _joined(self, word: Literal["and", "or"], read: Callable[[], Expression]) -> Expression:
        parts = [read()]
        while self._is_word(word):
            self._take()
            parts.append(read())
        return parts[0] if len(parts) == 1 else Both(word, tuple(parts))

    def _is_word(self, word: str) -> bool:
        return self._token.kind == "word" and self._token.text == word

    def _part(self) -> Expression:
        if self._is_word("not"):
            self._take()
            return Not(self._part())
        if self._token.text == "(" and self._token.kind == "bracket":
            self._take()
            inner = self._joined("or", lambda: self._joined("and", self._part))
            if self._token.text != ")" or self._token.kind != "bracket":
                self._fail("')', 'and' or 'or'")
            self._take()
            return inner
        return self._term()

    def _term(self) -> Term:
        token = self._token
        word = token.text.removeprefix("base:")
        is_base = token.text.startswith("base:")
        if token.kind != "word" or word not in _TERMS:
            known = ["not", *_TERMS, *(f"base:{name}" for name in _TERMS)]
            hint = did_you_mean(token.text, known) if token.kind == "word" else ""
            self._fail(f"'not', '(' or one of {', '.join(_TERMS)}{hint}")
        self._take()
        shape = _TERMS[word].arguments
        return Term(word, tuple(self._argument(word, name) for name in shape), is_base)

    def _argument(self, word: str, name: str) -> str:
        token = self._token
        expected = f"{name} after '{word}' ({word} {' '.join(_TERMS[word].arguments)})"
        if name == '"LINE"':
            if token.kind != "string":
                self._fail(expected)
            return re.sub(r"\\(.)", r"\1", self._take().text[1:-1])
        if token.kind != "word" or token.text in ("and", "or", "not"):
            self._fail(expected)
        complaint = _ARGUMENTS[name](token.text)
        if complaint:
            self._fail(f"{expected}; {complaint}")
        return self._take().text

    def _fail(self, expected: str, token: _Token | None = None) -> NoReturn:
        token = token or self._token
        found = repr(token.text) if token.text else "the end"
        line_start = self._text.rfind("\n", 0, token.start) + 1
        line = self._text[line_start:].partition("\n")[0]
        column = token.start - line_start + 1
        message = f"column {column}: expected {expected}; found {found}"
        raise InputError(self._where, message, facts=(line, " " * (column - 1) + "^"))


def _path_complaint(text: str) -> str:
    parts = text.split("/")
    if text.startswith("/") or ".." in parts or "" in parts or "\\" in text:
        return f"{text!r} is not a path below the package's folder"
    if parts[0] == "python" and len(parts) > 2:
        return f"paths start at the package (did you mean {text.removeprefix('python/')!r}?)"
    return ""


def _dotted_complaint(text: str, most: int) -> str:
    if not _DOTTED.fullmatch(text):
        return f"{text!r} is not a Python name"
    return f"{text!r} has more than one dot" if text.count(".") > most else ""


_ARGUMENTS: Mapping[str, Callable[[str], str]] = {
    "PATH": _path_complaint,
    "NAME[.ATTR]": lambda text: _dotted_complaint(text, 1),
    "FUNCTION": lambda text: _dotted_complaint(text, 1),
    "PARAMETER": lambda text: "" if _NAME.fullmatch(text) else f"{text!r} is not a Python name",
    "MODULE.NAME": lambda text: _dotted_complaint(text, len(text)),
}


# -- evaluating it -----------------------------------------------------------------------------------------------------


def evaluate(expression: Expression, merged: ReadTree, base: ReadTree) -> Truth:
    """Answer an expression over the tree as merged so far and the untouched base."""
    match expression:
        case Term():
            return _ask(expression, base if expression.is_base else merged)
        case Not(part):
            truth = evaluate(part, merged, base)
            return Truth(None if truth.value is None else not truth.value, truth.fact)
        case Both(word, parts):
            return combine(word, [evaluate(part, merged, base) for part in parts])


def combine(word: Literal["and", "or"], truths: list[Truth]) -> Truth:
    """Combine by Kleene's tables; the fact is that of the parts which decided."""
    decisive = word == "or"
    for value in (decisive, None):
        found = [truth for truth in truths if truth.value is value]
        if found:
            return found[0]
    return Truth(not decisive, "; ".join(dict.fromkeys(truth.fact for truth in truths)))


@dataclass(frozen=True)
class _Source:
    """One file, and the tree in which its imports can be followed."""

    path: str
    data: bytes
    tree: ReadTree


def _ask(term: Term, tree: ReadTree) -> Truth:
    path, *arguments = term.arguments
    try:
        data = tree(path)
        if data is None:
            truth = Truth(False, f"{path} does not exist")
        else:
            truth = _TERMS[term.word].ask(_Source(path, data, tree), *arguments)
    except UnreadableError as error:
        truth = Truth(None, f"{path}: {error}")
    except InputError as error:  # a link, or a file whose content was not kept
        truth = Truth(None, f"{path}: {error.message}")
    return Truth(truth.value, ("base: " if term.is_base else "") + truth.fact)


def _exists(source: _Source) -> Truth:
    return Truth(True, f"{source.path} exists")


def _contains(source: _Source, line: str) -> Truth:
    lines = source.data.removeprefix(codecs.BOM_UTF8).split(b"\n")
    for number, found in enumerate(lines, 1):
        if found.removesuffix(b"\r") == line.encode():
            return Truth(True, f"{source.path}:{number} is {line.strip()!r}")
    return Truth(False, f"{source.path} has no line {line!r}")


def _defines(source: _Source, wanted: str) -> Truth:
    path = source.path
    name, _, attribute = wanted.partition(".")
    known = symbols(source.data, path)
    bindings = known.at_runtime(name)
    if bindings and attribute:
        return _has_attribute(source, name, attribute, bindings[0].line)
    if bindings:
        return Truth(True, f"{path}:{bindings[0].line} defines {name}")
    if known.open_because or known.stars:
        why = known.open_because or f"imports all names of {', '.join(known.stars)}"
        return Truth(None, f"{path} itself does not define {name}, but {why}")
    if name in known.names:
        return Truth(False, f"{path}:{known.names[name][0].line} has {name} for type checkers only")
    return Truth(False, f"{path} has no {name}")


def _imports(source: _Source, wanted: str) -> Truth:
    path = source.path
    stars = []
    for node in ast.walk(parse_source(source.data)):
        if isinstance(node, ast.Import):
            found = [alias for alias in node.names if f"{alias.name}.".startswith(f"{wanted}.")]
        elif isinstance(node, ast.ImportFrom):
            module = absolute(node, path)
            found = [alias for alias in node.names if wanted in (module, f"{module}.{alias.name}")]
            stars += [module for alias in node.names if alias.name == "*" and wanted.rpartition(".")[0] == module]
        else:
            continue
        if found:
            return Truth(True, f"{path}:{found[0].lineno} imports {wanted}")
    if stars:
        return Truth(None, f"{path} imports all names of {stars[0]}")
    return Truth(False, f"{path} does not import {wanted}")


def _accepts(source: _Source, function: str, parameter: str) -> Truth:
    owner, _, method = function.rpartition(".")
    family = _Family(source, owner or function)
    if family.classes:
        return _class_accepts(family, method if owner else "__init__", parameter)
    found = [] if owner else list(_functions(parse_source(source.data).body, function))
    if found:
        return _functions_accept(source.path, function, found, parameter)
    defined = _defines(source, owner or function)
    if defined.value:
        what = "a class" if owner else "a function or class"
        return Truth(None, f"{defined.fact}, not as {what} of this file, so its parameters cannot be told")
    return defined


def _class_accepts(family: _Family, method: str, parameter: str) -> Truth:
    name = f"{family.name}.{method}"
    for path, node in family.classes:
        if found := list(_functions(node.body, method)):
            return _functions_accept(path, name, found, parameter)
        fields = dict(_fields(node.body)) if method == "__init__" else {}
        if parameter in fields and _is_dataclass(node):
            return Truth(True, f"{path}:{fields[parameter]} {family.name} has the field {parameter}")
    if family.elsewhere:
        return Truth(None, f"{family.source.path} has no {name}; it may come from {', '.join(family.elsewhere)}")
    return Truth(False, f"{family.source.path} has no {name} that accepts {parameter}")


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _functions_accept(path: str, name: str, found: list[_Function], parameter: str) -> Truth:
    answers = {_takes(function.args, parameter) for function in found}
    places = ", ".join(f"{path}:{function.lineno}" for function in found)
    if len(answers) > 1:
        return Truth(None, f"only some definitions of {name} accept {parameter} ({places})")
    verb = "accepts" if True in answers else "does not accept"
    return Truth(answers.pop(), f"{places} {name} {verb} {parameter}")


def _takes(arguments: ast.arguments, parameter: str) -> bool:
    """Tell whether a call may pass this parameter by name."""
    named = (*arguments.args, *arguments.kwonlyargs)
    return arguments.kwarg is not None or any(argument.arg == parameter for argument in named)


def _has_attribute(source: _Source, name: str, attribute: str, line: int) -> Truth:
    family = _Family(source, name)
    if not family.classes:
        fact = f"{source.path}:{line} defines {name}, no class of this file, so its attributes cannot be told"
        return Truth(None, fact)
    elsewhere = [*family.elsewhere]
    for path, node in family.classes:
        for member, place in _members(node):
            if member == attribute:
                return Truth(True, f"{path}:{place} defines {node.name}.{attribute}")
            if member in ("__getattr__", "__getattribute__"):
                elsewhere.append(f"{node.name}.{member}")
    if elsewhere:
        return Truth(None, f"{source.path} has no {name}.{attribute}; it may come from {', '.join(elsewhere)}")
    return Truth(False, f"{source.path} has no {name}.{attribute}")


@dataclass(frozen=True)
class _TermKind:
    """The arguments that a term takes after its word, and how it is answered of a file that is there."""

    arguments: tuple[str, ...]
    ask: Callable[..., Truth]


_TERMS = {
    "exists": _TermKind(("PATH",), _exists),
    "defines": _TermKind(("PATH", "NAME[.ATTR]"), _defines),
    "accepts": _TermKind(("PATH", "FUNCTION", "PARAMETER"), _accepts),
    "imports": _TermKind(("PATH", "MODULE.NAME"), _imports),
    "contains": _TermKind(("PATH", '"LINE"'), _contains),
}


# -- what stands in a class --------------------------------------------------------------------------------------------

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_WITHOUT_MEMBERS = frozenset({"object", "abc.ABC", "typing.Generic", "typing.Protocol", "typing_extensions.Protocol"})
"""Bases outside the tree that give a class nothing anybody asks for."""


class _Family:
    """The classes of one name in a file and their bases, through imports within the tree.

    `elsewhere` names what else may give them members: bases outside the tree, and class keywords such as a metaclass.
    """

    def __init__(self, source: _Source, name: str) -> None:
        self.source = source
        self.name = name
        self.classes: list[tuple[str, ast.ClassDef]] = []
        self.elsewhere: list[str] = []
        seen: set[tuple[str, str]] = set()
        queue = [(source, name)]
        while queue:
            where, wanted = queue.pop(0)
            if (where.path, wanted) not in seen:
                seen.add((where.path, wanted))
                queue += self._add(where, wanted)

    def _add(self, where: _Source, wanted: str) -> list[tuple[_Source, str]]:
        """Add the classes of a name in one file and return their bases; or else the file that the name comes from."""
        nodes = [n for n in _statements(parse_source(where.data).body) if isinstance(n, ast.ClassDef)]
        found = [node for node in nodes if node.name == wanted]
        self.classes += [(where.path, node) for node in found]
        self.elsewhere += [ast.unparse(keyword.value) for node in found for keyword in node.keywords]
        if found:
            return [(where, ast.unparse(_unsubscripted(base))) for node in found for base in node.bases]
        if where.path == self.source.path and wanted == self.name:
            return []
        module, name = self._origin(where, wanted)
        for path in path_candidates(module):
            data = where.tree(path)
            if data is not None:
                return [(_Source(path, data, where.tree), name)]
        if f"{module}.{name}".strip(".") not in _WITHOUT_MEMBERS:
            self.elsewhere.append(wanted)
        return []

    @staticmethod
    def _origin(where: _Source, wanted: str) -> tuple[str, str]:
        """Return the module and name that a name in a file was imported from; ('', name) if it was not."""
        root, _, rest = wanted.partition(".")
        for binding in symbols(where.data, where.path).at_runtime(root):
            if binding.module and binding.name and not rest:
                return binding.module, binding.name
            if binding.module and not binding.name and rest:
                module, _, name = f"{binding.module}.{rest}".rpartition(".")
                return module, name
        return "", wanted


def _unsubscripted(base: ast.expr) -> ast.expr:
    return base.value if isinstance(base, ast.Subscript) else base


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, those inside `if`, `try`, `with` and loops too."""
    for node in body:
        yield node
        for block, _ in blocks(node):
            yield from _statements(block)


def _functions(body: list[ast.stmt], name: str) -> Iterator[_Function]:
    for node in _statements(body):
        if isinstance(node, _Function) and node.name == name:
            yield node


def _fields(body: list[ast.stmt]) -> Iterator[tuple[str, int]]:
    for node in _statements(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.lineno


def _members(node: ast.ClassDef) -> Iterator[tuple[str, int]]:
    """Yield methods, attributes, annotated fields, `__slots__`, and what methods assign to their first parameter."""
    yield from _fields(node.body)
    for statement in _statements(node.body):
        names = [*bound_names(statement)]
        if isinstance(statement, ast.Import | ast.ImportFrom):
            names = [alias.asname or alias.name.split(".")[0] for alias in statement.names]
        if "__slots__" in names:
            names += [str(part.value) for part in ast.walk(statement) if isinstance(part, ast.Constant)]
        yield from ((name, statement.lineno) for name in names)
        if isinstance(statement, _Function):
            yield from _assigned_to_self(statement)


def _assigned_to_self(method: _Function) -> Iterator[tuple[str, int]]:
    first = [argument.arg for argument in (*method.args.posonlyargs, *method.args.args)][:1]
    for part in ast.walk(method):
        match part:
            case ast.Attribute(value=ast.Name(id=owner), ctx=ast.Store()) if owner in first:
                yield part.attr, part.lineno
