"""Every error that polaris_spark raises, by what the caller can do about it.

```
PolarisError
├── InputError                what was asked cannot be done as asked: change the request
│   ├── StoreURIError         a store URI that names no usable store
│   │   └── NoStoreError      there is no store yet at a place that can hold one
│   ├── MissingLibraryError   a driver library is not installed; the message names the extra
│   ├── ObjectTooLargeError   a row, key or object over its documented size limit
│   └── SourceError           a catalog or tree to import from cannot be opened or listed
├── StateError                the store or the realm is not in a state that allows it
│   ├── RealmStateError       the realm does not exist, or does not serve
│   │   └── RealmMovedError   another store serves it by now; the message says which
│   ├── NewerFormatError      written by a newer release; the message names the version needed
│   ├── ReferenceGoneError    a reference was dropped, or never existed: look again
│   ├── HistoryTrimmedError   the commit lies below the history floor
│   ├── BeforeHistoryError    the point lies before the first commit; the message says when that was
│   └── TaskLostError         the lease of a task ended, and another holder took it over
├── CorruptionError           a row is missing or unreadable; the message names its key
│   ├── MissingObjectError    there is no such row
│   └── WrongTypeError        the row is there, but of another type than what points to it says
├── UnreadableFileError       a manifest or manifest list cannot be read; the message names the file
│   └── MissingFileError      there is no such file
├── ClockError                this machine's clock is wrong, or nothing tells that it is right; the message says why
├── TryAgainError             nothing was changed; the same request may succeed later
│   ├── TaskRunningError      a task of this kind is being run; the message says by whom, and until when
│   ├── UnwritableFileError   a file beside the rows cannot be written now; the message names it
│   └── StorageFullError      no space is left; it may succeed once there is some
│       └── FileStorageFullError  (an UnwritableFileError, too) no space is left for a file beside the rows
└── OutcomeUnknownError       a write may or may not have happened; never guessed
```
Errors of the catalog (no such table, already exists, a failed requirement) carry the REST error model's type and code
and are in the tree below `RequestError`.

```
PolarisError
└── RequestError              status and type of the Iceberg REST error model
    ├── BadRequestError            400
    ├── NotAuthorizedError         401
    ├── ForbiddenError             403
    ├── NoSuchNamespaceError, NoSuchTableError, NoSuchViewError, NotFoundError    404
    ├── UnsupportedOperationError  406
    ├── RequestTimeoutError        408
    ├── AlreadyExistsError, NamespaceNotEmptyError, CommitFailedError             409
    ├── RequestTooLargeError       413
    ├── UnsupportedMediaTypeError  415
    └── UnprocessableError         422
```
"""

from __future__ import annotations


class PolarisError(Exception):
    """Base of all errors of this package."""


class InputError(PolarisError, ValueError):
    """The request cannot be carried out as it was written. Repeating it unchanged would fail, too."""


class StoreURIError(InputError):
    """A store URI is malformed or has an unknown scheme."""


class NoStoreError(StoreURIError):
    """A database or directory contains no store, although it can contain one."""

    def __init__(self, where: str, detail: str = "") -> None:
        """
        Args:
            where: location at which there is no store, without secrets.
            detail: the database's message, if there is one.
        """
        super().__init__(
            f"{where} does not contain a store; open a catalog there with create=true to create one"
            + (f" ({detail})" if detail else "")
        )


class MissingLibraryError(InputError):
    """A backend's driver library is not installed; the message names the extra to install."""


class ObjectTooLargeError(InputError):
    """A key, row or object is over its size limit."""


class SourceError(InputError):
    """A catalog or directory tree to import from cannot be opened, or cannot be listed completely."""


class StateError(PolarisError):
    """The store is not in a state that allows the request."""


class RealmStateError(StateError):
    """The realm does not exist or is not ACTIVE."""


class RealmMovedError(RealmStateError):
    """The realm was moved to another store; the message names it."""


class NewerFormatError(StateError):
    """A newer release wrote a row or store, and this release cannot use or rewrite it."""


class ReferenceGoneError(StateError):
    """The reference was dropped or never existed. A caller that expects the reference reads the registry again."""


class HistoryTrimmedError(StateError):
    """The requested commit is below the history floor of its reference."""


