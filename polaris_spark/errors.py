"""All errors that polaris_spark raises. Their classes tell the caller what to do about them.

```
PolarisError
├── InputError                the request cannot be carried out as it was written: change it
│   ├── StoreURIError         a store URI is malformed or has an unknown scheme
│   │   └── NoStoreError      a database or directory contains no store
│   ├── MissingLibraryError   a driver library is not installed; the message names the extra
│   ├── ObjectTooLargeError   a row, key or object is over its size limit
│   └── SourceError           a catalog or tree to import from cannot be opened or listed
├── StateError                the store or the realm is not in a state that allows the request
│   ├── RealmStateError       the realm does not exist or is not ACTIVE
│   │   └── RealmMovedError   the realm was moved to another store; the message names it
│   ├── NewerFormatError      a newer release wrote the row or store
│   ├── ReferenceGoneError    a reference was dropped or never existed: read the list of references again
│   ├── HistoryTrimmedError   the commit is below the history floor: its history was trimmed
│   ├── HistoryReplacedError  a commit is not in the history any more, after a recovery
│   ├── BeforeHistoryError    the time or commit is before the first commit
│   └── TaskLostError         this process no longer holds the lease of its task
├── CorruptionError           a row is missing or unreadable; the message names its key
│   ├── MissingObjectError    the row does not exist
│   └── WrongTypeError        the row has another type than the pointer to it requires
├── UnreadableFileError       a file that a snapshot refers to cannot be read
│   └── MissingFileError      the file does not exist
├── ClockError                this machine's clock is wrong or cannot be confirmed
├── TryAgainError             nothing was changed; the same request may succeed later
│   ├── TaskRunningError      another process runs a task of this kind; the message names it
│   ├── UnwritableFileError   a file that a change must write cannot be written
│   └── StorageFullError      the database or the disk for a file has no space left
│       └── FileStorageFullError  the disk for a file is full; also an UnwritableFileError
└── OutcomeUnknownError       a write may have happened, or may still happen
```
Errors of the catalog, such as a missing table or a failed requirement, have a type and a status of the REST error
model. Their classes are in the tree below `RequestError`.

```
PolarisError
└── RequestError              status and type of the Iceberg REST error model
    ├── BadRequestError, CatalogNotEmptyError            400
    ├── NotAuthorizedError         401
    ├── ForbiddenError, ProtectedBranchError, CheckFailedError                    403
    ├── NoSuchNamespaceError, NoSuchTableError, NoSuchViewError, NotFoundError    404
    ├── UnsupportedOperationError  406
    ├── RequestTimeoutError        408
    ├── AlreadyExistsError, NamespaceNotEmptyError, CommitFailedError,
    │   MergeConflictError         409
    ├── GoneError                  410
    ├── RequestTooLargeError       413
    ├── UnsupportedMediaTypeError  415
    ├── UnprocessableError         422
    └── TooManyRequestsError       429
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
    """A database or directory contains no store, although it could contain one."""

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
    """The store, or an object in it, is not in a state that allows the request."""


class RealmStateError(StateError):
    """The realm does not exist or is not ACTIVE."""


class RealmMovedError(RealmStateError):
    """The realm was moved to another store; the message names it."""


class NewerFormatError(StateError):
    """A newer release wrote a row or store, and this release cannot use or rewrite it."""


class ReferenceGoneError(StateError):
    """The reference (the row that points to the newest commit of a branch) was dropped or never existed. A caller that
    expects the reference to exist reads the list of references again."""


class HistoryTrimmedError(StateError):
    """The requested commit is below the history floor, which is the oldest commit that its reference still keeps."""


class HistoryReplacedError(StateError):
    """A commit that a reader has read is not in the history of its reference any more, because the reference was
    recovered to an older state, or set to another commit."""


class BeforeHistoryError(StateError):
    """The requested time or commit is before the first commit of its reference. The history is complete, but nothing
    existed yet."""


class TaskLostError(StateError):
    """This process no longer holds the lease of its task, of which only one may run at a time. The lease was released,
    or it expired and another process took the task over."""


class CorruptionError(PolarisError):
    """A row that must exist is missing, or cannot be decoded; the message names its key."""


class MissingObjectError(CorruptionError):
    """A row that must exist is missing. The database lost the row, or a sweep (garbage collection) deleted it although
    a slow reader still needed it."""


class WrongTypeError(CorruptionError):
    """The type of a row differs from the type that the pointer to the row requires. `id` is the object's id, and
    `found` is the name of the row's type."""

    def __init__(self, message: str, *, id: int, found: str) -> None:
        super().__init__(message)
        self.id = id
        self.found = found


