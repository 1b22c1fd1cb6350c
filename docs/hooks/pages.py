"""A hook of MkDocs: adds pages that are made from the code, and the documents of the repository's root.

These pages exist only while the site is built.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polaris_spark import errors, objects
from polaris_spark.access.needs import Need, On
from polaris_spark.access.privileges import PRIVILEGES
from polaris_spark.catalog.entities.properties import PARSERS, STRICTER
from polaris_spark.catalog.metadata.bounds import BOUNDS
from polaris_spark.cli import commands
from polaris_spark.config import PROPERTIES
from polaris_spark.extension import ROUTER
from polaris_spark.jobs.registry import BUILT_IN
from polaris_spark.spark.options import DESCRIPTIONS
from polaris_spark.spark.views import VIEWS

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages. MkDocs calls this function by its name."""
    from mkdocs.structure.files import File

    for path, text in {**reference(), **root_documents()}.items():
        files.append(File.generated(config, path, content=text))
    return files


ROOT = Path(__file__).parents[2]

ROOT_DOCUMENTS = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "ARCHITECTURE.md": "develop/architecture.md",
    "CONTRIBUTING.md": "develop/contributing.md",
    "CHANGELOG.md": "develop/changelog.md",
}
"""Documents of the repository's root, with their pages in the site."""


def root_documents() -> Mapping[str, str]:
    """Markdown of the documents of the repository's root, by the paths of their pages below `docs`."""
    return {
        page: _moved((ROOT / name).read_text(encoding="utf-8"), page) for name, page in ROOT_DOCUMENTS.items()
    }


def _moved(text: str, page: str) -> str:
    """A document of the root with the links that it has as the page `page`."""
    up = "../" * page.count("/")

    def link(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        if target.startswith("docs/"):
            return f"[{label}]({up}{target.removeprefix('docs/')}{anchor})"
        if target in ROOT_DOCUMENTS:
            return f"[{label}]({up}{ROOT_DOCUMENTS[target]}{anchor})"
        return label  # a file of the repository that is not a page

    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)", link, text)


def reference() -> Mapping[str, str]:
    """Markdown of the pages of the reference, by their paths below `docs`."""
    return {
        "reference/properties.md": _properties(),
        "reference/procedures.md": _procedures(),
        "reference/views.md": _views(),
        "reference/commands.md": _commands(),
        "reference/errors.md": _errors(),
        "reference/object-types.md": _object_types(),
        "reference/limits.md": _limits(),
        "reference/privileges.md": _privileges(),
    }


def _privileges() -> str:
    labels = {"R": "realm", "C": "catalog", "B": "branch", "E": "namespace, table, view"}
    rows = [
        [_code(name), one.meaning, ", ".join(labels[kind] for kind in one.on), ", ".join(map(_code, one.by))]
        for name, one in PRIVILEGES.items()
    ]
    routes = [
        [_code(f"{one.method} {one.template}"), "; ".join(map(_need, one.needs))] for one in ROUTER.routes
    ]
    calls = [
        [_code(one.name), "; ".join(map(_need, one.needs))]
        for one in sorted(BUILT_IN, key=lambda one: one.name)
    ]
    shown = [[_code(name), "; ".join(map(_need, view.shown))] for name, view in VIEWS.items()]
    return _page(
        "Privileges",
        "What callers need in a realm with [access control](../guides/access.md). A privilege on something holds for "
        "everything below it.",
        table(["privilege", "meaning", "can be granted on", "implied by"], rows),
        "## Requests",
        table(["request", "needs"], routes),
        "## Procedures",
        table(["procedure", "needs"], calls),
        "## System views",
        "What shows a row of a view. `CATALOG_READ_LOG` on the catalog, or on the realm, shows all rows.",
        table(["view", "needs"], shown),
    )


def _need(need: Need) -> str:
    when = f" {need.when.words}" if need.when is not None else ""
    if need.on is On.OWN:
        return need.why
    if not need.privilege:
        return need.on.words
    named = f" of the argument `{need.parameter}`" if need.parameter else ""
    what = _code(need.privilege) if need.privilege in PRIVILEGES else "any privilege that lets see it,"
    return f"{what} on {need.on.words}{named}{when}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`"


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", *parts]) + "\n"


