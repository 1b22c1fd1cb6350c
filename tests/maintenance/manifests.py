"""Manifests that no writer would write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastavro

Json = dict[str, Any]


def write_manifest(file: Path, fields: list[Json], data_file: Json) -> None:
    """Write a manifest with one entry, of a file that was added.

    Args:
        fields: of its data file, as an Avro schema describes them.
    """
    record = {"type": "record", "name": "data_file", "fields": fields}
    schema = {
        "type": "record",
        "name": "entry",
        "fields": [
            {"name": "status", "type": "int", "field-id": 0},
            {"name": "data_file", "type": record, "field-id": 2},
        ],
    }
    with file.open("wb") as opened:
        fastavro.writer(opened, schema, [{"status": 1, "data_file": data_file}])
