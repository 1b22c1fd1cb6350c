"""Permission to delete files. Every job that deletes files passes a `Permit` to `Folders`, which deletes them.

A permit lists the folders in which a job may delete. It also lists the files that no job may delete: those of the
stores that the job's process has open. Files of other stores are protected, too; the permit recognizes them by their
content or names (`backends.traces`). Given the location of a file, a permit returns a `Grant` or refuses. The grant of
a local file holds the file's path, in which the permit resolved the links that it follows. The deletion opens the
folders of this path one by one and refuses all other links (`confinement.open_folder`). So nothing is deleted if a
folder is replaced by a link after the decision.

The operator chooses the warehouse, so links on the path to the warehouse are followed. Clients choose the locations of
tables. On the path to a location outside the warehouse, no link is followed. Otherwise, anyone who can replace a
table's folder by a link could make a job delete the files of any folder.

Permits and grants are sent to executors. There, the permit checks each grant again right before the deletion.

A permit does not check which tables are in its folders. `overlapping_tables.Deletable` and the search for orphan files
check this in addition.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import msgspec

from polaris_spark.backends import traces
from polaris_spark.catalog.files.confinement import Below, Confinement
from polaris_spark.catalog.files.files import local_path
from polaris_spark.catalog.files.locations import SAME_SCHEME
from polaris_spark.catalog.files.paths import is_in, normal_path, segments_of, split_location
from polaris_spark.catalog.files.store_files import StoreFiles, folded
from polaris_spark.catalog.metadata.bounds import BOUNDS
from polaris_spark.errors import ForbiddenError, PolarisError
from polaris_spark.store_uris import StoreURI


def is_around(store: StoreURI, folder: str) -> bool:
    """Whether a folder contains files of a store, or is inside a folder of the store."""
    path = local_path(folder)
    _, authority, inner = split_location(folder)
    if (path is None) == (store.address == "path"):
        return False
    if path is None and authority.partition("@")[0].lower() != store.authority.lower():
        return False
    own = folded(inner if path is None else os.path.realpath(path))
    files = StoreFiles.of([store])
    return files.holds(own) or any(name.startswith(own.rstrip("/") + "/") for name in files.names)


class Grant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Permission to delete one file, as returned by `Permit.grant`."""

    location: str
    root: str = ""
    """For a local file: the folder in `Permit.roots` that contains the file, or `/` if only a folder in `Permit.places`
    contains it. Empty for other files."""
    path: str = ""
    """For a local file: its path relative to `root`. The links that the permit follows are resolved. If a folder of
    this path is a link, the deletion fails."""

    @property
    def below(self) -> Below:
        """The root folder that contains a local file, and the file's path relative to this folder."""
        return Below(self.root, self.path)


