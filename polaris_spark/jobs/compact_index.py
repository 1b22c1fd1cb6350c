"""`compact_index`: rewrites the indexes of references, such as branches of catalogs, into fewer, fuller shards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from polaris_spark.errors import ReferenceGoneError
from polaris_spark.jobs.maintenance import job
from polaris_spark.jobs.procedure import Call, Parameter, columns


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.compaction import compact_reference, names

    session = call.session
    references = session.catalog.references
    asked = arguments.get("reference")
    done: list[tuple[Any, ...]] = []
    for name in names(references, asked):
        # A reference that is dropped meanwhile is skipped, but raises an error if the caller named it.
        with contextlib.nullcontext() if asked else contextlib.suppress(ReferenceGoneError):
            for one in compact_reference(references, name, session.principal, progress=call.progress):
                pairs = zip(one.before, one.after, strict=True)
                done.append((one.reference, one.index_name, *(value for pair in pairs for value in pair)))
    return done


PROCEDURE = job(
    name="compact_index",
    comment="Rewrite the indexes of references into fewer, fuller shards; their content stays the same.",
    parameters=(
        Parameter(
            "reference",
            "STRING",
            "the reference whose indexes are compacted; by default, all references of the realm",
        ),
    ),
    columns=columns(
        "reference STRING, index STRING, shards_before BIGINT, shards_after BIGINT, bytes_before BIGINT, "
        "bytes_after BIGINT, depth_before INT, depth_after INT, embedded_bytes_before BIGINT, "
        "embedded_bytes_after BIGINT"
    ),
    run=_run,
    over_http=True,
)
