"""Procedures of transactions: begin, commit, roll back, and savepoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from polaris_spark.jobs.procedure import Call, Column, Parameter, Procedure

if TYPE_CHECKING:
    from polaris_spark.catalog.transactions import Transaction, Transactions
    from polaris_spark.commits.change import Operation


def _begin(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.transactions import isolation_of

    transactions, operation = _parts(call)
    isolation = isolation_of(arguments.get("isolation", "serializable"))
    begun = transactions.begin(call.session.catalog, operation, isolation)
    return [(begun.state, isolation.value, begun.begin.head.number)]


def _commit(call: Call, _: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    transactions, operation = _parts(call)
    transaction = transactions.of(call.session.catalog)
    merged = transactions.commit(transaction, operation)
    parent = transaction.parent.branch
    return [(parent, one.kind, one.name, one.action) for one in merged] or [(parent, None, None, None)]


def _rollback(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    transactions, operation = _parts(call)
    transaction = _open(call)
    if "savepoint" in arguments:
        transactions.return_to(transaction, arguments["savepoint"], operation)
        return [(transaction.state,)]
    transactions.roll_back(transaction, operation)
    return [(transaction.parent.branch,)]


def _savepoint(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    transactions, _ = _parts(call)
    transaction = _open(call)
    transactions.save(transaction, arguments["name"])
    return [(transaction.state, arguments["name"])]


def _parts(call: Call) -> tuple[Transactions, Operation]:
    from polaris_spark.catalog.transactions import Transactions

    return call.session.resource(Transactions), call.session.operation()


def _open(call: Call) -> Transaction:
    return _parts(call)[0].of(call.session.catalog)


_STATE = Column("state", "STRING")
BEGIN = Procedure(
    name="begin",
    comment="Begin a transaction of this Spark session. Its statements take effect together, at the commit.",
    parameters=(
        Parameter(
            "isolation",
            "STRING",
            "`serializable` (the default): nothing that the transaction reads may change before its commit; "
            "`snapshot`: only nothing that it changes",
        ),
    ),
    columns=(_STATE, Column("isolation", "STRING"), Column("commit_number", "BIGINT")),
    run=_begin,
    switches=True,
)
COMMIT = Procedure(
    name="commit",
    comment="Commit the transaction of this Spark session.",
    parameters=(),
    columns=(_STATE, Column("kind", "STRING"), Column("name", "STRING"), Column("action", "STRING")),
    run=_commit,
    switches=True,
)
ROLLBACK = Procedure(
    name="rollback",
    comment="End the transaction of this Spark session without its changes, or undo its changes since a savepoint.",
    parameters=(Parameter("savepoint", "STRING", "the savepoint to return to; the transaction stays open"),),
    columns=(_STATE,),
    run=_rollback,
    switches=True,
)
SAVEPOINT = Procedure(
    name="savepoint",
    comment="Set a savepoint in the transaction of this Spark session.",
    parameters=(Parameter("name", "STRING", "name of the savepoint", required=True),),
    columns=(_STATE, Column("savepoint", "STRING")),
    run=_savepoint,
    switches=True,
)
