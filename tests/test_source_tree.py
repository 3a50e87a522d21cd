from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder import engine as docker_engine
from builder import layer, source_tree
from builder.engine import DockerEngine
from builder.errors import InputError, Refused
from builder.layer import LayerFile
from builder.model import Completed, FileMeta, LocalImage, Oid, SourceTree, TreeFile
from tests.support.fake_engine import FakeEngine

if TYPE_CHECKING:
    from tests.conftest import MakeBase, MakeToyBase

CHECKOUT = "/sgl-workspace/sglang/python"
SITE = "/usr/local/lib/python3.11/dist-packages"
TIME = 1_755_000_000 * 10**9


@pytest.fixture(scope="module")
def engine(docker_daemon: object) -> Iterator[DockerEngine]:
    engine = docker_engine.connect()
    yield engine
    engine.close()


def local(engine: DockerEngine, name: str) -> LocalImage:
    found = engine.inspect(name)
    assert found is not None
    return found


def package(root: str, version: str, **more: str) -> dict[str, bytes | str]:
    """A toy package in a folder; `module__py="..."` adds module.py."""
    files: dict[str, bytes | str] = {f"{root}/sglang/__init__.py": f"__version__ = '{version}'\n"}
    return files | {f"{root}/sglang/{name.replace('__', '.')}": text for name, text in more.items()}


def pointing_at(root: str) -> dict[str, bytes | str]:
    return {f"{SITE}/__editable__.sglang.pth": f"{root}\n"}


# --- A1: which copy of the package runs


def test_a1_the_copy_that_the_images_interpreter_imports_is_live_not_the_obvious_one(
    engine: DockerEngine, toy_base: MakeToyBase
) -> None:
    both = package(SITE, "1") | package(CHECKOUT, "2")
    image = local(engine, toy_base(both, ["WORKDIR /sgl-workspace"]))
    tree = source_tree.extract(engine, image)
    assert (tree.live_root, tree.version) == (SITE, "1")
    assert tree.dead_copies == (f"{CHECKOUT}/sglang",)
    assert "/usr/bin/python3" in tree.found_by
    assert "/sgl-workspace" in tree.found_by


def test_a1_a_pth_file_swaps_which_copy_is_live(engine: DockerEngine, toy_base: MakeToyBase) -> None:
    dead = "/usr/lib/python3/dist-packages"
    both = package(dead, "1") | package(CHECKOUT, "2") | pointing_at(CHECKOUT)
    image = local(engine, toy_base(both, ["WORKDIR /sgl-workspace"]))
    tree = source_tree.extract(engine, image)
    assert (tree.live_root, tree.version, tree.dead_copies) == (CHECKOUT, "2", (f"{dead}/sglang",))
    assert tree.interpreter == "/usr/bin/python3"


def test_a1_forcing_the_other_root_is_refused_naming_both(engine: DockerEngine, toy_base: MakeToyBase) -> None:
    image = local(engine, toy_base(package(SITE, "1") | package(CHECKOUT, "2")))
    with pytest.raises(Refused, match=f"imports sglang from {CHECKOUT}; they import it from {SITE}"):
        source_tree.extract(engine, image, live_root=CHECKOUT)


def test_a1_the_images_own_environment_and_working_directory_decide(
    engine: DockerEngine, toy_base: MakeToyBase
) -> None:
    both = package(SITE, "1") | package(CHECKOUT, "2")
    image = local(engine, toy_base(both, [f"ENV PYTHONPATH={CHECKOUT}"]))
    assert source_tree.extract(engine, image).live_root == CHECKOUT


def test_two_ways_of_starting_that_import_different_copies_are_refused(
    engine: DockerEngine, toy_base: MakeToyBase
) -> None:
    image = local(engine, toy_base(package(SITE, "1") | package("/app", "2"), ["WORKDIR /app"]))
    with pytest.raises(Refused, match="do not import the same copy of sglang") as caught:
        source_tree.extract(engine, image)
    facts = "\n".join(caught.value.facts)
    assert "started as python -m with /app first: /app" in facts
    assert f"started as script with /usr/bin first: {SITE}" in facts
    assert "--live-root" in caught.value.hint


