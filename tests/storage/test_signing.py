"""Which requests to S3 are signed for a table, and which are refused."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from botocore.credentials import ReadOnlyCredentials

from polaris_spark.errors import BadRequestError, ForbiddenError, RequestError
from polaris_spark.storage.prefixes import prefix_of
from polaris_spark.storage.settings import Storage
from polaris_spark.storage.signing import Operation, SignRequest, checked, signed_headers

T = prefix_of("s3://lake/wh/db/t")
KEYS = ReadOnlyCredentials("key", "secret", None)
BASE = "http://10.0.0.1:9000"
OBJECT = f"{BASE}/lake/wh/db/t/data/f.parquet"
READS = Operation(changes=False)
CHANGES = Operation(changes=True)


def storage(**more: Any) -> Storage:
    return Storage(
        **{
            "locations": ("s3://lake/wh",),
            "region": "us-east-1",
            "endpoint": BASE,
            "path_style_access": True,
            "remote_signing": True,
            **more,
        }
    )


def check(
    method: str, uri: str, headers: dict[str, str] | None = None, body: str | None = None, **more: Any
) -> Operation:
    given = {name: [text] for name, text in (headers or {}).items()}
    return checked(SignRequest(method, uri, "us-east-1", given, body), storage(**more), [T])


@pytest.mark.parametrize(
    ("method", "uri", "expected"),
    [
        ("GET", OBJECT, READS),
        ("HEAD", OBJECT, READS),
        ("GET", f"{OBJECT}?x-id=GetObject", READS),
        ("GET", f"{OBJECT}?partNumber=2", READS),
        ("HEAD", f"{BASE}/lake/wh/db/t/data/", READS),
        ("GET", f"{BASE}/lake/wh/db/t/data/day%3D2020%252F01/a%20b%2Bc.parquet", READS),
        ("GET", f"{BASE}/lake?list-type=2&prefix=wh%2Fdb%2Ft%2F&delimiter=%2F&encoding-type=url", READS),
        (
            "GET",
            f"{BASE}/lake/?prefix=wh/db/t/data&max-keys=1&list-type=2&continuation-token=a%2Bb%3D",
            READS,
        ),
        ("PUT", OBJECT, CHANGES),
        ("PUT", f"{OBJECT}?partNumber=1&uploadId=abc", CHANGES),
        ("POST", f"{OBJECT}?uploads", CHANGES),
        ("POST", f"{OBJECT}?uploads=", CHANGES),
        ("POST", f"{OBJECT}?uploadId=abc", CHANGES),
        ("DELETE", OBJECT, CHANGES),
        ("DELETE", f"{OBJECT}?uploadId=abc", CHANGES),
    ],
)
def test_the_operations_that_iceberg_needs_are_signed(method: str, uri: str, expected: Operation) -> None:
    assert check(method, uri) == expected


REFUSED = [
    # another table, or its neighbor with the same beginning
    ("GET", f"{BASE}/lake/wh/db/t2/f"),
    ("GET", f"{BASE}/lake/wh/db/t"),
    ("GET", f"{BASE}/lake/wh/db/T/f"),
    ("GET", f"{BASE}/lake/wh/db/other/f"),
    # another bucket, host, port or scheme
    ("GET", f"{BASE}/other/wh/db/t/f"),
    ("GET", f"{BASE}/Lake/wh/db/t/f"),
    ("GET", f"{BASE}/lak%65/wh/db/t/f"),
    ("GET", f"{BASE}//lake/wh/db/t/f"),
    ("GET", "http://10.0.0.1:9001/lake/wh/db/t/f"),
    ("GET", "http://10.0.0.1/lake/wh/db/t/f"),
    ("GET", "https://10.0.0.1:9000/lake/wh/db/t/f"),
    ("GET", "http://evil.example:9000/lake/wh/db/t/f"),
    ("GET", "http://10.0.0.1:9000@evil.example/lake/wh/db/t/f"),
    ("GET", "http://u:p@10.0.0.1:9000/lake/wh/db/t/f"),
    ("GET", "http://lake.10.0.0.1:9000/wh/db/t/f"),
    ("GET", "http://lake.10.0.0.1:9000/lake/wh/db/t/f"),
    ("GET", "//10.0.0.1:9000/lake/wh/db/t/f"),
    ("GET", "/lake/wh/db/t/f"),
    ("GET", "ftp://10.0.0.1:9000/lake/wh/db/t/f"),
    # tricks with paths
    ("GET", f"{BASE}/lake/wh/db/t/../other/f"),
    ("GET", f"{BASE}/lake/wh/db/t/%2e%2e/other/f"),
    ("GET", f"{BASE}/lake/wh/db/t/%2E./other/f"),
    ("GET", f"{BASE}/lake/wh/db/t/%252e%252e/other/f"),
    ("GET", f"{BASE}/lake/wh/db/t/%25252e%25252e/other/f"),
    ("GET", f"{BASE}/lake/wh/db/t/%2525252e%2525252e/other/f"),
    ("GET", f"{BASE}/lake/wh/db/t%2F..%2Fother%2Ff"),
    ("GET", f"{BASE}/lake/wh/db/t/..%2fother/f"),
    ("GET", f"{BASE}/lake/wh/db/t/..%5cother/f"),
    ("GET", f"{BASE}/lake/wh/db/t/./f"),
    ("GET", f"{BASE}/lake/wh/db/t//f"),
    ("GET", f"{BASE}/lake//wh/db/t/f"),
    ("GET", f"{BASE}/lake/wh/db/t/%2Ff"),
    ("GET", f"{BASE}/lake/wh/db/t/a\\f"),
    ("GET", f"{BASE}/lake/wh/db/t/a%00f"),
    ("GET", f"{BASE}/lake/wh/db/t/a%0af"),
    ("GET", f"{BASE}/lake/wh/db/t/a\nf"),
    ("GET", f"{BASE}/lake/wh/db/t/a f"),
    ("GET", f"{BASE}/lake/wh/db/t/é"),
    ("GET", f"{BASE}/lake/wh/db/t/%c3%28"),
    ("GET", f"{BASE}/lake/wh/db/t/a%zz"),
    ("GET", f"{BASE}/lake/wh/db/t/a%2"),
    ("GET", f"{BASE}/lake/wh/db/t/a+b"),
    ("GET", f"{BASE}/lake/wh/db/t/f#x"),
    # operations on the bucket or the account, and lists beyond the table
    ("GET", f"{BASE}/"),
    ("GET", f"{BASE}/lake"),
    ("HEAD", f"{BASE}/lake"),
    ("PUT", f"{BASE}/lake"),
    ("DELETE", f"{BASE}/lake"),
    ("GET", f"{BASE}/lake?list-type=2"),
    ("GET", f"{BASE}/lake?list-type=2&prefix="),
    ("GET", f"{BASE}/lake?list-type=2&prefix=wh"),
    ("GET", f"{BASE}/lake?list-type=2&prefix=wh/db/t"),
    ("GET", f"{BASE}/lake?list-type=2&prefix=wh/db/t2/"),
    ("GET", f"{BASE}/lake?list-type=2&prefix=wh/db/t/&prefix=wh/"),
    ("GET", f"{BASE}/lake?list-type=2&prefix=wh/db/t/&%70refix=wh/"),
    ("GET", f"{BASE}/lake?list-type=2&Prefix=wh/db/t/"),
    ("GET", f"{BASE}/lake?list-type=2&prefix=wh/db/t/../other"),
    ("GET", f"{BASE}/lake?list-type=2&prefix=wh/db/t/%252e%252e/"),
    ("GET", f"{BASE}/lake?prefix=wh/db/t/&versions"),
    ("GET", f"{BASE}/lake?prefix=wh/db/t/&uploads"),
    ("GET", f"{BASE}/lake?policy"),
    ("GET", f"{BASE}/lake?location"),
    ("PUT", f"{BASE}/lake?policy"),
    ("PUT", f"{BASE}/lake?lifecycle"),
    # other operations on objects
    ("GET", f"{OBJECT}?acl"),
    ("PUT", f"{OBJECT}?acl"),
    ("PUT", f"{OBJECT}?tagging"),
    ("PUT", f"{OBJECT}?retention"),
    ("PUT", f"{OBJECT}?partNumber=1"),
    ("PUT", f"{OBJECT}?uploadId=a"),
    ("POST", OBJECT),
    ("POST", f"{OBJECT}?select&select-type=2"),
    ("POST", f"{OBJECT}?restore"),
    ("POST", f"{OBJECT}?uploads&uploadId=a"),
    ("POST", f"{OBJECT}?delete"),
    ("DELETE", f"{OBJECT}?versionId=1"),
    ("GET", f"{OBJECT}?versionId=1"),
    ("GET", f"{OBJECT}?response-content-type=text/html"),
    ("PATCH", OBJECT),
    ("OPTIONS", OBJECT),
    ("COPY", OBJECT),
    ("get", OBJECT),
    # presigned requests
    ("GET", f"{OBJECT}?X-Amz-Signature=a"),
    ("GET", f"{OBJECT}?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Expires=604800"),
    ("GET", f"{OBJECT}?x-amz-security-token=a"),
    ("GET", f"{OBJECT}?AWSAccessKeyId=a&Signature=b&Expires=9999999999"),
]


@pytest.mark.parametrize(("method", "uri"), REFUSED)
def test_everything_else_is_refused(method: str, uri: str) -> None:
    with pytest.raises((ForbiddenError, BadRequestError)):
        check(method, uri)


@pytest.mark.parametrize(
    "header",
    [
        "x-amz-copy-source",
        "X-Amz-Copy-Source",
        "x-amz-copy-source-range",
        "x-amz-acl",
        "x-amz-grant-read",
        "x-amz-object-lock-mode",
        "x-amz-bypass-governance-retention",
        "x-amz-website-redirect-location",
        "x-amz-tagging",
        "x-amz-security-token",
        "x-amz-rename-source",
        "x-amz-unknown",
        "Authorization",
    ],
)
def test_headers_that_reach_beyond_the_object_are_refused(header: str) -> None:
    with pytest.raises(ForbiddenError, match="with the header"):
        check("PUT", OBJECT, {header: "/lake/wh/db/other/f"})


@pytest.mark.parametrize("headers", [{"x-amz-meta-a": "b\nx-amz-acl: c"}, {"a\r\nx": "b"}])
def test_line_breaks_in_headers_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(BadRequestError, match="characters that cannot be printed"):
        check("PUT", OBJECT, headers)


def test_a_header_in_two_spellings_is_refused() -> None:
    with pytest.raises(BadRequestError, match="twice"):
        check("PUT", OBJECT, {"x-amz-meta-a": "b", "X-Amz-Meta-A": "c"})


def test_the_header_host_must_be_that_of_the_uri() -> None:
    assert check("GET", OBJECT, {"Host": "10.0.0.1:9000"}) == READS
    with pytest.raises(ForbiddenError, match="name different hosts"):
        check("GET", OBJECT, {"Host": "evil.example"})


def test_a_request_for_another_region_is_refused() -> None:
    with pytest.raises(BadRequestError, match="region"):
        checked(SignRequest("GET", OBJECT, "eu-west-1", {}), storage(), [T])


VIRTUAL = {"endpoint": "https://s3.example.com", "path_style_access": False}
AWS = {"endpoint": None, "path_style_access": False}


@pytest.mark.parametrize(
    ("settings", "uri"),
    [
        (VIRTUAL, "https://lake.s3.example.com/wh/db/t/f"),
        (VIRTUAL, "https://LAKE.s3.example.com:443/wh/db/t/f"),
        (AWS, "https://lake.s3.us-east-1.amazonaws.com/wh/db/t/f"),
        (AWS, "https://lake.s3.amazonaws.com/wh/db/t/f"),
        (AWS, "https://s3.us-east-1.amazonaws.com/lake/wh/db/t/f"),
    ],
)
def test_hosts_that_name_the_bucket(settings: dict[str, Any], uri: str) -> None:
    assert check("GET", uri, **settings) == READS


@pytest.mark.parametrize(
    ("settings", "uri"),
    [
        (VIRTUAL, "https://s3.example.com/lake/wh/db/t/f"),
        (VIRTUAL, "https://lake.s3.example.com/lake/wh/db/t/f"),
        (VIRTUAL, "https://lake.s3.example.com./wh/db/t/f"),
        (VIRTUAL, "https://other.lake.s3.example.com/wh/db/t/f"),
        (AWS, "http://lake.s3.us-east-1.amazonaws.com/wh/db/t/f"),
        (AWS, "https://lake.s3.eu-west-1.amazonaws.com/wh/db/t/f"),
        (AWS, "https://other.s3.us-east-1.amazonaws.com/wh/db/t/f"),
        (AWS, "https://s3.us-east-1.amazonaws.com/wh/db/t/f"),
        (AWS, "https://lake.s3.us-east-1.amazonaws.com.evil.example/wh/db/t/f"),
        (AWS, "https://lake.s3-accesspoint.us-east-1.amazonaws.com/wh/db/t/f"),
    ],
)
def test_hosts_that_may_mean_another_bucket_are_refused(settings: dict[str, Any], uri: str) -> None:
    with pytest.raises(ForbiddenError, match=r"does not name a bucket|not in the locations"):
        check("GET", uri, **settings)


XMLNS = "http://s3.amazonaws.com/doc/2006-03-01/"


def deletion(*keys: str, head: str = "", xmlns: str = f' xmlns="{XMLNS}"', more: str = "") -> str:
    objects = "".join(f"<Object><Key>{key}</Key></Object>" for key in keys)
    return f"{head}<Delete{xmlns}>{objects}<Quiet>true</Quiet>{more}</Delete>"


def test_a_deletion_of_several_objects_is_bound_to_its_body() -> None:
    for body in (
        deletion("wh/db/t/a", "wh/db/t/b&amp;c"),
        deletion("wh/db/t/a", head='<?xml version="1.0" encoding="UTF-8"?>', xmlns=""),
    ):
        found = check("POST", f"{BASE}/lake?delete", body=body)
        assert found == Operation(changes=True, body_hash=hashlib.sha256(body.encode()).hexdigest())
        headers = signed_headers(
            SignRequest("POST", f"{BASE}/lake?delete", "us-east-1", {}), found, "us-east-1", KEYS
        )
        assert headers["X-Amz-Content-SHA256"] == found.body_hash
        assert "x-amz-content-sha256" in headers["Authorization"]
        unbound = SignRequest(
            "POST", f"{BASE}/lake?delete", "us-east-1", {"x-amz-content-sha256": ["UNSIGNED-PAYLOAD"]}
        )
        with pytest.raises(BadRequestError, match="not the hash of the body"):
            signed_headers(unbound, found, "us-east-1", KEYS)


@pytest.mark.parametrize(
    "body",
    [
        None,
        "",
        "no XML",
        deletion(),
        deletion("wh/db/other/a"),
        deletion("wh/db/t/a", "wh/db/t2/a"),
        deletion("wh/db/t/../other/a"),
        deletion("wh/db/t/&#46;./other/a"),
        deletion(""),
        deletion("<Key>wh/db/t/a</Key>"),
        deletion("wh/db/<!-- -->t/a"),
        deletion("wh/db/t/<![CDATA[a]]>"),
        deletion("wh/db/t/a", head="<!DOCTYPE a [<!ENTITY b 'c'>]>"),
        deletion("wh/db/t/a", head='<?xml version="1.0" encoding="UTF-7"?>'),
        deletion("wh/db/t/a", more="<Object><Key>wh/db/t/b</Key><VersionId>1</VersionId></Object>"),
        deletion("wh/db/t/a", more="<Object><Key>wh/db/t/b</Key><Key>wh/db/other/b</Key></Object>"),
        deletion("wh/db/t/a", more='<Object xmlns="other"><Key>wh/db/other/b</Key></Object>'),
        deletion("wh/db/t/a", more="<Key>wh/db/other/b</Key>"),
        deletion("wh/db/t/a") + deletion("wh/db/other/a"),
        deletion(*(f"wh/db/t/{number}" for number in range(1_001))),
        deletion("wh/db/t/a").replace("Delete", "Remove"),
    ],
)
def test_a_deletion_with_another_body_is_refused(body: str | None) -> None:
    with pytest.raises((ForbiddenError, BadRequestError)):
        check("POST", f"{BASE}/lake?delete", body=body)


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_the_signature_is_the_one_that_botocore_makes_for_the_request(method: str) -> None:
    """The request is sent with the headers of the client and those of the server. A server of S3 computes the signature
    from them, as botocore does here."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest

    own = {"x-amz-meta-a": ["b  c"], "User-Agent": ["x"], "Range": ["bytes=0-1"], "Content-Length": ["3"]}
    uri = f"{OBJECT}?x-id=a%20b&partNumber=1"
    request = SignRequest(method, uri, "us-east-1", own)
    more = signed_headers(request, CHANGES, "us-east-1", KEYS)
    assert set(more) == {"X-Amz-Date", "X-Amz-Content-SHA256", "Authorization"}
    covered = more["Authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert covered == ["host", "x-amz-content-sha256", "x-amz-date", "x-amz-meta-a"]
    sent = {name.lower(): text for name, text in {**{k: v[0] for k, v in own.items()}, **more}.items()}
    again = AWSRequest(method, uri, headers={one: sent[one] for one in covered if one != "host"})
    again.context["timestamp"] = more["X-Amz-Date"]
    signer = S3SigV4Auth(KEYS, "s3", "us-east-1")
    text = signer.string_to_sign(again, signer.canonical_request(again))
    assert more["Authorization"].rpartition("Signature=")[2] == signer.signature(text, again)


def test_a_session_token_of_the_server_is_part_of_the_signature() -> None:
    request = SignRequest("GET", OBJECT, "us-east-1", {})
    more = signed_headers(request, READS, "us-east-1", ReadOnlyCredentials("key", "secret", "token"))
    assert more["X-Amz-Security-Token"] == "token"
    assert "x-amz-security-token" in more["Authorization"]


@pytest.mark.parametrize("value", ["STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "required", "0" * 63])
def test_hashes_that_need_a_key_for_each_chunk_are_refused(value: str) -> None:
    request = SignRequest("PUT", OBJECT, "us-east-1", {"x-amz-content-sha256": [value]})
    with pytest.raises(RequestError, match="cannot sign"):
        signed_headers(request, CHANGES, "us-east-1", KEYS)
