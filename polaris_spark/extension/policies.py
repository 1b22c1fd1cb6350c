"""Routes of policies that are compatible with the catalog API of Apache Polaris
(https://github.com/apache/polaris/blob/main/spec/polaris-catalog-apis/policy-apis.yaml).

Policies can be attached to the catalog, to namespaces and to tables. The procedures of `jobs.policies` do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, TypeVar

import msgspec

from polaris_spark.access.needs import Asked, Need, On, When
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.entities.entities import NamespaceName, namespace_in
from polaris_spark.errors import BadRequestError
from polaris_spark.jobs.policies import change_policy, load_policy, policy_name, target_of
from polaris_spark.maintenance.policies.applicable import (
    AppliedPolicies,
    namespace_id,
    policies_state,
)
from polaris_spark.maintenance.policies.changes import (
    AttachPolicy,
    CreatePolicy,
    DetachPolicy,
    DropPolicy,
    PolicyName,
    UpdatePolicy,
    policies_in,
)
from polaris_spark.maintenance.policies.rows import StoredPolicy
from polaris_spark.maintenance.policies.types import TYPES
from polaris_spark.rest.messages import Identifier, Message, decode, encode
from polaris_spark.rest.request import NO_CONTENT, Request, Response, json_response
from polaris_spark.rest.router import POLARIS, Route
from polaris_spark.rest.session import Session

T = TypeVar("T")

MAX_PAGE = 1_000
"""Maximum number of policies in one response."""


class CreatePolicyRequest(Message, frozen=True, gc=False):
    """A request to create a policy."""

    name: str
    type: str
    content: str = ""
    """The rules as JSON text, in the schema of the type."""
    description: str = ""


class UpdatePolicyRequest(Message, frozen=True, gc=False):
    """A request to change a policy."""

    current_policy_version: int
    """Version that the policy must have."""
    content: str | None = None
    """The new rules; None to keep them."""
    description: str | None = None
    """The new description; None to keep it."""


class PolicyTarget(Message, frozen=True, gc=False):
    """The target of a policy: the catalog, a namespace or a table."""

    type: Literal["catalog", "namespace", "table-like"]
    path: list[str] = msgspec.field(default_factory=list)
    """Levels of the namespace, and then the name of the table; empty for the catalog."""


class AttachPolicyRequest(Message, frozen=True, gc=False):
    """A request to attach a policy to a target."""

    target: PolicyTarget
    parameters: dict[str, str] = msgspec.field(default_factory=dict)


class DetachPolicyRequest(Message, frozen=True, gc=False):
    """A request to detach a policy from a target."""

    target: PolicyTarget


class PolicyModel(Message, frozen=True, omit_defaults=False, gc=False):
    """A policy."""

    policy_type: str
    inheritable: bool
    name: str
    description: str
    content: str
    version: int
    """Number of updates."""


class LoadPolicyResponse(Message, frozen=True, gc=False):
    """A policy."""

    policy: PolicyModel


class ListPoliciesResponse(Message, frozen=True, omit_defaults=False, gc=False):
    """A page of the names of policies."""

    identifiers: list[Identifier]
    next_page_token: str | None = None


class ApplicablePolicy(PolicyModel, frozen=True, omit_defaults=False, gc=False):
    """A policy that applies to a target."""

    inherited: bool
    """Whether the policy is attached to a namespace or catalog above, and not to the target itself."""
    namespace: list[str]
    """Namespace of the policy."""


class ApplicablePoliciesResponse(Message, frozen=True, omit_defaults=False, gc=False):
    """A page of the policies that apply to a target."""

    applicable_policies: list[ApplicablePolicy]
    next_page_token: str | None = None


def create_policy(catalog: Catalog, request: Request) -> Response:
    """Answer `POST namespaces/{namespace}/policies`: create a policy."""
    asked, session = decode(request.body, CreatePolicyRequest), _session(catalog, request)
    name = policy_name(session, _namespace(request), asked.name)
    values = (asked.type, asked.content, asked.description)
    return _loaded(change_policy(session, CreatePolicy, name, *values))


def list_policies(catalog: Catalog, request: Request) -> Response:
    """Answer `GET namespaces/{namespace}/policies`: list the policies of a namespace."""
    session, namespace = _session(catalog, request), _namespace(request)
    id, state = namespace_id(session.catalog.head(), namespace), policies_state(session.catalog)
    kind = request.query.get("policyType")
    found = [] if state is None else policies_in(state, id)
    names = [Identifier(list(namespace), one.name) for one in found if kind in (None, one.type)]
    return json_response(encode(ListPoliciesResponse(*_page(request, names))))


def get_policy(catalog: Catalog, request: Request) -> Response:
    """Answer `GET namespaces/{namespace}/policies/{policy}`: return a policy."""
    session = _session(catalog, request)
    return _loaded(load_policy(session, _name(session, request)))


def update_policy(catalog: Catalog, request: Request) -> Response:
    """Answer `PUT namespaces/{namespace}/policies/{policy}`: change a policy."""
    asked, session = decode(request.body, UpdatePolicyRequest), _session(catalog, request)
    values = (asked.content, asked.description, asked.current_policy_version)
    return _loaded(change_policy(session, UpdatePolicy, _name(session, request), *values))


def drop_policy(catalog: Catalog, request: Request) -> Response:
    """Answer `DELETE namespaces/{namespace}/policies/{policy}`: drop a policy."""
    session = _session(catalog, request)
    detach_all = request.query.get("detach-all", "false").lower() == "true"
    change_policy(session, partial(DropPolicy, detach_all=detach_all), _name(session, request))
    return NO_CONTENT


def attach_policy(catalog: Catalog, request: Request) -> Response:
    """Answer `PUT namespaces/{namespace}/policies/{policy}/mappings`: attach a policy to a target."""
    asked, session = decode(request.body, AttachPolicyRequest), _session(catalog, request)
    name, target = _name(session, request), target_of(session, *_place(asked.target))
    change_policy(session, AttachPolicy, name, target, asked.parameters)
    return NO_CONTENT


def detach_policy(catalog: Catalog, request: Request) -> Response:
    """Answer `POST namespaces/{namespace}/policies/{policy}/mappings`: detach a policy from a target."""
    asked, session = decode(request.body, DetachPolicyRequest), _session(catalog, request)
    name, target = _name(session, request), target_of(session, *_place(asked.target))
    change_policy(session, DetachPolicy, name, target)
    return NO_CONTENT


def applicable_policies(catalog: Catalog, request: Request) -> Response:
    """Answer `GET applicable-policies`: list the policies that apply to the catalog, a namespace or a table."""
    session, query = _session(catalog, request), request.query
    namespace: NamespaceName = namespace_in(query["namespace"]) if query.get("namespace") else ()
    table = query.get("target-name", "")
    if table and not namespace:
        raise BadRequestError("the parameter target-name is given without the parameter namespace; give both")
    applied = AppliedPolicies(session.catalog)
    found = [
        ApplicablePolicy(
            *_described(one.policy), one.is_inherited, list(applied.namespace_of(one.policy) or ())
        )
        for one in applied.to(namespace, table, query.get("policyType", ""))
    ]
    return json_response(encode(ApplicablePoliciesResponse(*_page(request, found))))


def _session(catalog: Catalog, request: Request) -> Session:
    session, caller = request.session, request.caller
    assert isinstance(session, Session)  # every transport with these routes passes a session
    if caller.is_local:
        return session.derive(catalog=catalog, notes=request.notes)
    return session.derive(
        caller.principal,
        catalog=catalog,
        notes=request.notes,
        roles=caller.roles,
        is_verified=caller.is_verified,
    )


def _namespace(request: Request) -> NamespaceName:
    return namespace_in(request.params["namespace"])


def _name(session: Session, request: Request) -> PolicyName:
    return policy_name(session, _namespace(request), request.params["policy"])


def _place(target: PolicyTarget) -> tuple[NamespaceName, str]:
    """Return the namespace and the table of a target."""
    least = {"catalog": 0, "namespace": 1, "table-like": 2}[target.type]
    if len(target.path) < least or (not least and target.path):
        wanted = ("empty", "the levels of a namespace", "the levels of a namespace and the name of a table")[
            least
        ]
        raise BadRequestError(
            f"the path of a target of type {target.type} is {str(target.path)[:200]}; it must be {wanted}"
        )
    if target.type == "table-like":
        return tuple(target.path[:-1]), target.path[-1]
    return tuple(target.path), ""


def _loaded(policy: StoredPolicy) -> Response:
    return json_response(encode(LoadPolicyResponse(PolicyModel(*_described(policy)))))


def _described(policy: StoredPolicy) -> tuple[str, bool, str, str, str, int]:
    known = TYPES.get(policy.type)  # a newer release may know more types
    inheritable = known is not None and known.is_inheritable
    return policy.type, inheritable, policy.name, policy.description, policy.content, policy.version


def _page(request: Request, found: Sequence[T]) -> tuple[list[T], str | None]:
    """Return a page of a list, and the token of the next page."""
    numbers = []
    for name, default in (("pageToken", "0"), ("pageSize", str(MAX_PAGE))):
        text = request.query.get(name) or default
        if not (text.isascii() and text.isdecimal() and len(text) <= 10):
            raise BadRequestError(f"{name} is {text[:80]!r}; it must be a whole number")
        numbers.append(int(text))
    first, size = numbers[0], max(1, min(numbers[1], MAX_PAGE))
    token = str(first + size) if first + size < len(found) else None
    return list(found[first : first + size]), token


def _is(kind: str) -> When:
    return When(f"for a target of type {kind}", lambda asked: _type(asked) == kind)


def _type(asked: Asked) -> str:
    return str(asked.body.target.type)


def _mapping_needs(what: str) -> tuple[Need, ...]:
    return (
        Need(f"POLICY_{what}", On.NAMESPACE),
        Need(f"CATALOG_{what}_POLICY", On.CATALOG, _is("catalog")),
        Need(f"NAMESPACE_{what}_POLICY", On.TARGET_NAMESPACE, _is("namespace")),
        Need(f"TABLE_{what}_POLICY", On.TARGET_TABLE, _is("table-like")),
    )


_DETACHES = When("with detach-all", lambda asked: asked.query.get("detach-all", "").lower() == "true")
_WITHOUT = When("without a namespace", lambda asked: not asked.query.get("namespace"))
_WITH_NAMESPACE = When(
    "with a namespace only",
    lambda asked: bool(asked.query.get("namespace")) and not asked.query.get("target-name"),
)
_WITH_TABLE = When(
    "with a table", lambda asked: bool(asked.query.get("namespace") and asked.query.get("target-name"))
)
_POLICIES = "namespaces/{namespace}/policies"
_POLICY = f"{_POLICIES}/{{policy}}"
_PAGED = ("pageToken", "pageSize")

ROUTES = (
    Route(
        "POST",
        _POLICIES,
        create_policy,
        POLARIS,
        body=CreatePolicyRequest,
        result=LoadPolicyResponse,
        needs=(Need("POLICY_CREATE", On.NAMESPACE),),
    ),
    Route(
        "GET",
        _POLICIES,
        list_policies,
        POLARIS,
        result=ListPoliciesResponse,
        query=("policyType", *_PAGED),
        needs=(Need("POLICY_LIST", On.NAMESPACE),),
    ),
    Route(
        "GET",
        _POLICY,
        get_policy,
        POLARIS,
        result=LoadPolicyResponse,
        needs=(Need("POLICY_READ", On.NAMESPACE),),
    ),
    Route(
        "PUT",
        _POLICY,
        update_policy,
        POLARIS,
        body=UpdatePolicyRequest,
        result=LoadPolicyResponse,
        needs=(Need("POLICY_WRITE", On.NAMESPACE),),
    ),
    Route(
        "DELETE",
        _POLICY,
        drop_policy,
        POLARIS,
        query=("detach-all",),
        needs=(Need("POLICY_DROP", On.NAMESPACE), Need("POLICY_DETACH", On.NAMESPACE, _DETACHES)),
    ),
    Route(
        "PUT",
        f"{_POLICY}/mappings",
        attach_policy,
        POLARIS,
        body=AttachPolicyRequest,
        needs=_mapping_needs("ATTACH"),
    ),
    Route(
        "POST",
        f"{_POLICY}/mappings",
        detach_policy,
        POLARIS,
        body=DetachPolicyRequest,
        needs=_mapping_needs("DETACH"),
    ),
    Route(
        "GET",
        "applicable-policies",
        applicable_policies,
        POLARIS,
        result=ApplicablePoliciesResponse,
        query=("namespace", "target-name", "policyType", *_PAGED),
        needs=(
            Need("CATALOG_READ_PROPERTIES", On.CATALOG, _WITHOUT),
            Need("NAMESPACE_READ_PROPERTIES", On.QUERY_NAMESPACE, _WITH_NAMESPACE),
            Need("TABLE_READ_PROPERTIES", On.QUERY_TABLE, _WITH_TABLE),
        ),
    ),
)
