"""Namespaces through pyiceberg's interface."""

from __future__ import annotations

import pytest
from pyiceberg.exceptions import (
    BadRequestError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
)

from polaris_spark.pyiceberg import PolarisCatalog
from tests.pyiceberg_adapter.content import HOSTILE, SCHEMA


def test_namespaces_are_created_with_properties_and_dropped(catalog: PolarisCatalog) -> None:
    catalog.create_namespace("shop", {"owner": "ann"})
    assert catalog.load_namespace_properties("shop")["owner"] == "ann"
    assert catalog.namespace_exists(("shop",))
    catalog.drop_namespace("shop")
    assert not catalog.namespace_exists("shop")
    assert catalog.list_namespaces() == [("db",)]


def test_namespaces_nest_and_are_listed_level_by_level(catalog: PolarisCatalog) -> None:
    catalog.create_namespace("db.inner")
    catalog.create_namespace(("db", "inner", "most"))
    assert catalog.list_namespaces() == [("db",)]
    assert catalog.list_namespaces("db") == [("db", "inner")]
    assert catalog.list_namespaces(("db", "inner")) == [("db", "inner", "most")]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_kept_as_they_are(catalog: PolarisCatalog, name: str) -> None:
    catalog.create_namespace((name,))
    catalog.create_namespace((name, name))
    assert (name,) in catalog.list_namespaces()
    assert catalog.list_namespaces((name,)) == [(name, name)]
    catalog.create_table((name, name, name), SCHEMA)
    assert catalog.list_tables((name, name)) == [(name, name, name)]
    assert catalog.load_table((name, name, name)).name() == (name, name, name)
    catalog.drop_table((name, name, name))
    catalog.drop_namespace((name, name))


def test_a_name_with_the_separator_of_levels_is_refused(catalog: PolarisCatalog) -> None:
    catalog.create_namespace(("db", "x"))
    with pytest.raises(BadRequestError, match="0x1F"):
        catalog.load_namespace_properties(("db\x1fx",))
    with pytest.raises(BadRequestError):
        catalog.create_namespace(("db\x1fy",))


def test_a_namespace_exists_once(catalog: PolarisCatalog) -> None:
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("db")
    catalog.create_namespace_if_not_exists("db")


def test_a_namespace_with_content_is_not_dropped(catalog: PolarisCatalog) -> None:
    catalog.create_table("db.t", SCHEMA)
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("db")


def test_a_missing_namespace_is_reported(catalog: PolarisCatalog) -> None:
    for ask in (
        catalog.drop_namespace,
        catalog.load_namespace_properties,
        catalog.list_namespaces,
        catalog.list_tables,
        catalog.list_views,
        lambda name: catalog.update_namespace_properties(name, updates={"a": "b"}),
        lambda name: catalog.create_table((name, "t"), SCHEMA),
    ):
        with pytest.raises(NoSuchNamespaceError, match="missing"):
            ask("missing")
    with pytest.raises(NoSuchNamespaceError):
        catalog.create_namespace(())


def test_properties_of_a_namespace_are_updated(catalog: PolarisCatalog) -> None:
    catalog.create_namespace("shop", {"a": "1", "b": "2"})
    summary = catalog.update_namespace_properties("shop", removals={"a", "x"}, updates={"b": "3", "c": "4"})
    assert (summary.removed, sorted(summary.updated), summary.missing) == (["a"], ["b", "c"], ["x"])
    properties = catalog.load_namespace_properties("shop")
    assert {key: properties.get(key) for key in "abc"} == {"a": None, "b": "3", "c": "4"}


@pytest.mark.parametrize("properties", [{None: "value"}, {"key": None}, {"key": object()}, {("a",): "b"}])
def test_properties_that_are_no_text_are_refused(catalog: PolarisCatalog, properties: dict) -> None:  # type: ignore[type-arg]  # of anything
    with pytest.raises(BadRequestError, match=r"JSON|cannot parse the request"):
        catalog.create_namespace("refused", properties)
    assert not catalog.namespace_exists("refused")
    with pytest.raises(BadRequestError, match=r"JSON|cannot parse the request"):
        catalog.update_namespace_properties("db", updates=properties)


def test_a_property_is_not_both_removed_and_updated(catalog: PolarisCatalog) -> None:
    with pytest.raises(ValueError, match="both set and removed: a"):
        catalog.update_namespace_properties("db", removals={"a"}, updates={"a": "1"})


def test_long_listings_come_in_pages(opened, tmp_path) -> None:  # type: ignore[no-untyped-def]  # fixtures
    catalog = opened("memory:paged", **{"rest-page-size": "3"})
    for number in range(10):
        catalog.create_namespace(f"n{number}")
    assert catalog.list_namespaces() == [(f"n{number}",) for number in range(10)]
    for number in range(7):
        catalog.create_table(f"n0.t{number}", SCHEMA)
    assert len(catalog.list_tables("n0")) == 7
