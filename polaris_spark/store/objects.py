"""Immutable objects of one realm, read through the cache and written as rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from polaris_spark import objects
from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow
from polaris_spark.errors import CorruptionError, MissingObjectError, NewerFormatError, WrongTypeError
from polaris_spark.objects import Decoded
from polaris_spark.store.cache import ObjectCache

S = TypeVar("S", bound=msgspec.Struct)
R = TypeVar("R")


class ObjectRows(list[ObjectRow]):
    """Rows of objects, together with the decoded objects to cache once the rows are written."""

    __slots__ = ("decoded",)

    def __init__(self) -> None:
        super().__init__()
        self.decoded: list[tuple[int, Decoded, int]] = []
        """Tuples of id, decoded object, and total size of the object's rows in bytes."""


class ObjectStore:
    """Reader and writer of the objects of one realm of a store. Thread-safe; uses the connections of the backend."""

    def __init__(
        self,
        backend: Backend,
        realm: str,
        cache: ObjectCache,
        *,
        store_key: str,
        revisions: Mapping[str, int] | None = None,
    ) -> None:
        """
        Args:
            backend: where the rows are.
            realm: instance id of the realm.
            cache: shared by all stores of the process.
            store_key: identifies the store in the cache (`StoreURI.key`).
            revisions: the highest revision (version of the encoding) of each object type that writers may use, by type
                name, from the realm record. Types that are not listed are not limited. If an object with a higher
                revision is read, that revision is allowed from then on: the realm was upgraded after this process
                opened it.
        """
        self.backend = backend
        self.realm = realm
        self._cache = cache
        self._store_key = store_key
        self._space = cache.space(store_key, realm)
        self._revisions = dict(revisions or {})
        self._refuses_newer = False
        self._raising = threading.Lock()
        self._allowed: set[type[msgspec.Struct]] = set()
        """Types whose newest revision the realm allows, as far as this process knows. Types are never removed."""

    def of_realm(self, realm: str) -> ObjectStore:
        """Return an `ObjectStore` for reading the objects of a realm of the same store. `realm` is the instance id."""
        if realm == self.realm:
            return self
        other = ObjectStore(self.backend, realm, self._cache, store_key=self._store_key)
        other._refuses_newer = self._refuses_newer
        return other

    def for_deleting(self) -> ObjectStore:
        """Return an `ObjectStore` for reading the same objects, whose methods raise NewerFormatError for objects that a
        newer release wrote. It is used to decide which files to delete, because unknown fields may name files."""
        strict = ObjectStore(self.backend, self.realm, self._cache, store_key=self._store_key)
        strict._refuses_newer = True
        return strict

    def get(self, id: int, cls: type[S]) -> S:
        """Return the object `id`, which must be of type `cls`.

        Raises:
            CorruptionError: the object is missing, of another type, or cannot be decoded.
        """
        found = self._cache.get((self._space, id))
        if found is None:
            found = self.read((id,))[id]
        elif self._refuses_newer:
            objects.refuse_newer(found.header, self.key(id))
        value = found.value
        if type(value) is not cls:
            raise self._wrong_type(id, found, cls)
        return value

    def get_many(self, ids: Collection[int], cls: type[S]) -> dict[int, S]:
        """Return the objects `ids`, by id. They must be of type `cls`. Objects that are not cached take one batched
        read.

        Raises:
            CorruptionError: an object is missing, of another type, or cannot be decoded.
        """
        values: dict[int, S] = {}
        for id, found in self.read(ids).items():
            value = found.value
            if type(value) is not cls:
                raise self._wrong_type(id, found, cls)
            values[id] = value
        return values

    def prefetch(self, ids: Collection[int]) -> None:
        """Read objects into the cache, in one batch; objects that are already cached are skipped. If only one object is
        not cached, nothing is read: `get` will read this object.

        Raises:
            CorruptionError: an object is missing or cannot be decoded.
        """
        missing = [id for id in ids if (self._space, id) not in self._cache]
        if len(missing) > 1:
            self.read(missing)

    def get_for_rewrite(self, id: int, cls: type[S]) -> S:
        """Return the object `id`, of which the caller will write a changed copy.

        Raises:
            NewerFormatError: a newer release wrote the object, and the copy would lose fields that are unknown here.
            CorruptionError: the object is missing, of another type, or cannot be decoded.
        """
        found = self._cache.get((self._space, id)) or self.read((id,))[id]
        self._note_revision(found)
        value = found.value
        if type(value) is cls and found.header.revision <= objects.revision_of(cls):
            return value
        objects.refuse_newer(found.header, self.key(id))
        raise self._wrong_type(id, found, cls)

    def read(self, ids: Collection[int]) -> dict[int, Decoded]:
        """Return the objects `ids` with their headers, by id. Objects that are not cached take one batched read. If
        some of these have several parts (rows), the further parts take a second batched read.

        Raises:
            CorruptionError: an object is missing or cannot be decoded; the message names the realm and the id.
        """
        result: dict[int, Decoded] = {}
        missing: list[int] = []
        for id in ids:
            found = self._cache.get((self._space, id))
            if found is None:
                missing.append(id)
            else:
                result[id] = found
        if missing:
            for id, data in self._read_rows(missing).items():
                result[id] = decoded = objects.decode(data, self.key(id))
                self._note_revision(decoded)
                self._keep(id, decoded, len(data))
        if self._refuses_newer:
            for id, decoded in result.items():
                objects.refuse_newer(decoded.header, self.key(id))
        return result

    def rows(self, values: Iterable[tuple[int, msgspec.Struct]]) -> ObjectRows:
        """Encode objects, given as (id, value), and return their rows; large objects are split into several parts.

        Raises:
            NewerFormatError: the realm does not yet allow a type's revision to be written.
            ObjectTooLargeError: an object points to more objects than a row can list.
        """
        rows = ObjectRows()
        for id, value in values:
            if type(value) not in self._allowed:
                self._refuse_unallowed(value)
            header, data = objects.encode_with_header(value)
            rows += objects.rows_of(id, data)
            rows.decoded.append((id, Decoded(header, value), len(data)))
        return rows

    def allows(self, cls: type[msgspec.Struct]) -> bool:
        """Whether the realm allows the newest revision of an object type to be written."""
        if cls in self._allowed:
            return True
        newest = objects.revision_of(cls)
        return self._revisions.get(objects.type_name(cls), newest) >= newest

    def write(self, values: Collection[tuple[int, msgspec.Struct]]) -> None:
        """Write objects, given as (id, value), durably and cache them. Idempotent.

        Raises:
            NewerFormatError: the realm does not yet allow a type's revision to be written; nothing was written.
            ObjectTooLargeError: an object points to more objects than a row can list; nothing was written.
            TryAgainError, OutcomeUnknownError: the database failed; repeat the call.
        """
        rows = self.rows(values)
        self.backend.write_objects(self.realm, rows)
        self.remember(rows)

    def remember(self, rows: ObjectRows) -> None:
        """Cache the objects of rows that have been written to the database, to save later reads."""
        for id, decoded, row_bytes in rows.decoded:
            self._keep(id, decoded, row_bytes)

    def decoded(self, rows: Iterable[ObjectRow]) -> ObjectRows:
        """Decode the objects of rows that another process has written to the database. Leave out objects that consist
        of several rows.

        Raises:
            CorruptionError: an object cannot be decoded.
        """
        found = ObjectRows()
        for row in rows:
            if row.part == 0 and objects.part_count(row.value, self.key(row.id)) == 1:
                decoded = objects.decode(row.value, self.key(row.id))
                self._note_revision(decoded)
                found.append(row)
                found.decoded.append((row.id, decoded, len(row.value)))
        return found

    def _keep(self, id: int, decoded: Decoded, row_bytes: int) -> None:
        memory = self._cache.footprints.memory_bytes(decoded, row_bytes)
        self._cache.put((self._space, id), decoded, memory)

    def key(self, id: int) -> str:
        """Return the name of an object for error messages: realm and id."""
        return f"{self.realm}/{id}"

    def _read_rows(self, ids: Sequence[int]) -> dict[int, bytes]:
        first = self.backend.read_objects(self.realm, [ObjectKey(id) for id in ids])
        whole: dict[int, bytes] = {}
        further: list[ObjectKey] = []
        for id in ids:
            part_0 = first.get(ObjectKey(id))
            if part_0 is None:
                raise MissingObjectError(f"object {self.key(id)} is missing from the store")
            whole[id] = part_0
            further.extend(ObjectKey(id, part) for part in range(1, objects.part_count(part_0, self.key(id))))
        if further:
            self._join_parts(whole, further)
        return whole

    def _join_parts(self, whole: dict[int, bytes], further: list[ObjectKey]) -> None:
        parts = self.backend.read_objects(self.realm, further)
        pieces: dict[int, list[bytes]] = {}
        for key in further:
            if key not in parts:
                raise MissingObjectError(
                    f"part {key.part} of object {self.key(key.id)} is missing from the store"
                )
            pieces.setdefault(key.id, [whole[key.id]]).append(parts[key])
        for id, joined in pieces.items():
            whole[id] = b"".join(joined)

    def _note_revision(self, found: Decoded) -> None:
        """An object with a newer revision than writers may use shows that the realm was upgraded. Allow writers that
        revision, if this release supports it."""
        name, revision = found.header.type, found.header.revision
        if revision <= self._revisions.get(name, revision) or found.value is None:
            return
        if revision <= objects.revision_of(type(found.value)):
            with self._raising:
                self._revisions[name] = max(revision, self._revisions[name])

    def _refuse_unallowed(self, value: msgspec.Struct) -> None:
        name, newest = objects.type_name(type(value)), objects.revision_of(type(value))
        allowed, revision = self._revisions.get(name, newest), objects.written_revision(value)
        if revision > allowed:
            raise NewerFormatError(
                f"this release writes revision {revision} of objects of type {name!r}, but realm {self.realm} "
                f"allows only revision {allowed}: install this release for every process, run 'polaris-spark "
                "upgrade STORE', and restart the processes"
            )
        if newest <= allowed:  # no value of this type can be refused
            self._allowed.add(type(value))

    def _wrong_type(self, id: int, found: Decoded, cls: type[msgspec.Struct]) -> CorruptionError:
        wanted, name = objects.type_name(cls), found.header.type
        if found.value is None:
            return CorruptionError(
                f"object {self.key(id)} has type {name!r}, which is not installed here, instead of {wanted!r}; "
                "install the release or package that wrote it"
            )
        message = f"object {self.key(id)} has type {name!r} instead of {wanted!r}"
        return WrongTypeError(message, id=id, found=name)


def read_each(
    ids: Collection[int], read: Callable[[Collection[int]], Mapping[int, R]]
) -> dict[int, R | CorruptionError]:
    """Return, by id, the result of `read` for each object, or the error of an object that cannot be read.

    Args:
        read: reads several objects in one batch, and raises CorruptionError if one of them cannot be read. In that
            case, `read` is called again for each object alone.
    """
    try:
        return dict(read(ids))
    except CorruptionError as error:
        if len(ids) == 1:
            return dict.fromkeys(ids, error)
    return {id: found for id in ids for found in read_each((id,), read).values()}
