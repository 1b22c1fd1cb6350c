"""Files of a store that this process has open are never read as files of a table. Closing them would release the
store's locks."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ReferenceRow, Swapped
from polaris_spark.backends.open_files import is_held, open_to_read, opening
from polaris_spark.backends.traces import is_store_folder
from polaris_spark.catalog.files.confinement import Confinement
from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.files.permits import Permit
from polaris_spark.errors import BadRequestError, ForbiddenError, UnreadableFileError
from polaris_spark.jobs.registry import call
from polaris_spark.store_uris import StoreURI
from tests.rest.client import Client, connect, table

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at locks in /proc")

REFUSED = (BadRequestError, ForbiddenError, UnreadableFileError)
OPENED = {"sqlite": ["", "-wal", "-shm"], "rocksdb": ["/LOCK"]}


def locks(files: list[Path]) -> list[str]:
    """The record locks that this process holds on some files.

    They are read from the descriptors: a reading of `/proc/locks` shows a lock twice, or not at all, while other
    processes take and release locks.
    """
    inodes = {str(file.stat().st_ino) for file in files}
    found = []
    for descriptor in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed in the meantime
            lines = [
                line.split()[2:] for line in descriptor.read_text().splitlines() if line.startswith("lock:")
            ]
            found += [
                " ".join(line) for line in lines if line[0] == "POSIX" and line[4].split(":")[2] in inodes
            ]
    return sorted(found)


def plain(file: Path, _: Path) -> str:
    return str(file)


def parent(file: Path, _: Path) -> str:
    return f"{file.parent}/../{file.parent.name}/{file.name}"


def link(file: Path, place: Path) -> str:
    (place / "link").symlink_to(file)
    return str(place / "link")


def hard_link(file: Path, place: Path) -> str:
    (place / "hard").hardlink_to(file)
    return str(place / "hard")


def behind_link(file: Path, place: Path) -> str:
    (place / "behind").symlink_to(file.parent)
    return str(place / "behind" / file.name)


def relative(file: Path, _: Path) -> str:
    return "../" * 30 + str(file)[1:]


SPELLINGS = [plain, parent, link, hard_link, behind_link]


@pytest.fixture(params=OPENED)
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    """A catalog whose store lies below its warehouse."""
    for folder in ("mine", "store"):
        (tmp_path / folder).mkdir()
    catalog = connect(f"{request.param}://{tmp_path}/store/s", tmp_path)
    catalog.namespace("db")
    yield catalog
    catalog.session.close()


@pytest.fixture
def store_files(catalog: Client, tmp_path: Path) -> list[Path]:
    """Return the files on which this process has locks, or may take locks."""
    scheme = catalog.session.connection.uri.scheme
    return [Path(f"{tmp_path}/store/s{ending}") for ending in OPENED[scheme]]


@pytest.mark.parametrize("spell", SPELLINGS)
@pytest.mark.parametrize("confined", [None, False, True])
def test_no_file_of_the_store_is_opened_by_any_name(
    store_files: list[Path], tmp_path: Path, spell: Callable[[Path, Path], str], *, confined: bool | None
) -> None:
    confinement = None if confined is None else Confinement([str(tmp_path)], follow_links=confined)
    before = locks(store_files)
    assert before
    for number, file in enumerate(store_files):
        (tmp_path / "mine" / str(number)).mkdir()
        refuse_to_read(f"file://{spell(file, tmp_path / 'mine' / str(number))}", confinement)
    assert locks(store_files) == before


@pytest.mark.parametrize("scheme", ["", "file:", "file://", "file://host/"])
def test_no_relative_location_leads_to_a_file_of_the_store(
    store_files: list[Path], scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = locks(store_files)
    for file in store_files:
        monkeypatch.chdir(file.parent)
        for name in (relative(file, file), file.name, f"./{file.name}"):
            refuse_to_read(scheme + name, None)
    assert locks(store_files) == before


def refuse_to_read(location: str, confinement: Confinement | None) -> None:
    """Check that no way of reading a location succeeds."""
    files = Files({}, confinement)
    with pytest.raises(REFUSED):
        files.read(location)
    with pytest.raises(REFUSED):
        files.stream(location).close()


def test_a_store_opened_without_a_catalog_is_protected_too(
    catalog: Client, store_files: list[Path], tmp_path: Path
) -> None:
    """The store is open without a catalog, as on executors, and while a catalog is being opened."""
    uri = catalog.session.connection.uri
    catalog.session.close()
    backend = open_backend(uri)
    assert backend.insert_reference("r", "n", ReferenceRow(b"1", b"")) == Swapped()
    before = locks(store_files)
    assert before
    for file in store_files:
        refuse_to_read(f"file://{file}", None)
    assert locks(store_files) == before
    backend.close()
    with opening(str(store_files[0])):
        refuse_to_read(f"file://{store_files[0]}", None)
    assert Files({}).read(f"file://{store_files[0]}") == store_files[0].read_bytes()


def test_requests_and_jobs_that_refer_to_store_files_keep_the_locks(
    catalog: Client, store_files: list[Path], tmp_path: Path
) -> None:
    before = locks(store_files)
    for number, file in enumerate(store_files):
        body = {"name": f"r{number}", "metadata-location": f"file://{file}"}
        assert catalog.send("POST", "v1/namespaces/db/register", body).status == 400
        catalog.create(f"t{number}")
        snapshots = [
            {
                "snapshot-id": id,
                "sequence-number": id,
                "timestamp-ms": 1,
                "manifest-list": f"file://{file}",
                "summary": {"operation": "append"},
                "schema-id": 0,
            }
            for id in (1, 2)
        ]
        ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 2}
        added = [{"action": "add-snapshot", "snapshot": one} for one in snapshots]
        catalog.ok("POST", table(f"t{number}"), {"requirements": [], "updates": [*added, ref]})
    call(catalog.session, "expire", older_than="1 min", retain_last=1)
    call(catalog.session, "remove_orphans", dry_run=False, older_than="2 d")
    assert locks(store_files) == before
    assert all(file.exists() for file in store_files)


def test_a_file_of_the_store_under_the_name_of_a_mark_is_not_opened(
    store_files: list[Path], tmp_path: Path
) -> None:
    before = locks(store_files)
    permit = Permit([f"file://{tmp_path}"])
    for number, file in enumerate(store_files):
        for name in ("POLARIS_SPARK", "format"):
            place = tmp_path / f"{number}{name}"
            place.mkdir()
            (place / name).hardlink_to(file)
            assert not is_store_folder(str(place))
            (place / "x").touch()
            assert permit.may(f"file://{place}/x") is not None
    assert locks(store_files) == before


def test_a_store_file_that_replaces_another_file_at_the_last_moment_keeps_its_locks(
    store_files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "mine" / "f"
    place.write_bytes(b"x")
    before, opened = locks(store_files), os.open

    def swap_and_open(name: str, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        if name == str(place):
            place.unlink()
            place.hardlink_to(store_files[-1])
        return opened(name, flags, *rest, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swap_and_open)
    with pytest.raises(ValueError, match="file of a store"):
        open_to_read(str(place))
    assert locks(store_files) == before


@pytest.mark.parametrize("confined", [None, False, True])
@pytest.mark.parametrize("spell", [link, hard_link])
def test_a_file_that_is_written_does_not_change_the_store_by_another_name(
    store_files: list[Path], tmp_path: Path, spell: Callable[[Path, Path], str], *, confined: bool | None
) -> None:
    confinement = None if confined is None else Confinement([str(tmp_path)], follow_links=confined)
    before, sizes = locks(store_files), [file.stat().st_size for file in store_files]
    for number, file in enumerate(store_files):
        (tmp_path / "mine" / str(number)).mkdir()
        location = f"file://{spell(file, tmp_path / 'mine' / str(number))}"
        with contextlib.suppress(ForbiddenError):
            Files({}, confinement).write_all([(location, b"{}")])
            assert Files({}).read(location) == b"{}"
    assert [file.stat().st_size for file in store_files] == sizes
    assert locks(store_files) == before


def test_dropping_a_table_does_not_write_to_a_file_that_replaced_its_metadata_file(
    catalog: Client, store_files: list[Path], tmp_path: Path
) -> None:
    metadata = catalog.create("t")["metadata"]
    for number, file in enumerate(store_files):
        registered = tmp_path / "mine" / str(number) / "metadata" / "v1.metadata.json"
        registered.parent.mkdir(parents=True)
        own = metadata | {"location": str(registered.parents[1]), "table-uuid": str(uuid.uuid4())}
        registered.write_text(json.dumps(own))
        body = {"name": f"r{number}", "metadata-location": f"file://{registered}"}
        catalog.ok("POST", "v1/namespaces/db/register", body)
        registered.unlink()
        registered.hardlink_to(file)
        catalog.ok("DELETE", table(f"r{number}"))
    catalog.namespace("later")
    catalog.session.close()
    again = connect(str(catalog.session.connection.uri), tmp_path)
    assert again.ok("GET", "v1/namespaces")["namespaces"] == [["db"], ["later"]]
    again.session.close()


def test_a_file_that_is_read_while_a_store_is_opened_in_it_keeps_the_locks(
    catalog: Client, store_files: list[Path]
) -> None:
    uri = catalog.session.connection.uri
    catalog.session.close()
    files = [file for file in store_files if file.exists()]
    streams = [Files({}).stream(f"file://{file}") for file in files]
    backend = open_backend(uri)
    assert backend.insert_reference("r", "n", ReferenceRow(b"1", b"")) == Swapped()
    before = locks(store_files)
    for stream in streams:
        stream.close()
    assert locks(store_files) == before
    backend.close()


def test_files_of_a_store_that_was_never_closed_can_be_read_once_it_is_gone(tmp_path: Path) -> None:
    store = tmp_path / "s"
    backend = open_backend(StoreURI.parse(f"sqlite://{store}"))
    backend.setup()
    assert backend.insert_reference("r", "n", ReferenceRow(b"1", b"")) == Swapped()
    refuse_to_read(f"file://{store}", None)
    del backend
    gc.collect()
    assert Files({}).read(f"file://{store}") == store.read_bytes()


def test_a_forked_child_holds_nothing(store_files: list[Path]) -> None:
    assert is_held(store_files[0].stat())
    child = os.fork()
    if child == 0:
        os._exit(1 if is_held(store_files[0].stat()) else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
