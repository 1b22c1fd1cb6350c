"""`configure`, and the session builder that it changes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from polaris_spark.errors import InputError, PolarisError, StoreURIError
from polaris_spark.spark.session import (
    ICEBERG_EXTENSIONS,
    ICEBERG_PACKAGE,
    POLARIS_EXTENSIONS,
    configure,
    jar,
    lineage_uri,
)
from polaris_spark.spark.session_checks import difference_of
from polaris_spark.store_uris import Secret
from tests import stores
from tests.stores import StoreOn, databases


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/some/python")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    monkeypatch.setattr(SparkContext, "_gateway", None)  # as in a program that has no session as yet


def options(builder: SparkSession.Builder) -> dict[str, str]:
    return dict(builder._options)


def test_the_catalog_is_configured_under_its_name_with_its_properties(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/s.db"
    builder = configure(
        SparkSession.builder,
        "lake",
        store=store,
        warehouse="/w",
        metadata_files="never",
        create_parent_namespaces=False,
        branch=None,
        **{"table-default.my_property": "1"},
    )
    prefix = "spark.sql.catalog.lake"
    assert {key: value for key, value in options(builder).items() if key.startswith(prefix)} == {
        prefix: "io.polarisspark.PolarisCatalog",
        f"{prefix}.type": "rest",
        f"{prefix}.uri": store,
        f"{prefix}.store": store,
        f"{prefix}.warehouse": "/w",
        f"{prefix}.python": sys.executable,
        f"{prefix}.metadata-files": "never",
        f"{prefix}.create-parent-namespaces": "false",
        f"{prefix}.table-default.my_property": "1",
    }


def test_a_catalog_that_exists_needs_no_warehouse(tmp_path: Path) -> None:
    set_options = options(configure(SparkSession.builder, store=f"sqlite://{tmp_path}/s.db"))
    assert "spark.sql.catalog.polaris.store" in set_options
    assert "spark.sql.catalog.polaris.warehouse" not in set_options


@pytest.mark.parametrize(
    ("store", "uri"),
    [
        ("postgresql://me@db.example:5432/catalogs?sslmode=require", "postgresql://db.example:5432/catalogs"),
        ("s3://AKIAKEY@bucket/prefix?endpoint=http%3A%2F%2Fs3", "s3://bucket/prefix"),
        ("cassandra://one,two/keyspace", "cassandra://one,two/keyspace"),
        ("sqlite:///with space/s.db", "sqlite:///with%20space/s.db"),
        ("memory:shop", "memory:shop"),
        ("memory:", "memory:/"),
    ],
)
def test_the_uri_for_lineage_names_the_store_and_shows_neither_user_nor_options(store: str, uri: str) -> None:
    assert lineage_uri(store) == uri


def test_the_listener_for_lineage_finds_a_type_and_a_uri() -> None:
    got = options(configure(SparkSession.builder, store="memory:shop", warehouse="/w"))
    assert got["spark.sql.catalog.polaris.type"] == "rest"
    assert got["spark.sql.catalog.polaris.uri"] == "memory:shop"


def test_a_uri_for_lineage_that_is_given_is_kept() -> None:
    got = options(
        configure(SparkSession.builder, store="memory:", warehouse="/w", uri="https://lake.example")
    )
    assert got["spark.sql.catalog.polaris.uri"] == "https://lake.example"


def test_every_configuration_that_is_shown_has_what_the_listener_of_openlineage_looks_for() -> None:
    root = Path(__file__).parents[2]
    shown = [path for path in (root / "README.md", *(root / "examples").iterdir()) if path.is_file()]
    setting = "=io.polarisspark.PolarisCatalog"
    with_it = [text for path in shown if setting in (text := path.read_text())]
    assert len(with_it) >= 2
    for text in with_it:
        assert "spark.sql.catalog.polaris.type=rest" in text
        assert "spark.sql.catalog.polaris.uri=" in text


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
    assert got["spark.sql.extensions"] == f"my.Extensions,{ICEBERG_EXTENSIONS},{POLARIS_EXTENSIONS}"
    assert got["spark.sql.defaultCatalog"] == "spark_catalog"


def test_two_catalogs_share_one_jar() -> None:
    builder = configure(SparkSession.builder, "one", store="memory:", warehouse="/w")
    got = options(configure(builder, "two", store="memory:", warehouse="/w"))
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == f"--jars {jar()} pyspark-shell"
    assert got["spark.jars.packages"] == ICEBERG_PACKAGE
    assert got["spark.sql.extensions"] == f"{ICEBERG_EXTENSIONS},{POLARIS_EXTENSIONS}"


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


def test_an_interpreter_that_has_the_package_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = tmp_path / "python"
    chosen.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    chosen.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(chosen))
    configure(SparkSession.builder.master("local[2]"), store="memory:", warehouse="/w")
    assert os.environ["PYSPARK_PYTHON"] == str(chosen)


@pytest.mark.parametrize("options", ["-S -E -I", None], ids=["without the package", "missing"])
def test_an_interpreter_that_lacks_the_package_is_replaced_where_the_master_is_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str | None
) -> None:
    chosen = tmp_path / "python"
    if options is not None:
        chosen.write_text(f'#!/bin/sh\nexec {sys.executable} {options} "$@"\n')
        chosen.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(chosen))
    configure(SparkSession.builder.master("local[2]"), store="memory:", warehouse="/w")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", str(chosen))
    configure(SparkSession.builder.master("spark://host:7077"), store="memory:", warehouse="/w")
    assert os.environ["PYSPARK_PYTHON"] == str(chosen)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"store": "nosuch://host/db"}, "no backend for 'nosuch'"),
        ({"store": "/path/of.db"}, "must begin with a scheme"),
        ({"metadata_file": "never"}, "metadata-files"),
        ({"metadata_files": "sometimes"}, "'every-commit' or 'never'"),
        ({"gc.enabled": "flase"}, "'gc.enabled' is 'flase'; it must be true or false"),
        ({"gc.enabeld": False}, "did you mean 'gc.enabled'"),
        ({"s3.region": "env:POLARIS_NOT_SET"}, "POLARIS_NOT_SET"),
        ({"store": "sqlite:///etc/passwd"}, "is not an SQLite database"),
        ({"store": "sqlite:///no/such/c.db"}, "the directory /no/such does not exist"),
        ({"store": "file:///no/such/store"}, "the directory /no/such does not exist"),
        ({"store": "sqlite:///etc/hosts/c.db"}, "the directory /etc/hosts does not exist"),
        ({"store": "sqlite:////tmp/none.db", "create": False}, "the file does not exist"),
        ({"store": "postgresql://me@127.0.0.1:1/db?timeout=2s&connect_timeout=2s"}, "127.0.0.1"),
        ({"iceberg_jar": "/no/such.jar"}, "'/no/such.jar'; it must be the path of a jar on this machine"),
    ],
)
def test_what_the_catalog_would_refuse_is_refused_before_the_session_starts(
    given: dict[str, str], message: str
) -> None:
    builder = SparkSession.builder
    with pytest.raises(PolarisError, match=message) as refused:
        configure(builder, **{"store": "memory:", "warehouse": "/w", **given})
    assert "\n" not in str(refused.value)
    assert options(builder) == {}


@pytest.mark.parametrize("database", databases())
def test_a_store_that_does_not_exist_yet_is_refused_only_if_it_may_not_be_created(
    database: str, store_on: StoreOn, tmp_path: Path
) -> None:
    given = stores.configured(store_on(database)) | {"warehouse": str(tmp_path)}
    configure(SparkSession.builder, **given)
    if database != "memory":
        with pytest.raises(StoreURIError, match=r"does not exist|does not contain a store"):
            configure(SparkSession.builder, create=False, **given)


def test_a_local_jar_of_iceberg_takes_the_place_of_the_download(tmp_path: Path) -> None:
    local = tmp_path / "iceberg.jar"
    local.write_bytes(b"")
    got = options(configure(SparkSession.builder, store="memory:", warehouse="/w", iceberg_jar=local))
    assert "spark.jars.packages" not in got
    assert "iceberg-jar" not in str(got)
    assert set(shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])[1].split(",")) == {str(local), jar()}


BOTH = """
import sys
from pyspark.sql import SparkSession
import polaris_spark
from polaris_spark.errors import StateError