@pytest.mark.parametrize("root", ["/app", SITE])
def test_a_given_live_root_settles_a_disagreement(engine: DockerEngine, toy_base: MakeToyBase, root: str) -> None:
    image = local(engine, toy_base(package(SITE, "1") | package("/app", "2"), ["WORKDIR /app"]))
    tree = source_tree.extract(engine, image, live_root=root)
    assert tree.live_root == root
    assert tree.found_by.startswith(f"given as {root}")


def test_a_given_live_root_may_be_a_link_to_it(engine: DockerEngine, toy_base: MakeToyBase) -> None:
    image = local(engine, toy_base(package(SITE, "1"), [f"RUN ln -s {SITE} /live"]))
    assert source_tree.extract(engine, image, live_root="/live").live_root == SITE


VENV = "/opt/venv"


def venv_lines(root: str = VENV) -> list[str]:
    # What `python3 -m venv --without-pip` makes, which needs a package that the root filesystem lacks.
    site = f"{root}/lib/python3.11/site-packages"
    return [
        f"RUN mkdir -p {root}/bin {site} && ln -s /usr/bin/python3 {root}/bin/python3"
        f" && echo 'home = /usr/bin' > {root}/pyvenv.cfg"
    ]


def test_two_interpreters_on_path_with_different_copies_are_refused(
    engine: DockerEngine, toy_base: MakeToyBase
) -> None:
    files = package(SITE, "1") | package(f"{VENV}/lib/python3.11/site-packages", "2")
    image = local(engine, toy_base(files, [*venv_lines(), f"ENV PATH={VENV}/bin:/usr/bin:/bin"]))
    with pytest.raises(Refused) as caught:
        source_tree.extract(engine, image)
    facts = "\n".join(caught.value.facts)
    assert f"{VENV}/bin/python3 (PATH)" in facts
    assert "/usr/bin/python3 (PATH)" in facts


def test_a_venv_that_nothing_names_is_a_dead_copy_beside_a_live_one(
    engine: DockerEngine, toy_base: MakeToyBase
) -> None:
    files = package(SITE, "1") | package(f"{VENV}/lib/python3.11/site-packages", "2")
    image = local(engine, toy_base(files, venv_lines()))
    tree = source_tree.extract(engine, image)
    assert tree.live_root == SITE
    assert tree.dead_copies == (f"{VENV}/lib/python3.11/site-packages/sglang",)


def test_a_venv_that_nothing_names_is_live_where_no_other_copy_is(engine: DockerEngine, toy_base: MakeToyBase) -> None:
    site = f"{VENV}/lib/python3.11/site-packages"
    image = local(engine, toy_base(package(site, "2"), venv_lines()))
    tree = source_tree.extract(engine, image)
    assert (tree.live_root, tree.interpreter) == (site, f"{VENV}/bin/python3")


def test_the_interpreter_of_the_entrypoint_is_asked(engine: DockerEngine, toy_base: MakeToyBase) -> None:
    root = "/srv/env"
    site = f"{root}/lib/python3.11/site-packages"
    lines = [*venv_lines(root), f'ENTRYPOINT ["sh", "-c", "exec {root}/bin/python3 -m sglang.launch_server"]']
    tree = source_tree.extract(engine, local(engine, toy_base(package(site, "3"), lines)))
    assert (tree.live_root, tree.interpreter) == (site, f"{root}/bin/python3")


def test_the_shebang_of_the_console_script_is_followed(engine: DockerEngine, toy_base: MakeToyBase) -> None:
    root = "/srv/env"
    site = f"{root}/lib/python3.11/site-packages"
    script = f"#!/bin/sh\n'''exec' {root}/bin/python3 \"$0\" \"$@\"\n' '''\nimport sglang\n"
    files = package(site, "3") | {"/usr/bin/sglang": script}
    image = local(
        engine, toy_base(files, [*venv_lines(root), "RUN chmod +x /usr/bin/sglang", 'CMD ["sglang", "serve"]'])
    )
    tree = source_tree.extract(engine, image)
    assert (tree.live_root, tree.interpreter) == (site, f"{root}/bin/python3")


