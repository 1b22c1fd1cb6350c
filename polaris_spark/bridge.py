"""The Python side of the JVM shim: ``python -m polaris_spark.bridge``, supervised by the JVM.

Standard input and output are the control channel. The JVM sends lines of JSON, and Python answers each line with one
line, in this order:

```
JVM     {"token": "...", "protocol": "5"}      Python  {"socket": "/tmp/.../socket"}
JVM     {"connect": {"store": "...", ...}}     Python  {"connection": "1"} or {"error": "..."}
```
Secrets (the token and passwords) are sent over this channel only, and never over a command line or the
environment. If the process cannot work at all, it answers the first line with ``{"fatal": "..."}``, which contains the
reason. The process exits when the channel closes. The channel closes whenever the JVM ends, even by ``kill -9``.

Requests arrive over a Unix domain socket (:mod:`polaris_spark.spark.frames`). The JVM may send requests from several
threads at the same time. :meth:`Bridge.request` describes the format of requests and answers.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
import threading
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from polaris_spark.spark.frames import Server

if TYPE_CHECKING:
    from polaris_spark.rest.session import Session

logger = logging.getLogger(__name__)

PROTOCOL = "5"
CLOSE_SECONDS = 10
REMEMBERED = 1_024
"""Maximum number of parsed request heads (all lines before the body) in the cache."""
SHORT = 1_024
"""Maximum length of a request head (all lines before the body) whose parsed form is cached, in characters."""
_ESCAPE = re.compile(r"\\(.)")


class Bridge:
    """Keeps the open catalogs, and answers the JVM's requests to them. Thread-safe."""

    def __init__(self) -> None:
        self._connections: dict[str, Session] = {}

    def add(self, connection: Session) -> str:
        """Add an open catalog. Return a name for it, which the JVM sends with each request."""
        name = str(len(self._connections) + 1)
        self._connections[name] = connection
        return name

    def request(self, head: str, body: str) -> tuple[str, str]:
        """Answer a request of the JVM. Return the head and the body of the answer.

        Here, a head is all lines before a body. Each line ends with a newline; newlines and backslashes within a line
        are escaped by a backslash. The lines of a request are: the catalog's name (returned by `add`), method, path,
        number of query parameters, then name and value of each query parameter and of each header. The lines of an
        answer are: status, then name and value of each header.

        The catalog answers requests of the Iceberg REST protocol and requests of the extension
        (:mod:`polaris_spark.extension`).
        """
        repeats = not body and len(head) <= SHORT
        connection, method, path, query, headers = (_remembered if repeats else _taken_apart)(head)
        try:
            status, answered, text = self._connections[connection].request(
                method,
                path,
                query=query,
                body=body or None,
                headers=headers,
            )
        except Exception as error:
            # Catch every exception: otherwise the JVM would see a broken connection, and send the request again.
            logger.exception("request %s %s failed", method, path)
            status, answered, text = 500, {}, _error_body(error)
        lines = [f"{status}\n"]
        for name, value in answered.items():
            lines += (_line(name), _line(value))
        return "".join(lines), text

    def close(self) -> None:
        """Close every catalog."""
        for connection in self._connections.values():
            try:
                connection.close()
            except Exception:
                # If one catalog cannot be closed, the other catalogs must still release their leases.
                logger.exception("closing a catalog failed")


class _Head(NamedTuple):
    """The parsed head of a request. Do not change it: the cache returns the same object for several requests."""

    connection: str
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]


def _taken_apart(head: str) -> _Head:
    connection, method, path, parameters, *pairs = _lines(head)
    headers_from = 2 * int(parameters)
    return _Head(connection, method, path, _dict(pairs[:headers_from]), _dict(pairs[headers_from:]))


_remembered = lru_cache(REMEMBERED)(_taken_apart)


def _lines(head: str) -> list[str]:
    lines = head.split("\n")
    lines.pop()
    if "\\" in head:
        return [_ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], line) for line in lines]
    return lines


def _line(text: str) -> str:
    if "\\" in text or "\n" in text:
        text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text + "\n"


def _dict(pairs: list[str]) -> dict[str, str]:
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def _error_body(error: Exception) -> str:
    message = f"{type(error).__name__}: {error}"
    return json.dumps({"error": {"message": message, "type": "InternalServerError", "code": 500}})


