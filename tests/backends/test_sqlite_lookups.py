"""SQLite finds many rows by its index, independent of the planner of its version."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from polaris_spark.backends.sqlite import files, lookups


@pytest.mark.parametrize(
    ("statement", "by"),
    [(lookups._of_ids, "realm=? AND id=? AND part=?"), (lookups._of_ranges, "realm=? AND id>? AND id<?")],
)
@pytest.mark.parametrize("width", [2, 512])
def test_each_row_is_found_by_the_index(
    tmp_path: Path, statement: Callable[[int], str], by: str, width: int
) -> None:
    path = str(tmp_path / "store.db")
    files.create_file(path)
    with closing(files.connect(path)) as connection:
        files.create_tables(connection, path)
        plan = connection.execute("EXPLAIN QUERY PLAN " + statement(width), (*range(width), "realm"))
        searches = [row[3] for row in plan if "objects" in row[3]]
    assert searches == [f"SEARCH objects USING INDEX sqlite_autoindex_objects_1 ({by})"]
