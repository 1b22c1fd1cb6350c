# ruff: noqa: E501
"""Queries of all shapes that can be refreshed incrementally, and the tables that they read."""

from __future__ import annotations

TABLES = (
    "CREATE TABLE sale (id INT, k INT, region STRING, n BIGINT, price DECIMAL(12,2), day DATE) "
    "TBLPROPERTIES ('format-version' = '2', 'write.delete.mode' = 'merge-on-read', "
    "'write.update.mode' = 'merge-on-read', 'write.merge.mode' = 'merge-on-read')",
    "CREATE TABLE item (k INT, name STRING, size DOUBLE) TBLPROPERTIES ('format-version' = '2')",
    "CREATE TABLE shop (region STRING, k INT, city STRING) "
    "TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read', "
    "'write.update.mode' = 'merge-on-read')",
    "INSERT INTO sale SELECT CAST(id AS INT), CAST(id % 7 AS INT), concat('r', id % 4), id, "
    "CAST(id * 1.25 AS DECIMAL(12,2)), date_add(DATE '2024-01-01', CAST(id % 5 AS INT)) FROM range(60)",
    "INSERT INTO sale VALUES (NULL, NULL, NULL, NULL, NULL, NULL), (7, 7, 'r1', 7, 1.5, NULL), (7, 7, 'r1', 7, 1.5, NULL), "
    "(80, 3, 'rx', 5, 2.5, DATE '2024-02-01'), (81, 3, 'rx', 6, 2.5, DATE '2024-02-01')",
    "INSERT INTO item SELECT CAST(id AS INT), concat('i', id % 3), id * 0.25D FROM range(6)",
    "INSERT INTO item VALUES (11, 'zero', -0.0D)",
    "INSERT INTO shop VALUES ('r0', 1, 'Rome'), ('r1', 2, 'Oslo'), ('r1', 3, 'Bern'), (NULL, 4, 'Lima'), ('r9', 9, 'Kiev')",
)

