"""Which tests around a statement are known to fail in an image, from the package's own predicates and its torch."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

from builder import guards
from builder.guards import Hardware
from builder.model import SourceTree, Tree
from builder.modules import Modules
from builder.symbols import parse
from builder.uses import guards_at, shown, uses

USER, UTILS = "sglang/user.py", "sglang/utils.py"


def installed(**distributions: str) -> Hardware:
    return Hardware.of(SourceTree("sglang", "/", {}, distributions=distributions))


VENDORS = {
    "cuda": installed(torch="2.13.0+cu130"),
    "rocm": installed(torch="2.9.0+rocm7.0"),
    "cpu": installed(torch="2.13.0+cpu"),
    "xpu": installed(torch="2.9.0+xpu"),
    "npu": installed(torch="2.8.0+cpu", torch_npu="2.8.0.post2"),
    "hpu": installed(torch="2.7.1", habana_torch_plugin="1.22.0"),
    "musa": installed(torch="2.7.1", torch_musa="2.7.0", torchada="0.1.5"),
    "unknown": Hardware(),
}
CUDA, ROCM, UNKNOWN = VENDORS["cuda"], VENDORS["rocm"], VENDORS["unknown"]

PREDICATES = """\
import os
from functools import cache, lru_cache, partial

import torch


@lru_cache(maxsize=1)
def is_hip() -> bool:
    return torch.version.hip is not None

@cache
def is_cuda():
    return torch.cuda.is_available() and torch.version.cuda is not None

def is_cuda_alike():
    return is_cuda() or is_hip()

def is_npu():
    if not hasattr(torch, "npu"):
        return False
    if not torch.npu.is_available():
        raise RuntimeError("no device")
    return True

def is_cpu():
    return os.getenv("SGLANG_USE_CPU_ENGINE", "0") == "1"

def is_gfx95():
    '''Tells MX types.'''
    if torch.version.hip:
        arch = torch.cuda.get_device_properties(0).gcnArchName
        return "gfx95" in arch
    else:
        return False

def _has_capability(majors):
    if not is_cuda():
        return False
    return torch.cuda.get_device_capability()[0] in majors

is_sm90 = lru_cache(maxsize=1)(partial(_has_capability, majors=[9]))

def env(name):
    return os.environ.get(name) == "1"
