"""Format versions of tables and views, and the versions that introduced certain features."""

DEFAULT_FORMAT_VERSION = 2
"""Format version of a new table."""
SUPPORTED_FORMAT_VERSION = 4
"""Newest supported format version of tables, as in Iceberg 1.12."""
ROW_LINEAGE_VERSION = 3
"""First format version whose snapshots have row ids."""
OPTIONAL_LOCATION_VERSION = 4
"""First format version in which a table may have no location."""

VIEW_FORMAT_VERSION = 1
"""The only format version of views."""
