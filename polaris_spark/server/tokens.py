"""The bearer tokens (RFC 6750) that a server accepts. Each token has a role and a principal; the log names this
principal for the changes made with the token."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from urllib.parse import unquote

from polaris_spark.errors import InputError
from polaris_spark.rest.access import Role
from polaris_spark.rest.opening import check_principal
from polaris_spark.server.logins import Login

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""Pattern of a token after `Bearer` (RFC 6750, 2.1)."""


ADMINISTRATOR = "administrator"
"""Word after a token in a token file that makes the token an administrator's. Clients with such a token can use the
extension."""


_REALM = "realm="


class Tokens:
    """The tokens that a server accepts, each with its principal and role. Only digests of the tokens are stored."""

    def __init__(self, principals: Mapping[str, str], administrators: Collection[str] = ()) -> None:
        """
        Args:
            principals: the principal of each token, by token.
            administrators: the tokens in `principals` that have the administrator role.
        Raises:
            InputError: there are no tokens, or a token or principal cannot be used. The message never contains a token.
        """
        if not principals:
            raise InputError("no token is configured; give at least one token")
        for token, principal in principals.items():
            check_principal(principal)
            if not principal.isprintable() or principal != principal.strip() or not principal:
                raise InputError(
                    f"the principal {principal!r} of a token is empty, is not printable, or begins or ends with a space"
                )
            if not _TOKEN.fullmatch(token):
                raise InputError(
                    f"the token of {principal!r} is empty or has characters that HTTP does not allow in a token: "
                    "a token consists of letters, digits and -._~+/, and can have = at its end"
                )
        self._digests = [
            (
                _digest(token),
                Login(
                    principal,
                    role=Role.ADMINISTRATOR if token in administrators else Role.CLIENT,
                    method="token",
                ),
            )
            for token, principal in principals.items()
        ]

    @classmethod
    def from_environment(cls, name: str, principal: str) -> Tokens:
        """Return the tokens of a server that accepts one token, which an environment variable contains.

        Args:
            name: `env:NAME`, where NAME is the name of the variable.
            principal: principal of the token.
        Raises:
            InputError: the variable is not set, or its value is not a token.
        """
        if not name.startswith("env:"):
            raise InputError(
                "--token takes env:NAME, where NAME is the environment variable that contains the token: "
                "a token on the command line is visible to all users of this machine"
            )
        token = os.environ.get(name[4:])
        if token is None:
            raise InputError(
                f"the environment variable {name[4:]!r}, which must contain the token, is not set; set it"
            )
        return cls({token.strip(): principal})

    @classmethod
    def from_file(cls, path: Path) -> Tokens:
        """Return the tokens in a file of lines `principal:token`, empty lines and `#` comments.

        A line `principal:token administrator` is the token of an administrator.

        Raises:
            InputError: other users can read or write the file, or a line does not have one of these forms. The message
                contains the number of the line, but not its text.
        """
        found = cls.by_realm(path)
        named = next((realm for realm in found if realm), None)
        if named is not None:
            raise InputError(
                f"the token file {path} has tokens of the realm {named!r}; only a server with --realms can use them"
            )
        return found.get("") or cls({})

    @classmethod
    def by_realm(cls, path: Path) -> dict[str, Tokens]:
        """Return the tokens in a file, by realm. The lines are as for `from_file`. A line may also have `realm=NAME`
        after the token, where NAME is the percent-encoded name of the realm. The tokens of other lines are under the
        empty name.

        Raises:
            InputError: as for `from_file`, or a token belongs to two realms.
        """
        realms: dict[str, tuple[dict[str, str], set[str], set[str]]] = {}
        owners: dict[str, str] = {}
        try:
            with path.open(encoding="utf-8") as file:
                if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                    raise InputError(
                        f"other users can read or write the token file {path}; run chmod 600 {path}"
                    )
                lines = file.read().splitlines()
        except UnicodeDecodeError:
            raise InputError(f"the token file {path} is not UTF-8; save it as UTF-8") from None
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            principal, colon, text = line.rpartition(":")
            token, *marks = text.split() or [""]
            named = [mark for mark in marks if mark.startswith(_REALM)]
            realm = unquote(named[0].removeprefix(_REALM)) if named else ""
            marks = [mark for mark in marks if mark not in named]
            if not colon or not token or not principal.strip() or marks not in ([], [ADMINISTRATOR]):
                raise InputError(
                    f"line {number} of {path} must have the form principal:token or principal:token {ADMINISTRATOR}"
                )
            if len(named) > 1 or (named and not realm):
                raise InputError(f"line {number} of {path} must have one realm, as realm=NAME")
            if owners.setdefault(token, realm) != realm:
                raise InputError(
                    f"line {number} of {path} has the token of another realm; every realm needs its own tokens"
                )
            found, administrators, others = realms.setdefault(realm, ({}, set(), set()))
            if found.setdefault(token, principal.strip()) != principal.strip():
                raise InputError(
                    f"line {number} of {path} has the token of another principal; every principal needs its own token"
                )
            (administrators if marks else others).add(token)
            if token in administrators and token in others:
                raise InputError(
                    f"line {number} of {path} repeats a token, but only one of the two lines has {ADMINISTRATOR!r}; "
                    "remove one of them"
                )
        return {realm: cls(found, administrators) for realm, (found, administrators, _) in realms.items()}

    def authenticate(self, token: str) -> Login | None:
        """Return the login of a token; None if the token is not accepted.

        The given token is compared with every accepted token, in constant time.
        """
        given, found = _digest(token), None
        for digest, login in self._digests:
            if hmac.compare_digest(digest, given):
                found = login
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
