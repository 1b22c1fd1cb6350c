"""A realm with access control for tests: an administrator, and a principal with one role."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import polaris_spark
from polaris_spark import Session
from polaris_spark.access import securables
from polaris_spark.access.bootstrap import bootstrap
from polaris_spark.access.changes import Assign, CreateRole, RoleName
from polaris_spark.access.control import changed
from polaris_spark.access.credentials import Credentials
from polaris_spark.access.grant_changes import Grant
from polaris_spark.access.places import place_of
from polaris_spark.access.principal_changes import CreatePrincipal
from polaris_spark.access.privileges import PRIVILEGES
from polaris_spark.catalog.rows import NAMESPACE
from polaris_spark.commits.change import Operation

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}],
}
VIEW_VERSION = {
    "version-id": 1,
    "timestamp-ms": 1,
    "schema-id": 0,
    "summary": {},
    "default-namespace": ["db"],
    "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
}

T = "v1/namespaces/db/tables"


def names(answer: tuple[int, Any]) -> list[str]:
    """Return the names in the answer to a request for a list."""
    status, body = answer
    assert status == 200, body
    return [".".join(one) if isinstance(one, list) else one["name"] for one in next(iter(body.values()))]


class User:
    """A principal's open session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        **headers: str,
    ) -> tuple[int, Any]:
        """Send a request, and return the status and the parsed body."""
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        text = None if body is None else json.dumps(body)
        status, _, answer = self.session.request(method, path, query, text, {"x": "y", **named})
        return status, json.loads(answer) if answer else None

    def status(self, method: str, path: str, body: Any = None, **headers: str) -> int:
        """Send a request, and return only the status."""
        return self.send(method, path, body, **headers)[0]

    def call(self, procedure: str, **arguments: Any) -> tuple[int, Any]:
        """Call a procedure as a request."""
        return self.send("POST", f"polaris-spark/v1/procedures/{procedure}", {"arguments": arguments})


class World:
    """A realm with an administrator `root`, and a principal `ann` with the principal role `one`."""

    def __init__(self, folder: Path, store: str = "") -> None:
        self.store = store or f"memory:{uuid.uuid4()}"
        self.folder = str(folder)
        with polaris_spark.connect(store=self.store, warehouse=self.folder) as first:
            references = first.catalog.references
            made = bootstrap(references, Operation(b"", "operator"), "root", None).credentials
            changed()
            assert made is not None
            self.administrator = made
            self.root = self.open(made)
        self.id = self.root.session.catalog.row.entity_id
        self.credentials = self.principal("ann", "one")

    def open(self, credentials: Credentials, **properties: Any) -> User:
        """Log in."""
        return User(
            polaris_spark.connect(
                **{"store": self.store, "warehouse": self.folder, **properties}, credential=credentials.text()
            )
        )

    def change(self, cls: Any, *arguments: Any, **keywords: Any) -> Any:
        """Change the rules as the administrator."""
        session = self.root.session
        return session.access.change(
            cls(session.connection.clock, session.operation(), *arguments, **keywords)
        )

    def principal(self, name: str, *roles: str) -> Credentials:
        """Create a principal with new principal roles."""
        made = Credentials.new()
        self.change(CreatePrincipal, name, made)
        for role in roles:
            self.change(CreateRole, RoleName(role))
            self.change(Assign, RoleName(role), principal=name)
        return made

    def grant(self, privileges: Collection[str], on: bytes | None = None, role: str = "one") -> None:
        """Grant privileges; by default, on the catalog if that is possible, else on the realm."""
        for one in privileges:
            default = self.catalog if "C" in PRIVILEGES[one].on else securables.REALM
            self.change(Grant, RoleName(role), on or default, [one], described="it")

    def revoke_all(self, role: str = "one") -> None:
        """Revoke everything that a role has been granted."""
        rules = self.root.session.access.required()
        id = next(id for id, one in rules.roles.items() if one.name == role)
        for securable in list(rules.grants.get(id, {})):
            self.change(Grant, RoleName(role), securable, [], described="it", revoke=True)

    @property
    def catalog(self) -> bytes:
        """The securable of the catalog."""
        return securables.catalog(self.id)

    def branch(self, name: str) -> bytes:
        """The securable of a branch."""
        return securables.branch(self.id, name)

    def entity(self, *levels: str, kind: bytes = NAMESPACE) -> bytes:
        """The securable of a namespace, or of a table or view, on the branch main."""
        catalog = self.root.session.catalog
        if kind == NAMESPACE:
            found = place_of(catalog, catalog.head(), levels)
        else:
            found = place_of(catalog, catalog.head(), levels[:-1], levels[-1], kind)
        assert found.exists
        return found.chain[0]

    def close(self) -> None:
        """Close the administrator's session."""
        self.root.session.close()

    # Content

    def namespace(self, *levels: str) -> None:
        """Create a namespace unless it exists."""
        assert self.root.status("POST", "v1/namespaces", {"namespace": list(levels)}) in (200, 409)

    def table(self, namespace: str, name: str) -> None:
        """Create a table unless it exists."""
        made = self.root.send("POST", f"v1/namespaces/{namespace}/tables", {"name": name, "schema": SCHEMA})
        assert made[0] in (200, 409), made

    def view(self, namespace: str, name: str) -> None:
        """Create a view unless it exists."""
        body = {"name": name, "schema": SCHEMA, "view-version": VIEW_VERSION, "properties": {}}
        made = self.root.send("POST", f"v1/namespaces/{namespace}/views", body)
        assert made[0] in (200, 409), made