"""


def modules(files: Mapping[str, str]) -> Modules:
    data = {path: text.encode() for path, text in {UTILS: PREDICATES, **files}.items()}
    return Modules(Tree(frozenset(data), data.get), "sglang")


def why(text: str, hardware: Hardware = CUDA, **files: str) -> str | None:
    """Say why `import HERE` is never reached in this text."""
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "import HERE" in each)
    tree = modules({USER: text, **{f"sglang/{name}.py": more for name, more in files.items()}})
    return guards.unreachable(guards_at(parse(text.encode()), line), USER, tree, hardware)


def under(test: str, hardware: Hardware = CUDA, before: str = "from sglang.utils import *") -> str | None:
    """Say why the body of `if TEST:` is never reached."""
    return why(f"{before}\nif {test}:\n    import HERE\n", hardware)


# -- what an image can be ----------------------------------------------------------------------------------------------

FALSE_ON = {
    "is_hip()": {"cuda", "cpu", "xpu"} | {"npu"},
    "is_cuda()": {"rocm", "cpu", "xpu"},
    "is_cuda_alike()": {"cpu", "xpu"},
    "is_npu()": {"cuda", "rocm", "cpu", "xpu", "hpu", "musa"},
    "is_cpu()": set(),
    "is_gfx95()": {"cuda", "cpu", "xpu", "npu"},
    "is_sm90()": {"rocm", "cpu", "xpu"},
    "_has_capability([9])": {"rocm", "cpu", "xpu"},
}


@pytest.mark.parametrize("test", FALSE_ON)
@pytest.mark.parametrize("vendor", VENDORS)
def test_a_predicate_is_judged_by_what_its_body_asks_of_torch(test: str, vendor: str) -> None:
    before = "from sglang.utils import is_hip, is_cuda, is_cuda_alike, is_npu, is_cpu, is_gfx95, is_sm90\n"
    before += "from sglang.utils import _has_capability"
    found = under(test, VENDORS[vendor], before)
    assert (found is not None) == (vendor in FALSE_ON[test])


@pytest.mark.parametrize("vendor", VENDORS)
def test_only_a_build_for_rocm_is_known_to_be_one(vendor: str) -> None:
    assert (under("not is_hip()", VENDORS[vendor]) is not None) == (vendor == "rocm")
    assert under("not is_cuda()", VENDORS[vendor]) is None  # the build host may have no GPU, and the user one


def test_the_reason_names_the_fact_that_decides() -> None:
    assert under("is_hip()") == "is_hip() is false here: torch 2.13.0+cu130 is built for CUDA"
    assert under("is_npu()") == "is_npu() is false here: torch_npu is not installed"
    assert under("not is_hip()", ROCM) == "not is_hip() is false here: torch 2.9.0+rocm7.0 is built for ROCm"
    assert under("is_cuda()", VENDORS["cpu"]) == "is_cuda() is false here: torch 2.13.0+cpu is built for the CPU alone"


@pytest.mark.parametrize(
    ("distributions", "is_known"),
    [
        ({"torch": "2.9.0"}, False),
        ({"torch": "2.9.0a0+git7bcbafe"}, False),
        ({"torch": "2.9.0a0+git7bcbafe", "torch.version.cuda": "", "torch.version.hip": ""}, False),
        ({"torch": "2.9.0a0+145a3a7.nv25.08", "torch.version.cuda": "13.0", "torch.version.hip": ""}, True),
        ({"torch": "2.9.0+cu130.post1"}, True),
        ({"torch": "2.9.0+cpu.cxx11.abi"}, True),
        ({"torch": "2.9.0+cuddle"}, False),
        ({}, False),
    ],
)
def test_a_version_that_does_not_name_the_build_tells_nothing(distributions: dict[str, str], is_known: bool) -> None:
    assert (under("is_hip()", installed(**distributions)) is not None) == is_known


def test_without_torch_nothing_is_known_of_its_plug_ins() -> None:
    assert under("is_npu()", installed(torch="2.9.0")) is not None
    assert under("is_npu()", installed()) is None


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        (["PATH=/bin", "CUDA_VERSION=13.0.1"], "the image is built for CUDA (CUDA_VERSION=13.0.1)"),
        (["ROCM_PATH=/opt/rocm"], None),
        (["CUDA_VERSION=13.0.1", "ROCM_PATH=/opt/rocm"], None),
        (["CUDA_VERSION="], None),
        (["MY_CUDA_VERSION=13"], None),
    ],
)
def test_the_images_environment_is_asked_where_torch_tells_nothing(environment: list[str], reason: str | None) -> None:
    tree = SourceTree("sglang", "/", {})
    expected = f"is_hip() is false here: {reason}" if reason else None
    assert under("is_hip()", Hardware.of(tree, environment)) == expected
    assert under("is_npu()", Hardware.of(tree, environment)) is None
    built = SourceTree("sglang", "/", {}, distributions={"torch": "2.9.0+rocm7.0"})
    assert under("is_hip()", Hardware.of(built, environment)) is None


# -- how tests are put together ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "is_excluded"),
    [
        ("is_hip() and x", True),
        ("x and is_hip()", True),
        ("is_hip() or x", False),
        ("is_hip() or is_npu()", True),
        ("not (is_hip() or x)", False),
        ("not is_hip()", False),
        ("not (not is_hip())", True),
        ("not (not is_hip() and x)", False),
        ("not (not is_hip() or x)", True),
        ("is_hip() and is_cuda()", True),
        ("bool(is_hip())", True),
        ("is_hip", False),
        ("is_hip() == True", False),
        ("is_hip() if x else is_hip()", False),
        ("x", False),
        ("False", True),
        ("torch.version.hip", True),
        ("getattr(torch.version, 'hip', None)", True),
        ("getattr(torch.version, 'hip', 'x')", False),
        ("torch.version.hip is None", False),
        ("torch.version.cuda is None", True),
        ("hasattr(torch, 'npu') and torch.npu.is_available()", True),
        ("env('SGLANG_USE_AITER') and is_hip()", True),
        ("env('SGLANG_USE_AITER')", False),
    ],
)
def test_and_or_not_are_three_valued(test: str, is_excluded: bool) -> None:
    before = "import torch\nfrom sglang.utils import is_hip, is_npu, is_cuda, env"
    assert (under(test, CUDA, before) is not None) == is_excluded
    assert under(test, UNKNOWN, before) is None or test == "False"


CHAIN = """\
from sglang.utils import is_cuda, is_hip, is_npu
if is_hip():
    a
elif is_cuda():
    import HERE
else:
    b
