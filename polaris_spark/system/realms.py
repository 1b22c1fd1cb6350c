"""Realms: the tenants of a store. Each has a record `realm/<name>` in the system realm, changed by compare-and-swap.

```
CREATED ─┬─> INITIALIZING ─┬─> ACTIVE <──> INACTIVE ──> PURGING ──> PURGED ──> GONE
         └─> LOADING ──────┘
Unfinished realms (CREATED, INITIALIZING, LOADING) may go to PURGING
```
Rows of a realm are keyed by its instance id. If a realm is created under the name of an earlier realm, it gets a new
instance id, so late writes to the earlier realm never reach the new one. A record is never deleted. When a realm is
GONE, a new realm can have its name.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from polaris_spark.backends.base import Backend
from polaris_spark.clock import Clock
from polaris_spark.commits.retry import retried
from polaris_spark.errors import InputError, RealmMovedError, RealmStateError, TryAgainError
from polaris_spark.ids import IdGenerator
from polaris_spark.names import problem_of
from polaris_spark.secret_options import is_secret
from polaris_spark.store.references import Versioned
from polaris_spark.system.features import ALL_FEATURES, refuse_unknown_features
from polaris_spark.system.stores import refuse_newer_format, system_references

MAX_REALM_BYTES: Final = 255
"""Maximum length of a realm name, in UTF-8 bytes."""

FIRST_FORMAT: Final = 1
"""Format of realms that releases without `RealmRecord.features` can use."""

REALM_FORMAT: Final = 2
"""Format of realms that use features: releases that do not know `RealmRecord.features` refuse them. It is also the
highest format that this release can use."""

MOVED_TO: Final = "moved-to"
"""Property of a realm that was moved to another store: the URI of that store."""

_PREFIX: Final = "realm/"
_RESERVED: Final = ("moved-", "moving-", "imported-", "importing-")
"""Prefixes of the properties of realms that imports and migrations set."""


class RealmState(enum.Enum):
    """State of a realm. Only an ACTIVE realm can be used."""

    CREATED = "CREATED"
    INITIALIZING = "INITIALIZING"
    LOADING = "LOADING"
    ACTIVE = "ACTIVE"
    INACTIVE = "INACTIVE"
    PURGING = "PURGING"
    PURGED = "PURGED"
    GONE = "GONE"


_S = RealmState
FOLLOWING: Final[Mapping[RealmState, frozenset[RealmState]]] = {
    _S.CREATED: frozenset({_S.INITIALIZING, _S.LOADING, _S.PURGING}),
    _S.INITIALIZING: frozenset({_S.ACTIVE, _S.PURGING}),
    _S.LOADING: frozenset({_S.ACTIVE, _S.PURGING}),
    _S.ACTIVE: frozenset({_S.INACTIVE}),
    _S.INACTIVE: frozenset({_S.ACTIVE, _S.PURGING}),
    _S.PURGING: frozenset({_S.PURGED}),
    _S.PURGED: frozenset({_S.GONE}),
    _S.GONE: frozenset(),
}
"""The states to which a realm can move from each state."""


class RealmRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The record of a realm: its instance id, its state, and the features and revisions of object types that its
    writers may use. A record with unknown fields is refused, because they would be lost in a changed record."""

    name: str
    instance: str
    """Instance id: the value of `realm` in the keys of the realm's rows."""
    state: RealmState
    format: int = FIRST_FORMAT
    revisions: dict[str, int] = {}
    """The highest revision that writers may use, by name of the object type."""
    created_ms: int = 0
    properties: dict[str, str] = {}
    features: dict[str, str] = {}
    """The features that writers may use: the first release that has each feature, by the feature's name
    (`system.features`)."""


Initialise = Callable[[RealmRecord], None]
"""Type of a function that writes a new realm's references under its instance id. Several processes may call the
function at once, and a process may call it after the realm has become ACTIVE. So the function must insert a row only if
the row is absent, and must insert only rows that are not deleted as long as the realm exists."""


