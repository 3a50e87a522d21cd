"""The compat check on toy trees: what is new against base and donor, what goes down, and what is never reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from builder import compat
from builder.compat import Comparison, Finding, Result
from builder.doors import Complaint
from builder.errors import Unavailable
from builder.guards import Hardware
from builder.model import Tree
from builder.predicates import Truth
from builder.type_checker import Pyrefly

Files = Mapping[str, str]

INFO = "sglang/info.py"
WORKER = "sglang/worker.py"
LIB = "sglang/lib.py"
USER = "sglang/user.py"


def tree(files: Files) -> Tree:
    data = {path: text.encode() for path, text in files.items()}
    return Tree(frozenset(data), data.get)


@pytest.fixture
def check(tmp_path: Path):
    """`check(base, donor, paths)` puts these files of the donor on the base whole."""

    def run(base: Files, donor: Files, *paths: str, **more: object) -> Result:
        before, donors = tree(base), tree(donor)
        after = before.overlaid({path: donor[path].encode() for path in paths})
        comparison = Comparison(before, after, frozenset(paths), dict.fromkeys(paths, donors))
        return compat.check(replace(comparison, **more), Pyrefly(tmp_path / "cache"))

    return run


def brief(result: Result) -> list[tuple[str, str, int, str]]:
    assert result.unknown == ()
    return [(finding.kind, finding.path, finding.line, finding.symbol) for finding in result.findings]


# -- D3: an attribute renamed on an object from a file that nobody overlays --------------------------------------------

OLD_INFO = (
    "from dataclasses import dataclass\n\n\n@dataclass\nclass Input:\n    reserved_len: int = 0\n    count: int = 0\n"
)
NEW_INFO = OLD_INFO.replace("reserved_len", "next_len")
OLD_WORKER = (
    "from sglang.info import Input\n\n\ndef step(inp: Input):\n    if inp.count:\n        return 1\n    return 0\n"
)
NEW_WORKER = OLD_WORKER.replace("    return 0\n", "    elif inp.next_len:\n        return 2\n    return 0\n")


def test_d3_an_attribute_that_only_the_donor_defines_is_named_with_both_places(check) -> None:
    base, donor = {INFO: OLD_INFO, WORKER: OLD_WORKER}, {INFO: NEW_INFO, WORKER: NEW_WORKER}
    result = check(base, donor, WORKER)
    assert brief(result) == [("attribute-missing", WORKER, 7, "sglang.info.Input.next_len")]
    (finding,) = result.findings
    assert finding.base_has == "reserved_len (sglang/info.py:6)"
    assert finding.donor_has == "Input.next_len (sglang/info.py:6)"
    assert finding.guard == "in def step"
    assert finding.message == "uses next_len of a Input, which has no such attribute"


def test_d3_a_base_that_has_the_attribute_lacks_nothing(check) -> None:
    donor = {INFO: NEW_INFO, WORKER: NEW_WORKER}
    assert check({INFO: NEW_INFO, WORKER: OLD_WORKER}, donor, WORKER) == Result((), ())


def test_d3_both_files_overlaid_lack_nothing(check) -> None:
    donor = {INFO: NEW_INFO, WORKER: NEW_WORKER}
    assert check({INFO: OLD_INFO, WORKER: OLD_WORKER}, donor, INFO, WORKER) == Result((), ())


def test_an_attribute_of_anything_is_missing_where_its_name_stands_nowhere_in_the_base(check) -> None:
    base = {INFO: OLD_INFO, WORKER: "def step(inp):\n    return inp.count\n"}
    donor = {INFO: NEW_INFO, WORKER: "def step(inp):\n    return inp.next_len + inp.count\n"}
    result = check(base, donor, WORKER)
    assert brief(result) == [("attribute-missing", WORKER, 2, ".next_len")]
    assert result.findings[0].donor_has == "next_len (sglang/info.py:6)"


@pytest.mark.parametrize(
    "worker",
    [
        "def step(inp):\n    inp.next_len = 1\n    return inp.next_len\n",  # sets it itself
        "def step(inp):\n    return getattr(inp, 'next_len').next_len\n",  # names it as text
        "def step(inp):\n    return inp.from_elsewhere\n",  # nothing in the donor defines it
        "class A:\n    next_len = 1\n\n\ndef step(inp):\n    return inp.next_len\n",
    ],
)
def test_an_attribute_that_may_be_there_is_no_finding(check, worker: str) -> None:
    base = {INFO: OLD_INFO, WORKER: ""}
    assert check(base, {INFO: NEW_INFO, WORKER: worker}, WORKER) == Result((), ())


def test_what_is_read_of_a_missing_thing_needs_no_line_of_its_own(check) -> None:
    donor = {LIB: "class Site:\n    SELECTOR = 1\n", USER: "from sglang.lib import Site\n\nprint(Site.SELECTOR)\n"}
    assert brief(check({USER: ""}, donor, USER)) == [("module-missing", USER, 1, "sglang.lib")]


# -- signatures --------------------------------------------------------------------------------------------------------

CALL = """\
from sglang.lib import f


