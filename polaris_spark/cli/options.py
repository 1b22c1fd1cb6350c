"""Arguments and options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from polaris_spark.errors import InputError

PASSWORD_VARIABLE = "POLARIS_SPARK_STORE_PASSWORD"
"""Name of the environment variable that contains the store's password, unless `--password` names another variable."""

CREDENTIAL_VARIABLE = "POLARIS_SPARK_CREDENTIAL"
"""Name of the environment variable that contains the credentials for a realm with access control, as
`client_id:client_secret`, unless `--property` gives others."""

STORE_VARIABLE = "POLARIS_SPARK_STORE"
"""Name of the environment variable that contains the store's URI. It is used if the command line contains no URI."""


def _store(more: str = "") -> Any:
    return typer.Argument(
        metavar="STORE",
        help=f"URI of the store, such as sqlite:///path/of/catalog.db{more}",
        envvar=STORE_VARIABLE,
        show_default=False,
    )


def _secret(help: str) -> Any:
    return typer.Option(metavar="env:NAME", help=help, show_default=False)


Store = Annotated[str, _store()]
StoreOrServer = Annotated[str | None, _store("; left out with --server")]
StoreOnly = Annotated[str | None, _store()]
"""For a command that `required_store` checks, and that no server can run."""
Server = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Server that runs the command, such as http://127.0.0.1:8181; needs a token, in a realm "
        "without access control that of an administrator.",
        show_default=False,
    ),
]
ServerToken = Annotated[
    str | None,
    _secret(
        "Environment variable with the token for --server. If not given: POLARIS_SPARK_TOKEN, or else a login with the "
        f"credentials in {CREDENTIAL_VARIABLE}."
    ),
]
Password = Annotated[
    str | None,
    _secret(f"Environment variable with the store's password; default: {PASSWORD_VARIABLE}."),
]
SetProperties = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Set a property; repeatable.", show_default=False),
]
UnsetProperties = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Remove a property; repeatable.", show_default=False),
]
ChangedNames = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="NAME",
        help="Only changes of this table, view or namespace, such as db.t; repeatable.",
        show_default=False,
    ),
]
ChangedBy = Annotated[
    list[str] | None,
    typer.Option(
        "--principal", metavar="NAME", help="Only changes by this principal; repeatable.", show_default=False
    ),
]
ChangeActions = Annotated[
    list[str] | None,
    typer.Option(
        "--action",
        metavar="ACTION",
        help="Only this action, such as drop-table; repeatable.",
        show_default=False,
    ),
]
Property = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Catalog property, such as s3.endpoint=...; the value env:NAME is read from the environment variable "
        "NAME; repeatable.",
        show_default=False,
    ),
]
Realm = Annotated[str, typer.Option(help="Realm of the store.")]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OnlyCatalog = Annotated[
    str | None,
    typer.Option(help="Only one branch of this catalog: --branch, or main if not given.", show_default=False),
]
CatalogBranch = Annotated[
    str | None, typer.Option(help="Branch of the catalog, with --catalog.", show_default=False)
]
OnlyReference = Annotated[
    str | None, typer.Option(help="Only this reference, such as root or catalogs.", show_default=False)
]
Search = Annotated[
    bool,
    typer.Option(
        "--search",
        help="Search the whole realm for complete commits that follow a head, and that no reference points to.",
    ),
]


def require_with(context: typer.Context, needed: str, *parameters: str, is_given: bool) -> None:
    """Refuse options on the command line that have no effect without another option.

    Args:
        needed: the other option, such as `--post`, for the message.
        parameters: names of the parameters of the options, such as `max_backoff`.
        is_given: whether the other option was given.
    Raises:
        InputError: an option was given without the other one.
    """
    if not is_given:
        for name in _on_command_line(context, parameters):
            raise InputError(f"{name} has no effect without {needed}; give {needed} too, or leave {name} out")


def refuse_with(context: typer.Context, other: str, *parameters: str, is_given: bool) -> None:
    """Refuse options on the command line that have no effect with another option.

    Args:
        other: the other option, such as `--once`, for the message.
        parameters: names of the parameters of the options, such as `poll`.
        is_given: whether the other option was given.
    Raises:
        InputError: an option was given together with the other one.
    """
    if is_given:
        for name in _on_command_line(context, parameters):
            raise InputError(f"{name} has no effect with {other}; give only one of them")


def _on_command_line(context: typer.Context, parameters: Sequence[str]) -> Iterator[str]:
    """Yield the options, among those with these parameters, that the command line has."""
    for name in parameters:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            yield f"--{name.replace('_', '-')}"


def required_store(store: str | None, token: str | None) -> str:
    """Return the store's URI for a command that was called without `--server`.

    Raises:
        InputError: there is no URI, or the option `--token` was given, which needs `--server`.
    """
    if token is not None:
        raise InputError("--token is the token for a server; give --server too, or leave --token out")
    if store is None:
        raise InputError(
            f"STORE is missing: give the URI of the store, or set {STORE_VARIABLE}, or give --server if the "
            "command has this option"
        )
    return store


def with_store(first: str, second: str | None, what: str) -> tuple[str, str]:
    """Return (store URI, second argument) of a command whose argument STORE may be left out if `STORE_VARIABLE` is set.

    Args:
        first: the first argument on the command line: the store, or the second argument if the store is left out.
        second: the second argument on the command line; None if there is only one.
        what: name of the second argument, for messages.
    Raises:
        InputError: there is only one argument, and either `STORE_VARIABLE` is not set, or the argument is the URI that
            the variable contains.
    """
    if second is not None:
        return first, second
    named = os.environ.get(STORE_VARIABLE)
    if not named:
        raise InputError(f"give both STORE and {what}; STORE may be left out only if {STORE_VARIABLE} is set")
    if named == first:
        raise InputError(
            f"{what} is missing: the only argument given is the URI of the store; give {what} too"
        )
    return named, first
