"""Settings of a DynamoDB store."""

from __future__ import annotations

from polaris_spark.backends.dynamodb.settings import Settings
from polaris_spark.store_uris import StoreURI


def parsed(text: str) -> Settings:
    """Return the settings that a store URI contains."""
    uri = StoreURI.parse(text)
    return Settings.parse(
        uri, {**uri.options, **({} if uri.password is None else {"password": uri.password})}
    )
