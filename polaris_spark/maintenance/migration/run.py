"""Migration of a realm from one database (the source) to another (the target) while processes continue to commit.

| step | state after a crash in the step |
| --- | --- |
| 1. create a realm in the state LOADING in the target | the source serves; start a new run, or `abort` |
| 2. set a fence in the source; copy every row | the same |
| 3. one round: set a fence; copy newer commits. Then compare | the same; a new run continues from the last fence |
| 4. more rounds, until a round is short | the same |
| 5. stop commits in the source; copy the last commits and heads | the source serves after a new run or `abort` |
| 6. decide, by one compare-and-swap of the source's realm record | the target serves after a new run |
| 7. the target's realm becomes ACTIVE: commits are possible again | the target serves |
| 8. mark the source's references as moved; the source's realm becomes INACTIVE | the same; a new run finishes |

A store *serves* the realm if clients can open the realm there and commit. `abort` ends the migration and lets the
source serve. If it is called with `target`, it also gives the target's realm the state PURGING, so that `purge_realm`
can delete its rows. After a crash in step 7 or 8, processes that still have the source open can read its last state,
which does not change any more.

A *fence* is an id in a reference's row: commits to the reference must not use unreferenced rows with lower ids.

Why a round copies everything: consider an object to which a commit made after a fence points. Either it was reachable
from a commit that was in force when the fence was set, or its id is above the fence (`SourceRealm.fence`). Why no id is
used twice: the heads in the target contain a fence above every id that was copied, and a process that has read a head
makes no id below that fence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from polaris_spark.backends.base import Backend
from polaris_spark.catalog.engine import Engine, LocalEngine, Reach
from polaris_spark.catalog.files.files import Files
from polaris_spark.commits.retry import retried
from polaris_spark.errors import OutcomeUnknownError, RealmStateError, StateError, TryAgainError
from polaris_spark.maintenance.migration.check import compare_references
from polaris_spark.maintenance.migration.marks import MOVING_TO_INSTANCE, Held, SourceRealm
from polaris_spark.maintenance.migration.steps import (
    COPIED,
    MigrationStep,
    RealmCopy,
    Switch,
)
from polaris_spark.system.connections import StoreConnection
from polaris_spark.system.realms import MOVED_TO, RealmRecord, RealmState

MOVING_FROM: Final = "moving-from"
MOVING_FROM_INSTANCE: Final = "moving-from-instance"
"""Properties of the target's realm record during a migration: the URI of the source store, and the realm's instance id
in the source store."""
MOVED_FROM: Final = "moved-from"
"""Property of the target's realm record after a migration: the URI of the source store."""

SHORT: Final = 0.2
"""Fraction of the maximum pause. The switch begins after a round of copying that took less time than this."""

_ROUNDS = 20
"""Maximum number of rounds of copying newer commits before an attempt to switch."""
_ATTEMPTS = 10
"""Maximum number of attempts to switch."""


