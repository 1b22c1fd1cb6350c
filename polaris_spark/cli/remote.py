"""The client for `--server URL`: a server runs a procedure for the command line, or lists changes."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import requests

from polaris_spark.cli.options import STORE_VARIABLE
from polaris_spark.cli.output import tell
from polaris_spark.cli.server_tokens import tokens_for
from polaris_spark.commit_notes import HEADER
from polaris_spark.errors import InputError, PolarisError, TryAgainError
from polaris_spark.jobs.procedure import Procedure, Watch
from polaris_spark.jobs.types import TYPES
from polaris_spark.names import MAIN
from polaris_spark.rest.access import is_loopback

POLL_SECONDS = 1.0
"""Interval between two requests for the progress of a run, in seconds."""
TIMEOUT_SECONDS = 60.0
"""Time limit for one request, in seconds. A run has no time limit."""
BUSY_SECONDS = 60.0
"""Time limit for repeating a request for the progress of a run while the server is busy (status 503), in seconds."""
_TRY_AGAIN = 503
_UNAUTHORIZED = 401
_NO_SERVER = "is this the address of polaris-spark serve?"


def chosen_server(
    url: str,
    token: str | None,
    catalog: str | None,
    *,
    store: str | None,
    realm: str,
    branch: str = MAIN,
    **others: object,
) -> RemoteServer:
    """Return the server that runs a procedure for a command.

    Options that select or configure a store are refused, because the server chose its store when it started. If the
    token would be sent without encryption over a network, standard error gets a warning.

    Args:
        url, token, catalog: arguments of `RemoteServer`.
        store: URI of the store; ignored if it comes from the environment variable `STORE_VARIABLE`.
        others: further options that are refused, by name. A value None or False means that the option was not given.
    Raises:
        InputError: an option that is refused was given, or `RemoteServer` refuses the address or the token.
    """
    refused = {
        "STORE": store != os.environ.get(STORE_VARIABLE) and store,
        "--realm": realm != "default",
        "--branch": branch != MAIN,
        **{f"--{name}": value for name, value in others.items()},
    }
    for name, value in refused.items():
        if value not in (None, False, [], ()):
            raise InputError(
                f"{name} cannot be given with --server: the server chose its store when it started"
            )
    server = RemoteServer(url, token, catalog)
    address = urlsplit(url)
    if address.scheme == "http" and not is_loopback(address.hostname or ""):
        tell(
            f"the token is sent to {address.hostname!r} without encryption, because --server is an http address; use "
            "an https address"
        )
    return server


class RemoteServer:
    """A server that runs procedures."""

    def __init__(self, url: str, token: str | None, catalog: str | None) -> None:
        """
        Args:
            url: address of the server, such as `https://catalog.example:8181`.
            token: argument `name` of `tokens_for`.
            catalog: name of the catalog; None for the server's default catalog.
        Raises:
            InputError: the address is malformed or contains a user or password, or `tokens_for` finds no token.
        """
        try:
            parsed = urlsplit(url)
        except ValueError:  # such as brackets without an IPv6 address
            parsed = urlsplit("")
        if parsed.scheme not in ("http", "https") or not parsed.hostname or parsed.query or parsed.fragment:
            raise InputError(
                f"--server is {url!r}; write the address of a server, such as http://127.0.0.1:8181"
            )
        if parsed.username or parsed.password:
            raise InputError(
                "--server has a user or password in it; give a token by --token env:NAME instead"
            )
        prefix = "" if catalog is None else f"{quote(catalog, safe='')}/"
        self._base = f"{url.rstrip('/')}/polaris-spark/v1/{prefix}"
        self._tokens = tokens_for(url, token)
        self._session = requests.Session()
        self.message: str | None = None
        """Reason for the changes, which the log keeps."""
        self._session.auth = self._authorize  # a header alone would be replaced by an entry of ~/.netrc

    def call(
        self, procedure: Procedure, arguments: Mapping[str, Any], watch: Watch | None = None
    ) -> list[tuple[Any, ...]]:
        """Run a procedure, and return its rows. On KeyboardInterrupt, cancel the run.

        Args:
            procedure: the procedure, as this release defines it.
            arguments: arguments by name; an argument with the value None counts as not given.
            watch: function to call with the progress of the run.
        Raises:
            PolarisError: the server refused the call or cannot be reached, or the procedure failed.
        """
        encoders = {one.name: TYPES[one.type].encode for one in procedure.parameters}
        given = {name: encoders[name](value) for name, value in arguments.items() if value is not None}
        id = str(uuid.uuid4())
        body = {"id": id, "arguments": given, "wait-seconds": POLL_SECONDS}
        try:
            run = self._run("POST", f"procedures/{procedure.name}", body)
            while run["status"] == "running":
                progress = run.get("progress")
                if watch is not None and progress:
                    watch(progress["step"], progress["done"], progress["total"])
                time.sleep(POLL_SECONDS)
                run = self._run("GET", f"runs/{id}")
        except KeyboardInterrupt:
            try:
                self._send("DELETE", f"runs/{id}")
            except PolarisError as error:
                raise PolarisError(f"interrupted, but the run {id} was not cancelled: {error}") from error
            raise
        if run["status"] != "succeeded":
            raise PolarisError(run["error"]["message"])
        rows, columns = run["rows"], run["columns"]
        while token := run.get("next-page-token"):
            run = self._run("GET", f"runs/{id}?pageToken={token}")
            rows += run["rows"]
        return _decoded([column["type"] for column in columns], rows)

    def changes(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return a page of changes (`GET changes`), after waiting for it if the query says so.

        Raises:
            TryAgainError: the server cannot be reached, or cannot answer now.
            PolarisError: the server refused the request.
        """
        try:
            answer = self._request("GET", "changes", params=query)
        except requests.RequestException as error:
            raise TryAgainError(f"the server cannot be reached: {_reason(error)}") from error
        if answer.status_code >= 500:
            raise TryAgainError(f"the server answers: {_message(answer)}")
        if answer.status_code != 200:
            raise PolarisError(f"the server answers: {_message(answer)}")
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, dict) or not {"catalog", "branch", "changes", "next"} <= found.keys():
            raise PolarisError(f"the server's answer does not contain changes; {_NO_SERVER}")
        return found

    def _run(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send a request about a run of a procedure, and return the state of the run from the response."""
        try:
            found = self._send(method, path, body).json()
        except ValueError:
            found = None
        if not isinstance(found, dict) or "status" not in found:
            raise PolarisError(f"the server's answer does not describe a run; {_NO_SERVER}")
        return found

    def _send(self, method: str, path: str, body: Any = None) -> requests.Response:
        headers = {f"{HEADER}message": self.message.encode()} if self.message else {}
        until = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                answer = self._request(method, path, json=body, headers=headers)
            except requests.RequestException as error:
                what = f"the server cannot be reached: {_reason(error)}"
                if method == "GET":
                    run = path.removeprefix("runs/").partition("?")[0]
                    what += f"; the run {run} may still be in progress there"
                raise PolarisError(what) from error
            if answer.status_code != _TRY_AGAIN or method != "GET" or time.monotonic() >= until:
                break
            time.sleep(POLL_SECONDS)
        if 200 <= answer.status_code < 300:
            return answer
        raise PolarisError(f"the server answers: {_message(answer)}")

    def _request(self, method: str, path: str, **more: Any) -> requests.Response:
        """Send a request. If the server refuses a token that it issued, for example because its signing key was
        replaced, get a new token and repeat the request."""
        for is_last in (False, True):
            answer = self._session.request(
                method, self._base + path, timeout=TIMEOUT_SECONDS, allow_redirects=False, **more
            )
            if is_last or answer.status_code != _UNAUTHORIZED or not self._tokens.forget():
                break
        return answer

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._tokens.current()}"
        return request


def _message(answer: requests.Response) -> str:
    """Return the message of an answer that refuses a request."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}; {_NO_SERVER}"


def _reason(error: requests.RequestException) -> str:
    """Return the text of an error's innermost cause. The texts of the outer errors repeat the address and contain
    internal names."""
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    return str(cause) or type(cause).__name__


def _decoded(types: Sequence[str], rows: list[list[Any]]) -> list[tuple[Any, ...]]:
    decoders = [TYPES[one].decode for one in types]
    return [
        tuple(None if v is None else decode(v) for decode, v in zip(decoders, row, strict=True))
        for row in rows
    ]
