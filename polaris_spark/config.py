"""Parsing of store URIs and catalog properties. Users write them as text, which is checked once, before a store is
opened.

Properties have the same names everywhere: `spark.sql.catalog.<name>.<property>` in Spark, catalog properties
in Java, keyword arguments in Python. Secrets are wrapped in `Secret`, whose representation is `***`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

from polaris_spark.commit_notes import PROPERTY as NOTE
from polaris_spark.databases import FILE_SCHEMES, database_of
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
from polaris_spark.secret_options import REFERENCE, is_secret, without_secrets

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_STORE_NAME = re.compile(r"[A-Za-z0-9_.-]{0,128}")


def is_driver_text(text: str) -> bool:
    """Whether database drivers accept a text. They do if it contains neither NUL nor a lone surrogate.

    Drivers encode texts as UTF-8, and many pass them to C code as C strings. In Python, the value of an environment
    variable contains lone surrogates if it is not UTF-8.
    """
    return not any(c == "\0" or 0xD800 <= ord(c) <= 0xDFFF for c in text)


def _usable(text: str, what: str) -> str:
    """Return the text if database drivers accept it (`is_driver_text`).

    Args:
        what: description of the text for the error message, which does not show the text because it may be secret.
    Raises:
        InputError: drivers do not accept the text.
    """
    if not is_driver_text(text):
        raise InputError(f"{what} is not valid Unicode, or contains the character NUL")
    return text


class Secret:
    """A password or another secret value, given as text or as `env:NAME`, the name of an environment variable that
    contains it. `repr` does not show it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret value, which is read from the environment variable if one was given.

        Raises:
            InputError: the environment variable is not set, or the value is not text that database drivers accept.
        """
        if not self._text.startswith(REFERENCE):
            return _usable(self._text, "a secret")
        name = self._text.removeprefix(REFERENCE)
        value = os.environ.get(name)
        if value is None:
            raise InputError(f"the environment variable {name!r}, which must contain a secret, is not set")
        return _usable(value, f"the environment variable {name!r}")

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


@dataclass(frozen=True, slots=True)
class StoreURI:
    """The location of a store. `str()` returns the URI without its password.

    `memory:`, `memory:name`; `sqlite:///absolute/path`, `sqlite:relative/path` (made absolute when parsed);
    `scheme://user:password@host:port,host:port/path?option=value` for databases behind a network. Names and
    paths may be percent-encoded.
    """

    scheme: str
    authority: str = ""
    """Hosts with ports, separated by commas; for object stores, the bucket. Some backends also accept an empty
    authority."""
    path: str = ""
    """If `address` is `host`: the part after the authority and a slash. If it is `path`: an absolute path. If it is
    `name`: the store's name."""
    user: str | None = None
    password: Secret | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> StoreURI:
        """Parse a store URI.

        Raises:
            StoreURIError: the URI is malformed. The message says how, and never contains the password.
            MissingLibraryError: the package that adds the scheme cannot be imported.
        """
        match = _SCHEME.fullmatch(text.strip())
        if match is None:
            raise StoreURIError(
                f"a store URI must begin with a scheme, such as sqlite:///path/of/store.db or memory:, "
                f"not {without_secrets(text)!r}"
            )
        scheme, rest = match.group(1).lower(), match.group(2)
        if any(ord(c) < 32 or ord(c) == 127 for c in rest):
            raise StoreURIError(f"a store URI ({scheme}:) has control characters; percent-encode them")
        if any(0xD800 <= ord(c) <= 0xDFFF for c in rest):
            raise StoreURIError(f"a store URI ({scheme}:) is not valid Unicode: it contains a lone surrogate")
        if "#" in rest:
            raise StoreURIError(
                f"a store URI ({scheme}:) must not contain a fragment; write '#' in a path as %23"
            )
        rest, mark, query = rest.partition("?")
        options = _options(scheme, query) if mark else {}
        address = _address(scheme)
        if address == "name":
            return cls(scheme, path=_store_name(scheme, rest), options=options)
        if address == "path":
            return cls(scheme, path=_file_path(scheme, rest), options=options)
        return _network(scheme, rest, options)

    @property
    def address(self) -> Literal["host", "path", "name"]:
        """Form of the URI after the scheme: `host`, `path` or `name` (see `Database.address`). It is `host` if the
        scheme is unknown."""
        return _address(self.scheme)

    @property
    def key(self) -> str:
        """Text that identifies the store within a process: the URI without credentials. It contains only those options
        that distinguish stores (`Database.locating`)."""
        names = _locating(self.scheme)
        located = "".join(f":{name}={self.options[name]}" for name in names if name in self.options)
        return f"{self.scheme}:{self.authority}:{self.path}{located}"

    def located(self, options: Mapping[str, str | Secret] | None) -> StoreURI:
        """Return this URI with additional options. Only options that distinguish stores (`Database.locating`) are
        added.

        Args:
            options: options of the store that were given separately from the URI.
        """
        names = _locating(self.scheme)
        given = {name: text for name, text in (options or {}).items() if name in names}
        return replace(
            self, options={**self.options, **{n: t for n, t in given.items() if isinstance(t, str)}}
        )

    def __str__(self) -> str:
        query = f"?{urlencode(self.options)}" if self.options else ""
        if self.address == "name":
            return f"{self.scheme}:{self.path}{query}"
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        slash = "/" if self.path and not self.path.startswith("/") else ""
        return f"{self.scheme}://{user}{self.authority}{slash}{quote(self.path)}{query}"


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
                store_options[option] = Secret(text) if _is_hidden(uri, option, text) else text
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


