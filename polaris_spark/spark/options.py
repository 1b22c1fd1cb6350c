"""Options of the data source `polaris-objects`: strings from users, which are checked before a store is opened."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from polaris_spark.commits.as_of import AsOf
from polaris_spark.config import Properties, refuse_unlisted_variables
from polaris_spark.errors import InputError
from polaris_spark.names import MAIN
from polaris_spark.store_uris import Secret, StoreURI

DESCRIPTIONS = {
    "store": "URI of the store, such as sqlite:///path/catalog.db; without a password",
    "store.<option>": "an option of the store; 'store.password' is the password, or env:NAME, if NAME is listed in the "
    "driver's environment variable POLARIS_SPARK_VARIABLES",
    "credential": "in a realm with access control: client_id:client_secret, or env:NAME, if NAME is listed in the "
    "driver's environment variable POLARIS_SPARK_VARIABLES",
    "view": "name of the view to read",
    "realm": "name of the realm (default: default)",
    "catalog": "name of the catalog (default: all catalogs of the realm)",
    "branch": "name of the catalog's branch (default: main)",
    "as-of": "a commit number, commit id, ISO 8601 time with its zone, or milliseconds since 1970 (default: now)",
    "from": "for the views changes and commits: show only commits after this point (same format as as-of)",
    "to": "for the views changes and commits: show only commits up to and including this point (same format as as-of)",
    "content": "whether to fill the column 'content' of the view 'objects' (default: false)",
    "snapshots": "for the view 'files': snapshots to show: 'current' (default), 'refs' (branches and tags), or 'all'",
    "unreadable": "for the view 'files': if a manifest cannot be read, 'fail' (default) or 'report' in column 'error'",
    "files.<property>": "for the view 'files': property of pyiceberg's FileIO, such as files.s3.endpoint, or env:NAME",
    "splits": "approximate number of partitions of a large view, at most 100000 (default: twice the processors)",
    "prune": "whether filters skip rows before they are read (default: false); only for a DataFrame that is used once",
    "reference": "for a stream: a reference of the realm (root, catalogs, ...), instead of a catalog's branch",
    "start": "for a stream: begin at earliest (default) or latest, or after a commit number, commit id or past time",
    "max-changes-per-batch": "for a stream: maximum number of changes in a batch (default: no limit)",
}
"""Description of each option, by the option's name."""


LISTED_VARIABLES = "POLARIS_SPARK_VARIABLES"
"""Name of an environment variable of Spark's driver. It lists the variables that options may refer to as env:NAME.

The names are separated by commas. Without this list, every SQL user could use any variable, because users choose the
options of a view. The list cannot be a catalog property, because a view is read without opening a catalog.
"""

MAX_SPLITS = 100_000
"""Maximum of the option `splits`. It is limited because planning queries the database for each split."""

_MAX_COUNT = 10**18 - 1


class StoreLocation(NamedTuple):
    """URI and options of a store. Small and picklable; the `repr` shows no secret."""

    uri: str
    options: tuple[tuple[str, str | Secret], ...] = ()
    """Name and value of each option of the store. The prefix `store.` is removed from the names."""

    def resolved(self) -> StoreLocation:
        """Return this location with the values of secrets in place of `env:NAME`, for use in other processes.

        Raises:
            InputError: an environment variable is not set.
        """
        options = [(k, Secret(v.reveal()) if isinstance(v, Secret) else v) for k, v in self.options]
        return self._replace(options=tuple(options))


EARLIEST, LATEST = "earliest", "latest"


class StreamOptions(NamedTuple):
    """Options that only a stream has."""

    reference: str | None = None
    start: str | AsOf = EARLIEST
    """`EARLIEST`, `LATEST`, or the point in history after which the stream begins."""
    max_changes: int | None = None
    given: tuple[str, ...] = ()
    """Names of the stream options that are set."""

    @classmethod
    def parse(cls, named: Mapping[str, str]) -> StreamOptions:
        """Return the stream options.

        Args:
            named: the texts of all options, by lower-case name.

        Raises:
            InputError: a value is malformed.
        """
        start = named.get("start", EARLIEST).strip().lower()
        most = named.get("max-changes-per-batch")
        return cls(
            reference=named.get("reference"),
            start=start if start in (EARLIEST, LATEST) else AsOf.parse(named["start"], "start"),
            max_changes=None if most is None else _count("max-changes-per-batch", most),
            given=tuple(name for name in _STREAM_OPTIONS if name in named),
        )


