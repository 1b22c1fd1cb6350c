"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

PASSWORD_VARIABLE = "POLARIS_SPARK_STORE_PASSWORD"
"""Environment variable that holds the store's password, where `--password` names no other."""

Store = Annotated[
    str,
    typer.Argument(
        metavar="STORE", help="URI of the store, such as sqlite:///path/of/catalog.db", show_default=False
    ),
]
Password = Annotated[
    str | None,
    typer.Option(
        metavar="env:NAME",
        help=f"Environment variable with the store's password; {PASSWORD_VARIABLE} if not given.",
        show_default=False,
    ),
]
Property = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Catalog property, such as s3.endpoint=...; env:NAME as value names a variable; repeatable.",
        show_default=False,
    ),
]
Realm = Annotated[str, typer.Option(help="Realm of the store.")]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]
