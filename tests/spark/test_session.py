"""`configure` and the builder that it is given."""

from __future__ import annotations

import os
import shlex
import sys

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from polaris_spark.errors import InputError
from polaris_spark.spark.session import ICEBERG_EXTENSIONS, ICEBERG_PACKAGE, configure, jar


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/some/python")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    monkeypatch.setattr(SparkContext, "_gateway", None)  # as in a program that has no session as yet


def options(builder: SparkSession.Builder) -> dict[str, str]:
    return dict(builder._options)


def test_the_catalog_is_configured_under_its_name_with_its_properties() -> None:
    builder = configure(
        SparkSession.builder,
        "lake",
        store="sqlite:///s.db",
        warehouse="/w",
        metadata_files="never",
        create=False,
        branch=None,
    )
    prefix = "spark.sql.catalog.lake"
    assert {key: value for key, value in options(builder).items() if key.startswith(prefix)} == {
        prefix: "io.polarisspark.PolarisCatalog",
        f"{prefix}.store": "sqlite:///s.db",
        f"{prefix}.warehouse": "/w",
        f"{prefix}.python": sys.executable,
        f"{prefix}.metadata-files": "never",
        f"{prefix}.create": "false",
    }


def test_what_the_builder_already_had_is_kept() -> None:
    builder = (
        SparkSession.builder.config("spark.jars", "/my.jar")
        .config("spark.jars.packages", "a:b:1, c:d:2")
        .config("spark.sql.extensions", "my.Extensions")
        .config("spark.sql.defaultCatalog", "spark_catalog")
    )
    got = options(configure(builder, store="memory:", warehouse="/w"))
    assert "spark.jars" not in got
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == f"--jars /my.jar,{jar()} pyspark-shell"
    assert got["spark.jars.packages"] == f"a:b:1,c:d:2,{ICEBERG_PACKAGE}"
    assert got["spark.sql.extensions"] == f"my.Extensions,{ICEBERG_EXTENSIONS}"
    assert got["spark.sql.defaultCatalog"] == "spark_catalog"


def test_two_catalogs_share_one_jar() -> None:
    builder = configure(SparkSession.builder, "one", store="memory:", warehouse="/w")
    got = options(configure(builder, "two", store="memory:", warehouse="/w"))
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == f"--jars {jar()} pyspark-shell"
    assert got["spark.jars.packages"] == ICEBERG_PACKAGE


def test_nothing_but_the_catalog_is_configured() -> None:
    got = options(configure(SparkSession.builder, store="memory:", warehouse="/w"))
    others = {key for key in got if not key.startswith("spark.sql.catalog.polaris")}
    assert others == {"spark.jars.packages", "spark.sql.extensions"}


def test_arguments_of_the_launcher_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--name 'my program' --jars /a.jar,/b.jar pyspark-shell")
    builder = SparkSession.builder.config("spark.jars", "/b.jar, /c.jar")
    configure(builder, store="memory:", warehouse="/w")
    assert shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"]) == [
        "--jars",
        f"/a.jar,/b.jar,/c.jar,{jar()}",
        "--name",
        "my program",
        "pyspark-shell",
    ]


def test_a_jvm_that_runs_keeps_its_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    got = options(configure(SparkSession.builder, store="memory:", warehouse="/w"))
    assert "spark.jars" not in got
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "pyspark-shell"


@pytest.mark.parametrize("name", ["", "a.b", "a-b", "spark catalog", "1st"])
def test_a_name_that_sql_could_not_say_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="plain SQL identifier"):
        configure(SparkSession.builder, name, store="memory:", warehouse="/w")


def test_workers_of_a_local_master_run_on_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    configure(SparkSession.builder.master("local[2]"), store="memory:", warehouse="/w")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_an_interpreter_that_somebody_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(SparkSession.builder.master("local[2]"), store="memory:", warehouse="/w")
    assert os.environ["PYSPARK_PYTHON"] == "/some/python"


def test_a_cluster_keeps_its_own_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    configure(SparkSession.builder.master("spark://host:7077"), store="memory:", warehouse="/w")
    assert "PYSPARK_PYTHON" not in os.environ
