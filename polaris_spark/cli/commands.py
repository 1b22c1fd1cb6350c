"""The table of commands. The module of a command is imported only when the command runs, because importing the modules
of all commands takes seconds."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    import click


class Entry(NamedTuple):
    """The location of a command's function, and its text in `--help`."""

    target: str
    """`module:name` of a function, or of a `typer.Typer` with subcommands."""
    help: str
    """The first paragraph of the command's docstring or help."""


COMMANDS = {
    "demo": Entry(
        "polaris_spark.cli.demo.command:demo",
        "Load 336,776 real flights into a new catalog, and show what the catalog can do.",
    ),
    "info": Entry(
        "polaris_spark.cli.info:info",
        "Show a store's format, realms, catalogs, references, sizes and node leases.",
    ),
    "log": Entry("polaris_spark.cli.log:log", "Show the commit graph of a catalog, newest commit first."),
    "watch": Entry(
        "polaris_spark.cli.watch:watch",
        "Print the changes of a branch as CloudEvents, or send them to a webhook or as OpenLineage events.",
    ),
    "tables": Entry(
        "polaris_spark.cli.tables:tables", "Show the namespaces, tables and views of a catalog as a tree."
    ),
    "cat": Entry(
        "polaris_spark.cli.cat:cat", "Print one object as JSON: its header, and its decoded content."
    ),
    "report": Entry(
        "polaris_spark.cli.report.command:report",
        "Write an HTML page with charts of a catalog: its commits, tables, storage, growth and garbage.",
    ),
    "serve": Entry(
        "polaris_spark.cli.serve:serve",
        "Serve the catalogs of one or many realms to clients of the Iceberg REST protocol.",
    ),
    "export": Entry(
        "polaris_spark.cli.export:export",
        "Write the metadata.json files of tables and views, as of the newest commit.",
    ),
    "import": Entry(
        "polaris_spark.cli.maintain:import_catalog",
        "Import tables and views by their metadata files from another catalog or a directory tree.",
    ),
    "catalog": Entry(
        "polaris_spark.cli.catalogs:catalog",
        "Create, list, rename, drop and restore the catalogs of a realm.",
    ),
    "branch": Entry(
        "polaris_spark.cli.branches:branch",
        "Create, list, change, protect, drop and restore branches of a catalog.",
    ),
    "tag": Entry(
        "polaris_spark.cli.branches:tag",
        "Create, list, change, drop and restore tags of a catalog.",
    ),
    "staging": Entry(
        "polaris_spark.cli.branches:area",
        "Create a staging area of a branch, and commit what was staged in it.",
    ),
    "check": Entry(
        "polaris_spark.cli.branches:check",
        "Add, drop and list checks that must hold before merges into protected branches.",
    ),
    "diff": Entry(
        "polaris_spark.cli.merges:diff",
        "Compare two states of the catalog: which namespaces, tables and views were added, removed, renamed or "
        "changed, and what changed in them.",
    ),
    "merge": Entry("polaris_spark.cli.merges:merge", "Merge a branch into another branch, in one commit."),
    "revert": Entry("polaris_spark.cli.merges:revert", "Undo commits of a branch by a new commit."),
    "cherry-pick": Entry(
        "polaris_spark.cli.merges:cherry_pick",
        "Make the changes of one commit of another branch.",
    ),
    "materialized-view": Entry(
        "polaris_spark.cli.materialized_views:app",
        "Create, refresh, show, change and drop materialized views.",
    ),
    "undrop": Entry(
        "polaris_spark.cli.undrop:undrop",
        "Restore a dropped table, view or materialized view with its last content.",
    ),
    "undrop-reference": Entry(
        "polaris_spark.cli.undrop_reference:undrop_reference",
        "Restore a dropped reference, such as a branch of a catalog, before its grace period ends.",
    ),
    "heads": Entry(
        "polaris_spark.cli.heads:heads",
        "List recent heads (newest commits) of references, and whether all their rows exist; exit code 1 if not.",
    ),
    "recover": Entry(
        "polaris_spark.cli.recover:recover",
        "After a loss of rows, set references to their newest complete commits; without --yes, only show the "
        "changes.",
    ),
    "fsck": Entry(
        "polaris_spark.cli.fsck:fsck",
        "Find all rows that are damaged, missing or inconsistent with other rows; exit code 1 if there are any.",
    ),
    "properties": Entry(
        "polaris_spark.cli.properties:properties",
        "Show the properties of a catalog, which apply to all sessions; with --set or --unset, change them first.",
    ),
    "bootstrap": Entry(
        "polaris_spark.cli.bootstrap:bootstrap",
        "Turn on access control of a realm, and create its first administrator.",
    ),
    "access": Entry(
        "polaris_spark.cli.access:app",
        "Manage principals, roles and grants of a realm with access control.",
    ),
    "realm": Entry(
        "polaris_spark.cli.realm:app",
        "Manage the realms (tenants) of a store: create, list, deactivate, purge, export, import, migrate.",
    ),
    "upgrade": Entry(
        "polaris_spark.cli.upgrade:upgrade",
        "Let a store's realms use all features of this release. Do this after every process has this release: earlier "
        "releases then refuse the realms.",
    ),
    "policy": Entry(
        "polaris_spark.cli.queue:policy",
        "Create, change, attach, detach and drop policies, which decide what jobs and workers do.",
    ),
    "schedule": Entry(
        "polaris_spark.cli.queue:schedule",
        "Add, list and drop schedules, which workers run (polaris-spark work).",
    ),
    "queue": Entry(
        "polaris_spark.cli.queue:queue",
        "Let workers run procedures once; list, repeat and remove such tasks.",
    ),
    "runs": Entry(
        "polaris_spark.cli.queue:runs",
        "List the newest runs of jobs, schedules, tasks and policies in the catalog, the newest first.",
    ),
    "work": Entry(
        "polaris_spark.cli.work:work",
        "Run the schedules and tasks of all catalogs of a realm that are due. Several workers can run at the same "
        "time.",
    ),
    "maintain": Entry(
        "polaris_spark.cli.maintain:app",
        "Run a maintenance job. One job of a kind runs at a time in a realm.",
    ),
}
"""All commands by name, in the order of `--help`."""


def load(name: str) -> TyperCommand | TyperGroup:
    """Import the command `name` of `COMMANDS`, and return it."""
    module, _, attribute = COMMANDS[name].target.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if isinstance(found, typer.Typer):
        one = found
    else:
        one = typer.Typer(add_completion=False)
        one.command(name)(found)
    command = typer.main.get_command(one)
    assert isinstance(command, (TyperCommand, TyperGroup))
    return command


class LazyGroup(TyperGroup):
    """A command group that contains the commands of `COMMANDS`, and imports a command only when it is invoked."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        listed = {name: TyperCommand(name, help=entry.help) for name, entry in COMMANDS.items()}
        self.commands = {**listed, **self.commands}

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:  # type: ignore[override,unused-ignore]
        """Return the command that the arguments name, and import it."""
        name, command, rest = super().resolve_command(ctx, args)  # type: ignore[arg-type,unused-ignore]  # its own click
        return name, load(name) if name in COMMANDS else command, rest
