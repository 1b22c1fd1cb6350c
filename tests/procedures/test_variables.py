"""Arguments in SQL may name only listed variables of the driver's environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import polaris_spark
from polaris_spark.config import Properties
from polaris_spark.errors import InputError, PolarisError
from polaris_spark.jobs.registry import call
from polaris_spark.rest.session import Session
from polaris_spark.spark.options import LISTED_VARIABLES, ViewOptions
from polaris_spark.spark.views import VIEWS

VALUE = "open-sesame"
NOBODY = "http://127.0.0.1:9"
"""An address on which no program listens."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_KEY", VALUE)
    monkeypatch.setenv("SOURCE_NAME", "prod")


def opened(tmp_path: Path, **properties: Any) -> Session:
    return polaris_spark.connect(
        store=f"sqlite://{tmp_path}/store.db", warehouse=str(tmp_path / "warehouse"), **properties
    )


STATEMENTS: list[tuple[str, Mapping[str, Any]]] = [
    ("import_catalog", {"source": "rest", "location": NOBODY, "options": {"token": "env:DEPLOY_KEY"}}),
    (
        "import_catalog",
        {"source": "rest", "location": NOBODY, "options": {"uri": NOBODY, "x": "env:DEPLOY_KEY"}},
    ),
    ("import_catalog", {"source": "sql", "location": "sqlite:///x", "options": {"user": "env:DEPLOY_KEY"}}),
    (
        "import_catalog",
        {"source": "directory", "location": "s3://b", "options": {"s3.region": "env:DEPLOY_KEY"}},
    ),
    (
        "import_catalog",
        {"source": "rest", "location": NOBODY, "dry_run": True, "options": {"token": "env:DEPLOY_KEY"}},
    ),
    (
        "migrate_realm",
        {"target": "postgresql://u@127.0.0.1:1/d", "target_options": {"password": "env:DEPLOY_KEY"}},
    ),
    (
        "migrate_realm",
        {
            "target": "postgresql://u@127.0.0.1:1/d",
            "abort": True,
            "target_options": {"sslmode": "env:DEPLOY_KEY"},
        },
    ),
]


@pytest.mark.parametrize(("procedure", "arguments"), STATEMENTS)
@pytest.mark.parametrize("listed", [None, "OTHER", "DEPLOY_KEY_2,deploy_key"])
def test_a_variable_that_is_not_listed_is_refused_before_anything_is_contacted(
    tmp_path: Path, procedure: str, arguments: Mapping[str, Any], listed: str | None
) -> None:
    with opened(tmp_path, procedure_variables=listed) as session:
        with pytest.raises(
            InputError, match=r"'DEPLOY_KEY', which .* 'procedure-variables' does not list"
        ) as told:
            call(session, procedure, **arguments)
        assert VALUE not in str(told.value)


def test_a_call_from_sql_with_an_unlisted_variable_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        message = {"id": "1", "driver": None, "arguments": STATEMENTS[0][1]}
        path = "polaris-spark/v1/procedures/import_catalog"
        status, _, body = session.request("POST", path, body=json.dumps(message))
        assert status == 400
        assert "procedure-variables" in body
        assert VALUE not in body


def test_a_variable_that_is_listed_is_used(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/source.db"
    for name in ("prod", "test"):
        source = SqlCatalog(name, uri=database, warehouse=f"file://{tmp_path}/lake")
        source.create_namespace(f"db_{name}")
    with opened(tmp_path, procedure_variables="OTHER, SOURCE_NAME") as session:
        call(
            session, "import_catalog", source="sql", location=database, options={"catalog": "env:SOURCE_NAME"}
        )
        _, _, answer = session.request("GET", "v1/namespaces")
        assert json.loads(answer)["namespaces"] == [["db_prod"]]


def test_a_listed_variable_that_is_not_set_is_named(tmp_path: Path) -> None:
    with (
        opened(tmp_path, procedure_variables="MISSING") as session,
        pytest.raises(InputError, match="'MISSING', which is not set"),
    ):
        call(session, "import_catalog", source="rest", location=NOBODY, options={"token": "env:MISSING"})


@pytest.mark.parametrize("text", ["A,,B", ",", "env:A"])
def test_a_malformed_list_of_variables_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="separated by commas"):
        Properties.parse({"store": "memory:", "procedure-variables": text})


@pytest.mark.parametrize("option", ["store.password", "store.sslrootcert", "files.s3.secret-access-key"])
@pytest.mark.parametrize("listed", ["", "OTHER", " ,"])
def test_an_option_of_a_view_names_only_variables_that_the_driver_lists(
    monkeypatch: pytest.MonkeyPatch, option: str, listed: str
) -> None:
    monkeypatch.setenv(LISTED_VARIABLES, listed)
    given = {"view": "files", "store": "postgresql://u@127.0.0.1:1/d", option: "env:DEPLOY_KEY"}
    with pytest.raises(InputError, match=f"'DEPLOY_KEY', which .* {LISTED_VARIABLES}") as told:
        ViewOptions.parse(given, VIEWS)
    assert VALUE not in str(told.value)
    monkeypatch.setenv(LISTED_VARIABLES, f"{listed},DEPLOY_KEY")
    assert ViewOptions.parse(given, VIEWS)


def test_the_configuration_of_the_catalog_itself_names_any_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"store": "postgresql://u@127.0.0.1:1/d", "store.password": "env:DEPLOY_KEY", "warehouse": "/w"}
    with pytest.raises(
        PolarisError, match=r"127\.0\.0\.1"
    ):  # nobody listens there: the password was looked up
        polaris_spark.connect(**given)
    monkeypatch.delenv("DEPLOY_KEY")
    with pytest.raises(InputError, match="'DEPLOY_KEY'"):
        polaris_spark.connect(**given)
