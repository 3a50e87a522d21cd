"""The catalogue: what it accepts, and that a mistake is named with file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import catalogue, records
from builder.errors import InputError

ROOT = Path(__file__).parent.parent
CARRY = "pull-requests = [1]\n[[carry]]\npath = '{}'\nfrom = '{}'\nreason = 'r'\n"


@pytest.fixture
def shelf(tmp_path: Path) -> catalogue.Catalogue:
    for name in ("overlays", "images", "patches/topic"):
        (tmp_path / name).mkdir(parents=True)
    return catalogue.find(tmp_path, tmp_path)


def write(shelf: catalogue.Catalogue, text: str, name: str = "x") -> catalogue.Overlay:
    (shelf.folder / f"overlays/{name}.toml").write_text(text)
    return shelf.overlay(name)


def test_shipped_catalogue_is_sound():
    shelf = catalogue.find(ROOT, ROOT)
    overlays = [shelf.overlay(name) for name in shelf.overlay_names()]
    assert "dflash2" in [overlay.name for overlay in overlays]
    assert {"qwen38-27b", "v0.5.19-cu129"} <= set(shelf.image_names())
    for overlay in overlays:
        for patch in overlay.patches:
            assert shelf.patch_bytes(patch, overlay.name)[1]


def test_published_draft_has_the_tensors_of_the_published_checkpoint():
    draft = catalogue.find(ROOT, ROOT).overlay("dflash2").draft
    assert draft is not None
    tensors = draft.expanded()
    assert len(tensors) == 81
    parameters = 0
    for shape in tensors.values():
        size = 1
        for extent in shape:
            size *= extent
        parameters += size
    assert parameters == 1_924_404_480
    dropped = [name for name in tensors if "_conv." in name or name.startswith("candidate_selector.")]
    assert len(dropped) == 23


def test_committed_lock_pins_the_definition_as_it_is():
    shelf = catalogue.find(ROOT, ROOT)
    lock = records.read_lock(shelf.lock_path("dflash2"))
    overlay = shelf.overlay("dflash2")
    assert lock is not None
    assert tuple(pin.number for pin in lock.pull_requests) == overlay.pull_requests
    assert tuple(pin.id for pin in lock.patches) == overlay.patches
    assert records.canonical(lock) == shelf.lock_path("dflash2").read_bytes()


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("pull-request = [1]\n", 1, "unknown key (did you mean 'pull-requests'?)"),
        ("\npull-requests = ['1']\n", 2, "valid integer"),
        ("pull-requests = []\n", 1, "at least one entry"),
        ("title = 'no numbers'\n", None, "pull-requests: is missing"),
        ("pull-requests = [1, 1]\n", None, "stands there twice"),
        ("pull-requests = [1]\nname = 'y'\n", 2, "the file's own name is the name"),
        ("pull-requests = [1]\n[[file]]\npath = 'sglang/a.py'\n", 2, "reason: is missing"),
        ("pull-requests = [1]\n[[file]]\npath = '/a.py'\nreason = 'r'\n", 3, "inside the package"),
        ("pull-requests = [1]\n[[file]]\npath = 'sglang/../a.py'\nreason = 'r'\n", 3, "inside the package"),
        ("pull-requests = [1]\n[[file]]\npath = 'sglang/a.py'\nreason = ' '\n", 4, "must say why"),
        ("pull-requests = [1]\n[[file]]\npath = 'a.py'\nreason = 'r'\nstrategy = 'cpoy'\n", 5, "found 'cpoy'"),
        (
            "pull-requests = [1]\n[[file]]\npath = 'a.py'\nreason = 'r'\n\n[[file]]\npath = 'b.py'\nreson = 'r'\n",
            8,
            "unknown key (did you mean 'reason'?)",
        ),
        (
            "pull-requests = [1]\n[[carry]]\npath = 'sglang/a.py'\nfrom = 'pr:2'\nreason = 'r'\n",
            None,
            "none of pull-requests",
        ),
        (CARRY.format("sglang/a.py", "2"), 4, "must be 'pr:'"),
        ("pull-requests = 1\n", 1, "must be a list"),
        (
            "pull-requests = [1]\n[[carry]]\npath = 'other/a.py'\nfrom = 'pr:1'\nreason = 'r'\n",
            None,
            "not inside the package",
        ),
        ("pull-requests = [1]\n[[acknowledge]]\nreason = 'r'\n", 2, "either 'check'"),
        ("pull-requests = [1\n", None, "is not TOML"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_key(shelf, text, line, expected):
    with pytest.raises(InputError) as caught:
        write(shelf, text)
    said = "\n".join((str(caught.value), *caught.value.facts))
    assert expected in said
    assert "overlays/x.toml" + (f":{line}" if line else "") in said


def test_all_mistakes_are_reported_not_the_first(shelf):
    with pytest.raises(InputError) as caught:
        write(shelf, "pull-requests = [1]\ntitel = 'x'\nbasis = []\n")
    assert len([caught.value.message, *caught.value.facts]) == 2


def test_a_base_alias_that_the_catalogue_lacks_is_a_typo(shelf):
    (shelf.folder / "images/qwen38-27b.toml").write_text("reference = 'a/b:c'\n")
    with pytest.raises(InputError, match=r"x\.toml:2: bases: .*did you mean 'qwen38-27b'"):
        write(shelf, "pull-requests = [1]\nbases = ['qwen38-27c']\n")


@pytest.mark.parametrize("name", ["a.{0-}.b", "c{a,b", "c}", "x.{0-99999999}", "x.{,a}", "x.{3-1}"])
def test_a_tensor_pattern_that_cannot_be_meant_is_refused_at_once(shelf, name):
    draft = f"[draft]\ncheckpoint = 'a/b'\ndtype = 'BF16'\nconfig = {{}}\ntensors = {{ '{name}' = [1] }}\n"
    with pytest.raises(InputError, match=r"draft\.tensors"):
        write(shelf, f"pull-requests = [1]\n{draft}")


def test_unknown_names_are_answered_with_the_closest(shelf):
    write(shelf, "pull-requests = [1]\n", "dflash2")
    with pytest.raises(InputError, match="did you mean 'dflash2'"):
        shelf.overlay("dflash")
    with pytest.raises(InputError, match="no patch 'topic/0001-a'"):
        shelf.patch_bytes("topic/0001-a", "overlays/x.toml")


def test_a_patch_name_cannot_leave_the_catalogue(shelf, tmp_path):
    (tmp_path.parent / "outside.patch").write_text("x")
    with pytest.raises(InputError, match="no patch"):
        shelf.patch_bytes("../../outside", "overlays/x.toml")


def test_nearest_parent_folder_is_the_catalogue(shelf, tmp_path, monkeypatch):
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert catalogue.find(None, below).folder == tmp_path
    with pytest.raises(InputError, match="no folder overlays or images"):
        catalogue.find(below, below)


def test_exactly_one_definition_for_the_numbers_is_chosen_and_said(shelf):
    write(shelf, "title = 't'\npull-requests = [1, 2]\n", "both")
    choice = catalogue.choose(shelf, (1, 2), None, bare=False, alias=None)
    assert choice.overlay.name == "both"
    assert "both" in choice.note


def test_numbers_of_no_definition_give_a_bare_overlay(shelf):
    write(shelf, "title = 't'\npull-requests = [1, 2]\n", "both")
    for numbers in ((1,), (2, 1), (1, 2, 3)):
        choice = catalogue.choose(shelf, numbers, None, bare=False, alias=None)
        assert choice.overlay.is_bare
        assert choice.overlay.name == "pr" + "-".join(map(str, numbers))


def test_the_same_number_twice_is_refused(shelf):
    with pytest.raises(InputError, match="1 is given twice"):
        catalogue.choose(shelf, (1, 1), None, bare=False, alias=None)


def test_another_order_than_the_definitions_is_said(shelf):
    write(shelf, "title = 't'\npull-requests = [1, 2]\n", "both")
    assert "another order" in catalogue.choose(shelf, (2, 1), None, bare=False, alias=None).note


def test_several_definitions_are_listed_and_refused(shelf):
    write(shelf, "pull-requests = [1]\n", "a")
    write(shelf, "pull-requests = [1]\n", "b")
    with pytest.raises(InputError, match="a, b"):
        catalogue.choose(shelf, (1,), None, bare=False, alias=None)
    assert catalogue.choose(shelf, (1,), "b", bare=False, alias=None).overlay.name == "b"
    assert catalogue.choose(shelf, (1,), None, bare=True, alias=None).overlay.is_bare


def test_a_definition_that_does_not_admit_the_base_is_not_used_and_that_is_said(shelf):
    (shelf.folder / "images/old.toml").write_text("reference = 'a/b:c'\n")
    write(shelf, "pull-requests = [1]\nbases = ['old']\n", "a")
    choice = catalogue.choose(shelf, (1,), None, bare=False, alias="new")
    assert choice.overlay.is_bare
    assert "a does not admit this base" in choice.note


def test_a_named_definition_with_other_numbers_is_refused(shelf):
    write(shelf, "pull-requests = [1]\n", "a")
    with pytest.raises(InputError, match="--pr 1"):
        catalogue.choose(shelf, (2,), "a", bare=False, alias=None)
