"""Random requests that fit the description of the protocol, and some that do not: no answer is a 5xx.

The description is our own, made from routes and messages. `POLARIS_SPARK_OPENAPI` names a file with another one, such
as Iceberg's `open-api/rest-catalog-open-api.yaml`; `POLARIS_SPARK_FUZZ_EXAMPLES` the number of requests per operation.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from zlib import crc32

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.generation import meta
from schemathesis.generation.case import Case
from schemathesis.pytest.lazy import get_all_tests

from polaris_spark.extension import ROUTER
from polaris_spark.rest import openapi, unsupported
from polaris_spark.rest.access import Role
from tests.rest.client import Client, path, table_request, tables, view_request
from tests.server.conftest import ADMINISTRATOR, TOKENS
from tests.server.servers import PATIENCE, Remote, Server

EXAMPLES = int(os.environ.get("POLARIS_SPARK_FUZZ_EXAMPLES", "10"))
SAMPLE = 8
"""The ordinary test sends about one in eight systematic cases. Each operation has more than a hundred."""
PUBLISHED = os.environ.get("POLARIS_SPARK_OPENAPI")

SCHEMA = (
    schemathesis.openapi.from_path(PUBLISHED)
    if PUBLISHED
    else schemathesis.openapi.from_dict(openapi.description(ROUTER.routes))
)
LABELS = [one.ok().label for one in SCHEMA.get_all_operations()]
THERE = {
    "namespace": "fuzz",
    "table": "t",
    "view": "v",
    "prefix": "polaris",
    "procedure": "set_catalog_properties",
    "run": "fuzz",
    "catalog": "fuzz",
}


def put_in_place(client: Client) -> None:
    """Create the objects to which half of the requests refer, because earlier requests may have dropped them."""
    client.send("POST", "v1/namespaces", {"namespace": ["fuzz"]})
    client.send("POST", tables("fuzz"), table_request("t"))
    client.send("POST", f"{path('fuzz')}/views", view_request("v"))


def check(case: Case, server: Server, ann: Client) -> None:
    """Send a request, and check that the answer is not a 5xx and that an error has the form of the protocol."""
    chosen = random.Random(repr((case.path_parameters, case.query, case.body)))
    if chosen.random() < 0.7:
        put_in_place(ann)
        case.path_parameters = {
            name: THERE.get(name, value) for name, value in (case.path_parameters or {}).items()
        }
    headers = {"Authorization": f"Bearer {ADMINISTRATOR}"}
    response = case.call(base_url=server.uri, headers=headers, timeout=PATIENCE)
    assert response.status_code < 500, (case.as_curl_command(), response.text)
    if response.status_code >= 400 and case.method != "HEAD":
        assert set(json.loads(response.content)["error"]) >= {"message", "type", "code"}


def is_systematic(case: Case) -> bool:
    """Whether the generator made the case by a rule, such as a value beyond each bound, and not at random."""
    return case.meta is not None and case.meta.phase.name is meta.TestPhase.COVERAGE


SETTINGS = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def send_all(label: str, send: Callable[[Case], None]) -> None:
    """Make the cases of an operation, such as `GET /v1/config`, and call `send` with each.

    `SCHEMA.parametrize` would make all systematic cases when tests are collected, which takes seconds in each process.
    """
    (made,) = get_all_tests(
        schema=SCHEMA.include(name=label), test_func=send, settings=SETTINGS, given_kwargs=None
    )
    made.ok()[1]()


@pytest.mark.filterwarnings("ignore")  # of the generator, about formats that it does not know
@pytest.mark.parametrize("label", LABELS)
def test_no_request_is_answered_by_a_5xx(label: str, server: Server, ann: Client) -> None:
    """With all random cases, and one of `SAMPLE` systematic ones."""

    def send(case: Case) -> None:
        parts = repr((case.path_parameters, case.query, case.headers, case.body))
        if not is_systematic(case) or crc32(parts.encode()) % SAMPLE == 0:
            check(case, server, ann)

    send_all(label, send)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("label", LABELS)
def test_no_systematic_request_is_answered_by_a_5xx(label: str, server: Server, ann: Client) -> None:
    def send(case: Case) -> None:
        if is_systematic(case):
            check(case, server, ann)

    send_all(label, send)


def test_the_description_is_served_and_names_every_route_that_is_offered(server: Server) -> None:
    status, _, text = Remote(server.uri, TOKENS["ann"]).request("GET", "openapi.json")
    described = json.loads(text)
    assert status == 200
    offered = [one for one in ROUTER.routes if one not in unsupported.ROUTES and one.least is not Role.LOCAL]
    assert {one.base for one in offered} == {"v1", "polaris-spark/v1", "api/management/v1", "polaris/v1"}
    for route in offered:
        operation = described["paths"][f"/{route.base}/{route.path}"][route.method.lower()]
        assert operation["responses"]
        if route.body is not None:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            assert schema["$ref"].rsplit("/", 1)[1] in described["components"]["schemas"]
