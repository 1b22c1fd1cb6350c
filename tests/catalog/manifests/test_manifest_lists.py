"""Manifest lists of any writer are split and joined without loss."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import read_manifest_list

from polaris_spark.catalog.manifests import manifest_lists as avro
from polaris_spark.errors import BadRequestError
from tests.rest.appends import list_schema

Json = dict[str, Any]
SYNC = b"0123456789abcdef"


def manifest(number: int, **more: Any) -> Json:
    """A record of a list of version 3."""
    return {
        "manifest_path": f"file:/warehouse/t/metadata/{number:08d}-m0.avro",
        "manifest_length": 5_000 + number,
        "partition_spec_id": 0,
        "content": 0,
        "sequence_number": number,
        "min_sequence_number": number,
        "added_snapshot_id": 2**62 + number,
        **{
            f"{kind}_{what}_count": 1
            for kind in ("added", "existing", "deleted")
            for what in ("files", "rows")
        },
        "partitions": [
            {
                "contains_null": False,
                "contains_nan": None,
                "lower_bound": bytes([number % 256]),
                "upper_bound": None,
            }
        ],
        "key_metadata": None,
        "first_row_id": number * 10,
        **more,
    }


def written(*records: Json, schema: Json | None = None, codec: str = "deflate") -> bytes:
    """Return a list as another writer writes it."""
    out = io.BytesIO()
    given = schema or list_schema(3)
    fastavro.writer(out, given, records, codec=codec, metadata={"snapshot-id": "7"}, sync_interval=500)
    return out.getvalue()


def records_of(file: bytes) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(file)))


def test_records_are_put_before_those_of_another_list_and_read_by_others(tmp_path: Path) -> None:
    expected, at = [manifest(0)], avro.parse(written(manifest(0)))
    for number in range(1, 2_000):
        [new] = avro.parse(written(manifest(number))).manifests
        at, file = avro.prepend(at, [new], at, {"snapshot-id": str(number)}, SYNC)
        expected.insert(0, manifest(number))
    assert records_of(file) == expected
    assert fastavro.reader(io.BytesIO(file)).metadata["snapshot-id"] == "1999"
    assert 1 < len(at.blocks) < 10
    (tmp_path / "list.avro").write_bytes(file)
    found = read_manifest_list(PyArrowFileIO().new_input(str(tmp_path / "list.avro")))
    assert [one.manifest_path for one in found] == [one["manifest_path"] for one in expected]
    assert avro.parse(file).manifests == at.manifests


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2"])
def test_lists_in_any_compression_are_read_and_put_together(codec: str) -> None:
    rest = avro.parse(written(*map(manifest, range(20)), codec=codec))
    assert rest.codec == codec
    [new] = avro.parse(written(manifest(99), codec=codec)).manifests
    _, file = avro.prepend(rest, [new], rest, {}, SYNC)
    assert records_of(file) == [manifest(99), *map(manifest, range(20))]


def test_records_of_another_schema_are_written_anew() -> None:
    other = list_schema(3)
    other["fields"] = [{**field, "name": f"old_{field['name']}"} for field in reversed(other["fields"])]
    renamed = {f"old_{name}": value for name, value in manifest(1).items()}
    rest = avro.parse(written(renamed, schema=other))
    mine = avro.parse(written(manifest(2)))
    _, file = avro.prepend(mine, mine.manifests, rest, {}, SYNC)
    assert records_of(file) == [manifest(2), manifest(1)]


def test_a_record_that_does_not_fit_is_refused() -> None:
    later, before = avro.parse(written(manifest(1))), avro.parse(written(schema=list_schema(2)))
    with pytest.raises(BadRequestError, match=r"lacks the fields \['520'\]"):
        avro.prepend(before, [], later, {}, SYNC)
    with pytest.raises(BadRequestError, match="does not fit"):
        avro.prepend(before, [{avro.PATH: "p"}], None, {}, SYNC)


def test_added_manifests_are_found_only_if_the_parents_list_follows_unchanged() -> None:
    rest = avro.parse(written(*map(manifest, range(9))))
    whole = avro.parse(written(manifest(20), manifest(21), *map(manifest, range(9))))
    assert avro.first_records(whole, rest) == whole.manifests[:2]
    assert avro.first_records(rest, rest) == ()
    for others in (
        [manifest(20), *map(manifest, range(8))],
        [*map(manifest, range(8)), manifest(8, content=1)],
    ):
        assert avro.first_records(avro.parse(written(*others)), rest) is None
    unlike = written(*map(manifest, range(9)), schema={**list_schema(3), "doc": "another"})
    assert avro.first_records(avro.parse(unlike), rest) is None


def test_a_path_is_listed_only_if_a_manifest_has_it() -> None:
    listed = avro.parse(written(manifest(1), manifest(2)))
    assert manifest(1)["manifest_path"] in listed
    assert manifest(3)["manifest_path"] not in listed
    assert manifest(1)["manifest_path"][:-1] not in listed


@pytest.mark.parametrize("cut", [0, 3, 40, -1, -20])
def test_a_file_that_is_cut_off_is_not_a_manifest_list(cut: int) -> None:
    with pytest.raises(BadRequestError, match="not a manifest list"):
        print(avro.parse(written(manifest(1))[:cut]).manifests)


def test_records_without_end_are_not_read() -> None:
    empty = {"type": "record", "name": "r", "fields": [{"name": "p", "type": "null", "field-id": 500}]}
    file = bytearray(written({"p": None}, schema=empty, codec="null"))
    sync = file[-16:]
    endless = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"  # 2**62 - 1, and no byte of data
    start = file.index(sync) + 16
    file[start:] = endless + b"\x00" + sync
    with pytest.raises(BadRequestError, match=f"a block of 0 bytes claims to hold {2**62 - 1} records"):
        avro.parse(bytes(file))


def test_a_path_that_is_not_text_is_refused() -> None:
    numbered = {"type": "record", "name": "r", "fields": [{"name": "p", "type": "long", "field-id": 500}]}
    with pytest.raises(BadRequestError, match="not a manifest list: a record has no manifest_path"):
        _ = avro.parse(written({"p": 1}, schema=numbered)).manifests


def test_another_avro_file_is_not_a_manifest_list() -> None:
    other = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}
    with pytest.raises(BadRequestError, match="no manifest_path"):
        avro.parse(written({"a": 1}, schema=other))
