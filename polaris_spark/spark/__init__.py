"""Code that runs in Spark or next to it: the process behind the JVM shim, the data source, sessions and jobs."""
