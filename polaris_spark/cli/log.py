"""`polaris-spark log`: print the commits of a reference, the newest first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from polaris_spark.cli.options import AsJSON, Password, Realm, Store
from polaris_spark.cli.output import counted, entity_name, hexadecimal, plain, print_json, screen
from polaris_spark.clock import iso_text
from polaris_spark.errors import PolarisError
from polaris_spark.names import MAIN

if TYPE_CHECKING:
    from polaris_spark.cli.stores import OpenRealm
    from polaris_spark.commits.rows import Head, LogEntry
    from polaris_spark.store.objects import ObjectStore

Json = dict[str, Any]


def log(
    store: Store,
    realm: Realm = "default",
    catalog: Annotated[
        str | None, typer.Option(help="Catalog whose history is shown; required if there are several.")
    ] = None,
    branch: Annotated[str, typer.Option(help="Branch of the catalog.")] = MAIN,
    reference: Annotated[
        str | None,
        typer.Option(help="Show another reference instead, such as root or catalogs.", show_default=False),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=sys.maxsize, help="Maximum number of commits to show.")
    ] = 50,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """Show the commit graph of a catalog, newest commit first."""
    from polaris_spark.cli.stores import open_store

    with open_store(store, password) as opened:
        place = opened.realm(realm)
        snapshot = place.head(reference) if reference else place.catalog_head(place.catalog(catalog), branch)
        listed = list(islice(read_commits(place.objects, snapshot.head), limit))
    if as_json:
        print_json(listed)
    else:
        draw(listed, snapshot.head, screen())


def read_commits(objects: ObjectStore, head: Head) -> Iterator[Json]:
    """Yield the commits from a head back to the history floor (the oldest commit kept), with their changes, as JSON
    values."""
    from polaris_spark.commits.log import commits
    from polaris_spark.commits.rows import Entries

    for id, commit in commits(objects, head):
        entries = objects.get(commit.entries, Entries).entries if commit.entries else ()
        yield {
            "number": commit.number,
            "id": hexadecimal(id),
            "time": iso_text(commit.time),
            "principals": list(dict.fromkeys(entry.principal for entry in entries)),
            "merged": [_merged(objects, other) for other in commit.merged],
            "changes": [_change(entry) for entry in entries],
        }


def _merged(objects: ObjectStore, id: int) -> Json:
    from polaris_spark.commits.rows import Commit

    try:
        commit = objects.get(id, Commit)
    except PolarisError:
        # A sweep may have deleted the commit: the pointer to a merged commit does not protect it.
        return {"id": hexadecimal(id)}
    return {"id": hexadecimal(id), "number": commit.number, "time": iso_text(commit.time)}


def _change(entry: LogEntry) -> Json:
    kind, name = entity_name(entry.key)
    change: Json = {
        "action": entry.action,
        "kind": kind,
        "name": name,
        "entity": hexadecimal(entry.entity),
        "principal": entry.principal,
        "time": iso_text(entry.time),
        "operation": entry.operation.hex() or None,
        "before": hexadecimal(entry.before) if entry.before else None,
        "after": hexadecimal(entry.after) if entry.after else None,
        "summary": entry.summary,
    }
    if entry.old_key:
        change["old-name"] = entity_name(entry.old_key)[1]
    return change


def draw(listed: list[Json], head: Head, console: Console) -> None:
    """Print commits as a graph.

    Args:
        listed: the commits that `read_commits` yielded, the newest first.
        head: the head of the reference, which contains the number of the history floor (the oldest commit kept).
    """
    actions = [change["action"] for commit in listed for change in commit["changes"]]
    names = [plain(change["name"]) for commit in listed for change in commit["changes"]]
    widths = (max(map(len, actions), default=0), min(40, max(map(len, names), default=0)))
    for commit in listed:
        _draw_commit(commit, widths, console)
    oldest = listed[-1]["number"]
    if oldest > head.floor_number:
        console.print(
            Text(f"┆  {counted(oldest - head.floor_number, 'older commit')} (see --limit)", style="dim")
        )
    elif head.floor_number:
        console.print(Text(f"┄  history before commit {head.floor_number:,} was trimmed", style="dim"))


def _draw_commit(commit: Json, widths: tuple[int, int], console: Console) -> None:
    rail = "├─" * len(commit["merged"])
    line = Text("●", style="bold yellow")
    line.append("─╮" * len(commit["merged"]), style="blue")
    line.append(f" {commit['number']:<5}", style="bold")
    line.append(f" {commit['id']}", style="yellow")
    line.append(f"  {commit['time'].replace('T', ' ')}  ", style="dim")
    line.append(plain(", ".join(commit["principals"])) or "(first commit)", style="green")
    console.print(line, soft_wrap=True)
    if rail:
        _draw_merged(commit["merged"], console)
    for change in commit["changes"]:
        console.print(_drawn_change(change, widths), soft_wrap=True)


def _draw_merged(merged: list[Json], console: Console) -> None:
    for position, other in enumerate(merged):
        known = f", commit {other['number']:,} of {other['time']}" if "number" in other else ", swept since"
        rail = Text("│ " * (position + 1), style="blue")
        console.print(rail + Text(f"○ merged {other['id']}{known}", style="cyan"), soft_wrap=True)
    console.print(Text("├─" + "┴─" * (len(merged) - 1) + "╯", style="blue"))


def _drawn_change(change: Json, widths: tuple[int, int]) -> Text:
    name = plain(change["name"])
    if "old-name" in change:
        name = f"{plain(change['old-name'])} → {name}"
    line = Text("│   ", style="blue")
    line.append(f"{change['action']:<{widths[0]}}  ", style="cyan")
    line.append(f"{name:<{widths[1]}}")
    line.append(f"  {plain(told(change['summary']))}", style="dim")
    line.rstrip()
    return line


def told(summary: dict[str, str]) -> str:
    """Return the summary of a log entry as a short text. If the entry is about a snapshot, the text begins with the
    snapshot's operation and counts of records and files, and leaves out the client's own fields. Otherwise it consists
    of the fields that say what changed, or of the names of the updates if there are no such fields."""
    from polaris_spark.catalog.metadata.change_details import is_detail

    if summary.get("operation"):
        counted = [_counted(summary, what) for what in ("records", "data-files", "delete-files")]
        begin = ": ".join((summary["operation"], ", ".join(filter(None, counted)))).rstrip(": ")
        rest = {name: text for name, text in summary.items() if is_detail(name)}
    else:
        rest = {name: text for name, text in summary.items() if name not in (*_UPDATES, "snapshot-id")}
        updates = next((summary[name] for name in _UPDATES if name in summary), "")
        begin = "" if any(map(is_detail, rest)) else updates.replace(",", ", ")
    flags = [_flag(name, text) for name, text in rest.items() if text or name.startswith("set ")]
    return ", ".join(filter(None, (begin, *flags)))


_UPDATES = ("updates", "action")
"""Names of the field with the names of the updates; `action` in entries that earlier releases wrote."""


def _flag(name: str, text: str) -> str:
    """Return the text of a field of a summary: the name alone if the value is `true`, else `name=value`.

    The value is never left out for a field `set <name>`, which records that a property was set.
    """
    return name if text == "true" and not name.startswith("set ") else f"{name}={text}"


def _counted(summary: dict[str, str], what: str) -> str:
    from polaris_spark.catalog.summaries import number_in

    added = number_in(summary, f"added-{what}") or 0
    removed = number_in(summary, f"deleted-{what}") or number_in(summary, f"removed-{what}") or 0
    signs = [f"+{added:,}" if added else "", f"-{removed:,}" if removed else ""]
    told = " ".join(filter(None, signs))
    return f"{told} {what.replace('-', ' ')}" if told else ""


def realm_log(realm: OpenRealm, reference: str, limit: int, console: Console) -> None:
    """Print the newest commits of a reference."""
    snapshot = realm.head(reference)
    draw(list(islice(read_commits(realm.objects, snapshot.head), limit)), snapshot.head, console)
