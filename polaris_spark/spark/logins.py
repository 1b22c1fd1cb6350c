"""The scope of a read of system views: what the reading principal may see. This is the principal of the session, or the
principal whose credentials are given as options of the read.

Modules of access control are imported only for realms that have it, because importing them takes long."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from polaris_spark.access.needs import Needs
from polaris_spark.access.scopes import Scope, scope_of
from polaris_spark.catalog.catalogs.references import ACCESS
from polaris_spark.clock import SystemClock
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import NotAuthorizedError, RealmStateError, ReferenceGoneError
from polaris_spark.names import MAIN
from polaris_spark.spark.realm_reader import ReadStore, RealmReader
from polaris_spark.store_uris import Secret

if TYPE_CHECKING:
    from polaris_spark.access.rows import Principal
    from polaris_spark.access.rules import Rules, Subject
    from polaris_spark.catalog.rows import CatalogRow


class Granted(NamedTuple):
    """The scope of a read whose principal has been checked."""

    scope: Scope | None
    """None for everything: the realm has no access control."""


class Login:
    """The principal of a read that no session has checked."""

    def __init__(self, realm: str, credential: Secret | None) -> None:
        """
        Args:
            realm: name of the realm.
            credential: text of the form `client_id:client_secret`.
        """
        self._realm = realm
        self._credential = credential
        self._known: Principal | None = None

    def __getstate__(self) -> dict[str, object]:
        # Executors get a scope, and no credentials.
        return {"_realm": self._realm, "_credential": None, "_known": None}

    def granted(self, store: ReadStore, shown: Needs) -> Granted:
        """Return what the principal may see in a view.

        Args:
            shown: the privileges with which a principal may see a row of the view (`SystemView.shown`).
        Raises:
            NotAuthorizedError: the realm has access control, and the credentials are missing or wrong.
        """
        try:
            realm = store.realm(self._realm)
        except RealmStateError:
            return Granted(None)  # views of a realm report it; others show records of the store
        rules = _rules_of(realm)
        if rules is None:
            return Granted(None)
        if self._credential is None:
            raise NotAuthorizedError(
                "this realm has access control: set the option 'credential' to client_id:client_secret, or read the "
                "view as polaris.system.<view> in a catalog with credentials"
            )
        now = SystemClock().now_ms()
        from polaris_spark.access.credentials import Credentials
        from polaris_spark.access.reading import authenticate

        if self._known is None or rules.principals.get(self._known.name) != self._known:
            parsed = Credentials.parse(self._credential.reveal(), "the option 'credential'")
            self._known, _ = authenticate(rules.head, parsed.client_id, parsed.secret.reveal(), now)
        subject = rules.subject(self._known.name, now)
        return granted_to(
            rules,
            subject,
            realm.record.instance,
            shown,
            realm.catalogs(),
            lambda row: realm.open(realm.branch(row, MAIN)),
        )


def granted_to(
    rules: Rules,
    subject: Subject,
    realm: str,
    shown: Needs,
    catalogs: list[CatalogRow],
    head: Callable[[CatalogRow], CommitReader],
) -> Granted:
    """Return what a principal may see in a view.

    Args:
        realm: instance id of the realm.
        shown: the privileges with which a principal may see a row of the view (`SystemView.shown`).
        catalogs: all catalogs of the realm.
        head: returns the newest commit of the branch `main` of a catalog.
    """
    from polaris_spark.rest.permissions import known_catalogs, knows_all_catalogs

    known = None
    if not knows_all_catalogs(subject):
        are_known = known_catalogs(rules, subject, catalogs)
        known = [one.entity_id for one, is_known in zip(catalogs, are_known, strict=True) if is_known]
    if subject.delegated is not None:
        from polaris_spark.access.delegated_scopes import delegated_scope

        ids = frozenset(known or ())
        seen = [one for one in catalogs if one.entity_id in ids]
        return Granted(delegated_scope(subject, realm, shown, seen, lambda row: (MAIN, head(row)), known=ids))
    return Granted(scope_of(rules, subject, realm, shown, known))


_rules: dict[tuple[str, int], Rules] = {}


def _rules_of(realm: RealmReader) -> Rules | None:
    """Return the rules of a realm; None if it has no access control.

    Raises:
        ReferenceGoneError: the reference `access` was dropped. This does not turn access control off.
    """
    try:
        head = realm.live(ACCESS)[1]
    except ReferenceGoneError:
        if any(one.name == ACCESS for one in realm.listed()):
            raise
        return None
    key = (realm.record.instance, head.commit)
    found = _rules.get(key)
    if found is None:
        from polaris_spark.access.rules import Rules

        _rules.clear()
        found = _rules[key] = Rules(realm.open(head), realm.record.name)
    return found
