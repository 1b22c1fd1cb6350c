"""Keys that sign access tokens, in rows of the reference `access`, so that all servers of a realm share them.

The index `token-keys` has a `TokenKey` for each key. Its public key verifies tokens and is stored unencrypted: anyone
who can read the realm's rows can verify tokens. Its private key is sealed: encrypted with a key that is derived by
scrypt from the server key, which only servers have. So nobody can create tokens from the rows, a dump of the database
or a realm file alone.

A server creates a new key if there is none, if the newest is older than `ROTATION_MS`, or if its server key cannot
decrypt any. Keys are removed when no token that they signed can still be valid.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import threading
from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt import PyJWK

from polaris_spark.access.changes import AccessChange
from polaris_spark.access.jwts import public_key
from polaris_spark.access.rows import ACCESS, TOKEN_KEYS, TokenKey, token_key_key
from polaris_spark.catalog.rows import id_bytes
from polaris_spark.clock import Clock
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.errors import InputError
from polaris_spark.index import Entry
from polaris_spark.store_uris import Secret
from polaris_spark.system.registry import References

ALGORITHM: Final = "EdDSA"
ROTATION_MS: Final = 30 * 24 * 60 * 60_000
"""Age at which a server replaces the newest key, in milliseconds."""
MAX_LIFETIME_MS: Final = 24 * 60 * 60_000
"""Maximum lifetime of a token, in milliseconds."""
MOST_KEYS: Final = 16
"""Maximum number of keys. If there are more, the oldest are removed."""
LEAST_SERVER_KEY: Final = 32
"""Minimum length of a server key, in characters."""

_COST, _BLOCK_SIZE, _PARALLEL, _MEMORY = 2**14, 8, 1, 64 * 2**20


class ServerKey:
    """The secret shared by a realm's servers, used to encrypt and decrypt private keys. Thread-safe."""

    def __init__(self, secret: Secret) -> None:
        """
        Raises:
            InputError: the secret is too short.
        """
        self._text = secret.reveal().strip()
        if len(self._text) < LEAST_SERVER_KEY:
            raise InputError(
                f"the server key must have at least {LEAST_SERVER_KEY} characters; make one by: openssl rand -hex 32"
            )
        self._opened: dict[str, Ed25519PrivateKey | None] = {}
        self._guard = threading.Lock()

    def seal(self, key: Ed25519PrivateKey, id: str, created: int) -> TokenKey:
        """Encrypt a private key, and return the row that stores it. The entity id in the row is 0."""
        salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
        content = nonce + AESGCM(self._derived(salt)).encrypt(nonce, key.private_bytes_raw(), id.encode())
        public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        with self._guard:
            self._opened[id] = key
        return TokenKey(0, id, created, public, salt, content)

    def open(self, row: TokenKey) -> Ed25519PrivateKey | None:
        """Decrypt the private key in a row, and return it. Return None if another server key encrypted it."""
        with self._guard:
            if row.id not in self._opened:
                if len(self._opened) > 10 * MOST_KEYS:
                    self._opened.clear()
                self._opened[row.id] = self._open(row)
            return self._opened[row.id]

    def _open(self, row: TokenKey) -> Ed25519PrivateKey | None:
        try:
            content = AESGCM(self._derived(row.salt)).decrypt(
                row.sealed[:12], row.sealed[12:], row.id.encode()
            )
            key = Ed25519PrivateKey.from_private_bytes(content)
        except (InvalidTag, ValueError):
            return None
        is_same = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw) == row.public
        return key if is_same else None

    def _derived(self, salt: bytes) -> bytes:
        return hashlib.scrypt(
            self._text.encode(errors="surrogatepass"),
            salt=salt,
            n=_COST,
            r=_BLOCK_SIZE,
            p=_PARALLEL,
            maxmem=_MEMORY,
            dklen=32,
        )


class SigningKey(NamedTuple):
    """A private key, and its id."""

    id: str
    private: Ed25519PrivateKey


class AddTokenKey(AccessChange[bool]):
    """Add a key, unless the keys have changed since the caller read them. Remove the keys that are too old. The result
    is whether the key was added."""

    action = "create-token-key"

    def __init__(self, clock: Clock, operation: Operation, row: TokenKey, known: Collection[str]) -> None:
        """
        Args:
            known: ids of the keys that the caller read.
        """
        super().__init__(clock, operation)
        self.row = row
        self.known = frozenset(known)

    def apply(self, state: State, prepared: int) -> bool:
        there = {key: state.get(entry.pointer, TokenKey) for key, entry in state.scan(TOKEN_KEYS, b"", None)}
        if {one.id for one in there.values()} != self.known:
            return False
        oldest = prepared - ROTATION_MS - 2 * MAX_LIFETIME_MS
        by_age = sorted(there, key=lambda key: there[key].created)
        spare = len(there) + 1 - MOST_KEYS
        for number, key in enumerate(by_age):
            if number < spare or there[key].created < oldest:
                state.remove(TOKEN_KEYS, key)
        row = msgspec.structs.replace(self.row, entity_id=state.new_id())
        key, after = token_key_key(row.id), state.add(row)
        state.put(TOKEN_KEYS, key, Entry(after, id_bytes(row.entity_id)))
        self.record(state, prepared, row.entity_id, key, after=after)
        return True

    def repeat(self, state: State, entries: list[LogEntry]) -> bool:
        return True


class RevokeTokens(AccessChange[int]):
    """Remove all keys. This makes all issued tokens invalid. Servers create a new key at the next login. The result is
    the number of removed keys."""

    action = "revoke-tokens"

    def apply(self, state: State, prepared: int) -> int:
        there = list(state.scan(TOKEN_KEYS, b"", None))
        for key, entry in there:
            row = state.get(entry.pointer, TokenKey)
            state.remove(TOKEN_KEYS, key)
            self.record(state, prepared, row.entity_id, key, before=entry.pointer)
        return len(there)

    def repeat(self, state: State, entries: list[LogEntry]) -> int:
        return len(entries)


def token_keys(head: CommitReader) -> list[TokenKey]:
    """Return all keys in a commit of the reference `access`, the oldest first."""
    pointers = [entry.pointer for _, entry in head.index(TOKEN_KEYS).range()]
    found = head.store.get_many(pointers, TokenKey)
    return sorted((found[id] for id in pointers), key=lambda one: (one.created, one.id))


def verifying_key(row: TokenKey) -> PyJWK:
    """Return the public key in a row, which verifies tokens."""
    encoded = base64.urlsafe_b64encode(row.public).rstrip(b"=").decode()
    key = public_key({"kty": "OKP", "crv": "Ed25519", "x": encoded, "kid": row.id}, ALGORITHM)
    assert key is not None
    return key


def signing_key(
    references: References, head: CommitReader, server_key: ServerKey, operation: Operation
) -> SigningKey:
    """Return the newest key that a server key can decrypt. If there is none, or it is too old, create a new one.

    Args:
        head: a commit of the reference `access`.
        operation: principal and notes for the log entry of a new key.
    """
    while True:
        rows = token_keys(head)
        now = references.clock.now_ms()
        for row in reversed(rows):
            private = server_key.open(row)
            if private is not None:
                if now - row.created < ROTATION_MS:
                    return SigningKey(row.id, private)
                break
        made = Ed25519PrivateKey.generate()
        row = server_key.seal(made, secrets.token_hex(8), now)
        known = [one.id for one in rows]
        if references.commit(ACCESS, AddTokenKey(references.clock, operation, row, known)):
            return SigningKey(row.id, made)
        head = references.read(ACCESS)
