"""Changes that maintenance makes to a reference's row, as functions from head to head, for `amend`."""

from __future__ import annotations

import msgspec

from polaris_spark.commits.rows import Commit, Head


def raise_floor(head: Head, commit: Commit) -> Head:
    """Return the head with its history trimmed to begin at `commit`, a commit of this history.

    The floor is never lowered. If a recovery has reset the head to a commit before `commit`, the head is returned
    unchanged.
    """
    if not head.floor_number < commit.number <= head.number:
        return head
    return msgspec.structs.replace(head, floor_number=commit.number, floor_time=commit.time)


def fence(head: Head, id: int) -> Head:
    """Return the head with a fence: no commit may point to rows with ids below `id` that nothing points to yet.

    Args:
        id: a new id of the calling process. A fence is never lowered.
    """
    return msgspec.structs.replace(head, fence=max(head.fence, id))