class BeforeHistoryError(StateError):
    """The requested time or commit is before the first commit of its reference. The history is complete, but nothing
    existed yet."""


class TaskLostError(StateError):
    """This process no longer holds the lease of a coordinated task, because the lease was released, or because it
    expired and another holder took the task over."""


class CorruptionError(PolarisError):
    """A row that must exist is missing, or cannot be decoded; the message names its key."""


class MissingObjectError(CorruptionError):
    """A row that must exist is missing: the database lost the row, or a sweep deleted it although a slow reader still
    needed it."""


class WrongTypeError(CorruptionError):
    """A row has another type than the pointer to it requires. `id` is the object's id, and `found` is the name of the
    row's type."""

    def __init__(self, message: str, *, id: int, found: str) -> None:
        super().__init__(message)
        self.id = id
        self.found = found


class UnreadableFileError(PolarisError):
    """A file that a snapshot refers to cannot be read, or is of an unexpected kind. `location` is its location."""

    def __init__(self, message: str, *, location: str) -> None:
        super().__init__(message)
        self.location = location

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (type(self), str(self), self.location)


class MissingFileError(UnreadableFileError):
    """A file that a snapshot refers to does not exist."""


def _unpickled(cls: type[UnreadableFileError], message: str, location: str) -> UnreadableFileError:
    return cls(message, location=location)


class ClockError(PolarisError):
    """This machine's clock differs from the database's clock, is behind the time that the store noted, has jumped
    ahead, or cannot be confirmed."""


class TryAgainError(PolarisError):
    """Nothing was changed, and the same request may succeed later (contention, a full queue, a deadline)."""


class TaskRunningError(TryAgainError):
    """Another holder runs a coordinated task of this kind. The message names the holder and the end of its lease."""


class UnwritableFileError(TryAgainError):
    """A file that belongs to a change cannot be written: perhaps temporarily, perhaps because a bucket or a permission
    is missing."""


class StorageFullError(TryAgainError):
    """The store, or the disk of a file, has no space left. Nothing was changed; the error is raised without retries."""


class FileStorageFullError(StorageFullError, UnwritableFileError):
    """The disk of a file that a change writes is full. Changes of tables whose files are on other disks may succeed."""


class OutcomeUnknownError(PolarisError):
    """A write was sent and its outcome is unknown: it may have happened or may still happen."""


class RequestError(PolarisError):
    """An error of the catalog protocol. `status` is the HTTP status, and `type` is the type in the REST error model."""

    status = 500
    type = "InternalServerError"

    def __init__(self, message: str, *, type: str | None = None) -> None:
        super().__init__(message)
        if type is not None:
            self.type = type


class BadRequestError(RequestError):
    status = 400
    type = "BadRequestException"


class NotAuthorizedError(RequestError):
    status = 401
    type = "NotAuthorizedException"


class ForbiddenError(RequestError):
    status = 403
    type = "ForbiddenException"


class NotFoundError(RequestError):
    status = 404
    type = "NotFoundException"


class NoSuchNamespaceError(NotFoundError):
    type = "NoSuchNamespaceException"


class NoSuchTableError(NotFoundError):
    type = "NoSuchTableException"


class NoSuchViewError(NotFoundError):
    type = "NoSuchViewException"


class UnsupportedOperationError(RequestError):
    status = 406
    type = "UnsupportedOperationException"


class RequestTimeoutError(RequestError):
    """A client did not send its whole request in time; nothing was done."""

    status = 408
    type = "RequestTimeoutException"


class AlreadyExistsError(RequestError):
    status = 409
    type = "AlreadyExistsException"


class NamespaceNotEmptyError(RequestError):
    status = 409
    type = "NamespaceNotEmptyException"


class CommitFailedError(RequestError):
    """Nothing was changed: a requirement failed on the newest head, or an update ran out of time (`commit_updates`)."""

    status = 409
    type = "CommitFailedException"


class RequestTooLargeError(RequestError):
    status = 413
    type = "RequestTooLargeException"


class UnsupportedMediaTypeError(RequestError):
    status = 415
    type = "UnsupportedMediaTypeException"


class UnprocessableError(RequestError):
    status = 422
    type = "UnprocessableEntityException"
