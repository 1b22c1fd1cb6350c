"""Step 4 of the commit protocol: write the files of changes, such as `metadata.json`, before the rows that contain the
locations of these files."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from polaris_spark.clock import Clock
from polaris_spark.commits.group import Pending
from polaris_spark.commits.settings import FileWriter
from polaris_spark.errors import CorruptionError

_PATIENCE_MS: Final = 10.0
"""Time for which the files of a batch are written one after the other, in milliseconds. After this time, the remaining
files are written in parallel."""
_THREADS: Final = 16

_Files = list[tuple[str, bytes]]


class BatchFiles:
    """Writes the files of one batch. A change may have other files in each attempt."""

    def __init__(self, name: str, writer: FileWriter | None, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._writer = writer
        self._written: dict[str, bytes] = {}
        """Content of the files that the previous attempt wrote, by location. Files of earlier attempts are forgotten,
        to limit memory."""

    def write(self, pendings: Sequence[Pending]) -> bool:
        """Write the files of each applied change, except those that the previous attempt wrote with the same content.

        Returns:
            True if all files were written. If files of a change cannot be written, `refused` of that change is set to
            the error; files of the other changes are still written.
        """
        before, self._written = self._written, {}
        missing: list[tuple[Pending, _Files]] = []
        for pending in pendings:
            if pending.error is not None or pending.must_prepare or pending.memo is None:
                continue
            mine = pending.memo.effects.files
            files = [file for file in mine if before.get(file[0]) != file[1]]
            if files:
                missing.append((pending, files))
            self._written.update(mine)
        if not missing:
            return True
        self._write_all(missing)
        for pending, files in missing:
            if pending.refused is not None:
                for location, _ in files:
                    self._written.pop(location, None)
        return all(pending.refused is None for pending, _ in missing)

    def _write_all(self, missing: list[tuple[Pending, _Files]]) -> None:
        begun = self._clock.monotonic_ms()
        for position, (pending, files) in enumerate(missing):
            if self._clock.monotonic_ms() - begun > _PATIENCE_MS and position + 1 < len(missing):
                with ThreadPoolExecutor(_THREADS) as pool:
                    list(pool.map(lambda item: self._write(*item), missing[position:]))
                return
            self._write(pending, files)

    def _write(self, pending: Pending, files: _Files) -> None:
        try:
            if self._writer is None:
                raise CorruptionError(
                    f"a change of reference {self._name!r} has files to write, but the reference was opened without a "
                    "file writer"
                )
            self._writer.write_all(files)
        except Exception as error:
            pending.refused = error
