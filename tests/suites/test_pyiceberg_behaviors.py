"""pyiceberg's own suite of catalogs, from its source distribution, run on `PolarisCatalog`.

It is written for `SqlCatalog` and `InMemoryCatalog`. What differs is listed with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from polaris_spark.errors import StateError
from tests.servers.installing import python_packages, python_source
from tests.stores import unavailable
from tests.suites.reports import Outcome, outcome_of

pytestmark = pytest.mark.suites

ROOT = Path(__file__).parents[2]
SUITE = "tests/catalog/test_catalog_behaviors.py"
CASES = 235
"""How many cases the suite has at least, so that none can get lost."""

LIBRARIES = ["moto==5.2.5", "pytest-lazy-fixtures==1.4.1", "responses==0.26.3", "xmltodict==1.0.4"]
"""What the suite's fixtures import and this project does not need. All that these need themselves is installed."""

EMPTY_NAME = (
    "An empty name is a bad request, as for Iceberg's REST servers; the test expects NoSuchNamespaceError."
)
BLANK_NAME = "A blank is a name, as in Iceberg's Java library."
MESSAGE = "The error is the expected one; its message has the words of Iceberg's Java library."
DIFFERENCES = {
    "test_create_table_without_namespace": "RestCatalog raises NoSuchIdentifierError for a table's name without a "
    "namespace, before it sends a request; SqlCatalog raises NoSuchNamespaceError.",
    "test_create_tables_idempotency": "Only SqlCatalog has the method create_tables; a store needs no such call.",
    "test_commit_table": "The test calls the private method _parse_metadata_version, which no RestCatalog has.",
    "test_catalog_commit_table_applies_schema_updates": "A new schema gets an unused id, as Iceberg's Java library "
    "assigns it; SqlCatalog adds a second schema with the id of the first one.",
    "test_concurrent_commit_table": MESSAGE,
    "test_create_namespace": "The answer has the namespace's default location, as that of Iceberg's REST catalogs.",
    "test_create_namespace_with_null_properties": "The error is BadRequestError; the test expects the "
    "IntegrityError of SQLAlchemy.",
    "test_create_namespace_with_empty_identifier[0]": EMPTY_NAME,
    "test_create_namespace_with_empty_identifier[1]": EMPTY_NAME,
    "test_create_namespace_with_empty_identifier[empty_namespace3]": EMPTY_NAME,
    "test_create_namespace_with_empty_identifier[ 0]": BLANK_NAME,
    "test_create_namespace_with_empty_identifier[ 1]": BLANK_NAME,
    "test_get_namespace_metadata_raises_error_when_namespace_does_not_exist": MESSAGE,
    "test_load_empty_namespace_properties": "The answer has the namespace's default location, and not the property "
    "'exists', which SqlCatalog gives every namespace.",
    "test_update_namespace_metadata_raises_error_when_namespace_does_not_exist": MESSAGE,
}
"""What does not pass and why: every case of a function, or the case with this parameter."""


def unpack(archive: Path, folder: Path) -> None:
    """Write the suite and its fixtures into a folder, with our fixtures of catalogs beside the suite."""
    with tarfile.open(archive) as source:
        for name in ("tests/conftest.py", SUITE):
            found = source.extractfile(f"{archive.name.removesuffix('.tar.gz')}/{name}")
            assert found is not None
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(found.read())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = unmarked\n")
    shutil.copyfile(
        Path(__file__).with_name("pyiceberg_conftest.py"), (folder / SUITE).with_name("conftest.py")
    )


def outcome(folder: Path) -> Outcome:
    """Run the suite in another process, and return the outcome from pytest's report."""
    try:
        archive = python_source("pyiceberg", version("pyiceberg"))
        libraries = python_packages("pyiceberg-suite-1", LIBRARIES)
    except StateError as error:
        unavailable(f"pyiceberg's suite cannot be had: {error}")
        raise
    unpack(archive, folder)
    path = [str(libraries), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    options = [
        "-c",
        "pytest.ini",
        "-q",
        "--tb=short",
        "--junitxml=report.xml",
        f"--basetemp={folder / 'tmp'}",
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", SUITE, *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        text=True,
        capture_output=True,
        timeout=800,
        check=False,
    )
    assert ran.returncode in (0, 1), f"the suite did not run:\n{ran.stdout[-10_000:]}{ran.stderr[-10_000:]}"
    return outcome_of(folder / "report.xml")


def test_pyicebergs_suite_of_catalogs_passes_but_for_what_is_listed(tmp_path: Path) -> None:
    found = outcome(tmp_path)
    assert len(found.run) >= CASES
    assert found.skipped == []
    keys = {case: {case, case.partition("[")[0]} & DIFFERENCES.keys() for case in found.run}
    assert {case: why for case, why in found.failed.items() if not keys[case]} == {}
    assert [
        case for case in found.run if keys[case] and case not in found.failed
    ] == []  # listed, but they pass
    assert DIFFERENCES.keys() == set().union(*keys.values())  # listed, but there are no such cases
