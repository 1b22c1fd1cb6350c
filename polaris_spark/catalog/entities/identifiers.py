"""Conversion between identifiers as tuples of levels and as dotted text. SQL can pass, compare and join on text."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PART = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")


def dotted(levels: Sequence[str]) -> str:
    """Return levels joined by dots; a level that is empty or contains a dot or backquote is put in backquotes."""
    return ".".join([_quoted(level) for level in levels])


def parse_dotted(text: str) -> tuple[str, ...] | None:
    """Return the levels of a text that `dotted` returned; None if `dotted` cannot return this text."""
    levels = levels_of(text)
    return levels if levels is not None and dotted(levels) == text else None


def levels_of(text: str) -> tuple[str, ...] | None:
    """Return the levels of an identifier in SQL syntax, where any level may be in backquotes; None if the text is not
    an identifier."""
    levels: list[str] = []
    position = 0
    while position < len(text):
        found = _PART.match(text, position)
        if found is None:
            return None
        levels.append(found[2] if found[1] is None else found[1].replace("``", "`"))
        position = found.end()
        if position < len(text):
            if text[position] != "." or position + 1 == len(text):
                return None
            position += 1
    return tuple(levels)


def _quoted(level: str) -> str:
    if level and "." not in level and "`" not in level:
        return level
    return "`" + level.replace("`", "``") + "`"