def test_a_namespace_package_is_refused(engine: DockerEngine, toy_base: MakeToyBase) -> None:
    image = local(engine, toy_base({f"{SITE}/sglang/srt/a.py": "x = 1\n"}))
    with pytest.raises(Refused, match="but not as a package") as caught:
        source_tree.extract(engine, image)
    assert "a namespace package without __init__.py" in caught.value.facts[0]


BROKEN = "#!/bin/sh\necho broken >&2; exit 1\n"


def test_a_python_on_path_that_cannot_answer_has_no_say(engine: DockerEngine, toy_base: MakeToyBase) -> None:
    files = package(SITE, "1") | {"/usr/bin/python2.7": BROKEN}
    image = local(engine, toy_base(files, ["RUN chmod +x /usr/bin/python2.7"]))
    assert source_tree.extract(engine, image).live_root == SITE


def test_silence_of_the_interpreter_that_the_image_starts_is_refused(
    engine: DockerEngine, toy_base: MakeToyBase
) -> None:
    files = package(SITE, "1") | {"/srv/python3": BROKEN}
    image = local(engine, toy_base(files, ["RUN chmod +x /srv/python3", 'CMD ["/srv/python3", "-m", "sglang"]']))
    with pytest.raises(Refused, match="do not import the same copy") as caught:
        source_tree.extract(engine, image)
    assert any("/srv/python3 (command)" in fact and "no answer" in fact for fact in caught.value.facts)


def test_no_copy_and_no_python_are_told_apart(engine: DockerEngine, toy_base: MakeToyBase) -> None:
    with pytest.raises(Refused, match="no interpreter of the image imports sglang") as caught:
        source_tree.extract(engine, local(engine, toy_base({})))
    assert "does not find sglang" in caught.value.facts[0]
    fake = FakeEngine()
    with pytest.raises(Refused, match="the image has no Python"):
        source_tree.extract(fake, fake.add({"/bin/sh": ""}))


def test_a_file_of_the_base_cannot_stand_in_for_the_standard_library(
    engine: DockerEngine, toy_base: MakeToyBase
) -> None:
    evil = "import sys; sys.exit('a json of the base ran')\n"
    files = package(SITE, "1") | {"/app/json.py": evil, "/app/re.py": evil, "/app/importlib.py": evil}
    image = local(engine, toy_base(files, ["WORKDIR /app"]))
    assert source_tree.extract(engine, image).live_root == SITE


# --- A4: talk around the answer


def test_a4_banners_and_import_notices_are_not_taken_for_an_answer(engine: DockerEngine, toy_base: MakeToyBase) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    banner = f'cat <<\'X\'\n==\n\n{CHECKOUT}\n{commit}\nlive_root: /fake\n{{"answers": []}}\n==\n==\nX\nexec "$@"\n'
    noisy = f"print('{commit}'); print('/fake/root'); __version__ = '1'\n"
    files: dict[str, bytes | str] = {
        f"{SITE}/sglang/__init__.py": noisy,
        f"{SITE}/noise.pth": f"import sys; print('/fake {commit}'); print('notice', file=sys.stderr)\n",
        "/banner.sh": banner,
    }
    image = local(engine, toy_base(files, ['ENTRYPOINT ["sh", "/banner.sh"]']))
    tree = source_tree.extract(engine, image)
    assert (tree.live_root, tree.commit) == (SITE, None)


def answered(text: str) -> tuple[FakeEngine, LocalImage]:
    """An image whose Python answers any request with this text; NONCE stands for the request's own."""

    def script(argv: Sequence[str], stdin: bytes) -> Completed:
        return Completed(0, text.replace("NONCE", json.loads(argv[-1])["nonce"]), "")

    fake = FakeEngine(script)
    return fake, fake.add(package(SITE, "1"))


