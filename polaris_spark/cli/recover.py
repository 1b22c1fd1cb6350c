"""`polaris-spark recover`: reset references to complete commits after the database lost rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

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
    Store,
    require_with,
)
from polaris_spark.cli.output import hexadecimal, plain, print_json, screen, utc
from polaris_spark.clock import SystemClock, iso_text
from polaris_spark.errors import InputError, StateError

if TYPE_CHECKING:
    from polaris_spark.cli.stores import OpenStore
    from polaris_spark.commits.lineage import Known
    from polaris_spark.commits.rows import LogEntry
    from polaris_spark.system.recovery.execution import Recovered
    from polaris_spark.system.recovery.plan import RecoveryStep

Json = dict[str, Any]

SHOWN = 20
"""Maximum number of lost changes that are shown for each reference. The JSON output has all of them."""

_AFTERWARDS = (
    "Restart every process that uses this store (servers, Spark drivers, Python programs): the cache of a process "
    "that was started earlier may contain lost rows, and the process would write commits that point to them."
)


def recover(
    context: typer.Context,
    store: Store,
    realm: Realm = "default",
    catalog: OnlyCatalog = None,
    branch: CatalogBranch = None,
    reference: OnlyReference = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="COMMIT-ID",
            help="Commit from which one reference continues; older or newer than its head.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Recover the references. By default, only show what would be done.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Recover even if processes that use the store seem to be running.")
    ] = False,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """After a loss of rows, set references to their newest complete commits; without --yes, only show the changes."""
    from polaris_spark.cli.progress import reading
    from polaris_spark.cli.stores import open_store
    from polaris_spark.cli.survey import chosen, stray_words, strays
    from polaris_spark.rest.opening import os_user
    from polaris_spark.system.recovery.execution import Recovery
    from polaris_spark.system.recovery.plan import plan
    from polaris_spark.system.recovery.survey import Survey

    require_with(context, "--yes", "force", is_given=yes)
    with open_store(store, password) as opened, reading() as on_read:
        place = opened.realm(realm)
        name = chosen(place, catalog, branch, reference)
        survey = Survey(place.objects, on_read=on_read)
        steps = plan(survey.run(name, _commit(to, name)))
        _refuse_half(steps, name)
        stray = strays(place, [step.found for step in steps])
        running = _running(opened)
        done = None
        if yes:
            if running and not force:
                raise StateError(
                    f"these processes hold leases, so they may be running: {', '.join(running)}; stop them, or add "
                    "--force if they have already ended"
                )
            recovery = Recovery(place.objects, ids=opened.ids, clock=SystemClock(), principal=os_user())
            done = recovery.carry_out(steps, survey.highest_id)
    if as_json:
        print_json(_json(steps, stray, running, done))
    else:
        for one in sorted(stray):
            screen().print(stray_words(one), soft_wrap=True)
        _show(steps, running, done, screen())
    if any(step.action == "leave" or (done is None and _changes(step)) for step in steps):
        raise typer.Exit(PROBLEMS_FOUND)


def _commit(text: str | None, name: str | None) -> int | None:
    from polaris_spark.cli.cat import possible_ids

    if text is None:
        return None
    if name is None:
        raise InputError("--to needs --reference, or --catalog, to say which reference the commit belongs to")
    return possible_ids(text)[0]


def _refuse_half(steps: list[RecoveryStep], name: str | None) -> None:
    """Refuse to recover a single reference if the registry, which lists all references, must be recovered too.

    Raises:
        StateError: the registry must be recovered first.
    """
    from polaris_spark.system.registry import ROOT

    if name not in (None, ROOT) and steps[0].action != "keep":
        raise StateError(
            f"the registry of references, {ROOT}, must be recovered first ({steps[0].why}): leave --reference and "
            "--catalog out"
        )


def _running(store: OpenStore) -> list[str]:
    """Return the names of the processes that hold a lease of a node number, and so may be running, in sorted order."""
    from polaris_spark.system.leases import node_records

    now = SystemClock().now_ms()
    records = node_records(store.backend).values()
    return sorted({one.holder for one in records if not one.released and one.end_ms > now})


def _changes(step: RecoveryStep) -> bool:
    return step.action != "keep" or bool(step.registry)


def _json(steps: list[RecoveryStep], stray: set[str], running: list[str], done: Recovered | None) -> Json:
    return {
        "done": done is not None,
        "running": running,
        "ids-from": None if done is None else iso_text(done.ids_from_ms),
        "references": [_step_json(step, stray, done) for step in steps],
    }


def _step_json(step: RecoveryStep, stray: set[str], done: Recovered | None) -> Json:
    from polaris_spark.cli.survey import found_json

    undone = step.found.undone
    head = None if done is None else done.heads.get(step.found.row_name)
    return found_json(step.found, stray) | {
        "action": step.action,
        "registry": step.registry or None,
        "why": step.why or None,
        "lost-commits": undone.commits,
        "unreadable-commits": undone.unreadable,
        "lost-changes": [_change_json(known, entry) for known, entry in undone.entries],
        "history-from": None if step.head is None else step.head.floor_number,
        "head": None if head is None else {"number": head.number, "id": hexadecimal(head.commit)},
    }


def _change_json(known: Known, entry: LogEntry) -> Json:
    from polaris_spark.catalog.branches.change_log import entity_name

    kind, name = entity_name(entry.key)
    return {
        "commit": known.number,
        "time": iso_text(entry.time),
        "principal": entry.principal,
        "action": entry.action,
        "kind": kind,
        "name": name,
        "summary": entry.summary,
    }


def _show(steps: list[RecoveryStep], running: list[str], done: Recovered | None, console: Console) -> None:
    changing = [step for step in steps if _changes(step)]
    for step in changing:
        _show_step(step, done, console)
    whole = len(steps) - len(changing)
    console.print(Text(f"{whole:,} of {len(steps):,} references keep their heads.", style="dim"))
    if done is not None:
        console.print(
            "The rows of these references have new version tokens, so a commit that began before the recovery must "
            f"start again. New ids contain times from {utc(done.ids_from_ms)} or later.",
            soft_wrap=True,
        )
        console.print(Text(_AFTERWARDS, style="bold"), soft_wrap=True)
        return
    if running:
        console.print(Text(f"Stop these running processes first: {plain(', '.join(running))}", style="red"))
    console.print("Nothing was changed; add --yes to recover.")


def _show_step(step: RecoveryStep, done: Recovered | None, console: Console) -> None:
    from polaris_spark.cli.survey import lost_words

    found, head = step.found, step.head
    console.print(Text(plain(found.name), style="bold").append(f"  {step.why}", style="red"), soft_wrap=True)
    tense = "was" if done is not None else "would be"
    if step.action in ("set", "insert") and head is not None:
        line = f"  {tense} set to commit {head.number:,} {head.commit:x} of {utc(head.time)}"
        before = found.head.floor_number if found.head is not None else 0
        line += f", with history from commit {head.floor_number:,}" if head.floor_number > before else ""
        console.print(line, soft_wrap=True)
    if step.action == "leave":
        console.print(
            "  not changed: the remaining rows can still be read; restore the lost rows from a backup "
            "(see polaris-spark heads)",
            soft_wrap=True,
        )
    if step.action == "give-up":
        console.print(
            f"  {tense} given up: its row {tense} sealed, and then takes no commits", soft_wrap=True
        )
    if step.registry:
        console.print(
            f"  {tense} {'listed again' if step.registry == 'list' else 'dropped again'} in the registry"
        )
    for lost in (found.heads[0].lost if found.heads else (), found.lost_history):
        if lost:
            console.print(Text(f"  lost objects: {lost_words(lost)}", style="dim"), soft_wrap=True)
    _show_undone(step, console)
    if found.newer and (head is None or found.newer[0].id != head.commit):
        newest = found.newer[0]
        console.print(
            Text(f"  commit {newest.number:,} {newest.id:x} is newer and complete: see --to", style="yellow"),
            soft_wrap=True,
        )


def _show_undone(step: RecoveryStep, console: Console) -> None:
    from polaris_spark.catalog.branches.change_log import entity_name

    undone = step.found.undone
    if not undone.commits:
        return
    names = {name for _, entry in undone.entries if (name := entity_name(entry.key)[1])}
    told = f"  commits lost: {undone.commits:,}, with changes to {len(names):,} entities whose names are still known"
    console.print(Text(told, style="red"), soft_wrap=True)
    if undone.unreadable:
        console.print(f"  commits whose changes can no longer be read: {undone.unreadable:,}")
    for known, entry in undone.entries[:SHOWN]:
        name = plain(entity_name(entry.key)[1])
        line = f"    {known.number:,}  {utc(entry.time)}  {plain(entry.principal)}  {entry.action}  {name}"
        console.print(Text(line), soft_wrap=True)
    if len(undone.entries) > SHOWN:
        console.print(Text(f"    and {len(undone.entries) - SHOWN:,} more changes (see --json)", style="dim"))
