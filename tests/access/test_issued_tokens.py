"""Issued tokens and the keys that sign them, with a clock of the test."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import polaris_spark
from polaris_spark.access.bootstrap import bootstrap
from polaris_spark.access.credentials import Credentials
from polaris_spark.access.jwts import ExpiredTokenError
from polaris_spark.access.principal_changes import ReplaceCredentials
from polaris_spark.access.reading import find_principal
from polaris_spark.access.rows import ACCESS, TokenKey
from polaris_spark.access.token_keys import (
    MAX_LIFETIME_MS,
    MOST_KEYS,
    ROTATION_MS,
    ServerKey,
    signing_key,
    token_keys,
)
from polaris_spark.access.tokens import TokenIssuer, VerifiedToken, scope_of, verify_token
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.errors import InputError, NotAuthorizedError
from polaris_spark.store_uris import Secret
from polaris_spark.system.registry import References

DONE = Operation(b"", "root")
SECOND_MS = 1_000
HOUR_MS = 3_600_000


class World:
    """A realm with the principal `root`, and a clock."""

    def __init__(self, references: References, clock: ManualClock) -> None:
        self.references = references
        self.clock = clock
        bootstrap(references, DONE, "root", None)

    def issue(
        self,
        key: ServerKey,
        realm: str = "default",
        lifetime: int = 3_600,
        roles: frozenset[str] | None = None,
        number: int = 0,
    ) -> str:
        """Issue a token for the secret of this number; 0 for the newest one."""
        head = self.references.read(ACCESS)
        principal = find_principal(head, "root")
        assert principal is not None
        issuer = TokenIssuer(self.references, realm, key, DONE, lifetime_seconds=lifetime)
        return issuer.issue(head, principal, roles, secret=principal.secrets[number].created)[0]

    def rotate(self, keep_old_ms: int) -> None:
        """Replace the secret of `root`."""
        row = find_principal(self.references.read(ACCESS), "root")
        assert row is not None
        new = Credentials.new(row.client_id)
        change = ReplaceCredentials(self.clock, DONE, "root", new, keep_old_ms=keep_old_ms)
        self.references.commit(ACCESS, change)

    def verify(self, token: str, realm: str = "default") -> VerifiedToken | None:
        return verify_token(self.references.read(ACCESS), realm, token, self.clock.now_ms())

    def keys(self) -> list[TokenKey]:
        return token_keys(self.references.read(ACCESS))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = ManualClock()
    store = f"memory:{uuid.uuid4()}"
    with polaris_spark.connect(store=store, warehouse=str(tmp_path), clock=clock) as session:
        yield World(session.catalog.references, clock)


def server_key(text: str = "k") -> ServerKey:
    return ServerKey(Secret(text * 32))


def test_a_token_is_valid_for_its_lifetime(world: World) -> None:
    token = world.issue(server_key())
    found = world.verify(token)
    assert found is not None
    assert (found.principal.name, found.roles) == ("root", None)
    world.clock.advance(HOUR_MS - SECOND_MS)
    assert world.verify(token)
    world.clock.advance(10 * SECOND_MS)
    with pytest.raises(ExpiredTokenError):
        world.verify(token)


def test_a_token_ends_with_the_secret_for_which_it_was_issued(world: World) -> None:
    """Otherwise, it could be exchanged for new ones for ever."""
    key = server_key()
    before = world.issue(key)
    world.clock.advance(SECOND_MS)
    world.rotate(keep_old_ms=HOUR_MS // 4)
    of_old, of_new = world.issue(key, number=1), world.issue(key)
    for token in (before, of_old, of_new):
        assert world.verify(token)
    world.clock.advance(HOUR_MS // 4)
    for token in (before, of_old):
        with pytest.raises(NotAuthorizedError):
            world.verify(token)
    found = world.verify(of_new)
    assert found is not None
    assert found.until == math.inf
    with pytest.raises(NotAuthorizedError):
        world.issue(key, number=1)


def test_a_token_ends_when_a_second_rotation_removes_its_secret(world: World) -> None:
    key = server_key()
    first = world.issue(key)
    for _ in range(2):
        world.clock.advance(SECOND_MS)
        assert world.verify(first)
        world.rotate(keep_old_ms=HOUR_MS)
    with pytest.raises(NotAuthorizedError, match="has been replaced"):
        world.verify(first)


@pytest.mark.parametrize("role", ["ALL", "data eng", "50%", "a%20b", 'a"b', "%41LL", "räder", "a\\b", "a:b"])
def test_every_name_of_a_role_survives_a_scope(world: World, role: str) -> None:
    roles = frozenset([role, "reader"])
    found = world.verify(world.issue(server_key(), roles=roles))
    assert found is not None
    assert found.roles == roles
    assert scope_of(roles).isascii()


def test_a_token_from_the_future_is_refused(world: World) -> None:
    token = world.issue(server_key())
    world.clock.set_wall(world.clock.now_ms() - 60 * SECOND_MS)
    with pytest.raises(NotAuthorizedError, match=r"not valid yet: its claim .* compare the clocks"):
        world.verify(token)


def test_a_token_is_of_one_realm_even_if_another_one_has_its_keys(world: World) -> None:
    """As a copy of a realm has."""
    token = world.issue(server_key(), realm="other")
    assert world.verify(token, "other")
    assert world.verify(token) is None


def test_keys_are_replaced_in_time_and_removed_when_their_tokens_have_expired(world: World) -> None:
    key = server_key()
    first = world.issue(key)
    world.clock.advance(ROTATION_MS - HOUR_MS / 2)
    last = world.issue(key)
    assert len(world.keys()) == 1
    world.clock.advance(HOUR_MS / 2)
    world.issue(key)
    assert len(world.keys()) == 2
    assert world.verify(last)
    with pytest.raises(ExpiredTokenError):
        world.verify(first)
    world.clock.advance(ROTATION_MS + 3 * MAX_LIFETIME_MS)
    world.issue(key)
    assert len(world.keys()) == 1 or world.keys()[0].created > world.clock.now_ms() - 2 * ROTATION_MS
    with pytest.raises(NotAuthorizedError):
        world.verify(last)


def test_a_sealed_key_is_opened_only_by_the_server_key_and_only_as_it_is(world: World) -> None:
    world.issue(server_key())
    (row,) = world.keys()
    opened = server_key().open(row)
    assert opened is not None
    assert opened.public_key().public_bytes_raw() == row.public
    assert opened.private_bytes_raw() not in row.sealed
    for changed in (
        TokenKey(row.entity_id, "other", row.created, row.public, row.salt, row.sealed),
        TokenKey(row.entity_id, row.id, row.created, bytes(32), row.salt, row.sealed),
        TokenKey(row.entity_id, row.id, row.created, row.public, bytes(16), row.sealed),
        TokenKey(row.entity_id, row.id, row.created, row.public, row.salt, row.sealed[:-1] + b"x"),
        TokenKey(row.entity_id, row.id, row.created, row.public, row.salt, b""),
    ):
        assert server_key().open(changed) is None
    assert server_key("x").open(row) is None


def test_the_number_of_keys_is_bounded(world: World) -> None:
    """A server whose server key is another one at each start makes a key each time."""
    for number in range(MOST_KEYS + 3):
        world.clock.advance(SECOND_MS)
        world.issue(ServerKey(Secret(f"{number:032}")))
    keys = world.keys()
    assert len(keys) == MOST_KEYS
    assert keys[-1].created == world.clock.now_ms()


def test_servers_that_need_a_key_at_the_same_time_make_one(world: World) -> None:
    before = world.references.read(ACCESS)
    one, two = (signing_key(world.references, before, server_key(), DONE) for _ in range(2))
    assert one.id == two.id
    assert len(world.keys()) == 1


def test_a_server_key_must_be_long(world: World) -> None:
    with pytest.raises(InputError, match="at least 32 characters"):
        ServerKey(Secret("k" * 31 + "\n"))


def test_lifetimes_are_bounded(world: World) -> None:
    for seconds in (0, 86_401):
        with pytest.raises(InputError, match="the lifetime of tokens"):
            world.issue(server_key(), lifetime=seconds)
