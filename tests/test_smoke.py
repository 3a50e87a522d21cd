"""The smoke test: what the probe answers from real interpreters, and how each answer is judged."""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.checkpoint import Checkpoint, PublishedDraft, Shapes, Tensor, open_checkpoint
from builder.doors import Limits
from builder.engine import connect
from builder.errors import InputError
from builder.model import Check, Completed, Digest
from builder.smoke import CHECKS, Evidence, Subject, gather, importers_of, is_passed, run
from builder.smoke.architecture import check_architecture
from builder.smoke.draft_config import check_draft_config
from builder.smoke.head_path import handles_heads, read_need
from builder.smoke.imports import modules_to_import
from builder.smoke.lm_head import check_lm_head, method_of, read_config, read_head
from builder.smoke.probe import program, read_answer
from builder.smoke.subject import Answer
from builder.smoke.weight_drop import check_weight_drop, judge_weights, prefix_of
from tests.lab import checkpoints, images
from tests.lab.layers import Layer
from tests.support import smoke_toy
from tests.support.smoke_process import ProcessEngine, digest, toy_subject, write_tree

ModuleChecks = ("imports", "importers")
LIMITS = Limits(seconds=60)


def by_name(checks: tuple[Check, ...]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def one_check(subject: Subject, name: str, **more: Any) -> Check:
    return run(subject, [name], **more)[0]


def engine_of(subject: Subject) -> ProcessEngine:
    assert isinstance(subject.engine, ProcessEngine)
    return subject.engine


# -- which modules import the overlaid ones --------------------------------------------------------------------------


def importers(files: Mapping[str, str], *overlaid: str) -> tuple[str, ...]:
    return importers_of(files, lambda path: files[path].encode(), overlaid)


@pytest.mark.parametrize(
    "source",
    [
        "import pkg.a.dflash",
        "import pkg.a.dflash as other",
        "from pkg.a import dflash",
        "from pkg.a.dflash import name",
        "from .dflash import name",
        "from . import dflash",
        "from ..a import dflash",
        "def f():\n    from pkg.a.dflash import name",
        "if TYPE_CHECKING:\n    from pkg.a import (\n        other,\n        dflash,\n    )",
        "\ufeffimport pkg.a.dflash",
    ],
)
def test_every_way_to_import_an_overlaid_module_is_found(source: str) -> None:
    assert importers({"pkg/a/user.py": source, "pkg/a/dflash.py": ""}, "pkg/a/dflash.py") == ("pkg/a/user.py",)


@pytest.mark.parametrize(
    "source",
    [
        "import pkg.b.dflash",
        "from pkg.b import dflash",
        "# import pkg.a.dflash",
        "dflash = 1",
        "from ...a import dflash",
    ],
)
def test_other_modules_of_the_same_last_name_are_not_importers(source: str) -> None:
    assert importers({"pkg/a/user.py": source, "pkg/a/dflash.py": ""}, "pkg/a/dflash.py") == ()


def test_a_package_is_imported_by_its_own_name_and_relative_to_itself() -> None:
    files = {
        "pkg/a/__init__.py": "from .b import x",
        "pkg/a/b.py": "",
        "pkg/c.py": "import pkg.a",
        "pkg/d.py": "from pkg import a",
    }
    assert importers(files, "pkg/a/b.py") == ("pkg/a/__init__.py",)
    assert importers(files, "pkg/a/__init__.py") == ("pkg/c.py", "pkg/d.py")


def test_what_cannot_be_a_module_is_no_importer_and_what_does_not_parse_is_left_to_the_interpreter() -> None:
    files = {
        "pkg/x-y.py": "import pkg.a",
        "pkg/__main__.py": "import pkg.a",
        "pkg/data.txt": "import pkg.a",
        "pkg/broken.py": "import pkg.a\n)",
        "pkg/broken_elsewhere.py": "import other\n)",
        "pkg/a.py": "",
    }
    assert importers(files, "pkg/a.py") == ("pkg/broken.py",)


def test_a_link_is_no_importer() -> None:
    def read(path: str) -> bytes:
        raise InputError(path, "is a link")

    assert importers_of(["pkg/a.py", "pkg/link.py"], read, ["pkg/a.py"]) == ()


def test_importers_of_a_real_tree(trees: Callable[[str], Path]) -> None:
    root = trees("0.5.17")
    paths = [str(path.relative_to(root)) for path in (root / "sglang").rglob("*.py")]
    found = importers_of(paths, lambda path: (root / path).read_bytes(), ["sglang/srt/models/dflash.py"])
    assert "sglang/srt/models/dspark.py" in found
    assert "sglang/srt/models/dflash.py" not in found


# -- imports and importers, by a real interpreter --------------------------------------------------------------------


def test_overlaid_modules_and_their_importers_import(tmp_path: Path) -> None:
    subject = toy_subject(
        tmp_path,
        smoke_toy.BASE,
        {
            "toy/srt/helpers.py": "def old(): pass\ndef new(): pass\n",
            "toy/srt/added.py": "from toy.srt.helpers import new\n",
        },
        importers=["toy/srt/worker.py", "toy/srt/worker_v2.py"],
    )
    checks = run(subject, ModuleChecks)
    assert [(check.name, check.outcome, check.message) for check in checks] == [
        ("imports", "pass", "2 overlaid modules import"),
        ("importers", "pass", "2 modules that import overlaid ones import"),
    ]
    assert engine_of(subject).ran == [digest("image")], "the base is asked only where there is something to compare"


def test_an_overlay_that_breaks_its_importers_fails_and_names_each_with_its_error(tmp_path: Path) -> None:
    subject = toy_subject(
        tmp_path,
        smoke_toy.BASE,
        {"toy/srt/helpers.py": "def new(): pass\n"},
        importers=["toy/srt/worker.py", "toy/srt/worker_v2.py"],
    )
    imports, importing = run(subject, ModuleChecks)
    assert imports.outcome == "pass"
    assert importing.outcome == "fail"
    assert importing.message.startswith("2 of 2 modules that import overlaid ones fail: ")
    assert "cannot import name 'old' from 'toy.srt.helpers'" in importing.message
    listed = importing.facts["not_imported"]
    assert isinstance(listed, list)
    assert [entry["path"] for entry in listed] == ["toy/srt/worker.py", "toy/srt/worker_v2.py"]
    assert engine_of(subject).ran == [digest("image"), digest("base")]


def test_what_does_not_import_on_the_base_either_is_unknown_with_its_error(tmp_path: Path) -> None:
    broken = {**smoke_toy.BASE, "toy/srt/worker.py": "import gpu_kernels\nfrom toy.srt.helpers import old\n"}
    subject = toy_subject(
        tmp_path, broken, {"toy/srt/helpers.py": "def old(): pass\n"}, importers=["toy/srt/worker.py"]
    )
    check = one_check(subject, "importers")
    assert check.outcome == "unknown"
    assert "toy/srt/worker.py: ModuleNotFoundError: No module named 'gpu_kernels'" in check.message
    assert check.message.endswith("does not import on the base either")


def test_an_importer_that_did_not_import_on_the_base_is_named_and_hides_no_other(tmp_path: Path) -> None:
    stopped = {"toy/srt/worker.py": "import gpu_kernels\nfrom toy.srt.helpers import old\n"}
    base = {**smoke_toy.BASE, **stopped, "toy/srt/worker_v2.py": "from toy.srt.helpers import old\n"}
    importing = ["toy/srt/worker.py", "toy/srt/worker_v2.py"]
    subject = toy_subject(tmp_path, base, {"toy/srt/helpers.py": "def old(): pass\n"}, importers=importing)
    check = one_check(subject, "importers")
    assert check.outcome == "pass"
    assert check.message.startswith("1 of 2 modules that import overlaid ones still import; the rest toy/srt/worker.py")
    broken = toy_subject(tmp_path / "b", base, {"toy/srt/helpers.py": "def new(): pass\n"}, importers=importing)
    check = one_check(broken, "importers")
    assert check.outcome == "fail"
    assert "1 of 2" in check.message


def test_another_error_than_on_the_base_is_unknown_too_and_shows_both(tmp_path: Path) -> None:
    base = {**smoke_toy.BASE, "toy/srt/helpers.py": "import gpu_kernels\n"}
    subject = toy_subject(tmp_path, base, {"toy/srt/helpers.py": "raise ValueError('new fault')\n"})
    check = one_check(subject, "imports")
    assert check.outcome == "unknown"
    assert "ValueError: new fault" in check.message
    assert "on the base: ModuleNotFoundError: No module named 'gpu_kernels'" in check.message


def test_a_module_that_imported_on_the_base_and_no_longer_does_fails(tmp_path: Path) -> None:
    subject = toy_subject(tmp_path, smoke_toy.BASE, {"toy/srt/helpers.py": "import not_there\n"})
    check = one_check(subject, "imports")
    assert (check.outcome, "it imported on the base" in check.message) == ("fail", True)


def test_a_module_the_base_lacks_must_import(tmp_path: Path) -> None:
    subject = toy_subject(tmp_path, smoke_toy.BASE, {"toy/srt/added.py": "import new_dependency\n"})
    check = one_check(subject, "imports")
    assert check.outcome == "fail"
    assert "No module named 'new_dependency'" in check.message
    assert "the base has no such module, so it must import" in check.message


def test_an_added_module_is_unknown_where_the_base_itself_lacks_what_it_wants(tmp_path: Path) -> None:
    base = {**smoke_toy.BASE, "toy/__init__.py": "import torch_of_another_world\n"}
    subject = toy_subject(tmp_path, base, {"toy/srt/added.py": "x = 1\n"})
    check = one_check(subject, "imports")
    assert check.outcome == "unknown"
    assert "the base's own modules do not import without it either" in check.message


def test_without_a_base_a_failure_cannot_be_blamed_on_the_overlay(tmp_path: Path) -> None:
    subject = toy_subject(tmp_path, smoke_toy.BASE, {"toy/srt/helpers.py": "import not_there\n"})
    check = one_check(replace(subject, base=None), "imports")
    assert (check.outcome, "there is no base to compare with" in check.message) == ("unknown", True)


def test_a_module_that_ends_the_interpreter_hides_only_what_comes_after_it(tmp_path: Path) -> None:
    overlaid = {
        "toy/srt/helpers.py": "def old(): pass\n",
        "toy/srt/worker.py": "import os\nprint('half a line', end='')\nos._exit(3)\n",
        "toy/srt/worker_v2.py": "from .helpers import old\n",
    }
    check = one_check(toy_subject(tmp_path, smoke_toy.BASE, overlaid), "imports")
    assert check.outcome == "unknown"
    assert check.facts["imported"] == 1
    assert check.message.startswith(
        "2 of 3 overlaid modules cannot be judged: the probe exited 3 after its step 'module'"
    )


@pytest.mark.parametrize(
    "source", ["raise SystemExit(0)\n", "raise KeyboardInterrupt\n", "import sys\nsys.exit('no GPU')\n", "x = (\n"]
)
def test_a_module_that_gives_up_when_imported_does_not_import(tmp_path: Path, source: str) -> None:
    check = one_check(toy_subject(tmp_path, smoke_toy.BASE, {"toy/srt/helpers.py": source}), "imports")
    assert check.outcome == "fail"


def test_a_module_that_hangs_is_unknown_and_never_a_pass(tmp_path: Path) -> None:
    source = "import sys, time\nprint('waiting for a GPU', file=sys.stderr, flush=True)\ntime.sleep(60)\n"
    hang = {"toy/srt/helpers.py": source}
    subject = toy_subject(tmp_path, smoke_toy.BASE, hang, limits=Limits(seconds=2))
    check = one_check(subject, "imports")
    assert check.outcome == "unknown"
    assert "the probe was stopped at its limit of 2 s after its step 'module'" in check.message
    assert check.facts["last_lines"] == ["waiting for a GPU"]


def test_an_image_without_that_interpreter_is_unknown(tmp_path: Path) -> None:
    subject = toy_subject(tmp_path, smoke_toy.BASE, {"toy/srt/helpers.py": ""}, interpreter="/nowhere/python3")
    check = one_check(subject, "imports")
    assert (check.outcome, "the image has no /nowhere/python3" in check.message) == ("unknown", True)


def test_what_the_image_prints_is_not_taken_for_an_answer(tmp_path: Path) -> None:
    noise = (
        "import os, sys\n"
        "print('Commit: ' + 40 * 'a')\n"
        'print(\'{"step": "module", "module": "toy.srt.worker", "error": null}\')\n'
        "os.write(1, b'\\x00\\xff\\n')\n"
        "sys.stdout.write('no newline')\n"
        "import gone\n"
    )
    subject = toy_subject(
        tmp_path, smoke_toy.BASE, {"toy/__init__.py": noise, "toy/srt/worker.py": "from toy.srt.helpers import old\n"}
    )
    check = one_check(subject, "imports")
    assert check.outcome == "fail"
    assert "No module named 'gone'" in check.message


def test_a_circular_import_that_depends_on_where_one_starts_is_no_failure(tmp_path: Path) -> None:
    # Started at a, helpers finds a half of it; started at helpers, all three are there.
    overlaid = {
        "toy/srt/a.py": "from toy.srt.b import name\n",
        "toy/srt/b.py": "import toy.srt.helpers\nname = 1\nimport toy.srt.a\n",
        "toy/srt/helpers.py": "from toy.srt.a import name\ndef old(): pass\n",
    }
    assert one_check(toy_subject(tmp_path, smoke_toy.BASE, overlaid), "imports").outcome == "pass"


def test_a_circular_import_that_never_ends_well_fails(tmp_path: Path) -> None:
    overlaid = {
        "toy/srt/helpers.py": "from toy.srt.b import name\ndef old(): pass\n",
        "toy/srt/b.py": "from toy.srt.helpers import old\nname = 1\n",
    }
    assert one_check(toy_subject(tmp_path, smoke_toy.BASE, overlaid), "imports").outcome == "fail"


def test_the_folder_a_process_starts_in_does_not_shadow_the_live_root(tmp_path: Path) -> None:
    # As in official images: WORKDIR holds a checkout folder of the package's name.
    subject = toy_subject(tmp_path, smoke_toy.BASE, {"toy/srt/helpers.py": "def old(): pass\n"})
    folder = tmp_path / "image"
    write_tree(folder / "live", {**smoke_toy.BASE, "toy/srt/helpers.py": "def old(): pass\n"})
    write_tree(folder, {"toy/__init__.py": "raise ImportError('the dead copy')\n"})
    engine = ProcessEngine(engine_of(subject).folders, {"PYTHONPATH": str(folder / "live")})
    check = one_check(replace(subject, engine=engine, live_root=str(folder / "live")), "imports")
    assert check.outcome == "pass", check.message


def test_a_live_root_that_the_interpreter_does_not_take_fails_and_names_both(tmp_path: Path) -> None:
    subject = toy_subject(tmp_path, smoke_toy.BASE, {"toy/srt/helpers.py": "def old(): pass\n"})
    live = write_tree(tmp_path / "live", smoke_toy.BASE)
    engine = ProcessEngine(engine_of(subject).folders, {"PYTHONPATH": str(live)})
    check = one_check(replace(subject, engine=engine, live_root="/elsewhere"), "imports")
    assert check.outcome == "fail"
    assert f"the interpreter takes toy from {live}, the overlay is in /elsewhere" in check.message


def test_an_overlaid_file_that_the_interpreter_does_not_take_fails(tmp_path: Path) -> None:
    redirect = "__path__.insert(0, __path__[0] + '/fork')\n"
    base = {**smoke_toy.BASE, "toy/srt/__init__.py": redirect, "toy/srt/fork/helpers.py": "def old(): pass\n"}
    check = one_check(toy_subject(tmp_path, base, {"toy/srt/helpers.py": "def old(): pass\n"}), "imports")
    assert check.outcome == "fail"
    assert "the interpreter takes it from" in check.message
    assert "toy/srt/fork/helpers.py, the overlay is" in check.message


def test_a_file_with_other_bytes_than_were_put_there_fails(tmp_path: Path) -> None:
    subject = toy_subject(tmp_path, smoke_toy.BASE, {"toy/srt/helpers.py": "def old(): pass\n"})
    (tmp_path / "image/toy/srt/helpers.py").write_text("def old(): return 1\n")
    check = one_check(subject, "imports")
    assert (check.outcome, "the overlay put" in check.message) == ("fail", True)


@pytest.mark.parametrize("mode", ["unchecked-hash", "timestamp"])
def test_old_bytecode_that_would_run_instead_of_the_overlaid_source_fails(tmp_path: Path, mode: str) -> None:
    subject = toy_subject(tmp_path, smoke_toy.BASE, {"toy/srt/helpers.py": "def old(): return 2\n"})
    source = tmp_path / "image/toy/srt/helpers.py"
    new = source.read_text()
    source.write_text("def old(): return 1\n")
    os.utime(source, (1000, 1000))
    invalidation = py_compile.PycInvalidationMode[mode.replace("-", "_").upper()]
    py_compile.compile(
        str(source), importlib.util.cache_from_source(str(source)), doraise=True, invalidation_mode=invalidation
    )
    source.write_text(new)
    os.utime(source, (1000, 1000))
    check = one_check(subject, "imports")
    assert (check.outcome, "old bytecode beside" in check.message) == ("fail", True)


def test_fresh_bytecode_is_no_fault(tmp_path: Path) -> None:
    subject = toy_subject(tmp_path, smoke_toy.BASE, {"toy/srt/helpers.py": "def old(): return 2\n"})
    py_compile.compile(str(tmp_path / "image/toy/srt/helpers.py"), doraise=True)
    assert one_check(subject, "imports").outcome == "pass"


def test_the_probe_leaves_no_bytecode(tmp_path: Path) -> None:
    subject = toy_subject(tmp_path, smoke_toy.BASE, {"toy/srt/helpers.py": "def old(): pass\n"})
    run(subject, ModuleChecks)
    assert not list((tmp_path / "image").rglob("*.pyc"))


def test_nothing_overlaid_is_not_applicable_and_asks_nobody(tmp_path: Path) -> None:
    subject = toy_subject(tmp_path, smoke_toy.BASE, {})
    assert [check.outcome for check in run(subject, ModuleChecks)] == ["not-applicable", "not-applicable"]


def test_the_package_itself_is_imported_first_and_no_module_twice(tmp_path: Path) -> None:
    subject = toy_subject(tmp_path, smoke_toy.BASE, {"toy/__init__.py": "", "toy/a.py": ""}, importers=["toy/b.py"])
    assert modules_to_import(subject) == ["toy", "toy.a", "toy.b"]


# -- reading the probe's output --------------------------------------------------------------------------------------


def answered(stdout: str, *, code: int | None = 0, stopped_by: Any = "", stderr: str = "") -> Answer:
    return read_answer(Completed(code, stdout, stderr, stopped_by), "n0nce", "/usr/bin/python3", LIMITS)


END = 'n0nce {"step": "end"}\n'


def test_only_lines_behind_the_nonce_count() -> None:
    answer = answered('{"step": "registry"}\nn0nc {"step": "weights"}\nx n0nce {"step": "class"}\n' + END)
    assert (answer.registry, answer.weights, answer.built, answer.fault) == (None, None, None, "")


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (answered(""), "the probe ended before its first answer and did not say so"),
        (answered('n0nce {"step": "interp'), "the probe ended before its first answer and did not say so"),
        (answered('n0nce {"step": "registry"}\n'), "the probe ended after its step 'registry' and did not say so"),
        (answered("", code=1), "the probe exited 1 before its first answer"),
        (answered("", code=139), "the probe was killed (signal 11) before its first answer"),
        (
            answered("", code=None, stopped_by="time"),
            "the probe was stopped at its limit of 60 s before its first answer",
        ),
        (answered("", code=137, stopped_by="memory"), "the probe was killed at its limit of 8 GiB of memory before"),
        (read_answer(None, "n", "/py", LIMITS), "the image has no /py"),
    ],
)
def test_a_probe_that_does_not_end_as_it_should_says_why(answer: Answer, fault: str) -> None:
    assert answer.fault.startswith(fault)
    subject = plain_subject(published=smoke_toy.draft(), overlaid=("toy/a.py",))
    for name in ("imports", "architecture", "weight-drop"):
        assert CHECKS[name](subject, Evidence(answer)).outcome == "unknown"


