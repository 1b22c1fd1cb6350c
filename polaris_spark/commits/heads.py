"""Recent heads of a reference, thinned by time, for recovery after a database lost its newest writes."""

from __future__ import annotations

from collections.abc import Sequence

from polaris_spark.commits.rows import RecentHead

ALWAYS_KEPT = 4
KEPT = 20
SPACINGS_MS = (1_000, 10_000, 60_000, 600_000, 3_600_000)
"""Beyond the newest four, about one head per second, ten seconds, minute, ten minutes and hour."""

_PER_SPACING = 3


def thin(recent: Sequence[RecentHead], newest: RecentHead) -> tuple[RecentHead, ...]:
    """`newest` followed by those of `recent` (newest first) worth keeping: at most 20.

    For each spacing, heads are kept that fall into different multiples of it, the oldest of each multiple first seen,
    so that a head once kept for a wide spacing stays until a wider one takes over.
    """
    following = recent[ALWAYS_KEPT - 1 : ALWAYS_KEPT + 1]
    if len(following) == 2 and following[0].time // SPACINGS_MS[0] == following[1].time // SPACINGS_MS[0]:
        # The head that is no longer among the newest has an older one in the multiple of every spacing, since each
        # spacing divides the next: it goes, and the others stay as they are.
        return (newest, *recent[: ALWAYS_KEPT - 1], *recent[ALWAYS_KEPT:])
    kept = [newest, *recent[: ALWAYS_KEPT - 1]]
    rest = list(recent[ALWAYS_KEPT - 1 :])
    for spacing in SPACINGS_MS:
        oldest_of: dict[int, RecentHead] = {}
        for head in rest:
            oldest_of[head.time // spacing] = head
        chosen = sorted(oldest_of.values(), key=lambda h: -h.number)[:_PER_SPACING]
        kept += [head for head in chosen if head not in kept]
    return tuple(sorted(kept, key=lambda h: -h.number)[:KEPT])
