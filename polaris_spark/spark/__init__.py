"""What runs beside or inside Spark: the process behind the JVM shim, the data source, sessions, jobs."""