def g():
    try:
        return f({})
    except Exception:
        return None
"""


@pytest.mark.parametrize(
    ("older", "newer", "call", "names", "says"),
    [
        ("def f(a): ...", "def f(a, b=1): ...", "1, b=2", ("b",), "with the unknown keyword b"),
        ("def f(a, b): ...", "def f(a): ...", "1", ("b",), "with a missing argument: b"),
        ("def f(a): ...", "def f(a, b): ...", "1, 2", (), "with too many arguments: it takes 1"),
    ],
)
def test_a_call_that_does_not_fit_is_found_even_where_its_failure_is_swallowed(
    check, older: str, newer: str, call: str, names: tuple[str, ...], says: str
) -> None:
    base, donor = {LIB: older + "\n", USER: ""}, {LIB: newer + "\n", USER: CALL.format(call)}
    result = check(base, donor, USER)
    assert brief(result) == [("signature", USER, 6, "sglang.lib.f")]
    (finding,) = result.findings
    assert (finding.names, finding.guard) == (names, "in def g, try/except Exception")
    assert finding.message.endswith(says)
    assert finding.base_has == f"{older.removeprefix('def ').removesuffix(': ...')} (sglang/lib.py:1)"
    assert (
        finding.donor_has == f"{newer.removeprefix('def ').removesuffix(': ...').replace('=1', '=1')} (sglang/lib.py:1)"
    )
    assert check(donor, donor, USER) == Result((), ())


def test_a_method_is_named_by_its_class(check) -> None:
    older, newer = "class C:\n    def m(self): ...\n", "class C:\n    def m(self, x=1): ...\n"
    base = {LIB: older, USER: ""}
    result = check(base, {LIB: newer, USER: "from sglang.lib import C\n\nC().m(x=2)\n"}, USER)
    assert brief(result) == [("signature", USER, 3, "sglang.lib.C.m")]
    assert result.findings[0].base_has == "m(self) (sglang/lib.py:2)"


OVERLOADED = """\
from typing import overload