"""


@pytest.mark.parametrize(
    ("text", "on_cuda", "on_rocm"),
    [
        (CHAIN, None, "is_hip() is true here: torch 2.9.0+rocm7.0 is built for ROCm"),
        (
            CHAIN.replace("a\n", "import HERE\n", 1),
            "is_hip() is false here: torch 2.13.0+cu130 is built for CUDA",
            None,
        ),
        (CHAIN.replace("    b", "    import HERE").replace("import HERE", "c", 1), None, "is_hip() is true here"),
        (CHAIN.replace("is_hip():", "not is_hip():"), "not is_hip() is true here", "is_cuda() is false here"),
        (CHAIN.replace("elif is_cuda():", "elif x:"), None, "is_hip() is true here"),
        (CHAIN.replace("elif is_cuda():", "else:\n  if is_npu():"), "is_npu() is false here", "is_hip() is true here"),
    ],
)
def test_a_branch_is_reached_only_where_the_tests_before_it_failed(
    text: str, on_cuda: str | None, on_rocm: str | None
) -> None:
    text = text.partition("else:\n    b")[0] if "else:\n  if" in text else text
    for hardware, expected in ((CUDA, on_cuda), (ROCM, on_rocm), (UNKNOWN, None)):
        found = why(text, hardware)
        assert found is None if expected is None else (found or "").startswith(expected)


def test_a_branch_for_type_checkers_is_never_reached_on_any_image() -> None:
    for before, test in (
        ("from typing import TYPE_CHECKING", "TYPE_CHECKING"),
        ("import typing", "typing.TYPE_CHECKING"),
        ("import typing as t", "t.TYPE_CHECKING"),
    ):
        expected = f"{test} is false here: only type checkers get there"
        assert under(test, UNKNOWN, before) == expected
        assert under(f"not {test}", UNKNOWN, before) is None
    assert under("TYPE_CHECKING", CUDA, "from mine import TYPE_CHECKING") is None
    assert under("TYPE_CHECKING", CUDA, "from typing import TYPE_CHECKING\nTYPE_CHECKING = True") is None


# -- where a name leads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before",
    [
        "from sglang.utils import is_hip\n_is_hip = is_hip()",
        "from .utils import is_hip as asked\n_is_hip: bool = asked()",
        "from sglang import utils\n_is_hip = utils.is_hip()",
        "import sglang.utils\n_is_hip = sglang.utils.is_hip()",
        "import sglang.utils as u\n_is_hip = u.is_hip()",
        "from sglang.utils import *\n_is_hip = is_hip()",
        "from sglang.facade import _is_hip",
        "from sglang.facade import flag as _is_hip",
        "import torch\n_is_hip = torch.version.hip is not None",
        "from torch import version as v\n_is_hip = v.hip",
        "_is_hip: bool\nfrom sglang.utils import is_hip\n_is_hip = is_hip()",
        "try:\n    from sglang.utils import is_hip\nfinally:\n    pass\n_is_hip = is_hip()",
        "def f():\n    from sglang.utils import is_hip\nfrom sglang.utils import is_hip\n_is_hip = is_hip()",
        "from sglang.utils import is_hip\n_is_hip = is_hip()\ndef f(_is_hip, is_hip): is_hip = 1",
        "from sglang.utils import is_hip\n_is_hip = is_hip()\nif x:\n    _is_hip = is_hip()",
        "from sglang.utils import is_hip\n_is_hip = is_hip()\nclass A:\n    _is_hip = is_hip = True",
    ],
)
def test_a_name_is_followed_to_where_it_is_bound(before: str) -> None:
    facade = "from sglang.utils import is_hip\nflag = _is_hip = is_hip()\n"
    text = f"{before}\nif _is_hip:\n    import HERE\n"
    expected = "_is_hip is false here: torch 2.13.0+cu130 is built for CUDA"
    assert why(text, CUDA, facade=facade) == expected
    assert why(text, ROCM, facade=facade) is None


@pytest.mark.parametrize(
    "before",
    [
        "",
        "_is_hip = False",
        "from sglang.utils import is_hip\n_is_hip = is_hip",
        "from sglang.utils import is_hip\n_is_hip = is_hip()\n_is_hip = True",
        "from sglang.utils import is_hip\n_is_hip = is_hip()\n_is_hip |= other",
        "from sglang.utils import is_hip\n_is_hip = is_hip()\ndef f():\n    global _is_hip\n    _is_hip = 1",
        "from sglang.utils import is_hip\n_is_hip = is_hip()\nfor _is_hip in x: ...",
        "from sglang.utils import is_hip\n_is_hip = is_hip()\nglobals()['_is_hip'] = True",
        "from sglang.utils import is_hip\n_is_hip = is_hip()\nfrom torch import *",
        "from sglang.utils import is_hip\n_is_hip, x = is_hip(), 1",
        "from sglang.utils import is_hip\ndef is_hip(): return other()\n_is_hip = is_hip()",
        "try:\n    from sglang.utils import is_hip\nexcept ImportError:\n    is_hip = None\n_is_hip = is_hip()",
        "from elsewhere import is_hip\n_is_hip = is_hip()",
        "from sglang.gone import is_hip\n_is_hip = is_hip()",
        "from sglang.utils import gone as is_hip\n_is_hip = is_hip()",
        "from sglang.broken import is_hip\n_is_hip = is_hip()",
        "_is_hip = _is_hip2\n_is_hip2 = _is_hip",
        "def is_hip(): return is_hip()\n_is_hip = is_hip()",
        "import torch\ntorch = mine\n_is_hip = torch.version.hip",
        "import torch\nbool = mine\n_is_hip = bool(torch.version.hip)",
        "from sglang.utils import is_hip\n_is_hip = mine(is_hip())",
        "from sglang.utils import is_hip\n_is_hip = self.is_hip()",
    ],
)
def test_what_is_rebound_shadowed_or_not_found_is_unknown(before: str) -> None:
    assert why(f"{before}\nif _is_hip:\n    import HERE\n", CUDA, broken="def (\n") is None


@pytest.mark.parametrize(
    ("head", "is_excluded"),
    [
        ("def f():", True),
        ("def f(_is_hip):", False),
        ("def f(is_hip):", True),
        ("def f():\n    _is_hip = x", False),
        ("def f(x):\n    g = lambda _is_hip: 1", False),
        ("class A:\n    _is_hip = True", False),
        ("def g():\n    global _is_hip\n    _is_hip = x\ndef f():", False),
    ],
)
def test_inside_a_function_its_own_names_count(head: str, is_excluded: bool) -> None:
    before = f"from sglang.utils import is_hip\n_is_hip = is_hip()\n{head}\n"
    assert (why(f"{before}    if _is_hip:\n        import HERE\n") is not None) == is_excluded


@pytest.mark.parametrize(
    ("body", "is_excluded"),
    [
        ("return torch.version.hip", True),
        ("return", True),
        ("pass", True),
        ("x = 1\n    return torch.version.hip", True),
        ("if x:\n        return False\n    return torch.version.hip is not None", True),
        ("if x:\n        return True\n    return torch.version.hip is not None", False),
        ("if torch.version.hip:\n        return True", True),
        ("if torch.version.hip:\n        return True\n    elif x:\n        return y\n    return False", False),
        ("try:\n        import torchada\n    except ImportError:\n        return False\n    return True", True),
        ("try:\n        import torchada\n    except KeyError:\n        pass\n    return True", False),
        ("try:\n        import other\n    except ImportError:\n        return False\n    return True", False),
        ("try:\n        return x\n    finally:\n        return False", False),
        ("while x:\n        return True\n    return False", False),
        ("with x:\n        return False", False),
        ("raise ValueError", False),
        ("yield 1", False),
        ("x = yield\n    return False", False),
        ("return sglang", False),
    ],
)
def test_a_function_is_judged_by_all_ways_through_it(body: str, is_excluded: bool) -> None:
    text = f"import torch\ndef asked():\n    {body}\nif asked():\n    import HERE\n"
    assert (why(text) is not None) == is_excluded


def test_a_decorator_that_may_change_the_answer_makes_it_unknown() -> None:
    text = "import torch\nfrom functools import {0}\n@{1}\ndef asked(): return torch.version.hip\n"
    text += "if asked():\n    import HERE\n"
    assert why(text.format("cache", "cache")) is not None
    assert why(text.format("lru_cache", "lru_cache()")) is not None
    assert why(text.format("cache", "mine")) is None
    assert why(text.format("wraps", "wraps(x)")) is None


def test_the_reason_of_a_way_taken_is_that_of_the_test() -> None:
    text = "def asked():\n    try:\n        import torchada\n    except ImportError:\n        return False\n"
    assert (
        why(text + "    return True\nif asked():\n    import HERE\n")
        == "asked() is false here: torchada is not installed"
    )


def test_a_file_that_does_not_parse_excludes_nothing() -> None:
    chain = guards_at(parse(b"if is_hip():\n    pass\n"), 2)
    broken = modules({USER: "def (\n"})
    assert guards.unreachable(chain, USER, broken, CUDA) is None
    assert guards.unreachable(chain, "sglang/absent.py", broken, CUDA) is None


# -- the chain around a line -------------------------------------------------------------------------------------------

NESTED = """\
@decorated(
    1)
