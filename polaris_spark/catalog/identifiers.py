"""Identifiers as one text, so that SQL takes, compares and joins them easily."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PART = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")


def dotted(levels: Sequence[str]) -> str:
    """Levels joined by dots; one that is empty or has a dot or backquote in it stands in backquotes."""
    return ".".join([_quoted(level) for level in levels])


def parse_dotted(text: str) -> tuple[str, ...] | None:
    """The levels that `dotted` was given; None if it gives no such text."""
    levels = levels_of(text)
    return levels if levels is not None and dotted(levels) == text else None


def levels_of(text: str) -> tuple[str, ...] | None:
    """The levels of an identifier as SQL writes it, any of them in backquotes; None if it is none."""
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