@overload
def f(a: int) -> int: ...
@overload
def f(a: str) -> str: ...
def f(a): ..."""


@pytest.mark.parametrize(
    ("older", "newer", "use", "kind"),
    [
        ("def f(a, /): ...", "def f(a): ...", "f(a=1)", "signature"),
        ("def f(*, a): ...", "def f(a): ...", "f(1)", "signature"),
        (
            "class C:\n    __slots__ = ('a',)",
            "class C:\n    __slots__ = ('a', 'b')\n    b: int",
            "C().b",
            "attribute-missing",
        ),
        (
            "from typing import Callable\n\n\nclass C:\n    f: Callable[[int], int]",
            "from typing import Callable\n\n\nclass C:\n    f: Callable[[int, int], int]",
            "C().f(1, 2)",
            "signature",
        ),
        (
            OVERLOADED,
            "def f(a, b=1): ...",
            "f(1, 2)",
            "signature",
        ),
    ],
)
def test_no_sentence_of_the_checker_is_dropped_for_its_wording(check, older, newer, use, kind) -> None:
    name = use[0]
    donor = {LIB: newer + "\n", USER: f"from sglang.lib import {name}\n\n{use}\n"}
    result = check({LIB: older + "\n", USER: ""}, donor, USER)
    assert {(f.kind, f.path, f.line) for f in result.findings} == {(kind, USER, 3)}
    assert check(donor, donor, USER) == Result((), ())


DECORATED = "import functools\nimport torch\n\n\n{}\ndef f({}): ...\n"


@pytest.mark.parametrize("decorator", ["@torch.no_grad()", "@functools.lru_cache", "@torch.compile(dynamic=True)"])
@pytest.mark.parametrize(("older", "call"), [("a", "f(1, b=2)"), ("a, b", "f(1)"), ("a", "f(1, 2)")])
def test_a_call_of_a_decorated_function_is_judged_by_its_head(check, decorator: str, older: str, call: str) -> None:
    base = {LIB: DECORATED.format(decorator, older), USER: ""}
    donor = {LIB: DECORATED.format(decorator, "a, b=1"), USER: f"from sglang.lib import f\n\n{call}\n"}
    assert brief(check(base, donor, USER)) == [("signature", USER, 3, "sglang.lib.f")]
    assert check(donor, donor, USER) == Result((), ())
    # Other decorators may mean another head: nothing can be told from either.
    other = {LIB: DECORATED.format("@torch.something_else", older), USER: ""}
    assert check(other, donor, USER) == Result((), ())


def test_a_launcher_s_own_keywords_are_none_of_the_kernel_s(check) -> None:
    kernel = "import triton\n\n\n@triton.jit\ndef k(a, {}): ...\n"
    launch = "from sglang.lib import k\n\nk[(1,)](1, b=2, num_warps=4)\n"
    donor = {LIB: kernel.format("b"), USER: launch}
    assert check(donor, donor, USER) == Result((), ())
    base = {LIB: kernel.format("c"), USER: ""}
    assert [(f.kind, f.names) for f in check(base, donor, USER).findings] == [("signature", ("b",))]


def test_a_decorated_method_of_a_base_class_is_judged_too(check) -> None:
    method = "import torch\n\n\nclass Base:\n    @torch.no_grad()\n    def m(self{}): ...\n"
    user = "from sglang.lib import Base\n\n\nclass Own(Base):\n    def f(self):\n        self.m(1)\n"
    donor = {LIB: method.format(", x"), USER: user}
    assert brief(check({LIB: method.format(""), USER: ""}, donor, USER)) == [
        ("signature", USER, 6, "sglang.lib.Base.m")
    ]
    assert check(donor, donor, USER) == Result((), ())


def test_base_code_that_calls_a_decorated_function_whose_head_changed_is_a_reverse_finding(check) -> None:
    base = {LIB: DECORATED.format("@torch.no_grad()", "a"), USER: "from sglang.lib import f\n\nf(1)\n"}
    donor = {LIB: DECORATED.format("@torch.no_grad()", "a, b"), USER: ""}
    assert brief(check(base, donor, LIB)) == [("reverse", USER, 3, "sglang.lib.f")]
    kept = {LIB: DECORATED.format("@torch.no_grad()", "a, b=1"), USER: ""}
    assert check(base, kept, LIB) == Result((), ())
    renamed = {**base, USER: "from sglang.lib import f as g\n\ng(1)\n"}
    assert brief(check(renamed, donor, LIB)) == [("reverse", USER, 3, "sglang.lib.f")]


OVERRIDE = "from sglang.lib import Base\n\n\nclass Own(Base):\n    def m(self, {}): ...\n"


@pytest.mark.parametrize(("own", "is_broken"), [("a", True), ("a, b", False), ("*rest, **more", False)])
def test_an_override_of_the_base_that_no_longer_fits_what_it_overrides(check, own: str, is_broken: bool) -> None:
    lib = "class Base:\n    def m(self, {}): ...\n\n    def run(self):\n        self.m({})\n"
    base = {LIB: lib.format("a", "1"), USER: OVERRIDE.format(own)}
    donor = {LIB: lib.format("a, b", "1, 2"), USER: ""}
    found = [(f.kind, f.path, f.symbol) for f in check(base, donor, LIB).findings]
    assert (("reverse", USER, "sglang.user.Own.m") in found) is is_broken


def test_a_second_use_of_what_the_base_already_lacks_is_new(check) -> None:
    info = "class C:\n    a = 1\n"
    before = "from sglang.info import C\n\n\ndef old():\n    C().q\n"
    base = {INFO: info, USER: before}
    donor = {INFO: info + "    q = 1\n", USER: before + "\n\ndef new():\n    C().q\n\n\ndef more():\n    C().a\n"}
    assert brief(check(base, donor, USER)) == [("attribute-missing", USER, 9, "sglang.info.C.q")]


def test_the_fields_of_a_message_struct_are_known(check) -> None:
    info = "import msgspec\n\n\nclass Request(msgspec.Struct, kw_only=True):\n    a: int = 1\n"
    use = "from sglang.info import Request\n\n\ndef f(r: Request):\n    return r.salt, r.a, r.__struct_fields__\n\n\n"
    donor = {INFO: info + "    salt: int = 1\n", USER: use + "Request(salt=1, a=2)\n"}
    assert brief(check({INFO: info, USER: ""}, donor, USER)) == [
        ("attribute-missing", USER, 5, "sglang.info.Request.salt"),
        ("signature", USER, 8, "sglang.info.Request.__init__"),
    ]
    assert check(donor, donor, USER) == Result((), ())


def test_a_stub_beside_a_source_does_not_hide_it(check) -> None:
    base = {LIB: "def f(a): ...\n", "sglang/lib.pyi": "def f(a, b=...): ...\n", USER: ""}
    donor = {LIB: "def f(a, b=1): ...\n", USER: "from sglang.lib import f\n\nf(1, 2)\n"}
    assert brief(check(base, donor, USER)) == [("signature", USER, 3, "sglang.lib.f")]


def test_what_the_donor_itself_does_not_resolve_is_no_finding(check) -> None:
    user = "from sglang.lib import f\n\nf(1, 2, 3)\nf.nothing\nimport torch.nothing\nunknown_name\n"
    donor = {LIB: "def f(a): ...\n", USER: user}
    assert check({LIB: "def f(a): ...\n", USER: ""}, donor, USER) == Result((), ())


def test_what_the_base_had_before_is_no_finding(check) -> None:
    base = {LIB: "def f(a): ...\n", USER: "from sglang.lib import f\n\nf(1, 2)\n"}
    donor = {LIB: "def f(a, b): ...\n", USER: "from sglang.lib import f\n\nprint()\nf(1, 2)\n"}
    assert check(base, donor, USER) == Result((), ())


def test_a_merge_that_leaves_a_name_without_its_definition_is_found(tmp_path: Path) -> None:
    base = tree({USER: "def f(): ...\n"})
    donor = {USER: "def helper(): ...\n\n\ndef f():\n    return helper()\n"}
    merged = base.overlaid({USER: b"def f():\n    return helper()\n"})
    comparison = Comparison(base, merged, frozenset({USER}), {USER: tree(donor)})
    result = compat.check(comparison, Pyrefly(tmp_path / "cache"))
    assert brief(result) == [("name-missing", USER, 2, "sglang.user.helper")]
    assert result.findings[0].message == "uses helper, which nothing in the file defines"


# -- what the overlay breaks in the base -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("newer", "symbol"),
    [
        ("def f(a, b):\n    return a\n\n\nclass Box:\n    size = 1\n", "sglang.lib.f"),
        ("def f(a):\n    return a\n\n\nclass Box:\n    width = 1\n", "sglang.lib.Box.size"),
    ],
)
def test_a_caller_that_the_overlay_breaks_is_a_reverse_finding(check, newer: str, symbol: str) -> None:
    older = "def f(a):\n    return a\n\n\nclass Box:\n    size = 1\n"
    base = {LIB: older, USER: "from sglang.lib import Box, f\n\nf(Box().size)\n"}
    result = check(base, {LIB: newer, USER: ""}, LIB)
    assert brief(result) == [("reverse", USER, 3, symbol)]
    assert result.findings[0].message.endswith("; the overlay changed it")


def test_without_looking_back_only_the_changed_files_are_judged(check) -> None:
    base = {LIB: "def f(a): ...\n", USER: "from sglang.lib import f\n\nf(1)\n"}
    donor = {LIB: "from sglang.user import nothing\n\n\ndef f(a, b): ...\n", USER: "nothing = 1\n"}
    assert [f.kind for f in check(base, donor, LIB).findings] == ["name-missing", "reverse", "reverse"]
    assert [f.kind for f in check(base, donor, LIB, looks_back=False).findings] == ["name-missing"]


def test_a_change_that_breaks_nobody_is_no_finding(check) -> None:
    base = {LIB: "def f(a):\n    return a\n", USER: "from sglang.lib import f\n\nf(1)\n"}
    assert check(base, {LIB: "def f(a, b=1):\n    return a\n", USER: ""}, LIB) == Result((), ())


# -- what goes down with a module that fails at import -----------------------------------------------------------------

BROKEN = "from sglang.lib import gone\n"


def test_the_bases_modules_that_import_a_broken_one_go_down_with_it(check) -> None:
    base = {
        LIB: "",
        USER: "",
        "sglang/direct.py": "from sglang.user import x\n",
        "sglang/lazy.py": "def f():\n    from sglang import user\n",
        "sglang/caught.py": "try:\n    import sglang.user\nexcept ImportError:\n    pass\n",
        "sglang/typing_only.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import sglang.user\n",
        "sglang/further.py": "import sglang.direct\n",
        "sglang/aside.py": "import sglang.lib\n",
    }
    result = check(base, {LIB: "gone = 1\n", USER: BROKEN + "x = 1\n"}, USER)
    forward, *reverse = result.findings
    assert (forward.kind, forward.symbol) == ("name-missing", "sglang.lib.gone")
    assert [(f.path, f.line, f.kind) for f in reverse] == [
        ("sglang/caught.py", 2, "reverse"),
        ("sglang/direct.py", 1, "reverse"),
        ("sglang/lazy.py", 2, "reverse"),
    ]
    cause = "sglang/user.py:1: sglang.lib.gone"
    assert reverse[0].message == f"imports sglang.user when it gets there, which fails at import ({cause})"
    assert reverse[1].message == (
        f"goes down with sglang.user, which fails at import ({cause}); 1 modules import what goes down with it"
    )


@pytest.mark.parametrize(
    "user",
    [
        "def f():\n    from sglang.lib import gone\n",
        "try:\n    from sglang.lib import gone\nexcept ImportError:\n    gone = None\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sglang.lib import gone\n",
    ],
)
def test_a_module_that_imports_all_the_same_takes_nobody_down(check, user: str) -> None:
    base = {LIB: "", USER: "", "sglang/direct.py": "import sglang.user\n"}
    result = check(base, {LIB: "gone = 1\n", USER: user}, USER)
    assert [finding.kind for finding in result.findings] == ["name-missing"]


def test_an_acknowledged_cause_takes_nobody_down(check, tmp_path: Path) -> None:
    base = tree({LIB: "", USER: "", "sglang/direct.py": "import sglang.user\n"})
    after = base.overlaid({USER: BROKEN.encode()})
    comparison = Comparison(base, after, frozenset({USER}), {})

    def reason(finding: Finding) -> str | None:
        return "it is never loaded" if finding.symbol == "sglang.lib.gone" else None

    result = compat.check(comparison, Pyrefly(tmp_path / "cache"), reason)
    assert [(f.kind, f.acknowledged, f.is_open) for f in result.findings] == [
        ("name-missing", "it is never loaded", False)
    ]


# -- what is never reached ---------------------------------------------------------------------------------------------

UTILS = "import torch\n\n\ndef is_hip():\n    return torch.version.hip is not None\n"
GUARDED = """\
from sglang.utils import is_hip

