"""What a tree does with the target's head, read from its source.

DFlash2's selector multiplies with the target's `lm_head.weight`. Whether it can use a packed head (SGLang #35496 added
that) is judged by what the merged source says, never by the list of pull requests.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from builder.model import ReadTree
from builder.smoke.subject import text_of

Path = Literal["dense-only", "quantized-path", "no-selector", "unknown"]


@dataclass(frozen=True)
class Need:
    """What the tree's selector needs of the target's head, and where that was read."""

    verdict: Path
    evidence: str


def read_need(source: bytes | None, path: str) -> Need:
    """Read from the draft model's source whether its selector takes a packed head.

    The selector refuses a head by a condition that calls `is_dense_head_weight` and raises. Where that condition also
    depends on the head's quantization method, and `quant_method.apply` is called, there is a path for packed heads.
    """
    if source is None:
        return Need("no-selector", f"the tree has no {path}")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        return Need("unknown", f"{path} does not parse: {error}")
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    guards = [(function, test) for function in functions for test in _guards(function)]
    applies = _calls_quant_apply(tree)
    if not guards:
        if "candidate_selector" not in {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}:
            return Need("no-selector", f"{path} has no candidate selector")
        if applies:
            return Need("quantized-path", f"{path} calls quant_method.apply")
        return Need("unknown", f"{path} has a selector, and nothing in it tests the target's head")
    for function, test in guards:
        where = f"{path}:{test.lineno} in {function.name}"
        if not _depends_on_quant_method(test, function):
            return Need("dense-only", f"{where} refuses a head that is not dense")
        if not applies:
            return Need("unknown", f"{where} admits a quantized head, and nothing calls quant_method.apply")
    function, test = guards[0]
    return Need("quantized-path", f"{path}:{test.lineno} in {function.name} admits a head with a quantization method")


def _guards(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    """Yield the conditions of a function that ask for a dense head and raise."""
    for node in ast.walk(function):
        if not isinstance(node, ast.If) or not any(isinstance(inner, ast.Raise) for inner in node.body):
            continue
        if any(name.endswith("is_dense_head_weight") for name in _called(node.test)):
            yield node.test


def _called(node: ast.AST) -> Iterator[str]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            yield call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _depends_on_quant_method(test: ast.expr, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Follow the names of a condition through the function's own assignments."""
    assigned = {
        target.id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    seen: set[str] = set()
    waiting: list[ast.AST] = [test]
    while waiting:
        node = waiting.pop()
        if any("quant_method" in name for name in _called(node)):
            return True
        if any(isinstance(inner, ast.Attribute) and inner.attr == "quant_method" for inner in ast.walk(node)):
            return True
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)} & assigned.keys() - seen
        seen |= names
        waiting += [assigned[name] for name in names]
    return False


def _calls_quant_apply(tree: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "apply"
        and (
            (isinstance(node.func.value, ast.Attribute) and node.func.value.attr == "quant_method")
            or (isinstance(node.func.value, ast.Name) and node.func.value.id == "quant_method")
        )
        for node in ast.walk(tree)
    )


def handles_heads(read: ReadTree, package: str, method: str) -> tuple[bool | None, str]:
    """Tell from the tree whether a quantization method looks at `ParallelLMHead`; None if that cannot be found out.

    One that does not builds a dense head: the stored values are cast and their scales ignored.
    """
    folder = f"{package}/srt/layers/quantization"
    names, modules = _registered(text_of(read, f"{folder}/__init__.py"), package)
    cls = names.get(method)
    path = modules.get(cls or "", "")
    source = text_of(read, path) if path else None
    if cls is None or source is None:
        return None, f"the class of quantization method {method!r} is not found in {folder}"
    try:
        classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    except (SyntaxError, ValueError):
        return None, f"{path} does not parse"
    waiting, seen = [cls], set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        if name not in classes:
            continue
        if any(_mentions_head(node) for node in ast.walk(classes[name])):
            return True, f"{cls} in {path} looks at ParallelLMHead"
        waiting += [base.id for base in classes[name].bases if isinstance(base, ast.Name) and base.id not in seen]
    return (
        (False, f"{cls} in {path} never looks at ParallelLMHead") if cls in classes else (None, f"no {cls} in {path}")
    )


def _mentions_head(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "ParallelLMHead"


def _registered(source: bytes | None, package: str) -> tuple[dict[str, str], dict[str, str]]:
    """Read the quantization registry: method -> class name, class name -> package path of its module."""
    try:
        tree = ast.parse(source or b"")
    except (SyntaxError, ValueError):
        return {}, {}
    names: dict[str, str] = {}
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Dict):
            for key, item in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str) and isinstance(item, ast.Name):
                    # The first table is the general one; a later one repeats methods for a CPU.
                    names.setdefault(key.value, item.id)
    modules = {
        alias.asname or alias.name: node.module.replace(".", "/") + ".py"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{package}.")
        for alias in node.names
    }
    return names, modules
