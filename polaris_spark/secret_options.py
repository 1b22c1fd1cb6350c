"""Detection of secret options: the one rule that decides which values are hidden in output, refused in plain text, or
read from an environment variable.

Options are classified by name, because they belong to many cloud and database drivers, to Iceberg's FileIO, and to
third-party backends. In doubt, an option counts as secret, because hiding too much does little harm.
"""

from __future__ import annotations

import re
from typing import Final

REFERENCE: Final = "env:"
"""Prefix of a value that names an environment variable (`env:NAME`). Such a value is not a secret itself."""

_WORDS: Final = (
    "password", "passwd", "passphrase", "secret", "token", "credential", "authorization", "signature", "accesskey",
    "accountkey", "apikey", "sharedkey", "privatekey", "connectionstring",
)  # fmt: skip  # reads better as one list; words of names without separators
_PARTS: Final = frozenset({"pwd", "sas", "sig"})
"""Words that indicate a secret only if they equal a whole part of a name, between separators. They are too short to
search for within other words."""
_LAST: Final = frozenset({"auth", "key", "pass", "pw"})
"""Words that indicate a secret only at the end of a name: `cache-key-size` is not a secret."""
_FILES: Final = frozenset({"credentials", "passfile", "sslkey", "tlskey"})
"""Names of options whose values are paths of files with secrets. The path itself is not a secret. If the value is not a
path but the content of the file, it is a secret."""

_SEPARATORS: Final = re.compile(r"[^a-z0-9]+")
_CONTENT: Final = ("{", "-----")  # JSON, PEM
_NAMED: Final = (
    re.compile(  # a name and its value in a query, a connection string or JSON; not the scheme of a URI
        r"""(?:^|[?&;,{\s"'])([A-Za-z][\w.-]*)["']?\s*[=:](?!//)\s*["']?([^&;,}\s"']*)"""
    )
)
_ACCOUNT: Final = re.compile(r"//[^/?#]*@")
_MAYBE_ACCOUNT: Final = re.compile(r"\A(.*?//)?.*@", re.DOTALL)
"""Pattern of the part of a malformed text that may be credentials: everything up to the last `@`, because a password
can contain any character."""


def is_secret(name: str, text: str = "") -> bool:
    """Whether the value of an option is a secret, or contains a secret.

    Args:
        name: name of the option.
        text: value of the option. It contains a secret if, for example, it is a connection string with a password.
    """
    if text.startswith(REFERENCE):
        text = ""
    return _is_name(name, text) or holds_secret(text)


def holds_secret(text: str) -> bool:
    """Whether a URI, a connection string or a similar text contains a password, or the name and value of a secret."""
    account = _ACCOUNT.search(text)
    if account is not None and ":" in account.group():
        return True
    return any(value and _is_name(name, value) for name, value in _NAMED.findall(text))


def without_secrets(text: str) -> str:
    """Return a text, such as a malformed URI, in a form that is safe to display: `***` replaces possible passwords, and
    the values of names that indicate a secret."""

    def hidden(found: re.Match[str]) -> str:
        whole, value = found.group(), found.group(2)
        return whole[: len(whole) - len(value)] + "***" if _is_name(found.group(1), value) else whole

    return _NAMED.sub(hidden, _MAYBE_ACCOUNT.sub(r"\1***@", text))


def _is_name(name: str, text: str) -> bool:
    parts = [part for part in _SEPARATORS.split(name.lower()) if part]
    joined = "".join(parts)
    if joined in _FILES:
        return text.lstrip().startswith(_CONTENT)
    if any(word in joined for word in _WORDS) or not _PARTS.isdisjoint(parts):
        return True
    return bool(parts) and parts[-1] in _LAST