def test_the_last_lines_of_a_probe_that_died_are_kept() -> None:
    answer = answered("", code=1, stderr="\n".join(f"line {n}" for n in range(40)))
    assert (len(answer.last_lines), answer.last_lines[-1]) == (20, "line 39")


def test_the_probe_is_one_program_of_the_standard_library() -> None:
    source = program()
    compile(source, "model_probe.py", "exec")
    assert len(source) < 100_000, "it is handed over as one argument"


# -- the run ---------------------------------------------------------------------------------------------------------


def plain_subject(**more: Any) -> Subject:
    """Return a subject for checks that only judge."""
    wanted: dict[str, Any] = {
        "engine": ProcessEngine({}),
        "image": digest("image"),
        "read": lambda path: None,
        "package": "toy",
        "interpreter": sys.executable,
        "live_root": "/live",
    }
    return Subject(**{**wanted, **more})


def test_checks_run_in_their_order_and_one_probe_serves_them_all(tmp_path: Path) -> None:
    subject = toy_subject(
        tmp_path, smoke_toy.BASE, {"toy/srt/models/draft.py": smoke_toy.NEW_MODEL}, published=smoke_toy.draft()
    )
    checks = run(subject)
    assert [check.name for check in checks] == list(CHECKS)
    assert list(CHECKS) == ["imports", "importers", "architecture", "weight-drop", "draft-config", "lm-head"]
    assert engine_of(subject).ran == [digest("image")]


