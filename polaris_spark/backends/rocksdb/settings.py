"""Options of a `rocksdb:` store, and the options that RocksDB receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode
from rocksdict import Options as DatabaseOptions

from polaris_spark.backends import Options
from polaris_spark.backends.store_options import Given

_MIB: Final = 2**20
_MEMTABLE_BYTES: Final = 16 * _MIB
_CACHE_BYTES: Final = 32 * _MIB
_LOG_BYTES: Final = _MIB


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of a RocksDB store."""

    synchronous: bool = True
    """Whether a write is acknowledged only after its log is on disk. If false, it is acknowledged when the operating
    system has received the log, which may not be on disk yet."""

    @classmethod
    def parse(cls, options: Options) -> Settings:
        """Return the settings from the options of a store URI.

        Raises:
            StoreURIError: an option or its value is unknown.
        """
        given = Given("rocksdb", options, ("synchronous",))
        return cls(given.one_of("synchronous", ("full", "normal")) != "normal")


def primary_options() -> DatabaseOptions:
    """Return RocksDB's options for the process that writes. They limit memory to two memtables and the block cache."""
    options = _common()
    options.create_if_missing(create_if_missing=True)
    options.set_write_buffer_size(_MEMTABLE_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_max_total_wal_size(2 * _MEMTABLE_BYTES)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_bottommost_compression_type(DBCompressionType.zstd())
    options.set_max_log_file_size(_LOG_BYTES)
    return options


def secondary_options() -> DatabaseOptions:
    """Return RocksDB's options for a process that only reads a store.

    One thread opens the files; otherwise RocksDB would start sixteen threads at each catch-up.
    """
    options = _common()
    options.set_max_open_files(-1)
    options.set_max_file_opening_threads(1)
    options.set_skip_stats_update_on_db_open(True)
    return options


def _common() -> DatabaseOptions:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(_CACHE_BYTES))
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_bloom_filter(10, False)  # noqa: FBT003  # positional in the driver; False: filters of whole files
    options = DatabaseOptions(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_keep_log_file_num(2)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    # Acknowledged writes are before the first damaged record. Records after it may depend on lost records.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    return options
