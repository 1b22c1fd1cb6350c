"""What transactions of two driver programs forbid: the histories of Adya ("Weak Consistency", 1999) and of Kleppmann's
Hermitage, as SQL. The objects are tables; each has one row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from polaris_spark.testing.waiting import PATIENCE_S
from tests.spark.catalogs import add_catalog
from tests.spark.two_drivers import Driver
from tests.stores import ServerOf

if TYPE_CHECKING:
    from conftest import CatalogPlace

pytestmark = [pytest.mark.spark, pytest.mark.timeout(4 * PATIENCE_S)]

ERRORS = (PySparkException, Py4JJavaError, RuntimeError)


class Party(NamedTuple):
    """A session of a driver program that carries out one transaction at a time."""

    catalog: str
    sql: Callable[[str], list[tuple[Any, ...]]]

    def call(self, procedure: str, arguments: str = "") -> None:
        """Call a procedure."""
        self.sql(f"CALL {self.catalog}.system.{procedure}({arguments})")

    def write(self, table: str, value: int) -> None:
        """Replace the row of a table."""
        self.sql(f"INSERT OVERWRITE {self.catalog}.h.{table} VALUES ({value})")

    def read(self, *tables: str) -> list[int]:
        """Return the rows of tables."""
        return [self.sql(f"SELECT v FROM {self.catalog}.h.{table}")[0][0] for table in tables]

    def rows(self, where: str = "true") -> list[tuple[int, int]]:
        """Return the rows of the table `r`, as (id, v), that fulfill a predicate."""
        found = self.sql(f"SELECT id, v FROM {self.catalog}.h.r WHERE {where} ORDER BY id")
        return [(id, v) for id, v in found]

    def change(self, statement: str) -> None:
        """Run a statement that changes the table `r`; it contains `{r}` for the name of the table."""
        self.sql(statement.format(r=f"{self.catalog}.h.r"))

    def listed(self) -> set[str]:
        """Return the tables of the namespace."""
        return {row[1] for row in self.sql(f"SHOW TABLES IN {self.catalog}.h")}

    def is_refused(self) -> bool:
        """Whether the commit is refused, because another transaction has changed something; roll back if it is."""
        try:
            self.call("commit")
        except ERRORS as error:
            if "has been changed since" not in str(error) and "conflict" not in str(error):
                raise
            self.call("rollback")
            return True
        return False


class Parties(NamedTuple):
    """A store with two driver programs, and a third session of the first program."""

    one: Party
    two: Party
    third: Party


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def parties(
    spark: SparkSession, place: CatalogPlace, server_of: ServerOf, request: pytest.FixtureRequest
) -> Iterator[Parties]:
    """Two programs on a store, with the tables `x`, `y` and `r`."""
    store = place.store if request.param == "sqlite" else server_of("postgresql").uri("histories")
    name = add_catalog(spark, store=store, warehouse=place.warehouse, catalog="polaris")
    sessions = [spark, spark.newSession()]
    sessions[1].conf.set(f"spark.sql.catalog.{name}", "io.polarisspark.PolarisCatalog")
    for key in ("store", "warehouse", "catalog"):
        sessions[1].conf.set(
            f"spark.sql.catalog.{name}.{key}", spark.conf.get(f"spark.sql.catalog.{name}.{key}")
        )

    def of(session: SparkSession) -> Party:
        return Party(name, lambda text: [tuple(row) for row in session.sql(text).collect()])

    driver = Driver(store, place.warehouse)
    two = Party("polaris", lambda text: [tuple(row.values()) for row in driver.sql(text)])
    found = Parties(of(sessions[0]), two, of(sessions[1]))
    found.one.sql(f"CREATE NAMESPACE {name}.h")
    for table in ("x", "y"):
        found.one.sql(f"CREATE TABLE {name}.h.{table} (v INT)")
    found.one.sql(f"CREATE TABLE {name}.h.r (id INT, v INT)")
    yield found
    for table in ("x", "y", "r"):
        found.one.sql(f"DROP TABLE {name}.h.{table}")
    found.one.sql(f"DROP NAMESPACE {name}.h")
    driver.close()


@pytest.fixture(params=["snapshot", "serializable"])
def begun(parties: Parties, request: pytest.FixtureRequest) -> Iterator[tuple[Parties, str]]:
    """The parties with an open transaction each. The tables `x` and `y` have the values 10 and 20, and the rows of the
    table `r`, too."""
    for table, value in (("x", 10), ("y", 20)):
        parties.one.write(table, value)
    parties.one.change("INSERT OVERWRITE {r} VALUES (1, 10), (2, 20)")
    for party in (parties.one, parties.two):
        party.call("begin", f"'{request.param}'")
    yield parties, request.param
    for party in parties:
        with contextlib.suppress(*ERRORS):
            party.call("rollback")


on_one_database = pytest.mark.parametrize(
    "parties", ["sqlite", pytest.param("postgresql", marks=pytest.mark.exhaustive)], indirect=True
)
"""For histories that run on one database in the check. On another one they store the same objects as the three that run
on both: a lost update, mixed writes, and skewed writes."""


def test_g0_writes_of_two_transactions_are_not_mixed(begun: tuple[Parties, str]) -> None:
    (one, two, third), _ = begun
    one.write("x", 11)
    two.write("x", 12)
    one.write("y", 21)
    two.write("y", 22)
    assert not one.is_refused()
    assert third.read("x", "y") == [11, 21]
    assert two.is_refused()
    assert third.read("x", "y") == [11, 21]


@on_one_database
def test_g1_no_aborted_intermediate_or_circular_reads(begun: tuple[Parties, str]) -> None:
    (one, two, third), level = begun
    one.write("x", 101)
    two.write("y", 22)
    assert (one.read("y"), two.read("x"), third.read("x", "y")) == ([20], [10], [10, 20])
    one.write("x", 11)
    assert two.read("x") == [10]
    assert not one.is_refused()
    assert (two.read("x"), third.read("x", "y")) == ([10], [11, 20])
    assert two.is_refused() == (level == "serializable")  # it read x, which has been changed


@on_one_database
def test_g1a_rolled_back_changes_are_never_visible(begun: tuple[Parties, str]) -> None:
    (one, two, third), _ = begun
    one.write("x", 101)
    one.call("rollback")
    assert (two.read("x"), third.read("x")) == ([10], [10])
    two.write("y", 22)
    assert not two.is_refused()
    assert third.read("x", "y") == [10, 22]


@on_one_database
def test_otv_a_transaction_that_was_observed_does_not_vanish(begun: tuple[Parties, str]) -> None:
    (one, two, third), level = begun
    one.write("x", 11)
    one.write("y", 19)
    assert not one.is_refused()
    third.call("begin", f"'{level}'")
    assert third.read("x") == [11]
    two.write("x", 12)
    assert two.is_refused()
    assert third.read("y", "x") == [19, 11]
    assert not third.is_refused()


@on_one_database
def test_pmp_and_g_single_a_transaction_reads_one_state(begun: tuple[Parties, str]) -> None:
    (one, two, _), _ = begun
    assert one.read("x") == [10]
    two.write("x", 12)
    two.write("y", 18)
    two.sql(f"CREATE TABLE {two.catalog}.h.made (v INT)")
    assert not two.is_refused()
    assert (one.read("x", "y"), one.listed()) == ([10, 20], {"x", "y", "r"})
    assert not one.is_refused()
    assert one.read("x", "y") == [12, 18]
    two.sql(f"DROP TABLE {two.catalog}.h.made")


def test_p4_an_update_is_not_lost(begun: tuple[Parties, str]) -> None:
    (one, two, third), _ = begun
    for party in (one, two):
        party.write("x", party.read("x")[0] + 1)
    assert not one.is_refused()
    assert two.is_refused()
    assert third.read("x") == [11]


def test_g2_item_write_skew_is_forbidden_if_serializable(begun: tuple[Parties, str]) -> None:
    (one, two, third), level = begun
    for party in (one, two):
        assert party.read("x", "y") == [10, 20]
    one.write("x", 11)
    two.write("y", 21)
    assert not one.is_refused()
    assert two.is_refused() == (level == "serializable")
    assert third.read("x", "y") == [11, 20 if level == "serializable" else 21]


@on_one_database
def test_g2_phantoms_are_forbidden_if_serializable(begun: tuple[Parties, str]) -> None:
    (one, two, third), level = begun
    for party, name in ((one, "p"), (two, "q")):
        assert party.listed() == {"x", "y", "r"}
        party.sql(f"CREATE TABLE {party.catalog}.h.{name} (v INT)")
    assert not one.is_refused()
    assert two.is_refused() == (level == "serializable")
    made = third.listed() - {"x", "y", "r"}
    assert made == ({"p"} if level == "serializable" else {"p", "q"})
    for name in made:
        third.sql(f"DROP TABLE {third.catalog}.h.{name}")


@on_one_database
def test_pmp_a_write_with_a_predicate_does_not_meet_rows_of_another_state(begun: tuple[Parties, str]) -> None:
    (one, two, third), _ = begun
    one.change("UPDATE {r} SET v = v + 10")
    two.change("DELETE FROM {r} WHERE v = 20")
    assert not one.is_refused()
    assert third.rows() == [(1, 20), (2, 30)]
    assert two.is_refused()
    assert third.rows() == [(1, 20), (2, 30)]


@on_one_database
def test_g_single_predicates_are_evaluated_on_one_state(begun: tuple[Parties, str]) -> None:
    (one, two, third), _ = begun
    assert one.rows("v % 5 = 0") == [(1, 10), (2, 20)]
    two.change("UPDATE {r} SET v = 12 WHERE v = 10")
    assert not two.is_refused()
    assert one.rows("v % 3 = 0") == []
    assert third.rows("v % 3 = 0") == [(1, 12)]
    assert not one.is_refused()  # it only read


@on_one_database
@pytest.mark.parametrize("first", ["the other commits first", "the writer commits first"])
def test_g_single_a_write_with_a_predicate_is_refused_after_another_write(
    begun: tuple[Parties, str], first: str
) -> None:
    (one, two, third), _ = begun
    assert one.rows("id = 1") == [(1, 10)]
    assert two.rows() == [(1, 10), (2, 20)]
    two.change("UPDATE {r} SET v = v + 2")
    if first.startswith("the other"):
        assert not two.is_refused()
        one.change("DELETE FROM {r} WHERE v = 20")
        assert one.is_refused()
        assert third.rows() == [(1, 12), (2, 22)]
    else:
        one.change("DELETE FROM {r} WHERE v = 20")
        assert not one.is_refused()
        assert two.is_refused()
        assert third.rows() == [(1, 10)]


@on_one_database
def test_g2_two_edges_a_reader_may_make_a_skew_visible(begun: tuple[Parties, str]) -> None:
    """Fekete, O'Neil and O'Neil, "A Read-Only Transaction Anomaly Under Snapshot Isolation", 2004."""
    (one, two, third), level = begun
    assert one.read("x", "y") == [10, 20]
    two.write("y", 25)
    assert not two.is_refused()
    third.call("begin", f"'{level}'")
    assert third.read("x", "y") == [10, 25]
    assert not third.is_refused()
    one.write("x", 0)
    assert one.is_refused() == (level == "serializable")
    assert third.read("x", "y") == [10 if level == "serializable" else 0, 25]
