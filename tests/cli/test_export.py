"""`polaris-spark export`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.catalogs import make_catalog, run


def test_it_writes_the_metadata_files_that_commits_did_not(tmp_path: Path) -> None:
    store = make_catalog(tmp_path, metadata_files="never")
    first = run("export", store, "--json").json
    assert {one["kind"] for one in first} == {"table", "view"}
    assert {one["outcome"] for one in first} == {"written"}
    for one in first:
        metadata = json.loads(Path(one["metadata-location"].removeprefix("file://")).read_text())
        assert metadata["location"] in one["metadata-location"]
    again = run("export", store, "--table", first[0]["name"])
    assert again.code == 0
    assert "unchanged" in again.out


def test_it_puts_them_into_a_directory(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    assert {one["outcome"] for one in run("export", store, "--json").json} == {"unchanged"}
    done = run("export", store, "--namespace", "db", "--location", str(tmp_path / "copy"), "--json").json
    assert {one["outcome"] for one in done} == {"written"}
    assert len(list((tmp_path / "copy").rglob("*.metadata.json"))) == len(done)


def test_an_import_of_the_directory_finds_all_that_was_exported(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    done = run("export", store, "--location", str(tmp_path / "copy"), "--json").json
    found = run(
        "import", store, "--source", "directory", "--location", str(tmp_path / "copy"), "--dry-run", "--json"
    )
    assert {one["metadata-location"] for one in found.json} == {one["metadata-location"] for one in done}


def test_a_failed_export_is_reported_in_one_line(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    answer = run("export", store, "--table", "db.nosuch")
    assert (answer.code, answer.err) == (2, "polaris-spark: there is no table or view db.nosuch\n")
    assert run("export", store, "--table", "t").code == 2