if is_hip():
    from sglang.lib import gone
else:
    from sglang.lib import away
"""


def test_a_finding_behind_another_vendors_test_is_kept_and_does_not_refuse(check) -> None:
    base = {LIB: "", USER: "", "sglang/utils.py": UTILS}
    donor = {LIB: "gone = away = 1\n", USER: GUARDED, "sglang/utils.py": UTILS}
    cuda = Hardware({"torch.version.hip": Truth(False, "torch 2.13.0+cu130 is built for CUDA")})
    found = {f.symbol: f for f in check(base, donor, USER, hardware=cuda).findings}
    assert not found["sglang.lib.gone"].is_open
    assert "is_hip() is false here" in str(found["sglang.lib.gone"].unreachable)
    assert found["sglang.lib.away"].is_open
    unknown = check(base, donor, USER).findings
    assert [f.is_open for f in unknown] == [True, True]


def test_a_name_for_type_checkers_alone_does_not_refuse(check) -> None:
    user = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from sglang.lib import Gone\n"
    (finding,) = check({LIB: "", USER: ""}, {LIB: "class Gone: ...\n", USER: user}, USER).findings
    assert (finding.is_open, finding.guard) == (False, "if TYPE_CHECKING")


# -- config leaves -----------------------------------------------------------------------------------------------------

CONTEXT = """\
class _Bag:
    def __getattr__(self, name):
        return 1

    def override(self):
        return self


