"""Functions to split locations into parts, and to normalize paths for comparison."""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote

_PASSES = 3
"""Maximum number of calls of `unquote`; each decodes one level of percent escapes. Paths with more levels, which only
an attacker uses, are decoded by `_decoded`."""

_HEX_DIGITS = frozenset(b"0123456789abcdefABCDEF")
_PERCENT = ord("%")

_LOCATION = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/]*))?(.*)", re.DOTALL)


def split_location(location: str) -> tuple[str, str, str]:
    """Return scheme, authority and path of a location, as written. `?` and `#` are ordinary characters of a path."""
    found = _LOCATION.fullmatch(location)
    assert found is not None  # every part of it may be empty
    scheme, authority, path = found.groups()
    if scheme is None:  # `//host/path` is a path
        return "", "", location
    return scheme, authority or "", path


def segments_of(path: str) -> list[str]:
    """Return the segments of a path, without those that are empty or `.`."""
    return [part for part in path.split("/") if part not in ("", ".")]


def is_in(path: str, folder: str) -> bool:
    """Whether an absolute path is the path of `folder`, or of something in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _decoded(path: str) -> str:
    """Return a path with percent escapes decoded until none is left. The time is linear in the length of the path.

    `%25` is an escaped percent sign, so a text of n bytes can have n / 2 levels of escapes.
    """
    decoded = bytearray()
    for byte in path.encode(errors="surrogatepass"):
        decoded.append(byte)
        while len(decoded) > 2 and decoded[-3] == _PERCENT and _HEX_DIGITS.issuperset(decoded[-2:]):
            decoded[-3:] = bytes((int(decoded[-2:], 16),))
    return decoded.decode(errors="replace")


def normal_path(path: str) -> str:
    """Return a path normalized for comparison: percent-decoded, absolute, without a trailing slash."""
    for _ in range(_PASSES):
        decoded = unquote(path)
        if decoded == path:
            break
        path = decoded
    else:
        path = _decoded(path)
    parts: list[str] = []
    for part in unicodedata.normalize("NFC", path).split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)
