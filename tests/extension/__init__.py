"""Tests of the routes beside the Iceberg routes."""