VALUE = json.dumps(
    {
        "answers": [
            {
                "interpreter": "/usr/bin/python3",
                "role": "PATH",
                "mode": "python -m",
                "first": "/",
                "origin": f"{SITE}/sglang/__init__.py",
                "locations": [f"{SITE}/sglang"],
            }
        ],
        "copies": [],
        "folders": {},
        "links": {},
        "live_root": None,
        "working_dir": "/",
    }
)


def test_a4_only_what_stands_between_the_nonces_counts() -> None:
    fake, image = answered(f"x{VALUE}\n{'f' * 32}{VALUE}{'f' * 32}\nNONCE{VALUE}NONCE\n{VALUE}")
    assert source_tree.extract(fake, image).live_root == SITE


@pytest.mark.parametrize(
    "text", ["", VALUE, f"{'f' * 32}{VALUE}{'f' * 32}", f"NONCE{VALUE}", f"NONCE{VALUE}NONCE{VALUE}NONCE"]
)
def test_a4_an_answer_without_the_nonce_is_no_answer(text: str) -> None:
    fake, image = answered(text)
    with pytest.raises(Refused, match="no Python of the image answered"):
        source_tree.extract(fake, image)


@pytest.mark.parametrize(
    "told", ["g561c8f3", "561c8f3", "unknown", "0123456789ABCDEF0123456789ABCDEF01234567", "0" * 41]
)
def test_a4_a_commit_is_forty_hex_digits_or_unknown(tmp_path: Path, told: str) -> None:
    write(tmp_path, {"sglang/__init__.py": "", "sglang/_version.py": f"__commit_id__ = commit_id = '{told}'\n"})
    assert source_tree.from_folder(tmp_path).commit is None


