"""The command line as people script against it: documents, exit codes, errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from tests.support.loopback import Answer, serve
from tests.support.scene import write_catalogue


@pytest.fixture
def shelf(tmp_path):
    return write_catalogue(tmp_path / "shelf")


@pytest.fixture
def site(tmp_path):
    package = tmp_path / "site/sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "version.py").write_text('__version__ = "1.0"\n')
    return tmp_path / "site"


def test_help_names_the_exit_codes_and_loads_nothing_heavy(overlay):
    done = overlay("--help")
    assert done.returncode == 0
    for code in ("0", "1", "2", "3", "70", "130"):
        assert f"\n    {code} " in done.stdout
    program = "import sys, builder.cli; print([m for m in ('docker', 'git', 'pydantic', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["plan"], "Missing option '--base'"),
        (["plan", "--base", "x", "--pr", "none"], "not a valid integer"),
        (["paln"], "No such command 'paln'"),
        (["plan", "--base", "x", "--bse", "y"], "No such option"),
        (["schema", "plam"], "did you mean 'plan'?"),
        (["plan", "--base", "qwen", "--pr", "1"], "no base named 'qwen'"),
        (["plan", "--base", "UPPER/x:1", "--pr", "1"], "not a valid image reference"),
        (["plan", "--base", "dir:/nonexistent/x", "--pr", "1"], "/nonexistent/x"),
        (["plan", "--base", "dir:.", "--platform", "linux", "--pr", "1"], "os/architecture"),
        (["plan", "--base", "dir:."], "give --pr or --overlay"),
        (["plan", "--base", "dir:.", "--pr", "1", "--pr", "1"], "1 is given twice"),
        (["plan", "--base", "/some/folder", "--pr", "1"], "write dir:/some/folder"),
        (["plan", "--base", "dir:", "--pr", "1"], "dir: names no folder"),
        (["audit", "dir:."], "is a folder"),
        (["build", "--base", "dir:.", "--pr", "1", "--draft", "/nonexistent"], "--draft: /nonexistent does not exist"),
        (["build", "--base", "dir:.", "--pr", "1", "--require", "drft"], "did you mean 'draft'?"),
        (["build", "--base", "dir:.", "--pr", "1", "--tag", "a b"], "not a valid image reference"),
    ],
)
def test_a_mistake_is_exit_2_with_two_lines_and_one_document(overlay, shelf, arguments, expected):
    done = overlay(*arguments, "--catalogue", shelf, "--json")
    assert done.returncode == 2, done
    document = json.loads(done.stdout)
    assert document["verdict"] == "error"
    assert expected in done.stderr
    assert set(document["error"]) == {"where", "message", "hint", "facts"}
    assert document["error"]["hint"]
    assert done.stderr.startswith("overlay: ")
    assert "\nhint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_may_stand_before_or_after_the_command_and_the_later_wins(overlay, shelf, tmp_path):
    for arguments in (
        ("--catalogue", shelf, "--json", "list"),
        ("list", "--json", "--catalogue", shelf),
        ("--catalogue", tmp_path / "none", "list", "--json", "--catalogue", shelf),
    ):
        done = overlay(*arguments, DOCKER_HOST="unix:///none")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert document["catalogue"] == str(shelf)
        assert document["images"] is None
        assert any("no engine answered" in note for note in document["notes"])


def test_settings_come_from_options_then_environment_then_the_catalogue(overlay, shelf, site, history, tmp_path):
    history.commit({"python/sglang/a.py": "x = 1\n"}, "start")
    history.squash(1, "Add", [{"python/sglang/b.py": "y = 1\n"}])
    repository = history.write(tmp_path / "upstream.git")
    words = ("plan", "--base", f"dir:{site}", "--pr", "1", "--catalogue", shelf, "--json")
    (shelf / "overlay.toml").write_text(f'upstream = "{repository.path}"\n')
    assert json.loads(overlay(*words).stdout)["verdict"] == "ok"
    broken = overlay(*words, OVERLAY_UPSTREAM=str(tmp_path / "nowhere"))
    assert broken.returncode != 0
    assert "nowhere" in broken.stderr
    done = overlay(*words, "--upstream", repository.path, OVERLAY_UPSTREAM=str(tmp_path / "nowhere"))
    assert json.loads(done.stdout)["verdict"] == "ok"
    (shelf / "overlay.toml").write_text("upstraem = 'x'\n")
    assert "did you mean 'upstream'?" in overlay(*words).stderr


def test_a_forge_that_only_the_catalogue_names_is_not_given_the_token(overlay, shelf, site):
    with serve(lambda request: Answer(b"{}", status=404)) as server:
        (shelf / "overlay.toml").write_text(f'forge = "{server.url}"\n')
        words = ("plan", "--base", f"dir:{site}", "--pr", "1", "--catalogue", shelf)
        overlay(*words, GITHUB_TOKEN="secret-token")
        asked = list(server.requests)
        overlay(*words, "--forge", server.url, GITHUB_TOKEN="secret-token")
        trusted = list(server.requests)[len(asked) :]
    assert asked
    assert not any("secret-token" in str(request.headers) for request in asked)
    assert any("secret-token" in str(request.headers) for request in trusted)


def test_quiet_leaves_only_the_answer(overlay, shelf, site, history, tmp_path):
    history.commit({"python/sglang/a.py": "x = 1\n"}, "start")
    history.squash(1, "Add", [{"python/sglang/b.py": "y = 1\n"}])
    upstream = history.write(tmp_path / "upstream.git").path
    words = ("plan", "--base", f"dir:{site}", "--pr", "1", "--catalogue", shelf, "--upstream", upstream)
    quiet = overlay(*words, "--quiet")
    assert quiet.stderr == ""
    assert "verdict  ok" in quiet.stdout
    assert "\x1b[" not in quiet.stdout


def test_a_closed_pipe_is_no_traceback(overlay, shelf):
    program = f"{sys.executable} -c 'from builder.cli import main; main()' schema plan | head -1"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "{\n"
    assert done.stderr == ""


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_its_own_exit_code(shelf, site, sign, code):
    program = (
        "import sys, time; from builder import build, cli\n"
        "build.make_plan = lambda *a: (print('ready', flush=True), time.sleep(60))\n"
        "cli.main()"
    )
    words = ["plan", "--base", f"dir:{site}", "--pr", "1", "--catalogue", str(shelf)]
    running = subprocess.Popen(
        [sys.executable, "-c", program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    time.sleep(0.2)
    running.send_signal(sign)
    _, stderr = running.communicate(timeout=20)
    assert running.returncode == code
    assert "Traceback" not in stderr