def configured(store, **more):
    secret = {"s3.secret-access-key": "hidden"}
    builder = SparkSession.builder.master("local[1]")
    return polaris_spark.configure(builder, store=store, warehouse=sys.argv[2], **secret, **more)

def refusal(builder):
    try:
        builder.getOrCreate()
    except StateError as error:
        return str(error)
"""

PLAIN = """
early = configured(sys.argv[1])
SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(refusal(early))
print(refusal(configured(sys.argv[1])))
SparkSession.getActiveSession().stop()
print(refusal(configured(sys.argv[1])))
"""

CONFIGURED = """
spark = configured(sys.argv[1]).config("spark.ui.enabled", "false").getOrCreate()
spark.sql("CREATE NAMESPACE polaris.a")
print(configured(sys.argv[1]).getOrCreate().sql("SHOW NAMESPACES IN polaris").collect()[0][0])
print(refusal(configured(sys.argv[1] + "2")))
print(refusal(configured(sys.argv[1], grace="9 h")))
spark.stop()
extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
unset = configured(sys.argv[1])
plain = SparkSession.builder.master("local[1]").config("spark.sql.extensions", extensions)
spark = plain.config("spark.ui.enabled", "false").getOrCreate()
print(refusal(unset))
spark.stop()
print(configured(sys.argv[1] + "2").getOrCreate().sql("SHOW NAMESPACES IN polaris").count())
"""


def lines_of(program: str, folder: Path) -> list[str]:
    """Run a program with a store's URI and a warehouse as arguments, and return the lines that it prints."""
    script = folder / "program.py"
    script.write_text(BOTH + program)
    command = [sys.executable, str(script), f"sqlite://{folder / 's.db'}", str(folder / "w")]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.spark
