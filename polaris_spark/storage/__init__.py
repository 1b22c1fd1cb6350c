"""Credentials for the storage of tables, which a server hands out to its clients: temporary credentials of S3, and
signatures of single requests to S3."""