def f():
    if a:
        one
    elif b:
        two(
            three)
    else:
        with x:
            four
    try:
        five
    except (KeyError, ValueError):
        six
class C:
    x = 1
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (1, ""),
        (2, ""),
        (5, "in def f, if a"),
        (6, "in def f"),
        (8, "in def f, elif b"),
        (11, "in def f, else of elif b"),
        (13, "in def f, try/except KeyError, ValueError"),
        (15, "in def f, except KeyError, ValueError"),
        (17, "in class C"),
        (99, ""),
    ],
)
def test_the_chain_around_a_line_is_that_of_the_innermost_statement(line: int, expected: str) -> None:
    assert shown(guards_at(parse(NESTED.encode()), line)) == expected


def test_an_elif_knows_the_tests_that_failed_before_it() -> None:
    def judged(line: int) -> list[tuple[str, bool | None]]:
        return [(guard.text, guard.is_true) for guard in guards_at(parse(NESTED.encode()), line)]

    assert judged(5) == [("f", None), ("a", True)]
    assert judged(8) == [("f", None), ("a", False), ("b", True)]
    assert judged(11) == [("f", None), ("a", False), ("b", False)]


def test_a_long_test_is_kept_in_full_and_shown_short() -> None:
    test = " and ".join(f"condition_{number}" for number in range(9))
    (guard,) = guards_at(parse(f"if {test}:\n    x\n".encode()), 2)
    assert guard.text == test
    assert shown([guard]) == f"if {test[:57]}..."


