"""Callers of the extension's routes, without HTTP."""

from __future__ import annotations

import json
from typing import Any

from polaris_spark.rest.access import Caller, Role
from polaris_spark.rest.handler import handle
from polaris_spark.rest.session import Session

BASE = "polaris-spark/v1"


class Asking:
    """A caller with a role. It calls the handler as the server does."""

    def __init__(self, session: Session, role: Role, principal: str = "root") -> None:
        self.session = session
        self.caller = Caller(principal, role)

    def send(self, method: str, path: str, body: Any = None, **query: str) -> tuple[int, Any]:
        """Send a request, and return the status and the parsed body of the answer."""
        response = handle(
            self.session.catalog,
            method,
            path if path.startswith("v1/") else f"{BASE}/{path}",
            query=query,
            body=body if body is None or isinstance(body, str) else json.dumps(body),
            caller=self.caller,
            router=self.session.router,
            session=self.session,
        )
        return response.status, json.loads(response.body) if response.body else None

    def call(self, procedure: str, arguments: dict[str, Any] | None = None, **more: Any) -> tuple[int, Any]:
        """Call a procedure, and return the status and the body of the answer."""
        named = {name.replace("_", "-"): value for name, value in more.items()}
        return self.send("POST", f"procedures/{procedure}", {"arguments": arguments or {}, **named})
