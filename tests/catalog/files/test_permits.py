"""Permits: which files a job may delete, even if a path changes between decision and deletion."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from polaris_spark.backends.base import ObjectKey
from polaris_spark.backends.objectstore.keys import object_key, pack_key, reference_key
from polaris_spark.backends.objectstore.packs import PackRange
from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.files.folders import CHANGED, Folders
from polaris_spark.catalog.files.paths import normal_path
from polaris_spark.catalog.files.permits import Permit, is_around
from polaris_spark.catalog.files.store_files import StoreFiles
from polaris_spark.databases import BUILT_IN, Database
from polaris_spark.errors import ForbiddenError
from polaris_spark.store_uris import StoreURI

FOLDERS = Folders(Files({}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with files in it, beside another one."""
    for file in ("root/t/f", "root/u/f", "outside/f"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(file)
    return tmp_path / "root"


@pytest.mark.parametrize("follow_links", [False, True])
@pytest.mark.parametrize("replaced", ["t", "t/inner", "t/inner/f"])
@pytest.mark.parametrize("target", ["outside", "root/u"])
def test_a_folder_replaced_by_a_link_after_the_decision_is_not_followed(
    root: Path, *, follow_links: bool, replaced: str, target: str
) -> None:
    (root / "t" / "inner").mkdir()
    (root / "t" / "inner" / "f").touch()
    (root.parent / target / "inner").mkdir()
    (root.parent / target / "inner" / "f").touch()
    permit = Permit([f"file://{root}"], follow_links=follow_links)
    grant = permit.grant(f"file://{root}/t/inner/f")
    aside = root / "aside"
    (root / replaced).rename(aside)
    (root / replaced).symlink_to(root.parent / target / replaced.removeprefix("t").lstrip("/"))
    with pytest.raises(ForbiddenError, match="symbolic link"):
        FOLDERS.delete(grant, pickle.loads(pickle.dumps(permit)))
    assert (root.parent / target / "inner" / "f").exists()
    assert (root.parent / target / "f").exists()


def test_an_existing_link_is_followed_to_its_target_at_the_decision(root: Path) -> None:
    (root / "link").symlink_to(root / "t")
    permit = Permit([f"file://{root}"], follow_links=True)
    grant = permit.grant(f"file://{root}/link/f")
    (root / "link").unlink()
    (root / "link").symlink_to(root / "u")
    assert FOLDERS.delete(grant, permit)
    assert not (root / "t" / "f").exists()
    assert (root / "u" / "f").exists()


def test_several_permits_together_grant_what_each_of_them_grants(root: Path) -> None:
    (root / "link").symlink_to(root / "t")
    following = Permit([f"file://{root}"], follow_links=True)
    other = Permit([f"file://{root.parent}/outside"])
    both = Permit.of_all([other, following])
    assert both.grant(f"file://{root}/link/f") == following.grant(f"file://{root}/link/f")
    assert both.may(f"file://{root.parent}/outside/f")


@pytest.mark.parametrize("follow_links", [False, True])
def test_a_file_behind_a_link_out_of_all_folders_is_refused(root: Path, *, follow_links: bool) -> None:
    (root / "out").symlink_to(root.parent / "outside")
    (root / "chain").symlink_to(root / "out")
    (root / "up").symlink_to("..")
    (root / "last").symlink_to(root.parent / "outside" / "f")
    (root / "loop").symlink_to(root / "loop")
    permit = Permit([f"file://{root}"], follow_links=follow_links)
    for name in ("out/f", "chain/f", "up/outside/f", "last", "loop/f"):
        grant = permit.may(f"file://{root}/{name}")
        assert grant is None or FOLDERS.delete_all([grant], permit), name
    assert (root.parent / "outside" / "f").exists()
    assert (root / "last").is_symlink()


@pytest.mark.parametrize(
    "name", ["../outside/f", "t/../../outside/f", "t/../u/f", "..", "", ".", "t/", "t/f\0", "//", "t/.."]
)
def test_paths_that_lead_upwards_or_name_no_file_are_refused(root: Path, name: str) -> None:
    permit = Permit([f"file://{root}"], follow_links=True)
    assert permit.may(f"file://{root}/{name}") is None
    assert permit.may(f"{root}/{name}") is None


def test_a_root_is_recognized_in_every_spelling_and_through_links(root: Path) -> None:
    alias = root.parent / "alias"
    alias.symlink_to(root)
    for given in (f"file://{alias}", f"file:{alias}/", f"{alias}//", f"file://localhost{alias}"):
        permit = Permit([given])
        for location in (f"{alias}/t/f", f"file://{root}/t/f", f"FILE:{alias}//t/./f"):
            assert permit.grant(location).path == "t/f"
        assert permit.may(f"file://{root.parent}/outside/f") is None
    assert FOLDERS.delete(permit.grant(f"{alias}/t/f"), permit)


def test_a_link_between_two_nested_roots_is_not_followed(root: Path) -> None:
    (root / "place").symlink_to(root.parent / "outside")
    permit = Permit([f"file://{root}", f"file://{root}/place"])
    grant = permit.grant(f"file://{root}/place/f")
    assert "symbolic link" in FOLDERS.delete_all([grant], permit)[grant.location]
    assert (root.parent / "outside" / "f").exists()


def test_a_grant_of_another_permit_is_checked_again(root: Path) -> None:
    wide, narrow = Permit([f"file://{root.parent}"]), Permit([f"file://{root}"])
    with pytest.raises(ForbiddenError):
        FOLDERS.delete(wide.grant(f"file://{root.parent}/outside/f"), narrow)
    store = StoreFiles.of([StoreURI.parse(f"sqlite://{root}/t/f")])
    with pytest.raises(ForbiddenError, match="store"):
        FOLDERS.delete(narrow.grant(f"file://{root}/t/f"), Permit(narrow.roots, store))
    assert (root / "t" / "f").exists()


def test_a_file_that_was_changed_recently_is_kept(root: Path) -> None:
    permit = Permit([f"file://{root}"])
    grant = permit.grant(f"file://{root}/t/f")
    assert FOLDERS.delete_all([grant], permit, changed_before=1) == {grant.location: CHANGED}


@pytest.mark.parametrize(
    ("location", "allowed"),
    [
        ("s3://bucket/w/t/f", True),
        ("s3a://bucket//w/t/f", True),
        ("S3N://Bucket/w/t%2Ff", True),
        ("s3://other/w/t/f", False),
        ("s3://bucket/w", False),
        ("s3://bucket/wide/f", False),
        ("s3://bucket/w/../x/f", False),
        ("s3://bucket/w/%2e%2e/x/f", False),
        ("s3://bucket/w/%252e%252e/x/f", False),
        ("s3://bucket/x%2F..%2Fw/f", False),
        ("gs://bucket/w/t/f", False),
        ("file:///w/t/f", False),
        ("/w/t/f", False),
    ],
)
def test_the_path_of_a_file_in_a_bucket_decides_whether_it_lies_below_a_folder(
    location: str, allowed: bool
) -> None:
    assert (Permit(["s3://bucket/w"], StoreFiles()).may(location) is not None) == allowed


def test_objects_of_any_store_in_a_bucket_are_kept() -> None:
    permit = Permit(["s3://bucket/w"], StoreFiles())
    for key in (
        object_key("5c3f0a12b4d6e000", ObjectKey(77, 0)),
        pack_key("5c3f0a12b4d6e000", PackRange(2, 99)),
        reference_key("5c3f0a12b4d6e000", "catalogs/heads/main"),
    ):
        assert permit.may(f"s3://bucket/w/stores/{key}") is None, key
        assert permit.may(f"s3://bucket/w/t/data/{key}/f.parquet") is not None, key
    assert permit.may("s3://bucket/w/objects/data/00000-1.parquet") is not None


@pytest.mark.parametrize(
    ("store", "location", "held"),
    [
        ("sqlite:///w/c.db", "/w/c.db", True),
        ("sqlite:///w/c.db", "file:/w//C.DB-WAL", True),
        ("sqlite:///w/c.db", "file:///w/c%2Edb-shm", True),
        ("sqlite:///w/c.db", "/w/t/../c.db-journal", True),
        ("sqlite:///w/caf\u00e9.db", "/w/cafe\u0301.db", True),
        ("sqlite:///w/c.db", "/w/c.db2", False),
        ("sqlite:///w/c", "/w/customers/f", False),
        ("rocksdb:///w/r", "/w/r/000001.sst", True),
        ("rocksdb:///w/r", "/w/r2/000001.sst", False),
        ("file:///w/s", "file:///w/s/objects/x", True),
        ("s3://b/p", "s3a://b/p/objects/x", True),
        ("s3://b/p", "s3://alias-of-b//p/references/x", True),
        ("s3://b/p", "s3://b/p/%6Fbjects/x", True),
        ("s3://b", "s3://b/tested/x", True),
        ("s3://b/p", "s3://b/p/t/data/x", False),
        ("az://c/p", "abfss://c@account.dfs.core.windows.net/p/objects/x", True),
        ("lmdb:///w/l", "/w/l/data.mdb", True),
        ("lmdb:///w/l", "/w/l-lock", True),
        ("postgresql://host/w", "/w/x", False),
        ("memory:w", "/w", False),
    ],
)
def test_files_of_a_store_are_recognized_in_every_spelling(
    store: str, location: str, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUILT_IN, "lmdb", Database("a_module_that_says_nothing_of_its_files", "path"))
    files = pickle.loads(pickle.dumps(StoreFiles.of([StoreURI.parse(store)])))
    assert files.holds(location) == held


@pytest.mark.parametrize(
    "path", ["/%61/b", "/%2561/b", "/%25252561/b", "/%2525252525252561/b", "/%2%35%36%31/b"]
)
def test_escapes_are_decoded_until_none_is_left(path: str) -> None:
    assert normal_path(path) == "/a/b"


def test_a_hadoop_checksum_is_deleted_with_its_file_unless_it_is_a_store_or_a_link(root: Path) -> None:
    for name in ("a", "b", "c"):
        (root / name).touch()
    (root / ".a.crc").touch()
    (root / ".b.crc").touch()
    (root / ".c.crc").symlink_to(root.parent / "outside" / "f")
    permit = Permit([str(root)], StoreFiles.of([StoreURI.parse(f"sqlite://{root}/.b.crc")]))
    assert FOLDERS.delete_all([permit.grant(f"{root}/{name}") for name in "abc"], permit) == {}
    assert {file.name for file in root.iterdir() if not file.is_dir()} == {".b.crc", ".c.crc"}
    assert (root.parent / "outside" / "f").exists()


def test_only_empty_folders_below_a_location_are_removed_and_none_through_a_link(root: Path) -> None:
    (root / "t" / "a" / "b").mkdir(parents=True)
    (root / "t" / "a" / "b" / "f").touch()
    (root.parent / "outside" / "empty").mkdir()
    permit = Permit([str(root)], follow_links=True)
    gone = [permit.grant(f"{root}/t/a/b/f"), permit.grant(f"{root}/t/f")]
    assert FOLDERS.delete_all(gone, permit) == {}
    (root / "t" / "a" / "b").rmdir()
    (root / "t" / "a" / "b").symlink_to(root.parent / "outside" / "empty")
    FOLDERS.remove_empty(f"file://{root}/t", gone, permit)
    assert (root.parent / "outside" / "empty").is_dir()
    (root / "t" / "a" / "b").unlink()
    FOLDERS.remove_empty(f"file://{root}/t", gone, permit)
    assert not (root / "t").exists()
    assert (root / "u" / "f").exists()


@pytest.mark.parametrize(
    ("store", "folder", "around"),
    [
        ("s3://bucket/p", "s3a://bucket/", True),
        ("s3://bucket/p", "s3://bucket/p", True),
        ("s3://bucket/p", "s3://bucket/p/objects/x", True),
        ("s3://bucket", "s3://bucket/warehouse", False),
        ("s3://bucket/p", "s3://bucket/warehouse", False),
        ("s3://bucket/p", "s3://other", False),
        ("az://c/p", "abfss://c@account.dfs.core.windows.net/", True),
        ("sqlite:///w/c.db", "s3://bucket", False),
        ("sqlite:///w/c.db", "/", True),
        ("sqlite:///w/c.db", "file:/w//", True),
        ("sqlite:///w/c.db", "/w/x", False),
        ("postgresql://host/w", "/w", False),
    ],
)
def test_a_store_in_a_folder_is_detected_for_every_kind_of_store(
    store: str,
    folder: str,
    around: bool,
) -> None:
    assert is_around(StoreURI.parse(store), folder) == around
