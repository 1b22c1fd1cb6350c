"""Parsing of catalog properties. Users write them as text, which is checked once, before a store is opened.

Properties have the same names everywhere: `spark.sql.catalog.<name>.<property>` in Spark, catalog properties
in Java, keyword arguments in Python. Secrets are wrapped in `Secret`, whose representation is `***`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from polaris_spark.commit_notes import PROPERTY as NOTE
from polaris_spark.errors import InputError, StoreURIError
from polaris_spark.names import MAIN
from polaris_spark.property_values import (
    count,
    duration_ms,
    flag,
    metadata_files,
    nonempty_text,
    size_bytes,
    variable_names,
)
from polaris_spark.secret_options import REFERENCE
from polaris_spark.store_uris import Secret, StoreURI


@dataclass(frozen=True, slots=True)
class Properties:
    """All properties of a catalog, parsed. Durations are in milliseconds, sizes in bytes."""

    store: StoreURI
    store_options: Mapping[str, str | Secret] = field(default_factory=dict)
    """Properties under `store.`, without the prefix. Secrets are `Secret`s, and so are values of the form `env:NAME`,
    except those of options that distinguish stores (`Database.locating`)."""
    warehouse: str | None = None
    realm: str = "default"
    catalog: str | None = None
    branch: str = MAIN
    as_of: str | None = None
    """The point in the branch's history that the catalog shows; None for the newest state."""
    principal: str | None = None
    credential: Secret | None = None
    """Client id and client secret of the principal, as `client_id:client_secret`."""
    token: Secret | None = None
    access_refresh: int = 1_000
    """Time after which access control is read again."""
    procedure_variables: tuple[str, ...] | None = None
    """Names of the environment variables that arguments of procedures can refer to as `env:NAME`; None if they can
    refer to no variable."""
    metadata_files: str = "every-commit"
    create: bool = True
    idempotency_key_lifetime: int = 30 * 60_000
    commit_timeout: int = 60_000
    history_retention: int = 3 * 86_400_000
    log_retention: int = 365 * 86_400_000
    grace: int = 3 * 3_600_000
    cache_bytes: int = 128 * 2**20
    metrics_reports: int = 10_000
    append_rebase: bool = False
    """Whether an append that comes after other commits is rebased instead of refused (property
    `polaris.append-rebase`). A table property of the same name takes precedence."""
    schema_merge: bool = False
    """Whether columns that two clients add concurrently are merged (property `polaris.schema-merge`). A table property
    of the same name takes precedence."""
    allowed_locations: str | None = None
    """Locations below which tables and views may lie besides the warehouse, separated by commas. The stored ones of the
    catalog apply, too."""
    create_parent_namespaces: bool = True
    """Whether missing parents of new namespaces are created."""
    commit_notes: Mapping[str, str] = field(default_factory=dict)
    """Properties under `polaris.commit.`, without the prefix: notes on the changes of this session."""
    own: Mapping[str, str] = field(default_factory=dict)
    """The given properties that this package defines (`PROPERTIES`), as unparsed text by property name."""
    other: Mapping[str, str] = field(default_factory=dict)
    """The given properties that this package does not define, such as Iceberg's own, by property name. A value
    `env:NAME` is replaced by the value of the environment variable, as in Iceberg."""

    @classmethod
    def parse(cls, given: Mapping[str, str], *, refuse_uri_password: bool = False) -> Properties:
        """Parse the properties of a catalog.

        Args:
            given: texts by property name, without the prefix `spark.sql.catalog.<name>.`.
            refuse_uri_password: True to raise an error if the store URI contains a password, because everyone can read
                a Spark configuration.
        Raises:
            InputError: a value is not valid, or a name is probably a misspelled property of this package.
            StoreURIError: the property `store`, which is the store URI, is missing or malformed.
        """
        uri = _store(given, refuse_uri_password=refuse_uri_password)
        values: dict[str, object] = {}
        store_options: dict[str, str | Secret] = {}
        own: dict[str, str] = {}
        other: dict[str, str] = {}
        notes: dict[str, str] = {}
        for name, text in given.items():
            if name == "store":
                continue
            if name.startswith("store."):
                option = name[len("store.") :]
                store_options[option] = Secret(text) if uri.hides(option, text) else text
            elif name.startswith(NOTE):
                notes[name.removeprefix(NOTE)] = text
            elif name in PROPERTIES:
                value = PROPERTIES[name].parse(name, text)
                own[name] = "***" if isinstance(value, Secret) else text
                if name != "python":  # the JVM starts this process with it; nothing reads it here
                    values[name.removeprefix("polaris.").replace("-", "_")] = value
            else:
                _refuse_near_miss(name)
                if text.startswith(REFERENCE) and name.startswith(("table-default.", "table-override.")):
                    raise InputError(f"{name} is stored in the catalog, so its value cannot be env:NAME")
                other[name] = Secret(text).reveal() if text.startswith(REFERENCE) else text
        if uri.password is not None:
            store_options.setdefault("password", uri.password)
        return cls(store=uri, store_options=store_options, commit_notes=notes, own=own, other=other, **values)  # type: ignore[arg-type]  # each parser returns its field's type


