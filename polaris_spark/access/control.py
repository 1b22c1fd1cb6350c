"""Access control of one realm in this process: a cache of the rules, which is refreshed periodically."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Final, TypeVar

from polaris_spark.access.changes import AccessChange
from polaris_spark.access.credentials import Credentials
from polaris_spark.access.reading import access_head, authenticate
from polaris_spark.access.rows import ACCESS, HashedSecret, Principal
from polaris_spark.access.rules import Rules
from polaris_spark.errors import ForbiddenError
from polaris_spark.store_uris import Secret
from polaris_spark.system.registry import References

R = TypeVar("R")

REFRESH_MS: Final = 1_000
"""Default refresh period of the rules, in milliseconds. A revoked grant stays usable for at most this time."""
OFF_REFRESH_MS: Final = 10_000
"""Interval between checks whether a realm without access control has got access control, in milliseconds."""

_changes = 0
"""Number of changes that this process has made to the rules of any realm."""


class AccessControl:
    """The rules of a realm. Thread-safe. They are read at most once per refresh period, and at once after a change that
    this process made."""

    def __init__(
        self,
        references: References,
        refresh_ms: int = REFRESH_MS,
        monotonic: Callable[[], float] = time.monotonic,
        realm: str = "",
    ) -> None:
        """
        Args:
            refresh_ms: refresh period: time for which the rules are used before they are read again, in milliseconds.
            monotonic: clock, in seconds.
            realm: name of the realm, for its authorizer.
        """
        self.realm = realm
        self.references = references
        self.refresh_ms = refresh_ms
        self._monotonic = monotonic
        self._rules: Rules | None = None
        self._until = -1.0
        self._seen = -1
        self._refreshes = count(1)
        self._wanted = 0
        """Number of the last call of `refresh`."""
        self._answered = 0
        """Number of the last call of `refresh` before the rules were read."""
        self._reading = references.clock.lock()

    def rules(self) -> Rules | None:
        """Return the rules; None if the realm has no access control. Two calls return the same object if nothing has
        changed.

        Raises:
            ReferenceGoneError: the reference `access` was dropped.
        """
        if self._seen == _changes and self._answered == self._wanted and self._monotonic() < self._until:
            return self._rules
        with self._reading:
            seen, wanted = _changes, self._wanted
            if self._seen == seen and self._answered == wanted and self._monotonic() < self._until:
                return self._rules
            head = access_head(self.references)
            if head is None:
                self._rules = None
            elif self._rules is None or self._rules.commit != head.head.commit:
                self._rules = Rules(head, self.realm)
            period = OFF_REFRESH_MS if head is None else self.refresh_ms
            self._until = self._monotonic() + period / 1_000
            self._seen, self._answered = seen, wanted
            return self._rules

    def refresh(self) -> None:
        """Make the next call of `rules` read the rules again. A login calls this, so that a principal can log in
        as soon as it exists. If another thread is reading the rules now, `rules` reads them once more."""
        self._wanted = next(self._refreshes)

    def newest(self) -> Rules | None:
        """Read the rules now, and return them; None if the realm has no access control."""
        self.refresh()
        return self.rules()

    @property
    def is_on(self) -> bool:
        """Whether the realm has access control."""
        return self.rules() is not None

    def required(self) -> Rules:
        """Return the rules.

        Raises:
            ForbiddenError: the realm has no access control.
        """
        found = self.rules()
        if found is None:
            raise ForbiddenError(
                "this realm has no access control; an operator can turn it on with: polaris-spark bootstrap STORE"
            )
        return found

    def change(self, change: AccessChange[R]) -> R:
        """Commit a change of the rules. It takes effect in this process before this returns, and in other processes
        within their refresh period."""
        try:
            return self.references.commit(ACCESS, change)
        finally:
            changed()

    def log_in(self, credential: Secret) -> tuple[Principal, HashedSecret]:
        """Return the principal with these credentials, and its stored secret.

        Args:
            credential: text of the form `client_id:client_secret`.
        Raises:
            InputError: the text does not have this form.
            NotAuthorizedError: the credentials are wrong, or the principal is revoked or expired.
        """
        parsed = Credentials.parse(credential.reveal(), "the property 'credential'")
        head = self.required().head
        now = self.references.clock.now_ms()
        return authenticate(head, parsed.client_id, parsed.secret.reveal(), now)


def changed() -> None:
    """Make every `AccessControl` of this process read its rules again when it is next used."""
    global _changes
    _changes += 1
