"""The procedures of a catalog's queue and history of runs, and the worker that runs what is due."""
