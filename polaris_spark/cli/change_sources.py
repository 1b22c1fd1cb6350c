"""Sources of changes for `polaris-spark watch`: a store that this process opens, or a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from polaris_spark.catalog.branches.change_log import (
    MAX_CHANGES,
    POLL_SECONDS,
    BranchLog,
    LogPosition,
    changes_after,
    newest_position,
    oldest_position,
)
from polaris_spark.cli.output import tell
from polaris_spark.cli.remote import RemoteServer
from polaris_spark.errors import TryAgainError

Json = dict[str, Any]
T = TypeVar("T")

OLDEST = "oldest"
"""Position before the oldest change whose log is kept."""

WAIT_SECONDS = 30
"""Maximum time for which a source waits for a change before it returns an empty page, in seconds."""

_LONGEST_PAUSE_SECONDS = 30.0


class ChangeBatch(NamedTuple):
    """Changes of a branch, and the position after them."""

    catalog: str
    branch: str
    changes: list[Json]
    position: str


class ChangeSource(Protocol):
    """A source of changes."""

    def read(self, after: str | None, *, wait: bool) -> ChangeBatch:
        """Return changes after a position, oldest first.

        Args:
            after: the position; None means the position after the newest change, and `OLDEST` the position before the
                oldest change.
            wait: whether to wait for a change, for about `WAIT_SECONDS`, if there is none.
        Raises:
            TryAgainError: the changes cannot be read now.
            PolarisError: the position is not valid, or the log after it is not kept.
        """
        ...


class StoreSource:
    """Reads changes from a store."""

    def __init__(self, catalog: str, branch: str, newest: Callable[[], BranchLog]) -> None:
        """
        Args:
            newest: reads the log of the branch as it is now.
        """
        self._catalog = catalog
        self._branch = branch
        self._newest = newest

    def read(self, after: str | None, *, wait: bool) -> ChangeBatch:
        """See `ChangeSource.read`."""
        log = self._newest()
        if after in (None, OLDEST):
            position = newest_position(log) if after is None else oldest_position(log)
        else:
            position = LogPosition.parse(after or "", "the position")
        until = time.monotonic() + WAIT_SECONDS
        while True:
            page = changes_after(log, position, MAX_CHANGES)
            position = page.position
            if page.changes or not wait or time.monotonic() >= until:
                return ChangeBatch(self._catalog, self._branch, page.changes, str(position))
            time.sleep(POLL_SECONDS)
            log = self._newest()


class ServerSource:
    """Reads changes from a server, by long polling."""

    def __init__(self, server: RemoteServer) -> None:
        self._server = server

    def read(self, after: str | None, *, wait: bool) -> ChangeBatch:
        """See `ChangeSource.read`."""
        query = {"limit": str(MAX_CHANGES), "wait": f"{WAIT_SECONDS if wait else 0}s"}
        if after is not None:
            query["after"] = after
        found = self._server.changes(query)
        return ChangeBatch(found["catalog"], found["branch"], found["changes"], found["next"])


def follow(
    source: ChangeSource, after: str | None, sleep: Callable[[float], None] = time.sleep
) -> Iterator[ChangeBatch]:
    """Yield the changes after a position, and then new changes as they are committed, without end. The first batch may
    have no changes; its position is where the reader begins.

    If the changes cannot be read for a temporary reason, print a message on standard error, and try again.

    Raises:
        PolarisError: the changes cannot be read for another reason, such as a log that is not kept any more.
    """
    begun = False
    while True:
        found = until_readable(partial(source.read, after, wait=begun), sleep)
        begun, after = True, found.position
        yield found


def until_readable(read: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """Return what a function reads. If it fails for a temporary reason, print a message on standard error, and call it
    again after a pause.

    Raises:
        PolarisError: the function fails for another reason.
    """
    pause = POLL_SECONDS
    while True:
        try:
            return read()
        except TryAgainError as error:
            tell(f"{error}; trying again in {pause:g} s")
            sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def begun_at(after: str) -> str:
    """Check the position that the option `--after` gives, and return it.

    Raises:
        InputError: the text is neither `oldest` nor a position in a log.
    """
    if after != OLDEST:
        LogPosition.parse(after, "--after")
    return after
