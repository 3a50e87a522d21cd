"""Checkpoints by their headers: where they lie, and every way in which one can be broken."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.checkpoint import MAX_HEADER, Checkpoint, PublishedDraft, Tensor, open_checkpoint, read_checkpoint
from builder.errors import InputError
from tests.lab import checkpoints
from tests.support.smoke_safetensors import CountedFiles, encoded, entry, index, one, write_model


def fault_of(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        open_checkpoint(path)
    return caught.value


def header_fault(tmp_path: Path, data: bytes) -> InputError:
    return fault_of(write_model(tmp_path / "model", {"model.safetensors": data}))


# -- where a checkpoint lies -----------------------------------------------------------------------------------------


def test_a_folder_of_one_file_is_read_by_its_header(tmp_path: Path) -> None:
    folder = checkpoints.write_draft(tmp_path / "draft")
    found = open_checkpoint(folder)
    assert (found.name, found.revision, len(found.tensors)) == ("draft", None, 36)
    assert found.architectures == ("DFlash2DraftModel",)
    fc = found.tensors["fc.weight"]
    assert (fc.dtype, fc.shape, fc.bytes) == ("BF16", (64, 192), 2 * 64 * 192)
    with (folder / fc.file).open("rb") as file:
        file.seek(fc.begin)
        assert len(file.read(fc.bytes)) == fc.bytes
    assert found.shapes["fc.weight"] == ("BF16", (64, 192))


def test_a_published_draft_of_full_size_is_read_without_its_bytes(tmp_path: Path) -> None:
    found = open_checkpoint(checkpoints.write_published_draft(tmp_path / "published"))
    assert len(found.tensors) == 81
    assert sum(tensor.elements for tensor in found.tensors.values()) == 1_924_404_480
    assert max(tensor.end for tensor in found.tensors.values()) == 3_848_817_896


def test_shards_are_joined_as_the_index_says(tmp_path: Path) -> None:
    found = open_checkpoint(checkpoints.write_target(tmp_path / "target"))
    assert found.files == ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    assert {tensor.file for tensor in found.tensors.values()} == set(found.files)
    assert found.text_config["vocab_size"] == checkpoints.TARGET_VOCAB
    assert found.quantization is not None
    assert found.quantization["quant_method"] == "fp8"


def test_one_file_is_enough_and_its_config_is_found_beside_it(tmp_path: Path) -> None:
    folder = checkpoints.write_draft(tmp_path / "draft")
    assert open_checkpoint(folder / "model.safetensors").architectures == ("DFlash2DraftModel",)
    (folder / "config.json").unlink()
    bare = open_checkpoint(folder / "model.safetensors")
    assert (bare.architectures, bare.notes) == ((), ("no config.json beside the file",))


def hub_cache(tmp_path: Path, revisions: list[str], main: str | None) -> Path:
    cache = tmp_path / "models--org--some-model"
    for revision in revisions:
        blobs = cache / "blobs"
        blobs.mkdir(parents=True, exist_ok=True)
        (blobs / revision).write_bytes(one())
        snapshot = write_model(cache / "snapshots" / revision, {})
        (snapshot / "model.safetensors").symlink_to(f"../../blobs/{revision}")
    if main is not None:
        (cache / "refs").mkdir()
        (cache / "refs" / "main").write_text(main)
    return cache


def test_a_hub_cache_is_read_at_the_snapshot_that_main_names(tmp_path: Path) -> None:
    cache = hub_cache(tmp_path, ["aaa", "bbb"], "bbb")
    found = open_checkpoint(cache)
    assert (found.name, found.revision) == ("org/some-model", "bbb")
    chosen = open_checkpoint(cache / "snapshots" / "aaa")
    assert (chosen.name, chosen.revision) == ("org/some-model", "aaa")


def test_a_hub_cache_of_one_snapshot_needs_no_ref_and_one_of_two_lists_them(tmp_path: Path) -> None:
    assert open_checkpoint(hub_cache(tmp_path / "one", ["aaa"], None)).revision == "aaa"
    fault = fault_of(hub_cache(tmp_path / "two", ["aaa", "bbb"], "ccc"))
    assert fault.message == "holds 2 snapshots and refs/main names none of them"
    assert fault.facts == ("aaa", "bbb")


def test_a_hub_cache_whose_blob_is_missing_is_not_whole(tmp_path: Path) -> None:
    cache = hub_cache(tmp_path, ["aaa"], None)
    (cache / "blobs" / "aaa").unlink()
    assert "links to ../../blobs/aaa, which is missing" in fault_of(cache).message


def test_mistrals_second_copy_of_the_weights_is_not_read(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", {"model.safetensors": one("a"), "consolidated.safetensors": one("b")})
    assert list(open_checkpoint(folder).tensors) == ["a"]
    alone = write_model(tmp_path / "n", {"consolidated.safetensors": one("b")})
    assert list(open_checkpoint(alone).tensors) == ["b"]


def test_what_is_no_checkpoint_says_what_was_found(tmp_path: Path) -> None:
    assert fault_of(tmp_path / "nowhere").message == "is neither a folder nor a file"
    (tmp_path / "notes.txt").write_text("x")
    assert fault_of(tmp_path / "notes.txt").message == "is not a .safetensors file"
    no_config = fault_of(tmp_path)
    assert (no_config.message, no_config.facts) == ("has no config.json", ("notes.txt",))
    assert fault_of(write_model(tmp_path / "empty", {})).message == "has no .safetensors file"


def test_quantization_is_found_in_every_place_it_is_written(tmp_path: Path) -> None:
    described = {"quant_method": "x"}
    for number, config in enumerate(
        ({"quantization_config": described}, {"text_config": {"quantization_config": described}})
    ):
        folder = write_model(tmp_path / str(number), {"model.safetensors": one()}, config=config)
        assert open_checkpoint(folder).quantization == described
    folder = write_model(tmp_path / "modelopt", {"model.safetensors": one()}, config={})
    assert open_checkpoint(folder).quantization is None
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    assert open_checkpoint(folder).quantization == {"quantization": {"quant_algo": "NVFP4"}}


def test_a_published_table_reads_like_a_checkpoint() -> None:
    draft = PublishedDraft("org/x", {"architectures": ["A"], "text_config": {"b": 1}}, {"w": ("BF16", (2, 3))})
    assert (draft.architectures, draft.text_config) == (("A",), {"b": 1})
    assert draft.shapes == {"w": ("BF16", (2, 3))}


# -- broken headers --------------------------------------------------------------------------------------------------

SOUND = entry("F32", [4], 0, 16)

BROKEN: Mapping[str, tuple[bytes, str]] = {
    "shorter than the length": (b"1234567", "has 7 bytes; a safetensors file starts with 8 bytes of header length"),
    "truncated header": (encoded(b"{}", length=100), "says its header has 100 bytes, and only 2 follow"),
    "header above the bound": (encoded(b"{}", length=MAX_HEADER + 1), f"at most {MAX_HEADER} are allowed"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer"),
    "not UTF-8": (encoded(b'{"\xff": 1}'), "the header is not UTF-8 text (byte 2)"),
    "not JSON": (encoded(b'{"w": '), "the header is not JSON"),
    "not an object": (encoded(b"[]"), "the header is JSON, and not an object"),
    "no header at all": (encoded(b""), "the header is not JSON"),
    "nested without end": (encoded(b'{"w": ' + b"[" * 100_000), "the header is nested too deeply"),
    "numbers without end": (encoded(b'{"w": ' + b"9" * 5000 + b"}"), "the header is not JSON"),
    "the same name twice": (encoded(b'{"w": {}, "w": {}}'), "the header has 'w' twice"),
    "metadata that is no map": (encoded({"__metadata__": {"a": 1}}), "__metadata__ is not a map of texts"),
    "entry that is no object": (encoded({"w": 1}), "tensor w: its entry is not an object"),
    "unknown dtype": (encoded({"w": entry("F17", [4], 0, 16)}, 16), "tensor w: dtype 'F17' is not known"),
    "dtype that is no text": (encoded({"w": entry([], [4], 0, 16)}, 16), "tensor w: dtype [] is not known"),
    "fractional shape": (encoded({"w": entry("F32", [4.0], 0, 16)}, 16), "shape [4.0] is not a list of whole numbers"),
    "boolean shape": (encoded({"w": entry("F32", [True], 0, 4)}, 4), "shape [True] is not a list of whole numbers"),
    "negative shape": (encoded({"w": entry("F32", [-4], 0, 16)}, 16), "shape [-4] is not a list of whole numbers"),
    "offsets reversed": (encoded({"w": entry("F32", [4], 16, 0)}, 16), "data_offsets [16, 0] are not begin and end"),
    "one offset": (encoded({"w": SOUND | {"data_offsets": [0]}}, 16), "data_offsets [0] are not begin and end"),
    "no offsets": (encoded({"w": {"dtype": "F32", "shape": [4]}}, 16), "data_offsets None are not begin and end"),
    "span too small": (encoded({"w": entry("F32", [5], 0, 16)}, 16), "F32 [5] takes 20 bytes, data_offsets span 16"),
    "half a byte": (encoded({"w": entry("F4", [3], 0, 2)}, 2), "F4 [3] takes 1.5 bytes, data_offsets span 2"),
    "data truncated": (encoded({"w": SOUND}, 15), "the file at"),
    "data behind the last": (encoded({"w": SOUND}, 17), "1 bytes at the end belong to no tensor"),
    "hole before the first": (
        encoded({"w": entry("F32", [4], 4, 20)}, 20),
        "4 bytes before tensor w belong to no tensor",
    ),
    "hole between": (
        encoded({"a": SOUND, "b": entry("F32", [1], 18, 22)}, 22),
        "2 bytes before tensor b belong to no tensor",
    ),
    "overlap": (encoded({"a": SOUND, "b": entry("F32", [1], 12, 16)}, 16), "tensors a and b overlap by 4 bytes"),
    "the same span twice": (encoded({"a": SOUND, "b": SOUND}, 16), "tensors a and b overlap by 16 bytes"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_header_is_named_with_its_file_and_fault(tmp_path: Path, case: str) -> None:
    data, expected = BROKEN[case]
    fault = header_fault(tmp_path, data)
    assert expected in fault.message
    assert fault.where.endswith("model/model.safetensors")
    assert fault.hint


def test_sound_oddities_are_read(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "empty": entry("F32", [0, 7], 8, 8),
        "packed": entry("F4", [4], 0, 2),
        "scalar": entry("F16", [], 2, 4),
        "scale": entry("F8_E8M0", [4], 4, 8),
        "last": entry("U8", [1], 8, 9),
    }
    text = json.dumps(header).encode() + b"      "
    found = open_checkpoint(write_model(tmp_path / "m", {"model.safetensors": encoded(text, 9)}))
    start = 8 + len(text)
    assert found.tensors["scalar"] == Tensor("F16", (), "model.safetensors", start + 2, start + 4)
    assert (found.tensors["packed"].elements, found.tensors["packed"].bytes) == (4, 2)
    assert found.tensors["empty"].elements == 0


def test_every_fault_of_a_header_is_listed(tmp_path: Path) -> None:
    fault = header_fault(tmp_path, encoded({"a": 1, "b": entry("F17", [], 0, 0), "c": entry("F32", [1], 0, 3)}, 3))
    assert fault.message == "tensor a: its entry is not an object"
    assert len(fault.facts) == 2
    assert "tensor c: F32 [1] takes 4 bytes, data_offsets span 3" in fault.facts


def test_a_source_that_gives_fewer_bytes_than_it_promised_is_named() -> None:
    files = CountedFiles(
        {"config.json": b"{}", "model.safetensors": encoded(b"{}", length=90)}, {"model.safetensors": 98}
    )
    with pytest.raises(InputError, match="gave 2 of its header's 90 bytes"):
        read_checkpoint(files, name="m")


def test_a_config_that_is_no_object_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", {"model.safetensors": one()})
    (folder / "config.json").write_text("[]")
    assert fault_of(folder).message == "the file is JSON, and not an object"


# -- shards and index ------------------------------------------------------------------------------------------------


def test_missing_shards_are_listed(tmp_path: Path) -> None:
    weight_map = {"a": "1.safetensors", "b": "2.safetensors", "c": "3.safetensors"}
    files = {"1.safetensors": one("a"), "model.safetensors.index.json": index(weight_map)}
    fault = fault_of(write_model(tmp_path / "m", files))
    assert fault.message == "names 3 shards, 2 of them are missing"
    assert fault.facts == ("2.safetensors", "3.safetensors")


def test_index_and_shards_must_agree(tmp_path: Path) -> None:
    weight_map = {"a": "1.safetensors", "b": "1.safetensors", "gone": "2.safetensors"}
    files = {
        "1.safetensors": one("a"),
        "2.safetensors": one("b"),
        "model.safetensors.index.json": index(weight_map),
    }
    fault = fault_of(write_model(tmp_path / "m", files))
    assert "tensor b should be in 1.safetensors, and is in 2.safetensors" in fault.message
    assert any("tensor gone should be in 2.safetensors, which does not hold it" in fact for fact in fault.facts)


def test_a_tensor_the_index_does_not_list_is_read_and_noted(tmp_path: Path) -> None:
    files = {
        "1.safetensors": encoded({"a": SOUND, "b": entry("F32", [1], 16, 20)}, 20),
        "model.safetensors.index.json": index({"a": "1.safetensors"}),
    }
    found = open_checkpoint(write_model(tmp_path / "m", files))
    assert sorted(found.tensors) == ["a", "b"]
    assert found.notes == ("1 tensors of the shards are not in model.safetensors.index.json",)


def test_files_that_the_index_leaves_out_are_not_read(tmp_path: Path) -> None:
    files = {
        "1.safetensors": one("a"),
        "other.safetensors": b"broken",
        "model.safetensors.index.json": index({"a": "1.safetensors"}),
    }
    assert open_checkpoint(write_model(tmp_path / "m", files)).files == ("1.safetensors",)


def test_a_tensor_in_two_shards_is_a_fault(tmp_path: Path) -> None:
    fault = fault_of(write_model(tmp_path / "m", {"1.safetensors": one("a"), "2.safetensors": one("a")}))
    assert fault.message == "2.safetensors: tensor a is also in 1.safetensors"


def test_every_broken_shard_is_named(tmp_path: Path) -> None:
    fault = fault_of(
        write_model(tmp_path / "m", {"1.safetensors": b"1", "2.safetensors": b"2", "3.safetensors": one()})
    )
    assert fault.message.startswith("1.safetensors: has 1 bytes")
    assert fault.facts[0].startswith("2.safetensors: has 1 bytes")


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/passwd", "sub/x.safetensors", 7, "x.bin"])
def test_an_index_names_files_of_its_own_folder_only(tmp_path: Path, shard: Any) -> None:
    files = {"model.safetensors": one(), "model.safetensors.index.json": index({"a": shard})}
    assert "is not the name of a .safetensors file" in fault_of(write_model(tmp_path / "m", files)).message


@pytest.mark.parametrize("text", [b"{}", b'{"weight_map": {}}', b'{"weight_map": []}'])
def test_an_index_without_a_weight_map_is_a_fault(tmp_path: Path, text: bytes) -> None:
    files = {"model.safetensors": one(), "model.safetensors.index.json": text}
    assert "has no weight_map" in fault_of(write_model(tmp_path / "m", files)).message


def test_a_config_that_says_a_thing_twice_is_a_fault(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", {"model.safetensors": one()})
    (folder / "config.json").write_text('{"vocab_size": 1, "vocab_size": 2}')
    fault = fault_of(folder)
    assert (fault.where, fault.message) == (f"{folder}/config.json", "the file has 'vocab_size' twice")


# -- fuzz ------------------------------------------------------------------------------------------------------------


def read_counted(data: bytes, size: int) -> tuple[CountedFiles, Checkpoint | InputError]:
    files = CountedFiles({"config.json": b"{}", "model.safetensors": data}, {"model.safetensors": size})
    try:
        return files, read_checkpoint(files, name="m")
    except InputError as error:
        return files, error


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F4", "X"]) | JSON_VALUES,
        "shape": st.lists(st.integers(-1, 5) | JSON_VALUES, max_size=3) | JSON_VALUES,
        "data_offsets": st.lists(st.integers(-1, 40) | JSON_VALUES, max_size=3) | JSON_VALUES,
    },
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text(max_size=4), ENTRIES | JSON_VALUES, max_size=4), st.integers(0, 60))
def test_any_header_is_read_or_named_with_its_fault(header: dict[str, Any], data: int) -> None:
    encoded_file = encoded(header, data)
    files, result = read_counted(encoded_file, len(encoded_file))
    length = int.from_bytes(encoded_file[:8], "little")
    assert files.last_byte(["model.safetensors"]) <= max(24, 8 + length)
    if isinstance(result, InputError):
        assert result.message
        assert result.where.startswith("memory")
    else:
        # What is accepted accounts for every byte exactly once.
        spans = sorted((tensor.begin, tensor.end) for tensor in result.tensors.values())
        assert sum(end - begin for begin, end in spans) == data


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2**64))
def test_any_bytes_are_read_or_named_and_nothing_is_read_past_the_bound(data: bytes, size: int) -> None:
    files, _ = read_counted(data, max(size, len(data)))
    assert sum(length for name, _, length in files.reads if name == "model.safetensors") <= 24 + MAX_HEADER


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_sound_file_with_bytes_changed_is_read_or_named(data: st.DataObject) -> None:
    sound = bytearray(encoded({"a": SOUND, "b": entry("BF16", [2, 2], 16, 24)}, 24))
    for _ in range(data.draw(st.integers(1, 4))):
        sound[data.draw(st.integers(0, len(sound) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(sound)))
    read_counted(bytes(sound[:cut]), cut)
