"""`polaris-spark diff`, `merge`, `revert` and `cherry-pick`: the procedures of merges as commands."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import typer

from polaris_spark.cli.maintain import command_of
from polaris_spark.cli.options import STORE_VARIABLE
from polaris_spark.errors import InputError
from polaris_spark.jobs import merges

_Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[STORE] [FROM TO]",
        help=f"URI of the store, left out with --server or if {STORE_VARIABLE} is set; then the two states, unless "
        "--from-state and --to-state are given.",
        show_default=False,
    ),
]


def _diff() -> Callable[..., None]:
    """Return the command `diff`. Its states can be given by position, as in `diff A B`, or by options."""
    optional = tuple(one._replace(required=False) for one in merges.DIFF.parameters)
    by_options = command_of(replace(merges.DIFF, parameters=optional), "diff")
    shown = inspect.signature(by_options).parameters
    words = inspect.Parameter("words", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_Words)
    parameters = [words, *(one for name, one in shown.items() if name != "store")]

    def command(words: list[str] | None, **options: Any) -> None:
        store, from_state, to_state = _placed(
            list(words or ()),
            options.pop("from_state"),
            options.pop("to_state"),
            has_server=bool(options["server"]),
        )
        by_options(store=store, from_state=from_state, to_state=to_state, **options)

    command.__doc__ = by_options.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _placed(
    words: list[str], from_state: str | None, to_state: str | None, *, has_server: bool
) -> tuple[str | None, str, str]:
    """Return the URI of the store, if one is given, and the two states.

    Raises:
        InputError: a state is missing, or there are too many words.
    """
    default = None if has_server else os.environ.get(STORE_VARIABLE)
    if from_state is None and to_state is None and len(words) >= 2:
        from_state, to_state = words[-2:]
        words = words[:-2]
    if from_state is None or to_state is None or len(words) > 1:
        raise InputError(
            "diff compares two states: give STORE FROM TO, or only FROM TO with --server or if "
            f"{STORE_VARIABLE} is set, or STORE --from-state FROM --to-state TO"
        )
    return (words[0] if words else default), from_state, to_state


diff = _diff()
merge = command_of(merges.MERGE, "merge")
revert = command_of(merges.REVERT, "revert")
cherry_pick = command_of(merges.CHERRY_PICK, "cherry-pick")
