"""Search for orphan files by listing folders, and deletion of the files of tables that were dropped with PURGE."""