def test_an_unknown_check_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"did you mean 'weight-drop'\?"):
        run(plain_subject(), ["weigth-drop"])


def test_without_input_a_check_is_not_run_and_does_not_block() -> None:
    checks = run(plain_subject())
    outcomes = {check.name: check.outcome for check in checks}
    assert {outcomes[name] for name in ("architecture", "weight-drop", "draft-config", "lm-head")} == {"not-run"}
    assert is_passed(checks)


def test_a_required_input_that_was_not_given_fails() -> None:
    checks = by_name(run(plain_subject(), require=frozenset({"draft", "target"})))
    for name, option in (("weight-drop", "--draft"), ("draft-config", "--draft"), ("lm-head", "--target")):
        assert checks[name].outcome == "fail"
        assert option in checks[name].message
    assert checks["imports"].outcome == "not-applicable"
    assert not is_passed(tuple(checks.values()))


def test_the_published_table_does_not_stand_in_for_a_required_draft(tmp_path: Path) -> None:
    subject = toy_subject(
        tmp_path, smoke_toy.BASE, {"toy/srt/models/draft.py": smoke_toy.NEW_MODEL}, published=smoke_toy.draft()
    )
    assert one_check(subject, "architecture").outcome == "pass"
    assert one_check(subject, "architecture", require=frozenset({"draft"})).outcome == "fail"


def test_only_an_unknown_can_be_acknowledged() -> None:
    accepted = {"imports": "no torch in the quick lab"}
    engine = ProcessEngine({digest("image"): Path("/")})
    subject = plain_subject(overlaid=("toy/a.py",), engine=engine, interpreter="/nowhere")
    unknown = run(subject, ["imports"], acknowledge=accepted)
    assert (unknown[0].outcome, unknown[0].acknowledged) == ("unknown", "no torch in the quick lab")
    assert is_passed(unknown)
    assert not is_passed(run(subject, ["imports"]))
    failed = run(plain_subject(), ["lm-head"], require=frozenset({"target"}), acknowledge={"lm-head": "never mind"})
    assert failed[0].acknowledged is None
    assert not is_passed(failed)


# -- architecture ----------------------------------------------------------------------------------------------------


def test_the_architecture_resolves_to_its_own_class(tmp_path: Path) -> None:
    subject = toy_subject(
        tmp_path, smoke_toy.BASE, {"toy/srt/models/draft.py": smoke_toy.NEW_MODEL}, published=smoke_toy.draft()
    )
    check = one_check(subject, "architecture")
    assert (check.outcome, check.message) == ("pass", "DraftV2 resolves to its own class in toy.srt.models.draft")


def test_a_fallback_class_fails(tmp_path: Path) -> None:
    check = one_check(toy_subject(tmp_path, smoke_toy.BASE, {}, published=smoke_toy.draft()), "architecture")
    assert check.outcome == "fail"
    assert (
        "DraftV2 resolves to Fallback, not to a class of its own: no model module of this image defines it"
        in check.message
    )
    assert "against the published table of org/draft, not your file" in check.message


def test_a_registry_module_whose_import_error_was_swallowed_is_reported(tmp_path: Path) -> None:
    broken = "from toy.srt.helpers import gone\n" + smoke_toy.NEW_MODEL
    subject = toy_subject(tmp_path, smoke_toy.BASE, {"toy/srt/models/draft.py": broken}, published=smoke_toy.draft())
    check = one_check(subject, "architecture")
    assert check.outcome == "fail"
    assert "the registry could not import toy.srt.models.draft, which defines it" in check.message
    assert "cannot import name 'gone'" in check.message


def test_a_class_that_goes_down_with_an_overlaid_file_its_module_imports_fails(tmp_path: Path) -> None:
    base = {**smoke_toy.BASE, "toy/srt/models/draft.py": "from toy.srt.helpers import old\n" + smoke_toy.NEW_MODEL}
    subject = toy_subject(
        tmp_path,
        base,
        {"toy/srt/helpers.py": "def new(): pass\n"},
        importers=["toy/srt/models/draft.py"],
        published=smoke_toy.draft(),
    )
    check = one_check(subject, "architecture")
    assert (check.outcome, "cannot import name 'old'" in check.message) == ("fail", True)


def test_a_class_whose_module_imports_neither_here_nor_on_the_base_is_unknown(tmp_path: Path) -> None:
    base = {**smoke_toy.BASE, "toy/srt/models/draft.py": "import gpu_kernels\n"}
    overlaid = {"toy/srt/models/draft.py": "import gpu_kernels\n" + smoke_toy.NEW_MODEL}
    check = one_check(toy_subject(tmp_path, base, overlaid, published=smoke_toy.draft()), "architecture")
    assert (check.outcome, "No module named 'gpu_kernels'" in check.message) == ("unknown", True)


