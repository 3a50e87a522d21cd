"""What a person calls a base, resolved: digests first, the engine only where it has the very image."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from builder import base as bases
from builder import catalogue
from builder.base import FolderBase, Sources
from builder.errors import InputError, Refused, Unavailable
from builder.model import Digest, ImageRef, Platform, RemoteImage
from builder.records import BasePin, Lock, PlatformPin
from tests.support.fake_engine import AMD64, FakeEngine
from tests.support.scene import write_catalogue

INDEX, MANIFEST = Digest.of(b"index"), Digest.of(b"manifest")


class ScriptedRegistry:
    """Answers with one image, or raises; remembers what it was asked."""

    def __init__(self, answer: RemoteImage | Exception) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def resolve(self, ref: ImageRef, platform: Platform) -> RemoteImage:
        self.asked.append(str(ref))
        if isinstance(self.answer, Exception):
            raise self.answer
        return replace(self.answer, reference=ref)


@pytest.fixture
def shelf(tmp_path):
    folder = write_catalogue(tmp_path / "shelf")
    (folder / "images/b.toml").write_text('reference = "lmsysorg/sglang:t"\nlive-root = "/app"\n')
    return catalogue.find(folder, folder)


@pytest.fixture
def engine():
    return FakeEngine()


def remote(config: bytes) -> RemoteImage:
    return RemoteImage(ImageRef.parse("x"), INDEX, MANIFEST, Digest.of(config), config, AMD64, 10)


@pytest.fixture
def make(shelf, engine, tmp_path):
    """`make(registry, name, lock)` resolves a base."""

    def resolve(registry, name="b", lock=None, mirror=None, platform=AMD64):
        sources = Sources(engine, registry, mirror, tmp_path / "cache")
        return bases.resolve(name, shelf, sources, platform, lock)

    return resolve


CONFIG = json.dumps({"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": []}}).encode()
UNREACHABLE = Unavailable("r", "does not answer")


def locked(*platforms: PlatformPin) -> Lock:
    pin = BasePin(alias="b", reference="lmsysorg/sglang:t", index=INDEX, platforms=platforms)
    return Lock(overlay="o", tool="t", checker="c", bases=(pin,))


SEEN = PlatformPin(platform="linux/amd64", manifest=MANIFEST, config=Digest.of(CONFIG))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("dir:/x", FolderBase), ("b", tuple), ("lmsysorg/sglang:t", tuple), ("ghcr.io/a/b@" + INDEX, tuple)],
)
def test_a_name_is_a_folder_an_alias_or_a_reference(shelf, name, kind):
    assert isinstance(bases.named(name, shelf), kind)


def test_a_bare_word_that_is_no_alias_is_answered_with_the_closest(shelf):
    (shelf.folder / "images/qwen38-27b.toml").write_text('reference = "a/b:c"\n')
    with pytest.raises(InputError, match="did you mean 'qwen38-27b'"):
        bases.named("qwen38-27", shelf)


def test_an_alias_brings_its_live_root_and_is_resolved_by_digest_before_any_pull(make):
    registry = ScriptedRegistry(remote(CONFIG))
    base = make(registry)
    assert (base.alias, base.live_root) == ("b", "/app")
    assert (base.index, base.manifest, base.config_digest) == (INDEX, MANIFEST, Digest.of(CONFIG))
    assert base.local is None
    assert registry.asked == ["lmsysorg/sglang:t"]


def test_a_mirror_is_asked_and_the_plain_reference_is_kept(make):
    registry = ScriptedRegistry(remote(CONFIG))
    base = make(registry, mirror="127.0.0.1:5000/hub")
    assert registry.asked == ["127.0.0.1:5000/hub/lmsysorg/sglang:t"]
    assert str(base.reference) == "lmsysorg/sglang:t"


def test_an_image_is_present_by_digest_whatever_its_repository_is_called(make, engine):
    image = engine.add({}, repo_digests=("elsewhere/other@" + MANIFEST,))
    base = make(ScriptedRegistry(remote(CONFIG)))
    assert base.local is not None
    assert base.local.id == image.id


def test_a_lock_pins_the_digest_and_the_tag_is_not_asked(make):
    registry = ScriptedRegistry(remote(CONFIG))
    base = make(registry, lock=locked())
    assert registry.asked == [f"lmsysorg/sglang@{INDEX}"]
    assert base.index == INDEX


def test_a_lock_that_knows_the_platform_needs_no_network_once_the_image_is_here(make, engine, tmp_path):
    make(ScriptedRegistry(remote(CONFIG)), lock=locked())
    engine.add({}, repo_digests=("x/y@" + MANIFEST,))
    base = make(ScriptedRegistry(UNREACHABLE), lock=locked(SEEN))
    assert base.config == CONFIG
    assert base.local is not None


def test_other_content_than_the_lock_saw_is_refused_with_both_sides(make):
    other = PlatformPin(platform="linux/amd64", manifest=MANIFEST, config=Digest.of(b"other"))
    with pytest.raises(Refused) as caught:
        make(ScriptedRegistry(remote(CONFIG)), lock=locked(other))
    said = "\n".join(caught.value.facts)
    assert Digest.of(b"other") in said
    assert Digest.of(CONFIG) in said


def test_a_local_image_that_never_was_in_a_registry_is_asked_of_nobody_and_pinned_by_its_config(make, engine):
    engine.add({}, tags=("mine:1",))
    registry = ScriptedRegistry(UNREACHABLE)
    base = make(registry, name="mine:1")
    assert registry.asked == []
    assert (base.index, base.config) == (None, None)
    assert "pinned by its config digest" in base.notes[0]


def test_a_pulled_image_will_do_where_the_registry_does_not_answer_and_that_is_said(make, engine):
    engine.add({}, tags=("mine:1",), repo_digests=("mine@" + MANIFEST,))
    base = make(ScriptedRegistry(UNREACHABLE), name="mine:1")
    assert base.manifest == MANIFEST
    assert "does not answer" in base.notes[0]


def test_without_registry_and_local_image_the_registrys_error_is_the_answer(make):
    with pytest.raises(Unavailable, match="does not answer"):
        make(ScriptedRegistry(UNREACHABLE))


def test_a_local_image_of_another_platform_is_refused(make, engine):
    engine.add({}, tags=("mine:1",))
    with pytest.raises(InputError, match="wanted linux/arm64"):
        make(ScriptedRegistry(UNREACHABLE), name="mine:1", platform=Platform("linux", "arm64"))


def test_a_platform_is_written_into_the_lock_once(make):
    base = make(ScriptedRegistry(remote(CONFIG)), lock=locked())
    updated = bases.with_platform_seen(locked(), base)
    assert updated is not None
    assert updated.bases[0].platforms == (SEEN,)
    assert bases.with_platform_seen(updated, base) is None
