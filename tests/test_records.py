"""Records are canonical, checked on the way in, and written whole or not at all."""

from __future__ import annotations

import json

import jsonschema
import pytest

from builder import records
from builder.errors import InputError, Unavailable

LOCK = records.Lock(
    overlay="o",
    tool="t",
    checker="c",
    bases=(records.BasePin(alias="b", reference="r:t", index="sha256:" + "a" * 64),),
)


def test_a_record_is_read_back_as_it_was_written():
    data = records.canonical(LOCK)
    assert records.read(data, records.Lock, "x") == LOCK
    assert data.endswith(b"}\n")
    assert json.loads(data)["schema"] == "overlay.lock/1"


@pytest.mark.parametrize(
    ("edit", "key"),
    [
        (lambda d: d.pop("overlay"), "overlay"),
        (lambda d: d.update(extra=1), "extra"),
        (lambda d: d["bases"][0].update(index="sha256:short"), "bases.0.index"),
        (lambda d: d.update(schema="overlay.lock/2"), "schema"),
    ],
)
def test_a_damaged_record_names_file_and_key(edit, key):
    value = json.loads(records.canonical(LOCK))
    edit(value)
    with pytest.raises(InputError) as caught:
        records.read(json.dumps(value).encode(), records.Lock, "o.lock.json")
    assert caught.value.where == "o.lock.json"
    assert caught.value.message.startswith(key)


def test_what_is_not_json_is_named():
    with pytest.raises(InputError, match=r"o\.lock\.json"):
        records.read(b"{", records.Lock, "o.lock.json")


@pytest.mark.parametrize("name", records.DOCUMENTS)
def test_every_document_has_a_valid_schema(name):
    schema = records.json_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["properties"]["schema"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "file.json"
    records.write_atomic(path, b"one")
    records.write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.json"]


def test_a_write_that_cannot_be_done_leaves_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(Unavailable, match="could not be written"):
        records.write_atomic(tmp_path / "folder", b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable, match="could not be written"):
        records.write_atomic(tmp_path / "file" / "x", b"x")
