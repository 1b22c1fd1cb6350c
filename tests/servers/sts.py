"""A small service that answers the operation AssumeRole of STS, for tests. botocore's own client calls it.

It checks the signature of a request and the form of the session policy as far as a real service would notice, records
the requests, and gives credentials that no storage accepts.
"""

from __future__ import annotations

import datetime
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

_NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"


class TestSts:
    """The service, on a free port of loopback."""

    __test__ = False

    def __init__(self, key: str = "server-key", secret: str = "server-secret") -> None:
        self.key, self.secret = key, secret
        self.asked: list[dict[str, str]] = []
        self.refusal: tuple[int, str] | None = None
        """Status and code of the error with which all requests are answered; None to answer them."""
        self.lasting_s: int | None = None
        """Time for which credentials are valid, in seconds; None for the time that was asked for."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # the name of the base class
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, text = service.answer(body, dict(self.headers))
                self.send_response(status)
                self.send_header("Content-Type", "text/xml")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """Answer a request."""
        if self.refusal is not None:
            return self.refusal[0], _error(self.refusal[1], "refused by the test")
        if not self._is_signed(body, headers):
            return 403, _error("SignatureDoesNotMatch", "the signature is wrong")
        asked = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        policy: dict[str, Any] = json.loads(asked["Policy"])
        assert policy["Version"] == "2012-10-17"
        assert len(asked["Policy"]) <= 2_048
        self.asked.append(asked)
        number = len(self.asked)
        seconds = int(asked["DurationSeconds"]) if self.lasting_s is None else self.lasting_s
        until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
        given = {
            "AccessKeyId": f"ASIA{number}",
            "SecretAccessKey": f"secret-{number}",
            "SessionToken": f"token-{number}",
            "Expiration": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        fields = "".join(f"<{name}>{escape(text)}</{name}>" for name, text in given.items())
        return 200, (
            f'<AssumeRoleResponse xmlns="{_NAMESPACE}"><AssumeRoleResult><Credentials>{fields}</Credentials>'
            "</AssumeRoleResult><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></AssumeRoleResponse>"
        ).encode()

    def _is_signed(self, body: bytes, headers: dict[str, str]) -> bool:
        """Whether the request has the signature that botocore computes for it with the server's keys."""
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        lower = {name.lower(): text for name, text in headers.items()}
        given = lower["authorization"]
        names = given.partition("SignedHeaders=")[2].partition(",")[0].split(";")
        request = AWSRequest("POST", self.url + "/", headers={name: lower[name] for name in names}, data=body)
        request.context["timestamp"] = lower["x-amz-date"]
        signer = SigV4Auth(Credentials(self.key, self.secret), "sts", given.split("/")[2])
        text = signer.string_to_sign(request, signer.canonical_request(request))
        right: str = signer.signature(text, request)
        return given.rpartition("Signature=")[2] == right

    def close(self) -> None:
        """Stop the service."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> TestSts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _error(code: str, message: str) -> bytes:
    return (
        f'<ErrorResponse xmlns="{_NAMESPACE}"><Error><Type>Sender</Type><Code>{code}</Code>'
        f"<Message>{escape(message)}</Message></Error><RequestId>1</RequestId></ErrorResponse>"
    ).encode()
