"""Export of a realm to one file, and import of such a file into any database."""
