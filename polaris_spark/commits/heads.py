"""The recent heads that a reference's row keeps, fewer of them the older they are. They are used for recovery after the
database has lost its newest writes."""

from __future__ import annotations

from collections.abc import Sequence

from polaris_spark.commits.rows import RecentHead

ALWAYS_KEPT = 4
KEPT = 20
SPACINGS_MS = (1_000, 10_000, 60_000, 600_000, 3_600_000)
"""Intervals between the heads to keep, in milliseconds. Besides the newest four heads, about three heads are kept for
each interval: one second, ten seconds, one minute, ten minutes and one hour."""

_PER_SPACING = 3


def thin(recent: Sequence[RecentHead], newest: RecentHead) -> tuple[RecentHead, ...]:
    """Return `newest` followed by the heads of `recent` to keep, newest first: at most 20 heads.

    Each length in `SPACINGS_MS` divides time into intervals. For each length, the oldest head of each of the three
    newest intervals is kept. So a head that one length keeps is not dropped before the next greater length keeps it.
    """
    following = recent[ALWAYS_KEPT - 1 : ALWAYS_KEPT + 1]
    if len(following) == 2 and following[0].time // SPACINGS_MS[0] == following[1].time // SPACINGS_MS[0]:
        # The head that leaves the newest four shares its interval with an older head, for every spacing, since each
        # spacing divides the next. So this head is removed, and the others stay as they are.
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