def test_a_session_that_was_started_without_the_catalog_is_refused_in_one_line(tmp_path: Path) -> None:
    told = lines_of(PLAIN, tmp_path)
    assert len(told) == 3
    for line in told:
        assert line.startswith("Spark is already running in this process, and was started without the jars")
        assert "restart the notebook's kernel" in line


@pytest.mark.spark
def test_a_session_with_the_catalog_is_used_again_unless_the_catalog_is_another(tmp_path: Path) -> None:
    again, other, added, unextended, after_stop = lines_of(CONFIGURED, tmp_path)
    assert (again, after_stop) == ("a", "0")
    assert "another value of spark.sql.catalog.polaris.store: call stop() on it" in other
    assert "started without spark.sql.catalog.polaris.grace: call stop() on it" in added
    assert (
        "started without io.polarisspark.PolarisSparkSessionExtensions in spark.sql.extensions" in unextended
    )


CATALOG = "spark.sql.catalog.polaris"
OPTIONS = {
    CATALOG: "io.polarisspark.PolarisCatalog",
    f"{CATALOG}.store": "memory:",
    f"{CATALOG}.python": "/p",
}
GRACE = {f"{CATALOG}.grace": "9 h"}


@pytest.mark.parametrize(
    ("now", "first", "running", "difference"),
    [
        (OPTIONS, OPTIONS, OPTIONS, ""),
        (OPTIONS, OPTIONS, OPTIONS | GRACE, ""),
        (OPTIONS | GRACE, OPTIONS, OPTIONS, "without spark.sql.catalog.polaris.grace"),
        (OPTIONS, OPTIONS | GRACE, OPTIONS, "with spark.sql.catalog.polaris.grace, which is not given now"),
        (OPTIONS | GRACE, OPTIONS | GRACE, {}, ""),
        (OPTIONS | GRACE, OPTIONS, {}, "without spark.sql.catalog.polaris.grace"),
        (OPTIONS | GRACE, None, OPTIONS, "without spark.sql.catalog.polaris.grace"),
        (OPTIONS, None, OPTIONS | GRACE, ""),
        (OPTIONS, None, {CATALOG: OPTIONS[CATALOG], f"{CATALOG}.store": "memory:"}, ""),
        (OPTIONS | GRACE, None, {"spark.sql.catalog.other": OPTIONS[CATALOG]}, ""),
        (
            OPTIONS | {f"{CATALOG}.store": "memory:b"},
            None,
            OPTIONS,
            "with another value of spark.sql.catalog.polaris.store",
        ),
    ],
)
def test_options_are_compared_with_those_of_the_running_session(
    now: dict[str, str], first: dict[str, str] | None, running: dict[str, str], difference: str
) -> None:
    assert difference_of("polaris", now, running=running, first=first) == difference