def refuse_unknown_options(scheme: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse options that a backend does not have, and suggest the most similar known option.

    Raises:
        StoreURIError: an option is unknown.
    """
    known = sorted(known)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"its options are: {', '.join(known) or 'none'}"
            raise StoreURIError(f"a {scheme}: store has no option {name!r}; {hint}")


def _address(scheme: str) -> Literal["host", "path", "name"]:
    database = database_of(scheme)
    return "host" if database is None else database.address


def _locating(scheme: str) -> tuple[str, ...]:
    database = database_of(scheme)
    return () if database is None else database.locating


def _is_hidden(uri: StoreURI, option: str, text: str) -> bool:
    locating = option in _locating(uri.scheme)
    return is_secret(option, text) or (text.startswith(REFERENCE) and not locating)


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


def _options(scheme: str, query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict")
    except UnicodeDecodeError:
        raise StoreURIError(f"an option of a {scheme}: store URI is not UTF-8") from None
    except ValueError:
        raise StoreURIError(
            f"the options of a {scheme}: store URI must have the form name=value&name=value"
        ) from None
    options = dict(pairs)
    if len(options) != len(pairs):
        raise StoreURIError(
            f"an option of a {scheme}: store URI is given twice; the options of the URI are "
            f"{', '.join(n for n, _ in pairs)}"
        )
    for name, text in pairs:
        if "\0" in name + text:
            raise StoreURIError(
                f"the option {name!r} of a {scheme}: store URI contains the character NUL (%00); remove it"
            )
        if is_secret(name, text):
            raise StoreURIError(
                f"the option {name} of a {scheme}: store URI is or contains a secret, which is not allowed in a URI; "
                f"set the catalog property store.{name} instead"
            )
    return options


def _unescaped(scheme: str, text: str) -> str:
    """Return a part of a URI with its percent-encoding removed.

    Raises:
        StoreURIError: the part encodes bytes that are not UTF-8, or the character NUL.
    """
    try:
        found = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise StoreURIError(f"a store URI ({scheme}:) has a percent-encoded part that is not UTF-8") from None
    if "\0" in found:
        raise StoreURIError(
            f"a store URI ({scheme}:) contains the character NUL (%00), which names cannot contain; remove it"
        )
    return found


def _store_name(scheme: str, rest: str) -> str:
    if rest.startswith("//"):
        raise StoreURIError(
            f"a {scheme}: URI must not contain '//', because the store has only a name, and no host or path; "
            f"write {scheme}: or {scheme}:name"
        )
    if not _STORE_NAME.fullmatch(rest):
        raise StoreURIError(
            f"the name of a {scheme}: store must consist of at most 128 letters, digits, '_', '.' and '-'"
        )
    return rest


def _file_path(scheme: str, rest: str) -> str:
    path = _unescaped(scheme, rest)
    if path.startswith("//") and not path.startswith("///"):
        raise StoreURIError(
            f"a {scheme}: store has no host; write {scheme}:///absolute/path or {scheme}:relative/path, "
            f"not {scheme}:{without_secrets(path)}"
        )
    if not path.strip("/"):
        raise StoreURIError(
            f"a {scheme}: store URI must have a path: {scheme}:///absolute/path or {scheme}:relative/path"
        )
    if path.lstrip("/") == ":memory:":
        raise StoreURIError("':memory:' is not the path of a store; write memory: for a store in memory")
    if path.endswith("/"):
        raise StoreURIError(
            f"{scheme}:{path} names a directory; the path of a {scheme}: store must not end with a slash"
        )
    return os.path.abspath("/" + path.lstrip("/") if path.startswith("/") else path)


def _network(scheme: str, rest: str, options: dict[str, str]) -> StoreURI:
    if not rest.startswith("//"):
        near = difflib.get_close_matches(scheme, FILE_SCHEMES, n=1)
        hint = f"did you mean '{near[0]}:{without_secrets(rest)}'? " if near else ""
        files = ", ".join(f"{each}:" for each in FILE_SCHEMES)
        raise StoreURIError(
            f"the store URI '{without_secrets(f'{scheme}:{rest}')}' is malformed; {hint}Only {files} may have a "
            "path after the scheme; any other database needs two slashes and a host, as in postgresql://host/path"
        )
    authority, _, path = rest[2:].partition("/")
    if "@" in path:  # the user or password probably contains a slash; a part of the password would be shown
        raise StoreURIError(
            f"a {scheme}: store URI has '@' after a slash; in a user or password, write '/' as %2F, and in a path, "
            "write '@' as %40"
        )
    user = password = None
    if "@" in authority:
        credentials, _, authority = authority.rpartition("@")
        name, colon, secret = credentials.partition(":")
        user = _unescaped(scheme, name) or None
        password = Secret(_unescaped(scheme, secret)) if colon else None
    return StoreURI(scheme, _unescaped(scheme, authority), _unescaped(scheme, path), user, password, options)
