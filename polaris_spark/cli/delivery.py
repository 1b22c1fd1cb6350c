"""Delivery of events to a receiver over HTTP: at least once, in order, with pauses after failures, and dead letters."""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from socket import SHUT_RDWR
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from polaris_spark.cli.cursor import DeadLetters
from polaris_spark.cli.output import plain, tell
from polaris_spark.clock import iso_text
from polaris_spark.errors import InputError
from polaris_spark.rest.access import is_loopback
from polaris_spark.secret_options import REFERENCE

PERMANENT = frozenset({400, 410, 413, 422})
"""Statuses by which a receiver refuses an event permanently. After any other status than 2xx, it may accept the event
later."""

FIRST_PAUSE_SECONDS = 1.0
"""Pause after the first failed attempt, in seconds. Each further pause is twice as long, up to a limit."""


_MAX_REASON = 300
"""Maximum length of the reason of a failure, in characters."""


class Event(NamedTuple):
    """A message about one or more changes."""

    id: str
    """The position in the log after the last of the changes. It is the same whenever the changes are sent."""
    text: bytes
    """The message as JSON."""
    is_last: bool = True
    """Whether it is the last message about these changes."""


class Request(NamedTuple):
    """The content of a request."""

    body: bytes
    headers: dict[str, str]


MakeRequest = Callable[[list[Event], datetime], Request]
"""Returns the request that sends events, of which there is at least one, at a time."""


class Settings(NamedTuple):
    """How events are delivered."""

    url: str
    timeout_seconds: float = 30.0
    """Time limit of an attempt, in seconds."""
    max_pause_seconds: float = 300.0
    """Maximum pause between two attempts, in seconds."""
    attempts: int = 10
    """Number of attempts after which an event becomes a dead letter, if there is a file for them."""


class _Failure(NamedTuple):
    """Why an attempt failed."""

    reason: str
    is_permanent: bool = False
    after_seconds: float = 0.0
    """Pause for which the receiver asked, in seconds."""


def checked_url(option: str, url: str) -> str:
    """Return the address of a receiver.

    If events would be sent without encryption over a network, standard error gets a warning.

    Args:
        option: the option that gives the address, for messages.
    Raises:
        InputError: the address is not an HTTP address, or contains a user or password.
    """
    if "@" in re.split("[/?#]", url.partition("//")[2], maxsplit=1)[0]:  # `urlsplit` refuses some addresses
        raise InputError(
            f"{option} must not contain a user or password; pass the secret with --secret instead"
        )
    try:
        parsed = urlsplit(url)
        port = parsed.port
        requests.Request("POST", url).prepare()
    except ValueError:  # also `requests.exceptions.InvalidURL`
        parsed, port = urlsplit(""), None
    if parsed.scheme not in ("http", "https") or not parsed.hostname or parsed.fragment or port == 0:
        raise InputError(f"{option} is {url!r}; write an http or https address")
    if parsed.scheme == "http" and not is_loopback(parsed.hostname):
        tell(f"events are sent to {parsed.hostname!r} without encryption; use an https address")
    return url


def secret_in(name: str | None) -> str:
    """Return the text of an environment variable.

    Args:
        name: `env:NAME`, where NAME is the name of the variable.
    Raises:
        InputError: the name has another form, or the variable is not set.
    """
    if name is None or not name.startswith(REFERENCE):
        raise InputError(
            "--secret takes env:NAME, the name of an environment variable: a secret on the command line is visible to "
            "all users of this machine"
        )
    variable = name.removeprefix(REFERENCE)
    found = os.environ.get(variable, "").strip()
    if not found:
        raise InputError(f"the environment variable {variable!r}, which must contain the secret, is not set")
    return found


class _Connections(HTTPAdapter):
    """Connections to a receiver. Only one of them has a request at a time."""

    _newest: Any = None
    _is_ended = False

    def get_connection_with_tls_context(self, *args: Any, **named: Any) -> Any:
        """Return the pool for a request. The adapter keeps the newest connection that the pool makes."""
        pool = super().get_connection_with_tls_context(*args, **named)
        if not isinstance(pool.ConnectionCls, partial):
            pool.ConnectionCls = partial(self._connection, pool.ConnectionCls)  # type: ignore[assignment] # a function
        return pool

    def _connection(self, kind: Callable[..., Any], **options: Any) -> Any:
        connection = self._newest = kind(**options)
        connect = connection.connect

        def checked() -> None:
            connect()
            if self._is_ended:
                connection.close()
                raise ConnectionAbortedError

        connection.connect = checked
        return connection

    def end(self) -> None:
        """Abort the request of another thread. After this, no requests can be sent."""
        self._is_ended = True
        socket = None if self._newest is None else self._newest.sock
        if socket is not None:
            with suppress(OSError):
                socket.shutdown(SHUT_RDWR)


