"""Cache of manifest lists by location. Manifest lists never change, so the cache is never invalidated."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

from polaris_spark.catalog.files.confinement import Confinement
from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.manifests import manifest_lists
from polaris_spark.catalog.manifests.manifest_lists import ManifestList
from polaris_spark.errors import BadRequestError

DEFAULT_BYTES = 64 * 2**20
"""Default of the approximate maximum memory for cached manifest lists, in bytes."""


MAX_FILE_BYTES = 128 * 2**20
"""Maximum size of a manifest list, in bytes. Larger files are refused, because a client could give the location of a
data file instead of a manifest list."""


class ManifestFiles:
    """Cache of the manifest lists of a catalog's tables. Thread-safe; a forked child starts with an empty cache."""

    def __init__(self, files: Files, *, capacity: int = DEFAULT_BYTES) -> None:
        """
        Args:
            capacity: approximate maximum memory for cached lists, in bytes.
        """
        self._files = files
        self._capacity = capacity
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._lists: OrderedDict[str, ManifestList] = OrderedDict()
        self._bytes = 0

    def known(self, location: str) -> ManifestList | None:
        """Return the manifest list at a location if it is cached, otherwise None."""
        if self._process != os.getpid():
            self._begin()  # the parent may have held the lock
        with self._lock:
            found = self._lists.get(location)
            if found is not None:
                self._lists.move_to_end(location)
            return found

    def keep(self, location: str, found: ManifestList) -> None:
        """Put a manifest list into the cache. Its file need not exist at `location` yet."""
        with self._lock:
            if location in self._lists:
                return
            self._lists[location] = found
            self._bytes += found.weight
            while self._bytes > self._capacity and len(self._lists) > 1:
                _, gone = self._lists.popitem(last=False)
                self._bytes -= gone.weight

    def content(self, location: str, confinement: Confinement | None = None) -> bytes:
        """Read the file of a manifest list or manifest and return its content. This neither uses nor changes the cache.
        The parameters and errors are the same as for `read`, but the content is not parsed."""
        return self._files.confined(confinement).read(location, limit=MAX_FILE_BYTES)

    def read(self, location: str, confinement: Confinement | None = None) -> ManifestList:
        """Return the manifest list at a location, read from its file unless it is cached.

        Args:
            confinement: decides which symbolic links are followed; None follows all.
        Raises:
            BadRequestError: the file cannot be read, is too large, or is not a manifest list.
            ForbiddenError: the path contains a symbolic link that must not be followed (see `confinement`).
        """
        found = self.known(location)
        if found is None:
            content = self.content(location, confinement)
            try:
                found = manifest_lists.parse(content)
            except BadRequestError as error:
                raise BadRequestError(f"cannot read {location!r}: {error}") from error
            self.keep(location, found)
        return found


_of_process: dict[tuple[tuple[str, str], ...], ManifestFiles] = {}


def process_manifest_files(properties: dict[str, str]) -> ManifestFiles:
    """Return the cache for the file properties `properties`. All sessions of this process that use the same properties
    share one cache.

    Sessions must share it, because the changes of several sessions may be committed in one batch. One of these changes
    may then need the manifest list of another before that list is written to a file.
    """
    key = tuple(sorted(properties.items()))
    return _of_process.setdefault(key, ManifestFiles(Files(properties)))
