"""`polaris-spark heads`: list the present and earlier heads (newest commits) of references, and tell for each head
whether all rows that it needs exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from polaris_spark.cli.exit_codes import PROBLEMS_FOUND
from polaris_spark.cli.options import (
    AsJSON,
    CatalogBranch,
    OnlyCatalog,
    OnlyReference,
    Password,
    Realm,
    Search,
    Store,
)
from polaris_spark.cli.output import grid, hexadecimal, plain, print_json, screen, utc

if TYPE_CHECKING:
    from polaris_spark.system.recovery.survey import SurveyedReference


def heads(
    store: Store,
    realm: Realm = "default",
    catalog: OnlyCatalog = None,
    branch: CatalogBranch = None,
    reference: OnlyReference = None,
    search: Search = False,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """List recent heads (newest commits) of references, and whether all their rows exist; exit code 1 if not."""
    from polaris_spark.cli.progress import reading
    from polaris_spark.cli.stores import open_store
    from polaris_spark.cli.survey import chosen, found_json, stray_words, strays
    from polaris_spark.system.recovery.survey import Survey

    with open_store(store, password) as opened, reading() as on_read:
        place = opened.realm(realm)
        name = chosen(place, catalog, branch, reference)
        listed = Survey(place.objects, search=search, on_read=on_read).run(name)
        stray = strays(place, listed)
    if name is not None:
        listed = [found for found in listed if found.name == name]
    if as_json:
        print_json([found_json(found, stray) for found in listed])
    else:
        for found in listed:
            _show(found, screen())
        for one in sorted(stray):
            screen().print(stray_words(one), soft_wrap=True)
    if not all(found.complete for found in listed):
        raise typer.Exit(PROBLEMS_FOUND)


def _show(found: SurveyedReference, console: Console) -> None:
    from polaris_spark.cli.survey import lost_words

    title = Text(plain(found.name), style="bold")
    title.append(f"  {_in_words(found)}", style="green" if found.complete else "bold red")
    console.print(title, soft_wrap=True)
    if found.heads:
        table = grid(None, "commit", "id", "time", "complete", "lost", right=("commit",))
        for state in found.heads:
            known = state.known
            table.add_row(
                f"{known.number:,}",
                hexadecimal(known.id),
                utc(known.time),
                Text("yes", style="green") if state.complete else Text("no", style="red"),
                Text(lost_words(state.lost)),
            )
        console.print(table)
    if found.lost_history:
        console.print(Text(f"lost objects of the history: {lost_words(found.lost_history)}"), soft_wrap=True)
    for known in found.newer:
        line = f"commit {known.number:,} {known.id:x} of {utc(known.time)} is later than this head, and is complete"
        console.print(Text(line, style="yellow"), soft_wrap=True)
    console.print()


def _in_words(found: SurveyedReference) -> str:
    """Return one line of text that says whether all rows of a reference exist, and from which commit on."""
    from polaris_spark.system.recovery.plan import plan

    if found.target is None or found.history_from is None:
        return "no complete commit is left"
    dropped = " (dropped)" if found.state == "dropped" else ""
    if found.complete:
        return f"complete back to commit {found.history_from.number:,}{dropped}"
    (step,) = plan([found])
    return f"{step.why}: complete at commit {found.target.number:,}, back to {found.history_from.number:,}{dropped}"
