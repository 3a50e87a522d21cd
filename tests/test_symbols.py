"""What a module defines, where it lies, and what cannot be told of it."""

from __future__ import annotations

import pytest

from builder.symbols import Binding, UnreadableError, module_of, parse, path_candidates, symbols


def test_a_path_and_its_module_say_the_same() -> None:
    assert module_of("sglang/srt/a.py") == "sglang.srt.a"
    assert module_of("sglang/srt/__init__.py") == "sglang.srt"
    assert module_of("sglang/srt/a.txt") is None
    for path in ("sglang/srt/a.py", "sglang/srt/__init__.py"):
        assert path in path_candidates(module_of(path) or "")


def test_relative_imports_are_resolved_from_modules_and_from_packages() -> None:
    source = b"from . import a\nfrom .b import c\nfrom ..d import e\n"
    for path in ("sglang/srt/m.py", "sglang/srt/__init__.py"):
        names = symbols(source, path).names
        assert names["a"] == (Binding(1, "sglang.srt", "a"),)
        assert names["c"] == (Binding(2, "sglang.srt.b", "c"),)
        assert names["e"] == (Binding(3, "sglang.d", "e"),)


def test_an_import_that_climbs_out_of_the_tree_has_no_module() -> None:
    assert symbols(b"from ....x import y\n", "sglang/m.py").names["y"] == (Binding(1, None, "y"),)


@pytest.mark.parametrize(
    ("source", "exported", "hidden"),
    [
        (b"a = _b = 1\n", "a", "_b"),
        (b"__all__ = ['_b']\na = _b = 1\n", "_b", "a"),
        (b"__all__ = ['a']\n__all__ += ['_b']\na = _b = c = 1\n", "_b", "c"),
    ],
)
def test_star_imports_take_what_all_says_or_else_what_is_public(source: bytes, exported: str, hidden: str) -> None:
    known = symbols(source, "m.py")
    assert known.is_exported(exported)
    assert not known.is_exported(hidden)


def test_a_computed_all_may_export_any_name() -> None:
    assert symbols(b"__all__ = [n for n in dir()]\n_b = 1\n", "m.py").is_exported("_b")


def test_both_ways_to_ask_for_type_checking_are_known() -> None:
    source = (
        b"import typing\nfrom typing import TYPE_CHECKING\nif typing.TYPE_CHECKING:\n    a = 1\n"
        b"if not TYPE_CHECKING:\n    b = 1\nelse:\n    c = 1\n"
    )
    known = symbols(source, "m.py")
    assert [name for name in "abc" if known.at_runtime(name)] == ["b"]


def test_a_byte_order_mark_and_a_coding_line_are_read_as_python_does() -> None:
    assert "x" in symbols(b"\xef\xbb\xbfx = 1\n", "m.py").names
    assert "x" in symbols("# coding: latin-1\nx = 'é'\n".encode("latin-1"), "m.py").names


def test_text_that_python_would_warn_of_is_read_without_a_word() -> None:
    assert "x" in symbols(b"x = '\\d'\n", "m.py").names


@pytest.mark.parametrize("source", [b"def (:\n", b"x = '\xff'\n", b"x = 1\0\n", b"(" * 5000])
def test_what_does_not_parse_is_unreadable_and_says_why(source: bytes) -> None:
    with pytest.raises(UnreadableError, match="does not parse: "):
        parse(source)
