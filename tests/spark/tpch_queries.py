"""The tables of TPC-H with a few hundred rows, its 22 queries, and changes of the tables.

The queries are those of the TPC-H specification, revision 3, with its validation parameters. Only the fraction in Q11,
which depends on the size of the tables, is 0.02. Queries with `LIMIT` have more columns in `ORDER BY`, so that their
result does not depend on the order of equal rows. The columns of the tables contain few different values, so that every
query returns rows.
"""

from __future__ import annotations

import re

_MERGE_ON_READ = (
    "TBLPROPERTIES ('format-version' = '2', 'write.delete.mode' = 'merge-on-read', "
    "'write.update.mode' = 'merge-on-read')"
)


def _random(limit: int, *seeds: str) -> str:
    """An expression for a number from 0 to `limit` - 1 that looks random and is always the same."""
    return f"pmod(hash({', '.join(seeds)}), {limit})"


def _one_of(values: str, *seeds: str) -> str:
    """An expression for one of the values, which `|` separates."""
    texts = ", ".join(f"'{value}'" for value in values.split("|"))
    return f"array({texts})[{_random(values.count('|') + 1, *seeds)}]"


def _insert_orders(first: int, after: int) -> tuple[str, str]:
    """Statements that insert orders with these keys, and from one to seven lines for each order."""
    orders = f"""
        INSERT INTO orders
        SELECT id, 1 + {_random(40, "id", "1")},
            CASE WHEN day < DATE '1995-02-01' THEN 'F' WHEN day < DATE '1995-07-01' THEN 'P' ELSE 'O' END,
            CAST(1000 + {_random(9_000_000, "id", "2")} / 100 AS DECIMAL(12,2)), day,
            {_one_of("1-URGENT|2-HIGH|3-MEDIUM|5-LOW", "id", "3")}, concat('Clerk#', id % 9), 0,
            {_one_of("quick ideas|special packages and requests|even accounts", "id", "4")}
        FROM (
            SELECT id, date_add(DATE '1993-06-01', {_random(1_000, "id", "5")}) AS day FROM range({first}, {after})
        )"""
    lines = f"""
        INSERT INTO lineitem
        SELECT o_orderkey, part, 1 + (part + 5 * {_random(4, "o_orderkey", "n", "1")}) % 20, n, quantity,
            CAST(quantity * (900 + part * 10.5) AS DECIMAL(12,2)),
            CAST({_random(11, "o_orderkey", "n", "2")} / 100 AS DECIMAL(12,2)),
            CAST({_random(9, "o_orderkey", "n", "3")} / 100 AS DECIMAL(12,2)),
            if(received > DATE '1995-06-17', 'N', {_one_of("R|A", "o_orderkey", "n", "4")}),
            if(shipped > DATE '1995-06-17', 'O', 'F'), shipped,
            date_add(o_orderdate, 30 + {_random(61, "o_orderkey", "n", "5")}), received,
            {_one_of("DELIVER IN PERSON|TAKE BACK RETURN", "o_orderkey", "n", "6")},
            {_one_of("AIR|AIR REG|MAIL|SHIP|RAIL", "o_orderkey", "n", "7")}, 'fluffy deposits'
        FROM (
            SELECT *, date_add(shipped, 1 + {_random(30, "o_orderkey", "n", "8")}) AS received
            FROM (
                SELECT o_orderkey, o_orderdate, n, 1 + {_random(60, "o_orderkey", "n", "9")} AS part,
                    date_add(o_orderdate, 1 + {_random(121, "o_orderkey", "n", "10")}) AS shipped,
                    if(o_orderkey % 20 = 0, 44, 1 + {_random(50, "o_orderkey", "n", "11")}) AS quantity
                FROM orders LATERAL VIEW explode(
                    sequence(1, if(o_orderkey % 20 = 0, 7, 1 + {_random(5, "o_orderkey", "12")}))
                ) AS n
                WHERE o_orderkey >= {first} AND o_orderkey < {after}
            )
        )"""
    return orders, lines


_REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
_NATIONS = {
    "ALGERIA": "AFRICA",
    "ARGENTINA": "AMERICA",
    "BRAZIL": "AMERICA",
    "CANADA": "AMERICA",
    "EGYPT": "MIDDLE EAST",
    "ETHIOPIA": "AFRICA",
    "FRANCE": "EUROPE",
    "GERMANY": "EUROPE",
    "INDIA": "ASIA",
    "INDONESIA": "ASIA",
    "IRAN": "MIDDLE EAST",
    "IRAQ": "MIDDLE EAST",
    "JAPAN": "ASIA",
    "JORDAN": "MIDDLE EAST",
    "KENYA": "AFRICA",
    "MOROCCO": "AFRICA",
    "MOZAMBIQUE": "AFRICA",
    "PERU": "AMERICA",
    "CHINA": "ASIA",
    "ROMANIA": "EUROPE",
    "SAUDI ARABIA": "MIDDLE EAST",
    "VIETNAM": "ASIA",
    "RUSSIA": "EUROPE",
    "UNITED KINGDOM": "EUROPE",
    "UNITED STATES": "AMERICA",
}
"""Region of each nation. The key of a nation is its position."""
_TYPES = "ECONOMY ANODIZED STEEL|LARGE BRASS|PROMO BURNISHED COPPER|MEDIUM POLISHED TIN"

TABLES = (
    "CREATE TABLE region (r_regionkey INT, r_name STRING, r_comment STRING)",
    "CREATE TABLE nation (n_nationkey INT, n_name STRING, n_regionkey INT, n_comment STRING)",
    "CREATE TABLE supplier (s_suppkey INT, s_name STRING, s_address STRING, s_nationkey INT, s_phone STRING, "
    "s_acctbal DECIMAL(12,2), s_comment STRING)",
    "CREATE TABLE part (p_partkey INT, p_name STRING, p_mfgr STRING, p_brand STRING, p_type STRING, p_size INT, "
    "p_container STRING, p_retailprice DECIMAL(12,2), p_comment STRING)",
    "CREATE TABLE partsupp (ps_partkey INT, ps_suppkey INT, ps_availqty INT, ps_supplycost DECIMAL(12,2), "
    "ps_comment STRING)",
    "CREATE TABLE customer (c_custkey INT, c_name STRING, c_address STRING, c_nationkey INT, c_phone STRING, "
    f"c_acctbal DECIMAL(12,2), c_mktsegment STRING, c_comment STRING) {_MERGE_ON_READ}",
    "CREATE TABLE orders (o_orderkey INT, o_custkey INT, o_orderstatus STRING, o_totalprice DECIMAL(12,2), "
    f"o_orderdate DATE, o_orderpriority STRING, o_clerk STRING, o_shippriority INT, o_comment STRING) {_MERGE_ON_READ}",
    "CREATE TABLE lineitem (l_orderkey INT, l_partkey INT, l_suppkey INT, l_linenumber INT, "
    "l_quantity DECIMAL(12,2), l_extendedprice DECIMAL(12,2), l_discount DECIMAL(12,2), l_tax DECIMAL(12,2), "
    "l_returnflag STRING, l_linestatus STRING, l_shipdate DATE, l_commitdate DATE, l_receiptdate DATE, "
    f"l_shipinstruct STRING, l_shipmode STRING, l_comment STRING) {_MERGE_ON_READ}",
    "INSERT INTO region VALUES " + ", ".join(f"({key}, '{name}', '')" for key, name in enumerate(_REGIONS)),
    "INSERT INTO nation VALUES "
    + ", ".join(
        f"({key}, '{name}', {_REGIONS.index(region)}, '')"
        for key, (name, region) in enumerate(_NATIONS.items())
    ),
    # Nations that the queries name: BRAZIL, CANADA, FRANCE, GERMANY, INDIA, SAUDI ARABIA.
    f"""
        INSERT INTO supplier
        SELECT 1 + id, concat('Supplier#', id), concat('street ', id), nation, concat(10 + nation, '-100-', id),
            CAST({_random(10_000, "id", "1")} - 999 AS DECIMAL(12,2)),
            if(id % 9 = 0, 'slow Customer with Complaints', 'bold accounts')
        FROM (SELECT id, array(2, 3, 6, 7, 8, 20)[id % 6] AS nation FROM range(20))""",
    f"""
        INSERT INTO part
        SELECT 1 + id, {_one_of("forest green linen|green plum|blue peru|forest rose", "id", "1")},
            concat('Manufacturer#', 1 + id % 5), array('Brand#12', 'Brand#23', 'Brand#34', 'Brand#45')[id % 4],
            {_one_of(_TYPES, "id", "2")},
            array(1, 3, 4, 9, 14, 15)[{_random(6, "id", "3")}],
            array('SM CASE', 'MED BOX', 'LG PKG', 'JUMBO JAR')[id % 4], CAST(900 + id AS DECIMAL(12,2)),
            'final deposits'
        FROM range(60)""",
    f"""
        INSERT INTO partsupp
        SELECT p_partkey, 1 + (p_partkey + 5 * i) % 20, 1 + {_random(200, "p_partkey", "i", "1")},
            CAST(1 + {_random(100_000, "p_partkey", "i", "2")} / 100 AS DECIMAL(12,2)), 'pending packages'
        FROM part LATERAL VIEW explode(array(0, 1, 2, 3)) AS i""",
    f"""
        INSERT INTO customer
        SELECT 1 + id, concat('Customer#', id), concat('road ', id), nation, concat(10 + nation, '-200-', id),
            CAST({_random(10_000, "id", "1")} - 999 AS DECIMAL(12,2)), {_one_of("BUILDING|MACHINERY", "id", "2")},
            'regular requests'
        FROM (SELECT id, array(2, 3, 6, 7, 8, 20, 21, 24)[{_random(8, "id", "3")}] AS nation FROM range(60))""",
    *_insert_orders(1, 221),
)
"""Statements that create the tables and their rows. Customers with keys above 40 have no orders."""