class _Session(requests.Session):
    """A session for requests to a receiver. It never sends a password from `~/.netrc`."""

    def __init__(self) -> None:
        super().__init__()
        self.auth = lambda prepared: prepared
        self.connections = _Connections()
        self.mount("http://", self.connections)
        self.mount("https://", self.connections)

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return None for every response. If this method returned the address of a redirect, the library would read the
        whole content of the response, which may be endless, even without following the redirect."""


class Sender:
    """Delivers events to one receiver, one request at a time."""

    def __init__(
        self,
        settings: Settings,
        make_request: MakeRequest,
        dead: DeadLetters | None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """
        Args:
            dead: file of events that are given up; None to repeat an event until the receiver accepts it.
            sleep: waits for a number of seconds.
            jitter: returns a number from 0 to 1 that makes pauses differ.
        """
        self._settings = settings
        self._make_request = make_request
        self._dead = dead
        self._sleep = sleep
        self._jitter = jitter
        self._session = _Session()

    def deliver(self, events: list[Event]) -> None:
        """Deliver events. Return when the receiver has accepted each of them, or it was written to the dead letters.

        If the receiver refuses several events permanently, they are delivered one by one.

        Raises:
            OSError: the dead letters cannot be written.
        """
        attempt = 0
        while (failure := self._attempt(events)) is not None:
            attempt += 1
            if failure.is_permanent and len(events) > 1:
                for event in events:
                    self.deliver([event])
                return
            is_over = failure.is_permanent or attempt >= self._settings.attempts
            if self._dead is not None and is_over:
                tell(f"{_named(events)} became a dead letter after {attempt} attempts: {failure.reason}")
                self._dead.add([_dead_letter(event, failure.reason, attempt) for event in events])
                return
            pause = self._pause(attempt, failure)
            tell(f"{_named(events)} was not delivered: {failure.reason}; trying again in {pause:.3g} s")
            self._sleep(pause)

    def _pause(self, attempt: int, failure: _Failure) -> float:
        limit = self._settings.max_pause_seconds
        longest = min(limit, FIRST_PAUSE_SECONDS * (1 << min(attempt - 1, 30)))
        return min(limit, max(failure.after_seconds, longest * (0.5 + self._jitter() / 2)))

    def _attempt(self, events: list[Event]) -> _Failure | None:
        """Send a request. Return None if the receiver accepted the events."""
        request = self._make_request(events, datetime.now(timezone.utc))
        outcome: list[_Failure | None] = []
        # The library limits each wait for bytes, but not the whole request, so the request has a thread.
        thread = threading.Thread(
            target=lambda: outcome.append(self._post(request)), name="polaris-request", daemon=True
        )
        thread.start()
        thread.join(self._settings.timeout_seconds)
        if not outcome:
            self._session.connections.end()
            self._session = _Session()
            return _Failure(f"no answer within {self._settings.timeout_seconds:g} s")
        return outcome[0]

    def _post(self, request: Request) -> _Failure | None:
        session, timeout = self._session, self._settings.timeout_seconds
        try:
            # The content of the answer is not read, so its length does not matter.
            with session.post(
                self._settings.url,
                data=request.body,
                headers=request.headers,
                timeout=timeout,
                allow_redirects=False,
                stream=True,
            ) as answer:
                return _failure_of(answer)
        except requests.RequestException as error:
            cause: BaseException = error
            while (inner := cause.__cause__ or cause.__context__) is not None:
                cause = inner
            return _Failure(_shown(str(cause) or type(cause).__name__))
        except Exception as error:  # such as a name that cannot be encoded
            return _Failure(_shown(f"{type(error).__name__}: {error}"))


def _shown(text: str) -> str:
    """Return the beginning of a message that may contain text of the receiver, safe to print."""
    return plain(text[:_MAX_REASON])


def _failure_of(answer: requests.Response) -> _Failure | None:
    status = answer.status_code
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return _Failure(f"the receiver answers {status}; redirects are not followed")
    after = answer.headers.get("Retry-After", "")
    seconds = float(after) if after.isascii() and after.isdecimal() and len(after) < 10 else 0.0
    return _Failure(f"the receiver answers {status}", status in PERMANENT, seconds)


def _dead_letter(event: Event, reason: str, attempts: int) -> dict[str, Any]:
    return {
        "event": json.loads(event.text),
        "reason": reason,
        "attempts": attempts,
        "time": iso_text(time.time_ns() // 1_000_000),
    }


def _named(events: list[Event]) -> str:
    if len(events) == 1:
        return f"event {events[0].id}"
    return f"batch of {len(events)} events from {events[0].id}"
