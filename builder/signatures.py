"""Pure: what calls a function takes, read from its head; and whether one call fits it."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Shape:
    """How a call passes its arguments: how many by position, and the keywords.

    Where it also unpacks something (`*a`, `**k`), more may come than stands there.
    """

    positional: int
    keywords: tuple[str, ...]
    unpacks: bool

    @classmethod
    def of(cls, call: ast.Call, *, bound: int = 0) -> Shape:
        """Return the shape of a call; `bound` counts what is passed before (a method's own object)."""
        plain = [argument for argument in call.args if not isinstance(argument, ast.Starred)]
        keywords = tuple(keyword.arg for keyword in call.keywords if keyword.arg)
        unpacks = len(plain) < len(call.args) or len(keywords) < len(call.keywords)
        return cls(bound + len(plain), keywords, unpacks)


def misfit(shape: Shape, head: ast.arguments) -> tuple[str, tuple[str, ...]]:
    """Say why a call does not fit a head, with the parameters concerned; empty where it does or cannot be told."""
    by_place = [*head.posonlyargs, *head.args]
    by_name = {argument.arg for argument in (*head.args, *head.kwonlyargs)}
    unknown = tuple(word for word in shape.keywords if word not in by_name) if head.kwarg is None else ()
    if unknown:
        return f"with the unknown keyword {', '.join(unknown)}", unknown
    if shape.positional > len(by_place) and head.vararg is None:
        return f"with too many arguments: it takes {len(by_place)}", ()
    if shape.unpacks:
        return "", ()
    given = {argument.arg for argument in by_place[: shape.positional]} | set(shape.keywords)
    needed = [argument.arg for argument in by_place[: len(by_place) - len(head.defaults)]]
    needed += [a.arg for a, default in zip(head.kwonlyargs, head.kw_defaults, strict=True) if default is None]
    missing = tuple(word for word in needed if word not in given)
    return (f"with a missing argument: {', '.join(missing)}", missing) if missing else ("", ())


def is_accepting(head: ast.arguments, wider: ast.arguments) -> bool:
    """Tell whether every call that fits `wider` fits `head`: by position, by keyword, and with the least given."""
    places = [*wider.posonlyargs, *wider.args]
    most = Shape(len(places), tuple(argument.arg for argument in wider.kwonlyargs), unpacks=False)
    least = Shape(
        len(places) - len(wider.defaults),
        tuple(a.arg for a, default in zip(wider.kwonlyargs, wider.kw_defaults, strict=True) if default is None),
        unpacks=False,
    )
    named = Shape(len(wider.posonlyargs) + 1, tuple(argument.arg for argument in wider.args[1:]), unpacks=True)
    shapes = [most, least, *([named] if wider.args else [])]
    is_open = wider.vararg is not None and head.vararg is None
    return not is_open and not any(misfit(shape, head)[0] for shape in shapes)


def function_in(body: Iterable[ast.stmt], names: list[str]) -> Function | None:
    """Return the function that a dotted name stands for in a module or class, the last where there are several."""
    found: Function | None = None
    for node in body:
        if isinstance(node, ast.ClassDef) and len(names) > 1 and node.name == names[0]:
            found = function_in(node.body, names[1:]) or found
        elif isinstance(node, Function) and names == [node.name]:
            found = node
        elif isinstance(node, ast.If | ast.Try):
            inner = function_in([*node.body, *node.orelse], names)
            found = found or inner
    return found
