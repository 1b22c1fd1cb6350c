"""The few requests of Google Cloud Storage's XML protocol that a store sends, answered from memory.

No emulator that a package registry carries knows the protocol's conditional PUTs
(https://cloud.google.com/storage/docs/xml-api/reference-headers): this shows that the backend speaks it as documented,
and not what Google's servers do.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET: Final = "catalogs"
_PAGE: Final = 500


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # an answer is one packet: else every one takes 40 ms
    lock: threading.Lock
    stored: dict[str, tuple[int, bytes]]
    """Generations and bodies."""
    generations: Iterator[int]

    def do_PUT(self) -> None:  # http.server's own names
        body = self.rfile.read(int(self.headers["Content-Length"]))
        expected = self.headers.get("x-goog-if-generation-match")
        with self.lock:
            found = self.stored.get(self._key(), (0, b""))[0]
            if expected is not None and int(expected) != found:
                return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            self.stored[self._key()] = generation, _ = next(self.generations), body
        return self._answer(200, b"", generation)

    def do_GET(self) -> None:  # as above
        if not self._key():
            return self._answer(200, self._listing())
        found = self.stored.get(self._key())
        if found is None:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        return self._answer(200, found[1], found[0])

    def do_DELETE(self) -> None:  # as above
        with self.lock:
            found = self.stored.pop(self._key(), None)
        self._answer(*((404, b"<Error><Code>NoSuchKey</Code></Error>") if found is None else (204, b"")))

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _key(self) -> str:
        bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        assert bucket == BUCKET
        return key

    def _listing(self) -> bytes:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter")
        after = max(asked.get("continuation-token", ""), asked.get("start-after", ""))
        with self.lock:
            keys = sorted(key for key in self.stored if key.startswith(prefix))
        folders: set[str] = set()
        if delimiter:
            folders = {
                prefix + key[len(prefix) :].split("/")[0] + "/" for key in keys if "/" in key[len(prefix) :]
            }
            keys = [key for key in keys if "/" not in key[len(prefix) :]]
        rest = [key for key in keys if key > after]
        page = rest[:_PAGE]
        more = len(rest) > len(page)
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;e{self.stored[key][0]}&quot;</ETag><Size>{len(self.stored[key][1])}</Size></Contents>"
            for key in page
            if key in self.stored
        )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders)
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        truncated = f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        return f"<ListBucketResult>{truncated}{token}{contents}{common}</ListBucketResult>".encode()

    def _answer(self, status: int, body: bytes, generation: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if generation is not None:
            self.send_header("ETag", f'"e{generation}"')
            self.send_header("x-goog-generation", str(generation))
            self.send_header("Last-Modified", formatdate(usegmt=True))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def google_storage() -> Iterator[str]:
    """URL of a server with one bucket."""
    state = {"lock": threading.Lock(), "stored": {}, "generations": itertools.count(1_700_000_000_000_001)}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), state))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def without_log_in(url: str) -> str:
    """A service account's key, in the format of Google's tools, for a server that requires no login."""
    nobody = {"client_email": "", "private_key": "", "private_key_id": ""}
    return json.dumps({"gcs_base_url": url, "disable_oauth": True, **nobody})