def test_a_commit_of_forty_hex_digits_is_told(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    write(tmp_path, {"sglang/__init__.py": "", "sglang/_version.py": f"__commit_id__ = commit_id = 'g{commit}'\n"})
    assert source_tree.from_folder(tmp_path).commit == commit


def test_the_commit_of_a_direct_url_is_told(engine: DockerEngine, toy_base: MakeToyBase) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    info = f"{SITE}/sglang-9.9.dist-info"
    files = {f"{SITE}/sglang/__init__.py": ""} | {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: sglang\nVersion: 9.9\n",
        f"{info}/direct_url.json": json.dumps({"url": "x", "vcs_info": {"vcs": "git", "commit_id": commit}}),
    }
    tree = source_tree.extract(engine, local(engine, toy_base(files)))
    assert (tree.version, tree.commit) == ("9.9", commit)


# --- the probe itself


def probe() -> str:
    return resources.files("builder.smoke").joinpath("probes", "live_root.py").read_text("utf-8")


def test_the_probe_is_written_for_python_3_8_and_the_standard_library() -> None:
    parsed = ast.parse(probe(), feature_version=(3, 8))
    imported = {
        name.name.partition(".")[0] for node in ast.walk(parsed) if isinstance(node, ast.Import) for name in node.names
    } | {str(node.module).partition(".")[0] for node in ast.walk(parsed) if isinstance(node, ast.ImportFrom)}
    assert imported <= sys.stdlib_module_names
    # One argument of a command is at most 128 kB long.
    assert len(probe().encode()) < 100_000


# --- what is read


def write(root: Path, files: Mapping[str, bytes | str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


BINARY = b"\x7fELF\0" + bytes(100)
BIG = b"x" * (1 << 20)
CONTENTS: dict[str, bytes | str] = {
    "sglang/__init__.py": "__version__ = '7.1'\n",
    "sglang/srt/a.py": "a = 1\n",
    "sglang/srt/zeros.py": b"a = '\0'\n",
    "sglang/srt/big.py": BIG,
    "sglang/srt/data.json": "{}",
    "sglang/srt/small.so": BINARY,
    "sglang/srt/big.txt": BIG,
    "sglang/srt/__pycache__/a.cpython-311.pyc": b"text without zeros",
}


def check_contents(tree: SourceTree) -> None:
    assert set(tree.files) >= set(CONTENTS)
    for path, content in CONTENTS.items():
        data = content.encode() if isinstance(content, str) else content
        entry = tree.files[path]
        assert (entry.blob, entry.size) == (Oid.of_blob(data), len(data)), path
        kept = path.endswith((".py", ".json"))
        assert entry.data == (data if kept else None), path
    with pytest.raises(InputError, match="link or a large binary"):
        tree.read("sglang/srt/small.so")
    link, hard = tree.files["sglang/srt/link.py"], tree.files["sglang/srt/hard.py"]
    assert (link.link, link.data, link.blob, link.git_mode) == ("a.py", None, Oid.of_blob(b"a.py"), "120000")
    assert (hard.link, hard.data) == (None, b"a = 1\n")
    assert tree.version == "7.1"


def test_sources_and_small_text_are_kept_and_the_rest_is_named(engine: DockerEngine, toy_base: MakeToyBase) -> None:
    files = {f"{SITE}/{path}": content for path, content in CONTENTS.items()}
    lines = [f"RUN cd {SITE}/sglang/srt && ln -s a.py link.py && ln a.py hard.py && chmod 750 a.py"]
    tree = source_tree.extract(engine, local(engine, toy_base(files, lines)))
    check_contents(tree)
    assert tree.files["sglang/srt/a.py"].git_mode == "100755"


def test_a_folder_is_read_as_an_image_is(tmp_path: Path) -> None:
    write(tmp_path, CONTENTS)
    (tmp_path / "sglang/srt/link.py").symlink_to("a.py")
    (tmp_path / "sglang/srt/hard.py").hardlink_to(tmp_path / "sglang/srt/a.py")
    tree = source_tree.from_folder(tmp_path)
    check_contents(tree)
    assert tree.live_root == str(tmp_path)
    assert str(tmp_path / "sglang/srt") in tree.folders
    assert str(tmp_path.parent) in tree.folders


def archive_of(*entries: tarfile.TarInfo) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for entry in entries:
            tar.addfile(entry)
    buffer.seek(0)
    return buffer


def tar_entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("../etc/passwd", tarfile.REGTYPE, "names a path outside sglang/"),
        ("sglang/../../x.py", tarfile.REGTYPE, "names a path outside sglang/"),
        ("/sglang/x.py", tarfile.REGTYPE, "names a path outside sglang/"),
        ("other/x.py", tarfile.REGTYPE, "names a path outside sglang/"),
        ("sglang/pipe", tarfile.FIFOTYPE, "neither file, folder nor link"),
        ("sglang/device", tarfile.CHRTYPE, "neither file, folder nor link"),
    ],
)
def test_absurd_entries_are_refused(name: str, kind: bytes, says: str) -> None:
    with pytest.raises(Refused, match=says):
        source_tree._read_archive(archive_of(tar_entry(name, kind)), "sglang")


def test_a_hard_link_out_of_the_package_is_refused() -> None:
    with pytest.raises(Refused, match="names a path outside"):
        source_tree._read_archive(archive_of(tar_entry("sglang/x.py", tarfile.LNKTYPE, "etc/passwd")), "sglang")


def test_a_linked_folder_that_the_layer_needs_is_refused(engine: DockerEngine, toy_base: MakeToyBase) -> None:
    image = local(engine, toy_base(package(SITE, "1"), ["RUN ln -s /srv /usr/share/overlay"]))
    with pytest.raises(Refused, match="/usr/share/overlay -> /srv"):
        source_tree.extract(engine, image)


# --- dir: bases


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such folder"):
        source_tree.from_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("holder", "given"),
    [(".", "sglang"), ("python", "."), ("lib/python3.12/site-packages", "."), ("sglang", ".")],
)
def test_the_folder_that_was_meant_is_named(tmp_path: Path, holder: str, given: str) -> None:
    write(tmp_path / holder, {"sglang/__init__.py": ""})
    with pytest.raises(InputError, match=r"expected sglang/__init__\.py in it") as caught:
        source_tree.from_folder(tmp_path / given)
    assert caught.value.hint == f"give dir:{(tmp_path / holder).resolve()}"


