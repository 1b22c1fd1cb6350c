"""Principals, roles, assignments and grants as rows, and the first administrator."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import polaris_spark
from polaris_spark.access import credentials as credentials_module
from polaris_spark.access.bootstrap import bootstrap
from polaris_spark.access.changes import Assign, CreateRole, DropRole, RoleName
from polaris_spark.access.control import AccessControl
from polaris_spark.access.credentials import Credentials, hashed, verify
from polaris_spark.access.grant_changes import Grant
from polaris_spark.access.principal_changes import (
    AlterPrincipal,
    CreatePrincipal,
    DropPrincipal,
    ReplaceCredentials,
)
from polaris_spark.access.reading import access_head, authenticate, find_principal, list_principals
from polaris_spark.access.rows import ACCESS, ASSIGNMENTS, GRANTS, Principal
from polaris_spark.access.securables import REALM
from polaris_spark.commits.change import Operation
from polaris_spark.commits.log import entries
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    ForbiddenError,
    InputError,
    NotAuthorizedError,
    NotFoundError,
)
from polaris_spark.spark.views.content import content_json
from polaris_spark.store_uris import Secret
from polaris_spark.system.registry import References

DONE = Operation(b"", "root")


@pytest.fixture
def references(tmp_path: Path) -> Iterator[References]:
    with polaris_spark.connect(store=f"memory:{uuid.uuid4()}", warehouse=str(tmp_path)) as session:
        yield session.catalog.references


def change(references: References, cls: Any, *arguments: Any, **keywords: Any) -> Any:
    return references.commit(ACCESS, cls(references.clock, DONE, *arguments, **keywords))


def log_in(references: References, credentials: Credentials) -> str:
    head = access_head(references)
    assert head is not None
    secret = credentials.secret.reveal()
    return authenticate(head, credentials.client_id, secret, references.clock.now_ms())[0].name


def create(references: References, name: str, **keywords: Any) -> Credentials:
    credentials = Credentials.new()
    change(references, CreatePrincipal, name, credentials, **keywords)
    return credentials


def test_a_realm_has_no_access_control_before_bootstrap(references: References) -> None:
    assert access_head(references) is None


def test_bootstrap_makes_an_administrator_who_can_log_in(references: References) -> None:
    made = bootstrap(references, DONE, "root", None)
    assert made.credentials is not None
    assert not made.was_on
    assert log_in(references, made.credentials) == "root"


def test_a_repeated_bootstrap_changes_nothing(references: References) -> None:
    first = bootstrap(references, DONE, "root", None)
    before = access_head(references)
    again = bootstrap(references, DONE, "root", None)
    after = access_head(references)
    assert again.was_on
    assert again.credentials is None
    assert before is not None
    assert after is not None
    assert before.head == after.head
    assert first.credentials is not None
    assert log_in(references, first.credentials) == "root"


def test_bootstrap_checks_given_credentials(references: References) -> None:
    given = Credentials.parse("admin:0123456789abcdef", "test")
    bootstrap(references, DONE, "root", given)
    assert bootstrap(references, DONE, "root", given).credentials is None
    with pytest.raises(InputError, match="credentials differ from the given"):
        bootstrap(references, DONE, "root", Credentials.parse("admin:0123456789abcdeX", "test"))
    with pytest.raises(InputError, match="no principal 'other'"):
        bootstrap(references, DONE, "other", None)


def test_bootstrap_accepts_only_an_active_administrator(references: References) -> None:
    bootstrap(references, DONE, "root", None)
    own = create(references, "ann")
    for reset in (False, True):
        if not reset:
            with pytest.raises(InputError, match="'ann' exists, but is not an active administrator"):
                bootstrap(references, DONE, "ann", own)
        else:
            assert bootstrap(references, DONE, "ann", None, reset=True).credentials is not None
            assert bootstrap(references, DONE, "ann", None).was_on
    change(references, AlterPrincipal, "ann", state="revoked")
    with pytest.raises(InputError, match="is not an active administrator"):
        bootstrap(references, DONE, "ann", None)
    change(references, DropPrincipal, "ann")
    for reset in (False, True):
        with pytest.raises(InputError, match="a dropped principal had the name 'ann'"):
            bootstrap(references, DONE, "ann", None, reset=reset)


def test_a_refresh_counts_while_the_rules_are_being_read(
    references: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading may have begun before the change that the caller of `refresh` wants to see."""
    bootstrap(references, DONE, "root", None)
    control = AccessControl(references, refresh_ms=60_000)

    def meanwhile(of: References) -> CommitReader | None:
        found = access_head(of)
        monkeypatch.undo()
        create(references, "late")
        control.refresh()
        return found

    monkeypatch.setattr("polaris_spark.access.control.access_head", meanwhile)
    first, again = control.rules(), control.rules()
    assert first is not None
    assert again is not None
    assert "late" not in first.principals
    assert "late" in again.principals
    assert control.rules() is again


