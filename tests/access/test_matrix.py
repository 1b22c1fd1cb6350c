"""Every route and procedure against every privilege: allowed exactly where the declarations say.

The expectation comes from the declarations alone. What happens comes from requests.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from polaris_spark.access.needs import UNDECLARED, Asked, Need, On
from polaris_spark.access.privileges import PRIVILEGES, SEES_NAMESPACE, implied
from polaris_spark.extension import ROUTER
from polaris_spark.jobs.registry import procedures
from polaris_spark.rest.messages import decode
from polaris_spark.rest.router import Route
from tests.access.world import SCHEMA, VIEW_VERSION, User, World

JSON = dict[str, Any]
_FAILS = {"type": "assert-table-uuid", "uuid": str(uuid.UUID(int=1))}

_REQUEST = {"uri": "https://s3.amazonaws.com/b/t/f", "region": "us-east-1", "headers": {}}


class Case(NamedTuple):
    """A request that succeeds, or fails late, if it is allowed."""

    method: str
    path: str
    body: Any = None
    query: Mapping[str, str] = MappingProxyType({})


T, V = "v1/namespaces/db/tables", "v1/namespaces/db/views"
P = "polaris/v1/namespaces/db/policies"
CASES = [
    Case("GET", "v1/config"),
    Case("GET", "v1/namespaces"),
    Case("GET", "v1/namespaces", None, {"parent": "db"}),
    Case("POST", "v1/namespaces", {"namespace": ["new"]}),
    Case("POST", "v1/namespaces", {"namespace": ["db", "new"]}),
    Case("GET", "v1/namespaces/db"),
    Case("HEAD", "v1/namespaces/db"),
    Case("DELETE", "v1/namespaces/empty"),
    Case("POST", "v1/namespaces/db/properties", {"updates": {"a": "b"}}),
    Case("GET", T),
    Case("POST", T, {"name": "new", "schema": SCHEMA}),
    Case("POST", T, {"name": "new", "schema": SCHEMA, "stage-create": True}),
    Case("POST", "v1/namespaces/db/register", {"name": "new", "metadata-location": "file:///none.json"}),
    Case(
        "POST",
        "v1/namespaces/db/register",
        {"name": "t", "metadata-location": "file:///none.json", "overwrite": True},
    ),
    Case("GET", f"{T}/t"),
    Case("GET", f"{T}/t", None, {"snapshots": "refs"}),
    Case("HEAD", f"{T}/t"),
    Case("POST", f"{T}/t", {"requirements": [_FAILS], "updates": []}),
    Case(
        "POST",
        f"{T}/t",
        {"requirements": [_FAILS], "updates": [{"action": "remove-snapshots", "snapshot-ids": [1]}]},
    ),
    Case("POST", f"{T}/new", {"requirements": [{"type": "assert-create"}, _FAILS], "updates": []}),
    Case("GET", f"{T}/t/credentials"),
    Case("POST", f"{T}/t/sign", {**_REQUEST, "method": "GET"}),
    Case("POST", f"{T}/t/sign", {**_REQUEST, "method": "PUT"}),
    Case("DELETE", f"{T}/t"),
    Case("DELETE", f"{T}/t", None, {"purgeRequested": "true"}),
    Case(
        "POST",
        "v1/tables/rename",
        {
            "source": {"namespace": ["db"], "name": "t"},
            "destination": {"namespace": ["other"], "name": "t2"},
        },
    ),
    Case(
        "POST",
        "v1/transactions/commit",
        {
            "table-changes": [
                {
                    "identifier": {"namespace": ["db"], "name": "t"},
                    "requirements": [_FAILS],
                    "updates": [{"action": "remove-snapshots", "snapshot-ids": [1]}],
                }
            ]
        },
    ),
    Case(
        "POST",
        "v1/transactions/commit",
        {
            "table-changes": [],
            "requests": [{"method": "POST", "path": "v1/namespaces", "body": {"namespace": ["new"]}}],
        },
    ),
    Case("POST", f"{T}/t/metrics", {}),
    Case("GET", V),
    Case("POST", V, {"name": "new", "schema": SCHEMA, "view-version": VIEW_VERSION, "properties": {}}),
    Case("POST", "v1/namespaces/db/register-view", {"name": "new", "metadata-location": "file:///none.json"}),
    Case("GET", f"{V}/v"),
    Case("HEAD", f"{V}/v"),
    Case("POST", f"{V}/v", {"requirements": [{"type": "assert-view-uuid", "uuid": "x"}], "updates": []}),
    Case("DELETE", f"{V}/v"),
    Case(
        "POST",
        "v1/views/rename",
        {
            "source": {"namespace": ["db"], "name": "v"},
            "destination": {"namespace": ["other"], "name": "v2"},
        },
    ),
    Case("GET", "polaris-spark/v1/changes", None, {"limit": "1"}),
    Case("POST", "polaris-spark/v1/views/tables/columns", {"options": {}}),
    Case("POST", "polaris-spark/v1/views/tables/count", {"options": {}}),
    Case("POST", "polaris-spark/v1/views/tables/plan", {"options": {}, "columns": [], "filters": []}),
    Case(
        "POST",
        "polaris-spark/v1/namespaces/db/materialized-views/v/read",
        {"uuid": "u", "version-id": 1, "session": {}},
    ),
    Case("POST", "polaris-spark/v1/namespaces/db/materialized-views/v/as-of", {}),
    Case("POST", "polaris-spark/v1/namespaces/db/tables/t/check-deletion"),
    Case("GET", P),
    Case("POST", P, {"name": "new", "type": "system.snapshot-expiry", "content": '{"enable": true}'}),
    Case("GET", f"{P}/p"),
    Case("PUT", f"{P}/p", {"current-policy-version": -1}),
    Case("DELETE", f"{P}/p"),
    Case("DELETE", f"{P}/p", None, {"detach-all": "true"}),
    *(
        Case(method, f"{P}/p/mappings", {"target": target})
        for method in ("PUT", "POST")
        for target in (
            {"type": "catalog"},
            {"type": "namespace", "path": ["db"]},
            {"type": "table-like", "path": ["db", "t"]},
        )
    ),
    Case("GET", "polaris/v1/applicable-policies"),
    Case("GET", "polaris/v1/applicable-policies", None, {"namespace": "db"}),
    Case("GET", "polaris/v1/applicable-policies", None, {"namespace": "db", "target-name": "t"}),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("matrix"))
    for one in ("db", "other"):
        made.namespace(one)
    restore(made)
    yield made
    made.close()


@pytest.fixture(scope="module")
def ann(world: World) -> User:
    world.grant(["CATALOG_LIST"])
    return world.open(world.credentials)


def restore(world: World) -> None:
    """Bring back what requests have removed, and remove what they have created."""
    root = world.root
    for path in (f"{T}/new", "v1/namespaces/other/tables/t2", f"{V}/new", "v1/namespaces/other/views/v2"):
        root.send("DELETE", path)
    for name in ("new", "db%1Fnew"):
        root.send("DELETE", f"v1/namespaces/{name}")
    world.namespace("empty")
    world.table("db", "t")
    root.send("DELETE", f"{P}/new")
    root.send("POST", P, {"name": "p", "type": "system.snapshot-expiry", "content": '{"enable": true}'})
    for target in ({"type": "catalog"}, {"type": "namespace", "path": ["db"]}):
        root.send("PUT", f"{P}/p/mappings", {"target": target})
    root.send("PUT", f"{P}/p/mappings", {"target": {"type": "table-like", "path": ["db", "t"]}})
    world.view("db", "v")


def table_id(world: World) -> str:
    key = world.entity("db", "t", kind=b"t")
    return f"{int.from_bytes(key[9:17], 'big'):x}"


def cases_of(world: World) -> list[Case]:
    version = Case("GET", f"v1/tables/{table_id(world)}/versions/1/snapshots")
    return [version, *CASES]  # first, because other requests drop the table


def route_of(case: Case) -> Route:
    return ROUTER.find(case.method, case.path).route


_LISTS = (On.LISTED, On.LISTED_TABLES, On.LISTED_VIEWS)


def fulfilled(need: Need, held: frozenset[str], asked: Asked, *, is_on_catalog: bool) -> bool:
    """Whether privileges fulfil a need, which are held on the whole catalog or, if not `is_on_catalog`, the realm."""
    if need.on in (On.EACH_TABLE, On.EACH_NAMESPACE):
        return all(
            need.when is None or not need.when.holds(asked._replace(body=one)) or need.privilege in held
            for one in asked.body.table_changes
        )
    if need.on is On.EACH_REQUEST:
        return all(
            "NAMESPACE_CREATE" in held for _ in asked.body.requests
        )  # the only kind of request in the cases
    if need.when is not None and not need.when.holds(asked):
        return True
    if need.on in (On.NOTHING, On.KNOWN_CATALOG, On.PROCEDURE):
        return True
    if need.on in _LISTS:  # the namespace must be seen; what is in it is filtered
        return SEES_NAMESPACE in held or (need.on is On.LISTED and "parent" not in asked.query)
    return need.privilege in held and (need.on is not On.REALM or not is_on_catalog)


def allows(case: Case, privilege: str) -> bool:
    route = route_of(case)
    body = None
    if route.body is not None:
        body = decode(json.dumps(case.body), route.body)
    asked = Asked(ROUTER.find(case.method, case.path).params, case.query, body)
    held = implied(frozenset((privilege,)))
    if not knows_catalog(privilege) and "CATALOG_LIST" not in held:
        return False
    return all(fulfilled(need, held, asked, is_on_catalog=True) for need in route.needs)


def knows_catalog(privilege: str) -> bool:
    return "C" in PRIVILEGES[privilege].on


def test_every_route_declares_its_needs() -> None:
    assert [one.template for one in ROUTER.routes if one.needs is UNDECLARED or not one.needs] == []


def test_every_procedure_declares_its_needs() -> None:
    assert [one.name for one in procedures().values() if one.needs is UNDECLARED or not one.needs] == []


def test_every_route_that_needs_something_has_a_case(world: World) -> None:
    open_to_all = {On.NOTHING, On.PROCEDURE, On.OWN}
    wanted = {
        (one.method, one.template)
        for one in ROUTER.routes
        if any(need.on not in open_to_all for need in one.needs)
    }
    assert wanted - {(one.method, route_of(one).template) for one in cases_of(world)} == set()


@pytest.mark.parametrize("privilege", PRIVILEGES)
def test_routes_are_allowed_exactly_where_the_declarations_say(
    world: World, ann: User, privilege: str
) -> None:
    assert wrong_routes(world, ann, privilege) == []


def wrong_routes(world: World, ann: User, privilege: str) -> list[Any]:
    """Grant only one privilege, and return the requests that are allowed or refused against the declarations."""
    world.revoke_all()
    world.grant([privilege])
    wrong: list[Any] = []
    for case in cases_of(world):
        expected = allows(case, privilege)
        status, body = ann.send(case.method, case.path, case.body, case.query)
        restore(world)
        hidden = status == 404 and (
            any(one in str(body) for one in HIDDEN) or not _missing_anyway(case, body)
        )
        allowed = status not in (401, 403) and not hidden
        if allowed is not expected:
            wrong.append((case.method, case.path, case.query, status, body, expected))
    return wrong


HIDDEN = ("does not exist: db", "there is no catalog here")


def _missing_anyway(case: Case, body: Any) -> bool:
    """Whether the administrator gets status 404, too: the view is not materialized, or the file or version does not
    exist."""
    return any(one in case.path for one in ("materialized-views", "register")) or "version" in str(body)


def test_the_administrator_may_send_every_request(world: World) -> None:
    for case in cases_of(world):
        status, body = world.root.send(case.method, case.path, case.body, case.query)
        restore(world)
        assert status not in (401, 403), (case, body)
        assert status != 404 or _missing_anyway(case, body), (case, body)


ARGUMENTS: dict[str, JSON] = {
    "add_check": {"branch": "main", "name": "c", "view": "db.v", "expression": "true"},
    "alter_materialized_view": {"view": "db.v", "rename_to": "other.v2"},
    "create_materialized_view": {"view": "db.new", "query": "select 1"},
    "cherry_pick": {"commit": "main#1"},
    "reassign_branch": {"name": "main", "to": "main"},
    "show_materialized_views": {"namespace": "db"},
    "set_catalog_properties": {"properties": {"gc.enabled": "true"}},
    "undrop": {"table": "db.gone"},
    "diff": {"to_state": "main"},
}
_BY_TYPE: JSON = {"STRING": "db.v", "BOOLEAN": True, "BIGINT": 1, "INT": 1, "ARRAY<STRING>": ["a"]}


def arguments_of(name: str) -> JSON:
    """Arguments that pass the checks of types; the call fails later or does little."""
    known = procedures()[name]
    given = {one.name: _BY_TYPE.get(one.type, {}) for one in known.parameters if one.required}
    if any(one.name == "dry_run" for one in known.parameters):
        given["dry_run"] = True
    return {**given, **ARGUMENTS.get(name, {})}


@pytest.mark.parametrize("privilege", PRIVILEGES)
def test_procedures_are_allowed_exactly_where_the_declarations_say(
    world: World, ann: User, privilege: str
) -> None:
    assert wrong_procedures(world, ann, privilege) == []


def wrong_procedures(world: World, ann: User, privilege: str) -> list[Any]:
    """Grant only one privilege, and return the procedures that are allowed or refused against the declarations."""
    from polaris_spark.errors import PolarisError
    from polaris_spark.jobs.permission import require_needs

    world.revoke_all()
    world.grant([privilege])
    held = implied(frozenset((privilege,)))
    wrong: list[Any] = []
    for name, one in procedures().items():
        arguments = arguments_of(name)
        asked = Asked({}, {}, arguments)
        on_catalog = knows_catalog(privilege)
        expected = all(
            need.on is On.OWN or fulfilled(need, held, asked, is_on_catalog=on_catalog) for need in one.needs
        )
        try:
            require_needs(ann.session, one.needs, arguments)
            allowed = True
        except PolarisError:
            allowed = False
        if allowed is not expected:
            wrong.append((name, expected))
    return wrong