def _properties() -> str:
    rows = [
        [_code("store"), "required", "URI of the database: see [Databases](../operate/databases.md)."],
        [
            _code("store.<option>"),
            "none",
            "An option of the database. A secret, such as `store.password`, may be `env:NAME`: the environment "
            "variable `NAME` holds it.",
        ],
    ]
    rows += [
        [_code(name), one.default if " " in one.default else _code(one.default), one.meaning]
        for name, one in PROPERTIES.items()
    ]
    stored = [
        [_code(name), "the stricter value" if name in STRICTER else "the session's value"] for name in PARSERS
    ]
    return _page(
        "Properties",
        "`spark.sql.catalog.<name>.<property>` in Spark; catalog properties in other engines on the JVM; keyword "
        "arguments of `connect` and `configure` in Python, with underscores for dashes. "
        "[Configuration](../guides/configuration.md) says how to use them.",
        table(["property", "default", "meaning"], rows),
        "## Properties that the catalog stores",
        "These can also be set in the catalog, where they bind all sessions. The second column says which value holds "
        "if a session gives one, too.",
        table(["property", "which value holds"], stored),
    )


def _procedures() -> str:
    parts = [
        "`CALL polaris.system.<procedure>(<parameter> => <value>, ...)`. "
        "`SHOW PROCEDURES IN polaris.system` lists them."
    ]
    for one in sorted(BUILT_IN, key=lambda one: one.name):
        parts += [f"## {one.name}", _sentence(one.comment)]
        if one.parameters:
            rows = [
                [_code(p.name), _code(p.type), "yes" if p.required else "no", _sentence(p.comment)]
                for p in one.parameters
            ]
            parts.append(table(["parameter", "type", "required", "meaning"], rows))
        columns = ", ".join(f"`{column.name}` ({column.type})" for column in one.columns)
        parts.append(f"Result: {columns}.")
    return _page("Procedures", *parts)


def _views() -> str:
    parts = [
        '`SELECT * FROM polaris.system.<view>`, or `spark.read.format("polaris-objects")` with the options below.'
    ]
    for name, view in VIEWS.items():
        rows = [
            [_code(one.name), _code(one.type.simpleString()), _sentence(one.comment)] for one in view.columns
        ]
        parts += [f"## {name}", _sentence(view.comment), table(["column", "type", "meaning"], rows)]
    options = [[_code(name), _sentence(text)] for name, text in DESCRIPTIONS.items()]
    parts += ["## Options of the data source", table(["option", "meaning"], options)]
    return _page("System views", *parts)


def _commands() -> str:
    parts = ["`polaris-spark COMMAND`. Each command has `--help`."]
    for name, entry in commands.COMMANDS.items():
        parts += list(_command(name, commands.load(name), entry.help))
    return _page("Commands", *parts)


def _command(name: str, command: Any, summary: str, level: str = "##") -> Iterator[str]:
    yield f"{level} {name}"
    yield _sentence(summary)
    if hasattr(command, "list_commands"):
        context = command.make_context(name, [], resilient_parsing=True)
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            yield from _command(f"{name} {each}", inner, inner.get_short_help_str(500), "###")
        return
    rows = []
    for one in command.params:
        if one.name == "help":
            continue
        names = (
            [*one.opts, *one.secondary_opts]
            if one.param_type_name == "option"
            else [(one.metavar or one.name).upper()]
        )
        rows.append([", ".join(map(_code, names)), _sentence(getattr(one, "help", None) or "")])
    if rows:
        yield table(["option or argument", "meaning"], rows)


def _errors() -> str:
    text = inspect.cleandoc(errors.__doc__ or "")
    return _page("Errors", text)


def _object_types() -> str:
    types = objects.known_types()
    modules = objects.BUILT_IN
    rows = [
        [_code(name), _meaning(objects.class_of(name)), str(revision), _code(modules.get(name, "a plugin"))]
        for name, revision in sorted(types.items())
    ]
    return _page(
        "Object types",
        "A row of the table `objects` begins with a header that names its type. Other packages register types by the "
        "entry-point group `polaris_spark.object_types`.",
        table(["type", "meaning", "revision that this release writes", "module"], rows),
    )


def _meaning(described: type) -> str:
    """The first paragraph of the docstring of a class."""
    return (inspect.getdoc(described) or "").split("\n\n")[0]


def _limits() -> str:
    rows = [[what, f"{most:,}"] for what, most in BOUNDS.items()]
    return _page(
        "Bounds of requests",
        "A request beyond a bound is refused with status 400 before any work on it begins. The message names the bound "
        "and the value. The bounds are the same over HTTP, over the bridge and in process. Nested columns count as "
        "columns. A registered or imported file may contain more schemas, specs, sort orders, branches, tags or keys "
        "than the bounds allow; then no more can be added to that table.",
        table(["what", "at most"], rows),
    )


def _sentence(text: str) -> str:
    """A text that begins with a capital letter, unless with code, and ends in a period."""
    text = text.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text.endswith((".", ")", ":")) else ".")