CHANGES = (
    *_insert_orders(221, 241),
    "UPDATE lineitem SET l_quantity = l_quantity + 1, l_discount = 0.06, l_receiptdate = date_add(l_commitdate, 5) "
    "WHERE l_orderkey % 17 = 3",
    "DELETE FROM lineitem WHERE l_orderkey % 19 = 4",
    "DELETE FROM orders WHERE o_orderkey % 19 = 4",
    "UPDATE orders SET o_comment = 'special requests', o_orderpriority = '1-URGENT' WHERE o_orderkey % 23 = 7",
    "INSERT INTO customer SELECT c_custkey + 60, concat(c_name, ' II'), c_address, c_nationkey, c_phone, "
    "c_acctbal + 500, c_mktsegment, c_comment FROM customer WHERE c_custkey BETWEEN 35 AND 45",
    "UPDATE customer SET c_mktsegment = 'BUILDING', c_acctbal = c_acctbal - 100 WHERE c_custkey % 11 = 2",
    "DELETE FROM customer WHERE c_custkey IN (8, 27, 50)",
    "INSERT INTO part SELECT p_partkey + 60, p_name, p_mfgr, p_brand, p_type, 15, p_container, p_retailprice, "
    "p_comment FROM part WHERE p_partkey < 5",
    "UPDATE part SET p_type = 'PROMO PLATED BRASS', p_size = 15, p_name = 'green forest' WHERE p_partkey % 12 = 5",
    "DELETE FROM part WHERE p_partkey IN (9, 33)",
    "INSERT INTO supplier VALUES (21, 'Supplier#20', 'street 20', 6, '16-100-20', 9000, 'bold accounts')",
    "UPDATE supplier SET s_comment = 'Customer asks, Complaints follow', s_nationkey = 6 WHERE s_suppkey % 7 = 3",
    "DELETE FROM supplier WHERE s_suppkey = 12",
)
"""Statements that change rows of five tables."""

