"""Jobs that read all rows of a realm. With Spark, executors read the rows from the database in parallel."""