# -- real SGLang -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(trees: Callable[[str], Path]) -> Callable[[str], Modules]:
    @cache
    def load(version: str) -> Modules:
        root = trees(version)
        paths = frozenset(str(path.relative_to(root)) for path in (root / "sglang").rglob("*.py"))
        return Modules(Tree(paths, cache(lambda path: (root / path).read_bytes() if path in paths else None)), "sglang")

    return load


COMMON = "sglang/srt/utils/common.py"
REAL_FALSE_ON = {
    "is_hip()": {"cuda", "cpu", "xpu", "npu"},
    "is_cuda()": {"rocm", "cpu", "xpu"},
    "is_npu()": {"cuda", "rocm", "cpu", "xpu", "hpu", "musa"},
    "is_hpu()": {"cuda", "rocm", "cpu", "xpu", "npu", "musa"},
    "is_xpu()": {"cuda", "rocm", "cpu", "npu"},
    "is_musa()": {"cuda", "rocm", "cpu", "xpu", "npu", "hpu"},
    "is_mps()": {"cuda", "rocm", "cpu", "xpu", "npu"},
    "is_cpu()": set(),
    "is_gfx95_supported()": {"cuda", "cpu", "xpu", "npu"},
    "is_blackwell()": {"rocm", "cpu", "xpu"},
}


@pytest.mark.parametrize("version", ["0.5.16", "0.5.17", "0.5.19", "0.5.21", "0.5.23"])
def test_the_predicates_of_real_releases_are_read(real: Callable[[str], Modules], version: str) -> None:
    def excludes(test: str, hardware: Hardware) -> bool:
        chain = guards_at(parse(f"if {test}: x".encode()), 1)
        return guards.unreachable(chain, COMMON, real(version), hardware) is not None

    found = {test: {name for name, hardware in VENDORS.items() if excludes(test, hardware)} for test in REAL_FALSE_ON}
    assert found == REAL_FALSE_ON


def test_an_import_for_another_vendor_in_real_code_is_never_reached(real: Callable[[str], Modules]) -> None:
    path = "sglang/srt/speculative/dflash_utils.py"
    tree = real("0.5.19")
    chains = {
        use.name: use.guards
        for use in uses(parse(tree.read(path)), path, tree)
        if use.module.endswith("renorm_triton") and use.name
    }
    assert chains
    for chain in chains.values():
        assert shown(chain) == "elif is_hip()"
        expected = "is_hip() is false here: torch 2.13.0+cu130 is built for CUDA"
        assert guards.unreachable(chain, path, tree, CUDA) == expected
        assert guards.unreachable(chain, path, tree, ROCM) is None
        assert guards.unreachable(chain, path, tree, UNKNOWN) is None


def test_a_flag_of_another_vendor_in_real_code_is_followed(real: Callable[[str], Modules]) -> None:
    path = "sglang/kernels/ops/quantization/fp8_kernel.py"
    tree = real("0.5.19")
    text = tree.read(path)
    assert b"\n_is_hip = is_hip()\n" in text
    found = {
        reason
        for node in ast.walk(parse(text))
        if isinstance(node, ast.ImportFrom)
        if (reason := guards.unreachable(guards_at(parse(text), node.lineno), path, tree, CUDA))
    }
    assert "_is_hip is false here: torch 2.13.0+cu130 is built for CUDA" in found
    assert not any("_is_cuda" in reason for reason in found)
