"""Test cases of the storage contract for scans in splits, and for dropping a realm."""

from __future__ import annotations

import pickle

import pytest

from polaris_spark.backends.arrow import BATCH_BYTES
from polaris_spark.backends.base import MAX_ROW_BYTES, Backend, ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.errors import StateError
from polaris_spark.testing.processes import in_processes, in_threads, rows, scan_of_store
from polaris_spark.testing.stores import MAX_ID, TABLES, StoreCases, row
from polaris_spark.testing.waiting import until_it_works


class ScanCases(StoreCases):
    """Test cases for reading a whole store in parallel, and for dropping a realm."""

    @pytest.mark.parametrize("n", [1, 3, 16])
    def test_splits_cover_every_row_once(self, backend: Backend, n: int) -> None:
        objects = {(f"r{id % 3}", id * 1_000, part, b"%d" % id) for id in range(120) for part in range(2)}
        for realm, id, part, value in objects:
            backend.write_objects(realm, [ObjectRow(id, part, value)])
        references = {(f"r{i % 3}", f"name {i}", *row(b"%d" % i)) for i in range(60)}
        for realm, name, version, value in references:
            backend.insert_reference(realm, name, ReferenceRow(version, value))
        for realms in (None, ["r0", "r1", "r2", "none"], ["r1"], ["none"]):
            wanted = {"r0", "r1", "r2"} if realms is None else set(realms)
            found = rows(backend, backend.splits("objects", realms, n))
            assert sorted(found) == sorted(r for r in objects if r[0] in wanted)
            found = rows(backend, backend.splits("references", realms, n))
            assert sorted(found) == sorted(r for r in references if r[0] in wanted)

    def test_the_rows_of_a_large_realm_are_spread_over_splits(self, backend: Backend) -> None:
        sizes = (
            40_000,
            *[100] * 11,
        )  # so large that a store that groups small rows needs several groups
        backend.write_objects("realm", [ObjectRow(id << 20, 0, b"x" * sizes[id % 12]) for id in range(3_000)])
        splits = backend.splits("objects", ["realm"], 6)
        counts = [len(rows(backend, [split])) for split in splits]
        assert sum(counts) == 3_000
        assert max(counts) < 3_000
        assert len(splits) <= 24

    def test_many_references_of_one_realm_are_all_scanned(self, backend: Backend) -> None:
        """The realm has more references than one page of a scan can contain, and no objects."""
        written = [(f"name {number:04}", row(b"%d" % number)) for number in range(1_100)]

        def insert(worker: int) -> None:
            for name, new in written[worker::8]:
                assert backend.insert_reference("realm", name, new) == Swapped()

        in_threads(8, insert)
        found = rows(backend, backend.splits("references", None, 2))
        assert sorted(found) == [("realm", name, *new) for name, new in written]

    def test_an_empty_store_scans_to_nothing(self, backend: Backend) -> None:
        for table in TABLES:
            assert rows(backend, backend.splits(table, None, 4)) == []

    def test_ids_at_both_ends_are_scanned(self, backend: Backend) -> None:
        ids = [0, 1, MAX_ID - 1, MAX_ID]
        backend.write_objects("realm", [ObjectRow(id, 0, b"x") for id in ids])
        assert sorted(found[1] for found in rows(backend, backend.splits("objects", None, 4))) == ids  # type: ignore[type-var]  # ids are integers

    def test_record_batches_have_the_documented_columns(self, backend: Backend) -> None:
        backend.write_objects("realm", [ObjectRow(1, 0, b"x")])
        backend.insert_reference("realm", "name", row())
        types = {}
        for table in TABLES:
            for split in backend.splits(table, None, 1):
                for batch in backend.scan(split):
                    types[table] = {field.name: str(field.type) for field in batch.schema}
        assert types["objects"] == {"realm": "string", "id": "int64", "part": "int32", "value": "binary"}
        assert types["references"] == {
            "realm": "string",
            "name": "string",
            "version": "binary",
            "value": "binary",
        }

    def test_sizes_and_starts_are_those_of_the_rows(self, backend: Backend) -> None:
        values = [b"", b"a", b"ab", b"abc", b"abcd" * 1_000, bytes(MAX_ROW_BYTES)]
        rows = [ObjectRow(id, part, values[(id + part) % 6]) for id in range(2_500) for part in range(2)]
        rows = [row for row in rows if len(row.value) < 5_000 or row.id < 20]
        backend.write_objects("realm", rows)
        found = {}
        for split in backend.splits("objects", ["realm"], 3):
            for batch in backend.scan_sizes(split, 3):
                for one in batch.to_pylist():
                    found[one["id"], one["part"]] = (one["realm"], one["size"], one["start"])
        assert found == {(row.id, row.part): ("realm", len(row.value), row.value[:3]) for row in rows}

    def test_splits_are_picklable_and_can_be_scanned_again(self, backend: Backend) -> None:
        backend.write_objects("realm", [ObjectRow(id, 0, b"x") for id in range(50)])
        splits = backend.splits("objects", None, 4)
        copies = pickle.loads(pickle.dumps(splits))
        assert rows(backend, copies) == rows(backend, splits)
        assert all(len(pickle.dumps(split)) < 10_000 for split in splits)

    def test_another_process_scans_a_split_or_says_that_it_cannot(self, uri: str, backend: Backend) -> None:
        backend.write_objects("realm", [ObjectRow(id, 0, b"x") for id in range(50)])
        splits = backend.splits("objects", None, 2)
        arguments = [(uri, split) for split in splits]
        if backend.scope == "process":
            with pytest.raises(StateError):
                in_processes(scan_of_store, arguments)
        else:
            found = [r for part in in_processes(scan_of_store, arguments) for r in part]
            assert sorted(found) == [("realm", id, 0, b"x") for id in range(50)]

    def test_writes_and_deletes_during_a_scan_leave_the_other_rows_alone(self, backend: Backend) -> None:
        backend.write_objects("realm", [ObjectRow(id * 10, 0, b"x" * 500) for id in range(4_000)])
        kept = {id * 10 for id in range(4_000) if id % 2}
        seen: list[int] = []
        for split in backend.splits("objects", ["realm"], 2):
            for number, batch in enumerate(backend.scan(split)):
                seen += batch.column("id").to_pylist()
                gone = [ObjectKey(id * 10) for id in range(0, 4_000, 2) if id % 16 == number * 2]
                backend.delete_objects("realm", gone)
                backend.write_objects(
                    "realm", [ObjectRow(id * 10 + 5, 0, b"new") for id in range(number, 4_000, 97)]
                )
        assert kept <= set(seen)
        assert len(seen) == len(set(seen))

    def test_references_that_are_swapped_during_a_scan_are_found_once(self, backend: Backend) -> None:
        large = bytes(MAX_ROW_BYTES)  # a batch of 16 MiB, the maximum, holds 47 of these values
        current = {f"name {i:03}": row(large) for i in range(60)}
        versions = {name: {new.version} for name, new in current.items()}

        def insert(worker: int) -> None:
            for name in list(current)[worker::4]:
                inserted = until_it_works(lambda n=name: backend.insert_reference("realm", n, current[n]))  # type: ignore[misc]  # bound at once
                assert inserted == Swapped() or backend.read_reference("realm", name) == current[name]

        in_threads(4, insert)
        seen: list[tuple[str, bytes]] = []
        number = 0
        for split in backend.splits("references", ["realm"], 1):
            for batch in backend.scan(split):
                seen += zip(batch["name"].to_pylist(), batch["version"].to_pylist(), strict=True)
                for name in list(current)[
                    number % 5 :: 5
                ]:  # some rows before the scan's position, and some after it
                    new = row(b"%d" % number)
                    versions[name].add(new.version)
                    assert backend.swap_reference("realm", name, current[name].version, new) == Swapped()
                    current[name] = new
                number += 1
        assert number > 1, (
            f"{len(seen)} references of {MAX_ROW_BYTES} bytes came in {number} batch; a backend should end a "
            f"batch when it reaches BATCH_BYTES ({BATCH_BYTES} bytes)"
        )
        assert sorted(name for name, _ in seen) == sorted(current)
        assert all(version in versions[name] for name, version in seen)

    def test_many_realms_are_scanned_together_and_apart(self, backend: Backend) -> None:
        realms = [f"realm {i}" for i in range(60)]
        for i, realm in enumerate(realms):
            backend.write_objects(realm, [ObjectRow(i, part, realm.encode()) for part in range(2)])
        everything = [(r, i, part, r.encode()) for i, r in enumerate(realms) for part in range(2)]
        assert sorted(rows(backend, backend.splits("objects", None, 5))) == sorted(everything)
        some = realms[::2]
        found = rows(backend, backend.splits("objects", some, 5))
        assert sorted(found) == sorted(each for each in everything if each[0] in some)

    def test_a_realm_that_is_named_twice_is_scanned_once(self, backend: Backend) -> None:
        backend.write_objects("realm", [ObjectRow(1, 0, b"x")])
        backend.insert_reference("realm", "name", row())
        for table in TABLES:
            assert len(rows(backend, backend.splits(table, ["realm", "realm"], 3))) == 1
            assert rows(backend, backend.splits(table, [], 3)) == []

    def test_absurd_numbers_of_splits_do_no_harm(self, backend: Backend) -> None:
        backend.write_objects("realm", [ObjectRow(1, 0, b"x")])
        backend.insert_reference("realm", "name", row())
        for table in TABLES:
            for n in (0, -1):
                assert len(rows(backend, backend.splits(table, ["realm"], n))) == 1
            assert 1 <= len(backend.splits(table, ["realm"], 10**9)) < 10**5

    def test_a_scan_of_large_rows_comes_in_several_batches(self, backend: Backend) -> None:
        backend.write_objects("realm", [ObjectRow(id, 0, b"x" * MAX_ROW_BYTES) for id in range(60)])
        sizes = [
            batch.nbytes for split in backend.splits("objects", None, 1) for batch in backend.scan(split)
        ]
        assert sum(sizes) >= 60 * MAX_ROW_BYTES
        assert max(sizes) <= 16 * 2**20

    def test_a_realm_is_dropped_alone_or_not_in_bulk(self, backend: Backend) -> None:
        others = ["realm2", "real", "realm/", "realm\x00", "Realm", "realm%", "r_alm"]
        for realm in others:
            backend.write_objects(realm, [ObjectRow(1, 0, b"x")])
            backend.insert_reference(realm, "name", row())
        for realm in ("realm", "realm2"):
            backend.write_objects(
                realm, [ObjectRow(id, part, b"x") for id in range(700) for part in range(2)]
            )
            for number in range(10):
                backend.insert_reference(realm, f"name {number}", row())
        if backend.drop_realm("realm"):
            assert rows(backend, backend.splits("objects", ["realm"], 2)) == []
            assert rows(backend, backend.splits("references", ["realm"], 2)) == []
            assert backend.read_reference("realm", "name 3") is None
            assert backend.read_objects("realm", [ObjectKey(3)]) == {}
            assert backend.insert_reference("realm", "name 3", row()) == Swapped()
        assert len(rows(backend, backend.splits("objects", ["realm2"], 2))) == 1_400
        assert len(rows(backend, backend.splits("references", ["realm2"], 2))) == 11
        assert all(
            backend.read_reference(realm, "name") and backend.read_objects(realm, [ObjectKey(1)])
            for realm in others
        )