class Migration:
    """Migration of one realm to another store. Not thread-safe.

    The caller must make sure that only one migration of the realm runs at a time.
    """

    def __init__(
        self,
        source: SourceRealm,
        source_uri: str,
        target: StoreConnection,
        target_realm: str,
        *,
        engine: Engine | None = None,
        open_target: Callable[[], Backend] | None = None,
        max_pause_ms: float = 1_000.0,
        verify: bool = True,
    ) -> None:
        """
        Args:
            source: the realm to move.
            source_uri: URI of the source store, without a password.
            target: the store to move the realm to.
            target_realm: name of the realm in the target.
            engine: copies and compares rows; by default in this process. If its `progress` raises an error, the
                migration ends in its current step.
            open_target: returns the target's database; called in every process in which the engine works. None if the
                engine works in this process.
            max_pause_ms: maximum time for which commits may be stopped, in milliseconds. A switch that takes longer is
                given up and tried again.
            verify: whether to compare the source and the target, before and after the switch.
        """
        self._source = source
        self._source_uri = source_uri
        self._target = target
        self._name = target_realm
        self._engine = engine or LocalEngine(Reach(source.store, Files({}), source.references.clock))
        self._open_target = open_target or (lambda: target.backend)
        self._max_pause_ms = max_pause_ms
        self._verify = verify
        self._clock = source.references.clock
        self._to = str(target.uri)

    def run(self) -> Iterator[MigrationStep]:
        """Move the realm, or continue a migration that was interrupted.

        Yields:
            a description of each step after the step was done.
        Raises:
            RealmStateError: the target store has another realm of that name, the source realm is not ACTIVE, or it is
                being moved to another target.
            StateError: the copy differs from the source; the source continues to serve.
            TryAgainError: no attempt to switch was short enough; the source continues to serve.
            CorruptionError: a row is missing in the source.
        """
        if MOVED_TO in self._source.serving().properties:
            yield from self._finished(self._decided_realm())
            return
        record = retried(self._clock, self._target_realm)
        self._source.end_pause()  # a run that died may have stopped commits
        self._source.begin(self._to, record.instance)
        copy = self._copy(record)
        yield from copy.everything()
        if self._verify:
            yield copy.catch_up()
            yield self._checked(copy)
        yield from self._switched(copy, record)
        yield from self._finished(record)

    def _nearly_caught_up(self, copy: RealmCopy) -> Iterator[MigrationStep]:
        for _ in range(_ROUNDS):
            step = copy.catch_up()
            yield step
            if step.milliseconds < SHORT * self._max_pause_ms:
                return

    def _switched(self, copy: RealmCopy, record: RealmRecord) -> Iterator[MigrationStep]:
        for attempt in range(1, _ATTEMPTS + 1):
            yield from self._nearly_caught_up(copy)
            self._engine.progress("switching", attempt, _ATTEMPTS)
            try:
                yield Switch(copy, self._to, self._max_pause_ms).run()
                return
            except (TryAgainError, OutcomeUnknownError):
                if attempt == _ATTEMPTS:
                    raise

    # The target's realm

    def _target_realm(self) -> RealmRecord:
        """Return the target's realm in the state LOADING. Create it unless an earlier run of this migration did."""
        realms, source = self._target.realms, self._source.record()
        found = realms.find(self._name)
        if found is not None:
            ours = found.properties.get(MOVING_FROM_INSTANCE) == source.instance
            if not ours or found.state not in (RealmState.CREATED, RealmState.LOADING):
                raise RealmStateError(
                    f"{self._to} already has a realm {self._name!r} (state {found.state.value}): "
                    "choose another target_realm, or purge that realm first"
                )
            return realms.move(self._name, RealmState.LOADING, instance=found.instance)
        self._source.refuse_elsewhere(source, None)
        properties = {MOVING_FROM: self._source_uri, MOVING_FROM_INSTANCE: source.instance}
        return realms.create_for_loading(
            self._name,
            self._target.ids,
            revisions=source.revisions,
            features=source.features,
            properties={**source.properties, **properties},
        )

    def _decided_realm(self) -> RealmRecord:
        """Return the target's realm, after an earlier run has decided to switch to it. It need not be ACTIVE yet.

        Raises:
            RealmStateError: the earlier run moved the realm to another target.
        """
        properties = self._source.record().properties
        found = self._target.realms.find(self._name)
        if found is None or found.instance != properties.get(MOVING_TO_INSTANCE):
            raise RealmStateError(
                f"an earlier run moved realm {self._source.name!r} to another realm, in {properties[MOVED_TO]}; "
                f"realm {self._name!r} of {self._to} is not that realm: give the target and target_realm of the "
                "earlier run"
            )
        return found

    # Comparison, and the end

    def _copy(self, record: RealmRecord, heads: Sequence[Held] = ()) -> RealmCopy:
        return RealmCopy(self._source, self._target, record, self._engine, self._open_target, heads)

    def _checked(self, copy: RealmCopy) -> MigrationStep:
        """Compare the rows that have been copied with the rows of the source.

        Raises:
            StateError: rows of the target differ from rows of the source.
        """
        begun = self._clock.monotonic_ms()
        compared = copy.compared()
        if compared.different:
            few = "; ".join(f"{one.what} {one.key} is {one.found}" for one in compared.differences[:3])
            raise StateError(
                f"the copy in {self._to} differs from the source in {compared.different:,} rows ({few}); the "
                "source still serves the realm: abort the migration, and begin again"
            )
        return MigrationStep("compare", len(copy.heads), compared.rows, 0, self._clock.monotonic_ms() - begun)

    def _finished(self, record: RealmRecord) -> Iterator[MigrationStep]:
        """Do the steps after the decision that the target serves, then compare both stores. Steps can be repeated."""
        realms, source = self._target.realms, retried(self._clock, self._source.record)
        # The source may have been upgraded since the target's realm was created.
        retried(self._clock, lambda: realms.upgrade(self._name, source.revisions, source.features))
        retried(self._clock, lambda: realms.move(self._name, RealmState.ACTIVE, instance=record.instance))
        heads = retried(self._clock, self._source.heads)
        retried(self._clock, lambda: realms.describe(self._name, _arrived, instance=record.instance))
        self._source.finish()
        if self._verify:
            begun = self._clock.monotonic_ms()
            copy = self._copy(record, heads)
            compared = copy.compared()
            differences = compare_references(heads, self._target.store(record))
            yield MigrationStep(
                "verify",
                len(heads),
                compared.rows,
                0,
                self._clock.monotonic_ms() - begun,
                [*differences, *compared.differences],
                len(differences) + compared.different,
            )


def start_purge_of_target(target: StoreConnection, name: str, source_instance: str) -> None:
    """Give the unfinished copy of a realm the state PURGING, so that `purge_realm` can delete it. Can be repeated.

    Nothing is done if the migration was finished, or if the realm `name` was not created by this migration.

    Args:
        target: the store to which the realm was being moved.
        name: name of the realm in the target.
        source_instance: instance id of the realm in the source.
    """
    found = target.realms.find(name)
    if found is None or found.properties.get(MOVING_FROM_INSTANCE) != source_instance:
        return
    if found.state in (RealmState.CREATED, RealmState.LOADING):
        target.realms.move(name, RealmState.PURGING, instance=found.instance)


def _arrived(record: RealmRecord) -> Mapping[str, str]:
    properties = {
        k: v for k, v in record.properties.items() if k not in (MOVING_FROM, MOVING_FROM_INSTANCE, COPIED)
    }
    came_from = record.properties.get(MOVING_FROM)
    return properties if came_from is None else {**properties, MOVED_FROM: came_from}
