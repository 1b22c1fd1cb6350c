"""Registrations of references in a realm's registry. `registry_changes` changes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from polaris_spark.commits.rows import Head
from polaris_spark.index import Entry, Index
from polaris_spark.store.references import GARBLED, unreadable

ROOT = "root"
"""Name of the registry, the reference that lists the other references of a realm."""

REFERENCES = "references"
"""Name of the registry's index, which maps the name of a reference to its registration and to the commit it started
from."""

_BRANCHES, _TAGS = "heads", "tags"


class NameParts(NamedTuple):
    """The parts of the name of a branch or tag of a catalog."""

    catalog: str
    """The part before the kind, which is the same for all branches and tags of the catalog: `cat/<id>/`."""
    is_tag: bool
    name: str
    """Name of the branch or tag."""

    @property
    def rival(self) -> str:
        """If this is a branch, the reference name that a tag of the same name would have; if this is a tag, the
        reference name of such a branch."""
        return f"{self.catalog}{_BRANCHES if self.is_tag else _TAGS}/{self.name}"


def name_parts(reference: str) -> NameParts | None:
    """Return the parts of the name of a reference; None if it is neither a branch nor a tag of a catalog."""
    prefix, *rest = reference.split("/", 3)
    if prefix != "cat" or len(rest) < 3 or rest[1] not in (_BRANCHES, _TAGS):
        return None
    id, kind, name = rest
    return NameParts(f"cat/{id}/", kind == _TAGS, name)


@lru_cache(maxsize=1_024)  # each commit asks
def is_tag(reference: str) -> bool:
    """Whether a reference is a tag of a catalog, which accepts no commits."""
    parts = name_parts(reference)
    return parts is not None and parts.is_tag


def group_of(reference: str) -> str:
    """Return a prefix of the name of a reference that is equal for all references that can have common commits: the
    branches and tags of a catalog."""
    parts = name_parts(reference)
    return reference.rpartition("/")[0] if parts is None else parts.catalog


class Description(NamedTuple):
    """Owner, comment and origin of a branch or tag."""

    owner: str = ""
    comment: str = ""
    origin: str = ""
    """The branch, tag or commit from which it began, as the user wrote it."""


NO_DESCRIPTION = Description()


class Registration(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Registration of a reference: the value of its entry in the registry's index. The entry's pointer is the id of the
    commit that the reference started from.

    `number` and `commit_time` are the number and time of that commit. `floor_number` and `floor_time` are the number
    and time of the history floor that the reference started with.
    """

    generation: int
    state: Literal["live", "dropped"]
    time: int
    """Time of the last change of this registration, in milliseconds since 1970."""
    principal: str
    number: int
    commit_time: int
    floor_number: int = 0
    floor_time: int = 0
    time_resets: tuple[int, ...] = ()
    """`Head.time_resets` of the head from which the reference started: numbers of commits that are earlier than their
    parents."""
    owner: str = ""
    comment: str = ""
    origin: str = ""
    """The fields `owner`, `comment` and `origin` are the `Description` of the reference; empty if an earlier release
    created it."""
    protected: bool = False
    """Whether the branch is protected. Its commits have a copy of this flag (`catalog.branches.protection`)."""
    protection: int = 0
    """A new id for each change of `protected`; 0 if it was never changed."""
    keep_ms: int = 0
    """Minimum time for which the history of the branch is kept, in milliseconds, if it is longer than that of the
    catalog."""
    keep_commits: int = 0
    """Minimum number of commits that are kept before the newest one, whatever their age."""
    with_catalog: bool = False
    """Whether the reference was dropped with its catalog. It is then restored with the catalog."""
    renaming: str = ""
    """Name that a dropped reference gets, because it is being renamed; empty if it was dropped otherwise."""
    renamed: str = ""
    """`Registered.row_name` of the reference under its earlier name; empty if the last change of the name was not a
    rename."""

    @classmethod
    def from_head(
        cls,
        head: Head,
        generation: int,
        *,
        now_ms: int,
        principal: str,
        state: Literal["live", "dropped"] = "live",
        description: Description = NO_DESCRIPTION,
    ) -> Registration:
        """Return the registration of a reference whose first head or present head is `head`."""
        return cls(
            generation,
            state,
            now_ms,
            principal,
            head.number,
            head.time,
            head.floor_number,
            head.floor_time,
            head.time_resets,
            *description,
        )

    @property
    def description(self) -> Description:
        """Owner, comment and origin of the reference."""
        return Description(self.owner, self.comment, self.origin)


encode_registration = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Registration).decode


class Registered(NamedTuple):
    """The registration of the reference `name`, with the commit (`source`) that the reference started from."""

    name: str
    source: int
    registration: Registration

    @property
    def row_name(self) -> str:
        """Name of the reference's row: name and generation. A reference that is created again gets a new generation and
        row."""
        return f"{self.name}@{self.registration.generation:x}"

    def first_head(self, *, sealed: bool = False) -> Head:
        """Return the first value of the reference's row: the head that points to the commit from which the reference
        started.

        The head's fence is the generation, which is not below the registry's fence. So objects that were prepared for
        an earlier reference of the same name are not used for this one.
        """
        r = self.registration
        return Head(
            self.source,
            r.number,
            r.commit_time,
            r.floor_number,
            r.floor_time,
            fence=r.generation,
            sealed=sealed,
            time_resets=r.time_resets,
        )


def listed_in(index: Index) -> list[Registered]:
    """Return all registrations, live and dropped, of the registry's index `REFERENCES`, ordered by name."""
    return [registered_by(key.decode(), entry) for key, entry in index.range()]


def registered_by(name: str, entry: Entry) -> Registered:
    """Decode the entry of the reference `name` in the registry's index, and return it.

    Raises:
        CorruptionError: the value cannot be decoded.
        NewerFormatError: a newer release wrote the registration, with fields that are unknown here.
    """
    try:
        return Registered(name, entry.pointer, _decode(entry.value))
    except GARBLED as error:
        raise unreadable(error, f"the registration of reference {name!r}", Registration) from error


def expired(
    listed: Iterable[Registered], now_ms: int, grace_ms: int | Callable[[str], int]
) -> list[Registered]:
    """Return the references that were dropped at least the grace period ago. A reference that is being renamed is not
    among them.

    Args:
        grace_ms: the grace period in milliseconds, for all references, or as a function of a reference's name.
    """
    return [
        one
        for one in listed
        if one.registration.state == "dropped"
        and not one.registration.renaming
        and now_ms - one.registration.time >= (grace_ms(one.name) if callable(grace_ms) else grace_ms)
    ]


def was_dropped_with_catalog(registered: Registered) -> bool:
    """Whether a reference is dropped because its catalog was dropped."""
    return registered.registration.state == "dropped" and registered.registration.with_catalog
