"""Client ids and secrets: how they are made, hashed and verified."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final, NamedTuple

from polaris_spark.access.rows import HashedSecret, Principal
from polaris_spark.errors import InputError
from polaris_spark.names import problem_of
from polaris_spark.store_uris import Secret

_COST: Final = 2**14
_BLOCK_SIZE: Final = 8
_PARALLEL: Final = 1
"""Parameters of scrypt: 16 MiB of memory and about 50 ms for each verification. Secrets that this module makes have 256
random bits, so they cannot be guessed; the cost protects shorter ones that an operator chose."""

_MEMORY: Final = 64 * 2**20
_SALT_BYTES: Final = 16
LEAST_SECRET: Final = 16
"""Minimum length of a secret that an operator chooses, in characters."""
_MOST: Final = 512


class Credentials(NamedTuple):
    """A client id and its secret in plain text. They are shown once, to the caller that created them."""

    client_id: str
    secret: Secret

    def text(self) -> str:
        """Return the credentials in the form `client_id:secret` of Iceberg's property `credential`."""
        return f"{self.client_id}:{self.secret.reveal()}"

    @classmethod
    def new(cls, client_id: str = "") -> Credentials:
        """Return new random credentials.

        Args:
            client_id: the client id of an existing principal; if empty, a new one is made.
        """
        return cls(client_id or secrets.token_hex(8), Secret(secrets.token_hex(32)))

    @classmethod
    def parse(cls, text: str, what: str) -> Credentials:
        """Return the credentials in a text of the form `client_id:secret`.

        Args:
            what: description of the text's origin, for error messages. Messages never contain the text.
        Raises:
            InputError: the text does not have this form.
        """
        client_id, colon, secret = text.strip().partition(":")
        if not colon or not client_id or not secret:
            raise InputError(f"{what} must have the form client_id:client_secret")
        if problem_of(client_id) or len(client_id) > _MOST or len(secret) > _MOST:
            raise InputError(
                f"{what} has a client id or secret that cannot be used: each may have at most {_MOST} characters, "
                "and the client id must be printable"
            )
        return cls(client_id, Secret(secret))

    def require_strong(self, what: str) -> None:
        """Raise an error if a secret is so short that it could be guessed.

        Raises:
            InputError: the secret has fewer than `LEAST_SECRET` characters.
        """
        if len(self.secret.reveal()) < LEAST_SECRET:
            raise InputError(f"the secret in {what} must have at least {LEAST_SECRET} characters")


def hashed(secret: Secret, now_ms: int, expires: int = 0) -> HashedSecret:
    """Return the hash of a secret, with a new salt. Times are in milliseconds since 1970."""
    salt = secrets.token_bytes(_SALT_BYTES)
    digest = _scrypt(secret.reveal(), salt, _COST, _BLOCK_SIZE, _PARALLEL)
    return HashedSecret(salt, digest, _COST, _BLOCK_SIZE, _PARALLEL, now_ms, expires)


def verify(principal: Principal | None, secret: str, now_ms: int) -> bool:
    """Whether a secret in plain text matches a valid secret of a principal; see `matching`."""
    return matching(principal, secret, now_ms) is not None


def matching(principal: Principal | None, secret: str, now_ms: int) -> HashedSecret | None:
    """Compare a secret in plain text with the valid secrets of a principal. Return the stored secret that matches; None
    if no secret matches.

    The number of computed hashes is the same for a wrong secret, for a principal with only one secret, and for None (an
    unknown client id). So the duration does not reveal which case it was.

    Args:
        now_ms: the time, in milliseconds since 1970.
    """
    known = () if principal is None or not principal.is_active(now_ms) else principal.secrets
    found = None
    for one in (*known[:2], _NOBODYS, _NOBODYS)[:2]:
        digest = _scrypt(secret, one.salt, one.cost, one.block_size, one.parallel)
        is_same = hmac.compare_digest(digest, one.hash)
        if is_same and one is not _NOBODYS and not 0 < one.expires <= now_ms:
            found = one
    return found


def _scrypt(secret: str, salt: bytes, cost: int, block_size: int, parallel: int) -> bytes:
    data = secret.encode(errors="surrogatepass")
    return hashlib.scrypt(data, salt=salt, n=cost, r=block_size, p=parallel, maxmem=_MEMORY, dklen=32)


_NOBODYS: Final = HashedSecret(bytes(_SALT_BYTES), bytes(32), _COST, _BLOCK_SIZE, _PARALLEL, 0)
