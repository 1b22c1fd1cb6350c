"""Jobs over a whole store, as PySpark programs. Executors read the rows from the database in parallel."""