def test_the_version_of_an_installed_folder_is_its_metadatas_where_the_text_has_none(tmp_path: Path) -> None:
    write(tmp_path, {"sglang/__init__.py": "", "sglang-0.5.17.dist-info/METADATA": "Version: 0.5.17\n"})
    assert source_tree.from_folder(tmp_path).version == "0.5.17"


# --- which GPUs the base is for

TORCH = {
    "torch/__init__.py": "raise SystemExit('torch was imported')\n",
    "torch/version.py": "__version__ = '2.9.0+cu130'\ncuda: Optional[str] = '13.0'\nhip = None\n",
    # The index that most people install from allows no local part in the version of the metadata.
    "torch-2.9.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n",
    "torch_npu-2.9.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.9.1\n",
    "torch_npu/__init__.py": "raise SystemExit('torch_npu was imported')\n",
    "torchada/__init__.py": "",
    "other-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: other\nVersion: 1.0\n",
}
TOLD = {
    "torch": "2.9.0+cu130",
    "torch.version.cuda": "13.0",
    "torch.version.hip": "",
    "torch_npu": "2.9.1",
    "torchada": "",
}


def test_torch_and_its_plug_ins_are_told_and_not_imported(engine: DockerEngine, toy_base: MakeToyBase) -> None:
    files: dict[str, bytes | str] = {f"{SITE}/{path}": text for path, text in TORCH.items()}
    tree = source_tree.extract(engine, local(engine, toy_base(package(SITE, "1") | files)))
    assert tree.distributions == TOLD


def test_torch_beside_a_folder_base_is_told(tmp_path: Path) -> None:
    write(tmp_path, {"sglang/__init__.py": "", **TORCH})
    assert source_tree.from_folder(tmp_path).distributions == TOLD


def test_a_base_without_torch_tells_nothing_of_it(engine: DockerEngine, toy_base: MakeToyBase, tmp_path: Path) -> None:
    assert source_tree.extract(engine, local(engine, toy_base(package(SITE, "1")))).distributions == {}
    write(tmp_path, {"sglang/__init__.py": "", "torchx-1.dist-info/METADATA": "Version: 1\n"})
    assert source_tree.from_folder(tmp_path).distributions == {}


# --- stale bytecode (E1)


def entry() -> TreeFile:
    return TreeFile(Oid.of_blob(b""), 0, FileMeta(0o644, 0, 0, 0))


def test_e1_bytecode_of_changed_modules_is_found_whatever_made_it() -> None:
    cache = "sglang/srt/__pycache__"
    stale = (
        f"{cache}/a.cpython-311.opt-1.pyc",
        f"{cache}/a.cpython-311.pyc",
        f"{cache}/a.pypy39.pyc",
        "sglang/srt/a.pyc",
    )
    others = (
        f"{cache}/ab.cpython-311.pyc",
        f"{cache}/b.cpython-311.pyc",
        "sglang/a.pyc",
        "sglang/srt/a.py",
        f"{cache}/a.txt",
    )
    tree = SourceTree("sglang", SITE, {path: entry() for path in (*stale, *others)})
    assert source_tree.stale_bytecode(tree, ["sglang/srt/a.py", "sglang/srt/data.json"]) == tuple(sorted(stale))
    assert source_tree.stale_bytecode(tree, ["sglang/srt/c.py"]) == ()


UNCHECKED = (
    "import py_compile, sys; py_compile.compile(sys.argv[1], doraise=True,"
    " invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"
)