SHAPES = {
    # Linear queries
    "projection": "SELECT id, n * 2 AS n FROM sale",
    "filter": "SELECT * FROM sale WHERE region <> 'r1' AND n > 3",
    "generator": "SELECT id, x FROM sale LATERAL VIEW explode(array(id, n)) AS x",
    "outer generator": "SELECT id, x FROM sale LATERAL VIEW OUTER explode(filter(array(id, k), v -> v > 5)) AS x",
    "union all": "SELECT k, region FROM sale UNION ALL SELECT k, name FROM item UNION ALL SELECT 1, 'one'",
    "common table expression": "WITH some AS (SELECT * FROM sale WHERE n > 20) SELECT s.n, upper(region) AS r FROM some s",
    "arrays and maps": "SELECT id, array(n, id) AS both, map('n', n) AS m, named_struct('d', price) AS s FROM sale",
    # Joins
    "inner join": "SELECT s.id, i.name, s.n FROM sale s JOIN item i ON s.k = i.k",
    "join of three": "SELECT s.id, i.name, h.city FROM sale s JOIN item i ON s.k = i.k JOIN shop h ON s.region = h.region",
    "self join": "SELECT a.id AS one, b.id AS other FROM sale a JOIN sale b ON a.k = b.k AND a.id < b.id",
    "cross join": "SELECT s.id, i.k FROM (SELECT * FROM sale WHERE id < 9) s CROSS JOIN item i",
    "inequality join": "SELECT s.id, i.name FROM sale s JOIN item i ON s.k < i.k WHERE s.id < 20",
    "null-safe join": "SELECT s.id, h.city FROM sale s JOIN shop h ON s.region <=> h.region",
    "left join": "SELECT s.id, i.name, s.n FROM sale s LEFT JOIN item i ON s.k = i.k",
    "left join with a condition": "SELECT s.id, i.name FROM sale s LEFT JOIN item i ON s.k = i.k AND i.size > 0.5",
    "right join": "SELECT s.id, i.k AS item FROM sale s RIGHT JOIN item i ON s.k = i.k",
    "full join": "SELECT s.id, h.city FROM sale s FULL JOIN shop h ON s.region = h.region",
    "left join by inequality": "SELECT i.name, h.city FROM item i LEFT JOIN shop h ON i.k > h.k",
    "semi join": "SELECT * FROM sale s LEFT SEMI JOIN item i ON s.k = i.k",
    "anti join": "SELECT * FROM sale s LEFT ANTI JOIN item i ON s.k = i.k",
    # Subqueries
    "exists": "SELECT id, region FROM sale s WHERE EXISTS (SELECT 1 FROM shop h WHERE h.region = s.region AND h.k < 3)",
    "not exists": "SELECT id, region FROM sale s WHERE NOT EXISTS (SELECT 1 FROM shop h WHERE h.region = s.region)",
    "in": "SELECT id FROM sale WHERE k IN (SELECT k FROM item WHERE size > 0)",
    "not in": "SELECT id FROM sale WHERE k NOT IN (SELECT k FROM item)",
    "nested subqueries": "SELECT id FROM sale s WHERE EXISTS (SELECT 1 FROM item i WHERE i.k = s.k AND i.k IN "
    "(SELECT k FROM shop h WHERE h.k = i.k))",
    "exists or": "SELECT id FROM sale s WHERE n > 50 OR EXISTS (SELECT 1 FROM item i WHERE i.k = s.k)",
    "scalar subquery": "SELECT id, (SELECT max(name) FROM item i WHERE i.k = s.k) AS name FROM sale s",
    # Aggregates
    "sums and counts": "SELECT region, sum(n) AS s, count(*) AS c, count(n) AS cn, sum(price) AS p FROM sale GROUP BY region",
    "decimals": "SELECT k, sum(w) AS s, avg(w) AS a FROM (SELECT k, CAST(price / 3 AS DECIMAL(20,8)) AS w FROM sale) GROUP BY k",
    "repeated keys": "SELECT k, sum(n) AS s FROM sale GROUP BY k, k, K",
    "intervals": "SELECT count(*) AS c FROM sale GROUP BY CAST(day AS TIMESTAMP) - TIMESTAMP '2024-01-01 00:00:00'",
    "guarded errors": "SELECT region, sum(100 DIV k) FILTER (WHERE k <> 0) AS s FROM sale GROUP BY region",
    "averages": "SELECT region, avg(n) AS a, avg(k) AS ak, avg(price) AS ap FROM sale GROUP BY region",
    "minimum and maximum": "SELECT k, min(n) AS lo, max(day) AS hi, max(region) AS r FROM sale GROUP BY k",
    "aggregates with filters": "SELECT day, sum(n) FILTER (WHERE k > 2) AS s, count(*) FILTER (WHERE n > 9) AS c FROM sale GROUP BY day",
    "aggregate of all rows": "SELECT sum(n) AS s, count(*) AS c, max(day) AS d, avg(price) AS p FROM sale",
    "hidden keys": "SELECT sum(n) / count(*) AS ratio, upper(max(region)) AS r FROM sale GROUP BY k, n % 2",
    "aggregate of expressions": "SELECT year(day) + k AS y, sum(n * k) AS s FROM sale GROUP BY year(day) + k",
    "keys of floating point": "SELECT size, count(DISTINCT name) AS d, max(k) AS m FROM item GROUP BY size",
    "distinct aggregate": "SELECT region, count(DISTINCT k) AS d, sum(DISTINCT n) AS s FROM sale GROUP BY region",
    "having": "SELECT region, sum(n) AS s FROM sale GROUP BY region HAVING count(*) > 14",
    "sums of doubles": "SELECT name, sum(size) AS s, stddev(size) AS d FROM item GROUP BY name",
    "cube": "SELECT region, k, sum(n) AS s, count(*) AS c FROM sale GROUP BY CUBE(region, k)",
    "grouping sets": "SELECT region, day, max(n) AS m FROM sale GROUP BY GROUPING SETS ((region), (day), ())",
    "aggregate of a join": "SELECT i.name, sum(s.n) AS s, count(*) AS c FROM sale s JOIN item i ON s.k = i.k GROUP BY i.name",
    "aggregate of a left join": "SELECT i.name, sum(s.n) AS s FROM item i LEFT JOIN sale s ON s.k = i.k GROUP BY i.name",
    "aggregate of an aggregate": "SELECT c, count(*) AS f FROM (SELECT k, count(*) AS c FROM sale GROUP BY k) GROUP BY c",
    "join of an aggregate": "SELECT h.city, x.s FROM shop h LEFT JOIN (SELECT region, sum(n) AS s FROM sale GROUP BY region) x "
    "ON h.region = x.region",
    # Distinct rows and sets
    "distinct": "SELECT DISTINCT region, n % 5 AS m FROM sale",
    "union": "SELECT k FROM sale UNION SELECT k FROM item",
    "except": "SELECT k FROM sale EXCEPT SELECT k FROM item",
    "except all": "SELECT k FROM sale EXCEPT ALL SELECT k FROM item",
    "intersect": "SELECT region FROM sale INTERSECT SELECT region FROM shop",
    "intersect all": "SELECT k FROM sale INTERSECT ALL SELECT k FROM shop",
    # Windows
    "ranks": "SELECT id, k, rank() OVER (PARTITION BY region ORDER BY n DESC) AS r FROM sale",
    "last row of each": "SELECT region, id, n FROM (SELECT *, row_number() OVER (PARTITION BY region ORDER BY n DESC, id) AS r "
    "FROM sale) WHERE r = 1",
    "running sum": "SELECT id, sum(n) OVER (PARTITION BY k ORDER BY id, n ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS s FROM sale",
    "two windows": "SELECT id, lag(n) OVER (PARTITION BY k ORDER BY id, n) AS l, count(*) OVER (PARTITION BY region) AS c FROM sale",
    "join of a window": "SELECT x.id, i.name FROM (SELECT id, k, rank() OVER (PARTITION BY region ORDER BY n) AS r FROM sale) x "
    "JOIN item i ON x.r = i.k",
}

ROUNDS = (
    (
        "INSERT INTO sale SELECT CAST(id AS INT), CAST(id % 9 AS INT), concat('r', id % 5), id, "
        "CAST(id * 0.75 AS DECIMAL(12,2)), date_add(DATE '2024-01-03', CAST(id % 4 AS INT)) FROM range(55, 70)",
    ),
    (
        "DELETE FROM sale WHERE id % 10 = 3",
        "UPDATE sale SET n = NULL WHERE region = 'rx'",
        "UPDATE item SET size = size * 2, name = 'i9' WHERE k = 2",
        "MERGE INTO sale t USING (SELECT DISTINCT k AS id FROM item) s ON t.id = s.id WHEN MATCHED AND t.id < 2 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET n = n * 2 WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, 5)",
        "INSERT INTO item VALUES (12, 'nought', 0.0D)",
        "INSERT INTO shop VALUES ('r2', 5, 'Rome'), (NULL, 6, NULL)",
    ),
    (
        "DELETE FROM shop WHERE region = 'r1' AND k = 2",
        "UPDATE sale SET region = 'r1' WHERE id IS NULL OR n > 60",
        "INSERT OVERWRITE item SELECT k + 1, name, size FROM item WHERE k <> 0",
        "INSERT INTO sale VALUES (7, 7, 'r1', 7, 1.5, NULL)",
        "DELETE FROM sale WHERE region = 'r3'",
    ),
)
