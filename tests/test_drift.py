"""What the overlaid files depend on that differs from what they were written against, and where to look for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder import drift as drifts
from builder.drift import Drift
from builder.errors import InputError
from builder.model import Oid, Tree
from tests.lab.git_history import History
from tests.support.scene import write_catalogue

if TYPE_CHECKING:
    from tests.conftest import RunOverlay

Files = Mapping[str, str | bytes]
USER, LIB = "sglang/user.py", "sglang/lib.py"


def tree(files: Files) -> Tree:
    data = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
    return Tree(frozenset(data), data.get)


def drift(base: Files, donor: Files, overlay: Files) -> tuple[Drift, ...]:
    """Put files on a base that were written against another tree, which holds them too."""
    theirs = tree({**base, **donor, **overlay})
    return drifts.drift(tree(base), tree({**base, **overlay}), overlay.keys(), dict.fromkeys(overlay, theirs))


def touched(user: str, base: str, donor: str, **files: str) -> tuple[str, ...]:
    """Say where `user` touches what differs between the two texts of `lib`."""
    more = {f"sglang/{name}.py": text for name, text in files.items()}
    found = drift({**more, LIB: base}, {LIB: donor}, {USER: user})
    return tuple(line for entry in found for line in entry.touched)


# -- which files and definitions ---------------------------------------------------------------------------------------


def test_drift_names_the_definitions_that_differ_in_files_the_overlay_uses() -> None:
    base = {
        USER: "",
        LIB: "class A:\n    def f(self): return 1\n    def g(self): ...\nflag = 1\n",
        "sglang/same.py": "x = 1\n",
        "sglang/unused.py": "x = 1\n",
        "sglang/facade.py": "from sglang.real import thing\n",
        "sglang/real.py": "def thing(): return 1\n",
        "sglang/typed.py": "class Hint: ...\n",
    }
    donor = {
        LIB: "class A:\n    def f(self): return 2\n    def g(self): ...\n    def h(self): ...\nflag = 1\n",
        "sglang/unused.py": "x = 2\n",
        "sglang/real.py": "def thing():  # comment\n    return 1\n",
        "sglang/typed.py": "class Hint:\n    size = 1\n",
    }
    text = (
        "from sglang.lib import A\nimport sglang.same\nfrom sglang.facade import thing\nimport sglang.gone\n"
        "if TYPE_CHECKING:\n    from sglang.typed import Hint\n"
    )
    assert drift(base, donor, {USER: text}) == (
        Drift("sglang/lib.py", 3, ("A.f", "A.h")),
        Drift("sglang/real.py", 3, ()),
        Drift("sglang/typed.py", 3, ("Hint.size",)),
    )
    assert drift(base, {}, {USER: text}) == ()


def test_a_file_that_the_overlay_replaces_has_no_drift() -> None:
    assert drift({LIB: "x = 1\n"}, {}, {USER: "from sglang.lib import x\n", LIB: "x = 3\n"}) == ()


def test_a_file_that_stands_on_one_side_only_is_no_drift() -> None:
    user = {USER: "from sglang.lib import x\n"}
    assert drift({}, {LIB: "x = 1\n"}, user) == ()
    before, after = tree({LIB: "x = 1\n"}), tree({LIB: "x = 1\n", **user})
    assert drifts.drift(before, after, {USER}, {USER: tree(user)}) == ()


def test_each_file_is_compared_with_the_tree_it_was_written_against() -> None:
    base = {LIB: "def f(): return 1\n", "sglang/old.py": "def g(): return 1\n"}
    one, two = "from sglang.lib import f\nf()\n", "from sglang.old import g\ng()\nfrom sglang.lib import f\n"
    after = {**base, "sglang/one.py": one, "sglang/two.py": two}
    first, last = tree({**base, LIB: "def f(): return 2\n"}), tree({**base, "sglang/old.py": "def g(): return 3\n"})
    changed = {"sglang/one.py", "sglang/two.py"}
    found = drifts.drift(tree(base), tree(after), changed, {"sglang/one.py": first, "sglang/two.py": last})
    assert [(entry.path, entry.touched) for entry in found] == [
        (LIB, ("sglang/one.py:2 calls lib.f, which differs",)),
        ("sglang/old.py", ("sglang/two.py:2 calls old.g, which differs",)),
    ]


def test_what_several_files_touch_of_one_is_told_of_each() -> None:
    user = "from sglang.lib import f\nf()\n"
    base, other = {LIB: "def f(): return 1\n"}, {LIB: "def f(): return 2\n"}
    (found,) = drift(base, other, {"sglang/b.py": user, "sglang/a.py": user})
    assert found.touched == ("sglang/a.py:2 calls lib.f, which differs", "sglang/b.py:2 calls lib.f, which differs")


def test_a_file_that_only_a_patch_edits_was_written_against_the_base() -> None:
    before, after = tree({LIB: "x = 1\n", USER: ""}), tree({LIB: "x = 1\n", USER: "from sglang.lib import x\n"})
    assert drifts.drift(before, after, {USER}, {}) == ()


def test_files_that_are_touched_come_first() -> None:
    base = {"sglang/a.py": "def f(): return 1\n", "sglang/b.py": "def g(): return 1\n"}
    donor = {"sglang/a.py": "def f(): return 2\n", "sglang/b.py": "def g(): return 2\n"}
    found = drift(base, donor, {USER: "from sglang.a import f\nfrom sglang.b import g\ng()\n"})
    assert [entry.path for entry in found] == ["sglang/b.py", "sglang/a.py"]


def test_equal_blobs_are_not_read() -> None:
    def read(path: str) -> bytes | None:
        assert path != LIB, "was read"
        return b"from sglang.lib import x\n"

    blobs = {LIB: Oid.of_blob(b"")}
    donor = Tree(frozenset({LIB, USER}), read, blobs)
    after = tree({USER: "from sglang.lib import x\n", LIB: ""})
    assert drifts.drift(Tree(frozenset({LIB}), read, blobs), after, {USER}, {USER: donor}) == ()


@pytest.mark.parametrize("text", ["def (\n", "x = (\n"])
def test_a_file_that_does_not_parse_counts_by_its_lines(text: str) -> None:
    user = {USER: "import sglang.lib\nfrom sglang.lib import x\nx()\n"}
    assert drift({LIB: "x = 1\n"}, {LIB: text}, user) == (Drift(LIB, 2, ()),)
    assert drift({LIB: text}, {LIB: "x = 1\n"}, user) == (Drift(LIB, 2, ()),)
    assert drift({LIB: "x = 1\n"}, {LIB: "x = 2\n"}, {USER: text}) == ()


def test_a_link_is_left_out() -> None:
    def read(path: str) -> bytes | None:
        if path == LIB:
            raise InputError(path, "is a link in the base")
        return b"import sglang.lib\n"

    linked = Tree(frozenset({USER, LIB}), read)
    assert drifts.drift(linked, linked, {USER}, {USER: tree({LIB: "x = 1\n"})}) == ()


@pytest.mark.parametrize(
    ("base", "donor", "expected"),
    [
        ("if a:\n    x = 1\nelse:\n    x = 2\n", "if a:\n    x = 3\nelse:\n    x = 2\n", ("x",)),
        (
            "class A:\n    @property\n    def x(self): return 1\n    @x.setter\n    def x(self, v): ...\n",
            "class A:\n    @property\n    def x(self): return 2\n    @x.setter\n    def x(self, v): ...\n",
            ("A.x",),
        ),
        ("for a in b:\n    class C:\n        y = 1\n", "for a in b:\n    class C:\n        y = 2\n", ("C.y",)),
        ("match a:\n    case 1:\n        y = 1\n", "match a:\n    case 1:\n        y = 2\n", ("y",)),
    ],
)
def test_definitions_that_share_a_name_or_stand_in_a_branch_are_compared(
    base: str, donor: str, expected: tuple[str, ...]
) -> None:
    (found,) = drift({LIB: base}, {LIB: donor}, {USER: "import sglang.lib\n"})
    assert found.definitions == expected


# -- classes that inherit ----------------------------------------------------------------------------------------------

BASE = "class Base:\n    def kept(self): return 1\n    def moved(self): return {0}\n"
OLD, NEW = BASE.format(1), BASE.format(2)


def test_a_class_that_inherits_from_a_drifted_one_is_named() -> None:
    user = "from sglang.lib import Base\n\nclass Mine(Base):\n    pass\n"
    assert touched(user, OLD, NEW) == ("class Mine (sglang/user.py:3) inherits Base, which differs in moved",)
    assert touched(user, OLD, OLD) == ()
    assert touched(user, OLD, OLD + "class Other:\n    x = 1\n") == ()


@pytest.mark.parametrize(
    "user",
    [
        "import sglang.lib\nclass Mine(sglang.lib.Base): ...\n",
        "import sglang.lib as l\nclass Mine(l.Base): ...\n",
        "from sglang import lib\nclass Mine(lib.Base): ...\n",
        "from .lib import Base as B\nclass Mine(B): ...\n",
        "from .lib import Base\nclass Mine(Base[int], metaclass=M): ...\n",
        "from sglang.lib import *\nclass Mine(Base): ...\n",
        "from sglang.facade import Base\nclass Mine(Base): ...\n",
        "from sglang.facade import Renamed\nclass Mine(Renamed): ...\n",
        "from sglang.facade import Again\nclass Mine(Again): ...\n",
        "if x:\n    from .lib import Base; class_ = 1\nclass Mine(Base): ...\n",
    ],
)
def test_a_base_class_is_found_by_whatever_name_it_has(user: str) -> None:
    facade = "from sglang.lib import Base, Base as Renamed\n\nAgain = Base  # kept for older code\n"
    expected = "class Mine (sglang/user.py:%d) inherits Base, which differs in moved"
    line = next(number for number, each in enumerate(user.splitlines(), 1) if each.startswith("class Mine"))
    assert touched(user, OLD, NEW, facade=facade) == (expected % line,)


def test_a_class_that_inherits_through_another_file_is_named_with_it() -> None:
    user = "from sglang.mid import Mid\nclass Mine(Mid): ...\n"
    assert touched(user, OLD, NEW, mid="from sglang.lib import Base\nclass Mid(Base): ...\n") == (
        "class Mine (sglang/user.py:2) inherits Base through Mid, which differs in moved",
    )


@pytest.mark.parametrize(
    "user",
    [
        "from .lib import Base\nif x:\n    for y in z:\n        class Mine(Base): ...\n",
        "from .lib import Base\ndef make():\n    while True:\n        class Mine(Base): ...\n",
        "from .lib import Base\nclass Outer:\n    x = 1\n    class Mine(Base): ...\n",
    ],
)
def test_a_class_in_a_branch_loop_or_function_inherits_too(user: str) -> None:
    (line,) = touched(user, OLD, NEW)
    assert line.endswith("Mine (sglang/user.py:4) inherits Base, which differs in moved")


def test_a_changed_head_of_a_class_is_said() -> None:
    user = "from sglang.lib import Base\nclass Mine(Base): ...\n"
    assert touched(user, OLD, OLD.replace("Base:", "Base(Other):")) == (
        "class Mine (sglang/user.py:2) inherits Base, which differs in its bases or decorators",
    )


def test_classes_that_inherit_in_a_circle_come_to_an_end() -> None:
    user = "from sglang.lib import Base\nclass Mine(Base): ...\n"
    base = OLD.replace("Base:", "Base(Mine):") + "from sglang.user import Mine\n"
    assert len(touched(user, base, base.replace("return 1", "return 3"))) == 1
    assert touched("from sglang.lib import A\nA()\n", "A = B\nB = A\n", "A = B\nB = A\nc = 1\n") == ()


# -- calls -------------------------------------------------------------------------------------------------------------

FUNCTIONS = "def foo(): return {0}\ndef bar(): return 1\nclass Thing:\n    def __init__(self): self.x = {0}\n"
FUNCTIONS += "    def act(self): return {0}\n    def rest(self): ...\n"
F_OLD, F_NEW = FUNCTIONS.format(1), FUNCTIONS.format(2)
CALLS_FOO = "sglang/user.py:{0} calls lib.foo, which differs"
CALLS_ACT = "sglang/user.py:{0} calls Thing.act, which differs"


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("from sglang.lib import foo\nfoo()\n", CALLS_FOO.format(2)),
        ("from sglang.lib import foo\nx = [foo(1) for _ in y]\n", CALLS_FOO.format(2)),
        ("from sglang.lib import foo\n@foo\ndef g(): ...\n", CALLS_FOO.format(2)),
        ("from sglang.lib import foo as f\nf()\nf()\n", CALLS_FOO.format("2, 3")),
        ("import sglang.lib as l\nl.foo()\n", CALLS_FOO.format(2)),
        ("import sglang.lib\nsglang.lib.foo()\n", CALLS_FOO.format(2)),
        ("from sglang import lib\ndef g(): return lib.foo()\n", CALLS_FOO.format(2)),
        ("def g():\n    from sglang.lib import foo\n    foo()\n", CALLS_FOO.format(3)),
        ("def g():\n    import sglang.lib\n    sglang.lib.foo()\n", CALLS_FOO.format(3)),
        ("def g():\n    from sglang import lib as l\n    l.foo()\n", CALLS_FOO.format(3)),
        ("from sglang.facade import foo\nfoo()\n", CALLS_FOO.format(2)),
        ("from sglang.lib import *\nfoo()\n", CALLS_FOO.format(2)),
        (
            "from sglang.lib import Thing\nThing()\n",
            "sglang/user.py:2 calls lib.Thing, which differs in __init__, act",
        ),
        ("from sglang.lib import Thing\nThing.act(x)\n", CALLS_ACT.format(2)),
    ],
)
def test_a_call_of_what_differs_is_named(user: str, expected: str) -> None:
    assert touched(user, F_OLD, F_NEW, facade="from sglang.lib import foo\n") == (expected,)
    assert touched(user, F_OLD, F_OLD + "def more(): ...\n", facade="from sglang.lib import foo\n") == ()


@pytest.mark.parametrize(
    "user",
    [
        "from sglang.lib import bar\nbar()\n",
        "from sglang.lib import foo\nfoo\n",
        "from sglang.lib import foo\ndef g(foo): foo()\n",
        "from sglang.lib import foo\ndef g():\n    foo = other\n    foo()\n",
        "from other.lib import foo\nfoo()\n",
        "import sglang.lib\nfoo()\n",
        "from sglang.lib import Thing\nThing.rest(x)\n",
        "from sglang.lib import foo\nx.foo()\n",
        "from sglang.lib import gone\ngone()\nunknown()()\n",
    ],
)
def test_a_call_of_anything_else_is_not_named(user: str) -> None:
    assert touched(user, F_OLD, F_NEW) == ()


@pytest.mark.parametrize(
    "user",
    [
        "from .lib import Thing\nclass Mine(Thing):\n    def f(self): return self.act()\n",
        "from .lib import Thing\nclass Mine(Thing):\n    def act(self): return super().act()\n",
        "from .lib import Thing\nclass Mine(Thing):\n    def f(this): return [this.act() for _ in x]\n",
        "from .lib import Thing\nclass Mine(Thing):\n    def f(self): g = lambda: super(Mine, self).act()\n",
        "from .mid import Mid\nclass Mine(Mid):\n    def f(self): return self.act()\n",
    ],
)
def test_a_method_that_comes_from_a_drifted_base_is_named_where_it_is_called(user: str) -> None:
    found = touched(user, F_OLD, F_NEW, mid="from .lib import Thing\nclass Mid(Thing): ...\n")
    assert CALLS_ACT.format(3) in found
    own = user.replace("super().act()", "other()").replace("    def f(", "    def act(self): ...\n    def f(")
    own = own.replace("super(Mine, self)", "self")
    assert not [line for line in touched(own, F_OLD, F_NEW, mid="from .lib import Thing\n") if "calls" in line]


TYPED = [
    "def f(t: Thing):",
    "def f(t: 'Thing'):",
    "def f(t: Optional[Thing]):",
    "def f(t: typing.Optional['Thing'] = None):",
    "def f(t: Thing | None):",
    "def f(t: 'None | Thing'):",
    "def f(t: Union[int, Thing]):",
    "def f(t: Annotated[Thing, 1]):",
    "def f(*, t: lib.Thing):",
    "async def f(t: Thing, /):",
    "def f(x):\n    t: Thing = x\n    if x:",
    "def f():\n    t = Thing()\n    if x:",
    "def f(t):\n    assert isinstance(t, Thing)\n    if x:",
    "def f(t: Thing):\n    def inner():",
]


@pytest.mark.parametrize("head", TYPED)
@pytest.mark.parametrize("imports", ["from .lib import Thing", "if TYPE_CHECKING:\n    from sglang.lib import Thing"])
def test_a_call_and_a_write_are_named_by_the_class_an_object_is_known_to_be_of(head: str, imports: str) -> None:
    body = "    ".join(["", *[""] * (head.count("\n") > 0)])
    user = f"{imports}\nfrom . import lib\n{head}\n    {body}t.act()\n    {body}t.size = 1\n"
    found = [line for line in touched(user, F_OLD, F_NEW) if "calls lib." not in line]
    lines = len(user.splitlines())
    assert found == [
        CALLS_ACT.format(lines - 1),
        f"sglang/user.py:{lines} writes Thing.size; Thing differs in __init__, act",
    ]
    assert touched(user, F_OLD, F_OLD + "x = 1\n") == ()


@pytest.mark.parametrize(
    "head",
    [
        "def f(t: int):",
        "def f(t: List[Thing]):",
        "def f(t: type[Thing]):",
        "def f(*t: Thing):",
        "def f(t: 'not an annotation'):",
        "def f(t):",
        "def f(thing):\n    t = thing\n    if x:",
        "def f():\n    t = Thing()\n    t = other\n    if x:",
        "def f(t: Thing):\n    def inner(t):",
    ],
)
def test_an_object_of_unknown_class_is_not_guessed_at(head: str) -> None:
    body = "    " if "\n" in head else ""
    user = f"from .lib import Thing\n{head}\n    {body}t.act()\n    {body}t.size = 1\n"
    assert [line for line in touched(user, F_OLD, F_NEW) if "calls lib." not in line] == []


# -- writes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    ["self.t.size = 1", "self.t.size += 1", "self.t.size[0] = 1", "del self.t.size", "a, self.t.size = b"],
)
@pytest.mark.parametrize(
    "holder",
    [
        "    t: Thing\n    def g(self):",
        "    def __init__(self, t: Thing):\n        self.t = t\n    def g(self):",
        "    def __init__(self):\n        self.t: 'Thing' = x\n    def g(self):",
    ],
)
def test_a_write_to_an_annotated_attribute_is_named(statement: str, holder: str) -> None:
    user = f"from .lib import Thing\nclass Mine:\n{holder}\n        {statement}\n"
    line = len(user.splitlines())
    assert touched(user, F_OLD, F_NEW) == (f"sglang/user.py:{line} writes Thing.size; Thing differs in __init__, act",)
    assert touched(user, F_OLD, F_OLD + "x = 1\n") == ()


def test_members_that_speak_of_the_attribute_come_first() -> None:
    text = "class Batch:\n    def a(self): return {0}\n    def z(self): return self.size + {0}\n"
    user = "from .lib import Batch\ndef f(b: Batch):\n    b.size = 1\n    b.other = 1\n"
    assert touched(user, text.format(1), text.format(2)) == (
        "sglang/user.py:3 writes Batch.size; Batch differs in z, a",
        "sglang/user.py:4 writes Batch.other; Batch differs in a, z",
    )


def test_a_base_class_of_the_object_counts_with_the_members_that_speak_of_the_attribute() -> None:
    text = "class Mixin:\n    def a(self): return {0}\n    def z(self): return self.size + {0}\n"
    mid = "from .lib import Mixin\nclass Batch(Mixin):\n    x = 1\n"
    user = "from .mid import Batch\ndef f(b: Batch):\n    b.size = 1\n    b.other = 1\n"
    assert touched(user, text.format(1), text.format(2), mid=mid) == (
        "sglang/user.py:3 writes Batch.size; Mixin differs in z",
    )


def test_what_an_object_sets_on_itself_is_no_write_to_another() -> None:
    user = "from .lib import Thing\nclass Mine(Thing):\n    def f(self): self.size = 1\n"
    assert touched(user, F_OLD, F_NEW) == (
        "class Mine (sglang/user.py:2) inherits Thing, which differs in __init__, act",
    )


def test_what_meets_most_of_the_difference_is_told_first() -> None:
    user = "from .lib import Thing, foo\ndef f(t: Thing):\n    Thing()\n    t.size = 1\n    t.act()\n    foo()\n"
    user += "class Mine(Thing): ...\n"
    assert [line.partition(" ")[2] for line in touched(user, F_OLD, F_NEW)] == [
        "Mine (sglang/user.py:7) inherits Thing, which differs in __init__, act",
        "calls Thing.act, which differs",
        "calls lib.foo, which differs",
        "writes Thing.size; Thing differs in __init__, act",
        "calls lib.Thing, which differs in __init__, act",
    ]


def test_many_places_and_definitions_are_counted() -> None:
    many = "class Many:\n" + "".join(f"    def m{n}(self): return {{0}}\n" for n in range(9))
    user = "from .lib import Many\n" + "Many()\n" * 8
    assert touched(user, many.format(1), many.format(2)) == (
        "sglang/user.py:2, 3, 4, 5, 6, 7 and 2 more calls lib.Many, which differs in m0, m1, m2, m3, m4, m5 and 3 more",
    )


# -- real SGLang -------------------------------------------------------------------------------------------------------

WORKER = "sglang/srt/speculative/dflash_worker_v2.py"
FIVE = (
    "sglang/kernels/ops/speculative/dflash.py",
    "sglang/srt/models/dflash.py",
    "sglang/srt/speculative/dflash_utils.py",
    WORKER,
    "sglang/srt/model_executor/model_runner_components/spec_aux_hidden_state.py",
)


@pytest.fixture(scope="module")
def real(trees: Callable[[str], Path]) -> Callable[[str], Tree]:
    @cache
    def load(version: str) -> Tree:
        root = trees(version)
        data = {str(path.relative_to(root)): path.read_bytes() for path in (root / "sglang").rglob("*.py")}
        return Tree(frozenset(data), data.get, {path: Oid.of_blob(each) for path, each in data.items()})

    return load


@pytest.fixture(scope="module")
def on_0_5_17(real: Callable[[str], Tree]) -> dict[str, Drift]:
    base, donor = real("0.5.17"), real("0.5.19")
    after = base.overlaid({path: donor.read(path) or b"" for path in FIVE})
    return {entry.path: entry for entry in drifts.drift(base, after, FIVE, dict.fromkeys(FIVE, donor))}


def test_drift_names_the_renamed_attributes_home(on_0_5_17: dict[str, Drift]) -> None:
    assert "sglang/srt/speculative/dflash_info_v2.py" in on_0_5_17
    assert "_sample_simulated_acc_len" in on_0_5_17["sglang/srt/speculative/spec_utils.py"].definitions
    assert not set(on_0_5_17) & set(FIVE)


def test_the_drifted_base_of_the_real_worker_is_named(on_0_5_17: dict[str, Drift], real: Callable[[str], Tree]) -> None:
    lines = (real("0.5.19").read(WORKER) or b"").splitlines()
    line = next(number for number, each in enumerate(lines, 1) if each.startswith(b"class DFlashWorkerV2("))
    (told,) = on_0_5_17["sglang/srt/speculative/base_spec_worker.py"].touched
    assert told.startswith(f"class DFlashWorkerV2 ({WORKER}:{line}) inherits BaseSpecWorker, which differs in ")


def test_what_the_real_worker_calls_and_writes_is_named(on_0_5_17: dict[str, Drift]) -> None:
    told = on_0_5_17["sglang/srt/managers/schedule_batch.py"].touched
    (writes,) = [line for line in told if "writes ScheduleBatch.seq_lens_cpu; ScheduleBatch differs in " in line]
    assert "merge_batch" in writes.partition(";")[2]
    assert f"{WORKER}:308 calls draft_worker_common.build_draft_tp_worker, which differs" in (
        on_0_5_17["sglang/srt/speculative/draft_worker_common.py"].touched
    )
    touched_first = [bool(entry.touched) for entry in on_0_5_17.values()]
    assert touched_first == sorted(touched_first, reverse=True)
    assert {True, False} == set(touched_first)


def test_a_base_that_is_the_tree_of_the_pull_request_has_no_drift(real: Callable[[str], Tree]) -> None:
    base = real("0.5.19")
    assert drifts.drift(base, base, FIVE, dict.fromkeys(FIVE, base)) == ()


# -- the whole plan ----------------------------------------------------------------------------------------------------

START = {
    "python/sglang/__init__.py": "",
    "python/sglang/lib.py": "def f():\n    return 1\n",
    "python/sglang/a.py": "from sglang.lib import f\n",
    "python/sglang/b.py": "from sglang.lib import f\n",
}
LATER = "def f():\n    return 2\n"


@pytest.fixture
def plan(overlay: RunOverlay, history: History, tmp_path: Path) -> Callable[..., str]:
    """`plan(lib)` plans two pull requests, between which `lib` changed, on a base with that `lib`."""
    history.commit(START, "start")
    history.squash(1, "Call it in a", [{"python/sglang/a.py": "from sglang.lib import f\n\nA = f()\n"}])
    history.commit({"python/sglang/lib.py": LATER}, "later work")
    history.squash(2, "Call it in b", [{"python/sglang/b.py": "from sglang.lib import f\n\nB = f()\n"}])
    source = history.write(tmp_path / "upstream.git").path
    shelf = write_catalogue(tmp_path / "shelf")

    def run(lib: str, *words: str) -> str:
        for path, text in {**START, "python/sglang/lib.py": lib}.items():
            target = tmp_path / "site" / path.removeprefix("python/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        settings = ("--catalogue", shelf, "--upstream", source, "--base", f"dir:{tmp_path / 'site'}")
        return overlay("plan", *settings, "--pr", "1", "--pr", "2", *words).stdout

    return run


@pytest.mark.parametrize(
    ("lib", "told"),
    [
        (START["python/sglang/lib.py"], "sglang/b.py:3 calls lib.f, which differs"),
        (LATER, "sglang/a.py:3 calls lib.f, which differs"),
    ],
)
def test_of_a_stack_each_file_is_compared_with_its_own_pull_request(
    plan: Callable[..., str], lib: str, told: str
) -> None:
    assert json.loads(plan(lib, "--json"))["drift"] == [
        {"path": LIB, "lines": 2, "definitions": ["f"], "touched": [told]}
    ]
    assert f"look at {told}" in " ".join(plan(lib).split())
