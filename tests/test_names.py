"""What the merged tree needs and the base lacks, what the overlay breaks, and what it depends on that differs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path

import pytest

from builder import names
from builder.errors import InputError
from builder.findings import Finding, Result
from builder.model import Tree
from builder.modules import Modules

Files = Mapping[str, str | bytes]


def tree(files: Files) -> Tree:
    data = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
    return Tree(frozenset(data), data.get)


def check(before: Files, edits: Mapping[str, str | bytes | None]) -> Result:
    after = {path: text for path, text in {**before, **edits}.items() if text is not None}
    return compare(tree(before), tree(after), edits.keys())


def compare(before: Tree, after: Tree, changed: Collection[str], package: str = "sglang") -> Result:
    return names.check(Modules(before, package), Modules(after, package), changed)


def brief(findings: tuple[Finding, ...]) -> list[tuple[str, str, int, str]]:
    return [(finding.kind, finding.path, finding.line, finding.symbol) for finding in findings]


# -- D1: an imported name that differs between branches ----------------------------------------------------------------

USER = "sglang/user.py"
LIB = "sglang/lib.py"
DONOR = "import os\nfrom sglang.lib import pub_len\n\nprint(pub_len())\n"
OLDER, NEWER = "import os\n\n\ndef _pub_len(): ...\n", "def pub_len(): ...\n"


def test_d1_a_base_with_the_older_name_lacks_the_new_one_and_the_older_is_named() -> None:
    found = check({USER: "", LIB: OLDER}, {USER: DONOR}).findings
    assert brief(found) == [("name-missing", USER, 2, "sglang.lib.pub_len")]
    assert found[0].base_has == "_pub_len (sglang/lib.py:4)"
    assert found[0].message == "imports pub_len of sglang.lib, which does not define it"
    assert (found[0].names, found[0].introduced_by, found[0].acknowledged) == (("pub_len",), None, None)


@pytest.mark.parametrize("library", [NEWER, OLDER + NEWER])
def test_d1_b_c_a_base_with_the_name_lacks_nothing(library: str) -> None:
    assert check({USER: "", LIB: library}, {USER: DONOR}) == Result((), ())


def test_d1_d_a_base_with_neither_has_nothing_instead() -> None:
    found = check({USER: "", LIB: "x = 1\n"}, {USER: DONOR}).findings
    assert brief(found) == [("name-missing", USER, 2, "sglang.lib.pub_len")]
    assert found[0].base_has is None


# -- what resolves -----------------------------------------------------------------------------------------------------

LIBRARY: Files = {
    "sglang/__init__.py": "from sglang.pkg import again\n",
    "sglang/pkg/__init__.py": "from .inner import deep as again\nfrom . import starred\nfrom .starred import *\n",
    "sglang/pkg/inner.py": "try:\n    import fast\nexcept ImportError:\n    fast = None\n\ndef deep(): ...\n",
    "sglang/pkg/starred.py": "__all__ = ['shown']\nshown = hidden = 1\n",
    "sglang/pkg/hinted.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from x import Hint\n",
    "sglang/pkg/lazy.py": "def __getattr__(name):\n    if name == 'known':\n        return 1\n    return other(name)\n",
    "sglang/pkg/broken.py": "def (\n",
    "sglang/pkg/told.py": 'def f():\n    """Says\n\n    global g\n    """\n    global kept\n\naway = back = 1\n'
    "del away, back\nback = 2\n",
    "sglang/pkg/foreign.py": "from torch import *\n",
    "sglang/pkg/_core.cpython-311-x86_64-linux-gnu.so": b"\x7fELF",
    "sglang/bare/data.json": "{}",
    "sglang/bare/module.py": "value = 1\n",
    "sglang/plain.py": "",
    "sglang/plain/shadowed.py": "",
    USER: "",
}


@pytest.mark.parametrize(
    "line",
    [
        "import sglang.pkg.inner",
        "import torch.nothing.here",
        "from torch import nothing",
        "from sglang import again, pkg",
        "from sglang.pkg import again, inner, shown, starred",
        "from sglang.pkg.inner import fast, deep",
        "from sglang.pkg import __file__, __name__",
        "from sglang.bare import module",
        "import sglang.bare.module as m; m.value; m.__doc__",
        "from sglang import bare; bare.module.value",
        "import sglang; sglang.bare.module.value.anything",
        "from sglang.pkg.lazy import known",
        "import sglang.pkg._core",
        "from .pkg import inner",
        "from . import bare",
        "if TYPE_CHECKING:\n    from sglang.pkg.hinted import Hint",
        "from sglang.pkg import inner; inner.patched = 1; inner.patched",
        "import sglang.pkg.inner as m\ndef f(m): return m.missing",
        "from sglang.pkg.starred import *",
        "from sglang.pkg.told import back, f, kept",
        "import importlib; importlib.import_module('torch.nothing'); importlib.import_module(name)",
    ],
)
def test_what_python_would_find_is_no_finding(line: str) -> None:
    assert check(LIBRARY, {USER: line + "\n"}) == Result((), ())


@pytest.mark.parametrize(
    ("line", "kind", "symbol"),
    [
        ("import sglang.pkg.absent", "module-missing", "sglang.pkg.absent"),
        ("import sglang.plain.shadowed", "module-missing", "sglang.plain.shadowed"),
        ("from sglang.gone import *", "module-missing", "sglang.gone"),
        ("from .gone import x", "module-missing", "sglang.gone"),
        ("import importlib; importlib.import_module('sglang.gone')", "module-missing", "sglang.gone"),
        ("from importlib import import_module; import_module('sglang.gone')", "module-missing", "sglang.gone"),
        ("from sglang.pkg.told import g", "name-missing", "sglang.pkg.told.g"),
        ("from sglang.pkg.told import away", "name-missing", "sglang.pkg.told.away"),
        ("from . import nothing", "name-missing", "sglang.nothing"),
        ("from sglang.pkg import hidden", "name-missing", "sglang.pkg.hidden"),
        ("from sglang.pkg.hinted import Hint", "name-missing", "sglang.pkg.hinted.Hint"),
        ("from sglang.bare import nothing", "name-missing", "sglang.bare.nothing"),
        ("from sglang.pkg import inner; inner.gone", "name-missing", "sglang.pkg.inner.gone"),
        ("import sglang.pkg.inner as m; m.gone.more", "name-missing", "sglang.pkg.inner.gone"),
        ("import sglang.bare.module; sglang.bare.module.gone", "name-missing", "sglang.bare.module.gone"),
        ("def f():\n    if x:\n        from sglang.pkg.inner import gone", "name-missing", "sglang.pkg.inner.gone"),
    ],
)
def test_what_python_would_not_find_is_a_finding(line: str, kind: str, symbol: str) -> None:
    result = check(LIBRARY, {USER: line + "\n"})
    assert [(finding.kind, finding.symbol) for finding in result.findings] == [(kind, symbol)]
    assert result.unknown == ()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("from sglang.pkg.lazy import guess", "sglang/pkg/lazy.py line 1 defines __getattr__"),
        ("from sglang.pkg.broken import x", "sglang/pkg/broken.py: line 1 does not parse"),
        ("from sglang.pkg.foreign import x", "imports all names of torch, which is not in the package"),
        ("from sglang.pkg._core import x", "is a compiled module"),
    ],
)
def test_what_cannot_be_told_is_unknown_and_no_finding(line: str, why: str) -> None:
    result = check(LIBRARY, {USER: line + "\n"})
    assert result.findings == ()
    assert len(result.unknown) == 1
    assert result.unknown[0].startswith(f"{USER}:1 uses sglang.pkg.")
    assert why in result.unknown[0]


def test_a_changed_file_that_does_not_parse_is_unknown() -> None:
    assert check(LIBRARY, {USER: "def (\n"}).unknown == (f"{USER}: line 1 does not parse: invalid syntax",)


def test_a_link_is_unknown() -> None:
    def read(path: str) -> bytes | None:
        if path == LIB:
            raise InputError(path, "is a link in the base")
        return b"from sglang.lib import x\n"

    linked = Tree(frozenset({USER, LIB}), read)
    result = compare(tree({}), linked, {USER})
    assert result.unknown == (f"{USER}:1 uses sglang.lib.x: sglang/lib.py: is a link in the base",)


def test_every_missing_name_has_its_own_line_and_a_module_one_for_all_its_names() -> None:
    source = "from sglang.pkg.inner import (\n    deep,\n    one,\n    two,\n)\n"
    source += "from sglang.gone import (\n    a,\n    b,\n)\n"
    found = check(LIBRARY, {USER: source}).findings
    assert [(finding.line, finding.names) for finding in found] == [(3, ("one",)), (4, ("two",)), (6, ("a", "b"))]
    assert found[2].message == "imports sglang.gone (a, b); there is no such module"


def test_imports_that_lead_in_a_circle_define_nothing() -> None:
    files = {"sglang/a.py": "from sglang.b import x\n", "sglang/b.py": "from sglang.a import x\n", USER: ""}
    assert len(check(files, {USER: "from sglang.a import x\n"}).findings) == 1


def test_another_package_name_is_respected() -> None:
    files = tree({"toy/a.py": "from toy.b import x\nfrom sglang.c import y\n"})
    found = compare(tree({}), files, {"toy/a.py"}, package="toy").findings
    assert [finding.symbol for finding in found] == ["toy.b"]


# -- guards ------------------------------------------------------------------------------------------------------------

GUARDED = """\
if is_cuda():
    import sglang.one
