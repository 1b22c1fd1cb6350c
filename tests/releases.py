"""Earlier releases of this package, built from commits of this repository."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from polaris_spark.backends import open_backend
from polaris_spark.objects import known_types
from polaris_spark.store.references import new_version
from polaris_spark.store_uris import StoreURI
from polaris_spark.system.realms import FIRST_FORMAT
from polaris_spark.system.stores import system_references

PRESENT: Final = Path(__file__).parents[1]
"""The checkout of this release."""

BEFORE_INTENTS: Final = "237e7778677a"
"""The last commit of this repository before processes carried out each other's changes."""

BEFORE_CHECKS: Final = "8430594389d6"
"""A commit of this repository with catalogs and branches, but without merges of tables, checks and access control."""


def checkout(commit: str, folder: Path) -> Path:
    """Return a checkout of an earlier commit, in a new folder. Skip the test if the commit is not here."""
    archived = subprocess.run(
        ["git", "archive", commit, "polaris_spark", "tests"], cwd=PRESENT, capture_output=True, check=False
    )
    if archived.returncode:
        pytest.skip(f"the commit {commit} is not here: {archived.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(archived.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


def change_record(store: str, realm: str = "default", **changes: Any) -> None:
    """Replace fields of the record of a realm, add fields that it does not have, and remove fields that are None."""
    backend = open_backend(StoreURI.parse(store), {})
    references = system_references(backend)
    row = backend.read_reference(references.realm, f"realm/{realm}")
    assert row is not None
    value = {**msgspec.msgpack.decode(row.value), **changes}
    kept = {name: field for name, field in value.items() if field is not None}
    assert references.put(f"realm/{realm}", row.version, references.row(kept, new_version()))
    backend.close()


def make_earlier(store: str, realm: str = "default") -> None:
    """Make the record of a realm as the first releases wrote it."""
    revisions = {**known_types(), "table": 1, "view": 1, "unloaded": 1}
    change_record(store, realm, format=FIRST_FORMAT, revisions=revisions, features=None)
