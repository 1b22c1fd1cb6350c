"""What maintenance changes of a reference's row, as functions of its value: for `amend`."""

from __future__ import annotations

import msgspec

from polaris_spark.commits.rows import Commit, Head


def raise_floor(head: Head, commit: Commit) -> Head:
    """The head with its history trimmed to begin at `commit`, one of its history; a floor never goes back.

    A head that a recovery took back behind that commit meanwhile stays as it is.
    """
    if not head.floor_number < commit.number <= head.number:
        return head
    return msgspec.structs.replace(head, floor_number=commit.number, floor_time=commit.time)


def fence(head: Head, id: int) -> Head:
    """The head with a fence: rows with ids below `id` that nothing points to yet are not to be pointed to any more.

    Args:
        id: made by whoever fences; a fence never goes back.
    """
    return msgspec.structs.replace(head, fence=max(head.fence, id))
