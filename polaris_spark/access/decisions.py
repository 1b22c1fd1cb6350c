"""Decisions of external authorizers (`access.authorizers`): settings, time limits and a cache.

The rows of a realm name its authorizer (`access.grant_changes.SetAuthorizer`). Each process reads the settings of
authorizers from the file that the environment variable `POLARIS_SPARK_AUTHORIZERS` names. Rows contain no addresses
and no secrets.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from cachetools import TTLCache

from polaris_spark.access.authorizers import (
    GROUP,
    MAX_SECURABLES,
    Authorizer,
    AuthorizerError,
    Question,
    Securable,
)
from polaris_spark.errors import ForbiddenError, InputError, PolarisError
from polaris_spark.forks import begin_anew_in_children
from polaris_spark.property_values import duration_ms

log = logging.getLogger("polaris_spark.access")

VARIABLE: Final = "POLARIS_SPARK_AUTHORIZERS"
"""Environment variable with the path of the file with the settings of authorizers."""
TIMEOUT: Final = "2 s"
"""Default maximum time of one call of an authorizer."""
CACHE: Final = "1 s"
"""Default time for which a decision is used again. A privilege that was withdrawn holds for at most this time."""

CALLS: Final = 8
"""Default maximum number of simultaneous calls of an authorizer. It is less than the number of threads of a server, so
that an authorizer that does not answer leaves threads for other requests."""
SLOW_SECONDS: Final = 0.1
"""Age at which a call counts as slow, in seconds. While the maximum number of calls is in progress, a request waits for
one of them to end. It is refused if the oldest of them is slow."""

_KEPT: Final = 100_000
"""Maximum number of decisions that a process keeps for each authorizer."""


class Decisions:
    """The decisions of one authorizer, cached for a short time. Thread-safe."""

    def __init__(
        self,
        name: str,
        authorizer: Authorizer,
        *,
        timeout_ms: int,
        cache_ms: int,
        calls: int = CALLS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            name: name of the authorizer, for messages.
            timeout_ms: maximum time of one call, in milliseconds.
            cache_ms: time for which a decision is used again, in milliseconds; 0 for never.
            calls: maximum number of simultaneous calls.
            monotonic: clock, in seconds.
        """
        self._name = name
        self._authorizer = authorizer
        self._timeout = timeout_ms / 1_000
        self._monotonic = monotonic
        self._known: TTLCache[tuple[object, ...], bool] = TTLCache(_KEPT, cache_ms / 1_000, timer=monotonic)
        self._guard = threading.Lock()
        self._calls = _Calls(calls)

    def of(self, question: Question) -> list[bool]:
        """Return for each securable of a question whether the principal has the privilege on it.

        Raises:
            AuthorizerError: the authorizer made no decision.
        """
        asker = question[:4]
        with self._guard:
            known = {one: self._known.get((asker, one)) for one in question.securables}
        missing = [one for one, decision in known.items() if decision is None]
        for first in range(0, len(missing), MAX_SECURABLES):
            some = tuple(missing[first : first + MAX_SECURABLES])
            found = self._ask(question._replace(securables=some))
            known.update(zip(some, found, strict=True))
            with self._guard:
                for one, decision in zip(some, found, strict=True):
                    self._known[(asker, one)] = decision
        return [known[one] is True for one in question.securables]

    def _ask(self, question: Question) -> list[bool]:
        try:
            with self._calls.one(self._timeout):
                begin = self._monotonic()
                found = list(self._authorizer.decide(question, self._timeout))
            if self._monotonic() - begin > self._timeout:
                raise AuthorizerError(f"it took longer than its timeout of {self._timeout:g} s")
            if len(found) != len(question.securables) or not all(isinstance(one, bool) for one in found):
                raise AuthorizerError("it did not return one decision, true or false, for each securable")
        except Exception as error:  # any failure of an authorizer must refuse the request
            log.warning("authorizer %s made no decision: %s", self._name, error, exc_info=True)
            said = str(error) if isinstance(error, PolarisError) else "it failed; the log has the error"
            raise AuthorizerError(
                f"the request is refused, because the authorizer {self._name!r} of this realm made no decision: {said}"
            ) from None
        return found


