"""Directory trees as sources: which directories are tables, which metadata file is the newest, and what is ignored."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from polaris_spark.catalog.imports.directory import DirectoryTree, versions
from polaris_spark.catalog.imports.sources import ListedNamespace, SourceEntry
from polaris_spark.catalog.imports.trees import Directory, RemoteTree
from polaris_spark.catalog.rows import TABLE


def touch(root: Path, *files: str) -> None:
    for file in files:
        place = root / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("1")


def tables(root: Path, *, hadoop: bool = False) -> dict[str, str]:
    """Return the names of tables, each with the name of its metadata file."""
    entries = DirectoryTree(str(root), {}, hadoop=hadoop).entries()
    return {
        ".".join((*one.namespace, one.name)): one.problem or one.metadata_location.rsplit("/", 1)[-1]
        for one in entries
        if isinstance(one, SourceEntry)
    }


def test_every_folder_with_metadata_files_is_a_table_named_by_its_path(root: Path) -> None:
    touch(
        root,
        "a/t/metadata/00000-x.metadata.json",
        "a/b/u/metadata/v1.metadata.json",
        "w/metadata/00000-x.metadata.json",
    )
    assert tables(root) == {
        "a.b.u": "v1.metadata.json",
        "a.t": "00000-x.metadata.json",
        "w": "00000-x.metadata.json",
    }


def test_locations_are_uris_for_every_name_of_the_root(root: Path) -> None:
    touch(root, "a/t/metadata/v1.metadata.json")
    for name in (str(root), f"file://{root}", f"file:{root}/", f"{root}/"):
        (entry,) = DirectoryTree(name, {}).entries()
        assert isinstance(entry, SourceEntry)
        assert (
            entry.metadata_location.removeprefix("file:").lstrip("/")
            == f"{root}/a/t/metadata/v1.metadata.json"[1:]
        )


@pytest.mark.parametrize(
    ("files", "newest"),
    [
        (["v1.metadata.json", "v10.metadata.json", "v9.metadata.json"], "v10.metadata.json"),
        (["00002-a.metadata.json", "00010-b.metadata.json", "9-c.metadata.json"], "00010-b.metadata.json"),
        (["v1.metadata.json", "v2.gz.metadata.json"], "v2.gz.metadata.json"),
        (["v1.metadata.json", "v2.metadata.json.gz"], "v2.metadata.json.gz"),
        (["00001-a.metadata.json", "00002-b.gz.metadata.json"], "00002-b.gz.metadata.json"),
        (["v3.metadata.json", "00001-a.metadata.json"], "v3.metadata.json"),
        (
            ["v1.metadata.json", ".v2.metadata.json.crc", "v2.metadata.json.tmp", "snap-5.avro"],
            "v1.metadata.json",
        ),
        (
            ["00001-a.metadata.json", "00009.metadata.json", "x-9.metadata.json", "9-.metadata.json"],
            "00001-a.metadata.json",
        ),
        (["v1.metadata.json", "v\u0662.metadata.json"], "v1.metadata.json"),
    ],
)
def test_the_newest_metadata_file_has_the_highest_number(root: Path, files: list[str], newest: str) -> None:
    touch(root, *(f"t/metadata/{file}" for file in files))
    assert tables(root) == {"t": newest}


def test_of_two_with_one_number_the_one_written_last_is_the_newest() -> None:
    files = {"00001-b.metadata.json": 1.0, "00001-a.metadata.json": 2.0}
    assert versions(Directory([], files, {}))[-1].file == "00001-a.metadata.json"


def test_junk_is_left_alone(root: Path) -> None:
    touch(
        root,
        "readme.txt",
        "a/metadata/notes.txt",
        "a/metadata/x/v1.metadata.json",
        "b/data/part.parquet",
        "metadata/x",
    )
    (root / "empty").mkdir()
    assert tables(root) == {}


@pytest.mark.parametrize("inner", ["t", "db/t", "a/b/c/t"])
@pytest.mark.parametrize("above", ["", "lake/"])
@pytest.mark.parametrize("hadoop", [False, True])
def test_a_table_whose_folder_holds_other_tables_is_reported_and_those_are_found(
    root: Path, inner: str, above: str, hadoop: bool
) -> None:
    touch(root, f"{above}metadata/v1.metadata.json", f"{above}{inner}/metadata/v1.metadata.json")
    found = tables(root, hadoop=hadoop)
    outer = above.strip("/") or root.name
    assert "contains another table" in found.pop(outer)
    assert found == {f"{above}{inner}".replace("/", "."): "v1.metadata.json"}


def test_folders_of_partitions_and_data_are_not_searched(root: Path) -> None:
    touch(root, "t/metadata/v1.metadata.json", *(f"t/{name}/x" for name in ("day=1", "data", "day=2")))
    tree, listed = DirectoryTree(str(root), {}), []
    inner = tree._list
    tree._list = lambda location: listed.append(location) or inner(location)  # type: ignore[func-returns-value]
    assert [one.name for one in tree.entries() if isinstance(one, SourceEntry)] == ["t"]
    assert [location.removeprefix(f"file://{root}") for location in listed] == ["", "/t", "/t/metadata"]


def odd_link(place: Path) -> None:
    place.symlink_to(place.name)


def odd_link_in_a_circle(place: Path) -> None:
    place.symlink_to(place.with_name("other"))
    place.with_name("other").symlink_to(place)


def odd_socket(place: Path) -> None:
    before = os.getcwd()
    os.chdir(place.parent)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(place.name)
    finally:
        os.chdir(before)


def odd_metadata(place: Path) -> None:
    place.mkdir()
    (place / "metadata").write_text("a file")


def odd_pipe_for_metadata(place: Path) -> None:
    place.mkdir()
    os.mkfifo(place / "metadata")


def odd_pipe_for_a_metadata_file(place: Path) -> None:
    (place / "metadata").mkdir(parents=True)
    os.mkfifo(place / "metadata" / "v1.metadata.json")


def odd_link_for_a_metadata_file(place: Path) -> None:
    (place / "metadata").mkdir(parents=True)
    (place / "metadata" / "v1.metadata.json").symlink_to("v1.metadata.json")


ODD = {
    odd_link: ("odd", "its attributes cannot be read: Too many levels of symbolic links"),
    odd_link_in_a_circle: ("odd", "its attributes cannot be read: Too many levels of symbolic links"),
    os.mkfifo: ("odd", "a FIFO, socket or device, which is not read"),
    odd_socket: ("odd", "a FIFO, socket or device, which is not read"),
    odd_metadata: ("odd.metadata", "it is a file; the metadata of a table is in a directory of this name"),
    odd_pipe_for_metadata: ("odd.metadata", "a FIFO, socket or device, which is not read"),
    odd_pipe_for_a_metadata_file: ("odd", "a FIFO, socket or device, which is not read"),
    odd_link_for_a_metadata_file: ("odd", "its attributes cannot be read: Too many levels of symbolic links"),
}
"""Functions that make something at `odd`, each with the name and problem of the row that reports it."""


@pytest.mark.parametrize("make", ODD, ids=lambda make: make.__name__)
@pytest.mark.parametrize("hadoop", [False, True])
def test_an_unreadable_entry_is_reported_by_name_and_the_search_goes_on(
    root: Path, make: Callable[[Path], None], hadoop: bool
) -> None:
    touch(root, "a/t/metadata/v1.metadata.json", "z/t/metadata/v1.metadata.json")
    make(root / "odd")
    found = tables(root, hadoop=hadoop)
    name, what = ODD[make]
    assert found[name] == what
    assert found.items() >= {("a.t", "v1.metadata.json"), ("z.t", "v1.metadata.json")}


def test_directories_inside_a_table_are_not_searched(root: Path) -> None:
    touch(root, "t/metadata/v1.metadata.json", "t/data/inner/metadata/v1.metadata.json")
    assert tables(root) == {"t": "v1.metadata.json"}


def test_links_are_reported_and_not_followed(root: Path) -> None:
    touch(root, "a/t/metadata/v1.metadata.json")
    (root / "a" / "loop").symlink_to(root)
    (root / "a" / "nowhere").symlink_to(root / "missing")
    found = tables(root)
    assert found == {"a.t": "v1.metadata.json", "a.loop": "a symbolic link, which is not followed"}


def test_a_root_that_is_a_link_is_followed(root: Path, tmp_path: Path) -> None:
    touch(root, "a/t/metadata/v1.metadata.json")
    (tmp_path / "link").symlink_to(root)
    assert tables(tmp_path / "link") == {"a.t": "v1.metadata.json"}


def test_a_root_that_is_a_table_is_that_table(root: Path) -> None:
    touch(root, "metadata/v1.metadata.json")
    assert tables(root) == {root.name: "v1.metadata.json"}


def test_a_tree_deeper_than_pythons_stack_is_walked(root: Path) -> None:
    at = root
    for _ in range(400):
        at = at / "d"
    touch(at, "t/metadata/v1.metadata.json")
    assert list(tables(root).values()) == ["v1.metadata.json"]


def test_a_directory_that_cannot_be_listed_is_reported(root: Path) -> None:
    touch(root, "a/t/metadata/v1.metadata.json", "b/x")
    tree = DirectoryTree(str(root), {})
    listed = tree._list

    def refusing(location: str) -> Directory:
        """Make the listing of a directory fail. Permissions do not work for this, because root may list every
        directory."""
        if location.endswith("/b"):
            raise PermissionError(f"not {location}")
        return listed(location)

    tree._list = refusing
    table, refused = [entry for entry in tree.entries() if isinstance(entry, SourceEntry)]
    assert (table.name, table.problem) == ("t", "")
    assert "cannot be listed: not" in refused.problem


class TestHadoop:
    def test_directories_are_namespaces_and_tables_come_by_their_hint(self, root: Path) -> None:
        touch(root, *(f"db/t/metadata/v{n}.metadata.json" for n in (1, 2, 4)), ".hidden/x")
        (root / "db/t/metadata/version-hint.text").write_text("1")
        (root / "empty").mkdir()
        entries = list(DirectoryTree(str(root), {}, hadoop=True).entries())
        assert [one.name for one in entries if isinstance(one, ListedNamespace)] == [("db",), ("empty",)]
        (found,) = [one for one in entries if isinstance(one, SourceEntry)]
        # Version 2 was committed and its hint not written; what follows a gap was never committed.
        assert (found.kind, found.metadata_location.rsplit("/", 1)[-1]) == (TABLE, "v2.metadata.json")

    @pytest.mark.parametrize("hint", [None, "", "junk", "\udc80"])
    def test_without_a_hint_that_can_be_read_the_highest_version_counts(
        self, root: Path, hint: str | None
    ) -> None:
        touch(root, "t/metadata/v1.metadata.json", "t/metadata/v3.metadata.json")
        if hint is not None:
            (root / "t/metadata/version-hint.text").write_bytes(hint.encode(errors="surrogateescape"))
        assert tables(root, hadoop=True) == {"t": "v3.metadata.json"}

    @pytest.mark.parametrize("hint", ["../../etc/passwd", "/etc/passwd", "file:///etc/passwd", "1/../2"])
    def test_a_version_hint_with_a_path_is_reported_and_not_followed(self, root: Path, hint: str) -> None:
        touch(root, "t/metadata/v1.metadata.json", "u/metadata/v1.metadata.json")
        (root / "t/metadata/version-hint.text").write_text(hint)
        found = tables(root, hadoop=True)
        assert found == {
            "t": "version-hint.text contains a path instead of a version number",
            "u": "v1.metadata.json",
        }

    def test_a_version_hint_that_is_a_link_reveals_nothing_of_its_target(
        self, root: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "secret").write_text("root:x:/open-sesame")
        touch(root, "t/metadata/v1.metadata.json")
        (root / "t/metadata/version-hint.text").symlink_to(tmp_path / "secret")
        assert "open-sesame" not in tables(root, hadoop=True)["t"]

    def test_a_hint_at_a_missing_version_is_reported(self, root: Path) -> None:
        touch(root, "t/metadata/v1.metadata.json")
        (root / "t/metadata/version-hint.text").write_text("7")
        assert "contains version 7" in tables(root, hadoop=True)["t"]

    def test_metadata_of_other_catalogs_is_not_taken_for_a_table(self, root: Path) -> None:
        touch(root, "t/metadata/00001-a.metadata.json")
        assert tables(root, hadoop=True) == {}


@pytest.mark.parametrize("name", ["#", "?", "a?b", "a#b", "a%20b", "a b"])
def test_directories_of_object_stores_are_listed_under_their_own_names(root: Path, name: str) -> None:
    touch(root / "bucket" / name, "t/metadata/v1.metadata.json")
    listed = RemoteTree(SubTreeFileSystem(str(root), LocalFileSystem()))
    assert listed("s3://bucket").directories == [name]
    assert listed(f"s3://bucket/{name}").directories == ["t"]
    assert list(listed(f"s3://bucket/{name}/t/metadata").files) == ["v1.metadata.json"]
