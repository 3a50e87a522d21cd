"""What a base lacks is proposed with its evidence; alternatives wait for a person; what was shown is written."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from builder import adapt, catalogue, names, patches, records
from builder.findings import Finding
from builder.model import Oid, Tree
from builder.modules import Modules
from builder.proposals import Proposal, Trees
from tests.lab.git_history import History
from tests.support.scene import write_catalogue

Files = Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    """What one run of `overlay adapt` (or plan) printed."""

    exit_code: int
    document: dict[str, Any]
    stderr: str

    @property
    def verdict(self) -> str:
        return self.document["verdict"]

    @property
    def taken(self) -> dict[str, dict[str, Any]]:
        return {p["id"]: p for p in self.document["proposals"] if p["accepted"]}

    @property
    def offered(self) -> dict[str, dict[str, Any]]:
        return {p["id"]: p for p in self.document["proposals"] if not p["accepted"]}

    @property
    def left(self) -> list[tuple[str, str]]:
        return [(f["kind"], f["symbol"]) for f in self.document["left"]]


@dataclass(frozen=True)
class World:
    """A toy base, an upstream with pull request 1, and a catalogue."""

    run_command: Any
    folder: Path
    upstream: Path

    @property
    def shelf(self) -> Path:
        return self.folder / "shelf"

    def run(self, command: str, *arguments: str | Path, catalogue: bool = True) -> Answer:
        settings = ("--catalogue", self.shelf) if catalogue else ()
        base = ("--base", f"dir:{self.folder / 'site'}")
        done = self.run_command(command, "--json", *settings, "--upstream", self.upstream, *base, *arguments)
        document = json.loads(done.stdout)
        assert document["schema"] == f"overlay.{command}/1"
        jsonschema.validate(document, records.json_schema(command))
        return Answer(done.returncode, document, done.stderr)

    def adapt(self, *arguments: str | Path) -> Answer:
        return self.run("adapt", *(arguments or ("--pr", "1")))

    def written(self) -> dict[str, bytes]:
        """Return all files of the catalogue."""
        return {p.relative_to(self.shelf).as_posix(): p.read_bytes() for p in self.shelf.rglob("*") if p.is_file()}


@pytest.fixture
def make_world(tmp_path, overlay, history: History) -> Callable[..., World]:
    """`make_world(base, upstream, pull)`: modules of the base, of upstream before the PR, and what that adds."""

    def make(base: Files, upstream: Files, pull: Files) -> World:
        def inside(prefix: str, files: Files) -> dict[str, str]:
            return {f"{prefix}sglang/{name}": text for name, text in {"__init__.py": "", **files}.items()}

        history.commit(inside("python/", upstream), "start")
        changes = {path: text for path, text in inside("python/", pull).items() if not path.endswith("/__init__.py")}
        history.squash(1, "Use what is new", [changes])
        repository = history.write(tmp_path / "upstream.git")
        for path, text in inside("", base).items():
            place = tmp_path / "site" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(text.encode())
        write_catalogue(tmp_path / "shelf")
        return World(overlay, tmp_path, repository.path)

    return make


# -- D1: an imported name that differs between branches ----------------------------------------------------------------

LENGTH = "def {}(items):\n    total = 0\n    for item in items:\n        total += len(item)\n    return total\n"
NEWER, OLDER = LENGTH.format("pub_len"), LENGTH.format("_pub_len")
USER = "from sglang.lib import pub_len\n\n\ndef count(items):\n    return pub_len(items)\n"


def d1(make_world, library: str) -> World:
    return make_world({"lib.py": library}, {"lib.py": NEWER}, {"user.py": USER})


def test_d1_a_base_with_the_older_name_gets_an_alias_with_reason_and_evidence(make_world):
    found = d1(make_world, OLDER).adapt()
    assert (found.exit_code, found.verdict, found.left) == (0, "ok", [])
    (proposal,) = found.taken.values()
    assert (proposal["id"], proposal["kind"], proposal["needs_accept"]) == ("pub_len/alias", "patch", False)
    assert [(f["kind"], f["path"], f["line"], f["symbol"]) for f in proposal["settles"]] == [
        ("name-missing", "sglang/user.py", 1, "sglang.lib.pub_len")
    ]
    text = proposal["text"]
    assert "-from sglang.lib import pub_len\n+from sglang.lib import _pub_len as pub_len\n" in text
    assert "sglang/lib.py:1 defines _pub_len; the code is the same but for the name" in " ".join(text.split())
    loaded = patches.load("t/0001-x", text.encode(), "shown")
    assert loaded.value("Needed-If") == (
        "imports sglang/user.py sglang.lib.pub_len and defines sglang/lib.py _pub_len "
        "and not defines sglang/lib.py pub_len"
    )
    assert (loaded.value("Origin"), loaded.value("Forwarded"), loaded.value("Removes")) == ("project", "not-needed", "")
    assert (found.document["needed_a_person"], found.document["written"]) == (0, [])


@pytest.mark.parametrize("library", [NEWER, OLDER + "\n\n" + NEWER], ids=["b", "c"])
def test_d1_b_c_a_base_with_the_name_needs_nothing_and_nothing_is_written(make_world, library):
    world = d1(make_world, library)
    before = world.written()
    found = world.adapt("--pr", "1", "--write")
    assert (found.exit_code, found.verdict) == (0, "ok")
    assert (found.document["proposals"], found.left, found.document["written"]) == ([], [], [])
    assert world.written() == before


def test_d1_d_a_base_with_neither_and_nothing_plausible_is_left_with_the_commit_that_adds_it(make_world):
    compiled = "from sglang._core import pub_len\n"
    newer = {"lib.py": compiled, "_core.cpython-311-x86_64-linux-gnu.so": "\x7fELF"}
    found = make_world({"lib.py": "x = 1\n"}, newer, {"user.py": USER}).adapt()
    assert (found.exit_code, found.verdict, found.taken) == (1, "refused", {})
    (left,) = found.document["left"]
    assert (left["symbol"], left["line"]) == ("sglang.lib.pub_len", 1)
    assert left["introduced_by"].endswith("start")
    assert "carried code would need sglang._core" in left["why"]
    assert found.document["needed_a_person"] == 1


def test_a_helper_that_the_base_lacks_altogether_is_carried_with_what_it_uses(make_world):
    library = "import math\n\nLIMIT = 3\n\n\ndef helper(x):\n    return math.floor(x)\n\n\ndef pub_len(items):\n"
    library += "    return min(LIMIT, helper(len(items)))\n"
    found = make_world({"lib.py": "LIMIT = 3\n"}, {"lib.py": library}, {"user.py": USER}).adapt()
    assert (found.verdict, found.left) == ("ok", [])
    (proposal,) = found.taken.values()
    (entry,) = tomllib.loads(proposal["text"])["carry"]
    assert (entry["path"], entry["symbols"], entry["from"]) == ("sglang/lib.py", ["math", "helper", "pub_len"], "pr:1")
    assert entry["reason"].endswith("; math, helper because pub_len uses them")


def test_a_carry_that_would_use_another_helper_of_the_base_waits_for_a_person(make_world):
    library = "def helper(x):\n    return {}\n"
    newer = library.format("x + 1") + "\n\ndef pub_len(items):\n    return helper(len(items))\n"
    world = make_world({"lib.py": library.format("x")}, {"lib.py": newer}, {"user.py": USER})
    found = world.adapt()
    assert (found.verdict, found.taken) == ("refused", {})
    assert "the base's own helper, whose code is not" in found.offered["pub_len/carry"]["loses"]
    chosen = world.adapt("--pr", "1", "--accept", "pub_len/carry")
    assert (chosen.verdict, chosen.document["needed_a_person"]) == ("ok", 1)


def test_a_missing_module_is_carried_whole_and_what_it_imports_in_turn(make_world):
    upstream = {"lib.py": "from sglang.deep import depth\n\n\ndef pub_len(x):\n    return depth(x)\n"}
    upstream["deep.py"] = "from sglang.common import shared, fresh\n\n\ndef depth(x):\n    return shared(fresh(x))\n"
    upstream["common.py"] = "def shared(x):\n    return x\n\n\ndef fresh(x):\n    return x\n"
    found = make_world({"common.py": "def shared(x):\n    return x\n"}, upstream, {"user.py": USER}).adapt()
    assert (found.verdict, found.left) == ("ok", [])
    entries = [tomllib.loads(proposal["text"])["carry"][0] for proposal in found.taken.values()]
    assert [(entry["path"], entry.get("symbols")) for entry in entries] == [
        ("sglang/lib.py", None),
        ("sglang/deep.py", None),
        ("sglang/common.py", ["fresh"]),
    ]


def test_an_import_that_the_merged_file_does_not_use_is_dropped_and_no_capability_goes(make_world):
    pull = {"user.py": "from sglang.lib import VALUE, pub_len\n\nNUMBER = VALUE\n"}
    found = make_world({"lib.py": "VALUE = 1\n"}, {"lib.py": "VALUE = 1\n" + NEWER}, pull).adapt()
    (proposal,) = found.taken.values()
    assert (found.verdict, proposal["id"], proposal["removes"]) == ("ok", "pub_len/drop-import", None)
    assert "+from sglang.lib import VALUE\n" in proposal["text"]
    assert "No capability goes" in proposal["text"]


# -- D5: a compat edit that takes a capability away --------------------------------------------------------------------

OLD_CALL = "def compute_old_logprobs(batch, out, index):\n    batch.logprobs = [out[i] for i in index]\n"
NEW_CALL = "def compute_logprobs(batch, out, *, stride):\n    batch.logprobs = [x * stride for x in out]\n"
WORKER = (
    "from sglang.lib import compute_logprobs\n\n\nclass Worker:\n    def forward(self, batch, out):\n"
    "        if batch.return_logprob:\n            compute_logprobs(\n                batch,\n                out,\n"
    "                stride=2,\n            )\n        return out\n"
)


@pytest.fixture
def d5(make_world) -> World:
    return make_world({"lib.py": OLD_CALL}, {"lib.py": NEW_CALL}, {"worker.py": WORKER})


def test_d5_a_changed_signature_is_offered_as_alternatives_and_nothing_is_written_for_it(d5):
    before = d5.written()
    found = d5.adapt("--pr", "1", "--write")
    assert (found.exit_code, found.verdict, found.taken) == (1, "refused", {})
    assert d5.written() == before
    offered = found.offered
    assert set(offered) == {"compute_logprobs/port", "compute_logprobs/call", "compute_logprobs/drop-call"}
    assert all(proposal["needs_accept"] and proposal["loses"] for proposal in offered.values())
    assert (offered["compute_logprobs/port"]["kind"], offered["compute_logprobs/call"]["kind"]) == ("carry", "sketch")
    assert "compute_old_logprobs" in offered["compute_logprobs/call"]["text"]
    (left,) = found.document["left"]
    assert "wanted is (batch, out, *, stride)" in left["why"]
    assert left["alternatives"] == ["compute_logprobs/port", "compute_logprobs/drop-call"]
    assert found.document["needed_a_person"] == 1


def test_d5_an_edit_that_removes_a_capability_says_so_and_the_record_has_it(d5):
    found = d5.adapt("--pr", "1", "--write", "--accept", "compute_logprobs/drop-call")
    assert (found.exit_code, found.verdict, found.left) == (0, "ok", [])
    removes = "what compute_logprobs does (if batch.return_logprob, in Worker.forward)"
    assert found.taken["compute_logprobs/drop-call"]["removes"] == removes
    assert found.document["needed_a_person"] == 1
    planned = d5.run("plan", "--pr", "1")
    assert (planned.verdict, planned.document["findings"]) == ("ok", [])
    assert [(p["outcome"], p["removes"]) for p in planned.document["patches"]] == [("applied", removes)]


def test_d5_the_function_can_be_ported_instead_and_nothing_is_removed(d5):
    found = d5.adapt("--pr", "1", "--write", "--accept", "compute_logprobs/port")
    assert (found.verdict, found.left) == ("ok", [])
    planned = d5.run("plan", "--pr", "1")
    assert (planned.verdict, planned.document["patches"]) == ("ok", [])
    assert planned.document["carried"][0]["symbols"] == ["compute_logprobs"]


def test_d5_a_call_whose_value_is_used_is_never_dropped(make_world):
    worker = WORKER.replace("            compute_logprobs(", "            found = compute_logprobs(")
    found = make_world({"lib.py": OLD_CALL}, {"lib.py": NEW_CALL}, {"worker.py": worker}).adapt()
    assert set(found.offered) == {"compute_logprobs/port", "compute_logprobs/call"}


def test_d5_a_base_with_the_function_needs_nothing(make_world):
    found = make_world({"lib.py": OLD_CALL + NEW_CALL}, {"lib.py": NEW_CALL}, {"worker.py": WORKER}).adapt()
    assert (found.verdict, found.document["proposals"]) == ("ok", [])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("compute_logprobs/prot", "did you mean 'compute_logprobs/port'?"), ("compute_logprobs/call", "is a sketch")],
)
def test_a_choice_that_is_none_is_refused(d5, name, expected):
    found = d5.adapt("--pr", "1", "--accept", name)
    assert (found.exit_code, found.verdict) == (2, "error")
    assert expected in found.stderr


# -- attributes and keywords -------------------------------------------------------------------------------------------

INFO = (
    "from dataclasses import dataclass\n\n\n@dataclass\nclass Info:\n    size: int\n    {}: int = 0\n    end: int = 1\n"
)
READER = "from sglang.info import Info\n\n\ndef step(info: Info):\n    if info.size:\n        return info.next_len\n"


FILLS = "\n    def fill(self, sizes):\n        self.{} = sum(sizes)\n"


def test_d3_an_attribute_under_its_older_name_is_read_so(make_world):
    base, newer = ({"info.py": (INFO + FILLS).format(name, name)} for name in ("reserved_len", "next_len"))
    found = make_world(base, newer, {"worker.py": READER}).adapt()
    (proposal,) = found.taken.values()
    assert (found.verdict, proposal["id"]) == ("ok", "next_len/rename")
    assert "+        return info.reserved_len\n" in proposal["text"]
    assert "declared alike, after size (int = 0); fill sets it to the same value" in " ".join(proposal["text"].split())


def test_d3_a_field_that_only_stands_where_another_stood_is_for_a_person(make_world):
    base, newer = ({"info.py": INFO.format(name)} for name in ("reserved_len", "next_len"))
    found = make_world(base, newer, {"worker.py": READER}).adapt()
    assert (found.verdict, found.taken) == ("refused", {})
    assert {"next_len/rename-reserved-len", "next_len/declare"} <= set(found.offered)


def test_d3_an_attribute_that_two_could_be_is_for_a_person(make_world):
    base = INFO.format("reserved_len").replace("    end", "    other_len: int = 0\n    end")
    base += "    def fill(self, x):\n        self.other_len = x + 1\n"
    newer = INFO.format("next_len") + "    def fill(self, x):\n        self.next_len = x + 1\n"
    world = make_world({"info.py": base}, {"info.py": newer}, {"worker.py": READER})
    found = world.adapt()
    assert (found.verdict, found.taken) == ("refused", {})
    names = {"next_len/rename-reserved-len", "next_len/rename-other-len"}
    assert names <= set(found.offered)
    assert all(found.offered[name]["loses"] for name in names)
    chosen = world.adapt("--pr", "1", "--accept", "next_len/rename-other-len")
    assert (chosen.verdict, [*chosen.taken]) == ("ok", ["next_len/rename-other-len"])


def test_an_unknown_keyword_is_dropped_or_the_file_left_out_only_by_choice(make_world):
    before = "def made(size):\n    return size\n"
    upstream = {"lib.py": "def made(size, *, kind=None):\n    return size, kind\n", "aux.py": "KIND = 1\n"}
    pull = {"aux.py": "from sglang.lib import made\n\nKIND = made(\n    1,\n    kind=2,\n)\n"}
    world = make_world({"lib.py": before, "aux.py": "KIND = 1\n"}, upstream, pull)
    found = world.adapt()
    assert (found.verdict, found.taken, found.left) == ("refused", {}, [("signature", "sglang.lib.made")])
    assert {"kind/drop-keyword", "aux/leave-out"} == set(found.offered)
    assert found.offered["kind/drop-keyword"]["removes"].startswith("the argument kind of made")
    assert "its changes to KIND" in found.offered["aux/leave-out"]["loses"]
    dropped = world.adapt("--pr", "1", "--accept", "kind/drop-keyword")
    assert (dropped.verdict, dropped.left) == ("ok", [])
    assert "-    kind=2,\n" in dropped.taken["kind/drop-keyword"]["text"]


def test_a_file_that_another_overlaid_file_needs_cannot_be_left_out(make_world):
    upstream = {"lib.py": "def made(size, *, kind=None):\n    return size, kind\n"}
    pull = {
        "aux.py": "from sglang.lib import made\n\nKIND = made(1, kind=2)\n",
        "b.py": "from sglang.aux import KIND\n",
    }
    found = make_world({"lib.py": "def made(size):\n    return size\n"}, upstream, pull).adapt()
    assert set(found.offered) == {"kind/drop-keyword"}


# -- writing -----------------------------------------------------------------------------------------------------------

HEAD = '# mine\ntitle = "T"\npull-requests = [1]  # one\n\n'
DEFINITION = HEAD + '# why it is merged\n[[file]]\npath = "sglang/user.py"\nreason = "r"\n'


@pytest.fixture
def defined(make_world) -> World:
    world = d1(make_world, OLDER)
    (world.shelf / "overlays/o.toml").write_text(DEFINITION)
    return world


def test_writing_edits_the_definition_in_place_and_gives_the_plan_that_was_shown(defined):
    shown = defined.adapt("--overlay", "o")
    assert (shown.document["written"], [*defined.written()]) == ([], ["overlays/o.toml"])
    found = defined.adapt("--overlay", "o", "--write")
    assert found.document["written"] == ["patches/o/0001-pub-len-alias.patch", "overlays/o.toml"]
    assert found.document["proposals"] == shown.document["proposals"]
    text = (defined.shelf / "overlays/o.toml").read_text()
    assert text.replace('patches = [\n    "o/0001-pub-len-alias",\n]\n\n', "") == DEFINITION
    planned = defined.run("plan", "--overlay", "o")
    assert (planned.verdict, planned.document["findings"]) == ("ok", [])
    assert [(p["id"], p["outcome"]) for p in planned.document["patches"]] == [("o/0001-pub-len-alias", "applied")]


def test_writing_again_changes_nothing(defined):
    defined.adapt("--overlay", "o", "--write")
    before = defined.written()
    found = defined.adapt("--overlay", "o", "--write")
    assert (found.verdict, found.document["proposals"], found.document["written"]) == ("ok", [], [])
    assert defined.written() == before


def test_without_a_definition_a_new_one_is_made_and_is_used_from_then_on(make_world):
    world = d1(make_world, OLDER)
    found = world.adapt("--pr", "1", "--write")
    assert found.document["written"] == ["patches/pr1/0001-pub-len-alias.patch", "overlays/pr1.toml"]
    overlay = catalogue.find(world.shelf, world.shelf).overlay("pr1")
    assert (overlay.title, overlay.pull_requests) == ("Use what is new", (1,))
    assert overlay.bases == ("not exists sglang/user.py",) or "not defines sglang/lib.py pub_len" in overlay.bases[0]
    planned = world.run("plan", "--pr", "1")
    assert (planned.verdict, planned.document["overlay"]["name"]) == ("ok", "pr1")
    # A base that has the newer name is not admitted, and needs nothing.
    (world.folder / "site/sglang/lib.py").write_text(NEWER)
    other = world.run("plan", "--pr", "1")
    assert (other.verdict, other.document["overlay"]["name"], other.document["patches"]) == ("ok", "pr1", [])
    assert any("does not admit this base" in note for note in other.document["notes"])


def test_a_name_can_be_given_and_one_that_is_taken_is_refused(make_world):
    world = d1(make_world, OLDER)
    assert world.adapt("--pr", "1", "--write", "--name", "mine").document["written"][-1] == "overlays/mine.toml"
    before = world.written()
    for name, expected in (("mine", "is there already"), ("Mine/x", "is no name")):
        found = world.adapt("--pr", "1", "--no-definition", "--write", "--name", name)
        assert (found.exit_code, expected in found.stderr) == (2, True), found.stderr
    assert world.written() == before


def test_numbers_go_on_and_an_existing_patch_is_never_overwritten(defined):
    folder = defined.shelf / "patches/o"
    folder.mkdir()
    (folder / "0007-pub-len-alias.patch").write_text("somebody's own\n")
    found = defined.adapt("--overlay", "o", "--write")
    assert found.document["written"][0] == "patches/o/0008-pub-len-alias.patch"
    assert (folder / "0007-pub-len-alias.patch").read_text() == "somebody's own\n"


def test_after_a_run_that_was_killed_between_two_writes_the_patch_it_left_is_used(defined):
    definition = defined.shelf / "overlays/o.toml"
    defined.adapt("--overlay", "o", "--write")
    definition.write_text(DEFINITION)  # as if the process had ended before it wrote this
    found = defined.adapt("--overlay", "o", "--write")
    assert found.document["written"] == ["overlays/o.toml"]
    assert sorted(defined.written()) == ["overlays/o.toml", "patches/o/0001-pub-len-alias.patch"]


def test_where_the_catalogue_cannot_be_written_nothing_of_it_changes(defined):
    shutil.rmtree(defined.shelf / "patches")
    (defined.shelf / "patches").write_text("a file where the folder should be\n")
    before = defined.written()
    found = defined.adapt("--overlay", "o", "--write")
    assert (found.exit_code, found.verdict) == (3, "error")
    assert "nothing was changed" in found.stderr
    assert defined.written() == before


def test_what_was_written_is_removed_where_the_definition_cannot_be_written(defined):
    from builder import shelving
    from builder.errors import Refused

    path = defined.shelf / "overlays/o.toml"
    target = shelving.Target("o", "t", path, b"what it was when the work began\n")
    shelf = catalogue.find(defined.shelf, defined.shelf)
    with pytest.raises(Refused, match="changed meanwhile"):
        shelving.write(target, "new", {"o/0001-x": b"text"}, shelf)
    assert defined.written() == {"overlays/o.toml": DEFINITION.encode()}
    assert not (defined.shelf / "patches/o").exists()


def test_the_packaged_catalogue_is_never_written(defined):
    found = defined.run("adapt", "--pr", "1", "--write", catalogue=False)
    assert (found.exit_code, found.verdict) == (2, "error")
    assert "packaged" in found.stderr
    assert "--catalogue" in found.stderr


def test_a_definition_that_is_a_link_is_refused(defined):
    real = defined.folder / "real.toml"
    shutil.move(defined.shelf / "overlays/o.toml", real)
    (defined.shelf / "overlays/o.toml").symlink_to(real)
    found = defined.adapt("--overlay", "o", "--write")
    assert (found.exit_code, found.verdict) == (2, "error")
    assert f"is a link to {real}" in found.stderr
    assert real.read_text() == DEFINITION


def test_a_definition_with_crlf_line_ends_keeps_them(defined):
    path = defined.shelf / "overlays/o.toml"
    path.write_bytes(DEFINITION.replace("\n", "\r\n").encode())
    assert defined.adapt("--overlay", "o", "--write").verdict == "ok"
    data = path.read_bytes()
    assert data.count(b"\n") == data.count(b"\r\n")
    assert defined.run("plan", "--overlay", "o").verdict == "ok"


def test_a_lock_that_does_not_know_the_new_patches_is_said_to_be_stale(defined):
    lock = records.Lock(overlay="o", tool="t", checker="c")
    (defined.shelf / "overlays/o.lock.json").write_bytes(records.canonical(lock))
    found = defined.adapt("--overlay", "o", "--write")
    assert any("o.lock.json is stale now" in note for note in found.document["notes"])
    assert defined.run("plan", "--overlay", "o").verdict == "refused"


def test_a_conflict_comes_first(make_world):
    world = make_world({"lib.py": OLDER, "user.py": "MINE = 1\n"}, {"lib.py": NEWER}, {"user.py": USER})
    found = world.adapt()
    assert (found.exit_code, found.verdict, found.document["proposals"]) == (1, "refused", [])


# -- real trees --------------------------------------------------------------------------------------------------------

RUNTIME = (
    "sglang/kernels/ops/speculative/dflash.py",
    "sglang/srt/model_executor/model_runner_components/spec_aux_hidden_state.py",
    "sglang/srt/models/dflash.py",
    "sglang/srt/speculative/dflash_utils.py",
    "sglang/srt/speculative/dflash_worker_v2.py",
)
AUX, UTILS, WORKER_FILE = RUNTIME[1], RUNTIME[3], RUNTIME[4]
PORT, LEAVE = "compute_spec_logprobs/port", "spec_aux_hidden_state/leave-out"
TWICE = "model_override_base/carry"


@pytest.fixture
def copied(tmp_path, trees, overlay, upstream_repository):
    """`copied(version)`: a catalogue whose definition copies the stand-in's five files onto this release."""

    def make(version: str):
        shelf = write_catalogue(tmp_path / "shelf")
        text = '# copied whole\ntitle = "the stand-in, copied"\npull-requests = [35371]\n'
        for path in RUNTIME:
            blob = Oid.of_blob((trees(version) / path).read_bytes())
            accept = f'accept = [{{ base-blob = "{blob}", reason = "older upstream code" }}]'
            text += f'\n[[file]]\npath = "{path}"\nstrategy = "copy"\nreason = "r"\n{accept}\n'
        (shelf / "overlays/copied.toml").write_text(text)

        def run(command: str, *arguments: str) -> Answer:
            settings = ("--catalogue", shelf, "--upstream", upstream_repository.path, "--json")
            done = overlay(command, *settings, "--base", f"dir:{trees(version)}", "--overlay", "copied", *arguments)
            return Answer(done.returncode, json.loads(done.stdout), done.stderr)

        return run

    return make


