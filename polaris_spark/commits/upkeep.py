"""Changes that maintenance makes to a reference's row. Each function returns a new head, for `Committer.amend`."""

from __future__ import annotations

import msgspec

from polaris_spark.commits.rows import Commit, Head


def raise_floor(head: Head, commit: Commit) -> Head:
    """Return the head with its history trimmed so that `commit` is the oldest commit that is kept.

    The floor (the number of the first commit of the history) is never lowered. If a recovery has reset the head to a
    commit before `commit`, the head is returned unchanged.
    """
    if not head.floor_number < commit.number <= head.number:
        return head
    return msgspec.structs.replace(head, floor_number=commit.number, floor_time=commit.time)


def fence(head: Head, id: int) -> Head:
    """Return the head with its fence raised to `id`: no commit may point to objects with ids below `id` that no
    reference points to yet.

    Args:
        id: a new id of the calling process. If the fence is already higher, it does not change.
    """
    return msgspec.structs.replace(head, fence=max(head.fence, id))