def texts_of(keywords: Mapping[str, object]) -> dict[str, str]:
    """Return the texts of properties by name, given as keyword arguments of Python. A property with the value None is
    left out. Underscores in a name become dashes, unless the name contains a dot: such a name is already that of a
    property."""
    found = {}
    for name, value in keywords.items():
        if value is not None:
            option = name if "." in name else name.replace("_", "-")
            found[option] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def refuse_unlisted_variables(options: Mapping[str, str], listed: Collection[str], list_name: str) -> None:
    """Refuse options whose value is `env:NAME`, unless the operator has listed the variable NAME.

    A user who writes options in SQL also chooses the hosts to which their values are sent. So options in SQL can refer
    only to those variables of the driver's environment that the operator lists.

    Args:
        options: values by name, as they were given.
        listed: names of the variables that may be used.
        list_name: name of the operator's list, for the message.
    Raises:
        InputError: a variable is not listed; the message names it and the list.
    """
    for name, value in options.items():
        variable = value.removeprefix(REFERENCE)
        if value.startswith(REFERENCE) and variable not in listed:
            raise InputError(
                f"the option {name!r} names the environment variable {variable!r}, which {list_name} does not list: "
                "ask the operator of the driver to add it"
            )


def _store(given: Mapping[str, str], *, refuse_uri_password: bool) -> StoreURI:
    if not given.get("store", "").strip():
        _refuse_near_misses_of_store(given)
        raise StoreURIError(
            "the property 'store' is missing; give a store URI such as sqlite:///path/of/store.db"
        )
    uri = StoreURI.parse(given["store"])
    if refuse_uri_password and uri.password is not None:
        raise StoreURIError(
            f"the store URI {uri} contains a password, which everyone can read in a configuration; "
            "remove it and set 'store.password' to it, or to env:NAME for an environment variable"
        )
    return uri


class Property(NamedTuple):
    """Definition of a catalog property, used by `Properties.parse` and by the list of properties in the
    documentation."""

    parse: Callable[[str, str], object]
    default: str
    """The default value as a user would write it, or a description of the default."""
    meaning: str


