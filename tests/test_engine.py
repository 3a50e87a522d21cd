from __future__ import annotations

import gc
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder import engine as docker_engine
from builder import layer
from builder.doors import Engine, Limits, no_progress
from builder.engine import RUN_LABEL, DockerEngine
from builder.errors import InputError, OverlayError, Refused, Unavailable
from builder.image_pull import PullProgress, pull_error
from builder.layer import LayerFile
from builder.model import Completed, Digest, FileMeta, ImageRef, Layer, LocalImage, Platform
from tests.lab import services
from tests.support.fake_engine import FakeEngine, FakeImage

if TYPE_CHECKING:
    import docker

    from tests.conftest import MakeToyBase
    from tests.lab.registry_server import Registry

MARK = "org.overlay.test.engine"
ROOT = FileMeta(0o755, 0, 0, 1_700_000_000_123_456_789)
TIME = 1_755_000_000 * 10**9
APP = "/srv/app"
FILES = {f"{APP}/a.py": "a = 1\n", f"{APP}/gone.py": "gone = 1\n", f"{APP}/pkg/b.py": "b = 1\n"}
PROGRAMS = dict.fromkeys(("/usr/bin/sh", "/usr/bin/cat", "/usr/bin/sleep", "/usr/bin/python3"), "")


# --- the contract: every engine, the fake one and the real one


