"""Bearer tokens (RFC 6750): who may send requests, and under which name they stand in the log."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from polaris_spark.errors import InputError, NotAuthorizedError
from polaris_spark.rest.session import check_principal

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""What may stand after `Bearer` (RFC 6750, 2.1)."""


class Tokens:
    """The tokens that a server accepts, each with the principal that it names. Keeps digests only."""

    def __init__(self, principals: Mapping[str, str]) -> None:
        """Tokens, as keys, and the principal of each.

        Raises:
            InputError: there are none, or a token or principal cannot be used; the message never holds a token.
        """
        if not principals:
            raise InputError("there is no token to accept")
        for token, principal in principals.items():
            check_principal(principal)
            if not principal.isprintable() or principal != principal.strip() or not principal:
                raise InputError(f"the principal {principal!r} of a token is empty or does not print")
            if not _TOKEN.fullmatch(token):
                raise InputError(
                    f"the token of {principal!r} is empty or has characters that HTTP does not allow in one: "
                    "it is made of letters, digits and -._~+/, with any = at its end"
                )
        self._digests = [(_digest(token), principal) for token, principal in principals.items()]

    @classmethod
    def from_environment(cls, name: str, principal: str) -> Tokens:
        """The one token that an environment variable holds.

        Args:
            name: `env:NAME`.
            principal: whom the token stands for.
        Raises:
            InputError: the variable is not set, or its text is no token.
        """
        if not name.startswith("env:"):
            raise InputError(
                "--token takes env:NAME, the name of an environment variable: "
                "a token itself would be shown to everyone in the list of processes"
            )
        token = os.environ.get(name[4:])
        if token is None:
            raise InputError(f"the environment variable {name[4:]!r}, named as the token, is not set")
        return cls({token.strip(): principal})

    @classmethod
    def from_file(cls, path: Path) -> Tokens:
        """The tokens of a file that only its owner can read: lines `principal:token`, empty lines and `#` comments.

        Raises:
            InputError: others may read the file, or a line is not so; the message names its number only.
        """
        found: dict[str, str] = {}
        try:
            with path.open(encoding="utf-8") as file:
                if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                    raise InputError(f"others may read or write {path}, which holds tokens: chmod 600 {path}")
                lines = file.read().splitlines()
        except UnicodeDecodeError:
            raise InputError(f"the token file {path} is not UTF-8") from None
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            principal, colon, token = line.rpartition(":")
            if not colon or not token.strip() or not principal.strip():
                raise InputError(f"line {number} of {path} is not principal:token")
            if found.setdefault(token.strip(), principal.strip()) != principal.strip():
                raise InputError(f"line {number} of {path} gives one token to two principals")
        return cls(found)

    def principal(self, authorization: str | None) -> str:
        """The principal of a request, by its `Authorization` header; every token is compared, in constant time.

        Raises:
            NotAuthorizedError: the header is missing, of another scheme, or its token is not known.
        """
        if authorization is None:
            raise NotAuthorizedError("the request has no bearer token")
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise NotAuthorizedError("requests are authorised by a bearer token and nothing else")
        given, found = _digest(token.strip()), None
        for digest, principal in self._digests:
            if hmac.compare_digest(digest, given):
                found = principal
        if found is None:
            raise NotAuthorizedError("the bearer token is not known here")
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
