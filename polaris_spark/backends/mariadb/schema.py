"""The database and the two tables of a store.

- Names are `VARBINARY`, in UTF-8: with `VARCHAR`, a collation could ignore case, accents and trailing spaces. A key of
  512 + 512 bytes is within InnoDB's limits: 3,072 bytes with pages of 16 KiB, and 1,536 bytes with pages of 8 KiB.
- Values are `MEDIUMBLOB`: a row is at most 350 kB, and `BLOB` is limited to 64 kB.
- InnoDB stores the rows in the order of the primary key `(realm, id, part)`. Ids grow with time, so writes fill pages
  one after the other, and rows that were written together are read together.
- `ROW_FORMAT=DYNAMIC`: a row of up to 8 kB, as nearly all are, is stored whole in its page. A larger value is stored
  whole outside the page, with a pointer of 20 bytes (`COMPACT` would keep 768 bytes of it in the page). `COMPRESSED`
  would hold every page twice in memory, and MySQL is phasing it out.
"""

from __future__ import annotations

from typing import Final

from polaris_spark.backends.limits import refuse_newer_format
from polaris_spark.backends.mariadb.session import MariaDBSession
from polaris_spark.errors import NoStoreError, StoreURIError

FORMAT: Final = 1
"""Version of the format of the two tables. It is stored in the comments of both tables."""

_MARK: Final = "polaris_spark store, format "
_OPTIONS: Final = "ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET binary"
_REFERENCES: Final = (
    "CREATE TABLE IF NOT EXISTS `references` (realm VARBINARY(512) NOT NULL, name VARBINARY(512) NOT NULL,"
    " version VARBINARY(255) NOT NULL, value MEDIUMBLOB NOT NULL, PRIMARY KEY (realm, name))"
    f" {_OPTIONS} COMMENT='{_MARK}{FORMAT}'"
)
_OBJECTS: Final = (
    "CREATE TABLE IF NOT EXISTS objects (realm VARBINARY(512) NOT NULL, id BIGINT NOT NULL, part INT NOT NULL,"
    f" value MEDIUMBLOB NOT NULL, PRIMARY KEY (realm, id, part)) {_OPTIONS} COMMENT='{_MARK}{FORMAT}'"
)


def check(session: MariaDBSession, where: str) -> None:
    """Check that a database holds a store, in a format that this release supports.

    Raises:
        StoreURIError: the database is empty, or holds tables of another program.
        NewerFormatError: a newer release made the store.
    """
    if not _found(session, where):
        raise NoStoreError(where)


def create_database(session: MariaDBSession, name: str) -> None:
    """Create a database if it does not exist.

    Raises:
        RefusedError: the user lacks the permission to create databases.
    """
    session.run(f"CREATE DATABASE IF NOT EXISTS `{name.replace('`', '``')}`")


def create(session: MariaDBSession, where: str) -> None:
    """Create the store's tables that are missing. This is safe if several sessions do it at the same time, because the
    server locks a table's name while it creates the table.

    Raises:
        StoreURIError: the database holds tables of another program.
        NewerFormatError: a newer release made the store.
        RefusedError: the user lacks the permission to create tables.
    """
    if not _found(session, where):
        session.run(_REFERENCES)
        session.run(_OBJECTS)  # created last, so that its existence implies both


def _found(session: MariaDBSession, where: str) -> bool:
    """Return whether both tables of a store exist. Raise an error if an existing table belongs to another program, or
    to a store of an unsupported format."""
    rows = session.run(
        "SELECT table_comment FROM information_schema.tables"
        " WHERE table_schema = DATABASE() AND table_name IN ('objects', 'references')"
    )[0].rows
    for (comment,) in rows:
        mark = comment.decode() if isinstance(comment, bytes) else str(comment)
        number = mark.removeprefix(_MARK)
        if number == mark or not number.isdigit():
            raise StoreURIError(f"{where} holds tables of another program; choose another database")
        refuse_newer_format(where, int(number), FORMAT)
    return len(rows) == 2
