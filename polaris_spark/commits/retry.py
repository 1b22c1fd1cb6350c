"""Retries of operations while a database fails, and turn-taking among processes that commit to one reference."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Collection
from typing import Final, TypeVar

from polaris_spark.clock import Clock
from polaris_spark.commits.rows import Head
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import OutcomeUnknownError, TryAgainError
from polaris_spark.ids import IdGenerator, id_time_ms, unpack

T = TypeVar("T")

DEADLINE_MS: Final = 60_000.0
"""Default time for which an operation is repeated while a database fails, in milliseconds."""

BASE_MS = 2.0
CAP_MS = 400.0
LEAST_COMMIT_MS = 0.1
"""Shortest duration of a commit that counts, in milliseconds."""
PATIENCE_MS = 500.0
"""Age at which a change waits half as long as a new one, in milliseconds. The wait is divided by
1 + age / `PATIENCE_MS`, so older changes have priority."""

PATIENCE_COMMITS = 20
"""Age at which a change's wait in `Turns` is half of a new change's wait, in multiples of the usual duration of a
commit."""

COURTESY = (0.35, 1.05)
"""Range of a random factor. The wait before the first attempt is this factor, times the duration of one round (one
commit of each other process), times this process's share of recent commits. In measurements with 4 and 8 processes on
PostgreSQL, half of these values reduced fairness, and twice these values reduced throughput."""

DOUBLINGS = 4
"""Maximum number of doublings of the upper limit of the random wait. The limit doubles each time another process
commits first."""

LEAST_SHARE = 0.25
"""Lower bound of this process's share of recent commits, used to compute the wait after another process committed
first."""

PATIENCE = (10.0, 20.0)
"""Range of a random factor. It is multiplied by the average time until another process decides an intent
(`Turns.patience`)."""

FIRST_LOOK, LATER_LOOKS = 0.6, 0.2
"""How long to wait after publishing an intent before the first look at the row, and before each later look. The unit is
the average time until another process decides an intent."""

YIELD_COMMITS = 8.0
"""Time for which a process waits for the process that is to commit next, in multiples of the usual duration of a
commit. In this time, the other process reads the row twice and the commit once, and swaps. The time doubles each time
that the other process does not commit."""

JUST_COMMITS = 4.0
"""Time after a commit in which other processes are not expected to have committed, in multiples of the usual duration
of a commit."""

ANSWER_COMMITS: Final = 4.0
"""Longest wait for an answer to an intent that was sent as a message: this multiple of the usual duration of a commit,
or 50 ms if that is longer."""

FIRST_LOOKS: Final = 8
"""Number of reads of the row after which the shortest of them shows how long a read takes without load."""

FRESH_COMMITS: Final = 8.0
"""Time after which a process does not rely on the slot that it knows, in multiples of the average time until another
process decides an intent. In this time, others make 8 to 16 commits; after 32, its slot is gone."""

RIVALRY_MS, RIVALRY_COMMITS = 1_000.0, 10.0
"""The rivalry time is `RIVALRY_MS` milliseconds, or `RIVALRY_COMMITS` times the usual duration of a commit if that is
longer. If another process committed first, this process expects for the rivalry time that others commit again."""

LOSS_RIVALRIES = 10.0
"""Two lost swaps in a row show that other processes commit often, unless more time than this multiple of the rivalry
time lies between them. On a database that is far away, a process needs a second or more to apply a change again after
it lost."""

YIELD_MS, LONGEST_YIELD_COMMITS = 400.0, 4.0
"""A process waits for the process that is to commit next for at most `YIELD_MS` milliseconds, or for at most
`LONGEST_YIELD_COMMITS` times the usual duration of a commit if that is longer."""


def backoff_ms(attempt: int, age_ms: float, rng: random.Random) -> float:
    """Return the milliseconds to wait before retry number `attempt` (from 1) of a change that is `age_ms` old.

    Exponential backoff with full jitter ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015), divided by a
    weight that grows with age so that the oldest change tends to win and none starves.
    """
    ceiling = min(CAP_MS, BASE_MS * 2.0 ** min(attempt, 16))
    return rng.uniform(0, ceiling) / (1.0 + age_ms / PATIENCE_MS)


def retried(
    clock: Clock, once: Callable[[], T], *, deadline_ms: float = DEADLINE_MS, rng: random.Random | None = None
) -> T:
    """Call `once` and return its result. While the database fails, repeat the call, with growing random pauses.

    Args:
        once: a call that may be repeated, even after an unknown outcome.
        deadline_ms: time limit, in milliseconds.
    Raises:
        TryAgainError, OutcomeUnknownError: the database still fails at the deadline.
    """
    rng, started, attempt = rng or random.Random(), clock.monotonic_ms(), 0
    while True:
        try:
            return once()
        except (TryAgainError, OutcomeUnknownError):
            if clock.monotonic_ms() - started > deadline_ms:
                raise
        attempt += 1
        clock.sleep_ms(
            backoff_ms(attempt, 0.0, rng)
        )  # when the database fails, older changes have no priority


class Durations:
    """The durations of the last eight calls of a kind, in milliseconds."""

    def __init__(self, median_ms: float) -> None:
        """
        Args:
            median_ms: the median before the first call.
        """
        self._last: deque[float] = deque(maxlen=8)
        self.median_ms = median_ms
        """Their median. Of an even number of durations, it is the lower one of the two in the middle."""
        self.number = 0
        """Number of calls so far, including older ones."""

    def add(self, took_ms: float) -> None:
        """Add the duration of a call."""
        self._last.append(took_ms)
        self.number += 1
        self.median_ms = sorted(self._last)[(len(self._last) - 1) // 2]


class Turns:
    """Timing of one process's attempts, so that all processes that commit to the same reference take turns.

    A process recognizes the commits of other processes by their ids, because an id contains the node number of the
    process that made it. A process that made more than its fair share of the last commits waits longer. A process that
    made none of them does not wait before its first attempt.
    """

    def __init__(self, ids: IdGenerator, clock: Clock, rng: random.Random) -> None:
        self._ids = ids
        self._clock = clock
        self._rng = rng
        self._rivals_until = self._won_until = -1.0
        self._again_until = self._crowded_until = -1.0
        self._heard_at = -1.0
        """Time at which this process last learned what the newest commit is, because it or another process made it."""
        self._next: frozenset[int] = frozenset()
        """Node numbers of the processes whose turn is next; empty if no process is next."""
        self._fruitless = 0
        """Number of times in a row that this process waited for one of them, and none committed."""
        self._attempts = Durations(BASE_MS)
        """Durations of attempts to publish a commit."""
        self._looks = Durations(0.0)
        """Durations of reads of the reference's row while this process waited."""
        self._least_read_ms = 0.0
        """About the shortest of these durations: that of a read without load, in milliseconds. It slowly approaches the
        median, because the database may have moved."""
        self._decided_ms = BASE_MS
        """Running average of the time until another process has decided an intent, in milliseconds."""

    @property
    def _rivalry_ms(self) -> float:
        """The rivalry time (`RIVALRY_MS`), in milliseconds."""
        return max(RIVALRY_MS, RIVALRY_COMMITS * self.commit_ms)

    @property
    def contended(self) -> bool:
        """Whether another process is likely to commit first."""
        return self._rivals_until > 0.0 and self._clock.monotonic_ms() < self._rivals_until

    @property
    def crowded(self) -> bool:
        """Whether other processes commit so often that this one saves time if it hands its changes over, or waits for
        its turn. A single lost swap does not show this: the next attempt of the process then usually succeeds."""
        return self._crowded_until > 0.0 and self._clock.monotonic_ms() < self._crowded_until

    def tried(self, took_ms: float) -> None:
        """Record that an attempt to publish a commit took `took_ms` milliseconds, whatever its outcome.

        An attempt counts as at most `RIVALRY_MS`. So an outage of the database does not make later waits long.
        """
        self._attempts.add(min(took_ms, RIVALRY_MS))

    def lost(self, *, heard: bool = True) -> None:
        """Record that another process committed first.

        Args:
            heard: whether this process knows the newest commit now. It does not if the database did not return the row.
        """
        now = self._clock.monotonic_ms()
        self._won_until, self._next = -1.0, frozenset()
        if heard:
            self._heard_at = now
        self._rivals_until = now + self._rivalry_ms
        if now < max(self._again_until, self._crowded_until):
            self._crowded_until = self._rivals_until
        self._again_until = now + LOSS_RIVALRIES * self._rivalry_ms

    def won(self) -> None:
        """Record that a commit was published."""
        self._heard_at = self._clock.monotonic_ms()
        self._won_until = self._heard_at + JUST_COMMITS * self.commit_ms
        self._again_until = -1.0

    def waited_in_vain(self) -> None:
        """Record that no other process committed while this one waited for it."""
        self._again_until = self._crowded_until = -1.0

    def yield_to(self, nodes: Collection[int]) -> None:
        """Record that this process committed, and whose turn is next: the node numbers of other processes, or none."""
        if not nodes:
            return
        if not self.contended:
            self._fruitless = 0
        self._won_until, self._next = -1.0, frozenset(nodes)
        self._rivals_until = self._clock.monotonic_ms() + self._rivalry_ms

    def yielded(self, newest: int) -> None:
        """Record that this process waited for another one to commit. `newest` is the id of the newest commit now."""
        came = unpack(newest).node in self._next
        self._next = frozenset()
        self._fruitless = 0 if came else min(self._fruitless + 1, DOUBLINGS)

    @property
    def yields(self) -> bool:
        """Whether it is the turn of another process."""
        return bool(self._next) and self.contended

    @property
    def commit_ms(self) -> float:
        """The usual duration of a commit, in milliseconds: the median of the last eight attempts to publish one."""
        return max(LEAST_COMMIT_MS, self._attempts.median_ms)

    def yield_ms(self) -> float:
        """Return the milliseconds for which this process waits for the one that is to commit next."""
        most = max(YIELD_MS, LONGEST_YIELD_COMMITS * self.commit_ms)
        return min(most, self.commit_ms * YIELD_COMMITS * 2.0**self._fruitless)

    @property
    def committed_recently(self) -> bool:
        """Whether this process committed so recently that probably no other process committed after it."""
        return self._clock.monotonic_ms() < self._won_until

    def handed_over(self, took_ms: float | None) -> None:
        """Record that another process decided an intent, `took_ms` milliseconds after it was published (None: it is not
        known how long that took). This counts like a lost swap."""
        self.lost()
        if took_ms is not None:
            self._decided_ms += (took_ms - self._decided_ms) / 8
            if took_ms < self.commit_ms:  # the database is faster now than in this process's attempts
                self.tried(took_ms)

    @property
    def was_away(self) -> bool:
        """Whether this process has not heard of other processes for so long that they may have dropped its slot."""
        away_ms = self._clock.monotonic_ms() - self._heard_at
        return away_ms > FRESH_COMMITS * max(self._decided_ms, self.commit_ms)

    def is_leader(self, head: Head) -> bool:
        """Whether this process made the newest commit, so that it commits next without waiting for others."""
        return unpack(head.commit).node == self._ids.node()

    def patience(self, slots: int) -> float:
        """Return the milliseconds for which a process whose intent is published waits for the next commit, before it
        commits itself.

        Args:
            slots: number of processes that may wait.
        """
        usual = max(self._decided_ms, self.commit_ms) * self._rng.uniform(*PATIENCE)
        most = self._rivalry_ms * self._rng.uniform(0.5, 1.0)
        return min(most, max(usual, 2 * self._all_look_ms(slots)))

    def looked(self, took_ms: float) -> None:
        """Record that the reference's row was read in `took_ms` milliseconds."""
        took_ms = min(took_ms, RIVALRY_MS)
        self._looks.add(took_ms)
        if self._looks.number == 1:
            self._least_read_ms = took_ms
        self._least_read_ms += (self._looks.median_ms - self._least_read_ms) / 64
        self._least_read_ms = min(took_ms, self._least_read_ms)

    def look_ms(self, looks: int, slots: int) -> float:
        """Return the milliseconds to wait before looking at the reference's row while an intent is published.

        Args:
            looks: number of looks so far.
            slots: number of processes that may wait, each of which looks.
        """
        usual = self._decided_ms * (LATER_LOOKS if looks else FIRST_LOOK)
        return max(min(max(0.5, usual), 25.0), self._all_look_ms(slots))

    def answer_ms(self, slots: int) -> float:
        """Return the milliseconds to wait for an answer to an intent that was sent as a message, before looking at the
        reference's row. `slots` is the number of processes that may wait."""
        longest = max(50.0, ANSWER_COMMITS * self.commit_ms)
        return max(min(max(2.0, 2 * self._decided_ms), longest), self._all_look_ms(slots))

    def _all_look_ms(self, slots: int) -> float:
        """Return the milliseconds to wait between two looks at the row so that the looks of all waiting processes do
        not slow the database down for the one that commits.

        At first, this is the time that their reads take, one after the other. Later, it is twice the time by which they
        take longer than on a database without load, so that a database that is far away is not taken for a busy one.
        """
        each = self._looks.median_ms
        if self._looks.number >= FIRST_LOOKS:
            each = 2 * max(0.0, each - self._least_read_ms)
        return min(RIVALRY_MS / 2, slots * each)

    def courtesy_ms(self) -> float:
        """Return the milliseconds for which the process that made the newest commit waits for messages with the intents
        of others."""
        return min(self.commit_ms / 2, 25.0)

    def written_courtesy_ms(self, reads_ms: float, write_ms: float) -> float:
        """Return the milliseconds for which the process that made the newest commit waits until others have written
        their next intents to the database. Without this wait, it would often commit twice until then.

        Args:
            reads_ms: time for which the others read the outcomes of their last intents.
            write_ms: time for which they write the next ones.
        """
        since_ms = self._clock.monotonic_ms() - self._heard_at
        return max(0.0, min(reads_ms + write_ms, RIVALRY_MS) - since_ms)

    def pause_ms(self, head: CommitReader, attempt: int, age_ms: float) -> float:
        """Return the milliseconds to wait for other processes before an attempt.

        Args:
            attempt: number of the attempt, from 0.
            age_ms: age of the oldest change of the batch, in milliseconds.
        """
        if not self.crowded:
            return 0.0
        rivals, share = self._share(head)
        round_ms = self.commit_ms * max(1, rivals)
        if attempt:
            wait = round_ms * max(share, LEAST_SHARE) * self._rng.uniform(0, 2.0 ** min(attempt, DOUBLINGS))
        else:
            wait = round_ms * share * self._rng.uniform(*COURTESY)
        return min(CAP_MS, wait / (1.0 + age_ms / (self.commit_ms * PATIENCE_COMMITS)))

    def has_strangers(self, head: CommitReader) -> bool:
        """Whether a process without a slot made at least two recent commits. Such a process runs a release without
        slots, or there was no room for its slot. One commit is not enough: a process may get its slot afterwards."""
        known = {unpack(slot.following).node for slot in head.head.slots}
        return any(made > 1 and node not in known for node, made in Counter(self._recent_nodes(head)).items())

    def _share(self, head: CommitReader) -> tuple[int, float]:
        """Return (number of other processes that made recent commits, this process's share of these commits). A share
        of 1.0 is a fair share."""
        nodes = self._recent_nodes(head)
        mine = self._ids.node()
        rivals = len({*nodes, mine}) - 1
        return rivals, nodes.count(mine) * (rivals + 1) / len(nodes)

    def _recent_nodes(self, head: CommitReader) -> list[int]:
        """Return the node numbers of the processes that made the newest commit, and the commits before it within the
        rivalry time."""
        since = id_time_ms(head.head.commit) - self._rivalry_ms
        return [unpack(id).node for id in (head.head.commit, *head.commit.parents) if id_time_ms(id) > since]
