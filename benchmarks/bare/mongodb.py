"""Bare swaps on MongoDB, by PyMongo."""

from __future__ import annotations

from typing import Any

from pymongo import MongoClient, WriteConcern
from pymongo.collection import Collection

from benchmarks.bare import REALM
from polaris_spark.backends.base import ReferenceRow


def open_bare(uri: str) -> BareMongoDB:
    """Open the store of a URI that PyMongo also accepts."""
    return BareMongoDB(uri)


class BareMongoDB:
    """A store with one PyMongo client for all threads, with the write concern of the backend."""

    def __init__(self, uri: str) -> None:
        self._client: MongoClient[dict[str, Any]] = MongoClient(uri)
        majority = WriteConcern(w="majority", j=True)
        self._references = self._client.get_default_database(write_concern=majority)["references"]

    def client(self) -> _Client:
        """Return a client on the shared PyMongo client, which has a pool of connections."""
        return _Client(self._references)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()


class _Client:
    def __init__(self, references: Collection[dict[str, Any]]) -> None:
        self._references = references

    def swap(self, name: str, expected: bytes, new: ReferenceRow) -> bool:
        key = {"realm": REALM, "name": name}
        document = {"_id": key, "version": new.version, "value": new.value}
        return self._references.replace_one({"_id": key, "version": expected}, document).matched_count == 1

    def version(self, name: str) -> bytes:
        row = self._references.find_one({"_id": {"realm": REALM, "name": name}})
        assert row is not None
        found: bytes = row["version"]
        return found