@pytest.fixture(params=["fake", "docker"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def docker_image(toy_base: MakeToyBase) -> str:
    return toy_base(FILES, [f"LABEL {MARK}=yes", f"WORKDIR {APP}", "ENV COLOUR=red", 'CMD ["sh"]'])


@pytest.fixture
def real(docker_daemon: docker.DockerClient) -> Iterator[DockerEngine]:
    """The real engine; no container of it may be left after a test."""
    engine = docker_engine.connect()
    yield engine
    left = docker_daemon.containers.list(all=True, filters={"name": f"overlay-{engine._run}"}, ignore_removed=True)
    for container in left:
        container.remove(force=True, v=True)
    engine.close()
    assert left == []


@pytest.fixture
def engine(kind: str, request: pytest.FixtureRequest) -> Engine:
    return FakeEngine() if kind == "fake" else request.getfixturevalue("real")


@pytest.fixture
def image(kind: str, engine: Engine, request: pytest.FixtureRequest) -> LocalImage:
    if isinstance(engine, FakeEngine):
        config = {"Labels": {MARK: "yes"}, "WorkingDir": APP, "Env": ["COLOUR=red"], "Cmd": ["sh"]}
        return engine.add({**FILES, **PROGRAMS}, config=config, tags=["toy:t"])
    found = engine.inspect(request.getfixturevalue("docker_image"))
    assert found is not None
    return found


def built(base: LocalImage, files: Mapping[str, bytes], deletions: Sequence[str] = ()) -> tuple[bytes, Layer]:
    folders = dict.fromkeys(("/srv", APP, f"{APP}/pkg"), ROOT)
    made = layer.build(
        [LayerFile(path, data, FileMeta(0o640, 1000, 1000, 0)) for path, data in files.items()],
        deletions,
        folders,
        TIME,
    )
    labels = {"org.overlay.test.made": uuid.uuid4().hex}
    config = layer.image_config(
        layer.projected_config(base), made, created=TIME // 10**9, labels=labels, created_by="overlay build"
    )
    return config, made


@pytest.fixture
def load(engine: Engine, image: LocalImage) -> Iterator[Callable[..., tuple[LocalImage, str]]]:
    """Put files on the image; what a test made is removed after it."""
    made: list[LocalImage] = []

    def put(files: Mapping[str, bytes], deletions: Sequence[str] = ()) -> tuple[LocalImage, str]:
        config, new = built(image, files, deletions)
        found, way = engine.load(config, new, image, deletions)
        made.append(found)
        return found, way

    yield put
    for found in made:
        engine.remove(found.id)


def read(engine: Engine, image: Digest, path: str) -> tuple[tarfile.TarInfo, bytes]:
    with engine.archive(image, path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        entry = tar.next()
        assert entry is not None
        file = tar.extractfile(entry) if entry.isreg() else None
        return entry, file.read() if file else b""


def completed(result: Completed | None) -> Completed:
    assert result is not None
    return result


def test_an_image_is_found_by_tag_and_by_id(engine: Engine, image: LocalImage) -> None:
    assert engine.inspect(image.repo_tags[0]) == image == engine.inspect(image.id)


@pytest.mark.parametrize("reference", ["nobody/has-this:1", f"sha256:{'0' * 64}", ""])
def test_what_the_engine_does_not_have_is_none(engine: Engine, reference: str) -> None:
    assert engine.inspect(reference) is None


def test_an_image_tells_config_labels_and_layers(engine: Engine, image: LocalImage) -> None:
    config: Any = image.config
    assert image.labels[MARK] == "yes"
    assert "COLOUR=red" in config["config"]["Env"]
    assert config["config"]["Cmd"] == ["sh"]
    assert config["rootfs"]["diff_ids"] == list(image.diff_ids)
    assert len(image.diff_ids) >= 1


def test_images_are_found_by_label(engine: Engine, image: LocalImage) -> None:
    assert image.id in {found.id for found in engine.find(MARK, "yes")}
    assert engine.find(MARK, "no") == ()
    assert image.id in {found.id for found in engine.images()}


def test_a_program_leaves_exit_code_and_both_outputs(engine: Engine, image: LocalImage) -> None:
    script = "echo out; echo err >&2; exit 3"
    assert engine.run(image.id, ["sh", "-c", script]) == Completed(3, "out\n", "err\n")


def test_stdin_of_some_megabytes_arrives_whole(engine: Engine, image: LocalImage) -> None:
    done = completed(engine.run(image.id, ["cat"], stdin=b"0123456789" * 500_000))
    assert (done.exit_code, len(done.stdout)) == (0, 5_000_000)


def test_a_program_that_does_not_read_its_stdin_is_not_waited_for(engine: Engine, image: LocalImage) -> None:
    done = completed(engine.run(image.id, ["sh", "-c", "echo done"], stdin=b"x" * 20_000_000))
    assert done.stdout == "done\n"


def test_without_stdin_a_program_reads_its_end(engine: Engine, image: LocalImage) -> None:
    assert completed(engine.run(image.id, ["cat"])) == Completed(0, "", "")


def test_the_environment_is_the_images_and_ours(engine: Engine, image: LocalImage) -> None:
    script = "echo $COLOUR $SHAPE $PYTHONDONTWRITEBYTECODE"
    done = completed(engine.run(image.id, ["sh", "-c", script], environment={"SHAPE": "round"}))
    assert done.stdout == "red round 1\n"
    done = completed(engine.run(image.id, ["sh", "-c", script], environment={"COLOUR": "blue"}))
    assert done.stdout == "blue 1\n"


def test_the_working_directory_is_the_images_or_ours(engine: Engine, image: LocalImage) -> None:
    assert completed(engine.run(image.id, ["cat", "a.py"])).stdout == "a = 1\n"
    assert completed(engine.run(image.id, ["cat", "b.py"], working_dir=f"{APP}/pkg")).stdout == "b = 1\n"


def test_home_can_be_written(engine: Engine, image: LocalImage) -> None:
    done = completed(engine.run(image.id, ["sh", "-c", 'echo kept > "$HOME/x" && cat "$HOME/x"']))
    assert done == Completed(0, "kept\n", "")


def test_a_program_is_stopped_at_the_time_limit(engine: Engine, image: LocalImage) -> None:
    started = time.monotonic()
    done = completed(engine.run(image.id, ["sh", "-c", "echo begun; exec sleep 60"], limits=Limits(seconds=1.5)))
    assert (done.exit_code, done.stopped_by, done.stdout) == (None, "time", "begun\n")
    assert time.monotonic() - started < 20


def test_a_flood_of_output_does_not_keep_the_time_limit_away(engine: Engine, image: LocalImage) -> None:
    started = time.monotonic()
    flood = "while :; do echo 0123456789012345678901234567890123456789; done"
    assert completed(engine.run(image.id, ["sh", "-c", flood], limits=Limits(seconds=1.5))).stopped_by == "time"
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("program", ["no-such-program", "/no/such/python3"])
def test_a_program_the_image_does_not_have_is_none(engine: Engine, image: LocalImage, program: str) -> None:
    assert engine.run(image.id, [program, "-c", "1"]) is None


def test_a_file_that_may_not_run_is_told_from_one_that_is_missing(engine: Engine, image: LocalImage) -> None:
    done = completed(engine.run(image.id, [f"{APP}/a.py"]))
    assert done.exit_code == 126
    assert "permission denied" in done.stderr


def test_running_in_an_image_nobody_has_is_an_input_error(engine: Engine) -> None:
    with pytest.raises(InputError, match="no such image"):
        engine.run(Digest.of(b"nobody"), ["sh"])


def test_a_folder_is_streamed_as_a_tar_that_begins_with_its_name(engine: Engine, image: LocalImage) -> None:
    with engine.archive(image.id, APP) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        found = {entry.name.rstrip("/"): entry for entry in tar}
    assert set(found) == {"app", "app/a.py", "app/gone.py", "app/pkg", "app/pkg/b.py"}
    assert found["app/pkg"].isdir()
    assert found["app/a.py"].size == 6


def test_a_reader_may_stop_early(engine: Engine, image: LocalImage) -> None:
    with engine.archive(image.id, "/usr") as stream:
        assert len(stream.read(512)) == 512


def test_a_path_the_image_does_not_have_is_an_input_error(engine: Engine, image: LocalImage) -> None:
    with (
        pytest.raises(InputError, match=r"/no/where: the image has no such path"),
        engine.archive(image.id, "/no/where"),
    ):
        pass


def test_a_loaded_image_is_the_base_and_one_layer_untagged(
    engine: Engine, image: LocalImage, load: Callable[..., tuple[LocalImage, str]]
) -> None:
    made, way = load({f"{APP}/a.py": b"a = 2\n"})
    assert way == "load"
    assert made.diff_ids[:-1] == image.diff_ids
    assert made.repo_tags == ()
    assert read(engine, made.id, f"{APP}/a.py")[1] == b"a = 2\n"
    assert read(engine, image.id, f"{APP}/a.py")[1] == b"a = 1\n"
    assert read(engine, made.id, f"{APP}/pkg/b.py")[1] == b"b = 1\n"


def test_a_thin_load_gives_exactly_the_image_that_the_config_names(engine: Engine, image: LocalImage) -> None:
    config, new = built(image, {f"{APP}/a.py": b"a = 3\n"})
    first, _ = engine.load(config, new, image, [])
    again, _ = engine.load(config, new, image, [])
    engine.remove(first.id)
    assert first.id == again.id == Digest.of(config)
    assert first.diff_ids[-1] == new.diff_id
    assert engine.inspect(first.id) is None


def test_an_overlaid_file_has_the_layers_mode_owner_and_time(
    engine: Engine, load: Callable[..., tuple[LocalImage, str]]
) -> None:
    made, _ = load({f"{APP}/pkg/new.py": b"new"})
    entry, _ = read(engine, made.id, f"{APP}/pkg/new.py")
    assert (entry.mode & 0o7777, entry.uid, entry.gid, entry.mtime) == (0o640, 1000, 1000, TIME // 10**9)


def test_a_deleted_file_is_gone(engine: Engine, load: Callable[..., tuple[LocalImage, str]]) -> None:
    made, _ = load({}, [f"{APP}/gone.py"])
    with pytest.raises(InputError), engine.archive(made.id, f"{APP}/gone.py"):
        pass
    assert read(engine, made.id, f"{APP}/a.py")[1] == b"a = 1\n"


def test_a_layer_on_a_base_nobody_has_is_refused_and_leaves_nothing(engine: Engine, image: LocalImage) -> None:
    stranger = replace(image, id=Digest.of(b"x"), diff_ids=(Digest.of(b"no such layer"),))
    config, new = built(stranger, {f"{APP}/a.py": b"a"})
    before = engine.find(MARK, "yes")
    with pytest.raises(Unavailable, match="is not in the engine any more"):
        engine.load(config, new, stranger, [])
    assert engine.find(MARK, "yes") == before


def test_a_tag_moves_and_an_untagged_image_can_be_removed(
    engine: Engine, image: LocalImage, load: Callable[..., tuple[LocalImage, str]]
) -> None:
    first, _ = load({f"{APP}/a.py": b"a = 4\n"})
    second, _ = load({f"{APP}/a.py": b"a = 5\n"})
    name = ImageRef.parse(f"overlay-test/{uuid.uuid4().hex}:t")
    engine.tag(first.id, name)
    engine.remove(first.id)
    assert engine.inspect(first.id) is not None, "a tagged image stays"
    engine.tag(second.id, name)
    moved = engine.inspect(str(name))
    assert moved is not None
    assert moved.id == second.id
    engine.remove(first.id)
    assert engine.inspect(first.id) is None
    engine.tag(image.id, name)
    untag(engine, name)


def untag(engine: Engine, name: ImageRef) -> None:
    if isinstance(engine, DockerEngine):
        engine._client.remove_image(str(name), noprune=True)


def test_a_digest_cannot_be_a_tag(engine: Engine, image: LocalImage) -> None:
    with pytest.raises(InputError, match="cannot be a tag"):
        engine.tag(image.id, ImageRef.parse(f"a/b@{Digest.of(b'x')}"))


@pytest.fixture
def remote(kind: str, engine: Engine, request: pytest.FixtureRequest) -> Iterator[ImageRef]:
    """An image in a registry, by digest, that the engine does not have by that name."""
    if isinstance(engine, FakeEngine):
        reference = ImageRef.parse(f"127.0.0.1:5000/lmsysorg/sglang@{Digest.of(b'manifest')}")
        other = FakeEngine()
        made = other.add(FILES)
        engine.remote[str(reference)] = other.stored[made.id]
        engine.remote[str(replace(reference, digest=None, tag="pulled"))] = other.stored[made.id]
        yield reference
        return
    registry: Registry = request.getfixturevalue("registry")
    digest = registry.push(request.getfixturevalue("docker_image"), "pulled")
    reference = ImageRef.parse(f"{registry.prefix}/lmsysorg/sglang@{digest}")
    assert isinstance(engine, DockerEngine)
    drop(engine, str(reference))
    yield reference
    drop(engine, str(reference))
    drop(engine, f"{registry.prefix}/lmsysorg/sglang:pulled")


def drop(engine: DockerEngine, name: str) -> None:
    if engine.inspect(name) is not None:
        engine._client.remove_image(name, noprune=True)


AMD64 = Platform("linux", "amd64")


def test_a_pull_by_digest_makes_the_image_known_by_it_and_tags_nothing(engine: Engine, remote: ImageRef) -> None:
    def tags() -> set[str]:
        return {tag for found in engine.images() for tag in found.repo_tags if tag.startswith(remote.domain)}

    before = tags()
    pulled = engine.pull(remote, AMD64, no_progress)
    assert engine.inspect(str(remote)) == pulled
    assert str(remote) in pulled.repo_digests
    assert tags() == before


def test_a_pull_by_tag_never_moves_a_local_tag(engine: Engine, remote: ImageRef) -> None:
    by_tag = replace(remote, digest=None, tag="pulled")
    first = engine.pull(by_tag, AMD64, no_progress)
    assert engine.inspect(str(by_tag)) == first
    with pytest.raises(Refused, match="could move it"):
        engine.pull(by_tag, AMD64, no_progress)


def test_a_pull_of_what_is_gone_is_refused(engine: Engine, remote: ImageRef) -> None:
    gone = remote.pinned(Digest.of(b"gone"))
    with pytest.raises(Refused, match="no such image"):
        engine.pull(gone, AMD64, no_progress)


# --- the fake alone


def test_the_fake_answers_as_a_test_wrote_it_down() -> None:
    fake = FakeEngine(lambda argv, stdin: Completed(0, f"{argv[0]} {stdin.decode()}", ""))
    image = fake.add({"/a": "b"})
    assert fake.run(image.id, ["python3"], stdin=b"hi") == Completed(0, "python3 hi", "")
    assert isinstance(fake.stored[image.id], FakeImage)


# --- the real engine alone


@pytest.fixture
def toy(real: DockerEngine, docker_image: str) -> LocalImage:
    found = real.inspect(docker_image)
    assert found is not None
    return found


def sh(engine: DockerEngine, image: LocalImage, script: str, **settings: Any) -> Completed:
    return completed(engine.run(image.id, ["sh", "-c", script], **settings))


def test_a_container_has_no_network_no_capabilities_and_a_read_only_root(real: DockerEngine, toy: LocalImage) -> None:
    script = "ls /sys/class/net; grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status; echo x > /srv/x"
    done = sh(real, toy, script)
    assert done.stdout.split() == [
        *("lo", "CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1", "Seccomp:", "2"),
    ]
    assert "Read-only file system" in done.stderr


def test_the_entrypoint_is_bypassed(real: DockerEngine, toy_base: MakeToyBase) -> None:
    name = toy_base({"/e.sh": "echo banner"}, ['ENTRYPOINT ["sh", "/e.sh"]', "HEALTHCHECK CMD sh /e.sh"])
    image = real.inspect(name)
    assert image is not None
    assert sh(real, image, "echo mine").stdout == "mine\n"


def test_memory_is_bounded_and_that_is_said(real: DockerEngine, toy: LocalImage) -> None:
    limits = Limits(seconds=60, memory_bytes=64 << 20)
    done = completed(real.run(toy.id, ["python3", "-c", "x = bytearray(1 << 30)"], limits=limits))
    assert (done.exit_code, done.stopped_by) == (None, "memory")


def test_a_child_killed_for_memory_is_not_a_pass(real: DockerEngine, toy: LocalImage) -> None:
    limits = Limits(seconds=60, memory_bytes=64 << 20)
    done = sh(real, toy, "python3 -c 'x = bytearray(1 << 30)'; echo went on", limits=limits)
    assert (done.exit_code, done.stopped_by, done.stdout) == (None, "memory", "went on\n")


def test_output_is_bounded_and_its_end_is_kept(
    real: DockerEngine, toy: LocalImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.container_streams._OUTPUT_BYTES", 1 << 20)
    done = completed(real.run(toy.id, ["python3", "-c", "print('x' * (3 << 20)); print('the answer')"]))
    assert len(done.stdout) < (1 << 20) + (1 << 17)
    assert done.stdout.startswith("[")
    assert "bytes before this were dropped]" in done.stdout
    assert done.stdout.endswith("the answer\n")


def test_a_program_that_closed_its_output_is_still_bounded(real: DockerEngine, toy: LocalImage) -> None:
    done = sh(real, toy, "exec >&- 2>&-; exec sleep 60", limits=Limits(seconds=1.5))
    assert done.stopped_by == "time"


def test_user_packages_stay_importable_although_home_is_scratch(real: DockerEngine, toy_base: MakeToyBase) -> None:
    site = "/home/me/.local/lib/python3.11/site-packages"
    name = toy_base(
        {
            f"{site}/mine.py": "x = 1\n",
            "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\n",
        },
        ["USER me"],
    )
    image = real.inspect(name)
    assert image is not None
    done = completed(real.run(image.id, ["python3", "-c", "import mine, os; print(mine.__file__, os.getuid())"]))
    assert done.stdout == f"{site}/mine.py 1000\n", done.stderr


def test_a_gpu_is_not_asked_for(real: DockerEngine, toy_base: MakeToyBase) -> None:
    image = real.inspect(toy_base({}, ["ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_REQUIRE_CUDA=cuda>=99"]))
    assert image is not None
    assert sh(real, image, "echo $NVIDIA_VISIBLE_DEVICES").stdout == "void\n"


def test_a_script_whose_interpreter_is_missing_cannot_run(real: DockerEngine, toy_base: MakeToyBase) -> None:
    image = real.inspect(toy_base({"/bin/tool": "#!/no/such/python\n"}, ["RUN chmod +x /bin/tool"]))
    assert image is not None
    done = real.run(image.id, ["tool"])
    assert done is None or done.exit_code not in (0, None)


def test_ctrl_c_leaves_no_container(real: DockerEngine, toy: LocalImage, docker_daemon: docker.DockerClient) -> None:
    own = {"name": f"overlay-{real._run}"}

    def interrupt() -> None:
        while not docker_daemon.containers.list(filters={**own, "status": "running"}, ignore_removed=True):
            time.sleep(0.1)
        os.kill(os.getpid(), 2)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        real.run(toy.id, ["sleep", "60"])
    thread.join()
    assert docker_daemon.containers.list(all=True, filters=own, ignore_removed=True) == []


def test_what_a_killed_process_leaves_is_recognised(toy: LocalImage, docker_daemon: docker.DockerClient) -> None:
    code = (
        "from builder import engine; e = engine.connect(); print(e._run, flush=True);"
        f"e.run({str(toy.id)!r}, ['sleep', '60'])"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    run = process.stdout.readline().strip()
    filters = {"label": f"{RUN_LABEL}={run}", "status": "running"}
    while not (left := docker_daemon.containers.list(filters=filters, ignore_removed=True)):
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait()
    process.stdout.close()
    (container,) = left
    assert container.name.startswith(f"overlay-{run}-")
    container.remove(force=True)


def history(client: docker.DockerClient, image: LocalImage) -> list[dict[str, Any]]:
    return list(client.images.get(str(image.id)).history())


@pytest.mark.parametrize("way", docker_engine.WAYS)
def test_history_and_layers_are_the_bases_and_exactly_one_more(
    real: DockerEngine, toy: LocalImage, docker_daemon: docker.DockerClient, way: str
) -> None:
    engine = DockerEngine(real._client, [way])
    config, new = built(toy, {f"{APP}/a.py": b"a = 6\n"}, [f"{APP}/gone.py"])
    made, worked = engine.load(config, new, toy, [f"{APP}/gone.py"])
    try:
        assert worked == way
        shown, base = history(docker_daemon, made), history(docker_daemon, toy)
        assert [entry["Size"] for entry in shown[1:]] == [entry["Size"] for entry in base]
        assert 6 <= shown[0]["Size"] < 1 << 16, "some stores count whole disk blocks"
        assert made.diff_ids[:-1] == toy.diff_ids
        assert len(made.diff_ids) == len(toy.diff_ids) + 1
    finally:
        engine.remove(made.id)


RUNNING = ("Cmd", "Entrypoint", "Env", "User", "WorkingDir", "Volumes", "ExposedPorts", "StopSignal", "Healthcheck")


@pytest.mark.parametrize("way", docker_engine.WAYS)
@pytest.mark.parametrize(
    "lines",
    [
        [
            'ENTRYPOINT ["/e.sh", "a b"]',
            'CMD ["x"]',
            "USER 1000:1000",
            "EXPOSE 30000",
            "VOLUME /data",
            "STOPSIGNAL SIGINT",
        ],
        ['CMD ["sh"]', "HEALTHCHECK --interval=7s CMD true", "WORKDIR /srv"],
        ["ENV A=b"],
    ],
)
def test_the_config_is_the_bases_beside_our_labels(
    real: DockerEngine, toy_base: MakeToyBase, way: str, lines: list[str]
) -> None:
    base = real.inspect(toy_base(FILES, lines))
    assert base is not None
    engine = DockerEngine(real._client, [way])
    config, new = built(base, {f"{APP}/a.py": b"a = 7\n"})
    made, _ = engine.load(config, new, base, [])
    try:
        before: Any = base.config["config"]
        after: Any = made.config["config"]
        assert {key: after.get(key) or None for key in RUNNING} == {key: before.get(key) or None for key in RUNNING}
        assert made.labels == json.loads(config)["config"]["Labels"]
        assert set(made.labels) - set(base.labels) == {"org.overlay.test.made"}
    finally:
        engine.remove(made.id)


def test_a_committed_image_is_read_back_and_proved(real: DockerEngine, toy: LocalImage) -> None:
    engine = DockerEngine(real._client, ["commit"])
    files = {f"{APP}/a.py": b"a = 8\n", f"{APP}/pkg/deep/new.py": b"new = 1\n"}
    config, new = built(toy, files, [f"{APP}/gone.py"])
    made, way = engine.load(config, new, toy, [f"{APP}/gone.py"])
    try:
        assert way == "commit"
        assert made.id != Digest.of(config)
        assert read(engine, made.id, f"{APP}/pkg/deep/new.py")[1] == b"new = 1\n"
        entry, data = read(engine, made.id, f"{APP}/a.py")
        assert (data, entry.mode & 0o7777, entry.uid) == (b"a = 8\n", 0o640, 1000)
        with pytest.raises(InputError), engine.archive(made.id, f"{APP}/gone.py"):
            pass
    finally:
        engine.remove(made.id)


def test_a_commit_that_stores_something_else_is_refused_and_leaves_nothing(
    real: DockerEngine, toy_base: MakeToyBase
) -> None:
    # What lies in a volume is not committed: an engine that answers yes and stores nothing.
    base = real.inspect(toy_base(FILES, [f"VOLUME {APP}", f"LABEL {MARK}=volume"]))
    assert base is not None
    config, new = built(base, {f"{APP}/a.py": b"a = 9\n"})
    before = real.find(MARK, "volume")
    with pytest.raises(Unavailable) as caught:
        DockerEngine(real._client, ["commit"]).load(config, new, base, [])
    # Stores differ in whether a layer without changes is kept.
    assert re.search(rf"{APP}/a\.py: content|not the base and one layer", caught.value.facts[0])
    assert real.find(MARK, "volume") == before


def test_a_committed_config_that_is_not_the_wanted_one_is_refused(real: DockerEngine, toy: LocalImage) -> None:
    config, new = built(toy, {f"{APP}/a.py": b"a = 12\n"})
    made, _ = real.load(config, new, toy, [])
    wanted = json.loads(config)["config"]
    try:
        assert real._proved(made.id, wanted, new, toy, []) == made
        with pytest.raises(Unavailable, match=r"config Cmd: expected \['other'\], found \['sh'\]"):
            real._proved(made.id, {**wanted, "Cmd": ["other"]}, new, toy, [])
    finally:
        real.remove(made.id)


def test_removing_an_image_leaves_the_untagged_base_it_was_committed_on(real: DockerEngine, toy: LocalImage) -> None:
    base, _ = real.load(*built(toy, {f"{APP}/a.py": b"a = 13\n"}), toy, [])
    made, way = DockerEngine(real._client, ["commit"]).load(*built(base, {f"{APP}/a.py": b"a = 14\n"}), base, [])
    real.remove(made.id)
    kept = real.inspect(base.id)
    real.remove(base.id)
    assert way == "commit"
    assert kept == base


def test_a_refused_load_falls_back_to_commit(
    real: DockerEngine, toy: LocalImage, docker_daemon: docker.DockerClient
) -> None:
    # A config that asks for more layers than the archive lists is refused by the load, as a store without thin loads
    # refuses all of them; the commit does not look at it.
    config, new = built(toy, {f"{APP}/a.py": b"a = 10\n"})
    told = json.loads(config)
    told["rootfs"]["diff_ids"].append(str(Digest.of(b"one too many")))
    made, way = real.load(json.dumps(told).encode(), new, toy, [])
    try:
        assert way == "commit"
        assert len(made.diff_ids) == len(toy.diff_ids) + 1
    finally:
        real.remove(made.id)


@pytest.mark.parametrize("way", docker_engine.WAYS)
def test_no_program_of_the_image_runs_while_a_layer_is_put_on(
    real: DockerEngine, toy_base: MakeToyBase, docker_daemon: docker.DockerClient, way: str
) -> None:
    base = real.inspect(toy_base(FILES, ['ENTRYPOINT ["sh", "-c", "echo ran > /srv/ran; sleep 60"]']))
    assert base is not None
    since = int(time.time())
    config, new = built(base, {f"{APP}/a.py": b"a = 11\n"})
    engine = DockerEngine(real._client, [way])
    made, _ = engine.load(config, new, base, [])
    filters = {"image": [str(base.id), str(made.id)], "event": "start"}
    events = docker_daemon.events(since=since, until=int(time.time()) + 1, filters=filters, decode=True)
    started = list(events)
    events.close()
    engine.remove(made.id)
    assert started == []


def test_history_entries_are_matched_with_layers() -> None:
    def told(*sizes: int) -> list[dict[str, Any]]:
        return [{"Size": size, "Created": -62135596800, "CreatedBy": str(n)} for n, size in enumerate(sizes)]

    def layers(*sizes: int, count: int) -> list[str]:
        entries = docker_engine._oci_history(told(*sizes), count)
        return [str(entry["created_by"]) for entry in entries if not entry.get("empty_layer")]

    assert layers(0, 5, 0, 7, count=2) == ["3", "1"]
    assert layers(0, 5, 0, 7, count=3) == ["3", "1", "0"], "the newest without a size is a layer of empty files"
    assert layers(0, 0, count=2) == ["1", "0"]
    assert docker_engine._oci_history(told(5, 7), 1) == []
    assert docker_engine._oci_history(told(5), 1)[0]["created"] == "0001-01-01T00:00:00Z"


def test_pull_progress_adds_up_over_the_layers() -> None:
    seen: list[tuple[str, int, int | None]] = []
    shown = PullProgress("x", lambda *report: seen.append(report))
    events = [
        {"status": "Pulling from lmsysorg/sglang", "id": "sha256:1"},
        {"status": "Pulling fs layer", "id": "a"},
        {"status": "Pulling fs layer", "id": "b"},
        {"status": "Downloading", "id": "a", "progressDetail": {"current": 5, "total": 10}},
        {"status": "Downloading", "id": "b", "progressDetail": {"current": 10, "total": 30}},
        {"status": "Download complete", "id": "a", "progressDetail": {}},
        {"status": "Downloading", "id": "b", "progressDetail": {"current": 30, "total": 30}},
        {"status": "Extracting", "id": "a", "progressDetail": {"current": 3, "total": 10}},
    ]
    for event in events:
        shown.take(event)
    assert seen == [("pull x", 5, None), ("pull x", 15, 40), ("pull x", 40, 40), ("unpack x", 3, 10)]


def test_a_real_pull_shows_progress(real: DockerEngine, registry: Registry, docker_daemon: docker.DockerClient) -> None:
    # Its layer must be new to the engine, or nothing is downloaded.
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo("big")
        data = os.urandom(8 << 20)
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    name = f"{registry.prefix}/lab/progress"
    docker_daemon.api.import_image_from_data(buffer.getvalue(), repository=name, tag="t")
    digest = registry.push(f"{name}:t", "p", "lab/progress")
    for reference in (f"{name}:t", f"{name}@{digest}"):
        drop(real, reference)
    seen: list[tuple[str, int, int | None]] = []
    image = real.pull(ImageRef.parse(f"{name}@{digest}"), AMD64, lambda *report: seen.append(report))
    drop(real, image.repo_digests[0])
    assert any(what.startswith("pull") and total and done <= total for what, done, total in seen)


def test_nobody_to_pull_from_is_unavailable(real: DockerEngine) -> None:
    reference = ImageRef.parse(f"127.0.0.1:{services.free_port()}/a/b@{Digest.of(b'x')}")
    with pytest.raises(Unavailable, match="could not pull it") as caught:
        real.pull(reference, AMD64, no_progress)
    assert "refused" in caught.value.facts[0]


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        ("write /var/lib/docker/tmp/x: no space left on device", Unavailable, "disk is full"),
        ("toomanyrequests: You have reached your pull rate limit", Unavailable, "rate limit"),
        (
            "pull access denied for x, repository does not exist or may require 'docker login'",
            Unavailable,
            "not allowed",
        ),
        ("unauthorized: authentication required", Unavailable, "not allowed"),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", Refused, "this platform"),
        ("manifest for a/b@sha256:1 not found: manifest unknown: manifest unknown", Refused, "no such image"),
        ("Get https://r/v2/: net/http: TLS handshake timeout", Unavailable, "could not pull it"),
    ],
)
def test_what_a_pull_says_is_told_apart(words: str, error: type[OverlayError], says: str) -> None:
    found = pull_error(ImageRef.parse("a/b:t"), words)
    assert type(found) is error
    assert says in found.message
    assert found.hint


# --- connecting


def refusal() -> Unavailable:
    """Connect to nobody. The SDK leaves the socket of a failed attempt to the garbage collector, so that runs here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        told = None
        try:
            docker_engine.connect()
        except Unavailable as error:
            told = Unavailable(error.where, error.message, hint=error.hint, facts=error.facts)
        gc.collect()
    assert told is not None, "somebody answered"
    return told


def test_no_engine_is_unavailable_with_a_next_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    error = refusal()
    assert error.message == f"no engine answers at unix://{tmp_path}/nobody.sock"
    assert error.exit_code == 3
    assert "DOCKER_HOST" in error.hint


def test_a_password_in_the_address_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"tcp://me:s3cret@127.0.0.1:{services.free_port()}")
    error = refusal()
    assert "s3cret" not in " ".join([str(error), error.hint, *error.facts])


def test_the_current_docker_context_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # As `docker context use elsewhere` leaves it.
    name = "elsewhere"
    folder = tmp_path / "contexts" / "meta" / Digest.of(name.encode()).hex
    folder.mkdir(parents=True)
    endpoint = {"docker": {"Host": f"unix://{tmp_path}/nobody.sock", "SkipTLSVerify": False}}
    (folder / "meta.json").write_text(json.dumps({"Name": name, "Metadata": {}, "Endpoints": endpoint}))
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": name}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    assert f"{tmp_path}/nobody.sock" in refusal().message


def test_an_unknown_way_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAY_LOAD_WAYS", "load,magic")
    with pytest.raises(InputError, match="expected some of load, commit; found magic"):
        docker_engine.connect()