def test_another_overlaid_model_that_the_registry_left_out_fails(tmp_path: Path) -> None:
    overlaid = {
        "toy/srt/models/draft.py": smoke_toy.NEW_MODEL,
        "toy/srt/models/fallback.py": "import gone\n" + smoke_toy.MODEL.format(name="Fallback"),
    }
    check = one_check(toy_subject(tmp_path, smoke_toy.BASE, overlaid, published=smoke_toy.draft()), "architecture")
    assert check.outcome == "fail"
    assert "the registry left out overlaid modules without a word: toy.srt.models.fallback" in check.message


def test_a_class_from_another_file_than_the_overlaid_one_fails(tmp_path: Path) -> None:
    base = {**smoke_toy.BASE, "toy/srt/models/zz_fork.py": smoke_toy.MODEL.format(name="DraftV2")}
    overlaid = {"toy/srt/models/draft.py": smoke_toy.NEW_MODEL}
    check = one_check(toy_subject(tmp_path, base, overlaid, published=smoke_toy.draft()), "architecture")
    assert check.outcome == "fail"
    assert "zz_fork.py, and not from the overlaid toy/srt/models/draft.py" in check.message


def registry_answer(**facts: Any) -> Answer:
    sound = {"architecture": "A", "cls": "A", "module": "toy.m", "file": "/live/toy/m.py", "known": 3, "swallowed": {}}
    interpreter = {"package_root": "/live", "live_root": "/live"}
    return Answer(interpreter, {}, {**sound, **facts})


def test_a_class_from_outside_the_live_root_fails() -> None:
    answer = registry_answer(file="/opt/plugins/m.py")
    check = check_architecture(plain_subject(published=smoke_toy.draft("A")), Evidence(answer))
    assert check.outcome == "fail"
    assert "outside the live root /live" in check.message


def test_a_registry_that_cannot_be_imported_is_unknown_with_its_error() -> None:
    answer = registry_answer(error={"type": "ModuleNotFoundError", "message": "No module named 'torch'", "at": None})
    check = check_architecture(plain_subject(published=smoke_toy.draft("A")), Evidence(answer))
    assert (check.outcome, "No module named 'torch'" in check.message) == ("unknown", True)


def test_a_draft_config_without_an_architecture_fails() -> None:
    draft = PublishedDraft("org/x", {}, {})
    assert check_architecture(plain_subject(published=draft), Evidence()).outcome == "fail"


# -- weight-drop: the judgement --------------------------------------------------------------------------------------


def weights_answer(consumed: list[str], filled: Mapping[str, list[int]] | None = None, **more: Any) -> dict[str, Any]:
    sound: dict[str, Any] = {
        "error": None,
        "method": "meta device, two trackers",
        "by_loader": consumed,
        "by_copy": consumed,
        "kept": [],
        "filled": filled or {},
        "cast": [],
        "repeated": [],
    }
    return {**sound, **more}


def published_shapes() -> Shapes:
    tensors = checkpoints.draft_tensors(checkpoints.PUBLISHED_DRAFT)
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}


def test_a_renamed_architecture_that_drops_the_new_weights_fails_with_groups_and_the_contradiction() -> None:
    shapes = published_shapes()
    kept = [name for name in shapes if "_conv." not in name and "candidate_selector" not in name]
    config = checkpoints.draft_config(checkpoints.PUBLISHED_DRAFT)
    check = judge_weights("DFlashDraftModel", weights_answer(kept), shapes, config)
    assert check.outcome == "fail"
    assert check.facts["consumed"] == 58
    assert len(check.facts["dropped"]) == 23  # type: ignore[arg-type]
    assert "DFlashDraftModel drops 23 of 81 tensors (194,191,360 parameters, 10.1% of the bytes)" in check.message
    for group in ("layers.*.attention_conv (10)", "layers.*.mlp_conv (10)", "candidate_selector (3)"):
        assert group in check.message
    for field in ("dflash_config.conv_kernel_size = 2", "dflash_config.selector_rank = 256"):
        assert field in check.message
    assert "which DFlashDraftModel does not use" in check.message


def test_a_parameter_that_no_tensor_fills_fails_by_name() -> None:
    filled = {"w": [4, 4], "codebook": [0, 64], "qkv": [32, 48]}
    check = judge_weights("A", weights_answer(["w"], filled), {"w": ("BF16", (2, 2))}, {})
    assert check.outcome == "fail"
    assert check.facts["unfilled"] == ["codebook", "qkv"]
    assert "codebook (0 of 64), qkv (32 of 48)" in check.message


def test_everything_consumed_and_filled_passes_and_says_against_what() -> None:
    answer = weights_answer(["w"], {"w": [4, 4]})
    shapes = {"w": ("BF16", (2, 2))}
    assert judge_weights("A", answer, shapes, {}).message == "A loads all 1 tensors and fills every parameter"
    built = Answer(built={"cls": "A", "error": None}, weights=answer)
    check = check_weight_drop(plain_subject(published=smoke_toy.draft("A")), Evidence(built))
    assert (check.outcome, check.facts["source"]) == ("pass", "the published table")
    assert "against the published table of org/draft, not your file" in check.message


def test_trackers_that_disagree_are_unknown_never_a_pass() -> None:
    answer = weights_answer(["w", "x"], {"w": [4, 4]}, by_copy=["w"])
    check = judge_weights("A", answer, {"w": ("BF16", (2, 2)), "x": ("BF16", (2, 2))}, {})
    assert check.outcome == "unknown"
    assert check.message == "the two trackers disagree about x"
    assert check.facts["only_by_loader"] == ["x"]


def test_a_tensor_kept_beside_the_parameters_is_consumed() -> None:
    answer = weights_answer(["w"], {"w": [4, 4]}, kept=["d2t"])
    assert judge_weights("A", answer, {"w": ("BF16", (2, 2)), "d2t": ("I64", (8,))}, {}).outcome == "pass"


def error(kind: str, message: str, *, by_package: bool) -> dict[str, Any]:
    return {"type": kind, "message": message, "at": "/x.py:3", "raised_by_package": by_package, "tensor": "fc.weight"}


def test_a_loader_that_refuses_a_tensor_fails_and_one_that_stumbles_is_unknown() -> None:
    shapes = {"fc.weight": ("BF16", (2, 2))}
    refused = weights_answer([], error=error("ValueError", "fc.weight shape mismatch", by_package=True))
    check = judge_weights("A", refused, shapes, {})
    assert check.outcome == "fail"
    assert check.message.startswith("A.load_weights stops at fc.weight: ValueError: fc.weight shape mismatch (/x.py:3)")
    for stumbled in (
        error("NotImplementedError", "Cannot copy out of meta tensor", by_package=False),
        error("ValueError", "deep inside torch", by_package=False),
        error("AttributeError", "'Group' object has no attribute 'x'", by_package=True),
    ):
        assert judge_weights("A", weights_answer([], error=stumbled), shapes, {}).outcome == "unknown"


def test_a_class_that_cannot_be_built_is_unknown_with_the_reason() -> None:
    subject = plain_subject(published=smoke_toy.draft("A"))
    for built, why in (
        ({"error": error("RuntimeError", "no CUDA", by_package=True)}, "RuntimeError: no CUDA"),
        (
            {"error": None, "cls": None, "reason": "the registry answers Fallback instead"},
            "the registry answers Fallback",
        ),
    ):
        answer = Answer(built=built, weights={"error": None, "reason": "the class was not built"})
        check = check_weight_drop(subject, Evidence(answer))
        assert (check.outcome, why in check.message) == ("unknown", True)


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("layers.0.attention_conv.kernel_projection.weight", "layers.*.attention_conv"),
        ("model.layers.12.mlp.experts.3.w1.weight", "model.layers.*.mlp.experts.*.w1"),
        ("candidate_selector.successor_codebook", "candidate_selector"),
        ("model.embed_tokens.weight", "model.embed_tokens"),
        ("fc.weight", "fc"),
    ],
)
def test_tensors_are_grouped_by_the_part_they_belong_to(name: str, prefix: str) -> None:
    assert prefix_of(name) == prefix


# -- draft-config ----------------------------------------------------------------------------------------------------


def draft_of(tmp_path: Path, bend: Callable[[dict[str, Any]], None] | None = None, drop: str = "") -> Checkpoint:
    config = checkpoints.draft_config()
    if bend is not None:
        bend(config)
    tensors = {name: tensor for name, tensor in checkpoints.draft_tensors().items() if not drop or drop not in name}
    return open_checkpoint(checkpoints.write_draft(tmp_path / "draft", config=config, tensors=tensors))


def without(key: str) -> Callable[[dict[str, Any]], None]:
    def bend(config: dict[str, Any]) -> None:
        config.pop(key, None)
        config["dflash_config"].pop(key, None)

    return bend


