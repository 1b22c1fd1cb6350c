"""Runs MERGE statements on one table from another driver, until every change is acknowledged or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Run = Callable[[str], object]

CONFLICTS = ("ValidationException", "CommitFailedException", "conflicting")


@dataclass
class Outcome:
    """The results of one driver's merges: the acknowledged additions to each row, and the messages of refused ones."""

    added: dict[int, int] = field(default_factory=dict)
    inserted: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def merge_repeatedly(run: Run, table: str, steps: list[list[int]], new: int, where: str) -> Outcome:
    """Add 1 to `n` of the rows of each step and insert one new row, a MERGE a step.

    Args:
        run: runs a statement in the driver.
        table: its name there.
        steps: ids of existing rows.
        new: the first id of rows to insert.
        where: a further condition on the rows of the table, `t`, that are looked at.
    """
    outcome = Outcome()
    for number, ids in enumerate(steps):
        source = " UNION ALL ".join(f"SELECT {id} AS id" for id in [*ids, new + number])
        try:
            run(
                f"MERGE INTO {table} t USING ({source}) s ON t.id = s.id AND {where}"
                " WHEN MATCHED THEN UPDATE SET n = t.n + 1 WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, 0)"
            )
        except Exception as error:
            outcome.refused.append(str(error))
            continue
        outcome.inserted.append(new + number)
        for id in ids:
            outcome.added[id] = outcome.added.get(id, 0) + 1
    return outcome
