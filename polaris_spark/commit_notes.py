"""Commit notes: a message and other texts that a client attaches to a change. They are stored in the log entries of the
change.

A note has a key, such as `message` or `ticket`. Its property is `polaris.commit.<key>`, its HTTP header
`X-Polaris-Commit-<key>`, and its field in the summary of a log entry `commit.<key>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from polaris_spark.errors import InputError
from polaris_spark.names import problem_of

PROPERTY: Final = "polaris.commit."
"""Prefix of the properties that set notes for a session."""
HEADER: Final = "x-polaris-commit-"
"""Prefix of the headers that set notes for a request, in lower case."""
FIELD: Final = "commit."
"""Prefix of the fields of summaries."""

MOST_NOTES: Final = 8
"""Maximum number of notes on one change."""
MESSAGE_BYTES: Final = 1_000
"""Maximum size of the note `message`, in UTF-8 bytes."""
NOTE_BYTES: Final = 200
"""Maximum size of any other note, in UTF-8 bytes."""

_KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,49}")

Notes = tuple[tuple[str, str], ...]
"""(field of the summary, text) of each note, sorted."""


def checked(given: Mapping[str, str]) -> Notes:
    """Return notes, after checking that the log can contain them. An empty text means no note.

    Args:
        given: texts by key. Upper case letters in keys become lower case.
    Raises:
        InputError: there are too many notes, or a key or text cannot be used.
    """
    found: dict[str, str] = {}
    for name, text in given.items():
        key = name.lower()
        if not _KEY.fullmatch(key):
            raise InputError(
                f"the key of the commit note {PROPERTY}{name[:80]} must have 1 to 50 letters, digits, '.', '_' or '-', "
                "and begin with a letter or digit"
            )
        if not text:
            continue
        most = MESSAGE_BYTES if key == "message" else NOTE_BYTES
        size = len(text.encode(errors="surrogatepass"))
        if size > most:
            raise InputError(f"{PROPERTY}{key} has {size:,} bytes; the maximum is {most:,}")
        problem = problem_of(text.replace("\n", " ") if key == "message" else text)
        if problem is not None:
            raise InputError(f"the text of {PROPERTY}{key} {problem}")
        found[FIELD + key] = text
    if len(found) > MOST_NOTES:
        raise InputError(f"a change has {len(found)} commit notes; the maximum is {MOST_NOTES}")
    return tuple(sorted(found.items()))


def merged(defaults: Notes, headers: Mapping[str, str]) -> Notes:
    """Return the notes of a request: the session's notes, replaced or removed by those in the request's headers.

    Args:
        headers: the headers of the request, with names in lower case.
    Raises:
        InputError: see `checked`.
    """
    given = {name.removeprefix(HEADER): text for name, text in headers.items() if name.startswith(HEADER)}
    if not given:
        return defaults
    return checked({**{name.removeprefix(FIELD): text for name, text in defaults}, **given})
