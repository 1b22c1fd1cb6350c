"""Procedures of the branches and tags of a catalog: create, list, describe, change, drop and restore them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from polaris_spark.access.needs import Need, On
from polaris_spark.errors import (
    AlreadyExistsError,
    CommitFailedError,
    InputError,
    NotFoundError,
    ProtectedBranchError,
)
from polaris_spark.jobs.merges import reads
from polaris_spark.jobs.procedure import IF_EXISTS, IF_NOT_EXISTS, Call, Column, Parameter, Procedure, columns
from polaris_spark.names import MAIN

if TYPE_CHECKING:
    from polaris_spark.catalog.branches.branches import Branch, Kind


def _create(call: Call, arguments: Mapping[str, Any], kind: Kind) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches import branches

    catalog, name = call.session.catalog, arguments["name"]
    if kind == "branch":
        clear(call, name)
    try:
        made = branches.create(
            catalog,
            kind,
            name,
            call.session.operation(),
            source=arguments.get("source", catalog.branch),
            point=arguments.get("at", ""),
            comment=arguments.get("comment", ""),
        )
    except AlreadyExistsError:
        found = _all(call, kind).get(name)
        if found is None or not arguments.get("if_not_exists", False):
            raise
        return [(*_commit(found), False)]
    if kind == "branch":
        begin(call, name)
    return [(*_commit(made), True)]


def clear(call: Call, name: str) -> None:
    """In a realm with access control, remove the grants on a dropped branch before a new branch gets its name. So these
    grants never apply to the new branch, even if this process ends before it calls `begin`."""
    from polaris_spark.access.grant_changes import ClearBranch
    from polaris_spark.access.securables import branch
    from polaris_spark.catalog.catalogs.references import head_name

    session = call.session
    row, references = session.catalog.row, session.catalog.references
    rules = session.access.newest()
    securable = branch(row.entity_id, name)
    if rules is not None and rules.knows(securable):
        there = references.lookup(head_name(row, name))
        if there is None or there.registration.state != "live":
            session.access.change(ClearBranch(session.connection.clock, session.operation(), securable))


def _has_rights(call: Call, name: str) -> bool:
    """Whether there are grants on a branch, or it has an owner, in a realm with access control."""
    from polaris_spark.access.securables import branch

    rules = call.session.access.newest()
    return rules is not None and rules.knows(branch(call.session.catalog.row.entity_id, name))


def begin(call: Call, name: str, *, renamed: str | None = None) -> None:
    """In a realm with access control, make the caller the owner of a new branch, and remove grants on an earlier branch
    of the same name. A renamed branch keeps its owner and grants."""
    session = call.session
    if session.access.is_on:
        from polaris_spark.access.grant_changes import BeginBranch
        from polaris_spark.access.securables import branch

        id = session.catalog.row.entity_id
        old = None if renamed is None else branch(id, renamed)
        clock, operation = session.connection.clock, session.operation()
        session.access.change(BeginBranch(clock, operation, branch(id, name), renamed=old))


def _drop(call: Call, arguments: Mapping[str, Any], kind: Kind) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches import branches

    drop = branches.drop_branch if kind == "branch" else branches.drop_tag
    name = arguments["name"]
    try:
        drop(call.session.catalog, name, call.session.operation())
    except NotFoundError:
        if not arguments.get("if_exists", False):
            raise
        return [(name, False)]
    return [(name, True)]


def _undrop(call: Call, arguments: Mapping[str, Any], kind: Kind) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches import branches

    return [_commit(branches.undrop(call.session.catalog, kind, arguments["name"], call.session.operation()))]


def _show_branches(call: Call, _: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    found = _all(call, "branch")
    main = found.get(MAIN)
    for one in found.values():
        call.check()
        yield _branch_row(call, one, main)


def _describe_branch(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches.branches import branch_of

    name = arguments["name"]
    branch_of(call.session.catalog, name)  # raises an error if it does not exist
    found = _all(call, "branch")
    return [_branch_row(call, found[name], found.get(MAIN))] if name in found else []


def _branch_row(call: Call, branch: Branch, main: Branch | None) -> tuple[Any, ...]:
    from polaris_spark.catalog.branches.merge_base import distance

    store = call.session.catalog.references.store
    parted = None if main is None else distance(store, branch.head, main.head)
    apart = (None, None) if parted is None else parted
    described = (*_described(branch), branch.registration.protected, *_kept(branch))
    return (*_commit(branch), *apart, *described, _created(call, branch, "branch"))


def _rename(call: Call, arguments: Mapping[str, Any], kind: Kind) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches import branch_changes

    name, to = arguments["name"], arguments["to"]
    if kind == "branch":
        clear(call, to)
    catalog = call.session.catalog
    try:
        renamed = branch_changes.rename(catalog, kind, name, to, call.session.operation())
    except NotFoundError:
        # A process that died may have renamed the branch, but not moved the owner and the grants.
        done = branch_changes.was_renamed(catalog, name, to) if kind == "branch" else None
        if done is None or not _has_rights(call, name):
            raise
        renamed = done
    if kind == "branch":
        begin(call, to, renamed=name)
    return [_commit(renamed)]


def _reassign(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches.branch_changes import reassign_branch
    from polaris_spark.catalog.branches.branches import branch_of
    from polaris_spark.catalog.catalogs.references import head_name
    from polaris_spark.maintenance.log_archive import archive_log
    from polaris_spark.maintenance.periods import own_policy

    catalog, name, operation = call.session.catalog, arguments["name"], call.session.operation()
    before = branch_of(catalog, name)
    expected = arguments.get("expected") or str(before.head.commit)
    if own_policy(catalog).log_ms:
        # Afterwards, the commits of the branch may be in no history.
        reference, end = head_name(catalog.row, name), before.head.number + 1
        archive_log(catalog.references, reference, before, before=end, operation=operation)
    return [_commit(reassign_branch(catalog, name, arguments["to"], operation, expected=expected))]


def _protect(call: Call, arguments: Mapping[str, Any], *, protected: bool) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches.branch_changes import protect_branch

    operation = call.session.operation()
    changed = protect_branch(call.session.catalog, arguments["name"], operation, protected=protected)
    return [(changed.name, changed.registration.protected)]


def _alter(call: Call, arguments: Mapping[str, Any], kind: Kind) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches import branch_changes
    from polaris_spark.property_values import duration_ms

    changes = {name: arguments[name] for name in ("owner", "comment", "keep_commits") if name in arguments}
    if changes.get("keep_commits", 0) < 0:
        raise InputError(f"keep_commits is {changes['keep_commits']}; it must not be negative")
    if "retention" in arguments:
        changes["keep_ms"] = duration_ms("retention", arguments["retention"])
    operation = call.session.operation()
    changed = branch_changes.alter(call.session.catalog, kind, arguments["name"], operation, changes)
    return [(changed.name, *_described(changed), *(_kept(changed) if kind == "branch" else ()))]


def _drop_unused(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches.branches import branch_of, drop_branch
    from polaris_spark.property_values import duration_ms

    catalog, dry_run = call.session.catalog, arguments.get("dry_run", False)
    newest = catalog.context.clock.now_ms() - duration_ms("unused_for", arguments["unused_for"])
    for one in _all(call, "branch").values():
        call.check()
        used = max(one.head.time, one.registration.time)
        if one.name != MAIN and not one.registration.protected and used < newest:
            try:
                if dry_run:
                    branch_of(catalog, one.name)
                else:
                    drop_branch(catalog, one.name, call.session.operation(), expected=one.head.commit)
            except (CommitFailedError, NotFoundError, ProtectedBranchError):
                continue  # somebody has committed to it, dropped or protected it since it was listed
            yield (*_commit(one), one.registration.owner or None, not dry_run)


def _show_tags(call: Call, _: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    return [
        (*_commit(one), *_described(one), _created(call, one, "tag")) for one in _all(call, "tag").values()
    ]


def _describe_tag(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches.branches import tag_of

    name = arguments["name"]
    tag_of(call.session.catalog, name)  # raises an error if it does not exist
    return [row for row in _show_tags(call, {}) if row[0] == name]


def _all(call: Call, kind: str) -> dict[str, Branch]:
    from polaris_spark.catalog.branches.branches import branches, tags

    listed = branches if kind == "branch" else tags
    return {one.name: one for one in listed(call.session.catalog)}


def _commit(branch: Branch) -> tuple[Any, ...]:
    head = branch.head
    return branch.name, head.number, head.commit, _time(head.time)


def _created(call: Call, branch: Branch, kind: str) -> datetime:
    from polaris_spark.catalog.branches.merge_base import created_ms

    store, catalog = call.session.catalog.references.store, call.session.catalog.row.entity_id
    return _time(created_ms(store, branch.head, branch.registration, catalog, is_tag=kind == "tag"))


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)


def _described(branch: Branch) -> tuple[Any, ...]:
    r = branch.registration
    return r.owner or None, r.comment or None, r.origin or None


def _kept(branch: Branch) -> tuple[Any, ...]:
    from polaris_spark.property_values import duration_text

    r = branch.registration
    return duration_text(r.keep_ms) if r.keep_ms else None, r.keep_commits or None


_COMMIT = columns("commit_number BIGINT, commit_id BIGINT, committed_at TIMESTAMP")
_DESCRIPTION = columns("owner STRING, comment STRING, source STRING")
_KEPT = columns("retention STRING, keep_commits BIGINT")
_CREATED = Column("created_at", "TIMESTAMP")
_COMMENT = Parameter("comment", "STRING", "a text for people")
_AT = Parameter("at", "STRING", "number, id or time of the commit; by default, the newest commit")
_SOURCE = "the branch or tag to begin with; by default, the branch of the session"
_BRANCH, _TAG = columns("branch STRING, tag STRING")
_BRANCH_NAME = Parameter("name", "STRING", "name of the branch", required=True)
_TAG_NAME = Parameter("name", "STRING", "name of the tag", required=True)
CREATE = Procedure(
    name="create_branch",
    needs=(Need("BRANCH_CREATE", On.CATALOG),),
    comment="Create a branch of the catalog, which begins with the state of another branch or of a tag.",
    parameters=(_BRANCH_NAME, Parameter("source", "STRING", _SOURCE), _AT, _COMMENT, IF_NOT_EXISTS),
    columns=(_BRANCH, *_COMMIT, Column("created", "BOOLEAN")),
    run=partial(_create, kind="branch"),
    over_http=True,
)
DROP = Procedure(
    name="drop_branch",
    needs=(Need("BRANCH_DROP", On.BRANCH, parameter="name"),),
    comment="Drop a branch of the catalog. It can be restored until the grace period ends.",
    parameters=(_BRANCH_NAME, IF_EXISTS),
    columns=(_BRANCH, Column("dropped", "BOOLEAN")),
    run=partial(_drop, kind="branch"),
    over_http=True,
)
UNDROP = Procedure(
    name="undrop_branch",
    needs=(Need("BRANCH_DROP", On.BRANCH, parameter="name"),),
    comment="Restore a dropped branch of the catalog.",
    parameters=(_BRANCH_NAME,),
    columns=(_BRANCH, *_COMMIT),
    run=partial(_undrop, kind="branch"),
    over_http=True,
)
SHOW = Procedure(
    name="show_branches",
    needs=(Need("BRANCH_LIST", On.CATALOG),),
    comment="List the branches of the catalog, when each was created, and how many commits it is ahead of and behind "
    "main.",
    parameters=(),
    columns=(
        _BRANCH,
        *_COMMIT,
        *columns("ahead BIGINT, behind BIGINT"),
        *_DESCRIPTION,
        Column("protected", "BOOLEAN"),
        *_KEPT,
        _CREATED,
    ),
    run=_show_branches,
    over_http=True,
    only_reads=True,
)
DESCRIBE = Procedure(
    name="describe_branch",
    needs=(Need("BRANCH_LIST", On.BRANCH, parameter="name"),),
    comment="Describe a branch of the catalog.",
    parameters=(_BRANCH_NAME,),
    columns=SHOW.columns,
    run=_describe_branch,
    over_http=True,
    only_reads=True,
)
DROP_UNUSED = Procedure(
    name="drop_unused_branches",
    needs=(Need("BRANCH_DROP", On.CATALOG),),
    comment="Drop the branches and staging areas to which nobody has committed for a time, except main and protected "
    "branches.",
    parameters=(
        Parameter(
            "unused_for", "STRING", "minimum time since the newest commit, such as `90 d`", required=True
        ),
        Parameter("dry_run", "BOOLEAN", "only report what would be dropped"),
    ),
    columns=(_BRANCH, *_COMMIT, *columns("owner STRING, dropped BOOLEAN")),
    run=_drop_unused,
    over_http=True,
)
RENAME = Procedure(
    name="rename_branch",
    needs=(
        Need("BRANCH_WRITE_PROPERTIES", On.BRANCH, parameter="name"),
        Need("BRANCH_CREATE", On.CATALOG),
    ),
    comment="Rename a branch of the catalog. Sessions that have it open get an error.",
    parameters=(_BRANCH_NAME, Parameter("to", "STRING", "the new name", required=True)),
    columns=(_BRANCH, *_COMMIT),
    run=partial(_rename, kind="branch"),
    over_http=True,
)
RENAME_TAG = Procedure(
    name="rename_tag",
    needs=(Need("BRANCH_WRITE_PROPERTIES", On.CATALOG), Need("BRANCH_CREATE", On.CATALOG)),
    comment="Rename a tag of the catalog.",
    parameters=(_TAG_NAME, Parameter("to", "STRING", "the new name", required=True)),
    columns=(_TAG, *_COMMIT),
    run=partial(_rename, kind="tag"),
    over_http=True,
)
REASSIGN = Procedure(
    name="reassign_branch",
    needs=(
        Need("BRANCH_WRITE_PROPERTIES", On.BRANCH, parameter="name"),
        Need("BRANCH_MERGE", On.BRANCH, parameter="name"),
        *reads("to", On.STATE, of="name"),
    ),
    comment="Move a branch of the catalog to another commit. Its own later commits are no longer in its history.",
    parameters=(
        _BRANCH_NAME,
        Parameter(
            "to",
            "STRING",
            "a branch, a tag, a commit or time of the branch, or `<branch>#<commit or time>`",
            required=True,
        ),
        Parameter(
            "expected",
            "STRING",
            "number or id of the newest commit that the branch must have before the move",
        ),
    ),
    columns=(_BRANCH, *_COMMIT),
    run=_reassign,
    over_http=True,
)
PROTECT = Procedure(
    name="protect_branch",
    needs=(Need("BRANCH_WRITE_PROPERTIES", On.BRANCH, parameter="name"),),
    comment="Protect a branch of the catalog: only merges, reverts and cherry-picks may change it, and it must not be "
    "moved or dropped.",
    parameters=(_BRANCH_NAME,),
    columns=(_BRANCH, Column("protected", "BOOLEAN")),
    run=partial(_protect, protected=True),
    over_http=True,
)
UNPROTECT = Procedure(
    name="unprotect_branch",
    needs=(Need("BRANCH_WRITE_PROPERTIES", On.BRANCH, parameter="name"),),
    comment="End the protection of a branch of the catalog.",
    parameters=(_BRANCH_NAME,),
    columns=(_BRANCH, Column("protected", "BOOLEAN")),
    run=partial(_protect, protected=False),
    over_http=True,
)
_CHANGED = (Parameter("owner", "STRING", "the new owner"), Parameter("comment", "STRING", "the new comment"))
ALTER = Procedure(
    name="alter_branch",
    needs=(Need("BRANCH_WRITE_PROPERTIES", On.BRANCH, parameter="name"),),
    comment="Change the owner or the comment of a branch of the catalog, or how long its history is kept.",
    parameters=(
        _BRANCH_NAME,
        *_CHANGED,
        Parameter(
            "retention",
            "STRING",
            "minimum time for which the history of the branch is kept, such as `30 d`, if it is longer than "
            "`history-retention`; `0 s` for that of the catalog",
        ),
        Parameter(
            "keep_commits",
            "BIGINT",
            "minimum number of commits before the newest one that are kept, however old they are; 0 for none",
        ),
    ),
    columns=(_BRANCH, *_DESCRIPTION, *_KEPT),
    run=partial(_alter, kind="branch"),
    over_http=True,
)
ALTER_TAG = Procedure(
    name="alter_tag",
    needs=(Need("BRANCH_WRITE_PROPERTIES", On.CATALOG),),
    comment="Change the owner or the comment of a tag of the catalog.",
    parameters=(_TAG_NAME, *_CHANGED),
    columns=(_TAG, *_DESCRIPTION),
    run=partial(_alter, kind="tag"),
    over_http=True,
)
CREATE_TAG = Procedure(
    name="create_tag",
    needs=(Need("BRANCH_CREATE", On.CATALOG),),
    comment="Create a tag of the catalog: a name of a commit, which keeps the state of the commit.",
    parameters=(
        _TAG_NAME,
        Parameter(
            "source", "STRING", "the branch or tag of the commit; by default, the branch of the session"
        ),
        _AT,
        _COMMENT,
        IF_NOT_EXISTS,
    ),
    columns=(_TAG, *_COMMIT, Column("created", "BOOLEAN")),
    run=partial(_create, kind="tag"),
    over_http=True,
)
DROP_TAG = Procedure(
    name="drop_tag",
    needs=(Need("BRANCH_DROP", On.CATALOG),),
    comment="Drop a tag of the catalog. It can be restored until the grace period ends.",
    parameters=(_TAG_NAME, IF_EXISTS),
    columns=(_TAG, Column("dropped", "BOOLEAN")),
    run=partial(_drop, kind="tag"),
    over_http=True,
)
UNDROP_TAG = Procedure(
    name="undrop_tag",
    needs=(Need("BRANCH_DROP", On.CATALOG),),
    comment="Restore a dropped tag of the catalog.",
    parameters=(_TAG_NAME,),
    columns=(_TAG, *_COMMIT),
    run=partial(_undrop, kind="tag"),
    over_http=True,
)
SHOW_TAGS = Procedure(
    name="show_tags",
    needs=(Need("BRANCH_LIST", On.CATALOG),),
    comment="List the tags of the catalog.",
    parameters=(),
    columns=(_TAG, *_COMMIT, *_DESCRIPTION, _CREATED),
    run=_show_tags,
    over_http=True,
    only_reads=True,
)
DESCRIBE_TAG = Procedure(
    name="describe_tag",
    needs=(Need("BRANCH_LIST", On.CATALOG),),
    comment="Describe a tag of the catalog.",
    parameters=(_TAG_NAME,),
    columns=(_TAG, *_COMMIT, *_DESCRIPTION, _CREATED),
    run=_describe_tag,
    over_http=True,
    only_reads=True,
)
