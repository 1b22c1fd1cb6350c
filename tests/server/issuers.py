"""An OpenID Connect issuer on loopback, with a discovery document and a key set, which makes tokens."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from jwt.algorithms import get_default_algorithms

AUDIENCE = "lake"


class Issuer:
    """An issuer with keys `RS256`, `ES256` and `EdDSA`, whose ids are the names of their algorithms."""

    def __init__(self) -> None:
        self.keys: dict[str, PrivateKeyTypes] = {
            "RS256": rsa.generate_private_key(65537, 2048),
            "ES256": ec.generate_private_key(ec.SECP256R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate(),
        }
        self.requests: list[str] = []
        self.status = 200
        self.pause = 0.0
        """Time between two bytes of a document in `documents`, in seconds; 0 to write them together."""
        self.documents: dict[str, Any] = {}
        """Documents that are served in place of the right ones, by path."""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.requests.append(self.path)
                right = {
                    "/.well-known/openid-configuration": {
                        "issuer": issuer.uri,
                        "jwks_uri": f"{issuer.uri}/keys",
                    },
                    "/keys": {"keys": issuer.public_keys()},
                }
                document = issuer.documents.get(self.path, right.get(self.path))
                content = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(404 if document is None else issuer.status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                with contextlib.suppress(OSError):  # the client may go away
                    if not isinstance(document, bytes) or not issuer.pause:
                        self.wfile.write(content)
                        return
                    for byte in content:
                        self.wfile.write(bytes([byte]))
                        time.sleep(issuer.pause)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.uri = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def public_keys(self) -> list[dict[str, Any]]:
        """Return the public keys in the form of a key set."""
        found = []
        for id, key in self.keys.items():
            algorithm = get_default_algorithms()[algorithm_of(key)]
            jwk = json.loads(algorithm.to_jwk(key.public_key()))  # type: ignore[attr-defined]
            found.append({**jwk, "kid": id, "use": "sig", "key_ops": ["verify"]})
        return found

    def claims(self, **more: Any) -> dict[str, Any]:
        """Return the claims of a token that is valid for five minutes. A claim that is None is left out."""
        now = int(time.time())
        found = {"iss": self.uri, "aud": AUDIENCE, "sub": "ann", "iat": now, "exp": now + 300, **more}
        return {name: value for name, value in found.items() if value is not None}

    def token(self, key: str = "RS256", *, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """Return a token that a key signed."""
        private = self.keys[key]
        return jwt.encode(
            self.claims(**claims),
            private,  # type: ignore[arg-type]  # a key of one of the three kinds
            algorithm=algorithm_of(private),
            headers={"kid": key, **(headers or {})},
        )

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()


def algorithm_of(key: object) -> str:
    """Return the algorithm of a private key."""
    if isinstance(key, rsa.RSAPrivateKey):
        return "RS256"
    return "ES256" if isinstance(key, ec.EllipticCurvePrivateKey) else "EdDSA"


def part(value: object) -> str:
    """Return a part of a token in compact form."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()
