"""Declarations of the privileges that requests need, and of the securables on which they need them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple


class On(Enum):
    """The kind of securable on which a request needs a privilege. For a namespace, table or view, the member also says
    which part of the request names it, such as the path, the query or the body."""

    NOTHING = "no privilege"
    """Every principal of the realm may send the request."""
    KNOWN_CATALOG = "any privilege in the catalog"
    REALM = "the realm"
    CATALOG = "the catalog"
    BRANCH = "the branch"
    AREA = "the branch of the staging area"
    STATE = "the branch (for a tag, the catalog) of the state"
    NAMESPACE = "the namespace"
    LISTED = "the parent namespace, or the catalog"
    """The namespace in the query parameter `parent`. Without the privilege, the list contains only the namespaces that
    the caller may see."""
    LISTED_TABLES = "the namespace "
    """The namespace in the path. Without the privilege, the list contains only the tables that the caller may see."""
    LISTED_VIEWS = "the namespace  "
    NEW_NAMESPACE = "the parent namespace, or the catalog "
    TABLE = "the table"
    TABLE_OR_NEW = "the table, or TABLE_CREATE on the namespace if the table does not exist"
    VIEW = "the view"
    TABLE_ID = "the table "
    """The table whose entity id is in the path."""
    NAMED_TABLE = "the table named in the body"
    NAMED_VIEW = "the view named in the body"
    TARGET_NAMESPACE = "the target in the body"
    TARGET_TABLE = "the target in the body "
    QUERY_NAMESPACE = "the namespace in the query"
    QUERY_TABLE = "the table in the query"
    DESTINATION = "the namespace of the new name"
    EACH_TABLE = "each table in the body"
    EACH_NAMESPACE = "the namespace of each table in the body"
    EACH_REQUEST = "as each request in the body"
    PROCEDURE = "as the procedure"
    OWN = "own"
    """The function that answers the request checks the privileges itself, because they depend on more than names."""

    @property
    def words(self) -> str:
        """Description of the securable."""
        return self.value.strip()


REFERENCED_BY: Final = "referenced-by"
"""Parameter of the query in requests that load a table or view: the views through which it is read."""


class Asked(NamedTuple):
    """The parts of a request from which needs are determined."""

    params: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    """The decoded message of the body; None if the route has none. For `EACH_TABLE`, the change of one table."""


class When(NamedTuple):
    """A condition on a request: a description, and a function that tests it. A need with a condition applies only to
    requests that fulfill the condition."""

    words: str
    holds: Callable[[Asked], bool]


class Need(NamedTuple):
    """A privilege that a request needs: its name, on which securable, and under which condition."""

    privilege: str
    on: On
    when: When | None = None
    """The need applies only under this condition; None if always."""
    parameter: str = ""
    """For a procedure: name of the parameter that names the branch, state, namespace, table or view."""
    of: str = ""
    """For a state: name of the parameter that names the branch in whose history the state is looked up; empty for the
    session's branch."""
    through_views: bool = False
    """Whether the need is also fulfilled if the caller reads the table or view through views that it may read
    (`catalog.materialized.view_chains`)."""
    why: str = ""
    """Description of the requirement, if `on` is `OWN`."""


Needs = tuple[Need, ...]

UNDECLARED: Needs = (Need("SERVICE_MANAGE_ACCESS", On.REALM),)
"""The needs of routes and procedures that declare none. All routes and procedures of this package declare their needs.
Those of other packages may not."""

OPEN: Needs = (Need("", On.NOTHING),)
"""The needs of a request that every principal may send."""