class Realms:
    """The records of the realms of one store. Thread-safe; nothing is cached."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        """
        Args:
            backend: the store.
            clock: clock for the creation times of realms.
        """
        self._backend = backend
        self._references = system_references(backend)
        self._clock = clock

    def find(self, name: str) -> RealmRecord | None:
        """Return the realm of that name, in any state; None if there is no such realm or it is GONE.

        Raises:
            InputError: the name is not a valid realm name.
            NewerFormatError: a newer release made the realm.
        """
        found = self._read(name)
        return None if found is None or found.value.state is RealmState.GONE else found.value

    def missing(self, name: str) -> RealmStateError:
        """Return the error for a realm that `find` does not find."""
        if self._read(name) is None:
            return RealmStateError(f"there is no realm {name!r}")
        return RealmStateError(f"realm {name!r} was purged already; a new realm can have its name")

    def active(self, name: str) -> RealmRecord:
        """Return the realm of that name, which must be ACTIVE.

        Raises:
            RealmStateError: the realm does not exist or is not ACTIVE; the message contains its state.
            InputError: the name is not a valid realm name.
            NewerFormatError: a newer release made the realm.
        """
        record = self.find(name)
        if record is None:
            raise RealmStateError(f"there is no realm {name!r}; create it first")
        if record.state is not RealmState.ACTIVE:
            raise _not_serving(record)
        return record

    def all(self) -> list[RealmRecord]:
        """Return every realm that is not GONE, ordered by name."""
        return [record for record in self.records() if record.state is not RealmState.GONE]

    def records(self) -> list[RealmRecord]:
        """Return the records of all realms, including realms that are GONE, ordered by name. There is one record for
        each name.

        Raises:
            CorruptionError: a record cannot be read.
            NewerFormatError: a newer release made a realm.
        """
        records = [self._read(name) for name in self.names()]
        return [found.value for found in records if found is not None]

    def names(self) -> list[str]:
        """Return the names of all realms, including those that are GONE or that `find` refuses, sorted."""
        return sorted(
            name.removeprefix(_PREFIX) for name in self._references.names() if name.startswith(_PREFIX)
        )

    def create(
        self,
        name: str,
        ids: IdGenerator,
        initialize: Initialise,
        *,
        revisions: Mapping[str, int],
        properties: Mapping[str, str] | None = None,
    ) -> RealmRecord:
        """Return the ACTIVE realm of that name; create and initialize it if it does not exist.

        It is safe to repeat this, and to do it in several processes at once: a process finishes a creation that another
        process began, and all processes get the same realm.

        Args:
            name: name of the realm.
            ids: source of the instance id.
            initialize: function that writes the realm's references.
            revisions: the highest revision that writers may use, by object type (`objects.known_types()`).
            properties: properties to store in the record.
        Raises:
            InputError: the name is not a valid realm name.
            RealmStateError: the realm exists and is INACTIVE, or is being loaded or purged.
        """
        while True:
            found = self._read(name)
            if found is None or found.value.state is RealmState.GONE:
                _check_new_name(name)
                self._replace(found, self._new(name, ids, revisions, ALL_FEATURES, properties))
            elif found.value.state is RealmState.CREATED:
                self._replace(found, _in(found.value, RealmState.INITIALIZING))
            elif found.value.state is RealmState.INITIALIZING:
                initialize(found.value)
                self._replace(found, _in(found.value, RealmState.ACTIVE))
            elif found.value.state is RealmState.ACTIVE:
                return found.value
            else:
                raise _not_serving(found.value)

    def create_for_loading(
        self,
        name: str,
        ids: IdGenerator,
        *,
        revisions: Mapping[str, int],
        features: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> RealmRecord:
        """Create a realm in the state LOADING and return it. A migration or an import fills it, and then moves it to
        ACTIVE.

        Args:
            revisions: `RealmRecord.revisions` of the realm that is migrated or imported.
            features: `RealmRecord.features` of that realm; by default none.
        Raises:
            InputError: the name is not a valid realm name.
            RealmStateError: a realm of that name exists.
        """
        found = self._read(name)
        if found is not None and found.value.state is not RealmState.GONE:
            raise RealmStateError(
                f"realm {name!r} already exists (its state is {found.value.state.value}); choose another name"
            )
        record = self._new(name, ids, revisions, features or {}, properties)
        if not self._replace(found, record):
            raise RealmStateError(f"realm {name!r} has just been created by another process; try again")
        return self.move(name, RealmState.LOADING, instance=record.instance)

    def move(self, name: str, state: RealmState, *, instance: str | None = None) -> RealmRecord:
        """Change the state of a realm, and return its record. If the realm is already in the state, change nothing.

        Args:
            name: name of the realm.
            state: the new state.
            instance: instance id that the realm must have; None accepts any.
        Raises:
            RealmStateError: the realm does not exist, or cannot change from its current state to `state`.
            RealmMovedError: the realm was moved to another store, so it cannot become ACTIVE here again.
        """
        while True:
            found = self._read(name)
            if found is None or (instance is not None and found.value.instance != instance):
                raise _missing(name, instance)
            record = found.value
            if record.state is state:
                return record
            if (
                record.state is RealmState.INACTIVE
                and state is RealmState.ACTIVE
                and MOVED_TO in record.properties
            ):
                raise _not_serving(record)
            if state not in FOLLOWING[record.state]:
                allowed = " or ".join(sorted(s.value for s in FOLLOWING[record.state])) or "no other state"
                raise RealmStateError(
                    f"realm {name!r} is {record.state.value} and cannot become {state.value}; from "
                    f"{record.state.value}, a realm can move to {allowed}"
                )
            if self._replace(found, _in(record, state)):
                return _in(record, state)

    def reactivate(self, name: str) -> RealmRecord:
        """Make an INACTIVE realm ACTIVE, and return its record.

        Raises:
            RealmStateError: the realm does not exist, its creation or import is unfinished, or it was purged.
            RealmMovedError: the realm was moved to another store.
        """
        record = self.find(name)
        if record is None:
            raise RealmStateError(f"there is no realm {name!r}")
        if record.state is RealmState.LOADING:
            raise RealmStateError(
                f"realm {name!r} is LOADING: a migration or an import is writing rows to it; finish or "
                "abort the migration, or import the same file again to resume the import"
            )
        if record.state in (RealmState.CREATED, RealmState.INITIALIZING):
            raise RealmStateError(
                f"realm {name!r} is {record.state.value}: create it again, which finishes its creation"
            )
        return self.move(name, RealmState.ACTIVE, instance=record.instance)

    def set_properties(
        self, name: str, updates: Mapping[str, str], removals: Collection[str] = ()
    ) -> RealmRecord:
        """Set and remove properties of a realm's record, and return the record.

        Args:
            updates: values by name.
            removals: names of properties to remove. A property that the realm does not have is ignored.
        Raises:
            InputError: a property is both set and removed, is a secret, or is one that imports and migrations set.
            RealmStateError: the realm does not exist, or is being purged.
        """
        for one in (*updates, *removals):
            if not one or one.startswith(_RESERVED):
                raise InputError(
                    f"the property {one!r} of a realm cannot be changed: imports and migrations set the properties "
                    f"that begin with {', '.join(_RESERVED)}"
                )
            if one in updates and one in removals:
                raise InputError(f"the property {one!r} is both set and removed; do only one of these")
        secrets = [one for one, text in updates.items() if is_secret(one, text)]
        if secrets:
            raise InputError(
                f"the property {secrets[0]!r} looks like a secret, which a realm must not contain"
            )

        def change(record: RealmRecord) -> Mapping[str, str]:
            if record.state in (RealmState.PURGING, RealmState.PURGED):
                raise RealmStateError(
                    f"realm {name!r} is {record.state.value}; its properties cannot be changed"
                )
            kept = {one: text for one, text in record.properties.items() if one not in removals}
            return {**kept, **updates}

        record = self.find(name)
        if record is None:
            raise RealmStateError(f"there is no realm {name!r}")
        return self.describe(name, change, instance=record.instance)

    def describe(
        self, name: str, change: Callable[[RealmRecord], Mapping[str, str]], *, instance: str
    ) -> RealmRecord:
        """Change the properties of a realm's record, and return the record.

        Args:
            change: function that returns the new properties. It must be idempotent, because it may be called again
                after the change took place. An error that it raises is passed on, and the record is not changed.
            instance: instance id that the realm must have.
        Raises:
            RealmStateError: the realm does not exist.
        """
        while True:
            found = self._read(name)
            if found is None or found.value.instance != instance:
                raise _missing(name, instance)
            record = msgspec.structs.replace(found.value, properties=dict(change(found.value)))
            if record == found.value or self._replace(found, record):
                return record

    def upgrade(
        self, name: str, revisions: Mapping[str, int], features: Mapping[str, str] = ALL_FEATURES
    ) -> RealmRecord:
        """Allow writers of a realm to use more features and newer revisions of object types, and return the realm's
        record. Releases without these features then refuse the realm. It is safe to repeat this, and to do
        it in several processes at once.

        Features and revisions that are already allowed stay allowed. A process that has the realm open uses the
        revisions that were allowed when it opened the realm, until it reads an object of a newer revision.

        Args:
            revisions: the highest revision to allow, by object type (`objects.known_types()`).
            features: the features to allow, as in `RealmRecord.features`; by default, all of this release.
        Raises:
            RealmStateError: the realm does not exist.
            NewerFormatError: the realm has features that this release does not have.
        """
        while True:
            found = self._read(name)
            if found is None or found.value.state is RealmState.GONE:
                raise RealmStateError(f"there is no realm {name!r}")
            known, allowed = found.value.revisions, {**features, **found.value.features}
            record = msgspec.structs.replace(
                found.value,
                format=REALM_FORMAT if allowed else found.value.format,
                features=allowed,
                revisions={
                    kind: max(known.get(kind, 0), revisions.get(kind, 0)) for kind in {**known, **revisions}
                },
            )
            if record == found.value or self._replace(found, record):
                return record

    def _read(self, name: str) -> Versioned[RealmRecord] | None:
        check_realm_name(name)
        found = self._references.read(_PREFIX + name, RealmRecord)
        if found is not None:
            refuse_newer_format(found.value.format, f"realm {name!r}", newest=REALM_FORMAT)
            refuse_unknown_features(found.value.features, f"realm {name!r}")
        return found

    def _replace(self, found: Versioned[RealmRecord] | None, record: RealmRecord) -> bool:
        version = None if found is None else found.version
        return self._references.put(_PREFIX + record.name, version, self._references.row(record))

    def _new(
        self,
        name: str,
        ids: IdGenerator,
        revisions: Mapping[str, int],
        features: Mapping[str, str],
        properties: Mapping[str, str] | None,
    ) -> RealmRecord:
        return RealmRecord(
            name=name,
            instance=f"{ids.next_id():x}",
            state=RealmState.CREATED,
            format=REALM_FORMAT if features else FIRST_FORMAT,
            revisions=dict(revisions),
            features=dict(features),
            created_ms=self._clock.now_ms(),
            properties=dict(properties or {}),
        )


SERVING_MS: Final = 2_000
"""Maximum age of what a process knows about the state of a realm that it has open, in milliseconds."""


class ServingRealm:
    """A realm that this process has open, and a check whether the realm can still be used. Thread-safe."""

    def __init__(self, realms: Realms, clock: Clock, name: str, instance: str, deadline_ms: float) -> None:
        """
        Args:
            name: name of the realm, which was ACTIVE when it was opened.
            instance: instance id of the realm.
            deadline_ms: time for which a check is repeated while the database fails, in milliseconds.
        """
        self._realms = realms
        self._clock = clock
        self._name = name
        self._instance = instance
        self._deadline_ms = deadline_ms
        self._failure = -math.inf, ""
        """When a check last failed because the database failed, and the message."""
        self._elapsed_ms = clock.elapsed_ms
        self._until = clock.elapsed_ms() + SERVING_MS
        self._guard = clock.lock()

    @property
    def is_refused(self) -> bool:
        """Whether the realm could not be used at the last check."""
        return self._until == -math.inf

    def require(self) -> None:
        """Raise an error if the realm can no longer be used. This reads the record of the realm if it was not read
        within the last `SERVING_MS`, or if the realm could not be used at the last check. So a reactivated realm is
        accepted at once. Threads that wait for the same check fail with it; they do not repeat it in turn.

        Raises:
            RealmMovedError: the realm was moved to another store.
            RealmStateError: the realm is not ACTIVE, or it was purged.
            TryAgainError: the record cannot be read, because the database fails.
        """
        begun = self._elapsed_ms()
        if begun < self._until:
            return
        with self._guard:
            now = self._elapsed_ms()  # before the read, so that nothing older than SERVING_MS is ever used
            if now < self._until:
                return
            failed, reason = self._failure
            if failed > begun:
                raise TryAgainError(reason)
            try:
                record = retried(
                    self._clock, lambda: self._realms.find(self._name), deadline_ms=self._deadline_ms
                )
            except TryAgainError as error:
                self._failure = self._elapsed_ms(), str(error)
                raise
            refusal = self._refusal(record)
            if refusal is not None:
                self._until = -math.inf
                raise refusal
            self._until = now + SERVING_MS

    def _refusal(self, record: RealmRecord | None) -> RealmStateError | None:
        """Return the error with which requests fail, given the record that has the realm's name; None if the realm can
        be used."""
        if record is None:
            return RealmStateError(f"realm {self._name!r} was purged")
        if record.instance != self._instance:
            return RealmStateError(
                f"realm {self._name!r} was purged, and a new realm has its name: open the new realm"
            )
        return None if record.state is RealmState.ACTIVE else _not_serving(record)


def check_realm_name(name: str) -> None:
    """Raise an error if a text is not a valid realm name.

    Raises:
        InputError: the name is empty, reserved, too long, or not Unicode text.
    """
    if not name:
        raise InputError("the realm name is empty; give a name")
    if name.startswith("::"):
        raise InputError(f"realm name {name!r} begins with '::', which is reserved; choose another name")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InputError(f"the realm name {name!r} is not Unicode text") from None
    if size > MAX_REALM_BYTES:
        raise InputError(
            f"the realm name {name[:40]!r}… has {size} bytes in UTF-8; at most {MAX_REALM_BYTES} are allowed"
        )


def _check_new_name(name: str) -> None:
    """Raise an error for a name that no new realm may have.

    Raises:
        InputError: the name is not printable (`polaris_spark.names`).
    """
    problem = problem_of(name)
    if problem is not None:
        raise InputError(f"the realm name {name!a} {problem}; choose another name")


def _in(record: RealmRecord, state: RealmState) -> RealmRecord:
    return msgspec.structs.replace(record, state=state)


def _not_serving(record: RealmRecord) -> RealmStateError:
    moved = record.properties.get(MOVED_TO)
    if record.state is RealmState.INACTIVE and moved:
        return RealmMovedError(f"realm {record.name!r} was moved to {moved}: open it there")
    return RealmStateError(f"realm {record.name!r} is {record.state.value}; only an ACTIVE realm can be used")


def _missing(name: str, instance: str | None) -> RealmStateError:
    if instance is None:
        return RealmStateError(f"there is no realm {name!r}")
    return RealmStateError(
        f"there is no realm {name!r} with the instance id {instance}; it may have been purged and created again"
    )
