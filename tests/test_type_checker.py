"""The type checker as a bounded child: what it is asked, and that nothing but the tree decides its answer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from builder.doors import Complaint, Limits
from builder.errors import InputError, Unavailable
from builder.model import Tree
from builder.type_checker import Pyrefly

FILES = {
    "sglang/__init__.py": "",
    "sglang/lib.py": "def f(one, *, two=2):\n    return one\n\n\nclass Box:\n    size = 1\n",
    "sglang/user.py": "from sglang.lib import Box, f, gone\n\nf(1, three=3)\nf()\nf(1, 2)\nBox().sise\nnothing\n",
}
KINDS = {
    ("missing-module-attribute", 1),
    ("unexpected-keyword", 3),
    ("missing-argument", 4),
    ("bad-argument-count", 5),
    ("missing-attribute", 6),
    ("unknown-name", 7),
}


def tree(files: Mapping[str, str]) -> Tree:
    data = {path: text.encode() for path, text in files.items()}
    return Tree(frozenset(data), data.get)


def kinds(found: tuple[Complaint, ...]) -> set[tuple[str, int]]:
    assert {complaint.path for complaint in found} <= {"sglang/user.py"}
    return {(complaint.kind, complaint.line) for complaint in found}


@pytest.fixture
def checker(tmp_path: Path) -> Pyrefly:
    return Pyrefly(tmp_path / "cache")


def test_each_kind_that_is_asked_for_is_found(checker: Pyrefly) -> None:
    assert kinds(checker.check(tree(FILES), "sglang")) == KINDS


def test_a_tree_without_faults_has_no_complaints(checker: Pyrefly) -> None:
    assert checker.check(tree({**FILES, "sglang/user.py": "from sglang.lib import f\n\nf(1, two=3)\n"}), "sglang") == ()


def test_only_the_files_that_are_asked_for_are_judged(checker: Pyrefly) -> None:
    assert checker.check(tree(FILES), "sglang", ["sglang/lib.py"]) == ()
    assert kinds(checker.check(tree(FILES), "sglang", ["sglang/user.py"])) == KINDS
    assert checker.check(tree(FILES), "sglang", ["sglang/absent.py", "README.md"]) == ()


def test_no_comment_of_the_code_hides_a_complaint(checker: Pyrefly) -> None:
    hidden = FILES["sglang/user.py"].replace("\n", "  # type: ignore # pyrefly: ignore\n").replace("\n  #", "\n#")
    assert kinds(checker.check(tree({**FILES, "sglang/user.py": hidden}), "sglang")) == KINDS
    whole = "# mypy: ignore-errors\n# pyrefly: ignore-errors\n" + FILES["sglang/user.py"]
    assert len(checker.check(tree({**FILES, "sglang/user.py": whole}), "sglang")) == len(KINDS)


def test_nothing_that_lies_around_decides_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = 'project-excludes = ["**/*.py"]\n[errors]\nmissing-attribute = false\n'
    (tmp_path / "pyrefly.toml").write_text(silent)
    (tmp_path / "pyproject.toml").write_text("[tool.pyrefly]\n" + silent)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYREFLY_CONFIG", str(tmp_path / "pyrefly.toml"))
    monkeypatch.setenv("PYREFLY_THREADS", "none")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = Pyrefly(tmp_path / ".hidden" / "cache").check(tree(FILES), "sglang")
    assert kinds(found) == KINDS


def test_what_is_installed_here_says_nothing_of_the_tree(checker: Pyrefly) -> None:
    # pytest is installed where this runs; the tree's own interpreter is another one.
    found = checker.check(tree({"sglang/a.py": "import pytest\n\npytest.no_such_thing\n"}), "sglang")
    assert [complaint.kind for complaint in found] == ["missing-import"]


def test_an_answer_is_kept_and_only_for_the_same_files(checker: Pyrefly, tmp_path: Path) -> None:
    first = checker.check(tree(FILES), "sglang")
    (kept,) = (tmp_path / "cache" / "answers").iterdir()
    kept.write_text('[["unknown-name", "sglang/user.py", 1, "from the cache", 1]]')
    assert checker.check(tree(FILES), "sglang") == (
        Complaint("unknown-name", "sglang/user.py", 1, "from the cache", 1),
    )
    assert checker.check(tree({**FILES, "sglang/other.py": ""}), "sglang") == first


@pytest.mark.parametrize(
    "text",
    [
        "[[",
        "{}",
        '""',
        "null",
        '["abcd"]',
        '[["unknown-name", "sglang/user.py", 1e999, "x", 1]]',
        '[["unknown-name", "../../outside.py", 1, "x", 1]]',
        '[["whatever", "sglang/user.py", 1, "x", 1]]',
        '[["unknown-name", "sglang/user.py", 1, "no column"]]',
        "[" * 200_000,
    ],
)
def test_a_kept_answer_that_is_none_is_asked_for_anew(checker: Pyrefly, tmp_path: Path, text: str) -> None:
    first = checker.check(tree(FILES), "sglang")
    (kept,) = (tmp_path / "cache" / "answers").iterdir()
    kept.write_text(text)
    assert checker.check(tree(FILES), "sglang") == first


IMPOSTOR = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "{version}"; exit 0; fi
for word in "$@"; do case "$word" in json:*) printf '%s' '{answer}' > "${{word#json:}}";; esac; done
{end}
"""


