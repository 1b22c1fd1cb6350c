"""The default location of a namespace: it is part of answers, like a property, but never stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from polaris_spark.catalog.entities.entities import require_namespace
from polaris_spark.catalog.rows import Namespace
from tests.rest.client import Client, files_below, path, table, table_request, tables
from tests.rest.staging import CREATE, creation


def loaded(catalog: Client, *name: str) -> dict[str, str]:
    """Return the properties of a namespace in the answer to a load."""
    found: dict[str, str] = catalog.ok("GET", path(*name))["properties"]
    return found


def stored(catalog: Client, *name: str) -> dict[str, str]:
    """Return the stored properties of a namespace."""
    view = catalog.session.catalog.view()
    found = require_namespace(view, name)
    assert found is not None
    return view.get(found.content, Namespace).properties


def test_a_namespace_without_a_location_is_answered_with_the_folder_of_its_tables(
    catalog: Client, warehouse: Path
) -> None:
    created = catalog.namespace("shop é", properties={"owner": "me"})["properties"]
    where = f"file://{warehouse}/shop__"
    assert created == {"owner": "me", "location": where}
    assert loaded(catalog, "shop é") == created
    assert stored(catalog, "shop é") == {"owner": "me"}
    assert catalog.create("t", ("shop é",))["metadata"]["location"].startswith(f"{where}/t-")


def test_nested_namespaces_have_nested_default_locations(catalog: Client, warehouse: Path) -> None:
    nested = catalog.namespace("db", "a")["properties"]
    assert nested["location"] == f"file://{warehouse}/db/a"
    assert catalog.create("t", ("db", "a"))["metadata"]["location"].startswith(f"{nested['location']}/t-")


def test_a_location_that_was_set_is_not_a_default_location(catalog: Client, tmp_path: Path) -> None:
    own = {"location": f"file://{tmp_path}/own"}
    assert catalog.namespace("own", properties=own)["properties"] == own
    assert loaded(catalog, "own") == own


def test_a_location_set_to_the_default_one_is_stored(catalog: Client) -> None:
    own = {"location": loaded(catalog, "db")["location"]}
    catalog.ok("POST", f"{path('db')}/properties", {"updates": own})
    assert loaded(catalog, "db") == stored(catalog, "db") == own
    where = own["location"].removesuffix("db")
    other = {"location": f"{where}other"}
    assert catalog.namespace("other", properties=other)["properties"] == stored(catalog, "other") == other


def test_no_other_property_is_answered_than_was_set(catalog: Client) -> None:
    properties = {"default-location": "file:///mine"}
    catalog.namespace("own", properties=properties)
    assert stored(catalog, "own") == properties
    assert set(loaded(catalog, "own")) == {"location", "default-location"}
    assert set(loaded(catalog, "db")) == {"location"}


def test_a_set_location_is_removed_and_a_default_one_is_missing(catalog: Client, tmp_path: Path) -> None:
    default = loaded(catalog, "db")
    catalog.ok("POST", f"{path('db')}/properties", {"updates": {"location": f"file://{tmp_path}/own"}})
    removal = {"removals": ["location"]}
    assert catalog.ok("POST", f"{path('db')}/properties", removal)["removed"] == ["location"]
    assert loaded(catalog, "db") == default
    assert catalog.ok("POST", f"{path('db')}/properties", removal)["missing"] == ["location"]


def trino_creates(catalog: Client, schema: str, name: str) -> dict:
    """The requests of Trino's `CREATE TABLE` before it writes: the metadata of the staged creation.

    Trino puts the table below the location of its schema. Without one, it creates the table at once, and then finds the
    metadata file in the location that it wants to be empty.
    """
    assert catalog.send("GET", table(name, (schema,))).status == 404
    assert catalog.send("GET", f"{path(schema)}/views/{name}").status == 404
    location = catalog.ok("GET", path(schema))["properties"]["location"]
    request = table_request(name, location=f"{location}/{name}-1234", stage_create=True)
    metadata: dict = catalog.ok("POST", tables(schema), request)["metadata"]
    assert metadata["location"] == f"{location}/{name}-1234"
    return metadata


def test_trino_creates_a_table_in_a_schema_without_a_location(catalog: Client, warehouse: Path) -> None:
    catalog.namespace("s")
    metadata = trino_creates(catalog, "s", "t")
    assert not files_below(warehouse)  # else Trino refuses the location
    body = {"requirements": list(CREATE), "updates": creation(metadata)}
    assert catalog.send("POST", table("t", ("s",)), body).status == 200
    assert catalog.load("t", ("s",))["metadata"]["location"] == metadata["location"]


def test_a_creation_of_trino_that_fails_leaves_no_table(catalog: Client, warehouse: Path) -> None:
    catalog.namespace("s")
    trino_creates(catalog, "s", "never-committed")
    metadata = trino_creates(catalog, "s", "t")
    refused = [*creation(metadata), {"action": "set-current-schema", "schema-id": 4_711}]
    body = {"requirements": list(CREATE), "updates": refused}
    assert catalog.send("POST", table("t", ("s",)), body).status == 400
    assert catalog.names("s") == []
    assert not files_below(warehouse)
    assert catalog.send("DELETE", path("s")).status == 204


@pytest.mark.parametrize(
    "location",
    ["", " ", "/", "//", "file:", "file://", "file:///", "file://localhost/", "relative", "../x", "s3://"],
)
def test_a_location_below_which_no_table_can_be_put_is_refused(catalog: Client, location: str) -> None:
    own = {"location": location}
    created = catalog.send("POST", "v1/namespaces", {"namespace": ["own"], "properties": own})
    assert created.status == 400
    assert "location" in created.error["message"]
    assert catalog.send("POST", f"{path('db')}/properties", {"updates": own}).status == 400
    assert stored(catalog, "db") == {}


def test_a_blank_location_of_an_earlier_release_is_none(
    catalog: Client, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polaris_spark.rest.namespace_routes.require_location", lambda properties: None)
    catalog.namespace("old", properties={"location": ""})
    assert loaded(catalog, "old") == {"location": f"file://{warehouse}/old"}
    assert catalog.create("t", ("old",))["metadata"]["location"].startswith(f"file://{warehouse}/old/t-")
