"""Locations of the metadata files of tables and views, as in Iceberg's `BaseMetastoreTableOperations`."""

from __future__ import annotations

from collections.abc import Mapping

from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.metadata.table_updates import strip_trailing_slash
from polaris_spark.catalog.metadata.texts import invalid
from polaris_spark.catalog.metadata.view_draft import ViewDraft

METADATA_PATH = "write.metadata.path"
METADATA_COMPRESSION = "write.metadata.compression-codec"

_EXTENSIONS = {"none": ".metadata.json", "gzip": ".gz.metadata.json"}


def metadata_location(draft: TableDraft | ViewDraft, uuid: str) -> str:
    """Return the location for the metadata file of a draft: `<directory>/<number>-<uuid>.metadata.json`.

    The directory is the property `write.metadata.path` or, if this is not set, `metadata` below the location of the
    table or view. The number has five digits and is one more than in the previous metadata location, or 0 if there is
    no previous one. The names of compressed files end in `.gz.metadata.json`.

    Args:
        uuid: a new UUID, which makes the file name unique.
    Raises:
        BadRequestError: `write.metadata.compression-codec` is neither `none` nor `gzip`, or the draft has neither a
            location nor `write.metadata.path`.
    """
    properties = draft.properties
    codec = properties.get(METADATA_COMPRESSION, "none").lower()
    extension = _EXTENSIONS.get(codec)
    if extension is None:
        raise invalid(f"Invalid codec name: {codec} (property {METADATA_COMPRESSION})")
    previous = draft.base.metadata_location if draft.base is not None else ""
    folder = _folder(properties, draft.location)
    return f"{folder}/{version_of(previous) + 1:05d}-{uuid}{extension}"


def metadata_directory(draft: TableDraft | ViewDraft | Table) -> str:
    """Return the directory of the metadata files of a draft or table, without a trailing slash.

    Raises:
        BadRequestError: there is neither a location nor `write.metadata.path`.
    """
    return _folder(draft.properties, draft.location)


def _folder(properties: Mapping[str, str], location: str) -> str:
    path = properties.get(METADATA_PATH)
    if not path and not location:
        raise invalid(
            f"The table has no location: set the property {METADATA_PATH} to the folder for its metadata files"
        )
    return strip_trailing_slash(path) if path else f"{strip_trailing_slash(location)}/metadata"


def is_compressed(location: str) -> bool:
    """Return whether the name of a metadata file indicates that the file is compressed with gzip."""
    return location.endswith((".gz.metadata.json", ".metadata.json.gz"))


def version_of(location: str) -> int:
    """Return the version number in the name of a metadata file; -1 if the name does not begin with a number."""
    number, dash, _ = location.rsplit("/", 1)[-1].partition("-")
    return int(number) if dash and number.isascii() and number.isdigit() else -1
