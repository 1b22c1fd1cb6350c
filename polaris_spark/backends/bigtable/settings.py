"""Settings of a `bigtable://` store, from its URI and options."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from polaris_spark.backends import Options
from polaris_spark.backends.store_options import Given
from polaris_spark.errors import StoreURIError
from polaris_spark.store_uris import StoreURI

PREFIX: Final = "polaris_spark"
"""Default prefix of the names of a store's tables."""

_FORM: Final = "bigtable://project/instance/prefix"
_OPTIONS: Final = ("app-profile", "channels", "credentials", "endpoint", "timeout")
_PROJECT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]*")
_INSTANCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,38}")  # a table's id has at most 50 characters
_PROFILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,49}")
_ENDPOINT: Final = re.compile(r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_HOST: Final = "bigtable.googleapis.com:443"
_ADMIN_HOST: Final = "bigtableadmin.googleapis.com:443"
_EMULATOR: Final = "BIGTABLE_EMULATOR_HOST"


@dataclass(frozen=True, slots=True)
class Settings:
    """Location and options of a store. Durations are in milliseconds."""

    project: str
    instance: str
    prefix: str = PREFIX
    app_profile: str = ""
    """App profile; empty for the instance's default profile."""
    host: str = _HOST
    admin_host: str = _ADMIN_HOST
    plain: bool = False
    """Whether the server is an emulator, which is used without TLS and without credentials."""
    credentials: str | None = None
    """Path of a credentials file; None for application default credentials."""
    timeout: int = 30_000
    """Maximum duration of an operation, including retries."""
    channels: int = 2
    """Number of connections of one process."""

    @classmethod
    def parse(cls, uri: StoreURI, options: Options) -> Settings:
        """Return the settings from a store URI and options, which include the options of the URI.

        Raises:
            StoreURIError: the URI names no instance, or an option or its value is not valid.
        """
        if uri.user is not None or "password" in options:
            raise StoreURIError(
                "a bigtable: store does not take a user and password; set the option 'credentials' to the path of "
                "a credentials file, or set up application default credentials"
            )
        given = Given(uri.scheme, options, _OPTIONS)
        instance, _, prefix = uri.path.partition("/")
        for name, text, pattern in (
            ("project", uri.authority, _PROJECT),
            ("instance", instance, _INSTANCE),
            ("prefix", prefix or PREFIX, _PREFIX),
            ("option app-profile", given.texts.get("app-profile", "default"), _PROFILE),
        ):
            if not pattern.fullmatch(text):
                raise StoreURIError(
                    f"the {name} of a bigtable: store cannot be {text!r}; a URI has the form {_FORM}, where the "
                    "prefix has at most 39 letters, digits and '._-'"
                )
        return cls(
            uri.authority,
            instance,
            prefix or PREFIX,
            given.texts.get("app-profile", ""),
            *_hosts(given),
            given.texts.get("credentials"),
            given.duration_ms("timeout", "30 s"),
            given.count("channels", 2, 99),
        )

    @property
    def instance_name(self) -> str:
        """Full name of the instance in the API."""
        return f"projects/{self.project}/instances/{self.instance}"

    def table_id(self, table: str) -> str:
        """Return the id of the table for `objects` or `references`."""
        return f"{self.prefix}-{table}"

    def table_name(self, table: str) -> str:
        """Return the full name of the table for `objects` or `references` in Bigtable's API:
        `projects/.../instances/.../tables/...`."""
        return f"{self.instance_name}/tables/{self.table_id(table)}"

    @property
    def where(self) -> str:
        """The store's name for error messages."""
        at = "" if self.host == _HOST else f" at {self.host}"
        return f"bigtable://{self.project}/{self.instance}/{self.prefix}{at}"


def _hosts(given: Given) -> tuple[str, str, bool]:
    """Return the host of the data API, the host of the admin API, and whether both belong to an emulator."""
    endpoint = given.texts.get("endpoint")
    if endpoint is None:
        emulator = os.environ.get(_EMULATOR)
        return (emulator, emulator, True) if emulator else (_HOST, _ADMIN_HOST, False)
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None or int((found[3] or ":1")[1:]) > 65_535:
        raise given.refused(
            "endpoint", "http://host:port for an emulator, or https://host for another address of the service"
        )
    plain = found[1] == "http"
    host = f"{found[2]}{found[3] or (':80' if plain else ':443')}"
    return host, host if plain else _ADMIN_HOST, plain
