"""Settings of an object store, from its URI and options. `Settings.open` returns a client with these settings."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from polaris_spark.backends import Options
from polaris_spark.backends.store_options import Given, endpoint
from polaris_spark.errors import StoreURIError
from polaris_spark.store_uris import Secret, StoreURI

_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": ("connections", "endpoint", "password", "region", "timeout", "virtual-hosted"),
    "gs": ("connections", "endpoint", "timeout"),
    "az": ("connections", "endpoint", "password", "timeout"),
}
_PREFIX: Final = re.compile(r"([A-Za-z0-9_=@+-][A-Za-z0-9._=@+-]*(/|$))*")
_LONGEST_PREFIX: Final = 400
# Strict, because the library panics if a name is not valid in a URL or header.
_NAMES: Final[Mapping[str, re.Pattern[str]]] = {
    "bucket": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"),
    "user": re.compile(r"[!-~]+"),
    "region": re.compile(r"[A-Za-z0-9._-]+"),
}
_ALLOWED: Final = {
    "bucket": "letters, digits and '._-', beginning with a letter or digit",
    "user": "printable ASCII characters except the space",
    "region": "letters, digits and '._-'",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Location and options of a store. Durations are in milliseconds."""

    scheme: str
    bucket: str
    prefix: str = ""
    user: str | None = None
    """Access key id; for Azure, the account."""
    password: Secret | None = None
    endpoint: str | None = None
    region: str | None = None
    virtual_hosted: bool = False
    timeout: int = 30_000
    """Maximum duration of one request, including retries."""
    connections: int = 32
    """Maximum number of concurrent requests when several objects are read or written at once."""

    @classmethod
    def parse(cls, uri: StoreURI, options: Options) -> Settings:
        """Return the settings of a store.

        Raises:
            StoreURIError: the bucket is missing, the prefix is not usable, or an option or its value is not valid.
        """
        given = Given(uri.scheme, options, _OPTIONS[uri.scheme])
        if not uri.authority:
            raise StoreURIError(f"{uri} names no bucket; write {uri.scheme}://bucket/prefix")
        prefix = uri.path.strip("/")
        if not _PREFIX.fullmatch(prefix) or len(prefix) > _LONGEST_PREFIX:
            raise StoreURIError(
                f"the prefix {prefix[:60]!r} of a {uri.scheme}: store is not usable; it may have at most "
                f"{_LONGEST_PREFIX} letters, digits and '._=@+-', in parts separated by single slashes; no part may "
                "begin with '.'"
            )
        region = given.texts.get("region")
        for name, text in (("bucket", uri.authority), ("user", uri.user), ("region", region)):
            if text is not None and not _NAMES[name].fullmatch(text):
                raise StoreURIError(
                    f"the {name} of a {uri.scheme}: store cannot be {text!r}; allowed are {_ALLOWED[name]}"
                )
        return cls(
            uri.scheme,
            uri.authority,
            prefix,
            uri.user,
            given.password,
            endpoint(given),
            region,
            given.flag("virtual-hosted"),
            given.duration_ms("timeout", "30 s"),
            given.count("connections", 32, 999),
        )

    @property
    def where(self) -> str:
        """The store's name for error messages, without secrets."""
        at = f" at {self.endpoint}" if self.endpoint else ""
        return f"{self.scheme}://{self.bucket}/{self.prefix}{at}"

    @property
    def place(self) -> str:
        """A digest of scheme, endpoint and bucket, which identifies the bucket."""
        return hashlib.sha256(f"{self.scheme}:{self.endpoint}:{self.bucket}".encode()).hexdigest()[:32]

    def open(self, client: Mapping[str, object], retries: Mapping[str, object]) -> Any:
        """Return a client for the bucket. `client` and `retries` are obstore's client options and retry configuration.
        Missing settings come from the environment variables and files that the object store's own tools read.

        Raises:
            StoreURIError: the library rejects the settings as incomplete or malformed.
        """
        client = {**client, "allow_http": True} if (self.endpoint or "").startswith("http:") else client
        common: dict[str, Any] = {
            "prefix": self.prefix or None, "client_options": client, "retry_config": retries
        }  # fmt: skip  # reads better on one line
        secret = None if self.password is None else self.password.reveal()
        make, config = _CLIENTS[self.scheme], _CONFIGS[self.scheme](self, secret)
        try:
            return make(self.bucket, config={k: v for k, v in config.items() if v is not None}, **common)
        except exceptions.BaseError as error:
            problem = str(error).partition("\n")[0]
            raise StoreURIError(
                f"{self.where} cannot be opened: {problem}; check its user and password"
            ) from None


_CLIENTS: Final[Mapping[str, Any]] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_CONFIGS: Final[Mapping[str, Any]] = {
    "s3": lambda settings, secret: {
        "access_key_id": settings.user,
        "secret_access_key": secret,
        "endpoint": settings.endpoint,
        "region": settings.region,
        "virtual_hosted_style_request": settings.virtual_hosted or None,
    },
    "gs": lambda settings, _: {"base_url": settings.endpoint},
    "az": lambda settings, secret: {
        "account_name": settings.user,
        "account_key": secret,
        "endpoint": settings.endpoint,
    },
}
