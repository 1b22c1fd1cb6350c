"""Tests of the routes of the extension."""
