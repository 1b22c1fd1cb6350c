"""The change of the owner of a namespace, table or view, in a realm with access control."""

from __future__ import annotations

from polaris_spark.catalog.entities.entities import Context, TimedChange, find
from polaris_spark.catalog.rows import OWNERS, id_bytes
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import NotFoundError
from polaris_spark.index import Entry
from polaris_spark.index.keys import entry_key


class SetEntityOwner(TimedChange[None]):
    """Set the owner of a namespace, table or view."""

    action = "set-owner"
    onto_protected = True

    def __init__(
        self, context: Context, operation: Operation, levels: tuple[str, ...], kind: bytes, owner: str
    ) -> None:
        """
        Args:
            levels: the entity's full name: the levels of its namespace, then its own name.
            kind: `NAMESPACE`, `TABLE` or `VIEW`.
            owner: name of the principal that becomes the owner.
        """
        super().__init__(context, operation)
        self.levels = tuple(level for level in levels if level)
        self.kind = kind
        self.owner = owner

    def apply(self, state: State, prepared: int) -> None:
        key = entry_key(self.levels[:-1], self.kind, self.levels[-1])
        found = find(state, key)
        if found is None:
            raise NotFoundError(f"{'.'.join(self.levels)} does not exist")
        state.put(OWNERS, id_bytes(found.entity_id), Entry(value=self.owner.encode()))
        summary = {"owner": self.owner}
        self.record(
            state, prepared, found.entity_id, key, before=found.content, after=found.content, summary=summary
        )

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None
