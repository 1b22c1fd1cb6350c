"""`polaris-spark bootstrap`: turn on access control of a realm, and create its first administrator."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from polaris_spark.cli.options import AsJSON, Password, Realm, Store
from polaris_spark.cli.output import plain, print_json, screen

if TYPE_CHECKING:
    from polaris_spark.access.bootstrap import Bootstrapped
    from polaris_spark.access.credentials import Credentials

CREDENTIALS_VARIABLE = "POLARIS_SPARK_BOOTSTRAP_CREDENTIALS"
"""Name of the environment variable that can contain the credentials of the administrator, as
`client_id:client_secret`."""


def bootstrap(
    store: Store,
    realm: Realm = "default",
    principal: Annotated[str, typer.Option(help="Name of the administrator.")] = "root",
    reset: Annotated[
        bool,
        typer.Option(
            "--reset",
            help="Replace the credentials of the principal, and make it an administrator again. For operators who have "
            "lost them.",
        ),
    ] = False,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """Turn on access control of a realm, and create its first administrator.

    Store and realm are created if they do not exist. New credentials are printed once. The environment variable
    POLARIS_SPARK_BOOTSTRAP_CREDENTIALS can give them, as client_id:client_secret. A repeated call changes nothing.
    """
    from polaris_spark.access.bootstrap import bootstrap as begin
    from polaris_spark.access.reading import access_head
    from polaris_spark.catalog.catalogs.catalogs import initialize
    from polaris_spark.cli.stores import store_options
    from polaris_spark.commits.change import Operation
    from polaris_spark.commits.settings import CommitSettings
    from polaris_spark.rest.opening import QUOTAS, check_principal, os_user
    from polaris_spark.spark.options import refuse_memory
    from polaris_spark.store_uris import StoreURI
    from polaris_spark.system.connections import connect_store
    from polaris_spark.system.features import ACCESS_CONTROL, require_feature

    check_principal(principal)
    given = _given_credentials()
    parsed = StoreURI.parse(store)
    refuse_memory(parsed)
    operation = Operation(b"", os_user())
    connection = connect_store(parsed, store_options(parsed, password))
    try:
        record = connection.realm(
            realm, create=True, initialize=lambda references: initialize(references, operation)
        )
        references = connection.references(record, CommitSettings(QUOTAS), None, "bootstrap")
        if (
            access_head(references) is None
        ):  # a realm that already has access control can be repaired at any time
            require_feature(record.features, ACCESS_CONTROL, f"realm {realm!r}")
        done = begin(references, operation, principal, given, reset=reset)
    finally:
        connection.close()
    _report(done, realm, is_generated=given is None, as_json=as_json)


def _given_credentials() -> Credentials | None:
    """Return the credentials in the environment; None if there are none.

    Raises:
        InputError: they are malformed or weak.
    """
    from polaris_spark.access.credentials import Credentials

    text = os.environ.get(CREDENTIALS_VARIABLE)
    if text is None:
        return None
    what = f"the environment variable {CREDENTIALS_VARIABLE}"
    given = Credentials.parse(text, what)
    given.require_strong(what)
    return given


def _report(done: Bootstrapped, realm: str, *, is_generated: bool, as_json: bool) -> None:
    """Print the administrator, and its credentials if they were generated now."""
    made = done.credentials if is_generated else None
    if as_json:
        print_json(
            {
                "realm": realm,
                "principal": done.principal.name,
                "client_id": done.principal.client_id,
                "client_secret": None if made is None else made.secret.reveal(),
                "was_on": done.was_on,
            }
        )
        return
    state = "was on already" if done.was_on else "is on"
    screen().print(
        f"access control of realm {plain(realm)} {state}; {plain(done.principal.name)} is an administrator with the "
        f"client id {plain(done.principal.client_id)}",
        soft_wrap=True,
    )
    if made is not None:
        screen().print(f"credential (shown only now): {plain(made.text())}", soft_wrap=True)
    elif done.credentials is None:
        screen().print("its credentials are unchanged; --reset replaces them", soft_wrap=True)
