"""Settings of a `dynamodb://` store, from its URI and options. `Settings.open` returns a client with these settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from polaris_spark.backends import Options
from polaris_spark.backends.dynamodb.failures import check_whole
from polaris_spark.backends.store_options import Given, endpoint
from polaris_spark.errors import StoreURIError
from polaris_spark.store_uris import Secret, StoreURI

PREFIX: Final = "polaris_spark"
"""Default prefix of the names of a store's tables."""

_OPTIONS: Final = ("connections", "endpoint", "password", "timeout")
_REGION: Final = re.compile(r"[a-z0-9-]{1,40}")
# Table names are limited to 255 characters.
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_USER: Final = re.compile(r"[!-~]{1,200}")
_CONNECT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Location and options of a store. Durations are in milliseconds."""

    region: str
    prefix: str = PREFIX
    user: str | None = None
    """Access key id. None: the credentials that the AWS tools would use."""
    password: Secret | None = None
    endpoint: str | None = None
    timeout: int = 30_000
    """Maximum duration of one request, including retries."""
    connections: int = 32
    """Maximum number of concurrent requests of one process."""

    @classmethod
    def parse(cls, uri: StoreURI, options: Options) -> Settings:
        """Return the settings of a store.

        Raises:
            StoreURIError: the region is missing, the prefix is not usable, or an option or its value is not valid.
        """
        given = Given(uri.scheme, options, _OPTIONS)
        if (uri.user is None) != (given.password is None):
            raise StoreURIError(
                f"{uri}: set both the access key's id (the user in the URI) and its secret (store.password); or set "
                "neither of them, to use the credentials of the environment or the instance"
            )
        return cls(
            _matching(
                "region", _REGION, uri.authority, "a region such as eu-central-1: dynamodb://region/prefix"
            ),
            _matching("prefix", _PREFIX, uri.path.strip("/") or PREFIX, "1 to 200 letters, digits and '_.-'"),
            None if uri.user is None else _matching("user", _USER, uri.user, "an access key id"),
            given.password,
            endpoint(given),
            given.duration_ms("timeout", "30 s"),
            given.count("connections", 32, 999),
        )

    @property
    def where(self) -> str:
        """The store's name for error messages, without secrets."""
        at = f" at {self.endpoint}" if self.endpoint else ""
        return f"dynamodb://{self.region}/{self.prefix}{at}"

    @property
    def attempt_s(self) -> float:
        """Maximum time that one attempt waits for its answer, in seconds. Several attempts fit into `timeout`."""
        return self.timeout / 3_000

    def open(self) -> Any:
        """Return a thread-safe client of the driver, which does not retry requests.

        Raises:
            StoreURIError: the library rejects the settings as malformed.
        """
        config = Config(
            connect_timeout=min(self.attempt_s, _CONNECT_S),
            read_timeout=self.attempt_s,
            max_pool_connections=self.connections,
            parameter_validation=False,
            retries={"total_max_attempts": 1, "mode": "standard"},
            tcp_keepalive=True,
            user_agent="polaris_spark",  # shown in audit logs; the library would build its default for each request
        )
        secret = None if self.password is None else self.password.reveal()
        try:
            client = Session().client(
                "dynamodb",
                region_name=self.region,
                endpoint_url=self.endpoint,
                aws_access_key_id=self.user,
                aws_secret_access_key=secret,
                config=config,
            )
            client.meta.events.register("before-parse.dynamodb", check_whole)
            return client
        except (BotoCoreError, ValueError) as error:
            raise StoreURIError(f"{self.where} cannot be opened: {error}") from None


def _matching(name: str, pattern: re.Pattern[str], text: str, wanted: str) -> str:
    if not pattern.fullmatch(text):
        raise StoreURIError(f"the {name} of a dynamodb: store is {text[:60]!r}; it must be {wanted}")
    return text
