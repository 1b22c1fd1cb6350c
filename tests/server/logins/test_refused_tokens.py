"""Forged, foreign and revoked tokens are refused."""

from __future__ import annotations

import json
import time
from pathlib import Path

from polaris_spark.access.changes import Assign, RoleName
from polaris_spark.access.credentials import Credentials
from polaris_spark.access.principal_changes import (
    AlterPrincipal,
    CreatePrincipal,
    DropPrincipal,
    ReplaceCredentials,
)
from polaris_spark.access.rows import ACCESS
from polaris_spark.commits.change import Operation
from polaris_spark.jobs.registry import call
from polaris_spark.store_uris import Secret
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.server.logins.tokens import forged
from tests.server.realms import Realm, ask, credentials_form, exchange_form, new_realm, status_of, token_of
from tests.server.servers import Remote, Server


def test_forged_tokens_are_refused(server: Server, realm: Realm) -> None:
    right = token_of(server)
    assert status_of(server, right) == 200
    for what, token in forged(realm, right).items():
        assert token != right
        assert status_of(server, token) == 401, what
        assert ask(server, exchange_form(token))[0] == 400, what
    assert status_of(server, right) == 200


def test_tokens_of_another_realm_are_refused(server: Server, realm: Realm) -> None:
    other = new_realm(realm.folder, "other")
    with other.server() as second:
        theirs, ours = token_of(second), token_of(server)
        assert (status_of(second, theirs), status_of(server, ours)) == (200, 200)
        assert (status_of(server, theirs), status_of(second, ours)) == (401, 401)
        assert ask(server, exchange_form(theirs))[0] == 400


def test_tokens_end_with_the_credentials(server: Server, realm: Realm) -> None:
    """Rotation, reset, revocation and dropping end tokens that were issued before, within a stated time."""
    for name, cls, options in (
        ("rotated", ReplaceCredentials, {}),
        ("reset", ReplaceCredentials, {"is_reset": True, "keep_old_ms": 60_000}),
        ("revoked", AlterPrincipal, {"state": "revoked"}),
        ("expired", AlterPrincipal, {"expires": 1}),
        ("dropped", DropPrincipal, {}),
    ):
        old = Credentials(f"{name}-id", Secret("old-secret-old-secret"))
        new = Credentials(f"{name}-id", Secret("new-secret-new-secret"))
        realm.change(CreatePrincipal, name, old)
        form = {"grant_type": "client_credentials", "client_id": old.client_id}
        token = ask(server, {**form, "client_secret": old.secret.reveal()})[2]["access_token"]
        assert status_of(server, token) == 200
        arguments = [name, new] if cls is ReplaceCredentials else [name]
        realm.change(cls, *arguments, **options)
        changed = time.monotonic()
        wait_until(lambda token=token: status_of(server, token) == 401, "the change holds")
        # Two seconds are promised. The machine of the test may be slow.
        assert time.monotonic() - changed < PATIENCE_S / 3
        assert ask(server, exchange_form(token))[0] == 400
        kept = options.get("keep_old_ms", 0) > 0
        old_status = ask(server, {**form, "client_secret": old.secret.reveal()})[0]
        new_status = ask(server, {**form, "client_secret": new.secret.reveal()})[0]
        assert old_status == (200 if kept else 401), name
        assert new_status == (200 if cls is ReplaceCredentials else 401), name


def test_a_rotation_that_keeps_the_old_secret_keeps_its_tokens(server: Server, realm: Realm) -> None:
    old, new = (Credentials("kept-id", Secret(f"{text}-secret-of-kept")) for text in ("old", "new"))
    realm.change(CreatePrincipal, "kept", old)
    form = {"grant_type": "client_credentials", "client_id": "kept-id"}
    before = ask(server, {**form, "client_secret": old.secret.reveal()})[2]
    realm.change(ReplaceCredentials, "kept", new, keep_old_ms=60_000)
    wait_until(
        lambda: ask(server, {**form, "client_secret": new.secret.reveal()})[0] == 200, "the change holds"
    )
    time_left = ask(server, {**form, "client_secret": old.secret.reveal()})[2]["expires_in"]
    assert 0 < time_left <= 60
    assert status_of(server, before["access_token"]) == 200


def test_all_tokens_can_be_revoked(tmp_path: Path) -> None:
    realm = new_realm(tmp_path)
    with realm.server() as server:
        tokens = [token_of(server, who) for who in ("ann", "bob")]
        assert [status_of(server, token) for token in tokens] == [200, 200]
        with realm.session() as session:
            assert call(session, "revoke_tokens") == [(1,)]
        wait_until(lambda: [status_of(server, token) for token in tokens] == [401, 401], "the change holds")
        assert status_of(server, token_of(server)) == 200


def test_a_token_that_was_just_revoked_does_not_rotate_the_credentials(tmp_path: Path) -> None:
    """Whoever has an old token must not take the principal over while a server still accepts the token."""
    realm = new_realm(tmp_path)
    new = Credentials("ann-id", Secret("ann-new-secret-" + "y" * 20))
    with realm.server() as server:
        token = token_of(server, "ann")
        assert status_of(server, token) == 200
        with realm.references() as references:
            change = ReplaceCredentials(references.clock, Operation(b"", "root"), "ann", new, is_reset=True)
            references.commit(ACCESS, change)
        body = json.dumps({"arguments": {}, "wait-seconds": 10})
        procedure = "polaris-spark/v1/procedures/rotate_credentials"
        answer = Remote(server.uri, token).request("POST", procedure, None, body)
        assert "have changed since the login" in answer[2] or answer[0] == 401, answer
        form = {**credentials_form("ann"), "client_secret": new.secret.reveal()}
        assert ask(server, form)[0] == 200


def test_only_a_login_with_the_newest_secret_and_all_roles_rotates_it(server: Server, realm: Realm) -> None:
    """Otherwise, it could log in for longer, or with more roles."""
    old, new = (Credentials("thrice-id", Secret(f"{text}-secret-of-thrice")) for text in ("old", "new"))
    realm.change(CreatePrincipal, "thrice", old)
    realm.change(Assign, RoleName("reader"), principal="thrice")
    realm.change(Assign, RoleName("service_admin"), principal="thrice")
    realm.change(ReplaceCredentials, "thrice", new, keep_old_ms=60_000)
    body = json.dumps({"arguments": {}, "wait-seconds": 10})

    def rotate(token: str) -> tuple[int, str]:
        procedure = "polaris-spark/v1/procedures/rotate_credentials"
        status, _, answer = Remote(server.uri, token).request("POST", procedure, None, body)
        return status, answer

    def token(of: Credentials, **more: str) -> str:
        given = {"client_id": of.client_id, "client_secret": of.secret.reveal()}
        status, _, answer = ask(server, {"grant_type": "client_credentials", **given, **more})
        assert status == 200, answer
        return str(answer["access_token"])

    status, answer = rotate(token(old))
    assert (status, "log in with the newest secret" in answer) == (401, True), answer
    status, answer = rotate(token(new, scope="PRINCIPAL_ROLE:reader"))
    assert (status, "all roles of the principal" in answer) == (403, True), answer
    assert rotate(token(new))[0] == 200