_STREAM_OPTIONS = ("reference", "start", "max-changes-per-batch")
_NO_STREAM = StreamOptions()


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Parsed options of a read."""

    location: StoreLocation
    view: str
    credential: Secret | None = None
    """Credentials of the principal, in a realm with access control."""
    realm: str = "default"
    catalog: str | None = None
    branch: str = MAIN
    as_of: AsOf | None = None
    """Value of the option `as-of` or `to`: the point with which the history ends. None for the newest commit."""
    since: AsOf | None = None
    """Value of the option `from`: the history begins after this point. None for the oldest stored commit."""
    content: bool = False
    snapshots: str = "current"
    unreadable: str = "fail"
    files: tuple[tuple[str, Secret], ...] = ()
    """Name and value of each property of the pyiceberg FileIO that reads files. A value may be a credential."""
    splits: int = 0
    """Approximate number of partitions for a large view, at least 1."""
    prune: bool = False
    stream: StreamOptions = _NO_STREAM

    @classmethod
    def parse(cls, given: Mapping[str, str], views: Mapping[str, object]) -> ViewOptions:
        """Return the options of a read, parsed from text.

        Args:
            given: texts of the options, by name. Upper and lower case are not distinguished in names.
            views: all views, by name.
        Raises:
            InputError: an option is unknown or missing, or its value is not allowed; the message lists what is allowed.
            StoreURIError: the store URI is malformed, or contains a password.
        """
        named = {name.lower(): text for name, text in given.items()}
        refuse_unknown(named)
        refuse_unlisted_variables(
            {k: v for k, v in named.items() if k == "credential" or k.startswith(("store.", _FILES))},
            [one.strip() for one in os.environ.get(LISTED_VARIABLES, "").split(",")],
            f"the environment variable {LISTED_VARIABLES} of Spark's driver",
        )
        if not named.get("view"):
            raise InputError(f"the option 'view' is missing; the views are: {', '.join(views)}")
        if "to" in named and "as-of" in named:
            raise InputError(
                "the options 'to' and 'as-of' both set the end of a history; give only one of them"
            )
        _refuse_numbers_of_no_branch(named)
        view = named["view"].strip().lower()
        if view not in views:
            near = difflib.get_close_matches(view, views, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(f"there is no view {named['view']!r}; {hint}the views are: {', '.join(views)}")
        for option, owner in _OF_ONE_VIEW.items():
            if option in named and view != owner:
                raise InputError(
                    f"the view {view!r} has no option {option!r}; only the view {owner!r} has it"
                )
        properties = Properties.parse(
            {k: v for k, v in named.items() if k in _PROPERTIES or k.startswith("store.")},
            refuse_uri_password=True,
        )
        return cls(
            location=location_of(properties),
            view=view,
            credential=properties.credential,
            realm=properties.realm,
            catalog=properties.catalog,
            branch=properties.branch,
            as_of=_point(named, "to") or _point(named, "as-of"),
            since=_point(named, "from"),
            content=_flag("content", named.get("content", "false")),
            snapshots=_choice("snapshots", named.get("snapshots", "current"), ("current", "refs", "all")),
            unreadable=_choice("unreadable", named.get("unreadable", "fail"), ("fail", "report")),
            files=tuple(
                sorted((k[len(_FILES) :], Secret(v)) for k, v in named.items() if k.startswith(_FILES))
            ),
            splits=_count("splits", named.get("splits", str(2 * (os.cpu_count() or 1))), MAX_SPLITS),
            prune=_flag("prune", named.get("prune", "false")),
            stream=StreamOptions.parse(named),
        )

    def without_credential(self) -> ViewOptions:
        """Return these options without the credentials of the principal, for use on executors."""
        return replace(self, credential=None)


_NUMBER = re.compile(r"[0-9]{1,18}")
_PROPERTIES = ("store", "realm", "catalog", "branch", "credential")
_FILES = "files."
_OF_ONE_VIEW = {"content": "objects", "snapshots": "files"}
"""Options that are refused for all views but one, each with the name of this view."""


def location_of(properties: Properties) -> StoreLocation:
    """Return the URI and options of the store, from parsed properties.

    Raises:
        InputError: the store is in memory, so other processes cannot read it.
    """
    refuse_memory(properties.store)
    options = sorted(properties.store_options.items())
    return StoreLocation(str(properties.store), tuple(options))


def refuse_memory(uri: StoreURI) -> None:
    """Refuse a store that is in the memory of one process.

    Raises:
        InputError: the store is in memory.
    """
    if uri.address == "name":
        raise InputError(
            f"a {uri.scheme}: store ({uri}) exists only in the process that created it: no command and no worker of "
            "Spark can open it; use sqlite:///path/of/store.db or a database server"
        )


def refuse_unknown(named: Mapping[str, str]) -> None:
    """Refuse options that do not exist.

    Raises:
        InputError: an option does not exist; the message names all existing options.
    """
    for name in named:
        if name not in DESCRIPTIONS and not name.startswith(("store.", _FILES)):
            near = difflib.get_close_matches(name, DESCRIPTIONS, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(f"there is no option {name!r}; {hint}the options are: {', '.join(DESCRIPTIONS)}")


def _point(named: Mapping[str, str], option: str) -> AsOf | None:
    return AsOf.parse(named[option], option, names=option == "as-of") if option in named else None


def _refuse_numbers_of_no_branch(named: Mapping[str, str]) -> None:
    for option in ("as-of", "from", "to"):
        point = _point(named, option)
        if point is None or "catalog" in named:
            continue
        if point.number is not None:
            raise InputError(
                f"{option} is {point.text!r}, which is the number of a commit of a catalog's branch: give the option "
                "'catalog' as well, or give a commit id or a time instead"
            )
        if point.name:
            AsOf.parse(point.text, option)  # raises an error: names are those of a catalog


def _flag(name: str, text: str) -> bool:
    flags = {"true": True, "false": False}
    if text.strip().lower() not in flags:
        raise InputError(f"the option {name!r} is {text!r}; it must be true or false")
    return flags[text.strip().lower()]


def _choice(name: str, text: str, choices: tuple[str, ...]) -> str:
    if text.strip().lower() not in choices:
        raise InputError(f"the option {name!r} is {text!r}; it must be one of: {', '.join(choices)}")
    return text.strip().lower()


def _count(name: str, text: str, most: int = _MAX_COUNT) -> int:
    if not _NUMBER.fullmatch(text.strip()) or not 1 <= int(text) <= most:
        raise InputError(f"the option {name!r} is {text[:40]!r}; it must be a whole number from 1 to {most}")
    return int(text)
