"""Procedures of transactions: begin, commit, roll back, and savepoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from polaris_spark.access.needs import OPEN
from polaris_spark.jobs.procedure import Call, Column, Parameter, Procedure, columns

if TYPE_CHECKING:
    from polaris_spark.catalog.merges.transactions import Transactions


def _begin(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.merges.transactions import isolation_of

    isolation = isolation_of(arguments.get("isolation", "serializable"))
    begun = _transactions(call).begin(call.session.catalog, isolation)
    return [(begun.state, isolation.value, begun.begin.head.number)]


def _commit(call: Call, _: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    transactions = _transactions(call)
    transaction = transactions.of(call.session.catalog)
    call.session.require_again(transaction)
    merged = transactions.commit(transaction, call.session.operation())
    parent = transaction.parent.branch
    return [(parent, one.kind, one.name, one.action) for one in merged] or [(parent, None, None, None)]


def _rollback(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    transactions = _transactions(call)
    transaction = transactions.of(call.session.catalog)
    if "savepoint" in arguments:
        transactions.return_to(transaction, arguments["savepoint"])
        return [(transaction.state,)]
    transactions.roll_back(transaction)
    return [(transaction.parent.branch,)]


def _savepoint(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    transactions = _transactions(call)
    transaction = transactions.of(call.session.catalog)
    transactions.save(transaction, arguments["name"])
    return [(transaction.state, arguments["name"])]


def _transactions(call: Call) -> Transactions:
    from polaris_spark.catalog.merges.transactions import Transactions

    return call.session.resource(Transactions)


_STATE = Column("state", "STRING")
BEGIN = Procedure(
    name="begin",
    needs=OPEN,
    comment="Begin a transaction of this Spark session. Its statements take effect together, at the commit.",
    parameters=(
        Parameter(
            "isolation",
            "STRING",
            "`serializable` (the default): nothing that the transaction reads may change before its commit; "
            "`snapshot`: only nothing that it changes",
        ),
    ),
    columns=(_STATE, *columns("isolation STRING, commit_number BIGINT")),
    run=_begin,
    switches=True,
)
COMMIT = Procedure(
    name="commit",
    needs=OPEN,
    comment="Commit the transaction of this Spark session.",
    parameters=(),
    columns=(_STATE, *columns("kind STRING, name STRING, action STRING")),
    run=_commit,
    switches=True,
)
ROLLBACK = Procedure(
    name="rollback",
    needs=OPEN,
    comment="End the transaction of this Spark session without its changes, or undo its changes since a savepoint.",
    parameters=(Parameter("savepoint", "STRING", "the savepoint to return to; the transaction stays open"),),
    columns=(_STATE,),
    run=_rollback,
    switches=True,
)
SAVEPOINT = Procedure(
    name="savepoint",
    needs=OPEN,
    comment="Set a savepoint in the transaction of this Spark session.",
    parameters=(Parameter("name", "STRING", "name of the savepoint", required=True),),
    columns=(_STATE, Column("savepoint", "STRING")),
    run=_savepoint,
    switches=True,
)