def open_catalog(configuration: dict[str, str]) -> Session:
    """Open the catalog that a Spark configuration describes.

    Raises:
        PolarisError: a property or its value is not valid. For example, the store URI must not contain a password,
            because Spark shows its configuration in logs and on its web pages.
    """
    import polaris_spark
    from polaris_spark.config import Properties
    from polaris_spark.store.cache import collect_seldom

    Properties.parse(configuration, refuse_uri_password=True)
    properties: dict[str, Any] = {**configuration}
    session = polaris_spark.connect(**properties)
    collect_seldom()
    return session


class ControlChannel:
    """A channel for lines of JSON to and from the JVM. After `take_over`, other code in this process cannot read
    from the channel or write to it by mistake."""

    def __init__(self, read_from: IO[bytes], write_to: IO[bytes]) -> None:
        self._read_from = read_from
        self._write_to = write_to

    @classmethod
    def take_over(cls) -> ControlChannel:
        """Return a channel that uses this process's standard input and output, and hide both from all other code.

        For other code, standard input is then empty, and standard output goes to standard error.
        """
        channel = cls(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        return channel

    def receive(self) -> dict[str, Any] | None:
        """Wait for the next message and return it, or return None if the JVM has ended."""
        line = self._read_from.readline()
        if not line.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(line)
        return message

    def send(self, **message: str) -> None:
        """Send a message. If the JVM has ended, drop the message; the next `receive` returns None."""
        with contextlib.suppress(BrokenPipeError):
            self._write_to.write(json.dumps(message).encode() + b"\n")
            self._write_to.flush()


def serve(channel: ControlChannel, bridge: Bridge) -> None:
    """Answer messages of the control channel until the channel closes."""
    hello = channel.receive()
    if hello is None:
        return
    if hello.get("protocol") != PROTOCOL:
        channel.send(
            fatal=f"The jar of polaris_spark uses bridge protocol {hello.get('protocol')}, but the Python "
            f"package of {sys.executable} uses bridge protocol {PROTOCOL}: reinstall the package for this "
            "interpreter (in a checkout with 'pip install -e .'), which builds its jar, and use that jar in Spark"
        )
        return
    with contextlib.closing(Server(hello["token"], bridge.request)) as server:
        channel.send(socket=str(server.path))
        while (message := channel.receive()) is not None:
            if "connect" in message:
                channel.send(**_connect(bridge, message["connect"]))
            else:
                channel.send(error=f"unknown message {sorted(message)}")


def _connect(bridge: Bridge, configuration: dict[str, str]) -> dict[str, str]:
    from polaris_spark.errors import PolarisError

    try:
        return {"connection": bridge.add(open_catalog(configuration))}
    except PolarisError as error:
        return {"error": str(error)}
    except Exception as error:
        logger.exception("a catalog could not be opened")
        return {"error": f"The catalog could not be opened: {type(error).__name__}: {error}"}


def _close_in_time(bridge: Bridge) -> None:
    """Close the bridge, but wait for at most `CLOSE_SECONDS`, because the process must exit even if closing hangs."""
    closing = threading.Thread(target=bridge.close, daemon=True)
    closing.start()
    closing.join(CLOSE_SECONDS)


def _in_one_line(record: logging.LogRecord) -> bool:
    """Accept a log record, after replacing the traceback of its error with the error's message. A `logging` filter."""
    if record.exc_info:
        message, error = record.getMessage(), record.exc_info[1]
        record.msg, record.args = message if str(error) in message else f"{message}: {error!r}", ()
        record.exc_info = record.exc_text = None
    return True


def main() -> None:
    """Answer the JVM's requests until the JVM ends, then exit."""
    # Ctrl-C in a terminal interrupts all its processes. The driver handles Ctrl-C, and might still need this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s polaris_spark %(levelname)s %(message)s")
    channel = ControlChannel.take_over()
    bridge = Bridge()
    try:
        serve(channel, bridge)
    finally:
        # The JVM's last requests, for example to store a metrics report, may fail now. No client waits for an answer.
        for handler in logging.getLogger().handlers:
            handler.addFilter(_in_one_line)
        _close_in_time(bridge)
        sys.stderr.flush()
        # A normal exit would wait for threads of libraries, although the JVM has ended.
        os._exit(0)


if __name__ == "__main__":
    main()
