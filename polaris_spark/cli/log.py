"""`polaris-spark log`: print the commits of a reference, the newest first."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from polaris_spark.cli.options import (
    AsJSON,
    ChangeActions,
    ChangedBy,
    ChangedNames,
    Password,
    Realm,
    Store,
    refuse_with,
)
from polaris_spark.cli.output import NO_ROWS, counted, hexadecimal, plain, print_json, screen
from polaris_spark.clock import iso_text
from polaris_spark.errors import InputError, PolarisError
from polaris_spark.names import MAIN

if TYPE_CHECKING:
    from polaris_spark.catalog.branches.change_log import BranchLog, LogPosition
    from polaris_spark.cli.stores import OpenRealm
    from polaris_spark.commits.as_of import AsOf
    from polaris_spark.commits.rows import Commit, LogEntry
    from polaris_spark.store.objects import ObjectStore

Json = dict[str, Any]


class ChangeFilter(NamedTuple):
    """The changes that are shown. An empty field allows every change."""

    names: tuple[str, ...] = ()
    principals: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()

    def allows(self, change: Json) -> bool:
        """Whether a change is shown. A rename is shown if its old or its new name is allowed."""
        return (
            (not self.names or change["name"] in self.names or change.get("old-name") in self.names)
            and (not self.principals or change["principal"] in self.principals)
            and (not self.actions or change["action"] in self.actions)
        )


_Catalog = Annotated[
    str | None, typer.Option(help="Catalog whose history is shown; required if there are several.")
]
_Branch = Annotated[str, typer.Option(help="Branch of the catalog.")]
_Reference = Annotated[
    str | None,
    typer.Option(help="Show another reference instead, such as root or catalogs.", show_default=False),
]
_Limit = Annotated[int, typer.Option(min=1, max=sys.maxsize, help="Maximum number of commits to show.")]
_Since = Annotated[
    str | None,
    typer.Option(
        metavar="POINT",
        help="Only commits after this time (2026-01-31T00:00:00Z), commit number or commit id.",
        show_default=False,
    ),
]
_Until = Annotated[
    str | None,
    typer.Option(
        metavar="POINT",
        help="Only commits up to this time, commit number or commit id.",
        show_default=False,
    ),
]
_Follow = Annotated[
    bool,
    typer.Option(
        "--follow",
        help="With --json: print each new change as a line of JSON, until interrupted. With --since, begin there.",
    ),
]


def log(
    context: typer.Context,
    store: Store,
    realm: Realm = "default",
    catalog: _Catalog = None,
    branch: _Branch = MAIN,
    reference: _Reference = None,
    limit: _Limit = 50,
    table: ChangedNames = None,
    principal: ChangedBy = None,
    action: ChangeActions = None,
    since: _Since = None,
    until: _Until = None,
    follow: _Follow = False,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """Show the commit graph of a catalog, newest commit first."""
    from polaris_spark.catalog.branches.change_log import BranchLog
    from polaris_spark.cli.stores import open_store
    from polaris_spark.commits.as_of import AsOf

    refuse_with(context, "--reference", "catalog", "branch", is_given=reference is not None)
    refuse_with(context, "--follow", "limit", is_given=follow)
    if follow and (until is not None or not as_json):
        raise InputError(
            "--follow prints lines of JSON until it is interrupted: add --json, and leave out --until"
        )
    wanted = ChangeFilter(tuple(table or ()), tuple(principal or ()), tuple(action or ()))
    begin = None if since is None else AsOf.parse(since, "--since")
    end = None if until is None else AsOf.parse(until, "--until")

    with open_store(store, password) as opened:
        place = opened.realm(realm)

        def newest() -> BranchLog:
            if reference:
                name, head = reference, place.head(reference).head
            else:
                return place.branch_log(place.catalog(catalog), branch)
            return BranchLog(place.objects, head, place.archived_log(name, head))

        shown = newest()
        if follow:
            _follow(newest, None if begin is None else position_at(shown, begin), wanted)
            return
        first, last = limits(shown, begin, end)
        found = _filtered(read_commits(shown, first, last), wanted)
        listed = list(islice(found, limit))
    if as_json:
        print_json(listed)
    elif not listed:
        screen().print(NO_ROWS)
    elif wanted == ChangeFilter() and begin is None:
        draw(listed, shown, screen())
    else:
        draw(listed, None, screen())
        if len(listed) == limit:
            screen().print("┆  older commits were not searched (see --limit)", style="dim")


def _follow(newest: Callable[[], BranchLog], after: LogPosition | None, wanted: ChangeFilter) -> None:
    """Print each change after a position as a line of JSON, until the user interrupts.

    Args:
        after: the position; None for the position after the newest change.
    """
    from polaris_spark.catalog.branches.change_log import new_changes

    with contextlib.suppress(KeyboardInterrupt):
        for change in new_changes(newest, after):
            if wanted.allows(change):
                print(json.dumps(change, ensure_ascii=False), flush=True)


def _filtered(found: Iterable[Json], wanted: ChangeFilter) -> Iterator[Json]:
    """Yield the commits that have wanted changes, with these changes only."""
    for commit in found:
        changes = [change for change in commit["changes"] if wanted.allows(change)]
        if changes:
            yield {**commit, "changes": changes}
        elif wanted == ChangeFilter():
            yield commit


def limits(log: BranchLog, begin: AsOf | None, end: AsOf | None) -> tuple[int, int]:
    """Return the numbers of the first commit after the point `begin`, and of the last commit up to the point `end`. The
    first is greater than the last if there are no commits between them.

    Raises:
        InputError: a point is a commit that is not in the log.
        HistoryTrimmedError: `end` is older than the oldest commit whose log is kept.
    """
    from polaris_spark.catalog.branches.archived_log import number_in_log
    from polaris_spark.errors import BeforeHistoryError

    first, last = _first_after(log, begin), log.head.number
    if end is not None:
        try:
            last = number_in_log(log.objects, log.head, log.archived, end)
        except BeforeHistoryError:
            last = -1
    return first, last


def _first_after(log: BranchLog, begin: AsOf | None) -> int:
    """Return the number of the first commit after a point; if the point is None or older than the log, return the
    number of the oldest commit whose log is kept."""
    from polaris_spark.catalog.branches.archived_log import first_after
    from polaris_spark.errors import HistoryTrimmedError

    if begin is None:
        return log.oldest
    try:
        return first_after(log.objects, log.head, log.archived, begin)
    except HistoryTrimmedError:
        return log.oldest


def position_at(log: BranchLog, begin: AsOf) -> LogPosition:
    """Return the position after a point of a log. If the point is older than the log, return the position before the
    oldest change that is kept."""
    from polaris_spark.catalog.branches.change_log import LogPosition

    return LogPosition(_first_after(log, begin) - 1)


class _Commit(NamedTuple):
    """A commit of the log, perhaps an archived one."""

    number: int
    id: int
    commit: Commit
    archived: tuple[LogEntry, ...] | None
    """The log entries of an archived commit; None if the commit is stored."""


def read_commits(log: BranchLog, first: int, last: int) -> Iterator[Json]:
    """Yield the commits with the numbers `first` to `last` (both included), the newest first, with their changes, as
    JSON values. `stored` is false if only the log of the commit is kept."""
    from polaris_spark.commits.log import ancestor, commits

    floor = log.head.floor_number
    if max(first, floor) <= last:
        id = ancestor(log.objects, log.head, last)
        stored = msgspec.structs.replace(log.head, commit=id, number=last, floor_number=max(first, floor))
        for id, commit in commits(log.objects, stored):
            yield _json(log, _Commit(commit.number, id, commit, None))
    for one in log.archived.newest_first(log.objects, first, last):
        yield _json(log, _Commit(one.number, one.id, one.commit, one.entries))


def _json(log: BranchLog, found: _Commit) -> Json:
    from polaris_spark.catalog.branches.change_log import change_json
    from polaris_spark.commits.rows import Entries

    _, id, commit, entries = found
    if entries is None:
        entries = log.objects.get(commit.entries, Entries).entries if commit.entries else ()
    return {
        "number": commit.number,
        "id": hexadecimal(id),
        "time": iso_text(commit.time),
        "stored": found.archived is None,
        "principals": list(dict.fromkeys(entry.principal for entry in entries)),
        "merged": [_merged(log.objects, other) for other in commit.merged],
        "changes": [change_json(entry) for entry in entries],
    }


def _merged(objects: ObjectStore, id: int) -> Json:
    from polaris_spark.commits.rows import Commit

    try:
        commit = objects.get(id, Commit)
    except PolarisError:
        # A sweep may have deleted the commit: the pointer to a merged commit does not protect it.
        return {"id": hexadecimal(id)}
    return {"id": hexadecimal(id), "number": commit.number, "time": iso_text(commit.time)}


def draw(listed: list[Json], log: BranchLog | None, console: Console) -> None:
    """Print commits as a graph.

    Args:
        listed: the commits that `read_commits` yielded, the newest first.
        log: the log that contains the commits; None to print nothing about older commits.
    """
    actions = [change["action"] for commit in listed for change in commit["changes"]]
    names = [plain(change["name"]) for commit in listed for change in commit["changes"]]
    widths = (max(map(len, actions), default=0), min(40, max(map(len, names), default=0)))
    for position, commit in enumerate(listed):
        if not commit["stored"] and (not position or listed[position - 1]["stored"]):
            console.print(
                Text(f"┄  the states of commit {commit['number']:,} and earlier were trimmed", style="dim")
            )
        _draw_commit(commit, widths, console)
    if log is None:
        return
    oldest = listed[-1]["number"]
    if oldest > log.oldest:
        console.print(Text(f"┆  {counted(oldest - log.oldest, 'older commit')} (see --limit)", style="dim"))
    elif log.oldest:
        console.print(Text(f"┄  history before commit {log.oldest:,} was trimmed", style="dim"))


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
    from polaris_spark.commit_notes import FIELD

    if summary.get("operation"):
        counted = [_counted(summary, what) for what in ("records", "data-files", "delete-files")]
        begin = ": ".join((summary["operation"], ", ".join(filter(None, counted)))).rstrip(": ")
        rest = {name: text for name, text in summary.items() if is_detail(name) or name.startswith(FIELD)}
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
    from polaris_spark.catalog.tables.summaries import number_in

    added = number_in(summary, f"added-{what}") or 0
    removed = number_in(summary, f"deleted-{what}") or number_in(summary, f"removed-{what}") or 0
    signs = [f"+{added:,}" if added else "", f"-{removed:,}" if removed else ""]
    told = " ".join(filter(None, signs))
    return f"{told} {what.replace('-', ' ')}" if told else ""


def realm_log(realm: OpenRealm, reference: str, limit: int, console: Console) -> None:
    """Print the newest commits of a reference."""
    from polaris_spark.catalog.branches.change_log import BranchLog

    head = realm.head(reference).head
    log = BranchLog(realm.objects, head, realm.archived_log(reference, head))
    draw(list(islice(read_commits(log, log.oldest, head.number), limit)), log, console)
