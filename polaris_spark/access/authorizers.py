"""The interface of external authorizers, which decide in place of the grants of a realm what its principals may do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, Protocol

from polaris_spark.errors import TryAgainError

GROUP: Final = "polaris_spark.authorizers"
"""Entry-point group of authorizers. The name of an entry point is the `type` in the file of settings."""

MAX_SECURABLES: Final = 1_000
"""Maximum number of securables of one question."""

Kind = Literal["realm", "catalog", "branch", "namespace", "table", "view"]


class Securable(NamedTuple):
    """An object on which privileges can be granted, identified by the names of the object and of what contains it."""

    kind: Kind
    catalog: str = ""
    """Name of the catalog; empty for the realm."""
    branch: str = ""
    """Name of the branch; empty for the realm, for a catalog, and in the state of a tag."""
    namespace: tuple[str, ...] = ()
    """The namespace; for a table or view, the namespace that contains it."""
    name: str = ""
    """Name of the table or view."""


class Question(NamedTuple):
    """A question to an authorizer: on which of several securables does a principal have a privilege?"""

    realm: str
    """Name of the realm."""
    principal: str
    roles: tuple[str, ...]
    """Names of the principal roles that the principal uses, sorted."""
    privilege: str
    """Name of the needed privilege (`access.privileges.PRIVILEGES`)."""
    securables: tuple[Securable, ...]
    """At least one securable, and at most 1,000."""


class Authorizer(Protocol):
    """Decides what principals may do. Other packages register authorizers in the entry-point group
    `polaris_spark.authorizers`. Implementations must be thread-safe."""

    def decide(self, question: Question, timeout_seconds: float) -> Sequence[bool]:
        """Return for each securable of a question whether the principal has the privilege on it.

        If this raises an error, takes longer than `timeout_seconds`, or returns anything but one bool for each
        securable, the request is refused.

        Raises:
            AuthorizerError: the authorizer made no decision. The client gets the message, so the message must not
                contain secrets.
        """
        ...


Factory = Callable[[dict[str, object]], Authorizer]
"""Function that an entry point refers to. It takes the settings of the authorizer from the file, without `type`,
`timeout`, `calls` and `cache`, and returns the authorizer. It raises `InputError` if a setting cannot be used."""


class AuthorizerError(TryAgainError):
    """The authorizer of a realm made no decision, so the request is refused."""
