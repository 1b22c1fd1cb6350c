"""Requests that send CloudEvents to a webhook, signed as the Standard Webhooks specification says
(https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md)."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime

from polaris_spark.cli.cloud_events import BATCHED, STRUCTURED, batch_of
from polaris_spark.cli.delivery import Event, MakeRequest, Request, secret_in
from polaris_spark.errors import InputError
from polaris_spark.secret_options import REFERENCE

_SECRET = "whsec_"
_LEAST_SECRET_BYTES, _MOST_SECRET_BYTES = 24, 64


def secrets_of(name: str | None) -> tuple[str, ...]:
    """Return the secrets in an environment variable, which are separated by spaces.

    Args:
        name: `env:NAME`, where NAME is the name of the variable.
    Raises:
        InputError: the name has another form, the variable is not set, or a secret cannot be used. The message contains
            no secret.
    """
    found = tuple(secret_in(name).split())
    for secret in found:
        try:
            size = len(base64.b64decode(secret.removeprefix(_SECRET), validate=True))
        except (binascii.Error, ValueError):
            size = 0
        if not _LEAST_SECRET_BYTES <= size <= _MOST_SECRET_BYTES:
            raise InputError(
                f"a secret in the environment variable {(name or '').removeprefix(REFERENCE)!r} cannot be used: write "
                f"{_SECRET} and then {_LEAST_SECRET_BYTES} to {_MOST_SECRET_BYTES} random bytes in base64"
            )
    return found


def webhook_requests(secrets: tuple[str, ...], *, batched: bool) -> MakeRequest:
    """Return the function that makes the requests to a webhook.

    Args:
        secrets: secrets in the form of the specification. If there are several, each request has one signature for each
            secret.
        batched: whether a request contains an array of events; otherwise, it must contain exactly one event.
    """
    from standardwebhooks import Webhook

    keys = [Webhook(secret) for secret in secrets]

    def made(events: list[Event], now: datetime) -> Request:
        body = batch_of(events) if batched else events[0].text
        id = events[0].id if len(events) == 1 else f"{events[0].id}_{events[-1].id}"
        signatures = [key.sign(msg_id=id, timestamp=now, data=body.decode()) for key in keys]
        headers = {
            "Content-Type": BATCHED if batched else STRUCTURED,
            "webhook-id": id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signatures),
        }
        return Request(body, headers)

    return made