def test_a_reset_replaces_the_credentials(references: References) -> None:
    old = bootstrap(references, DONE, "root", None).credentials
    new = bootstrap(references, DONE, "root", None, reset=True).credentials
    assert old is not None
    assert new is not None
    assert log_in(references, new) == "root"
    with pytest.raises(NotAuthorizedError):
        log_in(references, old)


def test_wrong_secrets_and_unknown_clients_get_the_same_answer(references: References) -> None:
    known = bootstrap(references, DONE, "root", None).credentials
    assert known is not None
    answers = []
    for client, secret in ((known.client_id, "wrong"), ("unknown", known.secret.reveal()), ("", "")):
        with pytest.raises(NotAuthorizedError) as found:
            log_in(references, Credentials(client, Secret(secret)))
        answers.append(str(found.value))
    assert len(set(answers)) == 1


def test_a_rotated_secret_is_valid_for_the_given_time(references: References) -> None:
    bootstrap(references, DONE, "root", None)
    old = create(references, "ann")
    new = Credentials.new(old.client_id)
    change(references, ReplaceCredentials, "ann", new, keep_old_ms=3_600_000)
    assert log_in(references, old) == log_in(references, new) == "ann"
    newest = Credentials.new(old.client_id)
    change(references, ReplaceCredentials, "ann", newest)
    for one in (old, new):
        with pytest.raises(NotAuthorizedError):
            log_in(references, one)
    assert log_in(references, newest) == "ann"


def test_revoked_expired_and_dropped_principals_cannot_log_in(references: References) -> None:
    bootstrap(references, DONE, "root", None)
    revoked, dropped = create(references, "ann"), create(references, "bob")
    expired = create(references, "eve", expires=1)
    change(references, AlterPrincipal, "ann", state="revoked")
    change(references, DropPrincipal, "bob")
    for one in (revoked, dropped, expired):
        with pytest.raises(NotAuthorizedError):
            log_in(references, one)
    change(references, AlterPrincipal, "ann", state="active")
    assert log_in(references, revoked) == "ann"


def test_the_name_of_a_dropped_principal_is_not_used_again(references: References) -> None:
    bootstrap(references, DONE, "root", None)
    create(references, "bob")
    change(references, DropPrincipal, "bob")
    with pytest.raises(AlreadyExistsError, match="never used again"):
        create(references, "bob")
    head = access_head(references)
    assert head is not None
    assert [one.name for one in list_principals(head)] == ["root"]


def test_the_last_administrator_cannot_be_taken_away(references: References) -> None:
    bootstrap(references, DONE, "root", None)
    create(references, "ann")
    with pytest.raises(ForbiddenError, match="only active principal"):
        change(references, DropPrincipal, "root")
    with pytest.raises(ForbiddenError, match="only active principal"):
        change(references, AlterPrincipal, "root", state="revoked")
    with pytest.raises(ForbiddenError, match="only active principal"):
        change(references, AlterPrincipal, "root", expires=1)
    with pytest.raises(ForbiddenError, match="only active principal"):
        change(references, Assign, RoleName("service_admin"), principal="root", revoke=True)
    change(references, Assign, RoleName("service_admin"), principal="ann")
    change(references, DropPrincipal, "root")