class UnreadableFileError(PolarisError):
    """A file of a table or view cannot be read, or is of an unexpected kind. `location` is its location."""

    def __init__(self, message: str, *, location: str) -> None:
        super().__init__(message)
        self.location = location

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (type(self), str(self), self.location)


class MissingFileError(UnreadableFileError):
    """A file of a table or view, such as a metadata file, a manifest or a data file, does not exist."""


def _unpickled(cls: type[UnreadableFileError], message: str, location: str) -> UnreadableFileError:
    return cls(message, location=location)


class ClockError(PolarisError):
    """This machine's clock differs from the database's clock, is behind a time that was stored in the database, has
    jumped ahead, or cannot be confirmed."""


class TryAgainError(PolarisError):
    """Nothing was changed, and the same request may succeed later. Causes are contention, a full queue, a deadline that
    has passed, and temporary failures."""


class TaskRunningError(TryAgainError):
    """Another process runs a task of this kind, and only one may run at a time. The message names the process and the
    end of its lease."""


class UnwritableFileError(TryAgainError):
    """A file that a change must write cannot be written. The cause may be temporary, or a bucket or a permission may be
    missing."""


class StorageFullError(TryAgainError):
    """The database, or the disk for a file, has no space left. Nothing was changed. The failed write is not retried."""


class FileStorageFullError(StorageFullError, UnwritableFileError):
    """The disk for a file that a change must write is full. Changes of tables whose files are on other disks may
    succeed."""


class OutcomeUnknownError(PolarisError):
    """A write was sent and its outcome is unknown: it may have happened or may still happen."""


class RequestError(PolarisError):
    """An error of the catalog protocol. `status` is the HTTP status, and `type` is the type in the error model of the
    Iceberg REST specification."""

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


class ProtectedBranchError(ForbiddenError):
    """A branch is protected: only merges, reverts and cherry-picks may change it, and it must not be moved or dropped.
    Nothing was changed."""


class CheckFailedError(ForbiddenError):
    """A check of a protected branch does not hold in the merged state, or cannot be evaluated. Nothing was changed. The
    message names each check, and says why."""


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


class CatalogNotEmptyError(BadRequestError):
    """A catalog that contains namespaces is dropped only if the request says so. Nothing was changed."""


class CommitFailedError(RequestError):
    """Nothing was changed. The newest state does not meet a requirement of the commit, or a temporary failure prevented
    the commit of a table's or view's updates (`rest.table_routes.commit_updates`)."""

    status = 409
    type = "CommitFailedException"


class MergeConflictError(RequestError):
    """Two states of a catalog cannot be merged, because both sides changed the same thing in different ways. Nothing
    was changed. The message names each conflict."""

    status = 409
    type = "MergeConflictException"


class GoneError(RequestError):
    """The requested object existed, but is no longer kept."""

    status = 410
    type = "GoneException"


class RequestTooLargeError(RequestError):
    status = 413
    type = "RequestTooLargeException"


class UnsupportedMediaTypeError(RequestError):
    status = 415
    type = "UnsupportedMediaTypeException"


class UnprocessableError(RequestError):
    status = 422
    type = "UnprocessableEntityException"


class TooManyRequestsError(RequestError):
    """Too many logins failed. `retry_after` is the time after which the next attempt is allowed, in seconds."""

    status = 429
    type = "TooManyRequestsException"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after