class Context:
    def config_bag(self, name):
        return _Bag()


_CONTEXT = Context()


def get_spec() -> _Bag:
    return _CONTEXT.config_bag("spec")


def get_exec() -> _Bag:
    return _CONTEXT.config_bag("exec")
"""
ARGS = "class ServerArgs:\n    steps: A[int, NS('spec')] = 1\n    runner: A[str, NS('exec.moe')] = ''\n"
NEWER_ARGS = ARGS + "    draft_dtype: A[str, NS('spec')] = ''\n"
READ = "from sglang.context import get_exec, get_spec\n\n\ndef f():\n    spec = get_spec()\n    return {}\n"


def config(args: str, user: str = "") -> dict[str, str]:
    return {"sglang/context.py": CONTEXT, "sglang/args.py": args, USER: user}


def test_a_config_leaf_that_no_field_declares_is_missing(check) -> None:
    result = check(config(ARGS), config(NEWER_ARGS, READ.format("get_spec().draft_dtype")), USER)
    assert brief(result) == [("config-leaf-missing", USER, 6, "get_spec().draft_dtype")]
    (finding,) = result.findings
    assert finding.donor_has == "spec.draft_dtype (sglang/args.py:4)"
    assert finding.message == "reads get_spec().draft_dtype; the config namespace spec has no draft_dtype"


def test_a_leaf_that_moved_to_another_namespace_is_missing_and_the_other_place_is_named(check) -> None:
    moved = NEWER_ARGS.replace("draft_dtype: A[str, NS('spec')]", "draft_dtype: A[str, NS('exec')]")
    (finding,) = check(config(moved), config(NEWER_ARGS, READ.format("spec.draft_dtype")), USER).findings
    assert (finding.symbol, finding.base_has) == ("get_spec().draft_dtype", "exec.draft_dtype (sglang/args.py:4)")


def test_a_field_that_its_class_places_is_known_too(check) -> None:
    placed = ARGS + "\n\nclass SpecFields:\n    _NS_PATH = 'spec'\n    draft_dtype: str = ''\n"
    assert check(config(placed), config(NEWER_ARGS, READ.format("get_spec().draft_dtype")), USER) == Result((), ())


@pytest.mark.parametrize(
    "more",
    [
        "\n\nclass SpecFields:\n    _NS_PATH = 'spec'\n    draft_dtype = Derived(fn='x')\n",
        "\n\ndef publish(bag):\n    bag._set('draft_dtype', 1)\n".replace("'", '"'),
    ],
)
def test_a_leaf_that_the_donor_computes_or_sets_is_missing_too(check, more: str) -> None:
    user = READ.format("get_spec().draft_dtype")
    (finding,) = check(config(ARGS), config(ARGS + more, user), USER).findings
    assert (finding.kind, finding.symbol) == ("config-leaf-missing", "get_spec().draft_dtype")
    assert check(config(ARGS + more), config(ARGS + more, user), USER) == Result((), ())


FALLING_BACK = """

