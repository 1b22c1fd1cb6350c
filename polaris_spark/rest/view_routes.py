"""Routes of the REST protocol for views."""

from __future__ import annotations

import msgspec

from polaris_spark.access.needs import REFERENCED_BY, Need, On
from polaris_spark.access.privileges import SEES_VIEW
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.entities.entities import TableName, find, namespace_in, require, table_key
from polaris_spark.catalog.metadata.renderer import render_view
from polaris_spark.catalog.metadata.rows import View
from polaris_spark.catalog.rows import VIEW
from polaris_spark.catalog.tables.contents import DropContent, StoredContent
from polaris_spark.catalog.tables.registration import RegisterView
from polaris_spark.catalog.tables.view_changes import CommitView, CreateView
from polaris_spark.errors import BadRequestError, NoSuchViewError
from polaris_spark.rest import messages
from polaris_spark.rest.namespace_routes import PAGES
from polaris_spark.rest.request import NO_CONTENT, Request, Response, json_response
from polaris_spark.rest.router import Route
from polaris_spark.rest.table_routes import (
    READS_FILE,
    commit_updates,
    drop,
    identifier_name,
    list_kind,
    rename_kind,
    response_after_commit,
)


def name_of(request: Request) -> TableName:
    """Return the name of the view that the path of a request contains."""
    return TableName(namespace_in(request.params["namespace"]), request.params["view"])


def answer(catalog: Catalog, stored: StoredContent[View]) -> Response:
    """Return the response that contains a view (`LoadViewResult`)."""
    location = msgspec.json.encode(stored.value.metadata_location).decode()
    metadata = render_view(stored.value, catalog.reader).decode()
    return json_response(f'{{"metadata-location":{location},"metadata":{metadata},"config":{{}}}}')


def list_views(catalog: Catalog, request: Request) -> Response:
    """Answer `GET namespaces/{namespace}/views`: list the views in a namespace."""
    return list_kind(catalog, request, VIEW)


def create_view(catalog: Catalog, request: Request) -> Response:
    """Answer `POST namespaces/{namespace}/views`: create a view."""
    body = messages.decode(request.body, messages.CreateViewRequest)
    name = TableName(namespace_in(request.params["namespace"]), body.name)
    change = CreateView(catalog.context, request.operation(), name, msgspec.to_builtins(body))
    stored = catalog.commit(change)
    return response_after_commit(lambda: answer(catalog, stored))


def register_view(catalog: Catalog, request: Request) -> Response:
    """Answer `POST namespaces/{namespace}/register-view`: register a view by its metadata file."""
    body = messages.decode(request.body, messages.RegisterViewRequest)
    name = TableName(namespace_in(request.params["namespace"]), body.name)
    change = RegisterView(catalog.context, request.operation(), name, body.metadata_location, catalog.files)
    stored = catalog.commit(change)
    return response_after_commit(lambda: answer(catalog, stored))


def load_view(catalog: Catalog, request: Request) -> Response:
    """Answer `GET namespaces/{namespace}/views/{view}`: return a view."""
    name = name_of(request)

    def load() -> Response:
        view = catalog.view()
        found = require(view, name, VIEW)
        return answer(catalog, StoredContent(found.content, view.get(found.content, View)))

    return catalog.loading(load, request.principal)


def view_exists(catalog: Catalog, request: Request) -> Response:
    """Answer `HEAD namespaces/{namespace}/views/{view}`: check that a view exists."""
    name = name_of(request)
    if find(catalog.view(), table_key(name, VIEW)) is None:
        raise NoSuchViewError(f"View does not exist: {name}")
    return NO_CONTENT


def commit_view(catalog: Catalog, request: Request) -> Response:
    """Answer `POST namespaces/{namespace}/views/{view}`: commit updates of a view."""
    body = messages.decode(request.body, messages.CommitViewRequest)
    name = name_of(request)
    if body.identifier is not None and identifier_name(body.identifier) != name:
        raise BadRequestError(
            f"the request's path is for {name}, but its body is for {identifier_name(body.identifier)}"
        )
    change = CommitView(
        catalog.context, request.operation(), name, body.requirements or [], body.updates or []
    )
    stored = commit_updates(catalog, change)
    return response_after_commit(lambda: answer(catalog, stored))


def drop_view(catalog: Catalog, request: Request) -> Response:
    """Answer `DELETE namespaces/{namespace}/views/{view}`: drop a view."""
    drop(catalog, DropContent(catalog.context, request.operation(), name_of(request), View))
    return NO_CONTENT


def rename_view(catalog: Catalog, request: Request) -> Response:
    """Answer `POST views/rename`: rename a view."""
    return rename_kind(catalog, request, VIEW)


_VIEW = "namespaces/{namespace}/views/{view}"

ROUTES = [
    Route(
        "GET",
        "namespaces/{namespace}/views",
        list_views,
        query=PAGES,
        needs=(Need("VIEW_LIST", On.LISTED_VIEWS),),
    ),
    Route(
        "POST",
        "namespaces/{namespace}/views",
        create_view,
        body=messages.CreateViewRequest,
        needs=(Need("VIEW_CREATE", On.NAMESPACE),),
    ),
    Route(
        "POST",
        "namespaces/{namespace}/register-view",
        register_view,
        body=messages.RegisterViewRequest,
        needs=(Need("VIEW_CREATE", On.NAMESPACE), *READS_FILE),
    ),
    Route(
        "POST",
        "views/rename",
        rename_view,
        body=messages.RenameRequest,
        needs=(Need("VIEW_DROP", On.NAMED_VIEW), Need("VIEW_CREATE", On.DESTINATION)),
    ),
    Route(
        "GET",
        _VIEW,
        load_view,
        query=(REFERENCED_BY,),
        needs=(Need("VIEW_READ_PROPERTIES", On.VIEW, through_views=True),),
    ),
    Route(
        "POST",
        _VIEW,
        commit_view,
        body=messages.CommitViewRequest,
        needs=(Need("VIEW_WRITE_PROPERTIES", On.VIEW),),
    ),
    Route("DELETE", _VIEW, drop_view, needs=(Need("VIEW_DROP", On.VIEW),)),
    Route("HEAD", _VIEW, view_exists, needs=(Need(SEES_VIEW, On.VIEW),)),
]