@pytest.mark.parametrize("way", docker_engine.WAYS)
def test_e1_planted_bytecode_does_not_hide_the_overlaid_source(
    engine: DockerEngine, toy_base: MakeToyBase, way: str
) -> None:
    source = f"{SITE}/sglang/m.py"
    image = local(
        engine, toy_base(package(SITE, "1", m__py="x = 'old'\n"), [f'RUN ["python3", "-c", "{UNCHECKED}", "{source}"]'])
    )
    tree = source_tree.extract(engine, image)
    stale = source_tree.stale_bytecode(tree, ["sglang/m.py"])
    assert stale == ("sglang/__pycache__/m.cpython-311.pyc",)
    hidden = overlay(engine, image, tree, {"sglang/m.py": b"x = 'new'\n"}, (), way)
    shown = overlay(engine, image, tree, {"sglang/m.py": b"x = 'new'\n"}, stale, way)
    ask = ["python3", "-c", "import sglang.m; print(sglang.m.x)"]
    try:
        said = [engine.run(made.id, ask) for made in (hidden, shown)]
        assert [done.stdout for done in said if done] == ["old\n", "new\n"]
    finally:
        for made in (hidden, shown):
            engine.remove(made.id)


def overlay(
    engine: DockerEngine,
    base: LocalImage,
    tree: SourceTree,
    files: Mapping[str, bytes],
    deletions: Sequence[str],
    way: str,
) -> LocalImage:
    def meta(path: str) -> FileMeta:
        return tree.files[path].meta if path in tree.files else layer.new_file_meta(tree, path)

    gone = [f"{tree.live_root}/{path}" for path in deletions]
    new = layer.build(
        [LayerFile(f"{tree.live_root}/{path}", data, meta(path)) for path, data in files.items()],
        gone,
        tree.folders,
        TIME,
    )
    config = layer.image_config(
        layer.projected_config(base), new, created=TIME // 10**9, labels={}, created_by="overlay build"
    )
    return DockerEngine(engine._client, [way]).load(config, new, base, gone)[0]


# --- real trees


def test_a_real_base_is_read_like_its_tree_as_a_folder(engine: DockerEngine, tiny_base: MakeBase, trees: Any) -> None:
    base = tiny_base("0.5.17", "editable")
    tree = source_tree.extract(engine, local(engine, base.name))
    folder = source_tree.from_folder(trees("0.5.17"))
    assert tree.live_root == CHECKOUT
    assert tree.version == folder.version == "0.5.17"

    def named(found: SourceTree) -> dict[str, tuple[str, bool]]:
        return {path: (item.blob, item.data is None) for path, item in found.files.items() if ".pyc" not in path}

    assert named(tree) == named(folder)
    assert sum(path.endswith(".py") for path in tree.files) == 3022


@pytest.mark.parametrize(
    ("variant", "root", "dead"),
    [
        ("installed", SITE, ()),
        ("dead-checkout", SITE, (f"{CHECKOUT}/sglang",)),
        ("dead-install", CHECKOUT, ("/usr/lib/python3/dist-packages/sglang",)),
    ],
)
def test_a1_on_real_trees(
    engine: DockerEngine, tiny_base: MakeBase, variant: Any, root: str, dead: tuple[str, ...]
) -> None:
    tree = source_tree.extract(engine, local(engine, tiny_base("0.5.17", variant).name))
    assert (tree.live_root, tree.dead_copies, tree.version) == (root, dead, "0.5.17")


def test_an_editable_install_by_a_finder_is_refused_and_settled_by_the_user(
    engine: DockerEngine, tiny_base: MakeBase
) -> None:
    image = local(engine, tiny_base("0.5.17", "finder").name)
    with pytest.raises(Refused, match="do not import the same copy") as caught:
        source_tree.extract(engine, image)
    facts = "\n".join(caught.value.facts)
    assert "started as python -m with /sgl-workspace first: a namespace package" in facts
    assert f"started as script with /usr/local/bin first: {CHECKOUT}" in facts
    assert source_tree.extract(engine, image, live_root=CHECKOUT).live_root == CHECKOUT


STATS = """
import hashlib, json, os, sys
found = {}
for top in sys.argv[1:]:
    for folder, names, files in os.walk(top):
        for path in [folder] + [os.path.join(folder, name) for name in files]:
            s = os.lstat(path)
            data = open(path, 'rb').read() if os.path.isfile(path) and not os.path.islink(path) else b''
            found[path] = [s.st_mode, s.st_uid, s.st_gid, s.st_mtime_ns, hashlib.sha256(data).hexdigest()]
print(json.dumps(found))
"""


