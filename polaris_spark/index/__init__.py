"""A sorted map from keys (bytes) to a pointer and a small value, stored as a tree of immutable shards (tree nodes).
Catalog state is stored in such maps."""

from polaris_spark.index.check import ExpectedShard, Fault, check
from polaris_spark.index.diff import diff
from polaris_spark.index.entries import Entry
from polaris_spark.index.root import IndexRoot, IndexSettings, ShardReader
from polaris_spark.index.shards import Branch, Leaf, Shard
from polaris_spark.index.tree import Index

__all__ = [
    "Branch",
    "Entry",
    "ExpectedShard",
    "Fault",
    "Index",
    "IndexRoot",
    "IndexSettings",
    "Leaf",
    "Shard",
    "ShardReader",
    "check",
    "diff",
]