def setting(key: str, value: object, *, nested: bool = True) -> Callable[[dict[str, Any]], None]:
    def bend(config: dict[str, Any]) -> None:
        (config["dflash_config"] if nested else config)[key] = value

    return bend


def test_a_right_draft_config_passes(tmp_path: Path) -> None:
    check = check_draft_config(plain_subject(draft=draft_of(tmp_path), draft_tokens=8), Evidence())
    assert (check.outcome, check.facts["faults"]) == ("pass", [])


BENT: Mapping[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "no target layers": (without("target_layer_ids"), "target_layer_ids is None, not a list of layers"),
    "target layers as text": (setting("target_layer_ids", "1,3,5"), "target_layer_ids is '1,3,5'"),
    "a layer twice": (setting("target_layer_ids", [1, 3, 3]), "repeats a layer"),
    "too few target layers": (setting("target_layer_ids", [1, 3]), "fc.weight takes 192 inputs, 2 target_layer_ids"),
    "a layer out of range": (setting("target_layer_ids", [1, 3, 99]), "target_layer_ids [99] do not exist"),
    "no block size": (without("block_size"), "block_size is None"),
    "rank without top-k": (without("selector_top_k"), "selector_rank = 16 is set without selector_top_k"),
    "top-k without rank": (without("selector_rank"), "selector_top_k = 4 is set without selector_rank"),
    "taps without group": (without("conv_group_size"), "conv_kernel_size = 2 is set without conv_group_size"),
    "wrong rank": (setting("selector_rank", 8), "predecessor_codebook is 384 x 16, by vocab_size and selector_rank"),
    "wrong taps": (setting("conv_kernel_size", 3), "base_kernel is 2 x 2 x 64, by conv_kernel_size it is 2 x 3 x 64"),
    "wrong group": (setting("conv_group_size", 32), "kernel_projection.weight has 16 rows"),
    "no mask token": (without("mask_token_id"), "neither mask_token_id nor mask_token is set"),
    "mask token out of range": (setting("mask_token_id", 384), "mask_token_id 384 is outside the vocabulary of 384"),
    "wrong layer count": (setting("num_hidden_layers", 3, nested=False), "num_hidden_layers is 3, the tensors have"),
    "layer types too short": (setting("layer_types", ["full_attention"], nested=False), "layer_types has 1 entries"),
    "no window": (without("sliding_window"), "sliding_window is not set"),
    "wrong heads": (setting("num_attention_heads", 8, nested=False), "self_attn.q_proj.weight is 64 x 64"),
    "anchor turned off": (setting("sample_from_anchor", value=False), "sample_from_anchor = false"),
}


@pytest.mark.parametrize("case", BENT)
def test_a_field_that_is_missing_or_bent_is_a_named_failure(tmp_path: Path, case: str) -> None:
    bend, expected = BENT[case]
    check = check_draft_config(plain_subject(draft=draft_of(tmp_path, bend)), Evidence())
    assert check.outcome == "fail"
    assert expected in check.message


def test_fields_of_parts_that_the_checkpoint_lacks_fail(tmp_path: Path) -> None:
    check = check_draft_config(plain_subject(draft=draft_of(tmp_path, drop="candidate_selector")), Evidence())
    assert (
        "dflash_config.selector_rank = 16, and the checkpoint has no tensor of *candidate_selector.*" in check.message
    )


def test_tensors_of_parts_that_the_config_does_not_name_fail(tmp_path: Path) -> None:
    def bend(config: dict[str, Any]) -> None:
        del config["dflash_config"]["selector_rank"], config["dflash_config"]["selector_top_k"]

    check = check_draft_config(plain_subject(draft=draft_of(tmp_path, bend)), Evidence())
    assert (
        "the checkpoint has 3 tensors of *candidate_selector.*, and dflash_config.selector_rank is not set"
        in check.message
    )


def test_more_draft_tokens_than_the_block_holds_fail_and_fewer_are_noted(tmp_path: Path) -> None:
    draft = draft_of(tmp_path)
    more = check_draft_config(plain_subject(draft=draft, draft_tokens=9), Evidence())
    assert more.outcome == "fail"
    assert "9 draft tokens are asked for, the draft was trained on blocks of 8" in more.message
    fewer = check_draft_config(plain_subject(draft=draft, draft_tokens=4), Evidence())
    assert (fewer.outcome, "only part of the block of 8" in fewer.message) == ("pass", True)


def test_a_draft_of_another_width_than_its_target_fails(tmp_path: Path) -> None:
    target = open_checkpoint(checkpoints.write_target(tmp_path / "target"))
    sizes = replace(checkpoints.SMALL_DRAFT, vocab=256)
    folder = checkpoints.write_draft(
        tmp_path / "other", config=checkpoints.draft_config(sizes), tensors=checkpoints.draft_tensors(sizes)
    )
    same = check_draft_config(plain_subject(draft=draft_of(tmp_path), target=target), Evidence())
    assert same.outcome == "pass", same.message
    check = check_draft_config(plain_subject(draft=open_checkpoint(folder), target=target), Evidence())
    assert f"vocab_size is 256, the target's is {checkpoints.TARGET_VOCAB}" in check.message


def test_causality_that_the_built_class_does_not_honour_fails(tmp_path: Path) -> None:
    layers = [{"name": f"layers.{n}.self_attn.attn", "type": "decoder", "window": 2047} for n in range(2)]
    evidence = Evidence(Answer(built={"cls": "DFlash2DraftModel", "attention": layers}))
    check = check_draft_config(plain_subject(draft=draft_of(tmp_path)), evidence)
    assert check.outcome == "fail"
    assert "is_causal = false, and DFlash2DraftModel builds 2 layers causal" in check.message
    honest = [{**layer, "type": "encoder_only"} for layer in layers]
    seen = Evidence(Answer(built={"cls": "DFlash2DraftModel", "attention": honest}))
    assert check_draft_config(plain_subject(draft=draft_of(tmp_path)), seen).message == "every field agrees"


def test_tensors_that_differ_from_the_published_ones_are_noted(tmp_path: Path) -> None:
    subject = plain_subject(draft=draft_of(tmp_path), published=smoke_toy.draft())
    check = check_draft_config(subject, Evidence())
    assert "37 tensors differ from the published org/draft" in check.message


def test_another_kind_of_draft_is_not_applicable() -> None:
    subject = plain_subject(published=smoke_toy.draft("LlamaForCausalLMEagle3"))
    assert check_draft_config(subject, Evidence()).outcome == "not-applicable"


# -- lm-head: how it is stored ---------------------------------------------------------------------------------------

V, H = 64, 32


def target(tensors: Mapping[str, tuple[str, tuple[int, ...]]], **config: Any) -> Checkpoint:
    found = {name: Tensor(dtype, shape, "model.safetensors", 0, 0) for name, (dtype, shape) in tensors.items()}
    return Checkpoint("target", "/t", found, {"text_config": {"vocab_size": V, "hidden_size": H}, **config})