def release(folder: Path) -> Tree:
    paths = frozenset(p.relative_to(folder).as_posix() for p in (folder / "sglang").rglob("*.py"))
    return Tree(paths, lambda path: (folder / path).read_bytes() if path in paths else None)


@pytest.fixture
def proposed(trees):
    """`proposed(version, *more)`: what is proposed for the missing names of the five files, and for more findings."""

    def run(version: str, *more: Finding) -> tuple[dict[str, Proposal], Trees]:
        base, donor = release(trees(version)), release(trees("0.5.19"))
        merged = base.overlaid({path: donor.read(path) or b"" for path in RUNTIME})
        sides = Trees(
            base,
            merged,
            {35371: donor},
            {35371: release(trees("0.5.18")).read},
            dict.fromkeys(RUNTIME, 35371),
            frozenset(RUNTIME),
        )
        found = names.check(Modules(base, "sglang"), Modules(merged, "sglang"), RUNTIME).findings
        return {p.id: p for p in adapt.propose([*found, *more], sides).proposals}, sides

    return run


def a_finding(kind: Any, path: str, tree: Tree, words: str, symbol: str, message: str = "", **more: Any) -> Finding:
    """Return a finding at the line of a file that has these words."""
    lines = (tree.read(path) or b"").decode().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if words in text)
    return Finding(kind, path, line, symbol, "", None, message, **more)


