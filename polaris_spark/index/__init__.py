"""A persistent sorted map from bytes to a pointer and a small value, shared by all catalog state."""

from polaris_spark.index.check import Fault, Place, check
from polaris_spark.index.diff import diff
from polaris_spark.index.entries import Entry
from polaris_spark.index.root import IndexRoot, IndexSettings, ShardReader
from polaris_spark.index.shards import Branch, Leaf, Shard
from polaris_spark.index.tree import Index

__all__ = [
    "Branch",
    "Entry",
    "Fault",
    "Index",
    "IndexRoot",
    "IndexSettings",
    "Leaf",
    "Place",
    "Shard",
    "ShardReader",
    "check",
    "diff",
]
