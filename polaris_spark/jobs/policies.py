"""Procedures of policies. The routes of `extension.policies` do the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from polaris_spark.access.needs import Asked, Need, On, When
from polaris_spark.errors import InputError
from polaris_spark.jobs.procedure import Call, Column, Parameter, Procedure, columns

if TYPE_CHECKING:
    from polaris_spark.catalog.entities.entities import NamespaceName
    from polaris_spark.maintenance.policies.applicable import Applicable
    from polaris_spark.maintenance.policies.changes import PolicyChange, PolicyName, Target
    from polaris_spark.maintenance.policies.rows import StoredPolicy
    from polaris_spark.rest.session import Session


def policy_name(session: Session, namespace: NamespaceName, name: str) -> PolicyName:
    """Return the name of a policy.

    Raises:
        NoSuchNamespaceError: the namespace does not exist.
    """
    from polaris_spark.maintenance.policies.applicable import namespace_id
    from polaris_spark.maintenance.policies.changes import PolicyName

    id = namespace_id(session.catalog.head(), namespace)
    return PolicyName(id, name, ".".join((*namespace, name)))


def target_of(session: Session, namespace: NamespaceName, table: str) -> Target:
    """Return a target: the catalog, if the namespace is (); or a namespace, if the table is empty; or a table.

    Raises:
        NoSuchNamespaceError, NoSuchTableError: the target does not exist.
    """
    from polaris_spark.maintenance.policies.applicable import AppliedPolicies
    from polaris_spark.maintenance.policies.changes import Target

    id = AppliedPolicies(session.catalog).chain(namespace, table)[-1]
    named = ".".join((*namespace, table)) if table else ".".join(namespace)
    kind = "table" if table else "namespace" if namespace else "the catalog"
    return Target(id, f"{kind} {named}".strip())


def change_policy(
    session: Session, change: Callable[..., PolicyChange[StoredPolicy]], name: PolicyName, *values: Any
) -> StoredPolicy:
    """Commit a change of a policy, and return the policy.

    Args:
        change: class of the change, such as `CreatePolicy`, or a function that calls it.
        values: arguments of the class after the name.
    Raises:
        NotFoundError: the policy does not exist, and the change does not create it.
    """
    from polaris_spark.catalog.catalogs.catalogs import ensure_reference
    from polaris_spark.maintenance.policies.changes import CreatePolicy
    from polaris_spark.maintenance.policies.rows import policies_reference

    if change is not CreatePolicy:
        load_policy(session, name)
    made = change(session.connection.clock, session.operation(), name, *values)
    session.catalog.require_present()
    references, reference = session.catalog.references, policies_reference(session.catalog.row)
    ensure_reference(references, reference, made.operation)
    return references.commit(reference, made)


def load_policy(session: Session, name: PolicyName) -> StoredPolicy:
    """Return a policy.

    Raises:
        NotFoundError: the policy does not exist.
    """
    from polaris_spark.maintenance.policies.applicable import policies_state
    from polaris_spark.maintenance.policies.changes import find_policy, missing

    state = policies_state(session.catalog)
    if state is None:
        raise missing(name)
    return find_policy(state, name)


def _parts(call: Call, text: str) -> tuple[NamespaceName, str]:
    from polaris_spark.jobs.identifiers import levels_named

    catalog = call.session.catalog
    *namespace, name = levels_named(catalog.head(), catalog.name, "table", text)
    return tuple(namespace), name


def _named(call: Call, arguments: Mapping[str, Any]) -> PolicyName:
    return policy_name(call.session, *_parts(call, arguments["name"]))


def _target(call: Call, arguments: Mapping[str, Any]) -> tuple[NamespaceName, str]:
    from polaris_spark.jobs.identifiers import levels_named

    catalog = call.session.catalog
    if "table" in arguments and "namespace" in arguments:
        raise InputError("give a table or a namespace, not both")
    if "table" in arguments:
        return _parts(call, arguments["table"])
    if "namespace" in arguments:
        return levels_named(catalog.head(), catalog.name, "namespace", arguments["namespace"]), ""
    return (), ""


def _create(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.policies.changes import CreatePolicy

    values = (arguments.get(key, "") for key in ("type", "content", "description"))
    return [_row(call, change_policy(call.session, CreatePolicy, _named(call, arguments), *values))]


def _update(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.policies.changes import UpdatePolicy

    values = (arguments.get(key) for key in ("content", "description", "version"))
    return [_row(call, change_policy(call.session, UpdatePolicy, _named(call, arguments), *values))]


def _drop(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.policies.changes import DropPolicy

    name = _named(call, arguments)
    change = partial(DropPolicy, detach_all=arguments.get("detach_all", False))
    change_policy(call.session, change, name)
    return [(name.shown,)]


def _attach(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.policies.changes import AttachPolicy

    parameters = {key: text or "" for key, text in arguments.get("parameters", {}).items()}
    return _change_target(call, AttachPolicy, arguments, parameters)


def _detach(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.policies.changes import DetachPolicy

    return _change_target(call, DetachPolicy, arguments)


def _change_target(
    call: Call, change: Callable[..., PolicyChange[StoredPolicy]], arguments: Mapping[str, Any], *values: Any
) -> Iterable[tuple[Any, ...]]:
    session, name = call.session, _named(call, arguments)
    target = target_of(session, *_target(call, arguments))
    change_policy(session, change, name, target, *values)
    return [(name.shown, target.shown)]


def _show(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.policies.applicable import namespace_id, policies_state
    from polaris_spark.maintenance.policies.changes import policies_in

    state, (namespace, _) = policies_state(call.session.catalog), _target(call, arguments)
    if state is None:
        return []
    id = namespace_id(call.session.catalog.head(), namespace) if namespace else None
    rows = [(_row(call, one), one) for one in policies_in(state, id)]
    kind = arguments.get("type")
    return [row for row, one in rows if row[0] is not None and kind in (None, one.type)]


def _applicable(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.policies.applicable import AppliedPolicies

    namespace, table = _target(call, arguments)
    applied = AppliedPolicies(call.session.catalog)
    found: list[Applicable] = applied.to(namespace, table, arguments.get("type", ""))
    return [(*_row(call, one.policy), one.is_inherited) for one in found]


def _row(call: Call, policy: StoredPolicy) -> tuple[Any, ...]:
    from polaris_spark.catalog.entities.identifiers import dotted
    from polaris_spark.jobs.queue.values import time_of
    from polaris_spark.maintenance.policies.applicable import namespace_of

    namespace = namespace_of(call.session.catalog.head(), policy)
    return (
        None if namespace is None else dotted((*namespace, policy.name)),
        policy.type,
        policy.content,
        policy.description or None,
        policy.version,
        time_of(policy.updated_ms),
        policy.updated_by,
    )


def _has(name: str) -> When:
    return When(f"with the argument `{name}`", lambda asked: name in _given(asked))


def _given(asked: Asked) -> Mapping[str, Any]:
    return asked.body or {}


_OF_CATALOG = When("without a target", lambda asked: not {"table", "namespace"} & set(_given(asked)))
_NAME = Parameter("name", "STRING", "name of the policy with its namespace, such as db.expiry", required=True)
_CONTENT = "rules as JSON, in the schema of the type"
_TABLE = Parameter("table", "STRING", "a table, such as db.t")
_NAMESPACE = Parameter("namespace", "STRING", "a namespace; by default, the catalog")
_COLUMNS = columns(
    "name STRING, type STRING, content STRING, description STRING, version BIGINT, updated TIMESTAMP, "
    "updated_by STRING"
)
_ATTACHED = columns("name STRING, target STRING")


def _on_policy(privilege: str) -> Need:
    return Need(privilege, On.DESTINATION, parameter="name")


def _on_target(what: str) -> tuple[Need, ...]:
    return (
        _on_policy(f"POLICY_{what}"),
        Need(f"CATALOG_{what}_POLICY", On.CATALOG, _OF_CATALOG),
        Need(f"NAMESPACE_{what}_POLICY", On.NAMESPACE, _has("namespace"), "namespace"),
        Need(f"TABLE_{what}_POLICY", On.TABLE, _has("table"), "table"),
    )


CREATE = Procedure(
    name="create_policy",
    comment="Create a policy.",
    parameters=(
        _NAME,
        Parameter("type", "STRING", "type, such as system.snapshot-expiry", required=True),
        Parameter("content", "STRING", _CONTENT, required=True),
        Parameter("description", "STRING", "text for people"),
    ),
    columns=_COLUMNS,
    run=_create,
    over_http=True,
    needs=(_on_policy("POLICY_CREATE"),),
)
UPDATE = Procedure(
    name="update_policy",
    comment="Change the content and description of a policy.",
    parameters=(
        _NAME,
        Parameter("content", "STRING", _CONTENT),
        Parameter("description", "STRING", "text for people"),
        Parameter("version", "BIGINT", "version that the policy must have"),
    ),
    columns=_COLUMNS,
    run=_update,
    over_http=True,
    needs=(_on_policy("POLICY_WRITE"),),
)
DROP = Procedure(
    name="drop_policy",
    comment="Drop a policy.",
    parameters=(
        _NAME,
        Parameter("detach_all", "BOOLEAN", "whether to detach the policy from everything first"),
    ),
    columns=(Column("name", "STRING"),),
    run=_drop,
    over_http=True,
    needs=(
        _on_policy("POLICY_DROP"),
        _on_policy("POLICY_DETACH")._replace(when=_has("detach_all")),
    ),
)
ATTACH = Procedure(
    name="attach_policy",
    comment="Attach a policy to the catalog, a namespace or a table.",
    parameters=(
        _NAME,
        _TABLE,
        _NAMESPACE,
        Parameter("parameters", "MAP<STRING,STRING>", "parameters for engines", takes_variables=False),
    ),
    columns=_ATTACHED,
    run=_attach,
    over_http=True,
    needs=_on_target("ATTACH"),
)
DETACH = Procedure(
    name="detach_policy",
    comment="Detach a policy from the catalog, a namespace or a table.",
    parameters=(_NAME, _TABLE, _NAMESPACE),
    columns=_ATTACHED,
    run=_detach,
    over_http=True,
    needs=_on_target("DETACH"),
)
SHOW = Procedure(
    name="show_policies",
    comment="List the policies of the catalog.",
    parameters=(
        Parameter("namespace", "STRING", "only the policies of this namespace"),
        Parameter("type", "STRING", "only policies of this type"),
    ),
    columns=_COLUMNS,
    run=_show,
    over_http=True,
    only_reads=True,
    needs=(Need("POLICY_READ", On.NAMESPACE, parameter="namespace"),),
)
APPLICABLE = Procedure(
    name="applicable_policies",
    comment="List the policies that apply to the catalog, a namespace or a table, including inherited ones.",
    parameters=(_TABLE, _NAMESPACE, Parameter("type", "STRING", "only policies of this type")),
    columns=(*_COLUMNS, Column("inherited", "BOOLEAN")),
    run=_applicable,
    over_http=True,
    only_reads=True,
    needs=(
        Need("CATALOG_READ_PROPERTIES", On.CATALOG, _OF_CATALOG),
        Need("NAMESPACE_READ_PROPERTIES", On.NAMESPACE, _has("namespace"), "namespace"),
        Need("TABLE_READ_PROPERTIES", On.TABLE, _has("table"), "table"),
    ),
)
PROCEDURES = (CREATE, UPDATE, DROP, ATTACH, DETACH, SHOW, APPLICABLE)