@pytest.mark.parametrize("version", ["0.5.16", "0.5.17", "0.5.18"])
def test_every_patch_that_is_proposed_applies_here_and_is_not_needed_where_the_newer_names_are(
    proposed, trees, version
):
    newer = release(trees("0.5.19"))
    leaf, info = "speculative_draft_kv_cache_dtype", "sglang.srt.speculative.dflash_info_v2.DFlashDraftInputV2"
    place = a_finding("name-missing", "sglang/srt/server_args.py", newer, f"{leaf}: A[", "")
    found, sides = proposed(
        version,
        a_finding("attribute-missing", WORKER_FILE, newer, "=draft_input.nxt_kv_lens_cpu", f"{info}.nxt_kv_lens_cpu"),
        a_finding(
            "attribute-missing", WORKER_FILE, newer, "int(draft_input.nxt_kv_lens_sum", f"{info}.nxt_kv_lens_sum"
        ),
        a_finding(
            "config-leaf-missing",
            AUX,
            newer,
            f"get_spec().{leaf}",
            f"get_spec().{leaf}",
            donor_has=f"{leaf} (sglang/srt/server_args.py:{place.line})",
        ),
        a_finding(
            "signature",
            AUX,
            newer,
            f"{leaf}=(",
            "sglang.srt.mem_cache.kv_cache_dtype.configure_kv_cache_dtype",
            "calls it with the unknown keyword",
            names=(leaf,),
        ),
    )
    made = {name: patches.load("t/0001-x", p.text.encode(), name) for name, p in found.items() if p.kind == "patch"}
    expected = {
        "0.5.16": {"sample_simulated_acc_len/alias", "dspark_accept/older-place", f"{leaf}/default"},
        "0.5.17": {"sample_simulated_acc_len/alias", "compute_spec_logprobs/drop-call", f"{leaf}/drop-keyword"},
        "0.5.18": {"nxt_kv_lens_cpu/rename"},
    }[version]
    assert expected <= made.keys()
    for name, patch in made.items():
        here = patches.apply_series([patch], sides.merged.read, sides.merged.paths, sides.base.read, None)
        assert (here.outcomes[0].outcome, {*here.outcomes[0].offset}) == ("applied", {0}), name
        there = patches.apply_series([patch], newer.read, newer.paths, newer.read, None)
        assert there.outcomes[0].outcome == "not needed", name
        assert bool(patch.value("Removes")) is found[name].needs_accept, name


