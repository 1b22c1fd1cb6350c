"""Bulk reads by sets of keys, and bulk mutations. Both are divided into chunks within Bigtable's limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from polaris_spark.backends.bigtable.calls import Calls
from polaris_spark.backends.bigtable.failures import RefusedEntryError, is_temporary
from polaris_spark.backends.bigtable.messages import BigtableTable, Cells, Part, merged
from polaris_spark.backends.chunks import chunks, sized

_READ_KEYS: Final = 256  # keys have up to 1,037 bytes; a set of rows is limited to 500 kB
_MUTATED_ROWS: Final = 2_000  # a request is limited to 100,000 mutations
_MUTATED_BYTES: Final = 4 * 2**20


def read(calls: Calls, table: BigtableTable, keys: Sequence[bytes]) -> dict[bytes, Cells]:
    """Return the rows that exist among `keys`, by key."""
    found: dict[bytes, Cells] = {}

    def settle(_: Any, answers: Sequence[Any]) -> None:
        found.update(merged(answers))

    calls.each("ReadRows", map(table.read, chunks(keys, _READ_KEYS)), settle, "reading rows")
    return found


def mutate(
    calls: Calls, table: BigtableTable, changes: Iterable[tuple[bytes, Sequence[Part], int]], doing: str
) -> None:
    """Apply idempotent mutations to rows, and return after the server has acknowledged all of them.

    Args:
        changes: for each row, its key, its mutations, and their size in bytes.
        doing: description of the operation, for error messages.
    """
    calls.each("MutateRows", map(table.mutate, _chunks(changes)), _settle, doing)


def _settle(request: Any, answers: Sequence[Any]) -> None:
    """Check in the answers to a bulk mutation that every entry was applied. An entry without a status counts as not
    applied.

    Raises:
        RefusedEntryError: some entries were not applied.
    """
    statuses = {each.index: each.status for answer in answers for each in answer.entries}
    failed = [n for n in range(len(request.entries)) if n not in statuses or statuses[n].code]
    if not failed:
        return
    told = [statuses[n] for n in failed if n in statuses]
    gravest = min(told, key=lambda status: is_temporary(status.code), default=None)
    left = type(request)()
    left.CopyFrom(request)
    del left.entries[:]
    left.entries.extend(request.entries[n] for n in failed)
    if gravest is None:
        said = f"the server returned no status for {len(failed)} of {len(request.entries)} rows"
        raise RefusedEntryError(None, said, left)
    said = f"{len(failed)} of {len(request.entries)} rows were not changed, one because of: {gravest.message}"
    raise RefusedEntryError(gravest.code, said, left)


def _chunks(changes: Iterable[tuple[bytes, Sequence[Part], int]]) -> Iterator[list[Part]]:
    for chunk in sized(changes, lambda one: one[2], most_bytes=_MUTATED_BYTES, most=_MUTATED_ROWS):
        yield [{"row_key": key, "mutations": mutations} for key, mutations, _ in chunk]
