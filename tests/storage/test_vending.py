"""Temporary credentials, from a service that botocore's own client calls."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from polaris_spark.errors import ForbiddenError, TryAgainError, UnsupportedOperationError
from polaris_spark.storage.prefixes import prefix_of, prefixes_of
from polaris_spark.storage.settings import Storage
from polaris_spark.storage.vending import CredentialVendor, policy_of, session_name
from tests.servers.sts import TestSts

ROLE = "arn:aws:iam::123456789012:role/shop"
T = prefix_of("s3://lake/wh/db/t")


@pytest.fixture(scope="module")
def service() -> Iterator[TestSts]:
    with TestSts() as started:
        yield started


@pytest.fixture
def sts(service: TestSts, monkeypatch: pytest.MonkeyPatch) -> TestSts:
    monkeypatch.setenv("STS_KEY", service.key)
    monkeypatch.setenv("STS_SECRET", service.secret)
    service.asked.clear()
    service.refusal = service.lasting_s = None
    return service


class Clock:
    """A clock that tests set, beginning at the true time."""

    def __init__(self) -> None:
        import time

        self.now = int(time.time() * 1_000)

    def __call__(self) -> int:
        return self.now


def storage(sts: TestSts, **more: Any) -> Storage:
    return Storage(
        **{
            "locations": ("s3://lake/wh",),
            "region": "eu-west-1",
            "role_arn": ROLE,
            "sts_endpoint": sts.url,
            "access_key_id": "env:STS_KEY",
            "secret_access_key": "env:STS_SECRET",
            **more,
        }
    )


def allowed(policy: str) -> list[tuple[Any, Any, Any]]:
    return [(one["Action"], one["Resource"], one.get("Condition")) for one in json.loads(policy)["Statement"]]


def test_a_policy_for_reading_allows_only_reads_of_the_prefix() -> None:
    assert allowed(policy_of([T], "read", "aws")) == [
        (["s3:GetObject"], ["arn:aws:s3:::lake/wh/db/t/*"], None),
        ("s3:ListBucket", "arn:aws:s3:::lake", {"StringLike": {"s3:prefix": ["wh/db/t/*"]}}),
        ("s3:GetBucketLocation", "arn:aws:s3:::lake", None),
    ]


def test_a_policy_for_writing_also_allows_puts_and_deletes() -> None:
    [(actions, resources, _), *_] = allowed(policy_of([T], "write", "aws-cn"))
    assert {"s3:GetObject", "s3:PutObject", "s3:DeleteObject"} <= set(actions)
    assert resources == ["arn:aws-cn:s3:::lake/wh/db/t/*"]


def test_wildcards_and_variables_in_a_key_match_only_themselves() -> None:
    odd = prefix_of("s3://lake/wh/*/${aws:userid}")
    assert "wh/${*}/${$}{aws:userid}/*" in policy_of([odd], "read", "aws")
    for text in allowed(policy_of([odd], "read", "aws"))[0][1]:
        assert "wh/*" not in text


def test_a_table_with_paths_in_two_buckets_gets_a_policy_for_both() -> None:
    both = prefixes_of("s3://lake/wh/t", {"write.data.path": "s3a://data/t/"}, ())
    assert [(one.bucket, one.key) for one in both] == [("lake", "wh/t"), ("data", "t")]
    policy = policy_of(both, "read", "aws")
    assert ["arn:aws:s3:::lake/wh/t/*", "arn:aws:s3:::data/t/*"] in [one[1] for one in allowed(policy)]


def test_paths_inside_the_location_add_nothing() -> None:
    inside = {"write.data.path": "s3://lake/wh/t/data", "write.metadata.path": "s3a://lake/wh/t"}
    [only] = prefixes_of("s3://lake/wh/t", inside, ())
    assert (only.bucket, only.key) == ("lake", "wh/t")


def test_locations_that_a_table_does_not_own_are_left_out() -> None:
    paths = {"write.data.path": "s3://lake/other/table"}
    [only] = prefixes_of("s3://lake/wh/t", paths, ["s3://lake/other/table"])
    assert only.key == "wh/t"
    with pytest.raises(UnsupportedOperationError, match="locations have not been confirmed"):
        prefixes_of("s3://lake/wh/t", {}, ["s3://lake/wh/t"])


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("file:///tmp/t", "not for those with the scheme 'file'"),
        ("/tmp/t", "not for those with the scheme 'file'"),
        ("gs://b/t", "'gs'"),
        ("abfss://c@a.dfs.core.windows.net/t", "'abfss'"),
        ("s3://b", "not a valid bucket name"),
        ("s3://bucket", "empty"),
        ("s3://bucket/", "empty"),
        ("s3://key:secret@bucket/t", "not a valid bucket name"),
        ("s3://Bucket/t", "not a valid bucket name"),
        ("s3://bucket/a//t", "empty parts"),
        ("s3://bucket//t", "empty parts"),
        ("s3://bucket/a/../t", r"'\.\.'"),
        ("s3://bucket/a/%2e%2e/t", r"'\.\.'"),
        ("s3://bucket/a/%252e%252E/t", r"'\.\.'"),
        ("s3://bucket/a/..%2ft", r"'\.\.'"),
        ("s3://bucket/t?versionId=1", r"'\?'"),
        ("s3://bucket/a\\t", "control"),
        ("s3://bucket/a%5Ct", "control"),
        ("s3://bucket/a\nt", "control"),
    ],
)
def test_locations_for_which_there_are_no_credentials(location: str, why: str) -> None:
    with pytest.raises(UnsupportedOperationError, match=why):
        prefix_of(location)


def test_a_policy_that_is_too_long_is_refused() -> None:
    with pytest.raises(UnsupportedOperationError, match="the maximum is 2048"):
        policy_of([prefix_of(f"s3://lake/{'a' * 1_000}")], "write", "aws")


def test_the_role_is_assumed_for_the_table_and_the_principal(sts: TestSts) -> None:
    vendor = CredentialVendor(Clock())
    made = vendor.credentials(
        storage(sts, external_id="shop", duration="30 min"), ROLE, [T], "read", "Zoë: a"
    )
    assert (made.access_key, made.secret_key, made.token) == ("ASIA1", "secret-1", "token-1")
    assert "secret" not in repr(made)
    [asked] = sts.asked
    assert asked["Action"] == "AssumeRole"
    assert (asked["RoleArn"], asked["ExternalId"], asked["DurationSeconds"]) == (ROLE, "shop", "1800")
    assert asked["RoleSessionName"] == session_name("Zoë: a") == "polaris-Zo___a"
    assert asked["Policy"] == policy_of([T], "read", "aws")


def test_credentials_are_kept_until_a_quarter_of_their_time_is_left(sts: TestSts) -> None:
    clock = Clock()
    vendor, place = CredentialVendor(clock), storage(sts)
    first = vendor.credentials(place, ROLE, [T], "read", "ann")
    clock.now = first.begun_at + 44 * 60_000
    assert vendor.credentials(place, ROLE, [T], "read", "ann") == first
    clock.now = first.begun_at + 46 * 60_000
    assert vendor.credentials(place, ROLE, [T], "read", "ann").access_key == "ASIA2"
    assert len(sts.asked) == 2


def test_credentials_are_kept_for_one_principal_right_and_table(sts: TestSts) -> None:
    vendor, place = CredentialVendor(Clock()), storage(sts)
    other = prefix_of("s3://lake/wh/db/t2")
    for prefix, right, who in [
        (T, "read", "ann"),
        (T, "write", "ann"),
        (T, "read", "bob"),
        (other, "read", "ann"),
    ]:
        vendor.credentials(place, ROLE, [prefix], right, who)  # type: ignore[arg-type]  # literals in a list
    assert len(sts.asked) == 4


def test_threads_that_ask_at_once_share_one_request(sts: TestSts) -> None:
    vendor, place = CredentialVendor(Clock()), storage(sts)
    found, barrier = [], threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        found.append(vendor.credentials(place, ROLE, [T], "read", "ann"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 8
    assert len(set(found)) == len(sts.asked) == 1


def test_a_refusal_is_not_kept(sts: TestSts) -> None:
    vendor, place = CredentialVendor(Clock()), storage(sts)
    sts.refusal = 403, "AccessDenied"
    with pytest.raises(ForbiddenError, match="has refused") as refused:
        vendor.credentials(place, ROLE, [T], "read", "ann")
    assert "123456789012" not in str(refused.value)
    sts.refusal = 400, "Throttling"
    with pytest.raises(TryAgainError, match="not available"):
        vendor.credentials(place, ROLE, [T], "read", "ann")
    sts.refusal = None
    assert vendor.credentials(place, ROLE, [T], "read", "ann").access_key == "ASIA1"


def test_a_service_that_does_not_answer_means_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STS_KEY", "a")
    monkeypatch.setenv("STS_SECRET", "b")
    gone = TestSts()
    gone.close()
    with pytest.raises(TryAgainError, match="cannot be reached"):
        CredentialVendor(Clock()).credentials(storage(gone), ROLE, [T], "read", "ann")


def test_wrong_keys_of_the_server_are_refused(sts: TestSts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STS_SECRET", "wrong")
    with pytest.raises(ForbiddenError, match="has refused"):
        CredentialVendor(Clock()).credentials(storage(sts), ROLE, [T], "read", "ann")
    assert sts.asked == []