def settled(found: Answer) -> dict[str, str]:
    """Return symbol -> the proposal that settles it, for what was taken."""
    return {place["symbol"]: name for name, proposal in found.taken.items() for place in proposal["settles"]}


def test_on_the_stand_in_every_break_with_a_mechanical_answer_is_settled_and_the_others_by_choice(copied, tmp_path):
    run = copied("0.5.17")
    found = run("adapt")
    info = "sglang.srt.speculative.dflash_info_v2.DFlashDraftInputV2"
    mechanical = {
        "sglang.srt.speculative.spec_utils.sample_simulated_acc_len": "sample_simulated_acc_len/alias",
        "sglang.srt.lora.layers.unwrap_lora_layer": "unwrap_lora_layer/carry",
        "sglang.srt.speculative.spec_tp_sync": "spec_tp_sync/carry",
        f"{info}.nxt_kv_lens_cpu": "nxt_kv_lens_cpu/rename",
        f"{info}.nxt_kv_lens_sum": "nxt_kv_lens_cpu/rename",
        # no break of the five files: the carried module reads a setting that this base does not have either
        "sglang.srt.environ.Envs.SGLANG_SPEC_TP_SYNC": "SGLANG_SPEC_TP_SYNC/declare",
    }
    assert mechanical.items() <= settled(found).items()
    assert not any(proposal["needs_accept"] for proposal in found.taken.values())
    # Break 4: what it needs in turn would make a second registry beside the base's own, which a person has to want.
    assert "mamba_track_grid/carry" not in found.taken
    assert {(f["kind"], f["path"]) for f in found.document["left"] if f["kind"] != "reverse"} == {
        ("signature", AUX),
        ("config-leaf-missing", AUX),
        ("name-missing", WORKER_FILE),
    }
    assert (found.verdict, found.document["needed_a_person"], found.document["written"]) == ("refused", 4, [])
    assert {PORT, "compute_spec_logprobs/call", "compute_spec_logprobs/drop-call", LEAVE, TWICE} <= set(found.offered)
    assert "MODEL_OVERRIDES" in found.offered[TWICE]["loses"]
    leaf = "speculative_draft_kv_cache_dtype"
    assert {f"{leaf}/drop-keyword", f"{leaf}/default"} <= set(found.offered)

    chosen = run("adapt", "--write", "--accept", PORT, "--accept", LEAVE, "--accept", TWICE)
    assert (chosen.exit_code, chosen.verdict, chosen.left) == (0, "ok", [])
    assert {PORT, LEAVE, TWICE} <= set(chosen.taken)
    (carried,) = tomllib.loads(chosen.taken["mamba_track_grid/carry"]["text"])["carry"]
    assert "mamba_checkpoint_grid" in carried["symbols"]
    assert chosen.document["needed_a_person"] == 4
    assert all(proposal["removes"] is None for proposal in chosen.taken.values())
    definition = (tmp_path / "shelf/overlays/copied.toml").read_text()
    assert definition.startswith('# copied whole\ntitle = "the stand-in, copied"\npull-requests = [35371]\n')
    planned = run("plan")
    assert (planned.exit_code, planned.verdict) == (0, "ok")
    assert [f for f in planned.document["findings"] if not f["acknowledged"] and not f["unreachable"]] == []
    assert {p["outcome"] for p in planned.document["patches"]} == {"applied"}
    again = run("adapt", "--write")
    assert (again.verdict, again.document["proposals"], again.document["written"]) == ("ok", [], [])


def test_the_release_before_it_needs_no_person_for_names(copied):
    found = copied("0.5.18")("adapt")
    assert {
        "sglang.srt.lora.layers.unwrap_lora_layer": "unwrap_lora_layer/carry",
        "sglang.srt.runtime_context.mamba_track_grid": "mamba_track_grid/carry",
        "sglang.srt.speculative.spec_tp_sync": "spec_tp_sync/carry",
    }.items() <= settled(found).items()
    assert not [f for f in found.document["left"] if f["kind"] in ("name-missing", "module-missing")]


def test_a_release_that_has_it_gets_no_proposals_and_nothing_is_written(copied, tmp_path):
    run = copied("0.5.19")
    before = (tmp_path / "shelf/overlays/copied.toml").read_bytes()
    found = run("adapt", "--write")
    assert (found.exit_code, found.verdict) == (0, "already-present")
    assert (found.document["proposals"], found.document["written"]) == ([], [])
    assert (tmp_path / "shelf/overlays/copied.toml").read_bytes() == before
