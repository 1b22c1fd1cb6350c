"""Requests to an object store with the library obstore, and the translation of the library's errors.

obstore retries idempotent requests: reads, listings, writes of immutable rows, and deletes. A conditional PUT is sent
once: if the PUT succeeded but its answer was lost, a retry would be refused. It is sent again only if it never left
this machine, because no connection could be made.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

import obstore
from obstore import exceptions

from polaris_spark.backends.chunks import chunks
from polaris_spark.backends.objectstore.conditions import refuse_without_conditions
from polaris_spark.backends.objectstore.requests import AT_ONCE, Mark, Requests
from polaris_spark.backends.objectstore.settings import Settings
from polaris_spark.errors import OutcomeUnknownError, PolarisError, StateError, StoreURIError, TryAgainError

T = TypeVar("T")

_ERRORS: Final = (exceptions.BaseError, OSError, NotImplementedError)
_CHANGED: Final = (
    exceptions.AlreadyExistsError,
    exceptions.PreconditionError,
    exceptions.NotModifiedError,
)
_ABSENT: Final = frozenset({"", "NoSuchKey", "BlobNotFound"})
_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound"})
_WRONG: Final = frozenset(
    {"AuthorizationHeaderMalformed", "InvalidBucketName", "InvalidRegionName", "PermanentRedirect"}
)
_CREDENTIALS: Final = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "XAdminUserNotFound"})
_CODE: Final = re.compile(r"<Code>([A-Za-z]+)</Code>")
_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})")
_KIND: Final = re.compile(r"kind: ([A-Za-z]+)")
_METADATA: Final = re.compile(r"performing [A-Z]+ http://(169\.254\.169\.254|metadata\.google\.internal)[:/]")

_CLOCK: Final = "clock"
"""Key of an empty object. It is written only to read the time that the object store records for the write."""

_used_by: int | None = None


class CloudRequests(Requests):
    """Sends requests to one bucket."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.where, settings.connections)
        self._settings = settings
        third = timedelta(milliseconds=settings.timeout / 3)
        client = {"timeout": third, "connect_timeout": min(third, timedelta(seconds=5))}
        pauses = {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=2)}
        patient = {"max_retries": 8, "retry_timeout": 2 * third, "backoff": pauses}
        self._patient = settings.open(client, patient)
        self._once = settings.open(client, {"max_retries": 0, "retry_timeout": third})

    def setup(self) -> None:
        """Test whether the store implements conditional writes. The test is made once for each endpoint and bucket.

        Raises:
            StoreURIError: the store does not implement conditional writes correctly.
            StateError: the bucket does not exist, or the credentials are not sufficient.
        """
        refuse_without_conditions(self, self._settings)

    def get(self, key: str) -> tuple[bytes, Mark] | None:
        return self._run(lambda: self._get(key), f"reading {key!r}", absent=True)

    def put(self, key: str, body: bytes) -> None:
        self._run(lambda: obstore.put(self._patient, key, body), f"writing {key!r}", writes=True)

    def put_if(self, key: str, body: bytes, mark: Mark | None) -> Mark | None:
        mode: Any = "create" if mark is None else mark
        deadline, pause = time.monotonic() + self._settings.timeout / 3_000, 0.02
        while True:
            try:
                return self._run(
                    lambda: _mark(obstore.put(self._once, key, body, mode=mode)),
                    f"writing {key!r}",
                    writes=True,
                )
            except _ChangedError:
                return None
            except TryAgainError:
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def now_ms(self) -> int | None:
        """Write an object, and return the time that the object store records for the write, in milliseconds since
        1970."""
        self.put(_CLOCK, b"")
        found = self._run(lambda: obstore.get(self._once, _CLOCK), f"reading {_CLOCK!r}")
        return int(found.meta["last_modified"].timestamp() * 1_000)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, in bulk if the store supports it. Missing objects are not an error."""
        for chunk in chunks(keys, AT_ONCE):
            self._delete(chunk)

    def _delete(self, keys: Sequence[str]) -> None:
        try:
            self._run(
                lambda: obstore.delete(self._patient, list(keys)),
                f"deleting {len(keys)} objects",
                writes=True,
            )
        except _AbsentError:  # from stores without bulk deletes; some keys may not be deleted yet
            self.each(self._delete_one, keys)

    def pages(self, prefix: str) -> Iterator[Sequence[tuple[str, int]]]:
        pages = iter(self._run(lambda: obstore.list(self._patient, prefix, chunk_size=AT_ONCE), "listing"))
        while page := self._run(lambda: next(pages, None), f"listing {prefix!r}"):
            yield [(meta["path"], meta["size"]) for meta in page]

    def folders(self, prefix: str) -> list[str]:
        found = self._run(lambda: obstore.list_with_delimiter(self._patient, prefix), f"listing {prefix!r}")
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"])

    def _get(self, key: str) -> tuple[bytes, Mark]:
        found = obstore.get(self._patient, key)
        return bytes(found.bytes()), _mark(found.meta)

    def _delete_one(self, key: str) -> None:
        with contextlib.suppress(_AbsentError):
            self._run(lambda: obstore.delete(self._patient, key), f"deleting {key!r}", writes=True)

    def _run(self, function: Callable[[], T], doing: str, *, writes: bool = False, absent: bool = False) -> T:
        self.refuse_if_unusable()
        try:
            return function()
        except _CHANGED:
            raise _ChangedError(
                f"{self._settings.where}: {doing}: another writer changed the object; try again"
            ) from None
        except _ERRORS as error:
            explained = self._explained(error, doing, writes=writes)
            if absent and isinstance(explained, _AbsentError):
                return None  # type: ignore[return-value]  # callers that pass `absent` expect None
            raise explained from None  # the library's text includes signatures and pages of internal state

    def _explained(self, error: Exception, doing: str, *, writes: bool) -> PolarisError:
        text = str(error)
        code, status, kind = (_first(pattern, text) for pattern in (_CODE, _STATUS, _KIND))
        where, said = (
            self._settings.where,
            ", ".join(filter(None, (code, status, kind))) or text.partition("\n")[0][:200],
        )
        if _METADATA.search(text.partition("\n")[0]):
            return TryAgainError(
                f"{where}: no user and password are given, and this machine's credential service fails ({said}); "
                "nothing was changed; give the URI a user, and set store.password, or check the service"
            )
        if code in _NO_BUCKET:
            return StateError(
                f"the bucket of {where} does not exist: create the bucket, or check its name and the endpoint"
            )
        if isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)) or (
            code in _CREDENTIALS
        ):
            return StateError(
                f"{where} refused {doing} ({said}): check the access key, its secret and its permissions to get, "
                "put, list and delete objects there"
            )
        if isinstance(error, (exceptions.NotFoundError, FileNotFoundError)) and code in _ABSENT:
            return _AbsentError(f"{where}: {doing} failed: the object does not exist")
        if isinstance(error, NotImplementedError) or status == "501":
            return StoreURIError(
                f"{where} cannot hold a catalog: it has no conditional writes ({said}); use a service that "
                "supports them, or a database"
            )
        if code in _WRONG or status in ("301", "307"):
            return StoreURIError(
                f"{where} rejected the request ({said}): check the bucket's name, the endpoint and the region"
            )
        if kind == "Connect" and not status:  # with a status, a server answered and quotes another failure
            return TryAgainError(f"{where} cannot be reached ({doing}); nothing was changed")
        if writes:
            return OutcomeUnknownError(
                f"{where}: {doing} failed ({said}); the change may or may not have been made"
            )
        return TryAgainError(f"{where}: {doing} failed ({said}); nothing was changed")

    def refuse_if_unusable(self) -> None:
        global _used_by
        super().refuse_if_unusable()
        if _used_by is None:
            _used_by = os.getpid()
        elif _used_by != os.getpid():
            raise StateError(
                f"{self._settings.where} cannot be used in this process, which was forked from one that used an "
                "object store: the library's threads do not exist here; start processes with 'spawn', or fork "
                "before the first use of an object store"
            )


class _ChangedError(TryAgainError):
    """The object is not in the state that a request requires. The request is either a conditional PUT, or a GET by
    which the library continues an interrupted read."""


class _AbsentError(PolarisError):
    """The object does not exist."""


def _mark(answer: Any) -> Mark:
    return {name: answer[name] for name in ("e_tag", "version") if answer[name] is not None}


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""
