"""Format versions of tables and views, and what came with them."""

DEFAULT_FORMAT_VERSION = 2
"""Of a new table."""
SUPPORTED_FORMAT_VERSION = 4
"""The newest one of tables, as in Iceberg 1.12."""
ROW_LINEAGE_VERSION = 3
"""Brought row ids to snapshots."""
OPTIONAL_LOCATION_VERSION = 4
"""Lets tables be without a location."""

VIEW_FORMAT_VERSION = 1
"""The only one of views."""
