"""Starts imports into a catalog, one at a time. They run in threads of this process, or on Spark executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.engine import Engine, LocalEngine, Reach
from polaris_spark.catalog.imports.importer import Importer, ImportOptions, Row
from polaris_spark.catalog.imports.sources import ListedNamespace, Source, SourceEntry
from polaris_spark.catalog.rows import NAMES, NAMESPACE, Unloaded
from polaris_spark.commits.change import Operation
from polaris_spark.errors import BadRequestError
from polaris_spark.index.keys import decode_key
from polaris_spark.system.tasks import Tasks

TASK = "import"
"""Kind of the task whose lease (`system.tasks`) an import holds, so that only one import runs in a catalog."""

_READ_TOGETHER = 1_000


class UnloadedContents:
    """Source of an import: the tables and views that were imported into a catalog lazily and are not loaded yet. An
    import from this source loads their metadata."""

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
    """Import tables and views from a source into a catalog. Except in a dry run, no other import into the catalog can
    run at the same time.

    Args:
        source: for example the result of `open_source`.
        principal: logged as the author of the import.
        engine: reads files and writes rows; None to use threads of this process. Its function `progress` is called
            between steps, and may raise an error to stop the import.
    Returns:
        a `Row` for each table and view of the source that the options select, and for each namespace that cannot be
            created. If listing the source failed later than at the first entry, the last `Row` says so.
    Raises:
        TaskRunningError: another import into this catalog is running. The message contains its owner.
        InputError: listing the source failed at the first entry, or an option cannot be used.
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
    """Load the metadata of the tables and views that were imported lazily and are not loaded yet. Return a `Row` for
    each of them that the options select.

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
    """Check that namespaces exist. Each is given as its levels, joined by dots.

    Raises:
        BadRequestError: a namespace does not exist.
    """
    if not namespaces:
        return
    keys = (decode_key(key) for key, _ in catalog.head().index(NAMES).range())
    there = {".".join((*key.path, key.name)) for key in keys if key.kind == NAMESPACE}
    for name in namespaces:
        if name not in there:
            raise BadRequestError(f"there is no namespace {name}")
