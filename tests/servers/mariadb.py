"""A MariaDB server from Debian's packages, unpacked into the cache: neither root nor an installation is needed."""

from __future__ import annotations

import getpass
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from polaris_spark.errors import StateError
from polaris_spark.testing.server import ProcessServer
from tests.servers.installing import installed, run

_PACKAGE: Final = "mariadb-server-core"
_SCRIPTS: Final = ("mysql_system_tables", "mysql_performance_tables", "mysql_system_tables_data")
ADMIN: Final = "polaris"
"""A user with all privileges."""
GUEST: Final = "guest"
"""A user who may log in, and no more."""


class MariaDB(ProcessServer):
    """A server with MariaDB's default durability: it flushes its log before it acknowledges."""

    name = "MariaDB"
    durability = "innodb_flush_log_at_trx_commit=1, doublewrite on"
    hasty = "timeout=2s&connect_timeout=2s"

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        """
        Args:
            settings: options of `mariadbd`, over the server's defaults.
        Raises:
            StateError: the server cannot be had here, or does not start; the message says why.
        """
        self._settings = dict(settings or {})
        self.password, self.guests_password = secrets.token_hex(16), secrets.token_hex(16)
        super().__init__()

    def prepare(self) -> None:
        self._root = _packages()
        for name in ("data", "tmp"):
            (self.directory / name).mkdir()
        (self.directory / "users.sql").write_text(
            f"CREATE USER IF NOT EXISTS {ADMIN}@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO {ADMIN}@'%' WITH GRANT OPTION;\n"
            f"CREATE USER IF NOT EXISTS {GUEST}@'%' IDENTIFIED BY '{self.guests_password}';\n"
        )
        scripts = [self._share / f"{name}.sql" for name in _SCRIPTS]
        bootstrap = [
            "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL, @current_hostname = 'localhost';\n",
            *(script.read_text() for script in scripts),
        ]
        with open(self._log, "ab") as log:
            done = subprocess.run(
                [*self._program(), "--bootstrap", "--skip-log-bin"],
                input="".join(bootstrap).encode(),
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=dict(self.environment()),
                timeout=2 * self.ready_s,
                check=False,
            )
        if done.returncode:
            raise StateError(f"MariaDB cannot make its system tables: {self.log()}")

    def command(self) -> Sequence[str]:
        return [
            *self._program(),
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            f"--socket={self.directory}/socket",
            f"--pid-file={self.directory}/pid",
            f"--init-file={self.directory}/users.sql",
            f"--plugin-dir={self._root}/usr/lib/mysql/plugin",
            "--skip-name-resolve",
            *(f"--{name}={value}" for name, value in self._settings.items()),
        ]

    def environment(self) -> Mapping[str, str]:
        libraries = [
            str(path) for kind in ("usr/lib", "lib") for path in (self._root / kind).glob("*-linux-*")
        ]
        return {"LD_LIBRARY_PATH": ":".join(libraries), "LC_ALL": "C"}

    def ready(self) -> bool:
        import pymysql

        try:
            pymysql.connect(**self.login, connect_timeout=1).close()
        except pymysql.err.OperationalError:
            return False
        return True

    @property
    def login(self) -> dict[str, str | int]:
        """Arguments of `pymysql.connect` for the user with all privileges."""
        return {"host": "127.0.0.1", "port": self.port, "user": ADMIN, "password": self.password}

    def uri(self, store: str, *, port: int | None = None) -> str:
        """URI of a database of that name, for the user with all privileges."""
        return f"mariadb://{ADMIN}:{self.password}@127.0.0.1:{port or self.port}/{store}"

    def wrong_credentials(self, store: str) -> str:
        return self.uri(store).replace(self.password, "wrong")

    def unprivileged(self, store: str) -> str:
        return self.uri(store).replace(f"{ADMIN}:{self.password}", f"{GUEST}:{self.guests_password}")

    @property
    def _share(self) -> Path:
        return self._root / "usr/share/mysql"

    def _program(self) -> list[str]:
        return [
            str(self._root / "usr/sbin/mariadbd"),
            "--no-defaults",  # must be the first
            f"--user={getpass.getuser()}",
            f"--basedir={self._root}/usr",
            f"--datadir={self.directory}/data",
            f"--tmpdir={self.directory}/tmp",
            f"--lc-messages-dir={self._share}",
            "--innodb-buffer-pool-size=64M",
        ]


def _packages() -> Path:
    """The server's package, and those it needs that this machine lacks, unpacked.

    Raises:
        StateError: this machine has no apt or no lists of packages, or the download fails.
    """
    for tool in ("apt-get", "apt-cache", "dpkg"):
        if shutil.which(tool) is None:
            raise StateError(f"a MariaDB server is made of Debian packages, and there is no {tool!r} here")
    return installed(f"mariadb-{_version()}", _unpack)


def _version() -> str:
    shown = _output("apt-cache", "show", "--no-all-versions", _PACKAGE)
    found = [line.partition(": ")[2] for line in shown.splitlines() if line.startswith("Version: ")]
    if not found:
        raise StateError(f"apt has no package {_PACKAGE!r}: run 'apt-get update' as root")
    return found[0].replace(":", "-")


def _unpack(directory: Path) -> None:
    depends = _output("apt-cache", "depends", "--important", _PACKAGE).splitlines()
    libraries = [line.partition("Depends: ")[2] for line in depends if "Depends: lib" in line]
    missing = [
        name
        for name in libraries
        if "ii " not in _output("dpkg-query", "-W", "-f=${db:Status-Abbrev} ", name)
    ]
    run(["apt-get", "-q", "download", _PACKAGE, *missing], directory)
    for archive in directory.glob("*.deb"):
        run(["dpkg", "-x", archive.name, "."], directory)
        archive.unlink()


def _output(*command: str) -> str:
    """Return the output of a program; empty if it fails."""
    return subprocess.run(list(command), capture_output=True, text=True, check=False).stdout