PROPERTIES: Mapping[str, Property] = {
    "warehouse": Property(
        nonempty_text,
        "the catalog's own",
        "Location below which a table is created if its creator gives no location. A catalog stores the warehouse with "
        "which it was created, and uses it by default.",
    ),
    "realm": Property(nonempty_text, "default", "Realm: a tenant of the store, with its own catalogs."),
    "catalog": Property(
        nonempty_text, "the name in Spark or pyiceberg, else `polaris`", "Name of the catalog in the realm."
    ),
    "branch": Property(nonempty_text, MAIN, "Branch of the catalog that is read and changed."),
    "as-of": Property(
        nonempty_text,
        "the newest state",
        "Number, id or time of a commit of the branch, or a tag or another branch. The catalog then shows the state of "
        "this commit, and cannot be changed. A time has the form 2026-01-31T12:00:00Z.",
    ),
    "principal": Property(
        nonempty_text, "Spark's user, else the OS user", "User that the log records as the author of changes."
    ),
    "credential": Property(
        lambda _, text: Secret(text),
        "no credentials",
        "In a realm with access control: `client_id:client_secret` of the principal, or `env:NAME`, where NAME is an "
        "environment variable that contains it. Other realms ignore it.",
    ),
    "token": Property(
        lambda _, text: Secret(text),
        "no token",
        "In a realm with access control: a token that a server of the realm issued to the principal, in place of "
        "`credential`; or `env:NAME`. It is checked when the catalog is opened.",
    ),
    "access-refresh": Property(
        duration_ms,
        "1 s",
        "Time after which principals, roles and grants are read again. A change of access made elsewhere holds within "
        "this time.",
    ),
    "procedure-variables": Property(
        variable_names,
        "no variable",
        "Names, separated by commas, of the environment variables that arguments of procedures may use as "
        "`env:NAME`.",
    ),
    "metadata-files": Property(
        metadata_files,
        "every-commit",
        "`every-commit` also writes Iceberg's `metadata.json` at each commit; `never` keeps rows only.",
    ),
    "python": Property(
        nonempty_text,
        "the interpreter of PySpark",
        "Python interpreter that runs the commit protocol, in a process started by the JVM.",
    ),
    "create": Property(flag, "true", "Whether store, realm and catalog are created on first use."),
    "idempotency-key-lifetime": Property(
        duration_ms,
        "30 min",
        "Time for which a repeated request is recognized and gets the first answer, instead of being executed again.",
    ),
    "commit-timeout": Property(
        duration_ms,
        "60 s",
        "Time limit for computing and committing a change. After it, the caller is told to try again, or that the "
        "outcome is unknown.",
    ),
    "history-retention": Property(duration_ms, "3 d", "Minimum time for which history is kept."),
    "log-retention": Property(
        duration_ms,
        "365 d",
        "Minimum time for which the log of trimmed commits is kept, without their states. 0 s if it is not archived.",
    ),
    "grace": Property(
        duration_ms,
        "3 h",
        "Minimum time for which dropped references and unneeded rows are kept.",
    ),
    "cache-bytes": Property(
        size_bytes, "128 MiB", "Memory that a process may use to cache immutable objects."
    ),
    "metrics-reports": Property(
        count,
        "10000",
        "Approximate number of scan and commit reports to keep for the view `metrics`; 0 keeps none.",
    ),
    "allowed-locations": Property(
        nonempty_text,
        "any location",
        "Locations, separated by commas, below which tables and views may lie besides the warehouse.",
    ),
    "create-parent-namespaces": Property(
        flag,
        "true",
        "Whether `CREATE NAMESPACE a.b` also creates `a` in the same commit if `a` does not exist. If false, the "
        "request is refused in that case.",
    ),
    "polaris.schema-merge": Property(
        flag,
        "false",
        "Whether columns that two clients add concurrently are merged. If false, the second client gets a conflict "
        "(status 409). A table property of this name takes precedence.",
    ),
    "polaris.append-rebase": Property(
        flag,
        "false",
        "Whether an append is rebased if others appended to its branch, or changed other branches, before it. If "
        "false, the client gets a conflict (status 409). A table property of this name takes precedence.",
    ),
}
"""All properties by name, except the store URI (`store`) and the options of the store (`store.<option>`)."""

_ICEBERG = frozenset({"cache-enabled", "catalog-impl", "scope", "prefix", "type", "uri"})
# Names of Iceberg's own properties, which are never reported as misspelled.

_OF_TABLES = (
    "gc.enabled",
    "history.expire.max-snapshot-age-ms",
    "history.expire.min-snapshots-to-keep",
    "history.expire.max-ref-age-ms",
)
"""Table properties that can also be set on a catalog."""
_PREFIXES = ("table-default", "table-override")
"""Prefixes of catalog properties that set properties of new tables, without the dot after the prefix."""


def _refuse_near_miss(name: str) -> None:
    ours = [*PROPERTIES, "store", *_OF_TABLES]
    if name in _ICEBERG or name in _OF_TABLES:
        return
    prefix, dot, rest = name.partition(".")
    if prefix not in _PREFIXES and dot:
        near = difflib.get_close_matches(prefix.lower().replace("_", "-"), _PREFIXES, n=1, cutoff=0.8)
        if near:
            raise InputError(f"there is no property {name!r}; did you mean '{near[0]}.{rest}'?")
    plain = name.lower().replace("_", "-")
    same = [one for one in (plain, f"polaris.{plain}") if one in ours]
    near = same or difflib.get_close_matches(plain, ours, n=1, cutoff=0.8)
    if near:
        raise InputError(f"there is no property {name!r}; did you mean {near[0]!r}?")


def _refuse_near_misses_of_store(given: Mapping[str, str]) -> None:
    for name in given:
        if name not in PROPERTIES and not name.startswith("store"):
            _refuse_near_miss(name)
