"""Which features (`system.features`) the realms of a store may use, and which they use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from polaris_spark import objects
from polaris_spark.backends.base import Backend
from polaris_spark.errors import CorruptionError, NewerFormatError, RealmStateError
from polaris_spark.system.features import FEATURES, Feature
from polaris_spark.system.realms import RealmRecord, Realms, RealmState

ENDED: Final = (RealmState.PURGING, RealmState.PURGED, RealmState.GONE)
"""States of realms that are not upgraded, because their rows are or will be deleted."""


class UsedFeature(NamedTuple):
    """A feature of this release, and its use in a realm."""

    feature: Feature
    is_allowed: bool
    """Whether writers of the realm may use the feature."""
    objects: int
    """Number of objects of the realm in a revision that this feature introduced, including objects that a sweep would
    delete."""


class Unknown(NamedTuple):
    """Objects of a type or revision that this release does not have."""

    type: str
    """Name of the type; empty if a newer release encoded the rows in a way that is unknown here."""
    revision: int
    objects: int


class RealmFeatures(NamedTuple):
    """The features of a realm."""

    record: RealmRecord
    features: list[UsedFeature]
    unknown: list[Unknown]
    """Objects that a newer release or a package that is not installed wrote."""

    @property
    def missing(self) -> list[str]:
        """Names of the features of this release that writers of the realm may not use yet."""
        return [one.feature.name for one in self.features if not one.is_allowed]


def realms_to_upgrade(realms: Realms, name: str | None) -> Iterator[RealmRecord | NewerFormatError]:
    """Yield the records of the realms of a store, sorted by name, without purged realms. For a realm that this release
    cannot use, yield the error.

    Args:
        name: name of the only realm to yield; None for all.
    Raises:
        RealmStateError: there is no realm `name`.
    """
    for one in realms.names() if name is None else [name]:
        try:
            record = realms.find(one)
        except NewerFormatError as error:
            yield error
            continue
        if record is None and name is not None:
            raise realms.missing(name)
        if record is not None and record.state not in ENDED:
            yield record
        elif record is not None and name is not None:
            raise RealmStateError(f"realm {name!r} is {record.state.value} and cannot be upgraded")


def features_of(
    backend: Backend, record: RealmRecord, on_read: Callable[[int], None] = lambda _: None
) -> RealmFeatures:
    """Return which features a realm may use and which it uses. Reads all object rows of the realm.

    Args:
        on_read: called after each batch of rows, with the number of objects in it.
    Raises:
        CorruptionError: a row is damaged.
    """
    counts = _counts(backend, record.instance, on_read)
    features = [
        UsedFeature(
            feature,
            feature.name in record.features,
            sum(count for (type, revision), count in counts.items() if feature.objects.get(type) == revision),
        )
        for feature in FEATURES
    ]
    newest = objects.known_types()
    unknown = [
        Unknown(type, revision, count)
        for (type, revision), count in sorted(counts.items())
        if revision > newest.get(type, -1)
    ]
    return RealmFeatures(record, features, unknown)


def _counts(backend: Backend, realm: str, on_read: Callable[[int], None]) -> Counter[tuple[str, int]]:
    """Return the number of objects of a realm, by type and revision. The type of rows of an unknown format is ''."""
    counts: Counter[tuple[str, int]] = Counter()
    for split in backend.splits("objects", [realm], 1):
        for batch in backend.scan(split):
            columns = (batch.column(name).to_pylist() for name in ("id", "part", "value"))
            before = counts.total()
            for id, part, value in zip(*columns, strict=True):
                if part:
                    continue
                try:
                    header = objects.decode_header(value, f"{realm}/{id}")
                    counts[header.type, header.revision] += 1
                except NewerFormatError:
                    counts["", 0] += 1
                except CorruptionError as error:
                    raise CorruptionError(f"{error}: run polaris-spark fsck") from error
            on_read(counts.total() - before)
    return counts