elif is_hip():
    import sglang.two
else:
    import sglang.three
try:
    import sglang.four
except (ImportError, OSError):
    import sglang.five
finally:
    import sglang.six
class A:
    def f(self):
        for x in y:
            with z:
                if x:
                    import sglang.seven
if a:
    pass
else:
    if b:
        import sglang.eight
"""


def test_a_finding_names_what_stands_around_it() -> None:
    guards = {finding.symbol.removeprefix("sglang."): finding.guard for finding in check({}, {USER: GUARDED}).findings}
    assert guards == {
        "one": "if is_cuda()",
        "two": "elif is_hip()",
        "three": "else of elif is_hip()",
        "four": "try/except ImportError, OSError",
        "five": "except ImportError, OSError",
        "six": "",
        "seven": "in class A, in def f, if x",
        "eight": "else of if a, if b",
    }


# -- differential ------------------------------------------------------------------------------------------------------


def test_what_the_file_lacked_before_is_no_finding() -> None:
    before = {USER: "from sglang.gone import x\nfrom sglang.lib import y\n", LIB: ""}
    after = "# moved\n\nfrom sglang.gone import x\nfrom sglang.lib import y, z\n"
    assert brief(check(before, {USER: after}).findings) == [("name-missing", USER, 4, "sglang.lib.z")]


def test_what_another_file_lacked_before_is_a_finding_here() -> None:
    before = {"sglang/other.py": "from sglang.gone import x\n", USER: ""}
    assert len(check(before, {USER: "from sglang.gone import x\n"}).findings) == 1


def test_an_import_that_may_fail_no_longer_is_a_finding() -> None:
    caught = "try:\n    from sglang.gone import x\nexcept ImportError:\n    x = None\n"
    assert len(check({USER: caught}, {USER: "from sglang.gone import x\n"}).findings) == 1
    assert check({USER: "from sglang.gone import x\n"}, {USER: caught}).findings == ()


def test_what_was_unknown_and_is_missing_now_is_a_finding() -> None:
    before = {USER: "from sglang.lib import x\n", LIB: "from torch import *\n"}
    assert len(check(before, {USER: "from sglang.lib import x\n", LIB: ""}).findings) == 1


# -- reverse -----------------------------------------------------------------------------------------------------------


def test_a_base_module_that_imports_what_the_overlay_takes_away_is_named() -> None:
    before = {
        LIB: "import os\n\ndef kept(): ...\ndef lost(): ...\n",
        "sglang/user.py": "if os:\n    from sglang.lib import (\n        kept,\n        lost,\n    )\n",
        "sglang/reader.py": "import sglang.lib as l\n\ndef f(): return l.lost\n",
        "sglang/near.py": "from .lib import lost as mine\n",
        "sglang/other.py": "from sglang.elsewhere import lost\n",
        "sglang/elsewhere.py": "lost = 1\n",
    }
    found = check(before, {LIB: "def kept(): ...\n"}).findings
    assert brief(found) == [
        ("reverse", "sglang/near.py", 1, "sglang.lib.lost"),
        ("reverse", "sglang/reader.py", 3, "sglang.lib.lost"),
        ("reverse", "sglang/user.py", 4, "sglang.lib.lost"),
    ]
    assert found[0].base_has == "lost (sglang/lib.py:4)"
    assert found[0].message == "imports sglang.lib.lost, which the overlay takes away"
    assert found[1].message == "reads sglang.lib.lost, which the overlay takes away"
    assert (found[1].guard, found[2].guard) == ("in def f", "if os")


def test_a_name_that_is_handed_on_by_star_imports_is_followed() -> None:
    before = {
        "sglang/utils/__init__.py": "from sglang.utils.common import *\n",
        "sglang/utils/common.py": "def lost(): ...\n",
        "sglang/user.py": "from sglang.utils import lost\n",
        "sglang/utils/sibling.py": "from . import lost\n",
    }
    found = check(before, {"sglang/utils/common.py": "x = 1\n"}).findings
    assert {finding.path for finding in found} == {"sglang/user.py", "sglang/utils/sibling.py"}
    assert found[0].base_has == "lost (sglang/utils/common.py:1)"


def test_a_deleted_module_breaks_its_importers() -> None:
    before = {LIB: "x = 1\n", "sglang/user.py": "from sglang import lib\n", "sglang/two.py": "import sglang.lib\n"}
    found = check(before, {LIB: None}).findings
    assert brief(found) == [
        ("reverse", "sglang/two.py", 1, "sglang.lib"),
        ("reverse", "sglang/user.py", 1, "sglang.lib"),
    ]


def test_an_importer_that_was_broken_before_is_not_blamed_on_the_overlay() -> None:
    before = {LIB: "lost = 1\n", "sglang/user.py": "from sglang.lib import never\n", "sglang/rot.py": "def (lost lib\n"}
    assert check(before, {LIB: "x = 1\n"}) == Result((), ())


def test_what_the_overlay_makes_uncertain_is_unknown() -> None:
    before = {LIB: "lost = 1\n", "sglang/user.py": "from sglang.lib import lost\n"}
    result = check(before, {LIB: "from torch import *\n"})
    assert result.findings == ()
    assert result.unknown[0].startswith("sglang/user.py:1 uses sglang.lib.lost: ")


# -- what the base has instead -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("library", "elsewhere", "expected"),
    [
        ("def _run(): ...\n", "def run(): ...\n", "_run (sglang/lib.py:1)"),
        ("def other(): ...\n", "\ndef run(): ...\n", "run (sglang/far.py:2)"),
        ("def other(): ...\n", "run: int = 3\n", "run (sglang/far.py:1)"),
        ("def other(): ...\n", "    run = 3\nrunner = 1\n", None),
    ],
)
def test_the_closest_definition_is_named(library: str, elsewhere: str, expected: str | None) -> None:
    before = {LIB: library, "sglang/far.py": elsewhere, USER: ""}
    assert check(before, {USER: "from sglang.lib import run\n"}).findings[0].base_has == expected


def test_a_similar_name_in_the_module_is_named_where_it_is_defined() -> None:
    before = {
        LIB: "from sglang.far import compute_v2_logprobs\n",
        "sglang/far.py": "\ndef compute_v2_logprobs(): ...\n",
    }
    found = check({**before, USER: ""}, {USER: "from sglang.lib import compute_logprobs\n"}).findings
    assert found[0].base_has == "compute_v2_logprobs (sglang/far.py:2)"


def test_of_several_namesakes_the_nearest_is_named() -> None:
    before = {"sglang/a/run.py": "run = 1\n", "sglang/z/near.py": "run = 1\n", "sglang/z/lib.py": "", USER: ""}
    found = check(before, {USER: "from sglang.z.lib import run\n"}).findings
    assert found[0].base_has == "run (sglang/z/near.py:1)"


def test_a_module_that_moved_is_named() -> None:
    before = {"sglang/srt/kernels/accept.py": "", USER: ""}
    found = check(before, {USER: "import sglang.kernels.accept\n"}).findings
    assert found[0].base_has == "sglang.srt.kernels.accept (sglang/srt/kernels/accept.py)"


# -- real SGLang: the stand-in's five files on older bases -------------------------------------------------------------

WORKER = "sglang/srt/speculative/dflash_worker_v2.py"
UTILS = "sglang/srt/speculative/dflash_utils.py"
MODEL = "sglang/srt/models/dflash.py"
AUX = "sglang/srt/model_executor/model_runner_components/spec_aux_hidden_state.py"
FIVE = ("sglang/kernels/ops/speculative/dflash.py", MODEL, UTILS, WORKER, AUX)

ON_0_5_18 = [
    (WORKER, 25, "srt.lora.layers.unwrap_lora_layer"),
    (WORKER, 40, "srt.runtime_context.mamba_track_grid"),
    (WORKER, 65, "srt.speculative.spec_tp_sync"),
]
ON_0_5_17 = [
    (UTILS, 21, "srt.speculative.spec_utils.sample_simulated_acc_len"),
    (WORKER, 24, "srt.layers.logprob_processor.compute_spec_logprobs"),
    *ON_0_5_18,
]
ON_0_5_16 = [
    (AUX, 10, "srt.runtime_context.get_model"),
    (AUX, 12, "srt.runtime_context.get_spec"),
    (MODEL, 39, "srt.runtime_context.get_spec"),
    (UTILS, 20, "srt.runtime_context.get_spec"),
    (UTILS, 21, "srt.speculative.spec_utils.sample_simulated_acc_len"),
    (UTILS, 56, "kernels.ops.sampling.renorm_triton"),
    (UTILS, 59, "kernels.ops.sampling.renorm_triton"),
    (WORKER, 16, "kernels.ops.speculative.dspark.dspark_accept"),
    (WORKER, 24, "srt.layers.logprob_processor.compute_spec_logprobs"),
    (WORKER, 25, "srt.lora.layers.unwrap_lora_layer"),
    (WORKER, 37, "srt.runtime_context.get_exec"),
    (WORKER, 38, "srt.runtime_context.get_schedule"),
    (WORKER, 39, "srt.runtime_context.get_spec"),
    (WORKER, 40, "srt.runtime_context.mamba_track_grid"),
    (WORKER, 65, "srt.speculative.spec_tp_sync"),
    (WORKER, 70, "srt.speculative.spec_utils.GrammarTree"),
    (WORKER, 72, "srt.speculative.spec_utils.build_grammar_vocab_mask"),
]


@pytest.fixture(scope="module")
def real(trees: Callable[[str], Path]) -> Callable[[str], Tree]:
    @cache
    def load(version: str) -> Tree:
        root = trees(version)
        paths = frozenset(str(path.relative_to(root)) for path in (root / "sglang").rglob("*") if path.is_file())
        read = cache(lambda path: (root / path).read_bytes() if path in paths else None)
        return Tree(paths, read)

    return load


def overlaid(base: Tree, donor: Tree) -> Tree:
    return base.overlaid({path: donor.read(path) or b"" for path in FIVE})


@pytest.mark.parametrize(
    ("version", "expected", "names"), [("0.5.16", ON_0_5_16, 18), ("0.5.17", ON_0_5_17, 6), ("0.5.18", ON_0_5_18, 4)]
)
def test_the_stand_ins_files_lack_on_an_older_base_what_the_lab_says(
    real: Callable[[str], Tree], version: str, expected: list[tuple[str, int, str]], names: int
) -> None:
    base = real(version)
    result = compare(base, overlaid(base, real("0.5.19")), FIVE)
    found = [(finding.path, finding.line, finding.symbol.removeprefix("sglang.")) for finding in result.findings]
    assert sorted(found) == sorted(expected)
    assert sum(len(finding.names) for finding in result.findings) == names
    assert result.unknown == ()


def test_guards_and_counterparts_on_real_trees(real: Callable[[str], Tree]) -> None:
    base = real("0.5.16")
    found = compare(base, overlaid(base, real("0.5.19")), FIVE).findings
    by_symbol = {finding.symbol.removeprefix("sglang."): finding for finding in found}
    assert by_symbol["kernels.ops.sampling.renorm_triton"].guard == "elif is_hip()"
    alias = by_symbol["srt.speculative.spec_utils.sample_simulated_acc_len"]
    assert (alias.base_has or "").startswith("_sample_simulated_acc_len (sglang/srt/speculative/spec_utils.py:")
    logprobs = by_symbol["srt.layers.logprob_processor.compute_spec_logprobs"]
    assert (logprobs.base_has or "").startswith("compute_spec_v2_logprobs (sglang/srt/layers/logprob_processor.py:")


@pytest.mark.parametrize("version", ["0.5.17", "0.5.18", "0.5.19"])
@pytest.mark.parametrize("changed", [(), FIVE])
def test_an_untouched_base_yields_nothing(real: Callable[[str], Tree], version: str, changed: tuple[str, ...]) -> None:
    assert compare(real(version), real(version), changed) == Result((), ())


def test_a_base_module_that_imports_an_overlaid_file_is_found_on_a_real_tree(real: Callable[[str], Tree]) -> None:
    base = real("0.5.19")
    data = (base.read(UTILS) or b"").replace(b"def build_dflash_verify_target_probs", b"def build_renamed")
    found = compare(base, base.overlaid({UTILS: data}), {UTILS}).findings
    assert {finding.kind for finding in found} == {"reverse"}
    assert found
