"""Which heads a reference remembers."""

import random

from polaris_spark.commits.heads import ALWAYS_KEPT, KEPT, SPACINGS_MS, thin
from polaris_spark.commits.rows import RecentHead


def kept_by_definition(recent: tuple[RecentHead, ...], newest: RecentHead) -> tuple[RecentHead, ...]:
    """The newest four, and for each spacing the oldest head of each of the last three multiples beyond them."""
    heads = (newest, *recent)
    kept = set(heads[:ALWAYS_KEPT])
    for spacing in SPACINGS_MS:
        oldest = {head.time // spacing: head for head in heads[ALWAYS_KEPT:]}
        kept.update(oldest[multiple] for multiple in sorted(oldest)[-3:])
    return tuple(head for head in heads if head in kept)


def test_thinning_keeps_what_its_definition_says_at_any_pace_of_commits() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        heads: tuple[RecentHead, ...] = ()
        time = 1_740_787_200_000
        for number in range(600):
            time += rng.choice((1, 1, 1, 5, 700, 9_000, 70_000, 4_000_000) if rng.random() < 0.3 else (1, 2))
            newest = RecentHead(time, number, number + 1)
            expected = kept_by_definition(heads, newest)
            heads = thin(heads, newest)
            assert heads == expected, f"seed {seed}, head {number}"
            assert len(heads) <= KEPT
