"""The tokens of Spark SQL text, by the rules of Spark's lexer (`SqlBaseLexer.g4`).

This assumes the defaults of the Spark settings that change the lexer. So text in double quotes is a string.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from polaris_spark.errors import BadRequestError

MAX_LENGTH = 1 << 20
"""Maximum length of a text, in characters."""
MAX_DEPTH = 500
"""Maximum nesting of parentheses and brackets, in levels. Python's limit on recursion usually rejects less."""

_SHOWN = 200
"""Number of characters of the text that an error message quotes."""

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<comment>--(?:\\\n|[^\r\n])*|/\*)
    |(?P<string>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<quoted>`(?:[^`]|``)+`)
    |(?P<word>\w+)
    |(?P<symbol>\|>|=>|.)""",
    re.DOTALL | re.VERBOSE,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_PAIRS = {"(": ")", "[": "]"}


class Token(NamedTuple):
    kind: str
    """string, quoted, word or symbol."""
    start: int
    end: int
    text: str
    """Text of the token; in upper case if the token is a word."""
    verbatim: str

    @property
    def name(self) -> str:
        """The token as a part of a name, without quotes."""
        return self.text[1:-1].replace("``", "`") if self.kind == "quoted" else self.verbatim


class Tokens(list[Token]):
    """The tokens of a text. Spaces and comments are left out.

    Raises:
        BadRequestError: the text is too long or nested too deeply, or a quote, comment or parenthesis is not closed.
    """

    def __init__(self, sql: str) -> None:
        self.sql = sql
        if len(sql) > MAX_LENGTH:
            raise self.error(f"SQL text has {len(sql)} characters; the maximum is {MAX_LENGTH}")
        super().__init__(self._lexed())
        self.closings: dict[int, int] = {}
        """Index of the closing token for the index of each opening parenthesis or bracket."""
        self.openings: list[int] = []
        """Index of the innermost opening parenthesis or bracket around each token; -1 if there is none."""
        self._match()

    def statement(self) -> str:
        """Return the text without the semicolons at its end, and without comments after them."""
        end = len(self)
        while self.text(end - 1) == ";":
            end -= 1
        return self.sql if end == len(self) else self.sql[: self[end].start]

    def kind(self, index: int) -> str:
        """Return the kind of the token at an index; an empty string if there is no such token."""
        return self[index].kind if 0 <= index < len(self) else ""

    def text(self, index: int) -> str:
        """Return the text of the token at an index if it is a word or symbol; otherwise, or if there is no such token,
        an empty string."""
        return self[index].text if self.kind(index) in ("word", "symbol") else ""

    def is_name(self, index: int) -> bool:
        """Return whether there is a token at an index that may be part of a name."""
        return self.kind(index) in ("word", "quoted")

    def name_end(self, index: int) -> int:
        """Return the index after the dotted name that starts at `index`; `index` itself if there is none."""
        if not self.is_name(index):
            return index
        end = index + 1
        while self.text(end) == "." and self.is_name(end + 1):
            end += 2
        return end

    def parts(self, first: int, end: int) -> tuple[str, ...]:
        """Return the parts of the dotted name from index `first` to before `end`, without quotes."""
        return tuple(token.name for token in self[first:end:2])

    def error(self, message: str, position: int | None = None) -> BadRequestError:
        """Return an error whose message shows the start of the SQL text.

        Args:
            message: what is wrong.
            position: index of the character at which the SQL text is wrong; None if the error has no position.
        """
        if position is not None:
            line = self.sql.count("\n", 0, position) + 1
            column = position - (self.sql.rfind("\n", 0, position) + 1) + 1
            message += f", at line {line}, column {column}"
        shown = repr(self.sql[:_SHOWN]) + ("..." if len(self.sql) > _SHOWN else "")
        return BadRequestError(f"{message}: {shown}")

    def _lexed(self) -> Iterator[Token]:
        position = 0
        while match := _TOKEN.match(self.sql, position):
            kind, start, position = str(match.lastgroup), position, match.end()
            text = match.group()
            if text == "/*":
                position = self._comment_end(start)
            elif kind == "symbol" and text in "'\"`":
                raise self.error(f"quote {text} has no closing quote, or the quoted name is empty", start)
            elif kind not in ("space", "comment"):
                yield Token(kind, start, position, text.upper() if kind == "word" else text, text)

    def _comment_end(self, start: int) -> int:
        """Return the position after the comment that starts at `start`. Comments may contain comments."""
        depth = 0
        for edge in _COMMENT_EDGE.finditer(self.sql, start):
            depth += 1 if edge.group() == "/*" else -1
            if depth == 0:
                return edge.end()
        raise self.error("comment is not closed", start)

    def _match(self) -> None:
        """Find the pairs of parentheses and brackets, and set `closings` and `openings`."""
        opened = [-1]
        for index, token in enumerate(self):
            if token.text in _PAIRS.values():
                opening = opened.pop()
                if opening < 0 or _PAIRS[self[opening].text] != token.text:
                    raise self.error(f"{token.text} has no opening parenthesis or bracket", token.start)
                self.closings[opening] = index
            self.openings.append(opened[-1])
            if token.text in _PAIRS:
                opened.append(index)
                if len(opened) > MAX_DEPTH + 1:
                    raise self.error(f"SQL text is nested more than {MAX_DEPTH} levels deep", token.start)
        if opened[-1] >= 0:
            raise self.error(f"{self[opened[-1]].text} is not closed", self[opened[-1]].start)
