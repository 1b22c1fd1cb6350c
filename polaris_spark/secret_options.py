"""Which options are secrets: one rule for what is hidden, what is refused in plain sight, and what is looked up.

Options are told apart by their names, since they are those of six clouds' and databases' drivers, of Iceberg's FileIO,
and of backends that others write. A name that only may be a secret's counts as one: to hide too much harms little.
"""

from __future__ import annotations

import re
from typing import Final

REFERENCE: Final = "env:"
"""What a value begins with that is the name of an environment variable, and itself no secret."""

_WORDS: Final = (
    "password", "passwd", "passphrase", "secret", "token", "credential", "authorization", "signature", "accesskey",
    "accountkey", "apikey", "sharedkey", "privatekey", "connectionstring",
)  # fmt: skip  # one list of words, of names without their separators
_PARTS: Final = frozenset({"pwd", "sas", "sig"})
"""Words too short to be looked for within others."""
_LAST: Final = frozenset({"auth", "key", "pass", "pw"})
"""Words that are a secret's at the end of a name only: `cache-key-size` holds none."""
_FILES: Final = frozenset({"credentials", "passfile", "sslkey", "tlskey"})
"""Names of options that are paths of files with secrets; the text of such a file is refused all the same."""

_SEPARATORS: Final = re.compile(r"[^a-z0-9]+")
_CONTENT: Final = ("{", "-----")  # JSON, PEM
_NAMED: Final = (
    re.compile(  # a name and its value, of a query, a connection string or JSON; no scheme of a URI
        r"""(?:^|[?&;,{\s"'])([A-Za-z][\w.-]*)["']?\s*[=:](?!//)\s*["']?([^&;,}\s"']*)"""
    )
)
_ACCOUNT: Final = re.compile(r"//[^/?#]*@")
_MAYBE_ACCOUNT: Final = re.compile(r"\A(.*?//)?.*@", re.DOTALL)
"""Of a malformed text, where a password may hold any character."""


def is_secret(name: str, text: str = "") -> bool:
    """Whether an option is, or holds, a secret.

    Args:
        text: its value; one that names secrets itself, such as a connection string, counts as one.
    """
    if text.startswith(REFERENCE):
        text = ""
    return _is_name(name, text) or holds_secret(text)


def holds_secret(text: str) -> bool:
    """Whether a URI, a connection string or the like carries a password, or a secret among what it names."""
    account = _ACCOUNT.search(text)
    if account is not None and ":" in account.group():
        return True
    return any(value and _is_name(name, value) for name, value in _NAMED.findall(text))


def without_secrets(text: str) -> str:
    """A text such as a malformed URI, to be shown: `***` for secrets it names, and for all that may be a password."""

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