class _Calls:
    """Bounds the number of simultaneous calls of an authorizer. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._begun: dict[object, float] = {}
        """Time of the monotonic clock at which each call in progress began."""
        self._ended = threading.Condition()

    @contextmanager
    def one(self, timeout: float) -> Iterator[None]:
        """Count a call for the duration of a `with` block.

        Args:
            timeout: maximum time to wait for the end of another call, in seconds.
        Raises:
            AuthorizerError: the maximum number of calls is in progress, and no call ended in time.
        """
        call, until = object(), time.monotonic() + timeout
        with self._ended:
            while len(self._begun) >= self._most:
                now = time.monotonic()
                left = min(until, min(self._begun.values()) + SLOW_SECONDS) - now
                if left <= 0:
                    raise AuthorizerError(
                        f"{len(self._begun)} calls to the authorizer are already in progress, the maximum"
                    )
                self._ended.wait(left)
            self._begun[call] = time.monotonic()
        try:
            yield
        finally:
            with self._ended:
                del self._begun[call]
                self._ended.notify()


class _Loaded:
    """The authorizers that this process has loaded. A forked child loads its own, because it must not use the
    connections of its parent."""

    def __init__(self) -> None:
        self.begin_in_child()
        begin_anew_in_children(self)

    def begin_in_child(self) -> None:
        self._guard = threading.Lock()
        self._found: dict[tuple[str, str], Decisions] = {}

    def named(self, name: str) -> Decisions:
        path = os.environ.get(VARIABLE, "")
        with self._guard:
            found = self._found.get((path, name))
            if found is None:
                found = self._found[(path, name)] = _load(path, name)
            return found


_loaded: Final = _Loaded()


def decisions_of(name: str) -> Decisions:
    """Return the decisions of an authorizer. The settings of the authorizer are read when the process first uses it.

    Raises:
        ForbiddenError: this process has no usable settings of the authorizer.
    """
    try:
        return _loaded.named(name)
    except (InputError, OSError) as error:
        raise ForbiddenError(
            f"the authorizer {name!r} decides about requests in this realm, and this process cannot use it: {error}"
        ) from None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    authorizers: dict[str, dict[str, Any]]


def _load(path: str, name: str) -> Decisions:
    if not path:
        raise InputError(f"set the environment variable {VARIABLE} to the path of the file with its settings")
    try:
        file = msgspec.json.decode(Path(path).read_bytes(), type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"the file {path}, which {VARIABLE} names, cannot be read: {error}") from None
    settings = file.authorizers.get(name)
    if settings is None:
        raise InputError(f"the file {path}, which {VARIABLE} names, has no authorizer {name!r}")
    settings = dict(settings)
    kind = str(settings.pop("type", name))
    timeout = duration_ms("timeout", str(settings.pop("timeout", TIMEOUT)))
    cache = duration_ms("cache", str(settings.pop("cache", CACHE)))
    calls = settings.pop("calls", CALLS)
    if type(calls) is not int or calls < 1:
        raise InputError(
            f"'calls' of the authorizer {name!r} is {calls!r}; it must be a number of at least 1"
        )
    if not timeout:
        raise InputError(f"the timeout of the authorizer {name!r} must be longer than 0 s")
    return Decisions(name, _made(kind, name, settings), timeout_ms=timeout, cache_ms=cache, calls=calls)


def _made(kind: str, name: str, settings: dict[str, Any]) -> Authorizer:
    if kind == "opa":
        from polaris_spark.access.opa import opa_authorizer

        return opa_authorizer(settings)
    known = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}
    if kind not in known:
        names = ", ".join(sorted({"opa", *known}))
        raise InputError(f"the authorizer {name!r} has the type {kind!r}; known types are {names}")
    try:
        made: Authorizer = known[kind].load()(settings)
    except PolarisError:
        raise
    except Exception as error:  # of another package
        log.warning("the authorizer %s could not be made: %s", name, error, exc_info=True)
        raise InputError(
            f"the authorizer {name!r} of type {kind!r} could not be created ({type(error).__name__}); see the log for "
            "the error"
        ) from None
    return made


class Delegated:
    """What an authorizer lets one principal do."""

    def __init__(self, authorizer: str, realm: str, principal: str, roles: Sequence[str]) -> None:
        """
        Args:
            authorizer: name of the authorizer.
            realm: name of the realm.
            roles: names of the principal roles that the principal uses.
        """
        self.authorizer = authorizer
        self._realm = realm
        self._principal = principal
        self._roles = tuple(sorted(roles))

    def may(self, privilege: str, securable: Securable) -> bool:
        """Whether the principal has a privilege on a securable.

        Raises:
            AuthorizerError: the authorizer made no decision.
            ForbiddenError: this process has no usable settings of the authorizer.
        """
        return self.which(privilege, [securable])[0]

    def which(self, privilege: str, securables: Sequence[Securable]) -> list[bool]:
        """Return for each of some securables whether the principal has a privilege on it. The authorizer is asked about
        all of them at once.

        Raises:
            AuthorizerError: the authorizer made no decision.
            ForbiddenError: this process has no usable settings of the authorizer.
        """
        if not securables:
            return []
        return decisions_of(self.authorizer).of(
            Question(self._realm, self._principal, self._roles, privilege, tuple(securables))
        )
