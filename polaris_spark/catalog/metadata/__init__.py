"""Metadata of tables and views: rows, requirements, updates, and JSON for clients. Pure functions."""

from polaris_spark.catalog.metadata.creating import create_table
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.metadata_location import is_compressed, metadata_location
from polaris_spark.catalog.metadata.parse import parse_table
from polaris_spark.catalog.metadata.parse_view import parse_view
from polaris_spark.catalog.metadata.render import render, render_view
from polaris_spark.catalog.metadata.requirements import is_create
from polaris_spark.catalog.metadata.rows import ObjectReader, Table, View
from polaris_spark.catalog.metadata.updates import apply, apply_all, check, check_all
from polaris_spark.catalog.metadata.view_draft import ViewDraft
from polaris_spark.catalog.metadata.view_updates import create_view

__all__ = [
    "ObjectReader",
    "Table",
    "TableDraft",
    "View",
    "ViewDraft",
    "apply",
    "apply_all",
    "check",
    "check_all",
    "create_table",
    "create_view",
    "is_compressed",
    "is_create",
    "metadata_location",
    "parse_table",
    "parse_view",
    "render",
    "render_view",
]