class ParallelContext:
    def __getattr__(self, name):
        return getattr(self._config, name)

    @property
    def tp_rank(self):
        return 0


_PARALLEL = ParallelContext()


def get_parallel() -> ParallelContext:
    return _PARALLEL
"""


def test_a_context_that_falls_back_to_its_namespace_has_its_own_members_and_the_leaves(check) -> None:
    read = "from sglang.context import get_parallel\n\n\ndef f():\n    return get_parallel().{}\n"
    fields = "    dp: A[int, NS('parallel')] = 1\n"

    def files(args: str, user: str = "") -> dict[str, str]:
        return {**config(args, user), "sglang/context.py": CONTEXT + FALLING_BACK}

    newer = fields + "    ranks: A[int, NS('parallel')] = 1\n"
    (finding,) = check(files(ARGS + fields), files(ARGS + newer, read.format("ranks")), USER).findings
    assert (finding.kind, finding.symbol) == ("config-leaf-missing", "get_parallel().ranks")
    for name in ("dp", "tp_rank"):
        assert check(files(ARGS + fields), files(ARGS + newer, read.format(name)), USER) == Result((), ())


@pytest.mark.parametrize(
    "read",
    ["get_spec().steps", "get_exec().moe.runner", "get_exec().moe", "spec.steps.bit_length()", "get_spec().override()"],
)
def test_a_leaf_that_is_there_is_no_finding(check, read: str) -> None:
    assert check(config(ARGS), config(NEWER_ARGS, READ.format(read)), USER) == Result((), ())


@pytest.mark.parametrize(
    "user",
    [
        "from sglang import context\n\n\ndef f():\n    return context.get_spec().draft_dtype\n",
        "import sglang.context as c\n\n\ndef f():\n    return c.get_spec().draft_dtype\n",
        "from .context import get_spec\n\n\ndef f():\n    return get_spec().draft_dtype\n",
        "import sglang.context\n\n\ndef f():\n    return sglang.context.get_spec().draft_dtype\n",
        "from sglang.context import get_spec\n\n\ndef f():\n    s: object = get_spec()\n    return s.draft_dtype\n",
        "from sglang.context import get_exec, get_spec\n\n\ndef f():\n    e, s = get_exec(), get_spec()\n"
        "    s.draft_dtype\n",
        "from sglang.context import get_spec\n\n\ndef f():\n    if (s := get_spec()):\n        return s.draft_dtype\n",
        "from sglang.context import get_spec\n\n\ndef g(s):\n    return s\n\n\ndef f():\n    s = get_spec()\n"
        "    s.draft_dtype\n",
        "from sglang.context import get_spec\n\n\ndef f():\n    return getattr(get_spec(), 'draft_dtype')\n",
        "from sglang.context import get_spec\n\n\nclass A:\n    def __init__(self):\n        self.s = get_spec()\n\n"
        "    def f(self):\n        return self.s.draft_dtype\n",
        "from sglang.context import get_spec\n\nS = get_spec()\n\n\ndef f():\n    return [lambda: S.draft_dtype]\n",
    ],
)
def test_a_config_namespace_is_followed_through_imports_and_variables(check, user: str) -> None:
    result = check(config(ARGS), config(NEWER_ARGS, user), USER)
    assert [(kind, symbol) for kind, _, _, symbol in brief(result)] == [
        ("config-leaf-missing", "get_spec().draft_dtype")
    ]
    assert check(config(NEWER_ARGS), config(NEWER_ARGS, user), USER) == Result((), ())


@pytest.mark.parametrize(
    "user",
    [
        "from sglang.context import get_spec\n\n\ndef f(s):\n    s = s or get_spec()\n    return s.steps\n",
        "from sglang.context import get_spec\n\n\ndef f():\n    return getattr(get_spec(), 'draft_dtype', None)\n",
        "from sglang.context import get_exec\n\n\ndef f():\n    moe = get_exec().moe\n    return moe.runner\n",
    ],
)
def test_what_may_be_something_else_or_has_a_default_is_no_finding(check, user: str) -> None:
    assert check(config(ARGS), config(NEWER_ARGS, user), USER) == Result((), ())


def test_a_leaf_that_nothing_declares_anywhere_is_unknown(check) -> None:
    result = check(config(ARGS), config(NEWER_ARGS, READ.format("get_spec().mystery")), USER)
    assert result.findings == ()
    assert result.unknown == (
        "sglang/user.py:6 reads get_spec().mystery: no config field says that it belongs to spec",
    )


# -- what strangers write ----------------------------------------------------------------------------------------------


def test_a_thousand_findings_are_all_told(check) -> None:
    lines = [f"from sglang.lib import n{number}" for number in range(1000)]
    donor = {LIB: "".join(f"n{number} = 1\n" for number in range(1000)), USER: "\n".join(lines) + "\n"}
    assert len(check({LIB: "", USER: ""}, donor, USER).findings) == 1000


def test_a_name_that_is_no_text_is_judged_like_any_other(tmp_path: Path) -> None:
    path = "sglang/\udcfe.py"
    base = tree({LIB: "", USER: ""})
    after = base.overlaid({path: b"from sglang.lib import gone\n"})
    result = compat.check(Comparison(base, after, frozenset({path})), Pyrefly(tmp_path / "cache"))
    assert [(f.kind, f.path, f.symbol) for f in result.findings] == [("name-missing", path, "sglang.lib.gone")]


# -- a checker that did not run ----------------------------------------------------------------------------------------


class Broken:
    """A checker that cannot be run."""

    name = "broken"

    def version(self) -> str:
        raise Unavailable("type checker", "broken is not installed")

    def check(self, *_: object) -> tuple[Complaint, ...]:
        raise Unavailable("type checker", "broken exited 9", facts=("its last words",))


def test_a_checker_that_did_not_run_leaves_its_kinds_unknown() -> None:
    same = tree({USER: "x = 1\n"})
    result = compat.check(Comparison(same, same, frozenset({USER})), Broken())
    assert result.findings == ()
    assert result.unknown == ("attribute-missing, signature: type checker: broken exited 9; its last words",)
