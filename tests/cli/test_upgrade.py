"""`polaris-spark upgrade`, and realms whose record an earlier or a newer release wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.errors import NewerFormatError
from polaris_spark.objects import known_types
from polaris_spark.store_uris import StoreURI
from polaris_spark.system.features import ALL_FEATURES, FEATURES
from polaris_spark.system.realms import FIRST_FORMAT, REALM_FORMAT, RealmRecord
from polaris_spark.system.stores import system_references
from tests.catalog.imports.support import table_metadata, write
from tests.cli.catalogs import Answer, make_catalog, run
from tests.releases import change_record, make_earlier
from tests.rest.client import connect


def record_of(store: str, realm: str = "default") -> RealmRecord:
    """Return the record of a realm."""
    backend = open_backend(StoreURI.parse(store), {})
    found = system_references(backend).read(f"realm/{realm}", RealmRecord)
    backend.close()
    assert found is not None
    return found.value


def states(answer: Answer) -> dict[str, tuple[bool, int]]:
    """Return what `upgrade --check --json` says about the features of the first realm."""
    return {one["name"]: (one["allowed"], one["objects"]) for one in answer.json[0]["features"]}


def test_a_realm_of_an_earlier_release_still_works_and_one_command_upgrades_it(tmp_path: Path) -> None:
    store, warehouse = f"sqlite://{tmp_path}/store.db", str(tmp_path / "warehouse")
    connect(store, warehouse).session.close()
    make_earlier(store)
    file = write(tmp_path / "lake" / "t", table_metadata(f"file://{tmp_path}/foreign"))
    request = {"name": "t", "metadata-location": file}
    client = connect(store, warehouse)
    client.namespace("db")
    client.create("ordinary")
    refused = client.send("POST", "v1/namespaces/db/register", request)
    assert refused.status == 400
    assert "polaris-spark upgrade" in refused.error["message"]
    client.session.close()
    assert record_of(store).format == FIRST_FORMAT  # nothing new was used, so earlier releases can go on
    checked = run("upgrade", store, "--check", "--json")
    assert checked.code == 1
    assert states(checked) == dict.fromkeys(ALL_FEATURES, (False, 0))
    answer = run("upgrade", store, "--json")
    assert (answer.code, answer.json) == (0, [{"realm": "default", "added": list(ALL_FEATURES)}])
    assert run("upgrade", store, "--json").json == [{"realm": "default", "added": []}]
    client = connect(store, warehouse)
    client.ok("POST", "v1/namespaces/db/register", request)
    assert client.names("db") == ["ordinary", "t"]
    client.session.close()
    checked = run("upgrade", store, "--check", "--json")
    assert checked.code == 0
    assert states(checked)["foreign-locations"] == (True, 1)
    assert run("fsck", store, "--json").json == []


def test_a_new_realm_has_all_features_and_earlier_releases_refuse_it(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    record = record_of(store)
    assert (record.format, record.features) == (REALM_FORMAT, ALL_FEATURES)
    assert (
        record.format > 1
    )  # earlier releases check only the format, and use no realm with a higher one than 1
    assert "allowed" in run("upgrade", store, "--check").out


def test_one_realm_can_be_upgraded_alone(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    run("realm", "create", store, "other")
    make_earlier(store)
    make_earlier(store, "other")
    run("upgrade", store, "--realm", "other")
    assert (record_of(store).format, record_of(store, "other").format) == (FIRST_FORMAT, REALM_FORMAT)
    assert run("upgrade", store, "--realm", "nobody").code == 2


def test_access_control_is_not_turned_on_while_earlier_releases_may_use_the_realm(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    make_earlier(store)
    refused = run("bootstrap", store)
    assert refused.code == 2
    assert "polaris-spark upgrade" in refused.err
    run("upgrade", store)
    assert run("bootstrap", store).code == 0
    make_earlier(store)  # access control that an earlier release turned on: lost credentials can be replaced
    assert run("bootstrap", store, "--reset").code == 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"features": {**ALL_FEATURES, "x-rays": "9.1"}}, r"'x-rays' \(polaris_spark 9.1\)"),
        ({"format": REALM_FORMAT + 1}, "has format 3, but this release can use formats only up to 2"),
        ({"new_field": 1}, "unknown field `new_field`"),
    ],
    ids=["feature", "format", "field"],
)
def test_a_realm_of_a_newer_release_is_refused_by_everything_and_not_changed(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    store = make_catalog(tmp_path)
    make_catalog(tmp_path / "second", store, realm="other")
    change_record(store, **changes)
    before = rows(store)
    with pytest.raises(NewerFormatError, match=why):
        connect(store, str(tmp_path / "warehouse"))
    for command in (
        ("maintain", "sweep", store),
        ("maintain", "remove-orphans", store, "--no-spark"),
        ("maintain", "remove-orphans", store, "--no-spark", "--realm", "other"),
        ("realm", "set", store, "default", "--set", "owner=me"),
        ("realm", "deactivate", store, "default"),
        ("realm", "export", store, str(tmp_path / "file")),
        ("bootstrap", store),
    ):
        answer = run(*command)
        assert answer.code == 2, (command, answer)
        assert "release" in answer.err, (command, answer)
    answer = run("upgrade", store, "--json")
    assert (answer.code, [one["realm"] for one in answer.json]) == (1, ["other"])
    assert "realm" in answer.err
    assert rows(store) == before


def rows(store: str) -> dict[tuple[str, str], bytes]:
    """Return all rows of references and objects, but not those of the system realm that every process writes."""
    backend = open_backend(StoreURI.parse(store), {})
    found = {}
    for table, columns in (("references", ("name",)), ("objects", ("id", "part"))):
        for split in backend.splits(table, None, 1):  # type: ignore[arg-type]  # one of the two tables
            for batch in backend.scan(split):
                for row in batch.to_pylist():
                    key = "/".join(str(row[column]) for column in columns)
                    if not key.startswith(("node/", "clock", "task/")):
                        found[row["realm"], key] = row["value"]
    backend.close()
    return found


def test_every_revision_of_an_object_type_belongs_to_a_feature() -> None:
    listed = {(type, revision) for feature in FEATURES for type, revision in feature.objects.items()}
    later = {
        (type, revision)
        for type, newest in known_types().items()
        if not type.startswith("test-")
        for revision in range(2, newest + 1)
    }
    assert later <= listed
