"""Starts imports: one at a time for each catalog, in threads of this process unless Spark runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.engine import Engine, LocalEngine, Reach
from polaris_spark.catalog.importing.importer import Importer, ImportOptions, Row
from polaris_spark.catalog.importing.sources import ListedNamespace, Source, SourceEntry
from polaris_spark.catalog.rows import NAMES, NAMESPACE, Unloaded
from polaris_spark.commits.change import Operation
from polaris_spark.errors import BadRequestError
from polaris_spark.index.keys import decode_key
from polaris_spark.system.tasks import Tasks

TASK = "import"
"""Kind of the coordinated task (`Tasks`) that an import holds while it runs."""

_READ_TOGETHER = 1_000


class UnloadedContents:
    """The tables and views of a catalog that are not loaded yet, as a source. Importing them loads them."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def entries(self) -> Iterator[SourceEntry | ListedNamespace]:
        head = self._catalog.head()
        run: list[tuple[bytes, int]] = []
        for key, entry in head.index(NAMES).range():
            run.append((key, entry.pointer))
            if len(run) == _READ_TOGETHER:
                yield from self._unloaded(run)
                run = []
        yield from self._unloaded(run)

    def _unloaded(self, run: Sequence[tuple[bytes, int]]) -> Iterator[SourceEntry]:
        found = self._catalog.references.store.read([content for _, content in run])
        for key, content in run:
            value = found[content].value
            if isinstance(value, Unloaded):
                path, kind, name = decode_key(key)
                yield SourceEntry(path, name, kind, value.metadata_location)


def import_source(
    catalog: Catalog,
    source: Source,
    *,
    principal: str,
    options: ImportOptions,
    engine: Engine | None = None,
) -> list[Row]:
    """Import a source into a catalog. Except in a dry run, the catalog's task `import` is held until the import ends.

    Args:
        source: for example the result of `open_source`.
        principal: logged as the author of the import.
        engine: reads files and writes rows; None uses threads of this process. Its progress, which is called between
            steps, may raise an error to stop the import.
    Returns:
        a row for each table and view of the source.
    Raises:
        TaskRunningError: another import into this catalog is running; the message names its owner.
        InputError: nothing of the source can be listed, or an option cannot be used.
    """
    store = catalog.references.store
    engine = engine or LocalEngine(Reach(store, catalog.files))
    check = partial(engine.progress, "importing tables and views", 0, 0)
    operation = Operation(b"", principal)
    if options.dry_run:
        return list(Importer(catalog, operation, engine, options, check).rows(source))
    tasks = Tasks(store.backend, catalog.context.clock)
    with tasks.running(TASK, f"{store.realm}/{catalog.row.entity_id:x}") as held:

        def checked() -> None:
            held.check()
            check()

        return list(Importer(catalog, operation, engine, options, checked).rows(source))


def load_imported(
    catalog: Catalog,
    *,
    principal: str,
    options: ImportOptions,
    engine: Engine | None = None,
) -> list[Row]:
    """Load the tables and views that are not loaded yet. Return a row for each of them.

    Raises:
        BadRequestError: a namespace in the options does not exist.
        TaskRunningError: an import into this catalog is running.
    """
    _refuse_unknown(catalog, options.namespaces)
    source = UnloadedContents(catalog)
    # A table or view that is renamed, dropped or replaced while this runs is not restored.
    options = options._replace(into=(), lazy=False, overwrite=False, only_present=True)
    return import_source(catalog, source, principal=principal, options=options, engine=engine)


def _refuse_unknown(catalog: Catalog, namespaces: Sequence[str]) -> None:
    """Check that namespaces exist, which are given as levels joined by dots."""
    if not namespaces:
        return
    keys = (decode_key(key) for key, _ in catalog.head().index(NAMES).range())
    there = {".".join((*key.path, key.name)) for key in keys if key.kind == NAMESPACE}
    for name in namespaces:
        if name not in there:
            raise BadRequestError(f"there is no namespace {name}")
