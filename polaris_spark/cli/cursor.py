"""Files that `polaris-spark watch` uses to send events: the cursor, which contains the position up to which events were
delivered, and the dead letters."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polaris_spark.backends.directories import flush_directory
from polaris_spark.catalog.branches.change_log import LogPosition
from polaris_spark.errors import InputError


class Cursor:
    """A file with the position up to which events were delivered. Only one process at a time uses it."""

    def __init__(self, path: Path, source: str) -> None:
        """
        Args:
            source: where the events come from. The file records its source, and `read` refuses a file of another
                source.
        """
        self._path = path
        self._source = source

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from using the cursor while the context is open.

        Raises:
            InputError: another process uses the cursor.
            OSError: the lock file beside the cursor cannot be written.
        """
        with open(f"{self._path}.lock", "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError(f"another process uses the cursor {self._path}; stop it first") from error
            yield

    def read(self) -> str | None:
        """Return the position; None if the file does not exist.

        Raises:
            InputError: the file is not a cursor of this source.
        """
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            source, position = found["source"], found["position"]
            LogPosition.parse(position, "the position")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self._path} is not a cursor: {error}; give another file, or remove it to begin anew"
            ) from error
        if source != self._source:
            raise InputError(
                f"the cursor {self._path} is for {source!r}, but the source of the events is {self._source!r}; give "
                "another file"
            )
        return str(position)

    def write(self, position: str) -> None:
        """Replace the position atomically. When this method returns, the file is on disk."""
        beside = self._path.with_name(f"{self._path.name}.new")
        with beside.open("w", encoding="utf-8") as file:
            json.dump({"source": self._source, "position": position}, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
        flush_directory(self._path.parent)


class DeadLetters:
    """A file of JSON lines with the events that could not be delivered."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, lines: list[dict[str, Any]]) -> None:
        """Append lines. When this method returns, they are on disk. `lines` may be empty.

        If an earlier process died while it wrote, its incomplete line is ended first.
        """
        with self._path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        flush_directory(self._path.parent)