QUERIES = {
    "Q1": """
        SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price,
            sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price,
            sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge, avg(l_quantity) AS avg_qty,
            avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc, count(*) AS count_order
        FROM lineitem WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL '90' DAY
        GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus""",
    "Q2": """
        SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
        FROM part, supplier, partsupp, nation, region
        WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND p_size = 15 AND p_type LIKE '%BRASS'
            AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE'
            AND ps_supplycost = (
                SELECT min(ps_supplycost) FROM partsupp, supplier, nation, region
                WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND s_nationkey = n_nationkey
                    AND n_regionkey = r_regionkey AND r_name = 'EUROPE'
            )
        ORDER BY s_acctbal DESC, n_name, s_name, p_partkey LIMIT 100""",
    "Q3": """
        SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
        FROM customer, orders, lineitem
        WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
            AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
        GROUP BY l_orderkey, o_orderdate, o_shippriority
        ORDER BY revenue DESC, o_orderdate, l_orderkey LIMIT 10""",
    "Q4": """
        SELECT o_orderpriority, count(*) AS order_count FROM orders
        WHERE o_orderdate >= DATE '1993-07-01' AND o_orderdate < DATE '1993-07-01' + INTERVAL '3' MONTH
            AND EXISTS (SELECT * FROM lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate)
        GROUP BY o_orderpriority ORDER BY o_orderpriority""",
    "Q5": """
        SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
        FROM customer, orders, lineitem, supplier, nation, region
        WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey
            AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey
            AND r_name = 'ASIA' AND o_orderdate >= DATE '1994-01-01'
            AND o_orderdate < DATE '1994-01-01' + INTERVAL '1' YEAR
        GROUP BY n_name ORDER BY revenue DESC""",
    "Q6": """
        SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem
        WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1994-01-01' + INTERVAL '1' YEAR
            AND l_discount BETWEEN 0.06 - 0.01 AND 0.06 + 0.01 AND l_quantity < 24""",
    "Q7": """
        SELECT supp_nation, cust_nation, l_year, sum(volume) AS revenue
        FROM (
            SELECT n1.n_name AS supp_nation, n2.n_name AS cust_nation, extract(YEAR FROM l_shipdate) AS l_year,
                l_extendedprice * (1 - l_discount) AS volume
            FROM supplier, lineitem, orders, customer, nation n1, nation n2
            WHERE s_suppkey = l_suppkey AND o_orderkey = l_orderkey AND c_custkey = o_custkey
                AND s_nationkey = n1.n_nationkey AND c_nationkey = n2.n_nationkey
                AND ((n1.n_name = 'FRANCE' AND n2.n_name = 'GERMANY')
                    OR (n1.n_name = 'GERMANY' AND n2.n_name = 'FRANCE'))
                AND l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
        ) AS shipping
        GROUP BY supp_nation, cust_nation, l_year ORDER BY supp_nation, cust_nation, l_year""",
    "Q8": """
        SELECT o_year, sum(CASE WHEN nation = 'BRAZIL' THEN volume ELSE 0 END) / sum(volume) AS mkt_share
        FROM (
            SELECT extract(YEAR FROM o_orderdate) AS o_year, l_extendedprice * (1 - l_discount) AS volume,
                n2.n_name AS nation
            FROM part, supplier, lineitem, orders, customer, nation n1, nation n2, region
            WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey AND l_orderkey = o_orderkey
                AND o_custkey = c_custkey AND c_nationkey = n1.n_nationkey AND n1.n_regionkey = r_regionkey
                AND r_name = 'AMERICA' AND s_nationkey = n2.n_nationkey
                AND o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
                AND p_type = 'ECONOMY ANODIZED STEEL'
        ) AS all_nations
        GROUP BY o_year ORDER BY o_year""",
    "Q9": """
        SELECT nation, o_year, sum(amount) AS sum_profit
        FROM (
            SELECT n_name AS nation, extract(YEAR FROM o_orderdate) AS o_year,
                l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity AS amount
            FROM part, supplier, lineitem, partsupp, orders, nation
            WHERE s_suppkey = l_suppkey AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey
                AND p_partkey = l_partkey AND o_orderkey = l_orderkey AND s_nationkey = n_nationkey
                AND p_name LIKE '%green%'
        ) AS profit
        GROUP BY nation, o_year ORDER BY nation, o_year DESC""",
    "Q10": """
        SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, c_acctbal, n_name, c_address,
            c_phone, c_comment
        FROM customer, orders, lineitem, nation
        WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND o_orderdate >= DATE '1993-10-01'
            AND o_orderdate < DATE '1993-10-01' + INTERVAL '3' MONTH AND l_returnflag = 'R'
            AND c_nationkey = n_nationkey
        GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
        ORDER BY revenue DESC, c_custkey LIMIT 20""",
    "Q11": """
        SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value
        FROM partsupp, supplier, nation
        WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY'
        GROUP BY ps_partkey
        HAVING sum(ps_supplycost * ps_availqty) > (
            SELECT sum(ps_supplycost * ps_availqty) * 0.02 FROM partsupp, supplier, nation
            WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY'
        )
        ORDER BY value DESC""",
    "Q12": """
        SELECT l_shipmode,
            sum(CASE WHEN o_orderpriority = '1-URGENT' OR o_orderpriority = '2-HIGH' THEN 1 ELSE 0 END)
                AS high_line_count,
            sum(CASE WHEN o_orderpriority <> '1-URGENT' AND o_orderpriority <> '2-HIGH' THEN 1 ELSE 0 END)
                AS low_line_count
        FROM orders, lineitem
        WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate
            AND l_shipdate < l_commitdate AND l_receiptdate >= DATE '1994-01-01'
            AND l_receiptdate < DATE '1994-01-01' + INTERVAL '1' YEAR
        GROUP BY l_shipmode ORDER BY l_shipmode""",
    "Q13": """
        SELECT c_count, count(*) AS custdist
        FROM (
            SELECT c_custkey, count(o_orderkey) AS c_count
            FROM customer LEFT OUTER JOIN orders
                ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%'
            GROUP BY c_custkey
        ) AS c_orders
        GROUP BY c_count ORDER BY custdist DESC, c_count DESC""",
    "Q14": """
        SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount) ELSE 0 END)
            / sum(l_extendedprice * (1 - l_discount)) AS promo_revenue
        FROM lineitem, part
        WHERE l_partkey = p_partkey AND l_shipdate >= DATE '1995-09-01'
            AND l_shipdate < DATE '1995-09-01' + INTERVAL '1' MONTH""",
    "Q15": """
        WITH revenue AS (
            SELECT l_suppkey AS supplier_no, sum(l_extendedprice * (1 - l_discount)) AS total_revenue
            FROM lineitem
            WHERE l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-01-01' + INTERVAL '3' MONTH
            GROUP BY l_suppkey
        )
        SELECT s_suppkey, s_name, s_address, s_phone, total_revenue
        FROM supplier, revenue
        WHERE s_suppkey = supplier_no AND total_revenue = (SELECT max(total_revenue) FROM revenue)
        ORDER BY s_suppkey""",
    "Q16": """
        SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS supplier_cnt
        FROM partsupp, part
        WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%'
            AND p_size IN (49, 14, 23, 45, 19, 3, 36, 9)
            AND ps_suppkey NOT IN (SELECT s_suppkey FROM supplier WHERE s_comment LIKE '%Customer%Complaints%')
        GROUP BY p_brand, p_type, p_size ORDER BY supplier_cnt DESC, p_brand, p_type, p_size""",
    "Q17": """
        SELECT sum(l_extendedprice) / 7.0 AS avg_yearly
        FROM lineitem, part
        WHERE p_partkey = l_partkey AND p_brand = 'Brand#23' AND p_container = 'MED BOX'
            AND l_quantity < (SELECT 0.2 * avg(l_quantity) FROM lineitem WHERE l_partkey = p_partkey)""",
    "Q18": """
        SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS quantity
        FROM customer, orders, lineitem
        WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 300)
            AND c_custkey = o_custkey AND o_orderkey = l_orderkey
        GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
        ORDER BY o_totalprice DESC, o_orderdate, o_orderkey LIMIT 100""",
    "Q19": """
        SELECT sum(l_extendedprice * (1 - l_discount)) AS revenue
        FROM lineitem, part
        WHERE (p_partkey = l_partkey AND p_brand = 'Brand#12'
                AND p_container IN ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
                AND l_quantity >= 1 AND l_quantity <= 1 + 10 AND p_size BETWEEN 1 AND 5
                AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON')
            OR (p_partkey = l_partkey AND p_brand = 'Brand#23'
                AND p_container IN ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
                AND l_quantity >= 10 AND l_quantity <= 10 + 10 AND p_size BETWEEN 1 AND 10
                AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON')
            OR (p_partkey = l_partkey AND p_brand = 'Brand#34'
                AND p_container IN ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
                AND l_quantity >= 20 AND l_quantity <= 20 + 10 AND p_size BETWEEN 1 AND 15
                AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON')""",
    "Q20": """
        SELECT s_name, s_address FROM supplier, nation
        WHERE s_suppkey IN (
                SELECT ps_suppkey FROM partsupp
                WHERE ps_partkey IN (SELECT p_partkey FROM part WHERE p_name LIKE 'forest%')
                    AND ps_availqty > (
                        SELECT 0.5 * sum(l_quantity) FROM lineitem
                        WHERE l_partkey = ps_partkey AND l_suppkey = ps_suppkey AND l_shipdate >= DATE '1994-01-01'
                            AND l_shipdate < DATE '1994-01-01' + INTERVAL '1' YEAR
                    )
            )
            AND s_nationkey = n_nationkey AND n_name = 'CANADA'
        ORDER BY s_name""",
    "Q21": """
        SELECT s_name, count(*) AS numwait
        FROM supplier, lineitem l1, orders, nation
        WHERE s_suppkey = l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F'
            AND l1.l_receiptdate > l1.l_commitdate
            AND EXISTS (
                SELECT * FROM lineitem l2 WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey
            )
            AND NOT EXISTS (
                SELECT * FROM lineitem l3
                WHERE l3.l_orderkey = l1.l_orderkey AND l3.l_suppkey <> l1.l_suppkey
                    AND l3.l_receiptdate > l3.l_commitdate
            )
            AND s_nationkey = n_nationkey AND n_name = 'SAUDI ARABIA'
        GROUP BY s_name ORDER BY numwait DESC, s_name LIMIT 100""",
    "Q22": """
        SELECT cntrycode, count(*) AS numcust, sum(c_acctbal) AS totacctbal
        FROM (
            SELECT substring(c_phone, 1, 2) AS cntrycode, c_acctbal FROM customer
            WHERE substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '30', '18', '17')
                AND c_acctbal > (
                    SELECT avg(c_acctbal) FROM customer
                    WHERE c_acctbal > 0.00
                        AND substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '30', '18', '17')
                )
                AND NOT EXISTS (SELECT * FROM orders WHERE o_custkey = c_custkey)
        ) AS custsale
        GROUP BY cntrycode ORDER BY cntrycode""",
}
"""The queries of TPC-H by name."""

WITHOUT_LIMIT = {
    f"{name} without LIMIT": re.sub(r" LIMIT \d+$", "", query)
    for name, query in QUERIES.items()
    if " LIMIT " in query
}
"""The queries with `LIMIT`, without it."""
