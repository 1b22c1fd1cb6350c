"""Bare swaps on an object store, by obstore: a PUT with `If-Match` and the ETag of the client's last PUT."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import obstore
from obstore import exceptions

from benchmarks.bare import REALM
from polaris_spark.backends.base import ReferenceRow
from polaris_spark.backends.objectstore import keys
from polaris_spark.backends.objectstore.keys import StoredReference
from polaris_spark.backends.objectstore.settings import Settings
from polaris_spark.store_uris import StoreURI

_TIMEOUT = timedelta(seconds=10)


def open_bare(uri: str) -> BareObjectStore:
    """Open the store of a URI that may contain a password."""
    return BareObjectStore(uri)


class BareObjectStore:
    """A store with one obstore client for all threads, without retries."""

    def __init__(self, uri: str) -> None:
        parsed = StoreURI.parse(uri)
        password = {} if parsed.password is None else {"password": parsed.password}
        settings = Settings.parse(parsed, {**parsed.options, **password})
        self._store = settings.open({"timeout": _TIMEOUT}, {"max_retries": 0, "retry_timeout": _TIMEOUT})

    def client(self) -> _Client:
        """Return a client on the shared obstore client, which has a pool of connections."""
        return _Client(self._store)

    def close(self) -> None:
        """Do nothing: obstore has no method to close a store."""


class _Client:
    def __init__(self, store: Any) -> None:
        self._store = store
        self._tags: dict[tuple[str, bytes], str | None] = {}
        """ETags by name and version."""

    def swap(self, name: str, expected: bytes, new: ReferenceRow) -> bool:
        if (name, expected) not in self._tags and self.version(name) != expected:
            return False
        tag = self._tags.pop((name, expected))
        body = keys.encode_reference(StoredReference.of(REALM, name, new))
        try:
            put = obstore.put(self._store, keys.reference_key(REALM, name), body, mode={"e_tag": tag})
        except (exceptions.PreconditionError, exceptions.AlreadyExistsError):
            return False
        self._tags[name, new.version] = put["e_tag"]
        return True

    def version(self, name: str) -> bytes:
        found = obstore.get(self._store, keys.reference_key(REALM, name))
        version = keys.decode_reference(bytes(found.bytes()), name).version
        assert version is not None
        self._tags.clear()
        self._tags[name, version] = found.meta["e_tag"]
        return version