DENSE = ("BF16", (V, H))
PACKED = {
    "lm_head.weight": ("U8", (V, H // 2)),
    "lm_head.weight_scale": ("F8_E4M3", (V, H // 16)),
    "lm_head.weight_scale_2": ("F32", ()),
}

HEADS: Mapping[str, tuple[Checkpoint, str, str]] = {
    "BF16": (target({"lm_head.weight": DENSE}), "dense", ""),
    "F16": (target({"lm_head.weight": ("F16", (V, H))}), "dense", ""),
    "F32": (target({"lm_head.weight": ("F32", (V, H))}), "dense", ""),
    "nested prefix": (target({"model.language_model.lm_head.weight": DENSE}), "dense", ""),
    "FP8 with its scale": (
        target({"lm_head.weight": ("F8_E4M3", (V, H)), "lm_head.weight_scale_inv": ("F32", (1, 1))}),
        "packed",
        "",
    ),
    "FP8 without a scale": (target({"lm_head.weight": ("F8_E4M3", (V, H))}), "broken", "without a scale"),
    "BF16 with a scale": (
        target({"lm_head.weight": DENSE, "lm_head.input_scale": ("F32", ())}),
        "packed",
        "",
    ),
    "NVFP4": (target(PACKED), "packed", ""),
    "GPTQ": (target({"lm_head.qweight": ("I32", (H // 8, V)), "lm_head.scales": ("F16", (1, V))}), "packed", ""),
    "compressed": (target({"lm_head.weight_packed": ("I32", (V, H // 8))}), "packed", ""),
    "wrong shape": (target({"lm_head.weight": ("BF16", (V, H + 1))}), "broken", "by the config it is 64 x 32"),
    "no sizes": (replace(target({"lm_head.weight": DENSE}), config={}), "unclear", "does not tell vocab_size"),
    "two candidates": (
        target({"lm_head.weight": DENSE, "language_model.lm_head.weight": DENSE}),
        "unclear",
        "2 tensors could be the head",
    ),
    "unknown prefix": (target({"tower.lm_head.weight": DENSE}), "unclear", "under a prefix nobody knows"),
    "tied": (target({"model.embed_tokens.weight": DENSE}, tie_word_embeddings=True), "dense", ""),
    "tied with a head beside": (
        target({"lm_head.weight": ("U8", (V, 1)), "model.embed_tokens.weight": DENSE}, tie_word_embeddings=True),
        "dense",
        "",
    ),
    "tied and packed": (
        target(
            {"model.embed_tokens.weight": ("U8", (V, H // 2)), "model.embed_tokens.weight_scale": ("F32", ())},
            tie_word_embeddings=True,
        ),
        "packed",
        "",
    ),
    "absent, config silent": (target({"model.embed_tokens.weight": DENSE}), "dense", ""),
    "absent and not tied": (
        target({"model.embed_tokens.weight": DENSE}, tie_word_embeddings=False),
        "broken",
        "there is no lm_head, and the config says it is not tied",
    ),
    "nothing at all": (target({"norm.weight": ("BF16", (H,))}), "unclear", "of which there are 0"),
}


@pytest.mark.parametrize("case", HEADS)
def test_the_head_is_judged_by_the_headers(case: str) -> None:
    checkpoint, kind, fault = HEADS[case]
    head = read_head(checkpoint)
    assert head.kind == kind
    assert fault in head.fault
    assert bool(fault) == bool(head.fault)


def test_a_tied_head_says_that_the_embedding_was_judged() -> None:
    check = check_lm_head(plain_subject(target=HEADS["tied"][0]), Evidence())
    assert check.outcome == "pass"
    assert "model.embed_tokens.weight BF16 64 x 32 (tied to the embedding)" in check.message


SAYINGS: Mapping[str, tuple[dict[str, Any], str]] = {
    "ignore": ({"quant_method": "compressed-tensors", "ignore": ["lm_head"]}, "excluded"),
    "ignored_layers": ({"quant_method": "fp8", "ignored_layers": ["lm_head"]}, "excluded"),
    "modules_to_not_convert": ({"quant_method": "fp8", "modules_to_not_convert": ["model.x", "lm_head"]}, "excluded"),
    "exclude_modules, one level down": (
        {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}},
        "excluded",
    ),
    "exclude": ({"quant_method": "quark", "exclude": ["lm_head"]}, "excluded"),
    "wildcard": ({"quant_method": "modelopt", "exclude_modules": ["*lm_head*"]}, "excluded"),
    "expression": ({"quant_method": "compressed-tensors", "ignore": ["re:.*lm_head"]}, "excluded"),
    "broken expression": ({"quant_method": "compressed-tensors", "ignore": ["re:("]}, "nothing"),
    "another module": ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.mlp"]}, "nothing"),
    "targets by name": (
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear", "re:.*lm_head"]}}},
        "quantized",
    ),
    "targets by kind": (
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"]}}},
        "nothing",
    ),
    "quantized_layers": (
        {"quant_method": "modelopt", "quantized_layers": {"lm_head": {"quant_algo": "FP8"}}},
        "quantized",
    ),
    "lm_head flag": ({"quant_method": "gptq", "lm_head": True}, "quantized"),
}


@pytest.mark.parametrize("case", SAYINGS)
def test_every_spelling_of_excluded_and_quantized_is_read(case: str) -> None:
    quantization, expected = SAYINGS[case]
    said = read_config(target({"lm_head.weight": DENSE}, quantization_config=quantization), "language_model.lm_head")
    assert said.verdict == expected


@pytest.mark.parametrize(
    ("quantization", "method"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt_fp4"),
        ({"quantization": {"quant_algo": "W4A16_NVFP4"}}, "modelopt_fp4"),
        ({"quantization": {"quant_algo": "FP8"}}, "modelopt_fp8"),
        ({"quantization": {"quant_algo": "MIXED_PRECISION"}}, "modelopt_mixed"),
        ({"quant_method": "modelopt", "quant_algo": "new"}, "modelopt"),
    ],
)
def test_the_quantization_method_is_the_one_sglang_derives(quantization: dict[str, Any], method: str) -> None:
    assert method_of(target({}, quantization_config=quantization)) == method


# -- lm-head: what the merged tree needs -----------------------------------------------------------------------------

DRAFT_MODEL = "toy/srt/models/dflash.py"

GUARDED = """
class Selector:
    def compute_candidates(self, hidden):
        top_k = self.candidate_selector.top_k
        weight = getattr(self.lm_head, "weight", None)
        {before}
        if {condition}:
            raise RuntimeError("dense head required")
        return {result}
"""


def selector(condition: str, *, before: str = "pass", result: str = "hidden @ weight.T") -> str:
    return GUARDED.format(condition=condition, before=before, result=result)


DENSE_ONLY = selector("not is_dense_head_weight(weight)")
WITH_PATH = selector(
    "not use_quant_head and not is_dense_head_weight(weight)",
    before="use_quant_head = should_apply_lm_head_quant_method(self.lm_head, self.lm_head.quant_method)",
    result="self.lm_head.quant_method.apply(self.lm_head, hidden, None)",
)

NEEDS: Mapping[str, tuple[str | None, str]] = {
    "only #35371": (DENSE_ONLY, "dense-only"),
    "#35371 and #35496": (WITH_PATH, "quantized-path"),
    "a guard by module": (selector("not utils.is_dense_head_weight(weight)"), "dense-only"),
    "a path without a guard": (
        "def f(self):\n    self.candidate_selector.x\n    return self.lm_head.quant_method.apply(self.lm_head, h)\n",
        "quantized-path",
    ),
    "admitted, never applied": (
        selector("not q and not is_dense_head_weight(weight)", before="q = takes_quant_method(self.lm_head)"),
        "unknown",
    ),
    "a selector without a guard": (
        "def f(self):\n    return self.candidate_selector(self.lm_head.weight)\n",
        "unknown",
    ),
    "no selector": ("class DFlashDraftModel:\n    pass\n", "no-selector"),
    "a field of that name only": ("class A:\n    candidate_selector = None\n", "no-selector"),
    "no file": (None, "no-selector"),
    "does not parse": ("def f(:\n", "unknown"),
}


@pytest.mark.parametrize("case", NEEDS)
def test_what_the_selector_needs_is_read_from_the_source(case: str) -> None:
    source, expected = NEEDS[case]
    need = read_need(source.encode() if source is not None else None, DRAFT_MODEL)
    assert need.verdict == expected
    assert DRAFT_MODEL in need.evidence


def test_what_the_selector_needs_in_real_trees(trees: Callable[[str], Path]) -> None:
    path = "sglang/srt/models/dflash.py"
    expected = {"0.5.17": "no-selector", "0.5.18": "no-selector"}
    for patch in range(17, 24):
        version = f"0.5.{patch}"
        source = (trees(version) / path).read_bytes()
        assert read_need(source, path).verdict == expected.get(version, "quantized-path"), version


def test_a_real_tree_without_the_quantized_path_requires_a_dense_head(trees: Callable[[str], Path]) -> None:
    path = "sglang/srt/models/dflash.py"
    source = (trees("0.5.19") / path).read_text()
    # What #35371 alone brings: the same guard, before #35496 let a quantization method through.
    before = source.replace("not use_quant_head and not is_dense_head_weight(", "not is_dense_head_weight(")
    assert before != source
    assert read_need(before.encode(), path).verdict == "dense-only"


QUANTIZATION = {
    "toy/srt/layers/quantization/__init__.py": (
        "from toy.srt.layers.quantization.four import FourConfig\n"
        "from toy.srt.layers.quantization.eight import EightConfig\n"
        'METHODS: dict = {"modelopt_fp4": FourConfig, "fp8": EightConfig, "lost": LostConfig}\n'
        'CPU_METHODS = {"fp8": FourConfig}\n'
    ),
    "toy/srt/layers/quantization/four.py": (
        "class Common:\n    def get(self, layer):\n        return isinstance(layer, ParallelLMHead)\n"
        "class FourConfig(Common):\n    pass\n"
    ),
    "toy/srt/layers/quantization/eight.py": (
        "class EightConfig:\n    def get(self, layer):\n        return isinstance(layer, LinearBase)\n"
        "class Other:\n    def get(self, layer):\n        return isinstance(layer, ParallelLMHead)\n"
    ),
}


def read_of(files: Mapping[str, str]) -> Callable[[str], bytes | None]:
    return lambda path: text.encode() if (text := files.get(path)) is not None else None


@pytest.mark.parametrize(("method", "expected"), [("modelopt_fp4", True), ("fp8", False), ("lost", None), ("x", None)])
def test_whether_a_quantization_method_sees_the_head_is_read_from_the_source(
    method: str, expected: bool | None
) -> None:
    assert handles_heads(read_of(QUANTIZATION), "toy", method)[0] is expected


def test_whether_real_quantization_methods_see_the_head(trees: Callable[[str], Path]) -> None:
    def read(version: str) -> Callable[[str], bytes | None]:
        root = trees(version)
        return lambda path: (root / path).read_bytes() if (root / path).is_file() else None

    for version in ("0.5.17", "0.5.19", "0.5.23"):
        assert handles_heads(read(version), "sglang", "fp8")[0] is False
        assert handles_heads(read(version), "sglang", "modelopt_fp4")[0] is True
    assert handles_heads(read("0.5.17"), "sglang", "compressed-tensors")[0] is False
    assert handles_heads(read("0.5.19"), "sglang", "compressed-tensors")[0] is True


def head_check(head: Any, model: str, tmp_path: Path, **more: Any) -> Check:
    checkpoint = (
        head if isinstance(head, Checkpoint) else open_checkpoint(checkpoints.write_target(tmp_path / "t", head))
    )
    read = read_of({**QUANTIZATION, DRAFT_MODEL: model})
    return check_lm_head(plain_subject(target=checkpoint, read=read, **more), Evidence())


def test_a_packed_head_fails_where_the_merged_tree_lacks_the_path(tmp_path: Path) -> None:
    check = head_check("packed", DENSE_ONLY, tmp_path)
    assert check.outcome == "fail"
    assert "dense head required, found packed U8 + scales" in check.message
    assert "overlay lacks quantized-head path" in check.message


def test_a_packed_head_passes_with_a_note_where_the_merged_tree_has_the_path(tmp_path: Path) -> None:
    check = head_check("packed", WITH_PATH, tmp_path)
    assert check.outcome == "pass", check.message
    assert "the selector may run outside the draft graph" in check.message


def test_a_dense_head_passes_in_both_trees(tmp_path: Path) -> None:
    for number, model in enumerate((DENSE_ONLY, WITH_PATH)):
        assert head_check("bf16", model, tmp_path / str(number)).outcome == "pass"


def test_an_fp8_head_fails_in_both_trees_since_its_scale_would_be_ignored(tmp_path: Path) -> None:
    assert "found packed F8_E4M3 + scales" in head_check("fp8", DENSE_ONLY, tmp_path / "a").message
    check = head_check("fp8", WITH_PATH, tmp_path / "b")
    assert check.outcome == "fail"
    assert "never looks at ParallelLMHead: it is cast and its scale ignored" in check.message


def test_a_packed_head_that_nobody_can_judge_is_unknown(tmp_path: Path) -> None:
    described = {"quant_method": "of the future"}
    for checkpoint, model in (
        (target(PACKED, quantization_config=described), WITH_PATH),
        (
            target(PACKED, quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"}),
            "class A:\n    pass\n",
        ),
        (HEADS["two candidates"][0], WITH_PATH),
    ):
        assert head_check(checkpoint, model, tmp_path).outcome == "unknown"


def test_where_config_and_headers_disagree_the_headers_win_and_it_is_said(tmp_path: Path) -> None:
    by_name = {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["re:.*lm_head"]}}}
    check = head_check(target({"lm_head.weight": DENSE}, quantization_config=by_name), DENSE_ONLY, tmp_path)
    assert check.outcome == "pass"
    assert (
        "the config says the head is quantized (g.targets has 're:.*lm_head'), the headers say it is dense"
        in check.message
    )
    silent = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": []}
    check = head_check(target({"lm_head.weight": DENSE}, quantization_config=silent), DENSE_ONLY, tmp_path)
    assert "the config does not exclude the head from modelopt_fp4" in check.message
    excluded = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    check = head_check(target(PACKED, quantization_config=excluded), WITH_PATH, tmp_path)
    assert check.outcome == "fail"
    assert "ignore has 'lm_head': it would be read as dense" in check.message
    # Fp8Config never quantizes the head, so saying nothing about it is no disagreement.
    quiet = {"quant_method": "fp8", "modules_to_not_convert": []}
    assert head_check(target({"lm_head.weight": DENSE}, quantization_config=quiet), DENSE_ONLY, tmp_path).message == (
        "the target's head is dense: lm_head.weight BF16 64 x 32"
    )


def test_facts_are_json(tmp_path: Path) -> None:
    subject = toy_subject(
        tmp_path,
        smoke_toy.BASE,
        {"toy/srt/models/draft.py": smoke_toy.NEW_MODEL},
        draft=draft_of(tmp_path),
        target=open_checkpoint(checkpoints.write_target(tmp_path / "t", "packed")),
    )
    for check in run(subject):
        json.dumps(check.facts)


# -- real images -----------------------------------------------------------------------------------------------------

# One probe of the torch base costs ten to twenty seconds of imports, so each test asks all it can of one.


def real_subject(base: Any, trees: Callable[[str], Path], **more: Any) -> Subject:
    """Return a base as its own subject: nothing overlaid, read from the release's tree."""
    root = trees(base.version)
    wanted: dict[str, Any] = {
        "engine": connect(),
        "image": Digest(base.id),
        "base": Digest(base.id),
        "read": lambda path: (root / path).read_bytes() if (root / path).is_file() else None,
        "package": "sglang",
        "interpreter": "/usr/bin/python3",
        "live_root": base.package_parent,
    }
    return Subject(**{**wanted, **more})


def v1_draft(tmp_path: Path) -> Checkpoint:
    return open_checkpoint(checkpoints.write_draft_rewritten_to_v1(tmp_path / "v1"))


def v2_draft(tmp_path: Path) -> Checkpoint:
    return open_checkpoint(checkpoints.write_draft(tmp_path / "v2"))


CONVOLUTIONS = [
    f"layers.{layer}.{part}.{leaf}"
    for layer in range(2)
    for part in ("attention_conv", "mlp_conv")
    for leaf in ("base_kernel", "kernel_projection.weight")
]
SELECTOR = [
    f"candidate_selector.{leaf}" for leaf in ("hidden_projection.weight", "predecessor_codebook", "successor_codebook")
]
DFLASH = ("sglang/srt/models/dflash.py", "sglang/srt/speculative/dflash_worker_v2.py")
FIVE_FILES = (
    "kernels/ops/speculative/dflash.py",
    "srt/models/dflash.py",
    "srt/speculative/dflash_utils.py",
    "srt/speculative/dflash_worker_v2.py",
    "srt/model_executor/model_runner_components/spec_aux_hidden_state.py",
)


def test_0_5_17_with_the_config_rewritten_to_v1_drops_exactly_eleven(
    torch_base: Any, trees: Callable[[str], Path], tmp_path: Path
) -> None:
    subject = real_subject(torch_base("0.5.17"), trees, draft=v1_draft(tmp_path), overlaid=DFLASH)
    checks = by_name(run(subject))
    assert checks["imports"].outcome == "pass", checks["imports"].message
    assert checks["architecture"].outcome == "pass", checks["architecture"].message
    dropped = checks["weight-drop"]
    assert dropped.outcome == "fail"
    assert dropped.facts["dropped"] == sorted(SELECTOR + CONVOLUTIONS)
    assert (dropped.facts["tensors"], dropped.facts["consumed"], dropped.facts["unfilled"]) == (36, 25, [])
    assert dropped.facts["class"] == "DFlashDraftModel"
    # The v1 class of this era builds sliding layers causal whatever the config says.
    assert "is_causal = false, and DFlashDraftModel builds 2 layers causal" in checks["draft-config"].message


def test_0_5_17_with_the_true_architecture_falls_back_and_fails(
    torch_base: Any, trees: Callable[[str], Path], tmp_path: Path
) -> None:
    checks = by_name(run(real_subject(torch_base("0.5.17"), trees, draft=v2_draft(tmp_path))))
    assert checks["architecture"].outcome == "fail"
    assert "DFlash2DraftModel resolves to TransformersForCausalLM" in checks["architecture"].message
    assert checks["weight-drop"].outcome == "unknown"


def test_0_5_19_with_the_true_architecture_drops_nothing(
    torch_base: Any, trees: Callable[[str], Path], tmp_path: Path
) -> None:
    target_checkpoint = open_checkpoint(checkpoints.write_target(tmp_path / "target"))
    subject = real_subject(torch_base("0.5.19"), trees, draft=v2_draft(tmp_path), target=target_checkpoint)
    checks = by_name(run(subject))
    assert is_passed(tuple(checks.values())), checks
    assert checks["architecture"].message == "DFlash2DraftModel resolves to its own class in sglang.srt.models.dflash"
    facts = checks["weight-drop"].facts
    assert (facts["consumed"], facts["dropped"], facts["unfilled"], facts["cast"]) == (36, [], [], [])
    assert checks["draft-config"].message == "every field agrees"


def test_0_5_19_with_the_config_rewritten_to_v1_drops_exactly_the_selector(
    torch_base: Any, trees: Callable[[str], Path], tmp_path: Path
) -> None:
    dropped = one_check(real_subject(torch_base("0.5.19"), trees, draft=v1_draft(tmp_path)), "weight-drop")
    assert dropped.outcome == "fail"
    assert dropped.facts["dropped"] == SELECTOR
    assert "which DFlashDraftModel does not use" in dropped.message


def test_a_checkpoint_without_one_codebook_leaves_exactly_that_parameter_unfilled(
    torch_base: Any, trees: Callable[[str], Path], tmp_path: Path
) -> None:
    draft = draft_of(tmp_path, drop="successor_codebook")
    check = one_check(real_subject(torch_base("0.5.19"), trees, draft=draft), "weight-drop")
    assert check.outcome == "fail"
    assert check.facts["dropped"] == []
    assert check.facts["unfilled"] == ["candidate_selector.successor_codebook"]


@pytest.mark.parametrize(
    ("version", "architecture", "consumed"), [("0.5.17", "DFlashDraftModel", 58), ("0.5.19", "DFlash2DraftModel", 81)]
)
def test_the_published_tensors_are_judged_at_full_size(
    torch_base: Any, trees: Callable[[str], Path], version: str, architecture: str, consumed: int
) -> None:
    config = {**checkpoints.draft_config(checkpoints.PUBLISHED_DRAFT), "architectures": [architecture]}
    published = PublishedDraft("z-lab/Qwen3.8-27B-DFlash2", config, published_shapes())
    subject = real_subject(torch_base(version), trees, published=published)
    evidence = gather(subject, ["weight-drop"])
    check = check_weight_drop(subject, evidence)
    assert (check.facts["tensors"], check.facts["consumed"]) == (81, consumed)
    built, weights = evidence.built.built, evidence.built.weights
    assert built is not None
    assert weights is not None
    # Beyond the imports: under a second, under 100 MB, for 1.9 billion parameters.
    assert built["seconds"] + weights["seconds"] < 1
    assert built["grown_kilobytes"] + weights["grown_kilobytes"] < 100_000


def test_a_base_without_torch_answers_unknown_and_says_what_it_lacks(
    tiny_base: Any, trees: Callable[[str], Path], tmp_path: Path
) -> None:
    subject = real_subject(
        tiny_base("0.5.17"),
        trees,
        draft=v2_draft(tmp_path),
        overlaid=DFLASH,
        importers=("sglang/srt/models/dspark.py",),
    )
    checks = by_name(run(subject))
    for name in ("imports", "importers", "architecture", "weight-drop"):
        assert checks[name].outcome == "unknown", checks[name]
        assert "No module named" in checks[name].message
    assert "does not import on the base either" in checks["imports"].message
    accepted = dict.fromkeys(("imports", "importers", "architecture", "weight-drop"), "the quick lab has no torch")
    assert is_passed(run(subject, acknowledge=accepted))


def test_a_probe_that_eats_its_memory_in_a_container_is_unknown(toy_base: Any) -> None:
    image = toy_base({"/app/toy/__init__.py": "", "/app/toy/hungry.py": "x = bytearray(1 << 30)\n"}, ["WORKDIR /app"])
    subject = plain_subject(
        engine=connect(),
        image=Digest(connect().inspect(image).id),
        interpreter="/usr/bin/python3",
        live_root="/app",
        overlaid=("toy/hungry.py",),
        limits=Limits(seconds=60, memory_bytes=256 << 20),
    )
    check = one_check(subject, "imports")
    assert check.outcome == "unknown"
    assert "at its limit of 0.25 GiB of memory" in check.message
    enough = replace(
        subject, limits=Limits(seconds=60, memory_bytes=2 << 30), read=lambda path: b"x = bytearray(1 << 30)\n"
    )
    assert one_check(enough, "imports").outcome == "pass"


def test_the_banner_of_an_image_is_bypassed_and_its_live_root_is_used(
    tiny_base: Any, trees: Callable[[str], Path]
) -> None:
    base = tiny_base("0.5.17", "dead-install")
    check = one_check(real_subject(base, trees, overlaid=DFLASH), "imports")
    interpreter = check.facts["interpreter"]
    assert isinstance(interpreter, dict)
    assert interpreter["package_root"] == base.package_parent
    forced = one_check(real_subject(base, trees, overlaid=DFLASH, live_root=base.dead_parent), "imports")
    assert forced.outcome == "fail"
    assert f"takes sglang from {base.package_parent}, the overlay is in {base.dead_parent}" in forced.message


HABITS: Mapping[str, tuple[str, str, dict[str, list[int]]]] = {
    # loader class -> what each tracker saw consumed, and what was filled of which parameter
    "SkipsUnknownNames": ("ab", "ab", {"a": [4, 4], "b": [8, 8]}),
    "CollectsFirst": ("ab", "ab", {"a": [4, 4], "b": [8, 8]}),
    "FillsHalf": ("b", "b", {"a": [0, 4], "b": [4, 8]}),
    "CopiesBehindTheLoadersBack": ("b", "ab", {"a": [4, 4], "b": [8, 8]}),
    "TakesTheMemory": ("a", "ab", {"a": [4, 4], "b": [8, 8]}),
    "LoadsAndDropsIt": ("a", "", {"a": [0, 4], "b": [0, 8]}),
    "KeepsAnIndex": ("ab", "ab", {"a": [4, 4], "b": [8, 8]}),
    "JoinsTwo": ("", "ac", {"a": [0, 4], "b": [8, 8]}),
    "IsAGenerator": ("a", "a", {"a": [4, 4], "b": [0, 8]}),
    "Twice": ("a", "a", {"a": [4, 4], "b": [0, 8]}),
    "Refuses": ("a", "a", {"a": [4, 4], "b": [0, 8]}),
    "WantsBytes": ("", "", {"a": [0, 4], "b": [0, 8]}),
}


def test_the_trackers_follow_every_habit_of_loaders(torch_base: Any) -> None:
    probe, _, _ = program().partition("\nif __name__ ==")
    script = probe + "\n" + (Path(__file__).parent / "support" / "smoke_trackers.py").read_text()
    done = connect().run(Digest(torch_base("0.5.17").id), ["/usr/bin/python3", "-c", script])
    assert done is not None
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert lines, done.stderr
    answers = json.loads(lines[0].removeprefix("ANSWERS "))
    for name, (by_loader, by_copy, filled) in HABITS.items():
        answer = answers[name]
        assert ("".join(answer["by_loader"]), "".join(answer["by_copy"]), answer["filled"]) == (
            by_loader,
            by_copy,
            filled,
        ), name
    assert answers["FillsByValue"]["by_copy"] == ["one"]
    assert answers["KeepsAnIndex"]["kept"] == ["c"]
    assert answers["Twice"]["repeated"] == ["a"]
    assert answers["SkipsUnknownNames"]["cast"] == [["a", "bfloat16", "float32"]]
    assert answers["Refuses"]["error"]["type"] == "ValueError"
    assert answers["Refuses"]["error"]["tensor"] == "b"
    assert answers["WantsBytes"]["error"]["type"] == "NotImplementedError"


def test_files_of_another_release_put_on_whole_break_what_imports_them_and_each_is_named(
    torch_base: Any, trees: Callable[[str], Path], docker_daemon: Any, run_label: Any
) -> None:
    base, root, newer = torch_base("0.5.17"), trees("0.5.17"), trees("0.5.19")
    overlaid = tuple(f"sglang/{path}" for path in FIVE_FILES)
    layer = Layer()
    for path in overlaid:
        layer.put(f"{base.package_parent}/{path}", (newer / path).read_bytes())
    name = f"overlay-lab-run/{run_label.value}:five-files"
    image = images.build(docker_daemon, name, base.name, layer=layer, labels=run_label.labels)

    def read(path: str) -> bytes | None:
        file = (newer if path in overlaid else root) / path
        return file.read_bytes() if file.is_file() else None

    paths = [str(path.relative_to(root)) for path in (root / "sglang").rglob("*.py")]
    importing = importers_of(paths, read, overlaid)
    subject = real_subject(base, trees, image=Digest(image), overlaid=overlaid, importers=importing, read=read)
    checks = by_name(run(subject, ModuleChecks))
    assert checks["imports"].outcome == "fail"
    assert checks["importers"].outcome == "fail"
    failed = {
        entry["path"]: entry["reason"]
        for check in checks.values()
        for entry in check.facts["not_imported"]  # type: ignore[attr-defined]
        if entry["outcome"] == "fail"
    }
    assert "sample_simulated_acc_len" in failed["sglang/srt/speculative/dflash_utils.py"]
    # Silent in the server: DSpark imported on the base, and goes down with the file it imports.
    assert "sglang/srt/models/dspark.py" in failed
    assert all("it imported on the base" in reason for reason in failed.values())