class Permit:
    """The folders in which a job is allowed to delete files. Picklable."""

    def __init__(
        self,
        roots: Iterable[str],
        stores: StoreFiles | None = None,
        *,
        places: Iterable[str] = (),
        follow_links: bool = False,
    ) -> None:
        """
        Args:
            roots: locations of folders that the operator chose; links on the path to them are always followed.
            stores: files of stores, which are never deleted; by default, the files of the stores that this process has
                open.
            places: locations of tables, inside or outside `roots`; links on the path to them are not followed.
            follow_links: whether links at other places on the path of a file are followed, if they lead into one of the
                folders in `roots` and `places`. A file is not deleted if its path contains a link that is not followed.
        """
        self.roots = tuple(roots)
        self.places = tuple(places)
        self.stores = StoreFiles.of_process() if stores is None else stores
        self.follow_links = follow_links
        local = [str(path) for root in self.roots if (path := local_path(root)) is not None]
        self._real_root = lru_cache(os.path.realpath)
        self._in_store = lru_cache(maxsize=65_536)(self._lies_in_store)
        self._local = Confinement(local, follow_links=follow_links, remember=True)
        self._given = frozenset("/" + "/".join(segments_of(root)) for root in local)
        every = (*self.roots, *self.places)
        self._places = tuple(
            "/" + "/".join(segments_of(str(path))) for place in self.places if (path := local_path(place))
        )
        self._remote = tuple(_remote(folder) for folder in every if local_path(folder) is None)
        self._real = lru_cache(maxsize=65_536)(os.path.realpath)

    def __reduce__(self) -> tuple[object, ...]:
        return _permit, (self.roots, self.stores, self.places, self.follow_links)

    @property
    def is_local(self) -> bool:
        """Whether any of the permit's folders is on this machine."""
        return bool(self._given or self._places)

    def grant(self, location: str) -> Grant:
        """Return the permission to delete a file. This method does not find all links that must not be followed; the
        deletion refuses the rest.

        Raises:
            ForbiddenError: the file is outside all folders, is reached through a link that this method refuses, is part
                of a store, or is itself a link.
            BadRequestError, ValueError: the location is malformed.
        """
        if len(location) > BOUNDS["characters in a location"]:
            raise ForbiddenError(
                f"a location of {len(location)} characters is too long for a file of a table"
            )
        path = local_path(location)
        if path is None:
            found = Grant(location)
        else:
            if location.endswith(("/", "/.")):
                raise ForbiddenError(f"{location!r} is a folder; only files can be deleted")
            below = self._below(path)
            if below is None:
                raise ForbiddenError(f"{location!r} is outside the locations in which this job deletes files")
            if os.path.islink(self._path(below.root, below.path)):
                raise ForbiddenError(f"{location!r} is a symbolic link and is not deleted")
            found = Grant(location, below.root, below.path)
        self.require(found)
        return found

    def _below(self, path: Path) -> Below | None:
        """Return the folder of this permit that contains a local file, and the file's path relative to this folder;
        None if no folder contains the file.

        Raises:
            ForbiddenError: the path contains `..`, or a link in it leads outside all folders or is not followed.
        """
        refused: ForbiddenError | None = None
        try:
            below = self._local.below(path)
        except ForbiddenError as error:
            below, refused = None, error
        if below is None and ".." not in path.parts and "\0" not in str(path):
            *folder, name = segments_of(str(path)) or [""]
            above = "/" + "/".join(folder)
            real = self._real(above)
            if (real == above or self.follow_links) and self._in_place(f"{real}/{name}"):
                return Below("/", f"{real}/{name}".lstrip("/"))
            if self._in_place(f"{above}/{name}"):
                raise ForbiddenError(
                    f"{path} is not deleted, because a symbolic link on its path leads to {real}"
                )
        if refused is not None:
            raise refused
        return below

    def _in_place(self, path: str) -> bool:
        return any(path.startswith(f"{place}/") for place in self._places)

    def _path(self, root: str, path: str) -> str:
        return os.path.join(self._real_root(root), path)

    @classmethod
    def of_all(cls, permits: Iterable[Permit]) -> Permit:
        """Return a permit that grants every file that one of the given permits grants."""
        permits = list(permits)
        roots = dict.fromkeys(root for permit in permits for root in permit.roots)
        places = dict.fromkeys(place for permit in permits for place in permit.places)
        return cls(roots, places=places, follow_links=any(permit.follow_links for permit in permits))

    def may(self, location: str) -> Grant | None:
        """Return the permission to delete a file; None if the permit refuses, or the location is malformed."""
        try:
            return self.grant(location)
        except (OSError, ValueError, PolarisError):
            return None

    def require(self, grant: Grant) -> None:
        """Check that this permit covers a granted file. This is called again right before the file is deleted.

        Raises:
            ForbiddenError: the file is outside the permit's folders, or is a file of a store.
        """
        location = grant.location
        if grant.root:
            named = os.path.join(grant.root, grant.path)
            inside = grant.root in self._given or (grant.root == "/" and self._in_place(f"{named}/"))
            inside = inside and ".." not in grant.below.parts
            real = self._path(grant.root, grant.path)
            held = self.stores.holds(real) or self.stores.holds(named)
            held = held or (inside and self._is_of_a_store(real))
        else:
            scheme, authority, paths = _remote(location)
            inside = ".." not in location.split("/") and any(
                (scheme, authority) == (root_scheme, root_authority)
                and all(path != root and is_in(path, root) for path, root in zip(paths, folders, strict=True))
                for root_scheme, root_authority, folders in self._remote
            )
            held = self.stores.holds(location) or any(map(traces.is_key, paths))
        if not inside:
            raise ForbiddenError(f"{location!r} is outside the locations in which this job deletes files")
        if held:
            raise ForbiddenError(f"{location!r} is a file of a store and is not deleted")

    def _is_of_a_store(self, real: str) -> bool:
        """Whether a local file belongs to any store, including stores that only other processes have open."""
        if self._in_store(os.path.dirname(real)):
            return True
        return traces.is_database(real)

    def _lies_in_store(self, folder: str) -> bool:
        above = os.path.dirname(folder)
        return traces.is_store_folder(folder) or (above != folder and self._in_store(above))


def _permit(
    roots: tuple[str, ...],
    stores: StoreFiles,
    places: tuple[str, ...],
    follow_links: bool,  # noqa: FBT001  # called by pickle
) -> Permit:
    return Permit(roots, stores, places=places, follow_links=follow_links)


def _remote(location: str) -> tuple[str, str, tuple[str, str]]:
    """Return the scheme, the authority and the path of a remote location. The path is returned in two forms, as written
    and percent-decoded, because some storage decodes paths."""
    scheme, authority, path = split_location(location)
    scheme, authority = scheme.lower(), authority.lower()
    scheme = SAME_SCHEME.get(scheme, scheme)
    if scheme == "abfs":
        authority = authority.replace(".blob.", ".dfs.")
    return scheme, authority, ("/" + "/".join(segments_of(path)), normal_path(path))
