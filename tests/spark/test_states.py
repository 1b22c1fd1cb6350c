"""SQL that chooses a state of the catalog: `use`, and names such as `t@dev`; merges and transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, SparkRuntimeException
from pyspark.sql import SparkSession

import polaris_spark
from tests.spark.sql import rows, run

pytestmark = pytest.mark.spark

ERRORS = (PySparkException, Py4JJavaError)


def another(spark: SparkSession) -> SparkSession:
    """A further session with the same catalog."""
    other = spark.newSession()
    for name, value in spark.conf.getAll.items():
        if name.startswith("spark.sql.catalog.polaris"):
            other.conf.set(name, value)
    return other


@pytest.fixture
def dev(spark: SparkSession, namespace: str) -> Iterator[str]:
    """A namespace with the table `t`, whose branch `dev` has one more row."""
    run(
        spark,
        f"CREATE TABLE {namespace}.t AS SELECT 1 AS id",
        "CALL polaris.system.create_branch('dev')",
        f"INSERT INTO {namespace}.`t@dev` VALUES (2)",
    )
    yield namespace
    run(spark, "CALL polaris.system.use('main')", "CALL polaris.system.drop_branch('dev')")


def test_names_of_tables_say_which_state_is_meant(spark: SparkSession, dev: str) -> None:
    newest = "SELECT number, commit_id FROM polaris.system.changes ORDER BY number DESC LIMIT 1"
    ((number, commit),) = rows(spark, newest)
    assert rows(spark, f"SELECT id FROM {dev}.t") == [(1,)]
    assert rows(spark, f"SELECT id FROM {dev}.`t@dev`") == [(1,), (2,)]
    assert rows(spark, f"SELECT count(*) FROM {dev}.`t@dev#2999-01-01T00:00:00Z`") == [(2,)]
    run(
        spark,
        f"ALTER TABLE {dev}.`t@dev` ADD COLUMN name STRING",
        f"DELETE FROM {dev}.`t@dev` WHERE id = 1",
        f"INSERT INTO {dev}.t VALUES (3)",
    )
    assert rows(spark, f"SELECT * FROM {dev}.`t@dev`") == [(2, None)]
    for point in (number, commit, f"{commit:x}"):
        assert rows(spark, f"SELECT id FROM {dev}.`t@{point}`") == [(1,)]
    joined = f"SELECT count(*) FROM {dev}.t m FULL JOIN {dev}.`t@dev` d USING (id)"
    assert rows(spark, joined) == [(3,)]
    with pytest.raises(ERRORS, match="cannot be changed"):
        run(spark, f"INSERT INTO {dev}.`t@{number}` VALUES (4)")


def test_icebergs_procedures_do_not_delete_files_that_another_branch_reads(
    spark: SparkSession, dev: str
) -> None:
    run(spark, f"INSERT OVERWRITE {dev}.t VALUES (3)", f"ALTER TABLE {dev}.t CREATE BRANCH other")
    expiry = "CALL polaris.system.expire_snapshots('{}', now(), 1)"
    removal = (
        "CALL polaris.system.remove_orphan_files(table => '{}', older_than => now() - INTERVAL 2 DAYS{})"
    )
    for statement in (expiry, removal):
        for table, holder in (
            (f"{dev}.t", "dev"),
            (f"{dev}.`t@dev`", "main"),
            (f"{dev}.t.branch_other", "dev"),
        ):
            refusal = (
                f"because the branch '{holder}' may need them; call the procedures expire and remove_orphans"
            )
            with pytest.raises(SparkRuntimeException, match=refusal):
                run(spark, statement.format(table, ""))
    assert rows(spark, removal.format(f"{dev}.t", ", dry_run => true")) == []
    assert rows(spark, f"SELECT id FROM {dev}.`t@dev`") == [(1,), (2,)]
    run(spark, f"DROP TABLE {dev}.`t@dev`", f"ALTER TABLE {dev}.t DROP BRANCH other")
    for statement in (expiry, removal):
        run(spark, statement.format(f"{dev}.t", ""))
        with pytest.raises(ERRORS, match="missing"):
            run(spark, statement.format(f"{dev}.missing", ""))
    assert rows(spark, f"SELECT count(*) FROM {dev}.t.snapshots") == [(1,)]


def test_tables_and_views_are_created_renamed_and_dropped_by_names_with_a_state(
    spark: SparkSession, dev: str
) -> None:
    run(
        spark,
        f"CREATE TABLE {dev}.`made@dev` (id INT)",
        f"CREATE TABLE {dev}.`copied@dev` AS SELECT id FROM {dev}.`t@dev`",
        f"ALTER TABLE {dev}.`copied@dev` RENAME TO {dev}.`renamed@dev`",
        f"DROP TABLE {dev}.`made@dev`",
        f"CREATE VIEW {dev}.v AS SELECT id FROM {dev}.t",
        f"CREATE VIEW {dev}.`v@dev` AS SELECT id FROM {dev}.t",
    )
    assert [row[1] for row in rows(spark, f"SHOW TABLES IN {dev}")] == ["t"]
    assert rows(spark, f"SELECT id FROM {dev}.`renamed@dev`") == [(1,), (2,)]
    with pytest.raises(ERRORS, match=r"CALL polaris.system.use\('dev'\) and read v"):
        rows(spark, f"SELECT id FROM {dev}.`v@dev`")
    run(spark, "CALL polaris.system.use('dev')")
    assert rows(spark, f"SELECT id FROM {dev}.v") == [(1,), (2,)]
    run(spark, "CALL polaris.system.use('main')", f"DROP VIEW {dev}.`v@dev`")
    assert rows(spark, f"SELECT id FROM {dev}.v") == [(1,)]


def test_a_session_uses_a_branch_until_it_uses_another(spark: SparkSession, dev: str) -> None:
    other = another(spark)
    assert rows(spark, "CALL polaris.system.use('dev')")[0][0] == "dev"
    assert rows(spark, f"SELECT id FROM {dev}.t") == [(1,), (2,)]
    assert rows(other, f"SELECT id FROM {dev}.t") == [(1,)]
    run(
        spark,
        f"CREATE TABLE {dev}.made AS SELECT id * 10 AS id FROM {dev}.t",
        f"CREATE VIEW {dev}.v AS SELECT id + 1 AS id FROM {dev}.made",
        f"MERGE INTO {dev}.t USING {dev}.made ON t.id * 10 = made.id WHEN MATCHED THEN UPDATE SET id = t.id + 5",
    )
    assert rows(spark, f"SELECT id FROM {dev}.v") == [(11,), (21,)]
    assert rows(spark, f"SELECT id FROM {dev}.t") == [(6,), (7,)]
    assert {row[1] for row in rows(spark, f"SHOW TABLES IN {dev}")} >= {"made", "t"}
    assert {row[1] for row in rows(other, f"SHOW TABLES IN {dev}")} == {"t"}
    named = rows(spark, "SELECT name FROM polaris.system.tables WHERE name LIKE '%made%'")
    assert len(named) == 1
    assert rows(spark, "CALL polaris.system.use()")[0][0] == "dev"
    ((number,),) = rows(spark, "SELECT max(number) FROM polaris.system.changes")
    run(spark, f"DROP TABLE {dev}.made", f"CALL polaris.system.use('{number}')")
    assert rows(spark, f"SELECT count(*) FROM {dev}.made") == [(2,)]
    with pytest.raises(ERRORS, match="cannot be changed"):
        run(spark, f"DROP TABLE {dev}.made")
    run(spark, "CALL polaris.system.use('main')")
    assert rows(spark, f"SELECT id FROM {dev}.t") == [(1,)]
    assert rows(other, "SELECT count(*) FROM polaris.system.tables WHERE name LIKE '%made%'") == [(0,)]
    with pytest.raises(ERRORS, match="no branch 'none'"):
        run(spark, "CALL polaris.system.use('none')")
    assert rows(spark, "CALL polaris.system.use()")[0][0] == "main"


def test_a_branch_is_compared_and_merged_by_sql(spark: SparkSession, dev: str) -> None:
    run(
        spark,
        f"INSERT INTO {dev}.t VALUES (3)",
        "CALL polaris.system.use('dev')",
        f"CREATE TABLE {dev}.made AS SELECT 5 AS id",
        "CALL polaris.system.use('main')",
    )
    found = rows(spark, "CALL polaris.system.diff('main', 'dev')")
    assert {(name.rpartition(".")[2], change, added) for _, name, change, _, _, added, _, _ in found} == {
        ("made", "added", 1),
        ("t", "changed", 1),
    }
    merged = rows(spark, "CALL polaris.system.merge('dev')")
    assert {(name.rpartition(".")[2], action) for _, name, action, _ in merged} == {
        ("made", "added"),
        ("t", "merged"),
    }
    assert rows(spark, f"SELECT id FROM {dev}.t") == [(1,), (2,), (3,)]
    files = rows(spark, f"SELECT snapshot_id FROM {dev}.t.entries")
    known = {row[0] for row in rows(spark, f"SELECT snapshot_id FROM {dev}.t.snapshots")}
    assert {row[0] for row in files} <= known
    newest = rows(
        spark,
        f"SELECT s.snapshot_id, s.parent_id FROM {dev}.t.snapshots s JOIN {dev}.t.refs r USING (snapshot_id) "
        "WHERE r.name = 'main'",
    )
    read = spark.read.option("start-snapshot-id", newest[0][1]).option("end-snapshot-id", newest[0][0])
    assert [row.id for row in read.table(f"{dev}.t").collect()] == [2]
    run(spark, f"INSERT INTO {dev}.t VALUES (4)", f"DELETE FROM {dev}.t WHERE id = 1")
    assert rows(spark, f"SELECT id FROM {dev}.t") == [(2,), (3,), (4,)]


def test_a_commit_is_picked_and_reverted_by_sql(spark: SparkSession, dev: str) -> None:
    run(spark, f"INSERT INTO {dev}.`t@dev` VALUES (3)")
    newest = "SELECT number FROM polaris.system.branches WHERE name = '{}' AND catalog = 'polaris'"
    ((number,),) = rows(spark, newest.format("dev"))
    picked = f"commit => 'dev#{number}', strategies => map('{dev.partition('.')[2]}.t', 'theirs')"
    [(_, _, action, _)] = rows(spark, f"CALL polaris.system.cherry_pick({picked})")
    assert (action, rows(spark, f"SELECT id FROM {dev}.t")) == ("replaced", [(1,), (2,), (3,)])
    ((number,),) = rows(spark, newest.format("main"))
    [(_, _, action, _)] = rows(spark, f"CALL polaris.system.revert('{number}')")
    assert (action, rows(spark, f"SELECT id FROM {dev}.t")) == ("merged", [(1,)])


def test_statements_of_a_transaction_take_effect_together(spark: SparkSession, namespace: str) -> None:
    other = another(spark)
    run(
        spark,
        f"CREATE TABLE {namespace}.t AS SELECT 1 AS id",
        f"CREATE TABLE {namespace}.u AS SELECT 1 AS id",
    )
    run(
        spark,
        "CALL polaris.system.begin()",
        f"INSERT INTO {namespace}.t VALUES (2)",
        f"CREATE TABLE {namespace}.made AS SELECT sum(id) AS id FROM {namespace}.t",
        f"CREATE VIEW {namespace}.v AS SELECT id FROM {namespace}.made",
        f"UPDATE {namespace}.u SET id = 7",
        "CALL polaris.system.savepoint('here')",
        f"DROP TABLE {namespace}.t",
        "CALL polaris.system.rollback('here')",
        f"ALTER TABLE {namespace}.u RENAME TO {namespace}.renamed",
    )
    assert rows(spark, f"SELECT id FROM {namespace}.t") == [(1,), (2,)]
    assert rows(spark, f"SELECT id FROM {namespace}.v") == [(3,)]
    assert rows(other, f"SELECT id FROM {namespace}.t") == [(1,)]
    assert {row[1] for row in rows(other, f"SHOW TABLES IN {namespace}")} == {"t", "u"}
    listed = "SELECT name FROM polaris.system.tables WHERE namespace = '{}'"
    space = namespace.partition(".")[2]
    for session, names in ((spark, {"t", "made", "renamed"}), (other, {"t", "u"})):
        assert {name for (name,) in rows(session, listed.format(space))} == names
    done = rows(spark, "CALL polaris.system.commit()")
    assert {(name.rpartition(".")[2], action) for _, _, name, action in done} == {
        ("made", "added"),
        ("renamed", "renamed"),
        ("t", "changed"),
        ("v", "added"),
    }
    for session in (spark, other):
        assert rows(session, f"SELECT id FROM {namespace}.v") == [(3,)]
        assert rows(session, f"SELECT id FROM {namespace}.renamed") == [(7,)]


def fail(spark: SparkSession, *statements: str) -> None:
    """Raise an error in a transaction, after some statements."""
    with polaris_spark.transaction(spark):
        run(spark, *statements)
        raise ZeroDivisionError


def test_a_transaction_is_a_context_manager_with_savepoints(spark: SparkSession, namespace: str) -> None:
    other = another(spark)
    run(spark, f"CREATE TABLE {namespace}.t AS SELECT 1 AS id")
    with polaris_spark.transaction(spark, "polaris") as tx:
        run(spark, f"INSERT INTO {namespace}.t VALUES (2)")
        tx.savepoint("it's")
        run(spark, f"DROP TABLE {namespace}.t")
        tx.rollback_to("it's")
        assert rows(spark, f"SELECT id FROM {namespace}.t") == [(1,), (2,)]
        assert rows(other, f"SELECT id FROM {namespace}.t") == [(1,)]
    assert rows(other, f"SELECT id FROM {namespace}.t") == [(1,), (2,)]
    with pytest.raises(ZeroDivisionError):
        fail(spark, f"DROP TABLE {namespace}.t", f"CREATE TABLE {namespace}.made (id INT)")
    assert rows(spark, "CALL polaris.system.use()")[0][0] == "main"
    assert [row[1] for row in rows(spark, f"SHOW TABLES IN {namespace}")] == ["t"]
    with pytest.raises(ZeroDivisionError):  # not the error of the rollback at the end of the block
        fail(spark, "CALL polaris.system.rollback()")
    with pytest.raises(ERRORS, match="no transaction is open"):
        tx.savepoint("late")


def test_sessions_stage_changes_that_one_commit_brings_to_the_branch(
    spark: SparkSession, namespace: str
) -> None:
    other, reader = another(spark), another(spark)
    run(spark, f"CREATE TABLE {namespace}.t AS SELECT 1 AS id")
    for session, value in ((spark, 2), (other, 3)):
        assert rows(session, "CALL polaris.system.stage('nightly')")[0][0] == "+nightly"
        run(session, f"INSERT INTO {namespace}.t VALUES ({value})")
    assert rows(spark, f"SELECT id FROM {namespace}.t") == [(1,), (2,), (3,)]
    assert rows(reader, f"SELECT id FROM {namespace}.t") == [(1,)]
    assert rows(reader, f"SELECT count(*) FROM {namespace}.`t@+nightly`") == [(3,)]
    run(other, "CALL polaris.system.commit_staged('nightly')")
    for session in (spark, other, reader):
        run(session, "CALL polaris.system.use('main')")
        assert rows(session, f"SELECT id FROM {namespace}.t") == [(1,), (2,), (3,)]
    run(reader, "CALL polaris.system.drop_branch('+nightly')")


def test_a_transaction_fails_if_what_it_read_has_changed(spark: SparkSession, namespace: str) -> None:
    other = another(spark)
    run(
        spark,
        f"CREATE TABLE {namespace}.t AS SELECT 1 AS id",
        f"CREATE TABLE {namespace}.u AS SELECT 1 AS id",
    )
    for session, (read, changed) in ((spark, ("t", "u")), (other, ("u", "t"))):
        run(
            session,
            "CALL polaris.system.begin(isolation => 'serializable')",
            f"INSERT INTO {namespace}.{changed} SELECT sum(id) + 1 FROM {namespace}.{read}",
        )
    run(spark, "CALL polaris.system.commit()")
    with pytest.raises(ERRORS, match="which has been changed since the transaction began"):
        run(other, "CALL polaris.system.commit()")
    run(other, "CALL polaris.system.rollback()")
    assert rows(other, f"SELECT id FROM {namespace}.t") == [(1,)]
    assert rows(other, f"SELECT id FROM {namespace}.u") == [(1,), (2,)]
    with pytest.raises(ERRORS, match="no transaction is open"):
        run(other, "CALL polaris.system.commit()")
