"""Options of the data source `polaris-objects`: text that users write, checked before anything is opened."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from polaris_spark.config import Properties, Secret, StoreURI, refuse_unlisted_variables
from polaris_spark.errors import InputError
from polaris_spark.names import MAIN
from polaris_spark.spark.as_of import AsOf

DESCRIPTIONS = {
    "store": "URI of the store, such as sqlite:///path/catalog.db; without a password",
    "store.<option>": "an option of the store; 'store.password' is the password, or env:NAME of a listed variable",
    "view": "which view",
    "realm": "the realm (default: default)",
    "catalog": "the catalog; without it, all of the realm",
    "branch": "the branch of the catalog (default: main)",
    "as-of": "a commit number or id, or a time (ISO 8601 with its zone, or milliseconds since 1970); without it, now",
    "from": "of changes and commits: only what came after this point, given as for as-of; the point itself is excluded",
    "to": "of changes and commits: only what came up to this point, given as for as-of; the point itself is included",
    "content": "true to have the column 'content' of the view 'objects' filled (default: false)",
    "snapshots": "of the view 'files': those of the 'current' snapshots (default), of all that 'refs' name, or 'all'",
    "unreadable": "of the view 'files': 'fail' (default) where a manifest cannot be read, or 'report' it in 'error'",
    "files.<property>": "of the view 'files': a property of pyiceberg's FileIO, such as files.s3.endpoint, or env:NAME",
    "splits": "approximate number of partitions for a large view, at most 100000 (default: twice the processors)",
    "prune": "true to let pushed filters leave partitions out; for a table that is read by one scan only",
    "reference": "of a stream: a reference of the realm (root, catalogs, ...), instead of a catalog's branch",
    "start": "of a stream: earliest (the default), latest, or a commit number, id or past time after which it begins",
    "max-changes-per-batch": "of a stream: most changes in a batch (default: no limit)",
}
"""Every option, with what it says."""


LISTED_VARIABLES = "POLARIS_SPARK_VARIABLES"
"""The environment variable of the driver that lists, separated by commas, the variables that options may name. A view
has no catalog whose property could list them, and every caller of SQL chooses its options."""

MAX_SPLITS = 100_000
"""The largest `splits`: a database is asked about every one before anything is read."""

_MAX_COUNT = 10**18 - 1


class StoreLocation(NamedTuple):
    """Where a store is, and how to open it: small, picklable, and without a secret in its `repr`."""

    uri: str
    options: tuple[tuple[str, str | Secret], ...] = ()
    """Options under `store.`, without that prefix, by name."""

    def resolved(self) -> StoreLocation:
        """The same with secrets that the environment holds looked up here, for processes that lack them.

        Raises:
            InputError: a variable is not set.
        """
        options = [(k, Secret(v.reveal()) if isinstance(v, Secret) else v) for k, v in self.options]
        return self._replace(options=tuple(options))


EARLIEST, LATEST = "earliest", "latest"


class StreamOptions(NamedTuple):
    """What only a stream takes."""

    reference: str | None = None
    start: str | AsOf = EARLIEST
    """`EARLIEST`, `LATEST`, or the point after which the stream begins."""
    max_changes: int | None = None
    given: tuple[str, ...] = ()
    """Names of those that are given."""

    @classmethod
    def parse(cls, named: Mapping[str, str]) -> StreamOptions:
        """Options of streams from the text of all options, by name in lower case.

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
    """What to read, parsed."""

    location: StoreLocation
    view: str
    realm: str = "default"
    catalog: str | None = None
    branch: str = MAIN
    as_of: AsOf | None = None
    """Given as `as-of` or `to`: a history as it was at a point is the history until then."""
    since: AsOf | None = None
    """Given as `from`."""
    content: bool = False
    snapshots: str = "current"
    unreadable: str = "fail"
    files: tuple[tuple[str, Secret], ...] = ()
    """Properties of the files' FileIO, which may be credentials, by name."""
    splits: int = 0
    """About how many partitions a large view is to have, at least 1."""
    prune: bool = False
    stream: StreamOptions = _NO_STREAM

    @classmethod
    def parse(cls, given: Mapping[str, str], views: Mapping[str, object]) -> ViewOptions:
        """Options from their text; names are compared in lower case.

        Args:
            given: option names to values.
            views: by name, those that exist.
        Raises:
            InputError: an option or its value is unknown; the message names the choices.
            StoreURIError: the store URI is malformed, or carries a password.
        """
        named = {name.lower(): text for name, text in given.items()}
        refuse_unknown(named)
        refuse_unlisted_variables(
            {k: v for k, v in named.items() if k.startswith(("store.", _FILES))},
            [one.strip() for one in os.environ.get(LISTED_VARIABLES, "").split(",")],
            f"the environment variable {LISTED_VARIABLES} of Spark's driver",
        )
        if not named.get("view"):
            raise InputError(f"the option 'view' is missing; there are: {', '.join(views)}")
        if "to" in named and "as-of" in named:
            raise InputError("the options 'to' and 'as-of' both say where a history ends; give one of them")
        _refuse_numbers_of_no_branch(named)
        view = named["view"].strip().lower()
        if view not in views:
            near = difflib.get_close_matches(view, views, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(f"there is no view {named['view']!r}; {hint}there are: {', '.join(views)}")
        for option, owner in _OF_ONE_VIEW.items():
            if option in named and view != owner:
                raise InputError(f"the view {view!r} has no {option}: it is an option of the view {owner!r}")
        properties = Properties.parse(
            {k: v for k, v in named.items() if k in _PROPERTIES or k.startswith("store.")},
            refuse_uri_password=True,
        )
        return cls(
            location=location_of(properties),
            view=view,
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


_NUMBER = re.compile(r"[0-9]{1,18}")
_PROPERTIES = ("store", "realm", "catalog", "branch")
_FILES = "files."
_OF_ONE_VIEW = {"content": "objects", "snapshots": "files"}
"""Options that would change what other views show, if those had them."""


def location_of(properties: Properties) -> StoreLocation:
    """Where the store of parsed properties is.

    Raises:
        InputError: it is a store in memory, which no other process can read.
    """
    refuse_memory(properties.store)
    options = sorted(properties.store_options.items())
    return StoreLocation(str(properties.store), tuple(options))


def refuse_memory(uri: StoreURI) -> None:
    """Refuse a store that lives in one process.

    Raises:
        InputError: it does.
    """
    if uri.scheme == "memory":
        raise InputError(
            f"a memory: store ({uri}) lives in the process that made it, so Spark's workers cannot read it; "
            "use sqlite:///path/of/store.db or a database server"
        )


def refuse_unknown(named: Mapping[str, str]) -> None:
    """Refuse options that do not exist.

    Raises:
        InputError: one does not; the message names all that do.
    """
    for name in named:
        if name not in DESCRIPTIONS and not name.startswith(("store.", _FILES)):
            near = difflib.get_close_matches(name, DESCRIPTIONS, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(f"there is no option {name!r}; {hint}there are: {', '.join(DESCRIPTIONS)}")


def _point(named: Mapping[str, str], option: str) -> AsOf | None:
    return AsOf.parse(named[option], option) if option in named else None


def _refuse_numbers_of_no_branch(named: Mapping[str, str]) -> None:
    for option in ("as-of", "from", "to"):
        point = _point(named, option)
        if point is not None and point.number is not None and "catalog" not in named:
            raise InputError(
                f"{option} is {point.text!r}, the number of a commit of a catalog's branch: give the option 'catalog' "
                "as well, or a commit id or a time"
            )


def _flag(name: str, text: str) -> bool:
    flags = {"true": True, "false": False}
    if text.strip().lower() not in flags:
        raise InputError(f"the option {name!r} is {text!r}; it is true or false")
    return flags[text.strip().lower()]


def _choice(name: str, text: str, choices: tuple[str, ...]) -> str:
    if text.strip().lower() not in choices:
        raise InputError(f"the option {name!r} is {text!r}; it is one of: {', '.join(choices)}")
    return text.strip().lower()


def _count(name: str, text: str, most: int = _MAX_COUNT) -> int:
    if not _NUMBER.fullmatch(text.strip()) or not 1 <= int(text) <= most:
        raise InputError(f"the option {name!r} is {text[:40]!r}; it is a whole number from 1 to {most}")
    return int(text)
