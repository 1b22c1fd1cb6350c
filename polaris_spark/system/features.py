"""Features of this release that change what a realm stores, so that releases without them must not use the realm.

The record of a realm names the features that its writers may use. `polaris-spark upgrade` adds features. A release
refuses a realm whose record names a feature that the release does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from polaris_spark.errors import NewerFormatError


class Feature(NamedTuple):
    """A feature, and the objects whose existence shows that a realm uses the feature."""

    name: str
    release: str
    """The first release of polaris_spark that has the feature."""
    what: str
    """What is stored."""
    objects: Mapping[str, int]
    """The revisions of object types that this feature introduced, by type."""


ACCESS_CONTROL: Final = "access-control"
"""Name of the feature that must be allowed before access control can be turned on."""
EXTERNAL_AUTHORIZERS: Final = "external-authorizers"
"""Name of the feature that must be allowed before a realm can have an external authorizer."""

FEATURES: Final = (
    Feature(
        "foreign-locations",
        "0.1.0",
        "tables and views that name locations outside their own folder",
        {"table": 2, "view": 2, "unloaded": 2},
    ),
    Feature(
        "indexed-properties",
        "0.1.0",
        "indexes of the properties, branches and tags of large tables",
        {"table": 3},
    ),
    Feature("definers", "0.1.0", "definers of views, whose privileges a view's reader uses", {"view": 3}),
    Feature(ACCESS_CONTROL, "0.1.0", "principals, roles and grants", {"principal": 1}),
    Feature(EXTERNAL_AUTHORIZERS, "0.1.0", "the external authorizer of a realm", {"authorizer": 1}),
    Feature(
        "written-answers",
        "0.1.0",
        "answers to competing processes that messages do not reach",
        {"answer": 1},
    ),
)
"""All features of this release, oldest first. A feature is never removed from this list and never renamed."""

ALL_FEATURES: Final = {feature.name: feature.release for feature in FEATURES}
"""The first release that has each feature of this release, by the feature's name."""


def refuse_unknown_features(features: Mapping[str, str], what: str) -> None:
    """Raise an error if a realm uses a feature that this release does not have.

    Args:
        features: the first release that has each feature, by the feature's name.
        what: the realm, for the message.
    Raises:
        NewerFormatError: this release does not have a feature; the message names the release to install.
    """
    unknown = {name: release for name, release in features.items() if name not in ALL_FEATURES}
    if unknown:
        listed = " and ".join(f"{name!r} (polaris_spark {release})" for name, release in unknown.items())
        raise NewerFormatError(
            f"{what} uses features that this release does not have: {listed}; nothing was changed: install the newest "
            "of these releases, or a later one"
        )


def require_feature(features: Mapping[str, str], name: str, what: str) -> None:
    """Raise an error if the writers of a realm may not use a feature yet.

    Args:
        features: `RealmRecord.features`.
        name: name of the feature.
        what: the realm, for the message.
    Raises:
        NewerFormatError: the feature is not allowed; the message names the command that allows it.
    """
    if name not in features:
        raise NewerFormatError(
            f"{what} does not allow the feature {name!r}, because releases without it may still use the realm: "
            "install this release for every process, then run 'polaris-spark upgrade STORE'"
        )