def test_grants_are_added_and_revoked(references: References) -> None:
    bootstrap(references, DONE, "root", None)
    role = RoleName("readers")
    change(references, CreateRole, role)
    both = change(references, Grant, role, REALM, ["TABLE_LIST", "TABLE_CREATE"], described="the realm")
    assert both == ["TABLE_CREATE", "TABLE_LIST"]
    left = change(references, Grant, role, REALM, ["TABLE_CREATE"], described="the realm", revoke=True)
    assert left == ["TABLE_LIST"]
    assert change(references, Grant, role, REALM, [], described="the realm", revoke=True) == []


def test_unknown_privileges_and_roles_are_refused(references: References) -> None:
    bootstrap(references, DONE, "root", None)
    with pytest.raises(BadRequestError, match="did you mean TABLE_LIST"):
        change(references, Grant, RoleName("readers"), REALM, ["TABLE_LIS"], described="the realm")
    with pytest.raises(NotFoundError, match="readers"):
        change(references, Grant, RoleName("readers"), REALM, ["TABLE_LIST"], described="the realm")
    with pytest.raises(NotFoundError, match="'ann'"):
        change(references, Assign, RoleName("service_admin"), principal="ann")
    with pytest.raises(ForbiddenError, match="cannot be dropped"):
        change(references, DropRole, RoleName("service_admin"))


def test_a_dropped_role_leaves_nothing(references: References) -> None:
    bootstrap(references, DONE, "root", None)
    create(references, "ann")
    role = RoleName("readers")
    change(references, CreateRole, role)
    change(references, Grant, role, REALM, ["TABLE_LIST"], described="the realm")
    change(references, Assign, role, principal="ann")
    change(references, DropRole, role)
    head = access_head(references)
    assert head is not None
    assert list(head.index(GRANTS).range()) == []
    assert len(list(head.index(ASSIGNMENTS).range())) == 1  # that of root


def test_secrets_and_hashes_are_shown_nowhere(references: References) -> None:
    credentials = bootstrap(references, DONE, "root", None).credentials
    head = access_head(references)
    assert credentials is not None
    assert head is not None
    row = find_principal(head, "root")
    assert row is not None
    shown = content_json(row)
    log = repr([entry for *_, entry in entries(head.store, head.head)])
    secret = credentials.secret.reveal()
    hashes = [row.secrets[0].hash.hex(), row.secrets[0].salt.hex()]
    for text in (shown, log, repr(credentials), repr(row)):
        assert repr(row.secrets[0].hash) not in text
        assert repr(row.secrets[0].salt) not in text
        assert not any(one in text for one in (secret, *hashes))
    assert "root" in shown
    assert msgspec.json.decode(shown)["secrets"][0]["hash"] == "***"


def test_the_work_to_refuse_a_login_does_not_reveal_whether_the_client_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000_000
    first, second = (hashed(Secret(text * 20), now) for text in "ab")
    expired = hashed(Secret("c" * 20), now, now - 1)
    known = Principal(1, "bob", "bob-id", now, secrets=(first,))
    clients: dict[str, Principal | None] = {
        "unknown": None,
        "one secret": known,
        "two secrets": msgspec.structs.replace(known, secrets=(first, second)),
        "no secret": msgspec.structs.replace(known, secrets=()),
        "expired secret": msgspec.structs.replace(known, secrets=(expired,)),
        "revoked": msgspec.structs.replace(known, state="revoked"),
        "expired": msgspec.structs.replace(known, expires=now - 1),
    }
    costs: list[tuple[int, int, int]] = []
    scrypt = credentials_module._scrypt

    def counted(secret: str, salt: bytes, *cost: int) -> bytes:
        costs.append(cost)  # type: ignore[arg-type]
        return scrypt(secret, salt, *cost)

    monkeypatch.setattr(credentials_module, "_scrypt", counted)
    work = {}
    for what, client in clients.items():
        costs.clear()
        assert not verify(client, "wrong", now)
        work[what] = list(costs)
    assert {tuple(found) for found in work.values()} == {((2**14, 8, 1),) * 2}, work
