"""Maintenance jobs for realms (the tenants of a store). They find and delete rows and files that are no longer needed.

Large jobs run on Spark executors.
"""
