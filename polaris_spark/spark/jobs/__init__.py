"""Jobs over a whole store, as PySpark programs that executors run next to the rows."""
