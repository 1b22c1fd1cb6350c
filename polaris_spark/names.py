"""The rule for new names of namespaces, tables, views, branches, tags, catalogs, realms and principals.

A name must arrive unchanged at the catalog, whether it is sent in an HTTP path, in SQL or on the command line, and it
must be safe to print. The rule applies only to new names. An object whose name breaks the rule, because an earlier
release stored it, can still be read, listed, renamed and dropped.
"""

from __future__ import annotations

import re
from typing import Final

MAIN: Final = "main"
"""The branch that every catalog has."""

_REFUSED: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that names must not contain: C0, DEL and C1 controls, line and paragraph separators, text direction
controls, and lone surrogates.

The pattern does not depend on the Unicode database, so the rule is the same in every Python version.
"""

_DOT_SEGMENTS: Final = frozenset({".", ".."})
"""Path segments that HTTP clients remove from paths, whether percent-encoded or not (RFC 3986, 5.2.4)."""


def problem_of(name: str) -> str | None:
    """Return why a text cannot be a new name, as a phrase that follows the name in a sentence, such as `is empty`; None
    if the text can be a name."""
    if not name:
        return "is empty"
    found = _REFUSED.search(name)
    if found is None:
        return None
    code = ord(found[0])
    if 0xD800 <= code <= 0xDFFF:
        return f"is not valid Unicode: it contains the lone surrogate U+{code:04X}"
    what = (
        "separates the levels of namespaces in the protocol"
        if code == 0x1F
        else "is a control character or separator"
    )
    return f"contains U+{code:04X}, which {what}: names must be printable"


def problem_of_part(name: str) -> str | None:
    """Return why a text cannot be a new name that is also a segment of an HTTP path, as a phrase that follows the name
    in a sentence; None if it can. The rule is that of `problem_of`, and the text must not be `.` or `..`."""
    if name in _DOT_SEGMENTS:
        return "is removed from paths by HTTP clients, so an object of this name could not be addressed"
    return problem_of(name)


AREA = "+"
"""First character of the names of staging areas (`catalog.merges.staging`). Names of other branches do not begin with
it."""

_TRANSACTION = "@"
"""First character of the names of transactions' states. Names of branches do not contain it."""


def transaction_name(unique: str) -> str:
    """Return the name of the state of a transaction."""
    return _TRANSACTION + unique


def is_transaction(state: str) -> bool:
    """Whether a name is the name of a transaction's state."""
    return state.startswith(_TRANSACTION)


def sql_name(parts: tuple[str, ...]) -> str:
    """Return a name of several parts in SQL syntax; parts that are not identifiers are put in backquotes."""
    return ".".join(part if part.isidentifier() else "`" + part.replace("`", "``") + "`" for part in parts)
