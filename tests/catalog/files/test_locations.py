"""Which table or view owns a location."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from polaris_spark.catalog.files.files import local_path
from polaris_spark.catalog.files.locations import PATHS, segments
from polaris_spark.errors import BadRequestError, InputError
from tests.rest.client import (
    Client,
    connect,
    path,
    set_properties,
    table,
    table_request,
    tables,
    view_request,
)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Client]:
    """A catalog that writes no files, so that any location can be used."""
    client = connect(f"memory:{uuid.uuid4()}", tmp_path, metadata_files="never")
    client.namespace("db")
    yield client
    client.session.close()


def status(catalog: Client, name: str, location: str | None, **properties: str) -> int:
    """Create a table at a location, and return the status."""
    rest = {} if location is None else {"location": location}
    body = table_request(name, properties=properties, **rest)
    return catalog.send("POST", tables("db"), body).status


@pytest.mark.parametrize(
    "location",
    [
        "s3://b/a/t",
        "s3://b/a/t/",
        "s3://b/a//t",
        "s3a://b/a/t",
        "s3n://B/a/t",
        "S3://b/a/t",
        "s3://b/a",
        "s3://b",
        "s3://b/a/t/below",
        "s3://b/a/t/metadata",
    ],
)
def test_a_location_that_overlaps_with_anothers_is_refused(catalog: Client, location: str) -> None:
    assert status(catalog, "t", "s3://b/a/t") == 200
    answer = catalog.send("POST", tables("db"), table_request("u", location=location))
    assert answer.kind == (403, "ForbiddenException")
    assert "overlaps" in answer.error["message"]
    assert catalog.names("db") == ["t"]


@pytest.mark.parametrize(
    "location",
    [
        "s3://b/a/t2",
        "s3://b/a/T",
        "s3://b2/a/t",
        "s3://b/a/u",
        "gs://b/a/t",
        "s3://b/t",
        "/b/a/t",
        "s3://b/a/t%2Fx",
        "s3://b/a/t?x",
    ],
)
def test_a_location_next_to_an_owned_one_is_free(catalog: Client, location: str) -> None:
    assert status(catalog, "t", "s3://b/a/t") == 200
    assert status(catalog, "u", location) == 200


@pytest.mark.parametrize(
    "location", ["/x/t", "file:/x/t", "file:///x/t", "file://localhost/x/t", "/x//t/", "file:////x/t"]
)
def test_a_local_location_is_the_same_however_it_is_written(catalog: Client, location: str) -> None:
    assert status(catalog, "t", "file:///x/t") == 200
    assert status(catalog, "u", location) == 403


@pytest.mark.parametrize("place", ["file://localhost/x/t", "file://LOCALHOST/x//t", "FILE:////x/t", "/x/t"])
def test_a_local_location_is_parsed_to_its_path(place: str) -> None:
    assert segments(place) == ("file://", "x", "t")
    assert local_path(place) == Path("/x/t")


def test_a_path_that_a_uri_would_read_as_a_host_is_refused() -> None:
    with pytest.raises(BadRequestError, match="absolute path or URI"):
        segments("//localhost/x/t")  # files under it lie in the directory /localhost


@pytest.mark.parametrize("name", PATHS)
def test_data_and_metadata_paths_are_owned_too(catalog: Client, name: str) -> None:
    assert status(catalog, "t", "s3://b/t", **{name: "s3://data/t"}) == 200
    for location in ("s3://data/t", "s3://data", "s3://data/t/x"):
        assert status(catalog, "u", location) == 403
        assert status(catalog, "u", None, **{name: location}) == 403
    catalog.create("w")
    assert catalog.commit("w", set_properties(**{name: "s3://data/t/y"})).kind == (403, "ForbiddenException")
    assert catalog.commit("w", set_properties(**{name: "s3://data/w"})).status == 200
    assert catalog.commit("t", {"action": "remove-properties", "removals": [name]}).status == 200
    assert status(catalog, "u", "s3://data/t") == 200


def test_a_table_may_have_its_data_anywhere_in_its_own_location(catalog: Client) -> None:
    paths = {"write.data.path": "s3://b/t/data", "write.metadata.path": "s3://b/t"}
    assert status(catalog, "t", "s3://b/t", **paths) == 200
    assert catalog.commit("t", {"action": "set-location", "location": "s3://b/t/inner"}).status == 200
    assert status(catalog, "u", "s3://b/t/data/x") == 403


def test_locations_of_the_same_table_do_not_hide_another_tables_location(catalog: Client) -> None:
    """An entity may own up to three locations that overlap with one another."""
    assert status(catalog, "other", "s3://b/z") == 200
    assert status(catalog, "t", "s3://b/a1", **{"write.metadata.path": "s3://b/m1"}) == 200
    answer = catalog.commit("t", set_properties(**{"write.data.path": "s3://b"}))
    assert answer.kind == (403, "ForbiddenException")


def test_a_location_is_free_again_once_its_table_is_dropped(catalog: Client, tmp_path: Path) -> None:
    here = tmp_path.as_uri()  # a file, because dropping writes the metadata
    assert status(catalog, "t", f"{here}/t", **{"write.data.path": f"{here}/data/t"}) == 200
    catalog.ok("DELETE", table("t"))
    assert status(catalog, "u", f"{here}/t") == 200
    assert status(catalog, "w", f"{here}/data/t") == 200


def test_a_location_moves_with_its_table(catalog: Client) -> None:
    assert status(catalog, "t", "s3://b/t") == 200
    assert catalog.commit("t", {"action": "set-location", "location": "s3://b/new"}).status == 200
    assert status(catalog, "u", "s3://b/new") == 403
    assert status(catalog, "u", "s3://b/t") == 200
    assert catalog.commit("t", {"action": "set-location", "location": "s3://b/t/x"}).kind[0] == 403


def test_views_own_their_locations(catalog: Client, tmp_path: Path) -> None:
    here = tmp_path.as_uri()  # a file, because dropping writes the metadata
    body = view_request("v", location=f"{here}/v")
    catalog.ok("POST", f"{path('db')}/views", body)
    assert status(catalog, "t", f"{here}/v/t") == 403
    catalog.ok("DELETE", f"{path('db')}/views/v")
    assert status(catalog, "t", f"{here}/v/t") == 200


def test_renaming_keeps_the_location(catalog: Client, tmp_path: Path) -> None:
    here = tmp_path.as_uri()  # a file, because dropping writes the metadata
    assert status(catalog, "t", f"{here}/t") == 200
    source, target = ({"namespace": ["db"], "name": name} for name in "tu")
    catalog.ok("POST", "v1/tables/rename", {"source": source, "destination": target})
    assert status(catalog, "t", f"{here}/t") == 403
    catalog.ok("DELETE", table("u"))
    assert status(catalog, "t", f"{here}/t") == 200


def test_two_tables_of_one_transaction_cannot_take_one_location(catalog: Client) -> None:
    for name in "tu":
        catalog.create(name)
    move = {"action": "set-location", "location": "s3://b/x"}
    changes = [
        {"identifier": {"namespace": ["db"], "name": name}, "requirements": [], "updates": [move]}
        for name in "tu"
    ]
    answer = catalog.send("POST", "v1/transactions/commit", {"table-changes": changes})
    assert answer.kind == (403, "ForbiddenException")
    assert status(catalog, "w", "s3://b/x") == 200


def test_a_catalog_created_to_share_locations_allows_overlaps(tmp_path: Path) -> None:
    store = f"memory:{uuid.uuid4()}"
    one = connect(store, tmp_path, metadata_files="never", shared_locations="allow")
    one.namespace("db")
    later = connect(store, None, metadata_files="never")
    for client, name in ((one, "t"), (later, "u")):
        assert status(client, name, f"{tmp_path.as_uri()}/t") == 200
    catalog_with_other_setting = {"metadata_files": "never", "shared_locations": "refuse"}
    with pytest.raises(InputError, match="shared-locations"):
        connect(store, None, **catalog_with_other_setting)
    with pytest.raises(InputError, match="allow"):
        connect(store, None, shared_locations="yes")
    one.ok("DELETE", table("t"))
    assert status(one, "t", f"{tmp_path.as_uri()}/t/x") == 200
    for client in (one, later):
        client.session.close()


@pytest.mark.parametrize(
    "location",
    [
        "x",
        "",
        "s3:",
        "s3:/",
        "://",
        "s3://",
        "s3://b/../c",
        "s3://b/./c",
        "/a/..",
        "file://host/x",
        "/a\nb",
        " /a",
        "/a ",
        "/a\0",
        "s3://[x/y",
        "/\u200bx",
        "\ud800",
    ],
)
def test_a_value_that_is_not_an_absolute_location_is_refused(catalog: Client, location: str) -> None:
    with pytest.raises(BadRequestError):
        segments(location)
    if location:
        assert status(catalog, "t", location) == 400
    assert status(catalog, "t", None, **{"write.data.path": location}) == 400
    assert catalog.names("db") == []


def test_azures_two_uri_schemes_name_the_same_location() -> None:
    names = [
        "abfs://c@a.dfs.core.windows.net/x",
        "abfss://c@a.dfs.core.windows.net/x",
        "wasbs://c@a.blob.core.windows.net/x",
    ]
    assert len({segments(name) for name in names}) == 1
