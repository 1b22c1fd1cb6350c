"""Translation of RocksDB's errors. The driver raises only `Exception`, so kinds of errors are recognized by their
text."""

from __future__ import annotations

from polaris_spark.errors import (
    CorruptionError,
    PolarisError,
    StateError,
    StorageFullError,
    StoreURIError,
    TryAgainError,
)


class WrittenElsewhereError(StateError):
    """This process cannot write to the store, because another process is the store's writer."""


def locked(error: Exception) -> bool:
    """Whether an error of RocksDB means that another writer has locked the store."""
    return "lock" in str(error) and "/LOCK" in str(error)


def full(error: Exception) -> bool:
    """Whether an error of RocksDB means that the disk is full."""
    return any(words in str(error) for words in ("No space left", "File too large", "quota exceeded"))


def written_elsewhere(where: str) -> WrittenElsewhereError:
    """Return the error to raise if this process cannot write because another process is the store's writer."""
    return WrittenElsewhereError(
        f"{where} is being written by another process, and only one process can write to a rocksdb: store; this "
        "process can only read it: write from the other process, end it first, or use a database server"
    )


def replaced(where: str) -> StateError:
    """Return the error to raise if the store was removed or replaced while this process had it open."""
    return StateError(
        f"{where} was removed or replaced while this process had it open: end the processes that use it, then try "
        "again"
    )


def explained(where: str, error: Exception) -> PolarisError:
    """Return the error of this package for an error of RocksDB in an idempotent operation."""
    text = str(error)
    if locked(error) and "by current process" in text:
        return replaced(where)
    if locked(error):
        return written_elsewhere(where)
    if full(error):
        return StorageFullError(f"the disk of {where} is full; free space, then try again")
    if "Permission denied" in text or "Read-only file system" in text:
        return StoreURIError(f"{where} cannot be used by this process: {text}")
    if text.startswith("Corruption"):
        return CorruptionError(f"{where} is damaged: {text}")
    return TryAgainError(f"{where} failed: {text}")