@pytest.mark.parametrize(
    ("version", "answer", "end", "says"),
    [
        ("pyrefly 9.9.9", '{"errors": []}', "exit 0", "does not find the faults it is shown: bad-argument-count"),
        ("pyrefly 9.9.9", '{"errors": [{"name": "unknown-name"}]}', "exit 1", "gave no answer that can be read"),
        ("pyrefly 9.9.9", "[" * 100, "exit 1", "gave no answer that can be read"),
        ("pyrefly 9.9.9", "", "echo its last words >&2; exit 7", "exited 7"),
        ("hello", "", "exit 0", "when asked for its version"),
    ],
)
def test_a_checker_that_is_silent_or_says_something_else_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, answer: str, end: str, says: str
) -> None:
    program = tmp_path / "scripts" / "pyrefly"
    program.parent.mkdir()
    program.write_text(IMPOSTOR.format(version=version, answer=answer, end=end))
    program.chmod(0o755)
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(program.parent))
    with pytest.raises(Unavailable, match=says):
        Pyrefly(tmp_path / "cache").check(tree(FILES), "sglang")
    assert not list((tmp_path / "cache").glob("answers/*"))


def test_a_run_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = tmp_path / "scripts" / "pyrefly"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nif [ "$1" = --version ]; then echo pyrefly 1.0; exit 0; fi\necho $$ > "$PWD/../pid"\nsleep 300\n'
    )
    program.chmod(0o755)
    source = (
        "import sysconfig\nfrom pathlib import Path\nfrom builder.model import Tree\n"
        f"sysconfig.get_path = lambda _name: {str(program.parent)!r}\n"
        "from builder.type_checker import Pyrefly\n"
        "tree = Tree(frozenset({'sglang/a.py'}), lambda _path: b'')\n"
        f"Pyrefly(Path({str(tmp_path / 'cache')!r})).check(tree, 'sglang')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    with subprocess.Popen([sys.executable, "-c", source], env=environment) as parent:
        pid = _waited_for(lambda: next((tmp_path / "cache").glob("runs/*/pid"), None))
        parent.kill()
    number = int(pid.read_text())
    _waited_for(lambda: not Path(f"/proc/{number}").exists() or "Z" in Path(f"/proc/{number}/stat").read_text())


def _waited_for(found: Callable[[], object]) -> Any:
    for _ in range(600):
        if answer := found():
            return answer
        time.sleep(0.05)
    raise AssertionError("it did not come")


def test_a_cache_behind_a_link_or_a_relative_path_makes_no_difference(tmp_path, monkeypatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    assert kinds(Pyrefly(Path("link/cache")).check(tree(FILES), "sglang")) == KINDS


def test_a_source_in_another_coding_is_read_as_python_reads_it(checker: Pyrefly) -> None:
    data = {path: text.encode() for path, text in FILES.items()}
    data["sglang/user.py"] = b"# -*- coding: latin-1 -*-\n# \xe9\n" + data["sglang/user.py"]
    found = checker.check(Tree(frozenset(data), data.get), "sglang")
    assert kinds(found) == {(kind, line + 2) for kind, line in KINDS}


def test_a_file_whose_text_is_not_at_hand_is_left_out(checker: Pyrefly) -> None:
    def read(path: str) -> bytes | None:
        if path == "sglang/link.py":
            raise InputError(path, "is a link in the base")
        return FILES[path].encode()

    found = checker.check(Tree(frozenset({*FILES, "sglang/link.py", "sglang/a.so"}), read), "sglang")
    assert kinds(found) == KINDS


def test_no_path_leads_out_of_the_folder_it_works_in(checker: Pyrefly, tmp_path: Path) -> None:
    files = {**FILES, "sglang/../../../../escaped.py": "x", "/sglang/absolute.py": "x", "other/b.py": "x"}
    assert kinds(checker.check(tree(files), "sglang")) == KINDS
    assert not list(tmp_path.rglob("escaped.py"))


def test_a_cache_that_cannot_be_had_does_not_keep_it_from_answering(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert kinds(Pyrefly(tmp_path / "file" / "cache").check(tree(FILES), "sglang")) == KINDS


def test_nothing_stays_but_the_answer(checker: Pyrefly, tmp_path: Path) -> None:
    checker.check(tree(FILES), "sglang")
    assert list((tmp_path / "cache" / "runs").iterdir()) == []
    assert len(list((tmp_path / "cache" / "answers").iterdir())) == 1


def test_what_a_killed_run_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    runs = tmp_path / "cache" / "runs"
    for name in ("run-old", "run-new"):
        (runs / name / "tree").mkdir(parents=True)
    yesterday = time.time() - 2 * 24 * 3600
    os.utime(runs / "run-old", (yesterday, yesterday))
    Pyrefly(tmp_path / "cache").check(tree(FILES), "sglang")
    assert [folder.name for folder in runs.iterdir()] == ["run-new"]


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (Limits(seconds=0.01), "did not end within 0.01 s and was stopped"),
        (Limits(memory_bytes=1 << 20), "exited|was killed"),
    ],
)
def test_a_run_that_reaches_its_bounds_is_said_and_leaves_nothing(tmp_path: Path, limits: Limits, says: str) -> None:
    checker = Pyrefly(tmp_path / "cache")
    checker.version()
    bounded = Pyrefly(tmp_path / "cache", limits)
    bounded._version = checker.version()  # the bound is meant for the check
    with pytest.raises(Unavailable, match=says):
        bounded.check(tree(FILES), "sglang")
    assert not (tmp_path / "cache" / "answers").exists()
    assert list((tmp_path / "cache" / "runs").iterdir()) == []


def test_a_stopped_run_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        Pyrefly(tmp_path / "cache", Limits(seconds=0.001)).version()
    listed = subprocess.run(["ps", "-eo", "ppid,args"], capture_output=True, text=True, check=True).stdout
    ours = [line for line in listed.splitlines() if line.split()[0] == str(os.getpid()) and "pyrefly" in line]
    assert ours == []


def test_a_checker_that_is_not_installed_is_named_with_the_next_step(tmp_path: Path) -> None:
    program = (
        "import sysconfig; sysconfig.get_path = lambda _name: '/nowhere'\n"
        "from pathlib import Path\n"
        "from builder.errors import Unavailable\n"
        "from builder.type_checker import Pyrefly\n"
        "try:\n    Pyrefly(Path('cache')).version()\n"
        "except Unavailable as error:\n    print(error.message, '|', error.hint)\n"
    )
    environment = {**os.environ, "PATH": "/nowhere", "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "pyrefly is not installed | pip install pyrefly\n"
