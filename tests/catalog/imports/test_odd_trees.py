"""Trees with names, links and depths that no catalog produces. The import still finds all other tables."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from polaris_spark.catalog.imports.directory import DirectoryTree
from tests.catalog.imports.support import run, statuses, table_metadata, write
from tests.rest.client import Client


def odd_bytes(root: Path) -> None:
    os.mkdir(os.fsencode(root) + b"/\xff")


def odd_bytes_of_a_table(root: Path) -> None:
    folder = os.fsencode(root) + b"/db/\xff/metadata"
    os.makedirs(folder)
    Path(os.fsdecode(folder), "v1.metadata.json").write_text("{}")


def a_link_to_itself(root: Path) -> None:
    (root / "self").symlink_to("self")


def a_deep_path(root: Path) -> None:
    at = root
    for _ in range(12):
        at = at / ("d" * 200)
    write(at / "t", table_metadata(at / "t", number=3), "v1.metadata.json")


def a_very_deep_path(root: Path) -> None:
    at = os.open(root, os.O_RDONLY)
    for _ in range(30):  # more than a path can have
        os.mkdir("d" * 200, dir_fd=at)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


@pytest.mark.parametrize("hadoop", [False, True])
@pytest.mark.parametrize(
    "make", [odd_bytes, odd_bytes_of_a_table, a_link_to_itself, a_deep_path, a_very_deep_path]
)
def test_odd_entries_in_a_tree_do_not_stop_the_import_of_the_others(
    catalog: Client, root: Path, make: Callable[[Path], None], hadoop: bool
) -> None:
    for number, name in enumerate("az"):
        folder = root / name / "t"
        write(folder, table_metadata(folder, number=number), "v1.metadata.json")
    make(root)
    rows = run(catalog, DirectoryTree(str(root), {}, hadoop=hadoop))
    found = statuses(rows)
    assert (found["a.t"], found["z.t"]) == ("imported", "imported")
    assert json.dumps(rows).encode()
    assert (len(found) > 2) == (make is not odd_bytes or hadoop)  # an empty folder has no row
    assert catalog.names("z") == ["t"]
