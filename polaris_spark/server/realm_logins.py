"""Logins to a realm with access control: tokens that its servers issued, and the check that a principal may log in."""

from __future__ import annotations

from polaris_spark.access.control import AccessControl
from polaris_spark.access.jwts import ExpiredTokenError
from polaris_spark.access.rules import Rules
from polaris_spark.access.tokens import VerifiedToken, verify_token
from polaris_spark.clock import Clock
from polaris_spark.errors import NotAuthorizedError
from polaris_spark.server.logins import Login


class RealmLogins:
    """Accepts the tokens that the servers of a realm issue. Thread-safe.

    If cached rules refuse a login, the login is checked again with the newest rules. So all servers accept a token at
    once, even if its key or its principal is new.
    """

    def __init__(self, realm: str, access: AccessControl, clock: Clock) -> None:
        self._realm = realm
        self._access = access
        self._clock = clock

    def authenticate(self, token: str) -> Login | None:
        """Return the login of a token that a server of the realm issued; None if something else issued the token.

        Raises:
            NotAuthorizedError: the token is not accepted.
        """
        rules = self._access.rules()
        if rules is None:
            return None
        try:
            found = self._verified(rules, token)
        except ExpiredTokenError:
            raise
        except NotAuthorizedError:
            newest = self._access.newest()
            if newest is None or newest.commit == rules.commit:
                raise
            found = self._verified(newest, token)
        if found is None:
            return None
        return Login(
            found.principal.name,
            found.roles,
            method="issued-token",
            expires=found.expires,
            secret=found.secret,
            exchangeable_until=found.until,
        )

    def admit(self, login: Login) -> None:
        """Check that a principal may log in to the realm. In a realm without access control, every principal may.

        Raises:
            NotAuthorizedError: the principal does not exist, is revoked or has expired.
        """
        rules = self._access.rules()
        if rules is None or self._is_admitted(rules, login):
            return
        newest = self._access.newest()
        if newest is not None and not self._is_admitted(newest, login):
            raise NotAuthorizedError(f"the principal {login.principal!r} does not exist, or is not active")

    def _verified(self, rules: Rules, token: str) -> VerifiedToken | None:
        return verify_token(rules.head, self._realm, token, self._clock.now_ms())

    def _is_admitted(self, rules: Rules, login: Login) -> bool:
        found = rules.principals.get(login.principal)
        return found is not None and found.is_active(self._clock.now_ms())
