"""Routes of the REST protocol for namespaces."""

from __future__ import annotations

import re

from polaris_spark.access.needs import Need, On
from polaris_spark.access.privileges import SEES_NAMESPACE
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.entities.entities import (
    NamespaceName,
    find,
    namespace_in,
    namespace_key,
    parent_in,
    require_namespace,
)
from polaris_spark.catalog.entities.listing import list_names
from polaris_spark.catalog.entities.namespace_changes import (
    CreateNamespace,
    DropNamespace,
    UpdateNamespace,
    require_location,
    with_default_location,
)
from polaris_spark.catalog.rows import NAMES, NAMESPACE, Namespace
from polaris_spark.errors import BadRequestError, NoSuchNamespaceError
from polaris_spark.index.keys import children
from polaris_spark.rest import messages
from polaris_spark.rest.request import NO_CONTENT, Request, Response, json_response
from polaris_spark.rest.router import Route

PAGES = ("pageToken", "pageSize")
"""Names of the query parameters by which a client requests a list page by page."""

_PAGE_SIZE = re.compile(r"0*[1-9][0-9]{0,8}", re.ASCII)


def page(request: Request) -> tuple[str | None, int | None]:
    """Return (page token, page size) of a request for a list. The token is None for the first page.

    If the request has neither `pageToken` nor `pageSize`, both are None, and the response contains the whole list.

    Raises:
        BadRequestError: the page size is not a positive number.
    """
    token, size = request.query.get("pageToken"), request.query.get("pageSize")
    if size is not None and not _PAGE_SIZE.fullmatch(size):
        raise BadRequestError(f"pageSize is {size[:20]!r}; it must be a positive number of at most 9 digits")
    if token is None and size is None:
        return None, None
    return token or None, int(size) if size is not None else 1_000


def list_namespaces(catalog: Catalog, request: Request) -> Response:
    """Answer `GET namespaces`: list the namespaces in a parent namespace, or at the top level."""
    token, size = page(request)
    parent = request.query.get("parent")
    view = catalog.view()
    above = parent_in(view, parent) if parent else ()
    if token is None:
        require_namespace(view, above)
    if catalog.records_reads:
        view.scan(NAMES, *children(above, NAMESPACE))
    listed = list_names(
        view.base, catalog.reference, above, NAMESPACE, token=token, size=size, keep=request.keep
    )
    names = [[*above, name] for name in listed.names]
    return json_response(messages.encode(messages.ListNamespacesResponse(names, listed.next)))


def create_namespace(catalog: Catalog, request: Request) -> Response:
    """Answer `POST namespaces`: create a namespace."""
    body = messages.decode(request.body, messages.CreateNamespaceRequest)
    name = tuple(body.namespace)
    require_location(body.properties or {})
    change = CreateNamespace(catalog.context, request.operation(), name, body.properties or {})
    return _answer(catalog, name, catalog.commit(change))


def load_namespace(catalog: Catalog, request: Request) -> Response:
    """Answer `GET namespaces/{namespace}`: return a namespace's properties."""
    name = namespace_in(request.params["namespace"])
    view = catalog.view()
    found = require_namespace(view, name)
    assert found is not None
    return _answer(catalog, name, view.get(found.content, Namespace))


def _answer(catalog: Catalog, name: NamespaceName, namespace: Namespace) -> Response:
    properties = with_default_location(catalog.context, name, namespace.properties)
    return json_response(messages.encode(messages.NamespaceResponse(list(name), properties)))


def namespace_exists(catalog: Catalog, request: Request) -> Response:
    """Answer `HEAD namespaces/{namespace}`: check that a namespace exists."""
    name = namespace_in(request.params["namespace"])
    if find(catalog.view(), namespace_key(name)) is None:
        raise NoSuchNamespaceError(f"Namespace does not exist: {'.'.join(name)}")
    return NO_CONTENT


def drop_namespace(catalog: Catalog, request: Request) -> Response:
    """Answer `DELETE namespaces/{namespace}`: drop a namespace."""
    name = namespace_in(request.params["namespace"])
    catalog.commit(DropNamespace(catalog.context, request.operation(), name))
    return NO_CONTENT


def update_properties(catalog: Catalog, request: Request) -> Response:
    """Answer `POST namespaces/{namespace}/properties`: set and remove a namespace's properties."""
    body = messages.decode(request.body, messages.UpdateNamespacePropertiesRequest)
    name = namespace_in(request.params["namespace"])
    require_location(body.updates or {})
    change = UpdateNamespace(
        catalog.context, request.operation(), name, body.updates or {}, body.removals or []
    )
    done = catalog.commit(change)
    return json_response(messages.encode(messages.UpdateNamespacePropertiesResponse(*done)))


ROUTES = [
    Route(
        "GET",
        "namespaces",
        list_namespaces,
        query=("parent", *PAGES),
        needs=(Need("NAMESPACE_LIST", On.LISTED),),
    ),
    Route(
        "POST",
        "namespaces",
        create_namespace,
        body=messages.CreateNamespaceRequest,
        needs=(Need("NAMESPACE_CREATE", On.NEW_NAMESPACE),),
    ),
    Route(
        "GET",
        "namespaces/{namespace}",
        load_namespace,
        needs=(Need("NAMESPACE_READ_PROPERTIES", On.NAMESPACE),),
    ),
    Route("HEAD", "namespaces/{namespace}", namespace_exists, needs=(Need(SEES_NAMESPACE, On.NAMESPACE),)),
    Route("DELETE", "namespaces/{namespace}", drop_namespace, needs=(Need("NAMESPACE_DROP", On.NAMESPACE),)),
    Route(
        "POST",
        "namespaces/{namespace}/properties",
        update_properties,
        body=messages.UpdateNamespacePropertiesRequest,
        needs=(Need("NAMESPACE_WRITE_PROPERTIES", On.NAMESPACE),),
    ),
]