def test_a_cluster_keeps_its_own_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    configure(SparkSession.builder.master("spark://host:7077"), store="memory:", warehouse="/w")
    assert "PYSPARK_PYTHON" not in os.environ


SECRETS = {
    "store.password": "hunter2",
    "s3.secret-access-key": "hunter3",
    "store_secret_access_key": "hunter4",
}


def test_a_secret_is_kept_from_the_command_line_of_the_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    got = options(
        configure(
            SparkSession.builder, "lake", store="memory:", warehouse="/w", **SECRETS, **{"s3.region": "x"}
        )
    )
    assert not [text for text in got.values() if "hunter" in str(text)]
    assert got["spark.sql.catalog.lake.s3.region"] == "x"
    for name, secret in SECRETS.items():
        reference = got[f"spark.sql.catalog.lake.{name.replace('_', '-')}"]
        assert Secret(reference).reveal() == secret
        monkeypatch.delenv(reference.removeprefix("env:"))


@pytest.mark.parametrize("secret", ["hunter2\0", "hunter2\ud800"])
def test_a_secret_that_no_variable_can_hold_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(InputError, match="is not valid Unicode, or contains the character NUL") as refused:
        configure(SparkSession.builder, store="memory:", warehouse="/w", **{"store.password": secret})
    assert "hunter2" not in str(refused.value)


def test_the_secrets_of_two_catalogs_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = SparkSession.builder
    for name in ("lake", "Lake", "é"):
        configure(builder, name, store="memory:", warehouse="/w", **{"store.password": f"of {name}"})
    for name in ("lake", "Lake", "é"):
        reference = options(builder)[f"spark.sql.catalog.{name}.store.password"]
        assert reference.isascii()
        assert Secret(reference).reveal() == f"of {name}"
        monkeypatch.delenv(reference.removeprefix("env:"))


def test_a_reference_to_a_variable_is_configured_as_it_is() -> None:
    builder = configure(
        SparkSession.builder, store="memory:", warehouse="/w", **{"store.password": "env:MINE"}
    )
    assert options(builder)["spark.sql.catalog.polaris.store.password"] == "env:MINE"


@pytest.mark.parametrize(
    "places",
    [
        {"store": "postgresql://ada:hunter2@db/lake", "warehouse": "/w"},
        {"store": "mongodb://db/lake?password=hunter2", "warehouse": "/w"},
        {"store": "memory:", "warehouse": "https://ada:hunter2@host/w"},
    ],
)
def test_a_password_in_a_uri_is_refused_before_the_jvm_is_started(places: dict[str, str]) -> None:
    builder = SparkSession.builder
    with pytest.raises(InputError, match="contains a secret") as refused:
        configure(builder, **places)  # type: ignore[arg-type]  # both are given
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in str(options(builder))


SHOW = """
import os, sys
from pathlib import Path
from pyspark.sql import SparkSession
import polaris_spark

secret = os.environ["SECRET"]  # other processes of the machine do not know it
properties = {"cache-enabled": False, "s3.secret-access-key": f"{secret}3", "py-token": f"{secret}4"}
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = polaris_spark.configure(builder, store=sys.argv[1], warehouse=sys.argv[2], **properties)
spark = builder.getOrCreate()
spark.sql("CREATE NAMESPACE polaris.a")
seen = []
for each in Path("/proc").glob("[0-9]*/cmdline"):
    try:
        seen.append(each.read_bytes())
    except OSError:  # it has ended
        pass
mine = (b"io.polarisspark.PolarisCatalog", sys.argv[2].encode())
assert any(all(part in line for part in mine) for line in seen), "no JVM is seen"
print("shown", [line for line in seen if secret.encode() in line])
spark.sql("CREATE TABLE polaris.a.t (x INT)")
table = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, "polaris.a.t")
print("Java", dict(table.io().properties()).get("s3.secret-access-key"))
"""


@pytest.mark.spark
def test_no_process_shows_a_secret_on_its_command_line_and_the_catalog_has_it(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    command = [sys.executable, str(script), f"sqlite://{tmp_path / 's.db'}", str(tmp_path / "w")]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_PYTHON")}
    secret = environment["SECRET"] = uuid4().hex
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["shown []", f"Java {secret}3"]
