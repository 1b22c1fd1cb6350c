"""Principals, roles and grants as a document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polaris_spark.catalog.rows import TABLE
from polaris_spark.errors import BadRequestError, ForbiddenError, InputError, NoSuchTableError
from polaris_spark.jobs.access_document import exported, parse, steps, text_of
from polaris_spark.jobs.procedure import Call
from polaris_spark.jobs.registry import call
from tests.access.world import World

DOCUMENT = """
principals:
  ann: {roles: [one, analysts]}
  bob: {state: revoked}
principal-roles:
  analysts:
    catalog-roles: [readers]
    grants:
    - {securable: table, name: db.t, privileges: [TABLE_READ_DATA, TABLE_LIST]}
    - {securable: realm, privileges: [CATALOG_LIST]}
catalog-roles:
  readers:
    grants:
    - {securable: catalog, privileges: [NAMESPACE_LIST]}
    - {securable: namespace, name: "`a.b`", privileges: [TABLE_LIST]}
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    for namespace in ("db", "a.b"):
        made.namespace(namespace)
    made.table("db", "t")
    yield made
    made.close()


def apply(world: World, text: str) -> list[str]:
    session = world.root.session
    found = steps(Call(session), parse(text))
    for step in found:
        session.access.change(step.change)
    return [step.words for step in found]


def test_a_document_is_applied_once(world: World) -> None:
    assert len(apply(world, DOCUMENT)) == 10
    assert apply(world, DOCUMENT) == []
    ann = world.open(world.credentials)
    assert ann.status("GET", "v1/namespaces/db/tables/t") == 200
    principals = {row[0]: row[2] for row in call(world.root.session, "show_principals")}
    assert principals == {"ann": "active", "bob": "revoked", "root": "active"}


def test_what_a_document_does_not_say_of_a_role_is_taken_away(world: World) -> None:
    apply(world, DOCUMENT)
    less = DOCUMENT.replace(", TABLE_LIST]", "]").replace("catalog-roles: [readers]", "catalog-roles: []")
    assert apply(world, less) == [
        "take catalog role 'readers' of catalog 'polaris' from analysts",
        "revoke TABLE_LIST on table db.t from principal role 'analysts'",
    ]
    without = less.replace("    - {securable: realm, privileges: [CATALOG_LIST]}\n", "")
    assert apply(world, without) == ["revoke CATALOG_LIST on realm from principal role 'analysts'"]


def test_an_export_changes_nothing_when_it_is_applied(world: World) -> None:
    apply(world, DOCUMENT)
    text = text_of(exported(Call(world.root.session)))
    assert apply(world, text) == []
    assert "secret" not in text
    for one in ("`a.b`", "db.t", "service_admin"):
        assert one in text


def test_wrong_documents_change_nothing(world: World) -> None:
    before = world.root.session.access.required()
    for text, error, message in (
        ("a: [", InputError, "not YAML"),
        ("roles: {}", InputError, "wrong form"),
        (DOCUMENT.replace("db.t", "db.missing"), NoSuchTableError, "db.missing"),
        (DOCUMENT.replace("TABLE_READ_DATA", "TABLE_REED_DATA"), BadRequestError, "TABLE_READ_DATA"),
    ):
        with pytest.raises(error, match=message):
            apply(world, text)
    assert world.root.session.access.required() is before


def test_only_those_who_manage_the_realm_export_and_apply(world: World) -> None:
    world.grant(["CATALOG_MANAGE_ACCESS"])
    ann = world.open(world.credentials)
    with pytest.raises(ForbiddenError, match="SERVICE_MANAGE_ACCESS"):
        exported(Call(ann.session))
    with pytest.raises(ForbiddenError, match="SERVICE_MANAGE_ACCESS"):
        steps(Call(ann.session), parse(DOCUMENT))


def test_grants_on_tables_are_on_entities(world: World) -> None:
    apply(world, DOCUMENT)
    granted = world.entity("db", "t", kind=TABLE)
    rules = world.root.session.access.required()
    assert any(granted in one for one in rules.grants.values())