def stats(engine: DockerEngine, image: LocalImage) -> dict[str, list[object]]:
    """Return mode, owner, time in nanoseconds and content of every path, as the image's own user sees them."""
    done = engine.run(image.id, ["python3", "-I", "-c", STATS, "/sgl-workspace", "/usr"])
    assert done is not None
    assert done.exit_code == 0, done.stderr
    found: dict[str, list[object]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("way", docker_engine.WAYS)
def test_every_path_that_is_not_overlaid_stays_as_it_was_on_a_base_of_another_owner(
    engine: DockerEngine, tiny_base: MakeBase, way: str
) -> None:
    base = local(engine, tiny_base("0.5.17", "owned").name)
    tree = source_tree.extract(engine, base)
    path, new = "sglang/srt/models/dflash.py", "sglang/srt/brand_new/a.py"
    assert tree.folders[f"{CHECKOUT}/sglang/srt"].mode == 0o2750
    made = overlay(engine, base, tree, {path: b"# overlaid\n", new: b"x = 1\n"}, (), way)
    try:
        before, after = stats(engine, base), stats(engine, made)
    finally:
        engine.remove(made.id)
    added = {f"{CHECKOUT}/{new}", f"{CHECKOUT}/sglang/srt/brand_new"}
    assert set(after) - set(before) == added
    changed = {name for name in before if before[name] != after.get(name)}
    if way == "commit":
        # A committed layer has whole seconds; nothing else may differ.
        def whole(found: dict[str, list[object]], name: str) -> list[object]:
            mode, uid, gid, time_ns, content = found[name]
            return [mode, uid, gid, int(str(time_ns)) // 10**9, content]

        changed = {name for name in changed if whole(before, name) != whole(after, name)}
    assert changed == {f"{CHECKOUT}/{path}"}
    assert before[f"{CHECKOUT}/{path}"][:3] == after[f"{CHECKOUT}/{path}"][:3] == [0o100640, 1000, 1000]
    assert after[f"{CHECKOUT}/{new}"][:3] == [0o100640, 1000, 1000]
    assert after[f"{CHECKOUT}/sglang/srt/brand_new"][:3] == [0o42750, 1000, 1000]


def test_times_of_folders_are_exact_to_the_nanosecond(engine: DockerEngine, toy_base: MakeToyBase) -> None:
    # An engine's own layers have whole seconds, so the base's upper layer is one of ours.
    bottom = local(engine, toy_base({"/srv/x": ""}, ["ENV PYTHONPATH=/srv/app"]))
    exact = FileMeta(0o755, 0, 0, 1_700_000_000_123_456_789)
    folders = dict.fromkeys(("/srv", "/srv/app", "/srv/app/sglang"), exact)
    new = layer.build([LayerFile("/srv/app/sglang/__init__.py", b"", exact)], [], folders, TIME)
    config = layer.image_config(layer.projected_config(bottom), new, created=0, labels={}, created_by="a test")
    base, _ = engine.load(config, new, bottom, [])
    tree = source_tree.extract(engine, base)
    made = overlay(engine, base, tree, {"sglang/__init__.py": b"x = 1\n"}, (), "load")
    again = source_tree.extract(engine, made)
    engine.remove(made.id)
    engine.remove(base.id)
    for path in folders:
        assert tree.folders[path] == again.folders[path] == exact, path


# VmHWM, not getrusage: the latter starts at the peak of the process that started this one.
MEASURE = """
import re, sys
from builder import engine, source_tree
door = engine.connect()
tree = source_tree.extract(door, door.inspect(sys.argv[1]))
door.close()
print(len(tree.files), *re.findall(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()))
"""


def test_reading_a_real_tree_stays_within_the_bounds_of_memory_and_time(tiny_base: MakeBase) -> None:
    name = tiny_base("0.5.17", "editable").name
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", MEASURE, name], capture_output=True, text=True, check=True)
    count, kilobytes = map(int, done.stdout.split())
    assert count > 3022
    assert kilobytes < 200 * 1024
    assert time.monotonic() - started < 20
